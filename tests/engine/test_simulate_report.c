// SPDX-License-Identifier: Apache-2.0
/* The report's figures against each other and against the plan, ranks, the search for what fits,
 * and the baselines: checked plans that are slower than the schedule they are compared with. */
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "engine/baseline_plan.h"
#include "engine/hardware.h"
#include "engine/simulate_report.h"
#include "offload/simulate_ranks.h"

static const uint64_t no_limit[SL_TIER_COUNT];

static void near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-6 * fabs(wanted))
        fail_msg("%.9g, not %.9g", value, wanted);
}

static struct sl_model load_model(const char *name)
{
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_model_from_preset(&model, name, &error))
        fail_msg("%s", error.message);
    return model;
}

static struct sl_hardware load_hardware(const char *name)
{
    struct sl_hardware hardware;
    struct sl_error error = {0};
    if (sl_hardware_load(&hardware, name, &error))
        fail_msg("%s", error.message);
    return hardware;
}

static struct sl_step_options step_options(const struct sl_model *model, size_t batch,
                                           size_t micro_batches, enum sl_tier optimizer)
{
    struct sl_step_options o = {
        .model = model,
        .precision = SL_BF16,
        .activation = SL_BF16,
        .batch = batch,
        .sequence = 512,
        .micro_batches = micro_batches,
        .group = micro_batches,
        .recompute = true,
        .sub_group_elements = 20000000,
        .optimizer_buffers = 3,
        .prefetch = 1,
        .hyper = {.kind = SL_OPTIM_ADAMW},
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        o.placement.fraction[kind][kind == SL_PLACED_OPTIMIZER ? optimizer : SL_TIER_HOST] = 1;
    return o;
}

static struct sl_report report_of(const struct sl_step_options *step,
                                  const struct sl_report_options *options)
{
    struct sl_step_plan sp;
    struct sl_report report;
    struct sl_error error = {0};
    if (sl_step_plan_build(&sp, step, &error) || sl_report_make(&report, &sp, options, &error))
        fail_msg("%s", error.message);
    sl_step_plan_finish(&sp);
    return report;
}

static void figures_agree_with_each_other(void **state)
{
    (void)state;
    struct sl_model model = load_model("llama-1b");
    struct sl_hardware hardware = load_hardware("rtx4090");
    struct sl_report_options options = {.hardware = &hardware};
    struct sl_step_options step = step_options(&model, 4, 4, SL_TIER_NVME);
    struct sl_report r = report_of(&step, &options);
    assert_true(r.fits);
    assert_int_equal(r.tokens_per_step, 4 * 4 * 512);
    near(r.tokens_per_second * r.seconds_per_step, (double)r.tokens_per_step);
    near(r.mfu * hardware.device_flops_peak, r.tflops * 1e12);
    assert_true(r.mfu > 0 && r.mfu < 1 && r.bound_share > 0 && r.bound_share <= 1 + 1e-9);
    assert_true(r.written_tb_per_day > 0);
    near(r.written_tb_per_day,
         (double)r.traffic.bytes[SL_LANE_NVME_WRITE] / r.seconds_per_step * 86400 * 1e-12);
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        uint64_t sum = 0;
        for (int s = 0; s < SL_STATE_COUNT; s++)
            sum += r.memory.bytes[tier][s];
        assert_true(sum <= r.plan_bytes[tier]);
    }

    char *text = sl_report_text(&r), *json = sl_report_json(&r);
    json_t *root = json_loads(json, 0, NULL);
    assert_non_null(root);
    near(json_real_value(json_object_get(root, "seconds_per_step")), r.seconds_per_step);
    json_t *lane = json_object_get(json_object_get(root, "lanes"), "nvme_write");
    assert_true((uint64_t)json_integer_value(json_object_get(lane, "bytes")) ==
                r.traffic.bytes[SL_LANE_NVME_WRITE]);
    assert_true(json_is_true(json_object_get(root, "fits")));
    assert_non_null(strstr(text, "fits               yes"));
    assert_non_null(strstr(text, r.bottleneck));
    json_decref(root);
    free(text);
    free(json);

    options.budget_bytes[SL_TIER_DEVICE] = r.plan_bytes[SL_TIER_DEVICE];
    assert_true(report_of(&step, &options).fits);
    options.extra_bytes[SL_TIER_DEVICE] = 1;
    r = report_of(&step, &options);
    assert_false(r.fits);
    text = sl_report_text(&r);
    assert_non_null(strstr(text, "device: 1 B more than there is"));
    free(text);
    sl_model_finish(&model);
}

