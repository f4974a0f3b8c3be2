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

/* Which examples share a sequence: sequence k holds examples[starts[k]] to examples[starts[k+1]].
 */
struct packing {
    uint64_t *starts;   /* [sequence_count + 1] */
    uint32_t *examples; /* document numbers, grouped */
    uint64_t sequence_count, example_count;
};

struct sl_dataset {
    struct token_store *stores; /* [store_count]; several only where .bin files are mapped */
    size_t store_count;
    uint64_t *first_sequence; /* [store_count + 1] stream: sequences before each store */
    uint32_t sequence_length;
    uint64_t train_count, eval_count; /* sequences */
    uint64_t seed;
    bool in_order, unpacked;
    bool samples; /* packings are used, else the streams are cut */
    struct packing train, eval;
};

/* Fill dataset->stores from the files: mapped, from the cache, or by tokenising. */
int dataset_read(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                 struct sl_error *error);

/* Group the examples of the store: those that have something to train on, by length. */
int dataset_pack(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                 struct sl_error *error);
void packing_finish(struct packing *packing);

/* Slots that a document takes in a sequence of T: its last token is a target only. */
static inline uint64_t example_slots(const struct token_store *store, uint64_t document, uint32_t T)
{
    uint64_t tokens = store->documents[document + 1] - store->documents[document];
    return tokens - 1 < T ? tokens - 1 : T;
}

#endif
