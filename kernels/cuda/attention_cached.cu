// SPDX-License-Identifier: Apache-2.0
/* Attention of a few new tokens to a cache of keys and values: what generation runs.
 *
 * Problem: one new token reads the whole cache and computes little: the bytes of keys and values
 * are the floor, and one head of one token is too small a piece of work for a GPU.
 * Choice: a block has the queries that share a key head (rows x heads of the group, QUERIES of them
 * at a time), so that a key is read once for all of them, and a part of the keys (split); a second
 * kernel merges the parts. A team of lanes owns a key: each lane holds 16 bytes of it, so a warp
 * reads 512 neighbouring bytes and two to four keys of a team are under way at once. The softmax is
 * online per team, in units of log 2; teams, then splits, are merged in order.
 * Rejected: tensor cores (8 queries of a 16-row tile, and nothing to gain where memory is the
 * floor).
 * Invariant: splits follow from the shape alone, so equal inputs give equal bits.
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned CACHED_THREADS = 128, CACHED_HEAD_MAX = 256;
/* Blocks that fill the largest of the targets twice, and the least keys worth a block of its own.
 */
constexpr size_t CACHED_BLOCKS = 264, CACHED_SPLIT_KEYS = 128;
constexpr float LOG2_E = 1.4426950408889634f;

/* 16-byte packs of a row that one lane holds: a team is a warp at most. */
template <class T> constexpr unsigned lane_packs = sizeof(T) == 4 ? 2 : 1;

/* How the keys are shared out. */
struct cached_walk {
    unsigned key_first, key_end, split_keys; /* 32-bit: registers are what the kernel runs out of */
    unsigned splits, lanes;                  /* lanes of a team: a power of two */
    bool whole;
    float *partial; /* [rows, H, splits, 2 + D]: max, sum, weighted values; where splits > 1 */
};

/* Put the new rows' keys and values into the cache. A thread moves one pack of each. */
template <class T>
__global__ void cache_append_kernel(struct sl_attention_cached_args args, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t width = args.kv_heads * args.head_size, packs = (width + N - 1) / N;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= args.rows * packs)
        return;
    size_t row = i / packs, c = i % packs * N, query_width = args.heads * args.head_size;
    const T *from = static_cast<const T *>(args.qkv) + row * (query_width + 2 * width);
    size_t to = (args.position_first + row) * width;
    float pack[N]; /* through f32 and back: the same bits, NaN payloads aside */
    load_pack(pack, from + query_width, c, width, whole);
    store_pack(static_cast<T *>(args.keys) + to, pack, c, width, whole);
    load_pack(pack, from + query_width + width, c, width, whole);
    store_pack(static_cast<T *>(args.values) + to, pack, c, width, whole);
}

/* A lane's packs of one row of `head_size`; zeros where `valid` is false and past the end. */
template <class T>
__device__ __forceinline__ void load_lane(float (&out)[lane_packs<T>][pack_count<T>], const T *row,
                                          unsigned lane, unsigned lanes, unsigned head_size,
                                          bool valid, bool whole)
{
    constexpr unsigned N = pack_count<T>;
#pragma unroll
    for (unsigned p = 0; p < lane_packs<T>; p++) {
        unsigned d = (p * lanes + lane) * N;
        if (valid && d < head_size) {
            load_pack(out[p], row, d, head_size, whole);
        } else {
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                out[p][j] = 0.0f;
        }
    }
}

/* One query as a team sees it: its lanes' part of q and of the result, and the keys it sees. */
template <class T> struct cached_query {
    float q[lane_packs<T>][pack_count<T>], acc[lane_packs<T>][pack_count<T>];
    float max, sum;
    unsigned begin, end;
};

/* Score of a key, over the team's lanes, in units of log 2; -inf where the query does not see it.
 * Every lane of the warp calls. */
