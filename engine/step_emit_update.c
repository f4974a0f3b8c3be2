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
 * way there, from which the next forward pass takes them without reading them back.
 */
#include "base/size.h"
#include "engine/step_emit.h"
#include "engine/step_layout.h"

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
static void prepare_target(struct sl_emit *e, uint32_t p)
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
    uint32_t target = sl_emit_transient(e, SL_TIER_HOST, SL_STATE_WEIGHTS, bytes, "new weights", p);
    e->piece_weights[p] = target;
    if (needs_old_weights(e, piece))
        sl_emit_move(e, piece->weights_tier == SL_TIER_NVME ? SL_OP_FETCH : SL_OP_DOWNLOAD,
                     piece->weights, target, (int)piece->unit, (int)p, -1);
}

static void fetch_group(struct sl_emit *e, uint32_t g)
{
    const struct sl_sub_group *group = &e->sp->groups[g];
    const struct sl_piece *piece = &e->sp->pieces[group->piece];
    int unit = (int)piece->unit, index = (int)group->piece;
    size_t element = sl_dtype_bytes(e->o->precision);
    if (g == piece->group_first)
        prepare_target(e, group->piece);
    uint32_t state = group->state;
    if (group->tier == SL_TIER_NVME) {
        state = sl_emit_transient(e, SL_TIER_HOST, SL_STATE_BUFFERS, group->state_bytes,
                                  "fetched state", g);
        sl_emit_move(e, SL_OP_FETCH, group->state, state, unit, index, -1);
    }
    uint64_t bytes = group->gradient_elements * element;
    uint32_t gradient =
        sl_plan_view(e->plan, piece->gradient, group->gradient_offset * element, bytes);
    bool device_to_host =
        piece->gradient_tier == SL_TIER_DEVICE && !e->o->unified && !on_device(e, group);
    if (piece->gradient_tier == SL_TIER_NVME || device_to_host) {
        uint32_t host =
            sl_emit_transient(e, SL_TIER_HOST, SL_STATE_BUFFERS, bytes, "fetched gradient", g);
        sl_emit_move(e, device_to_host ? SL_OP_DOWNLOAD : SL_OP_FETCH, gradient, host, unit, index,
                     -1);
        gradient = host;
    }
    e->groups[g].state = state;
    e->groups[g].gradient = gradient;
}

/* Ask for the inputs of all sub-groups up to `g`, as far as there are any. */
static void fetch_up_to(struct sl_emit *e, uint32_t g)
{
    for (; e->groups_fetched <= g && e->groups_fetched < e->sp->group_count; e->groups_fetched++)
        fetch_group(e, e->groups_fetched);
}

static void update_group(struct sl_emit *e, uint32_t g)
{
    const struct sl_sub_group *group = &e->sp->groups[g];
    const struct sl_piece *piece = &e->sp->pieces[group->piece];
    uint32_t target = e->piece_weights[group->piece];
    uint64_t gradient = group->gradient_elements * sl_dtype_bytes(e->o->precision);
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
    args->weights = target;
    bool filled = target == piece->weights || needs_old_weights(e, piece);
    args->fill_weights = !filled;
    sl_plan_reads(e->plan, e->sp->control);
    sl_plan_reads(e->plan, args->gradient);
    sl_plan_reads(e->plan, args->state);
    if (filled || g != piece->group_first)
        sl_plan_reads(e->plan, target);
    sl_plan_writes(e->plan, args->state);
    sl_plan_writes(e->plan, target);
}

void sl_emit_update(struct sl_emit *e, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    uint32_t buffers = e->o->optimizer_buffers ? e->o->optimizer_buffers : 1;
    for (uint32_t g = piece->group_first; g < piece->group_first + piece->group_count; g++) {
        const struct sl_sub_group *group = &e->sp->groups[g];
        fetch_up_to(e, g);
        update_group(e, g);
        fetch_up_to(e, g + buffers - 1);
        if (group->tier == SL_TIER_NVME)
            sl_emit_move(e, SL_OP_EVICT, e->groups[g].state, group->state, (int)piece->unit, (int)p,
                         -1);
    }
    if (piece->group_count == 0 || e->piece_weights[p] == piece->weights)
        return;
    sl_emit_move(e, piece->weights_tier == SL_TIER_NVME ? SL_OP_EVICT : SL_OP_UPLOAD,
                 e->piece_weights[p], piece->weights, (int)piece->unit, (int)p, -1);
}
