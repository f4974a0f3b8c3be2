// SPDX-License-Identifier: Apache-2.0
/* The two words that differ between nvcc and the simulated device of the tests: how a kernel is
 * launched and how dynamic shared memory is named. `kernel` is a function pointer in a variable,
 * so that template arguments need no parentheses. */
#ifndef SLUICE_KERNELS_CUDA_LAUNCH_CUH
#define SLUICE_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#ifdef SLUICE_CUDASIM
#define SL_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    cudasim::launch(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)
#define SL_DYNAMIC_SHARED(type, name)                                                              \
    type *name = static_cast<type *>(cudasim::current->dynamic_shared)
#else
#define SL_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define SL_DYNAMIC_SHARED(type, name)                                                              \
    extern __shared__ __align__(128) unsigned char sl_dynamic_shared[];                            \
    type *name = reinterpret_cast<type *>(sl_dynamic_shared)
#endif

/* Blocks for `count` items at `each` per block; at least one. */
static inline unsigned sl_blocks(size_t count, size_t each)
{
    size_t blocks = (count + each - 1) / each;
    return blocks ? (unsigned)blocks : 1u;
}

#endif
