// SPDX-License-Identifier: Apache-2.0
/* Predictions against the published record, and for machines that are not here: the tables of
 * docs/simulator.md. Every input that is not in a profile stands in this file, with its source.
 *
 *     bench-record [--json]
 *
 * Sources are named as in docs/simulator.md. Nothing is measured here, so the output is the same on
 * every machine.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/usage.h"
#include "engine/baseline_plan.h"
#include "engine/hardware.h"
#include "engine/setting_text.h"
#include "engine/simulate_report.h"

/* One number of the record beside ours. */
struct row {
    const char *section, *name, *unit;
    double record, predicted;
    double limit; /* relative error that is promised; 0: shown, not promised */
};

static struct row rows[64];
static size_t row_count;
static bool json;

static void add(const char *section, const char *name, const char *unit, double record,
                double predicted, double limit)
{
    if (row_count < sizeof(rows) / sizeof(rows[0]))
        rows[row_count++] = (struct row){section, name, unit, record, predicted, limit};
}

static void die(const struct sl_error *error)
{
    fprintf(stderr, "bench-record: %s\n", error->message);
    exit(1);
}

static struct sl_model load_model(const char *preset)
{
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_model_from_preset(&model, preset, &error))
        die(&error);
    return model;
}

static struct sl_hardware load_hardware(const char *name)
{
    struct sl_hardware hardware;
    struct sl_error error = {0};
    if (sl_hardware_load(&hardware, name, &error))
        die(&error);
    return hardware;
}

struct baseline_times {
    double step, forward, backward, norm, update;
    uint64_t device_bytes;
};

static struct baseline_times run_baseline(const struct sl_baseline_options *options)
{
    struct sl_plan plan;
    struct sl_error error = {0};
    static const uint64_t no_limit[SL_TIER_COUNT];
    if (sl_baseline_plan_build(&plan, options, &error) || sl_plan_check(&plan, no_limit, &error))
        die(&error);
    uint32_t segments[] = {0, 0, 0};
    double *end = calloc(plan.op_count, sizeof(*end));
    struct sl_simulation out;
    struct sl_simulation_options simulation = {.plan = &plan,
                                               .hardware = options->hardware,
                                               .segments = segments,
                                               .segment_count = 3,
                                               .measured = 1,
                                               .op_end_seconds = end};
    if (!end || sl_simulate(&out, &simulation, &error))
        die(&error);
    struct sl_baseline_phases phases = sl_baseline_plan_phases(&plan);
    struct baseline_times times = {
        .step = out.step_seconds,
        .forward = end[phases.forward_last] - (out.total_seconds - out.step_seconds),
        .backward = end[phases.backward_last] - end[phases.forward_last],
        .norm = end[phases.norm_last] - end[phases.backward_last],
        .update = end[phases.update_last] - end[phases.norm_last],
        .device_bytes = plan.tier_bytes[SL_TIER_DEVICE],
    };
    free(end);
    sl_plan_finish(&plan);
    return times;
}

/* What DeepSpeed of 2020 to 2025 reaches, read off the log of another system's baseline (the 5.95B
 * run of the Deep Optimizer States artifacts): CPU Adam 1.52 G parameters/s, blocking copies 2.7
 * GB/s. Neither was measured on the machines below. */
#define ADAM_PARAMS_PER_SECOND 1.52e9
#define BLOCKING_BYTES_PER_SECOND 2.7e9

/* ZeRO-Offload, 10B on one V100: the official script (batch 10, checkpoints to host memory), phase
 * times of iterations 8 to 10. */
static struct sl_baseline_options zero_offload_10b_options(const struct sl_model *model,
                                                           const struct sl_hardware *hardware)
{
    return (struct sl_baseline_options){
        .kind = SL_BASELINE_ZERO_OFFLOAD,
        .model = model,
        .hardware = hardware,
        .batch = 10,
        .sequence = 1024,
        .micro_batches = 1,
        .activations = SL_TIER_HOST,
        .sub_group_elements = 100000000,
        .costs = {.update_params_per_second = ADAM_PARAMS_PER_SECOND,
                  .checkpoint_bytes_per_second = BLOCKING_BYTES_PER_SECOND},
    };
}

