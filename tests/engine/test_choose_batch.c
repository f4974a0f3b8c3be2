// SPDX-License-Identifier: Apache-2.0
/* The micro-batch size: over random models, budgets and machines it keeps the samples of a step
 * where they are given, fits where one does, and is the fastest of what was tried. */
#include "tests/test.h"

#include <string.h>

#include "engine/choose_batch.h"
#include "engine/hardware.h"

#define CASES 24

static int attempt(void *user, const struct sl_step_options *step, uint64_t total[SL_TIER_COUNT],
                   struct sl_step_plan **plan, struct sl_error *error)
{
    struct sl_step_plan *sp = user;
    sl_step_plan_finish(sp);
    int result = sl_step_plan_place(sp, step, error);
    if (!result)
        memcpy(total, sp->plan.tier_bytes, sizeof(sp->plan.tier_bytes));
    *plan = sp;
    return result;
}

static void choose(const struct sl_choose_options *options, const struct sl_batch_free *free,
                   struct sl_step_options *step, struct sl_batch_choice *choice)
{
    struct sl_step_plan sp = {0};
    struct sl_choose_options o = *options;
    struct sl_error error = {0};
    o.attempt = attempt;
    o.user = &sp;
    if (sl_choose_batch(step, choice, free, &o, &error))
        fail_msg("%s", error.message);
    sl_step_plan_finish(&sp);
}

static struct sl_choose_options options_of(const struct sl_model *model,
                                           const struct sl_hardware *hardware)
{
    return (struct sl_choose_options){
        .step = {.model = model,
                 .precision = SL_BF16,
                 .activation = SL_BF16,
                 .batch = 1,
                 .sequence = 128,
                 .micro_batches = 1,
                 .group = 1,
                 .recompute = true,
                 .sub_group_elements = 1u << 20,
                 .optimizer_buffers = 3,
                 .prefetch = 1,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .free = {.placement = {true, true, true, true}},
        .nvme = true,
        .hardware = hardware,
    };
}

/* No row that fits is faster than the chosen one by more than is worth another size. */
static void check_rows(const struct sl_batch_choice *choice, const struct sl_batch_free *free,
                       const struct sl_choose_options *o)
{
    const struct sl_batch_row *best = &choice->rows[choice->best];
    for (size_t i = 0; i < choice->row_count; i++) {
        const struct sl_batch_row *row = &choice->rows[i];
        assert_true(row->seconds_per_token <= 0 ||
                    row->seconds_per_token > 0.994 * best->seconds_per_token);
        if (free->total)
            assert_int_equal(row->micro_batch * row->micro_batches, free->total);
        else
            assert_int_equal(row->micro_batches, free->accumulation);
        bool fits = row->bytes[SL_TIER_DEVICE] <= o->budget_bytes[SL_TIER_DEVICE] &&
                    row->bytes[SL_TIER_HOST] <= o->budget_bytes[SL_TIER_HOST];
        assert_int_equal(fits, row->seconds_per_token > 0);
    }
    assert_true(best->taken);
}

static void chosen_is_the_fastest_that_fits(void **state)
{
    (void)state;
    static const char *const machines[] = {"v100-dgx2", "h200", "rtx4090", "gh200"};
    struct test_random random = test_random_seed(20261203);
    unsigned larger = 0, bounded = 0, fitting = 0;
    for (int i = 0; i < CASES; i++) {
        struct sl_model model;
        struct sl_hardware hardware;
        struct sl_error error = {0};
        if (sl_model_from_preset(&model, i % 2 ? "tiny" : "bible-4m", &error) ||
            sl_hardware_load(&hardware, machines[test_random_below(&random, 4)], &error))
            fail_msg("%s", error.message);
        struct sl_choose_options o = options_of(&model, &hardware);
        double parameters = (double)model.param_elements;
        o.budget_bytes[SL_TIER_DEVICE] =
            (uint64_t)(parameters * (double)test_random_below(&random, 20) + 30e6);
        o.budget_bytes[SL_TIER_HOST] = (uint64_t)(20 * parameters + 30e6);
        struct sl_batch_free free = {
            .free = true,
            .total = i % 3 ? 1 + test_random_below(&random, 60) : 0,
            .accumulation = 1 + test_random_below(&random, 3),
            .total_max = i % 3 ? 0 : 1 + test_random_below(&random, 100),
            .group = test_random_below(&random, 3),
        };
        struct sl_step_options step, again;
        static struct sl_batch_choice choice, twice;
        choose(&o, &free, &step, &choice);
        choose(&o, &free, &again, &twice);
        assert_true(step.batch == again.batch && step.micro_batches == again.micro_batches);
        assert_true(choice.row_count > 0 && choice.row_count == twice.row_count);
        uint64_t group =
            free.group && free.group < step.micro_batches ? free.group : step.micro_batches;
        assert_int_equal(step.group, group);
        if (free.total_max && step.batch > 1)
            assert_true(step.batch * step.micro_batches <= free.total_max);
        if (choice.best < choice.row_count) {
            fitting++;
            larger += step.batch > 1;
            bounded += choice.rows[0].seconds_per_token <= 0;
            assert_int_equal(choice.rows[choice.best].micro_batch, step.batch);
            check_rows(&choice, &free, &o);
        }
        sl_model_finish(&model);
    }
    print_message("%u of %d fit, %u above 1, %u below the largest\n", fitting, CASES, larger,
                  bounded);
    assert_true(fitting > CASES / 2 && larger > CASES / 3 && bounded > 0);
}

static void where_nothing_fits_the_smallest_is_left(void **state)
{
    (void)state;
    struct sl_model model;
    struct sl_hardware hardware;
    struct sl_error error = {0};
    assert_int_equal(sl_model_from_preset(&model, "tiny", &error), 0);
    assert_int_equal(sl_hardware_load(&hardware, "h200", &error), 0);
    struct sl_choose_options o = options_of(&model, &hardware);
    o.budget_bytes[SL_TIER_DEVICE] = o.budget_bytes[SL_TIER_HOST] = 1 << 16;
    struct sl_batch_free free = {.free = true, .total = 12};
    struct sl_step_options step;
    static struct sl_batch_choice choice;
    choose(&o, &free, &step, &choice);
    assert_int_equal(choice.best, choice.row_count);
    assert_true(step.batch == 1 && step.micro_batches == 12);
    size_t sizes[] = {12, 6, 4, 2, 1}; /* 12 at most 16, 6 at most 8, ... */
    assert_int_equal(choice.row_count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(choice.rows[i].micro_batch, sizes[i]);
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_is_the_fastest_that_fits),
        cmocka_unit_test(where_nothing_fits_the_smallest_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
