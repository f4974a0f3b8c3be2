// SPDX-License-Identifier: Apache-2.0
/* Building a plan: growing arrays of operations, accesses and slots, nothing else. The meaning is
 * given to them by plan_seal.c, and proved by plan_check.c.
 *
 * A builder has hundreds of calls and none of them can do anything useful about a failed
 * allocation, so the failure is kept in the plan and reported once, by sl_plan_place.
 */
#include "offload/plan.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

const char *sl_lane_name(enum sl_lane lane)
{
    static const char *const names[SL_LANE_COUNT] = {
        "compute", "h2d", "d2h", "cpu", "control", "nvme_read", "nvme_write", "net"};
    return (unsigned)lane < SL_LANE_COUNT ? names[lane] : "?";
}

const char *sl_tier_name(enum sl_tier tier)
{
    static const char *const names[SL_TIER_COUNT] = {"device", "host", "nvme"};
    return (unsigned)tier < SL_TIER_COUNT ? names[tier] : "?";
}

const char *sl_state_name(enum sl_state state)
{
    static const char *const names[SL_STATE_COUNT] = {"weights",     "gradients", "optimizer state",
                                                      "activations", "workspace", "buffers",
                                                      "control"};
    return (unsigned)state < SL_STATE_COUNT ? names[state] : "?";
}

const char *sl_op_kind_name(enum sl_op_kind kind)
{
    static const char *const names[SL_OP_KIND_COUNT] = {
        [SL_OP_INPUT] = "input",
        [SL_OP_UPLOAD] = "upload",
        [SL_OP_DOWNLOAD] = "download",
        [SL_OP_FETCH] = "fetch",
        [SL_OP_EVICT] = "evict",
        [SL_OP_EMBED] = "embed",
        [SL_OP_FORWARD] = "forward",
        [SL_OP_HEAD] = "head",
        [SL_OP_HEAD_NORM] = "head norm",
        [SL_OP_HEAD_STATS] = "head stats",
        [SL_OP_HEAD_BACKWARD] = "head backward",
        [SL_OP_HEAD_NORM_BACKWARD] = "head norm backward",
        [SL_OP_LOSS] = "loss",
        [SL_OP_GENERATE] = "generate",
        [SL_OP_LOGITS] = "logits",
        [SL_OP_RECOMPUTE] = "recompute",
        [SL_OP_BACKWARD] = "backward",
        [SL_OP_EMBED_BACKWARD] = "embed backward",
        [SL_OP_GRADIENT] = "gradient",
        [SL_OP_PREDICT] = "predict",
        [SL_OP_DECIDE] = "decide",
        [SL_OP_UPDATE] = "update",
        [SL_OP_COLLECTIVE] = "collective",
    };
    return (unsigned)kind < SL_OP_KIND_COUNT ? names[kind] : "?";
}

void sl_plan_init(struct sl_plan *plan, bool unified)
{
    *plan = (struct sl_plan){.unified = unified};
}

void sl_plan_finish(struct sl_plan *plan)
{
    free(plan->ops);
    free(plan->accesses);
    free(plan->slots);
    *plan = (struct sl_plan){0};
}

