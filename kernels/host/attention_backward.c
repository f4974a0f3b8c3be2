// SPDX-License-Identifier: Apache-2.0
/* Attention backward: probabilities are recomputed from the saved log-sum-exp, block by block.
 *
 * A piece is one key/value head of one sequence with all its query heads, so that dK and dV have
 * one writer and the order of their sums (query heads, then query blocks, ascending) is fixed. Five
 * products per block, no second pass. Rejected: a split by key block, which needs two passes over
 * the scores (seven products) or ordered partial sums of dQ.
 *
 *   P = exp(S - lse)   dP = dO V^T   dS = P (dP - delta)   delta = rowsum(dO O)
 *   dV += P^T dO       dQ = scale dS K      dK += scale dS^T Q
 */
#include "kernels/host/attention.h"

#include "kernels/host/variant.h"
#include "kernels/host/vecmath.h"

#define QUERIES SL_HOST_ATTENTION_QUERIES
#define KEYS SL_HOST_ATTENTION_KEYS
#define LD SL_HOST_ATTENTION_LD

static float row_dot(const float *a, const float *b, size_t count)
{
    vf sum = vset(0);
    for (size_t i = 0; i < count; i += LANES) {
        size_t n = count - i < LANES ? count - i : LANES;
        sum = vfma(vload_n(a + i, n), vload_n(b + i, n), sum);
    }
    return vsum(sum);
}

/* s: scores -> probabilities; ds: dP -> dS. */
static void row_gradient(float *s, float *ds, size_t count, float softcap, float lse, float delta)
{
    vf shift = vset(lse), d = vset(delta), cap = vset(softcap), one = vset(1.0f);
    vf inverse = vset(softcap > 0 ? 1.0f / softcap : 0);
    for (size_t i = 0; i < count; i += LANES) {
        size_t n = count - i < LANES ? count - i : LANES;
        vf score = vload_n(s + i, n), slope = one;
        if (softcap > 0) {
            vf t = vtanh(vmul(score, inverse));
            score = vmul(cap, t);
            slope = vfnma(t, t, one);
        }
        vf p = vexp(vsub(score, shift));
        vf g = vmul(p, vsub(vload_n(ds + i, n), d));
        if (softcap > 0)
            g = vmul(g, slope);
        vstore_n(s + i, p, n);
        vstore_n(ds + i, g, n);
    }
}

static void clear_outside(float *row, size_t count, struct attention_range range)
{
    memset(row, 0, range.low * sizeof(float));
    memset(row + range.high, 0, (count - range.high) * sizeof(float));
}

/* Everything that a block of queries of one head needs; strides: qkv rows and out rows. */
struct block {
    size_t batch, query, query_count, stride, out_stride;
    const float *q, *k, *v, *dout;
    float *dq, *dk, *dv;
    const float *lse, *delta;
};

/* out[queries, keys] = alpha rows keys^T, where a row belongs to a query. */
static void score_product(const struct sl_host_attention *a, const struct block *b, float alpha,
                          const float *rows, size_t row_stride, const float *keys, size_t count,
                          float *out, float *packed)
{
    HOST(gemm)
    (&(struct sl_host_gemm){.b_transposed = true,
                            .m = b->query_count,
                            .n = count,
                            .k = a->head_size,
                            .alpha = alpha,
                            .a = rows,
                            .a_stride = row_stride,
                            .b = {keys, SL_F32},
                            .b_stride = b->stride,
                            .c = out,
                            .c_stride = LD},
     packed);
}

/* keys[keys, width] += alpha scores^T rows */
static void key_product(const struct sl_host_attention *a, const struct block *b, float alpha,
                        const float *scores, size_t count, const float *rows, size_t row_stride,
                        float *keys, float *packed)
{
    HOST(gemm)
    (&(struct sl_host_gemm){.a_transposed = true,
                            .m = count,
                            .n = a->head_size,
                            .k = b->query_count,
                            .alpha = alpha,
                            .accumulate = true,
                            .a = scores,
                            .a_stride = LD,
                            .b = {rows, SL_F32},
                            .b_stride = row_stride,
                            .c = keys,
                            .c_stride = b->stride},
     packed);
}

