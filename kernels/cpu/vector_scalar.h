// SPDX-License-Identifier: Apache-2.0
/* Sixteen lanes in plain C: the reference that every other vector header is bit-equal to.
 *
 * A body (optim_body.h, gradient_body.h) is compiled once per instruction set against one of these
 * headers. They all offer the same operations on 16 lanes, whatever the register width, so that the
 * order of operations, the tails and the lane sums are written once.
 *
 * New operation: also vector_avx2.h, vector_avx512.h, vector_neon.h.
 */
#ifndef SLUICE_KERNELS_CPU_VECTOR_SCALAR_H
#define SLUICE_KERNELS_CPU_VECTOR_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#define VECTOR_NAME scalar
#define VECTOR_STREAM_ALIGN 1 /* vi_stream_high and v_stream_f16 need this alignment */

typedef struct {
    float x[16];
} vf; /* 16 f32 */
typedef struct {
    uint32_t x[16];
} vi; /* 16 u32; comparisons give all ones or zero */
typedef struct {
    double x[16];
} vd; /* 16 f64 */

#define LANES for (int lane = 0; lane < 16; lane++)
#define DEFINE_VF2(name, expression)                                                               \
    static inline vf name(vf a, vf b)                                                              \
    {                                                                                              \
        vf r;                                                                                      \
        LANES r.x[lane] = (expression);                                                            \
        return r;                                                                                  \
    }
#define DEFINE_VI2(name, expression)                                                               \
    static inline vi name(vi a, vi b)                                                              \
    {                                                                                              \
        vi r;                                                                                      \
        LANES r.x[lane] = (expression);                                                            \
        return r;                                                                                  \
    }

DEFINE_VF2(v_add, a.x[lane] + b.x[lane])
DEFINE_VF2(v_sub, a.x[lane] - b.x[lane])
DEFINE_VF2(v_mul, a.x[lane] * b.x[lane])
DEFINE_VF2(v_div, a.x[lane] / b.x[lane])
DEFINE_VI2(vi_add, a.x[lane] + b.x[lane])
DEFINE_VI2(vi_sub, a.x[lane] - b.x[lane])
DEFINE_VI2(vi_mul, a.x[lane] * b.x[lane])
DEFINE_VI2(vi_and, a.x[lane] & b.x[lane])
DEFINE_VI2(vi_or, a.x[lane] | b.x[lane])
DEFINE_VI2(vi_xor, a.x[lane] ^ b.x[lane])
DEFINE_VI2(vi_gt, (int32_t)a.x[lane] > (int32_t)b.x[lane] ? ~0u : 0) /* signed */
DEFINE_VI2(vi_eq, a.x[lane] == b.x[lane] ? ~0u : 0)
DEFINE_VI2(vi_max, (int32_t)a.x[lane] > (int32_t)b.x[lane] ? a.x[lane] : b.x[lane]) /* signed */

/* a * b + c, rounded once */
static inline vf v_fma(vf a, vf b, vf c)
{
    vf r;
    LANES r.x[lane] = fmaf(a.x[lane], b.x[lane], c.x[lane]);
    return r;
}

static inline vf v_sqrt(vf a)
{
    LANES a.x[lane] = sqrtf(a.x[lane]);
    return a;
}

static inline vf v_set1(float value)
{
    vf r;
    LANES r.x[lane] = value;
    return r;
}

static inline vi vi_set1(uint32_t value)
{
    vi r;
    LANES r.x[lane] = value;
    return r;
}

static inline vi vi_iota(void)
{
    vi r;
    LANES r.x[lane] = (uint32_t)lane;
    return r;
}

static inline vi vi_from_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof(r));
    return r;
}

static inline vf v_from_bits(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof(r));
    return r;
}

/* a < b, ordered: false where either is NaN */
static inline vi v_less(vf a, vf b)
{
    vi r;
    LANES r.x[lane] = a.x[lane] < b.x[lane] ? ~0u : 0;
    return r;
}

/* mask ? a : b; the mask is all ones or zero in each lane */
static inline vi vi_select(vi mask, vi a, vi b)
{
    LANES a.x[lane] = (mask.x[lane] & a.x[lane]) | (~mask.x[lane] & b.x[lane]);
    return a;
}

#define vi_shl(a, n) vi_shl_(a, n)
#define vi_shr(a, n) vi_shr_(a, n)
#define vi_sar(a, n) vi_sar_(a, n)
static inline vi vi_shl_(vi a, int n)
{
    LANES a.x[lane] <<= n;
    return a;
}

static inline vi vi_shr_(vi a, int n)
{
    LANES a.x[lane] >>= n;
    return a;
}

