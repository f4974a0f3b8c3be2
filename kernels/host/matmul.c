// SPDX-License-Identifier: Apache-2.0
/* Matrix products: how they are cut into tasks.
 *
 * Problem: 2 to 64 threads should all have work until the end, and each tile packs its operands
 * anew: a column of b once for each row of tiles, a row of a once for each column of tiles.
 * Choice: of the cuts into powers of two, the one that a small model of the time finds best. What a
 * result element is does not depend on its tile (gemm.c), so nothing but time does.
 * Rejected: tiles fixed by the shape alone (small enough for 64 threads, they cost two threads 5
 * %), packing once for all tiles (memory for a whole widened weight, and a wait between the two
 * phases).
 */
#include "kernels/host/matmul.h"

#include <assert.h>

#define TILE_ALIGN 32u           /* no tile splits a panel of gemm.c */
#define FEW_ROWS_ELEMENTS 65536u /* weights per task: some 10 microseconds of memory traffic */

/* In the time of one multiply-add of one column and row, measured on AVX-512 and AVX2 cores: */
#define PACK_COST 12.0     /* packing an element of either operand */
#define TILE_COST 1e5      /* handing a tile over, for all of k */
#define WAKE_COST 7.5e5    /* waking other threads, for all tiles */

static size_t div_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

/* About `count` tiles of equal size rather than full ones and a remainder. */
static void cut(size_t total, size_t count, size_t *tile, size_t *tiles)
{
    *tile = div_up(div_up(total, count), TILE_ALIGN) * TILE_ALIGN;
    *tiles = div_up(total, *tile);
}

/* Time until the last thread is done. Tiles do not all take equally long: a thread waits for
 * a tenth of one. */
static double tiling_time(const struct sl_host_tiling *t, size_t threads)
{
    size_t count = t->m_count * t->n_count;
    double m = (double)t->m_tile, n = (double)t->n_tile, k = (double)t->k;
    double rounds = (double)count / (double)threads + (threads > 1 ? 0.1 : 0);
    double full_rounds = (double)div_up(count, threads);
    double tile = (m * n + PACK_COST * (m + n)) * k + TILE_COST;
    return tile * (rounds > full_rounds ? rounds : full_rounds) + (count > 1 ? WAKE_COST : 0);
}

void sl_host_matmul_tiling(const struct sl_host_matmul *a, size_t thread_count,
                           struct sl_host_tiling *t)
{
    bool forward = a->kind == SL_HOST_MATMUL_FORWARD;
    bool gradient = a->kind == SL_HOST_MATMUL_BACKWARD_WEIGHT;
    t->m = gradient ? a->outputs : a->rows;
    t->n = forward ? a->outputs : a->inputs;
    t->k = forward ? a->inputs : gradient ? a->rows : a->outputs;
    t->few_rows = forward && a->rows <= SL_HOST_FEW_ROWS;
    if (t->few_rows) {
        size_t outputs = 1 + FEW_ROWS_ELEMENTS / (t->k + 1);
        cut(t->m, 1, &t->m_tile, &t->m_count);
        cut(t->n, div_up(t->n, outputs), &t->n_tile, &t->n_count);
        return;
    }
    struct sl_host_tiling best = *t, next = *t;
    double best_time = 0;
    size_t n_least = div_up(t->n, SL_HOST_GEMM_COLUMNS);
    for (size_t m = 1; m == 1 || t->m / m >= TILE_ALIGN; m *= 2)
        for (size_t n = n_least; n == n_least || t->n / n >= TILE_ALIGN; n *= 2) {
            cut(t->m, m, &next.m_tile, &next.m_count);
            cut(t->n, n, &next.n_tile, &next.n_count);
            double time = tiling_time(&next, thread_count);
            if (best_time == 0 || time < best_time) {
                best_time = time;
                best = next;
            }
        }
    *t = best;
}

struct tile {
    size_t m_first, m, n_first, n;
};

