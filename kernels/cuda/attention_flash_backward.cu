// SPDX-License-Identifier: Apache-2.0
/* Flash attention, backward: scores are computed again from q, k and the row's log-sum-exp.
 *
 *     p  = exp(s - lse)          ds = p * (dout v^T - delta) * slope
 *     dq = scale ds k            dk = scale ds^T q            dv = p^T dout
 *
 * Two kernels, so that every sum has one owner and one order: one walks the keys for 64 queries
 * (dq), the other walks the queries for 64 keys (dk, dv), over all query heads that share a key
 * head. That computes s and dout v^T twice: 7 products instead of the 5 of a kernel that adds dq
 * with atomics, whose bits differ from run to run.
 *
 * The second kernel works on transposed scores (rows are keys), so that p^T and ds^T are already
 * the left operands of its products. For heads above 128 its two results do not fit the registers
 * together: it runs once for each.
 * Invariant: tiles are visited in ascending order; heads of a group in ascending order.
 */
#include "kernels/cuda/attention_tile.cuh"

namespace
{

constexpr unsigned BACKWARD_WARPS = 4, BACKWARD_THREADS = 32 * BACKWARD_WARPS;
constexpr unsigned BACKWARD_ROWS = 16 * BACKWARD_WARPS; /* of the side that stays */
constexpr float LOG2_E = 1.4426950408889634f;

/* Rows of the side that is walked, and how many of its tiles are in flight. */
template <unsigned D> constexpr unsigned dq_keys = D <= 128 ? 64 : 32;
template <unsigned D> constexpr unsigned dkv_queries = D <= 64 ? 64 : D <= 128 ? 32 : 16;
template <unsigned D> constexpr unsigned stages = D <= 128 ? 2 : 1;

template <unsigned D, unsigned WALKED>
constexpr size_t backward_shared_bytes = (2 * BACKWARD_ROWS + 2 * stages<D> * WALKED) * D * 2;

/* Start the copies of one tile of each of two matrices. */
template <unsigned D, unsigned ROWS, class T>
__device__ __forceinline__ void load_pair(T *tiles, const T *a, size_t a_stride, const T *b,
                                          size_t b_stride, unsigned first, unsigned end,
                                          unsigned head_size)
{
    tile_load<D, ROWS, BACKWARD_THREADS>(tiles, a, a_stride, first, end, head_size);
    tile_load<D, ROWS, BACKWARD_THREADS>(tiles + ROWS * D, b, b_stride, first, end, head_size);
    copy_async_commit();
}

/* A tile of products q k^T and dout v^T -> p in s, ds in dp. statistics(n, e): the element's
 * query's {lse in units of log 2, delta}; hidden(n, e): the query does not see the key, asked where
 * the tile has an edge. The questions that the whole tile answers alike stand outside the loops. */
template <unsigned N, class T, class Statistics, class Hidden>
__device__ __forceinline__ void
backward_tile(float (&s)[N / 8][4], float (&dp)[N / 8][4], const attention_backward_view<T> &view,
              bool edge, const Statistics &statistics, const Hidden &hidden)
{
    bool capped = view.softcap != 0;
    float factor = (capped ? 1.0f : view.scale) * LOG2_E;
    if (capped) {
#pragma unroll
        for (unsigned n = 0; n < N / 8; n++)
#pragma unroll
            for (unsigned e = 0; e < 4; e++) {
                s[n][e] = view.score(s[n][e]);
                /* ds = p slope (dp - delta) = p (dp' - delta) */
                float delta = statistics(n, e).y;
                dp[n][e] = delta + view.score_slope(s[n][e]) * (dp[n][e] - delta);
            }
    }
    if (edge) {
#pragma unroll
        for (unsigned n = 0; n < N / 8; n++)
#pragma unroll
            for (unsigned e = 0; e < 4; e++)
                if (hidden(n, e))
                    s[n][e] = -INFINITY;
    }
#pragma unroll
    for (unsigned n = 0; n < N / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            float2 row = statistics(n, e);
            s[n][e] = exp2_fast(fmaf(s[n][e], factor, -row.x));
            dp[n][e] = s[n][e] * (dp[n][e] - row.y);
        }
}

template <class T, unsigned D>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    flash_dq_kernel(struct sl_attention_backward_args args)
{
    constexpr unsigned KEYS = dq_keys<D>, STAGES = stages<D>, PAIR = 2 * KEYS * D;
    SL_DYNAMIC_SHARED(T, shared);
    attention_backward_view<T> view(args, blockIdx.z, blockIdx.y);
    T *queries = shared, *douts = queries + BACKWARD_ROWS * D, *walked = douts + BACKWARD_ROWS * D;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
    unsigned q_first = (gridDim.x - 1 - blockIdx.x) * BACKWARD_ROWS;
    unsigned q_warp = q_first + warp * 16, i = q_warp + lane / 4;
    unsigned q_end = q_first + BACKWARD_ROWS < view.length ? q_first + BACKWARD_ROWS : view.length;

    unsigned begin[2];
    float lse_log2[2], delta[2];
    for (unsigned half = 0; half < 2; half++) {
        unsigned row = i + 8 * half;
        bool inside = row < view.length;
        begin[half] = inside ? view.key_begin(row) : 0xffffffffu;
        lse_log2[half] = inside ? view.lse[row] * LOG2_E : 0.0f;
        delta[half] = inside ? view.delta[row] : 0.0f;
    }
    unsigned k_begin = view.block_key_begin(q_first, BACKWARD_ROWS) / KEYS * KEYS;
    tile_load<D, BACKWARD_ROWS, BACKWARD_THREADS>(queries, view.q, view.stride, q_first,
                                                  view.length, view.head_size);
    tile_load<D, BACKWARD_ROWS, BACKWARD_THREADS>(douts, view.dout, view.out_stride, q_first,
                                                  view.length, view.head_size);
    if (STAGES == 2)
        load_pair<D, KEYS>(walked, view.k, view.stride, view.v, view.stride, k_begin, view.length,
                           view.head_size);

    float dq[1][D / 8][4] = {};
    unsigned parity = 0;
    for (unsigned k_first = k_begin; k_first < q_end; k_first += KEYS) {
        if (STAGES == 1)
            load_pair<D, KEYS>(walked, view.k, view.stride, view.v, view.stride, k_first,
                               view.length, view.head_size);
        else if (k_first + KEYS < q_end)
            load_pair<D, KEYS>(walked + (parity ^ 1) * PAIR, view.k, view.stride, view.v,
                               view.stride, k_first + KEYS, view.length, view.head_size);
        else
            copy_async_commit();
        copy_async_wait<STAGES - 1>();
        __syncthreads();
        const T *keys = walked + parity * PAIR, *values = keys + KEYS * D;
        float s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
        product_rows<D, KEYS>(s, queries, warp * 16, keys);
        product_rows<D, KEYS>(dp, douts, warp * 16, values);
        bool edge = k_first + KEYS > q_warp + 1 || view.first ||
                    (view.window && k_first < view.key_begin(q_warp + 15));
        backward_tile<KEYS>(
            s[0], dp[0], view, edge,
            [&](unsigned, unsigned e) {
                return float2{lse_log2[e / 2], delta[e / 2]};
            },
            [&](unsigned n, unsigned e) {
                unsigned key = k_first + 8 * n + 2 * t + e % 2;
                return key > i + 8 * (e / 2) || key < begin[e / 2];
            });
        product_add<D, KEYS>(dq, dp, keys);
        __syncthreads(); /* the next copy overwrites this tile's buffer */
        parity ^= STAGES - 1;
    }
    copy_async_wait<0>();
    const float factor[2] = {view.scale, view.scale};
    rows_store<D>(view.dq, view.stride, q_warp, view.length, view.head_size, dq[0], factor, queries,
                  warp * 16);
}

/* What the walked queries of a tile need beside their rows. */
template <unsigned QUERIES> struct query_statistics {
    float lse_log2[QUERIES], delta[QUERIES];
    unsigned begin[QUERIES];
};

/* Fill the statistics of queries [first, first + QUERIES); true where the caller's own query sees
 * any key up to k_last. */
template <unsigned QUERIES, class T>
__device__ __forceinline__ bool load_statistics(query_statistics<QUERIES> &to,
                                                const attention_backward_view<T> &view,
                                                unsigned first, unsigned k_last)
{
    if (threadIdx.x >= QUERIES)
        return false;
    unsigned i = first + threadIdx.x;
    bool inside = i < view.length;
    unsigned begin = inside ? view.key_begin(i) : 0xffffffffu;
    to.begin[threadIdx.x] = begin;
    to.lse_log2[threadIdx.x] = inside ? view.lse[i] * LOG2_E : 0.0f;
    to.delta[threadIdx.x] = inside ? view.delta[i] : 0.0f;
    return begin <= k_last;
}

template <class T, unsigned D, bool WANT_DK, bool WANT_DV>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    flash_dkv_kernel(struct sl_attention_backward_args args)
{
    constexpr unsigned QUERIES = dkv_queries<D>, STAGES = stages<D>, PAIR = 2 * QUERIES * D;
    SL_DYNAMIC_SHARED(T, shared);
    __shared__ query_statistics<QUERIES> statistics;
    T *keys = shared, *values = keys + BACKWARD_ROWS * D, *walked = values + BACKWARD_ROWS * D;
    unsigned group = (unsigned)(args.forward.heads / args.forward.kv_heads);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
    unsigned k_first = blockIdx.x * BACKWARD_ROWS, k_warp = k_first + warp * 16;
    float dk[1][WANT_DK ? D / 8 : 1][4] = {}, dv[1][WANT_DV ? D / 8 : 1][4] = {};

    for (unsigned head = blockIdx.y * group; head < (blockIdx.y + 1) * group; head++) {
        attention_backward_view<T> view(args, blockIdx.z, head);
        unsigned q_end = view.query_end(k_first + BACKWARD_ROWS - 1);
        if (head == blockIdx.y * group)
            load_pair<D, BACKWARD_ROWS>(keys, view.k, view.stride, view.v, view.stride, k_first,
                                        view.length, view.head_size);
        if (STAGES == 2)
            load_pair<D, QUERIES>(walked, view.q, view.stride, view.dout, view.out_stride, k_first,
                                  view.length, view.head_size);
        unsigned parity = 0;
        for (unsigned q_first = k_first; q_first < q_end; q_first += QUERIES) {
            bool sees = load_statistics(statistics, view, q_first, k_first + BACKWARD_ROWS - 1);
            if (STAGES == 1)
                load_pair<D, QUERIES>(walked, view.q, view.stride, view.dout, view.out_stride,
                                      q_first, view.length, view.head_size);
            else if (q_first + QUERIES < q_end)
                load_pair<D, QUERIES>(walked + (parity ^ 1) * PAIR, view.q, view.stride, view.dout,
                                      view.out_stride, q_first + QUERIES, view.length,
                                      view.head_size);
            else
                copy_async_commit();
            copy_async_wait<STAGES - 1>();
            if (__syncthreads_or(sees)) { /* else a tile of other documents */
                const T *queries = walked + parity * PAIR, *douts = queries + QUERIES * D;
                float s[1][QUERIES / 8][4], dp[1][QUERIES / 8][4] = {};
                product_rows<D, QUERIES>(s, keys, warp * 16, queries);
                if (WANT_DK)
                    product_rows<D, QUERIES>(dp, values, warp * 16, douts);
                bool edge = k_warp + 15 > q_first || view.first ||
                            (view.window && k_warp < view.key_begin(q_first + QUERIES - 1));
                backward_tile<QUERIES>(
                    s[0], dp[0], view, edge,
                    [&](unsigned n, unsigned e) {
                        unsigned column = 8 * n + 2 * t + e % 2;
                        return float2{statistics.lse_log2[column], statistics.delta[column]};
                    },
                    [&](unsigned n, unsigned e) {
                        unsigned column = 8 * n + 2 * t + e % 2;
                        unsigned key = k_warp + lane / 4 + e / 2 * 8;
                        return key > q_first + column || key < statistics.begin[column];
                    });
                if constexpr (WANT_DV)
                    product_add<D, QUERIES>(dv, s, douts);
                if constexpr (WANT_DK)
                    product_add<D, QUERIES>(dk, dp, queries);
            }
            __syncthreads(); /* the next copy and statistics overwrite this tile's */
            parity ^= STAGES - 1;
        }
        copy_async_wait<0>();
    }
    __syncthreads();
    attention_backward_view<T> view(args, blockIdx.z, blockIdx.y * group);
    const float factor_dk[2] = {view.scale, view.scale}, factor_dv[2] = {1.0f, 1.0f};
    if constexpr (WANT_DK)
        rows_store<D>(view.dk, view.stride, k_first + warp * 16, view.length, view.head_size, dk[0],
                      factor_dk, keys, warp * 16);
    if constexpr (WANT_DV)
        rows_store<D>(view.dv, view.stride, k_first + warp * 16, view.length, view.head_size, dv[0],
                      factor_dv, values, warp * 16);
}

cudaError_t launch_backward(const struct sl_cuda_context *context,
                            const struct sl_attention_backward_args *args,
                            void (*kernel)(struct sl_attention_backward_args), size_t shared,
                            size_t heads)
{
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error)
        return error;
    dim3 grid(sl_blocks(args->forward.sequence_length, BACKWARD_ROWS), (unsigned)heads,
              (unsigned)args->forward.batch_count);
    SL_LAUNCH(kernel, grid, BACKWARD_THREADS, shared, context->stream, *args);
    return cudaGetLastError();
}

