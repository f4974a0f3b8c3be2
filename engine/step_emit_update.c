// SPDX-License-Identifier: Apache-2.0
/* The optimizer's share of a segment: sub-groups stream through memory, a few at a time.
 *
 *     read s+2 |  read s+3 | ...        state (and gradients, where they are on NVMe)
 *     update s | update s+1| ...        optimizer workers
 *     write s-1| write s   | ...        state
 *
 * In program order the inputs of sub-group s + buffers - 1 are asked for after the update of s and
 * before its state is written back: so `buffers` sub-groups are alive at a time, and with three of
 * them reading, updating and writing overlap.
 *
 * New weights are written where they live if the host can reach them, otherwise into a slot on the
 * way there, from which the next forward pass takes them without reading them back. Those of a
 * speculative update that live on a device of its own stay in host memory until the next forward
 * pass: the drive falls behind the backward pass, and on the link, whose copies keep their order,
 * such an upload would hold up what the backward pass needs.
 *
 * Speculation. An update needs the step's decision: the norm of all gradients (clipping), whether
 * all are finite. The decision is nearly always "apply, unclipped", so a piece may be updated as
 * soon as its own gradient is there, beside the rest of the backward pass:
 *
 *     step n, backward   state, old version --update as predicted--> new version, weights
 *     decide n           the prediction was right: nothing is left to do
 *     step n+1, forward  it was wrong: old version + gradient --update as decided--> new version
 *
 * The old version is untouched until the update after next writes over it, the gradient until the
 * next backward pass, and weights are a function of the new state: so the second update, a plain
 * one, gives the bits that it would have given without the first. Versions swap once a step
 * whatever happens: a step that is skipped copies. Keeping an undo log was rejected: it costs
 * a write for every byte on NVMe, where a second version costs space alone.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/size.h"
#include "engine/step_emit.h"
#include "engine/step_layout.h"

enum mode {
    PLAIN,
    SPECULATIVE, /* where the step speculates */
    REDO,        /* where it did not, or was wrong */
};

static enum mode mode_of(const struct sl_emit *e, const struct sl_emit_updates *updates,
                         const struct sl_piece *piece)
{
    if (!piece->speculated)
        return PLAIN;
    return updates == &e->speculating ? SPECULATIVE : REDO;
}

static int list_groups(struct sl_emit *e, struct sl_emit_updates *updates, bool backward,
                       bool speculated)
{
    const struct sl_step_plan *sp = e->sp;
    updates->order = malloc((sp->group_count + 1) * sizeof(*updates->order));
    if (!updates->order)
        return -ENOMEM;
    for (uint32_t k = 0; k < sp->piece_count; k++) {
        const struct sl_piece *piece =
            &sp->pieces[backward ? sl_piece_backward(sp, k) : sl_piece_forward(sp, k)];
        for (uint32_t i = 0; i < piece->group_count && (!speculated || piece->speculated); i++)
            updates->order[updates->count++] = piece->group_first + i;
    }
    return 0;
}

int sl_emit_updates_begin(struct sl_emit *e)
{
    bool delayed = e->o->delayed_update && e->kind.backward;
    int result = list_groups(e, &e->updating, delayed, false);
    return result ? result : list_groups(e, &e->speculating, true, true);
}

void sl_emit_updates_end(struct sl_emit *e)
{
    free(e->updating.order);
    free(e->speculating.order);
}

/* Make the last operation depend on whether the step speculates, or was wrong. `version`: of the
 * state that it touches. */
static void mark(struct sl_emit *e, enum mode mode, uint8_t version)
{
    if (mode == PLAIN)
        return;
    sl_plan_predicate(e->plan, mode == REDO ? e->sp->redo : e->sp->speculating, mode != REDO);
    if (e->plan->out_of_memory)
        return;
    struct sl_op *op = &e->plan->ops[e->plan->op_count - 1];
    op->version = version;
    op->speculative = mode == SPECULATIVE;
}

/* The version with the state from before this update: the one that was there when the step that
 * speculated began; for what is done again in the step after it, the other one. */
static uint8_t old_version(enum mode mode)
{
    return mode == REDO;
}

static uint8_t new_version(enum mode mode)
{
    return mode == SPECULATIVE;
}

static bool on_device(const struct sl_emit *e, const struct sl_sub_group *group)
{
    return !e->o->unified && group->tier == SL_TIER_DEVICE;
}

