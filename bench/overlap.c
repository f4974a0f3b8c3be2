// SPDX-License-Identifier: Apache-2.0
/* How much longer than its busiest lane does a step take, when that lane is slow?
 *
 *     bench-overlap DIRECTORY [--trace FILE] [--json]
 *
 * One lane is slowed until it takes most of the step: the link of host:discrete is throttled, or
 * the drive is (the faulty swap backend, which delays completions to a rate). Whatever the step
 * takes beyond that lane is time in which the schedule let it wait. DIRECTORY holds the swap space.
 * --trace writes the last row's lanes for Perfetto.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/steps.h"
#include "bench/usage.h"
#include "nvme/faults.h"

#define PROGRAM "bench-overlap"
#define PRESET "bible-deep"
#define BATCH 1u
#define SEQUENCE 64u
#define MICRO_BATCHES 2u
#define WARM 2u
#define MEASURED 4u
#define TRACE_EVENTS 100000u

static const struct row {
    const char *name, *device;
    enum sl_tier weights, optimizer;
    double speculate;
    uint64_t link_bytes_per_second;
    uint64_t drive_bytes_per_second; /* reads, and as much again of writes; 0: as it is */
} rows[] = {
    {"slow link", "host:discrete", SL_TIER_HOST, SL_TIER_HOST, 0, 60000000, 0},
    {"slow link, speculating", "host:discrete", SL_TIER_HOST, SL_TIER_HOST, 1, 60000000, 0},
    {"slow drive", "host", SL_TIER_HOST, SL_TIER_NVME, 0, 0, 120000000},
    {"slow drive, half speculating", "host", SL_TIER_HOST, SL_TIER_NVME, 0.5, 0, 120000000},
    {"slow drive, speculating", "host", SL_TIER_HOST, SL_TIER_NVME, 1, 0, 120000000},
};

static void die(const struct sl_error *error)
{
    fprintf(stderr, PROGRAM ": %s\n", error->message);
    exit(1);
}

static void run_row(const struct row *row, const struct sl_model *model, const char *directory,
                    const char *trace, bool json, bool last)
{
    struct sl_swap_faults faults = {.seed = 1,
                                    .read_bytes_per_second = row->drive_bytes_per_second,
                                    .write_bytes_per_second = row->drive_bytes_per_second,
                                    .inner = SL_SWAP_THREADS};
    struct sl_engine_options options = {
        .step = {.model = model,
                 .precision = SL_BF16,
                 .batch = BATCH,
                 .sequence = SEQUENCE,
                 .micro_batches = MICRO_BATCHES,
                 .group = MICRO_BATCHES,
                 .recompute = true,
                 .sub_group_elements = 1000000,
                 .optimizer_buffers = 4,
                 .prefetch = 2,
                 .speculate = row->speculate,
                 .speculate_always = true,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .device = row->device,
        .link_bytes_per_second = row->link_bytes_per_second,
        .swap = {.paths = &directory,
                 .path_count = 1,
                 .backend = row->drive_bytes_per_second ? SL_SWAP_FAULTY : SL_SWAP_AUTO,
                 .faults = &faults},
        .trace_events = trace ? TRACE_EVENTS : 0,
    };
    options.step.placement.fraction[SL_PLACED_WEIGHTS][row->weights] = 1;
    options.step.placement.fraction[SL_PLACED_GRADIENTS][SL_TIER_HOST] = 1;
    options.step.placement.fraction[SL_PLACED_OPTIMIZER][row->optimizer] = 1;
    options.step.placement.fraction[SL_PLACED_ACTIVATIONS][SL_TIER_DEVICE] = 1;
    struct sl_engine engine;
    struct sl_error error = {0};
    if (sl_engine_plan(&engine, &options, &error))
        die(&error);
    struct bench_steps steps;
    bench_steps_run(&engine, PROGRAM, WARM, MEASURED, 0, &steps);
    double busiest = steps.busy_seconds[steps.busiest];
    if (json)
        printf("  {\"row\": \"%s\", \"step_seconds\": %.6g, \"busiest_lane\": \"%s\", "
               "\"busiest_lane_seconds\": %.6g, \"step_over_busiest_lane\": %.4g}%s\n",
               row->name, steps.mean_seconds, sl_lane_name(steps.busiest), busiest,
               steps.mean_seconds / busiest, last ? "" : ",");
    else
        printf("| %s | %.3f s | %s | %.3f s | %.3f |\n", row->name, steps.mean_seconds,
               sl_lane_name(steps.busiest), busiest, steps.mean_seconds / busiest);
    fflush(stdout);
    if (trace && last && sl_trace_write(engine.trace, &engine.sp.plan, trace, &error))
        die(&error);
    sl_engine_finish(&engine);
}

int main(int argc, char **argv)
{
    const char *directory = NULL, *trace = NULL;
    bool json = false, wrong = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = true;
        else if (!strcmp(argv[i], "--trace") && i + 1 < argc)
            trace = argv[++i];
        else if (argv[i][0] != '-' && !directory)
            directory = argv[i];
        else
            wrong = true;
    }
    if (wrong || !directory)
        return bench_usage(argc, argv, "usage: " PROGRAM " DIRECTORY [--trace FILE] [--json]\n");
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_model_from_preset(&model, PRESET, &error))
        die(&error);
    printf(json ? "[\n"
                : "| " PRESET " | step | busiest lane | its time | step over it |\n"
                  "| --- | --- | --- | --- | --- |\n");
    size_t count = sizeof(rows) / sizeof(rows[0]);
    for (size_t i = 0; i < count; i++)
        run_row(&rows[i], &model, directory, trace, json, i + 1 == count);
    if (json)
        printf("]\n");
    sl_model_finish(&model);
    return 0;
}
