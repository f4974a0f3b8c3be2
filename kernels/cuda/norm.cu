// SPDX-License-Identifier: Apache-2.0
/* RMSNorm, RMSNorm with 1 + w, LayerNorm; forward and backward.
 *
 * Problem: few arithmetic per byte, rows from 64 (per-head norms) to 16,384 elements.
 * Choice: a warp per row up to 512 elements, else a block of 256; a row is read from DRAM once and
 * again from L1, so no row must fit in registers. Statistics are f32, the variance is taken around
 * the mean. The weight gradient is summed per block in shared memory over the rows that the block
 * walks, written to scratch, and the blocks are added in order (columns.cu): one pass over x and
 * dout. Rejected: a second pass over both for the weight gradient; atomics.
 * Invariant: which rows a block walks depends on rows and width alone.
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned NORM_THREADS = 256;
constexpr size_t WARP_WIDTH_MAX = 512;
/* Blocks that share the rows of a backward pass: enough for every multiprocessor of the targets,
 * few enough that adding their sums costs little. */
constexpr size_t BACKWARD_BLOCKS_MAX = 264;
constexpr size_t BACKWARD_SHARED_MAX = 96u << 10;

struct row_layout {
    size_t rows, width, row_group, row_stride;
    bool whole;

    __device__ size_t offset(size_t row) const
    {
        return row / row_group * row_stride + row % row_group * width;
    }
};

struct row_statistics {
    float mean, rstd;
};

/* Mean (LayerNorm; else 0) and reciprocal deviation of one row, over the row's THREADS threads. */
template <class T, unsigned THREADS>
__device__ row_statistics statistics(const T *x, const row_layout &layout, bool centred, float eps,
                                     float *shared)
{
    constexpr unsigned N = pack_count<T>;
    unsigned lane = threadIdx.x % THREADS;
    float value[N], mean = 0, sum = 0;
    if (centred) {
        for (size_t i = lane * N; i < layout.width; i += THREADS * N) {
            load_pack(value, x, i, layout.width, layout.whole);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                sum += value[j];
        }
        mean = group_sum<THREADS>(sum, shared) / (float)layout.width;
        sum = 0;
    }
    for (size_t i = lane * N; i < layout.width; i += THREADS * N) {
        load_pack(value, x, i, layout.width, layout.whole);
#pragma unroll
        for (unsigned j = 0; j < N; j++) {
            float centre = layout.whole || i + j < layout.width ? value[j] - mean : 0.0f;
            sum += centre * centre;
        }
    }
    float variance = group_sum<THREADS>(sum, shared) / (float)layout.width;
    return {mean, 1.0f / sqrtf(variance + eps)};
}

template <class T, unsigned THREADS>
__global__ void norm_kernel(row_layout layout, enum sl_norm_kind kind, float eps, const T *x,
                            struct sl_weight weight, struct sl_weight bias, T *out)
{
    constexpr unsigned N = pack_count<T>;
    __shared__ float shared[NORM_THREADS / 32];
    size_t row = (size_t)blockIdx.x * (NORM_THREADS / THREADS) + threadIdx.x / THREADS;
    if (row >= layout.rows) /* whole groups only: THREADS is the block or a warp */
        return;
    x += layout.offset(row);
    out += layout.offset(row);
    row_statistics s = statistics<T, THREADS>(x, layout, kind == SL_NORM_LAYER, eps, shared);
    float one = kind == SL_NORM_RMS_PLUS_ONE ? 1.0f : 0.0f;
    for (size_t i = threadIdx.x % THREADS * N; i < layout.width; i += THREADS * N) {
        float value[N], w[N], b[N] = {};
        load_pack(value, x, i, layout.width, layout.whole);
        load_vector<T>(w, weight.data, weight.dtype, i, layout.width, layout.whole);
        if (bias.data)
            load_vector<T>(b, bias.data, bias.dtype, i, layout.width, layout.whole);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            value[j] = (value[j] - s.mean) * s.rstd * (one + w[j]) + b[j];
        store_pack(out, value, i, layout.width, layout.whole);
    }
}

struct backward_pointers {
    const void *x, *dout;
    void *dx;
    struct sl_weight weight;
    float *partial;      /* [blocks, vectors, width] in scratch, or NULL: frozen */
    unsigned vectors;    /* 1: dweight, 2: and dbias */
    bool sums_in_shared; /* else the block's sums live in its part of `partial` */
    bool accumulate_dx;
};

