// SPDX-License-Identifier: Apache-2.0
/* 2,000 updates of each schedule against tests/fixtures/make_schedules.py.
 *
 * Tolerance: both sides are fp64 in slightly different orders, with a libm cos or log in between
 * (under 1 ulp each) and fewer than 8 operations: 8 epsilon of the value, and of the schedule's
 * height where a difference cancels.
 */
#include "tests/test.h"

#include <float.h>
#include <math.h>

#include "engine/schedule_lr.h"

struct named {
    const char *name;
    double height; /* the largest rate */
    struct sl_schedule schedule;
};

static const struct named table[] = {
    {"warmup_log",
     1e-3,
     {.kind = SL_SCHEDULE_WARMUP, .warmup_max_lr = 1e-3, .warmup_steps = 1000, .warmup_log = true}},
    {"warmup_linear",
     3e-4,
     {.kind = SL_SCHEDULE_WARMUP,
      .warmup_min_lr = 1e-5,
      .warmup_max_lr = 3e-4,
      .warmup_steps = 700}},
    {"warmup_two_steps",
     1e-3,
     {.kind = SL_SCHEDULE_WARMUP, .warmup_max_lr = 1e-3, .warmup_log = true}},
    {"warmup_decay",
     2e-4,
     {.kind = SL_SCHEDULE_WARMUP_DECAY,
      .warmup_min_lr = 1e-6,
      .warmup_max_lr = 2e-4,
      .warmup_steps = 300,
      .total_steps = 1500,
      .warmup_log = true}},
    {"warmup_decay_short",
     1e-3,
     {.kind = SL_SCHEDULE_WARMUP_DECAY,
      .warmup_max_lr = 1e-3,
      .warmup_steps = 1000,
      .total_steps = 3,
      .warmup_log = true}},
    {"warmup_cosine",
     5e-4,
     {.kind = SL_SCHEDULE_WARMUP_COSINE,
      .base_lr = 5e-4,
      .warmup_steps = 100,
      .total_steps = 1700,
      .warmup_min_ratio = 0.01,
      .min_ratio = 1e-4,
      .warmup_log = true}},
    {"warmup_cosine_linear",
     5e-4,
     {.kind = SL_SCHEDULE_WARMUP_COSINE,
      .base_lr = 5e-4,
      .warmup_steps = 1,
      .total_steps = 1999,
      .min_ratio = 0.1}},
    {"one_cycle_smooth",
     1e-2,
     {.kind = SL_SCHEDULE_ONE_CYCLE,
      .cycle_min_lr = 1e-4,
      .cycle_max_lr = 1e-2,
      .cycle_first_steps = 600,
      .cycle_second_steps = 400,
      .cycle_momentum = true,
      .cycle_min_momentum = 0.8,
      .cycle_max_momentum = 0.9}},
    {"one_cycle_stairs",
     1.5e-2,
     {.kind = SL_SCHEDULE_ONE_CYCLE,
      .cycle_min_lr = 4e-3,
      .cycle_max_lr = 1.5e-2,
      .cycle_first_steps = 1000,
      .cycle_second_steps = 100,
      .cycle_first_stairs = 100,
      .cycle_second_stairs = 100,
      .decay_step_size = 1000,
      .decay_lr_rate = 0.01,
      .cycle_momentum = true,
      .cycle_min_momentum = 0.8,
      .cycle_max_momentum = 0.9}},
    {"one_cycle_decay",
     1e-2,
     {.kind = SL_SCHEDULE_ONE_CYCLE,
      .cycle_min_lr = 1e-4,
      .cycle_max_lr = 1e-2,
      .cycle_first_steps = 333,
      .cycle_second_steps = 777,
      .cycle_first_stairs = 7,
      .decay_step_size = 10,
      .decay_lr_rate = 0.5,
      .cycle_momentum = true,
      .cycle_min_momentum = 0.85,
      .cycle_max_momentum = 0.95,
      .decay_momentum_rate = 1e-3}},
    {"range_test",
     1e-2,
     {.kind = SL_SCHEDULE_LR_RANGE_TEST,
      .range_min_lr = 1e-4,
      .range_step_size = 200,
      .range_step_rate = 5}},
    {"range_test_staircase",
     1e-2,
     {.kind = SL_SCHEDULE_LR_RANGE_TEST,
      .range_min_lr = 1e-4,
      .range_step_size = 7,
      .range_step_rate = 0.25,
      .range_staircase = true}},
    {"constant", 1e-3, {.kind = SL_SCHEDULE_CONSTANT, .base_lr = 1e-3, .warmup_steps = 37}},
    {"linear",
     3e-4,
     {.kind = SL_SCHEDULE_LINEAR,
      .base_lr = 3e-4,
      .warmup_steps = 200,
      .total_steps = 1800,
      .min_ratio = 0.1}},
    {"cosine",
     3e-4,
     {.kind = SL_SCHEDULE_COSINE,
      .base_lr = 3e-4,
      .warmup_steps = 100,
      .total_steps = 2000,
      .min_ratio = 0.1}},
};

static void close_to(const char *what, const char *name, int step, double got, double expected,
                     double height)
{
    double allowed = 8 * DBL_EPSILON * (fabs(expected) + height);
    if (!(fabs(got - expected) <= allowed))
        fail_msg("%s: %s of step %d is %.17g, expected %.17g", name, what, step, got, expected);
}

static void schedules_follow_the_formulas(void **state)
{
    (void)state;
    const char *folder = getenv("SLUICE_TEST_FIXTURES");
    for (size_t s = 0; s < sizeof(table) / sizeof(table[0]); s++) {
        const struct named *named = &table[s];
        char path[512];
        snprintf(path, sizeof(path), "%s/schedules/%s.csv", folder ? folder : "tests/fixtures",
                 named->name);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        int rows = 0, step;
        double lr, momentum;
        char line[128];
        while (fgets(line, sizeof(line), file)) {
            int got = sscanf(line, "%d,%lf,%lf", &step, &lr, &momentum);
            assert_true(got >= 2 && step == rows);
            close_to("rate", named->name, step, sl_schedule_lr(&named->schedule, (uint64_t)step),
                     lr, named->height);
            double beta1 = sl_schedule_momentum(&named->schedule, (uint64_t)step, 0.123);
            close_to("momentum", named->name, step, beta1, got == 3 ? momentum : 0.123, 1);
            rows++;
        }
        fclose(file);
        assert_int_equal(rows, 2000);
    }
}

/* A resumed run asks for step i alone: there is no order to keep. */
static void schedules_have_no_state(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof(table) / sizeof(table[0]); s++) {
        double late = sl_schedule_lr(&table[s].schedule, 1777);
        (void)sl_schedule_lr(&table[s].schedule, 3);
        assert_true(sl_schedule_lr(&table[s].schedule, 1777) == late);
    }
}

static void rates_stay_finite_for_ever(void **state)
{
    (void)state;
    static const uint64_t steps[] = {0, 1, 2, 1u << 31, UINT64_MAX / 2, UINT64_MAX};
    for (size_t s = 0; s < sizeof(table) / sizeof(table[0]); s++)
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
            double lr = sl_schedule_lr(&table[s].schedule, steps[i]);
            assert_true(isfinite(lr) && lr >= 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_follow_the_formulas),
        cmocka_unit_test(schedules_have_no_state),
        cmocka_unit_test(rates_stay_finite_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
