// SPDX-License-Identifier: Apache-2.0
/* The optimizer step for the share of the state that stays on the GPU: the operations of
 * kernels/cpu/optim_body.h in the same order, so that a tensor's bits do not depend on where its
 * state lies.
 *
 * Problem: 28 bytes a parameter pass through memory, little is computed.
 * Choice: a thread has 4 neighbouring elements, 16-byte accesses on f32 arrays. With 8-bit moments
 * a block of 64 threads has one quantization block of 256 elements.
 * Exactness: every operation is an explicit intrinsic with one rounding (the file is compiled
 * without contraction too); no flush to zero. Factors come from the host (sl_optim_terms_make).
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

extern "C" {
#include "kernels/cpu/optim_terms.h"
}

namespace
{

constexpr unsigned OPTIM_THREADS = 256, OPTIM_ELEMENTS = 4;
constexpr unsigned Q8_THREADS = SL_OPTIM_Q8_BLOCK / OPTIM_ELEMENTS;

struct element {
    float p, m, v;
};

/* The variants' names and order: update_adam and so on of kernels/cpu/optim_body.h. */
__device__ void update_adam(const struct sl_optim_terms &t, bool decoupled, float g, element &e)
{
    if (!decoupled && t.decays)
        g = __fmaf_rn(e.p, t.decay, g);
    e.m = __fmaf_rn(g, t.beta1_rest, __fmul_rn(e.m, t.beta1));
    e.v = __fmaf_rn(__fmul_rn(g, g), t.beta2_rest, __fmul_rn(e.v, t.beta2));
    float root = __fmaf_rn(__fsqrt_rn(e.v), t.root_scale, t.eps);
    float ratio = __fdiv_rn(e.m, root);
    if (decoupled && t.decays) /* summed before they meet the weight */
        e.p = __fadd_rn(e.p, __fmaf_rn(e.p, t.decay, __fmul_rn(ratio, t.step_size)));
    else
        e.p = __fmaf_rn(ratio, t.step_size, e.p);
}

__device__ void update_lion(const struct sl_optim_terms &t, float g, element &e)
{
    float c = __fmaf_rn(g, t.beta1_rest, __fmul_rn(e.m, t.beta1));
    uint32_t sign = __float_as_uint(c) & 0x80000000u;
    float step = c < 0 || 0 < c ? __uint_as_float(__float_as_uint(t.step_size) ^ sign)
                                : __fsub_rn(c, c); /* 0, or NaN kept */
    e.p = __fadd_rn(e.p, t.decays ? __fmaf_rn(e.p, t.decay, step) : step);
    e.m = __fmaf_rn(g, t.beta2_rest, __fmul_rn(e.m, t.beta2));
}

__device__ void update_adagrad(const struct sl_optim_terms &t, float g, element &e)
{
    if (t.decays)
        g = __fmaf_rn(e.p, t.decay, g);
    e.v = __fmaf_rn(g, g, e.v);
    float ratio = __fdiv_rn(g, __fadd_rn(__fsqrt_rn(e.v), t.eps));
    e.p = __fmaf_rn(ratio, t.step_size, e.p);
}

__device__ void update_sgd(const struct sl_optim_terms &t, float g, element &e)
{
    if (t.decays)
        g = __fmaf_rn(e.p, t.decay, g);
    if (t.averages) {
        e.m = __fmaf_rn(e.m, t.beta1, g);
        g = t.nesterov ? __fmaf_rn(e.m, t.beta1, g) : e.m;
    }
    e.p = __fmaf_rn(g, t.step_size, e.p);
}

__device__ void update(enum sl_optim_kind kind, const struct sl_optim_terms &t, float g, element &e)
{
    if (kind == SL_OPTIM_ADAMW || kind == SL_OPTIM_ADAM)
        update_adam(t, kind == SL_OPTIM_ADAMW, g, e);
    else if (kind == SL_OPTIM_LION)
        update_lion(t, g, e);
    else if (kind == SL_OPTIM_ADAGRAD)
        update_adagrad(t, g, e);
    else
        update_sgd(t, g, e);
}

__device__ uint32_t random_bits(const struct sl_optim_terms &t, uint32_t index, unsigned stream)
{
    uint32_t x = index ^ t.random_key[stream];
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) + t.random_key[1 - stream];
    x = (x ^ (x >> 16)) * 0x735a2d97u;
    return x ^ (x >> 15);
}

