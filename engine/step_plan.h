// SPDX-License-Identifier: Apache-2.0
/* From a model and a placement to a plan: the training step, the flush and the evaluation as
 * operations, and the tables that the runner (engine/step_run.c) needs to do them.
 *
 *     prologue  forward and backward, no update before it        (first step, and after a flush)
 *     step      update of the step before, in forward order, beside forward and backward
 *     flush     the pending update alone             (before a checkpoint or an evaluation)
 *     evaluate  forward and losses
 *
 * Speculation (step_emit_update.c) moves the update of the last layers into the backward pass of
 * their own step; what stays behind in `step` and `flush` for them is done only where the
 * prediction was wrong.
 *
 * Pieces. A unit's weights lie in pieces, which are fetched, used and summed as a whole: a layer is
 * one piece, an embedding or head table is cut into tiles of rows, positions and final norm are
 * pieces of their own. A layer above layer_bytes is cut as well: each of its four matrices is one
 * piece or several tiles of rows, and the norms and biases between them are small ones.
 *
 *     layer     [ norm1 | qkv, tile 0 | qkv, tile 1 | qkv bias | o | o bias, norm2 | up | ... ]
 *
 * Sub-groups. A piece's trained elements are cut into sub-groups, the portions of the optimizer.
 * Cuts lie at multiples of SL_GRADIENT_CHUNK elements of a tensor or at tensor ends, so that
 * gradient chunks and quantization blocks never straddle one.
 *
 *     weights   [ tensor | tensor | ...            ]   as in the model's unit
 *     sums      [ trained tensor | trained tensor  ]   f32, dense: fused matrices stay whole
 *     gradient  [ sub-group  ...pad| sub-group ... ]   rounded; sub-groups start on 4 KiB
 *     state     sub-group: [ master | exp_avg | exp_avg_sq | scales ], staggered
 */
#ifndef SLUICE_ENGINE_STEP_PLAN_H
#define SLUICE_ENGINE_STEP_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model.h"
#include "kernels/cpu/optim.h"
#include "offload/plan.h"

/* Kinds of state that a placement speaks of. */
enum sl_placed {
    SL_PLACED_WEIGHTS,
    SL_PLACED_GRADIENTS,
    SL_PLACED_OPTIMIZER,
    SL_PLACED_ACTIVATIONS,
    SL_PLACED_COUNT
};

const char *sl_placed_name(enum sl_placed kind); /* as in the keys: "weights", "optimizer" */

/* Fractions over device, host, NVMe of each kind; each row sums to 1. */
struct sl_placement {
    double fraction[SL_PLACED_COUNT][SL_TIER_COUNT];
};

struct sl_step_options {
    const struct sl_model *model; /* borrowed by the step plan */
    enum sl_dtype precision;
    enum sl_dtype activation; /* the device's */
    bool unified;             /* the device's memory is host memory */
    size_t batch, sequence, micro_batches;
    size_t group;   /* micro-batches per pass: micro_batches is layer-major, 1 batch-major */
    bool recompute; /* activation checkpointing */
    struct sl_placement placement;
    uint64_t sub_group_elements; /* at most, where cuts allow; 0: the smallest */
    uint32_t optimizer_buffers;  /* sub-groups in memory at a time, where state is on NVMe */
    uint32_t prefetch;           /* pieces fetched ahead of their use */
    uint64_t tile_bytes;         /* numeric: tables above this (in weights) are tiled; 0: never */
    uint64_t layer_bytes;        /* numeric: likewise layers, in tiles of their matrices */
    struct sl_optim_hyper hyper; /* decides which moments exist */
    enum sl_moment_kind moment_kind;
    /* Generation: positions of the cache, and the plan has one segment, `generate`; every parameter
     * is frozen, batch and micro_batches are 1, sequence is the most tokens of one run. 0:
     * training. */
    size_t generate_positions;
    /* Share of the trained elements, the last layers first, whose update is done during the
     * backward pass on a prediction of the step's decision, and done again where that was wrong.
     * Their state exists twice and keeps an f32 master. Bit-neutral. */
    double speculate;
    bool speculate_always; /* also where the last step was clipped or skipped */
    bool delayed_update;   /* numeric: a step uses the weights from before the update before it */
    /* bf16 training; others: F32. SPLIT changes no bits and is taken where the weight is in host
     * reach; NONE is numeric. */
    enum sl_master_kind master_kind;
};

enum sl_piece_kind {
    SL_PIECE_TOKENS, /* tile of the token embedding */
    SL_PIECE_POSITIONS,
    SL_PIECE_LAYER,   /* a whole layer */
    SL_PIECE_MATRIX,  /* of a layer that is cut: tile of a matrix */
    SL_PIECE_VECTORS, /* of a layer that is cut: norms and biases side by side */
    SL_PIECE_NORM,    /* final norm */
    SL_PIECE_HEAD,    /* tile of an untied head */
};

/* A trained run of one tensor inside one sub-group. */
struct sl_run {
    uint32_t param;
    uint64_t param_first, count; /* elements of the tensor */
    uint64_t weight_offset;      /* element in the piece's weights */
    uint64_t sums_offset;        /* element in the piece's sums */
    uint64_t gradient_offset;    /* element in the piece's gradient */
    uint64_t state_offset;       /* element in the sub-group */
    uint64_t chunk_first;        /* first of its gradient chunks in the piece */
};

