// SPDX-License-Identifier: Apache-2.0
/* Tiles, widening, and the one place that calls BLAS.
 *
 * Problem: bits may not depend on the thread count, 2 to 64 threads should all have work, weights
 * are often bf16, and OpenBLAS repacks its operands on every call.
 * Choice: tiles as large as parallel work allows, by the shape alone (tile_size): packing costs a
 * fixed share of a tile's sides, so 512 x 512 results reach 97 % of a large product's speed, 256 x
 * 256 93 %, 128 x 128 84 %. A 16-bit weight is widened tile by tile into the thread's scratch,
 * k_tile elements of the reduction at a time, and the pieces accumulate in order (beta = 1). With
 * m_tile rows a widened element serves 2 * m_tile operations: 1 to 3 % of the time.
 * Rejected: widening a whole matrix first (a second copy of the weights in memory), OpenBLAS's own
 * threads (bits depend on their number), sbgemm (not fp32 accumulation of fp32 activations).
 * Invariant: a result element is written by one tile, its k pieces in ascending order.
 */
#include "kernels/host/matmul.h"

#include <assert.h>
#include <cblas.h>
#include <string.h>

#define TILE_MAX SL_HOST_TILE_MAX
#define TILE_GOOD 256u /* not smaller than this for the sake of more than TILES_FEW tiles */
#define TILE_MIN 64u
#define TILES_MANY 64u
#define TILES_FEW 12u
#define TILE_FLOPS_MIN 1.5e7     /* of a smaller tile the pool's hand-over would be noticed */
#define TILE_ALIGN 16u           /* no tile splits a vector */
#define FEW_ROWS_ELEMENTS 65536u /* weights per task: some 10 microseconds of memory traffic */
#define WIDENED_ELEMENTS (SL_HOST_MATMUL_SCRATCH_BYTES / sizeof(float))

