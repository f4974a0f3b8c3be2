// SPDX-License-Identifier: Apache-2.0
/* Joined, aligned writes: the files hold what was written, whatever the pieces and their order. */
#include "tests/test.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "engine/weights_output.h"

enum { FILES = 2, FILE_BYTES = (19 << 20) + 1234, PIECES_MAX = 4096 };

struct piece {
    uint32_t file;
    size_t offset, bytes;
};

static unsigned char expected_byte(uint32_t file, size_t offset)
{
    return (unsigned char)((offset * 2654435761u >> 13) + file);
}

/* Cut both files into pieces of 1 B to 12 MiB, short ones more often. */
static size_t cut(struct test_random *random, struct piece *pieces)
{
    size_t count = 0;
    for (uint32_t f = 0; f < FILES; f++)
        for (size_t at = 0; at < FILE_BYTES;) {
            size_t limit = (size_t)1 << test_random_below(random, 24);
            size_t bytes = 1 + test_random_below(random, limit);
            if (bytes > FILE_BYTES - at || count + 2 >= PIECES_MAX)
                bytes = FILE_BYTES - at;
            pieces[count++] = (struct piece){f, at, bytes};
            at += bytes;
        }
    return count;
}

/* In order, or with neighbours mostly together, or shuffled. */
static void reorder(struct test_random *random, struct piece *pieces, size_t count, unsigned swaps)
{
    for (unsigned i = 0; i < swaps; i++) {
        size_t a = test_random_below(random, count), b = test_random_below(random, count);
        struct piece piece = pieces[a];
        pieces[a] = pieces[b];
        pieces[b] = piece;
    }
}

static void run(const char *folder, unsigned swaps, uint64_t seed)
{
    struct test_random random = test_random_seed(seed);
    static struct piece pieces[PIECES_MAX];
    static unsigned char content[FILES][FILE_BYTES], back[FILE_BYTES];
    char path[FILES][64];
    struct sl_weights_output *output;
    struct sl_error error = {0};
    assert_int_equal(sl_weights_output_create(&output, FILES, &error), 0);
    for (uint32_t f = 0; f < FILES; f++) {
        snprintf(path[f], sizeof path[f], "%s/sluice-output-XXXXXX", folder);
        int fd = mkstemp(path[f]);
        assert_true(fd >= 0);
        sl_weights_output_add(output, f, fd, path[f]);
        for (size_t i = 0; i < FILE_BYTES; i++)
            content[f][i] = expected_byte(f, i);
    }
    size_t count = cut(&random, pieces);
    reorder(&random, pieces, count, swaps);
    for (size_t i = 0; i < count; i++)
        if (sl_weights_output_write(output, pieces[i].file, pieces[i].offset,
                                    content[pieces[i].file] + pieces[i].offset, pieces[i].bytes,
                                    &error) != 0)
            fail_msg("%s", error.message);
    if (sl_weights_output_sync(output, &error) != 0)
        fail_msg("%s", error.message);
    sl_weights_output_destroy(output);
    for (uint32_t f = 0; f < FILES; f++) {
        int fd = open(path[f], O_RDONLY);
        assert_int_equal(lseek(fd, 0, SEEK_END), FILE_BYTES);
        assert_int_equal(pread(fd, back, FILE_BYTES, 0), FILE_BYTES);
        assert_memory_equal(back, content[f], FILE_BYTES);
        close(fd);
        unlink(path[f]);
    }
}

static void pieces_in_any_order_give_the_file(void **state)
{
    (void)state;
    run("/tmp", 0, 21);
    run("/tmp", 5, 22);
    run("/tmp", 5000, 23);
}

/* A memory file system, where O_DIRECT may be refused. */
static void file_systems_without_direct_writes_work(void **state)
{
    (void)state;
    if (access("/dev/shm", W_OK) != 0)
        skip();
    run("/dev/shm", 5, 24);
}

static void a_full_device_is_reported(void **state)
{
    (void)state;
    struct sl_weights_output *output;
    struct sl_error error = {0};
    static char data[100000];
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0)
        skip();
    assert_int_equal(sl_weights_output_create(&output, 1, &error), 0);
    sl_weights_output_add(output, 0, fd, "/dev/full");
    int rc = sl_weights_output_write(output, 0, 7, data, sizeof data, &error);
    if (rc == 0)
        rc = sl_weights_output_sync(output, &error);
    assert_true(rc < 0);
    assert_int_equal(error.domain, SL_DOMAIN_IO);
    sl_weights_output_destroy(output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_in_any_order_give_the_file),
        cmocka_unit_test(file_systems_without_direct_writes_work),
        cmocka_unit_test(a_full_device_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
