// SPDX-License-Identifier: Apache-2.0
/* Sixteen lanes in four NEON registers (AArch64). Operations: vector_scalar.h. */
#ifndef SLUICE_KERNELS_CPU_VECTOR_NEON_H
#define SLUICE_KERNELS_CPU_VECTOR_NEON_H

#include <arm_neon.h>
#include <stdint.h>

#define VECTOR_NAME neon
#define VECTOR_STREAM_ALIGN 1

typedef float32x4x4_t vf;
typedef uint32x4x4_t vi;
typedef struct {
    float64x2_t val[8];
} vd;

#define QUARTERS for (int quarter = 0; quarter < 4; quarter++)
#define DEFINE_2(type, result, name, expression)                                                   \
    static inline result name(type x, type y)                                                      \
    {                                                                                              \
        result r;                                                                                  \
        QUARTERS r.val[quarter] = expression(x.val[quarter], y.val[quarter]);                      \
        return r;                                                                                  \
    }

DEFINE_2(vf, vf, v_add, vaddq_f32)
DEFINE_2(vf, vf, v_sub, vsubq_f32)
DEFINE_2(vf, vf, v_mul, vmulq_f32)
DEFINE_2(vf, vf, v_div, vdivq_f32)
DEFINE_2(vf, vi, v_less, vcltq_f32)
DEFINE_2(vi, vi, vi_add, vaddq_u32)
DEFINE_2(vi, vi, vi_sub, vsubq_u32)
DEFINE_2(vi, vi, vi_mul, vmulq_u32)
DEFINE_2(vi, vi, vi_and, vandq_u32)
DEFINE_2(vi, vi, vi_or, vorrq_u32)
DEFINE_2(vi, vi, vi_xor, veorq_u32)
DEFINE_2(vi, vi, vi_eq, vceqq_u32)

#define SIGNED(op, x, y) op(vreinterpretq_s32_u32(x), vreinterpretq_s32_u32(y))
#define GT_SIGNED(x, y) SIGNED(vcgtq_s32, x, y)
#define MAX_SIGNED(x, y) vreinterpretq_u32_s32(SIGNED(vmaxq_s32, x, y))
DEFINE_2(vi, vi, vi_gt, GT_SIGNED)
DEFINE_2(vi, vi, vi_max, MAX_SIGNED)

static inline vf v_fma(vf x, vf y, vf z)
{
    QUARTERS z.val[quarter] = vfmaq_f32(z.val[quarter], x.val[quarter], y.val[quarter]);
    return z;
}

static inline vf v_sqrt(vf x)
{
    QUARTERS x.val[quarter] = vsqrtq_f32(x.val[quarter]);
    return x;
}

static inline vf v_set1(float value)
{
    float32x4_t x = vdupq_n_f32(value);
    return (vf){{x, x, x, x}};
}

static inline vi vi_set1(uint32_t value)
{
    uint32x4_t x = vdupq_n_u32(value);
    return (vi){{x, x, x, x}};
}

static inline vi vi_iota(void)
{
    static const uint32_t first[4] = {0, 1, 2, 3};
    uint32x4_t x = vld1q_u32(first);
    return (vi){{x, vaddq_u32(x, vdupq_n_u32(4)), vaddq_u32(x, vdupq_n_u32(8)),
                 vaddq_u32(x, vdupq_n_u32(12))}};
}

static inline vi vi_from_bits(vf x)
{
    vi r;
    QUARTERS r.val[quarter] = vreinterpretq_u32_f32(x.val[quarter]);
    return r;
}

static inline vf v_from_bits(vi x)
{
    vf r;
    QUARTERS r.val[quarter] = vreinterpretq_f32_u32(x.val[quarter]);
    return r;
}

static inline vi vi_select(vi mask, vi x, vi y)
{
    QUARTERS x.val[quarter] = vbslq_u32(mask.val[quarter], x.val[quarter], y.val[quarter]);
    return x;
}

#define vi_shl(x, n)                                                                               \
    ((vi){{vshlq_n_u32((x).val[0], n), vshlq_n_u32((x).val[1], n), vshlq_n_u32((x).val[2], n),     \
           vshlq_n_u32((x).val[3], n)}})
#define vi_shr(x, n)                                                                               \
    ((vi){{vshrq_n_u32((x).val[0], n), vshrq_n_u32((x).val[1], n), vshrq_n_u32((x).val[2], n),     \
           vshrq_n_u32((x).val[3], n)}})

#define SAR(x, n) vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(x), n))
#define vi_sar(x, n)                                                                               \
    ((vi){{SAR((x).val[0], n), SAR((x).val[1], n), SAR((x).val[2], n), SAR((x).val[3], n)}})

static inline vf v_load(const float *from)
{
    vf r;
    QUARTERS r.val[quarter] = vld1q_f32(from + 4 * quarter);
    return r;
}

static inline void v_store(float *to, vf x)
{
    QUARTERS vst1q_f32(to + 4 * quarter, x.val[quarter]);
}

static inline uint32_t vi_max_lanes(vi x)
{
    vi two = vi_max((vi){{x.val[0], x.val[1]}}, (vi){{x.val[2], x.val[3]}});
    return (uint32_t)vmaxvq_s32(vreinterpretq_s32_u32(MAX_SIGNED(two.val[0], two.val[1])));
}

