// SPDX-License-Identifier: Apache-2.0
/* Emission of one segment: the order of the parts, the uses ahead, and the small moves. */
#include "engine/step_emit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/step_layout.h"
#include "engine/transformer.h"

struct sl_step_args *sl_emit_op(struct sl_emit *e, struct sl_op_desc desc)
{
    static struct sl_step_args dropped; /* where memory is out: the plan remembers, seal reports */
    if (e->plan->op_count >= e->args_capacity) {
        size_t wanted = e->args_capacity ? 2 * e->args_capacity : 1024;
        struct sl_step_args *grown = realloc(e->sp->args, wanted * sizeof(*grown));
        if (!grown) {
            e->plan->out_of_memory = true;
            return &dropped;
        }
        e->sp->args = grown;
        e->args_capacity = wanted;
    }
    uint32_t index = sl_plan_op(e->plan, desc);
    struct sl_step_args *args = &e->sp->args[index];
    memset(args, 0xff, sizeof(*args)); /* every slot SL_PLAN_NONE */
    args->first = args->first_vectors = false;
    args->recompute = false;
    args->fill_weights = false;
    return args;
}

uint32_t sl_emit_transient(struct sl_emit *e, enum sl_tier tier, enum sl_state state,
                           uint64_t bytes, const char *name, uint32_t index)
{
    return sl_plan_slot(e->plan, tier, state, bytes, false, "%s %u", name, index);
}

void sl_emit_move(struct sl_emit *e, enum sl_op_kind kind, uint32_t from, uint32_t to, int unit,
                  int piece, int micro_batch)
{
    static const enum sl_lane lanes[] = {
        [SL_OP_UPLOAD] = SL_LANE_H2D,
        [SL_OP_DOWNLOAD] = SL_LANE_D2H,
        [SL_OP_FETCH] = SL_LANE_NVME_READ,
        [SL_OP_EVICT] = SL_LANE_NVME_WRITE,
    };
    const struct sl_slot *slot = &e->plan->slots[from];
    uint64_t bytes = e->plan->out_of_memory ? 0 : sl_slot_bytes(slot);
    sl_emit_op(e, (struct sl_op_desc){.kind = kind,
                                      .lane = lanes[kind],
                                      .unit = unit,
                                      .piece = piece,
                                      .micro_batch = micro_batch,
                                      .part = -1,
                                      .bytes = bytes});
    sl_plan_reads(e->plan, from);
    sl_plan_writes(e->plan, to);
}

void sl_emit_add_use(struct sl_emit *e, uint32_t piece, bool update)
{
    assert(e->use_count < e->use_capacity);
    e->uses[e->use_count] = piece;
    e->updates[e->use_count++] = update;
}

uint32_t sl_emit_use(struct sl_emit *e, uint32_t piece)
{
    uint32_t k = e->use_next++;
    assert(k < e->use_count && e->uses[k] == piece);
    (void)piece;
    uint32_t ahead = k + 1;
    for (uint32_t left = e->o->prefetch; left > 0 && ahead < e->use_count; ahead++)
        left -= e->sp->pieces[e->uses[ahead]].kind != SL_PIECE_VECTORS; /* too small to count */
    for (; e->use_ready < ahead; e->use_ready++) {
        if (e->updates[e->use_ready])
            sl_emit_update(e, e->uses[e->use_ready]);
        e->use_slots[e->use_ready] = sl_emit_weights(e, e->uses[e->use_ready]);
    }
    return e->use_slots[k];
}

uint32_t sl_emit_weights(struct sl_emit *e, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    uint64_t bytes = sl_piece_weight_bytes(e->sp, piece);
    bool unified = e->o->unified;
    uint32_t host = e->piece_weights[p]; /* just updated: no need to read it back */
    e->piece_weights[p] = SL_PLAN_NONE;
    if (piece->weights_tier == SL_TIER_DEVICE || (unified && piece->weights_tier == SL_TIER_HOST))
        return piece->weights;
    if (piece->weights_tier == SL_TIER_HOST)
        host = piece->weights;
    if (host == SL_PLAN_NONE) {
        host = sl_emit_transient(e, SL_TIER_HOST, SL_STATE_WEIGHTS, bytes, "fetched weights", p);
        sl_emit_move(e, SL_OP_FETCH, piece->weights, host, (int)piece->unit, (int)p, -1);
    }
    if (unified)
        return host;
    uint32_t device =
        sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WEIGHTS, bytes, "uploaded weights", p);
    sl_emit_move(e, SL_OP_UPLOAD, host, device, (int)piece->unit, (int)p, -1);
    return device;
}

uint32_t sl_emit_sums(struct sl_emit *e, uint32_t p, bool *fresh)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    *fresh = false;
    if (!piece->sums_elements)
        return SL_PLAN_NONE;
    if (e->sums[p] == SL_PLAN_NONE) {
        *fresh = true;
        e->sums[p] = piece->sums;
        if (piece->sums == SL_PLAN_NONE)
            e->sums[p] = sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE,
                                           piece->sums_elements * sizeof(float), "sums", p);
    }
    return e->sums[p];
}

