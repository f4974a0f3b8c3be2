// SPDX-License-Identifier: Apache-2.0
/* Sixteen floats at a time, whatever the instruction set.
 *
 * Every host kernel computes in lanes of 16: one AVX-512 register, two AVX2 registers, or four
 * 128-bit ones. The lane count is part of the result (it fixes the order of sums), so it is the
 * same everywhere, and with explicit fma and IEEE operations all variants give equal bits.
 * Rejected: compiler auto-vectorisation (reorders nothing without -ffast-math, so reductions stay
 * scalar) and one 64-byte GCC vector type (spilled to memory where registers are narrower).
 */
#ifndef SLUICE_KERNELS_HOST_SIMD_H
#define SLUICE_KERNELS_HOST_SIMD_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "base/dtype.h"

#define LANES 16u
#if defined(__AVX512F__)
#define PART_LANES 16
#elif defined(__AVX2__)
#define PART_LANES 8
#else
#define PART_LANES 4
#endif
#define PARTS (16 / PART_LANES)

typedef float fpart __attribute__((vector_size(4 * PART_LANES), may_alias));
typedef int32_t ipart __attribute__((vector_size(4 * PART_LANES), may_alias));
typedef uint32_t upart __attribute__((vector_size(4 * PART_LANES), may_alias));

/* 16 lanes of f32, and 16 of int32 (also comparison masks: 0 or -1). */
typedef struct {
    fpart p[PARTS];
} vf;
typedef struct {
    ipart p[PARTS];
} vi;

#define VECTOR static inline __attribute__((always_inline))
#define EACH(i) for (int i = 0; i < PARTS; i++)

VECTOR vf vset(float value)
{
    vf r;
    EACH(i) r.p[i] = value - (fpart){0};
    return r;
}

VECTOR vf vload(const float *from)
{
    vf r;
    memcpy(&r, from, sizeof r);
    return r;
}

VECTOR void vstore(float *to, vf value)
{
    memcpy(to, &value, sizeof value);
}

/* The first n (1..16) lanes; the others are 0 and memory beyond n is not touched. */
VECTOR vf vload_n(const float *from, size_t n)
{
    if (__builtin_expect(n == LANES, 1))
        return vload(from);
#if defined(__AVX512F__)
    vf r = {{_mm512_maskz_loadu_ps((__mmask16)(0xffffu >> (LANES - n)), from)}};
    return r;
#else
    float lanes[16] = {0};
    memcpy(lanes, from, n * 4);
    return vload(lanes);
#endif
}

VECTOR void vstore_n(float *to, vf value, size_t n)
{
    if (__builtin_expect(n == LANES, 1)) {
        vstore(to, value);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)(0xffffu >> (LANES - n)), value.p[0]);
#else
    float lanes[16];
    vstore(lanes, value);
    memcpy(to, lanes, n * 4);
#endif
}

VECTOR vf vadd(vf a, vf b)
{
    vf r;
    EACH(i) r.p[i] = a.p[i] + b.p[i];
    return r;
}

VECTOR vf vsub(vf a, vf b)
{
    vf r;
    EACH(i) r.p[i] = a.p[i] - b.p[i];
    return r;
}

VECTOR vf vmul(vf a, vf b)
{
    vf r;
    EACH(i) r.p[i] = a.p[i] * b.p[i];
    return r;
}

VECTOR vf vdiv(vf a, vf b)
{
    vf r;
    EACH(i) r.p[i] = a.p[i] / b.p[i];
    return r;
}

/* a * b + c, rounded once */
VECTOR vf vfma(vf a, vf b, vf c)
{
    vf r;
#if defined(__AVX512F__)
    r.p[0] = _mm512_fmadd_ps(a.p[0], b.p[0], c.p[0]);
#elif defined(__AVX2__)
    EACH(i) r.p[i] = _mm256_fmadd_ps(a.p[i], b.p[i], c.p[i]);
#elif defined(__ARM_NEON)
    EACH(i) r.p[i] = vfmaq_f32(c.p[i], a.p[i], b.p[i]);
#else
    float x[16], y[16], z[16];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(z, &c, sizeof z);
    for (int l = 0; l < 16; l++)
        z[l] = fmaf(x[l], y[l], z[l]);
    memcpy(&r, z, sizeof r);
#endif
    return r;
}