static inline vi vi_sar_(vi a, int n) /* copies the sign */
{
    LANES a.x[lane] = (uint32_t)((int32_t)a.x[lane] >> n);
    return a;
}

static inline vf v_load(const float *from)
{
    vf r;
    memcpy(&r, from, sizeof(r));
    return r;
}

static inline void v_store(float *to, vf a)
{
    memcpy(to, &a, sizeof(a));
}

/* The largest lane, signed. */
static inline uint32_t vi_max_lanes(vi a)
{
    uint32_t max = a.x[0];
    LANES max = (int32_t)a.x[lane] > (int32_t)max ? a.x[lane] : max;
    return max;
}

/* Where x is NaN its bits, made quiet; elsewhere a. */
static inline vi vi_keep_nan(vi a, vf x)
{
    LANES a.x[lane] = isnan(x.x[lane]) ? sl_bits_from_f32(x.x[lane]) | 0x400000u : a.x[lane];
    return a;
}

/* low | high << 16 */
static inline vi vi_load_halves(const uint16_t *low, const uint16_t *high)
{
    vi r;
    LANES r.x[lane] = low[lane] | (uint32_t)high[lane] << 16;
    return r;
}

/* The lower half of each lane. */
static inline void vi_store_low(uint16_t *to, vi a)
{
    LANES to[lane] = (uint16_t)a.x[lane];
}

/* The upper half of each lane. */
static inline void vi_store_high(uint16_t *to, vi a)
{
    LANES to[lane] = (uint16_t)(a.x[lane] >> 16);
}

/* The same past the cache, where the instruction set can. */
static inline void vi_stream_high(uint16_t *to, vi a)
{
    vi_store_high(to, a);
}

static inline vi vi_load_u8(const uint8_t *from)
{
    vi r;
    LANES r.x[lane] = from[lane];
    return r;
}

/* sign-extended */
static inline vi vi_load_s8(const uint8_t *from)
{
    vi r;
    LANES r.x[lane] = (uint32_t)(int8_t)from[lane];
    return r;
}

/* The 32 values of a and b, signed and within 2^15 of zero, clamped to 0 ... 255. */
static inline void vi_store_u8(uint8_t *to, vi a, vi b)
{
    for (int lane = 0; lane < 32; lane++) {
        int32_t value = (int32_t)(lane < 16 ? a.x[lane] : b.x[lane - 16]);
        to[lane] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

/* The 32 magnitudes of a and b, from 0 to 2^15 - 1 and cut to 127, with the signs of x and y in bit
 * 7. */
static inline void vi_store_s8(uint8_t *to, vi a, vi b, vf x, vf y)
{
    for (int lane = 0; lane < 32; lane++) {
        uint32_t magnitude = lane < 16 ? a.x[lane] : b.x[lane - 16];
        uint32_t sign = sl_bits_from_f32(lane < 16 ? x.x[lane] : y.x[lane - 16]) >> 24 & 0x80u;
        to[lane] = (uint8_t)((magnitude > 127 ? 127 : magnitude) | sign);
    }
}

static inline vf v_load_bf16(const uint16_t *from)
{
    vf r;
    LANES r.x[lane] = sl_f32_from_bf16(from[lane]);
    return r;
}

static inline vf v_load_f16(const uint16_t *from)
{
    vf r;
    LANES r.x[lane] = sl_f32_from_f16(from[lane]);
    return r;
}

/* Rounded to nearest even. */
static inline void v_store_f16(uint16_t *to, vf a)
{
    LANES to[lane] = sl_f16_from_f32(a.x[lane]);
}

/* The same past the cache, where the instruction set can. */
static inline void v_stream_f16(uint16_t *to, vf a)
{
    v_store_f16(to, a);
}

static inline vd vd_zero(void)
{
    return (vd){{0}};
}

/* sum + (double)a * (double)a, rounded once (the product of two floats is exact in f64) */
static inline vd vd_add_square(vd sum, vf a)
{
    LANES sum.x[lane] = fma((double)a.x[lane], (double)a.x[lane], sum.x[lane]);
    return sum;
}

/* The squares of sixteen bf16, in an order of lanes of the set's own, which VD_BF16_LANE tells: a
 * pair of them is a register's lane with nothing but a shift and a mask. */
static inline vd vd_add_square_bf16(vd sum, const uint16_t *from)
{
    vf a;
    LANES a.x[lane] = sl_f32_from_bf16(from[lane]);
    return vd_add_square(sum, a);
}

static inline void vd_store(double *to, vd a)
{
    memcpy(to, &a, sizeof(a));
}

#define VD_BF16_LANE(element) (element)

static inline void v_fence(void) {}

#undef LANES
#endif
