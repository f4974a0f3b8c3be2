// SPDX-License-Identifier: Apache-2.0
/* The I/O thread of a swap space.
 *
 * Problem: keep the device full in both directions, check every byte, lose no error, and cost no
 * more processor time than the copy-free path needs.
 *
 * Choice: one thread owns all state and needs no lock. Each turn it
 *
 *   takes new requests -> cuts blocks into free places of the queue -> sends them
 *   -> hashes (sums of the writes just sent, checks of the reads that came back) -> waits
 *
 * so that hashing runs while the device works on a queue that was refilled first. Reads and writes
 * share the depth: the direction with fewer bytes in flight is served next, and takes everything
 * where the other is empty. Within a direction the order is that of submission, which is the
 * plan's.
 *
 * An operation that moves fewer bytes is sent again for the rest, EINTR and EAGAIN are sent again
 * as they are; everything else fails the swap, once, with file, offset and cause, and every later
 * request ends with that first code. A watchdog reports an operation that does not come back: its
 * request ends, its buffer stays with the kernel until destroy.
 *
 * Rejected: a thread per direction or per path (wake-ups cost more than they hide), hashing in the
 * submitting threads (a submitter must not pay 100 us per MiB).
 *
 * Invariant: a request is `done` exactly once, when no block of it is in flight or unhashed.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/size.h"
#include "nvme/swap_internal.h"

#define ATTEMPTS_MAX 1000u                 /* in a row without a byte moved */
#define RETRY_PAUSE_NS ((uint64_t)100000u) /* after the first few of them */
#define WATCH_NS ((uint64_t)1000000000u)   /* how often ages are looked at, at most */