/* Make room for one more element; false and the sticky flag where memory is out. */
static bool grow(struct sl_plan *plan, void **array, uint32_t count, uint32_t *capacity,
                 size_t size)
{
    if (plan->out_of_memory)
        return false;
    if (count < *capacity)
        return true;
    uint32_t wanted = *capacity ? *capacity * 2 : 256;
    void *grown = realloc(*array, (size_t)wanted * size);
    if (!grown) {
        plan->out_of_memory = true;
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}

static uint32_t add_slot(struct sl_plan *plan, const struct sl_slot *slot)
{
    assert(!plan->placed);
    if (!grow(plan, (void **)&plan->slots, plan->slot_count, &plan->slot_capacity, sizeof(*slot)))
        return 0;
    plan->slots[plan->slot_count] = *slot;
    return plan->slot_count++;
}

uint32_t sl_plan_slot(struct sl_plan *plan, enum sl_tier tier, enum sl_state state, uint64_t bytes,
                      bool persistent, const char *name_format, ...)
{
    struct sl_slot slot = {
        .tier = tier,
        .state = state,
        .bytes = sl_align_up(bytes, SL_PLAN_ALIGNMENT),
        .parent = SL_PLAN_NONE,
        .persistent = persistent,
        .segment = SL_PLAN_NONE,
        .first_op = SL_PLAN_NONE,
    };
    va_list args;
    va_start(args, name_format);
    vsnprintf(slot.name, sizeof(slot.name), name_format, args);
    va_end(args);
    return add_slot(plan, &slot);
}

uint32_t sl_plan_view(struct sl_plan *plan, uint32_t parent, uint64_t offset, uint64_t bytes)
{
    if (plan->out_of_memory)
        return 0;
    assert(parent < plan->slot_count);
    struct sl_slot slot = plan->slots[parent];
    assert(offset <= slot.bytes && bytes <= slot.bytes - offset);
    if (slot.parent != SL_PLAN_NONE) { /* a view of a view is a view of the root */
        offset += slot.parent_offset;
        parent = slot.parent;
    }
    slot.parent = parent;
    slot.parent_offset = offset;
    slot.bytes = bytes;
    return add_slot(plan, &slot);
}

uint32_t sl_plan_segment_begin(struct sl_plan *plan, const char *name)
{
    assert(plan->segment_count < SL_PLAN_SEGMENTS_MAX);
    struct sl_segment *segment = &plan->segments[plan->segment_count];
    *segment = (struct sl_segment){.op_first = plan->op_count};
    snprintf(segment->name, sizeof(segment->name), "%s", name);
    return plan->segment_count;
}

void sl_plan_segment_end(struct sl_plan *plan)
{
    struct sl_segment *segment = &plan->segments[plan->segment_count];
    segment->op_count = plan->op_count - segment->op_first;
    plan->segment_count++;
}

void sl_plan_follows(struct sl_plan *plan, uint32_t segment, uint32_t previous)
{
    assert(segment < plan->segment_count && previous < plan->segment_count);
    plan->segments[segment].follows[previous] = true;
}

uint32_t sl_plan_op(struct sl_plan *plan, struct sl_op_desc desc)
{
    assert(!plan->placed);
    if (!grow(plan, (void **)&plan->ops, plan->op_count, &plan->op_capacity, sizeof(*plan->ops)))
        return 0;
    struct sl_op *op = &plan->ops[plan->op_count];
    *op = (struct sl_op){
        .kind = desc.kind,
        .lane = desc.lane,
        .unit = desc.unit,
        .piece = desc.piece,
        .micro_batch = desc.micro_batch,
        .part = desc.part,
        .access_first = plan->access_count,
        .bytes = desc.bytes,
        .flops = desc.flops,
        .product_bytes = desc.product_bytes,
        .rate_share = desc.rate_share,
        .predicate = SL_PLAN_NONE,
        .expected = true,
    };
    return plan->op_count++;
}

static void add_access(struct sl_plan *plan, uint32_t slot, bool write)
{
    if (slot == SL_PLAN_NONE || plan->out_of_memory)
        return;
    if (!grow(plan, (void **)&plan->accesses, plan->access_count, &plan->access_capacity,
              sizeof(*plan->accesses)))
        return;
    assert(slot < plan->slot_count && plan->op_count > 0);
    plan->accesses[plan->access_count++] = (struct sl_access){.slot = slot, .write = write};
    plan->ops[plan->op_count - 1].access_count++;
}

void sl_plan_reads(struct sl_plan *plan, uint32_t slot)
{
    add_access(plan, slot, false);
}

void sl_plan_writes(struct sl_plan *plan, uint32_t slot)
{
    add_access(plan, slot, true);
}

void sl_plan_predicate(struct sl_plan *plan, uint32_t slot, bool expected)
{
    add_access(plan, slot, false);
    if (plan->out_of_memory)
        return;
    struct sl_op *op = &plan->ops[plan->op_count - 1];
    op->predicate = slot;
    op->expected = expected;
}

void sl_plan_two_versions(struct sl_plan *plan, uint32_t slot)
{
    if (plan->out_of_memory)
        return;
    assert(plan->slots[slot].persistent && !plan->slots[slot].versioned);
    plan->slots[slot].versioned = true;
    plan->slots[slot].bytes *= 2;
}

uint32_t sl_plan_op_slot(const struct sl_plan *plan, const struct sl_op *op, bool write, uint32_t n)
{
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct sl_access *access = &plan->accesses[op->access_first + i];
        if (access->write == write && n-- == 0)
            return access->slot;
    }
    return SL_PLAN_NONE;
}

void sl_plan_traffic(const struct sl_plan *plan, uint32_t segment, struct sl_plan_traffic *traffic)
{
    *traffic = (struct sl_plan_traffic){0};
    const struct sl_segment *s = &plan->segments[segment];
    for (uint32_t i = s->op_first; i < s->op_first + s->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        if (!op->expected)
            continue;
        traffic->bytes[op->lane] += op->bytes;
        traffic->flops[op->lane] += op->flops;
        traffic->ops[op->lane]++;
    }
}