template <class T, unsigned D>
cudaError_t launch_flash_backward(const struct sl_cuda_context *context,
                                  const struct sl_attention_backward_args *args)
{
    constexpr size_t dq_shared = backward_shared_bytes<D, dq_keys<D>>;
    constexpr size_t dkv_shared = backward_shared_bytes<D, dkv_queries<D>>;
    size_t heads = args->forward.heads, kv_heads = args->forward.kv_heads;
    cudaError_t error = launch_backward(context, args, flash_dq_kernel<T, D>, dq_shared, heads);
    if (error)
        return error;
    if constexpr (D <= 128)
        return launch_backward(context, args, flash_dkv_kernel<T, D, true, true>, dkv_shared,
                               kv_heads);
    error = launch_backward(context, args, flash_dkv_kernel<T, D, true, D <= 128>, dkv_shared,
                            kv_heads);
    return error ? error
                 : launch_backward(context, args, flash_dkv_kernel<T, D, D <= 128, true>,
                                   dkv_shared, kv_heads);
}

template <class T>
cudaError_t launch_type(const struct sl_cuda_context *context,
                        const struct sl_attention_backward_args *args)
{
    if (args->forward.head_size <= 64)
        return launch_flash_backward<T, 64>(context, args);
    if (args->forward.head_size <= 128)
        return launch_flash_backward<T, 128>(context, args);
    return launch_flash_backward<T, 256>(context, args);
}

} // namespace

cudaError_t sl_cuda_attention_flash_backward(const struct sl_cuda_context *context,
                                             const struct sl_attention_backward_args *args)
{
    if (!sl_cuda_attention_flash_takes(context, &args->forward) ||
        !packs_whole<bf16>(args->dout, 0, 0) || !packs_whole<bf16>(args->dqkv, 0, 0))
        return cudaErrorInvalidValue;
    cudaError_t error = sl_cuda_attention_delta(context, args);
    if (error)
        return error;
    return context->type == SL_BF16 ? launch_type<bf16>(context, args)
                                    : launch_type<f16>(context, args);
}
