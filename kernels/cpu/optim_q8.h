// SPDX-License-Identifier: Apache-2.0
/* Moments in 8 bits, in the operations of the vector header included before.
 *
 * Problem   One byte per moment, over the decades that the moments of a block span, decoded and
 *           encoded at the speed of memory with the same bits everywhere.
 * Choice    A block of 256 elements shares a power of two, the exponent of its largest magnitude.
 *           Below it a byte is a small floating-point number:
 *
 *               exp_avg     s eeee mmm   ((1 + m/8) 2^(e - 15) - 2^-15) scale
 *               exp_avg_sq  eeeee mmm    (1 + m/8) 2^(e - 31) scale, never zero
 *
 *           so decoding is a shift and a multiplication by a power of two (exact). The 2^-15 that
 *           exp_avg carries makes its code 0 zero and the codes above it evenly spaced, without a
 *           case of its own for subnormals. Encoding rounds
 *           stochastically, by the element's counter: a second moment that changes by 0.1 % a step
 *           would otherwise stay on its code for ever.
 * Rejected  A code book (the dynamic tree of 8-bit Adam): two 256-entry gathers and a binary search
 *           per element are slower than the memory that they save. Four bits of mantissa and four
 *           of exponent for exp_avg_sq: gradients that differ by more than 2^8 within a block lose
 *           their step size (three times the loss in tests/kernels/test_optim_q8.c, where five of
 *           exponent reach that of f32). Zero as a code of exp_avg_sq: a first moment over a lost
 *           second moment is an unbounded step.
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

static inline uint32_t max_lanes(vi lanes)
{
    uint32_t x[16], max = 0;
    v_store((float *)x, v_from_bits(lanes));
    for (int lane = 0; lane < 16; lane++)
        max = x[lane] > max ? x[lane] : max;
    return max;
}

/* The power of two such that magnitude / scale, below 2 - 1/8, rounds to a code whichever way it
 * rounds. 0 for 0. Kept in [2^-126, 2^127] so that its inverse is finite. */
static inline float q8_scale(uint32_t magnitude_bits)
{
    if (magnitude_bits == 0)
        return 0;
    uint32_t exponent = (magnitude_bits + (1u << 20)) >> 23;
    exponent = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent;
    return sl_f32_from_bits(exponent << 23);
}

/* The top 11 bits of a float (after its sign) less these are the code: the exponent fields of 2^-15
 * and 2^-31, and three bits of mantissa. */
#define Q8_BASE_SIGNED (112u << 3)
#define Q8_BASE_UNSIGNED (96u << 3)
#define Q8_OFFSET 0x1p-15f

INLINE vf q8_decode_unsigned(vi code, vf scale)
{
    return v_mul(v_from_bits(vi_shl(vi_add(code, vi_set1(Q8_BASE_UNSIGNED)), 20)), scale);
}

/* Uses the low half of random. */
INLINE vi q8_encode_unsigned(vf x, vf inverse, vi random)
{
    vi bits = vi_from_bits(v_mul(x, inverse));
    vi dither = vi_shl(vi_and(random, vi_set1(0xffffu)), 4);
    vi code = vi_sub(vi_shr(vi_add(bits, dither), 20), vi_set1(Q8_BASE_UNSIGNED));
    return vi_min(vi_max(code, vi_set1(0)), vi_set1(0xffu));
}

INLINE vf q8_decode_signed(vi code, vf scale)
{
    vi magnitude = vi_and(code, vi_set1(0x7fu));
    vi sign = vi_shl(vi_and(code, vi_set1(0x80u)), 24);
    vf raised = v_from_bits(vi_shl(vi_add(magnitude, vi_set1(Q8_BASE_SIGNED)), 20));
    vf value = v_sub(raised, v_set1(Q8_OFFSET));
    return v_mul(v_from_bits(vi_or(vi_from_bits(value), sign)), scale);
}

/* Uses the high half of random. */
INLINE vi q8_encode_signed(vf x, vf inverse, vi random)
{
    vi bits = vi_from_bits(x);
    vf magnitude = v_from_bits(vi_and(bits, vi_set1(0x7fffffffu)));
    vi raised = vi_from_bits(v_fma(magnitude, inverse, v_set1(Q8_OFFSET)));
    vi dither = vi_shr(vi_and(random, vi_set1(0xffff0000u)), 12);
    vi code = vi_sub(vi_shr(vi_add(raised, dither), 20), vi_set1(Q8_BASE_SIGNED));
    vi sign = vi_and(vi_shr(bits, 24), vi_set1(0x80u));
    return vi_or(vi_min(code, vi_set1(0x7fu)), sign);
}

#endif
