// SPDX-License-Identifier: Apache-2.0
/* Moments in 8 bits, in the operations of the vector header included before.
 *
 * Problem   One byte per moment, over the 4 to 5 decades that the moments of a block span, decoded
 *           and encoded at the speed of memory with the same bits everywhere.
 * Choice    A block of 256 elements shares a power of two, the exponent of its largest magnitude.
 *           Below it a byte is a small floating-point number:
 *
 *               exp_avg     s eeee mmm   (1 + m/8)  2^(e - 15) scale, magnitude 0 is zero
 *               exp_avg_sq  eeee mmmm    (1 + m/16) 2^(e - 15) scale, never zero
 *
 *           so decoding is a shift and a multiplication by a power of two (exact). Encoding rounds
 *           stochastically, by the element's counter: a second moment that changes by 0.1 % a step
 *           would otherwise stay on its code for ever.
 * Rejected  A code book (the dynamic tree of 8-bit Adam): two 256-entry gathers and a binary search
 *           per element are slower than the memory that they save. Zero as a code of exp_avg_sq:
 *           a first moment over a lost second moment is an unbounded step.
 * Invariant A value on a code stays on it. A scale of 0 is a block that is still all zeros.
 */
#ifndef SLUICE_KERNELS_CPU_OPTIM_Q8_H
#define SLUICE_KERNELS_CPU_OPTIM_Q8_H

#include "kernels/cpu/optim_terms.h"
#include "kernels/cpu/vector_cast.h"

/* sl_optim_random of elements element ... element + 15; `stream` tells uses of one element apart.
 */
INLINE vi random_16(const struct sl_optim_terms *t, uint32_t element, uint32_t stream)
{
    vi x = vi_add(vi_set1(element), vi_iota());
    x = vi_xor(x, vi_set1(t->random_key[stream]));
    x = vi_mul(vi_xor(x, vi_shr(x, 16)), vi_set1(0x21f0aaadu));
    x = vi_add(vi_xor(x, vi_shr(x, 15)), vi_set1(t->random_key[1 - stream]));
    x = vi_mul(vi_xor(x, vi_shr(x, 16)), vi_set1(0x735a2d97u));
    return vi_xor(x, vi_shr(x, 15));
}

static uint32_t max_lanes(vi lanes)
{
    uint32_t x[16], max = 0;
    v_store((float *)x, v_from_bits(lanes));
    for (int lane = 0; lane < 16; lane++)
        max = x[lane] > max ? x[lane] : max;
    return max;
}

/* The power of two such that magnitude / scale rounds to a code, whichever way it rounds: below
 * (2 - 2^-mantissa_bits). 0 for 0. Kept in [2^-126, 2^127] so that its inverse is finite. */
static inline float q8_scale(uint32_t magnitude_bits, unsigned mantissa_bits)
{
    if (magnitude_bits == 0)
        return 0;
    uint32_t exponent = (magnitude_bits + (1u << (23 - mantissa_bits))) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
    return sl_f32_from_bits(exponent << 23);
}

static inline float q8_scale_signed(uint32_t magnitude_bits)
{
    return q8_scale(magnitude_bits, 3);
}

static inline float q8_scale_unsigned(uint32_t magnitude_bits)
{
    return q8_scale(magnitude_bits, 4);
}

/* Exponent field of 2^-15, in units of the code: what the top of a float is above the code's. */
#define Q8_BASE_SIGNED (112u << 3)
#define Q8_BASE_UNSIGNED (112u << 4)

INLINE vf q8_decode_unsigned(vi code, vf scale)
{
    return v_mul(v_from_bits(vi_shl(vi_add(code, vi_set1(Q8_BASE_UNSIGNED)), 19)), scale);
}

INLINE vi q8_clamp(vi code, uint32_t max)
{
    return vi_min(vi_max(code, vi_set1(0)), vi_set1(max));
}

/* Uses the low half of random. */
INLINE vi q8_encode_unsigned(vf x, vf inverse, vi random)
{
    vi bits = vi_from_bits(v_mul(x, inverse));
    vi dither = vi_shl(vi_and(random, vi_set1(0xffffu)), 3);
    return q8_clamp(vi_sub(vi_shr(vi_add(bits, dither), 19), vi_set1(Q8_BASE_UNSIGNED)), 0xff);
}

INLINE vf q8_decode_signed(vi code, vf scale)
{
    vi magnitude = vi_and(code, vi_set1(0x7fu));
    vi sign = vi_shl(vi_and(code, vi_set1(0x80u)), 24);
    vi bits = vi_shl(vi_add(magnitude, vi_set1(Q8_BASE_SIGNED)), 20);
    bits = vi_select(vi_eq(magnitude, vi_set1(0)), vi_set1(0), bits);
    return v_mul(v_from_bits(vi_or(bits, sign)), scale);
}

/* Uses the high half of random. Below the smallest code a value becomes that code with the
 * probability of their ratio, else zero. */
INLINE vi q8_encode_signed(vf x, vf inverse, vi random)
{
    const float smallest = 0x1.2p-15f;
    vi bits = vi_from_bits(v_mul(x, inverse));
    vi magnitude = vi_and(bits, vi_set1(0x7fffffffu));
    vi sign = vi_and(vi_shr(bits, 24), vi_set1(0x80u));
    vi high = vi_shr(random, 16);
    vi code = vi_shr(vi_add(magnitude, vi_shl(high, 4)), 20);
    code = q8_clamp(vi_sub(code, vi_set1(Q8_BASE_SIGNED)), 0x7f);
    vf threshold = v_mul(v_from_int(high), v_set1(smallest * 0x1p-16f));
    vi rare = vi_and(v_less(threshold, v_from_bits(magnitude)), vi_set1(1));
    code = vi_select(v_less(v_from_bits(magnitude), v_set1(smallest)), rare, code);
    return vi_or(code, sign);
}

#endif
