// SPDX-License-Identifier: Apache-2.0
/* CSV text and event records, read back by a decoder that shares no code with the writer. */
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/monitor.h"
#include "engine/monitor_writers.h"

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/sluice-monitor-XXXXXX", base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[320];
    snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

static size_t read_whole(const char *path, uint8_t *buffer, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t got = fread(buffer, 1, bytes, file);
    fclose(file);
    return got;
}

static uint64_t little(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

static uint64_t varint(const uint8_t **at)
{
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

static void crc_is_castagnoli(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof(ones));
    assert_int_equal(sl_crc32c("123456789", 9), 0xe3069283u); /* RFC 3720, appendix B.4 */
    assert_int_equal(sl_crc32c(zeros, 32), 0x8a9136aau);
    assert_int_equal(sl_crc32c(ones, 32), 0x62a8ab43u);
    assert_int_equal(sl_crc32c("", 0), 0);
}

/* Check framing and sums of the record at *at, and move past it. */
static const uint8_t *record(const uint8_t **at, const uint8_t *end, uint64_t *length)
{
    assert_true(end - *at >= 16);
    *length = little(*at, 8);
    assert_int_equal(little(*at + 8, 4), sl_crc32c_masked(*at, 8));
    const uint8_t *payload = *at + 12;
    assert_true((uint64_t)(end - payload) >= *length + 4);
    assert_int_equal(little(payload + *length, 4), sl_crc32c_masked(payload, *length));
    *at = payload + *length + 4;
    return payload;
}

static void expect_scalar(const uint8_t *at, const char *tag, float value, uint64_t step)
{
    assert_int_equal(*at, 1 << 3 | 1); /* wall time */
    at += 9;
    assert_int_equal(*at++, 2 << 3 | 0);
    assert_int_equal(varint(&at), step);
    assert_int_equal(*at++, 5 << 3 | 2);
    (void)varint(&at);
    assert_int_equal(*at++, 1 << 3 | 2);
    (void)varint(&at);
    assert_int_equal(*at++, 1 << 3 | 2);
    uint64_t length = varint(&at);
    assert_int_equal(length, strlen(tag));
    assert_memory_equal(at, tag, length);
    at += length;
    assert_int_equal(*at++, 2 << 3 | 5);
    float got;
    uint32_t bits = (uint32_t)little(at, 4);
    memcpy(&got, &bits, 4);
    assert_true(got == value);
}

static void event_files_have_the_format(void **state)
{
    (void)state;
    static struct sl_config config;
    config = (struct sl_config){.tensorboard.enabled = true};
    strcpy(config.tensorboard.job_name, "job");
    struct sl_monitor *monitor = NULL;
    struct sl_error error = {0};
    assert_int_equal(sl_monitor_create(&monitor, &config, folder, &error), 0);
    assert_int_equal(sl_monitor_write(monitor, "Train/Samples/lr", 0.25, 1, &error), 0);
    assert_int_equal(sl_monitor_write(monitor, "Train/Samples/train_loss", -3, 300, &error), 0);
    sl_monitor_destroy(monitor);

    char path[600] = "";
    snprintf(path, sizeof(path), "%s/tensorboard/job", folder);
    DIR *files = opendir(path);
    assert_non_null(files);
    for (struct dirent *entry; (entry = readdir(files));)
        if (strstr(entry->d_name, "events.out.tfevents."))
            snprintf(path, sizeof(path), "%s/tensorboard/job/%s", folder, entry->d_name);
    closedir(files);
    static uint8_t buffer[4096];
    const uint8_t *at = buffer, *end = buffer + read_whole(path, buffer, sizeof(buffer));
    uint64_t length;
    const uint8_t *first = record(&at, end, &length);
    assert_int_equal(length, 9 + 2 + 13);
    assert_memory_equal(first + 11, "brain.Event:2", 13);
    expect_scalar(record(&at, end, &length), "Train/Samples/lr", 0.25f, 1);
    expect_scalar(record(&at, end, &length), "Train/Samples/train_loss", -3, 300);
    assert_ptr_equal(at, end);
}

static void csv_appends_and_writes_one_header(void **state)
{
    (void)state;
    static struct sl_config config;
    config = (struct sl_config){.csv.enabled = true};
    snprintf(config.csv.output_path, sizeof(config.csv.output_path), "%s/deep/er", folder);
    strcpy(config.csv.job_name, "job");
    for (uint64_t run = 0; run < 2; run++) {
        struct sl_monitor *monitor = NULL;
        assert_int_equal(sl_monitor_create(&monitor, &config, "unused", NULL), 0);
        assert_int_equal(sl_monitor_write(monitor, "Train/Samples/lr", 0.5, 2 * run + 1, NULL), 0);
        assert_int_equal(sl_monitor_write(monitor, "Train/Samples/lr", 0.125, 2 * run + 2, NULL),
                         0);
        sl_monitor_destroy(monitor);
    }
    char path[600];
    static uint8_t buffer[512];
    snprintf(path, sizeof(path), "%s/deep/er/job/Train_Samples_lr.csv", folder);
    buffer[read_whole(path, buffer, sizeof(buffer) - 1)] = 0;
    assert_string_equal((char *)buffer, "step,lr\n1,0.5\n2,0.125\n3,0.5\n4,0.125\n");
}

static void nothing_asked_nothing_made(void **state)
{
    (void)state;
    static const struct sl_config config;
    struct sl_monitor *monitor = (struct sl_monitor *)folder;
    assert_int_equal(sl_monitor_create(&monitor, &config, "/nonexistent", NULL), 0);
    assert_null(monitor);
    assert_int_equal(sl_monitor_write(NULL, "x", 1, 1, NULL), 0);
}

static void a_folder_that_cannot_be_is_named(void **state)
{
    (void)state;
    static struct sl_config config;
    config = (struct sl_config){.csv.enabled = true};
    snprintf(config.csv.output_path, sizeof(config.csv.output_path), "/proc/none");
    struct sl_monitor *monitor = NULL;
    struct sl_error error = {0};
    assert_true(sl_monitor_create(&monitor, &config, folder, &error) < 0);
    assert_non_null(strstr(error.message, "/proc/none"));
    assert_null(monitor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_is_castagnoli),
        cmocka_unit_test(event_files_have_the_format),
        cmocka_unit_test(csv_appends_and_writes_one_header),
        cmocka_unit_test(nothing_asked_nothing_made),
        cmocka_unit_test(a_folder_that_cannot_be_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
