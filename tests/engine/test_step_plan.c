// SPDX-License-Identifier: Apache-2.0
/* Plans of random models, placements, buffers and orders: each passes the independent checker. */
#include "tests/test.h"

#include "engine/step_plan.h"

static double chance(struct test_random *random)
{
    return (double)(test_random_u64(random) >> 11) * 0x1p-53;
}

static void random_placement(struct test_random *random, struct sl_placement *placement)
{
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        double *f = placement->fraction[kind];
        f[0] = f[1] = f[2] = 0;
        if (test_random_below(random, 2)) {
            f[test_random_below(random, 3)] = 1;
            continue;
        }
        double a = chance(random), b = chance(random) * (1 - a);
        f[SL_TIER_DEVICE] = a;
        f[SL_TIER_HOST] = b;
        f[SL_TIER_NVME] = 1 - a - b;
    }
}

static struct sl_step_options random_options(struct test_random *random,
                                             const struct sl_model *model)
{
    struct sl_step_options o = {
        .model = model,
        .precision = (enum sl_dtype)test_random_below(random, 3),
        .activation = SL_F32,
        .unified = test_random_below(random, 2),
        .batch = 1 + test_random_below(random, 3),
        .sequence = 8 << test_random_below(random, 3),
        .micro_batches = 1 + test_random_below(random, 4),
        .recompute = test_random_below(random, 2),
        .sub_group_elements =
            test_random_below(random, 3) ? 1u << (10 + test_random_below(random, 12)) : 0,
        .optimizer_buffers = (uint32_t)(1 + test_random_below(random, 4)),
        .prefetch = (uint32_t)test_random_below(random, 4),
        .tile_bytes = test_random_below(random, 2) ? 1u << (14 + test_random_below(random, 8)) : 0,
        .layer_bytes =
            test_random_below(random, 2) ? 1u << (10 + test_random_below(random, 14)) : 0,
        .hyper = {.kind = (enum sl_optim_kind)test_random_below(random, 5),
                  .momentum = test_random_below(random, 2) ? 0.9f : 0},
        .moment_kind = (enum sl_moment_kind)test_random_below(random, 3),
        .master_kind = (enum sl_master_kind)test_random_below(random, 3),
        .delayed_update = test_random_below(random, 4) == 0,
        .speculate = test_random_below(random, 2) ? chance(random) * 1.2 : 0,
    };
    if (o.delayed_update)
        o.speculate = 0;
    o.group = 1 + test_random_below(random, o.micro_batches);
    random_placement(random, &o.placement);
    return o;
}

static void random_plans_pass_the_checker(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(11);
    static const char *const presets[] = {"tiny", "bible-2m", "gpt2-124m"};
    struct sl_model models[3];
    struct sl_error error = {0};
    for (int i = 0; i < 3; i++) {
        sl_model_from_preset(&models[i], presets[i], &error);
        if (error.code)
            fail_msg("%s", error.message);
    }
    static const char *const frozen[] = {"*embed_tokens*", "*.0.self_attn.k_proj.weight"};
    if (sl_model_freeze(&models[1], frozen, 2, &error))
        fail_msg("%s", error.message);
    for (int round = 0; round < 300; round++) {
        /* The big one rarely. */
        int which = test_random_below(&random, 12) == 0 ? 2 : (int)test_random_below(&random, 2);
        struct sl_step_options o = random_options(&random, &models[which]);
        struct sl_step_plan sp;
        if (sl_step_plan_build(&sp, &o, &error))
            fail_msg("round %d: %s", round, error.message);
        uint64_t budget[SL_TIER_COUNT] = {0};
        if (sl_plan_check(&sp.plan, budget, &error))
            fail_msg("round %d: %s", round, error.message);
        /* A budget one byte short is refused; the exact one is not. */
        enum sl_tier tier = o.unified ? SL_TIER_HOST : SL_TIER_DEVICE;
        budget[tier] = sp.plan.tier_bytes[tier];
        assert_int_equal(sl_plan_check(&sp.plan, budget, &error), 0);
        budget[tier]--;
        struct sl_error expected = {0};
        assert_int_not_equal(sl_plan_check(&sp.plan, budget, &expected), 0);
        sl_step_plan_finish(&sp);
    }
    for (int i = 0; i < 3; i++)
        sl_model_finish(&models[i]);
}

/* A speculative update that took the wrong version, waited for no flag, or committed its gradient
 * would train on wrong bits: the checker finds each, at every operation. */
static void broken_speculation_is_found(void **state)
{
    (void)state;
    struct sl_error error = {0};
    struct sl_model model;
    assert_int_equal(sl_model_from_preset(&model, "tiny", &error), 0);
    uint32_t broken = 0;
    for (int nvme = 0; nvme < 2; nvme++) {
        struct sl_step_options o = {
            .model = &model,
            .precision = SL_BF16,
            .activation = SL_F32,
            .unified = true,
            .batch = 1,
            .sequence = 16,
            .micro_batches = 2,
            .group = 2,
            .recompute = true,
            .sub_group_elements = 1 << 16,
            .optimizer_buffers = 3,
            .prefetch = 1,
            .hyper = {.kind = SL_OPTIM_ADAMW},
            .speculate = 0.7,
            .master_kind = SL_MASTER_SPLIT,
        };
        for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
            o.placement.fraction[kind][nvme ? SL_TIER_NVME : SL_TIER_HOST] = 1;
        struct sl_step_plan sp;
        assert_int_equal(sl_step_plan_build(&sp, &o, &error), 0);
        uint64_t budget[SL_TIER_COUNT] = {0};
        assert_int_equal(sl_plan_check(&sp.plan, budget, &error), 0);
        for (uint32_t i = 0; i < sp.plan.op_count; i++) {
            struct sl_op *op = &sp.plan.ops[i], whole = *op;
            if (op->predicate == SL_PLAN_NONE)
                continue;
            for (int mutation = 0; mutation < 3; mutation++) {
                bool state_op = false, gradient = false;
                for (uint32_t a = 0; a < op->access_count; a++) {
                    const struct sl_slot *slot =
                        &sp.plan.slots[sp.plan.accesses[op->access_first + a].slot];
                    state_op |= slot->versioned;
                    if (slot->parent != SL_PLAN_NONE)
                        slot = &sp.plan.slots[slot->parent];
                    gradient |= slot->consume_once;
                }
                if (mutation == 0 && state_op)
                    op->version ^= 1;
                else if (mutation == 1)
                    op->predicate = SL_PLAN_NONE;
                else if (mutation == 2 && (state_op || gradient))
                    op->speculative = !op->speculative;
                else
                    continue;
                struct sl_error found = {0};
                if (sl_plan_check(&sp.plan, budget, &found) == 0)
                    fail_msg("mutation %d of %s (op %u) was not found", mutation,
                             sl_op_kind_name(op->kind), i);
                *op = whole;
                broken++;
            }
        }
        sl_step_plan_finish(&sp);
    }
    printf("%u mutations found\n", broken);
    assert_true(broken > 50);
    sl_model_finish(&model);
}