void sl_emit_gradient(struct sl_emit *e, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    if (!piece->sums_elements)
        return;
    if (e->o->delayed_update && e->kind.update)
        sl_emit_update(e, p); /* with the gradient that is about to be replaced */
    enum sl_tier tier = piece->gradient_tier;
    uint64_t bytes = sl_piece_gradient_bytes(e->sp, piece);
    bool at_home = tier == SL_TIER_DEVICE || (e->o->unified && tier == SL_TIER_HOST);
    uint32_t out = piece->gradient;
    if (!at_home)
        out = sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_GRADIENTS, bytes, "rounded", p);
    struct sl_step_args *args =
        sl_emit_op(e, (struct sl_op_desc){.kind = SL_OP_GRADIENT,
                                          .lane = SL_LANE_COMPUTE,
                                          .unit = (int)piece->unit,
                                          .piece = (int)p,
                                          .micro_batch = -1,
                                          .part = -1,
                                          .bytes = piece->sums_elements * sizeof(float) + bytes});
    args->sums = e->sums[p];
    args->gradient = out;
    sl_plan_reads(e->plan, e->sums[p]);
    sl_plan_writes(e->plan, out);
    sl_plan_writes(e->plan, e->sp->norms);
    sl_plan_writes(e->plan, e->sp->nonfinite);
    e->sums[p] = SL_PLAN_NONE;
    int unit = (int)piece->unit;
    if (!at_home && !e->o->unified) {
        uint32_t host = piece->gradient;
        if (tier == SL_TIER_NVME)
            host = sl_emit_transient(e, SL_TIER_HOST, SL_STATE_GRADIENTS, bytes, "leaving", p);
        sl_emit_move(e, SL_OP_DOWNLOAD, out, host, unit, (int)p, -1);
        out = host;
    }
    if (tier == SL_TIER_NVME)
        sl_emit_move(e, SL_OP_EVICT, out, piece->gradient, unit, (int)p, -1);
    e->piece_gradient[p] = out;
    if (piece->speculated)
        sl_emit_speculation(e, p);
}

static void emit_inputs(struct sl_emit *e)
{
    struct sl_step_plan *sp = e->sp;
    size_t m = e->o->micro_batches;
    sl_emit_op(e, (struct sl_op_desc){.kind = SL_OP_INPUT,
                                      .lane = SL_LANE_CONTROL,
                                      .unit = -1,
                                      .piece = -1,
                                      .micro_batch = -1,
                                      .part = -1,
                                      .bytes = m * e->rows * 16});
    for (size_t i = 0; i < m; i++)
        sl_plan_writes(e->plan, sp->inputs[i]);
    for (size_t i = 0; i < m && !e->o->unified; i++)
        sl_emit_move(e, SL_OP_UPLOAD, sp->inputs[i], sp->inputs_device[i], -1, -1, (int)i);
}

static void emit_decision(struct sl_emit *e)
{
    struct sl_step_plan *sp = e->sp;
    size_t m = e->o->micro_batches;
    for (size_t i = 0; i < m && !e->o->unified; i++)
        sl_emit_move(e, SL_OP_DOWNLOAD, sp->stats[i], sp->losses[i], -1, -1, (int)i);
    if (!e->kind.backward)
        return;
    sl_emit_op(e, (struct sl_op_desc){.kind = SL_OP_DECIDE,
                                      .lane = SL_LANE_CONTROL,
                                      .unit = -1,
                                      .piece = -1,
                                      .micro_batch = -1,
                                      .part = -1,
                                      .bytes = sp->chunk_count * 16 + m * e->rows * 4});
    sl_plan_reads(e->plan, sp->norms);
    sl_plan_reads(e->plan, sp->nonfinite);
    for (size_t i = 0; i < m; i++)
        sl_plan_reads(e->plan, sp->losses[i]);
    sl_plan_writes(e->plan, sp->control);
    if (sp->prediction == SL_PLAN_NONE)
        return;
    sl_plan_reads(e->plan, sp->prediction);
    sl_plan_reads(e->plan, sp->speculating);
    sl_plan_writes(e->plan, sp->redo);
}

/* The uses in the order in which sl_emit_pass() will ask for them. */
static void list_uses(struct sl_emit *e)
{
    const struct sl_step_plan *sp = e->sp;
    for (size_t first = 0; first < e->o->micro_batches; first += e->o->group) {
        bool update = e->kind.update && first == 0 && !e->o->delayed_update;
        for (uint32_t p = 0; p < sp->first_layer_piece; p++)
            sl_emit_add_use(e, p, update);
        for (uint32_t layer = 0; layer < e->o->model->layers; layer++)
            sl_emit_forward_uses(e, layer, update);
        sl_emit_add_use(e, sp->norm_piece, update);
        bool head_update = update && sp->head_first > sp->norm_piece;
        for (uint32_t i = 0; i < sp->head_count; i++)
            sl_emit_add_use(e, sp->head_first + i, head_update);
        if (!e->kind.backward)
            continue;
        for (uint32_t i = 0; i < sp->head_count && sp->head_count > 1; i++)
            sl_emit_add_use(e, sp->head_first + i, false);
        for (uint32_t layer = e->o->model->layers; layer-- > 0;)
            sl_emit_backward_uses(e, layer);
    }
}

