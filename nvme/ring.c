// SPDX-License-Identifier: Apache-2.0
/* Blocks through io_uring: the only file that knows liburing.
 *
 * Problem: move blocks at the device's speed for no more processor time than fio takes.
 *
 * Choice: one ring, made and driven by one thread, so that the kernel needs no locks
 * (SINGLE_ISSUER) and runs completions when that thread asks (DEFER_TASKRUN): one system call sends
 * everything queued and collects everything finished. Files and, where the memory limit allows it,
 * buffers are registered: no reference counting and no page pinning per block. Other threads wake
 * the ring through an eventfd whose read is always in flight. A polled ring (IOPOLL) cannot hold
 * that read; it asks the eventfd itself when nothing is out.
 *
 * Rejected: a ring per submitting thread (more wake-ups, and the arbitration of reads and writes
 * needs one place), MSG_RING to wake (every submitter would need a ring).
 *
 * Invariant: an sl_io is referenced by the kernel from its submission until its CQE is seen here.
 */
#include <liburing.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "nvme/io_backend.h"

#define BUFFERS_MAX 256u
#define BUFFER_BYTES_MAX ((uint64_t)1 << 30) /* the kernel's limit for one registered buffer */

struct ring_buffer {
    char *start;
    uint64_t bytes;
};

struct ring {
    struct sl_io_backend base;
    struct io_uring uring;
    const int *fds;
    int event_fd;
    uint64_t event_value;
    bool event_armed, polled, files_registered, buffers_ready;
    unsigned outstanding;
    int broken; /* the ring takes nothing any more: results of later operations */
    struct sl_io *refused;
    unsigned buffer_count;
    struct ring_buffer buffers[BUFFERS_MAX];
};

static struct ring *ring_of(struct sl_io_backend *backend)
{
    return (struct ring *)backend;
}

/* The index of the registered buffer that holds the range whole, or -1. */
static int registered_index(const struct ring *ring, const char *start, uint64_t bytes)
{
    for (unsigned i = 0; i < ring->buffer_count; i++) {
        const struct ring_buffer *buffer = &ring->buffers[i];
        if (start >= buffer->start && start + bytes <= buffer->start + buffer->bytes)
            return (int)i;
    }
    return -1;
}

static struct io_uring_sqe *next_sqe(struct ring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    if (!sqe) {
        io_uring_submit(&ring->uring);
        sqe = io_uring_get_sqe(&ring->uring);
    }
    return sqe;
}

static void refuse(struct ring *ring, struct sl_io *io, int code)
{
    io->result = code;
    io->inner_next = ring->refused;
    ring->refused = io;
}

static void ring_queue(struct sl_io_backend *backend, struct sl_io *io)
{
    struct ring *ring = ring_of(backend);
    struct io_uring_sqe *sqe = ring->broken ? NULL : next_sqe(ring);
    if (!sqe) {
        refuse(ring, io, ring->broken ? ring->broken : -EAGAIN);
        return;
    }
    char *buffer = io->buffer + io->bytes_done;
    unsigned bytes = io->bytes - io->bytes_done;
    uint64_t offset = io->file_offset + io->bytes_done;
    int file = ring->files_registered ? (int)io->file : ring->fds[io->file];
    int index = registered_index(ring, buffer, bytes);
    if (index >= 0 && io->write)
        io_uring_prep_write_fixed(sqe, file, buffer, bytes, offset, index);
    else if (index >= 0)
        io_uring_prep_read_fixed(sqe, file, buffer, bytes, offset, index);
    else if (io->write)
        io_uring_prep_write(sqe, file, buffer, bytes, offset);
    else
        io_uring_prep_read(sqe, file, buffer, bytes, offset);
    if (ring->files_registered)
        sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, io);
    ring->outstanding++;
}

/* A result of the ring itself, not of an operation. Interruptions and a full completion queue pass;
 * anything else means that the ring is gone. */
static void note_ring_result(struct ring *ring, int result)
{
    if (result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY ||
        result == -ETIME || result == -ENOMEM)
        return;
    ring->broken = result;
}

static void ring_flush(struct sl_io_backend *backend)
{
    struct ring *ring = ring_of(backend);
    if (io_uring_sq_ready(&ring->uring))
        note_ring_result(ring, io_uring_submit(&ring->uring));
}

static void arm_event(struct ring *ring)
{
    struct io_uring_sqe *sqe = next_sqe(ring);
    if (!sqe)
        return;
    io_uring_prep_read(sqe, ring->event_fd, &ring->event_value, sizeof(ring->event_value), 0);
    io_uring_sqe_set_data(sqe, ring);
    ring->event_armed = true;
}

static size_t collect(struct ring *ring, struct sl_io **finished, size_t max)
{
    size_t count = 0;
    for (; ring->refused && count < max; ring->refused = ring->refused->inner_next)
        finished[count++] = ring->refused;
    unsigned head, seen = 0;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&ring->uring, head, cqe)
    {
        if (count == max)
            break;
        seen++;
        void *data = io_uring_cqe_get_data(cqe);
        if (data == ring) {
            ring->event_armed = false;
        } else if (data && cqe->user_data != LIBURING_UDATA_TIMEOUT) {
            struct sl_io *io = data;
            io->result = cqe->res;
            finished[count++] = io;
            ring->outstanding--;
        }
    }
    io_uring_cq_advance(&ring->uring, seen);
    return count;
}

