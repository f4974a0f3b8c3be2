// SPDX-License-Identifier: Apache-2.0
/* What each operation of a transformer is given: the one specification that the host kernels, the
 * CUDA kernels and the device table share. Shapes, memory, order and errors: offload/device.h.
 *
 * Shapes   N rows are tokens (batch_count * sequence_length of one micro-batch), C hidden size,
 *          H query heads, G key/value heads, D head size, F feed-forward size, V vocabulary.
 *          All arrays are row-major and dense unless a stride is given.
 */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

/* A weight as it lies in memory. */
struct sl_weight {
    const void *data;
    enum sl_dtype dtype;
};

enum sl_norm_kind {
    SL_NORM_RMS,          /* x * rstd * w */
    SL_NORM_RMS_PLUS_ONE, /* x * rstd * (1 + w): Gemma */
    SL_NORM_LAYER,        /* (x - mean) * rstd * w + b */
};

/* out[rows, width] = norm(x[rows, width]). Rows may be strided (per-head q and k norms run over a
 * packed qkv buffer): row r is `row_group` consecutive width-long vectors at x + (r / row_group) *
 * row_stride + (r % row_group) * width. For plain rows row_group = 1 and row_stride = width. out
 * and x have the same layout and may be the same array. */
struct sl_norm_args {
    enum sl_norm_kind kind;
    size_t rows, width, row_group, row_stride;
    float eps;
    const void *x;
    struct sl_weight weight; /* [width] */
    struct sl_weight bias;   /* [width] or data NULL */
    void *out;
};

/* dx (+)= d norm / dx; dweight, dbias += (f32). Statistics are recomputed from x. dx and dout may
 * be the same array when accumulate_dx is false. dweight NULL: frozen. */
struct sl_norm_backward_args {
    enum sl_norm_kind kind;
    size_t rows, width, row_group, row_stride;
    float eps;
    const void *x;
    struct sl_weight weight;
    const void *dout;
    void *dx;
    bool accumulate_dx;
    float *dweight; /* [width] f32, added to */
    float *dbias;   /* [width] f32, added to, or NULL */
};

/* W is [outputs, inputs] always.
 *   FORWARD          y[rows, outputs] (+)= x[rows, inputs] W^T + bias
 *   BACKWARD_INPUT   dx[rows, inputs] (+)= dy[rows, outputs] W
 *   BACKWARD_WEIGHT  dW[outputs, inputs] f32 += dy^T x;  dbias[outputs] f32 += column sums of dy
 * x, y have row strides in elements (0: dense). y_f32: y (FORWARD) or dy (the others) is f32
 * whatever the activation type (logits). accumulate: add to y or dx instead of overwriting. */
enum sl_matmul_kind { SL_MATMUL_FORWARD, SL_MATMUL_BACKWARD_INPUT, SL_MATMUL_BACKWARD_WEIGHT };

struct sl_matmul_args {
    enum sl_matmul_kind kind;
    size_t rows, inputs, outputs;
    size_t x_stride, y_stride;
    void *x; /* x or dx */
    void *y; /* y or dy */
    bool y_f32;
    bool accumulate;
    struct sl_weight weight; /* FORWARD, BACKWARD_INPUT */
    struct sl_weight bias;   /* FORWARD: [outputs] or data NULL */
    float *dweight;          /* BACKWARD_WEIGHT; NULL: frozen */
    float *dbias;            /* BACKWARD_WEIGHT; NULL: none */
};

/* On the host device a sum over rows of W is cut after so many of them: BACKWARD_INPUT over tiles
 * of W that begin at multiples of it, the later ones with `accumulate`, gives the bits of one call.
 */
#define SL_MATMUL_DEPTH 384u

/* Rotate q and k in place in the packed buffer, halves split (rotate_half). cos, sin: f32
 * [sequence positions, rotary / 2], indexed by positions[n]. inverse: rotate back (backward). */
struct sl_rope_args {
    size_t rows, heads, head_size, rotary; /* heads: consecutive heads to rotate from x on */
    size_t row_stride;
    void *x;
    const int32_t *positions; /* [rows], device memory */
    const float *cos, *sin;   /* device memory */
    bool inverse;
};

/* Causal grouped-query attention over a packed buffer: row n of qkv is q [H, D], k [G, D], v [G,
 * D]. Query at in-sequence index i sees keys j with max(first[n], i - window + 1) <= j <= i. No [T,
 * T] matrix is kept. */