template <class T>
__device__ __forceinline__ float
cached_score(const struct sl_attention_cached_args &args, const cached_query<T> &query,
             const float (&k)[lane_packs<T>][pack_count<T>], unsigned key, unsigned lanes)
{
    float product = 0;
#pragma unroll
    for (unsigned p = 0; p < lane_packs<T>; p++)
#pragma unroll
        for (unsigned j = 0; j < pack_count<T>; j++)
            product += query.q[p][j] * k[p][j];
    for (unsigned bits = lanes / 2; bits > 0; bits /= 2)
        product += __shfl_xor_sync(0xffffffffu, product, bits);
    float score = product * args.scale;
    if (args.softcap != 0)
        score = args.softcap * tanhf(score / args.softcap);
    return key >= query.begin && key < query.end ? score * LOG2_E : -INFINITY;
}

/* Fold KEYS scored keys into the running softmax. */
template <class T, unsigned KEYS>
__device__ __forceinline__ void cached_fold(cached_query<T> &query, const float (&score)[KEYS],
                                            const float (&v)[KEYS][lane_packs<T>][pack_count<T>])
{
    float top = query.max;
#pragma unroll
    for (unsigned n = 0; n < KEYS; n++)
        top = fmaxf(top, score[n]);
    if (top == -INFINITY) /* nothing seen yet */
        return;
    float shrink = exp2f(query.max - top);
    query.max = top;
    query.sum *= shrink;
#pragma unroll
    for (unsigned p = 0; p < lane_packs<T>; p++)
#pragma unroll
        for (unsigned j = 0; j < pack_count<T>; j++)
            query.acc[p][j] *= shrink;
#pragma unroll
    for (unsigned n = 0; n < KEYS; n++) {
        float weight = exp2f(score[n] - top);
        query.sum += weight;
#pragma unroll
        for (unsigned p = 0; p < lane_packs<T>; p++)
#pragma unroll
            for (unsigned j = 0; j < pack_count<T>; j++)
                query.acc[p][j] += weight * v[n][p][j];
    }
}

/* Merge `count` parts of one query, `stride` floats apart: [max, sum, acc[D]] each. Returns element
 * d of the merged acc; the merged max and sum in *max and *sum. */
__device__ float merge_parts(const float *parts, size_t count, size_t stride, unsigned d,
                             float *max, float *sum)
{
    float top = -INFINITY, total = 0, value = 0;
    for (size_t i = 0; i < count; i++)
        top = fmaxf(top, parts[i * stride]);
    for (size_t i = 0; i < count && top != -INFINITY; i++) {
        float weight = exp2f(parts[i * stride] - top);
        total += parts[i * stride + 1] * weight;
        value += parts[i * stride + 2 + d] * weight;
    }
    *max = top;
    *sum = total;
    return value;
}

