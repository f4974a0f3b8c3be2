// SPDX-License-Identifier: Apache-2.0
/* Happens-before, by vector clocks.
 *
 * known[o][L]   when op o starts, that many operations of lane L, of the same instance, have
 *               finished for certain
 * done[o][L]    the same at the moment when the counter of o's lane has passed o: what everybody
 *               who waits for that counter may rely on
 *
 * An operation knows what its waits say, and what those knew whom it waits for. On a serial lane it
 * also knows what the operation before it in the lane leaves. On an NVMe lane it does not:
 * operations are in flight side by side, only the counter of finished prefixes joins them. That one
 * starts after another on such a lane is not used at all.
 *
 * From one instance to the next the same holds with clocks that count operations of the instance
 * before, for each segment that it may have been; older instances have finished everywhere. Every
 * pair of conflicting accesses must be covered: the walk keeps, per atom, the last write and the
 * furthest read of each lane since, which is enough because order is transitive.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan_check_internal.h"

typedef uint32_t clock_row[SL_LANE_COUNT];

/* The accesses of an atom that a later one must come after; positions count from 1, 0 is none. */
struct touched {
    uint32_t write_end;
    uint8_t write_lane;
    uint32_t read_end[SL_LANE_COUNT];
};

struct order {
    const struct check *check;
    clock_row *known, *done;       /* all ops, of their own instance */
    clock_row *known_before;       /* ops of the current segment, of the instance before */
    clock_row *done_before;        /* likewise */
    struct touched *own, *earlier; /* per atom */
};

static void join(clock_row into, const clock_row other)
{
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        if (into[lane] < other[lane])
            into[lane] = other[lane];
}

static void clocks_inside(struct order *order, uint32_t s)
{
    const struct check *check = order->check;
    const struct sl_segment *segment = &check->plan->segments[s];
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        const struct sl_op *op = &check->plan->ops[i];
        uint32_t position = op->lane_index;
        uint32_t *known = order->known[i], *done = order->done[i];
        memset(known, 0, sizeof(clock_row));
        for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++)
            if (op->wait[lane])
                join(known, order->done[check_lane_op(check, s, lane, op->wait[lane] - 1)]);
        if (position && !check_lane_concurrent(op->lane))
            join(known, order->done[check_lane_op(check, s, op->lane, position - 1)]);
        memcpy(done, known, sizeof(clock_row));
        if (position)
            join(done, order->done[check_lane_op(check, s, op->lane, position - 1)]);
        done[op->lane] = position + 1;
    }
}

/* Needs the clocks inside of both segments. */
static void clocks_across(struct order *order, uint32_t s, uint32_t previous)
{
    const struct check *check = order->check;
    const struct sl_segment *segment = &check->plan->segments[s];
    const struct sl_segment *before = &check->plan->segments[previous];
    for (uint32_t i = 0; i < segment->op_count; i++) {
        const struct sl_op *op = &check->plan->ops[segment->op_first + i];
        uint32_t position = op->lane_index;
        uint32_t *known = order->known_before[i], *done = order->done_before[i];
        memset(known, 0, sizeof(clock_row));
        for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++) {
            uint32_t wait = op->wait[lane], wait_before = op->wait_previous[previous][lane];
            if (wait)
                join(known, order->done_before[check_lane_op(check, s, lane, wait - 1) -
                                               segment->op_first]);
            if (wait_before)
                join(known, order->done[check_lane_op(check, previous, lane, wait_before - 1)]);
        }
        uint32_t in_lane = position ? check_lane_op(check, s, op->lane, position - 1) : 0;
        if (!check_lane_concurrent(op->lane)) {
            uint32_t count = before->lane_count[op->lane];
            if (position)
                join(known, order->done_before[in_lane - segment->op_first]);
            else if (count)
                join(known, order->done[check_lane_op(check, previous, op->lane, count - 1)]);
        }
        memcpy(done, known, sizeof(clock_row));
        if (position)
            join(done, order->done_before[in_lane - segment->op_first]);
    }
}

/* Report that `op` is not ordered after the op at position end - 1 of a lane of segment `other`. */
static int unordered(const struct order *order, uint32_t op, uint32_t slot, bool write,
                     uint32_t other, bool earlier, uint32_t lane, uint32_t end, bool other_wrote)
{
    const struct check *check = order->check;
    uint32_t with = check_lane_op(check, other, lane, end - 1);
    const struct sl_op *o = &check->plan->ops[with];
    return check_fail(
        check, op,
        "%s slot \"%s\" without waiting for op %" PRIu32 " (%s unit %d, lane %s)%s%s, "
        "which %s the same bytes",
        write ? "writes" : "reads", check->plan->slots[slot].name, with, sl_op_kind_name(o->kind),
        o->unit, sl_lane_name(o->lane), earlier ? " of the instance before, segment " : "",
        earlier ? check->plan->segments[other].name : "", other_wrote ? "writes" : "reads");
}

