// SPDX-License-Identifier: Apache-2.0
/* Rotary positions, activations (SwiGLU, GeGLU, GELU) and residual additions: one thread per
 * 16-byte pack, every byte read and written once. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned ELEMENT_THREADS = 256;

/* Rotate pairs (x[j], x[j + half]); a thread has N neighbouring j of one head. */
template <class T> __global__ void rope_kernel(struct sl_rope_args args, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t half = args.rotary / 2, packs = (half + N - 1) / N;
    size_t i = (size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i >= args.rows * args.heads * packs)
        return;
    size_t row = i / (args.heads * packs), head = i / packs % args.heads, j = i % packs * N;
    T *x = static_cast<T *>(args.x) + row * args.row_stride + head * args.head_size;
    const float *cosines = args.cos + (size_t)args.positions[row] * half;
    const float *sines = args.sin + (size_t)args.positions[row] * half;
    float low[N], high[N];
    load_pack(low, x, j, half, whole);
    load_pack(high, x + half, j, half, whole);
#pragma unroll
    for (unsigned k = 0; k < N; k++) {
        if (!whole && j + k >= half)
            break;
        float c = cosines[j + k], s = args.inverse ? -sines[j + k] : sines[j + k];
        float a = low[k], b = high[k];
        low[k] = a * c - b * s;
        high[k] = b * c + a * s;
    }
    store_pack(x, low, j, half, whole);
    store_pack(x + half, high, j, half, whole);
}

constexpr float GELU_SQRT_2_PI = 0.7978845608028654f, GELU_CUBIC = 0.044715f;
constexpr float SQRT_HALF = 0.7071067811865476f, RSQRT_2_PI = 0.3989422804014327f;

__device__ float act_value(enum sl_act_kind kind, float x)
{
    if (kind == SL_ACT_SILU)
        return x / (1.0f + expf(-x));
    if (kind == SL_ACT_GELU)
        return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
    return 0.5f * x * (1.0f + tanhf(GELU_SQRT_2_PI * (x + GELU_CUBIC * x * x * x)));
}

__device__ float act_slope(enum sl_act_kind kind, float x)
{
    if (kind == SL_ACT_SILU) {
        float sigmoid = 1.0f / (1.0f + expf(-x));
        return sigmoid * (1.0f + x * (1.0f - sigmoid));
    }
    if (kind == SL_ACT_GELU)
        return 0.5f * (1.0f + erff(x * SQRT_HALF)) + x * RSQRT_2_PI * expf(-0.5f * x * x);
    float t = tanhf(GELU_SQRT_2_PI * (x + GELU_CUBIC * x * x * x));
    float inner = GELU_SQRT_2_PI * (1.0f + 3.0f * GELU_CUBIC * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

/* Thread i has a pack of one row: gate at in[row, c], up at in[row, F + c]. */
template <class T, bool BACKWARD> __global__ void act_kernel(struct sl_act_args args, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t width = args.width, packs = (width + N - 1) / N;
    size_t i = (size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x;
    if (i >= args.rows * packs)
        return;
    size_t row = i / packs, c = i % packs * N, in_width = args.gated ? 2 * width : width;
    const T *in = static_cast<const T *>(args.in) + row * in_width;
    float gate[N], up[N], grad[N];
    load_pack(gate, in, c, width, whole);
    if (args.gated)
        load_pack(up, in + width, c, width, whole);
    if (!BACKWARD) {
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            gate[j] = act_value(args.kind, gate[j]) * (args.gated ? up[j] : 1.0f);
        store_pack(static_cast<T *>(args.out) + row * width, gate, c, width, whole);
        return;
    }
    T *din = static_cast<T *>(args.din) + row * in_width;
    load_pack(grad, static_cast<const T *>(args.dout) + row * width, c, width, whole);
#pragma unroll
    for (unsigned j = 0; j < N; j++) {
        float x = gate[j], factor = args.gated ? up[j] : 1.0f;
        gate[j] = grad[j] * factor * act_slope(args.kind, x);
        if (args.gated)
            up[j] = grad[j] * act_value(args.kind, x);
    }
    store_pack(din, gate, c, width, whole);
    if (args.gated)
        store_pack(din + width, up, c, width, whole);
}

template <class T> __global__ void add_kernel(struct sl_add_args args, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t i = ((size_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x) * N;
    if (i >= args.count)
        return;
    whole = whole && i + N <= args.count;
    float a[N], b[N];
    load_pack(a, static_cast<const T *>(args.a), i, args.count, whole);
    load_pack(b, static_cast<const T *>(args.b), i, args.count, whole);
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        a[j] += b[j];
    store_pack(static_cast<T *>(args.out), a, i, args.count, whole);
}

template <bool BACKWARD>
cudaError_t launch_act(const struct sl_cuda_context *context, const struct sl_act_args *args)
{
    if (!args->rows || !args->width)
        return cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        size_t packs = (args->width + pack_count<T> - 1) / pack_count<T>;
        const void *other = BACKWARD ? args->dout : args->out;
        bool whole = packs_whole<T>(args->in, args->width, args->width) &&
                     packs_whole<T>(other, 0, 0) &&
                     packs_whole<T>(BACKWARD ? args->din : nullptr, 0, 0);
        auto kernel = act_kernel<T, BACKWARD>;
        SL_LAUNCH(kernel, sl_blocks(args->rows * packs, ELEMENT_THREADS), ELEMENT_THREADS, 0,
                  context->stream, *args, whole);
    });
    return cudaGetLastError();
}

} // namespace

cudaError_t sl_cuda_rope(const struct sl_cuda_context *context, const struct sl_rope_args *args)
{
    if (!args->rows || !args->heads || args->rotary < 2)
        return cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        size_t half = args->rotary / 2, packs = (half + pack_count<T> - 1) / pack_count<T>;
        bool whole =
            packs_whole<T>(args->x, half, args->row_stride) && args->head_size % pack_count<T> == 0;
        auto kernel = rope_kernel<T>;
        SL_LAUNCH(kernel, sl_blocks(args->rows * args->heads * packs, ELEMENT_THREADS),
                  ELEMENT_THREADS, 0, context->stream, *args, whole);
    });
    return cudaGetLastError();
}

cudaError_t sl_cuda_act(const struct sl_cuda_context *context, const struct sl_act_args *args)
{
    return launch_act<false>(context, args);
}

cudaError_t sl_cuda_act_backward(const struct sl_cuda_context *context,
                                 const struct sl_act_args *args)
{
    return launch_act<true>(context, args);
}

cudaError_t sl_cuda_add(const struct sl_cuda_context *context, const struct sl_add_args *args)
{
    if (!args->count)
        return cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        bool whole = packs_whole<T>(args->a, 0, 0) && packs_whole<T>(args->b, 0, 0) &&
                     packs_whole<T>(args->out, 0, 0);
        auto kernel = add_kernel<T>;
        SL_LAUNCH(kernel, sl_blocks(args->count, (size_t)ELEMENT_THREADS * pack_count<T>),
                  ELEMENT_THREADS, 0, context->stream, *args, whole);
    });
    return cudaGetLastError();
}
