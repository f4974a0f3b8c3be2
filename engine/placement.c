// SPDX-License-Identifier: Apache-2.0
/* Two passes. The first relieves the device: kinds move from device to host memory, in the order of
 * bytes per use (optimizer state is touched once a step; weights twice per pass). The second
 * relieves host memory the same way, towards NVMe. In each pass a kind moves by 32nds, found
 * by bisection, and the next kind moves only when all of this one has.
 */
#include "engine/placement.h"

#include <string.h>

const enum sl_placed sl_placement_order[SL_PLACED_COUNT] = {
    SL_PLACED_OPTIMIZER, SL_PLACED_GRADIENTS, SL_PLACED_ACTIVATIONS, SL_PLACED_WEIGHTS};

static bool fits(const struct sl_placement_search *s, const uint64_t total[SL_TIER_COUNT],
                 enum sl_tier tier)
{
    return s->budget_bytes[tier] == 0 || total[tier] <= s->budget_bytes[tier];
}

/* Put `parts` 32nds of what a kind had on `from` (`share`) on `to`. */
static int attempt(struct sl_placement_search *s, enum sl_placed kind, enum sl_tier from,
                   enum sl_tier to, double share, int parts, bool *good, struct sl_error *error)
{
    double *fraction = s->placement.fraction[kind];
    fraction[to] = share * parts / SL_PLACEMENT_PARTS;
    fraction[from] = share - fraction[to];
    uint64_t total[SL_TIER_COUNT];
    int result = s->attempt(s->user, &s->placement, total, error);
    *good = !result && fits(s, total, from);
    return result;
}

/* Relieve tier `from`: true in *done when it fits its budget. */
static int relieve(struct sl_placement_search *s, enum sl_tier from, enum sl_tier to, bool *done,
                   struct sl_error *error)
{
    uint64_t total[SL_TIER_COUNT];
    int result = s->attempt(s->user, &s->placement, total, error);
    *done = !result && fits(s, total, from);
    for (size_t i = 0;
         i < sizeof(sl_placement_order) / sizeof(sl_placement_order[0]) && !result && !*done; i++) {
        enum sl_placed kind = sl_placement_order[i];
        double share = s->placement.fraction[kind][from];
        if (!s->free[kind] || share <= 0)
            continue;
        result = attempt(s, kind, from, to, share, SL_PLACEMENT_PARTS, done, error);
        int low = 0, high = SL_PLACEMENT_PARTS;
        while (*done && high - low > 1 && !result) {
            bool good;
            int middle = (low + high) / 2;
            result = attempt(s, kind, from, to, share, middle, &good, error);
            if (good)
                high = middle;
            else
                low = middle;
        }
        if (*done && !result) {
            bool good;
            result = attempt(s, kind, from, to, share, high, &good, error);
        }
    }
    return result;
}

int sl_placement_find(struct sl_placement_search *s, struct sl_error *error)
{
    enum sl_tier fastest = s->unified ? SL_TIER_HOST : SL_TIER_DEVICE;
    bool any = false;
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        if (!s->free[kind])
            continue;
        any = true;
        memset(s->placement.fraction[kind], 0, sizeof(s->placement.fraction[kind]));
        s->placement.fraction[kind][fastest] = 1;
    }
    bool done = false;
    int result = 0;
    if (!any)
        return 0;
    if (!s->unified)
        result = relieve(s, SL_TIER_DEVICE, SL_TIER_HOST, &done, error);
    if (!result && s->nvme)
        result = relieve(s, SL_TIER_HOST, SL_TIER_NVME, &done, error);
    return result;
}

void sl_placement_unified_budget(uint64_t budget_bytes[SL_TIER_COUNT], const struct sl_log *log)
{
    if (!budget_bytes[SL_TIER_DEVICE])
        return;
    sl_log_write(log, SL_LOG_WARNING,
                 "memory.device has no effect: the host device computes in host memory, whose "
                 "budget is memory.host; --device host:discrete has memory of its own");
    budget_bytes[SL_TIER_DEVICE] = 0;
}
