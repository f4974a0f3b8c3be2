// SPDX-License-Identifier: Apache-2.0
/* Causal grouped-query attention, forward, in blocks with an online softmax.
 *
 * A piece is one block of 64 queries of one head; keys come in chunks of up to 512. The scores of a
 * block (128 KiB) live in the thread's scratch, both products read the packed q, k and v in place
 * (row strides), and the softmax between them is one pass per row. A short sequence needs
 * one chunk, which makes the online rescaling vanish. Only keys up to the block's last query are
 * touched, so the causal half is skipped but for the diagonal blocks.
 * Rejected: 64 x 64 blocks (small products: 10 % slower), gathering K and V first.
 *
 *   per chunk: S = scale Q K^T; m' = max(m, max S); P = exp(S - m'); l = l e^(m-m') + sum P
 *              O = O e^(m-m') + P V;    at the end O /= l, lse = m + log l
 */
#include "kernels/host/attention.h"

#include "kernels/host/variant.h"
#include "kernels/host/vecmath.h"

#define QUERIES SL_HOST_ATTENTION_QUERIES
#define KEYS SL_HOST_ATTENTION_KEYS
#define LD SL_HOST_ATTENTION_LD

static void scale_row(float *x, size_t count, float factor)
{
    vf f = vset(factor);
    for (size_t i = 0; i < count; i += LANES) {
        size_t n = count - i < LANES ? count - i : LANES;
        vstore_n(x + i, vmul(vload_n(x + i, n), f), n);
    }
}

/* Caps the scores where asked and gives their maximum. */
static float row_prepare(float *s, size_t count, float softcap)
{
    vf top = vset(-INFINITY), cap = vset(softcap);
    vf inverse = vset(softcap > 0 ? 1.0f / softcap : 0);
    for (size_t i = 0; i < count; i += LANES) {
        size_t n = count - i < LANES ? count - i : LANES;
        vf v = vload_n(s + i, n);
        if (softcap > 0) {
            v = vmul(cap, vtanh(vmul(v, inverse)));
            vstore_n(s + i, v, n);
        }
        top = vmax(n == LANES ? v : vselect(vfirst(n), v, vset(-INFINITY)), top);
    }
    return vmax_lanes(top);
}

/* s = exp(s - maximum) in place; returns the sum. */
static float row_exp(float *s, size_t count, float maximum)
{
    vf sum = vset(0), shift = vset(maximum);
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        vf p = vexp(vsub(vload(s + i), shift));
        vstore(s + i, p);
        sum = vadd(sum, p);
    }
    if (i < count) {
        vf p = vexp(vsub(vload_n(s + i, count - i), shift));
        vstore_n(s + i, p, count - i);
        sum = vadd(sum, vselect(vfirst(count - i), p, vset(0)));
    }
    return vsum(sum);
}

struct running {
    float maximum[QUERIES], sum[QUERIES];
};

/* Scores of one row -> probabilities not yet divided; out is the row's partial output. */
static void row_softmax(const struct sl_host_attention *a, struct running *state, size_t row,
                        float *s, size_t count, struct attention_range range, float *out)
{
    memset(s, 0, range.low * sizeof(float));
    memset(s + range.high, 0, (count - range.high) * sizeof(float));
    if (range.low == range.high)
        return;
    s += range.low;
    float maximum = row_prepare(s, range.high - range.low, a->softcap);
    float before = state->maximum[row];
    maximum = maximum > before ? maximum : before;
    float sum = row_exp(s, range.high - range.low, maximum);
    if (before != -INFINITY && before != maximum) {
        float factor = vexp(vset(before - maximum)).p[0][0];
        state->sum[row] *= factor;
        scale_row(out, a->head_size, factor);
    }
    state->sum[row] += sum;
    state->maximum[row] = maximum;
}

void HOST(attention)(const struct sl_host_attention *a, size_t batch, size_t head, size_t block,
                     float *scratch)
{
    size_t length = a->sequence_length, width = a->head_size, stride = attention_row(a);
    size_t query = block * QUERIES;
    size_t query_count = length - query < QUERIES ? length - query : QUERIES;
    size_t end = query + query_count, out_stride = a->heads * width;
    size_t kv_head = head / (a->heads / a->kv_heads);
    const float *base = a->qkv + batch * length * stride;
    const float *q = base + query * stride + head * width;
    const float *k = base + (a->heads + kv_head) * width;
    const float *v = k + a->kv_heads * width;
    float *out = a->out + (batch * length + query) * out_stride + head * width;
    float *packed = scratch, *scores = scratch + SL_HOST_GEMM_SCRATCH_BYTES / sizeof(float);
    struct running state;
    for (size_t row = 0; row < query_count; row++) {
        state.maximum[row] = -INFINITY;
        state.sum[row] = 0;
    }
    size_t start = attention_block_start(a, batch, query, query_count);
    for (size_t key = start; key < end; key += KEYS) {
        size_t count = end - key < KEYS ? end - key : KEYS;
        HOST(gemm)
        (&(struct sl_host_gemm){.b_transposed = true,
                                .m = query_count,
                                .n = count,
                                .k = width,
                                .alpha = a->scale,
                                .a = q,
                                .a_stride = stride,
                                .b = {k + key * stride, SL_F32},
                                .b_stride = stride,
                                .c = scores,
                                .c_stride = LD},
         packed);
        for (size_t row = 0; row < query_count; row++)
            row_softmax(a, &state, row, scores + row * LD, count,
                        attention_range(a, batch, query + row, key, count), out + row * out_stride);
        HOST(gemm)
        (&(struct sl_host_gemm){.m = query_count,
                                .n = width,
                                .k = count,
                                .alpha = 1,
                                .accumulate = key > start,
                                .a = scores,
                                .a_stride = LD,
                                .b = {v + key * stride, SL_F32},
                                .b_stride = stride,
                                .c = out,
                                .c_stride = out_stride},
         packed);
    }
    float *lse = a->lse + (batch * a->heads + head) * length + query;
    for (size_t row = 0; row < query_count; row++) {
        scale_row(out + row * out_stride, width, 1.0f / state.sum[row]);
        lse[row] = (float)((double)state.maximum[row] + log((double)state.sum[row]));
    }
}
