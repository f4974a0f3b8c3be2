// SPDX-License-Identifier: Apache-2.0
/* XXH3 over the training state: per chunk of SL_STATE_HASH_CHUNK elements of a tensor, tensors in
 * model order: weights, then for trained tensors master (as f32), exp_avg with scales, exp_avg_sq
 * with scales. Chunks are counted from the start of the tensor, so placement and sub-groups do not
 * show.
 */
#ifndef SLUICE_ENGINE_STATE_HASH_H
#define SLUICE_ENGINE_STATE_HASH_H

#include <stdint.h>

#include "engine/state.h"

#define SL_STATE_HASH_CHUNK 2048u

struct sl_state_hasher;

int sl_state_hasher_create(struct sl_state_hasher **out, struct sl_error *error);
void sl_state_hasher_destroy(struct sl_state_hasher *hasher); /* NULL allowed */

/* Add a span; spans of a tensor in order. Its start is a multiple of the chunk. */
void sl_state_hasher_add(struct sl_state_hasher *hasher, const struct sl_step_plan *sp,
                         const struct sl_state_span *span);
/* Add raw bytes, for a hash from files. */
void sl_state_hasher_bytes(struct sl_state_hasher *hasher, const void *data, uint64_t bytes);
uint64_t sl_state_hasher_value(const struct sl_state_hasher *hasher);

#endif