/* Add 16 random bits below the kept ones and cut; an infinity stays by itself, NaN is kept. */
__device__ uint16_t bf16_stochastic(float x, uint32_t random)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + (random & 0xffffu)) >> 16);
}

/* ---- four elements of an array, in one access where `whole` ---- */

__device__ void load_f32(float (&x)[4], const float *from, size_t i, unsigned count, bool whole)
{
    load_pack(x, from, i, i + count, whole);
}

__device__ void store_f32(float *to, const float (&x)[4], size_t i, unsigned count, bool whole)
{
    store_pack(to, x, i, i + count, whole);
}

__device__ void load_u16(uint16_t (&x)[4], const void *from, size_t i, unsigned count, bool whole)
{
    const uint16_t *at = static_cast<const uint16_t *>(from) + i;
    if (whole) {
        uint2 raw = *reinterpret_cast<const uint2 *>(at);
        x[0] = (uint16_t)raw.x;
        x[1] = (uint16_t)(raw.x >> 16);
        x[2] = (uint16_t)raw.y;
        x[3] = (uint16_t)(raw.y >> 16);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        x[j] = j < count ? at[j] : (uint16_t)0;
}

__device__ void store_u16(void *to, const uint16_t (&x)[4], size_t i, unsigned count, bool whole)
{
    uint16_t *at = static_cast<uint16_t *>(to) + i;
    if (whole) {
        *reinterpret_cast<uint2 *>(at) =
            uint2{(uint32_t)x[0] | (uint32_t)x[1] << 16, (uint32_t)x[2] | (uint32_t)x[3] << 16};
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        if (j < count)
            at[j] = x[j];
}

__device__ void load_any(float (&x)[4], const void *from, enum sl_dtype dtype, size_t i,
                         unsigned count, bool whole)
{
    if (dtype == SL_F32) {
        load_f32(x, static_cast<const float *>(from), i, count, whole);
        return;
    }
    uint16_t half[4];
    load_u16(half, from, i, count, whole);
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        x[j] = dtype == SL_BF16 ? to_f32(bf16{half[j]}) : to_f32(f16{half[j]});
}

/* ---- where the elements lie ---- */

__device__ void load_master(float (&p)[4], const struct sl_optim_args &a, size_t i, unsigned count,
                            bool whole)
{
    if (a.master_kind == SL_MASTER_F32) {
        load_f32(p, a.master, i, count, whole);
        return;
    }
    uint16_t weight[4], low[4] = {};
    load_u16(weight, a.weight, i, count, whole);
    if (a.master_kind == SL_MASTER_SPLIT)
        load_u16(low, a.low, i, count, whole);
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        p[j] = __uint_as_float((uint32_t)(uint16_t)(weight[j] - (low[j] >> 15)) << 16 | low[j]);
}

__device__ uint16_t master_bf16(float p)
{
    return (uint16_t)((__float_as_uint(p) + 0x8000u) >> 16);
}

__device__ void store_master(const struct sl_optim_args &a, const struct sl_optim_terms &t,
                             const float (&p)[4], size_t i, unsigned count, bool whole)
{
    uint16_t weight[4], low[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        low[j] = (uint16_t)__float_as_uint(p[j]);
        weight[j] = master_bf16(p[j]);
        if (a.master_kind == SL_MASTER_F32 && a.weight_dtype == SL_F16)
            weight[j] = exact_f16(p[j]);
        if (a.master_kind == SL_MASTER_NONE)
            weight[j] =
                bf16_stochastic(p[j], random_bits(t, (uint32_t)(a.element_first + i + j), 1));
    }
    if (a.master_kind == SL_MASTER_F32)
        store_f32(a.master, p, i, count, whole);
    if (a.master_kind == SL_MASTER_SPLIT)
        store_u16(a.low, low, i, count, whole);
    if (a.weight)
        store_u16(a.weight, weight, i, count, whole);
}

__device__ void load_moment(float (&x)[4], const void *moment, enum sl_moment_kind kind, size_t i,
                            unsigned count, bool whole)
{
    load_any(x, moment, kind == SL_MOMENT_F32 ? SL_F32 : SL_BF16, i, count, whole);
}

__device__ void store_moment(void *moment, enum sl_moment_kind kind, const float (&x)[4], size_t i,
                             unsigned count, bool whole)
{
    if (kind == SL_MOMENT_F32) {
        store_f32(static_cast<float *>(moment), x, i, count, whole);
        return;
    }
    uint16_t half[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++)
        half[j] = exact_bf16(x[j]);
    store_u16(moment, half, i, count, whole);
}

/* Gradient, master and moments -> updated p, m, v. */
__device__ void step_elements(const struct sl_optim_args &a, const struct sl_optim_terms &t,
                              const float (&g)[4], float (&p)[4], float (&m)[4], float (&v)[4])
{
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        element e = {p[j], m[j], v[j]};
        update(a.hyper.kind, t, __fmul_rn(g[j], t.grad_scale), e);
        p[j] = e.p;
        m[j] = e.m;
        v[j] = e.v;
    }
}

__global__ void __launch_bounds__(OPTIM_THREADS)
    optim_kernel(struct sl_optim_args a, struct sl_optim_terms t, bool has_m, bool has_v,
                 bool aligned)
{
    size_t i = ((size_t)blockIdx.x * OPTIM_THREADS + threadIdx.x) * OPTIM_ELEMENTS;
    if (i >= a.count)
        return;
    unsigned count = a.count - i < OPTIM_ELEMENTS ? (unsigned)(a.count - i) : OPTIM_ELEMENTS;
    bool whole = aligned && count == OPTIM_ELEMENTS;
    float g[4], p[4], m[4] = {}, v[4] = {};
    load_any(g, a.grad, a.grad_dtype, i, count, whole);
    load_master(p, a, i, count, whole);
    if (has_m)
        load_moment(m, a.exp_avg, a.moment_kind, i, count, whole);
    if (has_v)
        load_moment(v, a.exp_avg_sq, a.moment_kind, i, count, whole);
    step_elements(a, t, g, p, m, v);
    if (has_m)
        store_moment(a.exp_avg, a.moment_kind, m, i, count, whole);
    if (has_v)
        store_moment(a.exp_avg_sq, a.moment_kind, v, i, count, whole);
    store_master(a, t, p, i, count, whole);
}

/* ---- moments in 8 bits: kernels/cpu/optim_q8.h, whose codes and scales these are ---- */

__device__ float q8_scale(uint32_t magnitude_bits)
{
    if (magnitude_bits == 0)
        return 0.0f;
    uint32_t exponent = (magnitude_bits + (1u << 20)) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
    return __uint_as_float(exponent << 23);
}

constexpr uint32_t Q8_BASE_SIGNED = 0x38000000u, Q8_BASE_UNSIGNED = 0x30000000u;
constexpr float Q8_OFFSET = 0x1p-15f, Q8_ENCODE_SIGNED = 0x1p-16f;

__device__ float q8_decode(uint8_t code, bool is_signed, float scale)
{
    if (!is_signed)
        return __fmul_rn(__uint_as_float((uint32_t)code << 20 | Q8_BASE_UNSIGNED), scale);
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    float raised = __uint_as_float((uint32_t)(code & 0x7fu) << 20 | Q8_BASE_SIGNED | sign);
    float offset = __fmul_rn(scale, -Q8_OFFSET);
    return __fmaf_rn(raised, scale, __uint_as_float(__float_as_uint(offset) ^ sign));
}

/* The random bits that are added below a code, less the base of codes: sl_optim_random_q8. */
__device__ uint32_t q8_dither(const struct sl_optim_terms &t, uint32_t element, bool is_signed)
{
    uint32_t x = random_bits(t, (element & ~255u) | (element & 15u), 0);
    x += element / 32 % 8 * SL_OPTIM_Q8_STRIDE;
    x = (x ^ (x >> 16)) * 0x735a2d97u;
    x = (x ^ (x >> 12)) * 0x21f0aaadu;
    bool second = element & 16u;
    return (is_signed != second ? x >> 12 : x & 0xfffffu) - Q8_BASE_UNSIGNED;
}

__device__ uint8_t q8_encode(float x, bool is_signed, float inverse, uint32_t dither)
{
    if (!is_signed) {
        uint32_t bits = __float_as_uint(__fmul_rn(x, inverse));
        return (uint8_t)min(max((int32_t)(bits + dither) >> 20, 0), 0xff);
    }
    uint32_t bits = __float_as_uint(x), sign = (bits >> 24) & 0x80u;
    float magnitude = __uint_as_float(bits & 0x7fffffffu);
    float raised = __fmaf_rn(magnitude, inverse, Q8_OFFSET * Q8_ENCODE_SIGNED);
    int32_t code = (int32_t)(__float_as_uint(raised) + dither) >> 20;
    return (uint8_t)((uint32_t)min(code, 0x7f) | sign);
}

__device__ uint32_t block_max(uint32_t value, uint32_t *shared)
{
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, bits));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads();
    return max(shared[0], shared[1]);
}

