// SPDX-License-Identifier: Apache-2.0
/* The proof of a sealed plan.
 *
 * Problem   A wrong offset or a missing wait gives wrong numbers once in a thousand steps, on the
 *           machine of a user. The plan is data, so it can be proved before it runs.
 * Choice    Nothing that sl_plan_seal computed is believed: lives, lane positions and the order
 *           that the waits give are worked out again from the operations and the byte ranges.
 *   here              shape of the arrays, sizes of copies, placement, budgets, and that waits
 * point backward in program order (so program order is a schedule without deadlock)
 *   plan_check_order  happens-before: every two operations that touch the same bytes, one of them
 *                     writing, are ordered by what the waits guarantee, inside an instance and from
 *                     one instance to the next
 *   plan_check_flow   what the bytes hold: reads find what their own slot wrote, results are read,
 *                     gradients are consumed once, over every sequence of segments
 * Rejected  Trying schedules (random or exhaustive): it shows the presence of faults only.
 * Cost      Linear in accesses times atoms per slot; 50,000 operations take some tens of
 *           milliseconds.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan_check_internal.h"

static const char *segment_of(const struct sl_plan *plan, uint32_t op)
{
    for (uint32_t i = 0; i < plan->segment_count; i++)
        if (op - plan->segments[i].op_first < plan->segments[i].op_count)
            return plan->segments[i].name;
    return "none";
}

int check_fail(const struct check *check, uint32_t op, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (op == SL_PLAN_NONE)
        return sl_error_set(check->error, SL_DOMAIN_INTERNAL, -EINVAL, "plan: %s", text);
    const struct sl_op *o = &check->plan->ops[op];
    return sl_error_set(check->error, SL_DOMAIN_INTERNAL, -EINVAL,
                        "plan: segment %s, op %" PRIu32 " (%s unit %d piece %d micro-batch %d part "
                        "%d) on lane %s: %s",
                        segment_of(check->plan, op), op, sl_op_kind_name(o->kind), o->unit,
                        o->piece, o->micro_batch, o->part, sl_lane_name(o->lane), text);
}

/* ---- shape ---------------------------------------------------------------------------------- */

static int check_segments(const struct check *check)
{
    const struct sl_plan *plan = check->plan;
    if (!plan->sealed)
        return check_fail(check, SL_PLAN_NONE, "not sealed");
    if (plan->segment_count > SL_PLAN_SEGMENTS_MAX)
        return check_fail(check, SL_PLAN_NONE, "%" PRIu32 " segments, at most %u",
                          plan->segment_count, SL_PLAN_SEGMENTS_MAX);
    uint32_t next = 0;
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        if (segment->op_first != next || segment->op_count > plan->op_count - next)
            return check_fail(check, SL_PLAN_NONE, "segment %s does not begin where the last ends",
                              segment->name);
        next += segment->op_count;
        for (uint32_t p = plan->segment_count; p < SL_PLAN_SEGMENTS_MAX; p++)
            if (segment->follows[p])
                return check_fail(check, SL_PLAN_NONE, "segment %s follows a segment that is not",
                                  segment->name);
    }
    if (next != plan->op_count)
        return check_fail(check, SL_PLAN_NONE, "operations outside of every segment");
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        if ((unsigned)op->lane >= SL_LANE_COUNT || (unsigned)op->kind >= SL_OP_KIND_COUNT)
            return check_fail(check, SL_PLAN_NONE, "op %" PRIu32 " has no such kind or lane", i);
        if (op->access_first > plan->access_count ||
            op->access_count > plan->access_count - op->access_first)
            return check_fail(check, i, "accesses out of range");
        for (uint32_t a = 0; a < op->access_count; a++)
            if (plan->accesses[op->access_first + a].slot >= plan->slot_count)
                return check_fail(check, i, "no such slot");
    }
    return 0;
}

