// SPDX-License-Identifier: Apache-2.0
/* Attention of a few new tokens to a cache of keys and values: one query at a time, online softmax
 * over the cache in order. Generation reads the cache once per token, so this is bound by memory
 * and needs no blocks. */
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"
#include "kernels/host/vecmath.h"

static float dot(const float *a, const float *b, size_t count)
{
    vf sum = vset(0);
    for (size_t i = 0; i < count; i += LANES) {
        size_t n = count - i < LANES ? count - i : LANES;
        sum = vfma(vload_n(a + i, n), vload_n(b + i, n), sum);
    }
    return vsum(sum);
}

static float first_lane(vf value)
{
    float lanes[LANES];
    vstore(lanes, value);
    return lanes[0];
}

/* out = out * shrink + weight * v */
static void fold(float *out, const float *v, float shrink, float weight, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        size_t n = count - i < LANES ? count - i : LANES;
        vf old = vmul(vload_n(out + i, n), vset(shrink));
        vstore_n(out + i, vfma(vset(weight), vload_n(v + i, n), old), n);
    }
}

void HOST(attention_cached)(const struct sl_host_attention_cached *a, size_t row, size_t head)
{
    size_t position = a->position_first + row;
    size_t group = head / (a->heads / a->kv_heads), d = a->head_size;
    size_t stride = a->kv_heads * d;
    size_t first = a->window && position + 1 > a->window ? position + 1 - a->window : 0;
    const float *q = a->qkv + row * (a->heads + 2 * a->kv_heads) * d + head * d;
    float *out = a->out + (row * a->heads + head) * d;
    float maximum = -INFINITY, sum = 0;
    memset(out, 0, d * sizeof(float));
    for (size_t j = first; j <= position; j++) {
        float score = dot(q, a->keys + j * stride + group * d, d) * a->scale;
        if (a->softcap > 0)
            score = a->softcap * first_lane(vtanh(vset(score / a->softcap)));
        float top = score > maximum ? score : maximum;
        float shrink = first_lane(vexp(vset(maximum - top)));
        float weight = first_lane(vexp(vset(score - top)));
        if (maximum == -INFINITY)
            shrink = 0;
        sum = sum * shrink + weight;
        fold(out, a->values + j * stride + group * d, shrink, weight, d);
        maximum = top;
    }
    fold(out, out, 1.0f / sum, 0, d);
}