static void zero_offload_10b(void)
{
    struct sl_model model = load_model("zero-offload-10b");
    struct sl_hardware hardware = load_hardware("v100-dgx2");
    struct sl_baseline_options options = zero_offload_10b_options(&model, &hardware);
    struct baseline_times t = run_baseline(&options);
    const char *section = "ZeRO-Offload, 10B, one V100";
    add(section, "forward", "s", (6.383 + 6.128 + 6.078) / 3, t.forward, 0);
    add(section, "backward", "s", (11.770 + 12.636 + 11.801) / 3, t.backward, 0);
    add(section, "optimizer", "s", (7.613 + 7.991) / 2, t.norm + t.update, 0);
    add(section, "step in all", "s", (25.765 + 26.756 + 25.681) / 3, t.step, 0.15);
    sl_model_finish(&model);
}

/* The largest batch whose plan lies in nine tenths of the device's memory. */
static size_t largest_batch(struct sl_baseline_options options, double device_bytes)
{
    size_t batch = 1;
    for (size_t next = 2; next <= 64; next++) {
        options.batch = next;
        if ((double)run_baseline(&options).device_bytes > device_bytes)
            break;
        batch = next;
    }
    return batch;
}

/* ZeRO-3 Offload, one V100: batch not stated, so the largest that fits; checkpoints on the device,
 * since only then do the sizes differ as they do; max_live_parameters from the release's
 * configuration. TFLOPS as DeepSpeed's examples count them: 8 P B s / t. */
static void zero3_offload_sizes(void)
{
    static const struct {
        const char *preset, *name;
        double tflops;
    } sizes[] = {{"zero-offload-10b", "10B", 48.3},
                 {"zero-offload-13b", "13B", 47.0},
                 {"zero-offload-20b", "20B", 45.8},
                 {"zero-offload-40b", "40B", 43.3}};
    struct sl_hardware hardware = load_hardware("v100-dgx2");
    for (int i = 0; i < 4; i++) {
        struct sl_model model = load_model(sizes[i].preset);
        struct sl_baseline_options options = {
            .kind = SL_BASELINE_ZERO_INFINITY,
            .model = &model,
            .hardware = &hardware,
            .sequence = 1024,
            .micro_batches = 1,
            .weights = SL_TIER_HOST,
            .optimizer = SL_TIER_HOST,
            .activations = SL_TIER_DEVICE,
            .sub_group_elements = 400000000,
            .max_live_parameters = 1000000000,
            .costs = {.update_params_per_second = ADAM_PARAMS_PER_SECOND},
        };
        options.batch = largest_batch(options, 0.9 * hardware.device_memory_bytes);
        struct baseline_times t = run_baseline(&options);
        double tflops = 8.0 * (double)model.param_elements * (double)options.batch * 1024 / t.step;
        if (!json)
            printf("ZeRO-3 Offload %s: largest batch %zu\n", sizes[i].name, options.batch);
        add("ZeRO-3 Offload, one V100", sizes[i].name, "TF", sizes[i].tflops, tflops * 1e-12, 0);
        sl_model_finish(&model);
    }
}

/* SlideFormer's DeepSpeed baseline: Llama-3.1-8B, s 1024, host unknown. Two constants are fitted on
 * batch 16: the device's rate (to its nominal peak, which the slope over batches asks for) and the
 * host's memory rate, which prices update and norm. */