/* From hide_tokens on the device is the longest lane; well below it is not. */
static void tokens_that_hide_do_hide(void **state)
{
    (void)state;
    struct sl_model model = load_model("llama-1b");
    struct sl_hardware hardware = load_hardware("rtx4090");
    struct sl_report_options options = {.hardware = &hardware};
    struct sl_step_options step = step_options(&model, 4, 2, SL_TIER_NVME);
    struct sl_report few = report_of(&step, &options);
    assert_true(few.hide_tokens > (double)few.tokens_per_step);
    assert_string_not_equal(few.bottleneck, "compute");
    size_t needed = (size_t)ceil(few.hide_tokens / (4 * 512.0));
    step = step_options(&model, 4, needed + 1, SL_TIER_NVME);
    struct sl_report enough = report_of(&step, &options);
    assert_string_equal(enough.bottleneck, "compute");
    assert_true(enough.bound_share > 0.85);
    assert_true(enough.tokens_per_second > few.tokens_per_second);
    sl_model_finish(&model);
}

static void what_fits_is_found(void **state)
{
    (void)state;
    struct sl_model model = load_model("gpt2-124m");
    struct sl_step_options step = step_options(&model, 16, 1, SL_TIER_HOST);
    struct sl_fit_options options = {.step = &step, .batch_free = true};
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        options.placement_free[kind] = true;
    struct sl_step_options found;
    bool fits;
    char change[256];
    struct sl_error error = {0};
    options.budget_bytes[SL_TIER_DEVICE] = 320ull << 20;
    options.budget_bytes[SL_TIER_HOST] = 4ull << 30;
    assert_int_equal(sl_report_fit(&found, &fits, change, &options, &error), 0);
    assert_true(fits);
    assert_non_null(strstr(change, " instead of 16, train.accumulation="));
    assert_true(found.batch * found.micro_batches >= 16);
    struct sl_step_plan sp;
    assert_int_equal(sl_step_plan_build(&sp, &found, &error), 0);
    assert_int_equal(sl_plan_check(&sp.plan, options.budget_bytes, &error), 0);
    sl_step_plan_finish(&sp);
    /* Less than a layer's weights and their sums: only tiles of it fit. */
    struct sl_model large = load_model("llama-70b");
    step = step_options(&large, 1, 1, SL_TIER_HOST);
    step.tile_bytes = 64 << 20;
    options.budget_bytes[SL_TIER_DEVICE] = 2ull << 30;
    options.budget_bytes[SL_TIER_HOST] = 2ull << 40;
    assert_int_equal(sl_report_fit(&found, &fits, change, &options, &error), 0);
    assert_true(fits);
    assert_non_null(strstr(change, "tiling.layer_bytes=64.00 MiB"));
    assert_int_equal(sl_step_plan_build(&sp, &found, &error), 0);
    assert_int_equal(sl_plan_check(&sp.plan, options.budget_bytes, &error), 0);
    sl_step_plan_finish(&sp);
    options.budget_bytes[SL_TIER_HOST] = 1 << 20; /* nothing fits in a mebibyte */
    assert_int_equal(sl_report_fit(&found, &fits, change, &options, &error), 0);
    assert_false(fits);
    sl_model_finish(&large);
    sl_model_finish(&model);
}

