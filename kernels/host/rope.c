// SPDX-License-Identifier: Apache-2.0
/* Rotary positions, halves split: (a, b) -> (a c - b s, b c + a s); the inverse turns s around. */
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"

VECTOR void rotate(float *low, float *high, const float *cosine, const float *sine, bool inverse,
                   size_t n)
{
    vf a = vload_n(low, n), b = vload_n(high, n);
    vf c = vload_n(cosine, n), s = vload_n(sine, n);
    if (inverse)
        s = vsub(vset(0), s);
    vstore_n(low, vfnma(b, s, vmul(a, c)), n);
    vstore_n(high, vfma(a, s, vmul(b, c)), n);
}

void HOST(rope)(const struct sl_host_rope *a, size_t first, size_t count)
{
    size_t half = a->rotary / 2;
    for (size_t row = first; row < first + count; row++) {
        const float *cosine = a->cos + (size_t)a->positions[row] * half;
        const float *sine = a->sin + (size_t)a->positions[row] * half;
        for (size_t head = 0; head < a->heads; head++) {
            float *x = a->x + row * a->row_stride + head * a->head_size;
            size_t i = 0;
            for (; i + LANES <= half; i += LANES)
                rotate(x + i, x + half + i, cosine + i, sine + i, a->inverse, LANES);
            if (i < half)
                rotate(x + i, x + half + i, cosine + i, sine + i, a->inverse, half - i);
        }
    }
}
