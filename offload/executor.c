// SPDX-License-Identifier: Apache-2.0
/* One thread per lane walks that lane's operations; a counter per lane says how many have finished.
 *
 * An operation starts when every lane's counter has reached what the plan says: at most one number
 * per lane, so there is no graph at run time, no reference count and no ready queue. A task-graph
 * executor was rejected: it finds at run time what the plan already knows, and its order is not the
 * plan's.
 *
 * Counters are absolute: an instance of a segment starts at a base, the sum of the operations of
 * all instances before it. On the NVMe lanes operations are in flight side by side and finish in
 * any order; `finished` flags in a ring turn that into a counter of finished prefixes.
 *
 * Lanes of a queued device (CUDA) run ahead of it: executor_queue.c.
 *
 * All state is under one mutex with one condition: operations last milliseconds, lanes are few, and
 * a broadcast costs microseconds. After a failure lanes go on counting without working, so that
 * nobody waits for ever and the threads come to rest.
 */
#include "offload/executor_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "nvme/swap.h"
#include "offload/trace.h"

static bool lane_is_nvme(enum sl_lane lane)
{
    return lane == SL_LANE_NVME_READ || lane == SL_LANE_NVME_WRITE;
}

void *sl_executor_pointer(const struct sl_executor *executor, uint32_t slot_index)
{
    const struct sl_slot *slot = &executor->plan->slots[slot_index];
    enum sl_tier arena = sl_plan_arena(executor->plan, slot->tier);
    if (arena == SL_TIER_NVME)
        return NULL;
    return executor->options.arena[arena] + slot->offset;
}

void sl_executor_fail(struct sl_executor *executor, const struct sl_op *op, int code,
                      const struct sl_error *cause)
{
    if (!executor->failed) {
        executor->failed = true;
        if (cause && cause->code)
            executor->error = *cause;
        else
            sl_error_set(&executor->error, SL_DOMAIN_INTERNAL, code, "%s", strerror(-code));
        sl_error_prefix(&executor->error, "%s (unit %d, micro-batch %d, lane %s)",
                        sl_op_kind_name(op->kind), op->unit, op->micro_batch,
                        sl_lane_name(op->lane));
    }
    pthread_cond_broadcast(&executor->changed);
}

/* Mutex held. A lane that has nothing to do in an instance still has to walk past it. */
static bool instance_finished(const struct sl_executor *executor, const struct instance *instance)
{
    const struct sl_segment *segment = &executor->plan->segments[instance->segment];
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        if (executor->counters[lane] < instance->base[lane] + segment->lane_count[lane] ||
            (executor->lanes[lane].started && executor->lanes[lane].walked <= instance->number))
            return false;
    return true;
}

/* Mutex held. Number of instances that have finished everywhere; they finish in order, and only the
 * last ones in flight are in question. */
static uint64_t instances_finished(const struct sl_executor *executor)
{
    uint64_t n = executor->submitted;
    while (n > 0 && executor->submitted - (n - 1) <= INSTANCES_IN_FLIGHT &&
           !instance_finished(executor, &executor->ring[(n - 1) % INSTANCE_RING]))
        n--;
    return n;
}

uint64_t sl_executor_needed(const struct sl_executor *executor, const struct sl_op *op,
                            const struct instance *instance, int lane)
{
    uint64_t count = op->wait[lane] ? instance->base[lane] + op->wait[lane] : 0;
    if (instance->segment_before == SL_PLAN_NONE)
        return count;
    const struct instance *before = &executor->ring[(instance->number - 1) % INSTANCE_RING];
    uint32_t wait = op->wait_previous[instance->segment_before][lane];
    uint64_t earlier = wait ? before->base[lane] + wait : 0;
    return count > earlier ? count : earlier;
}

/* Mutex held. Between two queued lanes the device keeps the order: issued is enough. */
static bool may_start(const struct sl_executor *executor, const struct sl_op *op,
                      const struct instance *instance)
{
    bool queued = lane_is_queued(executor, op->lane);
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        bool on_device = queued && lane_is_queued(executor, lane);
        uint64_t reached = on_device ? executor->issued[lane] : executor->counters[lane];
        if (reached < sl_executor_needed(executor, op, instance, lane))
            return false;
    }
    return true;
}

bool sl_executor_wanted(const struct sl_executor *executor, const struct sl_op *op)
{
    return op->predicate == SL_PLAN_NONE ||
           *(const uint64_t *)sl_executor_pointer(executor, op->predicate) != 0;
}

