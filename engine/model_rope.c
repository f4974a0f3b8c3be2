// SPDX-License-Identifier: Apache-2.0
/* Rotary position tables of every kind.
 *
 * A checkpoint was trained with the rounding of its framework: inverse frequencies in f32, the
 * angle as an f32 product. At position 8,000 that product's rounding is 2e-4 rad, more than the
 * whole error budget of a logits comparison, so it is repeated here on purpose: frequencies are
 * computed in fp64 and rounded to f32, the angle is one f32 product, and cosine and sine of that
 * angle are computed in fp64 and rounded once.
 *
 * Invariant: cos[p][i], sin[p][i] belong to the pair (i, i + rotary / 2) of a head.
 *
 * Source  position interpolation: arXiv:2306.15595 (linear), the NTK-aware base change (dynamic),
 * arXiv:2309.00071 (yarn), arXiv:2402.13753 (longrope), the Llama 3.1 model card (llama3).
 */
#include <math.h>

#include "engine/model.h"

#define PI 3.14159265358979323846

static float plain_frequency(double theta, uint32_t i, uint32_t rotary)
{
    return 1.0f / (float)pow(theta, (double)((float)(2 * i) / (float)rotary));
}

/* Wavelengths beyond original / low are stretched by factor, those under original / high kept,
 * those between blended. */
static float llama3_frequency(const struct sl_rope *rope, float frequency)
{
    double wavelength = 2 * PI / (double)frequency;
    double original = rope->original_positions;
    if (wavelength < original / rope->high_freq_factor)
        return frequency;
    if (wavelength > original / rope->low_freq_factor)
        return (float)((double)frequency / rope->factor);
    double smooth = (original / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (float)((1 - smooth) * (double)frequency / rope->factor + smooth * (double)frequency);
}

/* The index whose wavelength makes `rotations` turns over the original context. */
static double yarn_index(const struct sl_rope *rope, uint32_t rotary, double rotations)
{
    return rotary * log(rope->original_positions / (rotations * 2 * PI)) / (2 * log(rope->theta));
}

/* Frequencies that turn often are kept, those that turn less than beta_slow times are stretched,
 * with a ramp over the index between. */
static float yarn_frequency(const struct sl_rope *rope, uint32_t i, uint32_t rotary)
{
    double low = fmax(floor(yarn_index(rope, rotary, rope->beta_fast)), 0);
    double high = fmin(ceil(yarn_index(rope, rotary, rope->beta_slow)), rotary - 1.0);
    if (low == high)
        high += 0.001; /* a step instead of a division by zero */
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    double plain = (double)plain_frequency(rope->theta, i, rotary);
    return (float)(plain / rope->factor * ramp + plain * (1 - ramp));
}

static float frequency(const struct sl_rope *rope, uint32_t i, uint32_t rotary, uint32_t count)
{
    switch (rope->kind) {
    case SL_ROPE_LINEAR:
        return plain_frequency(rope->theta, i, rotary) / (float)rope->factor;
    case SL_ROPE_DYNAMIC: {
        double original = rope->original_positions, theta = rope->theta;
        if (count > rope->original_positions)
            theta *=
                pow(rope->factor * count / original - (rope->factor - 1), rotary / (rotary - 2.0));
        return plain_frequency(theta, i, rotary);
    }
    case SL_ROPE_YARN:
        return yarn_frequency(rope, i, rotary);
    case SL_ROPE_LLAMA3:
        return llama3_frequency(rope, plain_frequency(rope->theta, i, rotary));
    case SL_ROPE_LONGROPE: {
        bool stretched = count > rope->original_positions;
        float factor = (float)(stretched ? rope->long_factor : rope->short_factor)[i];
        return 1.0f / (factor * (1.0f / plain_frequency(rope->theta, i, rotary)));
    }
    case SL_ROPE_DEFAULT:
    case SL_ROPE_NONE:
        break;
    }
    return plain_frequency(rope->theta, i, rotary);
}

void sl_model_rope_table(const struct sl_model *model, uint32_t which, uint32_t count,
                         float *cos_out, float *sin_out)
{
    const struct sl_rope *rope = &model->rope[which];
    uint32_t half = model->rotary / 2;
    float scale = (float)rope->attention_factor;
    for (uint32_t i = 0; i < half; i++) {
        float f = frequency(rope, i, model->rotary, count);
        for (uint32_t position = 0; position < count; position++) {
            double angle = (double)((float)position * f);
            cos_out[(size_t)position * half + i] = (float)cos(angle) * scale;
            sin_out[(size_t)position * half + i] = (float)sin(angle) * scale;
        }
    }
}
