// SPDX-License-Identifier: Apache-2.0
/* Attention in its plain blocked form: f32 arithmetic without tensor cores, any type, any head size
 * up to 256. The reference of the flash form (attention_flash*.cu) and what fp32 mode runs.
 *
 * A block owns 32 rows (queries; keys in the key-value kernel), 8 warps with 4 rows each. It walks
 * the other side in tiles of 32 that lie in shared memory as f32: lane j computes the score of row
 * j of the tile; then lanes own elements d = lane, lane + 32, ... and the 32 probabilities are
 * handed around by shuffles. Rows of a tile are one float longer than the head, so that 32 lanes
 * reading 32 rows hit 32 banks.
 * Invariant: sums run over keys (queries) in ascending order.
 */
#include "kernels/cuda/attention.cuh"

namespace
{

constexpr unsigned PLAIN_WARPS = 8, PLAIN_ROWS = 4, PLAIN_TILE = 32, PLAIN_HEAD_MAX = 256;
constexpr unsigned PLAIN_BLOCK_ROWS = PLAIN_WARPS * PLAIN_ROWS;
constexpr unsigned PLAIN_PARTS = PLAIN_HEAD_MAX / 32; /* head elements of one lane */

/* Rows [first, first + 32) of a strided matrix to shared memory as f32; zeros past `end`. */
template <class T>
__device__ void load_rows(float *tile, const T *x, size_t stride, size_t first, size_t end,
                          unsigned head_size)
{
    for (unsigned i = threadIdx.x; i < PLAIN_TILE * head_size; i += blockDim.x) {
        unsigned row = i / head_size, d = i % head_size;
        tile[row * (head_size + 1) + d] =
            first + row < end ? to_f32(x[(first + row) * stride + d]) : 0.0f;
    }
}

__device__ float dot(const float *a, const float *b, unsigned head_size)
{
    float sum = 0;
    for (unsigned d = 0; d < head_size; d++)
        sum += a[d] * b[d];
    return sum;
}

/* acc[d] += weight of each lane's row * rows[lane][d] */
__device__ void add_rows(float (&acc)[PLAIN_PARTS], float weight, const float *tile,
                         unsigned head_size)
{
    unsigned lane = threadIdx.x % 32;
    for (unsigned j = 0; j < PLAIN_TILE; j++) {
        float w = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
        for (unsigned part = 0; part < PLAIN_PARTS; part++)
            if (lane + 32 * part < head_size)
                acc[part] += w * tile[j * (head_size + 1) + lane + 32 * part];
    }
}

template <class T>
__device__ void store_row(T *out, const float (&acc)[PLAIN_PARTS], float factor, unsigned head_size)
{
    unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned part = 0; part < PLAIN_PARTS; part++)
        if (lane + 32 * part < head_size)
            out[lane + 32 * part] = from_f32<T>(acc[part] * factor);
}

