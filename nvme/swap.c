// SPDX-License-Identifier: Apache-2.0
/* The public calls of the swap space: they check, hand over to the I/O thread, and wait where they
 * must. Everything that touches the device is in swap_loop.c.
 */
#include "nvme/swap.h"

#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "nvme/swap_internal.h"

/* 1 MiB blocks reach the rate of larger ones on every device measured (docs/nvme.md) and let reads
 * and writes take turns often; 16 per path hide the latency of a block's sum and of the wake-up. */
#define DEFAULT_BLOCK_BYTES ((size_t)1 << 20)
#define DEFAULT_DEPTH_PER_PATH 16u
#define DEFAULT_STALL_NS (60 * (uint64_t)1000000000u)
#define PREWRITE_BYTES ((uint64_t)32 << 20)
#define BLOCK_BYTES_MAX ((size_t)1 << 28)

static void fill_defaults(struct sl_swap_options *options)
{
    if (!options->block_bytes)
        options->block_bytes = DEFAULT_BLOCK_BYTES;
    if (!options->queue_depth)
        options->queue_depth = DEFAULT_DEPTH_PER_PATH * options->path_count;
    if (!options->thread_count)
        options->thread_count = sl_min_u64(options->queue_depth, 8 * options->path_count);
    if (!options->sum_unit_bytes)
        options->sum_unit_bytes = SL_SWAP_ALIGNMENT;
    if (!options->hash_threads && options->path_count > 1)
        options->hash_threads = options->path_count;
    options->block_bytes = sl_align_up(options->block_bytes, options->sum_unit_bytes);
    if (!options->stall_ns)
        options->stall_ns = DEFAULT_STALL_NS;
}

static int check_options(const struct sl_swap_options *options, struct sl_error *error)
{
    const char *problem = NULL;
    if (options->path_count < 1 || options->path_count > SL_SWAP_PATHS_MAX)
        problem = "between 1 and 16 paths are needed";
    else if (!options->bytes_total || options->bytes_total % SL_SWAP_ALIGNMENT)
        problem = "its size must be a positive multiple of 4096";
    else if (options->sum_unit_bytes & (options->sum_unit_bytes - 1) ||
             options->sum_unit_bytes < SL_SWAP_ALIGNMENT)
        problem = "the sum's unit must be a power of two of at least 4096";
    else if (options->block_bytes > BLOCK_BYTES_MAX)
        problem = "the block size must be at most 256 MiB";
    else if (options->bytes_total % options->sum_unit_bytes)
        problem = "its size must be a multiple of the sum's unit";
    else if (options->queue_depth > SL_SWAP_DEPTH_MAX)
        problem = "the queue depth must be at most 16384";
    else if (options->hash_threads > SWAP_HASH_THREADS_MAX)
        problem = "there may be at most 16 threads for sums";
    else if (options->backend == SL_SWAP_FAULTY && !options->faults)
        problem = "the faulty backend needs a list of faults";
    return problem ? sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "swap space: %s", problem) : 0;
}

/* Slots: those in flight, and as many that are waiting for their sum to be checked. */
static int make_slots(struct sl_swap *swap)
{
    swap->slot_count = 2 * swap->options.queue_depth;
    swap->slots = calloc(swap->slot_count, sizeof(*swap->slots));
    swap->finished = calloc(swap->options.queue_depth, sizeof(*swap->finished));
    swap->free_slots = NULL;
    if (!swap->slots || !swap->finished)
        return -ENOMEM;
    for (size_t i = 0; i < swap->slot_count; i++) {
        swap->slots[i].next = swap->free_slots;
        swap->free_slots = &swap->slots[i];
    }
    return 0;
}

static void free_slots(struct sl_swap *swap)
{
    free(swap->finished);
    free(swap->slots);
    swap->finished = NULL;
    swap->slots = NULL;
}

/* No signal of the program is handled on the I/O thread: none interrupts its system calls. */
static int start_thread(struct sl_swap *swap, struct sl_error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    swap->started = false;
    atomic_store(&swap->stopping, false);
    int code = -pthread_create(&swap->thread, NULL, sl_swap_loop, swap);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code)
        return sl_error_set(error, SL_DOMAIN_IO, code, "swap space: cannot start its thread");
    pthread_mutex_lock(&swap->lock);
    while (!swap->started)
        pthread_cond_wait(&swap->changed, &swap->lock);
    code = swap->start_code;
    if (code && error && !error->code)
        *error = swap->error;
    pthread_mutex_unlock(&swap->lock);
    if (code)
        pthread_join(swap->thread, NULL);
    return code;
}

