// SPDX-License-Identifier: Apache-2.0
/* The file format: what is refused, at which byte, and in how much memory. */
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/safetensors.h"

static int parse(const char *header, uint64_t data_bytes, struct sl_safetensors *file,
                 struct sl_error *error)
{
    *file = (struct sl_safetensors){.fd = -1};
    return sl_safetensors_parse(file, "file", header, strlen(header), data_bytes, error);
}

static void finish(struct sl_safetensors *file)
{
    free(file->tensors);
    free(file->names);
}

#define T(name, type, shape, begin, end)                                                           \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end  \
    "]}"

static void a_sound_header_is_read(void **state)
{
    (void)state;
    struct sl_safetensors file;
    struct sl_error error = {0};
    int rc = parse("{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\\n\"}, " T(
                       "b", "F32", "2, 3", "2",
                       "26") ",\n"
                             "\"a\\u00e9\\ud83d\\ude00/\" : {\"data_offsets\":[0,2],\"shape\":[],"
                             "\"dtype\":\"BF16\"}," T("empty", "I64", "0,7", "2", "2") "}   ",
                   26, &file, &error);
    if (rc)
        fail_msg("%s", error.message);
    assert_int_equal(file.count, 3);
    const struct sl_safetensor *b = sl_safetensors_find(&file, "b");
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->type, SL_ST_F32);
    const struct sl_safetensor *scalar = sl_safetensors_find(&file, "a\xc3\xa9\xf0\x9f\x98\x80/");
    assert_non_null(scalar);
    assert_int_equal(scalar->rank, 0);
    assert_null(sl_safetensors_find(&file, "c"));
    finish(&file);
    assert_int_equal(parse("{}", 0, &file, &error), 0);
    assert_null(sl_safetensors_find(&file, "c"));
    finish(&file);
}

static void every_broken_rule_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t data_bytes;
        const char *message;
    } cases[] = {
        {"", 0, "begin with {"},
        {" {}", 0, "begin with {"},
        {"[]", 0, "begin with {"},
        {"{", 0, "string"},
        {"{} x", 0, "after the closing"},
        {"{}}", 0, "after the closing"},
        {"{\"a\"}", 0, "expected :"},
        {"{\"a\":7}", 0, "object"},
        {"{\"a", 0, "cut off"},
        {"{\"a\\", 0, "cut off"},
        {"{\"a\\u12", 0, "cut off"},
        {"{\"a\\uzzzz\":{}}", 0, "hexadecimal"},
        {"{\"a\\ud800\":{}}", 0, "surrogate"},
        {"{\"a\\udc00\":{}}", 0, "surrogate"},
        {"{\"a\\ud800\\u0041\":{}}", 0, "surrogate"},
        {"{\"a\\u0000\":{}}", 0, "zero character"},
        {"{\"a\\x\":{}}", 0, "escape"},
        {"{\"a\n\":{}}", 0, "control"},
        {"{\"\xff\":{}}", 0, "UTF-8"},
        {"{\"\xc0\x80\":{}}", 0, "UTF-8"},
        {"{\"\xed\xa0\x80\":{}}", 0, "UTF-8"},
        {"{\"a\":{}}", 0, "string"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "needs dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "twice"},
        {"{\"a\":{\"stride\":[1]}}", 4, "other than"},
        {"{" T("a", "F33", "1", "0", "4") "}", 4, "F33"},
        {"{" T("a", "F32", "-1", "0", "4") "}", 4, "negative"},
        {"{" T("a", "F32", "1.0", "0", "4") "}", 4, "integer"},
        {"{" T("a", "F32", "01", "0", "4") "}", 4, "leading zero"},
        {"{" T("a", "F32", "18446744073709551616", "0", "4") "}", 4, "2^64"},
        {"{" T("a", "F32", "4294967296,4294967296", "0", "0") "}", 0, "overflows"},
        {"{" T("a", "F32", "4611686018427387904", "0", "0") "}", 0, "overflows"},
        {"{" T("a", "U8", "1,1,1,1,1,1,1,1,1", "0", "1") "}", 1, "8 dimensions"},
        {"{" T("a", "F32", "1", "0", "4,8") "}", 4, "two values"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1]}}", 1, "two values"},
        {"{" T("a", "F32", "2", "0", "4") "}", 4, "disagree"},
        {"{" T("a", "F32", "1", "4", "0") "}", 4, "disagree"},
        {"{" T("a", "F32", "1", "4", "8") "}", 8, "hole"},
        {"{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "2", "6") "}", 6, "overlaps"},
        {"{" T("a", "F32", "1", "0", "4") "," T("b", "F32", "1", "0", "4") "}", 4, "overlaps"},
        {"{" T("a", "F32", "1", "0", "4") "," T("a", "F32", "1", "4", "8") "}", 8, "twice"},
        {"{" T("a", "F32", "1", "0", "4") "," T("\\u0061", "F32", "1", "4", "8") "}", 8, "twice"},
        {"{" T("a", "F32", "1", "0", "4") "}", 3, "cut off"},
        {"{" T("a", "F32", "1", "0", "4") "}", 5, "need 4 bytes"},
        {"{" T("a", "F32", "1", "0", "4") ",}", 4, "string"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "string"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_safetensors file;
        struct sl_error error = {0};
        int rc = parse(cases[i].header, cases[i].data_bytes, &file, &error);
        if (rc != -EINVAL || !strstr(error.message, cases[i].message))
            fail_msg("%s: rc %d, \"%s\" lacks \"%s\"", cases[i].header, rc, error.message,
                     cases[i].message);
        assert_null(file.tensors);
        assert_null(file.names);
    }
}

