// SPDX-License-Identifier: Apache-2.0
/* The CUDA device: creation, memory, streams and events. Part of the module, not of the program.
 *
 * Problem   A CUDA error often shows up later, in another call and on another thread than the one
 *           that caused it, and everything after it fails too.
 * Choice    Three streams (compute, h2d, d2h); each keeps the names of its last operations. The
 *           first failure is written once, with the operation that was refused or, where it was
 *           found by waiting, the operations since the last wait that succeeded. From then on the
 *           device is lost and every call returns at once. SLUICE_CUDA_SYNC=1 waits after every
 *           operation, which names the one at fault.
 *           Events block instead of spinning: the cores belong to the optimizer.
 * Rejected  The default stream (it waits for all others); managed memory (the plan decides what
 *           moves, and when).
 * Invariant Device memory is allocated at creation and by memory_alloc before memory_seal, nowhere
 *           else and not later; creation runs every kernel once, so that the modules are loaded
 *           before the plan is sealed.
 */
#include "offload/device_cuda_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

int cuda_code(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return 0;
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorInvalidValue:
    case cudaErrorNotSupported:
        return -EINVAL;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
        return -ENODEV;
    default:
        return -EIO;
    }
}

int cuda_enter(struct cuda_device *cuda)
{
    if (atomic_load_explicit(&cuda->lost, memory_order_acquire))
        return cuda->base.error.code;
    cudaSetDevice((int)cuda->index); /* the current device is a property of the thread */
    return 0;
}

void cuda_note(struct cuda_device *cuda, enum sl_stream stream, const char *operation)
{
    struct recent_operations *recent = &cuda->recent[stream];
    unsigned at = atomic_fetch_add_explicit(&recent->count, 1, memory_order_relaxed);
    atomic_store_explicit(&recent->names[at % RECENT], operation, memory_order_relaxed);
}

/* "norm, matmul, attention": the stream's operations since the last wait that succeeded. */
static void list_recent(const struct recent_operations *recent, char *text, size_t bytes)
{
    unsigned count = atomic_load_explicit(&recent->count, memory_order_relaxed);
    unsigned first = count > RECENT ? count - RECENT : 0;
    size_t length = 0;
    text[0] = 0;
    for (unsigned i = first; i < count && length < bytes; i++) {
        const char *name = atomic_load_explicit(&recent->names[i % RECENT], memory_order_relaxed);
        int more =
            snprintf(text + length, bytes - length, "%s%s", length ? ", " : "", name ? name : "?");
        length += more > 0 ? (size_t)more : 0;
    }
}

int cuda_fail(struct cuda_device *cuda, cudaError_t error, const char *operation,
              const struct recent_operations *recent)
{
    int code = cuda_code(error);
    pthread_mutex_lock(&cuda->error_mutex);
    if (!recent) {
        sl_error_set(&cuda->base.error, SL_DOMAIN_DEVICE, code,
                     "device cuda:%u: %s failed: %s (%s)", cuda->index, operation,
                     cudaGetErrorName(error), cudaGetErrorString(error));
    } else {
        char names[400];
        list_recent(recent, names, sizeof(names));
        sl_error_set(&cuda->base.error, SL_DOMAIN_DEVICE, code,
                     "device cuda:%u: %s (%s), found in %s; its last operations: %s. "
                     "SLUICE_CUDA_SYNC=1 names the one at fault; the last checkpoint is intact",
                     cuda->index, cudaGetErrorName(error), cudaGetErrorString(error), operation,
                     names[0] ? names : "none");
    }
    code = cuda->base.error.code;
    atomic_store_explicit(&cuda->lost, true, memory_order_release);
    pthread_mutex_unlock(&cuda->error_mutex);
    return code;
}

int cuda_done(struct cuda_device *cuda, enum sl_stream stream, cudaError_t error,
              const char *operation)
{
    if (error)
        return cuda_fail(cuda, error, operation, NULL);
    cuda_note(cuda, stream, operation);
    if (cuda->synchronous) {
        error = cudaStreamSynchronize(cuda->streams[stream]);
        if (error)
            return cuda_fail(cuda, error, operation, NULL);
    }
    return 0;
}

/* ---- memory ---- */

static void memory_seal(struct sl_device *device)
{
    atomic_store(&cuda_of(device)->sealed, true);
}

