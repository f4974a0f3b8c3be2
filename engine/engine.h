// SPDX-License-Identifier: Apache-2.0
/* A plan with its machine: device, workers, arenas, swap space, executor. Made from options before
 * step 1; afterwards nothing is allocated until it is destroyed.
 */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/choose.h"
#include "engine/choose_batch.h"
#include "engine/step_plan.h"
#include "engine/step_run.h"
#include "nvme/swap.h"
#include "offload/arena.h"
#include "offload/device.h"
#include "offload/executor.h"
#include "offload/trace.h"
#include "offload/workers.h"

struct sl_engine_options {
    struct sl_step_options step;    /* activation and unified are filled from the device */
    const char *device;             /* offload/device.h; NULL: "auto" */
    uint64_t link_bytes_per_second; /* host:discrete */
    size_t thread_count;            /* 0: by topology */
    struct sl_swap_options swap;    /* paths and tuning; bytes_total is filled from the plan */
    uint64_t budget_bytes[SL_TIER_COUNT]; /* 0: what the machine has */
    bool placement_free[SL_PLACED_COUNT]; /* not given: the fastest tiers that it fits in */
    struct sl_choose_free free;           /* the rest that may be chosen; its placement is unused */
    struct sl_batch_free batch;           /* micro-batch size; step.batch is what it is otherwise */
    bool find_nearest; /* where nothing fits, name the nearest setting that would: more plans built
                        */
    const struct sl_hardware *hardware; /* of this machine, borrowed while planning; NULL: none */
    uint32_t trace_events;              /* operations kept for the trace; 0: none */
    const struct sl_log *log;           /* borrowed until destroy */
};

struct sl_engine {
    struct sl_engine_options options;
    struct sl_workers *workers;
    struct sl_device *device;
    struct sl_step_plan sp;
    struct sl_batch_choice batch;     /* micro-batch sizes that were tried */
    struct sl_choice choice;          /* what was tried, and why this plan */
    bool budget_given[SL_TIER_COUNT]; /* else options.budget_bytes is what the machine has */
    struct sl_arena host;
    void *device_memory;
    uint64_t device_memory_bytes;
    bool host_registered;
    struct sl_swap *swap;
    struct sl_executor *executor;
    struct sl_step_runner runner;
    struct sl_trace *trace;
    bool pending;            /* a gradient waits for its update */
    uint32_t version;        /* of the state that has two: the one that is current */
    uint64_t stage_bytes[2]; /* state.c: staging for weights and for a sub-group's state */
};

/* One line of the memory report. */
struct sl_memory_line {
    char name[48];
    uint64_t bytes[SL_TIER_COUNT];
};
#define SL_MEMORY_LINES_MAX 32

/* Open device and workers and build the plan, checked, without its memory: what `sluice plan`
 * needs. Errors: the plan does not fit (needed, allowed, tier, and with options.find_nearest the
 * setting that would), device, input. */
int sl_engine_plan(struct sl_engine *engine, const struct sl_engine_options *options,
                   struct sl_error *error);

/* Whether the host memory of a planned engine is free on this machine now (MemAvailable, control
 * group). A budget that was given is not a promise that it is there.
 * Errors   -ENOMEM: needed, free, remedy */
int sl_engine_check_room(const struct sl_engine *engine, struct sl_error *error);

/* Make arenas, swap space and executor for a planned engine. On failure the engine is finished. */
int sl_engine_start(struct sl_engine *engine, struct sl_error *error);

/* Drain and free; a zeroed engine is allowed. */
void sl_engine_finish(struct sl_engine *engine);

/* Every line of memory that the run will hold, process included: their sum is the predicted peak.
 * Returns the number of lines; totals are added up in `total`. */
size_t sl_engine_memory(const struct sl_engine *engine,
                        struct sl_memory_line lines[SL_MEMORY_LINES_MAX],
                        uint64_t total[SL_TIER_COUNT]);

/* Queue a training step. `context` is lent until two later calls have returned, or a drain. Returns
 * the first failure so far. */
int sl_engine_step(struct sl_engine *engine, struct sl_step_context *context,
                   struct sl_error *error);

/* Apply the pending update, if any, and drain. */
int sl_engine_flush(struct sl_engine *engine, struct sl_error *error);

/* Forward only; flushes must have been done. Drains; returns the sum of losses over the trained
 * targets in *loss_sum. */
int sl_engine_evaluate(struct sl_engine *engine, struct sl_step_context *context, double *loss_sum,
                       struct sl_error *error);

/* Wait for all steps in flight. */
int sl_engine_drain(struct sl_engine *engine, struct sl_error *error);

/* The control slot; only while drained. */
struct sl_step_control *sl_engine_control(struct sl_engine *engine);

#endif
