// SPDX-License-Identifier: Apache-2.0
/* Passes over a gradient, in the operations of the vector header included before.
 *
 * Problem   The norm must have the same bits on every processor and thread count, and may not cost
 * a pass of its own. Choice    Sixteen fp64 lane sums per chunk, whatever the register width,
 * reduced by halving: wide enough to hide the latency of the adder on every set, and the order is
 * written here once. The rounding to the gradient's type, the squares of what was rounded, and the
 *           count of non-finite values share the pass.
 * Rejected  fp32 partial sums (they overflow at 1.8e19 and lose 3 digits on large tensors); Kahan
 *           sums (fp64 is exact enough and half the operations).
 * Invariant A tail is the full-width operation on a padded copy: zeros add exactly nothing.
 */
#ifndef SLUICE_KERNELS_CPU_GRADIENT_BODY_H
#define SLUICE_KERNELS_CPU_GRADIENT_BODY_H

#include <string.h>

#include "kernels/cpu/gradient.h"
#include "kernels/cpu/vector_cast.h"

/* Lanes (l, l + 8), (l, l + 4), (l, l + 2), (0, 1). */
static double reduce_lanes(vd lanes)
{
    double x[16];
    vd_store(x, lanes);
    for (int half = 8; half >= 1; half /= 2)
        for (int lane = 0; lane < half; lane++)
            x[lane] += x[lane + half];
    return x[0];
}

static uint64_t sum_lanes(vi lanes)
{
    uint32_t x[16];
    v_store((float *)x, v_from_bits(lanes));
    uint64_t sum = 0;
    for (int lane = 0; lane < 16; lane++)
        sum += x[lane];
    return sum;
}

struct measure {
    vd squares;
    vi nonfinite; /* minus the number of non-finite values: masks are -1 */
};

INLINE void measure_16(struct measure *state, vf x)
{
    vi exponent = vi_set1(0x7f800000u);
    state->squares = vd_add_square(state->squares, x);
    state->nonfinite = vi_add(state->nonfinite, vi_eq(vi_and(vi_from_bits(x), exponent), exponent));
}

INLINE void measure_end(const struct measure *state, double *squares, uint64_t *nonfinite)
{
    *squares = reduce_lanes(state->squares);
    *nonfinite = sum_lanes(vi_sub(vi_set1(0), state->nonfinite));
}

INLINE void measure_run(const void *x, enum sl_dtype dtype, size_t count, double *squares,
                        uint64_t *nonfinite)
{
    struct measure state = {vd_zero(), vi_set1(0)};
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        measure_16(&state, v_load_dtype(x, dtype, i));
    if (i < count) {
        float padded[16] = {0};
        size_t bytes = sl_dtype_bytes(dtype);
        memcpy(padded, (const char *)x + i * bytes, (count - i) * bytes);
        measure_16(&state, v_load_dtype(padded, dtype, 0));
    }
    measure_end(&state, squares, nonfinite);
}

static void gradient_measure_chunk(const void *x, enum sl_dtype dtype, size_t count,
                                   double *squares, uint64_t *nonfinite)
{
    if (dtype == SL_F32)
        measure_run(x, SL_F32, count, squares, nonfinite);
    else if (dtype == SL_BF16)
        measure_run(x, SL_BF16, count, squares, nonfinite);
    else
        measure_run(x, SL_F16, count, squares, nonfinite);
}

INLINE void finish_16(struct measure *state, const float *sum, void *out, enum sl_dtype dtype,
                      size_t index)
{
    vf x = v_load(sum);
    vf rounded = x;
    if (dtype == SL_BF16) {
        vi half = vi_bf16_from_f32(x);
        vi_store_u16((uint16_t *)out + index, half);
        rounded = v_from_bf16(half);
    } else if (dtype == SL_F16) {
        vi half = vi_f16_from_f32(x);
        uint16_t stored[16];
        vi_store_u16(stored, half);
        memcpy((uint16_t *)out + index, stored, sizeof(stored));
        rounded = v_load_f16(stored);
    } else if (out != (const void *)(sum - index)) {
        v_store((float *)out + index, x);
    }
    measure_16(state, rounded);
}

