// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "nvme/swap_files.h"
#include "tests/nvme/swap_model.h"

#define MIB ((uint64_t)1 << 20)

static void bytes_come_back(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(1);
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = 16 * MIB});
    char *written = model_buffer(16 * MIB), *read = model_buffer(16 * MIB);
    model_fill(&random, written, 16 * MIB);
    sl_swap_register(swap, written, 16 * MIB); /* a limit may forbid it: no error */
    assert_int_equal(sl_swap_transfer(swap, true, 0, written, 16 * MIB), 0);
    assert_int_equal(sl_swap_transfer(swap, false, 0, read, 16 * MIB), 0);
    assert_memory_equal(written, read, 16 * MIB);
    memset(read, 0, 16 * MIB);
    assert_int_equal(sl_swap_transfer(swap, false, 4096, read, 3 * MIB + 4096), 0);
    assert_memory_equal(written + 4096, read, 3 * MIB + 4096);
    struct sl_swap_stats stats;
    sl_swap_stats(swap, &stats);
    assert_int_equal(stats.bytes_written, 16 * MIB);
    assert_int_equal(stats.bytes_read, 19 * MIB + 4096);
    sl_swap_destroy(swap);
    free(written);
    free(read);
}

static void unwritten_ranges_read_as_zeros(void **state)
{
    (void)state;
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = 4 * MIB});
    char *buffer = model_buffer(4 * MIB);
    memset(buffer, 0xff, 4 * MIB);
    assert_int_equal(sl_swap_transfer(swap, false, 0, buffer, 4 * MIB), 0);
    for (uint64_t i = 0; i < 4 * MIB; i++)
        assert_int_equal(buffer[i], 0);
    sl_swap_destroy(swap);
    free(buffer);
}

struct counted {
    struct sl_swap_request request;
    sem_t *finished;
    int result, calls;
};

static void count_done(struct sl_swap_request *request, int result)
{
    struct counted *counted = request->user;
    counted->result = result;
    counted->calls++;
    sem_post(counted->finished);
}

static void many_requests_in_both_directions(void **state)
{
    (void)state;
    enum { COUNT = 64 };
    const uint64_t bytes = 320 << 10;
    struct test_random random = test_random_seed(2);
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){
        .bytes_total = COUNT * bytes, .block_bytes = 128 << 10, .queue_depth = 4});
    char *written = model_buffer(COUNT * bytes), *read = model_buffer(COUNT * bytes);
    model_fill(&random, written, COUNT * bytes);
    assert_int_equal(sl_swap_transfer(swap, true, 0, written, COUNT / 2 * bytes), 0);
    sem_t finished;
    sem_init(&finished, 0, 0);
    static struct counted all[COUNT];
    for (int i = 0; i < COUNT; i++) {
        bool write = i >= COUNT / 2;
        all[i] = (struct counted){.finished = &finished};
        all[i].request = (struct sl_swap_request){.write = write,
                                                  .offset_bytes = i * bytes,
                                                  .bytes = bytes,
                                                  .buffer = (write ? written : read) + i * bytes,
                                                  .done = count_done,
                                                  .user = &all[i]};
        sl_swap_submit(swap, &all[i].request);
    }
    for (int i = 0; i < COUNT; i++)
        sem_wait(&finished);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(all[i].result, 0);
        assert_int_equal(all[i].calls, 1);
    }
    assert_memory_equal(written, read, COUNT / 2 * bytes);
    assert_int_equal(sl_swap_transfer(swap, false, 0, read, COUNT * bytes), 0);
    assert_memory_equal(written, read, COUNT * bytes);
    sl_swap_destroy(swap);
    sem_destroy(&finished);
    free(written);
    free(read);
}

static void bad_ranges_are_refused(void **state)
{
    (void)state;
    char *buffer = model_buffer(8192);
    struct {
        uint64_t offset, bytes;
        char *buffer;
    } bad[] = {{1, 4096, buffer},       {0, 4095, buffer},
               {MIB, 4096, buffer},     {MIB - 4096, 8192, buffer},
               {0, 4096, buffer + 512}, {UINT64_MAX - 4095, 8192, buffer}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = MIB});
        assert_int_equal(sl_swap_transfer(swap, true, bad[i].offset, bad[i].buffer, bad[i].bytes),
                         -EINVAL);
        struct sl_error error;
        sl_swap_error(swap, &error);
        assert_int_equal(error.code, -EINVAL);
        sl_swap_destroy(swap);
    }
    free(buffer);
}

