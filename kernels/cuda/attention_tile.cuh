// SPDX-License-Identifier: Apache-2.0
/* Tiles of the flash kernels: [rows, D] of 16-bit elements in shared memory, and the two products
 * that attention is made of.
 *
 * D is the padded head size (64, 128, 256; the rest is zero). A row is D / 8 chunks of 16 bytes;
 * chunk c of row r lies at position c ^ (r % 8), so that the eight rows of an 8x8 matrix always hit
 * eight different bank groups, along rows and along columns.
 *
 * A warp owns M groups of 16 rows of every product. `acc[m][n][e]` is element (row, column):
 *     row = 16 m + g + 8 * (e / 2),  column = 8 n + 2 t + e % 2      g = lane / 4, t = lane % 4
 */
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_TILE_CUH
#define SLUICE_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

namespace
{

template <unsigned D> __device__ __forceinline__ unsigned tile_index(unsigned row, unsigned chunk)
{
    return row * D + ((chunk ^ (row & 7u)) * 8u);
}

/* Where a lane finds its line of the 8x8 matrices of a tile: rows [first, first + 8), `first` a
 * multiple of 8; chunks `half`, `half` + 2, ... An exclusive or turns them, so that all products of
 * a tile share four addresses and reach the rest by constant offsets. */
template <unsigned D, class T> struct tile_line {
    const T *tile;
    unsigned index;

    __device__ __forceinline__ tile_line(const T *tile_, unsigned first, unsigned half)
        : tile(tile_), index((first + threadIdx.x % 8) * D + ((half ^ (threadIdx.x % 8)) * 8))
    {
    }

    /* The line at chunk `even` + half, `rows` (a multiple of 8) further down. */
    __device__ __forceinline__ const T *at(unsigned even, unsigned rows) const
    {
        return tile + (index ^ ((even & 7u) * 8u)) + ((even & ~7u) * 8u + rows * D);
    }
};

/* Start copying rows [first, first + ROWS) of a head; zeros past `end` and past the head size. */
template <unsigned D, unsigned ROWS, unsigned THREADS, class T>
__device__ __forceinline__ void tile_load(T *tile, const T *x, size_t stride, unsigned first,
                                          unsigned end, unsigned head_size)
{
    constexpr unsigned CHUNKS = D / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies the same number of chunks");
#pragma unroll 2 /* more would hold addresses in registers that the products need */
    for (unsigned i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        unsigned at = threadIdx.x + i * THREADS;
        unsigned row = at / CHUNKS, chunk = at % CHUNKS;
        bool valid = first + row < end && chunk * 8 < head_size;
        const T *from = valid ? x + (size_t)(first + row) * stride + chunk * 8 : x;
        copy_async(tile + tile_index<D>(row, chunk), from, valid);
    }
}

/* acc[16 M, N] = a[16 M, D] b[N, D]^T: the warp's rows start at row `a_row` of tile a. Each
 * fragment of b that is read from shared memory serves M row groups: its bandwidth is what limits M
 * = 1. */
template <unsigned D, unsigned N, unsigned M, class T>
__device__ __forceinline__ void product_rows(float (&acc)[M][N / 8][4], const T *a, unsigned a_row,
                                             const T *b)
{
    unsigned matrix = threadIdx.x % 32 / 8;
    /* a's matrices: (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)
     * b's:          (columns 0-7, k 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15) */
    const tile_line<D, T> a_line(a, a_row + (matrix & 1) * 8, matrix / 2);
    const tile_line<D, T> b_line(b, matrix / 2 * 8, matrix & 1);
#pragma unroll
    for (unsigned m = 0; m < M; m++)
#pragma unroll
        for (unsigned n = 0; n < N / 8; n++)
#pragma unroll
            for (unsigned e = 0; e < 4; e++)
                acc[m][n][e] = 0;
#pragma unroll (M == 1 ? D / 64 : 1) /* two row groups leave no registers for more */
    for (unsigned block = 0; block < D / 64; block++)
#pragma unroll
        for (unsigned k = 0; k < 4; k++) {
            unsigned even = 8 * block + 2 * k;
            uint32_t left[M][4];
#pragma unroll
            for (unsigned m = 0; m < M; m++)
                load_matrices(left[m], a_line.at(even, 16 * m));
#pragma unroll
            for (unsigned n = 0; n < N / 16; n++) {
                uint32_t right[4];
                load_matrices(right, b_line.at(even, 16 * n));
#pragma unroll
                for (unsigned m = 0; m < M; m++) {
                    mma_16x8x16<T>(acc[m][2 * n], left[m], right[0], right[1]);
                    mma_16x8x16<T>(acc[m][2 * n + 1], left[m], right[2], right[3]);
                }
            }
        }
}

/* acc[16 M, D] += p[16 M, K] b[K, D]: p is a result of product_rows, rounded to T on the way in. */
template <unsigned D, unsigned K, unsigned M, class T>
__device__ __forceinline__ void product_add(float (&acc)[M][D / 8][4],
                                            const float (&p)[M][K / 8][4], const T *b)
{
    unsigned matrix = threadIdx.x % 32 / 8;
    /* b's matrices: (k 0-7, d 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15), each read transposed */
    const tile_line<D, T> b_line(b, (matrix & 1) * 8, matrix / 2);
#pragma unroll
    for (unsigned k = 0; k < K / 16; k++) {
        uint32_t left[M][4];
#pragma unroll
        for (unsigned m = 0; m < M; m++)
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
                left[m][i] = pair_bits<T>(p[m][2 * k + i / 2][i % 2 * 2],
                                          p[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (unsigned d = 0; d < D / 16; d++) {
            uint32_t right[4];
            load_matrices_transposed(right, b_line.at(2 * d, 16 * k));
#pragma unroll
            for (unsigned m = 0; m < M; m++) {
                mma_16x8x16<T>(acc[m][2 * d], left[m], right[0], right[1]);
                mma_16x8x16<T>(acc[m][2 * d + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* Write the warp's 16 rows of acc, times a factor per row half, through its own rows of a tile in
 * shared memory (which nobody else reads any more) to global memory in 16-byte pieces. */
template <unsigned D, class T>
__device__ __forceinline__ void rows_store(T *out, size_t stride, unsigned first, unsigned end,
                                           unsigned head_size, const float (&acc)[D / 8][4],
                                           const float (&factor)[2], T *tile, unsigned tile_row)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (unsigned n = 0; n < D / 8; n++)
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            T *at = tile + tile_index<D>(tile_row + g + 8 * half, n) + 2 * t;
            *reinterpret_cast<uint32_t *>(at) =
                pair_bits<T>(acc[n][2 * half] * factor[half], acc[n][2 * half + 1] * factor[half]);
        }
    __syncwarp();
    for (unsigned i = lane; i < 16 * (D / 8); i += 32) {
        unsigned row = i / (D / 8), chunk = i % (D / 8);
        if (first + row < end && chunk * 8 < head_size)
            *reinterpret_cast<uint4 *>(out + (size_t)(first + row) * stride + chunk * 8) =
                *reinterpret_cast<const uint4 *>(tile + tile_index<D>(tile_row + row, chunk));
    }
}

} // namespace

#endif
