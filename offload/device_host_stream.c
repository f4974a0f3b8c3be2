// SPDX-License-Identifier: Apache-2.0
/* Copies, streams and events of the host device.
 *
 * `host`: memory is one, a copy is done when its function returns, every event is past.
 * `host:discrete`: h2d and d2h are threads, each with a bounded ring of items taken in order. A
 * stream's position is a count of items; an event remembers (stream, count), and waiting for it is
 * waiting for that stream's completed count. A wait on a copy stream is itself an item, so that the
 * submitter never blocks; a wait on the compute stream blocks the caller, whose kernels run in it.
 * Compute-stream work is synchronous, so events recorded there are past at once.
 *
 * The optional throttle models a link of so many bytes per second and direction: a copy holds its
 * lane until the link would have carried it, idle time is not saved up.
 *
 * Invariants: completed <= submitted <= completed + COPY_RING; both only grow, under the lane's
 * mutex. Waits refer to items submitted before them, so the lanes cannot deadlock.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "offload/device_host.h"

#define LANE_COUNT 2u
#define NO_LANE LANE_COUNT

struct sl_event {
    _Atomic uint64_t mark; /* lane count << 2 | lane; lane NO_LANE: past */
};

static size_t lane_of(const struct host_device *host, enum sl_stream stream)
{
    if (host->base.properties.unified || stream == SL_STREAM_COMPUTE)
        return NO_LANE;
    return stream == SL_STREAM_H2D ? 0 : 1;
}

static void lane_wait(struct copy_lane *lane, uint64_t value)
{
    pthread_mutex_lock(&lane->mutex);
    while (lane->completed < value)
        pthread_cond_wait(&lane->changed, &lane->mutex);
    pthread_mutex_unlock(&lane->mutex);
}