template <class T, unsigned QUERIES>
__global__ void __launch_bounds__(CACHED_THREADS)
    attention_cached_kernel(struct sl_attention_cached_args args, cached_walk walk)
{
    constexpr unsigned N = pack_count<T>, PACKS = lane_packs<T>, KEYS = QUERIES == 1 ? 4 : 2;
    SL_DYNAMIC_SHARED(float, parts); /* [teams, QUERIES, 2 + D] */
    unsigned D = (unsigned)args.head_size, lanes = walk.lanes, teams = CACHED_THREADS / lanes;
    unsigned team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    size_t group = args.heads / args.kv_heads, width = args.kv_heads * D;
    size_t first = (size_t)blockIdx.x * QUERIES, count = args.rows * group;
    const T *keys = static_cast<const T *>(args.keys) + blockIdx.y * D;
    const T *values = static_cast<const T *>(args.values) + blockIdx.y * D;

    cached_query<T> query[QUERIES];
    unsigned begin = walk.key_end, end = 0; /* of the keys that any of the queries sees */
#pragma unroll
    for (unsigned u = 0; u < QUERIES; u++) {
        bool valid = first + u < count;
        size_t row = valid ? (first + u) / group : 0,
               head = blockIdx.y * group + (first + u) % group;
        unsigned position = (unsigned)(args.position_first + row);
        unsigned window = (unsigned)args.window;
        const T *q = static_cast<const T *>(args.qkv) + row * (args.heads * D + 2 * width) +
                     (valid ? head : 0) * D;
        load_lane<T>(query[u].q, q, lane, lanes, D, valid, walk.whole);
        query[u].end = valid ? position + 1 : 0;
        query[u].begin = args.window && position + 1 > args.window ? position + 1 - window : 0;
        query[u].max = -INFINITY;
        query[u].sum = 0;
#pragma unroll
        for (unsigned p = 0; p < PACKS; p++)
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                query[u].acc[p][j] = 0;
        begin = valid && query[u].begin < begin ? query[u].begin : begin;
        end = query[u].end > end ? query[u].end : end;
    }
    unsigned split_first = walk.key_first + blockIdx.z * walk.split_keys;
    begin = begin > split_first ? begin : split_first;
    end = end < split_first + walk.split_keys ? end : split_first + walk.split_keys;

    for (unsigned base = begin; base < end; base += teams * KEYS) {
        float k[KEYS][PACKS][N], v[KEYS][PACKS][N];
#pragma unroll
        for (unsigned n = 0; n < KEYS; n++) {
            unsigned key = base + n * teams + team;
            load_lane<T>(k[n], keys + key * width, lane, lanes, D, key < end, walk.whole);
            load_lane<T>(v[n], values + key * width, lane, lanes, D, key < end, walk.whole);
        }
#pragma unroll
        for (unsigned u = 0; u < QUERIES; u++) {
            float score[KEYS];
#pragma unroll
            for (unsigned n = 0; n < KEYS; n++) {
                unsigned key = base + n * teams + team;
                score[n] = cached_score<T>(args, query[u], k[n], key, lanes);
                if (key >= end)
                    score[n] = -INFINITY;
            }
            cached_fold<T, KEYS>(query[u], score, v);
        }
    }

    size_t part = 2 + D;
#pragma unroll
    for (unsigned u = 0; u < QUERIES; u++) {
        float *mine = parts + (team * QUERIES + u) * part;
        if (lane == 0) {
            mine[0] = query[u].max;
            mine[1] = query[u].sum;
        }
#pragma unroll
        for (unsigned p = 0; p < PACKS; p++)
#pragma unroll
            for (unsigned j = 0; j < N; j++) {
                unsigned d = (p * lanes + lane) * N + j;
                if (d < D)
                    mine[2 + d] = query[u].acc[p][j];
            }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < QUERIES * D; i += CACHED_THREADS) {
        unsigned u = i / D, d = i % D;
        if (first + u >= count)
            break;
        float max, sum, value = merge_parts(parts + u * part, teams, QUERIES * part, d, &max, &sum);
        size_t row = (first + u) / group, head = blockIdx.y * group + (first + u) % group;
        if (walk.splits == 1) {
            static_cast<T *>(args.out)[(row * args.heads + head) * D + d] =
                from_f32<T>(value / sum);
            continue;
        }
        float *to = walk.partial + ((row * args.heads + head) * walk.splits + blockIdx.z) * part;
        if (d == 0) {
            to[0] = max;
            to[1] = sum;
        }
        to[2 + d] = value;
    }
}

/* A warp per row and head. */
template <class T>
__global__ void splits_merge_kernel(struct sl_attention_cached_args args, cached_walk walk)
{
    size_t query = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (query >= args.rows * args.heads)
        return;
    unsigned D = (unsigned)args.head_size;
    const float *parts = walk.partial + query * walk.splits * (2 + D);
    for (unsigned d = threadIdx.x % 32; d < D; d += 32) {
        float max, sum, value = merge_parts(parts, walk.splits, 2 + D, d, &max, &sum);
        static_cast<T *>(args.out)[query * D + d] = from_f32<T>(value / sum);
    }
}

