// SPDX-License-Identifier: Apache-2.0
/* One head of one sequence as the attention kernels see it: pointers, masks, the score's function.
 *
 *     row n of qkv:  [ q_0 .. q_{H-1} | k_0 .. k_{G-1} | v_0 .. v_{G-1} ]   D elements each
 *
 * Query i sees key j where max(first[i], i - window + 1) <= j <= i.
 */
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_CUH
#define SLUICE_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

template <class T> struct attention_view {
    unsigned head_size, length, window; /* 32-bit: registers are what the kernels run out of */
    size_t stride, out_stride;          /* in elements */
    float scale, softcap;
    const T *q, *k, *v; /* of row 0 of the sequence */
    T *out;
    float *lse;
    const int32_t *first; /* of row 0, or NULL */

    __device__ attention_view(const struct sl_attention_args &args, size_t batch, size_t head)
    {
        size_t H = args.heads, G = args.kv_heads, D = args.head_size;
        size_t row = batch * args.sequence_length, kv_head = head / (H / G);
        head_size = (unsigned)D;
        length = (unsigned)args.sequence_length;
        stride = (H + 2 * G) * D;
        out_stride = H * D;
        window = (unsigned)(args.window < length ? args.window : 0); /* wider: none */
        scale = args.scale;
        softcap = args.softcap;
        q = static_cast<const T *>(args.qkv) + row * stride + head * D;
        k = static_cast<const T *>(args.qkv) + row * stride + (H + kv_head) * D;
        v = static_cast<const T *>(args.qkv) + row * stride + (H + G + kv_head) * D;
        out = static_cast<T *>(args.out) + row * out_stride + head * D;
        lse = args.lse + (batch * H + head) * length;
        first = args.first ? args.first + row : nullptr;
    }

    /* First key that query i sees. */
    __device__ unsigned key_begin(unsigned i) const
    {
        unsigned begin = window && i + 1 > window ? i + 1 - window : 0;
        unsigned document = first ? (unsigned)first[i] : 0;
        return begin > document ? begin : document;
    }

    __device__ bool visible(unsigned i, unsigned j) const
    {
        return i < length && j <= i && j >= key_begin(i);
    }

    /* The least key_begin of queries [i, i + count): where a block's walk over keys starts. `first`
     * may fall and rise, so all of them are asked. Every thread of the block calls. */
    __device__ unsigned block_key_begin(unsigned i, unsigned count) const
    {
        __shared__ unsigned least;
        if (!first)
            return key_begin(i);
        if (threadIdx.x == 0)
            least = length;
        __syncthreads();
        for (unsigned r = threadIdx.x; r < count; r += blockDim.x)
            if (i + r < length)
                atomicMin(&least, key_begin(i + r));
        __syncthreads();
        return least;
    }

    /* One past the last query that can see key j (before documents). */
    __device__ unsigned query_end(unsigned j) const
    {
        return window && j + window < length ? j + window : length;
    }

    /* The score of a dot product, and its derivative by the scaled product given the score. */
    __device__ float score(float product) const
    {
        float s = product * scale;
        return softcap != 0 ? softcap * tanhf(__fdividef(s, softcap)) : s;
    }

    __device__ float score_slope(float s) const
    {
        if (softcap == 0)
            return 1.0f;
        float t = __fdividef(s, softcap);
        return 1.0f - t * t;
    }
};

template <class T> struct attention_backward_view : attention_view<T> {
    const T *dout;
    T *dq, *dk, *dv;
    const float *delta;

    __device__ attention_backward_view(const struct sl_attention_backward_args &args, size_t batch,
                                       size_t head)
        : attention_view<T>(args.forward, batch, head)
    {
        const T *qkv = static_cast<const T *>(args.forward.qkv);
        T *dqkv = static_cast<T *>(args.dqkv);
        size_t row = batch * args.forward.sequence_length;
        dout = static_cast<const T *>(args.dout) + row * this->out_stride + head * this->head_size;
        dq = dqkv + (this->q - qkv);
        dk = dqkv + (this->k - qkv);
        dv = dqkv + (this->v - qkv);
        delta = args.delta + (batch * args.forward.heads + head) * this->length;
    }
};

} // namespace

#endif
