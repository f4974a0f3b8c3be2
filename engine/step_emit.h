// SPDX-License-Identifier: Apache-2.0
/* Private to the step plan: emits the operations of one segment. */
#ifndef SLUICE_ENGINE_STEP_EMIT_H
#define SLUICE_ENGINE_STEP_EMIT_H

#include "engine/step_plan.h"

struct sl_segment_kind {
    const char *name;
    bool update, forward, backward;
};

/* Where one segment's emission stands: which slot holds what at this point of program order. */
struct sl_emit {
    struct sl_step_plan *sp;
    struct sl_plan *plan;
    const struct sl_step_options *o;
    struct sl_segment_kind kind;
    size_t rows;
    uint64_t x_bytes; /* one micro-batch of activations at a layer boundary */
    size_t args_capacity;
    /* Uses: pieces in the order in which their weights are needed. */
    uint32_t *uses, use_count, use_capacity, use_next, use_ready;
    bool *updates;       /* per use: run the pending update first */
    uint32_t *use_slots; /* per use: device slot with the weights, once ready */
    /* Updates: sub-groups in the order in which they are updated, and how far. */
    struct sl_emit_updates {
        uint32_t *order, count;
        uint32_t fetched, done; /* whose inputs have been asked for; updated */
    } updating, speculating;
    uint32_t state_ring_next, weight_ring_next; /* buffers, in turn */
    struct sl_emit_group {
        uint32_t state, gradient;
    } * groups;
    uint32_t *piece_weights;  /* per piece: where its new weights are written */
    uint32_t *piece_gradient; /* per piece: its rounded gradient in reach of the host, just made */
    /* Activations per (boundary, micro-batch): boundary * micro_batches + micro_batch. */
    struct sl_emit_boundary {
        enum sl_tier tier;
        uint32_t work, home; /* on the device now; where kept */
    } * x;
    uint32_t *dx;    /* per micro-batch */
    uint32_t *saved; /* per (layer, micro-batch), without recomputation */
    /* Per micro-batch: of the layer that is being visited. A whole layer's visit is one operation;
     * one that is cut keeps them from tile to tile. */
    uint32_t *saved_now, *scratch_now;
    uint32_t vectors; /* likewise: its norms and biases in sl_step_plan.vector_slots */
    uint32_t *sums;   /* per piece: transient sums, alive from first use to GRADIENT */
    uint32_t *h, *dh; /* per micro-batch: normed output and its gradient, tiled head */
};

/* Emit the operations of one segment. Errors: -ENOMEM. */
int sl_step_emit(struct sl_step_plan *sp, const struct sl_segment_kind *kind);

/* step_emit_generate.c: new tokens through the model, to the logits of the last one. */
int sl_step_emit_generate(struct sl_step_plan *sp);
void sl_emit_generate(struct sl_emit *e);

/* step_emit.c, for the other files: an operation with its arguments. */
struct sl_step_args *sl_emit_op(struct sl_emit *e, struct sl_op_desc desc);
uint32_t sl_emit_transient(struct sl_emit *e, enum sl_tier tier, enum sl_state state,
                           uint64_t bytes, const char *name, uint32_t index);
/* A copy between memories or a transfer between memory and NVMe: bytes of `from` to `to`. */
void sl_emit_move(struct sl_emit *e, enum sl_op_kind kind, uint32_t from, uint32_t to, int unit,
                  int piece, int micro_batch);
/* step_emit_update.c: the pending update of a piece, then its weights where the next use wants
 * them; returns the device slot. */
void sl_emit_update(struct sl_emit *e, uint32_t piece);
/* The update of a piece whose gradient is ready, before the step has decided. */
void sl_emit_speculation(struct sl_emit *e, uint32_t piece);
/* Lists the sub-groups in the segment's order of updates. Errors: -ENOMEM. */
int sl_emit_updates_begin(struct sl_emit *e);
void sl_emit_updates_end(struct sl_emit *e);
/* The device slot with a piece's weights: at home, or fetched and uploaded. */
uint32_t sl_emit_weights(struct sl_emit *e, uint32_t piece);
/* step_emit_pass.c: forward and backward of micro-batches [first, first + count). */
void sl_emit_pass(struct sl_emit *e, size_t first, size_t count);
/* Rounding of a piece's sums and the way of its gradient to its tier. */
void sl_emit_gradient(struct sl_emit *e, uint32_t piece);
/* The sums slot of a piece; *fresh where this use is the first and must zero it. */
uint32_t sl_emit_sums(struct sl_emit *e, uint32_t piece, bool *fresh);
/* step_emit_layer.c: forward and backward of one layer, whole or in tiles. */
void sl_emit_forward_layer(struct sl_emit *e, uint32_t layer, size_t first, size_t count);
void sl_emit_backward_layer(struct sl_emit *e, uint32_t layer, size_t first, size_t count);
/* Generation: from one boundary to the next. */
void sl_emit_generate_layer(struct sl_emit *e, uint32_t layer);
/* The pieces of one visit of a layer, in the order of its uses. */
void sl_emit_forward_uses(struct sl_emit *e, uint32_t layer, bool update);
void sl_emit_backward_uses(struct sl_emit *e, uint32_t layer);
struct sl_emit_boundary *sl_emit_boundary(struct sl_emit *e, uint32_t layer, size_t micro_batch);
uint32_t sl_emit_new_x(struct sl_emit *e, uint32_t layer, size_t micro_batch);
/* An operation of the compute lane. */
struct sl_op_desc sl_emit_compute(enum sl_op_kind kind, const struct sl_step_plan *sp,
                                  uint32_t piece, size_t micro_batch, uint64_t bytes, double flops,
                                  uint64_t product_bytes);
/* Next use: makes the uses ahead ready and returns the device slot of this one. */
uint32_t sl_emit_use(struct sl_emit *e, uint32_t piece);
void sl_emit_add_use(struct sl_emit *e, uint32_t piece, bool update);

#endif