static void block_scores(const struct sl_host_attention *a, const struct block *b, size_t key,
                         size_t count, float *p, float *ds, float *packed)
{
    size_t at = key * b->stride;
    score_product(a, b, a->scale, b->q, b->stride, b->k + at, count, p, packed);
    score_product(a, b, 1, b->dout, b->out_stride, b->v + at, count, ds, packed);
    for (size_t row = 0; row < b->query_count; row++) {
        struct attention_range r = attention_range(a, b->batch, b->query + row, key, count);
        clear_outside(p + row * LD, count, r);
        clear_outside(ds + row * LD, count, r);
        row_gradient(p + row * LD + r.low, ds + row * LD + r.low, r.high - r.low, a->softcap,
                     b->lse[row], b->delta[row]);
    }
}

static void block_backward(const struct sl_host_attention *a, const struct block *b, float *scratch)
{
    float *packed = scratch, *p = scratch + SL_HOST_GEMM_SCRATCH_BYTES / sizeof(float);
    float *ds = p + SL_HOST_ATTENTION_SCORES;
    size_t end = b->query + b->query_count;
    size_t start = attention_block_start(a, b->batch, b->query, b->query_count);
    for (size_t key = start; key < end; key += KEYS) {
        size_t count = end - key < KEYS ? end - key : KEYS, at = key * b->stride;
        block_scores(a, b, key, count, p, ds, packed);
        key_product(a, b, 1, p, count, b->dout, b->out_stride, b->dv + at, packed);
        HOST(gemm)
        (&(struct sl_host_gemm){.m = b->query_count,
                                .n = a->head_size,
                                .k = count,
                                .alpha = a->scale,
                                .accumulate = key > start,
                                .a = ds,
                                .a_stride = LD,
                                .b = {b->k + at, SL_F32},
                                .b_stride = b->stride,
                                .c = b->dq,
                                .c_stride = b->stride},
         packed);
        key_product(a, b, a->scale, ds, count, b->q, b->stride, b->dk + at, packed);
    }
}

static void head_backward(const struct sl_host_attention *a, size_t batch, size_t kv_head,
                          size_t head, float *scratch)
{
    size_t length = a->sequence_length, width = a->head_size, stride = attention_row(a);
    size_t out_stride = a->heads * width, base = batch * length * stride;
    size_t k_at = base + (a->heads + kv_head) * width, v_at = k_at + a->kv_heads * width;
    float *delta = a->delta + (batch * a->heads + head) * length;
    for (size_t query = 0; query < length; query += QUERIES) {
        size_t q_at = base + query * stride + head * width;
        size_t out_at = (batch * length + query) * out_stride + head * width;
        struct block b = {.batch = batch,
                          .query = query,
                          .query_count = length - query < QUERIES ? length - query : QUERIES,
                          .stride = stride,
                          .out_stride = out_stride,
                          .q = a->qkv + q_at,
                          .k = a->qkv + k_at,
                          .v = a->qkv + v_at,
                          .dout = a->dout + out_at,
                          .dq = a->dqkv + q_at,
                          .dk = a->dqkv + k_at,
                          .dv = a->dqkv + v_at,
                          .lse = a->lse + (batch * a->heads + head) * length + query,
                          .delta = delta + query};
        for (size_t row = 0; row < b.query_count; row++)
            delta[query + row] =
                row_dot(b.dout + row * out_stride, a->out + out_at + row * out_stride, width);
        block_backward(a, &b, scratch);
    }
}

void HOST(attention_backward)(const struct sl_host_attention *a, size_t batch, size_t kv_head,
                              float *scratch)
{
    size_t stride = attention_row(a), group = a->heads / a->kv_heads;
    float *dk = a->dqkv + batch * a->sequence_length * stride + (a->heads + kv_head) * a->head_size;
    for (size_t row = 0; row < a->sequence_length; row++) {
        memset(dk + row * stride, 0, a->head_size * sizeof(float));
        memset(dk + row * stride + a->kv_heads * a->head_size, 0, a->head_size * sizeof(float));
    }
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        head_backward(a, batch, kv_head, head, scratch);
}