static void spread_activations(struct sl_emit *e)
{
    const struct sl_model *m = e->o->model;
    struct sl_spread spread = {.fraction = e->o->placement.fraction[SL_PLACED_ACTIVATIONS]};
    for (uint32_t l = 0; l <= m->layers; l++)
        for (size_t i = 0; i < e->o->micro_batches; i++) {
            struct sl_emit_boundary *x = &e->x[l * e->o->micro_batches + i];
            *x = (struct sl_emit_boundary){SL_TIER_DEVICE, SL_PLAN_NONE, SL_PLAN_NONE};
            if (l < m->layers && e->kind.backward)
                x->tier = sl_spread_next(&spread, (double)e->x_bytes);
        }
}

static uint32_t *none_filled(size_t count)
{
    uint32_t *array = malloc((count + 1) * sizeof(*array));
    if (array)
        memset(array, 0xff, (count + 1) * sizeof(*array));
    return array;
}

static int prepare(struct sl_emit *e)
{
    const struct sl_step_plan *sp = e->sp;
    size_t m = e->o->micro_batches, layers = e->o->model->layers;
    size_t groups = sl_div_up(m, e->o->group);
    /* Per group: all once, tables and layers twice, and layers a third time to recompute. */
    e->use_capacity = (uint32_t)(groups * (3 * (size_t)sp->piece_count + sp->head_count));
    e->uses = malloc(e->use_capacity * sizeof(*e->uses));
    e->updates = malloc(e->use_capacity * sizeof(*e->updates));
    e->use_slots = none_filled(e->use_capacity);
    e->groups = calloc(sp->group_count + 1, sizeof(*e->groups));
    e->piece_weights = none_filled(sp->piece_count);
    e->piece_gradient = none_filled(sp->piece_count);
    e->x = malloc((layers + 1) * m * sizeof(*e->x));
    e->dx = none_filled(m);
    e->saved = none_filled(layers * m);
    e->saved_now = none_filled(m);
    e->scratch_now = none_filled(m);
    e->sums = none_filled(sp->piece_count);
    e->h = none_filled(m);
    if (!e->uses || !e->updates || !e->use_slots || !e->groups || !e->piece_weights ||
        !e->piece_gradient || !e->x || !e->dx || !e->saved || !e->saved_now || !e->scratch_now ||
        !e->sums || !e->h)
        return -ENOMEM;
    spread_activations(e);
    return sl_emit_updates_begin(e);
}

static void free_emit(struct sl_emit *e)
{
    e->sp->args_capacity = e->args_capacity;
    free(e->uses);
    free(e->updates);
    free(e->use_slots);
    free(e->groups);
    free(e->piece_weights);
    free(e->piece_gradient);
    sl_emit_updates_end(e);
    free(e->x);
    free(e->dx);
    free(e->saved);
    free(e->saved_now);
    free(e->scratch_now);
    free(e->sums);
    free(e->h);
}

static int start_emit(struct sl_emit *e, struct sl_step_plan *sp,
                      const struct sl_segment_kind *kind)
{
    *e = (struct sl_emit){
        .sp = sp,
        .plan = &sp->plan,
        .o = &sp->options,
        .kind = *kind,
        .rows = sp->options.batch * sp->options.sequence,
        .args_capacity = sp->args_capacity,
    };
    e->x_bytes = (uint64_t)e->rows * e->o->model->hidden * sl_dtype_bytes(e->o->activation);
    return prepare(e);
}

int sl_step_emit(struct sl_step_plan *sp, const struct sl_segment_kind *kind)
{
    struct sl_emit e;
    int result = start_emit(&e, sp, kind);
    if (!result && kind->forward) {
        emit_inputs(&e);
        list_uses(&e);
        for (size_t first = 0; first < e.o->micro_batches; first += e.o->group)
            sl_emit_pass(&e, first, sl_min_u64(e.o->group, e.o->micro_batches - first));
        emit_decision(&e);
    } else if (!result) {
        for (uint32_t k = 0; k < sp->piece_count; k++)
            sl_emit_update(&e, sl_piece_forward(sp, k));
    }
    free_emit(&e);
    return result;
}

int sl_step_emit_generate(struct sl_step_plan *sp)
{
    static const struct sl_segment_kind kind = {"generate", .forward = true};
    struct sl_emit e;
    int result = start_emit(&e, sp, &kind);
    if (!result) {
        emit_inputs(&e);
        list_uses(&e);
        sl_emit_generate(&e);
    }
    free_emit(&e);
    return result;
}
