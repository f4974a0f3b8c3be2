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
 *           case of its own for subnormals. Encoding rounds stochastically, by the element's
 *           counter: a second moment that changes by 0.1 % a step would otherwise stay on its code
 *           for ever. One random number serves two elements, 16 apart: 20 bits for each moment of
 *           each, of which the two moments of one element share the 8 that matter least to the one.
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

/* sl_optim_random_q8 of the lanes of pair 0 ... 7, from the block's random_16. */
INLINE vi random_q8_16(vi block, uint32_t pair)
{
    vi x = vi_add(block, vi_set1(pair * SL_OPTIM_Q8_STRIDE));
    x = vi_mul(vi_xor(x, vi_shr(x, 16)), vi_set1(0x735a2d97u));
    return vi_mul(vi_xor(x, vi_shr(x, 12)), vi_set1(0x21f0aaadu));
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

/* A code is the exponent and the first three bits of mantissa of a float (its bits from 20 up),
 * less those of the smallest: 2^-15 (exp_avg), 2^-31 (exp_avg_sq). In both, a code that is added to
 * these bits touches none of them, so the sum is an OR. */
#define Q8_BASE_SIGNED 0x38000000u
#define Q8_BASE_UNSIGNED 0x30000000u
#define Q8_OFFSET 0x1p-15f
/* Encoding scales exp_avg by this too, so that both kinds of code have the base of exp_avg_sq. */
#define Q8_ENCODE_SIGNED 0x1p-16f

/* What is added to the bits of a float before they are cut to a code: 20 random bits, less the base
 * of codes. The high bits of one random number are for exp_avg of the elements whose bit 4 is clear
 * and for exp_avg_sq of the elements that are 16 further; the low bits for the other two. */
struct q8_dither {
    vi high, low;
};

INLINE struct q8_dither q8_dither_of(vi random)
{
    const vi base = vi_set1(0u - Q8_BASE_UNSIGNED);
    return (struct q8_dither){vi_or(vi_shr(random, 12), base),
                              vi_or(vi_and(random, vi_set1(0xfffffu)), base)};
}

INLINE vf q8_decode_unsigned(vi code, vf scale)
{
    return v_mul(v_from_bits(vi_or(vi_shl(code, 20), vi_set1(Q8_BASE_UNSIGNED))), scale);
}

/* Not yet kept within 0 ... 255: vi_store_u8 and vi_store_s8 do that. */
INLINE vi q8_encode_unsigned(vf x, vf inverse, vi dither)
{
    return vi_sar(vi_add(vi_from_bits(v_mul(x, inverse)), dither), 20);
}

/* `code` with its sign in bit 31 and below, as vi_load_s8 gives it. Exact: (raised - offset) scale,
 * whose parts are powers of two, rounded at most once. */
INLINE vf q8_decode_signed(vi code, vf scale)
{
    vi placed = vi_shl(code, 20);
    vi raised = vi_or(vi_and(placed, vi_set1(0x87f00000u)), vi_set1(Q8_BASE_SIGNED));
    vi offset = vi_xor(vi_and(placed, vi_set1(0x80000000u)),
                       vi_from_bits(v_mul(scale, v_set1(-Q8_OFFSET))));
    return v_fma(v_from_bits(raised), scale, v_from_bits(offset));
}

/* The magnitude's code. inverse: of the scale, times Q8_ENCODE_SIGNED. */
INLINE vi q8_encode_signed(vf x, vf inverse, vi dither)
{
    vf magnitude = v_from_bits(vi_and(vi_from_bits(x), vi_set1(0x7fffffffu)));
    vf raised = v_fma(magnitude, inverse, v_set1(Q8_OFFSET * Q8_ENCODE_SIGNED));
    return vi_sar(vi_add(vi_from_bits(raised), dither), 20);
}

#endif
