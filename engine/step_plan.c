// SPDX-License-Identifier: Apache-2.0
/* The training step, written down.
 *
 * A step is the walk of the micro-batches through a list of *uses*: a use is a piece whose weights
 * an operation needs on the device. In layer-major order with M micro-batches
 *
 *     tokens.. layer 1 .. layer L  norm  head..   |   layer L .. layer 1   |  tokens..
 *         each: all M micro-batches forward       |   all M backward       |  all M
 *
 * Before an operation uses the k-th use, the k + prefetch uses after it are made ready: the pending
 * update of its piece (in the first pass over it), fetches and uploads. That distance in program
 * order is all there is to prefetching: lanes run ahead as far as slots allow.
 *
 * Everything is emitted once per segment through the same functions; segments differ in what they
 * leave out (struct segment_kind).
 */
#include "engine/step_plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/step_emit.h"
#include "engine/step_layout.h"

const char *sl_placed_name(enum sl_placed kind)
{
    static const char *const names[SL_PLACED_COUNT] = {"weights", "gradients", "optimizer",
                                                       "activations"};
    return names[kind];
}

static void make_homes(struct sl_step_plan *sp)
{
    struct sl_plan *plan = &sp->plan;
    const struct sl_step_options *o = &sp->options;
    bool grouped = o->group < o->micro_batches;
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        struct sl_piece *piece = &sp->pieces[p];
        piece->weights = sl_plan_slot(plan, piece->weights_tier, SL_STATE_WEIGHTS,
                                      sl_piece_weight_bytes(sp, piece), true, "weights %u.%u",
                                      piece->unit, piece->index);
        if (!piece->gradient_elements)
            continue;
        if (piece->speculated && piece->weights_tier == SL_TIER_DEVICE && !o->unified)
            piece->updated =
                sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_WEIGHTS, sl_piece_weight_bytes(sp, piece),
                             true, "updated weights %u.%u", piece->unit, piece->index);
        piece->gradient = sl_plan_slot(plan, piece->gradient_tier, SL_STATE_GRADIENTS,
                                       sl_piece_gradient_bytes(sp, piece), true, "gradient %u.%u",
                                       piece->unit, piece->index);
        if (!plan->out_of_memory)
            plan->slots[piece->gradient].consume_once = true;
        if (grouped)
            piece->sums = sl_plan_slot(plan, SL_TIER_DEVICE, SL_STATE_GRADIENTS,
                                       piece->sums_elements * sizeof(float), true, "sums %u.%u",
                                       piece->unit, piece->index);
        for (uint32_t g = piece->group_first; g < piece->group_first + piece->group_count; g++) {
            sp->groups[g].state = sl_plan_slot(plan, sp->groups[g].tier, SL_STATE_OPTIMIZER,
                                               sp->groups[g].state_bytes, true, "state %u.%u/%u",
                                               piece->unit, piece->index, g - piece->group_first);
            if (piece->speculated)
                sl_plan_two_versions(plan, sp->groups[g].state);
        }
    }
}

static void make_rope(struct sl_step_plan *sp)
{
    const struct sl_model *m = sp->options.model;
    uint64_t bytes = (uint64_t)sl_step_positions(&sp->options) * (m->rotary / 2) * sizeof(float);
    for (int table = 0; table < 2; table++)
        for (int k = 0; k < 2; k++) {
            sp->rope[table][k] = SL_PLAN_NONE;
            if (m->rope[table].kind != SL_ROPE_NONE && bytes)
                sp->rope[table][k] =
                    sl_plan_slot(&sp->plan, SL_TIER_DEVICE, SL_STATE_CONTROL, bytes, true,
                                 "rope %d %s", table, k ? "sin" : "cos");
        }
}

static bool speculates(const struct sl_step_plan *sp)
{
    for (uint32_t p = 0; p < sp->piece_count; p++)
        if (sp->pieces[p].speculated)
            return true;
    return false;
}

/* Owner: the step plan. Errors: -ENOMEM. */
static int make_rings(struct sl_step_plan *sp)
{
    uint64_t state_bytes = 0, weight_bytes = 0;
    for (uint32_t g = 0; g < sp->group_count; g++)
        if (sp->groups[g].tier == SL_TIER_NVME)
            state_bytes = sl_max_u64(state_bytes, sp->groups[g].state_bytes);
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        const struct sl_piece *piece = &sp->pieces[p];
        if (piece->speculated && piece->weights_tier == SL_TIER_NVME)
            weight_bytes = sl_max_u64(weight_bytes, sl_piece_weight_bytes(sp, piece));
    }
    if (!speculates(sp))
        return 0;
    for (uint32_t i = 0; i < 2 && weight_bytes; i++)
        sp->weight_ring[i] = sl_plan_slot(&sp->plan, SL_TIER_HOST, SL_STATE_BUFFERS, weight_bytes,
                                          true, "weight buffer %u", i);
    if (!state_bytes)
        return 0;
    sp->state_ring_count = sp->options.optimizer_buffers ? sp->options.optimizer_buffers : 1;
    sp->state_ring = calloc(sp->state_ring_count, sizeof(*sp->state_ring));
    if (!sp->state_ring)
        return -ENOMEM;
    for (uint32_t i = 0; i < sp->state_ring_count; i++)
        sp->state_ring[i] = sl_plan_slot(&sp->plan, SL_TIER_HOST, SL_STATE_BUFFERS, state_bytes,
                                         true, "state buffer %u", i);
    return 0;
}