template <class T> __global__ void plain_forward_kernel(struct sl_attention_args args)
{
    SL_DYNAMIC_SHARED(float, shared);
    attention_view<T> view(args, blockIdx.z, blockIdx.y);
    unsigned D = view.head_size, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *queries = shared, *tile = shared + PLAIN_TILE * (D + 1);
    size_t q_first = (size_t)blockIdx.x * PLAIN_BLOCK_ROWS;
    load_rows(queries, view.q, view.stride, q_first, view.length, D);

    float row_max[PLAIN_ROWS], row_sum[PLAIN_ROWS], acc[PLAIN_ROWS][PLAIN_PARTS] = {};
    for (unsigned r = 0; r < PLAIN_ROWS; r++) {
        row_max[r] = -INFINITY;
        row_sum[r] = 0;
    }
    size_t k_end =
        q_first + PLAIN_BLOCK_ROWS < view.length ? q_first + PLAIN_BLOCK_ROWS : view.length;
    size_t k_begin = view.block_key_begin(q_first, PLAIN_BLOCK_ROWS) / PLAIN_TILE * PLAIN_TILE;
    for (size_t k_first = k_begin; k_first < k_end; k_first += PLAIN_TILE) {
        __syncthreads();
        load_rows(tile, view.k, view.stride, k_first, view.length, D);
        __syncthreads();
        float p[PLAIN_ROWS];
#pragma unroll
        for (unsigned r = 0; r < PLAIN_ROWS; r++) {
            size_t i = q_first + warp * PLAIN_ROWS + r, j = k_first + lane;
            float score = -INFINITY;
            if (view.visible(i, j))
                score =
                    view.score(dot(queries + (i - q_first) * (D + 1), tile + lane * (D + 1), D));
            float m = fmaxf(row_max[r], warp_max(score));
            float base = m == -INFINITY ? 0.0f : m, rescale = expf(row_max[r] - base);
            p[r] = expf(score - base);
            row_sum[r] = row_sum[r] * rescale + warp_sum(p[r]);
            row_max[r] = m;
#pragma unroll
            for (unsigned part = 0; part < PLAIN_PARTS; part++)
                acc[r][part] *= rescale;
        }
        __syncthreads();
        load_rows(tile, view.v, view.stride, k_first, view.length, D);
        __syncthreads();
#pragma unroll
        for (unsigned r = 0; r < PLAIN_ROWS; r++)
            add_rows(acc[r], p[r], tile, D);
    }
#pragma unroll
    for (unsigned r = 0; r < PLAIN_ROWS; r++) {
        size_t i = q_first + warp * PLAIN_ROWS + r;
        if (i >= view.length)
            continue;
        store_row(view.out + i * view.out_stride, acc[r], 1.0f / row_sum[r], D);
        if (lane == 0)
            view.lse[i] = row_max[r] + logf(row_sum[r]);
    }
}

/* dq of 32 queries: dq = scale * sum over keys of ds k. */
template <class T> __global__ void plain_dq_kernel(struct sl_attention_backward_args args)
{
    SL_DYNAMIC_SHARED(float, shared);
    attention_backward_view<T> view(args, blockIdx.z, blockIdx.y);
    unsigned D = view.head_size, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *queries = shared, *douts = queries + PLAIN_TILE * (D + 1);
    float *tile = douts + PLAIN_TILE * (D + 1);
    size_t q_first = (size_t)blockIdx.x * PLAIN_BLOCK_ROWS;
    load_rows(queries, view.q, view.stride, q_first, view.length, D);
    load_rows(douts, view.dout, view.out_stride, q_first, view.length, D);

    float acc[PLAIN_ROWS][PLAIN_PARTS] = {};
    size_t k_end =
        q_first + PLAIN_BLOCK_ROWS < view.length ? q_first + PLAIN_BLOCK_ROWS : view.length;
    size_t k_begin = view.block_key_begin(q_first, PLAIN_BLOCK_ROWS) / PLAIN_TILE * PLAIN_TILE;
    for (size_t k_first = k_begin; k_first < k_end; k_first += PLAIN_TILE) {
        float dp[PLAIN_ROWS];
        __syncthreads();
        load_rows(tile, view.v, view.stride, k_first, view.length, D);
        __syncthreads();
#pragma unroll
        for (unsigned r = 0; r < PLAIN_ROWS; r++)
            dp[r] = dot(douts + (warp * PLAIN_ROWS + r) * (D + 1), tile + lane * (D + 1), D);
        __syncthreads();
        load_rows(tile, view.k, view.stride, k_first, view.length, D);
        __syncthreads();
#pragma unroll
        for (unsigned r = 0; r < PLAIN_ROWS; r++) {
            size_t i = q_first + warp * PLAIN_ROWS + r, j = k_first + lane;
            float ds = 0;
            if (view.visible(i, j)) {
                float s =
                    view.score(dot(queries + (i - q_first) * (D + 1), tile + lane * (D + 1), D));
                ds = expf(s - view.lse[i]) * (dp[r] - view.delta[i]) * view.score_slope(s);
            }
            add_rows(acc[r], ds, tile, D);
        }
    }
#pragma unroll
    for (unsigned r = 0; r < PLAIN_ROWS; r++) {
        size_t i = q_first + warp * PLAIN_ROWS + r;
        if (i < view.length)
            store_row(view.dq + i * view.stride, acc[r], view.scale, D);
    }
}

