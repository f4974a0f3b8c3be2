// SPDX-License-Identifier: Apache-2.0
/* One model's training steps, timed, beside the matrix ceiling of the same run. */
#ifndef SLUICE_BENCH_TFLOPS_RUN_H
#define SLUICE_BENCH_TFLOPS_RUN_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/sluice.h"
#include "engine/step_plan.h"

#define TFLOPS_STEPS_MAX 1000u

struct tflops_options {
    struct sl_run_options run; /* model, config, sets, device */
    uint32_t warm, steps;      /* steps before the first measured one (at least 1); measured */
    uint32_t product_max;      /* of tflops_ceiling_raise */
};

struct tflops_result {
    char device[128], ceiling_shape[64];
    size_t threads;
    enum sl_dtype precision;
    uint64_t parameters, micro_batch, accumulation, sequence;
    bool recompute;
    char placement[160];
    double step_seconds, spread_seconds; /* median; half of (slowest - fastest) */
    double tokens_per_second;
    double model_flops, hardware_flops; /* of one step; docs/tflops.md */
    double ceiling;                     /* FLOP/s of the best matrix product of this run */
    double busy_seconds[SL_LANES], wait_seconds[SL_LANES]; /* means per step */
    uint64_t bytes[SL_LANES];                              /* per step */
    uint64_t memory[SL_TIER_COUNT];                        /* the plan's, in all */
    double loss;
};

/* Train `warm` + `steps` steps on synthetic tokens.
 *
 * Memory   what the run's plan says; before and after it that of tflops_ceiling_raise
 * Errors   the session's and the engine's */
int tflops_run(const struct tflops_options *options, struct tflops_result *result,
               struct sl_error *error);

/* FLOPs of one step: what the model needs, and what is done (recomputation, second visits of a
 * tiled head). Errors: -ENOMEM. */
int tflops_count(const struct sl_step_options *options, bool tiled_head, double *model,
                 double *hardware);

#endif