/* A polled ring: look for completions until one is there, the eventfd speaks, or time is up. */
static void wait_polled(struct ring *ring, uint64_t timeout_ns)
{
    uint64_t start_ns = sl_clock_ns();
    do {
        note_ring_result(ring, io_uring_submit_and_get_events(&ring->uring));
        if (io_uring_cq_ready(&ring->uring))
            return;
        int wait_ms = ring->outstanding ? 0 : (int)sl_min_u64(timeout_ns / 1000000u + 1, 1000);
        struct pollfd event = {.fd = ring->event_fd, .events = POLLIN};
        if (poll(&event, 1, wait_ms) > 0) {
            if (read(ring->event_fd, &ring->event_value, sizeof(ring->event_value)) > 0)
                return;
        }
    } while (sl_clock_ns() - start_ns < timeout_ns);
}

static size_t ring_reap(struct sl_io_backend *backend, struct sl_io **finished, size_t max,
                        uint64_t timeout_ns)
{
    struct ring *ring = ring_of(backend);
    if (ring->refused || ring->broken || timeout_ns == 0) {
        ring_flush(backend);
        io_uring_get_events(&ring->uring);
        return collect(ring, finished, max);
    }
    if (io_uring_cq_ready(&ring->uring)) {
        ring_flush(backend);
        return collect(ring, finished, max);
    }
    if (ring->polled) {
        wait_polled(ring, timeout_ns);
        return collect(ring, finished, max);
    }
    if (!ring->event_armed)
        arm_event(ring);
    struct io_uring_cqe *cqe;
    struct __kernel_timespec limit = {.tv_sec = (long long)(timeout_ns / 1000000000u),
                                      .tv_nsec = (long long)(timeout_ns % 1000000000u)};
    note_ring_result(
        ring, io_uring_submit_and_wait_timeout(&ring->uring, &cqe, 1,
                                               timeout_ns == UINT64_MAX ? NULL : &limit, NULL));
    return collect(ring, finished, max);
}

static void ring_wake(struct sl_io_backend *backend)
{
    const uint64_t one = 1;
    while (write(ring_of(backend)->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void ring_cancel(struct sl_io_backend *backend, struct sl_io *io)
{
    struct ring *ring = ring_of(backend);
    struct io_uring_sqe *sqe = next_sqe(ring);
    if (!sqe)
        return; /* it is only a wish: the operation comes back by itself */
    io_uring_prep_cancel(sqe, io, 0);
    io_uring_sqe_set_data(sqe, NULL);
}

static int ring_register_memory(struct sl_io_backend *backend, void *memory, uint64_t bytes)
{
    struct ring *ring = ring_of(backend);
    if (!ring->buffers_ready) {
        int code = io_uring_register_buffers_sparse(&ring->uring, BUFFERS_MAX);
        if (code < 0)
            return code;
        ring->buffers_ready = true;
    }
    for (uint64_t at = 0; at < bytes; at += BUFFER_BYTES_MAX) {
        if (ring->buffer_count == BUFFERS_MAX)
            return -ENOBUFS;
        struct iovec range = {.iov_base = (char *)memory + at,
                              .iov_len = sl_min_u64(BUFFER_BYTES_MAX, bytes - at)};
        __u64 tag = 0;
        int code =
            io_uring_register_buffers_update_tag(&ring->uring, ring->buffer_count, &range, &tag, 1);
        if (code < 0)
            return code;
        ring->buffers[ring->buffer_count++] =
            (struct ring_buffer){.start = range.iov_base, .bytes = range.iov_len};
    }
    return 0;
}

static void ring_destroy(struct sl_io_backend *backend)
{
    struct ring *ring = ring_of(backend);
    io_uring_queue_exit(&ring->uring);
    close(ring->event_fd);
    free(ring);
}

/* The best set of flags that this kernel takes. */
static int init_ring(struct ring *ring, unsigned entries, const struct sl_io_setup *setup)
{
    static const unsigned issue_flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                           IORING_SETUP_COOP_TASKRUN, 0};
    unsigned base = IORING_SETUP_CLAMP | (setup->poll ? IORING_SETUP_IOPOLL : 0);
    if (setup->sq_poll) {
        struct io_uring_params params = {.flags = base | IORING_SETUP_SQPOLL,
                                         .sq_thread_idle = 50 /* ms */};
        return io_uring_queue_init_params(entries, &ring->uring, &params);
    }
    int code = -EINVAL;
    for (size_t i = 0; i < sizeof(issue_flags) / sizeof(issue_flags[0]) && code == -EINVAL; i++) {
        struct io_uring_params params = {.flags = base | issue_flags[i]};
        code = io_uring_queue_init_params(entries, &ring->uring, &params);
    }
    return code;
}

int sl_io_ring_create(struct sl_io_backend **out, const struct sl_io_setup *setup)
{
    static const struct sl_io_ops ops = {
        .queue = ring_queue,
        .flush = ring_flush,
        .reap = ring_reap,
        .wake = ring_wake,
        .cancel = ring_cancel,
        .register_memory = ring_register_memory,
        .destroy = ring_destroy,
    };
    struct ring *ring = calloc(1, sizeof(*ring));
    if (!ring)
        return -ENOMEM;
    *ring = (struct ring){.base.ops = &ops, .fds = setup->fds, .polled = setup->poll};
    /* Blocking: io_uring then waits for a value; a non-blocking eventfd would answer EAGAIN. */
    ring->event_fd = eventfd(0, EFD_CLOEXEC);
    int code = ring->event_fd < 0 ? -errno : 0;
    if (code)
        goto free_ring;
    code = init_ring(ring, (unsigned)setup->depth + 8, setup);
    if (code < 0)
        goto close_event;
    ring->files_registered =
        io_uring_register_files(&ring->uring, setup->fds, (unsigned)setup->fd_count) == 0;
    *out = &ring->base;
    return 0;

close_event:
    close(ring->event_fd);
free_ring:
    free(ring);
    return code;
}
