// SPDX-License-Identifier: Apache-2.0
/* Numbers on the device: 16-bit storage types, conversions, 16-byte packs, and reductions.
 *
 * Arithmetic is f32; bf16 and f16 are storage. A pack is what one thread moves at once: 16 bytes,
 * 4 f32 or 8 16-bit values. Reductions add in an order that depends on the shape alone.
 */
#ifndef SLUICE_KERNELS_CUDA_NUMBER_CUH
#define SLUICE_KERNELS_CUDA_NUMBER_CUH

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/launch.cuh"

extern "C" {
#include "base/dtype.h"
}

#ifndef SLUICE_CUDASIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace
{

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class T> struct number;
template <> struct number<float> {
    static constexpr enum sl_dtype dtype = SL_F32;
};
template <> struct number<bf16> {
    static constexpr enum sl_dtype dtype = SL_BF16;
};
template <> struct number<f16> {
    static constexpr enum sl_dtype dtype = SL_F16;
};

/* Elements of one 16-byte pack. */
template <class T> constexpr unsigned pack_count = 16 / sizeof(T);

/* 2^x by the special function unit: within 2^-22 of the value, results below the smallest normal
 * number are 0. exp2f scales its argument to save those, three more instructions. */
__device__ __forceinline__ float exp2_fast(float x)
{
#ifdef SLUICE_CUDASIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

__device__ __forceinline__ float to_f32(float x)
{
    return x;
}
__device__ __forceinline__ float to_f32(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}
__device__ __forceinline__ float to_f32(f16 x)
{
#ifdef SLUICE_CUDASIM
    return sl_f32_from_f16(x.bits);
#else
    return __half2float(__ushort_as_half(x.bits));
#endif
}

template <class T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x)
{
#ifdef SLUICE_CUDASIM
    return {sl_bf16_from_f32(x)};
#else
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#endif
}
template <> __device__ __forceinline__ f16 from_f32<f16>(float x)
{
#ifdef SLUICE_CUDASIM
    return {sl_f16_from_f32(x)};
#else
    return {__half_as_ushort(__float2half_rn(x))};
#endif
}

/* base/dtype.h bit for bit, NaN payloads included: for gradients and the optimizer. */
__device__ __forceinline__ uint16_t exact_bf16(float value)
{
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ uint16_t exact_f16(float value)
{
    uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(((bits >> 16) & 0x8000u) | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    return from_f32<f16>(value).bits;
}

__device__ __forceinline__ float exact_load(const void *data, enum sl_dtype dtype, size_t index)
{
    if (dtype == SL_F32)
        return static_cast<const float *>(data)[index];
    uint16_t bits = static_cast<const uint16_t *>(data)[index];
    return dtype == SL_BF16 ? to_f32(bf16{bits}) : to_f32(f16{bits});
}

__device__ __forceinline__ void exact_store(void *data, enum sl_dtype dtype, size_t index,
                                            float value)
{
    if (dtype == SL_F32)
        static_cast<float *>(data)[index] = value;
    else
        static_cast<uint16_t *>(data)[index] =
            dtype == SL_BF16 ? exact_bf16(value) : exact_f16(value);
}

/* The 16-byte forms. `x` must be 16-byte aligned. */
__device__ __forceinline__ void unpack(float (&out)[4], uint4 raw, float)
{
    out[0] = __uint_as_float(raw.x);
    out[1] = __uint_as_float(raw.y);
    out[2] = __uint_as_float(raw.z);
    out[3] = __uint_as_float(raw.w);
}

template <class T> __device__ __forceinline__ void unpack(float (&out)[8], uint4 raw, T)
{
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        out[2 * i] = to_f32(T{(uint16_t)words[i]});
        out[2 * i + 1] = to_f32(T{(uint16_t)(words[i] >> 16)});
    }
}

/* Two values as the 32-bit register that tensor cores and 16-byte stores take; a is the lower. */
template <class T> __device__ __forceinline__ uint32_t pair_bits(float a, float b)
{
    return (uint32_t)from_f32<T>(a).bits | (uint32_t)from_f32<T>(b).bits << 16;
}

__device__ __forceinline__ uint4 repack(const float (&x)[4], float)
{
    return uint4{__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                 __float_as_uint(x[3])};
}

template <class T> __device__ __forceinline__ uint4 repack(const float (&x)[8], T)
{
    return uint4{pair_bits<T>(x[0], x[1]), pair_bits<T>(x[2], x[3]), pair_bits<T>(x[4], x[5]),
                 pair_bits<T>(x[6], x[7])};
}

/* Elements [index, index + pack) of x, zeros from `count` on. `whole`: every pack is complete and
 * aligned, so one 16-byte access does it; else element by element. */
template <class T>
__device__ __forceinline__ void load_pack(float (&out)[pack_count<T>], const T *x, size_t index,
                                          size_t count, bool whole)
{
    if (whole) {
        unpack(out, *reinterpret_cast<const uint4 *>(x + index), T{});
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < pack_count<T>; j++)
        out[j] = index + j < count ? to_f32(x[index + j]) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store_pack(T *x, const float (&value)[pack_count<T>], size_t index,
                                           size_t count, bool whole)
{
    if (whole) {
        *reinterpret_cast<uint4 *>(x + index) = repack(value, T{});
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < pack_count<T>; j++)
        if (index + j < count)
            x[index + j] = from_f32<T>(value[j]);
}

/* A pack of a vector whose type is known at run time (norm weights, biases). */
template <class T>
__device__ __forceinline__ void load_vector(float (&out)[pack_count<T>], const void *data,
                                            enum sl_dtype dtype, size_t index, size_t count,
                                            bool whole)
{
    if (dtype == number<T>::dtype) {
        load_pack(out, static_cast<const T *>(data), index, count, whole);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < pack_count<T>; j++)
        out[j] = index + j < count ? exact_load(data, dtype, index + j) : 0.0f;
}

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, bits);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, bits));
    return value;
}

/* Sum over THREADS consecutive threads (32: the warp, more: the whole block), known to all of
 * them. `shared` holds one float per warp. */
template <unsigned THREADS> __device__ __forceinline__ float group_sum(float value, float *shared)
{
    value = warp_sum(value);
    if (THREADS == 32)
        return value;
    __syncthreads(); /* `shared` may still be read from the sum before */
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads();
    float total = shared[0];
#pragma unroll
    for (unsigned i = 1; i < THREADS / 32; i++)
        total += shared[i];
    return total;
}

/* Whether rows of `width` at `stride` from `pointer` can be moved in 16-byte packs. */
template <class T> inline bool packs_whole(const void *pointer, size_t width, size_t stride)
{
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && width % pack_count<T> == 0 &&
           stride % pack_count<T> == 0;
}

} // namespace

/* Run `...` with T as the C++ type of `dtype`. */
#define SL_WITH_TYPE(dtype, T, ...)                                                                \
    do {                                                                                           \
        if ((dtype) == SL_F32) {                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__                                                                            \
        } else if ((dtype) == SL_BF16) {                                                           \
            using T = bf16;                                                                        \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            using T = f16;                                                                         \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

#endif
