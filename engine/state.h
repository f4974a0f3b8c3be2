// SPDX-License-Identifier: Apache-2.0
/* The training state, tensor by tensor, wherever it lies: for initial values, checkpoints, hashes.
 *
 * A visit walks the model in parameter order and hands out *spans*: runs of one tensor with host
 * addresses of its weights and optimizer state. State on NVMe or on a device is staged through the
 * part of the host arena that holds transient slots while training, one piece and one sub-group at
 * a time, so a visit needs no memory of its own. The engine must be drained.
 */
#ifndef SLUICE_ENGINE_STATE_H
#define SLUICE_ENGINE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/step_plan.h"

struct sl_engine;

struct sl_state_span {
    uint32_t param;
    uint64_t first, count; /* elements of the tensor */
    void *weight;          /* [count] of the precision */
    bool trained;          /* not frozen */
    /* NULL for frozen tensors, and where the optimizer has none: */
    float *master;                           /* plain master; the weight itself in fp32 mode */
    uint16_t *low;                           /* split master */
    void *exp_avg, *exp_avg_sq;              /* [count] of the moment kind */
    float *exp_avg_scale, *exp_avg_sq_scale; /* Q8: one per block */
};

enum sl_state_visit_mode {
    SL_STATE_READ,
    SL_STATE_UPDATE, /* read, and written back */
    SL_STATE_FILL,   /* not read: zeroes, then written back */
};

typedef int (*sl_state_visitor)(void *user, const struct sl_state_span *span,
                                struct sl_error *error);

int sl_state_visit(struct sl_engine *engine, enum sl_state_visit_mode mode,
                   sl_state_visitor visitor, void *user, struct sl_error *error);

/* Staging that visits need: [0] for a piece's weights, [1] for a sub-group's state. */
void sl_state_stage_bytes(const struct sl_step_plan *sp, uint64_t bytes[2]);

/* Master values of a span as f32 (from the split form where it is split). */
void sl_state_master_load(const struct sl_step_plan *sp, const struct sl_state_span *span,
                          uint64_t first, uint64_t count, float *out);
/* Set master and weight of elements of a span. Frozen tensors get their weight alone. */
void sl_state_master_store(const struct sl_step_plan *sp, const struct sl_state_span *span,
                           uint64_t first, uint64_t count, const float *values);

/* Fill with the model's initial values (engine/model.h), all moments zero. */
int sl_state_initialize(struct sl_engine *engine, uint64_t seed, struct sl_error *error);

/* XXH3 over weights, masters (as f32) and moments in parameter order: equal for every placement. */
int sl_state_hash(struct sl_engine *engine, uint64_t *hash, struct sl_error *error);

#endif
