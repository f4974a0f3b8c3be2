// SPDX-License-Identifier: Apache-2.0
/* Conversions of sixteen lanes, in the operations of the vector header included before: bit-equal
 * to base/dtype.h. */
#ifndef SLUICE_KERNELS_CPU_VECTOR_CAST_H
#define SLUICE_KERNELS_CPU_VECTOR_CAST_H

#include "base/dtype.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- to bf16, in the upper half of each lane; what is below is not part of it ---- */

/* Round to nearest even; NaN stays NaN. */
INLINE vi vi_bf16_from_f32(vf x)
{
    vi bits = vi_from_bits(x);
    vi odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    return vi_keep_nan(vi_add(vi_add(bits, vi_set1(0x7fffu)), odd), x);
}

/* sl_bf16_from_master */
INLINE vi vi_bf16_from_master(vf master)
{
    return vi_add(vi_from_bits(master), vi_set1(0x8000u));
}

/* ---- */

/* sl_master_from_split: the upper half is one too many where bit 15 is set, so that bit is read as
 * the sign of the lower half. */
INLINE vf v_load_split(const uint16_t *weight, const uint16_t *low)
{
    const vi sign = vi_set1(0x8000u);
    return v_from_bits(vi_sub(vi_xor(vi_load_halves(low, weight), sign), sign));
}

INLINE vf v_load_dtype(const void *from, enum sl_dtype dtype, size_t index)
{
    if (dtype == SL_F32)
        return v_load((const float *)from + index);
    if (dtype == SL_BF16)
        return v_load_bf16((const uint16_t *)from + index);
    return v_load_f16((const uint16_t *)from + index);
}

INLINE void v_store_dtype(void *to, enum sl_dtype dtype, size_t index, vf x)
{
    if (dtype == SL_F32)
        v_store((float *)to + index, x);
    else if (dtype == SL_BF16)
        vi_store_high((uint16_t *)to + index, vi_bf16_from_f32(x));
    else
        v_store_f16((uint16_t *)to + index, x);
}

#endif
