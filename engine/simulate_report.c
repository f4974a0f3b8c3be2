// SPDX-License-Identifier: Apache-2.0
#include "engine/simulate_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/placement.h"
#include "offload/simulate_ranks.h"
#include "offload/trace.h"

#define BUDGET_SHARE 0.9
#define DAY_SECONDS 86400.0

void sl_report_budgets(const struct sl_hardware *hardware, uint64_t budget_bytes[SL_TIER_COUNT])
{
    budget_bytes[SL_TIER_DEVICE] = (uint64_t)(BUDGET_SHARE * hardware->device_memory_bytes);
    budget_bytes[SL_TIER_HOST] = (uint64_t)(BUDGET_SHARE * hardware->host_memory_bytes);
    budget_bytes[SL_TIER_NVME] = (uint64_t)hardware->nvme_bytes;
}

static bool within(const uint64_t total[SL_TIER_COUNT], const uint64_t extra[SL_TIER_COUNT],
                   const uint64_t budget[SL_TIER_COUNT])
{
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        if (budget[tier] && total[tier] + extra[tier] > budget[tier])
            return false;
    return true;
}

static bool updates_state(enum sl_op_kind kind, const struct sl_slot *slot)
{
    return kind == SL_OP_UPDATE || slot->state == SL_STATE_OPTIMIZER ||
           slot->state == SL_STATE_BUFFERS;
}

/* Tokens of a step from which on everything is hidden behind the device's work. Lanes and shared
 * resources alike: what a step costs however many tokens it has, over what a token leaves free. The
 * update must hide behind the forward pass alone, the share that is speculated on behind the rest.
 */
#define WAYS (SL_LANE_COUNT + SL_RESOURCE_COUNT)

static void add_ways(double ways[WAYS], const struct sl_hardware *hardware, const struct sl_op *op)
{
    double draw[SL_RESOURCE_COUNT];
    sl_simulate_op_draw(hardware, op, draw);
    ways[op->lane] += sl_simulate_op_seconds(hardware, op);
    for (int r = 0; r < SL_RESOURCE_COUNT; r++)
        ways[SL_LANE_COUNT + r] += draw[r];
}

static double tokens_to_hide(const struct sl_plan *plan, const struct sl_segment *segment,
                             const struct sl_hardware *hardware, double tokens)
{
    double fixed[WAYS] = {0}, each[WAYS] = {0}, update[WAYS] = {0}, speculated[WAYS] = {0};
    double forward = 0, compute = 0;
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        if (op->lane == SL_LANE_COMPUTE) {
            double seconds = sl_simulate_op_seconds(hardware, op);
            compute += op->micro_batch >= 0 ? seconds : 0;
            forward += op->kind >= SL_OP_EMBED && op->kind <= SL_OP_HEAD_STATS ? seconds : 0;
            if (!hardware->device_is_host)
                continue; /* draws on nothing that others do */
        } else if (op->micro_batch < 0 && op->access_count &&
                   updates_state(op->kind, &plan->slots[plan->accesses[op->access_first].slot])) {
            add_ways(op->speculative ? speculated : update, hardware, op);
        }
        add_ways(op->micro_batch >= 0 ? each : fixed, hardware, op);
    }
    double most = 0;
    for (int way = 0; way < WAYS; way++) {
        if (fixed[way] <= 0 || way == SL_LANE_COMPUTE)
            continue;
        double left = (compute - each[way]) / tokens;
        most = fmax(most, left > 0 ? fixed[way] / left : INFINITY);
        if (forward > 0)
            most = fmax(most, update[way] / (forward / tokens));
        if (compute > forward)
            most = fmax(most, speculated[way] / ((compute - forward) / tokens));
    }
    return most;
}