static void slideformer_8b(void)
{
    static const struct {
        size_t batch;
        const char *name;
        double seconds;
    } runs[] = {
        {8, "batch 8", 8.9672}, {16, "batch 16 (fitted)", 11.9340}, {32, "batch 32", 18.2987}};
    struct sl_model model = load_model("llama-8b");
    struct sl_hardware hardware = load_hardware("rtx4090");
    hardware.device_flops_per_second = hardware.device_flops_peak;
    hardware.host_cores = 64; /* not known; memory is to be the limit */
    struct sl_baseline_options options = {
        .kind = SL_BASELINE_ZERO_INFINITY,
        .model = &model,
        .hardware = &hardware,
        .batch = 16,
        .sequence = 1024,
        .micro_batches = 1,
        .weights = SL_TIER_HOST,
        .optimizer = SL_TIER_HOST,
        .activations = SL_TIER_HOST,
        .fused_attention = true,
        .max_live_parameters = 100000000,
        .sub_group_elements = 1000000000,
    };
    double low = 20e9, high = 500e9;
    for (int i = 0; i < 40; i++) {
        hardware.host_bytes_per_second = sqrt(low * high);
        if (run_baseline(&options).step > runs[1].seconds)
            low = hardware.host_bytes_per_second;
        else
            high = hardware.host_bytes_per_second;
    }
    if (!json)
        printf("SlideFormer's baseline: fitted device rate %.1f TF, host memory %.1f GB/s\n",
               hardware.device_flops_per_second * 1e-12, hardware.host_bytes_per_second * 1e-9);
    for (int i = 0; i < 3; i++) {
        options.batch = runs[i].batch;
        add("ZeRO-3, Llama 8B, RTX 4090", runs[i].name, "s", runs[i].seconds,
            run_baseline(&options).step, 0.15);
    }
    sl_model_finish(&model);
}

/* ---- Sluice --------------------------------------------------------------------------------- */

struct question {
    const char *preset, *hardware;
    double host_bytes; /* 0: the profile's */
    size_t batch, sequence, micro_batches;
    double speculate; /* where the placement is given */
};

static struct sl_step_options step_of(const struct sl_model *model, const struct question *q)
{
    return (struct sl_step_options){
        .model = model,
        .precision = SL_BF16,
        .activation = SL_BF16,
        .batch = q->batch,
        .sequence = q->sequence,
        .micro_batches = q->micro_batches,
        .group = q->micro_batches,
        .recompute = true,
        .sub_group_elements = 50000000,
        .optimizer_buffers = 4,
        .prefetch = 2,
        .speculate = q->speculate,
        .tile_bytes = 64u << 20, /* as `sluice` cuts tables of this size */
        .hyper = {.kind = SL_OPTIM_ADAMW},
    };
}

/* Memory that a CUDA context and its libraries hold beside the plan. */
#define CONTEXT_BYTES 1500000000ull

/* Choose what is free, build, check and simulate. `given`: the placement, in tiers of weights,
 * gradients, optimizer and activations, with the schedule that step_of says; NULL: all is free that
 * changes no bit, as with `sluice simulate`. */
static struct sl_report ask(const struct question *q, const struct sl_hardware *hardware,
                            const enum sl_tier *given)
{
    struct sl_model model = load_model(q->preset);
    struct sl_step_options step = step_of(&model, q), found;
    struct sl_fit_options fit = {.step = &step, .extra_bytes = {[SL_TIER_DEVICE] = CONTEXT_BYTES}};
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        fit.placement_free[kind] = !given;
        if (given)
            step.placement.fraction[kind][given[kind]] = 1;
    }
    struct sl_report_options options = {.hardware = hardware,
                                        .extra_bytes = {[SL_TIER_DEVICE] = CONTEXT_BYTES}};
    sl_report_budgets(hardware, fit.budget_bytes);
    struct sl_step_plan sp;
    struct sl_report report;
    struct sl_error error = {0};
    bool fits;
    struct sl_choice choice;
    struct sl_choose_free free = {.order = !given,
                                  .recompute = !given,
                                  .prefetch = !given,
                                  .buffers = !given,
                                  .speculate = !given,
                                  .sub_group = !given};
    memcpy(free.placement, fit.placement_free, sizeof(free.placement));
    static const uint64_t no_limit[SL_TIER_COUNT];
    if (sl_report_choose(&found, &fits, &choice, &fit, hardware, &free, &error) ||
        sl_step_plan_build(&sp, &found, &error) || sl_plan_check(&sp.plan, no_limit, &error) ||
        sl_report_make(&report, &sp, &options, &error))
        die(&error);
    if (!json && !given) {
        printf("\n%s on %s, %zu x %zu x %zu\n", q->preset, q->hardware, q->micro_batches, q->batch,
               q->sequence);
        sl_setting_write(stdout, &found);
    }
    sl_step_plan_finish(&sp);
    sl_model_finish(&model);
    return report;
}