INLINE void finish_run(const float *sum, void *out, enum sl_dtype dtype, size_t count,
                       double *squares, uint64_t *nonfinite)
{
    struct measure state = {vd_zero(), vi_set1(0)};
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        finish_16(&state, sum + i, out, dtype, i);
    if (i < count) {
        float padded[16] = {0}, written[16];
        memcpy(padded, sum + i, (count - i) * sizeof(float));
        finish_16(&state, padded, written, dtype, 0);
        memcpy((char *)out + i * sl_dtype_bytes(dtype), written,
               (count - i) * sl_dtype_bytes(dtype));
    }
    measure_end(&state, squares, nonfinite);
}

static void gradient_finish_chunk(const float *sum, void *out, enum sl_dtype dtype, size_t count,
                                  double *squares, uint64_t *nonfinite)
{
    if (dtype == SL_F32)
        finish_run(sum, out, SL_F32, count, squares, nonfinite);
    else if (dtype == SL_BF16)
        finish_run(sum, out, SL_BF16, count, squares, nonfinite);
    else
        finish_run(sum, out, SL_F16, count, squares, nonfinite);
}

INLINE void accumulate_run(float *sum, const void *x, enum sl_dtype dtype, size_t count)
{
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        v_store(sum + i, v_add(v_load(sum + i), v_load_dtype(x, dtype, i)));
    if (i < count) {
        float sum_padded[16] = {0}, x_padded[16] = {0};
        memcpy(sum_padded, sum + i, (count - i) * sizeof(float));
        memcpy(x_padded, (const char *)x + i * sl_dtype_bytes(dtype),
               (count - i) * sl_dtype_bytes(dtype));
        v_store(sum_padded, v_add(v_load(sum_padded), v_load_dtype(x_padded, dtype, 0)));
        memcpy(sum + i, sum_padded, (count - i) * sizeof(float));
    }
}

static void gradient_accumulate(float *sum, const void *x, enum sl_dtype dtype, size_t count)
{
    if (dtype == SL_F32)
        accumulate_run(sum, x, SL_F32, count);
    else if (dtype == SL_BF16)
        accumulate_run(sum, x, SL_BF16, count);
    else
        accumulate_run(sum, x, SL_F16, count);
}

INLINE void cast_run(void *out, enum sl_dtype to, const void *x, enum sl_dtype from, size_t count)
{
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        v_store_dtype(out, to, i, v_load_dtype(x, from, i));
    if (i < count) {
        float in_padded[16] = {0}, out_padded[16];
        memcpy(in_padded, (const char *)x + i * sl_dtype_bytes(from),
               (count - i) * sl_dtype_bytes(from));
        v_store_dtype(out_padded, to, 0, v_load_dtype(in_padded, from, 0));
        memcpy((char *)out + i * sl_dtype_bytes(to), out_padded, (count - i) * sl_dtype_bytes(to));
    }
}

static void cast_to_f32(float *out, const void *x, enum sl_dtype dtype, size_t count)
{
    if (dtype == SL_F32)
        memmove(out, x, count * sizeof(float));
    else if (dtype == SL_BF16)
        cast_run(out, SL_F32, x, SL_BF16, count);
    else
        cast_run(out, SL_F32, x, SL_F16, count);
}

static void cast_from_f32(void *out, enum sl_dtype dtype, const float *x, size_t count)
{
    if (dtype == SL_F32)
        memmove(out, x, count * sizeof(float));
    else if (dtype == SL_BF16)
        cast_run(out, SL_BF16, x, SL_F32, count);
    else
        cast_run(out, SL_F16, x, SL_F32, count);
}

#endif