/* One access against what has touched its atoms. */
static int check_access(const struct order *order, const struct touched *touched,
                        const clock_row known, uint32_t op, struct sl_access access, uint32_t other,
                        bool earlier)
{
    const struct check_slot *slot = &order->check->slots[access.slot];
    for (uint32_t atom = slot->atom_first; atom < slot->atom_end; atom++) {
        const struct touched *t = &touched[atom];
        if (t->write_end > known[t->write_lane])
            return unordered(order, op, access.slot, access.write, other, earlier, t->write_lane,
                             t->write_end, true);
        for (uint32_t lane = 0; access.write && lane < SL_LANE_COUNT; lane++)
            if (t->read_end[lane] > known[lane])
                return unordered(order, op, access.slot, access.write, other, earlier, lane,
                                 t->read_end[lane], false);
    }
    return 0;
}

/* Add an operation's accesses to `own`: its reads, then its writes. */
static void note_op(struct order *order, const struct sl_op *op)
{
    const struct check *check = order->check;
    for (int write = 0; write < 2; write++)
        for (uint32_t a = 0; a < op->access_count; a++) {
            struct sl_access access = check->plan->accesses[op->access_first + a];
            const struct check_slot *slot = &check->slots[access.slot];
            if (access.write != (write != 0))
                continue;
            for (uint32_t atom = slot->atom_first; atom < slot->atom_end; atom++) {
                struct touched *t = &order->own[atom];
                if (write)
                    *t = (struct touched){.write_end = op->lane_index + 1,
                                          .write_lane = (uint8_t)op->lane};
                else
                    t->read_end[op->lane] = op->lane_index + 1;
            }
        }
}

/* Leaves in `own` how the segment leaves the atoms. */
static int walk_inside(struct order *order, uint32_t s)
{
    const struct sl_plan *plan = order->check->plan;
    const struct sl_segment *segment = &plan->segments[s];
    memset(order->own, 0, (size_t)order->check->atom_count * sizeof(*order->own));
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        for (uint32_t a = 0; a < op->access_count; a++) {
            int result = check_access(order, order->own, order->known[i], i,
                                      plan->accesses[op->access_first + a], s, false);
            if (result)
                return result;
        }
        note_op(order, op);
    }
    return 0;
}

/* `earlier` holds how the segment before left the atoms; what this one overwrites is cleared, since
 * later operations are ordered after the overwriting one already. */
static int walk_across(struct order *order, uint32_t s, uint32_t previous)
{
    const struct check *check = order->check;
    const struct sl_plan *plan = check->plan;
    const struct sl_segment *segment = &plan->segments[s];
    for (uint32_t i = 0; i < segment->op_count; i++) {
        const struct sl_op *op = &plan->ops[segment->op_first + i];
        const struct sl_access *accesses = &plan->accesses[op->access_first];
        for (uint32_t a = 0; a < op->access_count; a++) {
            int result = check_access(order, order->earlier, order->known_before[i],
                                      segment->op_first + i, accesses[a], previous, true);
            if (result)
                return result;
        }
        for (uint32_t a = 0; a < op->access_count; a++) {
            const struct check_slot *slot = &check->slots[accesses[a].slot];
            if (accesses[a].write)
                memset(&order->earlier[slot->atom_first], 0,
                       (size_t)(slot->atom_end - slot->atom_first) * sizeof(*order->earlier));
        }
    }
    return 0;
}

static int check_all(struct order *order)
{
    const struct sl_plan *plan = order->check->plan;
    for (uint32_t s = 0; s < plan->segment_count; s++)
        clocks_inside(order, s);
    for (uint32_t previous = 0; previous < plan->segment_count; previous++) {
        int result = walk_inside(order, previous);
        for (uint32_t s = 0; s < plan->segment_count && !result; s++) {
            if (!plan->segments[s].follows[previous])
                continue;
            memcpy(order->earlier, order->own,
                   (size_t)order->check->atom_count * sizeof(*order->own));
            clocks_across(order, s, previous);
            result = walk_across(order, s, previous);
        }
        if (result)
            return result;
    }
    return 0;
}

int check_order(const struct check *check)
{
    size_t ops = (size_t)check->plan->op_count + 1, atoms = (size_t)check->atom_count + 1;
    struct order order = {
        .check = check,
        .known = malloc(ops * sizeof(clock_row)),
        .done = malloc(ops * sizeof(clock_row)),
        .known_before = malloc(ops * sizeof(clock_row)),
        .done_before = malloc(ops * sizeof(clock_row)),
        .own = calloc(atoms, sizeof(struct touched)),
        .earlier = calloc(atoms, sizeof(struct touched)),
    };
    int result = -ENOMEM;
    if (order.known && order.done && order.known_before && order.done_before && order.own &&
        order.earlier)
        result = check_all(&order);
    free(order.known);
    free(order.done);
    free(order.known_before);
    free(order.done_before);
    free(order.own);
    free(order.earlier);
    return result;
}
