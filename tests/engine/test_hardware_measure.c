// SPDX-License-Identifier: Apache-2.0
/* The figures cannot be known here, but they must be there, be in the order that physics allows,
 * and make a profile that can be read again. Small arrays: this is a test, not a measurement. */
#include "tests/test.h"

#include <string.h>
#include <unistd.h>

#include "engine/hardware_measure.h"

static void measure(const char *device_name, bool drive, struct sl_measured *out)
{
    struct sl_error error = {0};
    struct sl_workers *workers;
    struct sl_device *device;
    struct sl_workers_options pool = {.thread_count = 2, .unpinned = true};
    if (sl_workers_create(&workers, &pool, &error))
        fail_msg("%s", error.message);
    struct sl_device_options device_options = {
        .name = device_name, .precision = SL_BF16, .workers = workers};
    if (sl_device_create(&device, &device_options, &error))
        fail_msg("%s", error.message);
    char directory[] = "/tmp/sluice-test-measure.XXXXXX";
    assert_non_null(mkdtemp(directory));
    const char *paths[] = {directory};
    struct sl_measure_options options = {.workers = workers,
                                         .device = device,
                                         .nvme_paths = paths,
                                         .nvme_path_count = drive,
                                         .nvme_bytes = 1,
                                         .array_bytes = 16 << 20,
                                         .seconds = 0.01};
    if (sl_hardware_measure(out, &options, &error))
        fail_msg("%s", error.message);
    sl_device_destroy(device);
    sl_workers_destroy(workers);
    rmdir(directory); /* holds a lock file where the engine keeps one */

    char path[] = "/tmp/sluice-test-measured.XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    struct sl_hardware again;
    if (sl_measured_write(out, path, &error) || sl_hardware_load(&again, path, &error))
        fail_msg("%s", error.message);
    unlink(path);
    assert_string_equal(again.name, "this-machine");
}

static void the_host_device_is_measured(void **state)
{
    (void)state;
    struct sl_measured measured;
    measure("host", true, &measured);
    const struct sl_hardware *h = &measured.hardware;
    assert_true(h->device_is_host && h->host_cores == 2);
    assert_true(h->core_bytes_per_second > 1e7 && h->host_bytes_per_second > 1e7);
    assert_true(h->core_flops_per_second > 1e7);
    assert_true(h->nvme_read_bytes_per_second > 0 && h->nvme_write_bytes_per_second > 0);
    assert_true(h->nvme_mixed_bytes_per_second > 0 && h->nvme_op_seconds > 0);
    assert_true(h->core_nvme_bytes_per_second > 1e7);
    assert_true(h->link_up_bytes_per_second == 0);
}

static void a_discrete_device_has_a_link(void **state)
{
    (void)state;
    struct sl_measured measured;
    measure("host:discrete", false, &measured);
    const struct sl_hardware *h = &measured.hardware;
    assert_true(h->link_up_bytes_per_second > 1e6 && h->link_down_bytes_per_second > 1e6);
    assert_true(h->link_both_bytes_per_second > 0 && h->link_op_seconds > 0);
    assert_true(h->nvme_read_bytes_per_second == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_device_is_measured),
        cmocka_unit_test(a_discrete_device_has_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
