// SPDX-License-Identifier: Apache-2.0
/* Conversions of sixteen lanes, in the operations of the vector header included before: bit-equal
 * to base/dtype.h. */
#ifndef SLUICE_KERNELS_CPU_VECTOR_CAST_H
#define SLUICE_KERNELS_CPU_VECTOR_CAST_H

#include "base/dtype.h"

#define INLINE static inline __attribute__((always_inline))

INLINE vf v_from_bf16(vi half)
{
    return v_from_bits(vi_shl(half, 16));
}

/* Round to nearest even; NaN stays NaN. */
INLINE vi vi_bf16_from_f32(vf x)
{
    vi bits = vi_from_bits(x);
    vi magnitude = vi_and(bits, vi_set1(0x7fffffffu));
    vi top = vi_shr(bits, 16);
    vi odd = vi_and(top, vi_set1(1));
    vi rounded = vi_shr(vi_add(vi_add(bits, vi_set1(0x7fffu)), odd), 16);
    vi quiet = vi_or(top, vi_set1(0x40u));
    return vi_select(vi_gt(magnitude, vi_set1(0x7f800000u)), quiet, rounded);
}

/* sl_bf16_from_master */
INLINE vi vi_bf16_from_master(vf master)
{
    return vi_shr(vi_add(vi_from_bits(master), vi_set1(0x8000u)), 16);
}

/* sl_master_from_split: the borrow may run out of the top, which the shift drops. */
INLINE vf v_master_from_split(vi weight, vi low)
{
    return v_from_bits(vi_or(vi_shl(vi_sub(weight, vi_shr(low, 15)), 16), low));
}

INLINE vf v_load_dtype(const void *from, enum sl_dtype dtype, size_t index)
{
    if (dtype == SL_F32)
        return v_load((const float *)from + index);
    if (dtype == SL_BF16)
        return v_from_bf16(vi_load_u16((const uint16_t *)from + index));
    return v_load_f16((const uint16_t *)from + index);
}

INLINE void v_store_dtype(void *to, enum sl_dtype dtype, size_t index, vf x)
{
    if (dtype == SL_F32)
        v_store((float *)to + index, x);
    else
        vi_store_u16((uint16_t *)to + index,
                     dtype == SL_BF16 ? vi_bf16_from_f32(x) : vi_f16_from_f32(x));
}

#endif
