// SPDX-License-Identifier: Apache-2.0
/* What the dataset's own files share. */
#ifndef SLUICE_ENGINE_DATASET_INTERNAL_H
#define SLUICE_ENGINE_DATASET_INTERNAL_H

#include "engine/dataset.h"
#include "engine/dataset_store.h"

/* A permutation of [0, count) that is computed, not stored: element by element, from a key. */
struct permutation {
    uint64_t count, key;
    unsigned half_bits;
};
struct permutation permutation_make(uint64_t count, uint64_t seed, uint64_t epoch);
uint64_t permutation_at(const struct permutation *permutation, uint64_t index);

/* Fill `store` from the files: from the cache, or by reading and tokenising them. */
int dataset_read(struct token_store *store, const struct sl_dataset_options *options,
                 struct sl_error *error);

#endif
