// SPDX-License-Identifier: Apache-2.0
/* What the parts of the plan checker share. Only offload/plan_check*.c include this. */
#ifndef SLUICE_OFFLOAD_PLAN_CHECK_INTERNAL_H
#define SLUICE_OFFLOAD_PLAN_CHECK_INTERNAL_H

#include "offload/plan.h"

/* Atoms: each arena is cut at every start and end of a slot or view, so that a slot is a run of
 * atoms and two slots share bytes exactly where they share atoms.
 *
 *     slot a   |--------------|
 *     slot b          |-----------|
 *     atoms    |  0   |   1   | 2 |
 */
struct check_slot {
    uint32_t root;                  /* itself, or what it is a view of */
    uint32_t atom_first, atom_end;  /* numbered through all arenas */
    uint32_t segment;               /* of a transient root that is used; else SL_PLAN_NONE */
    uint32_t life_first, life_last; /* ops, of a root; last < first: never used */
};

struct check {
    const struct sl_plan *plan;
    struct sl_error *error;
    struct check_slot *slots;
    uint32_t atom_count;
    uint32_t *lane_ops; /* ops by segment, lane and position */
    uint32_t lane_first[SL_PLAN_SEGMENTS_MAX][SL_LANE_COUNT];
};

/* The op at `position` of a lane of a segment. */
static inline uint32_t check_lane_op(const struct check *check, uint32_t segment, uint32_t lane,
                                     uint32_t position)
{
    return check->lane_ops[check->lane_first[segment][lane] + position];
}

/* On these several operations are in flight: starting after another does not mean that it has
 * finished. */
static inline bool check_lane_concurrent(uint32_t lane)
{
    return lane == SL_LANE_NVME_READ || lane == SL_LANE_NVME_WRITE;
}

/* Report a violation at an operation; returns -EINVAL. */
int check_fail(const struct check *check, uint32_t op, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int check_order(const struct check *check); /* plan_check_order.c */
int check_flow(const struct check *check);  /* plan_check_flow.c */

#endif
