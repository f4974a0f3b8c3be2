// SPDX-License-Identifier: Apache-2.0
/* Flash attention, forward: scores live in registers, the [T, T] matrix never exists.
 *
 * A block owns 128 queries of one head (64 above head size 128), 4 warps with 32 (16) each. Keys
 * and values come in tiles through two shared-memory buffers: the copy of tile i + 1 runs while
 * tile i is multiplied. The softmax is online: a running maximum and sum per row, the output
 * rescaled when the maximum grows. Blocks with the longest walk (the last queries) are launched
 * first.
 *
 *     s = q k^T                     tensor cores, f32
 *     p = exp2(factor (s - max))    f32, one multiply-add; factor: the scale in units of log 2
 *     o = o * c + p v    tensor cores; p rounded to the 16-bit type, its sum taken before rounding
 *
 * Rejected: wgmma and the tensor memory accelerator (sm_90a alone; this form runs on every target).
 * Invariant: tiles are visited in ascending order of keys.
 */
#include "kernels/cuda/attention_tile.cuh"

namespace
{

constexpr unsigned FLASH_WARPS = 4, FLASH_THREADS = 32 * FLASH_WARPS;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

/* Row groups of a warp: two halve the shared-memory reads per product; registers allow one for the
 * largest heads. */
template <unsigned D> constexpr unsigned flash_groups = D <= 128 ? 2 : 1;
template <unsigned D> constexpr unsigned flash_queries = 16 * FLASH_WARPS *flash_groups<D>;
template <unsigned D> constexpr unsigned flash_keys = D <= 64 ? 64 : 32;

template <unsigned D>
constexpr size_t flash_shared_bytes = (flash_queries<D> + 4 * flash_keys<D>)*D * 2;

/* Running softmax of the two rows that a thread holds a quarter of; max before the factor. */
struct online_rows {
    float max[2], sum[2];
};

/* Products -> scores up to `factor`, which online_softmax applies; masked. */
template <unsigned KEYS, class T>
__device__ __forceinline__ void mask_scores(float (&s)[KEYS / 8][4], const attention_view<T> &view,
                                            unsigned i, unsigned k_first, bool edge)
{
    unsigned t = threadIdx.x % 4;
    if (view.softcap != 0) {
#pragma unroll
        for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (unsigned e = 0; e < 4; e++)
                s[n][e] = view.score(s[n][e]);
    }
    if (!edge)
        return;
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        unsigned row = i + 8 * half;
        unsigned begin = row < view.length ? view.key_begin(row) : 0; /* again: saves registers */
#pragma unroll
        for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (unsigned e = 0; e < 2; e++) {
                unsigned j = k_first + 8 * n + 2 * t + e;
                if (j > row || j < begin)
                    s[n][2 * half + e] = -INFINITY;
            }
    }
}

/* Scores -> probabilities; updates the rows' maximum and sum and rescales the output. */
template <unsigned KEYS, unsigned D>
__device__ __forceinline__ void online_softmax(float (&s)[KEYS / 8][4], online_rows &rows,
                                               float (&o)[D / 8][4], float factor)
{
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        float m = rows.max[half];
#pragma unroll
        for (unsigned n = 0; n < KEYS / 8; n++)
            m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1)); /* a row lies in 4 neighbouring lanes */
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float base = m == -INFINITY ? 0.0f : m * factor, sum = 0;
        float rescale = exp2_fast(fmaf(rows.max[half], factor, -base));
#pragma unroll
        for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (unsigned e = 0; e < 2; e++) {
                float p = exp2_fast(fmaf(s[n][2 * half + e], factor, -base));
                s[n][2 * half + e] = p;
                sum += p;
            }
        rows.max[half] = m;
        rows.sum[half] = rows.sum[half] * rescale + sum;
        /* Most tiles leave the maxima of all rows as they are, and 1 changes no bit. */
        if (__any_sync(0xffffffffu, rescale != 1.0f)) {
#pragma unroll
            for (unsigned n = 0; n < D / 8; n++) {
                o[n][2 * half] *= rescale;
                o[n][2 * half + 1] *= rescale;
            }
        }
    }
}

