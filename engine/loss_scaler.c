// SPDX-License-Identifier: Apache-2.0
#include "engine/loss_scaler.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define STATE_VERSION 1u

void sl_loss_scaler_init(struct sl_loss_scaler *scaler,
                         const struct sl_loss_scaler_options *options)
{
    *scaler = (struct sl_loss_scaler){
        .options = *options,
        .scale = options->initial,
        .last_overflow = -1,
        .hysteresis_left = options->hysteresis,
    };
}

static int overflow_step(struct sl_loss_scaler *scaler, struct sl_error *error)
{
    const struct sl_loss_scaler_options *options = &scaler->options;
    int result = 0;
    if (options->dynamic && scaler->hysteresis_left > 1)
        scaler->hysteresis_left--;
    else if (options->dynamic && scaler->scale <= options->min)
        result =
            sl_error_set(error, SL_DOMAIN_NUMERIC, -ERANGE,
                         "step %llu: the gradients overflow with the loss scale already at its "
                         "minimum %g (fp16.min_loss_scale); the run has diverged: lower the "
                         "learning rate, or train in bf16",
                         (unsigned long long)scaler->steps + 1, options->min);
    else if (options->dynamic)
        scaler->scale = fmax(scaler->scale / 2, options->min);
    scaler->last_overflow = (int64_t)scaler->steps;
    scaler->skipped_in_row++;
    scaler->skipped_total++;
    if (!result && options->skipped_max && scaler->skipped_in_row >= options->skipped_max)
        result = sl_error_set(
            error, SL_DOMAIN_NUMERIC, -EDOM,
            "step %llu: %u steps in a row were skipped because a gradient was infinite or NaN "
            "(train.skipped_steps_max %u), the loss scale is %g: lower the learning rate, check "
            "the data, or lower fp16.initial_scale_power",
            (unsigned long long)scaler->steps + 1, scaler->skipped_in_row, options->skipped_max,
            scaler->scale);
    return result;
}

static void good_step(struct sl_loss_scaler *scaler)
{
    const struct sl_loss_scaler_options *options = &scaler->options;
    scaler->skipped_in_row = 0;
    if (!options->dynamic)
        return;
    if (options->consecutive)
        scaler->hysteresis_left = options->hysteresis;
    uint64_t since = (uint64_t)((int64_t)scaler->steps - scaler->last_overflow);
    if (since % options->window == 0) {
        scaler->hysteresis_left = options->hysteresis;
        scaler->scale *= 2;
    }
}

int sl_loss_scaler_update(struct sl_loss_scaler *scaler, bool overflow, bool *skip,
                          struct sl_error *error)
{
    int result = 0;
    *skip = overflow;
    if (overflow)
        result = overflow_step(scaler, error);
    else
        good_step(scaler);
    scaler->steps++;
    return result;
}

/* 0 scale f64 | 8 steps u64 | 16 last overflow i64 | 24 skipped u64 | 32 hysteresis u32 |
 * 36 skipped in a row u32 | 40 version u32 | 44 zero u32 */
static void put(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

void sl_loss_scaler_save(const struct sl_loss_scaler *scaler,
                         uint8_t state[SL_LOSS_SCALER_STATE_BYTES])
{
    uint64_t scale_bits;
    memcpy(&scale_bits, &scaler->scale, sizeof(scale_bits));
    memset(state, 0, SL_LOSS_SCALER_STATE_BYTES);
    put(state, scale_bits, 8);
    put(state + 8, scaler->steps, 8);
    put(state + 16, (uint64_t)scaler->last_overflow, 8);
    put(state + 24, scaler->skipped_total, 8);
    put(state + 32, scaler->hysteresis_left, 4);
    put(state + 36, scaler->skipped_in_row, 4);
    put(state + 40, STATE_VERSION, 4);
}

int sl_loss_scaler_load(struct sl_loss_scaler *scaler,
                        const uint8_t state[SL_LOSS_SCALER_STATE_BYTES], struct sl_error *error)
{
    struct sl_loss_scaler loaded = {.options = scaler->options};
    uint64_t scale_bits = get(state, 8);
    memcpy(&loaded.scale, &scale_bits, sizeof(scale_bits));
    loaded.steps = get(state + 8, 8);
    loaded.last_overflow = (int64_t)get(state + 16, 8);
    loaded.skipped_total = get(state + 24, 8);
    loaded.hysteresis_left = (uint32_t)get(state + 32, 4);
    loaded.skipped_in_row = (uint32_t)get(state + 36, 4);
    uint64_t version = get(state + 40, 4);
    bool sane = version == STATE_VERSION && isfinite(loaded.scale) && loaded.scale > 0 &&
                loaded.steps <= INT64_MAX && loaded.last_overflow >= -1 &&
                loaded.last_overflow < (int64_t)loaded.steps &&
                loaded.skipped_total <= loaded.steps &&
                loaded.skipped_in_row <= loaded.skipped_total;
    if (!sane)
        return sl_error_set(error, SL_DOMAIN_DATA, -EINVAL,
                            "the loss scaler's state is damaged: version %llu (1 is known), scale "
                            "%g, %llu steps",
                            (unsigned long long)version, loaded.scale,
                            (unsigned long long)loaded.steps);
    if (scaler->options.dynamic) {
        if (loaded.hysteresis_left > scaler->options.hysteresis)
            loaded.hysteresis_left = scaler->options.hysteresis;
    } else {
        loaded.scale = scaler->options.initial; /* a static scale is the configuration's */
        loaded.hysteresis_left = scaler->options.hysteresis;
    }
    *scaler = loaded;
    return 0;
}