/* The device stays whole: the fault is the caller's. */
static int refuse_sealed(struct cuda_device *cuda, uint64_t bytes)
{
    atomic_fetch_add(&cuda->refused, 1);
    pthread_mutex_lock(&cuda->error_mutex);
    int code = sl_error_set(&cuda->base.error, SL_DOMAIN_MEMORY, -EPERM,
                            "device cuda:%u: %llu bytes asked for after the plan was sealed; what "
                            "a run needs must be a line of its plan",
                            cuda->index, (unsigned long long)bytes);
    pthread_mutex_unlock(&cuda->error_mutex);
    return code;
}

static int memory_alloc(struct sl_device *device, uint64_t bytes, void **out)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    *out = NULL;
    if (code)
        return code;
    if (atomic_load(&cuda->sealed))
        return refuse_sealed(cuda, bytes);
    size_t left = 0, total = 0;
    cudaError_t error = cudaMalloc(out, bytes);
    if (!error)
        return 0;
    cudaGetLastError(); /* an allocation that fails leaves the device whole */
    if (error != cudaErrorMemoryAllocation)
        return cuda_fail(cuda, error, "cudaMalloc", NULL);
    cudaMemGetInfo(&left, &total);
    pthread_mutex_lock(&cuda->error_mutex);
    code = sl_error_set(&device->error, SL_DOMAIN_MEMORY, -ENOMEM,
                        "device cuda:%u: %llu MiB needed, %llu of %llu MiB free; end other "
                        "programs on the GPU or give the plan a smaller device budget",
                        cuda->index, (unsigned long long)(bytes / MIB),
                        (unsigned long long)(left / MIB), (unsigned long long)(total / MIB));
    pthread_mutex_unlock(&cuda->error_mutex);
    return code;
}

static void memory_free(struct sl_device *device, void *memory, uint64_t bytes)
{
    (void)bytes;
    cudaSetDevice((int)cuda_of(device)->index);
    cudaFree(memory);
}

/* The fallback is announced once: pageable copies work, at a fraction of the link's speed and
 * without overlap. */
static int host_register(struct sl_device *device, void *memory, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (!error)
        return 0;
    cudaGetLastError();
    if (!atomic_exchange(&cuda->pageable_announced, true))
        sl_log_write(
            cuda->log, SL_LOG_WARNING,
            "device cuda:%u: %llu MiB of host memory could not be page-locked (%s); copies "
            "go through the driver's own buffer, slower and without overlap (raise the "
            "limit of locked memory: ulimit -l)",
            cuda->index, (unsigned long long)(bytes / MIB), cudaGetErrorName(error));
    return -ENOTSUP;
}

static void host_unregister(struct sl_device *device, void *memory, uint64_t bytes)
{
    (void)bytes;
    cudaSetDevice((int)cuda_of(device)->index);
    if (cudaHostUnregister(memory))
        cudaGetLastError(); /* it was not registered: the fallback */
}

static int copy(struct sl_device *device, enum sl_stream stream, void *to, const void *from,
                uint64_t bytes)
{
    static const char *const names[SL_STREAM_COUNT] = {"copy", "copy to the device",
                                                       "copy from the device"};
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code || !bytes)
        return code;
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->streams[stream]);
    return cuda_done(cuda, stream, error, names[stream]);
}

static int zero(struct sl_device *device, enum sl_stream stream, void *memory, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code || !bytes)
        return code;
    return cuda_done(cuda, stream, cudaMemsetAsync(memory, 0, bytes, cuda->streams[stream]),
                     "zero");
}

/* ---- events ---- */

struct sl_event {
    cudaEvent_t event;
    enum sl_stream stream; /* where it was recorded last */
};

static int event_create(struct sl_device *device, struct sl_event **out)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    *out = NULL;
    if (code)
        return code;
    struct sl_event *event = calloc(1, sizeof(*event));
    if (!event)
        return cuda_fail(cuda, cudaErrorMemoryAllocation, "event_create", NULL);
    cudaError_t error = cudaEventCreateWithFlags(&event->event, cudaEventBlockingSync);
    if (error) {
        free(event);
        return cuda_fail(cuda, error, "event_create", NULL);
    }
    *out = event;
    return 0;
}

static void event_destroy(struct sl_device *device, struct sl_event *event)
{
    if (!event)
        return;
    cudaSetDevice((int)cuda_of(device)->index);
    cudaEventDestroy(event->event);
    free(event);
}

static int event_record(struct sl_device *device, enum sl_stream stream, struct sl_event *event)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    event->stream = stream;
    cudaError_t error = cudaEventRecord(event->event, cuda->streams[stream]);
    return error ? cuda_fail(cuda, error, "event_record", NULL) : 0;
}