int sl_swap_fail(struct sl_swap *swap, enum sl_domain domain, int code, const char *format, ...)
{
    char message[SL_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    pthread_mutex_lock(&swap->lock);
    sl_error_set(&swap->error, domain, code, "%s", message);
    code = swap->error.code;
    pthread_mutex_unlock(&swap->lock);
    atomic_store(&swap->failed, code);
    return code;
}

static void queue_push(struct swap_queue *queue, struct sl_swap_request *request)
{
    request->next = NULL;
    if (queue->tail)
        queue->tail->next = request;
    else
        queue->head = request;
    queue->tail = request;
}

static void queue_pop(struct swap_queue *queue)
{
    queue->head = queue->head->next;
    if (!queue->head)
        queue->tail = NULL;
}

static bool fully_issued(const struct sl_swap_request *request)
{
    return request->bytes_issued == request->bytes;
}

/* Call `done` when nothing of the request is out any more. The request is the caller's again from
 * inside `done` on: it must not be touched after. */
static void finish_if_last(struct sl_swap *swap, struct sl_swap_request *request)
{
    if (request->blocks_left || !fully_issued(request))
        return;
    if (!request->result) {
        bool write = request->write;
        atomic_fetch_add_explicit(write ? &swap->bytes_written : &swap->bytes_read, request->bytes,
                                  memory_order_relaxed);
        atomic_fetch_add_explicit(write ? &swap->writes : &swap->reads, 1, memory_order_relaxed);
    }
    swap->deadline_count -= request->deadline_ns != 0;
    request->done(request, request->result);
}

/* End a request early: nothing more of it is issued. It is out of the queues, or about to be. */
static void cut_short(struct sl_swap_request *request, int code)
{
    if (!request->result)
        request->result = code;
    request->bytes_issued = request->bytes;
}

static void refuse_bad_range(struct sl_swap *swap, struct sl_swap_request *request)
{
    const uint64_t unit = swap->options.sum_unit_bytes, total = swap->options.bytes_total;
    if (request->offset_bytes % unit == 0 && request->bytes % unit == 0 &&
        (uintptr_t)request->buffer % SL_SWAP_ALIGNMENT == 0 && request->offset_bytes <= total &&
        request->bytes <= total - request->offset_bytes)
        return;
    cut_short(request,
              sl_swap_fail(swap, SL_DOMAIN_INTERNAL, -EINVAL,
                           "swap space: a %s of %" PRIu64 " B at offset %" PRIu64
                           " from buffer %p: multiples of %" PRIu64 " below %" PRIu64
                           " and a buffer aligned to %u are needed",
                           request->write ? "write" : "read", request->bytes, request->offset_bytes,
                           request->buffer, unit, total, SL_SWAP_ALIGNMENT));
}

/* The inbox is a stack: turn it round, so that requests are served in the order of submission. */
static void take_inbox(struct sl_swap *swap)
{
    struct sl_swap_request *stack = atomic_exchange(&swap->inbox, NULL), *ordered = NULL;
    while (stack) {
        struct sl_swap_request *next = stack->next;
        stack->next = ordered;
        ordered = stack;
        stack = next;
    }
    while (ordered) {
        struct sl_swap_request *request = ordered;
        ordered = ordered->next;
        swap->deadline_count += request->deadline_ns != 0;
        refuse_bad_range(swap, request);
        if (fully_issued(request)) { /* refused, or empty */
            finish_if_last(swap, request);
            continue;
        }
        queue_push(&swap->queues[request->write], request);
    }
}

static void drop_queued(struct sl_swap *swap, int code)
{
    for (int direction = 0; direction < 2; direction++) {
        struct swap_queue *queue = &swap->queues[direction];
        while (queue->head) {
            struct sl_swap_request *request = queue->head;
            queue_pop(queue);
            cut_short(request, code);
            finish_if_last(swap, request);
        }
    }
}

static void send(struct sl_swap *swap, struct sl_io *io)
{
    io->started_ns = sl_clock_ns();
    swap->backend->ops->queue(swap->backend, io);
}

/* Put the next block of `request` in flight. */
static void issue_block(struct sl_swap *swap, struct sl_swap_request *request)
{
    struct sl_io *io = swap->free_slots;
    swap->free_slots = io->next;
    uint64_t offset = request->offset_bytes + request->bytes_issued;
    *io = (struct sl_io){.write = request->write,
                         .buffer = (char *)request->buffer + request->bytes_issued,
                         .swap_offset = offset,
                         .request = request};
    io->bytes = (uint32_t)sl_stripes_map(&swap->files.stripes, offset,
                                         request->bytes - request->bytes_issued, &io->file,
                                         &io->file_offset);
    request->bytes_issued += io->bytes;
    request->blocks_left++;
    swap->in_flight++;
    swap->bytes_out[io->write] += io->bytes;
    send(swap, io);
    if (io->write && swap->sums.sums)
        sl_swap_hash_give(swap, io);
}

static void dispatch(struct sl_swap *swap)
{
    int failed = atomic_load(&swap->failed);
    if (failed)
        drop_queued(swap, failed);
    while (swap->in_flight < swap->options.queue_depth && swap->free_slots) {
        bool any[2] = {swap->queues[0].head != NULL, swap->queues[1].head != NULL};
        if (!any[0] && !any[1])
            return;
        bool write = any[1] && (!any[0] || swap->bytes_out[1] < swap->bytes_out[0]);
        struct sl_swap_request *request = swap->queues[write].head;
        issue_block(swap, request);
        if (fully_issued(request))
            queue_pop(&swap->queues[write]);
    }
}

/* The block is finished, well or not: give its place back and tell its request. */
static void retire(struct sl_swap *swap, struct sl_io *io)
{
    io->landed = true;
    if (io->hashing)
        return; /* sl_swap_hashed retires it */
    struct sl_swap_request *request = io->request;
    io->request = NULL;
    io->next = swap->free_slots;
    swap->free_slots = io;
    if (!request)
        return; /* it ended before, reported by the watchdog */
    request->blocks_left--;
    finish_if_last(swap, request);
}

static void fail_block(struct sl_swap *swap, struct sl_io *io, int code, const char *cause)
{
    if (code == -ECANCELED && io->overdue) { /* asked for: the request knows why */
        if (io->request)
            cut_short(io->request, -ECANCELED);
        return;
    }
    code = sl_swap_fail(swap, SL_DOMAIN_IO, code,
                        "swap file in \"%s\": %s of %u B at offset %" PRIu64 ": %s",
                        swap->files.files[io->file].path, io->write ? "write" : "read",
                        io->bytes - io->bytes_done, io->file_offset + io->bytes_done, cause);
    if (io->request) {
        /* Still queued for its other blocks: the next dispatch drops it with all others. */
        if (!io->request->result)
            io->request->result = code;
    }
}

/* Send the rest again; false where that has been tried too often. */
static bool try_again(struct sl_swap *swap, struct sl_io *io)
{
    if (atomic_load(&swap->failed) || !io->request || ++io->attempts > ATTEMPTS_MAX)
        return false;
    atomic_fetch_add_explicit(&swap->retries, 1, memory_order_relaxed);
    swap->in_flight++;
    swap->bytes_out[io->write] += io->bytes;
    if (io->attempts < 4) {
        send(swap, io);
    } else {
        io->not_before_ns = sl_clock_ns() + RETRY_PAUSE_NS;
        io->next = swap->delayed;
        swap->delayed = io;
    }
    return true;
}

static void complete(struct sl_swap *swap, struct sl_io *io, uint64_t now_ns)
{
    atomic_fetch_add_explicit(
        &swap->latency[io->write][swap_latency_bucket(now_ns - io->started_ns)], 1,
        memory_order_relaxed);
    swap->in_flight--;
    swap->bytes_out[io->write] -= io->bytes;
    const int64_t result = io->result, left = io->bytes - io->bytes_done;
    if (result == left) {
        io->bytes_done = io->bytes;
        if (!io->write && swap->sums.sums && io->request && !io->request->result) {
            io->landed = true;
            sl_swap_hash_give(swap, io);
            return;
        }
    } else if (result > 0 && result < left) {
        /* O_DIRECT needs the rest to start on a boundary: redo what lies beyond the last one. */
        uint32_t reached = (io->bytes_done + (uint32_t)result) & ~(SL_SWAP_ALIGNMENT - 1);
        if (reached > io->bytes_done)
            io->attempts = 0;
        io->bytes_done = reached;
        if (try_again(swap, io))
            return;
        fail_block(swap, io, -EIO, "it stays short");
    } else if (result == -EINTR || result == -EAGAIN) {
        if (try_again(swap, io))
            return;
        fail_block(swap, io, (int)result, strerror((int)-result));
    } else if (result == 0) {
        fail_block(swap, io, -EIO, io->write ? "nothing was written" : "the file ends there");
    } else if (result < 0) {
        fail_block(swap, io, (int)result, strerror((int)-result));
    } else {
        fail_block(swap, io, -EIO, "more bytes were reported than asked for");
    }
    retire(swap, io);
}

void sl_swap_hashed(struct sl_swap *swap, struct sl_io *io)
{
    const struct sl_block_mismatch *bad = &io->mismatch;
    io->hashing = false;
    if (io->hash_code && !io->request->result)
        io->request->result = sl_swap_fail(
            swap, SL_DOMAIN_DATA, io->hash_code,
            "swap file in \"%s\": %zu B at offset %" PRIu64 " were read back with sum %016" PRIx64
            ", written with %016" PRIx64 "; the device or the path to it changed them: the run "
            "stops, its last checkpoint is intact",
            swap->files.files[io->file].path, swap->sums.unit_bytes,
            io->file_offset + (bad->offset_bytes - io->swap_offset), bad->read, bad->written);
    if (io->landed)
        retire(swap, io);
}

/* Cancelled and overdue requests: stop issuing, ask for what is out. */
static void end_early(struct sl_swap *swap, uint64_t now_ns)
{
    bool all = atomic_exchange(&swap->cancelling, false);
    if (!all && !swap->deadline_count)
        return;
    for (size_t i = 0; i < swap->slot_count; i++) {
        struct sl_io *io = &swap->slots[i];
        struct sl_swap_request *request = io->request;
        if (!request || io->overdue)
            continue;
        bool late = request->deadline_ns && now_ns >= request->deadline_ns;
        if (!late && !__atomic_load_n(&request->cancelled, __ATOMIC_SEQ_CST))
            continue;
        io->overdue = true;
        if (!request->result)
            request->result = late ? -ETIME : -ECANCELED;
        swap->backend->ops->cancel(swap->backend, io);
    }
    for (int direction = 0; direction < 2; direction++) {
        struct swap_queue queue = swap->queues[direction];
        swap->queues[direction] = (struct swap_queue){0};
        for (struct sl_swap_request *request = queue.head, *next; request; request = next) {
            next = request->next;
            bool late = request->deadline_ns && now_ns >= request->deadline_ns;
            if (late || __atomic_load_n(&request->cancelled, __ATOMIC_SEQ_CST)) {
                cut_short(request, late ? -ETIME : -ECANCELED);
                finish_if_last(swap, request);
                continue;
            }
            queue_push(&swap->queues[direction], request);
        }
    }
}

/* Operations that paused before being sent again. */
static void send_delayed(struct sl_swap *swap, uint64_t now_ns)
{
    struct sl_io *waiting = swap->delayed;
    swap->delayed = NULL;
    while (waiting) {
        struct sl_io *io = waiting;
        waiting = io->next;
        if (atomic_load(&swap->failed) || !io->request || io->request->result) {
            swap->in_flight--;
            swap->bytes_out[io->write] -= io->bytes;
            retire(swap, io);
        } else if (io->not_before_ns <= now_ns) {
            send(swap, io);
        } else {
            io->next = swap->delayed;
            swap->delayed = io;
        }
    }
}

/* End the request of an operation that does not come back. The kernel keeps the buffer. */
static void give_up(struct sl_swap *swap, struct sl_io *stuck, uint64_t now_ns)
{
    struct sl_swap_request *request = stuck->request;
    int code = sl_swap_fail(
        swap, SL_DOMAIN_IO, -ETIMEDOUT,
        "swap file in \"%s\": %s of %u B at offset %" PRIu64 " has not come back for %.1f s; the "
        "device does not answer (see the kernel log)",
        swap->files.files[stuck->file].path, stuck->write ? "write" : "read",
        stuck->bytes - stuck->bytes_done, stuck->file_offset + stuck->bytes_done,
        (double)(now_ns - stuck->started_ns) * 1e-9);
    drop_queued(swap, code);
    cut_short(request, code);
    for (size_t i = 0; i < swap->slot_count; i++) {
        struct sl_io *io = &swap->slots[i];
        if (io->request != request || io->hashing) /* a helper still needs the buffer: next time */
            continue;
        io->request = NULL;
        request->blocks_left--;
        if (!io->overdue)
            swap->backend->ops->cancel(swap->backend, io);
        io->overdue = true;
    }
    finish_if_last(swap, request);
}

static uint64_t watch_interval_ns(const struct sl_swap *swap)
{
    return sl_min_u64(WATCH_NS, swap->options.stall_ns / 4 + 1);
}

static void watch(struct sl_swap *swap, uint64_t now_ns)
{
    if (now_ns < swap->next_watch_ns)
        return;
    /* A thread that looks this late was stopped with its process (Ctrl-Z, a debugger) and has not
     * yet seen what came back meanwhile: the device gets its whole time again. */
    if (now_ns - swap->next_watch_ns > watch_interval_ns(swap))
        swap->awake_since_ns = now_ns;
    swap->next_watch_ns = now_ns + watch_interval_ns(swap);
    for (size_t i = 0; i < swap->slot_count; i++) {
        struct sl_io *io = &swap->slots[i];
        uint64_t since_ns = sl_max_u64(io->started_ns, swap->awake_since_ns);
        if (io->request && since_ns + swap->options.stall_ns < now_ns)
            give_up(swap, io, now_ns);
    }
}

static void run_controls(struct sl_swap *swap)
{
    if (!atomic_exchange(&swap->controlling, false))
        return;
    pthread_mutex_lock(&swap->lock);
    for (struct swap_control *control = swap->controls, *next; control; control = next) {
        next = control->next;
        const struct sl_io_ops *ops = swap->backend->ops;
        control->result = ops->register_memory
                              ? ops->register_memory(swap->backend, control->memory, control->bytes)
                              : 0;
        if (control->result && !swap->register_logged) {
            swap->register_logged = true;
            sl_log_write(swap->options.log, SL_LOG_WARNING,
                         "swap space: buffers are not registered (%s; the limit is ulimit -l): "
                         "each transfer maps its own, which costs some processor time",
                         strerror(-control->result));
        }
        control->finished = true;
    }
    swap->controls = NULL;
    pthread_cond_broadcast(&swap->changed);
    pthread_mutex_unlock(&swap->lock);
}

/* How long the thread may wait: forever where nothing is out. */
static uint64_t wait_ns(const struct sl_swap *swap, uint64_t now_ns)
{
    if (!swap->in_flight)
        return UINT64_MAX;
    uint64_t limit_ns = watch_interval_ns(swap);
    if (swap->deadline_count) /* a millisecond late is early enough */
        limit_ns = sl_min_u64(limit_ns, 1000000u);
    for (const struct sl_io *io = swap->delayed; io; io = io->next)
        limit_ns =
            sl_min_u64(limit_ns, io->not_before_ns > now_ns ? io->not_before_ns - now_ns : 1);
    return limit_ns;
}

static bool idle(const struct sl_swap *swap)
{
    return !swap->in_flight && !swap->hash.outstanding && !swap->queues[0].head &&
           !swap->queues[1].head && !atomic_load(&swap->inbox);
}

/* Only operations that the watchdog gave up are out, and their time to come back is over. */
static bool abandoned(struct sl_swap *swap, uint64_t now_ns)
{
    for (size_t i = 0; i < swap->slot_count; i++)
        if (swap->slots[i].request)
            return false;
    if (swap->queues[0].head || swap->queues[1].head || atomic_load(&swap->inbox))
        return false;
    if (!swap->abandon_ns)
        swap->abandon_ns = now_ns + swap->options.stall_ns;
    return now_ns >= swap->abandon_ns;
}

static void turn(struct sl_swap *swap)
{
    take_inbox(swap);
    uint64_t now_ns = sl_clock_ns();
    end_early(swap, now_ns);
    send_delayed(swap, now_ns);
    dispatch(swap);
    if (swap->hash.outstanding) {
        swap->backend->ops->flush(swap->backend);
        sl_swap_hash_work(swap);
    }
    watch(swap, now_ns);
}

static bool can_dispatch(const struct sl_swap *swap)
{
    return swap->in_flight < swap->options.queue_depth && swap->free_slots &&
           (swap->queues[0].head || swap->queues[1].head);
}

static void wait_and_complete(struct sl_swap *swap)
{
    /* Hashing has just given slots back: there is something to send before there is something to
     * wait for. */
    if (can_dispatch(swap))
        return;
    /* With a full queue nobody needs to wake us for a new request. */
    bool wakeable = swap->in_flight < swap->options.queue_depth;
    if (wakeable) {
        atomic_store(&swap->asleep, true);
        if (atomic_load(&swap->inbox) || atomic_load(&swap->hash.finished)) {
            atomic_store(&swap->asleep, false);
            return;
        }
    }
    size_t count = swap->backend->ops->reap(
        swap->backend, swap->finished, swap->options.queue_depth, wait_ns(swap, sl_clock_ns()));
    if (wakeable)
        atomic_store(&swap->asleep, false);
    const uint64_t now_ns = count ? sl_clock_ns() : 0;
    for (size_t i = 0; i < count; i++)
        complete(swap, swap->finished[i], now_ns);
}

void *sl_swap_loop(void *argument)
{
    struct sl_swap *swap = argument;
    prctl(PR_SET_NAME, "sluice-nvme");
    int code = sl_swap_start_backend(swap);
    if (!code) {
        code = sl_swap_hash_start(swap);
        if (code) {
            sl_swap_fail(swap, SL_DOMAIN_IO, code, "swap space: its threads cannot be started: %s",
                         strerror(-code));
            sl_swap_hash_stop(swap);
            swap->backend->ops->destroy(swap->backend);
            swap->backend = NULL;
        }
    }
    pthread_mutex_lock(&swap->lock);
    swap->start_code = code;
    swap->started = true;
    pthread_cond_broadcast(&swap->changed);
    pthread_mutex_unlock(&swap->lock);
    if (code)
        return NULL;
    for (;;) {
        run_controls(swap);
        turn(swap);
        if (atomic_load(&swap->stopping) && (idle(swap) || abandoned(swap, sl_clock_ns())))
            return NULL;
        wait_and_complete(swap);
    }
}
