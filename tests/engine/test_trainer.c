// SPDX-License-Identifier: Apache-2.0
/* Whole runs: killed, stopped and resumed to the same bits; inputs that are wrong; nothing left
 * behind. */
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/checkpoint.h"
#include "engine/trainer.h"

#define STEPS "12"

static char root[64], text_path[128], nvme_path[128];

/* Words in random order: something to learn, and the same everywhere. */
static void write_text(const char *path, size_t words)
{
    static const char *const list[] = {"in",    "the",  "beginning", "was",   "light", "and",
                                       "water", "over", "earth",     "moved", "spirit"};
    struct test_random random = {99};
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    for (size_t i = 0; i < words; i++)
        fprintf(file, "%s%s", list[test_random_below(&random, 11)], i % 9 == 8 ? ".\n" : " ");
    fclose(file);
}

static void remove_tree(const char *path)
{
    char command[256];
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/sluice-trainer-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(text_path, sizeof(text_path), "%s/text", root);
    snprintf(nvme_path, sizeof(nvme_path), "%s/nvme", root);
    assert_int_equal(mkdir(nvme_path, 0700), 0);
    write_text(text_path, 8000);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

enum { SETS = 16 };

struct run {
    const char *sets[SETS];
    size_t set_count;
    const char *data[1];
    char out[128], nvme_set[160];
    struct sl_train_options options;
};

static void make_run(struct run *run, const char *name, const char *steps, const char *optimizer)
{
    static const char *const sets[] = {"train.micro_batch=2",      "train.accumulation=2",
                                       "train.sequence_length=32", "train.learning_rate=1e-2",
                                       "train.save_interval=4",    "train.eval_interval=6",
                                       "train.eval_batches=2",     "threads=2"};
    memset(run, 0, sizeof(*run));
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        run->sets[run->set_count++] = sets[i];
    run->sets[run->set_count++] = steps;
    run->sets[run->set_count++] = optimizer;
    snprintf(run->nvme_set, sizeof(run->nvme_set), "nvme.path=%s", nvme_path);
    run->sets[run->set_count++] = run->nvme_set;
    snprintf(run->out, sizeof(run->out), "%s/%s", root, name);
    run->data[0] = text_path;
    run->options = (struct sl_train_options){
        .run = {.model = "tiny",
                .data = run->data,
                .data_count = 1,
                .sets = run->sets,
                .set_count = run->set_count,
                .device = "host"},
        .out = run->out,
    };
}

static uint64_t final_hash(const struct run *run)
{
    struct sl_error error = {0};
    struct sl_checkpoint checkpoint;
    char path[SL_CHECKPOINT_PATH_BYTES];
    uint64_t hash;
    if (sl_checkpoint_latest(run->out, path, &error) ||
        sl_checkpoint_read(path, &checkpoint, &error) || sl_checkpoint_hash(path, &hash, &error))
        fail_msg("%s", error.message);
    assert_true(hash == checkpoint.state_hash);
    assert_int_equal(checkpoint.step, 12);
    return hash;
}

static void train(struct run *run)
{
    struct sl_error error = {0};
    if (sl_train(&run->options, NULL, &error))
        fail_msg("%s", error.message);
}

static uint64_t unbroken_hash(void)
{
    static uint64_t hash;
    struct run run;
    if (hash == 0) {
        make_run(&run, "unbroken", "train.steps=" STEPS, "placement.optimizer=host");
        train(&run);
        hash = final_hash(&run);
    }
    return hash;
}

/* A profile opens the settings to choice; the slow drive, wide memory and costly products of this
 * one make others than the rule's win. */
static void settings_chosen_by_a_profile_keep_the_bits(void **state)
{
    (void)state;
    static const char profile[] =
        "{\"name\": \"made-up\", \"device_is_host\": true,"
        "\"host_memory_bytes\": {\"value\": 8e9, \"source\": \"made up\"},"
        "\"host_bytes_per_second\": {\"value\": 9e10, \"source\": \"made up\"},"
        "\"host_cores\": {\"value\": 2, \"source\": \"made up\"},"
        "\"core_bytes_per_second\": {\"value\": 4e10, \"source\": \"made up\"},"
        "\"core_flops_per_second\": {\"value\": 1e9, \"source\": \"made up\"},"
        "\"nvme_read_bytes_per_second\": {\"value\": 1e8, \"source\": \"made up\"},"
        "\"nvme_write_bytes_per_second\": {\"value\": 1e8, \"source\": \"made up\"}}";
    char path[128];
    snprintf(path, sizeof(path), "%s/hardware.json", root);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(profile, file);
    fclose(file);
    struct run run;
    struct sl_error error = {0};
    char *text;
    make_run(&run, "chosen", "train.steps=" STEPS, "placement.optimizer=nvme");
    run.options.run.hardware = path;
    if (sl_plan_run(&run.options.run, false, &text, &error))
        fail_msg("%s", error.message);
    const char *chosen = strstr(text, "chosen: the fastest that fits");
    assert_non_null(chosen);
    const char *rule = strstr(text, "the rule: fastest tier first");
    assert_true(rule && (size_t)(chosen - rule) > strcspn(rule, "\n")); /* another one won */
    assert_non_null(strstr(text, "seconds per step"));
    free(text);
    train(&run);
    assert_true(final_hash(&run) == unbroken_hash());
}

static void assert_nvme_is_empty(void)
{
    DIR *folder = opendir(nvme_path);
    assert_non_null(folder);
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        /* The lock file may stay: it holds nothing. */
        struct stat info;
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", nvme_path, entry->d_name);
        if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
            fail_msg("%s is left behind, %lld bytes", path, (long long)info.st_size);
    }
    closedir(folder);
}