static int event_wait(struct sl_device *device, enum sl_stream stream, struct sl_event *event)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    cudaError_t error = cudaStreamWaitEvent(cuda->streams[stream], event->event, 0);
    return error ? cuda_fail(cuda, error, "event_wait", NULL) : 0;
}

static int waited(struct cuda_device *cuda, enum sl_stream stream, cudaError_t error,
                  const char *operation)
{
    if (error)
        return cuda_fail(cuda, error, operation, &cuda->recent[stream]);
    return 0;
}

static int event_synchronize(struct sl_device *device, struct sl_event *event)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    return waited(cuda, event->stream, cudaEventSynchronize(event->event), "event_synchronize");
}

static int event_elapsed(struct sl_device *device, struct sl_event *begin, struct sl_event *end,
                         uint64_t *ns)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    float milliseconds = 0;
    cudaError_t error = cudaEventElapsedTime(&milliseconds, begin->event, end->event);
    *ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    return error ? cuda_fail(cuda, error, "event_elapsed", NULL) : 0;
}

static int stream_synchronize(struct sl_device *device, enum sl_stream stream)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    return waited(cuda, stream, cudaStreamSynchronize(cuda->streams[stream]), "stream_synchronize");
}

/* ---- creation ---- */

static void destroy(struct sl_device *device)
{
    struct cuda_device *cuda = cuda_of(device);
    unsigned refused = atomic_load(&cuda->refused);
    if (refused)
        sl_log_write(cuda->log, SL_LOG_WARNING,
                     "device cuda:%u: %u allocations were refused after the plan was sealed",
                     cuda->index, refused);
    cudaSetDevice((int)cuda->index);
    for (int i = 0; i < SL_STREAM_COUNT; i++)
        if (cuda->streams[i]) {
            cudaStreamSynchronize(cuda->streams[i]);
            cudaStreamDestroy(cuda->streams[i]);
        }
    sl_cuda_blas_destroy(cuda->context.blas);
    cudaFree(cuda->workspace);
    cudaFree(cuda->context.scratch);
    cudaGetLastError(); /* a lost device fails all of these */
    pthread_mutex_destroy(&cuda->error_mutex);
    free(cuda);
}

static const struct sl_device_ops cuda_ops = {
    .destroy = destroy,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_seal = memory_seal,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .copy = copy,
    .zero = zero,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .stream_synchronize = stream_synchronize,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
    .norm = cuda_norm,
    .norm_backward = cuda_norm_backward,
    .matmul = cuda_matmul,
    .rope = cuda_rope,
    .attention = cuda_attention,
    .attention_backward = cuda_attention_backward,
    .attention_cached = cuda_attention_cached,
    .act = cuda_act,
    .act_backward = cuda_act_backward,
    .add = cuda_add,
    .embedding = cuda_embedding,
    .embedding_backward = cuda_embedding_backward,
    .cross_entropy = cuda_cross_entropy,
    .gradient_finish = cuda_gradient_finish,
    .optim = cuda_optim,
};

/* Why there is no GPU `index`, or 0. */
static int check_machine(unsigned index, struct sl_error *error)
{
    int driver = 0, runtime = 0, count = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (!driver)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "no NVIDIA driver runs on this machine; start it or use --device host");
    cudaError_t status = cudaGetDeviceCount(&count);
    cudaGetLastError(); /* or the next launch on this thread would be blamed */
    if (status == cudaErrorInsufficientDriver)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "the NVIDIA driver is too old: it serves CUDA %d.%d, this module needs "
                            "%d.%d; update the driver",
                            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (status == cudaErrorNoDevice || (!status && !count))
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES?); use --device host");
    if (status)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV, "CUDA does not start: %s (%s)",
                            cudaGetErrorName(status), cudaGetErrorString(status));
    if (index >= (unsigned)count)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "device cuda:%u: this machine has %d GPU%s, counted from 0", index,
                            count, count == 1 ? "" : "s");
    return 0;
}

static void fixed_line(struct cuda_device *cuda, const char *name, uint64_t bytes)
{
    struct sl_device_properties *properties = &cuda->base.properties;
    struct sl_device_fixed *line = &properties->fixed[properties->fixed_count++];
    snprintf(line->name, sizeof(line->name), "%s", name);
    line->bytes_device = bytes;
}

/* What is not free on the GPU now. */
static uint64_t used_bytes(void)
{
    size_t left = 0, total = 0;
    if (cudaMemGetInfo(&left, &total))
        return 0;
    return total - left;
}

