// SPDX-License-Identifier: Apache-2.0
/* The loss scale of fp16 training: static, or dynamic with hysteresis.
 *
 *     overflow   the step is skipped. hysteresis 1 left: scale = max(scale / 2, min), and an error
 *                where it is at min already; more left: one less, the scale stays
 *     good step  consecutive: hysteresis refilled; after `window` good steps since the last
 *                overflow: scale x 2 and hysteresis refilled
 *
 * A step is unscaled by the scale that its backward pass used, so take sl_loss_scaler.scale before
 * sl_loss_scaler_update. A run of skipped_max skipped steps is an error in every precision: such a
 * run learns nothing, and says so instead of going on.
 */
#ifndef SLUICE_ENGINE_LOSS_SCALER_H
#define SLUICE_ENGINE_LOSS_SCALER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sl_loss_scaler_options {
    bool dynamic;         /* false: `initial` for ever (1 for bf16 and f32) */
    double initial;       /* the first, or the static, scale */
    double min;           /* dynamic: never below */
    uint64_t window;      /* good steps before the scale doubles */
    uint32_t hysteresis;  /* overflows before it halves, at least 1 */
    bool consecutive;     /* good steps refill the hysteresis */
    uint32_t skipped_max; /* skipped steps in a row that stop the run; 0: never */
};

/* State: every field goes into a checkpoint (sl_loss_scaler_save). */
struct sl_loss_scaler {
    struct sl_loss_scaler_options options; /* not state: from the configuration */
    double scale;
    uint64_t steps;        /* updates seen, skipped ones included */
    int64_t last_overflow; /* step index of the last overflow; -1: none */
    uint32_t hysteresis_left;
    uint32_t skipped_in_row;
    uint64_t skipped_total;
};

void sl_loss_scaler_init(struct sl_loss_scaler *scaler,
                         const struct sl_loss_scaler_options *options);

/* Tell the scaler how the step ended; true in *skip: do not apply it.
 *
 * Errors   -ERANGE: an overflow with the scale already at its minimum; -EDOM: skipped_max steps
 *          skipped in a row. Both name the figures and what to change. The state has advanced. */
int sl_loss_scaler_update(struct sl_loss_scaler *scaler, bool overflow, bool *skip,
                          struct sl_error *error);

/* The state as SL_LOSS_SCALER_STATE_BYTES little-endian bytes, and back. -EINVAL where the bytes
 * are not a state (version, ranges). */
#define SL_LOSS_SCALER_STATE_BYTES 48
void sl_loss_scaler_save(const struct sl_loss_scaler *scaler,
                         uint8_t state[SL_LOSS_SCALER_STATE_BYTES]);
int sl_loss_scaler_load(struct sl_loss_scaler *scaler,
                        const uint8_t state[SL_LOSS_SCALER_STATE_BYTES], struct sl_error *error);

#endif
