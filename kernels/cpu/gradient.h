// SPDX-License-Identifier: Apache-2.0
/* Passes over a gradient as it arrives: rounding, norm, finiteness, accumulation, casts. */
#ifndef SLUICE_KERNELS_CPU_GRADIENT_H
#define SLUICE_KERNELS_CPU_GRADIENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

/* Round one chunk of a finished f32 gradient, and measure what was written.
 *
 * Shapes   sum: [count] f32; out: [count] of dtype (may be `sum` where dtype is f32);
 *          count <= SL_GRADIENT_CHUNK (offload/device.h)
 * Numerics *squares: fp64 sum of squares of the rounded values: 16 lane sums, lane i taking
 * elements i, i + 16, ... in order by fma, then lanes added pairwise (l, l + 8), (l, l + 4), ...
 *          *nonfinite: how many are NaN or infinite; their squares count as they are
 * Threads  safe on disjoint chunks; starts none */
void sl_gradient_finish_chunk(const float *sum, void *out, enum sl_dtype dtype, size_t count,
                              double *squares, uint64_t *nonfinite);

/* The same measurement of a gradient that arrives rounded: nothing is written. */
void sl_gradient_measure_chunk(const void *x, enum sl_dtype dtype, size_t count, double *squares,
                               uint64_t *nonfinite);

/* sum[i] += x[i] (x of dtype), for gradients that arrive rounded. */
void sl_gradient_accumulate(float *sum, const void *x, enum sl_dtype dtype, size_t count);

/* Bulk casts, bit-equal to base/dtype.h. */
void sl_cast_to_f32(float *out, const void *x, enum sl_dtype dtype, size_t count);
void sl_cast_from_f32(void *out, enum sl_dtype dtype, const float *x, size_t count);

#endif