/* Does the update of this piece read the old weights? */
static bool needs_old_weights(const struct sl_emit *e, const struct sl_piece *piece)
{
    if (piece->sums_elements < piece->elements)
        return true; /* frozen tensors stay in it */
    for (uint32_t g = piece->group_first; g < piece->group_first + piece->group_count; g++)
        if (e->sp->groups[g].master_kind == SL_MASTER_SPLIT || e->sp->groups[g].master_bytes == 0)
            return true;
    return false;
}

/* Decide where the piece's new weights are written. */
static void prepare_target(struct sl_emit *e, uint32_t p, enum mode mode)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    uint64_t bytes = sl_piece_weight_bytes(e->sp, piece);
    bool at_home = piece->weights_tier == SL_TIER_HOST ||
                   (piece->weights_tier == SL_TIER_DEVICE &&
                    (e->o->unified || on_device(e, &e->sp->groups[piece->group_first])));
    if (at_home) {
        e->piece_weights[p] = piece->weights;
        return;
    }
    uint32_t target = piece->updated;
    if (target == SL_PLAN_NONE && mode == SPECULATIVE)
        target = sl_plan_view(e->plan, e->sp->weight_ring[e->weight_ring_next++ % 2], 0,
                              sl_align_up(bytes, SL_PLAN_ALIGNMENT));
    else if (target == SL_PLAN_NONE)
        target = sl_emit_transient(e, SL_TIER_HOST, SL_STATE_WEIGHTS, bytes, "new weights", p);
    e->piece_weights[p] = target;
    if (!needs_old_weights(e, piece))
        return;
    sl_emit_move(e, piece->weights_tier == SL_TIER_NVME ? SL_OP_FETCH : SL_OP_DOWNLOAD,
                 piece->weights, target, (int)piece->unit, (int)p, -1);
    mark(e, mode, 0);
}

static uint32_t gradient_of_group(struct sl_emit *e, uint32_t g, enum mode mode)
{
    const struct sl_sub_group *group = &e->sp->groups[g];
    const struct sl_piece *piece = &e->sp->pieces[group->piece];
    size_t element = sl_dtype_bytes(e->o->precision);
    uint64_t bytes = group->gradient_elements * element;
    bool device_to_host =
        piece->gradient_tier == SL_TIER_DEVICE && !e->o->unified && !on_device(e, group);
    uint32_t whole = piece->gradient;
    if (mode == SPECULATIVE && !device_to_host)
        whole = e->piece_gradient[group->piece]; /* not yet, or not only, where it lives */
    uint32_t gradient = sl_plan_view(e->plan, whole, group->gradient_offset * element, bytes);
    if (device_to_host || (piece->gradient_tier == SL_TIER_NVME && mode != SPECULATIVE)) {
        uint32_t host =
            sl_emit_transient(e, SL_TIER_HOST, SL_STATE_BUFFERS, bytes, "fetched gradient", g);
        sl_emit_move(e, device_to_host ? SL_OP_DOWNLOAD : SL_OP_FETCH, gradient, host,
                     (int)piece->unit, (int)group->piece, -1);
        mark(e, mode, 0);
        gradient = host;
    }
    return gradient;
}

/* In the backward pass a piece's old weights are in use, and its gradient is not there, until its
 * turn has come: only state is fetched ahead. */
static bool in_backward(const struct sl_emit *e, enum mode mode)
{
    return mode == SPECULATIVE || (e->o->delayed_update && e->kind.backward);
}

static void fetch_group(struct sl_emit *e, uint32_t g, enum mode mode)
{
    const struct sl_sub_group *group = &e->sp->groups[g];
    const struct sl_piece *piece = &e->sp->pieces[group->piece];
    if (g == piece->group_first && !in_backward(e, mode))
        prepare_target(e, group->piece, mode);
    uint32_t state = group->state;
    if (group->tier == SL_TIER_NVME) {
        const struct sl_step_plan *sp = e->sp;
        if (sp->state_ring_count)
            state =
                sl_plan_view(e->plan, sp->state_ring[e->state_ring_next++ % sp->state_ring_count],
                             0, group->state_bytes);
        else
            state = sl_emit_transient(e, SL_TIER_HOST, SL_STATE_BUFFERS, group->state_bytes,
                                      "fetched state", g);
        sl_emit_move(e, SL_OP_FETCH, group->state, state, (int)piece->unit, (int)group->piece, -1);
        mark(e, mode, old_version(mode));
    }
    e->groups[g].state = state;
    if (mode != SPECULATIVE)
        e->groups[g].gradient = gradient_of_group(e, g, mode);
}

