// SPDX-License-Identifier: Apache-2.0
/* The transformer on the CPU: forward and backward of every operation, in pieces.
 *
 * Each function does one piece (a run of rows, a tile, one head) of an operation that the caller
 * has cut; no piece reads what another piece of the same operation writes, and a row's result does
 * not depend on where the cuts are, except where a header says so. The operations' mathematics is
 * specified beside the argument structures of offload/device.h, whose fields these repeat.
 *
 * Types    activations, sums and scratch f32; weights f32, bf16 or f16
 * Memory   host; rows dense and row-major unless a stride is given
 * Threads  safe on disjoint pieces; starts none; allocates nothing
 * Errors   none
 * Numerics equal bits in all variants of this table: lanes of 16, explicit fma, sums in one order
 */
#ifndef SLUICE_KERNELS_HOST_HOST_H
#define SLUICE_KERNELS_HOST_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

struct sl_host_weight {
    const void *data;
    enum sl_dtype dtype;
};

/* c[m, n] = alpha op(a) op(b), or c += it. op(a) is [m, k], op(b) is [k, n]; where transposed, the
 * array holds [k, m] or [n, k]. b starts at its element b_first. Strides in elements. */
struct sl_host_gemm {
    bool a_transposed, b_transposed, accumulate;
    size_t m, n, k;
    float alpha;
    const float *a;
    struct sl_host_weight b;
    size_t b_first;
    float *c;
    size_t a_stride, b_stride, c_stride;
};

/* Sums are cut after so many elements of k: the cut is part of the result. */
#define SL_HOST_GEMM_DEPTH 384u /* SL_MATMUL_DEPTH */
/* Columns of b packed at a time: with DEPTH, about what a second-level cache holds. */
#define SL_HOST_GEMM_COLUMNS 512u
/* One chunk of b, and one strip of up to 16 rows of a. */
#define SL_HOST_GEMM_SCRATCH_BYTES                                                                 \
    ((SL_HOST_GEMM_COLUMNS * SL_HOST_GEMM_DEPTH + 16u * (SL_HOST_GEMM_DEPTH + 1u)) * sizeof(float))

enum sl_host_norm_kind { SL_HOST_NORM_RMS, SL_HOST_NORM_RMS_PLUS_ONE, SL_HOST_NORM_LAYER };

/* Row r starts at (r / row_group) * row_stride + (r % row_group) * width of x, out, dout and dx. */
struct sl_host_norm {
    enum sl_host_norm_kind kind;
    size_t width, row_group, row_stride;
    float eps;
    const float *x;
    struct sl_host_weight weight, bias; /* bias.data may be NULL */
    float *out;                         /* forward; may be x */
    const float *dout;                  /* backward */
    float *dx;                          /* backward; may be dout where accumulate is false */
    bool accumulate;
};

struct sl_host_rope {
    size_t heads, head_size, rotary, row_stride;
    float *x;
    const int32_t *positions;
    const float *cos, *sin;
    bool inverse;
};

/* Queries are taken in blocks, keys in chunks: sizes that keep a block's scores in the second-level
 * cache. They are part of the result. */
#define SL_HOST_ATTENTION_QUERIES 64u
#define SL_HOST_ATTENTION_KEYS 512u
#define SL_HOST_ATTENTION_LD (SL_HOST_ATTENTION_KEYS + 16u) /* rows of scores: no power of two */
#define SL_HOST_ATTENTION_SCORES (SL_HOST_ATTENTION_QUERIES * SL_HOST_ATTENTION_LD)
/* packed operands, scores and their derivative */
#define SL_HOST_ATTENTION_SCRATCH_BYTES                                                            \
    (SL_HOST_GEMM_SCRATCH_BYTES + 2u * SL_HOST_ATTENTION_SCORES * sizeof(float))

struct sl_host_attention {
    size_t sequence_length, heads, kv_heads, head_size;
    float scale, softcap;
    size_t window;
    const int32_t *first;
    const float *qkv;
    float *out;
    float *lse;
    const float *dout; /* backward */
    float *dqkv;
    float *delta;
};

enum sl_host_act_kind { SL_HOST_ACT_SILU, SL_HOST_ACT_GELU_TANH, SL_HOST_ACT_GELU };