struct sl_sub_group {
    uint32_t piece;
    uint32_t run_first, run_count;
    uint64_t elements;
    uint64_t gradient_offset; /* element in the piece's gradient, and its padded length: */
    uint64_t gradient_elements;
    enum sl_tier tier; /* of its state */
    enum sl_master_kind master_kind;
    uint32_t state;                       /* home slot */
    uint64_t master_offset, master_bytes; /* master_bytes 0: the weight is all there is */
    uint64_t moment_offset[2], scale_offset[2], state_bytes; /* layout in the slot */
};

struct sl_piece {
    enum sl_piece_kind kind;
    uint32_t unit, index;          /* index: n-th piece of its kind; of a cut layer: of all */
    uint64_t unit_first, elements; /* weights: elements of the unit */
    enum sl_role role;             /* MATRIX */
    uint32_t row_first, row_count; /* tables; MATRIX: fused parts counted through */
    uint64_t sums_elements, gradient_elements, chunk_count;
    uint64_t chunk_first;              /* in the norm table of the step */
    uint32_t group_first, group_count; /* sub-groups */
    uint32_t run_first, run_count;
    bool speculated, updated_by_device;
    enum sl_tier weights_tier, gradient_tier;
    uint32_t weights;  /* home slots */
    uint32_t gradient; /* SL_PLAN_NONE: nothing trained */
    uint32_t sums;     /* persistent sums, or SL_PLAN_NONE where transient */
    uint32_t updated;  /* host: weights of a speculative update on their way to the device */
};

/* The slots of one operation, by meaning; SL_PLAN_NONE where it has none. */
struct sl_step_args {
    uint32_t weights, norm_weights; /* HEAD: the table's tile, and the final norm */
    uint32_t x, out, saved, scratch, dx, h, logits;
    uint32_t sums, norm_sums;
    uint32_t gradient, state;
    uint32_t control;   /* UPDATE: the decision that it follows */
    uint32_t vectors;   /* MATRIX: of sl_step_plan.vector_slots, its layer's from here on */
    bool recompute;     /* BACKWARD: fill `saved` first */
    bool first;         /* zero the sums before adding */
    bool first_vectors; /* likewise those of the norms and biases */
    bool fill_weights;  /* UPDATE: where the step is skipped, still write the weights */
};

struct sl_step_plan {
    struct sl_step_options options;
    struct sl_plan plan;
    struct sl_piece *pieces;
    uint32_t piece_count;
    struct sl_sub_group *groups;
    uint32_t group_count;
    struct sl_run *runs;
    uint32_t run_count;
    struct sl_step_args *args; /* one per operation of the plan */
    size_t args_capacity;
    uint64_t *sums_offset; /* per parameter: element in its piece's sums; UINT64_MAX: frozen.
                              In tiles: in its first tile's */
    uint32_t first_layer_piece, norm_piece;
    /* A layer's pieces in the order of their use, counted from its first: norms and biases, which
     * stay while the others come and go, then tiles from QKV to DOWN. */
    uint32_t *layer_order, layer_pieces, layer_vectors;
    uint32_t *vector_slots; /* per visit of a cut layer: weights, sums of its norms and biases */
    size_t vector_slot_count;
    uint32_t token_first, token_count; /* pieces of the embedding; head: below */
    uint32_t head_first, head_count;   /* the same ones where tied */
    uint64_t chunk_count;              /* gradient chunks of the whole model */
    uint64_t trained_elements;
    /* Slots that the engine reads and writes itself. */
    uint32_t control; /* host: struct sl_step_control (engine/step_run.h) */
    /* Speculation, else SL_PLAN_NONE; host. A struct sl_step_control, and two flags: the updates of
     * the backward pass are done; they must be done again. */
    uint32_t prediction, speculating, redo;
    /* Speculation with state on NVMe: buffers of their own for it and for the weights on their way,
     * used in turn. Shared with workspace they would tie the backward pass to the drive. */
    uint32_t *state_ring, state_ring_count, weight_ring[2];
    uint32_t norms, nonfinite; /* host: f64 and u64 per gradient chunk */
    uint32_t *inputs; /* [micro_batches] host: ids, targets, positions, first: [N] i32 each */
    uint32_t *inputs_device; /* the same on the device; equal where unified */
    uint32_t *stats;         /* [micro_batches] device: row max, sum, target logit, loss: [N] f32 */
    uint32_t *losses;        /* [micro_batches] host: row stats again; equal where unified */
    uint32_t rope[2][2];     /* per table: cos, sin; SL_PLAN_NONE: not used */
    uint32_t prologue, step, flush, evaluate; /* segments */
    uint32_t generate;
    uint32_t *cache; /* generation: per layer, keys then values */
    uint32_t logits; /* generation, host: [vocabulary] f32 of the last token */
};

/* Positions that the rotary tables cover. */
static inline size_t sl_step_positions(const struct sl_step_options *o)
{
    return o->generate_positions ? o->generate_positions : o->sequence;
}

/* Write down and place: what it takes is known then; sl_plan_seal(&sp->plan) makes it one to run or
 * to simulate. Owner: the caller, until sl_step_plan_finish. Errors: -EINVAL, -ENOMEM. */
int sl_step_plan_place(struct sl_step_plan *sp, const struct sl_step_options *options,
                       struct sl_error *error);

/* Likewise, and sealed. */
int sl_step_plan_build(struct sl_step_plan *sp, const struct sl_step_options *options,
                       struct sl_error *error);
void sl_step_plan_finish(struct sl_step_plan *sp); /* a zeroed one is allowed */

#endif