static struct tile tile_of(const struct sl_host_tiling *t, size_t task_index)
{
    struct tile r;
    r.m_first = task_index % t->m_count * t->m_tile;
    r.n_first = task_index / t->m_count * t->n_tile;
    r.m = t->m - r.m_first < t->m_tile ? t->m - r.m_first : t->m_tile;
    r.n = t->n - r.n_first < t->n_tile ? t->n - r.n_first : t->n_tile;
    return r;
}

/* y or dx tile: the weight is the right operand, transposed in FORWARD. */
static void activation_tile(const struct sl_host_kernels *kernels, const struct sl_host_matmul *a,
                            struct tile r, float *scratch)
{
    bool forward = a->kind == SL_HOST_MATMUL_FORWARD;
    size_t left_stride = forward ? a->x_stride : a->y_stride;
    size_t result_stride = forward ? a->y_stride : a->x_stride;
    float *result = (forward ? a->y : a->x) + r.m_first * result_stride + r.n_first;
    struct sl_host_gemm g = {.b_transposed = forward,
                             .accumulate = a->accumulate,
                             .m = r.m,
                             .n = r.n,
                             .k = forward ? a->inputs : a->outputs,
                             .alpha = 1,
                             .a = (forward ? a->x : a->y) + r.m_first * left_stride,
                             .a_stride = left_stride,
                             .b = a->weight,
                             .b_first = forward ? r.n_first * a->inputs : r.n_first,
                             .b_stride = a->inputs,
                             .c = result,
                             .c_stride = result_stride};
    kernels->gemm(&g, scratch);
    if (forward && a->bias.data)
        kernels->bias_add(result, r.m, result_stride, a->bias, r.n_first, r.n);
}

static void few_rows_tile(const struct sl_host_kernels *kernels, const struct sl_host_matmul *a,
                          struct tile r)
{
    struct sl_host_matvec v = {.rows = r.m,
                               .inputs = a->inputs,
                               .outputs = r.n,
                               .first = r.n_first * a->inputs,
                               .x_stride = a->x_stride,
                               .y_stride = a->y_stride,
                               .x = a->x,
                               .weight = a->weight,
                               .y = a->y + r.n_first,
                               .accumulate = a->accumulate};
    kernels->matvec(&v);
    if (a->bias.data)
        kernels->bias_add(v.y, r.m, a->y_stride, a->bias, r.n_first, r.n);
}

static void gradient_tile(const struct sl_host_kernels *kernels, const struct sl_host_matmul *a,
                          struct tile r, float *scratch)
{
    if (a->dweight) {
        struct sl_host_gemm g = {.a_transposed = true,
                                 .accumulate = true,
                                 .m = r.m,
                                 .n = r.n,
                                 .k = a->rows,
                                 .alpha = 1,
                                 .a = a->y + r.m_first,
                                 .a_stride = a->y_stride,
                                 .b = {a->x, SL_F32},
                                 .b_first = r.n_first,
                                 .b_stride = a->x_stride,
                                 .c = a->dweight + r.m_first * a->inputs + r.n_first,
                                 .c_stride = a->inputs};
        kernels->gemm(&g, scratch);
    }
    if (a->dbias && r.n_first == 0)
        kernels->column_sum(a->dbias + r.m_first, a->y + r.m_first, a->rows, a->y_stride, r.m);
}

void sl_host_matmul_tile(const struct sl_host_kernels *kernels, const struct sl_host_matmul *a,
                         const struct sl_host_tiling *tiling, size_t task_index, float *scratch)
{
    assert(a->x_stride >= a->inputs && a->y_stride >= a->outputs);
    struct tile r = tile_of(tiling, task_index);
    if (a->kind == SL_HOST_MATMUL_BACKWARD_WEIGHT)
        gradient_tile(kernels, a, r, scratch);
    else if (tiling->few_rows)
        few_rows_tile(kernels, a, r);
    else
        activation_tile(kernels, a, r, scratch);
}
