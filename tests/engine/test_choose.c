// SPDX-License-Identifier: Apache-2.0
/* The choice of settings: over random models, budgets and machines it fits where the rule fits, is
 * never slower than the rule in simulation, is the same twice, and leaves alone what is not free.
 */
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "engine/choose.h"
#include "engine/hardware.h"

#define CASES 40

static const uint64_t no_limit[SL_TIER_COUNT];

struct fixture {
    struct sl_step_plan sp;
    bool built;
};

static int attempt(void *user, const struct sl_step_options *step, uint64_t total[SL_TIER_COUNT],
                   struct sl_step_plan **plan, struct sl_error *error)
{
    struct fixture *f = user;
    if (f->built)
        sl_step_plan_finish(&f->sp);
    f->built = false;
    int result = sl_step_plan_place(&f->sp, step, error);
    f->built = !result;
    if (!result)
        memcpy(total, f->sp.plan.tier_bytes, sizeof(f->sp.plan.tier_bytes));
    *plan = &f->sp;
    return result;
}

static void choose(const struct sl_choose_options *options, struct sl_step_options *step,
                   struct sl_choice *choice)
{
    struct fixture f = {0};
    struct sl_choose_options o = *options;
    struct sl_error error = {0};
    o.attempt = attempt;
    o.user = &f;
    if (sl_choose(step, choice, &o, &error))
        fail_msg("%s", error.message);
    if (f.built)
        sl_step_plan_finish(&f.sp);
}

static struct sl_choose_options random_options(struct test_random *random,
                                               const struct sl_model *model,
                                               const struct sl_hardware *hardware)
{
    size_t m = 1 + test_random_below(random, 6);
    struct sl_choose_options o = {
        .step = {.model = model,
                 .precision = SL_BF16,
                 .activation = SL_BF16,
                 .batch = 1 + test_random_below(random, 4),
                 .sequence = 64 << test_random_below(random, 3),
                 .micro_batches = m,
                 .group = m,
                 .recompute = true,
                 .sub_group_elements = 1u << (18 + test_random_below(random, 4)),
                 .optimizer_buffers = 3,
                 .prefetch = 1,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .free = {.placement = {true, true, true, true},
                 .order = true,
                 .recompute = test_random_below(random, 2),
                 .prefetch = true,
                 .buffers = true,
                 .speculate = test_random_below(random, 2),
                 .sub_group = true},
        .nvme = true,
        .hardware = hardware,
    };
    double parameters = (double)model->param_elements;
    o.budget_bytes[SL_TIER_DEVICE] =
        (uint64_t)(parameters * (0.5 + test_random_below(random, 200) * 0.1) + 8e6);
    o.budget_bytes[SL_TIER_HOST] =
        (uint64_t)(parameters * (2 + test_random_below(random, 200) * 0.1) + 8e6);
    return o;
}

static void chosen_fits_and_is_no_slower_than_the_rule(void **state)
{
    (void)state;
    static const char *const machines[] = {"v100-dgx2", "h200", "rtx4090", "gh200"};
    static const char *const presets[] = {"tiny", "bible-4m", "gpt2-124m"};
    struct test_random random = {20261202};
    unsigned faster = 0, fitting = 0, speculating = 0;
    for (int i = 0; i < CASES; i++) {
        struct sl_model model;
        struct sl_hardware hardware;
        struct sl_error error = {0};
        if (sl_model_from_preset(&model, presets[i % 8 == 7 ? 2 : i % 2], &error) ||
            sl_hardware_load(&hardware, machines[test_random_below(&random, 4)], &error))
            fail_msg("%s", error.message);
        struct sl_choose_options o = random_options(&random, &model, &hardware);
        struct sl_step_options step, again;
        static struct sl_choice choice, twice;
        choose(&o, &step, &choice);
        choose(&o, &again, &twice);
        assert_memory_equal(&step.placement, &again.placement, sizeof(step.placement));
        assert_true(step.group == again.group && step.prefetch == again.prefetch &&
                    step.optimizer_buffers == again.optimizer_buffers &&
                    step.recompute == again.recompute && step.speculate == again.speculate &&
                    step.sub_group_elements == again.sub_group_elements);
        assert_true(o.free.recompute || step.recompute);
        assert_true(o.free.speculate || step.speculate == 0);
        speculating += step.speculate > 0;
        assert_true(choice.row_count > 0 && choice.row_count == twice.row_count);
        if (choice.rows[0].seconds > 0) {
            const struct sl_choice_row *best = &choice.rows[choice.best];
            fitting++;
            faster += best->seconds < choice.rows[0].seconds;
            assert_true(best->taken && best->seconds <= choice.rows[0].seconds);
            for (size_t row = 0; row < choice.row_count; row++)
                assert_true(choice.rows[row].seconds <= 0 || !choice.rows[row].taken ||
                            choice.rows[row].seconds >= best->seconds);
            struct sl_step_plan sp;
            if (sl_step_plan_build(&sp, &step, &error) ||
                sl_plan_check(&sp.plan, o.budget_bytes, &error))
                fail_msg("case %d: %s", i, error.message);
            assert_memory_equal(sp.plan.tier_bytes, best->bytes, sizeof(best->bytes));
            sl_step_plan_finish(&sp);
        } else {
            assert_int_equal(choice.row_count, 1); /* nothing to improve */
        }
        sl_model_finish(&model);
    }
    print_message("%u of %d fit, %u got faster, %u speculate\n", fitting, CASES, faster,
                  speculating);
    assert_true(fitting > CASES / 2 && faster > CASES / 8 && speculating > 0);
}

static void what_is_not_free_stays(void **state)
{
    (void)state;
    struct sl_model model;
    struct sl_hardware hardware;
    struct sl_error error = {0};
    assert_int_equal(sl_model_from_preset(&model, "bible-4m", &error), 0);
    assert_int_equal(sl_hardware_load(&hardware, "rtx4090", &error), 0);
    struct test_random random = {7};
    struct sl_choose_options o = random_options(&random, &model, &hardware);
    static struct sl_choice choice;
    struct sl_step_options step;
    memcpy(o.budget_bytes, no_limit, sizeof(no_limit));
    o.free = (struct sl_choose_free){0};
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        o.step.placement.fraction[kind][SL_TIER_HOST] = 1;
    choose(&o, &step, &choice);
    assert_memory_equal(&step, &o.step, sizeof(step));
    assert_int_equal(choice.row_count, 1);
    o.hardware = NULL; /* the rule alone */
    choose(&o, &step, &choice);
    assert_memory_equal(&step, &o.step, sizeof(step));
    assert_int_equal(choice.row_count, 0);
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_fits_and_is_no_slower_than_the_rule),
        cmocka_unit_test(what_is_not_free_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
