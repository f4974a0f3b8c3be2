// SPDX-License-Identifier: Apache-2.0
/* The executor: runs a sealed plan, one thread per lane that has work, one counter per lane.
 *
 * Copies and NVMe transfers are done here, from the plan alone; everything else is handed to the
 * runner. Nothing is allocated after creation. The first failure stops every lane; later calls
 * return it.
 */
#ifndef SLUICE_OFFLOAD_EXECUTOR_H
#define SLUICE_OFFLOAD_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "offload/device.h"
#include "offload/plan.h"

struct sl_swap;
struct sl_trace;
struct sl_executor;

/* Does the work of operations on the COMPUTE, CPU and NET lanes. `context` is what was given to
 * sl_executor_submit. Called from the lane's thread; the slots are valid and owned until return. */
typedef int (*sl_op_runner)(void *user, const struct sl_op *op, void *context,
                            struct sl_error *error);

struct sl_executor_options {
    const struct sl_plan *plan;          /* sealed, borrowed */
    struct sl_device *device;            /* borrowed */
    struct sl_swap *swap;                /* borrowed; NULL where the plan uses no NVMe */
    unsigned char *arena[SL_TIER_COUNT]; /* base addresses: device, host; unified: only host */
    sl_op_runner runner;
    void *user;
    struct sl_trace *trace; /* NULL: none */
};

int sl_executor_create(struct sl_executor **out, const struct sl_executor_options *options,
                       struct sl_error *error);
void sl_executor_destroy(struct sl_executor *executor); /* drains; NULL allowed */

/* Queue one instance of a segment. Blocks while two instances are in flight. Returns the first
 * failure so far, or 0. `context` is lent until the instance has finished. `version`, 0 or 1, is
 * the one that slots with two versions hold now (offload/plan.h). */
int sl_executor_submit(struct sl_executor *executor, uint32_t segment, uint32_t version,
                       void *context);

/* Wait until at most `in_flight` instances are unfinished (0: drain). Returns the first failure. */
int sl_executor_wait(struct sl_executor *executor, uint32_t in_flight);

/* The first failure, code 0 where there was none. */
void sl_executor_error(struct sl_executor *executor, struct sl_error *error);

/* Address of a slot in its arena; NULL for NVMe. */
void *sl_executor_pointer(const struct sl_executor *executor, uint32_t slot);

/* Since creation: nanoseconds in which a lane was working, and in which it waited for others while
 * it had work queued; bytes moved by the NVMe and link lanes. Monotone; read at any time. */
struct sl_executor_stats {
    uint64_t busy_ns[SL_LANE_COUNT], wait_ns[SL_LANE_COUNT], bytes[SL_LANE_COUNT];
};
void sl_executor_stats(struct sl_executor *executor, struct sl_executor_stats *stats);

#endif
