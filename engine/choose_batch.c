// SPDX-License-Identifier: Apache-2.0
/* One candidate after the other, each placed by the rule and simulated once.
 *
 * Problem   The size fixes the order of sums, so it comes before everything that does not; but how
 *           fast it is depends on a placement and a schedule that are chosen for it.
 * Choice    The rule of engine/placement.h stands for them: it moves state to slower tiers as a
 *           larger micro-batch takes their room, which is what decides. A larger batch per step
 *           must be worth GAIN; of a given total the fewest micro-batches come first and more of
 *           them must be worth it.
 * Bound     Operations planned, as in engine/choose.c: a small micro-batch of a large total makes a
 *           long plan.
 * Rejected  A whole search of engine/choose.c per candidate: ten times the plans, for the same
 *           order of candidates.
 */
#include "engine/choose_batch.h"

#include <assert.h>
#include <math.h>

#include "base/size.h"

#define GAIN 0.005
#define OPS_MAX 4000000u
#define MICRO_BATCH_MAX (1u << 20) /* of the key */
#define PATIENCE 2                 /* candidates in a row that are no faster */

void sl_batch_set(struct sl_step_options *step, size_t micro_batch, size_t micro_batches,
                  uint64_t group)
{
    step->batch = micro_batch;
    step->micro_batches = micro_batches;
    step->group = group ? (size_t)sl_min_u64(group, micro_batches) : micro_batches;
}

static uint64_t greatest_divisor(uint64_t total, uint64_t most)
{
    uint64_t divisor = sl_min_u64(total, most);
    while (total % divisor)
        divisor--;
    return divisor;
}

/* Micro-batch sizes in the order of trial. */
static size_t list_candidates(uint64_t sizes[SL_BATCH_ROWS_MAX], const struct sl_batch_free *free)
{
    size_t count = 0;
    if (free->total) {
        uint64_t power = MICRO_BATCH_MAX;
        for (; power; power /= 2) {
            uint64_t size = greatest_divisor(free->total, power);
            if (!count || size != sizes[count - 1])
                sizes[count++] = size;
        }
        return count;
    }
    for (uint64_t size = 1; size <= MICRO_BATCH_MAX; size *= 2)
        if (size == 1 || !free->total_max || size * free->accumulation <= free->total_max)
            sizes[count++] = size;
    return count;
}

static int try_size(struct sl_batch_row *row, struct sl_step_options *step, uint64_t *ops,
                    const struct sl_choose_options *options, struct sl_error *error)
{
    struct sl_choose_options rule = *options;
    struct sl_choice choice;
    rule.step = *step;
    rule.rule_only = true;
    int result = sl_choose(step, &choice, &rule, error);
    if (result)
        return result;
    const struct sl_choice_row *first = &choice.rows[0];
    double tokens = (double)step->batch * (double)step->sequence * (double)step->micro_batches;
    *row = (struct sl_batch_row){.micro_batch = step->batch,
                                 .micro_batches = step->micro_batches,
                                 .seconds_per_token = first->seconds / tokens};
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        row->bytes[tier] = first->bytes[tier];
    *ops += choice.ops;
    return 0;
}

int sl_choose_batch(struct sl_step_options *step, struct sl_batch_choice *choice,
                    const struct sl_batch_free *free, const struct sl_choose_options *options,
                    struct sl_error *error)
{
    uint64_t sizes[SL_BATCH_ROWS_MAX], ops = 0, smallest = UINT64_MAX;
    size_t count = list_candidates(sizes, free), slower = 0;
    double best = INFINITY;
    assert(free->free && options->hardware && count <= SL_BATCH_ROWS_MAX);
    *choice = (struct sl_batch_choice){.best = SIZE_MAX};
    for (size_t i = 0; i < count && (free->total || slower < PATIENCE); i++) {
        if (ops >= OPS_MAX) {
            choice->cut_short = true;
            break;
        }
        struct sl_batch_row *row = &choice->rows[choice->row_count];
        struct sl_step_options tried = options->step;
        uint64_t micro_batches = free->total ? free->total / sizes[i] : free->accumulation;
        sl_batch_set(&tried, sizes[i], micro_batches, free->group);
        int result = try_size(row, &tried, &ops, options, error);
        if (result)
            return result;
        choice->row_count++;
        smallest = sl_min_u64(smallest, sizes[i]);
        bool fits = row->seconds_per_token > 0;
        row->taken = fits && row->seconds_per_token < best * (1 - GAIN);
        slower = row->taken ? 0 : slower + 1;
        if (row->taken) {
            best = row->seconds_per_token;
            choice->best = choice->row_count - 1;
        } else if (!fits && !free->total) {
            break; /* nor do larger ones */
        }
    }
    if (choice->best == SIZE_MAX)
        choice->best = choice->row_count;
    uint64_t chosen =
        choice->best < choice->row_count ? choice->rows[choice->best].micro_batch : smallest;
    *step = options->step;
    sl_batch_set(step, chosen, free->total ? free->total / chosen : free->accumulation,
                 free->group);
    return 0;
}