template <class T, unsigned D>
__global__ void __launch_bounds__(FLASH_THREADS) flash_forward_kernel(struct sl_attention_args args)
{
    constexpr unsigned KEYS = flash_keys<D>, TILE = KEYS * D;
    constexpr unsigned GROUPS = flash_groups<D>, QUERIES = flash_queries<D>;
    SL_DYNAMIC_SHARED(T, shared);
    attention_view<T> view(args, blockIdx.z, blockIdx.y);
    T *queries = shared, *keys = queries + QUERIES * D, *values = keys + 2 * TILE;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned q_first = (gridDim.x - 1 - blockIdx.x) * QUERIES;
    unsigned q_warp = q_first + warp * 16 * GROUPS, i = q_warp + lane / 4;
    unsigned q_end = q_first + QUERIES < view.length ? q_first + QUERIES : view.length;

    float factor = (view.softcap != 0 ? 1.0f : view.scale) * LOG2_E;
    unsigned k_begin = view.block_key_begin(q_first, QUERIES) / KEYS * KEYS;

    tile_load<D, QUERIES, FLASH_THREADS>(queries, view.q, view.stride, q_first, view.length,
                                         view.head_size);
    tile_load<D, KEYS, FLASH_THREADS>(keys + k_begin / KEYS % 2 * TILE, view.k, view.stride,
                                      k_begin, view.length, view.head_size);
    tile_load<D, KEYS, FLASH_THREADS>(values + k_begin / KEYS % 2 * TILE, view.v, view.stride,
                                      k_begin, view.length, view.head_size);
    copy_async_commit();

    online_rows rows[GROUPS];
    float o[GROUPS][D / 8][4] = {};
#pragma unroll
    for (unsigned m = 0; m < GROUPS; m++)
        rows[m] = {{-INFINITY, -INFINITY}, {0, 0}};
    for (unsigned k_first = k_begin; k_first < q_end; k_first += KEYS) {
        unsigned parity = k_first / KEYS % 2; /* of the tile's buffer */
        if (k_first + KEYS < q_end) {
            unsigned next = (parity ^ 1) * TILE;
            tile_load<D, KEYS, FLASH_THREADS>(keys + next, view.k, view.stride, k_first + KEYS,
                                              view.length, view.head_size);
            tile_load<D, KEYS, FLASH_THREADS>(values + next, view.v, view.stride, k_first + KEYS,
                                              view.length, view.head_size);
        }
        copy_async_commit(); /* possibly an empty group: the wait below counts groups */
        copy_async_wait<1>();
        __syncthreads();
        float s[GROUPS][KEYS / 8][4];
        product_rows<D, KEYS>(s, queries, warp * 16 * GROUPS, keys + parity * TILE);
        /* Does a row of the warp see less than the whole tile? Asked without keeping the rows'
         * first keys in registers: a window's last row starts last; documents may start anywhere.
         */
        bool edge = k_first + KEYS > q_warp + 1 || view.first ||
                    (view.window && k_first < view.key_begin(q_warp + 16 * GROUPS - 1));
#pragma unroll
        for (unsigned m = 0; m < GROUPS; m++) {
            mask_scores<KEYS>(s[m], view, i + 16 * m, k_first, edge);
            online_softmax<KEYS, D>(s[m], rows[m], o[m], factor);
        }
        product_add<D, KEYS>(o, s, values + parity * TILE);
        __syncthreads(); /* the next copy overwrites this tile's buffer */
    }
    copy_async_wait<0>();

#pragma unroll
    for (unsigned m = 0; m < GROUPS; m++) {
        float share[2];
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            unsigned row = i + 16 * m + 8 * half;
            float sum = rows[m].sum[half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            share[half] = 1.0f / sum;
            if (lane % 4 == 0 && row < view.length)
                view.lse[row] = rows[m].max[half] * (factor * LN_2) + logf(sum);
        }
        rows_store<D>(view.out, view.out_stride, q_warp + 16 * m, view.length, view.head_size, o[m],
                      share, queries, (warp * GROUPS + m) * 16);
    }
}

template <class T, unsigned D>
cudaError_t launch_flash(const struct sl_cuda_context *context,
                         const struct sl_attention_args *args)
{
    auto kernel = flash_forward_kernel<T, D>;
    constexpr size_t shared = flash_shared_bytes<D>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error)
        return error;
    dim3 grid(sl_blocks(args->sequence_length, flash_queries<D>), (unsigned)args->heads,
              (unsigned)args->batch_count);
    SL_LAUNCH(kernel, grid, FLASH_THREADS, shared, context->stream, *args);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_flash_type(const struct sl_cuda_context *context,
                              const struct sl_attention_args *args)
{
    if (args->head_size <= 64)
        return launch_flash<T, 64>(context, args);
    if (args->head_size <= 128)
        return launch_flash<T, 128>(context, args);
    return launch_flash<T, 256>(context, args);
}

} // namespace

bool sl_cuda_attention_flash_takes(const struct sl_cuda_context *context,
                                   const struct sl_attention_args *args)
{
    return context->type != SL_F32 && args->scale > 0 && args->head_size % 8 == 0 &&
           args->head_size >= 8 && args->head_size <= 256 && args->kv_heads &&
           args->heads % args->kv_heads == 0 &&
           packs_whole<bf16>(args->qkv, 0, 0) && packs_whole<bf16>(args->out, 0, 0);
}

cudaError_t sl_cuda_attention_flash(const struct sl_cuda_context *context,
                                    const struct sl_attention_args *args)
{
    if (!sl_cuda_attention_flash_takes(context, args))
        return cudaErrorInvalidValue;
    return context->type == SL_BF16 ? launch_flash_type<bf16>(context, args)
                                    : launch_flash_type<f16>(context, args);
}
