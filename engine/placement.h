// SPDX-License-Identifier: Apache-2.0
/* Placement where the user gave none: fill the fastest tier first, and move down only what does not
 * fit, by plans that are really built, so that every buffer counts.
 */
#ifndef SLUICE_ENGINE_PLACEMENT_H
#define SLUICE_ENGINE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/step_plan.h"

/* Which kind moves down first, and the parts of a kind that move at once. */
extern const enum sl_placed sl_placement_order[SL_PLACED_COUNT];
#define SL_PLACEMENT_PARTS 32

struct sl_placement_search {
    struct sl_placement placement;        /* in: rows of kinds that are given; out: the choice */
    bool free[SL_PLACED_COUNT];           /* rows that may be chosen */
    bool unified;                         /* device and host are one memory */
    bool nvme;                            /* there is a path for NVMe */
    uint64_t budget_bytes[SL_TIER_COUNT]; /* 0: no limit */
    /* Build the plan of a placement and give its totals. */
    int (*attempt)(void *user, const struct sl_placement *placement, uint64_t total[SL_TIER_COUNT],
                   struct sl_error *error);
    void *user;
};

/* Find the placement. Where nothing fits, the lowest one is left in `placement` and 0 returned: the
 * caller compares with budgets and says what is missing. Errors: those of attempt. */
int sl_placement_find(struct sl_placement_search *search, struct sl_error *error);

/* The user's budgets where device and host are one memory: one for the device is taken out, with a
 * warning, because nothing lies in it. */
void sl_placement_unified_budget(uint64_t budget_bytes[SL_TIER_COUNT], const struct sl_log *log);

#endif
