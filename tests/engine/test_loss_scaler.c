// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <string.h>

#include "engine/loss_scaler.h"

/* One pattern of steps ('o' overflow, '.' good) and the scale after each, from DeepSpeed's rules
 * worked out by hand. */
struct pattern {
    const char *name, *steps;
    struct sl_loss_scaler_options options;
    double scale[16];
    int error_at; /* step whose update fails; 0: none (counts from 1) */
};

#define DYNAMIC(i, m, w, h, c)                                                                     \
    {                                                                                              \
        .dynamic = true, .initial = (i), .min = (m), .window = (w), .hysteresis = (h),             \
        .consecutive = (c)                                                                         \
    }

static const struct pattern patterns[] = {
    {"grows after window good steps",
     "......",
     DYNAMIC(8, 1, 3, 2, false),
     {8, 8, 16, 16, 16, 32},
     0},
    {"first overflow only uses hysteresis", "o.o", DYNAMIC(8, 1, 100, 2, false), {8, 8, 4}, 0},
    {"hysteresis stays used up",
     "oo.o.o",
     DYNAMIC(64, 1, 100, 2, false),
     {64, 32, 32, 16, 16, 8},
     0},
    {"good steps refill when consecutive",
     "o.o.oo",
     DYNAMIC(64, 1, 100, 2, true),
     {64, 64, 64, 64, 64, 32},
     0},
    {"growth refills hysteresis",
     "oo..oo",
     DYNAMIC(64, 1, 2, 2, false),
     {64, 32, 32, 64, 64, 32},
     0},
    {"window counts from the last overflow",
     ".o...",
     DYNAMIC(8, 1, 3, 1, false),
     {8, 4, 4, 4, 8},
     0},
    {"halves down to the minimum, then fails", "ooo", DYNAMIC(4, 1, 100, 1, false), {2, 1, 1}, 3},
    {"the minimum may be no power of two", "ooo", DYNAMIC(4, 1.5, 100, 1, false), {2, 1.5, 1.5}, 3},
    {"hysteresis of three", "oooo", DYNAMIC(64, 1, 100, 3, false), {64, 64, 32, 16}, 0},
    {"static scale never moves",
     "o.o.",
     {.initial = 1024, .min = 1, .window = 1, .hysteresis = 1},
     {1024, 1024, 1024, 1024},
     0},
};

static void scale_follows_table(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
        const struct pattern *pattern = &patterns[p];
        struct sl_loss_scaler scaler;
        sl_loss_scaler_init(&scaler, &pattern->options);
        for (int i = 0; pattern->steps[i]; i++) {
            struct sl_error error = {0};
            bool skip, overflow = pattern->steps[i] == 'o';
            int result = sl_loss_scaler_update(&scaler, overflow, &skip, &error);
            if (scaler.scale != pattern->scale[i] || skip != overflow ||
                (result != 0) != (pattern->error_at == i + 1))
                fail_msg("%s: step %d: scale %g (%g expected), skip %d, result %d", pattern->name,
                         i + 1, scaler.scale, pattern->scale[i], skip, result);
            if (result) {
                assert_int_equal(result, -ERANGE);
                assert_non_null(strstr(error.message, "min_loss_scale"));
            }
        }
    }
}

static void stops_after_fifty_skipped_steps(void **state)
{
    (void)state;
    struct sl_loss_scaler_options options = {
        .initial = 1, .min = 1, .window = 1, .hysteresis = 1, .skipped_max = 50};
    struct sl_loss_scaler scaler;
    sl_loss_scaler_init(&scaler, &options);
    bool skip;
    struct sl_error error = {0};
    for (int i = 0; i < 49; i++)
        assert_int_equal(sl_loss_scaler_update(&scaler, true, &skip, &error), 0);
    assert_int_equal(sl_loss_scaler_update(&scaler, false, &skip, &error), 0);
    for (int i = 0; i < 49; i++)
        assert_int_equal(sl_loss_scaler_update(&scaler, true, &skip, &error), 0);
    assert_int_equal(sl_loss_scaler_update(&scaler, true, &skip, &error), -EDOM);
    assert_non_null(strstr(error.message, "50 steps in a row"));
    assert_int_equal(scaler.skipped_total, 99);
}

static void state_survives_a_checkpoint(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(7);
    struct sl_loss_scaler_options options = DYNAMIC(65536, 1, 5, 2, false);
    struct sl_loss_scaler unbroken, resumed;
    sl_loss_scaler_init(&unbroken, &options);
    sl_loss_scaler_init(&resumed, &options);
    for (int i = 0; i < 500; i++) {
        bool skip, overflow = test_random_below(&random, 6) == 0;
        (void)sl_loss_scaler_update(&unbroken, overflow, &skip, NULL);
        (void)sl_loss_scaler_update(&resumed, overflow, &skip, NULL);
        uint8_t bytes[SL_LOSS_SCALER_STATE_BYTES];
        sl_loss_scaler_save(&resumed, bytes);
        sl_loss_scaler_init(&resumed, &options);
        assert_int_equal(sl_loss_scaler_load(&resumed, bytes, NULL), 0);
        assert_true(unbroken.scale == resumed.scale);
        assert_int_equal(unbroken.hysteresis_left, resumed.hysteresis_left);
        assert_int_equal(unbroken.skipped_total, resumed.skipped_total);
    }
}

static void damaged_state_is_refused(void **state)
{
    (void)state;
    struct sl_loss_scaler_options options = DYNAMIC(8, 1, 3, 2, false);
    struct sl_loss_scaler scaler;
    sl_loss_scaler_init(&scaler, &options);
    uint8_t bytes[SL_LOSS_SCALER_STATE_BYTES];
    sl_loss_scaler_save(&scaler, bytes);
    bytes[40] ^= 1;
    assert_int_equal(sl_loss_scaler_load(&scaler, bytes, NULL), -EINVAL);
    bytes[40] ^= 1;
    memset(bytes, 0xff, 8); /* a NaN */
    assert_int_equal(sl_loss_scaler_load(&scaler, bytes, NULL), -EINVAL);
    assert_true(scaler.scale == 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_follows_table),
        cmocka_unit_test(stops_after_fifty_skipped_steps),
        cmocka_unit_test(state_survives_a_checkpoint),
        cmocka_unit_test(damaged_state_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
