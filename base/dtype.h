// SPDX-License-Identifier: Apache-2.0
/* Element types, their sizes and the one scalar conversion of each (round to nearest even).
 *
 * Every vector variant in the project is bit-equal to these conversions; NaN stays NaN (quiet, the
 * payload's top bits kept).
 */
#ifndef SLUICE_BASE_DTYPE_H
#define SLUICE_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum sl_dtype { SL_F32, SL_BF16, SL_F16 };

static inline size_t sl_dtype_bytes(enum sl_dtype dtype)
{
    return dtype == SL_F32 ? 4 : 2;
}

static inline const char *sl_dtype_name(enum sl_dtype dtype)
{
    return dtype == SL_F32 ? "f32" : dtype == SL_BF16 ? "bf16" : "f16";
}

static inline uint32_t sl_bits_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float sl_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float sl_f32_from_bf16(uint16_t value)
{
    return sl_f32_from_bits((uint32_t)value << 16);
}

static inline uint16_t sl_bf16_from_f32(float value)
{
    uint32_t bits = sl_bits_from_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* The rounding from an fp32 master to its bf16 weight, in both master forms: half away from zero,
 * so that 16 more bits restore the master exactly. With x the master's bits: w = (x + 0x8000) >> 16
 * lo = x & 0xffff      x = ((w - (lo >> 15)) << 16) | lo
 */
static inline uint16_t sl_bf16_from_master(float master)
{
    return (uint16_t)((sl_bits_from_f32(master) + 0x8000u) >> 16);
}

static inline float sl_master_from_split(uint16_t weight, uint16_t low)
{
    return sl_f32_from_bits(((uint32_t)(uint16_t)(weight - (low >> 15)) << 16) | low);
}

/* IEEE half; overflow goes to infinity, subnormals are exact. */
static inline float sl_f32_from_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu;
    uint32_t mantissa = value & 0x3ffu;
    if (exponent == 0x1f)
        return sl_f32_from_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sl_f32_from_bits(sign | sl_bits_from_f32(magnitude));
    }
    return sl_f32_from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline uint16_t sl_f16_from_f32(float value)
{
    uint32_t bits = sl_bits_from_f32(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* subnormal half: let the float adder round to 2^-24 */
        float shifted = sl_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (sl_bits_from_f32(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

/* Element `index` of an array of `dtype`, as f32. For references and edges, not for hot loops. */
static inline float sl_dtype_load(const void *data, enum sl_dtype dtype, size_t index)
{
    if (dtype == SL_F32)
        return ((const float *)data)[index];
    uint16_t half = ((const uint16_t *)data)[index];
    return dtype == SL_BF16 ? sl_f32_from_bf16(half) : sl_f32_from_f16(half);
}

static inline void sl_dtype_store(void *data, enum sl_dtype dtype, size_t index, float value)
{
    if (dtype == SL_F32)
        ((float *)data)[index] = value;
    else
        ((uint16_t *)data)[index] =
            dtype == SL_BF16 ? sl_bf16_from_f32(value) : sl_f16_from_f32(value);
}

#endif
