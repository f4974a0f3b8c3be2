// SPDX-License-Identifier: Apache-2.0
/* The CUDA device's own state, shared by the files of the module. Nobody else includes this. */
#ifndef SLUICE_OFFLOAD_DEVICE_CUDA_STATE_H
#define SLUICE_OFFLOAD_DEVICE_CUDA_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/cuda/kernels.h"
#include "offload/device_cuda.h"

#define RECENT 12u

/* Names of the operations last queued on one stream. */
struct recent_operations {
    _Atomic unsigned count;
    _Atomic(const char *) names[RECENT];
};

struct cuda_device {
    struct sl_device base;
    unsigned index;
    const struct sl_log *log;
    cudaStream_t streams[SL_STREAM_COUNT];
    struct sl_cuda_context context; /* of the compute stream */
    void *workspace;                /* cuBLASLt's */
    bool synchronous;               /* SLUICE_CUDA_SYNC=1 */
    _Atomic bool sealed;            /* no allocation any more */
    _Atomic unsigned refused;       /* allocations asked for since */
    struct recent_operations recent[SL_STREAM_COUNT];
    _Atomic bool lost, pageable_announced;
    pthread_mutex_t error_mutex; /* of base.error */
};

static inline struct cuda_device *cuda_of(struct sl_device *device)
{
    return (struct cuda_device *)device; /* base is the first member */
}

int cuda_code(cudaError_t error);

/* Make the device current on this thread; the sticky error's code where the device is lost. */
int cuda_enter(struct cuda_device *cuda);

/* Remember what was queued. */
void cuda_note(struct cuda_device *cuda, enum sl_stream stream, const char *operation);

/* Write the sticky error and mark the device lost. With `recent` the failure was found by waiting.
 */
int cuda_fail(struct cuda_device *cuda, cudaError_t error, const char *operation,
              const struct recent_operations *recent);

/* The end of every queued operation: failure, note, and the wait of SLUICE_CUDA_SYNC. */
int cuda_done(struct cuda_device *cuda, enum sl_stream stream, cudaError_t error,
              const char *operation);

/* Run every kernel once on a few bytes of scratch, and wait (device_cuda_warm.c). */
cudaError_t cuda_warm(const struct sl_cuda_context *context);

/* Profiler ranges and the compute kernels (device_cuda_ops.c). */
void cuda_range_begin(struct sl_device *device, const char *name);
void cuda_range_end(struct sl_device *device);
int cuda_norm(struct sl_device *device, const struct sl_norm_args *args);
int cuda_norm_backward(struct sl_device *device, const struct sl_norm_backward_args *args);
int cuda_matmul(struct sl_device *device, const struct sl_matmul_args *args);
int cuda_rope(struct sl_device *device, const struct sl_rope_args *args);
int cuda_attention(struct sl_device *device, const struct sl_attention_args *args);
int cuda_attention_backward(struct sl_device *device,
                            const struct sl_attention_backward_args *args);
int cuda_attention_cached(struct sl_device *device, const struct sl_attention_cached_args *args);
int cuda_act(struct sl_device *device, const struct sl_act_args *args);
int cuda_act_backward(struct sl_device *device, const struct sl_act_args *args);
int cuda_add(struct sl_device *device, const struct sl_add_args *args);
int cuda_embedding(struct sl_device *device, const struct sl_embedding_args *args);
int cuda_embedding_backward(struct sl_device *device, const struct sl_embedding_args *args);
int cuda_cross_entropy(struct sl_device *device, const struct sl_cross_entropy_args *args);
int cuda_gradient_finish(struct sl_device *device, const struct sl_gradient_finish_args *args);
int cuda_optim(struct sl_device *device, const struct sl_optim_args *args);

#endif