struct sl_attention_args {
    size_t batch_count, sequence_length, heads, kv_heads, head_size;
    float scale;
    float softcap;        /* 0: none; else softcap * tanh(score / softcap) */
    size_t window;        /* 0: full causal */
    const int32_t *first; /* [rows] first visible in-sequence index (documents), or NULL */
    const void *qkv;      /* [rows, (H + 2G) D] */
    void *out;            /* [rows, H D] */
    float *lse;           /* [batch, H, T] f32, natural log */
};

struct sl_attention_backward_args {
    struct sl_attention_args forward; /* out and lse as forward left them */
    const void *dout;                 /* [rows, H D] */
    void *dqkv;                       /* [rows, (H + 2G) D], overwritten */
    float *delta;                     /* [batch, H, T] f32 scratch */
};

/* Generation: `rows` new tokens of one sequence at positions position_first, ... Their keys and
 * values are first written to the cache [capacity, G, D] each, then every row attends to it. */
struct sl_attention_cached_args {
    size_t rows, position_first, heads, kv_heads, head_size;
    float scale, softcap;
    size_t window;
    const void *qkv; /* [rows, (H + 2G) D], q and k rotated */
    void *keys, *values;
    void *out; /* [rows, H D] */
};

enum sl_act_kind { SL_ACT_SILU, SL_ACT_GELU_TANH, SL_ACT_GELU };

/* gated: in is [rows, 2F] with gate first, out = act(gate) * up. Plain: in is [rows, F]. */
struct sl_act_args {
    enum sl_act_kind kind;
    bool gated;
    size_t rows, width; /* width = F */
    const void *in;
    void *out;        /* forward: [rows, F] */
    const void *dout; /* backward: [rows, F] */
    void *din;        /* backward: shape of in; may be the array `in` */
};

/* out[n] = a[n] + b[n]; out may be a or b. */
struct sl_add_args {
    size_t count;
    const void *a, *b;
    void *out;
};

/* One tile of the embedding table: rows [row_first, row_first + row_count) of the vocabulary.
 * Forward writes out[n] = table[ids[n]] * scale (rounded to the activation type) for the tokens of
 * the tile and leaves other rows alone; `add` adds instead (learned positions, ids = positions).
 * Backward adds dout[n] * scale to the f32 accumulator, tokens in ascending order. */
struct sl_embedding_args {
    size_t rows, width, row_first, row_count;
    const int32_t *ids; /* [rows], device memory */
    float scale;
    bool add;
    struct sl_weight table; /* the tile: [row_count, width] */
    void *out;              /* forward: [rows, width] */
    const void *dout;       /* backward */
    float *dtable;          /* backward: the tile's accumulator */
};

/* Cross-entropy over vocabulary tiles with an online softmax.
 *   STATS     logits [rows, width] of columns [column_first, ...): updates per row running max,
 *             running sum of exp(logit - max), and the target's logit; `reset` starts a row afresh.
 *             softcap is applied to the logits in place first.
 *   BACKWARD  logits -> dlogits in place: (exp(logit - max) / sum - onehot) * scale, times the
 *             softcap's derivative; 0 for rows whose target is negative (ignored).
 *   LOSS      loss[n] = log(sum) + max - target_logit, 0 where ignored. */
enum sl_cross_entropy_kind { SL_CE_STATS, SL_CE_BACKWARD, SL_CE_LOSS };

struct sl_cross_entropy_args {
    enum sl_cross_entropy_kind kind;
    size_t rows, width, column_first;
    float *logits;   /* [rows, width] f32 */
    bool softcapped; /* BACKWARD: logits already hold capped values */
    bool reset;
    float softcap;                           /* 0: none */
    float scale;                             /* BACKWARD: loss scale / trained tokens of the step */
    const int32_t *targets;                  /* [rows]; negative: ignored */
    float *row_max, *row_sum, *target_logit; /* [rows] f32 each */
    float *loss;                             /* [rows] f32 */
};

/* One rounding of a finished f32 gradient to the gradient's type, with the sum of squares of the
 * rounded values in fp64 per SL_GRADIENT_CHUNK elements of the tensor, and the number of values
 * that are not finite. The order of the additions inside a chunk is fixed: docs/numerics.md. */
#define SL_GRADIENT_CHUNK 65536u

struct sl_gradient_finish_args {
    size_t count;     /* elements of the tensor (or chunk-aligned part of it) */
    const float *sum; /* [count] */
    void *out;        /* [count] of dtype; may be `sum` where dtype is f32 */
    enum sl_dtype dtype;
    double *chunk_squares;     /* [div_up(count, SL_GRADIENT_CHUNK)], host-visible, overwritten */
    uint64_t *chunk_nonfinite; /* likewise: values that are not finite */
};

#endif
