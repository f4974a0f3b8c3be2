// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvme/swap.h"
#include "nvme/swap_files.h"

#define MIB ((uint64_t)1 << 20)

static char directory[64];

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/sluice-test-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory); /* fails where anything was left behind */
}

static struct sl_swap *create(struct sl_swap_options options)
{
    const char *paths[] = {directory};
    options.paths = paths;
    options.path_count = 1;
    struct sl_swap *swap = NULL;
    struct sl_error error = {0};
    int code = sl_swap_create(&swap, &options, &error);
    if (code)
        print_message("%s\n", error.message);
    assert_int_equal(code, 0);
    return swap;
}

static void *buffer_new(uint64_t bytes)
{
    void *buffer = aligned_alloc(SL_SWAP_ALIGNMENT, bytes);
    assert_non_null(buffer);
    return buffer;
}

static void fill(struct test_random *random, void *buffer, uint64_t bytes)
{
    uint64_t *words = buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = test_random_u64(random);
}

static void bytes_come_back(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(1);
    struct sl_swap *swap = create((struct sl_swap_options){.bytes_total = 16 * MIB});
    char *written = buffer_new(16 * MIB), *read = buffer_new(16 * MIB);
    fill(&random, written, 16 * MIB);
    assert_int_equal(sl_swap_register(swap, written, 16 * MIB), 0);
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
    struct sl_swap *swap = create((struct sl_swap_options){.bytes_total = 4 * MIB});
    char *buffer = buffer_new(4 * MIB);
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
    struct sl_swap *swap = create((struct sl_swap_options){
        .bytes_total = COUNT * bytes, .block_bytes = 128 << 10, .queue_depth = 4});
    char *written = buffer_new(COUNT * bytes), *read = buffer_new(COUNT * bytes);
    fill(&random, written, COUNT * bytes);
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
    char *buffer = buffer_new(8192);
    struct {
        uint64_t offset, bytes;
        char *buffer;
    } bad[] = {{1, 4096, buffer},       {0, 4095, buffer},
               {MIB, 4096, buffer},     {MIB - 4096, 8192, buffer},
               {0, 4096, buffer + 512}, {UINT64_MAX - 4095, 8192, buffer}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct sl_swap *swap = create((struct sl_swap_options){.bytes_total = MIB});
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
    struct sl_swap *swap = create((struct sl_swap_options){.bytes_total = MIB}), *other = NULL;
    const char *paths[] = {directory};
    struct sl_swap_options options = {.paths = paths, .path_count = 1, .bytes_total = MIB};
    struct sl_error error = {0};
    assert_int_equal(sl_swap_create(&other, &options, &error), -EBUSY);
    assert_non_null(strstr(error.message, directory));
    sl_swap_destroy(swap);
    assert_int_equal(sl_swap_create(&other, &options, &(struct sl_error){0}), 0);
    sl_swap_destroy(other);
}

static void too_much_names_needed_and_free(void **state)
{
    (void)state;
    const char *paths[] = {directory};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_come_back, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(unwritten_ranges_read_as_zeros, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(many_requests_in_both_directions, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(bad_ranges_are_refused, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_second_run_is_refused, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(too_much_names_needed_and_free, make_directory,
                                        remove_directory),
        cmocka_unit_test(missing_directory_is_named),
        cmocka_unit_test(stripes_cover_each_offset_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
