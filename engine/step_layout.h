// SPDX-License-Identifier: Apache-2.0
/* Private to the step plan: pieces, sub-groups, runs and their places, before any operation. */
#ifndef SLUICE_ENGINE_STEP_LAYOUT_H
#define SLUICE_ENGINE_STEP_LAYOUT_H

#include "engine/step_plan.h"

/* Fill pieces, groups, runs, sums_offset of `sp` from sp->options. Errors: -ENOMEM. */
int sl_step_layout(struct sl_step_plan *sp, struct sl_error *error);

/* The k-th piece in the order in which the forward pass uses weights. */
uint32_t sl_piece_forward(const struct sl_step_plan *sp, uint32_t k);
/* The k-th piece in the order in which the backward pass finishes gradients. */
uint32_t sl_piece_backward(const struct sl_step_plan *sp, uint32_t k);

/* The k-th piece of a layer in the order of its forward pass, or of its backward pass. The latter
 * takes the matrices from DOWN to QKV, the tiles of each with rows ascending, and the norms and
 * biases last. */
uint32_t sl_layer_piece_forward(const struct sl_step_plan *sp, uint32_t layer, uint32_t k);
uint32_t sl_layer_piece_backward(const struct sl_step_plan *sp, uint32_t layer, uint32_t k);

/* Gives each of a sequence of byte counts a tier, so that at every moment the shares are as near to
 * the fractions as they can be: neighbours are interleaved, and both bandwidths work at once. */
struct sl_spread {
    const double *fraction; /* [SL_TIER_COUNT] */
    double total, given[SL_TIER_COUNT];
};
enum sl_tier sl_spread_next(struct sl_spread *spread, double bytes);

static inline uint64_t sl_piece_weight_bytes(const struct sl_step_plan *sp,
                                             const struct sl_piece *piece)
{
    return piece->elements * sl_dtype_bytes(sp->options.precision);
}

static inline uint64_t sl_piece_gradient_bytes(const struct sl_step_plan *sp,
                                               const struct sl_piece *piece)
{
    return piece->gradient_elements * sl_dtype_bytes(sp->options.precision);
}

/* May the host read and write this piece's weights where they live? */
static inline bool sl_piece_in_host_reach(const struct sl_step_plan *sp,
                                          const struct sl_piece *piece)
{
    return piece->weights_tier != SL_TIER_DEVICE || sp->options.unified;
}

#endif
