// SPDX-License-Identifier: Apache-2.0
/* The micro-batch size, where it is "auto": the one with the least predicted time per token among
 * those that fit. A numeric key, since it orders sums: chosen once, before everything that changes
 * no bit (engine/choose.h), and recorded in the run's checkpoints.
 */
#ifndef SLUICE_ENGINE_CHOOSE_BATCH_H
#define SLUICE_ENGINE_CHOOSE_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/choose.h"

struct sl_batch_free {
    bool free;             /* may be chosen; the rest says what stays */
    uint64_t total;        /* samples of a step: micro-batches follow; 0: not given, ... */
    uint64_t accumulation; /* ... and so many micro-batches are a step */
    uint64_t total_max;    /* samples of a step at most; 0: no bound */
    uint64_t group;        /* micro-batches per pass at most; 0: all */
};

#define SL_BATCH_ROWS_MAX 24

struct sl_batch_row {
    size_t micro_batch, micro_batches;
    double seconds_per_token; /* predicted; 0: it does not fit */
    uint64_t bytes[SL_TIER_COUNT];
    bool taken; /* it became the best */
};

struct sl_batch_choice {
    struct sl_batch_row rows[SL_BATCH_ROWS_MAX]; /* in the order of trial; none: not asked for */
    size_t row_count;
    size_t best;    /* the row that was chosen; row_count: none fits */
    bool cut_short; /* plans of this size: not every candidate was tried */
};

/* Sizes were tried and none fits. */
static inline bool sl_batch_found_none(const struct sl_batch_choice *choice)
{
    return choice->row_count && choice->best == choice->row_count;
}

/* Micro-batches of one step, and how many of them go through a layer at once. */
void sl_batch_set(struct sl_step_options *step, size_t micro_batch, size_t micro_batches,
                  uint64_t group);

/* Choose into *step. `options->step` is the setting that it will be part of, without a batch; where
 * nothing fits the smallest candidate is left. options->hardware must be there. The same inputs
 * give the same choice.
 *
 * Candidates  `total` given: for every power of two the greatest divisor of the total that is not
 *             above it, the largest first. Otherwise powers of two from 1 on, until one does not
 *             fit or two in a row are no faster.
 * Errors      those of sl_choose */
int sl_choose_batch(struct sl_step_options *step, struct sl_batch_choice *choice,
                    const struct sl_batch_free *free, const struct sl_choose_options *options,
                    struct sl_error *error);

#endif
