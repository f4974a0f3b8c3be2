// SPDX-License-Identifier: Apache-2.0
/* Settings of a plan that change no bit, chosen by simulation: what the rule of engine/placement.h
 * gives is the first candidate, and others must be faster under the virtual clock and fit.
 */
#ifndef SLUICE_ENGINE_CHOOSE_H
#define SLUICE_ENGINE_CHOOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/step_plan.h"
#include "offload/simulate.h"

/* What may be chosen; the rest is the user's. */
struct sl_choose_free {
    bool placement[SL_PLACED_COUNT];
    bool order;     /* micro-batches per pass */
    bool recompute; /* recompute activations, or keep them */
    bool prefetch, buffers;
    bool speculate; /* how much of the update runs during the backward pass */
    bool sub_group;
    uint64_t sub_group_max; /* elements; 0: no bound of the user's */
};

#define SL_CHOICE_ROWS_MAX 48
#define SL_CHOICE_TEXT_BYTES 96

struct sl_choice_row {
    char text[SL_CHOICE_TEXT_BYTES]; /* what differs from the best before it */
    double seconds;                  /* a step, predicted; 0: not simulated, it does not fit */
    uint64_t bytes[SL_TIER_COUNT];
    bool taken; /* it became the best */
};

struct sl_choice {
    struct sl_choice_row rows[SL_CHOICE_ROWS_MAX]; /* in the order of trial; row 0: the rule */
    size_t row_count;
    size_t best;    /* the row that was chosen */
    bool cut_short; /* plans of this size: not every candidate was tried */
    uint64_t ops;   /* of all plans that were built */
};

struct sl_choose_options {
    struct sl_step_options step;
    struct sl_choose_free free;
    bool nvme;                            /* there is a path for NVMe */
    bool rule_only;                       /* the first candidate alone, placed and simulated */
    uint64_t budget_bytes[SL_TIER_COUNT]; /* 0: no limit */
    const struct sl_hardware *hardware;   /* NULL: the rule alone, nothing is simulated */
    /* Place the plan of a setting, give it and its totals; it is valid until the next call. The
     * search seals those that it simulates. */
    int (*attempt)(void *user, const struct sl_step_options *step, uint64_t total[SL_TIER_COUNT],
                   struct sl_step_plan **plan, struct sl_error *error);
    void *user;
};

/* Choose. *step is the chosen setting; where nothing fits it is the rule's. The same inputs give
 * the same choice: the search is bounded by operations planned, not by time.
 *
 * Memory   one plan at a time, freed by the caller of attempt
 * Threads  any; starts none
 * Errors   those of attempt and of sl_simulate */
int sl_choose(struct sl_step_options *step, struct sl_choice *choice,
              const struct sl_choose_options *options, struct sl_error *error);

#endif
