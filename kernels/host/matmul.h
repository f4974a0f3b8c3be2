// SPDX-License-Identifier: Apache-2.0
/* Matrix products in tiles. OpenBLAS is called from here only, one thread a call.
 *
 * OpenBLAS gives other bits for other tile shapes and thread counts, so a product is cut into tiles
 * that are a function of its kind and (rows, inputs, outputs) alone: sl_host_matmul_tiling. The
 * caller runs the tiles on any threads in any order.
 */
#ifndef SLUICE_KERNELS_HOST_MATMUL_H
#define SLUICE_KERNELS_HOST_MATMUL_H

#include "kernels/host/host.h"

enum sl_host_matmul_kind {
    SL_HOST_MATMUL_FORWARD,         /* y (+)= x W^T + bias */
    SL_HOST_MATMUL_BACKWARD_INPUT,  /* x (+)= y W */
    SL_HOST_MATMUL_BACKWARD_WEIGHT, /* dweight += y^T x, dbias += column sums of y */
};

/* Shapes  W, dweight: [outputs, inputs]; x: [rows, inputs]; y: [rows, outputs]; strides in
 *         elements, not 0 */
struct sl_host_matmul {
    enum sl_host_matmul_kind kind;
    size_t rows, inputs, outputs;
    size_t x_stride, y_stride;
    float *x, *y;
    bool accumulate;
    struct sl_host_weight weight, bias;
    float *dweight, *dbias;
};

/* The result is [m, n], summed over k. */
struct sl_host_tiling {
    size_t m, n, k;
    size_t m_tile, n_tile, k_tile; /* k_tile: elements of k widened at a time */
    size_t m_count, n_count;
    bool few_rows; /* by matvec.c, without BLAS */
};

/* FORWARD products of at most this many rows go by matvec.c. */
#define SL_HOST_FEW_ROWS 4u

/* No side of a tile is longer. */
#define SL_HOST_TILE_MAX 512u

/* Room for one widened piece of a 16-bit weight. */
#define SL_HOST_MATMUL_SCRATCH_BYTES ((size_t)1 << 20)

void sl_host_matmul_tiling(const struct sl_host_matmul *a, struct sl_host_tiling *tiling);

static inline size_t sl_host_matmul_task_count(const struct sl_host_tiling *tiling)
{
    return tiling->m_count * tiling->n_count;
}

/* Do one tile.
 *
 * Memory   scratch: SL_HOST_MATMUL_SCRATCH_BYTES, 64-byte aligned, of this thread alone
 * Threads  tiles of one product may run at once; starts none */
void sl_host_matmul_tile(const struct sl_host_kernels *kernels, const struct sl_host_matmul *a,
                         const struct sl_host_tiling *tiling, size_t task_index, float *scratch);

/* c[m, n] = alpha op(a) op(b) + beta c in the calling thread, for attention's blocks. */
struct sl_host_gemm {
    bool a_transposed, b_transposed;
    size_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
    size_t a_stride, b_stride, c_stride;
};
void sl_host_gemm(const struct sl_host_gemm *g);

/* Make OpenBLAS use the calling thread alone, process-wide.
 *
 * Threads  no BLAS call may run meanwhile */
void sl_host_blas_init(void);

/* Name of the BLAS core in use ("Haswell", "SkylakeX"): part of a run's numeric fingerprint. */
const char *sl_host_blas_core(void);

/* A product of the largest tile, so that the calling thread's BLAS buffer is mapped and touched.
 * scratch: as for a tile; result: SL_HOST_TILE_MAX squared floats. */
void sl_host_blas_warm(float *scratch, float *result);

/* Resident bytes of that buffer, rounded up; measured by tests/offload/test_device_host.c. */
#define SL_HOST_BLAS_THREAD_BYTES ((size_t)2 << 20)

#endif