static int copy_over_link(struct sl_executor *executor, const struct sl_op *op,
                          struct sl_error *error)
{
    struct sl_device *device = executor->options.device;
    enum sl_stream stream = stream_of(op->lane);
    uint32_t from = sl_plan_op_slot(executor->plan, op, false, 0);
    uint32_t to = sl_plan_op_slot(executor->plan, op, true, 0);
    int result = device->ops->copy(device, stream, sl_executor_pointer(executor, to),
                                   sl_executor_pointer(executor, from), op->bytes);
    if (!result && !device->properties.queued)
        result = device->ops->stream_synchronize(device, stream);
    if (result && device->error.code)
        *error = device->error;
    return result;
}

int sl_executor_do_op(struct sl_executor *executor, const struct sl_op *op, void *context,
                      struct sl_error *error)
{
    if (op->kind == SL_OP_UPLOAD || op->kind == SL_OP_DOWNLOAD)
        return copy_over_link(executor, op, error);
    int result = executor->options.runner(executor->options.user, op, context, error);
    struct sl_device *device = executor->options.device;
    if (!result && op->lane == SL_LANE_COMPUTE && !device->properties.queued) {
        result = device->ops->stream_synchronize(device, SL_STREAM_COMPUTE);
        if (result && device->error.code)
            *error = device->error;
    }
    return result;
}

/* Mutex held on entry and return. */
static void run_serial(struct lane *lane, const struct sl_op *op, const struct instance *instance)
{
    struct sl_executor *executor = lane->executor;
    void *context = instance->context;
    uint64_t number = instance->number;
    int result = 0;
    if (!executor->failed && sl_executor_wanted(executor, op)) {
        pthread_mutex_unlock(&executor->mutex);
        struct sl_error error = {0};
        uint64_t start_ns = sl_clock_ns();
        result = sl_executor_do_op(executor, op, context, &error);
        uint64_t end_ns = sl_clock_ns();
        if (executor->options.trace)
            sl_trace_add(executor->options.trace, op, number, start_ns, end_ns);
        pthread_mutex_lock(&executor->mutex);
        executor->stats.busy_ns[lane->id] += end_ns - start_ns;
        executor->stats.bytes[lane->id] += op->bytes;
        if (result)
            sl_executor_fail(executor, op, result, &error);
    }
    executor->counters[lane->id]++;
    pthread_cond_broadcast(&executor->changed);
}

/* Mutex held. */
static void finish_position(struct lane *lane, uint64_t position)
{
    struct sl_executor *executor = lane->executor;
    lane->finished[position % NVME_IN_FLIGHT] = true;
    uint64_t *counter = &executor->counters[lane->id];
    while (lane->finished[*counter % NVME_IN_FLIGHT]) {
        lane->finished[*counter % NVME_IN_FLIGHT] = false;
        (*counter)++;
    }
    pthread_cond_broadcast(&executor->changed);
}

static void transfer_done(struct sl_swap_request *request, int result)
{
    struct transfer *transfer = request->user;
    struct lane *lane = transfer->lane;
    struct sl_executor *executor = lane->executor;
    uint64_t end_ns = sl_clock_ns();
    if (executor->options.trace)
        sl_trace_add(executor->options.trace, transfer->op, transfer->instance, transfer->start_ns,
                     end_ns);
    struct sl_error error = {0};
    if (result)
        sl_swap_error(executor->options.swap, &error);
    pthread_mutex_lock(&executor->mutex);
    executor->stats.bytes[lane->id] += transfer->op->bytes;
    if (--lane->in_flight == 0)
        executor->stats.busy_ns[lane->id] += end_ns - lane->busy_since_ns;
    if (result)
        sl_executor_fail(executor, transfer->op, result, &error);
    transfer->busy = false;
    finish_position(lane, transfer->position);
    pthread_mutex_unlock(&executor->mutex);
}

/* Mutex held. The counter is at most NVME_IN_FLIGHT behind, so that the flags do not wrap. */
static bool transfer_room(const struct lane *lane, uint64_t position)
{
    return position - lane->executor->counters[lane->id] < NVME_IN_FLIGHT &&
           !lane->transfers[position % NVME_IN_FLIGHT].busy;
}