static void release(struct sl_swap *swap)
{
    sl_block_sums_finish(&swap->sums);
    sl_swap_files_close(&swap->files);
    pthread_cond_destroy(&swap->changed);
    pthread_mutex_destroy(&swap->lock);
    free_slots(swap);
    free(swap);
}

/* Zeros everywhere, which is what unwritten ranges read as anyway. */
static int write_everything(struct sl_swap *swap, struct sl_error *error)
{
    const uint64_t total = swap->options.bytes_total;
    const uint64_t bytes = sl_min_u64(total, PREWRITE_BYTES);
    void *zeros = aligned_alloc(SL_SWAP_ALIGNMENT, bytes);
    if (!zeros)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "swap space: no memory");
    memset(zeros, 0, bytes);
    int code = 0;
    for (uint64_t at = 0; at < total && !code; at += bytes)
        code = sl_swap_transfer(swap, true, at, zeros, sl_min_u64(bytes, total - at));
    free(zeros);
    if (code && error && !error->code)
        sl_swap_error(swap, error);
    return code;
}

int sl_swap_create(struct sl_swap **out, const struct sl_swap_options *options,
                   struct sl_error *error)
{
    struct sl_swap *swap = calloc(1, sizeof(*swap));
    if (!swap)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "swap space: no memory");
    pthread_mutex_init(&swap->lock, NULL);
    pthread_cond_init(&swap->changed, NULL);
    swap->options = *options;
    fill_defaults(&swap->options);
    int code = check_options(&swap->options, error);
    if (code)
        goto fail;
    code = sl_swap_files_open(&swap->files, &swap->options, error);
    if (code)
        goto fail;
    code = make_slots(swap);
    if (!code && !swap->options.checksums_off)
        code = sl_block_sums_init(&swap->sums, swap->options.bytes_total,
                                  swap->options.sum_unit_bytes);
    if (code) {
        sl_error_set(error, SL_DOMAIN_MEMORY, code, "swap space: no memory for its sums");
        goto fail;
    }
    code = start_thread(swap, error);
    if (code)
        goto fail;
    code = swap->options.prewrite ? write_everything(swap, error) : 0;
    if (code) {
        sl_swap_destroy(swap);
        return code;
    }
    *out = swap;
    return 0;

fail:
    release(swap);
    return code;
}

/* Let the thread finish what is in flight and end. False where the device never answers. */
static bool stop_thread(struct sl_swap *swap)
{
    atomic_store(&swap->stopping, true);
    swap->backend->ops->wake(swap->backend);
    pthread_join(swap->thread, NULL);
    if (swap->in_flight)
        return false; /* the kernel still holds these operations and their slots */
    sl_swap_hash_stop(swap);
    swap->backend->ops->destroy(swap->backend);
    swap->backend = NULL;
    return true;
}

void sl_swap_destroy(struct sl_swap *swap)
{
    if (!swap)
        return;
    if (!swap->backend || stop_thread(swap))
        release(swap);
    else
        sl_log_write(swap->options.log, SL_LOG_WARNING,
                     "swap space: %zu operations never came back; their memory is not released",
                     swap->in_flight);
}

int sl_swap_retune(struct sl_swap *swap, size_t block_bytes, size_t queue_depth,
                   struct sl_error *error)
{
    struct sl_swap_options options = swap->options;
    options.block_bytes = block_bytes;
    options.queue_depth = queue_depth;
    options.thread_count = 0;
    fill_defaults(&options);
    int code = check_options(&options, error);
    if (!code && options.path_count != 1)
        code = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "swap space: its blocks decide where its bytes lie on several paths; "
                            "create it anew");
    if (code)
        return code;
    if (!stop_thread(swap))
        return sl_error_set(error, SL_DOMAIN_IO, -ETIMEDOUT, "swap space: the device is silent");
    free_slots(swap);
    swap->options = options;
    swap->files.stripes.unit_bytes = options.block_bytes;
    code = make_slots(swap);
    if (code)
        return sl_error_set(error, SL_DOMAIN_MEMORY, code, "swap space: no memory");
    return start_thread(swap, error);
}

/* Run `control` on the I/O thread and wait for it. */
static void run_control(struct sl_swap *swap, struct swap_control *control)
{
    pthread_mutex_lock(&swap->lock);
    control->next = swap->controls;
    swap->controls = control;
    atomic_store(&swap->controlling, true);
    swap->backend->ops->wake(swap->backend);
    while (!control->finished)
        pthread_cond_wait(&swap->changed, &swap->lock);
    pthread_mutex_unlock(&swap->lock);
}