/* Lane positions, and waits that point backward only. */
static int check_lanes(struct check *check)
{
    const struct sl_plan *plan = check->plan;
    uint32_t used = 0;
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        uint32_t count[SL_LANE_COUNT] = {0};
        for (uint32_t i = 0; i < segment->op_count; i++)
            count[plan->ops[segment->op_first + i].lane]++;
        for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++) {
            if (count[lane] != segment->lane_count[lane])
                return check_fail(
                    check, SL_PLAN_NONE,
                    "segment %s: %" PRIu32 " operations on lane %s, recorded %" PRIu32,
                    segment->name, count[lane], sl_lane_name(lane), segment->lane_count[lane]);
            check->lane_first[s][lane] = used;
            used += count[lane];
        }
    }
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        uint32_t before[SL_LANE_COUNT] = {0};
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
            const struct sl_op *op = &plan->ops[i];
            if (op->lane_index != before[op->lane])
                return check_fail(check, i, "position %" PRIu32 " in its lane, recorded %" PRIu32,
                                  before[op->lane], op->lane_index);
            for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++)
                if (op->wait[lane] > before[lane])
                    return check_fail(check, i,
                                      "waits for %" PRIu32 " operations of lane %s, of which only "
                                      "%" PRIu32 " come before it: deadlock",
                                      op->wait[lane], sl_lane_name(lane), before[lane]);
            for (uint32_t p = 0; p < plan->segment_count; p++)
                for (uint32_t lane = 0; segment->follows[p] && lane < SL_LANE_COUNT; lane++)
                    if (op->wait_previous[p][lane] > plan->segments[p].lane_count[lane])
                        return check_fail(check, i,
                                          "waits for %" PRIu32 " operations of lane %s of segment "
                                          "%s, which has %" PRIu32 ": deadlock",
                                          op->wait_previous[p][lane], sl_lane_name(lane),
                                          plan->segments[p].name,
                                          plan->segments[p].lane_count[lane]);
            check->lane_ops[check->lane_first[s][op->lane] + before[op->lane]++] = i;
        }
    }
    return 0;
}

static bool reads_slot(const struct sl_plan *plan, const struct sl_op *op, uint32_t slot)
{
    for (uint32_t a = 0; a < op->access_count; a++)
        if (!plan->accesses[op->access_first + a].write &&
            plan->accesses[op->access_first + a].slot == slot)
            return true;
    return false;
}

/* Flags are in host memory and read by what depends on them. Of a slot with two versions a
 * speculative operation reads the current one and writes the other, and what is done again in the
 * next instance, where they have swapped, reads the other and writes the current one: so the old
 * version is never written over while it may still be needed. */
static int check_flags(const struct check *check)
{
    const struct sl_plan *plan = check->plan;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        bool always = op->predicate == SL_PLAN_NONE;
        if (!always && (!reads_slot(plan, op, op->predicate) ||
                        sl_plan_arena(plan, plan->slots[op->predicate].tier) != SL_TIER_HOST))
            return check_fail(check, i, "depends on a flag that it does not read");
        if (always && (op->speculative || !op->expected))
            return check_fail(check, i, "is speculative but depends on no flag");
        bool versioned = false;
        for (uint32_t a = 0; a < op->access_count; a++)
            versioned |= plan->slots[plan->accesses[op->access_first + a].slot].versioned;
        bool old = op->kind != SL_OP_EVICT; /* an update reads the old one and writes the new */
        if (versioned && (always || op->version != (op->speculative ? !old : old)))
            return check_fail(check, i, "touches the wrong version of a slot that has two");
    }
    return 0;
}

/* A copy reads one slot and writes one, of the right tiers and of op->bytes each. */
static int check_copies(const struct check *check)
{
    static const struct {
        enum sl_op_kind kind;
        enum sl_lane lane;
        enum sl_tier from, to;
    } copies[] = {
        {SL_OP_UPLOAD, SL_LANE_H2D, SL_TIER_HOST, SL_TIER_DEVICE},
        {SL_OP_DOWNLOAD, SL_LANE_D2H, SL_TIER_DEVICE, SL_TIER_HOST},
        {SL_OP_FETCH, SL_LANE_NVME_READ, SL_TIER_NVME, SL_TIER_HOST},
        {SL_OP_EVICT, SL_LANE_NVME_WRITE, SL_TIER_HOST, SL_TIER_NVME},
    };
    const struct sl_plan *plan = check->plan;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        size_t c = 0;
        while (c < sizeof(copies) / sizeof(copies[0]) && copies[c].kind != op->kind)
            c++;
        if (c == sizeof(copies) / sizeof(copies[0]))
            continue;
        const struct sl_access *access = &plan->accesses[op->access_first];
        if (op->lane != copies[c].lane)
            return check_fail(check, i, "a copy on the wrong lane");
        uint32_t flags = op->predicate != SL_PLAN_NONE; /* read last */
        if (op->access_count != 2 + flags || access[0].write == access[1].write)
            return check_fail(check, i, "a copy reads one slot and writes one");
        const struct sl_slot *from = &plan->slots[access[access[0].write ? 1 : 0].slot];
        const struct sl_slot *to = &plan->slots[access[access[0].write ? 0 : 1].slot];
        if (sl_slot_bytes(from) != sl_slot_bytes(to) || op->bytes != sl_slot_bytes(from))
            return check_fail(check, i,
                              "copies %" PRIu64 " bytes of \"%s\" (%" PRIu64 ") to \"%s\" (%" PRIu64
                              ")",
                              op->bytes, from->name, from->bytes, to->name, to->bytes);
        /* Memory is where a unified plan places it: its device slots are host memory. */
        if (sl_plan_arena(plan, from->tier) != sl_plan_arena(plan, copies[c].from) ||
            sl_plan_arena(plan, to->tier) != sl_plan_arena(plan, copies[c].to))
            return check_fail(check, i, "copies \"%s\" (%s) to \"%s\" (%s): not its direction",
                              from->name, sl_tier_name(from->tier), to->name,
                              sl_tier_name(to->tier));
    }
    return 0;
}

