// SPDX-License-Identifier: Apache-2.0
/* y = x W^T for one to four rows: generation, one token at a time.
 *
 * Such a product reads every weight once and does next to nothing with it, so the time is the
 * memory's. gemm.c would pack, and a 16-bit weight would be widened into memory first: three times
 * the traffic. Here a weight goes from its array into the register where it is multiplied. Four
 * outputs at a time share the loads of x and keep enough loads in flight.
 */
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"

#define TOGETHER 4u

/* Dots of one row with `count` (1..4) consecutive rows of W, added to or written to y. */
VECTOR void dots(const float *x, const void *w, enum sl_dtype dtype, size_t first, size_t inputs,
                 size_t count, float *y, bool accumulate)
{
    vf sum[TOGETHER];
    for (size_t j = 0; j < TOGETHER; j++)
        sum[j] = vset(0);
    size_t k = 0;
    for (; k + LANES <= inputs; k += LANES) {
        vf v = vload(x + k);
        for (size_t j = 0; j < count; j++)
            sum[j] = vfma(v, vload_weight(w, dtype, first + j * inputs + k, LANES), sum[j]);
    }
    if (k < inputs) {
        vf v = vload_n(x + k, inputs - k);
        for (size_t j = 0; j < count; j++)
            sum[j] = vfma(v, vload_weight(w, dtype, first + j * inputs + k, inputs - k), sum[j]);
    }
    for (size_t j = 0; j < count; j++)
        y[j] = accumulate ? y[j] + vsum(sum[j]) : vsum(sum[j]);
}

VECTOR void all_dots(const struct sl_host_matvec *a, enum sl_dtype dtype)
{
    size_t output = 0;
    for (; output + TOGETHER <= a->outputs; output += TOGETHER)
        for (size_t row = 0; row < a->rows; row++)
            dots(a->x + row * a->x_stride, a->weight.data, dtype, a->first + output * a->inputs,
                 a->inputs, TOGETHER, a->y + row * a->y_stride + output, a->accumulate);
    for (; output < a->outputs; output++)
        for (size_t row = 0; row < a->rows; row++)
            dots(a->x + row * a->x_stride, a->weight.data, dtype, a->first + output * a->inputs,
                 a->inputs, 1, a->y + row * a->y_stride + output, a->accumulate);
}

void HOST(matvec)(const struct sl_host_matvec *a)
{
    if (a->weight.dtype == SL_BF16)
        all_dots(a, SL_BF16);
    else if (a->weight.dtype == SL_F16)
        all_dots(a, SL_F16);
    else
        all_dots(a, SL_F32);
}
