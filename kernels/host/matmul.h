// SPDX-License-Identifier: Apache-2.0
/* Matrix products in tiles.
 *
 * A result's bits do not depend on the tile that it is in (gemm.c), so the tiles are chosen for the
 * number of threads: sl_host_matmul_tiling. The caller runs them on any threads in any order.
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
    size_t m_tile, n_tile;
    size_t m_count, n_count;
    bool few_rows; /* by matvec.c */
};

/* FORWARD products of at most this many rows go by matvec.c, which sums in another order. */
#define SL_HOST_FEW_ROWS 4u

void sl_host_matmul_tiling(const struct sl_host_matmul *a, size_t thread_count,
                           struct sl_host_tiling *tiling);

static inline size_t sl_host_matmul_task_count(const struct sl_host_tiling *tiling)
{
    return tiling->m_count * tiling->n_count;
}

/* Do one tile.
 *
 * Memory   scratch: SL_HOST_GEMM_SCRATCH_BYTES, 64-byte aligned, of this thread alone
 * Threads  tiles of one product may run at once; starts none */
void sl_host_matmul_tile(const struct sl_host_kernels *kernels, const struct sl_host_matmul *a,
                         const struct sl_host_tiling *tiling, size_t task_index, float *scratch);

#endif