__device__ void q8_load(float (&x)[4], const void *moment, bool is_signed, float scale, size_t i,
                        unsigned count)
{
    for (unsigned j = 0; j < count; j++)
        x[j] = q8_decode(static_cast<const uint8_t *>(moment)[i + j], is_signed, scale);
}

/* Encode the block's new moments under their new common scale. Every thread of the block calls. */
__device__ void q8_store(void *moment, float *scale_out, bool is_signed, const float (&x)[4],
                         const struct sl_optim_args &a, const struct sl_optim_terms &t, size_t i,
                         unsigned count, uint32_t *shared)
{
    uint32_t largest = 0;
    for (unsigned j = 0; j < count; j++)
        largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
    float scale = q8_scale(block_max(largest, shared));
    float inverse = scale > 0 ? __fdiv_rn(is_signed ? Q8_ENCODE_SIGNED : 1.0f, scale) : 0.0f;
    for (unsigned j = 0; j < count; j++)
        static_cast<uint8_t *>(moment)[i + j] = q8_encode(
            x[j], is_signed, inverse, q8_dither(t, (uint32_t)(a.element_first + i + j), is_signed));
    if (threadIdx.x == 0)
        *scale_out = scale;
}

__global__ void __launch_bounds__(Q8_THREADS)
    optim_q8_kernel(struct sl_optim_args a, struct sl_optim_terms t, bool has_m, bool has_v,
                    bool aligned)
{
    static_assert(Q8_THREADS == 64, "block_max adds two warps");
    __shared__ uint32_t shared[2];
    size_t i = ((size_t)blockIdx.x * Q8_THREADS + threadIdx.x) * OPTIM_ELEMENTS;
    size_t left = i < a.count ? a.count - i : 0;
    unsigned count = left < OPTIM_ELEMENTS ? (unsigned)left : OPTIM_ELEMENTS;
    bool whole = aligned && count == OPTIM_ELEMENTS;
    float g[4] = {}, p[4] = {}, m[4] = {}, v[4] = {};
    if (count) {
        load_any(g, a.grad, a.grad_dtype, i, count, whole);
        load_master(p, a, i, count, whole);
    }
    if (has_m)
        q8_load(m, a.exp_avg, true, a.exp_avg_scale[blockIdx.x], i, count);
    if (has_v)
        q8_load(v, a.exp_avg_sq, false, a.exp_avg_sq_scale[blockIdx.x], i, count);
    if (count) {
        step_elements(a, t, g, p, m, v);
        store_master(a, t, p, i, count, whole);
    }
    __syncthreads(); /* thread 0 overwrites the scales that all have read */
    if (has_m)
        q8_store(a.exp_avg, a.exp_avg_scale + blockIdx.x, true, m, a, t, i, count, shared);
    if (has_v)
        q8_store(a.exp_avg_sq, a.exp_avg_sq_scale + blockIdx.x, false, v, a, t, i, count, shared);
}

bool at_16(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

} // namespace

cudaError_t sl_cuda_optim(const struct sl_cuda_context *context, const struct sl_optim_args *args,
                          const struct sl_optim_terms *terms)
{
    if (!args->count)
        return cudaSuccess;
    bool has_m = sl_optim_has_exp_avg(&args->hyper), has_v = sl_optim_has_exp_avg_sq(&args->hyper);
    bool aligned =
        at_16(args->grad) && at_16(args->master) && at_16(args->low) && at_16(args->weight);
    if (args->moment_kind == SL_MOMENT_Q8) {
        auto kernel = optim_q8_kernel;
        SL_LAUNCH(kernel, sl_blocks(args->count, SL_OPTIM_Q8_BLOCK), Q8_THREADS, 0, context->stream,
                  *args, *terms, has_m, has_v, aligned);
        return cudaGetLastError();
    }
    aligned = aligned && at_16(args->exp_avg) && at_16(args->exp_avg_sq);
    auto kernel = optim_kernel;
    SL_LAUNCH(kernel, sl_blocks(args->count, (size_t)OPTIM_THREADS * OPTIM_ELEMENTS), OPTIM_THREADS,
              0, context->stream, *args, *terms, has_m, has_v, aligned);
    return cudaGetLastError();
}