static void ranks_share_the_state(void **state)
{
    (void)state;
    struct sl_model model = load_model("llama-1b");
    struct sl_hardware hardware = load_hardware("v100-dgx2");
    struct sl_step_options step = step_options(&model, 2, 2, SL_TIER_HOST);
    struct sl_step_plan sp;
    struct sl_error error = {0};
    assert_int_equal(sl_step_plan_build(&sp, &step, &error), 0);
    struct sl_plan_traffic one, four;
    sl_plan_traffic(&sp.plan, sp.step, &one);
    struct sl_plan plan;
    if (sl_plan_for_ranks(&plan, &sp.plan, 4, &error) || sl_plan_check(&plan, no_limit, &error))
        fail_msg("%s", error.message);
    sl_plan_traffic(&plan, sp.step, &four);
    assert_int_equal(one.bytes[SL_LANE_NET], 0);
    /* Weights up twice and gradients down once, three quarters of each over the network. */
    near((double)four.bytes[SL_LANE_NET] / ((double)model.param_elements * 2 * 3 * 0.75), 1.0);
    double ratio = (double)four.bytes[SL_LANE_CPU] / (double)one.bytes[SL_LANE_CPU];
    assert_true(ratio > 0.24 && ratio < 0.27);
    assert_true(four.flops[SL_LANE_COMPUTE] == one.flops[SL_LANE_COMPUTE]);
    sl_plan_finish(&plan);
    sl_step_plan_finish(&sp);

    struct sl_report_options options = {.hardware = &hardware, .ranks = 4};
    struct sl_report report = report_of(&step, &options);
    assert_int_equal(report.tokens_per_step, 4 * 2 * 2 * 512);
    options.ranks = 1;
    struct sl_report alone = report_of(&step, &options);
    assert_true(report.tokens_per_second > 2 * alone.tokens_per_second);
    /* Four links and a quarter of the state on each, but a device's own work stays what it was. */
    assert_true(report.tokens_per_second <
                4 * (double)alone.tokens_per_step / alone.simulation.solo_seconds[SL_LANE_COMPUTE]);
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) { /* replicated: gradients are reduced */
        step.placement.fraction[kind][SL_TIER_HOST] = 0;
        step.placement.fraction[kind][SL_TIER_DEVICE] = 1;
    }
    options.ranks = 4;
    report = report_of(&step, &options);
    near((double)report.traffic.bytes[SL_LANE_NET] / ((double)model.param_elements * 2 * 2 * 0.75),
         1.0);
    step.unified = true;
    assert_int_equal(sl_step_plan_build(&sp, &step, &error), 0);
    assert_true(sl_plan_for_ranks(&plan, &sp.plan, 4, &error) < 0);
    sl_step_plan_finish(&sp);
    sl_model_finish(&model);
}

static double baseline_seconds(const struct sl_baseline_options *options)
{
    struct sl_plan plan;
    struct sl_error error = {0};
    if (sl_baseline_plan_build(&plan, options, &error) || sl_plan_check(&plan, no_limit, &error))
        fail_msg("%s", error.message);
    uint32_t segments[] = {0, 0, 0};
    struct sl_simulation simulation;
    struct sl_simulation_options run = {.plan = &plan,
                                        .hardware = options->hardware,
                                        .segments = segments,
                                        .segment_count = 3,
                                        .measured = 1};
    if (sl_simulate(&simulation, &run, &error))
        fail_msg("%s", error.message);
    struct sl_baseline_phases phases = sl_baseline_plan_phases(&plan);
    assert_true(phases.forward_last < phases.backward_last &&
                phases.backward_last < phases.norm_last && phases.norm_last < phases.update_last);
    sl_plan_finish(&plan);
    return simulation.step_seconds;
}

static void baselines_are_plans_and_slower(void **state)
{
    (void)state;
    struct sl_model model = load_model("llama-1b");
    struct sl_hardware hardware = load_hardware("rtx4090");
    struct sl_baseline_options options = {.kind = SL_BASELINE_ZERO_INFINITY,
                                          .model = &model,
                                          .hardware = &hardware,
                                          .batch = 4,
                                          .sequence = 512,
                                          .micro_batches = 4,
                                          .weights = SL_TIER_HOST,
                                          .optimizer = SL_TIER_NVME,
                                          .activations = SL_TIER_HOST,
                                          .fused_attention = true,
                                          .sub_group_elements = 100000000};
    double infinity = baseline_seconds(&options);
    struct sl_step_options step = step_options(&model, 4, 4, SL_TIER_NVME);
    struct sl_report_options report = {.hardware = &hardware};
    double sluice = report_of(&step, &report).seconds_per_step;
    assert_true(sluice < infinity);

    options.costs.update_params_per_second = 1e8; /* slower costs make slower steps */
    assert_true(baseline_seconds(&options) > infinity + 1);
    options.costs.update_params_per_second = 0;
    options.max_live_parameters = 1; /* nothing is fetched ahead */
    assert_true(baseline_seconds(&options) > infinity);
    options.max_live_parameters = 0;
    options.blocking_gradients = true;
    assert_true(baseline_seconds(&options) > infinity);
    options.optimizer = SL_TIER_HOST;
    assert_true(baseline_seconds(&options) < infinity);
    options.weights = SL_TIER_NVME;
    baseline_seconds(&options);
    options.kind = SL_BASELINE_ZERO_OFFLOAD;
    options.activations = SL_TIER_DEVICE;
    baseline_seconds(&options);
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_agree_with_each_other),
        cmocka_unit_test(tokens_that_hide_do_hide),
        cmocka_unit_test(what_fits_is_found),
        cmocka_unit_test(ranks_share_the_state),
        cmocka_unit_test(baselines_are_plans_and_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
