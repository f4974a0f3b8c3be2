// SPDX-License-Identifier: Apache-2.0
/* Random plans with the shape of training steps: weights, gradients and optimizer state on random
 * tiers, random prefetch distance, micro-batches, sub-groups, and the update either at the end of
 * the step or behind the next forward pass. Sealed by the real seal. For tests only. */
#ifndef SLUICE_TESTS_OFFLOAD_RANDOM_PLAN_H
#define SLUICE_TESTS_OFFLOAD_RANDOM_PLAN_H

#include "offload/plan.h"
#include "tests/test.h"

#define RANDOM_UNITS_MAX 12u

struct random_options {
    uint32_t units, micro_batches, parts, distance;
    bool unified, forward_order;
    bool weights_nvme[RANDOM_UNITS_MAX], optimizer_nvme[RANDOM_UNITS_MAX];
    bool resident[RANDOM_UNITS_MAX];
    uint64_t unit_bytes[RANDOM_UNITS_MAX]; /* of the 16-bit weights */
    uint64_t activation_bytes;
};

struct random_plan {
    struct sl_plan *plan;
    struct random_options o;
    uint32_t weights[RANDOM_UNITS_MAX];   /* persistent: device, host or NVMe */
    uint32_t optimizer[RANDOM_UNITS_MAX]; /* persistent: host or NVMe */
    uint32_t gradient[RANDOM_UNITS_MAX];  /* host, consumed once */
    uint32_t norms, decision;
};

static inline struct random_options random_plan_options(struct test_random *random)
{
    struct random_options o = {
        .units = 1 + (uint32_t)test_random_below(random, 6),
        .micro_batches = 1 + (uint32_t)test_random_below(random, 3),
        .parts = 1 + (uint32_t)test_random_below(random, 3),
        .distance = (uint32_t)test_random_below(random, 4),
        .unified = test_random_below(random, 4) == 0,
        .forward_order = test_random_below(random, 2) == 0,
        .activation_bytes = 1 + test_random_below(random, 30000),
    };
    for (uint32_t i = 0; i < o.units; i++) {
        o.weights_nvme[i] = test_random_below(random, 3) == 0;
        o.optimizer_nvme[i] = test_random_below(random, 2) == 0;
        o.resident[i] = test_random_below(random, 4) == 0;
        o.unit_bytes[i] = 4096 * o.parts * (1 + test_random_below(random, 5));
    }
    return o;
}

static inline uint32_t random_plan_op(struct sl_plan *plan, enum sl_op_kind kind, enum sl_lane lane,
                                      uint32_t unit, uint64_t bytes)
{
    return sl_plan_op(plan, (struct sl_op_desc){.kind = kind,
                                                .lane = lane,
                                                .unit = (int32_t)unit,
                                                .piece = -1,
                                                .micro_batch = -1,
                                                .part = -1,
                                                .bytes = bytes,
                                                .flops = (double)bytes * 64});
}

static inline void random_plan_copy(struct sl_plan *plan, enum sl_op_kind kind, enum sl_lane lane,
                                    uint32_t unit, uint32_t from, uint32_t to)
{
    random_plan_op(plan, kind, lane, unit, plan->slots[to].bytes);
    sl_plan_reads(plan, from);
    sl_plan_writes(plan, to);
}

static inline uint32_t random_plan_slot(struct random_plan *r, enum sl_tier tier,
                                        enum sl_state state, uint64_t bytes, const char *name,
                                        uint32_t index)
{
    return sl_plan_slot(r->plan, tier, state, bytes, false, "%s %u", name, index);
}

/* Bring the weights of a unit to the device; returns the slot to compute from. */
static inline uint32_t random_plan_load(struct random_plan *r, uint32_t unit)
{
    const struct random_options *o = &r->o;
    uint32_t at = r->weights[unit];
    if (o->resident[unit])
        return at;
    if (o->weights_nvme[unit]) {
        uint32_t staging = random_plan_slot(r, SL_TIER_HOST, SL_STATE_BUFFERS, o->unit_bytes[unit],
                                            "fetched", unit);
        random_plan_copy(r->plan, SL_OP_FETCH, SL_LANE_NVME_READ, unit, at, staging);
        at = staging;
    }
    if (o->unified)
        return at;
    uint32_t device =
        random_plan_slot(r, SL_TIER_DEVICE, SL_STATE_WEIGHTS, o->unit_bytes[unit], "weights", unit);
    random_plan_copy(r->plan, SL_OP_UPLOAD, SL_LANE_H2D, unit, at, device);
    return device;
}

