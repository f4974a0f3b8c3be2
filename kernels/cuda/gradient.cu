// SPDX-License-Identifier: Apache-2.0
/* The end of a gradient on the device: one rounding to its type, the sum of squares of what was
 * written, and how many values are not finite, in one pass over memory.
 *
 * Problem: the sum of squares must have the host's bits: fp64, 16 lane sums in element order by
 * fma, then lanes pairwise (kernels/cpu/gradient.h). A chunk of 65,536 elements is thus 16 chains
 * of 4,096 dependent fma.
 * Choice: a block per chunk. All threads round and store one tile and leave the rounded values in
 * shared memory; the first 16 threads add the tile before, so the chains overlap the memory
 * traffic, and the blocks on a multiprocessor hide each other's chains.
 * Invariant: results are copied to the host's arrays in stream order.
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned GRADIENT_THREADS = 256, GRADIENT_TILE = 4096, GRADIENT_LANES = 16;

__device__ float round_and_store(void *out, enum sl_dtype dtype, size_t index, float value)
{
    exact_store(out, dtype, index, value);
    return exact_load(out, dtype, index);
}

/* Round elements [first, first + count) of the tile; the rounded values to `tile`. Returns how many
 * of this thread's are not finite. */
__device__ unsigned round_tile(const struct sl_gradient_finish_args &args, size_t first,
                               size_t count, float *tile, bool whole)
{
    unsigned bad = 0;
    for (size_t i = threadIdx.x * 4u; i < count; i += GRADIENT_THREADS * 4u) {
        size_t at = first + i;
        float x[4];
        bool full = whole && i + 4 <= count;
        load_pack(x, args.sum, at, first + count, full);
        if (full && args.dtype != SL_F32) {
            uint16_t half[4];
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
                half[j] = args.dtype == SL_BF16 ? exact_bf16(x[j]) : exact_f16(x[j]);
                x[j] = args.dtype == SL_BF16 ? to_f32(bf16{half[j]}) : to_f32(f16{half[j]});
            }
            uint2 packed = {(uint32_t)half[0] | (uint32_t)half[1] << 16,
                            (uint32_t)half[2] | (uint32_t)half[3] << 16};
            *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(args.out) + at) = packed;
        } else if (full) {
            store_pack(static_cast<float *>(args.out), x, at, first + count, true);
        } else {
            for (unsigned j = 0; j < 4 && i + j < count; j++)
                x[j] = round_and_store(args.out, args.dtype, at + j, x[j]);
        }
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            if (i + j < count) {
                tile[i + j] = x[j];
                bad += (__float_as_uint(x[j]) & 0x7f800000u) == 0x7f800000u;
            }
    }
    return bad;
}

__device__ double add_tile(double lane_sum, const float *tile, size_t count)
{
    for (size_t i = threadIdx.x; i < count; i += GRADIENT_LANES) {
        double x = (double)tile[i];
        lane_sum = __fma_rn(x, x, lane_sum);
    }
    return lane_sum;
}

__global__ void gradient_finish_kernel(struct sl_gradient_finish_args args, double *squares,
                                       uint64_t *nonfinite, bool whole)
{
    __shared__ float tiles[2][GRADIENT_TILE];
    __shared__ double lane_sums[GRADIENT_LANES];
    __shared__ unsigned bad_counts[GRADIENT_THREADS];
    size_t first = (size_t)blockIdx.x * SL_GRADIENT_CHUNK;
    size_t count = args.count - first < SL_GRADIENT_CHUNK ? args.count - first : SL_GRADIENT_CHUNK;
    double lane_sum = 0;
    unsigned bad = 0, parity = 0;
    size_t before = 0; /* elements of the tile that waits to be added */
    for (size_t i = 0; i < count; i += GRADIENT_TILE) {
        size_t tile = count - i < GRADIENT_TILE ? count - i : GRADIENT_TILE;
        bad += round_tile(args, first + i, tile, tiles[parity], whole);
        if (threadIdx.x < GRADIENT_LANES)
            lane_sum = add_tile(lane_sum, tiles[parity ^ 1], before);
        before = tile;
        parity ^= 1;
        __syncthreads();
    }
    if (threadIdx.x < GRADIENT_LANES)
        lane_sums[threadIdx.x] = add_tile(lane_sum, tiles[parity ^ 1], before);
    bad_counts[threadIdx.x] = bad;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned apart = GRADIENT_LANES / 2; apart > 0; apart /= 2)
        for (unsigned lane = 0; lane < apart; lane++)
            lane_sums[lane] = __dadd_rn(lane_sums[lane], lane_sums[lane + apart]);
    uint64_t total = 0;
    for (unsigned i = 0; i < GRADIENT_THREADS; i++)
        total += bad_counts[i];
    squares[blockIdx.x] = lane_sums[0];
    nonfinite[blockIdx.x] = total;
}

} // namespace

cudaError_t sl_cuda_gradient_finish(const struct sl_cuda_context *context,
                                    const struct sl_gradient_finish_args *args)
{
    size_t chunks = (args->count + SL_GRADIENT_CHUNK - 1) / SL_GRADIENT_CHUNK;
    if (!chunks)
        return cudaSuccess;
    if (chunks * 16 > context->scratch_bytes)
        return cudaErrorInvalidValue;
    double *squares = static_cast<double *>(context->scratch);
    uint64_t *nonfinite = static_cast<uint64_t *>(static_cast<void *>(squares + chunks));
    bool whole = packs_whole<float>(args->sum, 0, 0) && packs_whole<float>(args->out, 0, 0);
    auto kernel = gradient_finish_kernel;
    SL_LAUNCH(kernel, (unsigned)chunks, GRADIENT_THREADS, 0, context->stream, *args, squares,
              nonfinite, whole);
    cudaError_t error = cudaGetLastError();
    if (!error)
        error = cudaMemcpyAsync(args->chunk_squares, squares, chunks * sizeof *squares,
                                cudaMemcpyDefault, context->stream);
    if (!error)
        error = cudaMemcpyAsync(args->chunk_nonfinite, nonfinite, chunks * sizeof *nonfinite,
                                cudaMemcpyDefault, context->stream);
    return error;
}
