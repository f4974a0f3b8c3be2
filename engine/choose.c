// SPDX-License-Identifier: Apache-2.0
/* A walk downhill from the rule's setting.
 *
 * Problem   Which schedule, buffers and placement are fast depends on every rate of the machine and
 *           on every budget; the settings multiply, and a plan of a 10B model with 48 micro-batches
 *           takes some 60 ms to place.
 * Choice    One change at a time, in a fixed list, each on top of the best so far; a change is
 *           taken if its plan fits and is faster in simulation by more than GAIN. Exchanges move a
 *           kind to a faster tier and just so much of another to a slower one as makes room. Two
 *           rounds, since a change may make room for one that was refused.
 * Bound     Operations planned, not seconds, so that the choice does not depend on the load.
 * Rejected  Trying all products of settings (hundreds of plans); a formula of lane sums (it does
 *           not see waits, which is what most of these settings are about).
 */
#include "engine/choose.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "engine/placement.h"

#define GAIN 0.005       /* less is not worth another setting */
#define OPS_MAX 4000000u /* planned in one search: some seconds */
#define ROUNDS 2
#define SUB_GROUP_FLOOR (256u << 10)

struct choose {
    const struct sl_choose_options *o;
    struct sl_choice *choice;
    struct sl_step_options best;
    double best_seconds;
    uint64_t ops; /* planned so far */
    struct sl_error *error;
};

static bool within(const struct choose *c, const uint64_t total[SL_TIER_COUNT])
{
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        if (c->o->budget_bytes[tier] && total[tier] > c->o->budget_bytes[tier])
            return false;
    return true;
}

static int build(struct choose *c, const struct sl_step_options *step,
                 uint64_t total[SL_TIER_COUNT], struct sl_step_plan **plan)
{
    int result = c->o->attempt(c->o->user, step, total, plan, c->error);
    if (!result)
        c->ops += (*plan)->plan.op_count;
    return result;
}

static int seconds_of(struct choose *c, struct sl_step_plan *plan, double *seconds)
{
    uint32_t segments[] = {plan->prologue, plan->step, plan->step, plan->step};
    struct sl_simulation_options options = {.plan = &plan->plan,
                                            .hardware = c->o->hardware,
                                            .segments = segments,
                                            .segment_count = 4,
                                            .measured = 1};
    struct sl_simulation out;
    int result = sl_plan_seal(&plan->plan, c->error);
    if (!result)
        result = sl_simulate(&out, &options, c->error);
    *seconds = result ? 0 : out.step_seconds;
    return result;
}

static bool exhausted(const struct choose *c)
{
    return c->ops >= OPS_MAX || c->choice->row_count == SL_CHOICE_ROWS_MAX;
}