/* What one step moves, in bytes per parameter: the figures of docs/plan.md. */
static void everything_on_nvme_moves_what_the_arithmetic_says(void **state)
{
    (void)state;
    struct sl_error error = {0};
    struct sl_model model;
    assert_int_equal(sl_model_from_preset(&model, "llama-1b", &error), 0);
    struct sl_step_options o = {
        .model = &model,
        .precision = SL_BF16,
        .activation = SL_F32,
        .unified = true,
        .batch = 1,
        .sequence = 512,
        .micro_batches = 2,
        .group = 2,
        .recompute = true,
        .sub_group_elements = 10000000,
        .optimizer_buffers = 3,
        .prefetch = 1,
        .tile_bytes = 64 << 20,
        .hyper = {.kind = SL_OPTIM_ADAMW},
        .moment_kind = SL_MOMENT_F32,
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        o.placement.fraction[kind][SL_TIER_NVME] = 1;
    struct sl_step_plan sp;
    if (sl_step_plan_build(&sp, &o, &error))
        fail_msg("%s", error.message);
    uint64_t budget[SL_TIER_COUNT] = {[SL_TIER_HOST] = 3ull << 30};
    if (sl_plan_check(&sp.plan, budget, &error))
        fail_msg("%s", error.message);
    struct sl_plan_traffic traffic;
    sl_plan_traffic(&sp.plan, sp.step, &traffic);
    double parameters = (double)model.param_elements;
    double read = (double)traffic.bytes[SL_LANE_NVME_READ] / parameters;
    double written = (double)traffic.bytes[SL_LANE_NVME_WRITE] / parameters;
    printf("llama-1b on NVMe: %.2f B read, %.2f B written per parameter; arena %.2f GiB\n", read,
           written, (double)sp.plan.tier_bytes[SL_TIER_HOST] / (1 << 30));
    assert_true(read > 16 && read < 19.5);
    assert_true(written > 15.9 && written < 17.5);
    sl_step_plan_finish(&sp);
    sl_model_finish(&model);
}

/* Tiles of layers: what a discrete device must hold follows the budget, not the layer. */
static void tiles_need_little_of_the_device(void **state)
{
    (void)state;
    struct sl_error error = {0};
    struct sl_model model;
    assert_int_equal(sl_model_from_preset(&model, "llama-70b", &error), 0);
    struct sl_step_options o = {
        .model = &model,
        .precision = SL_BF16,
        .activation = SL_BF16,
        .batch = 1,
        .sequence = 2048,
        .micro_batches = 1,
        .group = 1,
        .recompute = true,
        .sub_group_elements = 100000000,
        .optimizer_buffers = 3,
        .prefetch = 1,
        .tile_bytes = 64 << 20,
        .hyper = {.kind = SL_OPTIM_ADAMW},
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        o.placement.fraction[kind][SL_TIER_HOST] = 1;
    static const uint64_t layer_bytes[] = {0, 256 << 20, 64 << 20};
    uint64_t device[3], no_budget[SL_TIER_COUNT] = {0};
    for (int i = 0; i < 3; i++) {
        struct sl_step_plan sp;
        o.layer_bytes = layer_bytes[i];
        assert_int_equal(sl_step_plan_build(&sp, &o, &error), 0);
        assert_int_equal(sl_plan_check(&sp.plan, no_budget, &error), 0);
        device[i] = sp.plan.tier_bytes[SL_TIER_DEVICE];
        printf("llama-70b, layers above %3llu MiB in tiles: %.2f GiB of device memory\n",
               (unsigned long long)layer_bytes[i] >> 20, (double)device[i] / (1 << 30));
        for (uint32_t p = 0; p < sp.piece_count && i > 0; p++)
            if (sp.pieces[p].kind == SL_PIECE_MATRIX)
                assert_true(sp.pieces[p].elements * 2 <= layer_bytes[i]);
        sl_step_plan_finish(&sp);
    }
    /* A tile, the next one, its sums and its gradient are 5 times the budget; the rest is the work
     * of one micro-batch, tables' tiles and boundaries. */
    assert_true(device[1] - device[2] > 4 * (layer_bytes[1] - layer_bytes[2]) / 2);
    assert_true(device[0] > 6 * device[2]);
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_pass_the_checker),
        cmocka_unit_test(broken_speculation_is_found),
        cmocka_unit_test(tiles_need_little_of_the_device),
        cmocka_unit_test(everything_on_nvme_moves_what_the_arithmetic_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
