// SPDX-License-Identifier: Apache-2.0
/* The host device: creation, memory, and the table.
 *
 * A kernel is done when its function returns: the calling lane cuts it into tasks and takes part in
 * them. One thread at a time may call compute kernels (they are one stream); the optimizer and
 * gradient_finish use no shared scratch and may run beside them.
 * Memory is mapped and touched at allocation, so that a run that starts does not meet the
 * out-of-memory killer later.
 */
#include "offload/device_host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"

#define HUGE_PAGE_BYTES (2u << 20)
/* Slots of different threads start at different cache sets and never share a page. */
#define SLOT_STAGGER_BYTES (4096u + 512u)

static void destroy(struct sl_device *device)
{
    struct host_device *host = host_of(device);
    host_lanes_stop(host);
    free(host->scratch);
    free(host->partials);
    free(host);
}

static int memory_alloc(struct sl_device *device, uint64_t bytes, void **out)
{
    *out = NULL;
    void *memory = MAP_FAILED;
    if (bytes > 0 && bytes <= SIZE_MAX)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return sl_error_set(&device->error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "device memory: %llu bytes could not be mapped",
                            (unsigned long long)bytes);
    if (bytes >= HUGE_PAGE_BYTES)
        madvise(memory, bytes, MADV_HUGEPAGE); /* advice: a refusal costs speed only */
#ifdef MADV_POPULATE_WRITE
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) && (errno == ENOMEM || errno == EFAULT)) {
        munmap(memory, bytes);
        return sl_error_set(&device->error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "device memory: %llu bytes are more than this machine has free",
                            (unsigned long long)bytes);
    }
#endif
    *out = memory;
    return 0;
}

static void memory_free(struct sl_device *device, void *memory, uint64_t bytes)
{
    (void)device;
    if (memory)
        munmap(memory, bytes);
}

static int host_register(struct sl_device *device, void *memory, uint64_t bytes)
{
    (void)device, (void)memory, (void)bytes;
    return -ENOTSUP;
}

static void host_unregister(struct sl_device *device, void *memory, uint64_t bytes)
{
    (void)device, (void)memory, (void)bytes;
}

static const struct sl_device_ops host_ops = {
    .destroy = destroy,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .copy = host_copy,
    .zero = host_zero,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_synchronize = host_event_synchronize,
    .stream_synchronize = host_stream_synchronize,
    .norm = host_norm,
    .norm_backward = host_norm_backward,
    .matmul = host_matmul,
    .rope = host_rope,
    .attention = host_attention,
    .attention_backward = host_attention_backward,
    .attention_cached = host_attention_cached,
    .act = host_act,
    .act_backward = host_act_backward,
    .add = host_add,
    .embedding = host_embedding,
    .embedding_backward = host_embedding_backward,
    .cross_entropy = host_cross_entropy,
    .gradient_finish = host_gradient_finish,
    .optim = host_optim,
};

struct inline_run {
    struct host_device *host;
    sl_task_fn task;
    void *arg;
};

/* About what it costs to wake sleeping threads and wait for them. */
#define WAKE_NS 15000.0

void host_run(struct host_device *host, size_t task_count, double cost_ns, sl_task_fn task,
              void *arg)
{
    if (task_count > 1 && cost_ns > WAKE_NS) {
        sl_workers_run(host->workers, task_count, task, arg);
        return;
    }
    for (size_t i = 0; i < task_count; i++)
        task(arg, i, host->slot_count - 1);
}

static void fixed_line(struct sl_device_properties *p, const char *name, uint64_t bytes_host)
{
    struct sl_device_fixed *line = &p->fixed[p->fixed_count++];
    snprintf(line->name, sizeof line->name, "%s", name);
    line->bytes_host = bytes_host;
}

static void describe(struct host_device *host, bool discrete)
{
    struct sl_device_properties *p = &host->base.properties;
    size_t threads = sl_workers_thread_count(host->workers);
    snprintf(p->name, sizeof p->name, "host%s, %zu thread%s, %s", discrete ? " (discrete)" : "",
             threads, threads == 1 ? "" : "s", host->kernels->isa);
    p->kind = discrete ? SL_DEVICE_HOST_DISCRETE : SL_DEVICE_HOST;
    p->unified = !discrete;
    fixed_line(p, "packing and attention scratch", host->slot_bytes * host->slot_count);
    fixed_line(p, "norm gradient sums", NORM_PARTIAL_BYTES);
}

int sl_device_host_create(struct sl_device **out, const struct sl_device_options *options,
                          bool discrete, struct sl_error *error)
{
    *out = NULL;
    struct host_device *host = calloc(1, sizeof *host);
    if (!host)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "host device: no memory");
    host->base.ops = &host_ops;
    host->base.activation_dtype = SL_F32;
    host->workers = options->workers;
    host->kernels = sl_host_kernels();
    host->log = options->log;
    host->link_bytes_per_second = options->link_bytes_per_second;
    host->slot_count = sl_workers_index_count(options->workers) + 1;
    host->slot_bytes = SLOT_STAGGER_BYTES + SL_HOST_ATTENTION_SCRATCH_BYTES; /* the larger */
    host->scratch = aligned_alloc(4096, sl_align_up(host->slot_bytes * host->slot_count, 4096));
    host->partials = aligned_alloc(4096, NORM_PARTIAL_BYTES);
    int rc = 0;
    if (!host->scratch || !host->partials) {
        rc = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                          "host device: %zu bytes of scratch could not be allocated",
                          host->slot_bytes * host->slot_count);
    } else {
        memset(host->scratch, 0, host->slot_bytes * host->slot_count);
        memset(host->partials, 0, NORM_PARTIAL_BYTES);
        describe(host, discrete);
        rc = discrete ? host_lanes_start(host, error) : 0;
    }
    if (rc) {
        destroy(&host->base);
        return rc;
    }
    *out = &host->base;
    return 0;
}
