// SPDX-License-Identifier: Apache-2.0
/* Predicted against real on this machine: the profile that `sluice doctor --measure FILE` wrote,
 * the same plan once under the virtual clock and once in the executor, in five configurations.
 *
 *     bench-predict PROFILE DIRECTORY [--json]
 *
 * The profile must have been measured with the same DIRECTORY and on a quiet machine, and the link
 * of the host:discrete rows is throttled to the rate that the row names, so it is stated, not
 * measured.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/steps.h"
#include "engine/hardware.h"
#include "engine/simulate_report.h"

#define PRESET "gpt2-124m"
#define BATCH 1u
#define SEQUENCE 128u
#define MICRO_BATCHES 2u
#define STEPS 6u /* two to fill the pipeline, four measured */
#define WARM 2u
static const struct config {
    const char *name, *device;
    enum sl_tier placement[SL_PLACED_COUNT]; /* weights, gradients, optimizer, activations */
    uint64_t link_bytes_per_second;          /* each direction; host:discrete */
} configs[] = {
    {"all in host memory", "host", {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST}},
    {"optimizer on NVMe", "host", {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_NVME, SL_TIER_HOST}},
    {"everything on NVMe", "host", {SL_TIER_NVME, SL_TIER_NVME, SL_TIER_NVME, SL_TIER_NVME}},
    {"discrete, link 1 GB/s",
     "host:discrete",
     {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST},
     1000000000},
    {"discrete, link 0.1 GB/s",
     "host:discrete",
     {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST},
     100000000},
};

static void die(const struct sl_error *error)
{
    fprintf(stderr, "bench-predict: %s\n", error->message);
    exit(1);
}

static double predict(const struct sl_engine *engine, const struct config *config,
                      const struct sl_hardware *profile, struct sl_report *report)
{
    struct sl_hardware hardware = *profile;
    if (!engine->sp.options.unified) {
        hardware.link_up_bytes_per_second = (double)config->link_bytes_per_second;
        hardware.link_down_bytes_per_second = (double)config->link_bytes_per_second;
        hardware.link_both_bytes_per_second = 0;
    }
    struct sl_report_options options = {.hardware = &hardware};
    struct sl_error error = {0};
    if (sl_report_make(report, &engine->sp, &options, &error))
        die(&error);
    return report->seconds_per_step;
}

static void run_config(const struct config *config, const struct sl_model *model,
                       const struct sl_hardware *profile, const char *directory, bool json,
                       bool last)
{
    struct sl_engine_options options = {
        .step = {.model = model,
                 .precision = SL_BF16,
                 .batch = BATCH,
                 .sequence = SEQUENCE,
                 .micro_batches = MICRO_BATCHES,
                 .group = MICRO_BATCHES,
                 .recompute = true,
                 .sub_group_elements = 10000000,
                 .optimizer_buffers = 3,
                 .prefetch = 1,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .device = config->device,
        .link_bytes_per_second = config->link_bytes_per_second,
        .swap = {.paths = &directory, .path_count = 1},
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        options.step.placement.fraction[kind][config->placement[kind]] = 1;
    struct sl_engine engine;
    struct sl_error error = {0};
    if (sl_engine_plan(&engine, &options, &error))
        die(&error);
    struct sl_report report;
    double predicted = predict(&engine, config, profile, &report);
    struct bench_steps steps;
    bench_steps_run(&engine, "bench-predict", WARM, STEPS - WARM, 1, &steps);
    double real = steps.seconds, busiest = steps.busy_seconds[steps.busiest];
    bool exact = engine.host.bytes == report.plan_bytes[SL_TIER_HOST] &&
                 engine.device_memory_bytes == report.plan_bytes[SL_TIER_DEVICE];
    if (json)
        printf("  {\"config\": \"%s\", \"real_seconds\": %.6g, \"predicted_seconds\": %.6g, "
               "\"busiest_lane_seconds\": %.6g, \"bottleneck\": \"%s\", \"arenas_exact\": %s}%s\n",
               config->name, real, predicted, busiest, report.bottleneck, exact ? "true" : "false",
               last ? "" : ",");
    else
        printf("| %s | %.3f s | %.3f s | %+.1f %% | %.2f | %s | %s |\n", config->name, real,
               predicted, 100 * (predicted / real - 1), real / busiest, report.bottleneck,
               exact ? "exact" : "differ");
    fflush(stdout);
    sl_engine_finish(&engine);
}

int main(int argc, char **argv)
{
    bool json = argc == 4 && !strcmp(argv[3], "--json");
    if (argc != 3 && !json) {
        fprintf(stderr, "usage: bench-predict PROFILE DIRECTORY [--json]\n");
        return 2;
    }
    struct sl_hardware profile;
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_hardware_load(&profile, argv[1], &error) || sl_model_from_preset(&model, PRESET, &error))
        die(&error);
    printf(json ? "[\n"
                : "| " PRESET " | real | predicted | error | real over busiest lane | bottleneck | "
                  "arenas |\n| --- | --- | --- | --- | --- | --- | --- |\n");
    size_t count = sizeof(configs) / sizeof(configs[0]);
    for (size_t i = 0; i < count; i++)
        run_config(&configs[i], &model, &profile, argv[2], json, i + 1 == count);
    if (json)
        printf("]\n");
    sl_model_finish(&model);
    return 0;
}