static int simulate(struct sl_report *out, const struct sl_step_plan *sp,
                    const struct sl_plan *plan, const struct sl_report_options *options,
                    struct sl_error *error)
{
    struct sl_hardware hardware = sl_hardware_share(options->hardware, out->ranks);
    uint32_t segments[] = {sp->prologue, sp->step, sp->step, sp->step};
    struct sl_simulation_options simulation = {.plan = plan,
                                               .hardware = &hardware,
                                               .segments = segments,
                                               .segment_count = 4,
                                               .measured = 1};
    int result = 0;
    if (options->trace_path)
        result = sl_trace_create(&simulation.trace, 4 * plan->op_count, error);
    if (!result)
        result = sl_simulate(&out->simulation, &simulation, error);
    if (!result && simulation.trace)
        result = sl_trace_write(simulation.trace, plan, options->trace_path, error);
    sl_trace_destroy(simulation.trace);
    if (result)
        return result;
    const struct sl_simulation *s = &out->simulation;
    double tokens = (double)out->tokens_per_step;
    sl_plan_traffic(plan, sp->step, &out->traffic);
    out->seconds_per_step = s->step_seconds;
    out->tokens_per_second = tokens / s->step_seconds;
    out->flops_per_token = sl_model_flops_per_token(sp->options.model, (uint32_t)out->sequence);
    out->tflops = out->flops_per_token * out->tokens_per_second / out->ranks * 1e-12;
    if (hardware.device_flops_peak > 0)
        out->mfu = out->tflops * 1e12 / hardware.device_flops_peak;
    out->bound_share = s->bound_seconds / s->step_seconds;
    out->hide_tokens =
        tokens_to_hide(plan, &plan->segments[sp->step], &hardware, tokens / out->ranks);
    out->written_tb_per_day = (double)out->traffic.bytes[SL_LANE_NVME_WRITE] / s->step_seconds *
                              DAY_SECONDS * 1e-12 * out->ranks;
    snprintf(out->bottleneck, sizeof(out->bottleneck), "%s",
             s->bound_is_resource ? sl_resource_name(s->bound_resource)
                                  : sl_lane_name(s->bound_lane));
    return 0;
}

int sl_report_make(struct sl_report *out, const struct sl_step_plan *sp,
                   const struct sl_report_options *options, struct sl_error *error)
{
    *out = (struct sl_report){.ranks = options->ranks > 1 ? options->ranks : 1};
    const struct sl_step_options *step = &sp->options;
    snprintf(out->hardware, sizeof(out->hardware), "%s", options->hardware->name);
    out->batch = step->batch;
    out->sequence = step->sequence;
    out->micro_batches = step->micro_batches;
    out->parameters = step->model->param_elements;
    out->tokens_per_step =
        (uint64_t)step->batch * step->sequence * step->micro_batches * out->ranks;

    struct sl_plan shared = {0};
    const struct sl_plan *plan = &sp->plan;
    if (out->ranks > 1) {
        int result = sl_plan_for_ranks(&shared, plan, out->ranks, error);
        if (result)
            return result;
        plan = &shared;
    }
    struct sl_hardware share = sl_hardware_share(options->hardware, out->ranks);
    sl_report_budgets(&share, out->budget_bytes);
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        out->plan_bytes[tier] = plan->tier_bytes[tier];
        out->extra_bytes[tier] = options->extra_bytes[tier];
        if (options->budget_bytes[tier])
            out->budget_bytes[tier] = options->budget_bytes[tier];
    }
    /* Zero is no limit elsewhere; here a tier that the hardware lacks holds nothing. */
    out->fits = within(out->plan_bytes, out->extra_bytes, out->budget_bytes) &&
                (out->budget_bytes[SL_TIER_NVME] || !out->plan_bytes[SL_TIER_NVME]);
    int result = sl_plan_memory(plan, &out->memory);
    if (result)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory while planning");
    else
        result = simulate(out, sp, plan, options, error);
    sl_plan_finish(&shared);
    return result;
}

/* ---- the nearest setting that fits ---------------------------------------------------------- */

#define FIT_LAYER_BYTES (64u << 20) /* a product of so much is far longer than the call for it */

struct fit {
    const struct sl_fit_options *options;
    struct sl_step_options step;
    struct sl_step_plan plan; /* the last one built; zero: none */
};

static int fit_build(struct fit *fit, const struct sl_step_options *step,
                     uint64_t total[SL_TIER_COUNT], struct sl_error *error)
{
    struct sl_step_plan *sp = &fit->plan;
    sl_step_plan_finish(sp);
    int result = sl_step_plan_place(sp, step, error);
    if (!result && fit->options->ranks > 1) {
        struct sl_plan shared = {0};
        result = sl_plan_for_ranks(&shared, &sp->plan, fit->options->ranks, error);
        sl_plan_finish(&sp->plan);
        sp->plan = shared;
    }
    for (int tier = 0; tier < SL_TIER_COUNT && !result; tier++)
        total[tier] = sp->plan.tier_bytes[tier] + fit->options->extra_bytes[tier];
    return result;
}

static int fit_attempt(void *user, const struct sl_placement *placement,
                       uint64_t total[SL_TIER_COUNT], struct sl_error *error)
{
    struct fit *fit = user;
    fit->step.placement = *placement;
    return fit_build(fit, &fit->step, total, error);
}

static int choose_attempt(void *user, const struct sl_step_options *step,
                          uint64_t total[SL_TIER_COUNT], struct sl_step_plan **plan,
                          struct sl_error *error)
{
    struct fit *fit = user;
    *plan = &fit->plan;
    return fit_build(fit, step, total, error);
}