static size_t div_up(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

/* Tiles of equal size rather than full ones and a remainder. */
static size_t even_tile(size_t total, size_t tile_max)
{
    size_t count = div_up(total, tile_max);
    size_t tile = div_up(total, count);
    return div_up(tile, TILE_ALIGN) * TILE_ALIGN;
}

static void tile_size(struct sl_host_tiling *t, size_t m_max, size_t n_max)
{
    t->m_tile = even_tile(t->m, m_max);
    t->n_tile = even_tile(t->n, n_max);
    t->m_count = div_up(t->m, t->m_tile);
    t->n_count = div_up(t->n, t->n_tile);
}

static bool worth_splitting(const struct sl_host_tiling *t, size_t m_max, size_t n_max)
{
    size_t count = t->m_count * t->n_count;
    bool good = m_max > TILE_GOOD || n_max > TILE_GOOD;
    double flops = 2.0 * (double)t->m_tile * (double)t->n_tile * (double)t->k;
    return (m_max > TILE_MIN || n_max > TILE_MIN) && flops >= 2 * TILE_FLOPS_MIN &&
           count < (good ? TILES_MANY : TILES_FEW);
}

void sl_host_matmul_tiling(const struct sl_host_matmul *a, struct sl_host_tiling *t)
{
    bool forward = a->kind == SL_HOST_MATMUL_FORWARD;
    bool gradient = a->kind == SL_HOST_MATMUL_BACKWARD_WEIGHT;
    size_t m_max = TILE_MAX, n_max = TILE_MAX;
    t->m = gradient ? a->outputs : a->rows;
    t->n = forward ? a->outputs : a->inputs;
    t->k = forward ? a->inputs : gradient ? a->rows : a->outputs;
    t->few_rows = forward && a->rows <= SL_HOST_FEW_ROWS;
    if (t->few_rows) {
        tile_size(t, SL_HOST_FEW_ROWS, 1 + FEW_ROWS_ELEMENTS / (t->k + 1));
        t->k_tile = t->k;
        return;
    }
    tile_size(t, m_max, n_max);
    while (worth_splitting(t, m_max, n_max)) {
        if (m_max >= n_max)
            m_max /= 2;
        else
            n_max /= 2;
        tile_size(t, m_max, n_max);
    }
    bool widened = !gradient && a->weight.dtype != SL_F32;
    t->k_tile =
        widened ? even_tile(t->k, WIDENED_ELEMENTS / t->n_tile / TILE_ALIGN * TILE_ALIGN) : t->k;
}

void sl_host_gemm(const struct sl_host_gemm *g)
{
    cblas_sgemm(CblasRowMajor, g->a_transposed ? CblasTrans : CblasNoTrans,
                g->b_transposed ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n,
                (blasint)g->k, g->alpha, g->a, (blasint)g->a_stride, g->b, (blasint)g->b_stride,
                g->beta, g->c, (blasint)g->c_stride);
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
                            const struct sl_host_tiling *t, struct tile r, float *scratch)
{
    bool forward = a->kind == SL_HOST_MATMUL_FORWARD;
    const float *left = forward ? a->x : a->y;
    size_t left_stride = forward ? a->x_stride : a->y_stride;
    float *result = forward ? a->y : a->x;
    size_t result_stride = forward ? a->y_stride : a->x_stride;
    result += r.m_first * result_stride + r.n_first;
    left += r.m_first * left_stride;
    for (size_t k = 0; k < t->k; k += t->k_tile) {
        size_t k_count = t->k - k < t->k_tile ? t->k - k : t->k_tile;
        size_t first = forward ? r.n_first * a->inputs + k : k * a->inputs + r.n_first;
        struct sl_host_gemm g = {.b_transposed = forward,
                                 .m = r.m,
                                 .n = r.n,
                                 .k = k_count,
                                 .alpha = 1,
                                 .beta = k > 0 || a->accumulate ? 1 : 0,
                                 .a = left + k,
                                 .a_stride = left_stride,
                                 .c = result,
                                 .c_stride = result_stride};
        if (a->weight.dtype == SL_F32) {
            g.b = (const float *)a->weight.data + first;
            g.b_stride = a->inputs;
        } else {
            size_t b_rows = forward ? r.n : k_count, b_width = forward ? k_count : r.n;
            kernels->widen(scratch, a->weight, first, b_rows, a->inputs, b_width);
            g.b = scratch;
            g.b_stride = b_width;
        }
        sl_host_gemm(&g);
    }
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
                          struct tile r)
{
    if (a->dweight) {
        struct sl_host_gemm g = {.a_transposed = true,
                                 .m = r.m,
                                 .n = r.n,
                                 .k = a->rows,
                                 .alpha = 1,
                                 .beta = 1,
                                 .a = a->y + r.m_first,
                                 .a_stride = a->y_stride,
                                 .b = a->x + r.n_first,
                                 .b_stride = a->x_stride,
                                 .c = a->dweight + r.m_first * a->inputs + r.n_first,
                                 .c_stride = a->inputs};
        sl_host_gemm(&g);
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
        gradient_tile(kernels, a, r);
    else if (tiling->few_rows)
        few_rows_tile(kernels, a, r);
    else
        activation_tile(kernels, a, tiling, r, scratch);
}

void sl_host_blas_init(void)
{
    openblas_set_num_threads(1);
}

void sl_host_blas_warm(float *scratch, float *result)
{
    size_t k = SL_HOST_MATMUL_SCRATCH_BYTES / sizeof(float) / TILE_MAX;
    memset(scratch, 0, SL_HOST_MATMUL_SCRATCH_BYTES);
    sl_host_gemm(&(struct sl_host_gemm){.b_transposed = true,
                                        .m = TILE_MAX,
                                        .n = TILE_MAX,
                                        .k = k,
                                        .alpha = 1,
                                        .a = scratch,
                                        .a_stride = k,
                                        .b = scratch,
                                        .b_stride = k,
                                        .c = result,
                                        .c_stride = TILE_MAX});
}

const char *sl_host_blas_core(void)
{
    return openblas_get_corename();
}