static void a_second_run_is_refused(void **state)
{
    (void)state;
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = MIB}),
                   *other = NULL;
    const char *paths[] = {model_directory};
    struct sl_swap_options options = {.paths = paths, .path_count = 1, .bytes_total = MIB};
    struct sl_error error = {0};
    assert_int_equal(sl_swap_create(&other, &options, &error), -EBUSY);
    assert_non_null(strstr(error.message, model_directory));
    sl_swap_destroy(swap);
    assert_int_equal(sl_swap_create(&other, &options, &(struct sl_error){0}), 0);
    sl_swap_destroy(other);
}

static void too_much_names_needed_and_free(void **state)
{
    (void)state;
    const char *paths[] = {model_directory};
    struct sl_swap_options options = {
        .paths = paths, .path_count = 1, .bytes_total = (uint64_t)1 << 43};
    struct sl_swap *swap = NULL;
    struct sl_error error = {0};
    int code = sl_swap_create(&swap, &options, &error);
    assert_int_equal(code, -ENOSPC);
    assert_non_null(strstr(error.message, "8.00 TiB needed"));
    assert_non_null(strstr(error.message, "free"));
}

static void missing_directory_is_named(void **state)
{
    (void)state;
    const char *paths[] = {"/nonexistent/swap"};
    struct sl_swap_options options = {.paths = paths, .path_count = 1, .bytes_total = MIB};
    struct sl_swap *swap = NULL;
    struct sl_error error = {0};
    assert_int_equal(sl_swap_create(&swap, &options, &error), -ENOENT);
    assert_non_null(strstr(error.message, "/nonexistent/swap"));
}

/* A run that is killed leaves no file and no lock. */
static void a_killed_run_leaves_nothing(void **state)
{
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = MIB});
        char *buffer = model_buffer(MIB);
        memset(buffer, 3, MIB);
        char code = (char)sl_swap_transfer(swap, true, 0, buffer, MIB);
        _exit(write(ready[1], &code, 1) == 1 ? pause() : 1);
    }
    char code = 1;
    assert_int_equal(read(ready[0], &code, 1), 1);
    assert_int_equal(code, 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = MIB});
    sl_swap_destroy(swap); /* the teardown finds the directory empty */
}

/* Where the file system has no nameless files a kill can leave one with a name. */
static void stale_files_are_removed(void **state)
{
    (void)state;
    char path[192];
    snprintf(path, sizeof(path), "%s/sluice-swap-1.tmp", model_directory);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(access(path, F_OK), 0);
    sl_swap_destroy(model_create_swap((struct sl_swap_options){.bytes_total = MIB}));
    assert_int_equal(access(path, F_OK), -1);
}

static void prewriting_changes_nothing_that_is_read(void **state)
{
    (void)state;
    struct sl_swap *swap = model_create_swap(
        (struct sl_swap_options){.bytes_total = 5 * MIB + 4096, .prewrite = true});
    char *buffer = model_buffer(5 * MIB + 4096);
    memset(buffer, 0xff, 5 * MIB + 4096);
    assert_int_equal(sl_swap_transfer(swap, false, 0, buffer, 5 * MIB + 4096), 0);
    for (uint64_t i = 0; i < 5 * MIB + 4096; i++)
        assert_int_equal(buffer[i], 0);
    sl_swap_destroy(swap);
    free(buffer);
}

