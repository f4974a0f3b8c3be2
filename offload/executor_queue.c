// SPDX-License-Identifier: Apache-2.0
/* Lanes of a device that queues its work (CUDA).
 *
 * Problem   A lane that waits for each operation leaves the device idle while the host wakes up,
 *           looks at counters and launches the next one; a lane that does not wait has no counter
 *           of finished operations for the others.
 * Choice    The lane's thread *issues* operations ahead of time. Between two lanes of the device
 *           an issued operation is enough, since the stream is told to wait for its event; what
 *           lies on other lanes must have finished. A second thread per lane, the finisher, waits
 *           for the events in order and raises the counter, so that host and NVMe lanes see what
 *           they always see: finished operations. QUEUE_DEPTH bounds how far issue runs ahead.
 * Rejected  Host callbacks in the stream (they stall it, and may not call CUDA); polling.
 * Times     An operation lasts from its begin event to its end event, by the device's clock, and
 *           ended when the finisher saw it, by the host's.
 * Invariant What a runner reads on the host while it issues comes from another lane than COMPUTE,
 *           H2D and D2H: of those it may not have arrived.
 */
#include <stdio.h>

#include "base/clock.h"
#include "offload/executor_internal.h"
#include "offload/trace.h"

/* Mutex held, and it must be: an event of an operation that has finished is recorded again for a
 * later one, and a wait for that could wait for itself. */
static int wait_on_device(struct sl_executor *executor, const struct sl_op *op,
                          const struct instance *instance)
{
    struct sl_device *device = executor->options.device;
    int result = 0;
    for (int lane = 0; lane < SL_LANE_COUNT && !result; lane++) {
        uint64_t count = sl_executor_needed(executor, op, instance, lane);
        if (lane == (int)op->lane || !lane_is_queued(executor, lane) ||
            count <= executor->counters[lane])
            continue;
        const struct issue *issue = &executor->lanes[lane].issues[(count - 1) % QUEUE_DEPTH];
        if (issue->recorded)
            result = device->ops->event_wait(device, stream_of(op->lane), issue->end);
    }
    return result;
}

/* Mutex not held. The end is recorded even where something failed between: what was queued before
 * must have left the stream when the operation counts as finished. */
static int issue_op(struct issue *issue, const struct lane *lane, void *context,
                    struct sl_error *error)
{
    struct sl_device *device = lane->executor->options.device;
    enum sl_stream stream = stream_of(lane->id);
    char name[64];
    snprintf(name, sizeof(name), "%s unit %d micro-batch %d", sl_op_kind_name(issue->op->kind),
             issue->op->unit, issue->op->micro_batch);
    if (device->ops->range_begin)
        device->ops->range_begin(device, name);
    int result = device->ops->event_record(device, stream, issue->begin);
    issue->wanted = sl_executor_wanted(lane->executor, issue->op);
    if (!result && issue->wanted)
        result = sl_executor_do_op(lane->executor, issue->op, context, error);
    int recorded = device->ops->event_record(device, stream, issue->end);
    issue->recorded = recorded == 0;
    if (device->ops->range_end)
        device->ops->range_end(device);
    return result ? result : recorded;
}

/* Nobody looks at the issue until `issued` says that it is there. */
void sl_executor_issue(struct lane *lane, const struct sl_op *op, const struct instance *instance,
                       uint64_t position, uint64_t taken_ns)
{
    struct sl_executor *executor = lane->executor;
    struct issue *issue = &lane->issues[position % QUEUE_DEPTH];
    issue->op = op;
    issue->instance = instance->number;
    issue->taken_ns = taken_ns;
    issue->recorded = false;
    if (!executor->failed) {
        void *context = instance->context;
        struct sl_error error = {0};
        int result = wait_on_device(executor, op, instance);
        if (!result) {
            pthread_mutex_unlock(&executor->mutex);
            result = issue_op(issue, lane, context, &error);
            pthread_mutex_lock(&executor->mutex);
        }
        if (result && !error.code)
            error = executor->options.device->error;
        if (result)
            sl_executor_fail(executor, op, result, &error);
    }
    executor->issued[lane->id]++;
    pthread_cond_broadcast(&executor->changed);
}

/* Mutex held. The end by this thread's clock, the duration by the device's. */
static void account(struct lane *lane, const struct issue *issue, uint64_t end_ns, uint64_t span_ns)
{
    struct sl_executor_stats *stats = &lane->executor->stats;
    uint64_t ready_ns = issue->taken_ns > lane->finished_ns ? issue->taken_ns : lane->finished_ns;
    uint64_t start_ns = end_ns - span_ns > ready_ns ? end_ns - span_ns : ready_ns;
    stats->busy_ns[lane->id] += end_ns - start_ns;
    stats->wait_ns[lane->id] += start_ns - ready_ns;
    stats->bytes[lane->id] += issue->op->bytes;
    lane->finished_ns = end_ns;
    if (lane->executor->options.trace)
        sl_trace_add(lane->executor->options.trace, issue->op, issue->instance, start_ns, end_ns);
}

/* Waits for what the lane has issued, in order, and counts it. */
static void *finisher_main(void *arg)
{
    struct lane *lane = arg;
    struct sl_executor *executor = lane->executor;
    struct sl_device *device = executor->options.device;
    uint64_t *counter = &executor->counters[lane->id];
    pthread_mutex_lock(&executor->mutex);
    for (;;) {
        while (*counter == executor->issued[lane->id] && !executor->stopping)
            pthread_cond_wait(&executor->changed, &executor->mutex);
        if (*counter == executor->issued[lane->id])
            break;
        const struct issue *issue = &lane->issues[*counter % QUEUE_DEPTH];
        if (issue->recorded) {
            uint64_t span_ns = 0;
            pthread_mutex_unlock(&executor->mutex);
            int result = device->ops->event_synchronize(device, issue->end);
            uint64_t end_ns = sl_clock_ns();
            if (!result)
                result = device->ops->event_elapsed(device, issue->begin, issue->end, &span_ns);
            pthread_mutex_lock(&executor->mutex);
            if (issue->wanted)
                account(lane, issue, end_ns, span_ns);
            if (result)
                sl_executor_fail(executor, issue->op, result, &device->error);
        }
        (*counter)++;
        pthread_cond_broadcast(&executor->changed);
    }
    pthread_mutex_unlock(&executor->mutex);
    return NULL;
}

int sl_executor_queue_start(struct lane *lane)
{
    struct sl_device *device = lane->executor->options.device;
    int result = 0;
    for (int i = 0; i < QUEUE_DEPTH && !result; i++) {
        result = device->ops->event_create(device, &lane->issues[i].begin);
        if (!result)
            result = device->ops->event_create(device, &lane->issues[i].end);
    }
    if (!result)
        result = -pthread_create(&lane->finisher, NULL, finisher_main, lane);
    lane->finisher_started = result == 0;
    return result;
}

void sl_executor_queue_stop(struct lane *lane)
{
    struct sl_device *device = lane->executor->options.device;
    if (lane->finisher_started)
        pthread_join(lane->finisher, NULL);
    for (int i = 0; i < QUEUE_DEPTH; i++) {
        if (lane->issues[i].begin)
            device->ops->event_destroy(device, lane->issues[i].begin);
        if (lane->issues[i].end)
            device->ops->event_destroy(device, lane->issues[i].end);
    }
}