/* The child is killed as soon as it has reported step `at`. */
struct killer {
    uint64_t at;
    int pipe;
};

static void report_step(void *user, const struct sl_progress *progress)
{
    struct killer *killer = user;
    if (progress->step >= killer->at) {
        ssize_t ignored = write(killer->pipe, "x", 1);
        (void)ignored;
    }
}

static void killed_at_any_step_resumes_to_the_same_bits(void **state)
{
    (void)state;
    uint64_t expected = unbroken_hash();
    struct test_random random = test_random_seed(5);
    for (int round = 0; round < 3; round++) {
        struct run run;
        char name[16];
        snprintf(name, sizeof(name), "killed-%d", round);
        make_run(&run, name, "train.steps=" STEPS, "placement.optimizer=nvme");
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        struct killer killer = {1 + test_random_below(&random, 10), ends[1]};
        pid_t child = fork();
        if (child == 0) {
            run.options.progress = report_step;
            run.options.user = &killer;
            struct sl_error error = {0};
            _exit(sl_train(&run.options, NULL, &error) ? 3 : 0);
        }
        char byte;
        assert_int_equal(read(ends[0], &byte, 1), 1);
        usleep((useconds_t)test_random_below(&random, 20000)); /* into the middle of something */
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        close(ends[0]);
        close(ends[1]);
        printf("  killed after step %llu\n", (unsigned long long)killer.at);
        assert_nvme_is_empty();
        char path[SL_CHECKPOINT_PATH_BYTES];
        run.options.resume = sl_checkpoint_latest(run.out, path, NULL) == 0;
        train(&run);
        assert_true(final_hash(&run) == expected);
    }
}

static volatile sig_atomic_t stop;

static void stop_at_seven(void *user, const struct sl_progress *progress)
{
    (void)user;
    if (progress->step == 6)
        stop = 1;
}

static void count_warnings(void *user, enum sl_log_level level, const char *message)
{
    size_t *count = user;
    *count += level == SL_LOG_WARNING && strstr(message, "other hardware") != NULL;
}

/* Ctrl-C saves; the run goes on with another placement, order and thread count, to the same bits,
 * and says nothing of other hardware. */