/* Where the warps (or the block) keep their running sums of dweight and dbias. */
template <unsigned THREADS>
__device__ float *backward_sums(const backward_pointers &p, size_t width, float *dynamic)
{
    unsigned group = threadIdx.x / THREADS;
    if (p.sums_in_shared)
        return dynamic + group * p.vectors * width;
    return p.partial + (size_t)blockIdx.x * p.vectors * width; /* one group per block */
}

template <class T, unsigned THREADS>
__device__ void backward_row(const row_layout &layout, enum sl_norm_kind kind, float eps,
                             const backward_pointers &p, size_t row, float *sums, float *shared)
{
    constexpr unsigned N = pack_count<T>;
    size_t offset = layout.offset(row), width = layout.width;
    const T *x = static_cast<const T *>(p.x) + offset;
    const T *dout = static_cast<const T *>(p.dout) + offset;
    T *dx = static_cast<T *>(p.dx) + offset;
    bool centred = kind == SL_NORM_LAYER;
    float one = kind == SL_NORM_RMS_PLUS_ONE ? 1.0f : 0.0f;
    row_statistics s = statistics<T, THREADS>(x, layout, centred, eps, shared);

    float value[N], grad[N], w[N], sum_g = 0, sum_gx = 0;
    for (size_t i = threadIdx.x % THREADS * N; i < width; i += THREADS * N) {
        load_pack(value, x, i, width, layout.whole);
        load_pack(grad, dout, i, width, layout.whole);
        load_vector<T>(w, p.weight.data, p.weight.dtype, i, width, layout.whole);
#pragma unroll
        for (unsigned j = 0; j < N; j++) { /* past the end grad is 0 */
            float g = grad[j] * (one + w[j]);
            sum_g += g;
            sum_gx += g * (value[j] - s.mean) * s.rstd;
        }
    }
    float mean_g = centred ? group_sum<THREADS>(sum_g, shared) / (float)width : 0.0f;
    float mean_gx = group_sum<THREADS>(sum_gx, shared) / (float)width;

    for (size_t i = threadIdx.x % THREADS * N; i < width; i += THREADS * N) {
        float old[N] = {};
        load_pack(value, x, i, width, layout.whole);
        load_pack(grad, dout, i, width, layout.whole);
        load_vector<T>(w, p.weight.data, p.weight.dtype, i, width, layout.whole);
        if (p.accumulate_dx)
            load_pack(old, dx, i, width, layout.whole);
#pragma unroll
        for (unsigned j = 0; j < N; j++) {
            float xhat = (value[j] - s.mean) * s.rstd;
            if (p.partial && (layout.whole || i + j < width)) {
                sums[i + j] += grad[j] * xhat;
                if (p.vectors == 2)
                    sums[width + i + j] += grad[j];
            }
            value[j] = old[j] + s.rstd * (grad[j] * (one + w[j]) - mean_g - xhat * mean_gx);
        }
        store_pack(dx, value, i, width, layout.whole);
    }
}

template <class T, unsigned THREADS>
__global__ void norm_backward_kernel(row_layout layout, enum sl_norm_kind kind, float eps,
                                     backward_pointers p)
{
    constexpr unsigned GROUPS = NORM_THREADS / THREADS;
    SL_DYNAMIC_SHARED(float, dynamic);
    __shared__ float shared[NORM_THREADS / 32];
    size_t length = p.vectors * layout.width;
    float *sums = p.partial ? backward_sums<THREADS>(p, layout.width, dynamic) : nullptr;
    if (p.partial)
        for (size_t i = threadIdx.x % THREADS; i < length; i += THREADS)
            sums[i] = 0;
    __syncthreads();
    for (size_t row = (size_t)blockIdx.x * GROUPS + threadIdx.x / THREADS; row < layout.rows;
         row += (size_t)gridDim.x * GROUPS)
        backward_row<T, THREADS>(layout, kind, eps, p, row, sums, shared);
    if (!p.partial || !p.sums_in_shared)
        return;
    __syncthreads();
    for (size_t i = threadIdx.x; i < length; i += NORM_THREADS) {
        float total = dynamic[i];
        for (unsigned group = 1; group < GROUPS; group++)
            total += dynamic[group * length + i];
        p.partial[blockIdx.x * length + i] = total;
    }
}