struct sl_host_act {
    enum sl_host_act_kind kind;
    bool gated;
    size_t width;
    const float *in;
    float *out;
    const float *dout;
    float *din;
};

struct sl_host_embedding {
    size_t rows, width, row_first, row_count;
    const int32_t *ids;
    float scale;
    bool add;
    struct sl_host_weight table;
    float *out;
    const float *dout;
    float *dtable;
};

struct sl_host_cross_entropy {
    size_t width, column_first;
    float *logits;
    bool softcapped, reset;
    float softcap, scale;
    const int32_t *targets;
    float *row_max, *row_sum, *target_logit, *loss;
};

/* y[rows, outputs] (+)= x[rows, inputs] W^T for few rows; W starts at element `first`. */
struct sl_host_matvec {
    size_t rows, inputs, outputs, first, x_stride, y_stride;
    const float *x;
    struct sl_host_weight weight;
    float *y;
    bool accumulate;
};

/* New rows of qkv at positions position_first ..., whose keys and values lie in the cache already:
 * keys and values are [positions, kv_heads, head_size]. */
struct sl_host_attention_cached {
    size_t heads, kv_heads, head_size, position_first, window;
    float scale, softcap;
    const float *qkv, *keys, *values;
    float *out; /* [rows, heads, head_size] */
};

/* One instruction set's variant of everything. Row ranges are [first, first + count). */
struct sl_host_kernels {
    const char *isa; /* "avx512", "avx2", "neon", "generic" */

    void (*norm)(const struct sl_host_norm *a, size_t first, size_t count);
    /* dweight_part, dbias_part: [width], overwritten with this row range's sums in ascending row
     * order; NULL: not wanted. */
    void (*norm_backward)(const struct sl_host_norm *a, size_t first, size_t count,
                          float *dweight_part, float *dbias_part);

    void (*rope)(const struct sl_host_rope *a, size_t first, size_t count);

    /* One block of SL_HOST_ATTENTION_QUERIES queries of one head. */
    void (*attention)(const struct sl_host_attention *a, size_t batch, size_t head, size_t block,
                      float *scratch);
    /* One key/value head of one sequence, all its query heads. */
    void (*attention_backward)(const struct sl_host_attention *a, size_t batch, size_t kv_head,
                               float *scratch);

    void (*attention_cached)(const struct sl_host_attention_cached *a, size_t row, size_t head);

    void (*act)(const struct sl_host_act *a, size_t first, size_t count);
    void (*act_backward)(const struct sl_host_act *a, size_t first, size_t count);

    void (*embedding)(const struct sl_host_embedding *a, size_t first, size_t count);
    /* Columns [first, first + count) of all rows, tokens ascending. */
    void (*embedding_backward)(const struct sl_host_embedding *a, size_t first, size_t count);

    void (*cross_entropy_stats)(const struct sl_host_cross_entropy *a, size_t first, size_t count);
    void (*cross_entropy_backward)(const struct sl_host_cross_entropy *a, size_t first,
                                   size_t count);
    void (*cross_entropy_loss)(const struct sl_host_cross_entropy *a, size_t first, size_t count);

    void (*add)(const float *a, const float *b, float *out, size_t count);
    /* out[rows, width] += bias[width] */
    void (*bias_add)(float *out, size_t rows, size_t stride, struct sl_host_weight bias,
                     size_t bias_first, size_t width);
    /* sum[width] += column sums of x[rows, width], in blocks of 64 rows */
    void (*column_sum)(float *sum, const float *x, size_t rows, size_t stride, size_t width);
    void (*matvec)(const struct sl_host_matvec *a);
    /* In the calling thread. scratch: SL_HOST_GEMM_SCRATCH_BYTES, 64-byte aligned, its own. Bits do
     * not depend on m and n, nor on where the element lies in c. */
    void (*gemm)(const struct sl_host_gemm *a, float *scratch);
};

/* The variant for this machine. Never NULL. */
const struct sl_host_kernels *sl_host_kernels(void);

/* A variant by name, NULL where it was not built or this machine cannot run it: for tests. */
const struct sl_host_kernels *sl_host_kernels_find(const char *isa);

#endif