int sl_swap_register(struct sl_swap *swap, void *memory, uint64_t bytes)
{
    struct swap_control control = {.memory = memory, .bytes = bytes};
    run_control(swap, &control);
    return control.result;
}

void sl_swap_submit(struct sl_swap *swap, struct sl_swap_request *request)
{
    request->submitted_ns = sl_clock_ns();
    request->bytes_issued = 0;
    request->blocks_left = 0;
    request->result = 0;
    request->cancelled = false;
    request->next = atomic_load_explicit(&swap->inbox, memory_order_relaxed);
    /* Release: the thread that takes the request sees its fields. Sequentially consistent with the
     * load of `asleep`: either we see the sleeper, or it sees the request before it sleeps. */
    while (!atomic_compare_exchange_weak(&swap->inbox, &request->next, request))
        ;
    if (atomic_load(&swap->asleep) && atomic_exchange(&swap->asleep, false))
        swap->backend->ops->wake(swap->backend);
}

void sl_swap_cancel(struct sl_swap *swap, struct sl_swap_request *request)
{
    __atomic_store_n(&request->cancelled, true, __ATOMIC_SEQ_CST);
    atomic_store(&swap->cancelling, true);
    swap->backend->ops->wake(swap->backend);
}

static void transfer_done(struct sl_swap_request *request, int result)
{
    request->result = result;
    sem_post(request->user);
}

int sl_swap_transfer(struct sl_swap *swap, bool write, uint64_t offset_bytes, void *buffer,
                     uint64_t bytes)
{
    sem_t finished;
    sem_init(&finished, 0, 0);
    struct sl_swap_request request = {.write = write,
                                      .offset_bytes = offset_bytes,
                                      .bytes = bytes,
                                      .buffer = buffer,
                                      .done = transfer_done,
                                      .user = &finished};
    sl_swap_submit(swap, &request);
    while (sem_wait(&finished) < 0 && errno == EINTR)
        ;
    sem_destroy(&finished);
    return request.result;
}

void sl_swap_error(struct sl_swap *swap, struct sl_error *error)
{
    pthread_mutex_lock(&swap->lock);
    *error = swap->error;
    pthread_mutex_unlock(&swap->lock);
}

void sl_swap_stats(struct sl_swap *swap, struct sl_swap_stats *stats)
{
    *stats = (struct sl_swap_stats){
        .bytes_read = atomic_load(&swap->bytes_read),
        .bytes_written = atomic_load(&swap->bytes_written),
        .reads = atomic_load(&swap->reads),
        .writes = atomic_load(&swap->writes),
        .retries = atomic_load(&swap->retries),
        .backend = swap->backend_kind,
        .direct = swap->files.direct,
        .block_bytes = swap->options.block_bytes,
        .queue_depth = swap->options.queue_depth,
    };
}

int sl_swap_fd(const struct sl_swap *swap, size_t path_index)
{
    return swap->files.files[path_index].fd;
}

uint64_t sl_swap_latency_ns(struct sl_swap *swap, bool write, double fraction)
{
    uint64_t total = 0, below = 0;
    for (unsigned i = 0; i < SWAP_LATENCY_BUCKETS; i++)
        total += atomic_load_explicit(&swap->latency[write][i], memory_order_relaxed);
    for (unsigned i = 0; i < SWAP_LATENCY_BUCKETS && total; i++) {
        below += atomic_load_explicit(&swap->latency[write][i], memory_order_relaxed);
        if ((double)below >= fraction * (double)total)
            return swap_latency_limit_ns(i);
    }
    return 0;
}

void sl_swap_latency_reset(struct sl_swap *swap)
{
    for (unsigned i = 0; i < SWAP_LATENCY_BUCKETS; i++) {
        atomic_store_explicit(&swap->latency[0][i], 0, memory_order_relaxed);
        atomic_store_explicit(&swap->latency[1][i], 0, memory_order_relaxed);
    }
}

uint64_t sl_swap_memory_bytes(const struct sl_swap_options *given)
{
    struct sl_swap_options options = *given;
    fill_defaults(&options);
    uint64_t slots = 2 * options.queue_depth * sizeof(struct sl_io) +
                     options.queue_depth * sizeof(struct sl_io *);
    /* Ring entries: 64 B each to submit, 16 B to complete, twice as many; thread stack in use. */
    uint64_t fixed = sizeof(struct sl_swap) + (options.queue_depth + 8) * 2 * 96 + (64u << 10);
    uint64_t sums = options.checksums_off
                        ? 0
                        : sl_block_sums_table_bytes(options.bytes_total, options.sum_unit_bytes);
    return sums + slots + fixed;
}
