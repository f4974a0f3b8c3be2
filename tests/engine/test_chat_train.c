// SPDX-License-Identifier: Apache-2.0
/* Whole runs on conversations: what is shown before them, packing that does not change a loss, the
 * place in shuffled data after a resume, and the cache of token ids. */
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint.h"
#include "engine/sluice.h"

static char root[] = "/tmp/sluice-chat-train-XXXXXX";
static char data_path[64];
static char shown[8192], logged[16384];

static void write_records(unsigned seed)
{
    static const char *const words[] = {"sea", "light", "house", "over", "and", "spirit", "moved"};
    struct test_random random = {seed};
    FILE *file = fopen(data_path, "we");
    assert_non_null(file);
    for (int i = 0; i < 120; i++) {
        const char *a = words[test_random_below(&random, 7)];
        const char *b = words[test_random_below(&random, 7)];
        if (i % 3 == 0)
            fprintf(file, "{\"instruction\": \"%s\", \"output\": \"%s %d\"}\n", a, b, i);
        else if (i % 3 == 1)
            fprintf(file,
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": "
                    "\"assistant\", \"content\": \"%s\"}, {\"role\": \"user\", \"content\": "
                    "\"again\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}\n",
                    a, b, a);
        else
            fprintf(file,
                    "{\"conversations\": [{\"from\": \"human\", \"value\": \"%s\"}, {\"from\": "
                    "\"gpt\", \"value\": \"%s\"}]}\n",
                    b, a);
    }
    fclose(file);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(root))
        return -1;
    snprintf(data_path, sizeof(data_path), "%s/chat.jsonl", root);
    write_records(5);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

static void write_log(void *user, enum sl_log_level level, const char *message)
{
    (void)user;
    (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof(logged) - used, "%s\n", message);
}
static const struct sl_log log_sink = {write_log, NULL};

static void keep_example(void *user, const char *text)
{
    (void)user;
    snprintf(shown, sizeof(shown), "%s", text);
}

static volatile sig_atomic_t stop;
static uint64_t stop_at;
static const char *steps = "train.steps=2";
static void stop_there(void *user, const struct sl_progress *progress)
{
    (void)user;
    stop = stop || progress->step == stop_at;
}

/* Train `name` with one set beside the common ones. */
static struct sl_train_result train(const char *name, const char *set, bool resume)
{
    char out[96];
    const char *data[] = {data_path};
    const char *sets[] = {"train.micro_batch=1",
                          "train.accumulation=2",
                          "train.sequence_length=512",
                          "train.precision=fp32",
                          "train.learning_rate=1e-3",
                          steps,
                          "train.eval_interval=2",
                          "data.validation_fraction=0.3",
                          "data.template=chatml",
                          "threads=2",
                          set};
    struct sl_train_result result;
    struct sl_error error = {0};
    snprintf(out, sizeof(out), "%s/%s", root, name);
    struct sl_train_options options = {.run = {.model = "tiny",
                                               .data = data,
                                               .data_count = 1,
                                               .sets = sets,
                                               .set_count = sizeof(sets) / sizeof(sets[0]),
                                               .device = "host",
                                               .log = &log_sink},
                                       .out = out,
                                       .resume = resume,
                                       .example = keep_example,
                                       .progress = stop_there,
                                       .stop = &stop};
    logged[0] = shown[0] = 0;
    stop = 0;
    if (sl_train(&options, &result, &error))
        fail_msg("%s", error.message);
    return result;
}

static uint64_t hash_of(const struct sl_train_result *result)
{
    uint64_t hash, saved;
    struct sl_error error = {0};
    if (sl_checkpoint_verify(result->checkpoint, &hash, &saved, &error))
        fail_msg("%s", error.message);
    return hash;
}

static void the_first_sequence_is_shown_with_its_mask(void **state)
{
    (void)state;
    train("shown", "train.seed=0", false);
    assert_non_null(strstr(logged, "template chatml, loss on answers, packed"));
    assert_non_null(strstr(shown, "document 1\n  context | <|im_start|>user\\n"));
    const char *trained = strstr(shown, "  trained | ");
    assert_non_null(trained);
    assert_non_null(strstr(trained, "<|im_end|>\n"));
    assert_non_null(strstr(shown, "document 2\n"));
    train("shown-all", "data.train_on_prompt=true", false);
    assert_non_null(strstr(logged, "loss on every token"));
    assert_null(strstr(shown, "<|im_start|>assistant\\n\n"));
}

