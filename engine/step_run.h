// SPDX-License-Identifier: Apache-2.0
/* The work behind a step plan's operations: gives each operation's slots to the transformer, the
 * optimizer, or the step's decision. An sl_op_runner for the executor.
 */
#ifndef SLUICE_ENGINE_STEP_RUN_H
#define SLUICE_ENGINE_STEP_RUN_H

#include <stdint.h>

#include "engine/step_plan.h"
#include "offload/executor.h"
#include "offload/workers.h"

/* The plan's control slot: what a step decided, read by the update and the backward pass of the
 * next instance. */
struct sl_step_control {
    uint64_t updates;    /* optimizer steps applied so far: Adam's t */
    bool pending, apply; /* a gradient waits for its update; it is to be applied, not skipped */
    float grad_scale;    /* of that update: unscale and clip in one factor */
    struct sl_optim_hyper hyper; /* of that update; step is filled in */
    double loss_scale;           /* multiplies the loss of the next backward pass */
    double loss;                 /* mean over trained tokens of the last step */
    double norm, norm_clipped;   /* unscaled global gradient norm, before and after clipping */
    uint64_t nonfinite;          /* gradient values that were not finite */
    int32_t nonfinite_param;     /* first parameter with one, or -1 */
    enum sl_speculation {
        SL_SPECULATION_NONE,  /* the plan has none */
        SL_SPECULATION_RIGHT, /* the updates of the backward pass stand */
        SL_SPECULATION_WRONG, /* they are done again */
        SL_SPECULATION_OFF,   /* not tried: the step before was clipped or skipped, or the first */
    } speculation;            /* of the last step */
};

/* One instance of a segment: lent to the executor until it has finished. */
struct sl_step_context {
    /* Inputs: [micro_batches][batch * sequence] each. Evaluation and training alike. */
    const int32_t *ids, *targets, *positions, *first;
    uint64_t trained_tokens;     /* of the whole step */
    size_t rows, position_first; /* generation: new tokens, and where they stand */
    double clip;                 /* global norm; 0: none */
    /* Called when norm and overflow are known, before the update may start: sets hyper of this
     * update and loss_scale of the next backward pass in `control`. From the control lane. */
    void (*decided)(struct sl_step_context *context, struct sl_step_control *control);
    /* Called before the backward pass where the plan speculates: the hyper that `decided` would set
     * now. NULL: this step does not speculate. From the control lane's thread. */
    void (*predicted)(struct sl_step_context *context, struct sl_optim_hyper *hyper);
    void *user;
    uint32_t version;   /* set by the engine: which of two versions the state has now */
    uint64_t finish_ns;            /* out: clock when the decision was made */
    struct sl_step_control result; /* out: a copy of the control after it */
};

struct sl_step_runner {
    struct sl_step_plan *sp;
    struct sl_device *device;
    struct sl_workers *workers;
    struct sl_executor *executor; /* set after the executor was made */
};

/* An sl_op_runner: user is the struct sl_step_runner, context the struct sl_step_context. */
int sl_step_run_op(void *user, const struct sl_op *op, void *context, struct sl_error *error);

/* Sum of the losses of micro-batch i (f64, rows ascending), from the host slot of an instance that
 * has finished. */
double sl_step_loss_sum(const struct sl_step_runner *runner, uint32_t micro_batch);

#endif