/* c - a * b, rounded once */
VECTOR vf vfnma(vf a, vf b, vf c)
{
    vf negative;
    EACH(i) negative.p[i] = -a.p[i];
    return vfma(negative, b, c);
}

VECTOR vi vgt(vf a, vf b)
{
    vi r;
    EACH(i) r.p[i] = a.p[i] > b.p[i];
    return r;
}

/* mask ? a : b */
VECTOR vf vselect(vi mask, vf a, vf b)
{
    vf r;
    EACH(i)
    r.p[i] = (fpart)(((ipart)a.p[i] & mask.p[i]) | ((ipart)b.p[i] & ~mask.p[i]));
    return r;
}

/* a > b ? a : b, so that a NaN in b survives and one in a does not */
VECTOR vf vmax(vf a, vf b)
{
#if defined(__AVX512F__)
    vf r = {{_mm512_max_ps(a.p[0], b.p[0])}};
    return r;
#else
    return vselect(vgt(a, b), a, b);
#endif
}

/* a < b ? a : b */
VECTOR vf vmin(vf a, vf b)
{
#if defined(__AVX512F__)
    vf r = {{_mm512_min_ps(a.p[0], b.p[0])}};
    return r;
#else
    return vselect(vgt(b, a), a, b);
#endif
}

/* First n (0..16) lanes set. */
VECTOR vi vfirst(size_t n)
{
    static const int32_t ramp[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                     -1, -1, -1, -1, -1, 0,  0,  0,  0,  0};
    vi r;
    memcpy(&r, ramp + (LANES - n), sizeof r);
    return r;
}

VECTOR vf vabs(vf a)
{
    vf r;
    EACH(i) r.p[i] = (fpart)((ipart)a.p[i] & 0x7fffffff);
    return r;
}

/* |magnitude| with the sign of `sign` */
VECTOR vf vcopysign(vf magnitude, vf sign)
{
    vf r;
    EACH(i)
    r.p[i] =
        (fpart)(((ipart)magnitude.p[i] & 0x7fffffff) | ((ipart)sign.p[i] & (int32_t)0x80000000));
    return r;
}

/* Lanes added in pairs (l, l + 8), (l, l + 4), (l, l + 2), (l, l + 1). */
VECTOR float vsum(vf a)
{
#if defined(__AVX2__)
    __m256 whole[2];
    memcpy(whole, &a, sizeof whole);
    __m256 eight = whole[0] + whole[1];
    __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    four += _mm_movehl_ps(four, four);
    return four[0] + four[1];
#else
    float lanes[16];
    vstore(lanes, a);
    for (int width = 8; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
#endif
}

/* In the same pairs, x > y ? x : y. */
VECTOR float vmax_lanes(vf a)
{
#if defined(__AVX2__)
    __m256 whole[2];
    memcpy(whole, &a, sizeof whole);
    __m256 eight = _mm256_max_ps(whole[0], whole[1]);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return four[0] > four[1] ? four[0] : four[1];
#else
    float lanes[16];
    vstore(lanes, a);
    for (int width = 8; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] = lanes[l] > lanes[l + width] ? lanes[l] : lanes[l + width];
    return lanes[0];
#endif
}

/* n (1..16) elements of a weight from index `first`, widened exactly; other lanes are 0. */
VECTOR vf vload_weight(const void *data, enum sl_dtype dtype, size_t first, size_t n)
{
    if (dtype == SL_F32)
        return vload_n((const float *)data + first, n);
    uint16_t half[16] = {0};
    const uint16_t *from = (const uint16_t *)data + first;
    if (__builtin_expect(n == LANES, 1))
        memcpy(half, from, sizeof half);
    else
        memcpy(half, from, n * 2);
#if defined(__AVX512F__)
    __m256i raw = _mm256_loadu_si256((const __m256i *)half);
    vf r = {{dtype == SL_BF16 ? (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16)
                              : _mm512_cvtph_ps(raw)}};
    return r;
#else
    float lanes[16];
    if (dtype == SL_BF16)
        for (int l = 0; l < 16; l++)
            lanes[l] = sl_f32_from_bf16(half[l]);
    else
        for (int l = 0; l < 16; l++)
            lanes[l] = sl_f32_from_f16(half[l]);
    return vload(lanes);
#endif
}

#endif