static void stopped_and_resumed_elsewhere(void **state)
{
    (void)state;
    struct run run;
    make_run(&run, "stopped", "train.steps=" STEPS, "placement.optimizer=nvme");
    run.options.progress = stop_at_seven;
    run.options.stop = &stop;
    struct sl_train_result result;
    struct sl_error error = {0};
    stop = 0;
    if (sl_train(&run.options, &result, &error))
        fail_msg("%s", error.message);
    assert_true(result.stopped);
    assert_true(result.step >= 6 && result.step <= 7);
    struct run again;
    make_run(&again, "stopped", "train.steps=" STEPS, "placement.weights=host");
    again.sets[again.set_count++] = "schedule.order=batch-major";
    again.sets[again.set_count++] = "threads=1";
    again.options.run.set_count = again.set_count;
    again.options.run.device = "host:discrete";
    size_t warnings = 0;
    struct sl_log log = {count_warnings, &warnings};
    again.options.run.log = &log;
    again.options.resume = true;
    if (sl_train(&again.options, &result, &error))
        fail_msg("%s", error.message);
    /* host:discrete is another device by name, and the same arithmetic. */
    assert_int_equal(warnings, 0);
    assert_true(final_hash(&again) == unbroken_hash());
}

/* Weights without a master, rounded by counters: the same across placements and a resume, which
 * cannot change to another master. */
static void no_master_resumes_to_the_same_bits(void **state)
{
    (void)state;
    static const char *const extra[] = {"optimizer.master=none", "optimizer.moments=bf16"};
    struct run whole, part;
    make_run(&whole, "none-whole", "train.steps=" STEPS, "placement.optimizer=host");
    make_run(&part, "none-part", "train.steps=" STEPS, "placement.weights=nvme");
    for (int i = 0; i < 2; i++) {
        whole.sets[whole.set_count++] = extra[i];
        part.sets[part.set_count++] = extra[i];
    }
    whole.options.run.set_count = part.options.run.set_count = whole.set_count;
    train(&whole);
    part.options.progress = stop_at_seven;
    part.options.stop = &stop;
    stop = 0;
    train(&part);
    part.options.resume = true;
    part.options.run.device = "host:discrete";
    part.options.progress = NULL;
    stop = 0;
    part.sets[part.set_count - 2] = "optimizer.master=split";
    struct sl_error error = {0};
    assert_int_not_equal(sl_train(&part.options, NULL, &error), 0);
    assert_non_null(strstr(error.message, "optimizer.master"));
    part.sets[part.set_count - 2] = extra[0];
    train(&part);
    assert_true(final_hash(&part) == final_hash(&whole));
    assert_true(final_hash(&whole) != unbroken_hash());
}

/* Every operation costs, so that large micro-batches are fast, and the drive is slow. */
static void write_profile(char path[128])
{
    static const char profile[] =
        "{\"name\": \"made-up\", \"device_is_host\": true,"
        "\"host_memory_bytes\": {\"value\": 8e9, \"source\": \"made up\"},"
        "\"host_bytes_per_second\": {\"value\": 9e10, \"source\": \"made up\"},"
        "\"host_cores\": {\"value\": 2, \"source\": \"made up\"},"
        "\"core_bytes_per_second\": {\"value\": 4e10, \"source\": \"made up\"},"
        "\"core_flops_per_second\": {\"value\": 1e11, \"source\": \"made up\"},"
        "\"device_op_seconds\": {\"value\": 1e-3, \"source\": \"made up\"},"
        "\"nvme_read_bytes_per_second\": {\"value\": 1e6, \"source\": \"made up\"},"
        "\"nvme_write_bytes_per_second\": {\"value\": 1e6, \"source\": \"made up\"}}";
    snprintf(path, 128, "%s/batch-hardware.json", root);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(profile, file);
    fclose(file);
}

/* The first number behind `key`, behind `section`, of `sluice plan --json`. */
static unsigned long long planned(const struct run *run, const char *section, const char *key)
{
    struct sl_error error = {0};
    unsigned long long number = 0;
    char *text;
    if (sl_plan_run(&run->options.run, true, &text, &error))
        fail_msg("%s", error.message);
    const char *at = strstr(text, section);
    assert_non_null(at);
    at = strstr(at, key);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(key), "%llu", &number), 1);
    free(text);
    return number;
}