/* dk, dv of 32 keys of one key head, over the query heads that share it, in order. */
template <class T> __global__ void plain_dkv_kernel(struct sl_attention_backward_args args)
{
    SL_DYNAMIC_SHARED(float, shared);
    unsigned group = (unsigned)(args.forward.heads / args.forward.kv_heads);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned D = (unsigned)args.forward.head_size, row_floats = D + 1;
    float *keys = shared, *values = keys + PLAIN_TILE * row_floats;
    float *tile = values + PLAIN_TILE * row_floats;
    size_t k_first = (size_t)blockIdx.x * PLAIN_BLOCK_ROWS;
    float dk[PLAIN_ROWS][PLAIN_PARTS] = {}, dv[PLAIN_ROWS][PLAIN_PARTS] = {};

    for (unsigned head = blockIdx.y * group; head < (blockIdx.y + 1) * group; head++) {
        attention_backward_view<T> view(args, blockIdx.z, head);
        __syncthreads();
        load_rows(keys, view.k, view.stride, k_first, view.length, D);
        load_rows(values, view.v, view.stride, k_first, view.length, D);
        size_t q_end = view.query_end(k_first + PLAIN_BLOCK_ROWS - 1);
        for (size_t q_first = k_first; q_first < q_end; q_first += PLAIN_TILE) {
            size_t i = q_first + lane;
            float p[PLAIN_ROWS], ds[PLAIN_ROWS];
            __syncthreads();
            load_rows(tile, view.q, view.stride, q_first, view.length, D);
            __syncthreads();
#pragma unroll
            for (unsigned r = 0; r < PLAIN_ROWS; r++) {
                unsigned key = warp * PLAIN_ROWS + r;
                p[r] = ds[r] = 0;
                if (view.visible(i, k_first + key)) {
                    float s = view.score(dot(keys + key * row_floats, tile + lane * row_floats, D));
                    p[r] = expf(s - view.lse[i]);
                    ds[r] = p[r] * view.score_slope(s);
                }
            }
            __syncthreads();
            load_rows(tile, view.dout, view.out_stride, q_first, view.length, D);
            __syncthreads();
#pragma unroll
            for (unsigned r = 0; r < PLAIN_ROWS; r++) {
                unsigned key = warp * PLAIN_ROWS + r;
                float dp = dot(values + key * row_floats, tile + lane * row_floats, D);
                ds[r] *= i < view.length ? dp - view.delta[i] : 0.0f;
                add_rows(dv[r], p[r], tile, D);
            }
            __syncthreads();
            load_rows(tile, view.q, view.stride, q_first, view.length, D);
            __syncthreads();
#pragma unroll
            for (unsigned r = 0; r < PLAIN_ROWS; r++)
                add_rows(dk[r], ds[r], tile, D);
        }
    }
    attention_backward_view<T> view(args, blockIdx.z, blockIdx.y * group);
#pragma unroll
    for (unsigned r = 0; r < PLAIN_ROWS; r++) {
        size_t j = k_first + warp * PLAIN_ROWS + r;
        if (j >= view.length)
            continue;
        store_row(view.dk + j * view.stride, dk[r], view.scale, D);
        store_row(view.dv + j * view.stride, dv[r], 1.0f, D);
    }
}

/* A warp per (row, head). */
template <class T> __global__ void delta_kernel(struct sl_attention_backward_args args)
{
    size_t warp = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    size_t heads = args.forward.heads, length = args.forward.sequence_length;
    size_t n = warp / heads, head = warp % heads;
    if (n >= args.forward.batch_count * length)
        return;
    size_t D = args.forward.head_size;
    const T *out = static_cast<const T *>(args.forward.out) + (n * heads + head) * D;
    const T *dout = static_cast<const T *>(args.dout) + (n * heads + head) * D;
    float sum = 0;
    for (size_t d = lane; d < D; d += 32)
        sum += to_f32(out[d]) * to_f32(dout[d]);
    sum = warp_sum(sum);
    if (lane == 0)
        args.delta[(n / length * heads + head) * length + n % length] = sum;
}

