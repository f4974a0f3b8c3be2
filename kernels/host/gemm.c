// SPDX-License-Identifier: Apache-2.0
/* c = alpha op(a) op(b) (+ c) for one thread: the arithmetic of every matrix product.
 *
 * Problem: OpenBLAS gives other bits for other shapes and cores, so tiles had to be a function of
 * the shape alone; it packs both operands anew for each tile, and a 16-bit weight had to be widened
 * into memory before it was packed.
 * Choice: an element is written as one sequence of operations, whatever the tile, the thread count
 * and the instruction set:
 *
 *     for each GEMM_DEPTH elements of k, ascending:
 *         sum = 0;  sum = fma(a[i, k], b[k, j], sum) for each k, ascending
 *         c   = alpha sum  the first time without accumulation,  fma(alpha, sum, c) otherwise
 *
 * The loops are those of GotoBLAS (Goto and van de Geijn, 2008): a chunk of b is packed, and
 * widened on the way, into panels of PANEL columns that stay in the second-level cache; then ROWS
 * rows of a at a time are packed into the first level and multiplied with every panel, ROWS x PANEL
 * results in registers.
 *
 *     b chunk  panel 0: [depth][PANEL]  panel 1: [depth][PANEL]  ...    a strip: [depth][ROWS]
 *
 * Rejected: packing all of a first (a strip is used once for each chunk, while it is in the first
 * level), longer sums without a cut (the error of a sum of 50,000 elements grows).
 */
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"

/* ROWS x PANEL sums, a row of b's panel and an element of a fill the registers: 32, or 16. */
#if defined(__AVX512F__)
#define ROWS 14
#define PANEL_PARTS 2
#elif defined(__AVX2__)
#define ROWS 6
#define PANEL_PARTS 2
#else
#define ROWS 4
#define PANEL_PARTS 4
#endif
#define PANEL (PANEL_PARTS * PART_LANES)
#define DEPTH SL_HOST_GEMM_DEPTH
/* A row of a strip is stored as whole parts, the next row over the last one's end. */
#define STRIP_FLOATS (DEPTH * ROWS + PART_LANES)

_Static_assert(ROWS <= PART_LANES, "a strip's row is one part");
_Static_assert(SL_HOST_GEMM_COLUMNS % PANEL == 0, "a chunk is whole panels");
_Static_assert((SL_HOST_GEMM_COLUMNS * DEPTH + STRIP_FLOATS) * sizeof(float) <=
                   SL_HOST_GEMM_SCRATCH_BYTES,
               "a chunk and a strip fit");

#if PART_LANES == 16
#define LOW_HALVES(a, b)                                                                           \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_HALVES(a, b)                                                                          \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif PART_LANES == 8
#define LOW_HALVES(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW_HALVES(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Element j of row i becomes element i of row j: as often as PART_LANES has bits, rows i and
 * i + half are interleaved to rows 2 i and 2 i + 1. */