static inline vi vi_keep_nan(vi x, vf of)
{
    QUARTERS
    {
        uint32x4_t quiet = vorrq_u32(vreinterpretq_u32_f32(of.val[quarter]), vdupq_n_u32(0x400000));
        uint32x4_t number = vceqq_f32(of.val[quarter], of.val[quarter]);
        x.val[quarter] = vbslq_u32(number, x.val[quarter], quiet);
    }
    return x;
}

static inline vf v_load_bf16(const uint16_t *from)
{
    vf r;
    QUARTERS r.val[quarter] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from + 4 * quarter), 16));
    return r;
}

static inline vi vi_load_halves(const uint16_t *low, const uint16_t *high)
{
    vi r;
    QUARTERS r.val[quarter] =
        vaddw_u16(vshll_n_u16(vld1_u16(high + 4 * quarter), 16), vld1_u16(low + 4 * quarter));
    return r;
}

static inline void vi_store_low(uint16_t *to, vi x)
{
    QUARTERS vst1_u16(to + 4 * quarter, vmovn_u32(x.val[quarter]));
}

static inline void vi_store_high(uint16_t *to, vi x)
{
    QUARTERS vst1_u16(to + 4 * quarter, vshrn_n_u32(x.val[quarter], 16));
}

static inline void vi_stream_high(uint16_t *to, vi x)
{
    vi_store_high(to, x);
}

static inline vi vi_load_u8(const uint8_t *from)
{
    uint8x16_t bytes = vld1q_u8(from);
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return (vi){{vmovl_u16(vget_low_u16(low)), vmovl_u16(vget_high_u16(low)),
                 vmovl_u16(vget_low_u16(high)), vmovl_u16(vget_high_u16(high))}};
}

static inline vi vi_load_s8(const uint8_t *from)
{
    int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return (vi){{vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(low))),
                 vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(low))),
                 vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(high))),
                 vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(high)))}};
}

/* Two quarters of signed values, saturated to 16 bits. */
static inline int16x8_t pack_s16_neon(uint32x4_t x, uint32x4_t y)
{
    return vcombine_s16(vqmovn_s32(vreinterpretq_s32_u32(x)), vqmovn_s32(vreinterpretq_s32_u32(y)));
}

static inline void vi_store_u8(uint8_t *to, vi x, vi y)
{
    vst1q_u8(to, vcombine_u8(vqmovun_s16(pack_s16_neon(x.val[0], x.val[1])),
                             vqmovun_s16(pack_s16_neon(x.val[2], x.val[3]))));
    vst1q_u8(to + 16, vcombine_u8(vqmovun_s16(pack_s16_neon(y.val[0], y.val[1])),
                                  vqmovun_s16(pack_s16_neon(y.val[2], y.val[3]))));
}

static inline uint8x16_t pack_s8_neon(vi x)
{
    return vreinterpretq_u8_s8(vcombine_s8(vqmovn_s16(pack_s16_neon(x.val[0], x.val[1])),
                                           vqmovn_s16(pack_s16_neon(x.val[2], x.val[3]))));
}

static inline void vi_store_s8(uint8_t *to, vi x, vi y, vf sign_x, vf sign_y)
{
    const uint8x16_t top = vdupq_n_u8(0x80);
    vst1q_u8(to, vbslq_u8(top, pack_s8_neon(vi_from_bits(sign_x)), pack_s8_neon(x)));
    vst1q_u8(to + 16, vbslq_u8(top, pack_s8_neon(vi_from_bits(sign_y)), pack_s8_neon(y)));
}

static inline vf v_load_f16(const uint16_t *from)
{
    vf r;
    QUARTERS r.val[quarter] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * quarter)));
    return r;
}

static inline void v_store_f16(uint16_t *to, vf x)
{
    QUARTERS vst1_u16(to + 4 * quarter, vreinterpret_u16_f16(vcvt_f16_f32(x.val[quarter])));
}

static inline void v_stream_f16(uint16_t *to, vf x)
{
    v_store_f16(to, x);
}

static inline vd vd_zero(void)
{
    vd r;
    for (int pair = 0; pair < 8; pair++)
        r.val[pair] = vdupq_n_f64(0);
    return r;
}

static inline vd vd_add_square(vd sum, vf x)
{
    QUARTERS
    {
        float64x2_t low = vcvt_f64_f32(vget_low_f32(x.val[quarter]));
        float64x2_t high = vcvt_high_f64_f32(x.val[quarter]);
        sum.val[2 * quarter] = vfmaq_f64(sum.val[2 * quarter], low, low);
        sum.val[2 * quarter + 1] = vfmaq_f64(sum.val[2 * quarter + 1], high, high);
    }
    return sum;
}

static inline vd vd_add_square_bf16(vd sum, const uint16_t *from)
{
    return vd_add_square(sum, v_load_bf16(from));
}

static inline void vd_store(double *to, vd x)
{
    for (int pair = 0; pair < 8; pair++)
        vst1q_f64(to + 2 * pair, x.val[pair]);
}

#define VD_BF16_LANE(element) (element)

static inline void v_fence(void) {}

#undef QUARTERS
#endif