/* Update a unit, part by part, each part through views. */
static inline void random_plan_update(struct random_plan *r, uint32_t unit)
{
    const struct random_options *o = &r->o;
    struct sl_plan *plan = r->plan;
    uint64_t bytes = o->unit_bytes[unit] / o->parts;
    for (uint32_t part = 0; part < o->parts; part++) {
        uint32_t gradient = sl_plan_view(plan, r->gradient[unit], part * bytes, bytes);
        uint32_t optimizer = sl_plan_view(plan, r->optimizer[unit], part * bytes * 6, bytes * 6);
        uint32_t weights = sl_plan_view(plan, r->weights[unit], part * bytes, bytes);
        uint32_t state = optimizer, out = weights;
        if (o->optimizer_nvme[unit]) {
            state =
                random_plan_slot(r, SL_TIER_HOST, SL_STATE_OPTIMIZER, bytes * 6, "moments", unit);
            random_plan_copy(plan, SL_OP_FETCH, SL_LANE_NVME_READ, unit, optimizer, state);
        }
        bool copied = o->resident[unit] ? !o->unified : o->weights_nvme[unit];
        if (copied)
            out = random_plan_slot(r, SL_TIER_HOST, SL_STATE_BUFFERS, bytes, "updated", unit);
        random_plan_op(plan, SL_OP_UPDATE, SL_LANE_CPU, unit, bytes * 14);
        sl_plan_reads(plan, r->decision);
        sl_plan_reads(plan, gradient);
        sl_plan_reads(plan, state);
        sl_plan_writes(plan, state);
        sl_plan_writes(plan, out);
        if (o->optimizer_nvme[unit])
            random_plan_copy(plan, SL_OP_EVICT, SL_LANE_NVME_WRITE, unit, state, optimizer);
        if (copied && o->resident[unit])
            random_plan_copy(plan, SL_OP_UPLOAD, SL_LANE_H2D, unit, out, weights);
        else if (copied)
            random_plan_copy(plan, SL_OP_EVICT, SL_LANE_NVME_WRITE, unit, out, weights);
    }
}

static inline void random_plan_forward(struct random_plan *r, uint32_t unit, uint32_t weights,
                                       uint32_t *boundary)
{
    uint32_t units = r->o.units;
    for (uint32_t m = 0; m < r->o.micro_batches; m++) {
        uint32_t *acts = &boundary[m * (RANDOM_UNITS_MAX + 1)];
        acts[unit + 1] = random_plan_slot(r, SL_TIER_DEVICE, SL_STATE_ACTIVATIONS,
                                          r->o.activation_bytes, "boundary", unit * 8 + m);
        uint32_t scratch = random_plan_slot(r, SL_TIER_DEVICE, SL_STATE_WORKSPACE,
                                            r->o.activation_bytes * 2, "scratch", unit);
        random_plan_op(r->plan, unit + 1 == units ? SL_OP_HEAD : SL_OP_FORWARD, SL_LANE_COMPUTE,
                       unit, r->o.unit_bytes[unit]);
        sl_plan_reads(r->plan, weights);
        if (unit)
            sl_plan_reads(r->plan, acts[unit]);
        sl_plan_writes(r->plan, scratch);
        sl_plan_writes(r->plan, acts[unit + 1]);
    }
}

static inline void random_plan_backward(struct random_plan *r, uint32_t unit, uint32_t weights,
                                        const uint32_t *boundary)
{
    struct sl_plan *plan = r->plan;
    uint64_t bytes = r->o.unit_bytes[unit];
    uint32_t sum = random_plan_slot(r, SL_TIER_DEVICE, SL_STATE_WORKSPACE, bytes * 2, "sum", unit);
    for (uint32_t m = 0; m < r->o.micro_batches; m++) {
        random_plan_op(plan, SL_OP_BACKWARD, SL_LANE_COMPUTE, unit, bytes * 3);
        sl_plan_reads(plan, weights);
        sl_plan_reads(plan, boundary[m * (RANDOM_UNITS_MAX + 1) + unit + 1]);
        if (m)
            sl_plan_reads(plan, sum);
        sl_plan_writes(plan, sum);
    }
    uint32_t rounded = r->gradient[unit];
    if (!r->o.unified)
        rounded = random_plan_slot(r, SL_TIER_DEVICE, SL_STATE_GRADIENTS, bytes, "rounded", unit);
    random_plan_op(plan, SL_OP_GRADIENT, SL_LANE_COMPUTE, unit, bytes * 3);
    sl_plan_reads(plan, sum);
    sl_plan_writes(plan, rounded);
    sl_plan_writes(plan, sl_plan_view(plan, r->norms, unit * 64, 64));
    if (!r->o.unified)
        random_plan_copy(plan, SL_OP_DOWNLOAD, SL_LANE_D2H, unit, rounded, r->gradient[unit]);
}

