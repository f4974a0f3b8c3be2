// SPDX-License-Identifier: Apache-2.0
/* CUDA C++ for a C++ compiler: the words, built-in variables and intrinsics that Sluice's kernels
 * use. Threads of a block are fibers (tests/cudasim/fibers.cpp); blocks run one after the other, so
 * static shared memory is a static variable. */
#ifndef SLUICE_CUDASIM_RUNTIME_H
#define SLUICE_CUDASIM_RUNTIME_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

namespace cudasim
{

/* What a running fiber sees of itself. */
struct thread_view {
    uint3 thread, block;
    dim3 block_size, grid_size;
    void *dynamic_shared;
};
extern thread_view *current;

void block_barrier(const char *site);
int block_vote(const char *site, int predicate, bool any);

/* All 32 lanes give `bytes` (at most 64) and get every lane's: result + lane * 64. Valid until the
 * caller's next but one exchange. `site` must be the same for all lanes, or the run stops. */
const unsigned char *warp_exchange(const char *site, const void *mine, size_t bytes);
unsigned lane();

/* cp.async: the copy happens at the wait that guarantees it, never before. */
void copy_async_issue(void *to, const void *from, unsigned bytes, unsigned source_bytes);
void copy_async_commit();
void copy_async_wait(unsigned groups_left);

void launch_closure(const char *name, const void *function, dim3 grid, dim3 block, size_t shared,
                    cudaStream_t stream, std::function<void()> body);

template <class... Parameters, class... Arguments>
void launch(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
            cudaStream_t stream, Arguments... arguments)
{
    std::tuple<std::remove_cv_t<Parameters>...> bound(arguments...);
    launch_closure(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
                   [kernel, bound] { std::apply(kernel, bound); });
}

template <class Value> inline Value shuffle(const char *site, Value value, unsigned source)
{
    static_assert(sizeof(Value) <= 64, "one slot of the exchange");
    const unsigned char *all = warp_exchange(site, &value, sizeof value);
    std::memcpy(&value, all + (source & 31u) * 64, sizeof value);
    return value;
}

inline unsigned ballot(const char *site, int predicate)
{
    const unsigned char *all = warp_exchange(site, &predicate, sizeof predicate);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++) {
        int other;
        std::memcpy(&other, all + i * 64, sizeof other);
        bits |= (other ? 1u : 0u) << i;
    }
    return bits;
}

} // namespace cudasim

#define threadIdx (cudasim::current->thread)
#define blockIdx (cudasim::current->block)
#define blockDim (cudasim::current->block_size)
#define gridDim (cudasim::current->grid_size)

#define CUDASIM_TEXT2(x) #x
#define CUDASIM_TEXT(x) CUDASIM_TEXT2(x)
#define CUDASIM_SITE __FILE__ ":" CUDASIM_TEXT(__LINE__)

#define __syncthreads() cudasim::block_barrier(CUDASIM_SITE)
#define __syncthreads_or(predicate) cudasim::block_vote(CUDASIM_SITE, (predicate), true)
#define __syncthreads_and(predicate) cudasim::block_vote(CUDASIM_SITE, (predicate), false)
#define __syncwarp() ((void)cudasim::ballot(CUDASIM_SITE, 0))
#define __shfl_sync(mask, value, source) cudasim::shuffle(CUDASIM_SITE, (value), (source))
#define __shfl_xor_sync(mask, value, bits)                                                         \
    cudasim::shuffle(CUDASIM_SITE, (value), cudasim::lane() ^ (unsigned)(bits))
#define __shfl_down_sync(mask, value, delta)                                                       \
    cudasim::shuffle(CUDASIM_SITE, (value),                                                        \
                     cudasim::lane() + (delta) > 31 ? cudasim::lane() : cudasim::lane() + (delta))
#define __ballot_sync(mask, predicate) cudasim::ballot(CUDASIM_SITE, (predicate))
#define __any_sync(mask, predicate) (cudasim::ballot(CUDASIM_SITE, (predicate)) != 0)
#define __all_sync(mask, predicate) (cudasim::ballot(CUDASIM_SITE, (predicate)) == 0xffffffffu)

using std::max;
using std::min;

inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fsqrt_rn(float a)
{
    return std::sqrt(a);
}
inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
inline double __fma_rn(double a, double b, double c)
{
    return std::fma(a, b, c);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline float __expf(float a)
{
    return std::exp(a);
}
inline float __logf(float a)
{
    return std::log(a);
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float rsqrtf(float a)
{
    return 1.0f / std::sqrt(a);
}
inline unsigned atomicMin(unsigned *at, unsigned value)
{
    unsigned old = *at; /* one fiber runs at a time */
    *at = value < old ? value : old;
    return old;
}
inline int __popc(unsigned a)
{
    return __builtin_popcount(a);
}
inline int __ffs(int a)
{
    return __builtin_ffs(a);
}
inline unsigned __float_as_uint(float a)
{
    unsigned bits;
    std::memcpy(&bits, &a, 4);
    return bits;
}
inline float __uint_as_float(unsigned a)
{
    float value;
    std::memcpy(&value, &a, 4);
    return value;
}

#endif