VECTOR void transpose(fpart rows[PART_LANES])
{
#pragma GCC unroll 4
    for (int width = 1; width < PART_LANES; width *= 2) {
        fpart next[PART_LANES];
#pragma GCC unroll 8
        for (int i = 0; i < PART_LANES / 2; i++) {
            next[2 * i] = LOW_HALVES(rows[i], rows[i + PART_LANES / 2]);
            next[2 * i + 1] = HIGH_HALVES(rows[i], rows[i + PART_LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < PART_LANES; i++)
            rows[i] = next[i];
    }
}

/* n (0..PART_LANES) elements from index `first`, widened; the others are 0. */
VECTOR fpart load_part(struct sl_host_weight from, size_t first, size_t n)
{
    float lanes[LANES] = {0};
    fpart r;
    if (__builtin_expect(n == PART_LANES, 1)) {
#if PART_LANES == 16
        return vload_weight(from.data, from.dtype, first, LANES).p[0];
#elif PART_LANES == 8
        if (from.dtype == SL_F32)
            return (fpart)_mm256_loadu_ps((const float *)from.data + first);
        __m128i half = _mm_loadu_si128((const __m128i *)((const uint16_t *)from.data + first));
        return from.dtype == SL_BF16 ? (fpart)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)
                                     : (fpart)_mm256_cvtph_ps(half);
#endif
    }
    if (n > 0)
        vstore(lanes, vload_weight(from.data, from.dtype, first, n));
    memcpy(&r, lanes, sizeof r);
    return r;
}

/* `rows` (1..PART_LANES) rows of `depth` elements -> [depth][to_stride], a whole part each. */
VECTOR void pack_transposed(float *to, size_t to_stride, struct sl_host_weight from, size_t first,
                            size_t from_stride, size_t rows, size_t depth)
{
    for (size_t k = 0; k < depth; k += PART_LANES) {
        size_t n = depth - k < PART_LANES ? depth - k : PART_LANES;
        fpart block[PART_LANES];
        if (__builtin_expect(rows == PART_LANES && n == PART_LANES, 1)) {
#pragma GCC unroll 16
            for (size_t i = 0; i < PART_LANES; i++)
                block[i] = load_part(from, first + i * from_stride + k, PART_LANES);
        } else {
#pragma GCC unroll 16
            for (size_t i = 0; i < PART_LANES; i++)
                block[i] = load_part(from, first + i * from_stride + k, i < rows ? n : 0);
        }
        transpose(block);
#pragma GCC unroll 16
        for (size_t i = 0; i < PART_LANES; i++)
            if (i < n)
                memcpy(to + (k + i) * to_stride, &block[i], sizeof block[i]);
    }
}

/* One row of a panel, of which b has `columns` or more than it takes; the rest is 0. */
VECTOR void pack_row(float *to, struct sl_host_weight from, size_t first, size_t columns)
{
    for (size_t v = 0; v < PANEL; v += LANES) {
        size_t n = columns <= v ? 0 : columns - v < LANES ? columns - v : LANES;
        vstore(to + v, n ? vload_weight(from.data, from.dtype, first + v, n) : vset(0));
    }
}

/* Rows of b taken at a time: each is read on, and each panel written on, in few streams. */
#define PACK_ROWS 8u

VECTOR void pack_b(const struct sl_host_gemm *g, enum sl_dtype dtype, size_t k_first, size_t depth,
                   float *chunk)
{
    struct sl_host_weight from = {g->b.data, dtype};
    if (g->b_transposed) {
        for (size_t j = 0; j < (g->n + PANEL - 1) / PANEL * PANEL; j += PART_LANES) {
            size_t rows = j >= g->n ? 0 : g->n - j < PART_LANES ? g->n - j : PART_LANES;
            float *to = chunk + j / PANEL * PANEL * depth + j % PANEL;
            pack_transposed(to, PANEL, from, g->b_first + j * g->b_stride + k_first, g->b_stride,
                            rows, depth);
        }
        return;
    }
    for (size_t k = 0; k < depth; k += PACK_ROWS) {
        size_t end = depth - k < PACK_ROWS ? depth : k + PACK_ROWS;
        for (size_t j = 0; j < g->n; j += PANEL)
            for (size_t row = k; row < end; row++)
                pack_row(chunk + j * depth + row * PANEL, from,
                         g->b_first + (k_first + row) * g->b_stride + j, g->n - j);
    }
}

VECTOR void pack_a(const struct sl_host_gemm *g, size_t i, size_t rows, size_t k_first,
                   size_t depth, float *strip)
{
    if (!g->a_transposed) {
        struct sl_host_weight from = {g->a, SL_F32};
        pack_transposed(strip, ROWS, from, i * g->a_stride + k_first, g->a_stride, rows, depth);
        return;
    }
    const float *from = g->a + k_first * g->a_stride + i;
    if (rows == ROWS)
        for (size_t k = 0; k < depth; k++)
            memcpy(strip + k * ROWS, from + k * g->a_stride, ROWS * sizeof(float));
    else
        for (size_t k = 0; k < depth; k++)
            memcpy(strip + k * ROWS, from + k * g->a_stride, rows * sizeof(float));
}

struct block {
    const float *strip, *panel;
    float *c;
    size_t c_stride, columns, depth;
    float alpha;
    bool add;
};

/* a * b + c, rounded once */
VECTOR fpart part_fma(fpart a, fpart b, fpart c)
{
#if defined(__AVX512F__)
    return (fpart)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (fpart)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (fpart)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    fpart r;
    for (int l = 0; l < PART_LANES; l++)
        r[l] = fmaf(a[l], b[l], c[l]);
    return r;
#endif
}

VECTOR void store_sum(const struct block *b, float *to, fpart sum)
{
    fpart alpha = b->alpha - (fpart){0}, before;
    memcpy(&before, to, sizeof before);
    if (b->add)
        sum = part_fma(alpha, sum, before);
    else
        sum = alpha * sum;
    memcpy(to, &sum, sizeof sum);
}

/* rows x columns results; `rows` is a constant in every copy of this function. */
VECTOR void multiply(const struct block *b, const size_t rows)
{
    fpart sum[ROWS][PANEL_PARTS];
#pragma GCC unroll 14
    for (size_t i = 0; i < rows; i++) {
        __builtin_prefetch(b->c + i * b->c_stride, 1);
        __builtin_prefetch(b->c + i * b->c_stride + PANEL - 1, 1);
#pragma GCC unroll 4
        for (size_t v = 0; v < PANEL_PARTS; v++)
            sum[i][v] = (fpart){0};
    }
    const float *strip = b->strip, *panel = b->panel;
    for (size_t k = 0; k < b->depth; k++, strip += ROWS, panel += PANEL) {
        fpart right[PANEL_PARTS];
#pragma GCC unroll 4
        for (size_t v = 0; v < PANEL_PARTS; v++)
            memcpy(&right[v], panel + v * PART_LANES, sizeof right[v]);
#pragma GCC unroll 14
        for (size_t i = 0; i < rows; i++) {
            fpart left = strip[i] - (fpart){0};
#pragma GCC unroll 4
            for (size_t v = 0; v < PANEL_PARTS; v++)
                sum[i][v] = part_fma(left, right[v], sum[i][v]);
        }
    }
    if (b->columns == PANEL) {
#pragma GCC unroll 14
        for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (size_t v = 0; v < PANEL_PARTS; v++)
                store_sum(b, b->c + i * b->c_stride + v * PART_LANES, sum[i][v]);
        return;
    }
#pragma GCC unroll 14
    for (size_t i = 0; i < rows; i++) { /* the last columns: by way of a whole row */
        float *to = b->c + i * b->c_stride, row[PANEL] = {0};
        memcpy(row, to, b->columns * sizeof(float));
#pragma GCC unroll 4
        for (size_t v = 0; v < PANEL_PARTS; v++)
            store_sum(b, row + v * PART_LANES, sum[i][v]);
        memcpy(to, row, b->columns * sizeof(float));
    }
}

#define ROWS_CASE(n)                                                                               \
    case n:                                                                                        \
        multiply(b, n);                                                                            \
        break

/* ThreadSanitizer is told of whole runs of memory: of element after element, in the innermost loop,
 * it takes most of a test's time. */
#if defined(__SANITIZE_THREAD__)
void __tsan_read_range(const void *from, unsigned long bytes);
void __tsan_write_range(void *to, unsigned long bytes);
#define TELL_READ(from, bytes) __tsan_read_range(from, bytes)
#define TELL_WRITE(to, bytes) __tsan_write_range(to, bytes)
#else
#define TELL_READ(from, bytes) ((void)0)
#define TELL_WRITE(to, bytes) ((void)0)
#endif

__attribute__((no_sanitize("thread"))) static void multiply_rows(const struct block *b, size_t rows)
{
    for (size_t i = 0; i < rows; i++)
        TELL_WRITE(b->c + i * b->c_stride, b->columns * sizeof(float));
    switch (rows) {
#if ROWS > 6
        ROWS_CASE(14);
        ROWS_CASE(13);
        ROWS_CASE(12);
        ROWS_CASE(11);
        ROWS_CASE(10);
        ROWS_CASE(9);
        ROWS_CASE(8);
        ROWS_CASE(7);
#endif
#if ROWS > 4
        ROWS_CASE(6);
        ROWS_CASE(5);
#endif
        ROWS_CASE(4);
        ROWS_CASE(3);
        ROWS_CASE(2);
        ROWS_CASE(1);
    }
}

/* Strips of nearly equal height: a last strip of one row would cost as much as a higher one. */
static void multiply_chunk(const struct sl_host_gemm *g, size_t k, size_t depth, const float *chunk,
                           float *strip)
{
    size_t strips = (g->m + ROWS - 1) / ROWS;
    TELL_READ(chunk, (g->n + PANEL - 1) / PANEL * PANEL * depth * sizeof(float));
    for (size_t s = 0; s < strips; s++) {
        size_t i = g->m * s / strips, rows = g->m * (s + 1) / strips - i;
        pack_a(g, i, rows, k, depth, strip);
        TELL_READ(strip, depth * ROWS * sizeof(float));
        for (size_t j = 0; j < g->n; j += PANEL)
            multiply_rows(&(struct block){.strip = strip,
                                          .panel = chunk + j * depth,
                                          .c = g->c + i * g->c_stride + j,
                                          .c_stride = g->c_stride,
                                          .columns = g->n - j < PANEL ? g->n - j : PANEL,
                                          .depth = depth,
                                          .alpha = g->alpha,
                                          .add = k > 0 || g->accumulate},
                          rows);
    }
}

/* At most SL_HOST_GEMM_COLUMNS columns. */
static void multiply_columns(const struct sl_host_gemm *g, float *scratch)
{
    float *chunk = scratch, *strip = scratch + SL_HOST_GEMM_COLUMNS * DEPTH;
    for (size_t k = 0; k < g->k; k += DEPTH) {
        size_t depth = g->k - k < DEPTH ? g->k - k : DEPTH;
        if (g->b.dtype == SL_BF16)
            pack_b(g, SL_BF16, k, depth, chunk);
        else if (g->b.dtype == SL_F16)
            pack_b(g, SL_F16, k, depth, chunk);
        else
            pack_b(g, SL_F32, k, depth, chunk);
        multiply_chunk(g, k, depth, chunk, strip);
    }
}

void HOST(gemm)(const struct sl_host_gemm *a, float *scratch)
{
    struct sl_host_gemm g = *a;
    for (size_t j = 0; j < a->n; j += SL_HOST_GEMM_COLUMNS) {
        g.n = a->n - j < SL_HOST_GEMM_COLUMNS ? a->n - j : SL_HOST_GEMM_COLUMNS;
        g.b_first = a->b_first + (a->b_transposed ? j * a->b_stride : j);
        g.c = a->c + j;
        multiply_columns(&g, scratch);
    }
}