static void make_auto_run(struct run *run, const char *name, const char *batch, const char *memory,
                          const char *hardware)
{
    make_run(run, name, "train.steps=" STEPS, memory);
    run->sets[0] = batch;
    run->sets[1] = "train.batch=16";
    run->options.run.hardware = hardware;
}

static int train_fails(struct run *run, const char *expected);

/* What auto chose is the run's: on less memory, where it would choose another, it goes on to the
 * same bits. Another number is refused. */
static void an_auto_micro_batch_is_chosen_once(void **state)
{
    (void)state;
    char hardware[128], memory[64];
    struct run whole, given, part;
    write_profile(hardware);
    make_auto_run(&whole, "auto-whole", "train.micro_batch=auto", "memory.host=2GiB", hardware);
    assert_int_equal(planned(&whole, "", "\"micro_batch\": "), 16);
    unsigned long long needed = planned(&whole, "\"micro_batch_candidates\"", "\"host_bytes\": ");
    train(&whole);
    make_auto_run(&given, "auto-given", "train.micro_batch=16", "memory.host=2GiB", NULL);
    train(&given);
    assert_true(final_hash(&whole) == final_hash(&given));

    make_auto_run(&part, "auto-part", "train.micro_batch=auto", "memory.host=2GiB", hardware);
    part.options.progress = stop_at_seven;
    part.options.stop = &stop;
    stop = 0;
    train(&part);
    stop = 0;
    part.options.progress = NULL;
    part.options.resume = true;
    part.sets[0] = "train.micro_batch=8";
    train_fails(&part, "micro-batch was 16 and is now 8");
    part.sets[0] = "train.micro_batch=auto";
    part.sets[1] = "train.batch=24";
    train_fails(&part, "a batch of 24 is no multiple of the run's micro-batch 16");
    part.sets[1] = "train.batch=16";
    snprintf(memory, sizeof(memory), "memory.host=%llu", needed - (1 << 20));
    part.sets[9] = memory;
    assert_true(planned(&part, "", "\"micro_batch\": ") < 16);
    train(&part);
    assert_true(final_hash(&part) == final_hash(&whole));
}

static void an_auto_micro_batch_that_cannot_fit_is_named(void **state)
{
    (void)state;
    char hardware[128];
    struct run run;
    write_profile(hardware);
    make_auto_run(&run, "auto-wrong", "train.micro_batch=auto", "memory.host=1MiB", hardware);
    train_fails(&run, "train.micro_batch auto: not even 1 fits: memory.host");
    train_fails(&run, "raise memory.host");
}

static int train_fails(struct run *run, const char *expected)
{
    struct sl_error error = {0};
    int result = sl_train(&run->options, NULL, &error);
    printf("  %s\n", error.message);
    assert_int_not_equal(result, 0);
    if (!strstr(error.message, expected))
        fail_msg("\"%s\" does not speak of \"%s\"", error.message, expected);
    return result;
}

static void wrong_input_is_named_and_creates_nothing(void **state)
{
    (void)state;
    struct run run;
    struct stat info;
    make_run(&run, "wrong", "train.steps=1", "placement.optimizer=nvme");
    run.data[0] = "/nonexistent/text";
    train_fails(&run, "/nonexistent/text");

    make_run(&run, "wrong", "train.steps=1", "nvme.path=/nonexistent/nvme");
    run.set_count = 0; /* the path alone */
    run.options.run.sets =
        (const char *const[]){"nvme.path=/nonexistent/nvme", "placement.optimizer=nvme"};
    run.options.run.set_count = 2;
    train_fails(&run, "/nonexistent/nvme");

    make_run(&run, "wrong", "train.steps=1", "train.sequence_length=100000");
    train_fails(&run, "100000");

    make_run(&run, "wrong", "train.steps=1", "memory.host=1MiB");
    run.options.run.sets =
        (const char *const[]){"memory.host=1MiB", "train.steps=1", "train.sequence_length=32"};
    run.options.run.set_count = 3;
    train_fails(&run, "memory.host");

    make_run(&run, "wrong", "train.steps=1", "train.no_such_key=1");
    train_fails(&run, "no_such_key");

    make_run(&run, "wrong", "train.steps=1", "placement.optimizer=host");
    run.options.resume = true;
    train_fails(&run, "checkpoint");
    run.options.resume = false;
    run.options.run.model = "no-such-model";
    train_fails(&run, "no-such-model");
    (void)info;
}

