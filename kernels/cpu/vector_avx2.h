// SPDX-License-Identifier: Apache-2.0
/* Sixteen lanes in two AVX2 registers; needs AVX2, FMA and F16C. Operations: vector_scalar.h. */
#ifndef SLUICE_KERNELS_CPU_VECTOR_AVX2_H
#define SLUICE_KERNELS_CPU_VECTOR_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define VECTOR_NAME avx2
#define VECTOR_STREAM_ALIGN 32

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;
typedef struct {
    __m256d a, b, c, d;
} vd;

#define DEFINE_VF2(name, op)                                                                       \
    static inline vf name(vf x, vf y)                                                              \
    {                                                                                              \
        return (vf){op(x.a, y.a), op(x.b, y.b)};                                                   \
    }
#define DEFINE_VI2(name, op)                                                                       \
    static inline vi name(vi x, vi y)                                                              \
    {                                                                                              \
        return (vi){op(x.a, y.a), op(x.b, y.b)};                                                   \
    }

DEFINE_VF2(v_add, _mm256_add_ps)
DEFINE_VF2(v_sub, _mm256_sub_ps)
DEFINE_VF2(v_mul, _mm256_mul_ps)
DEFINE_VF2(v_div, _mm256_div_ps)
DEFINE_VI2(vi_add, _mm256_add_epi32)
DEFINE_VI2(vi_sub, _mm256_sub_epi32)
DEFINE_VI2(vi_mul, _mm256_mullo_epi32)
DEFINE_VI2(vi_and, _mm256_and_si256)
DEFINE_VI2(vi_or, _mm256_or_si256)
DEFINE_VI2(vi_xor, _mm256_xor_si256)
DEFINE_VI2(vi_gt, _mm256_cmpgt_epi32)
DEFINE_VI2(vi_eq, _mm256_cmpeq_epi32)
DEFINE_VI2(vi_max, _mm256_max_epi32)

static inline vf v_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

static inline vf v_sqrt(vf x)
{
    return (vf){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)};
}

static inline vf v_set1(float value)
{
    return (vf){_mm256_set1_ps(value), _mm256_set1_ps(value)};
}

static inline vi vi_set1(uint32_t value)
{
    return (vi){_mm256_set1_epi32((int)value), _mm256_set1_epi32((int)value)};
}

static inline vi vi_iota(void)
{
    return (vi){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

static inline vi vi_from_bits(vf x)
{
    return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}

static inline vf v_from_bits(vi x)
{
    return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}

static inline vi v_less(vf x, vf y)
{
    return (vi){_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}

static inline vi vi_select(vi mask, vi x, vi y)
{
    return (vi){_mm256_blendv_epi8(y.a, x.a, mask.a), _mm256_blendv_epi8(y.b, x.b, mask.b)};
}

#define vi_shl(x, n) ((vi){_mm256_slli_epi32((x).a, n), _mm256_slli_epi32((x).b, n)})
#define vi_shr(x, n) ((vi){_mm256_srli_epi32((x).a, n), _mm256_srli_epi32((x).b, n)})
#define vi_sar(x, n) ((vi){_mm256_srai_epi32((x).a, n), _mm256_srai_epi32((x).b, n)})

static inline vf v_load(const float *from)
{
    return (vf){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

static inline void v_store(float *to, vf x)
{
    _mm256_storeu_ps(to, x.a);
    _mm256_storeu_ps(to + 8, x.b);
}

static inline uint32_t vi_max_lanes(vi x)
{
    __m256i eight = _mm256_max_epi32(x.a, x.b);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

static inline __m256i keep_nan_avx2(__m256i x, __m256 of)
{
    __m256i quiet = _mm256_or_si256(_mm256_castps_si256(of), _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(of, of, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(x, quiet, nan);
}

static inline vi vi_keep_nan(vi x, vf of)
{
    return (vi){keep_nan_avx2(x.a, of.a), keep_nan_avx2(x.b, of.b)};
}

/* Eight words, each to the upper half of a lane: the load puts them in both 128-bit halves. */
static inline __m256 load_bf16_avx2(const uint16_t *from)
{
    const __m256i lanes =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1,
                         -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(twice, lanes));
}

static inline vf v_load_bf16(const uint16_t *from)
{
    return (vf){load_bf16_avx2(from), load_bf16_avx2(from + 8)};
}

/* unpack and packus work within 128-bit halves: this puts the quarters in order for the one and
 * back in order after the other. */
static inline __m256i swap_quarters_avx2(__m256i x)
{
    return _mm256_permute4x64_epi64(x, 0xd8);
}

static inline vi vi_load_halves(const uint16_t *low, const uint16_t *high)
{
    __m256i x = swap_quarters_avx2(_mm256_loadu_si256((const __m256i *)low));
    __m256i y = swap_quarters_avx2(_mm256_loadu_si256((const __m256i *)high));
    return (vi){_mm256_unpacklo_epi16(x, y), _mm256_unpackhi_epi16(x, y)};
}

static inline void vi_store_low(uint16_t *to, vi x)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = _mm256_blend_epi16(x.a, zero, 0xaa), b = _mm256_blend_epi16(x.b, zero, 0xaa);
    _mm256_storeu_si256((__m256i *)to, swap_quarters_avx2(_mm256_packus_epi32(a, b)));
}

static inline __m256i high_halves_avx2(vi x)
{
    return swap_quarters_avx2(
        _mm256_packus_epi32(_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16)));
}

static inline void vi_store_high(uint16_t *to, vi x)
{
    _mm256_storeu_si256((__m256i *)to, high_halves_avx2(x));
}

static inline void vi_stream_high(uint16_t *to, vi x)
{
    _mm256_stream_si256((__m256i *)to, high_halves_avx2(x));
}

static inline vi vi_load_u8(const uint8_t *from)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + 8)))};
}