/* Streams, cuBLASLt, scratch; every kernel run once; the lines of the plan. */
static cudaError_t build(struct cuda_device *cuda, int compute_major)
{
    size_t workspace_bytes = sl_cuda_blas_workspace_bytes(compute_major);
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < SL_STREAM_COUNT && !error; i++)
        error = cudaStreamCreateWithFlags(&cuda->streams[i], cudaStreamNonBlocking);
    uint64_t before = used_bytes();
    if (!error)
        error = cudaMalloc(&cuda->workspace, workspace_bytes);
    if (!error)
        error = cudaMalloc(&cuda->context.scratch, SL_CUDA_SCRATCH_BYTES);
    if (!error)
        error = sl_cuda_blas_create(&cuda->context.blas, cuda->workspace, workspace_bytes);
    if (error)
        return error;
    cuda->context.stream = cuda->streams[SL_STREAM_COMPUTE];
    cuda->context.scratch_bytes = SL_CUDA_SCRATCH_BYTES;
    error = cuda_warm(&cuda->context);
    if (error)
        return error;
    uint64_t own = workspace_bytes + SL_CUDA_SCRATCH_BYTES, after = used_bytes();
    uint64_t kernels = after > before + own ? after - before - own : 0;
    fixed_line(cuda, "context and other programs", before);
    /* cuBLASLt loads the kernel of a shape at the shape's first use: room for those to come. */
    fixed_line(cuda, "kernels (and 64 MiB for cuBLASLt's)", kernels + 64 * MIB);
    fixed_line(cuda, "cuBLASLt workspace", workspace_bytes);
    fixed_line(cuda, "kernel scratch", SL_CUDA_SCRATCH_BYTES);
    return cudaSuccess;
}

static int build_error(const struct cuda_device *cuda, cudaError_t status,
                       const struct cudaDeviceProp *properties, struct sl_error *error)
{
    size_t left = 0, total = 0;
    cudaGetLastError();
    if (status == cudaErrorNoKernelImageForDevice)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "device cuda:%u: %s has compute capability %d.%d; this module needs "
                            "8.0 or newer",
                            cuda->index, properties->name, properties->major, properties->minor);
    if (status == cudaErrorMemoryAllocation) {
        cudaMemGetInfo(&left, &total);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "device cuda:%u: no room for workspace and scratch: %llu of %llu MiB "
                            "free; end other programs on the GPU",
                            cuda->index, (unsigned long long)(left / MIB),
                            (unsigned long long)(total / MIB));
    }
    return sl_error_set(error, SL_DOMAIN_DEVICE, cuda_code(status),
                        "device cuda:%u: could not be opened: %s (%s)", cuda->index,
                        cudaGetErrorName(status), cudaGetErrorString(status));
}

static int open_device(struct sl_device **out, const struct sl_device_options *options,
                       unsigned index, struct sl_error *error)
{
    *out = NULL;
    int code = check_machine(index, error);
    if (code)
        return code;
    struct cuda_device *cuda = calloc(1, sizeof(*cuda));
    if (!cuda)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "device cuda:%u: no host memory",
                            index);
    const char *synchronous = getenv("SLUICE_CUDA_SYNC");
    pthread_mutex_init(&cuda->error_mutex, NULL);
    cuda->index = index;
    cuda->log = options->log;
    cuda->synchronous = synchronous && strcmp(synchronous, "1") == 0;
    cuda->base.ops = &cuda_ops;
    cuda->base.activation_dtype = cuda->context.type = options->precision;
    struct cudaDeviceProp properties = {0};
    cudaError_t status = cudaSetDevice((int)index);
    if (!status)
        status = cudaGetDeviceProperties(&properties, (int)index);
    if (!status)
        status = build(cuda, properties.major);
    if (status) {
        code = build_error(cuda, status, &properties, error);
        destroy(&cuda->base);
        return code;
    }
    cuda->base.properties.kind = SL_DEVICE_CUDA;
    cuda->base.properties.queued = true;
    cuda->base.properties.memory_bytes = properties.totalGlobalMem;
    snprintf(cuda->base.properties.name, sizeof(cuda->base.properties.name), "%.127s",
             properties.name);
    *out = &cuda->base;
    return 0;
}

__attribute__((visibility("default"))) extern const struct sl_cuda_module sl_cuda_module;
const struct sl_cuda_module sl_cuda_module = {
    .module_bytes = sizeof(struct sl_cuda_module),
    .device_bytes = sizeof(struct sl_device),
    .ops_bytes = sizeof(struct sl_device_ops),
    .options_bytes = sizeof(struct sl_device_options),
    .open = open_device,
};