static int try_step(struct choose *c, const struct sl_step_options *step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Build and simulate a setting; it becomes the best where it fits and is faster. */
static int try_step(struct choose *c, const struct sl_step_options *step, const char *format, ...)
{
    if (exhausted(c)) {
        c->choice->cut_short = true;
        return 0;
    }
    struct sl_choice_row *row = &c->choice->rows[c->choice->row_count++];
    struct sl_step_plan *plan;
    va_list args;
    va_start(args, format);
    vsnprintf(row->text, sizeof(row->text), format, args);
    va_end(args);
    row->seconds = 0;
    row->taken = false;
    int result = build(c, step, row->bytes, &plan);
    if (result || !within(c, row->bytes))
        return result;
    result = seconds_of(c, plan, &row->seconds);
    if (result || row->seconds >= c->best_seconds * (1 - GAIN))
        return result;
    row->taken = true;
    c->choice->best = c->choice->row_count - 1;
    c->best = *step;
    c->best_seconds = row->seconds;
    return 0;
}

/* ---- the rule ------------------------------------------------------------------------------- */

struct rule {
    struct choose *c;
    struct sl_step_options *step;
};

static int rule_attempt(void *user, const struct sl_placement *placement,
                        uint64_t total[SL_TIER_COUNT], struct sl_error *error)
{
    struct rule *rule = user;
    struct sl_step_plan *plan;
    rule->step->placement = *placement;
    (void)error; /* the same one */
    return build(rule->c, rule->step, total, &plan);
}

/* Place the free kinds of a setting by the rule. */
static int place(struct choose *c, struct sl_step_options *step)
{
    struct rule rule = {.c = c, .step = step};
    struct sl_placement_search search = {.placement = c->o->step.placement,
                                         .unified = c->o->step.unified,
                                         .nvme = c->o->nvme,
                                         .attempt = rule_attempt,
                                         .user = &rule};
    memcpy(search.free, c->o->free.placement, sizeof(search.free));
    memcpy(search.budget_bytes, c->o->budget_bytes, sizeof(search.budget_bytes));
    int result = sl_placement_find(&search, c->error);
    step->placement = search.placement;
    return result;
}

/* ---- changes -------------------------------------------------------------------------------- */

static int try_order(struct choose *c)
{
    size_t m = c->best.micro_batches;
    const size_t groups[] = {m, (m + 1) / 2, 1};
    int result = 0;
    for (size_t i = 0; i < 3 && !result && c->o->free.order; i++) {
        struct sl_step_options step = c->best;
        if (step.group == groups[i] || (i == 1 && groups[1] <= 1))
            continue;
        step.group = groups[i];
        result = try_step(c, &step, "%zu micro-batches per pass", step.group);
    }
    return result;
}

static int try_recompute(struct choose *c)
{
    struct sl_step_options step = c->best;
    step.recompute = !step.recompute;
    if (!c->o->free.recompute)
        return 0;
    return try_step(c, &step, step.recompute ? "activations recomputed" : "activations kept");
}

static int try_depths(struct choose *c)
{
    static const uint32_t ahead[] = {1, 2, 3}, buffers[] = {2, 3, 4, 6, 8};
    int result = 0;
    for (size_t i = 0; i < 3 && !result && c->o->free.prefetch; i++) {
        struct sl_step_options step = c->best;
        if (step.prefetch == ahead[i])
            continue;
        step.prefetch = ahead[i];
        result = try_step(c, &step, "%u layers ahead", ahead[i]);
    }
    for (size_t i = 0; i < 5 && !result && c->o->free.buffers; i++) {
        struct sl_step_options step = c->best;
        if (step.optimizer_buffers == buffers[i] ||
            step.placement.fraction[SL_PLACED_OPTIMIZER][SL_TIER_NVME] <= 0)
            continue;
        step.optimizer_buffers = buffers[i];
        result = try_step(c, &step, "%u optimizer buffers", buffers[i]);
    }
    return result;
}

static int try_sub_group(struct choose *c)
{
    static const int shifts[] = {1, 2, -1, -2};
    uint64_t from = c->best.sub_group_elements, most = c->o->free.sub_group_max;
    int result = 0;
    for (size_t i = 0; i < 4 && !result && c->o->free.sub_group; i++) {
        struct sl_step_options step = c->best;
        uint64_t elements = shifts[i] > 0 ? from << shifts[i] : from >> -shifts[i];
        if (elements < SUB_GROUP_FLOOR || (most && elements > most))
            continue;
        step.sub_group_elements = elements;
        result = try_step(c, &step, "sub-groups of %.3g M elements", 1e-6 * (double)elements);
    }
    return result;
}

static void move_share(double fraction[SL_TIER_COUNT], int from, int to, double share)
{
    fraction[to] += share;
    fraction[from] = fmax(0, fraction[from] - share);
}

static bool fits(const struct choose *c, const uint64_t total[SL_TIER_COUNT], int tier)
{
    return !c->o->budget_bytes[tier] || total[tier] <= c->o->budget_bytes[tier];
}

/* Move as little of a kind to the slower tier as makes the faster one fit, or all of it: *share of
 * the kind. */
static int make_room(struct choose *c, struct sl_step_options *step, int kind, int fast, int slow,
                     double *share)
{
    double row[SL_TIER_COUNT];
    memcpy(row, step->placement.fraction[kind], sizeof(row));
    int low = -1, high = SL_PLACEMENT_PARTS, result = 0; /* high is hoped to fit */
    while (high - low > 1 && !result && !exhausted(c)) {
        int middle = low < 0 ? 0 : (low + high) / 2;
        uint64_t total[SL_TIER_COUNT];
        struct sl_step_plan *plan;
        memcpy(step->placement.fraction[kind], row, sizeof(row));
        move_share(step->placement.fraction[kind], fast, slow,
                   row[fast] * middle / SL_PLACEMENT_PARTS);
        result = build(c, step, total, &plan);
        if (!result && fits(c, total, fast))
            high = middle;
        else
            low = middle;
    }
    *share = row[fast] * high / SL_PLACEMENT_PARTS;
    memcpy(step->placement.fraction[kind], row, sizeof(row));
    move_share(step->placement.fraction[kind], fast, slow, *share);
    return result;
}

/* `up` goes from the slow tier to the fast one; `down` goes the other way, by as little as fits. */
static int exchange(struct choose *c, int up, int down, int fast, int slow)
{
    struct sl_step_options step = c->best;
    double rises = step.placement.fraction[up][slow], share;
    if (rises <= 0 || step.placement.fraction[down][fast] <= 0)
        return 0;
    move_share(step.placement.fraction[up], slow, fast, rises);
    int result = make_room(c, &step, down, fast, slow, &share);
    if (result)
        return result;
    return try_step(c, &step, "%s up to %s, %.0f %% of %s down to %s",
                    sl_placed_name((enum sl_placed)up), sl_tier_name((enum sl_tier)fast),
                    100 * share, sl_placed_name((enum sl_placed)down),
                    sl_tier_name((enum sl_tier)slow));
}

/* Make room on a tier, in the rule's order of kinds. */
static int relieve(struct choose *c, struct sl_step_options *step, int fast, int slow)
{
    int result = 0;
    bool done = false;
    for (int i = 0; i < SL_PLACED_COUNT && !result && !done; i++) {
        double before = step->placement.fraction[sl_placement_order[i]][fast], share;
        if (!c->o->free.placement[sl_placement_order[i]] || before <= 0)
            continue;
        result = make_room(c, step, (int)sl_placement_order[i], fast, slow, &share);
        done = share < before;
    }
    return result;
}

/* A second version of state takes room. */
static int try_share(struct choose *c, double speculate)
{
    struct sl_step_options step = c->best;
    int result = 0;
    if (speculate < 0 || speculate > 1 || speculate == step.speculate)
        return 0;
    step.speculate = speculate;
    if (!step.unified)
        result = relieve(c, &step, SL_TIER_DEVICE, SL_TIER_HOST);
    if (!result && c->o->nvme)
        result = relieve(c, &step, SL_TIER_HOST, SL_TIER_NVME);
    return result ? result
                  : try_step(c, &step, "%.3g %% of the update on a prediction", 100 * speculate);
}

static int try_speculation(struct choose *c)
{
    int result = 0;
    for (double share = 0.25; share <= 1 && !result && c->o->free.speculate; share += 0.25)
        result = try_share(c, share);
    for (double by = 0.125; by > 0.05 && !result && c->best.speculate > 0; by /= 2) {
        double from = c->best.speculate;
        for (int sign = -1; sign <= 1 && !result && c->o->free.speculate; sign += 2)
            result = try_share(c, from + sign * by);
    }
    return result;
}

static int try_exchanges(struct choose *c)
{
    int result = 0;
    for (int fast = c->best.unified ? SL_TIER_HOST : SL_TIER_DEVICE; fast < SL_TIER_NVME; fast++)
        for (int up = 0; up < SL_PLACED_COUNT; up++)
            for (int down = 0; down < SL_PLACED_COUNT && !result; down++)
                if (up != down && c->o->free.placement[up] && c->o->free.placement[down] &&
                    (fast + 1 < SL_TIER_NVME || c->o->nvme))
                    result = exchange(c, up, down, fast, fast + 1);
    return result;
}

int sl_choose(struct sl_step_options *step, struct sl_choice *choice,
              const struct sl_choose_options *options, struct sl_error *error)
{
    struct choose c = {.o = options, .choice = choice, .best_seconds = INFINITY, .error = error};
    *choice = (struct sl_choice){0};
    c.best = options->step;
    int result = place(&c, &c.best);
    if (!result && options->hardware && !options->step.generate_positions) {
        struct sl_step_options rule = c.best;
        result = try_step(&c, &rule, "the rule: fastest tier first");
        if (!result && (!choice->rows[0].taken || options->rule_only))
            options = NULL; /* it does not fit, so there is nothing to improve; or that was all */
    } else {
        options = NULL;
    }
    static int (*const changes[])(struct choose *) = {
        try_speculation, try_depths, try_exchanges, try_order, try_recompute, try_sub_group};
    for (int round = 0; round < ROUNDS && options && !result; round++) {
        double before = c.best_seconds;
        for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]) && !result; i++)
            result = changes[i](&c);
        if (c.best_seconds >= before)
            break;
    }
    *step = c.best;
    choice->ops = c.ops;
    return result;
}