/* Mutex held on entry and return. */
static void start_transfer(struct lane *lane, const struct sl_op *op,
                           const struct instance *instance, uint64_t position)
{
    struct sl_executor *executor = lane->executor;
    if (executor->failed || !sl_executor_wanted(executor, op)) {
        finish_position(lane, position);
        return;
    }
    bool write = op->kind == SL_OP_EVICT;
    uint32_t memory = sl_plan_op_slot(executor->plan, op, !write, 0);
    uint32_t extent = sl_plan_op_slot(executor->plan, op, write, 0);
    struct transfer *transfer = &lane->transfers[position % NVME_IN_FLIGHT];
    const struct sl_slot *slot = &executor->plan->slots[extent];
    uint64_t skip = slot->versioned && (op->version ^ instance->version) ? sl_slot_bytes(slot) : 0;
    uint64_t now_ns = sl_clock_ns();
    *transfer = (struct transfer){
        .request = {.write = write,
                    .offset_bytes = slot->offset + skip,
                    .bytes = op->bytes,
                    .buffer = sl_executor_pointer(executor, memory),
                    .done = transfer_done,
                    .user = transfer},
        .lane = lane,
        .op = op,
        .instance = instance->number,
        .position = position,
        .start_ns = now_ns,
        .busy = true,
    };
    if (lane->in_flight++ == 0)
        lane->busy_since_ns = now_ns;
    pthread_mutex_unlock(&executor->mutex);
    sl_swap_submit(executor->options.swap, &transfer->request);
    pthread_mutex_lock(&executor->mutex);
}

/* Mutex held. Is there a place for the operation among those in flight? */
static bool has_room(const struct lane *lane, uint64_t position)
{
    if (lane_is_nvme(lane->id))
        return transfer_room(lane, position);
    return position - lane->executor->counters[lane->id] < QUEUE_DEPTH; /* serial: 0 */
}

/* Mutex held. Returns when the lane came to the operation. Time spent here is the lane's wait,
 * counted only while it has work queued; of a queued lane the device knows better (account). */
static uint64_t wait_until_startable(struct lane *lane, const struct sl_op *op,
                                     const struct instance *instance, uint64_t position)
{
    struct sl_executor *executor = lane->executor;
    bool queued = lane_is_queued(executor, lane->id);
    uint64_t since_ns = queued ? sl_clock_ns() : 0;
    /* After a failure the counters still rise in order, so waiting always ends. */
    while (!may_start(executor, op, instance) || !has_room(lane, position)) {
        if (!since_ns)
            since_ns = sl_clock_ns();
        pthread_cond_wait(&executor->changed, &executor->mutex);
    }
    if (since_ns && !queued)
        executor->stats.wait_ns[lane->id] += sl_clock_ns() - since_ns;
    return since_ns;
}

static void *lane_main(void *arg)
{
    struct lane *lane = arg;
    struct sl_executor *executor = lane->executor;
    const struct sl_plan *plan = executor->plan;
    pthread_mutex_lock(&executor->mutex);
    for (uint64_t n = 0;; n++) {
        while (executor->submitted <= n && !executor->stopping)
            pthread_cond_wait(&executor->changed, &executor->mutex);
        if (executor->submitted <= n)
            break;
        while (n >= INSTANCES_IN_FLIGHT && instances_finished(executor) < n - 1)
            pthread_cond_wait(&executor->changed, &executor->mutex);
        const struct instance *instance = &executor->ring[n % INSTANCE_RING];
        uint32_t count = plan->segments[instance->segment].lane_count[lane->id];
        for (uint32_t i = 0; i < count; i++) {
            const struct sl_op *op = &plan->ops[lane->ops[instance->segment][i]];
            uint64_t position = instance->base[lane->id] + i;
            uint64_t taken_ns = wait_until_startable(lane, op, instance, position);
            if (lane_is_nvme(lane->id))
                start_transfer(lane, op, instance, position);
            else if (lane_is_queued(executor, lane->id))
                sl_executor_issue(lane, op, instance, position, taken_ns);
            else
                run_serial(lane, op, instance);
        }
        lane->walked = n + 1;
        pthread_cond_broadcast(&executor->changed);
    }
    pthread_mutex_unlock(&executor->mutex);
    return NULL;
}

static int list_ops(struct sl_executor *executor)
{
    const struct sl_plan *plan = executor->plan;
    for (int l = 0; l < SL_LANE_COUNT; l++) {
        struct lane *lane = &executor->lanes[l];
        lane->executor = executor;
        lane->id = (enum sl_lane)l;
        for (uint32_t s = 0; s < plan->segment_count; s++) {
            lane->ops[s] = calloc(plan->segments[s].lane_count[l] + 1, sizeof(uint32_t));
            if (!lane->ops[s])
                return -ENOMEM;
        }
    }
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++)
            executor->lanes[plan->ops[i].lane].ops[s][plan->ops[i].lane_index] = i;
    }
    return 0;
}

