// SPDX-License-Identifier: Apache-2.0
/* Slots of partitioned state shrink to 1/N, views with them. A copy between such a slot and a whole
 * one on the device becomes two operations, the copy of a shard and a collective on the net lane;
 * everything else is copied as it is. The result is sealed like any plan, so that the order of the
 * collectives follows from the bytes they read and write.
 *
 * A ring moves (N - 1) / N of the whole over each link: that is the collective's bytes.
 */
#include "offload/simulate_ranks.h"

#include <errno.h>
#include <stdlib.h>

#include "base/size.h"

struct ranks {
    struct sl_plan *out;
    const struct sl_plan *plan;
    uint32_t count;
    uint32_t *slots; /* old to new */
};

static bool is_partitioned(const struct sl_slot *slot)
{
    return slot->tier != SL_TIER_DEVICE &&
           (slot->state == SL_STATE_WEIGHTS || slot->state == SL_STATE_GRADIENTS ||
            slot->state == SL_STATE_OPTIMIZER || slot->state == SL_STATE_BUFFERS);
}

static void copy_slots(struct ranks *r)
{
    for (uint32_t i = 0; i < r->plan->slot_count; i++) {
        const struct sl_slot *slot = &r->plan->slots[i];
        uint32_t parts = is_partitioned(slot) ? r->count : 1;
        if (slot->parent != SL_PLAN_NONE)
            r->slots[i] = sl_plan_view(r->out, r->slots[slot->parent], slot->parent_offset / parts,
                                       slot->bytes / parts);
        else
            r->slots[i] =
                sl_plan_slot(r->out, slot->tier, slot->state, sl_div_up(slot->bytes, parts),
                             slot->persistent, "%s", slot->name);
    }
}

static struct sl_op_desc describe(const struct sl_op *op)
{
    return (struct sl_op_desc){.kind = op->kind,
                               .lane = op->lane,
                               .unit = op->unit,
                               .piece = op->piece,
                               .micro_batch = op->micro_batch,
                               .part = op->part,
                               .bytes = op->bytes,
                               .flops = op->flops,
                               .product_bytes = op->product_bytes,
                               .rate_share = op->rate_share};
}

/* The flags of the last operation, as the one that it was made from has them. */
static void copy_flags(struct ranks *r, const struct sl_op *op)
{
    if (op->predicate != SL_PLAN_NONE)
        sl_plan_predicate(r->out, r->slots[op->predicate], op->expected);
    if (r->out->out_of_memory)
        return;
    r->out->ops[r->out->op_count - 1].speculative = op->speculative;
    r->out->ops[r->out->op_count - 1].version = op->version;
}

static void add_copy(struct ranks *r, const struct sl_op *op, uint32_t from, uint32_t to)
{
    struct sl_op_desc desc = describe(op);
    if (r->out->out_of_memory)
        return;
    /* Shares of a view and of a slot of the same size may be rounded differently. */
    desc.bytes = sl_min_u64(r->out->slots[from].bytes, r->out->slots[to].bytes);
    uint32_t read = sl_plan_view(r->out, from, 0, desc.bytes);
    uint32_t write = sl_plan_view(r->out, to, 0, desc.bytes);
    sl_plan_op(r->out, desc);
    sl_plan_reads(r->out, read);
    sl_plan_writes(r->out, write);
    copy_flags(r, op);
}

static void add_collective(struct ranks *r, const struct sl_op *op, uint32_t from, uint32_t to)
{
    struct sl_op_desc desc = describe(op);
    desc.kind = SL_OP_COLLECTIVE;
    desc.lane = SL_LANE_NET;
    desc.bytes = op->bytes / r->count * (r->count - 1);
    sl_plan_op(r->out, desc);
    sl_plan_reads(r->out, from);
    sl_plan_writes(r->out, to);
}

static uint32_t shard(struct ranks *r, const struct sl_op *op, const struct sl_slot *whole)
{
    return sl_plan_slot(r->out, SL_TIER_DEVICE, whole->state, sl_div_up(op->bytes, r->count), false,
                        "shard of %.30s", whole->name);
}