/* One segment: updates of the step before (in forward order), passes, updates of its own. */
static inline uint32_t random_plan_segment(struct random_plan *r, const char *name, bool before,
                                           bool passes, bool backward, bool after)
{
    const struct random_options *o = &r->o;
    uint32_t segment = sl_plan_segment_begin(r->plan, name);
    uint32_t boundary[8 * (RANDOM_UNITS_MAX + 1)];
    uint32_t loaded[2 * RANDOM_UNITS_MAX];
    uint32_t stages = passes ? (backward ? 2 * o->units : o->units) : 0, next = 0;
    if (!o->forward_order && after)
        for (uint32_t u = 0; u < o->units; u++)
            r->gradient[u] = sl_plan_slot(r->plan, SL_TIER_HOST, SL_STATE_GRADIENTS,
                                          o->unit_bytes[u], false, "gradient %u", u),
            r->plan->slots[r->gradient[u]].consume_once = true;
    for (uint32_t u = 0; before && !passes && u < o->units; u++)
        random_plan_update(r, u);
    for (uint32_t stage = 0; stage < stages; stage++) {
        for (; next < stages && next <= stage + o->distance; next++) {
            uint32_t unit = next < o->units ? next : 2 * o->units - 1 - next;
            if (before && next < o->units)
                random_plan_update(r, unit);
            loaded[next] = random_plan_load(r, unit);
        }
        if (stage < o->units)
            random_plan_forward(r, stage, loaded[stage], boundary);
        else
            random_plan_backward(r, 2 * o->units - 1 - stage, loaded[stage], boundary);
    }
    if (backward) {
        random_plan_op(r->plan, SL_OP_DECIDE, SL_LANE_CPU, 0, 64);
        sl_plan_reads(r->plan, r->norms);
        sl_plan_writes(r->plan, r->decision);
    }
    for (uint32_t u = 0; after && u < o->units; u++)
        random_plan_update(r, u);
    sl_plan_segment_end(r->plan);
    return segment;
}

/* Build and seal. Segments: 0 the first step, 1 the step, 2 flush or evaluation, ... */
static inline void random_plan_build(struct random_plan *r, struct sl_plan *plan,
                                     struct random_options o)
{
    *r = (struct random_plan){.plan = plan, .o = o};
    sl_plan_init(plan, o.unified);
    for (uint32_t u = 0; u < o.units; u++) {
        enum sl_tier tier = o.resident[u]       ? SL_TIER_DEVICE
                            : o.weights_nvme[u] ? SL_TIER_NVME
                                                : SL_TIER_HOST;
        r->weights[u] =
            sl_plan_slot(plan, tier, SL_STATE_WEIGHTS, o.unit_bytes[u], true, "model %u", u);
        r->optimizer[u] =
            sl_plan_slot(plan, o.optimizer_nvme[u] ? SL_TIER_NVME : SL_TIER_HOST,
                         SL_STATE_OPTIMIZER, o.unit_bytes[u] * 6, true, "optimizer %u", u);
        if (!o.forward_order)
            continue;
        r->gradient[u] = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_GRADIENTS, o.unit_bytes[u], true,
                                      "gradient %u", u);
        plan->slots[r->gradient[u]].consume_once = true;
    }
    r->norms = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 64 * o.units, true, "norms");
    r->decision = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 64, true, "decision");
    if (o.forward_order) {
        uint32_t first = random_plan_segment(r, "first", false, true, true, false);
        uint32_t step = random_plan_segment(r, "step", true, true, true, false);
        uint32_t flush = random_plan_segment(r, "flush", true, false, false, false);
        uint32_t evaluate = random_plan_segment(r, "evaluate", false, true, false, false);
        uint32_t pairs[][2] = {{step, first},  {step, step},      {flush, first},
                               {flush, step},  {evaluate, flush}, {evaluate, evaluate},
                               {first, flush}, {first, evaluate}};
        for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
            sl_plan_follows(plan, pairs[i][0], pairs[i][1]);
    } else {
        uint32_t step = random_plan_segment(r, "step", false, true, true, true);
        uint32_t evaluate = random_plan_segment(r, "evaluate", false, true, false, false);
        uint32_t all[2] = {step, evaluate};
        for (int i = 0; i < 4; i++)
            sl_plan_follows(plan, all[i & 1], all[i >> 1]);
    }
    struct sl_error error = {0};
    if (sl_plan_seal(plan, &error))
        fail_msg("seal: %s", error.message);
}

#endif