/* The same model, batch and machine under Sluice's schedule, against ZeRO-Offload with what it
 * reaches and with the machine's rates everywhere: schedule and code apart. */
static void zero_offload_ratio(void)
{
    struct sl_model model = load_model("zero-offload-10b");
    struct sl_hardware hardware = load_hardware("v100-dgx2");
    struct sl_baseline_options options = zero_offload_10b_options(&model, &hardware);
    static const struct question q = {"zero-offload-10b", "v100-dgx2", 0, 10, 1024, 1};
    double sluice = ask(&q, &hardware, NULL).seconds_per_step;
    double real = run_baseline(&options).step;
    options.costs = (struct sl_baseline_costs){0};
    double ideal = run_baseline(&options).step;
    if (!json)
        printf("10B, one V100, batch 10: sluice %.2f s, zero-offload %.2f s (%.2fx), with the "
               "machine's rates %.2f s (%.2fx)\n",
               sluice, real, real / sluice, ideal, ideal / sluice);
    sl_model_finish(&model);
}

/* GreedySnake, GPT-65B on one A100: the speed-up of the layer-major order over ZeRO-Infinity at
 * saturation. Machine, shape and batch are not in what could be found. Assumed: the preset nearest
 * to GPT-65B (75 layers, 8192: 60.8B), the profile a100-80 with four drives, 16 micro-batches of 4
 * x 2048; the same placement in both, gradients in host memory, optimizer state on NVMe. Two inputs
 * are tried both ways: where the weights lie, since the paper's host memory is not known; and
 * whether the part of the update that is not in the next forward pass waits for it too, or runs in
 * the backward pass (three quarters, its share of the device's work), since the paper says "part".
 */
static void greedysnake_65b(enum sl_tier weights, double speculate, const char *name)
{
    struct sl_hardware hardware = load_hardware("a100-80");
    const enum sl_tier placement[SL_PLACED_COUNT] = {weights, SL_TIER_HOST, SL_TIER_NVME,
                                                     SL_TIER_HOST};
    const struct question q = {"zero-offload-60b", "a100-80", 0, 4, 2048, 16, speculate};
    struct sl_model model = load_model(q.preset);
    struct sl_baseline_options options = {
        .kind = SL_BASELINE_ZERO_INFINITY,
        .model = &model,
        .hardware = &hardware,
        .batch = q.batch,
        .sequence = q.sequence,
        .micro_batches = q.micro_batches,
        .weights = weights,
        .optimizer = SL_TIER_NVME,
        .activations = SL_TIER_HOST,
        .fused_attention = true,
        .sub_group_elements = 100000000,
        .costs = {.update_params_per_second = ADAM_PARAMS_PER_SECOND},
    };
    double infinity = run_baseline(&options).step;
    struct sl_report report = ask(&q, &hardware, placement);
    add("GreedySnake, 65B, one A100: layer-major over zero-infinity", name, "x", 1.96,
        infinity / report.seconds_per_step, 0.25);
    if (!json)
        printf("GreedySnake, %s: zero-infinity %.1f s, layer-major %.1f s\n", name, infinity,
               report.seconds_per_step);
    sl_model_finish(&model);
}

static void print_rows(void)
{
    const char *section = "";
    for (size_t i = 0; i < row_count; i++) {
        const struct row *r = &rows[i];
        if (strcmp(section, r->section) != 0)
            printf("\n| %s | record | predicted | error | |\n| --- | --- | --- | --- | --- |\n",
                   r->section);
        section = r->section;
        double error = r->predicted / r->record - 1;
        printf("| %s | %.2f %s | %.2f %s | %+.1f %% | %s |\n", r->name, r->record, r->unit,
               r->predicted, r->unit, 100 * error,
               r->limit <= 0             ? ""
               : fabs(error) <= r->limit ? "hit"
                                         : "miss");
    }
}