static bool lane_has_work(const struct sl_plan *plan, int lane)
{
    for (uint32_t s = 0; s < plan->segment_count; s++)
        if (plan->segments[s].lane_count[lane])
            return true;
    return false;
}

int sl_executor_create(struct sl_executor **out, const struct sl_executor_options *options,
                       struct sl_error *error)
{
    *out = NULL;
    assert(options->plan->sealed);
    struct sl_executor *executor = calloc(1, sizeof(*executor));
    if (!executor)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for the executor");
    executor->options = *options;
    executor->plan = options->plan;
    pthread_mutex_init(&executor->mutex, NULL);
    pthread_cond_init(&executor->changed, NULL);
    int result = list_ops(executor);
    pthread_mutex_lock(&executor->mutex); /* threads look at each other's `started` */
    for (int l = 0; l < SL_LANE_COUNT && !result; l++) {
        struct lane *lane = &executor->lanes[l];
        if (!lane_has_work(executor->plan, l))
            continue;
        assert(!lane_is_nvme(lane->id) || options->swap);
        result = lane_is_queued(executor, l) ? sl_executor_queue_start(lane) : 0;
        if (result)
            break;
        result = -pthread_create(&lane->thread, NULL, lane_main, lane);
        lane->started = result == 0;
    }
    pthread_mutex_unlock(&executor->mutex);
    if (result) {
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "the executor's threads: %s",
                     strerror(-result));
        sl_executor_destroy(executor);
        return result;
    }
    *out = executor;
    return 0;
}

void sl_executor_destroy(struct sl_executor *executor)
{
    if (!executor)
        return;
    sl_executor_wait(executor, 0);
    pthread_mutex_lock(&executor->mutex);
    executor->stopping = true;
    pthread_cond_broadcast(&executor->changed);
    pthread_mutex_unlock(&executor->mutex);
    for (int l = 0; l < SL_LANE_COUNT; l++) {
        struct lane *lane = &executor->lanes[l];
        if (lane->started)
            pthread_join(lane->thread, NULL);
        if (lane->executor)
            sl_executor_queue_stop(lane);
        for (uint32_t s = 0; s < SL_PLAN_SEGMENTS_MAX; s++)
            free(lane->ops[s]);
    }
    pthread_cond_destroy(&executor->changed);
    pthread_mutex_destroy(&executor->mutex);
    free(executor);
}

int sl_executor_submit(struct sl_executor *executor, uint32_t segment, uint32_t version,
                       void *context)
{
    const struct sl_plan *plan = executor->plan;
    assert(segment < plan->segment_count);
    pthread_mutex_lock(&executor->mutex);
    while (executor->submitted - instances_finished(executor) >= INSTANCES_IN_FLIGHT)
        pthread_cond_wait(&executor->changed, &executor->mutex);
    if (executor->failed) {
        int result = executor->error.code;
        pthread_mutex_unlock(&executor->mutex);
        return result;
    }
    uint64_t n = executor->submitted;
    struct instance *instance = &executor->ring[n % INSTANCE_RING];
    struct instance next = {.number = n,
                            .segment = segment,
                            .segment_before = SL_PLAN_NONE,
                            .version = version,
                            .context = context};
    if (n > 0) {
        const struct instance *before = &executor->ring[(n - 1) % INSTANCE_RING];
        assert(plan->segments[segment].follows[before->segment]);
        next.segment_before = before->segment;
        for (int lane = 0; lane < SL_LANE_COUNT; lane++)
            next.base[lane] = before->base[lane] + plan->segments[before->segment].lane_count[lane];
    }
    *instance = next;
    executor->submitted++;
    pthread_cond_broadcast(&executor->changed);
    pthread_mutex_unlock(&executor->mutex);
    return 0;
}

int sl_executor_wait(struct sl_executor *executor, uint32_t in_flight)
{
    pthread_mutex_lock(&executor->mutex);
    while (executor->submitted - instances_finished(executor) > in_flight)
        pthread_cond_wait(&executor->changed, &executor->mutex);
    int result = executor->failed ? executor->error.code : 0;
    pthread_mutex_unlock(&executor->mutex);
    return result;
}

void sl_executor_error(struct sl_executor *executor, struct sl_error *error)
{
    pthread_mutex_lock(&executor->mutex);
    *error = executor->error;
    pthread_mutex_unlock(&executor->mutex);
}

void sl_executor_stats(struct sl_executor *executor, struct sl_executor_stats *stats)
{
    pthread_mutex_lock(&executor->mutex);
    *stats = executor->stats;
    pthread_mutex_unlock(&executor->mutex);
}