size_t div_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* Enough parts to fill the GPU, none of them too small, all of them inside scratch. */
void share_out(const struct sl_cuda_context *context, const struct sl_attention_cached_args *args,
               size_t blocks, cached_walk *walk)
{
    size_t first = args->position_first;
    walk->key_first =
        (unsigned)(args->window && first + 1 > args->window ? first + 1 - args->window : 0);
    walk->key_end = (unsigned)(first + args->rows);
    size_t keys = walk->key_end - walk->key_first;
    size_t query_bytes = args->rows * args->heads * (2 + args->head_size) * sizeof(float);
    size_t splits = div_up(CACHED_BLOCKS, blocks), most = div_up(keys, CACHED_SPLIT_KEYS);
    splits = splits < most ? splits : most;
    if (splits * query_bytes > context->scratch_bytes)
        splits = context->scratch_bytes / query_bytes;
    splits = splits ? splits : 1;
    walk->split_keys = (unsigned)div_up(keys, splits);
    walk->splits = (unsigned)div_up(keys, walk->split_keys);
    walk->partial = static_cast<float *>(context->scratch);
}

template <class T, unsigned QUERIES>
cudaError_t launch_cached(const struct sl_cuda_context *context,
                          const struct sl_attention_cached_args *args, cached_walk walk)
{
    size_t tiles = div_up(args->rows * (args->heads / args->kv_heads), QUERIES);
    share_out(context, args, tiles * args->kv_heads, &walk);
    size_t packs = div_up(args->head_size, (size_t)pack_count<T> * lane_packs<T>);
    walk.lanes = 1;
    while (walk.lanes < packs)
        walk.lanes *= 2;
    size_t shared = CACHED_THREADS / walk.lanes * QUERIES * (2 + args->head_size) * sizeof(float);
    auto kernel = attention_cached_kernel<T, QUERIES>;
    dim3 grid((unsigned)tiles, (unsigned)args->kv_heads, walk.splits);
    SL_LAUNCH(kernel, grid, CACHED_THREADS, shared, context->stream, *args, walk);
    cudaError_t error = cudaGetLastError();
    if (error || walk.splits == 1)
        return error;
    auto merge = splits_merge_kernel<T>;
    SL_LAUNCH(merge, sl_blocks(args->rows * args->heads, CACHED_THREADS / 32), CACHED_THREADS, 0,
              context->stream, *args, walk);
    return cudaGetLastError();
}

template <class T>
cudaError_t launch_type(const struct sl_cuda_context *context,
                        const struct sl_attention_cached_args *args)
{
    size_t group = args->heads / args->kv_heads, width = args->kv_heads * args->head_size;
    cached_walk walk = {};
    walk.whole = args->head_size % pack_count<T> == 0 && packs_whole<T>(args->qkv, 0, 0) &&
                 packs_whole<T>(args->keys, 0, 0) && packs_whole<T>(args->values, 0, 0);
    auto append = cache_append_kernel<T>;
    SL_LAUNCH(append, sl_blocks(args->rows * div_up(width, pack_count<T>), 256), 256, 0,
              context->stream, *args, walk.whole);
    cudaError_t error = cudaGetLastError();
    if (error)
        return error;
    if (args->rows * group == 1)
        return launch_cached<T, 1>(context, args, walk);
    if (args->rows * group <= 4)
        return launch_cached<T, 4>(context, args, walk);
    return launch_cached<T, 8>(context, args, walk);
}

} // namespace

cudaError_t sl_cuda_attention_cached(const struct sl_cuda_context *context,
                                     const struct sl_attention_cached_args *args)
{
    if (!args->rows)
        return cudaSuccess;
    if (!args->head_size || args->head_size > CACHED_HEAD_MAX || !args->kv_heads ||
        args->heads % args->kv_heads || args->position_first + args->rows > INT32_MAX ||
        args->kv_heads > 65535)
        return cudaErrorInvalidValue;
    cudaError_t error = cudaSuccess;
    SL_WITH_TYPE(context->type, T, { error = launch_type<T>(context, args); });
    return error;
}