/* Cut a sound header at every length and flip every bit: an answer, never a crash (the sanitizer
 * build is where this shows most). */
static void damaged_headers_end_in_an_answer(void **state)
{
    (void)state;
    const char *sound = "{\"__metadata__\":{\"format\":\"pt\"}," T(
        "layer.0\\u00e9", "F16", "2,2", "0", "8") "," T("b", "I8", "3", "8", "11") "} ";
    size_t n = strlen(sound), accepted = 0;
    char *copy = malloc(n);
    struct sl_safetensors file;
    for (size_t length = 0; length + 1 < n; length++) {
        memcpy(copy, sound, length);
        file = (struct sl_safetensors){.fd = -1};
        assert_int_equal(sl_safetensors_parse(&file, "f", copy, length, 11, NULL), -EINVAL);
    }
    for (size_t bit = 0; bit < 8 * n; bit++) {
        memcpy(copy, sound, n);
        copy[bit / 8] = (char)(copy[bit / 8] ^ (1 << bit % 8));
        file = (struct sl_safetensors){.fd = -1};
        if (sl_safetensors_parse(&file, "f", copy, n, 11, NULL) == 0) {
            accepted++;
            finish(&file);
        }
    }
    assert_true(accepted > 0 && accepted < 8 * n / 2); /* letters of names and strings may change */
    free(copy);
}

static void write_bytes(const char *path, uint64_t header_bytes, const char *rest, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &header_bytes, 8), 8);
    assert_int_equal(write(fd, rest, bytes), bytes);
    close(fd);
}

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void huge_and_cut_off_files_cost_no_memory(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice-safetensors-XXXXXX";
    int fd = mkstemp(path);
    struct sl_safetensors file;
    assert_true(fd >= 0);
    close(fd);
    long before = peak_kib();
    static const uint64_t sizes[] = {1ull << 40, ~0ull, 100000001, 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct sl_error error = {0};
        write_bytes(path, sizes[i], "{}", 2);
        assert_int_equal(sl_safetensors_open(&file, path, &error), -EINVAL);
        assert_non_null(strstr(error.message, "header of"));
        assert_non_null(strstr(error.message, path));
    }
    /* the same with a file that is really that large: the limit, not the size, refuses it */
    assert_int_equal(truncate(path, (off_t)2 << 30), 0);
    struct sl_error error = {0};
    fd = open(path, O_WRONLY);
    uint64_t claim = 1ull << 30;
    assert_int_equal(pwrite(fd, &claim, 8, 0), 8);
    close(fd);
    assert_int_equal(sl_safetensors_open(&file, path, &error), -EINVAL);
    assert_non_null(strstr(error.message, "100000000"));
    assert_true(peak_kib() - before < 4096);
    write_bytes(path, 2, "{", 0);
    assert_int_equal(truncate(path, 5), 0);
    error = (struct sl_error){0};
    assert_int_equal(sl_safetensors_open(&file, path, &error), -EINVAL);
    assert_non_null(strstr(error.message, "too short"));
    unlink(path);
    error = (struct sl_error){0};
    assert_int_equal(sl_safetensors_open(&file, path, &error), -ENOENT);
    assert_int_equal(sl_safetensors_open(&file, "/tmp", NULL), -EINVAL);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(sl_safetensors_open(&file, path, NULL), -EINVAL); /* and does not block */
    unlink(path);
}

static void created_files_follow_the_rules(void **state)
{
    (void)state;
    char folder[] = "/tmp/sluice-safetensors-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f.safetensors", folder);
    struct sl_safetensor tensors[] = {
        {.name = "b", .type = SL_ST_BF16, .rank = 1, .shape = {3}},
        {.name = "a\"\\", .type = SL_ST_F32, .rank = 2, .shape = {2, 2}},
        {.name = "a", .type = SL_ST_BF16},
    };
    struct sl_error error = {0};
    struct sl_safetensors file;
    uint64_t data_offset;
    int fd;
    assert_int_equal(sl_safetensors_create(path, tensors, 3, &fd, &data_offset, &error), 0);
    assert_int_equal(data_offset, 4096);
    assert_string_equal(tensors[0].name, "a\"\\"); /* the widest type first, then names */
    assert_string_equal(tensors[1].name, "a");
    assert_int_equal(tensors[2].end, 16 + 2 + 6);
    close(fd);
    if (sl_safetensors_open(&file, path, &error) != 0)
        fail_msg("%s", error.message);
    assert_int_equal(file.count, 3);
    assert_int_equal(sl_safetensors_find(&file, "a\"\\")->rank, 2);
    char byte;
    assert_int_equal(
        sl_safetensors_read(&file, sl_safetensors_find(&file, "a"), 2, 1, &byte, &error), -EINVAL);
    sl_safetensors_close(&file);
    assert_int_equal(sl_safetensors_create(path, tensors, 3, &fd, &data_offset, NULL), -EEXIST);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_header_is_read),
        cmocka_unit_test(every_broken_rule_is_named),
        cmocka_unit_test(damaged_headers_end_in_an_answer),
        cmocka_unit_test(huge_and_cut_off_files_cost_no_memory),
        cmocka_unit_test(created_files_follow_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