static void sleep_until(uint64_t when_ns)
{
    struct timespec t = {.tv_sec = (time_t)(when_ns / 1000000000u),
                         .tv_nsec = (long)(when_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void lane_move(struct copy_lane *lane, const struct copy_item *item)
{
    uint64_t speed = lane->device->link_bytes_per_second;
    uint64_t now = speed ? sl_clock_ns() : 0;
    memcpy(item->to, item->from, item->bytes);
    if (!speed)
        return;
    uint64_t start = lane->link_free_ns > now ? lane->link_free_ns : now;
    lane->link_free_ns = start + (uint64_t)((double)item->bytes * 1e9 / (double)speed);
    sleep_until(lane->link_free_ns);
}

static void *lane_main(void *arg)
{
    struct copy_lane *lane = arg;
    pthread_mutex_lock(&lane->mutex);
    for (;;) {
        while (lane->submitted == lane->completed && !lane->stop)
            pthread_cond_wait(&lane->changed, &lane->mutex);
        if (lane->submitted == lane->completed)
            break;
        struct copy_item item = lane->ring[lane->completed % COPY_RING];
        pthread_mutex_unlock(&lane->mutex);
        if (item.kind == COPY_MOVE)
            lane_move(lane, &item);
        else if (item.kind == COPY_ZERO)
            memset(item.to, 0, item.bytes);
        else
            lane_wait(&lane->device->lanes[item.wait_lane], item.wait_value);
        pthread_mutex_lock(&lane->mutex);
        lane->completed++;
        pthread_cond_broadcast(&lane->changed);
    }
    pthread_mutex_unlock(&lane->mutex);
    return NULL;
}

static void lane_submit(struct copy_lane *lane, const struct copy_item *item)
{
    pthread_mutex_lock(&lane->mutex);
    while (lane->submitted - lane->completed == COPY_RING)
        pthread_cond_wait(&lane->changed, &lane->mutex);
    lane->ring[lane->submitted % COPY_RING] = *item;
    lane->submitted++;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
}

int host_lanes_start(struct host_device *host, struct sl_error *error)
{
    for (size_t i = 0; i < LANE_COUNT; i++) {
        struct copy_lane *lane = &host->lanes[i];
        lane->device = host;
        pthread_mutex_init(&lane->mutex, NULL);
        pthread_cond_init(&lane->changed, NULL);
        int rc = pthread_create(&lane->thread, NULL, lane_main, lane);
        if (rc) {
            pthread_mutex_destroy(&lane->mutex);
            pthread_cond_destroy(&lane->changed);
            return sl_error_set(error, SL_DOMAIN_DEVICE, -rc,
                                "host:discrete: its copy threads could not be started: %s",
                                strerror(rc));
        }
        lane->started = true;
        pthread_setname_np(lane->thread, i == 0 ? "sluice-h2d" : "sluice-d2h");
    }
    return 0;
}

void host_lanes_stop(struct host_device *host)
{
    for (size_t i = 0; i < LANE_COUNT; i++) {
        struct copy_lane *lane = &host->lanes[i];
        if (!lane->started)
            continue;
        pthread_mutex_lock(&lane->mutex);
        lane->stop = true;
        pthread_cond_broadcast(&lane->changed);
        pthread_mutex_unlock(&lane->mutex);
    }
    /* A lane may still wait for the other: both are joined before either is taken apart. */
    for (size_t i = 0; i < LANE_COUNT; i++)
        if (host->lanes[i].started)
            pthread_join(host->lanes[i].thread, NULL);
    for (size_t i = 0; i < LANE_COUNT; i++)
        if (host->lanes[i].started) {
            pthread_mutex_destroy(&host->lanes[i].mutex);
            pthread_cond_destroy(&host->lanes[i].changed);
        }
}

int host_copy(struct sl_device *device, enum sl_stream stream, void *to, const void *from,
              uint64_t bytes)
{
    struct host_device *host = host_of(device);
    size_t lane = lane_of(host, stream);
    if (bytes == 0 || to == from)
        return 0;
    if (lane == NO_LANE) {
        memcpy(to, from, bytes);
        return 0;
    }
    struct copy_item item = {.kind = COPY_MOVE, .to = to, .from = from, .bytes = bytes};
    lane_submit(&host->lanes[lane], &item);
    return 0;
}

int host_zero(struct sl_device *device, enum sl_stream stream, void *memory, uint64_t bytes)
{
    struct host_device *host = host_of(device);
    size_t lane = lane_of(host, stream);
    if (bytes == 0)
        return 0;
    if (lane == NO_LANE) {
        memset(memory, 0, bytes);
        return 0;
    }
    struct copy_item item = {.kind = COPY_ZERO, .to = memory, .bytes = bytes};
    lane_submit(&host->lanes[lane], &item);
    return 0;
}

int host_event_create(struct sl_device *device, struct sl_event **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return sl_error_set(&device->error, SL_DOMAIN_MEMORY, -ENOMEM, "event: no memory");
    atomic_store(&(*out)->mark, NO_LANE);
    return 0;
}

void host_event_destroy(struct sl_device *device, struct sl_event *event)
{
    (void)device;
    free(event);
}

int host_event_record(struct sl_device *device, enum sl_stream stream, struct sl_event *event)
{
    struct host_device *host = host_of(device);
    size_t index = lane_of(host, stream);
    uint64_t value = 0;
    if (index != NO_LANE) {
        struct copy_lane *lane = &host->lanes[index];
        pthread_mutex_lock(&lane->mutex);
        value = lane->submitted;
        pthread_mutex_unlock(&lane->mutex);
    }
    atomic_store(&event->mark, value << 2 | index);
    return 0;
}

int host_event_synchronize(struct sl_device *device, struct sl_event *event)
{
    uint64_t mark = atomic_load(&event->mark);
    if ((mark & 3) != NO_LANE)
        lane_wait(&host_of(device)->lanes[mark & 3], mark >> 2);
    return 0;
}

int host_event_wait(struct sl_device *device, enum sl_stream stream, struct sl_event *event)
{
    struct host_device *host = host_of(device);
    uint64_t mark = atomic_load(&event->mark);
    size_t index = lane_of(host, stream);
    if (index == NO_LANE)
        return host_event_synchronize(device, event);
    if ((mark & 3) == NO_LANE || (mark & 3) == index)
        return 0; /* past already, or in this stream's order anyway */
    struct copy_item item = {
        .kind = COPY_WAIT, .wait_lane = (size_t)(mark & 3), .wait_value = mark >> 2};
    lane_submit(&host->lanes[index], &item);
    return 0;
}

int host_stream_synchronize(struct sl_device *device, enum sl_stream stream)
{
    struct host_device *host = host_of(device);
    size_t index = lane_of(host, stream);
    if (index == NO_LANE)
        return 0;
    struct copy_lane *lane = &host->lanes[index];
    pthread_mutex_lock(&lane->mutex);
    uint64_t value = lane->submitted;
    pthread_mutex_unlock(&lane->mutex);
    lane_wait(lane, value);
    return 0;
}