static void add_move(struct ranks *r, const struct sl_op *op)
{
    uint32_t from = sl_plan_op_slot(r->plan, op, false, 0);
    uint32_t to = sl_plan_op_slot(r->plan, op, true, 0);
    const struct sl_slot *source = &r->plan->slots[from], *target = &r->plan->slots[to];
    if (op->kind == SL_OP_UPLOAD && is_partitioned(source)) {
        uint32_t part = shard(r, op, target);
        add_copy(r, op, r->slots[from], part);
        add_collective(r, op, part, r->slots[to]);
    } else if (op->kind == SL_OP_DOWNLOAD && is_partitioned(target)) {
        uint32_t part = shard(r, op, source);
        add_collective(r, op, r->slots[from], part);
        add_copy(r, op, part, r->slots[to]);
    } else {
        add_copy(r, op, r->slots[from], r->slots[to]);
    }
}

/* A gradient that stays on the device is that of all ranks: reduced and gathered in place. */
static void reduce_in_place(struct ranks *r, const struct sl_op *op)
{
    uint32_t slot = sl_plan_op_slot(r->plan, op, true, 0);
    if (r->count == 1 || slot == SL_PLAN_NONE || r->plan->slots[slot].tier != SL_TIER_DEVICE ||
        !r->plan->slots[slot].persistent)
        return;
    struct sl_op_desc desc = describe(op);
    desc.kind = SL_OP_COLLECTIVE;
    desc.lane = SL_LANE_NET;
    desc.bytes = 2 * (r->plan->slots[slot].bytes / r->count * (r->count - 1));
    sl_plan_op(r->out, desc);
    sl_plan_reads(r->out, r->slots[slot]);
    sl_plan_writes(r->out, r->slots[slot]);
}

static void add_op(struct ranks *r, const struct sl_op *op)
{
    if (op->kind == SL_OP_UPLOAD || op->kind == SL_OP_DOWNLOAD || op->kind == SL_OP_FETCH ||
        op->kind == SL_OP_EVICT) {
        add_move(r, op);
        return;
    }
    struct sl_op_desc desc = describe(op);
    if (op->kind == SL_OP_UPDATE && op->lane == SL_LANE_CPU)
        desc.bytes /= r->count;
    sl_plan_op(r->out, desc);
    for (uint32_t a = 0; a < op->access_count; a++) {
        struct sl_access access = r->plan->accesses[op->access_first + a];
        if (access.slot == op->predicate)
            continue;
        if (access.write)
            sl_plan_writes(r->out, r->slots[access.slot]);
        else
            sl_plan_reads(r->out, r->slots[access.slot]);
    }
    copy_flags(r, op);
    if (op->kind == SL_OP_GRADIENT)
        reduce_in_place(r, op);
}

int sl_plan_for_ranks(struct sl_plan *out, const struct sl_plan *plan, uint32_t ranks,
                      struct sl_error *error)
{
    sl_plan_init(out, false);
    if (plan->unified || ranks == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%u ranks of %s: several ranks are simulated for devices with memory "
                            "of their own",
                            ranks, plan->unified ? "the host device" : "a device");
    struct ranks r = {.out = out, .plan = plan, .count = ranks};
    r.slots = calloc((size_t)plan->slot_count + 1, sizeof(*r.slots));
    if (!r.slots)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory while planning");
    copy_slots(&r);
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        sl_plan_segment_begin(out, segment->name);
        for (uint32_t i = 0; i < segment->op_count; i++)
            add_op(&r, &plan->ops[segment->op_first + i]);
        sl_plan_segment_end(out);
    }
    for (uint32_t s = 0; s < plan->segment_count; s++)
        for (uint32_t p = 0; p < plan->segment_count; p++)
            if (plan->segments[s].follows[p])
                sl_plan_follows(out, s, p);
    free(r.slots);
    int result = sl_plan_seal(out, error);
    if (result)
        sl_plan_finish(out);
    return result;
}