static inline vi vi_load_s8(const uint8_t *from)
{
    return (vi){_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from + 8)))};
}

/* What two packs within 128-bit halves leave: fours of bytes of every second quarter. */
static inline void store_packed_avx2(uint8_t *to, __m256i bytes)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(bytes, order));
}

static inline void vi_store_u8(uint8_t *to, vi x, vi y)
{
    store_packed_avx2(
        to, _mm256_packus_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b)));
}

static inline __m256i pack_s8_avx2(vi x, vi y)
{
    return _mm256_packs_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b));
}

static inline void vi_store_s8(uint8_t *to, vi x, vi y, vf sign_x, vf sign_y)
{
    __m256i sign = pack_s8_avx2(vi_from_bits(sign_x), vi_from_bits(sign_y));
    sign = _mm256_and_si256(sign, _mm256_set1_epi8((char)0x80));
    store_packed_avx2(to, _mm256_or_si256(pack_s8_avx2(x, y), sign));
}

static inline vf v_load_f16(const uint16_t *from)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 8)))};
}

static inline __m256i f16_avx2(vf x)
{
    enum { mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }; /* clang wants a constant */
    return _mm256_set_m128i(_mm256_cvtps_ph(x.b, mode), _mm256_cvtps_ph(x.a, mode));
}

static inline void v_store_f16(uint16_t *to, vf x)
{
    _mm256_storeu_si256((__m256i *)to, f16_avx2(x));
}

static inline void v_stream_f16(uint16_t *to, vf x)
{
    _mm256_stream_si256((__m256i *)to, f16_avx2(x));
}

static inline vd vd_zero(void)
{
    __m256d zero = _mm256_setzero_pd();
    return (vd){zero, zero, zero, zero};
}

static inline __m256d add_square_avx2(__m256d sum, __m128 x)
{
    __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, sum);
}

static inline vd vd_add_square(vd sum, vf x)
{
    return (vd){add_square_avx2(sum.a, _mm256_castps256_ps128(x.a)),
                add_square_avx2(sum.b, _mm256_extractf128_ps(x.a, 1)),
                add_square_avx2(sum.c, _mm256_castps256_ps128(x.b)),
                add_square_avx2(sum.d, _mm256_extractf128_ps(x.b, 1))};
}

static inline vd vd_add_square_bf16(vd sum, const uint16_t *from)
{
    const __m128i top = _mm_set1_epi32((int)0xffff0000u);
    __m128i low = _mm_loadu_si128((const __m128i *)from);
    __m128i high = _mm_loadu_si128((const __m128i *)(from + 8));
    return (vd){add_square_avx2(sum.a, _mm_castsi128_ps(_mm_slli_epi32(low, 16))),
                add_square_avx2(sum.b, _mm_castsi128_ps(_mm_slli_epi32(high, 16))),
                add_square_avx2(sum.c, _mm_castsi128_ps(_mm_and_si128(low, top))),
                add_square_avx2(sum.d, _mm_castsi128_ps(_mm_and_si128(high, top)))};
}

static inline void vd_store(double *to, vd x)
{
    _mm256_storeu_pd(to, x.a);
    _mm256_storeu_pd(to + 4, x.b);
    _mm256_storeu_pd(to + 8, x.c);
    _mm256_storeu_pd(to + 12, x.d);
}

/* The first half of the lanes are the even elements, the second the odd ones. */
#define VD_BF16_LANE(element) ((element) % 2 * 8 + (element) / 2)

static inline void v_fence(void)
{
    _mm_sfence();
}

#endif
