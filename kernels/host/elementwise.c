// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"

void HOST(add)(const float *a, const float *b, float *out, size_t count)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        vstore(out + i, vadd(vload(a + i), vload(b + i)));
    if (i < count)
        vstore_n(out + i, vadd(vload_n(a + i, count - i), vload_n(b + i, count - i)), count - i);
}

void HOST(bias_add)(float *out, size_t rows, size_t stride, struct sl_host_weight bias,
                    size_t bias_first, size_t width)
{
    for (size_t i = 0; i < width; i += LANES) {
        size_t n = width - i < LANES ? width - i : LANES;
        vf b = vload_weight(bias.data, bias.dtype, bias_first + i, n);
        for (size_t row = 0; row < rows; row++) {
            float *to = out + row * stride + i;
            vstore_n(to, vadd(vload_n(to, n), b), n);
        }
    }
}

/* Blocks of rows keep the error of a long f32 sum down; their size is part of the result. */
#define SUM_BLOCK_ROWS 64u

void HOST(column_sum)(float *sum, const float *x, size_t rows, size_t stride, size_t width)
{
    for (size_t i = 0; i < width; i += LANES) {
        size_t n = width - i < LANES ? width - i : LANES;
        vf total = vload_n(sum + i, n);
        for (size_t row = 0; row < rows; row += SUM_BLOCK_ROWS) {
            size_t end = rows - row < SUM_BLOCK_ROWS ? rows : row + SUM_BLOCK_ROWS;
            vf block = vset(0);
            for (size_t r = row; r < end; r++)
                block = vadd(block, vload_n(x + r * stride + i, n));
            total = vadd(total, block);
        }
        vstore_n(sum + i, total, n);
    }
}
