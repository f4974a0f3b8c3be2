// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <math.h>

#include "engine/tune_report.h"
#include "tests/nvme/swap_model.h"

/* 12 bytes per parameter each way: 13e9 * 24 B at 4 GB/s are 78 s, 0.156 TB written. */
static void steps_follow_from_the_rate(void **state)
{
    (void)state;
    struct sl_tune_step steps[SL_TUNE_STEPS];
    sl_tune_steps(4e9, steps);
    assert_string_equal(steps[1].name, "13B");
    assert_true(fabs(steps[1].seconds - 78) < 1e-9);
    assert_true(fabs(steps[1].written_tb_per_step - 0.156) < 1e-9);
    assert_true(fabs(steps[1].written_tb_per_day - 0.156 * 86400 / 78) < 1e-9);
    /* Back to back, every model writes half of the rate. */
    for (size_t i = 0; i < SL_TUNE_STEPS; i++)
        assert_true(fabs(steps[i].written_tb_per_day - 2e9 * 86400 * 1e-12) < 1e-9);
}

static void a_short_sweep_chooses_one_of_its_points(void **state)
{
    (void)state;
    struct sl_tune_result result;
    struct sl_error error = {0};
    const struct sl_tune_options options = {
        .directory = model_directory, .file_bytes = (uint64_t)256 << 20, .seconds_max = 0.1};
    int code = sl_tune_nvme(&options, &result, &error);
    if (code == -ENOSPC)
        skip();
    if (code)
        print_message("%s\n", error.message);
    assert_int_equal(code, 0);
    bool found = false;
    for (size_t i = 0; i < result.point_count; i++) {
        assert_true(result.points[i].mixed_bytes_per_second > 0);
        found = found || (result.points[i].block_bytes == result.block_bytes &&
                          result.points[i].queue_depth == result.queue_depth);
    }
    assert_true(found);
    assert_true(result.sustained_bytes_per_second > 0 && result.first_touch_ratio > 0);
    assert_true(result.read_p50_us > 0 && result.read_p50_us <= result.read_p99_us);
    char *text = sl_tune_report_text(model_directory, &result);
    char *json = sl_tune_report_json(model_directory, &result);
    assert_non_null(strstr(text, "\"aio\": {"));
    assert_non_null(strstr(text, "70B"));
    assert_non_null(strstr(json, "\"sustained_bytes_per_second\""));
    assert_non_null(strstr(json, "\"intra_op_parallelism\": 1"));
    free(text);
    free(json);
}

static void a_missing_directory_is_named(void **state)
{
    (void)state;
    struct sl_tune_result result;
    struct sl_error error = {0};
    const struct sl_tune_options options = {.directory = "/nonexistent/tune"};
    assert_int_equal(sl_tune_nvme(&options, &result, &error), -ENOENT);
    assert_non_null(strstr(error.message, "/nonexistent/tune"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_from_the_rate),
        cmocka_unit_test_setup_teardown(a_short_sweep_chooses_one_of_its_points,
                                        model_make_directory, model_remove_directory),
        cmocka_unit_test(a_missing_directory_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
