// SPDX-License-Identifier: Apache-2.0
/* Column sums (bias gradients), bias addition, and casts for matrix products.
 *
 * Problem: a column sum over many rows must fill the GPU and still add in one order.
 * Choice: rows are cut into parts, a fixed function of the row count; each part writes its sums to
 * scratch, and a second kernel adds the parts in order. Rejected: atomics (another order each run).
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

namespace
{

constexpr unsigned COLUMN_THREADS = 256, COLUMN_LANES = 8;

/* partial[part, c] = sum of x[r, c] over the part's rows. A block is 32 packs of columns wide and 8
 * rows deep; grid.y is the part. */
template <class T>
__global__ void column_parts_kernel(float *partial, const T *x, size_t rows, size_t width,
                                    size_t stride, size_t part_rows, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    __shared__ float sums[COLUMN_LANES][32][N];
    unsigned column = threadIdx.x % 32, row_lane = threadIdx.x / 32;
    size_t c = ((size_t)blockIdx.x * 32 + column) * N;
    size_t first = blockIdx.y * part_rows,
           end = first + part_rows < rows ? first + part_rows : rows;
    float sum[N] = {};
    if (c < width)
        for (size_t r = first + row_lane; r < end; r += COLUMN_LANES) {
            float value[N];
            load_pack(value, x + r * stride, c, width, whole);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                sum[j] += value[j];
        }
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        sums[row_lane][column][j] = sum[j];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 32 * N; i += COLUMN_THREADS) {
        size_t out = (size_t)blockIdx.x * 32 * N + i;
        float total = 0;
        for (unsigned lane = 0; lane < COLUMN_LANES; lane++)
            total += sums[lane][i / N][i % N];
        if (out < width)
            partial[blockIdx.y * width + out] = total;
    }
}

/* out[c] += sum of partial[p, c] over p: 8 interleaved runs of parts, then the runs in order. */
__global__ void partials_add_kernel(float *out, const float *partial, size_t parts, size_t width,
                                    size_t part_stride)
{
    __shared__ float sums[COLUMN_LANES][32];
    unsigned column = threadIdx.x % 32, run = threadIdx.x / 32;
    size_t c = (size_t)blockIdx.x * 32 + column;
    float sum = 0;
    if (c < width)
        for (size_t p = run; p < parts; p += COLUMN_LANES)
            sum += partial[p * part_stride + c];
    sums[run][column] = sum;
    __syncthreads();
    if (run == 0 && c < width) {
        for (unsigned i = 1; i < COLUMN_LANES; i++)
            sum += sums[i][column];
        out[c] += sum;
    }
}

template <class T>
__global__ void bias_add_kernel(T *y, size_t rows, size_t width, size_t stride, const void *bias,
                                enum sl_dtype bias_dtype, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t packs = (width + N - 1) / N;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * packs)
        return;
    T *row = y + i / packs * stride;
    size_t c = i % packs * N;
    float value[N], add[N];
    load_pack(value, row, c, width, whole);
    load_vector<T>(add, bias, bias_dtype, c, width, whole);
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        value[j] += add[j];
    store_pack(row, value, c, width, whole);
}

/* One thread turns 8 f32 into 16 bytes. */
template <class T>
__global__ void cast_kernel(T *out, const float *x, size_t rows, size_t width, size_t stride,
                            size_t out_stride, bool whole)
{
    constexpr unsigned N = pack_count<T>;
    size_t packs = (width + N - 1) / N;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * packs)
        return;
    size_t r = i / packs, c = i % packs * N;
    float value[N], part[4];
#pragma unroll
    for (unsigned half = 0; half < N; half += 4) {
        load_pack(part, x + r * stride, c + half, width, whole);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            value[half + j] = part[j];
    }
    store_pack(out + r * out_stride, value, c, width, whole);
}

} // namespace

cudaError_t sl_cuda_partials_add(const struct sl_cuda_context *context, float *out,
                                 const float *partial, size_t parts, size_t width,
                                 size_t part_stride)
{
    auto kernel = partials_add_kernel;
    SL_LAUNCH(kernel, sl_blocks(width, 32), COLUMN_THREADS, 0, context->stream, out, partial, parts,
              width, part_stride);
    return cudaGetLastError();
}

cudaError_t sl_cuda_column_sums(const struct sl_cuda_context *context, float *out, const void *x,
                                enum sl_dtype dtype, size_t rows, size_t width, size_t stride)
{
    if (!rows || !width)
        return cudaSuccess;
    /* 128 rows a part or more, so that parts cost little beside the rows they stand for. */
    size_t parts_max = context->scratch_bytes / (width * sizeof(float));
    size_t parts = (rows + 127) / 128;
    parts = parts > 64 ? 64 : parts;
    parts = parts > parts_max ? parts_max : parts;
    if (!parts)
        return cudaErrorInvalidValue;
    size_t part_rows = (rows + parts - 1) / parts;
    float *partial = static_cast<float *>(context->scratch);
    SL_WITH_TYPE(dtype, T, {
        auto kernel = column_parts_kernel<T>;
        dim3 grid(sl_blocks(width, (size_t)32 * pack_count<T>), (unsigned)parts);
        SL_LAUNCH(kernel, grid, COLUMN_THREADS, 0, context->stream, partial,
                  static_cast<const T *>(x), rows, width, stride, part_rows,
                  packs_whole<T>(x, width, stride));
    });
    cudaError_t error = cudaGetLastError();
    return error ? error : sl_cuda_partials_add(context, out, partial, parts, width, width);
}

cudaError_t sl_cuda_bias_add(const struct sl_cuda_context *context, void *y, enum sl_dtype dtype,
                             size_t rows, size_t width, size_t stride, const struct sl_weight *bias)
{
    if (!rows || !width)
        return cudaSuccess;
    SL_WITH_TYPE(dtype, T, {
        auto kernel = bias_add_kernel<T>;
        size_t packs = (width + pack_count<T> - 1) / pack_count<T>;
        bool whole = packs_whole<T>(y, width, stride) && packs_whole<T>(bias->data, 0, 0);
        SL_LAUNCH(kernel, sl_blocks(rows * packs, 256), 256, 0, context->stream,
                  static_cast<T *>(y), rows, width, stride, bias->data, bias->dtype, whole);
    });
    return cudaGetLastError();
}

cudaError_t sl_cuda_cast(const struct sl_cuda_context *context, void *out, const float *x,
                         size_t rows, size_t width, size_t stride, size_t out_stride)
{
    if (!rows || !width)
        return cudaSuccess;
    size_t packs = (width + 7) / 8;
    bool whole = packs_whole<bf16>(x, width, stride) && packs_whole<bf16>(out, width, out_stride);
    if (context->type == SL_BF16) {
        auto kernel = cast_kernel<bf16>;
        SL_LAUNCH(kernel, sl_blocks(rows * packs, 256), 256, 0, context->stream,
                  static_cast<bf16 *>(out), x, rows, width, stride, out_stride, whole);
    } else if (context->type == SL_F16) {
        auto kernel = cast_kernel<f16>;
        SL_LAUNCH(kernel, sl_blocks(rows * packs, 256), 256, 0, context->stream,
                  static_cast<f16 *>(out), x, rows, width, stride, out_stride, whole);
    } else {
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