/* ---- placement ------------------------------------------------------------------------------ */

static int find_roots(const struct check *check)
{
    const struct sl_plan *plan = check->plan;
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        const struct sl_slot *slot = &plan->slots[i];
        uint32_t root = slot->parent == SL_PLAN_NONE ? i : slot->parent;
        if (root >= plan->slot_count || plan->slots[root].parent != SL_PLAN_NONE)
            return check_fail(check, SL_PLAN_NONE, "slot \"%s\": its parent is no slot, or a view",
                              slot->name);
        check->slots[i].root = root;
    }
    return 0;
}

/* Placed: persistent, or used by an operation. The seal gives others no place. */
static bool is_placed(const struct check *check, uint32_t slot)
{
    uint32_t root = check->slots[slot].root;
    return check->plan->slots[root].persistent || check->slots[root].segment != SL_PLAN_NONE;
}

static int check_slots(const struct check *check)
{
    const struct sl_plan *plan = check->plan;
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        const struct sl_slot *slot = &plan->slots[i];
        const struct sl_slot *whole = &plan->slots[check->slots[i].root];
        uint64_t within = slot == whole ? 0 : slot->parent_offset;
        if (!is_placed(check, i))
            continue;
        if (slot->tier != whole->tier || within > whole->bytes ||
            slot->bytes > whole->bytes - within || slot->offset != whole->offset + within)
            return check_fail(check, SL_PLAN_NONE,
                              "slot \"%s\": not inside of \"%s\", which it is part of", slot->name,
                              whole->name);
        uint64_t limit = plan->tier_bytes[sl_plan_arena(plan, slot->tier)];
        if (slot->offset > limit || slot->bytes > limit - slot->offset)
            return check_fail(check, SL_PLAN_NONE,
                              "slot \"%s\": ends at byte %" PRIu64 " of the %s arena of %" PRIu64,
                              slot->name, slot->offset + slot->bytes, sl_tier_name(slot->tier),
                              limit);
        if (slot->parent == SL_PLAN_NONE && slot->offset % SL_PLAN_ALIGNMENT)
            return check_fail(check, SL_PLAN_NONE,
                              "slot \"%s\": offset %" PRIu64 " is not a multiple of %u", slot->name,
                              slot->offset, SL_PLAN_ALIGNMENT);
    }
    return 0;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t find_u64(const uint64_t *sorted, uint32_t count, uint64_t value)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sorted[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Cut the arenas into atoms. */
static int cut_atoms(struct check *check)
{
    const struct sl_plan *plan = check->plan;
    uint64_t *cuts = malloc(((size_t)plan->slot_count * 2 + 1) * sizeof(*cuts));
    if (!cuts)
        return -ENOMEM;
    for (uint32_t arena = 0; arena < SL_TIER_COUNT; arena++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < plan->slot_count; i++)
            if (sl_plan_arena(plan, plan->slots[i].tier) == arena && plan->slots[i].bytes &&
                is_placed(check, i)) {
                cuts[count++] = plan->slots[i].offset;
                cuts[count++] = plan->slots[i].offset + plan->slots[i].bytes;
            }
        qsort(cuts, count, sizeof(*cuts), compare_u64);
        uint32_t distinct = 0;
        for (uint32_t i = 0; i < count; i++)
            if (i == 0 || cuts[i] != cuts[i - 1])
                cuts[distinct++] = cuts[i];
        for (uint32_t i = 0; i < plan->slot_count; i++) {
            const struct sl_slot *slot = &plan->slots[i];
            if (sl_plan_arena(plan, slot->tier) != arena || !slot->bytes || !is_placed(check, i))
                continue;
            check->slots[i].atom_first = check->atom_count + find_u64(cuts, distinct, slot->offset);
            check->slots[i].atom_end =
                check->atom_count + find_u64(cuts, distinct, slot->offset + slot->bytes);
        }
        check->atom_count += distinct;
    }
    free(cuts);
    return 0;
}