static void empty_text_is_refused(void **state)
{
    (void)state;
    struct run run;
    struct stat info;
    char empty[160];
    snprintf(empty, sizeof(empty), "%s/empty", root);
    fclose(fopen(empty, "we"));
    make_run(&run, "empty-out", "train.steps=1", "placement.optimizer=host");
    run.data[0] = empty;
    train_fails(&run, empty);
    assert_int_not_equal(stat(run.out, &info), 0);
}

/* A damaged checkpoint is not resumed from. */
static void a_changed_file_is_found(void **state)
{
    (void)state;
    struct run run;
    make_run(&run, "damaged", "train.steps=4", "placement.optimizer=host");
    train(&run);
    char path[SL_CHECKPOINT_PATH_BYTES + 64], folder[SL_CHECKPOINT_PATH_BYTES];
    assert_int_equal(sl_checkpoint_latest(run.out, folder, NULL), 0);
    snprintf(path, sizeof(path), "%s/sluice-exp_avg.safetensors", folder);
    FILE *file = fopen(path, "r+be");
    assert_non_null(file);
    fseek(file, -100, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -100, SEEK_END);
    fputc(byte ^ 4, file);
    fclose(file);
    make_run(&run, "damaged", "train.steps=8", "placement.optimizer=host");
    run.options.resume = true;
    assert_int_equal(train_fails(&run, "hash"), -EBADMSG);
}

/* A disk that is full when the second checkpoint is written: a named error, the first one intact.
 */
static void a_full_disk_leaves_the_last_checkpoint(void **state)
{
    (void)state;
    struct run run;
    make_run(&run, "full", "train.steps=4", "placement.optimizer=host");
    train(&run);
    char before[SL_CHECKPOINT_PATH_BYTES], after[SL_CHECKPOINT_PATH_BYTES];
    assert_int_equal(sl_checkpoint_latest(run.out, before, NULL), 0);
    pid_t child = fork();
    if (child == 0) {
        struct run again;
        make_run(&again, "full", "train.steps=8", "placement.optimizer=host");
        again.options.resume = true;
        struct rlimit limit = {100000, 100000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        struct sl_error error = {0};
        int result = sl_train(&again.options, NULL, &error);
        printf("  %s\n", error.message);
        fflush(stdout);
        _exit(result && error.domain == SL_DOMAIN_IO ? 0 : 3);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(sl_checkpoint_latest(run.out, after, NULL), 0);
    assert_string_equal(before, after);
    uint64_t hash, saved;
    struct sl_error error = {0};
    assert_int_equal(sl_checkpoint_verify(after, &hash, &saved, &error), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_step_resumes_to_the_same_bits),
        cmocka_unit_test(stopped_and_resumed_elsewhere),
        cmocka_unit_test(no_master_resumes_to_the_same_bits),
        cmocka_unit_test(an_auto_micro_batch_is_chosen_once),
        cmocka_unit_test(an_auto_micro_batch_that_cannot_fit_is_named),
        cmocka_unit_test(wrong_input_is_named_and_creates_nothing),
        cmocka_unit_test(empty_text_is_refused),
        cmocka_unit_test(a_changed_file_is_found),
        cmocka_unit_test(settings_chosen_by_a_profile_keep_the_bits),
        cmocka_unit_test(a_full_disk_leaves_the_last_checkpoint),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