static int make_control(struct sl_step_plan *sp)
{
    struct sl_plan *plan = &sp->plan;
    const struct sl_step_options *o = &sp->options;
    size_t m = o->micro_batches;
    sp->inputs = calloc(4 * m, sizeof(uint32_t));
    if (!sp->inputs)
        return -ENOMEM;
    sp->inputs_device = sp->inputs + m;
    sp->stats = sp->inputs + 2 * m;
    sp->losses = sp->inputs + 3 * m;
    uint64_t rows = o->batch * o->sequence;
    sp->control = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 4096, true, "control");
    sp->prediction = sp->speculating = sp->redo = SL_PLAN_NONE;
    if (speculates(sp)) {
        sp->prediction =
            sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 4096, true, "prediction");
        sp->speculating =
            sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 4096, true, "speculating");
        sp->redo = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 4096, true, "redo");
    }
    sp->norms = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL,
                             (sp->chunk_count + 1) * sizeof(double), true, "norms");
    sp->nonfinite = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL,
                                 (sp->chunk_count + 1) * sizeof(uint64_t), true, "nonfinite");
    for (uint32_t i = 0; i < m; i++) {
        sp->inputs[i] = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL,
                                     4 * rows * sizeof(int32_t), true, "inputs %u", i);
        sp->inputs_device[i] = sp->inputs[i];
        sp->stats[i] = sl_plan_slot(plan, SL_TIER_DEVICE, SL_STATE_CONTROL,
                                    4 * rows * sizeof(float), true, "stats %u", i);
        sp->losses[i] = sp->stats[i];
        if (o->unified)
            continue;
        sp->inputs_device[i] = sl_plan_slot(plan, SL_TIER_DEVICE, SL_STATE_CONTROL,
                                            4 * rows * sizeof(int32_t), true, "inputs %u", i);
        sp->losses[i] = sl_plan_slot(plan, SL_TIER_HOST, SL_STATE_CONTROL, 4 * rows * sizeof(float),
                                     true, "losses %u", i);
    }
    make_rope(sp);
    return make_rings(sp);
}

/* The cache of every layer, and one segment that follows itself. */
static int emit_generation(struct sl_step_plan *sp)
{
    const struct sl_step_options *o = &sp->options;
    const struct sl_model *m = o->model;
    uint64_t bytes = (uint64_t)o->generate_positions * m->kv_heads * m->head_size *
                     sl_dtype_bytes(o->activation);
    sp->cache = calloc(2 * (size_t)m->layers + 1, sizeof(uint32_t));
    if (!sp->cache)
        return -ENOMEM;
    for (uint32_t i = 0; i < 2 * m->layers; i++)
        sp->cache[i] = sl_plan_slot(&sp->plan, SL_TIER_DEVICE, SL_STATE_ACTIVATIONS, bytes, true,
                                    "%s %u", i % 2 ? "values" : "keys", i / 2);
    sp->logits = sl_plan_slot(&sp->plan, SL_TIER_HOST, SL_STATE_CONTROL,
                              (uint64_t)m->vocabulary * sizeof(float), true, "logits");
    sp->generate = sl_plan_segment_begin(&sp->plan, "generate");
    int result = sl_step_emit_generate(sp);
    sl_plan_segment_end(&sp->plan);
    sl_plan_follows(&sp->plan, sp->generate, sp->generate);
    return result;
}

static int emit_segments(struct sl_step_plan *sp)
{
    struct sl_plan *plan = &sp->plan;
    static const struct sl_segment_kind kinds[] = {
        {"prologue", .forward = true, .backward = true},
        {"step", .update = true, .forward = true, .backward = true},
        {"flush", .update = true},
        {"evaluate", .forward = true},
    };
    uint32_t *segments[] = {&sp->prologue, &sp->step, &sp->flush, &sp->evaluate};
    for (int i = 0; i < 4; i++) {
        *segments[i] = sl_plan_segment_begin(plan, kinds[i].name);
        int result = sl_step_emit(sp, &kinds[i]);
        if (result)
            return result;
        sl_plan_segment_end(plan);
    }
    sl_plan_follows(plan, sp->prologue, sp->flush);
    sl_plan_follows(plan, sp->prologue, sp->evaluate);
    sl_plan_follows(plan, sp->step, sp->prologue);
    sl_plan_follows(plan, sp->step, sp->step);
    sl_plan_follows(plan, sp->flush, sp->prologue);
    sl_plan_follows(plan, sp->flush, sp->step);
    sl_plan_follows(plan, sp->evaluate, sp->flush);
    sl_plan_follows(plan, sp->evaluate, sp->evaluate);
    return 0;
}

int sl_step_plan_place(struct sl_step_plan *sp, const struct sl_step_options *options,
                       struct sl_error *error)
{
    *sp = (struct sl_step_plan){.options = *options};
    assert(options->micro_batches > 0 && options->group > 0);
    sl_plan_init(&sp->plan, options->unified);
    int result = sl_step_layout(sp, error);
    if (!result) {
        make_homes(sp);
        result = make_control(sp);
    }
    if (!result)
        result = options->generate_positions ? emit_generation(sp) : emit_segments(sp);
    if (result)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory while planning");
    else
        result = sl_plan_place(&sp->plan, error);
    if (result)
        sl_step_plan_finish(sp);
    return result;
}

int sl_step_plan_build(struct sl_step_plan *sp, const struct sl_step_options *options,
                       struct sl_error *error)
{
    int result = sl_step_plan_place(sp, options, error);
    if (!result)
        result = sl_plan_seal(&sp->plan, error);
    if (result)
        sl_step_plan_finish(sp);
    return result;
}

void sl_step_plan_finish(struct sl_step_plan *sp)
{
    sl_plan_finish(&sp->plan);
    free(sp->pieces);
    free(sp->groups);
    free(sp->runs);
    free(sp->args);
    free(sp->sums_offset);
    free(sp->layer_order);
    free(sp->vector_slots);
    free(sp->inputs);
    free(sp->cache);
    free(sp->state_ring);
    *sp = (struct sl_step_plan){0};
}
