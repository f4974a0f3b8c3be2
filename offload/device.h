// SPDX-License-Identifier: Apache-2.0
/* A device: memory, streams, events, copies, and the compute kernels of a transformer, as a table
 * of functions. The host device implements it with the worker pool; the CUDA module
 * implements it with streams and cuBLASLt. Everything above sees this table only.
 *
 * Shapes   N rows are tokens (batch_count * sequence_length of one micro-batch), C hidden size,
 *          H query heads, G key/value heads, D head size, F feed-forward size, V vocabulary.
 *          All arrays are row-major and dense unless a stride is given.
 * Types    Activations have the type `device->activation_dtype`: f32 on the host device; on CUDA
 *          the precision's 16-bit type (f32 in fp32 mode). Weights have the dtype given beside
 *          them. Logits, losses, log-sum-exp and weight-gradient accumulators are f32 everywhere.
 * Memory   Every pointer of a kernel is device memory (on a unified device: host memory), aligned
 *          to 64 bytes at the start of a tensor. Kernels allocate nothing.
 * Order    Kernels are queued on the compute stream, copies on the stream that is named. On the
 *          host device a kernel has finished when its function returns.
 * Errors   0 or a negative errno; the first failure is sticky and sl_device_error() describes it.
 * Exact    Same inputs, same bits, whatever the thread count (docs/numerics.md).
 */
#ifndef SLUICE_OFFLOAD_DEVICE_H
#define SLUICE_OFFLOAD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/ops.h" /* the arguments of every operation */

struct sl_workers;

enum sl_device_kind { SL_DEVICE_HOST, SL_DEVICE_HOST_DISCRETE, SL_DEVICE_CUDA };
enum sl_stream { SL_STREAM_COMPUTE, SL_STREAM_H2D, SL_STREAM_D2H, SL_STREAM_COUNT };

struct sl_optim_args; /* kernels/cpu/optim.h */

/* Sizes that the device itself needs beside the plan's slots (context, workspaces, packing
 * scratch): a line of the plan each. */
struct sl_device_fixed {
    char name[48];
    uint64_t bytes_device, bytes_host;
};
#define SL_DEVICE_FIXED_MAX 8

struct sl_device_properties {
    char name[128];
    enum sl_device_kind kind;
    bool unified;          /* device memory is host memory: uploads are aliases */
    bool queued;           /* operations return before they are done, and events tell when */
    uint64_t memory_bytes; /* 0: the host's */
    struct sl_device_fixed fixed[SL_DEVICE_FIXED_MAX];
    size_t fixed_count;
};

struct sl_event; /* opaque, one per use, reusable */

struct sl_device;

struct sl_device_ops {
    void (*destroy)(struct sl_device *device);

    int (*memory_alloc)(struct sl_device *device, uint64_t bytes, void **out);
    void (*memory_free)(struct sl_device *device, void *memory, uint64_t bytes);
    /* Everything that the plan asks for has been allocated: memory_alloc answers -EPERM from now
     * on, and names the plan as the cause. NULL: a device that shares the host's heap. */
    void (*memory_seal)(struct sl_device *device);
    /* Page-lock host memory for fast copies, undone by host_unregister. -ENOTSUP: not needed. */
    int (*host_register)(struct sl_device *device, void *memory, uint64_t bytes);
    void (*host_unregister)(struct sl_device *device, void *memory, uint64_t bytes);

    /* Copies in either direction and within the device; the stream tells which. Asynchronous. */
    int (*copy)(struct sl_device *device, enum sl_stream stream, void *to, const void *from,
                uint64_t bytes);
    int (*zero)(struct sl_device *device, enum sl_stream stream, void *memory, uint64_t bytes);

    int (*event_create)(struct sl_device *device, struct sl_event **out);
    void (*event_destroy)(struct sl_device *device, struct sl_event *event);
    int (*event_record)(struct sl_device *device, enum sl_stream stream, struct sl_event *event);
    int (*event_wait)(struct sl_device *device, enum sl_stream stream, struct sl_event *event);
    int (*event_synchronize)(struct sl_device *device, struct sl_event *event);
    /* Device time from one event to the other, both past. NULL where not queued. */
    int (*event_elapsed)(struct sl_device *device, struct sl_event *begin, struct sl_event *end,
                         uint64_t *ns);
    int (*stream_synchronize)(struct sl_device *device, enum sl_stream stream);
    /* Name what this thread queues until range_end, for a profiler. NULL: nobody looks. */
    void (*range_begin)(struct sl_device *device, const char *name);
    void (*range_end)(struct sl_device *device);

    int (*norm)(struct sl_device *device, const struct sl_norm_args *args);
    int (*norm_backward)(struct sl_device *device, const struct sl_norm_backward_args *args);
    int (*matmul)(struct sl_device *device, const struct sl_matmul_args *args);
    int (*rope)(struct sl_device *device, const struct sl_rope_args *args);
    int (*attention)(struct sl_device *device, const struct sl_attention_args *args);
    int (*attention_backward)(struct sl_device *device,
                              const struct sl_attention_backward_args *args);
    /* NULL where a device cannot generate. */
    int (*attention_cached)(struct sl_device *device, const struct sl_attention_cached_args *args);
    int (*act)(struct sl_device *device, const struct sl_act_args *args);
    int (*act_backward)(struct sl_device *device, const struct sl_act_args *args);
    int (*add)(struct sl_device *device, const struct sl_add_args *args);
    int (*embedding)(struct sl_device *device, const struct sl_embedding_args *args);
    int (*embedding_backward)(struct sl_device *device, const struct sl_embedding_args *args);
    int (*cross_entropy)(struct sl_device *device, const struct sl_cross_entropy_args *args);
    int (*gradient_finish)(struct sl_device *device, const struct sl_gradient_finish_args *args);
    int (*optim)(struct sl_device *device, const struct sl_optim_args *args);
};

struct sl_device {
    const struct sl_device_ops *ops;
    struct sl_device_properties properties;
    enum sl_dtype activation_dtype;
    struct sl_error error; /* first failure, sticky; read after the failing call returned */
};

struct sl_device_options {
    const char *name;               /* "auto", "host", "host:discrete", "cuda", "cuda:N" */
    enum sl_dtype precision;        /* SL_F32, SL_BF16 or SL_F16 */
    struct sl_workers *workers;     /* borrowed until destroy */
    uint64_t link_bytes_per_second; /* host:discrete: throttle of each copy direction; 0: none */
    const struct sl_log *log;       /* borrowed until destroy */
};

/* Open a device. Owner: the caller, until sl_device_destroy. Errors: -EINVAL (unknown name),
 * -ENODEV with the cause (no driver, no device), -ENOMEM. "auto" without a GPU logs one line and
 * gives the host device. */
int sl_device_create(struct sl_device **out, const struct sl_device_options *options,
                     struct sl_error *error);
void sl_device_destroy(struct sl_device *device); /* NULL allowed */

#endif
