// SPDX-License-Identifier: Apache-2.0
/* Passes over a gradient, in the operations of the vector header included before.
 *
 * Problem   The norm must have the same bits on every processor and thread count, and may not cost
 *           a pass of its own.
 * Choice    Sixteen fp64 lane sums per chunk, whatever the register width, reduced by halving: wide
 *           enough to hide the latency of the adder on every set, and the order is written here
 *           once. The rounding to the gradient's type and the squares of what was rounded share the
 *           pass; the sum tells by itself whether a value was not finite.
 * Rejected  fp32 partial sums (they overflow at 1.8e19 and lose 3 digits on large tensors); Kahan
 *           sums (fp64 is exact enough and half the operations).
 * Invariant A tail is the full-width operation on a padded copy: zeros add exactly nothing.
 */
#ifndef SLUICE_KERNELS_CPU_GRADIENT_BODY_H
#define SLUICE_KERNELS_CPU_GRADIENT_BODY_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/gradient.h"
#include "kernels/cpu/vector_cast.h"

/* Lanes (l, l + 8), (l, l + 4), (l, l + 2), (0, 1). */
static double reduce_lanes(double x[16])
{
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

/* How many are NaN or infinite. Run only over chunks whose sum of squares is not finite: squares of
 * finite f32 cannot overflow an f64, so a finite sum proves that every element is. */
INLINE uint64_t count_nonfinite(const void *x, enum sl_dtype dtype, size_t count)
{
    const vi exponent = vi_set1(0x7f800000u);
    vi negative = vi_set1(0); /* minus the counts: masks are -1 */
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        vi bits = vi_from_bits(v_load_dtype(x, dtype, i));
        negative = vi_add(negative, vi_eq(vi_and(bits, exponent), exponent));
    }
    uint64_t total = sum_lanes(vi_sub(vi_set1(0), negative));
    for (; i < count; i++)
        total += !isfinite(sl_dtype_load(x, dtype, i));
    return total;
}

INLINE vd add_squares(vd sum, const void *x, enum sl_dtype dtype, size_t i)
{
    if (dtype == SL_BF16)
        return vd_add_square_bf16(sum, (const uint16_t *)x + i);
    return vd_add_square(sum, v_load_dtype(x, dtype, i));
}

INLINE void measure_run(const void *x, enum sl_dtype dtype, size_t count, double *squares,
                        uint64_t *nonfinite)
{
    vd sum = vd_zero();
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        sum = add_squares(sum, x, dtype, i);
    if (i < count) {
        float padded[16] = {0};
        size_t bytes = sl_dtype_bytes(dtype);
        memcpy(padded, (const char *)x + i * bytes, (count - i) * bytes);
        sum = add_squares(sum, padded, dtype, 0);
    }
    double lanes[16], elements[16];
    vd_store(lanes, sum);
    for (int element = 0; element < 16; element++)
        elements[element] = lanes[dtype == SL_BF16 ? VD_BF16_LANE(element) : element];
    *squares = reduce_lanes(elements);
    *nonfinite = isfinite(*squares) ? 0 : count_nonfinite(x, dtype, count);
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

INLINE vd finish_16(vd squares, const float *sum, void *out, enum sl_dtype dtype, size_t index)
{
    vf x = v_load(sum);
    vf rounded = x;
    if (dtype == SL_BF16) {
        vi half = vi_bf16_from_f32(x);
        vi_store_high((uint16_t *)out + index, half);
        rounded = v_from_bits(vi_and(half, vi_set1(0xffff0000u)));
    } else if (dtype == SL_F16) {
        uint16_t stored[16];
        v_store_f16(stored, x);
        memcpy((uint16_t *)out + index, stored, sizeof(stored));
        rounded = v_load_f16(stored);
    } else if (out != (const void *)(sum - index)) {
        v_store((float *)out + index, x);
    }
    return vd_add_square(squares, rounded);
}

INLINE void finish_run(const float *sum, void *out, enum sl_dtype dtype, size_t count,
                       double *squares, uint64_t *nonfinite)
{
    vd total = vd_zero();
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        total = finish_16(total, sum + i, out, dtype, i);
    if (i < count) {
        float padded[16] = {0}, written[16];
        memcpy(padded, sum + i, (count - i) * sizeof(float));
        total = finish_16(total, padded, written, dtype, 0);
        memcpy((char *)out + i * sl_dtype_bytes(dtype), written,
               (count - i) * sl_dtype_bytes(dtype));
    }
    double lanes[16];
    vd_store(lanes, total);
    *squares = reduce_lanes(lanes);
    *nonfinite = isfinite(*squares) ? 0 : count_nonfinite(out, dtype, count);
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
