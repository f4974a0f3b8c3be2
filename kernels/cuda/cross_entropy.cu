// SPDX-License-Identifier: Apache-2.0
/* Cross-entropy over vocabulary tiles with an online softmax: the [rows, V] logits of a step are
 * never all in memory, and no tile is read twice for its statistics.
 *
 * Each thread keeps a running (max, sum) over its columns; the pairs are merged in a fixed tree,
 * then with the row's pair from the tiles before.
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned CE_THREADS = 256;

struct softmax_pair {
    float max, sum; /* sum of exp(logit - max) */
};

__device__ softmax_pair merge(softmax_pair a, softmax_pair b)
{
    float m = fmaxf(a.max, b.max);
    if (m == -INFINITY) /* nothing seen on either side */
        return {m, 0.0f};
    return {m, a.sum * expf(a.max - m) + b.sum * expf(b.max - m)};
}

__device__ softmax_pair block_merge(softmax_pair pair, softmax_pair *shared)
{
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
        softmax_pair other = {__shfl_xor_sync(0xffffffffu, pair.max, bits),
                              __shfl_xor_sync(0xffffffffu, pair.sum, bits)};
        /* The lower lane's pair stands first on both sides: all lanes get the same bits. */
        pair = threadIdx.x & (unsigned)bits ? merge(other, pair) : merge(pair, other);
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = pair;
    __syncthreads();
    pair = shared[0];
    for (unsigned i = 1; i < CE_THREADS / 32; i++)
        pair = merge(pair, shared[i]);
    return pair;
}

__global__ void cross_entropy_stats_kernel(struct sl_cross_entropy_args args, bool whole)
{
    __shared__ softmax_pair shared[CE_THREADS / 32];
    size_t row = blockIdx.x;
    float *logits = args.logits + row * args.width;
    if (args.targets[row] < 0) { /* ignored: its logits are not read */
        if (args.reset && threadIdx.x == 0) {
            args.row_max[row] = -INFINITY;
            args.row_sum[row] = args.target_logit[row] = 0.0f;
        }
        return;
    }
    softmax_pair pair = {-INFINITY, 0.0f};
    for (size_t c = threadIdx.x * 4u; c < args.width; c += CE_THREADS * 4u) {
        float x[4];
        load_pack(x, logits, c, args.width, whole);
        float tile_max = -INFINITY, tile_sum = 0;
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            if (args.softcap != 0)
                x[j] = args.softcap * tanhf(x[j] / args.softcap);
            if (whole || c + j < args.width)
                tile_max = fmaxf(tile_max, x[j]);
        }
        if (args.softcap != 0)
            store_pack(logits, x, c, args.width, whole);
        float m = fmaxf(pair.max, tile_max);
        if (m > -INFINITY)
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                if (whole || c + j < args.width)
                    tile_sum += expf(x[j] - m);
        pair = {m, (m > pair.max && pair.sum != 0 ? pair.sum * expf(pair.max - m) : pair.sum) +
                       tile_sum};
    }
    pair =
        block_merge(pair, shared); /* its barrier also orders the capped logits before the read */
    if (threadIdx.x != 0)
        return;
    softmax_pair before = {-INFINITY, 0.0f};
    if (!args.reset)
        before = {args.row_max[row], args.row_sum[row]};
    pair = merge(before, pair);
    args.row_max[row] = pair.max;
    args.row_sum[row] = pair.sum;
    int64_t target = (int64_t)args.targets[row] - (int64_t)args.column_first;
    if (target >= 0 && target < (int64_t)args.width)
        args.target_logit[row] = logits[target];
    else if (args.reset)
        args.target_logit[row] = 0.0f;
}

__global__ void cross_entropy_backward_kernel(struct sl_cross_entropy_args args, bool whole)
{
    size_t row = blockIdx.x;
    size_t c = ((size_t)blockIdx.y * CE_THREADS + threadIdx.x) * 4;
    if (c >= args.width)
        return;
    float *logits = args.logits + row * args.width;
    float x[4] = {};
    int32_t target = args.targets[row];
    if (target >= 0) {
        float row_max = args.row_max[row], rcp_sum = 1.0f / args.row_sum[row];
        int64_t column = (int64_t)target - (int64_t)args.column_first;
        load_pack(x, logits, c, args.width, whole);
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            float capped = x[j];
            if (args.softcap != 0 && !args.softcapped)
                capped = args.softcap * tanhf(x[j] / args.softcap);
            float onehot = (int64_t)(c + j) == column ? 1.0f : 0.0f;
            float slope = 1.0f;
            if (args.softcap != 0) {
                float t = capped / args.softcap;
                slope = 1.0f - t * t;
            }
            x[j] = (expf(capped - row_max) * rcp_sum - onehot) * args.scale * slope;
        }
    }
    store_pack(logits, x, c, args.width, whole);
}

__global__ void cross_entropy_loss_kernel(struct sl_cross_entropy_args args)
{
    size_t row = (size_t)blockIdx.x * CE_THREADS + threadIdx.x;
    if (row >= args.rows)
        return;
    args.loss[row] = args.targets[row] < 0
                         ? 0.0f
                         : logf(args.row_sum[row]) + args.row_max[row] - args.target_logit[row];
}

} // namespace

cudaError_t sl_cuda_cross_entropy(const struct sl_cuda_context *context,
                                  const struct sl_cross_entropy_args *args)
{
    if (!args->rows)
        return cudaSuccess;
    bool whole = packs_whole<float>(args->logits, args->width, args->width);
    if (args->kind == SL_CE_STATS) {
        auto kernel = cross_entropy_stats_kernel;
        SL_LAUNCH(kernel, (unsigned)args->rows, CE_THREADS, 0, context->stream, *args, whole);
    } else if (args->kind == SL_CE_BACKWARD) {
        auto kernel = cross_entropy_backward_kernel;
        dim3 grid((unsigned)args->rows, sl_blocks(args->width, (size_t)CE_THREADS * 4));
        SL_LAUNCH(kernel, grid, CE_THREADS, 0, context->stream, *args, whole);
    } else {
        auto kernel = cross_entropy_loss_kernel;
        SL_LAUNCH(kernel, sl_blocks(args->rows, CE_THREADS), CE_THREADS, 0, context->stream, *args);
    }
    return cudaGetLastError();
}
