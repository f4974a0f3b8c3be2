// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nvme/file.h"

#define BUFFER_BYTES ((size_t)64 << 10)

static char directory[128], path[160], partial[192];

static int make_directory(void **state)
{
    (void)state;
    const char *root = getenv("SLUICE_TEST_TMP");
    snprintf(directory, sizeof(directory), "%s/sluice-test-XXXXXX", root ? root : "/tmp");
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof(path), "%s/file", directory);
    snprintf(partial, sizeof(partial), "%s.partial", path);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory);
}

static void *buffer_new(size_t bytes)
{
    void *buffer = aligned_alloc(SL_FILE_ALIGNMENT, bytes);
    assert_non_null(buffer);
    return buffer;
}

static void write_file(const char *data, uint64_t bytes, struct test_random *random,
                       bool direct_off)
{
    void *buffer = buffer_new(BUFFER_BYTES);
    struct sl_file_writer *writer;
    struct sl_error error = {0};
    struct sl_file_writer_options options = {.path = path,
                                             .buffer = buffer,
                                             .buffer_bytes = BUFFER_BYTES,
                                             .bytes = bytes,
                                             .direct_off = direct_off};
    assert_int_equal(sl_file_writer_open(&writer, &options, &error), 0);
    for (uint64_t at = 0; at < bytes;) {
        uint64_t n = 1 + test_random_below(random, 3 * BUFFER_BYTES);
        n = n < bytes - at ? n : bytes - at;
        assert_int_equal(sl_file_writer_append(writer, data + at, n, &error), 0);
        at += n;
    }
    assert_int_equal(sl_file_writer_position(writer), bytes);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(sl_file_writer_commit(writer, &error), 0);
    assert_int_equal(access(partial, F_OK), -1);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, bytes);
    unsigned mask = umask(0);
    umask(mask);
    assert_int_equal(info.st_mode & 0777, 0644 & ~mask);
    free(buffer);
}

/* Every size and range, in place and bounced, with and without O_DIRECT. */
static void ranges_come_back(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(3);
    const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 65536, 65537, 700001};
    void *bounce = buffer_new(SL_FILE_BUFFER_BYTES_MIN);
    char *data = buffer_new(704512), *read = buffer_new(704512 + 8192);
    for (size_t i = 0; i < 704512; i++)
        data[i] = (char)test_random_u64(&random);
    for (size_t s = 0; s < 2 * sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint64_t bytes = sizes[s / 2];
        write_file(data, bytes, &random, s % 2);
        struct sl_file_reader *reader;
        struct sl_error error = {0};
        assert_int_equal(
            sl_file_reader_open(&reader, path, bounce, SL_FILE_BUFFER_BYTES_MIN, s % 2, &error), 0);
        assert_int_equal(sl_file_reader_bytes(reader), bytes);
        for (int i = 0; i < 60; i++) {
            uint64_t at = test_random_below(&random, bytes + 1);
            uint64_t n = i ? test_random_below(&random, bytes - at + 1) : (at = 0, bytes);
            uint64_t shift = i % 2 ? at % 4096 : test_random_below(&random, 4096);
            memset(read, 0x55, n + 8192);
            int code = sl_file_reader_read(reader, at, read + shift, n, &error);
            if (code)
                print_message("%s\n", error.message);
            assert_int_equal(code, 0);
            assert_memory_equal(read + shift, data + at, n);
            assert_int_equal(read[shift + n], 0x55);
        }
        assert_int_equal(sl_file_reader_read(reader, bytes, read, 1, &error), -ERANGE);
        assert_non_null(strstr(error.message, path));
        sl_file_reader_close(reader);
        unlink(path);
    }
    free(bounce);
    free(data);
    free(read);
}

static void an_aborted_writer_leaves_the_old_file(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(4);
    write_file("old", 3, &random, false);
    void *buffer = buffer_new(BUFFER_BYTES);
    struct sl_file_writer *writer;
    struct sl_file_writer_options options = {
        .path = path, .buffer = buffer, .buffer_bytes = BUFFER_BYTES};
    assert_int_equal(sl_file_writer_open(&writer, &options, NULL), 0);
    assert_int_equal(sl_file_writer_append(writer, "newer", 5, NULL), 0);
    assert_int_equal(access(partial, F_OK), 0);
    sl_file_writer_abort(writer);
    assert_int_equal(access(partial, F_OK), -1);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 3);
    free(buffer);
}

/* What a killed run left is overwritten. */
static void a_stale_partial_file_is_replaced(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(5);
    int fd = open(partial, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "stale and longer than the new one", 33), 33);
    close(fd);
    chmod(partial, 0644);
    write_file("new", 3, &random, false);
}

/* A write that fails (here: the file size limit) shows at commit at the latest, and leaves nothing.
 */
static void a_failed_write_is_reported(void **state)
{
    (void)state;
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    struct rlimit small = {.rlim_cur = 3 * BUFFER_BYTES, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    void *buffer = buffer_new(BUFFER_BYTES);
    char *data = calloc(1, BUFFER_BYTES);
    struct sl_file_writer *writer;
    struct sl_error error = {0};
    struct sl_file_writer_options options = {
        .path = path, .buffer = buffer, .buffer_bytes = BUFFER_BYTES};
    assert_int_equal(sl_file_writer_open(&writer, &options, &error), 0);
    int code = 0;
    for (int i = 0; i < 6; i++) {
        int now = sl_file_writer_append(writer, data, BUFFER_BYTES, &error);
        assert_true(!code || now == code); /* once failed, failed for good */
        code = now;
    }
    assert_int_equal(sl_file_writer_commit(writer, &error), -EFBIG);
    assert_non_null(strstr(error.message, "offset"));
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(access(partial, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
    free(buffer);
    free(data);
}

static void too_large_a_file_names_needed_and_free(void **state)
{
    (void)state;
    void *buffer = buffer_new(BUFFER_BYTES);
    struct sl_file_writer *writer;
    struct sl_error error = {0};
    struct sl_file_writer_options options = {
        .path = path, .buffer = buffer, .buffer_bytes = BUFFER_BYTES, .bytes = (uint64_t)1 << 43};
    assert_int_equal(sl_file_writer_open(&writer, &options, &error), -ENOSPC);
    assert_non_null(strstr(error.message, "8.00 TiB needed"));
    assert_int_equal(access(partial, F_OK), -1);
    free(buffer);
}

static void what_cannot_be_opened_is_named(void **state)
{
    (void)state;
    void *buffer = buffer_new(BUFFER_BYTES);
    struct sl_file_reader *reader;
    struct sl_error error = {0};
    assert_int_equal(sl_file_reader_open(&reader, path, buffer, BUFFER_BYTES, false, &error),
                     -ENOENT);
    assert_non_null(strstr(error.message, path));
    assert_int_equal(sl_file_reader_open(&reader, directory, buffer, BUFFER_BYTES, false, NULL),
                     -EISDIR);
    free(buffer);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranges_come_back, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(an_aborted_writer_leaves_the_old_file, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(a_stale_partial_file_is_replaced, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(a_failed_write_is_reported, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(too_large_a_file_names_needed_and_free, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(what_cannot_be_opened_is_named, make_directory,
                                        remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
