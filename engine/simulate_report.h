// SPDX-License-Identifier: Apache-2.0
/* What `sluice plan` and `sluice simulate` say: will it fit, how long does a step take, what is in
 * the way, and which setting would fit where this one does not.
 */
#ifndef SLUICE_ENGINE_SIMULATE_REPORT_H
#define SLUICE_ENGINE_SIMULATE_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "engine/choose.h"
#include "engine/choose_batch.h"
#include "engine/step_plan.h"
#include "offload/simulate.h"

struct sl_report_options {
    const struct sl_hardware *hardware;
    uint32_t ranks;                       /* data-parallel; 0 or 1: one */
    uint64_t budget_bytes[SL_TIER_COUNT]; /* 0: what the hardware has */
    uint64_t extra_bytes[SL_TIER_COUNT];  /* held outside of the plan: context, process */
    const char *trace_path;               /* NULL: no trace of the simulated steps */
};

struct sl_report {
    char hardware[SL_HARDWARE_NAME_BYTES];
    uint32_t ranks;
    uint64_t parameters, tokens_per_step; /* tokens of all ranks */
    size_t batch, sequence, micro_batches;

    bool fits;
    uint64_t plan_bytes[SL_TIER_COUNT], extra_bytes[SL_TIER_COUNT], budget_bytes[SL_TIER_COUNT];
    struct sl_plan_memory memory;

    struct sl_plan_traffic traffic; /* of one step */
    struct sl_simulation simulation;
    double seconds_per_step, tokens_per_second;
    double flops_per_token;    /* model FLOPs: no recomputation */
    double tflops, mfu;        /* per device, model FLOPs */
    double bound_share;        /* bound over step: 1 is a schedule that cannot be better */
    double hide_tokens;        /* tokens per step of one rank from which on the device's work is
                                  the longest: INFINITY: never */
    double written_tb_per_day; /* to NVMe, if it runs all day */
    char bottleneck[32];       /* lane or resource */
};

/* Judge and simulate a step plan (two steps to fill the pipeline, then the steady state).
 * Errors: those of sl_simulate. A plan that does not fit is no error: fits is false. */
int sl_report_make(struct sl_report *out, const struct sl_step_plan *step_plan,
                   const struct sl_report_options *options, struct sl_error *error);

/* The budgets that a profile gives: nine tenths of device and host memory, all of NVMe. */
void sl_report_budgets(const struct sl_hardware *hardware, uint64_t budget_bytes[SL_TIER_COUNT]);

/* Find the setting nearest to `options` that fits: first the placement of the kinds that are free,
 * then smaller micro-batches with more of them, so that the step keeps its tokens, then the same
 * with layers in tiles; the last two, which are numeric, where batch_free says so. *fits tells
 * whether one was found; `change` says what to set (empty: nothing).
 *
 * Errors   -ENOMEM */
struct sl_fit_options {
    const struct sl_step_options *step;
    bool placement_free[SL_PLACED_COUNT];
    bool placement_given[SL_PLACED_COUNT]; /* free in this search alone: to be set to auto */
    bool batch_free;
    size_t micro_batches_max; /* with batch_free: no more than so many a step; 0: any number */
    uint32_t ranks; /* 0 or 1: one; budgets are one rank's */
    uint64_t budget_bytes[SL_TIER_COUNT], extra_bytes[SL_TIER_COUNT];
};
int sl_report_fit(struct sl_step_options *out, bool *fits, char change[256],
                  const struct sl_fit_options *options, struct sl_error *error);

/* Choose what changes no bit (engine/choose.h) by simulation on `hardware`, one rank's share of a
 * host with `ranks`; placement_free and batch_free are not looked at. *out is the setting. *fits
 * tells whether it does. Errors: those of sl_choose */
int sl_report_choose(struct sl_step_options *out, bool *fits, struct sl_choice *choice,
                     const struct sl_fit_options *options, const struct sl_hardware *hardware,
                     const struct sl_choose_free *free, struct sl_error *error);

/* Choose the micro-batch size (engine/choose_batch.h) into *out, before sl_report_choose. */
int sl_report_choose_batch(struct sl_step_options *out, struct sl_batch_choice *choice,
                           const struct sl_fit_options *options, const struct sl_batch_free *batch,
                           const struct sl_hardware *hardware, const struct sl_choose_free *free,
                           struct sl_error *error);

/* Lanes and speed, without memory, for people. */
void sl_report_write_speed(FILE *out, const struct sl_report *report);

/* For people, and as JSON. Owner: the caller frees. NULL where memory is out. */
char *sl_report_text(const struct sl_report *report);
char *sl_report_json(const struct sl_report *report);

#endif
