// SPDX-License-Identifier: Apache-2.0
/* The executor's state, shared by its two files: executor.c (lanes, instances, host and NVMe) and
 * executor_queue.c (lanes of a queued device). Nobody else includes this. */
#ifndef SLUICE_OFFLOAD_EXECUTOR_INTERNAL_H
#define SLUICE_OFFLOAD_EXECUTOR_INTERNAL_H

#include <pthread.h>

#include "nvme/swap.h"
#include "offload/executor.h"

#define INSTANCES_IN_FLIGHT 2
#define INSTANCE_RING 4   /* in flight, and the ones that those refer back to */
#define QUEUE_DEPTH 16    /* operations issued and not finished, per lane of a queued device */
#define NVME_IN_FLIGHT 16 /* operations per NVMe lane; each is split into many blocks below */

struct instance {
    uint64_t number;
    uint32_t version; /* of the slots that have two */
    uint32_t segment, segment_before; /* SL_PLAN_NONE: the first */
    void *context;
    uint64_t base[SL_LANE_COUNT];
};

struct lane;

struct transfer {
    struct sl_swap_request request;
    struct lane *lane;
    const struct sl_op *op;
    uint64_t instance, position, start_ns;
    bool busy;
};

/* An operation that a queued lane has issued. */
struct issue {
    struct sl_event *begin, *end; /* recorded around it on the lane's stream */
    const struct sl_op *op;
    uint64_t instance, taken_ns; /* when the lane came to it */
    bool recorded;               /* false: it was not done, a failure came before */
    bool wanted;                 /* false: its flag is not set; only the events are recorded */
};

struct lane {
    struct sl_executor *executor;
    enum sl_lane id;
    pthread_t thread;
    bool started;
    uint64_t walked; /* instances that the thread is done with: their place in the ring is free */
    uint32_t *ops[SL_PLAN_SEGMENTS_MAX]; /* operation indices of this lane per segment */
    /* NVMe lanes: */
    struct transfer transfers[NVME_IN_FLIGHT];
    bool finished[NVME_IN_FLIGHT]; /* position % NVME_IN_FLIGHT */
    uint32_t in_flight;
    uint64_t busy_since_ns;
    /* Lanes of a queued device: */
    struct issue issues[QUEUE_DEPTH]; /* position % QUEUE_DEPTH */
    pthread_t finisher;
    bool finisher_started;
    uint64_t finished_ns; /* when the last operation did */
};

struct sl_executor {
    struct sl_executor_options options;
    const struct sl_plan *plan;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct lane lanes[SL_LANE_COUNT];
    uint64_t counters[SL_LANE_COUNT];
    uint64_t issued[SL_LANE_COUNT]; /* queued lanes: at most QUEUE_DEPTH more than finished */
    struct instance ring[INSTANCE_RING];
    uint64_t submitted;
    bool stopping, failed;
    struct sl_error error;
    struct sl_executor_stats stats;
};

static inline bool lane_is_queued(const struct sl_executor *executor, int lane)
{
    return executor->options.device->properties.queued &&
           (lane == SL_LANE_COMPUTE || lane == SL_LANE_H2D || lane == SL_LANE_D2H);
}

static inline enum sl_stream stream_of(enum sl_lane lane)
{
    return lane == SL_LANE_H2D   ? SL_STREAM_H2D
           : lane == SL_LANE_D2H ? SL_STREAM_D2H
                                 : SL_STREAM_COMPUTE;
}

/* Mutex held. The first failure stops everything. */
void sl_executor_fail(struct sl_executor *executor, const struct sl_op *op, int code,
                      const struct sl_error *cause);

/* Mutex held. How many operations of `lane` come before `op`; 0: it does not wait for them. */
uint64_t sl_executor_needed(const struct sl_executor *executor, const struct sl_op *op,
                            const struct instance *instance, int lane);

/* Is the operation to be done? Its waits are over, so the flag is there. */
bool sl_executor_wanted(const struct sl_executor *executor, const struct sl_op *op);

/* A serial lane's operation, done on return; a queued lane's, queued. Mutex not held. */
int sl_executor_do_op(struct sl_executor *executor, const struct sl_op *op, void *context,
                      struct sl_error *error);

/* Queue an operation whose waits are over as far as the host has to keep them. Mutex held on entry
 * and return. taken_ns: when the lane came to it. */
void sl_executor_issue(struct lane *lane, const struct sl_op *op, const struct instance *instance,
                       uint64_t position, uint64_t taken_ns);

/* The events and the finisher of a queued lane. Stop: after the lane's own thread has ended. */
int sl_executor_queue_start(struct lane *lane);
void sl_executor_queue_stop(struct lane *lane);

#endif