/* Ask for the inputs of the next updates, up to the n-th from now. */
static void fetch_ahead(struct sl_emit *e, struct sl_emit_updates *updates, uint32_t n)
{
    uint32_t end = (uint32_t)sl_min_u64((uint64_t)updates->done + n, updates->count);
    for (; updates->fetched < end; updates->fetched++) {
        uint32_t g = updates->order[updates->fetched];
        fetch_group(e, g, mode_of(e, updates, &e->sp->pieces[e->sp->groups[g].piece]));
    }
}

static void update_group(struct sl_emit *e, uint32_t g, enum mode mode)
{
    const struct sl_sub_group *group = &e->sp->groups[g];
    const struct sl_piece *piece = &e->sp->pieces[group->piece];
    uint32_t target = e->piece_weights[group->piece];
    uint64_t gradient = group->gradient_elements * sl_dtype_bytes(e->o->precision);
    if (mode == SPECULATIVE)
        e->groups[g].gradient = gradient_of_group(e, g, mode);
    struct sl_step_args *args = sl_emit_op(
        e, (struct sl_op_desc){.kind = SL_OP_UPDATE,
                               .lane = on_device(e, group) ? SL_LANE_COMPUTE : SL_LANE_CPU,
                               .unit = (int)piece->unit,
                               .piece = (int)group->piece,
                               .micro_batch = -1,
                               .part = (int)g,
                               .bytes = 2 * group->state_bytes + 2 * gradient});
    args->state = e->groups[g].state;
    args->gradient = e->groups[g].gradient;
    args->control = mode == SPECULATIVE ? e->sp->prediction : e->sp->control;
    args->weights = target;
    bool filled = target == piece->weights || needs_old_weights(e, piece);
    args->fill_weights = !filled || mode == REDO;
    sl_plan_reads(e->plan, args->control);
    sl_plan_reads(e->plan, args->gradient);
    sl_plan_reads(e->plan, args->state);
    if (filled || g != piece->group_first)
        sl_plan_reads(e->plan, target);
    sl_plan_writes(e->plan, args->state);
    sl_plan_writes(e->plan, target);
    mark(e, mode, old_version(mode));
}

/* New weights from where the update wrote them to where they live. */
static void send_home(struct sl_emit *e, uint32_t p, enum mode mode)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    if (e->piece_weights[p] == piece->weights ||
        (piece->updated != SL_PLAN_NONE && mode == SPECULATIVE))
        return;
    sl_emit_move(e, piece->weights_tier == SL_TIER_NVME ? SL_OP_EVICT : SL_OP_UPLOAD,
                 e->piece_weights[p], piece->weights, (int)piece->unit, (int)p, -1);
    if (piece->updated == SL_PLAN_NONE)
        mark(e, mode, 0); /* else: by one update or the other, there are new ones */
}

static void update_piece(struct sl_emit *e, struct sl_emit_updates *updates, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    enum mode mode = mode_of(e, updates, piece);
    uint32_t buffers = e->o->optimizer_buffers ? e->o->optimizer_buffers : 1;
    if (piece->group_count && in_backward(e, mode))
        prepare_target(e, p, mode);
    for (uint32_t g = piece->group_first; g < piece->group_first + piece->group_count; g++) {
        const struct sl_sub_group *group = &e->sp->groups[g];
        fetch_ahead(e, updates, 1);
        update_group(e, g, mode);
        updates->done++;
        fetch_ahead(e, updates, buffers - 1);
        if (group->tier == SL_TIER_NVME) {
            sl_emit_move(e, SL_OP_EVICT, e->groups[g].state, group->state, (int)piece->unit, (int)p,
                         -1);
            mark(e, mode, new_version(mode));
        }
    }
    if (piece->group_count)
        send_home(e, p, mode);
    /* What was perhaps not written, or is used only in the next step, is read where it lives. */
    if (mode == REDO || in_backward(e, mode))
        e->piece_weights[p] = SL_PLAN_NONE;
}

void sl_emit_update(struct sl_emit *e, uint32_t p)
{
    update_piece(e, &e->updating, p);
}

void sl_emit_speculation(struct sl_emit *e, uint32_t p)
{
    update_piece(e, &e->speculating, p);
}
