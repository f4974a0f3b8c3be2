// SPDX-License-Identifier: Apache-2.0
/* Sixteen lanes in one AVX-512 register; needs F, BW, DQ and VL. Operations: vector_scalar.h.
 *
 * AVX512_BF16 is not used: its conversion flushes subnormals to zero, so it is not bit-equal. */
#ifndef SLUICE_KERNELS_CPU_VECTOR_AVX512_H
#define SLUICE_KERNELS_CPU_VECTOR_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define VECTOR_NAME avx512
#define VECTOR_STREAM_ALIGN 32

typedef __m512 vf;
typedef __m512i vi;
typedef struct {
    __m512d a, b;
} vd;

#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_div _mm512_div_ps
#define v_fma _mm512_fmadd_ps
#define v_sqrt _mm512_sqrt_ps
#define v_set1 _mm512_set1_ps
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_from_bits _mm512_castsi512_ps
#define vi_from_bits _mm512_castps_si512
#define vi_add _mm512_add_epi32
#define vi_sub _mm512_sub_epi32
#define vi_mul _mm512_mullo_epi32
#define vi_and _mm512_and_si512
#define vi_or _mm512_or_si512
#define vi_xor _mm512_xor_si512
#define vi_max _mm512_max_epi32
#define vi_shl _mm512_slli_epi32
#define vi_shr _mm512_srli_epi32
#define vi_sar _mm512_srai_epi32

static inline vi vi_set1(uint32_t value)
{
    return _mm512_set1_epi32((int)value);
}

static inline vi vi_iota(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline vi vi_gt(vi x, vi y)
{
    return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(x, y));
}

static inline vi vi_eq(vi x, vi y)
{
    return _mm512_movm_epi32(_mm512_cmpeq_epi32_mask(x, y));
}

static inline vi v_less(vf x, vf y)
{
    return _mm512_movm_epi32(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ));
}

static inline vi vi_select(vi mask, vi x, vi y)
{
    return _mm512_ternarylogic_epi32(mask, x, y, 0xca);
}

static inline uint32_t vi_max_lanes(vi x)
{
    return (uint32_t)_mm512_reduce_max_epi32(x);
}

static inline vi vi_keep_nan(vi x, vf of)
{
    __mmask16 nan = _mm512_cmp_ps_mask(of, of, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(x, nan, vi_from_bits(of), vi_set1(0x400000u));
}

/* Words move between halves and lanes by one permutation; a conversion and a shift would be two. */
static inline __m512i load_half_avx512(const uint16_t *from)
{
    return _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)from));
}

/* Word 2i of the result is word i of the one operand, word 2i + 1 word i of the other. */
static inline __m512i interleaved_avx512(uint32_t other)
{
    return _mm512_add_epi32(_mm512_mullo_epi32(vi_iota(), vi_set1(0x10001u)), vi_set1(other << 16));
}

static inline vf v_load_bf16(const uint16_t *from)
{
    return v_from_bits(
        _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, interleaved_avx512(0), load_half_avx512(from)));
}

static inline vi vi_load_halves(const uint16_t *low, const uint16_t *high)
{
    return _mm512_permutex2var_epi16(load_half_avx512(low), interleaved_avx512(32),
                                     load_half_avx512(high));
}

static inline void vi_store_low(uint16_t *to, vi x)
{
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(x));
}

static inline __m256i high_halves_avx512(vi x)
{
    const __m512i odd = _mm512_add_epi32(_mm512_mullo_epi32(vi_iota(), vi_set1(0x40004u)),
                                         vi_set1(0x30001u)); /* words 1, 3, 5, ... */
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd, x));
}

static inline void vi_store_high(uint16_t *to, vi x)
{
    _mm256_storeu_si256((__m256i *)to, high_halves_avx512(x));
}

static inline void vi_stream_high(uint16_t *to, vi x)
{
    _mm256_stream_si256((__m256i *)to, high_halves_avx512(x));
}

static inline vi vi_load_u8(const uint8_t *from)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
}

static inline vi vi_load_s8(const uint8_t *from)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
}

/* packs works within 128-bit quarters, twice here, the second time on halves: fours of bytes of
 * quarters 0 and 2, then 1 and 3. */
static inline void store_packed_avx512(uint8_t *to, __m256i bytes)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(bytes, order));
}

static inline void vi_store_u8(uint8_t *to, vi x, vi y)
{
    vi words = _mm512_packs_epi32(x, y);
    store_packed_avx512(to, _mm256_packus_epi16(_mm512_castsi512_si256(words),
                                                _mm512_extracti64x4_epi64(words, 1)));
}

static inline __m256i pack_s8_avx512(vi x, vi y)
{
    vi words = _mm512_packs_epi32(x, y);
    return _mm256_packs_epi16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
}

static inline void vi_store_s8(uint8_t *to, vi x, vi y, vf sign_x, vf sign_y)
{
    __m256i sign = pack_s8_avx512(vi_from_bits(sign_x), vi_from_bits(sign_y));
    const __m256i top = _mm256_set1_epi8((char)0x80);
    /* top ? sign : code */
    store_packed_avx512(to, _mm256_ternarylogic_epi32(top, sign, pack_s8_avx512(x, y), 0xca));
}

static inline vf v_load_f16(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

static inline __m256i f16_avx512(vf x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline void v_store_f16(uint16_t *to, vf x)
{
    _mm256_storeu_si256((__m256i *)to, f16_avx512(x));
}

static inline void v_stream_f16(uint16_t *to, vf x)
{
    _mm256_stream_si256((__m256i *)to, f16_avx512(x));
}

static inline vd vd_zero(void)
{
    return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

static inline vd vd_add_square(vd sum, vf x)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    return (vd){_mm512_fmadd_pd(low, low, sum.a), _mm512_fmadd_pd(high, high, sum.b)};
}

static inline vd vd_add_square_bf16(vd sum, const uint16_t *from)
{
    __m256i pairs = _mm256_loadu_si256((const __m256i *)from);
    __m256i top = _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u));
    __m512d even = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
    __m512d odd = _mm512_cvtps_pd(_mm256_castsi256_ps(top));
    return (vd){_mm512_fmadd_pd(even, even, sum.a), _mm512_fmadd_pd(odd, odd, sum.b)};
}

static inline void vd_store(double *to, vd x)
{
    _mm512_storeu_pd(to, x.a);
    _mm512_storeu_pd(to + 8, x.b);
}

/* The first half of the lanes are the even elements, the second the odd ones. */
#define VD_BF16_LANE(element) ((element) % 2 * 8 + (element) / 2)

static inline void v_fence(void)
{
    _mm_sfence();
}

#endif
