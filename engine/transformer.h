// SPDX-License-Identifier: Apache-2.0
/* One transformer for every family: a layer's forward and backward pass as a sequence of device
 * kernels, driven by struct sl_model. Nothing here allocates: the caller brings the slots.
 *
 *     saved    what the backward pass needs of a layer and micro-batch; written by forward, or by
 *              forward again inside the backward operation (activation checkpointing)
 *     scratch  dead after the call
 */
#ifndef SLUICE_ENGINE_TRANSFORMER_H
#define SLUICE_ENGINE_TRANSFORMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/model.h"
#include "offload/device.h"

/* The shape of a micro-batch and the device tables that every layer reads. */
struct sl_batch {
    size_t batch_count, sequence_length;    /* N = batch_count * sequence_length rows */
    const int32_t *positions;               /* [N], device */
    const int32_t *first;                   /* [N], device */
    const float *rope_cos[2], *rope_sin[2]; /* sl_model.rope tables, device; NULL: none */
};

/* A unit's weights and gradient sums. */
struct sl_unit_memory {
    uint32_t unit;
    const unsigned char *weights; /* the unit's blob from element `weights_first` on */
    uint64_t weights_first;
    enum sl_dtype dtype;
    float *sums;                 /* f32 sums, dense over trained tensors; NULL: none trained */
    const uint64_t *sums_offset; /* per parameter of the model: element offset in sums, or
                                    UINT64_MAX where it is frozen */
};

/* A layer's four matrices are used one after the other, each whole or in runs of its rows. */
struct sl_layer_tile {
    enum sl_role role; /* SL_ROLE_QKV, O, UP or DOWN */
    size_t row_first, row_count;
};

#define SL_LAYER_VECTORS_MAX                                                                       \
    5u /* runs of norms and biases before, between and after the matrices */

/* What of a layer is there: all of it, or one tile and every norm and bias. The calls below then do
 * the tile's share of their work: one call per tile, rows ascending, forward QKV to DOWN, backward
 * DOWN to QKV, with `saved` and `scratch` kept from a matrix's first tile to its last; `saved` from
 * the layer's first forward tile on, `scratch` also from O to QKV in the backward pass. On the host
 * device tiles that begin at multiples of SL_MATMUL_DEPTH rows give the bits of the whole. */
struct sl_layer_memory {
    struct sl_unit_memory matrices;   /* without a tile: the norms and biases too */
    const struct sl_layer_tile *tile; /* NULL: the whole layer */
    struct sl_unit_memory vectors[SL_LAYER_VECTORS_MAX]; /* with a tile: in the unit's order */
    size_t vector_count;
};

uint64_t sl_layer_saved_bytes(const struct sl_model *model, enum sl_dtype activation, size_t batch,
                              size_t sequence);
uint64_t sl_layer_scratch_bytes(const struct sl_model *model, enum sl_dtype activation,
                                size_t batch, size_t sequence);

/* out = layer(x). With out NULL only `saved` is filled (recomputation): the last matrix product is
 * left out. x and out: [N, C]; they may not overlap.
 *
 * Memory   device; saved and scratch of the sizes above
 * Order    queued on the compute stream
 * Errors   the device's */
int sl_layer_forward(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                     const struct sl_batch *batch, const struct sl_layer_memory *memory,
                     const void *x, void *out, void *saved, void *scratch);

/* dx: [N, C], in: gradient of out; out: gradient of x. `saved` as forward left it; it is destroyed.
 * Adds to memory->sums. */
int sl_layer_backward(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                      const struct sl_batch *batch, const struct sl_layer_memory *memory,
                      const void *x, void *dx, void *saved, void *scratch);

/* Generation: out = layer(x) for `rows` new tokens at positions position_first, ..., whose keys and
 * values are appended to the layer's cache ([capacity, G, D] each). batch->batch_count is 1 and
 * batch->sequence_length the rows; saved and scratch of that size. */
struct sl_layer_cache {
    size_t position_first;
    void *keys, *values;
};
int sl_layer_generate(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                      const struct sl_batch *batch, const struct sl_layer_memory *memory,
                      const struct sl_layer_cache *cache, const void *x, void *out, void *saved,
                      void *scratch);

/* A layer's forward pass over N rows; with `recomputed`, what a backward pass repeats of it: all
 * but the last product, whose result it does not need. */
struct sl_layer_work {
    double flops;             /* matrix products and causal attention */
    uint64_t weight_elements; /* of the matrices, each taken in by one product */
};
struct sl_layer_work sl_layer_work(const struct sl_model *model, size_t batch, size_t sequence,
                                   bool recomputed);
/* The share of one tile. Attention goes with the last rows of QKV, or, backward, of O. */
struct sl_layer_work sl_layer_tile_work(const struct sl_model *model, size_t batch, size_t sequence,
                                        const struct sl_layer_tile *tile, bool backward);

/* Final norm: h = norm(x). */
int sl_head_norm(struct sl_device *device, const struct sl_model *model, size_t rows,
                 const struct sl_unit_memory *memory, const void *x, void *h);
/* dx = gradient of x from dh; adds to sums. */
int sl_head_norm_backward(struct sl_device *device, const struct sl_model *model, size_t rows,
                          const struct sl_unit_memory *memory, const void *x, const void *dh,
                          void *dx);

/* One tile of the head: rows [row_first, row_first + row_count) of the vocabulary. */
struct sl_head_tile {
    struct sl_weight table; /* [row_count, C] */
    float *dtable;          /* [row_count, C] f32 sums, or NULL: frozen */
    size_t row_first, row_count;
    bool only_tile; /* the whole vocabulary: statistics and backward in one visit */
};

struct sl_head_memory {
    size_t rows;
    const int32_t *targets;                         /* [rows] */
    const void *h;                                  /* [rows, C] */
    void *dh;                                       /* [rows, C]; NULL: forward only */
    float *logits;                                  /* sl_head_logits_bytes() */
    float *row_max, *row_sum, *target_logit, *loss; /* [rows] each */
    float scale;                                    /* loss scale / trained tokens of the step */
};

/* Rows of logits that exist at a time: a function of rows and width alone, since it fixes the order
 * of the head's gradient sum. */
size_t sl_head_chunk_rows(size_t rows, size_t width);
uint64_t sl_head_logits_bytes(size_t rows, size_t width);

/* Running softmax statistics over one tile (the first resets them). */
int sl_head_stats(struct sl_device *device, const struct sl_model *model,
                  const struct sl_head_memory *memory, const struct sl_head_tile *tile);
/* Losses from finished statistics. */
int sl_head_loss(struct sl_device *device, const struct sl_head_memory *memory);
/* dh (+)= , dtable += of one tile, from finished statistics. The first tile overwrites dh. */
int sl_head_backward(struct sl_device *device, const struct sl_model *model,
                     const struct sl_head_memory *memory, const struct sl_head_tile *tile);
/* The three in one visit of the logits, where the tile is the whole vocabulary. dh NULL: forward.
 */
int sl_head_whole(struct sl_device *device, const struct sl_model *model,
                  const struct sl_head_memory *memory, const struct sl_head_tile *tile);

#endif