size_t plain_shared_bytes(const struct sl_attention_args *args, size_t tiles)
{
    return tiles * PLAIN_TILE * (args->head_size + 1) * sizeof(float);
}

bool plain_takes(const struct sl_attention_args *args)
{
    return args->head_size >= 1 && args->head_size <= PLAIN_HEAD_MAX && args->kv_heads >= 1 &&
           args->heads % args->kv_heads == 0;
}

template <class T>
cudaError_t launch_plain(const struct sl_cuda_context *context,
                         const struct sl_attention_args *args)
{
    auto kernel = plain_forward_kernel<T>;
    size_t shared = plain_shared_bytes(args, 2);
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error)
        return error;
    dim3 grid(sl_blocks(args->sequence_length, PLAIN_BLOCK_ROWS), (unsigned)args->heads,
              (unsigned)args->batch_count);
    SL_LAUNCH(kernel, grid, PLAIN_WARPS * 32, shared, context->stream, *args);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_plain_backward(const struct sl_cuda_context *context,
                                  const struct sl_attention_backward_args *args)
{
    auto dq = plain_dq_kernel<T>;
    auto dkv = plain_dkv_kernel<T>;
    size_t shared = plain_shared_bytes(&args->forward, 3);
    cudaError_t error =
        cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (!error)
        error = cudaFuncSetAttribute(dkv, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error)
        return error;
    unsigned tiles = sl_blocks(args->forward.sequence_length, PLAIN_BLOCK_ROWS);
    unsigned batch = (unsigned)args->forward.batch_count;
    SL_LAUNCH(dq, dim3(tiles, (unsigned)args->forward.heads, batch), PLAIN_WARPS * 32, shared,
              context->stream, *args);
    error = cudaGetLastError();
    if (error)
        return error;
    SL_LAUNCH(dkv, dim3(tiles, (unsigned)args->forward.kv_heads, batch), PLAIN_WARPS * 32, shared,
              context->stream, *args);
    return cudaGetLastError();
}

} // namespace

cudaError_t sl_cuda_attention_delta(const struct sl_cuda_context *context,
                                    const struct sl_attention_backward_args *args)
{
    size_t warps = args->forward.batch_count * args->forward.sequence_length * args->forward.heads;
    SL_WITH_TYPE(context->type, T, {
        auto kernel = delta_kernel<T>;
        SL_LAUNCH(kernel, sl_blocks(warps, 8), 256, 0, context->stream, *args);
    });
    return cudaGetLastError();
}

cudaError_t sl_cuda_attention_plain(const struct sl_cuda_context *context,
                                    const struct sl_attention_args *args)
{
    if (!plain_takes(args))
        return cudaErrorInvalidValue;
    cudaError_t error = cudaSuccess;
    SL_WITH_TYPE(context->type, T, { error = launch_plain<T>(context, args); });
    return error;
}

cudaError_t sl_cuda_attention_plain_backward(const struct sl_cuda_context *context,
                                             const struct sl_attention_backward_args *args)
{
    if (!plain_takes(&args->forward))
        return cudaErrorInvalidValue;
    cudaError_t error = sl_cuda_attention_delta(context, args);
    if (error)
        return error;
    SL_WITH_TYPE(context->type, T, { error = launch_plain_backward<T>(context, args); });
    return error;
}

cudaError_t sl_cuda_attention(const struct sl_cuda_context *context,
                              const struct sl_attention_args *args)
{
    if (!args->batch_count || !args->sequence_length)
        return cudaSuccess;
    return sl_cuda_attention_flash_takes(context, args) ? sl_cuda_attention_flash(context, args)
                                                        : sl_cuda_attention_plain(context, args);
}

cudaError_t sl_cuda_attention_backward(const struct sl_cuda_context *context,
                                       const struct sl_attention_backward_args *args)
{
    if (!args->forward.batch_count || !args->forward.sequence_length)
        return cudaSuccess;
    return sl_cuda_attention_flash_takes(context, &args->forward)
               ? sl_cuda_attention_flash_backward(context, args)
               : sl_cuda_attention_plain_backward(context, args);
}