/* Of each block's sums, vector 0 is dweight's and vector 1 dbias's. */
cudaError_t add_partials(const struct sl_cuda_context *context,
                         const struct sl_norm_backward_args *args, const backward_pointers &p,
                         size_t blocks)
{
    size_t width = args->width, stride = p.vectors * width;
    cudaError_t error =
        sl_cuda_partials_add(context, args->dweight, p.partial, blocks, width, stride);
    if (!error && p.vectors == 2)
        error =
            sl_cuda_partials_add(context, args->dbias, p.partial + width, blocks, width, stride);
    return error;
}

template <class T, unsigned THREADS>
cudaError_t launch_backward(const struct sl_cuda_context *context,
                            const struct sl_norm_backward_args *args, const row_layout &layout)
{
    constexpr size_t GROUPS = NORM_THREADS / THREADS;
    backward_pointers p = {args->x, args->dout, args->dx, args->weight,
                           nullptr, 1,          false,    args->accumulate_dx};
    size_t blocks = (args->rows + GROUPS - 1) / GROUPS;
    blocks = blocks > BACKWARD_BLOCKS_MAX ? BACKWARD_BLOCKS_MAX : blocks;
    size_t shared = 0;
    if (args->dweight) {
        p.partial = static_cast<float *>(context->scratch);
        p.vectors = args->dbias ? 2 : 1;
        size_t sums = p.vectors * args->width * sizeof(float);
        size_t parts_max = context->scratch_bytes / sums;
        if (!parts_max)
            return cudaErrorInvalidValue;
        blocks = blocks > parts_max ? parts_max : blocks;
        p.sums_in_shared = GROUPS * sums <= BACKWARD_SHARED_MAX;
        shared = p.sums_in_shared ? GROUPS * sums : 0;
    }
    auto kernel = norm_backward_kernel<T, THREADS>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)BACKWARD_SHARED_MAX);
    if (error)
        return error;
    SL_LAUNCH(kernel, (unsigned)blocks, NORM_THREADS, shared, context->stream, layout, args->kind,
              args->eps, p);
    error = cudaGetLastError();
    return error || !p.partial ? error : add_partials(context, args, p, blocks);
}

} // namespace

cudaError_t sl_cuda_norm(const struct sl_cuda_context *context, const struct sl_norm_args *args)
{
    if (!args->rows || !args->width)
        return cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        const T *x = static_cast<const T *>(args->x);
        T *out = static_cast<T *>(args->out);
        row_layout layout = {
            args->rows, args->width, args->row_group, args->row_stride,
            packs_whole<T>(x, args->width, args->row_stride) && packs_whole<T>(out, 0, 0) &&
                packs_whole<T>(args->weight.data, 0, 0) && packs_whole<T>(args->bias.data, 0, 0)};
        if (args->width <= WARP_WIDTH_MAX) {
            auto kernel = norm_kernel<T, 32>;
            SL_LAUNCH(kernel, sl_blocks(args->rows, NORM_THREADS / 32), NORM_THREADS, 0,
                      context->stream, layout, args->kind, args->eps, x, args->weight, args->bias,
                      out);
        } else {
            auto kernel = norm_kernel<T, NORM_THREADS>;
            SL_LAUNCH(kernel, (unsigned)args->rows, NORM_THREADS, 0, context->stream, layout,
                      args->kind, args->eps, x, args->weight, args->bias, out);
        }
    });
    return cudaGetLastError();
}

cudaError_t sl_cuda_norm_backward(const struct sl_cuda_context *context,
                                  const struct sl_norm_backward_args *args)
{
    if (!args->rows || !args->width)
        return cudaSuccess;
    cudaError_t error = cudaSuccess;
    SL_WITH_TYPE(context->type, T, {
        row_layout layout = {args->rows, args->width, args->row_group, args->row_stride,
                             packs_whole<T>(args->x, args->width, args->row_stride) &&
                                 packs_whole<T>(args->dout, 0, 0) &&
                                 packs_whole<T>(args->dx, 0, 0) &&
                                 packs_whole<T>(args->weight.data, 0, 0)};
        error = args->width <= WARP_WIDTH_MAX
                    ? launch_backward<T, 32>(context, args, layout)
                    : launch_backward<T, NORM_THREADS>(context, args, layout);
    });
    return error;
}