/* Lives of the roots, from the operations alone. */
static int find_lives(struct check *check)
{
    const struct sl_plan *plan = check->plan;
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        check->slots[i].segment = SL_PLAN_NONE;
        check->slots[i].life_first = 1;
    }
    for (uint32_t s = 0; s < plan->segment_count; s++)
        for (uint32_t n = 0; n < plan->segments[s].op_count; n++) {
            uint32_t i = plan->segments[s].op_first + n;
            const struct sl_op *op = &plan->ops[i];
            for (uint32_t a = 0; a < op->access_count; a++) {
                uint32_t root = check->slots[plan->accesses[op->access_first + a].slot].root;
                struct check_slot *life = &check->slots[root];
                if (plan->slots[root].persistent)
                    continue;
                if (life->segment != SL_PLAN_NONE && life->segment != s)
                    return check_fail(check, i, "slot \"%s\" is transient and used in two segments",
                                      plan->slots[root].name);
                if (life->segment == SL_PLAN_NONE)
                    life->life_first = i;
                life->segment = s;
                life->life_last = i;
            }
        }
    return 0;
}

static int compare_births(const void *a, const void *b)
{
    const struct check_slot *x = *(const struct check_slot *const *)a;
    const struct check_slot *y = *(const struct check_slot *const *)b;
    if (x->life_first != y->life_first)
        return x->life_first < y->life_first ? -1 : 1;
    return x->root < y->root ? -1 : x->root > y->root;
}

/* No two slots that live at the same time share an atom. Persistent slots occupy theirs for good;
 * transient ones are taken in the order of their births, and an atom is free again when the life of
 * its owner ended before. */
static int check_overlap(const struct check *check)
{
    const struct sl_plan *plan = check->plan;
    uint32_t *owner = malloc(((size_t)check->atom_count + 1) * sizeof(*owner));
    const struct check_slot **births = malloc(((size_t)plan->slot_count + 1) * sizeof(*births));
    int result = -ENOMEM;
    if (!owner || !births)
        goto out;
    for (uint32_t i = 0; i < check->atom_count; i++)
        owner[i] = SL_PLAN_NONE;
    uint32_t count = 0;
    for (int persistent = 1; persistent >= 0; persistent--) {
        uint32_t first = count;
        for (uint32_t i = 0; i < plan->slot_count; i++)
            if (check->slots[i].root == i && plan->slots[i].persistent == (persistent != 0) &&
                (persistent || check->slots[i].segment != SL_PLAN_NONE))
                births[count++] = &check->slots[i];
        qsort(births + first, count - first, sizeof(*births), compare_births);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct check_slot *slot = births[i];
        for (uint32_t atom = slot->atom_first; atom < slot->atom_end; atom++) {
            uint32_t other = owner[atom];
            if (other != SL_PLAN_NONE && (plan->slots[other].persistent ||
                                          check->slots[other].life_last >= slot->life_first)) {
                result = check_fail(
                    check, plan->slots[slot->root].persistent ? SL_PLAN_NONE : slot->life_first,
                    "slots \"%s\" and \"%s\" live at the same time in the same %s "
                    "bytes",
                    plan->slots[other].name, plan->slots[slot->root].name,
                    sl_tier_name(plan->slots[other].tier));
                goto out;
            }
            owner[atom] = slot->root;
        }
    }
    result = 0;
out:
    free(owner);
    free(births);
    return result;
}

static int check_budgets(const struct check *check, const uint64_t budget_bytes[SL_TIER_COUNT])
{
    for (uint32_t tier = 0; budget_bytes && tier < SL_TIER_COUNT; tier++)
        if (budget_bytes[tier] && check->plan->tier_bytes[tier] > budget_bytes[tier])
            return check_fail(
                check, SL_PLAN_NONE, "the %s tier needs %" PRIu64 " bytes, the budget is %" PRIu64,
                sl_tier_name(tier), check->plan->tier_bytes[tier], budget_bytes[tier]);
    return 0;
}

int sl_plan_check(const struct sl_plan *plan, const uint64_t budget_bytes[SL_TIER_COUNT],
                  struct sl_error *error)
{
    struct check check = {.plan = plan, .error = error};
    check.slots = calloc((size_t)plan->slot_count + 1, sizeof(*check.slots));
    check.lane_ops = calloc((size_t)plan->op_count + 1, sizeof(*check.lane_ops));
    int result = check.slots && check.lane_ops ? 0 : -ENOMEM;
    if (!result)
        result = check_segments(&check);
    if (!result)
        result = check_lanes(&check);
    if (!result)
        result = find_roots(&check);
    if (!result)
        result = find_lives(&check);
    if (!result)
        result = check_slots(&check);
    if (!result)
        result = check_flags(&check);
    if (!result)
        result = check_copies(&check);
    if (!result)
        result = check_budgets(&check, budget_bytes);
    if (!result)
        result = cut_atoms(&check);
    if (!result)
        result = check_overlap(&check);
    if (!result)
        result = check_order(&check);
    if (!result)
        result = check_flow(&check);
    if (result == -ENOMEM)
        sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "plan check: out of memory");
    free(check.slots);
    free(check.lane_ops);
    return result;
}
