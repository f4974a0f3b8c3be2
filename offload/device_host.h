// SPDX-License-Identifier: Apache-2.0
/* The host device's own state, shared by its files. Nobody else includes this. */
#ifndef SLUICE_OFFLOAD_DEVICE_HOST_H
#define SLUICE_OFFLOAD_DEVICE_HOST_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/host/host.h"
#include "offload/device.h"
#include "offload/workers.h"

/* One direction of the link of host:discrete: a thread that works through a bounded ring. */
#define COPY_RING 256u

enum copy_kind { COPY_MOVE, COPY_ZERO, COPY_WAIT };

struct copy_item {
    enum copy_kind kind;
    void *to;
    const void *from;
    uint64_t bytes;
    size_t wait_lane; /* COPY_WAIT: until that lane has completed wait_value items */
    uint64_t wait_value;
};

struct copy_lane {
    struct host_device *device;
    pthread_t thread;
    bool started, stop;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* submitted, completed or stop moved */
    struct copy_item ring[COPY_RING];
    uint64_t submitted, completed; /* counts of items since creation */
    uint64_t link_free_ns;         /* when the throttled link is free again */
};

struct host_device {
    struct sl_device base;
    struct sl_workers *workers;
    const struct sl_host_kernels *kernels;
    const struct sl_log *log;
    void *scratch; /* one slot per worker index and one for work done in the caller */
    size_t slot_bytes, slot_count;
    float *partials; /* norm_backward: weight-gradient sums per block of rows */
    uint64_t link_bytes_per_second;
    struct copy_lane lanes[2]; /* host:discrete: h2d, d2h */
};

/* Sums per block of rows of norm_backward: 64 blocks of two arrays up to a width of 8,192. */
#define NORM_PARTIAL_BYTES (64u * 2u * 8192u * sizeof(float))
#define NORM_BLOCKS_MAX 64u

static inline struct host_device *host_of(struct sl_device *device)
{
    return (struct host_device *)device; /* base is the first member */
}

static inline float *host_scratch(const struct host_device *host, size_t slot)
{
    return (float *)((char *)host->scratch + slot * host->slot_bytes);
}

/* Run tasks on the pool, or here where `cost_ns` (of all tasks, one core) is less than waking it.
 * Either way the cut into tasks is the caller's, a function of the problem alone. */
void host_run(struct host_device *host, size_t task_count, double cost_ns, sl_task_fn task,
              void *arg);

/* The compute kernels (device_host_ops.c, device_host_update.c). */
int host_norm(struct sl_device *device, const struct sl_norm_args *args);
int host_norm_backward(struct sl_device *device, const struct sl_norm_backward_args *args);
int host_matmul(struct sl_device *device, const struct sl_matmul_args *args);
int host_rope(struct sl_device *device, const struct sl_rope_args *args);
int host_attention(struct sl_device *device, const struct sl_attention_args *args);
int host_attention_cached(struct sl_device *device, const struct sl_attention_cached_args *args);
int host_attention_backward(struct sl_device *device,
                            const struct sl_attention_backward_args *args);
int host_act(struct sl_device *device, const struct sl_act_args *args);
int host_act_backward(struct sl_device *device, const struct sl_act_args *args);
int host_add(struct sl_device *device, const struct sl_add_args *args);
int host_embedding(struct sl_device *device, const struct sl_embedding_args *args);
int host_embedding_backward(struct sl_device *device, const struct sl_embedding_args *args);
int host_cross_entropy(struct sl_device *device, const struct sl_cross_entropy_args *args);
int host_gradient_finish(struct sl_device *device, const struct sl_gradient_finish_args *args);
int host_optim(struct sl_device *device, const struct sl_optim_args *args);

/* Copies, streams and events (device_host_stream.c). */
int host_lanes_start(struct host_device *host, struct sl_error *error);
void host_lanes_stop(struct host_device *host);
int host_copy(struct sl_device *device, enum sl_stream stream, void *to, const void *from,
              uint64_t bytes);
int host_zero(struct sl_device *device, enum sl_stream stream, void *memory, uint64_t bytes);
int host_event_create(struct sl_device *device, struct sl_event **out);
void host_event_destroy(struct sl_device *device, struct sl_event *event);
int host_event_record(struct sl_device *device, enum sl_stream stream, struct sl_event *event);
int host_event_wait(struct sl_device *device, enum sl_stream stream, struct sl_event *event);
int host_event_synchronize(struct sl_device *device, struct sl_event *event);
int host_stream_synchronize(struct sl_device *device, enum sl_stream stream);

/* offload/device.c calls this for "host" and "host:discrete". */
int sl_device_host_create(struct sl_device **out, const struct sl_device_options *options,
                          bool discrete, struct sl_error *error);

#endif
