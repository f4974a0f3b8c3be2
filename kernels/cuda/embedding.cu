// SPDX-License-Identifier: Apache-2.0
/* Rows of the embedding table: gather, and the gradient's scatter without atomics.
 *
 * Problem: several tokens of a micro-batch share a table row, and their contributions must be added
 * in ascending token order.
 * Choice: the block of the first token with an id owns that row; it scans the later ids and adds
 * every match in order. The scan costs N^2 / 2 comparisons of 4 bytes from cache: 0.5 G for 32,768
 * tokens, small beside one layer. Rejected: atomics (order), sorting (scratch and passes).
 * Invariant: additions as the host's: f32 product rounded, then added, token by token.
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned GATHER_THREADS = 256, SCATTER_THREADS = 128;

template <class T> __global__ void embedding_kernel(struct sl_embedding_args args, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t packs = (args.width + N - 1) / N;
    size_t i = (size_t)blockIdx.x * GATHER_THREADS + threadIdx.x;
    if (i >= args.rows * packs)
        return;
    size_t row = i / packs, c = i % packs * N;
    int64_t id = (int64_t)args.ids[row] - (int64_t)args.row_first;
    if (id < 0 || id >= (int64_t)args.row_count)
        return;
    T *out = static_cast<T *>(args.out) + row * args.width;
    const char *table = static_cast<const char *>(args.table.data);
    table += (size_t)id * args.width * (args.table.dtype == SL_F32 ? 4 : 2);
    float value[N], old[N] = {};
    load_vector<T>(value, table, args.table.dtype, c, args.width, whole);
    if (args.add)
        load_pack(old, out, c, args.width, whole);
#pragma unroll
    for (unsigned j = 0; j < N; j++) {
        value[j] = __fmul_rn(value[j], args.scale);
        if (args.add)
            value[j] = __fadd_rn(old[j], value[j]);
    }
    store_pack(out, value, c, args.width, whole);
}

/* Does any earlier token have this id? All threads get the answer. */
__device__ bool seen_before(const int32_t *ids, size_t token)
{
    int32_t id = ids[token];
    for (size_t base = 0; base < token; base += SCATTER_THREADS) {
        size_t i = base + threadIdx.x;
        if (__syncthreads_or(i < token && ids[i] == id))
            return true;
    }
    return false;
}

/* Block (token, column tile): adds every token with this token's id, from this token on. */
template <class T>
__global__ void embedding_backward_kernel(struct sl_embedding_args args, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    __shared__ unsigned matches[SCATTER_THREADS / 32];
    size_t token = blockIdx.x;
    int32_t id = args.ids[token];
    int64_t table_row = (int64_t)id - (int64_t)args.row_first;
    if (table_row < 0 || table_row >= (int64_t)args.row_count || seen_before(args.ids, token))
        return;
    size_t c = ((size_t)blockIdx.y * SCATTER_THREADS + threadIdx.x) * N;
    float *dtable = args.dtable + (size_t)table_row * args.width;
    float sum[N];
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        sum[j] = c + j < args.width ? dtable[c + j] : 0.0f;
    for (size_t base = token; base < args.rows; base += SCATTER_THREADS) {
        size_t i = base + threadIdx.x;
        unsigned bits = __ballot_sync(0xffffffffu, i < args.rows && args.ids[i] == id);
        __syncthreads(); /* the masks of the tile before are read */
        if (threadIdx.x % 32 == 0)
            matches[threadIdx.x / 32] = bits;
        __syncthreads();
        for (unsigned word = 0; word < SCATTER_THREADS / 32; word++)
            for (unsigned left = matches[word]; left; left &= left - 1) {
                size_t match = base + word * 32 + (unsigned)__ffs((int)left) - 1;
                const T *dout = static_cast<const T *>(args.dout) + match * args.width;
                float value[N];
                if (c < args.width)
                    load_pack(value, dout, c, args.width, whole);
                else
                    continue;
#pragma unroll
                for (unsigned j = 0; j < N; j++)
                    sum[j] = __fadd_rn(sum[j], __fmul_rn(value[j], args.scale));
            }
    }
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        if (c + j < args.width)
            dtable[c + j] = sum[j];
}

} // namespace

cudaError_t sl_cuda_embedding(const struct sl_cuda_context *context,
                              const struct sl_embedding_args *args)
{
    if (!args->rows || !args->width)
        return cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        size_t packs = (args->width + pack_count<T> - 1) / pack_count<T>;
        bool whole = packs_whole<T>(args->out, args->width, args->width) &&
                     packs_whole<T>(args->table.data, 0, 0);
        auto kernel = embedding_kernel<T>;
        SL_LAUNCH(kernel, sl_blocks(args->rows * packs, GATHER_THREADS), GATHER_THREADS, 0,
                  context->stream, *args, whole);
    });
    return cudaGetLastError();
}

cudaError_t sl_cuda_embedding_backward(const struct sl_cuda_context *context,
                                       const struct sl_embedding_args *args)
{
    if (!args->rows || !args->width)
        return cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        bool whole = packs_whole<T>(args->dout, args->width, args->width);
        auto kernel = embedding_backward_kernel<T>;
        dim3 grid((unsigned)args->rows,
                  sl_blocks(args->width, (size_t)SCATTER_THREADS * pack_count<T>));
        SL_LAUNCH(kernel, grid, SCATTER_THREADS, 0, context->stream, *args, whole);
    });
    return cudaGetLastError();
}