/* Other block and queue sizes on the same file keep its contents. */
static void retuning_keeps_the_contents(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(8);
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = 4 * MIB});
    char *written = model_buffer(4 * MIB), *read = model_buffer(4 * MIB);
    model_fill(&random, written, 4 * MIB);
    assert_int_equal(sl_swap_transfer(swap, true, 0, written, 4 * MIB), 0);
    const size_t blocks[] = {4096, 3 * 4096 - 1, 8 << 20, 0};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
        struct sl_error error = {0};
        assert_int_equal(sl_swap_retune(swap, blocks[i], 1 + i, &error), 0);
        memset(read, 0, 4 * MIB);
        assert_int_equal(sl_swap_transfer(swap, false, 0, read, 4 * MIB), 0);
        assert_memory_equal(read, written, 4 * MIB);
        assert_true(sl_swap_latency_ns(swap, false, 0.5) > 0);
        assert_true(sl_swap_latency_ns(swap, false, 0.5) <= sl_swap_latency_ns(swap, false, 1));
    }
    assert_int_equal(sl_swap_retune(swap, (size_t)1 << 30, 1, &(struct sl_error){0}), -EINVAL);
    sl_swap_destroy(swap);
    free(written);
    free(read);
}

/* Stripes by measured bandwidth, where the space is large enough to measure. */
static void paths_are_measured(void **state)
{
    (void)state;
    char first[160], second[160];
    snprintf(first, sizeof(first), "%s/a", model_directory);
    snprintf(second, sizeof(second), "%s/b", model_directory);
    mkdir(first, 0700);
    mkdir(second, 0700);
    const char *paths[] = {first, second};
    struct test_random random = test_random_seed(9);
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){
        .paths = paths, .path_count = 2, .bytes_total = 1024 * MIB + 4096});
    char *written = model_buffer(16 * MIB), *read = model_buffer(16 * MIB);
    model_fill(&random, written, 16 * MIB);
    uint64_t at = 1024 * MIB + 4096 - 16 * MIB;
    assert_int_equal(sl_swap_transfer(swap, true, at, written, 16 * MIB), 0);
    assert_int_equal(sl_swap_transfer(swap, false, at, read, 16 * MIB), 0);
    assert_memory_equal(read, written, 16 * MIB);
    sl_swap_destroy(swap);
    assert_int_equal(rmdir(first), 0);
    assert_int_equal(rmdir(second), 0);
    free(written);
    free(read);
}

struct log_lines {
    int fallback, unregistered;
};

static void count_lines(void *user, enum sl_log_level level, const char *message)
{
    (void)level;
    struct log_lines *lines = user;
    lines->fallback += strstr(message, "threads read and write") != NULL;
    lines->unregistered += strstr(message, "not registered") != NULL;
}

/* With io_uring, or without (then it is announced once), with memory that may be registered, or not
 * (likewise): the same bytes. Run under each limit by run_limited. */
static void limits_are_announced_once_and_change_no_byte(void **state)
{
    (void)state;
    struct log_lines lines = {0};
    const struct sl_log log = {count_lines, &lines};
    struct test_random random = test_random_seed(7);
    struct sl_swap *swap =
        model_create_swap((struct sl_swap_options){.bytes_total = 32 * MIB, .log = &log});
    char *buffer = model_buffer(32 * MIB), *copy = model_buffer(32 * MIB);
    model_fill(&random, buffer, 32 * MIB);
    memcpy(copy, buffer, 32 * MIB);
    int registered = sl_swap_register(swap, buffer, 32 * MIB);
    if (registered)
        assert_int_equal(sl_swap_register(swap, copy, 32 * MIB) != 0, 1);
    assert_int_equal(sl_swap_transfer(swap, true, 0, buffer, 32 * MIB), 0);
    memset(buffer, 0, 32 * MIB);
    assert_int_equal(sl_swap_transfer(swap, false, 0, buffer, 32 * MIB), 0);
    assert_memory_equal(buffer, copy, 32 * MIB);
    struct sl_swap_stats stats;
    sl_swap_stats(swap, &stats);
    assert_int_equal(lines.fallback, stats.backend == SL_SWAP_THREADS);
    assert_int_equal(lines.unregistered, registered != 0);
    const char *limit = getenv("SLUICE_TEST_LIMIT");
    if (limit && !strcmp(limit, "no-uring"))
        assert_int_equal(stats.backend, SL_SWAP_THREADS);
    if (limit && !strcmp(limit, "memlock") && stats.backend == SL_SWAP_URING)
        assert_int_not_equal(registered, 0);
    sl_swap_destroy(swap);
    free(buffer);
    free(copy);
}

