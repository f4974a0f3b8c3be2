// SPDX-License-Identifier: Apache-2.0
/* Between the simulated runtime's two halves: streams (runtime.cpp) hand kernels to blocks of
 * fibers (fibers.cpp). One thread of the process is in here at a time. */
#ifndef SLUICE_CUDASIM_FIBERS_H
#define SLUICE_CUDASIM_FIBERS_H

#include "cuda_runtime.h"
#include "cudasim.h"

#define BLOCK_THREADS_MAX 1024u

namespace cudasim
{

struct thread_schedule {
    cudasim_thread_order order;
    uint64_t seed;
};
extern thread_schedule schedule;

/* Run every block of a kernel to its end on the calling thread. */
void run_grid(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread_body);

/* Queue host work on a stream in the simulated order: for library calls (cuBLASLt). */
cudaError_t enqueue_host(cudaStream_t stream, const char *name, std::function<void()> work);

} // namespace cudasim

#endif