/* Without a step, the loss of the held-out conversations is a fact of the conversations: how they
 * share sequences must not matter. */
static void packing_does_not_change_a_loss(void **state)
{
    (void)state;
    double loss[2];
    for (int i = 0; i < 2; i++) {
        char out[96];
        const char *data[] = {data_path};
        const char *sets[] = {"train.micro_batch=1",
                              "train.sequence_length=512",
                              "train.precision=fp32",
                              "train.learning_rate=0",
                              "train.steps=1",
                              "train.eval_interval=1",
                              "data.template=chatml",
                              "data.validation_fraction=0.5",
                              "threads=2",
                              i ? "data.packing=false" : "data.packing=true"};
        snprintf(out, sizeof(out), "%s/packing-%d", root, i);
        struct sl_train_options options = {.run = {.model = "tiny",
                                                   .data = data,
                                                   .data_count = 1,
                                                   .sets = sets,
                                                   .set_count = sizeof(sets) / sizeof(sets[0]),
                                                   .device = "host"},
                                           .out = out};
        struct sl_train_result result;
        struct sl_error error = {0};
        if (sl_train(&options, &result, &error))
            fail_msg("%s", error.message);
        loss[i] = result.eval_loss;
    }
    printf("  held-out loss %.9g packed, %.9g apart\n", loss[0], loss[1]);
    assert_true(loss[0] > 1);
    /* f32 sums of the same numbers in another order. */
    assert_true(fabs(loss[0] - loss[1]) < 1e-6 * loss[0]);
}

static void a_resumed_run_sees_the_same_order(void **state)
{
    (void)state;
    steps = "train.steps=8";
    struct sl_train_result whole = train("whole", "train.seed=3", false);
    assert_int_equal(whole.step, 8);
    uint64_t hash = hash_of(&whole);
    for (stop_at = 2; stop_at <= 5; stop_at += 3) {
        char name[32];
        snprintf(name, sizeof(name), "stopped-%d", (int)stop_at);
        struct sl_train_result part = train(name, "train.seed=3", false);
        assert_true(part.stopped && part.step < 8);
        struct sl_train_result rest = train(name, "train.seed=3", true);
        assert_int_equal(rest.step, 8);
        assert_string_equal(shown, ""); /* shown once, not at a resume */
        assert_true(hash_of(&rest) == hash);
    }
    stop_at = 0;
    steps = "train.steps=2";
    struct sl_train_result other = train("in-order", "data.shuffle=false", false);
    assert_true(hash_of(&other) != hash);
}

static void texts_are_tokenized_once(void **state)
{
    (void)state;
    char set[96];
    snprintf(set, sizeof(set), "data.cache_path=%s/kept/ids", root);
    struct sl_train_result first = train("cache-1", set, false);
    assert_null(strstr(logged, "already"));
    struct sl_train_result second = train("cache-2", set, false);
    assert_non_null(strstr(logged, "already tokeni"));
    struct sl_train_result without = train("cache-3", "data.cache=false", false);
    assert_true(hash_of(&first) == hash_of(&second) && hash_of(&first) == hash_of(&without));
    struct stat info;
    char folder[96];
    snprintf(folder, sizeof(folder), "%s/cache-3/cache", root);
    assert_int_not_equal(stat(folder, &info), 0);
    write_records(6);
    train("cache-4", set, false);
    assert_null(strstr(logged, "already"));
    assert_non_null(strstr(logged, "made anew beside them"));
}

static void reading_can_be_stopped(void **state)
{
    (void)state;
    const char *data[] = {data_path};
    const char *sets[] = {"train.steps=1", "train.sequence_length=64"};
    char out[96];
    struct stat info;
    snprintf(out, sizeof(out), "%s/unread", root);
    struct sl_train_options options = {
        .run = {.model = "tiny",
                .data = data,
                .data_count = 1,
                .sets = sets,
                .set_count = 2,
                .device = "host"},
        .out = out,
        .stop = &stop,
    };
    struct sl_error error = {0};
    stop = 1;
    assert_int_equal(sl_train(&options, NULL, &error), -ECANCELED);
    assert_int_not_equal(stat(out, &info), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_sequence_is_shown_with_its_mask),
        cmocka_unit_test(packing_does_not_change_a_loss),
        cmocka_unit_test(a_resumed_run_sees_the_same_order),
        cmocka_unit_test(texts_are_tokenized_once),
        cmocka_unit_test(reading_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