static void the_file_is_private(void **state)
{
    (void)state;
    struct sl_swap_files files;
    const char *paths[] = {model_directory};
    const struct sl_swap_options options = {
        .paths = paths, .path_count = 1, .bytes_total = MIB, .block_bytes = MIB};
    struct sl_error error = {0};
    assert_int_equal(sl_swap_files_open(&files, &options, &error), 0);
    struct stat info;
    assert_int_equal(fstat(files.files[0].fd, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_nlink, 0);
    assert_true(info.st_blocks * 512 >= (long long)MIB); /* allocated in full */
    sl_swap_files_close(&files);
}

static void one_directory_listed_twice_is_refused(void **state)
{
    (void)state;
    const char *paths[] = {model_directory, model_directory};
    struct sl_swap_options options = {.paths = paths, .path_count = 2, .bytes_total = MIB};
    struct sl_swap *swap = NULL;
    struct sl_error error = {0};
    assert_int_equal(sl_swap_create(&swap, &options, &error), -EINVAL);
    assert_non_null(strstr(error.message, "one directory"));
}

static void free_space_of_one_disk_counts_once(void **state)
{
    (void)state;
    const char *paths[] = {model_directory, model_directory, "/no/such/folder"};
    uint64_t one = sl_swap_paths_free_bytes(paths, 1), three = sl_swap_paths_free_bytes(paths, 3);
    assert_true(one > 0);
    assert_true(three < one + one / 2); /* not equal: others write meanwhile */
    assert_int_equal(sl_swap_paths_free_bytes(paths + 2, 1), 0);
    assert_int_equal(sl_swap_paths_free_bytes(NULL, 0), 0);
}

static void a_folder_in_memory_is_told(void **state)
{
    (void)state;
    assert_false(sl_swap_path_is_memory("/proc"));
    assert_false(sl_swap_path_is_memory("/no/such/folder"));
    char type[32] = "";
    FILE *answer = popen("stat -f -c %T /dev/shm 2>/dev/null", "r");
    assert_non_null(answer);
    bool told = fgets(type, sizeof(type), answer) != NULL;
    pclose(answer);
    if (told)
        assert_int_equal(sl_swap_path_is_memory("/dev/shm"), strcmp(type, "tmpfs\n") == 0);
}

/* Every offset has a place of its own, and weighted files get their share. */
static void stripes_cover_each_offset_once(void **state)
{
    (void)state;
    const double weights[] = {3, 1, 2};
    struct sl_stripes stripes;
    sl_stripes_init(&stripes, 3, weights, 8192);
    const uint64_t total = 1000 * 8192 + 4096;
    uint64_t bytes[3];
    char *seen[3];
    for (unsigned f = 0; f < 3; f++) {
        bytes[f] = sl_stripes_file_bytes(&stripes, f, total);
        seen[f] = calloc(1, bytes[f] / 4096);
    }
    for (uint64_t offset = 0; offset < total; offset += 4096) {
        unsigned file;
        uint64_t at, left = total - offset;
        uint64_t run = sl_stripes_map(&stripes, offset, left, &file, &at);
        assert_true(run >= 4096 && run <= 8192 && run <= left);
        assert_true(at + run <= bytes[file]);
        assert_int_equal(seen[file][at / 4096]++, 0);
    }
    assert_in_range(bytes[0] * 100 / total, 48, 52);
    assert_in_range(bytes[1] * 100 / total, 15, 19);
    for (unsigned f = 0; f < 3; f++)
        free(seen[f]);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, model_make_directory, model_remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_killed_run_leaves_nothing),
        TEST(bytes_come_back),
        TEST(unwritten_ranges_read_as_zeros),
        TEST(many_requests_in_both_directions),
        TEST(bad_ranges_are_refused),
        TEST(a_second_run_is_refused),
        TEST(too_much_names_needed_and_free),
        TEST(stale_files_are_removed),
        TEST(limits_are_announced_once_and_change_no_byte),
        TEST(prewriting_changes_nothing_that_is_read),
        TEST(retuning_keeps_the_contents),
        TEST(paths_are_measured),
        TEST(the_file_is_private),
        TEST(one_directory_listed_twice_is_refused),
        TEST(free_space_of_one_disk_counts_once),
        TEST(a_folder_in_memory_is_told),
        cmocka_unit_test(missing_directory_is_named),
        cmocka_unit_test(stripes_cover_each_offset_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
