// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "engine/hardware.h"

static const char good[] = "{\"name\": \"m\", \"description\": \"d\", \"device_is_host\": true,"
                           "\"host_memory_bytes\": {\"value\": 1e9, \"source\": \"s\"},"
                           "\"host_bytes_per_second\": {\"value\": 1e9, \"source\": \"s\"},"
                           "\"host_cores\": {\"value\": 2, \"source\": \"s\"},"
                           "\"core_bytes_per_second\": {\"value\": 1e9, \"source\": \"s\"},"
                           "\"core_flops_per_second\": {\"value\": 1e9, \"source\": \"s\"}}";

static void every_builtin_profile_is_whole(void **state)
{
    (void)state;
    const char *name;
    size_t count = 0;
    for (; (name = sl_hardware_builtin(count, NULL)); count++) {
        struct sl_hardware hardware;
        struct sl_error error = {0};
        if (sl_hardware_load(&hardware, name, &error))
            fail_msg("%s", error.message);
        assert_string_equal(hardware.name, name);
        /* What is reached is below what is nominal, both directions below twice the better one. */
        assert_true(hardware.device_flops_per_second <= hardware.device_flops_peak);
        assert_true(hardware.link_both_bytes_per_second >= hardware.link_down_bytes_per_second);
        assert_true(hardware.nvme_read_bytes_per_second >= hardware.nvme_write_bytes_per_second);
        assert_true(hardware.nvme_mixed_bytes_per_second > 0);
        assert_true(hardware.nvme_bytes > hardware.host_memory_bytes);
        assert_true(hardware.ranks_per_host >= 1);
    }
    assert_int_equal(count, 6);
}

static void a_profile_survives_writing_and_reading(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice-test-hardware.XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    struct sl_hardware hardware, again;
    struct sl_error error = {0};
    assert_int_equal(sl_hardware_load(&hardware, "h200", &error), 0);
    const char *source[SL_HARDWARE_FIELDS_MAX] = {"measured \"here\""};
    assert_int_equal(sl_hardware_write(&hardware, source, path, &error), 0);
    if (sl_hardware_load(&again, path, &error))
        fail_msg("%s", error.message);
    assert_memory_equal(&hardware, &again, sizeof(hardware));
    unlink(path);
    error = (struct sl_error){0};
    assert_int_equal(sl_hardware_load(&again, path, &error), -ENOENT);
    assert_non_null(strstr(error.message, path));
    error = (struct sl_error){0};
    assert_true(sl_hardware_write(&hardware, source, "/nonexistent/h.json", &error) < 0);
}

/* Replace `from` by `to` in the good profile; it must then be refused with `names` in the message.
 */
static void refused(const char *from, const char *to, const char *names)
{
    char text[2048];
    const char *at = strstr(good, from);
    assert_non_null(at);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    struct sl_hardware hardware;
    struct sl_error error = {0};
    int result = sl_hardware_parse(&hardware, text, strlen(text), "test", &error);
    if (result != -EINVAL || !strstr(error.message, names))
        fail_msg("%d: %s", result, error.message);
}

static void a_wrong_profile_is_refused_by_name(void **state)
{
    (void)state;
    struct sl_hardware hardware;
    struct sl_error error = {0};
    assert_int_equal(sl_hardware_parse(&hardware, good, strlen(good), "test", &error), 0);
    assert_true(hardware.device_is_host && hardware.host_cores == 2);
    refused("\"host_cores\"", "\"host_core\"", "host_core");
    refused("\"value\": 2", "\"value\": -2", "host_cores");
    refused("\"value\": 2", "\"value\": \"2\"", "host_cores");
    refused("\"value\": 2, \"source\": \"s\"", "\"value\": 2", "host_cores");
    refused("\"value\": 2, \"source\": \"s\"", "\"value\": 2, \"source\": \"\"", "host_cores");
    refused("\"value\": 2", "\"value\": 0", "host_cores");
    refused("\"name\": \"m\"", "\"name\": \"\"", "name");
    refused("\"name\": \"m\", ", "", "name");
    refused("\"device_is_host\": true", "\"device_is_host\": 1", "device_is_host");
    refused("\"device_is_host\": true", "\"device_is_host\": false", "device_flops_per_second");
    refused("\"description\": \"d\"", "\"name\": \"d\"", "line 1");
    refused("{\"name\"", "[\"name\"", "line 1");
    error = (struct sl_error){0};
    assert_int_equal(sl_hardware_load(&hardware, "h2000", &error), -ENOENT);
    assert_non_null(strstr(error.message, "h200, rtx4090"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_builtin_profile_is_whole),
        cmocka_unit_test(a_profile_survives_writing_and_reading),
        cmocka_unit_test(a_wrong_profile_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
