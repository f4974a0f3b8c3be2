// SPDX-License-Identifier: Apache-2.0
/* Schedules of other systems as plans, for the simulator alone: so that a ratio comes from one
 * simulator and one set of rates.
 *
 *     zero-offload    weights on the device, optimizer state in host memory; gradients go down
 *                     during the backward pass; then the update, its weights going up piece by
 *                     piece; the next forward pass begins when all is done (arXiv:2101.06840)
 *     zero-infinity   weights, gradients and optimizer state in host memory or on NVMe; weights are
 *                     fetched in each pass of each micro-batch (batch-major), one unit ahead
 *                     where max_live_parameters allows;
 *                     gradients go down per micro-batch, and from the second one on the sum so
 *                     far comes up first and is added to on the device; sub-groups
 *                     of the optimizer are read, updated and written one after the other, as with
 *                     pipeline_read and pipeline_write false (arXiv:2104.07857)
 *
 * In both, activation checkpoints sent to host memory block the device's queue, as in DeepSpeed's
 * cpu_checkpointing, and every layer is recomputed.
 */
#ifndef SLUICE_ENGINE_BASELINE_PLAN_H
#define SLUICE_ENGINE_BASELINE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model.h"
#include "offload/plan.h"
#include "offload/simulate.h"

enum sl_baseline { SL_BASELINE_ZERO_OFFLOAD, SL_BASELINE_ZERO_INFINITY };

/* What the other program reaches where it does not reach the machine's rate; 0: it does. */
struct sl_baseline_costs {
    double update_params_per_second;    /* the CPU optimizer, from end to end */
    double checkpoint_bytes_per_second; /* blocking copies of checkpoints, ordinary memory */
    double gradient_bytes_per_second;   /* gradients to host memory */
    double compute_share;               /* of device_flops_per_second */
    double nvme_share;                  /* of the drive's rates */
};

struct sl_baseline_options {
    enum sl_baseline kind;
    const struct sl_model *model; /* borrowed */
    const struct sl_hardware *hardware;
    size_t batch, sequence, micro_batches;
    enum sl_tier weights, optimizer; /* zero-infinity: host or NVMe each */
    enum sl_tier activations;        /* device or host */
    bool fused_attention;            /* no scores in memory, causal half computed */
    bool blocking_gradients;         /* a copy of gradients holds up the backward pass */
    uint64_t sub_group_elements;
    uint64_t max_live_parameters; /* two units with more are not on the device together, so the
                                     second is fetched when the first is done; 0: no limit */
    struct sl_baseline_costs costs;
};

/* Build and seal. One segment, "step", which follows itself. Owner: the caller, sl_plan_finish.
 * Errors: -EINVAL, -ENOMEM. */
int sl_baseline_plan_build(struct sl_plan *plan, const struct sl_baseline_options *options,
                           struct sl_error *error);

/* The first and last operation of a phase, for reports; SL_PLAN_NONE where there is none. */
struct sl_baseline_phases {
    uint32_t forward_last, backward_last, norm_last, update_last;
};
struct sl_baseline_phases sl_baseline_plan_phases(const struct sl_plan *plan);

#endif