static void print_json(const struct sl_report *reports, const struct question *questions,
                       size_t count)
{
    printf("{\"record\": [");
    for (size_t i = 0; i < row_count; i++)
        printf("%s\n  {\"section\": \"%s\", \"name\": \"%s\", \"unit\": \"%s\", \"record\": %.6g, "
               "\"predicted\": %.6g, \"limit\": %.3g}",
               i ? "," : "", rows[i].section, rows[i].name, rows[i].unit, rows[i].record,
               rows[i].predicted, rows[i].limit);
    printf("],\n \"predictions\": [");
    for (size_t i = 0; i < count; i++)
        printf("%s\n  {\"model\": \"%s\", \"hardware\": \"%s\", \"tokens_per_step\": %llu, "
               "\"seconds_per_step\": %.6g, \"tflops\": %.6g, \"mfu\": %.4g, \"bottleneck\": "
               "\"%s\", \"bound_share\": %.4g}",
               i ? "," : "", questions[i].preset, questions[i].hardware,
               (unsigned long long)reports[i].tokens_per_step, reports[i].seconds_per_step,
               reports[i].tflops, reports[i].mfu, reports[i].bottleneck, reports[i].bound_share);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    json = argc > 1 && !strcmp(argv[1], "--json");
    if (argc > 2 || (argc == 2 && !json))
        return bench_usage(argc, argv, "usage: bench-record [--json]\n");
    zero_offload_10b();
    slideformer_8b();
    zero3_offload_sizes();
    zero_offload_ratio();
    greedysnake_65b(SL_TIER_HOST, 0, "weights in host memory, update in the forward pass");
    greedysnake_65b(SL_TIER_HOST, 0.75, "weights in host memory, update in both passes");
    greedysnake_65b(SL_TIER_NVME, 0, "weights on NVMe, update in the forward pass");
    greedysnake_65b(SL_TIER_NVME, 0.75, "weights on NVMe, update in both passes");

    static const struct question questions[] = {
        {"zero-offload-10b", "v100-dgx2", 0, 8, 1024, 2},
        {"zero-offload-10b", "v100-dgx2", 0, 8, 1024, 16},
        {"zero-offload-10b", "h200", 0, 16, 1024, 2},
        {"zero-offload-10b", "h200", 0, 16, 1024, 6},
        {"zero-offload-10b", "rtx4090", 0, 8, 1024, 4},
        {"zero-offload-10b", "rtx4090", 0, 8, 1024, 16},
        {"zero-offload-10b", "rtx4090", 0, 8, 1024, 48},
        {"llama-70b", "h200", 1.5e12, 4, 2048, 8},
        {"llama-70b", "h200", 1.5e12, 4, 2048, 16},
    };
    size_t count = sizeof(questions) / sizeof(questions[0]);
    struct sl_report reports[sizeof(questions) / sizeof(questions[0])];
    for (size_t i = 0; i < count; i++) {
        struct sl_hardware hardware = load_hardware(questions[i].hardware);
        if (questions[i].host_bytes > 0)
            hardware.host_memory_bytes = questions[i].host_bytes;
        reports[i] = ask(&questions[i], &hardware, NULL);
    }
    if (json) {
        print_json(reports, questions, count);
        return 0;
    }
    print_rows();
    printf(
        "\n| model, machine | tokens a step | s a step | TFLOPS | MFU | bottleneck | of the bound "
        "| hidden from, tokens | device, host, NVMe GB | TB a day |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < count; i++) {
        const struct sl_report *r = &reports[i];
        printf("| %s, %s%s | %llu | %.2f | %.1f | %.1f %% | %s | %.1f %% | %.0f | %.1f, %.1f, %.1f "
               "| %.1f |%s\n",
               questions[i].preset, questions[i].hardware,
               questions[i].host_bytes > 0 ? " with 1.5 TB" : "",
               (unsigned long long)r->tokens_per_step, r->seconds_per_step, r->tflops, 100 * r->mfu,
               r->bottleneck, 100 * r->bound_share, r->hide_tokens, (double)r->plan_bytes[0] * 1e-9,
               (double)r->plan_bytes[1] * 1e-9, (double)r->plan_bytes[2] * 1e-9,
               r->written_tb_per_day, r->fits ? "" : " does not fit");
    }
    return 0;
}