/* What to set. A kind whose place is free follows by itself. */
static void describe(char change[256], const struct sl_fit_options *options,
                     const struct sl_step_options *to)
{
    const struct sl_step_options *from = options->step;
    char size[SL_SIZE_TEXT_BYTES];
    size_t used = 0;
    change[0] = 0;
    if (from->batch != to->batch)
        used += (size_t)snprintf(change, 256,
                                 "train.micro_batch=%zu instead of %zu, train.accumulation=%zu "
                                 "instead of %zu",
                                 to->batch, from->batch, to->micro_batches, from->micro_batches);
    if (from->layer_bytes != to->layer_bytes)
        used += (size_t)snprintf(change + used, 256 - used, "%stiling.layer_bytes=%s",
                                 used ? ", " : "", sl_size_format(to->layer_bytes, size));
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        if (options->placement_given[kind] && options->placement_free[kind])
            used += (size_t)snprintf(change + used, 256 - used, "%splacement.%s=auto",
                                     used ? ", " : "", sl_placed_name((enum sl_placed)kind));
}

/* Placement, then smaller micro-batches, with everything else as fit->step has it. */
static int fit_batch(struct fit *fit, bool *fits, struct sl_error *error)
{
    const struct sl_fit_options *options = fit->options;
    static const uint64_t none[SL_TIER_COUNT];
    for (;;) {
        struct sl_placement_search search = {
            .placement = options->step->placement,
            .unified = options->step->unified,
            .nvme = options->budget_bytes[SL_TIER_NVME] > 0,
            .attempt = fit_attempt,
            .user = fit,
        };
        memcpy(search.free, options->placement_free, sizeof(search.free));
        memcpy(search.budget_bytes, options->budget_bytes, sizeof(search.budget_bytes));
        int result = sl_placement_find(&search, error);
        uint64_t total[SL_TIER_COUNT];
        if (!result)
            result = fit_attempt(fit, &search.placement, total, error);
        if (result)
            return result;
        *fits = within(total, none, options->budget_bytes);
        if (*fits || !options->batch_free || fit->step.batch == 1)
            return 0;
        if (options->micro_batches_max && 2 * fit->step.micro_batches > options->micro_batches_max)
            return 0;
        bool layer_major = fit->step.group >= fit->step.micro_batches;
        fit->step.micro_batches *= sl_div_up(fit->step.batch, fit->step.batch / 2);
        fit->step.batch /= 2;
        fit->step.group = layer_major ? fit->step.micro_batches : fit->step.group;
    }
}

int sl_report_fit(struct sl_step_options *out, bool *fits, char change[256],
                  const struct sl_fit_options *options, struct sl_error *error)
{
    struct fit fit = {.options = options, .step = *options->step};
    *fits = false;
    change[0] = 0;
    int result = fit_batch(&fit, fits, error);
    if (!result && !*fits && options->batch_free && !options->step->layer_bytes) {
        fit.step = *options->step;
        fit.step.layer_bytes = FIT_LAYER_BYTES;
        result = fit_batch(&fit, fits, error);
    }
    sl_step_plan_finish(&fit.plan);
    *out = fit.step;
    if (*fits)
        describe(change, options, out);
    return result;
}

static struct sl_choose_options choose_options(struct fit *fit, const struct sl_hardware *share,
                                               const struct sl_choose_free *free)
{
    struct sl_choose_options choose = {
        .step = *fit->options->step,
        .free = *free,
        .nvme = fit->options->budget_bytes[SL_TIER_NVME] > 0,
        .hardware = share,
        .attempt = choose_attempt,
        .user = fit,
    };
    memcpy(choose.budget_bytes, fit->options->budget_bytes, sizeof(choose.budget_bytes));
    return choose;
}

int sl_report_choose_batch(struct sl_step_options *out, struct sl_batch_choice *choice,
                           const struct sl_fit_options *options, const struct sl_batch_free *batch,
                           const struct sl_hardware *hardware, const struct sl_choose_free *free,
                           struct sl_error *error)
{
    struct fit fit = {.options = options};
    struct sl_hardware share = sl_hardware_share(hardware, options->ranks);
    struct sl_choose_options choose = choose_options(&fit, &share, free);
    int result = sl_choose_batch(out, choice, batch, &choose, error);
    sl_step_plan_finish(&fit.plan);
    return result;
}

int sl_report_choose(struct sl_step_options *out, bool *fits, struct sl_choice *choice,
                     const struct sl_fit_options *options, const struct sl_hardware *hardware,
                     const struct sl_choose_free *free, struct sl_error *error)
{
    struct fit fit = {.options = options};
    struct sl_hardware share = sl_hardware_share(hardware, options->ranks);
    struct sl_choose_options choose = choose_options(&fit, &share, free);
    int result = sl_choose(out, choice, &choose, error);
    *fits = !result && choice->rows[0].taken;
    sl_step_plan_finish(&fit.plan);
    return result;
}
