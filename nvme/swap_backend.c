// SPDX-License-Identifier: Apache-2.0
/* Which backend a swap space gets, decided on its I/O thread at its start.
 *
 * Only SL_SWAP_AUTO falls back from io_uring to threads, and every fallback is one line in the log:
 * a user who wonders about a rate finds the reason there.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvme/swap_internal.h"

static int64_t do_one(struct sl_io_backend *backend, struct sl_io io)
{
    struct sl_io *back = NULL;
    backend->ops->queue(backend, &io);
    while (!backend->ops->reap(backend, &back, 1, 1000000000u))
        ;
    return io.result;
}

/* A device that cannot be polled says so only when it has something to do: write the first bytes of
 * each file, as they are, and read them (reading a fresh extent would not reach the device). */
static int try_polling(const struct sl_io_setup *setup, struct sl_io_backend *backend)
{
    void *buffer = aligned_alloc(SL_SWAP_ALIGNMENT, SL_SWAP_ALIGNMENT);
    if (!buffer)
        return -ENOMEM;
    int64_t result = 0;
    for (unsigned file = 0; file < setup->fd_count && result >= 0; file++) {
        if (pread(setup->fds[file], buffer, SL_SWAP_ALIGNMENT, 0) != (ssize_t)SL_SWAP_ALIGNMENT)
            continue; /* a path without a stripe */
        struct sl_io io = {.file = file, .buffer = buffer, .bytes = SL_SWAP_ALIGNMENT};
        io.write = true;
        result = do_one(backend, io);
        io.write = false;
        if (result >= 0)
            result = do_one(backend, io);
    }
    free(buffer);
    return result < 0 ? (int)result : 0;
}

static int create_ring(struct sl_swap *swap, struct sl_io_setup *setup)
{
    int code = sl_io_ring_create(&swap->backend, setup);
    if (code || !setup->poll)
        return code;
    code = try_polling(setup, swap->backend);
    if (!code)
        return 0;
    sl_log_write(swap->options.log, SL_LOG_WARNING,
                 "swap space: the device cannot be polled (%s): it interrupts when it is done",
                 strerror(-code));
    swap->backend->ops->destroy(swap->backend);
    swap->backend = NULL;
    setup->poll = false;
    return sl_io_ring_create(&swap->backend, setup);
}

static int create_automatic(struct sl_swap *swap, struct sl_io_setup *setup)
{
    int code = setup->direct ? create_ring(swap, setup) : -EOPNOTSUPP;
    if (!code) {
        swap->backend_kind = SL_SWAP_URING;
        return 0;
    }
    if (setup->direct)
        sl_log_write(swap->options.log, SL_LOG_WARNING,
                     "swap space: io_uring cannot be used here (%s%s): %zu threads read and write",
                     strerror(-code),
                     code == -EPERM ? "; see kernel.io_uring_disabled and the seccomp profile" : "",
                     setup->thread_count);
    else
        sl_log_write(swap->options.log, SL_LOG_WARNING,
                     "swap space: no O_DIRECT: %zu threads read and write through the page cache, "
                     "dropped behind",
                     setup->thread_count);
    swap->backend_kind = SL_SWAP_THREADS;
    return sl_io_threads_create(&swap->backend, setup);
}

int sl_swap_start_backend(struct sl_swap *swap)
{
    for (size_t i = 0; i < swap->files.count; i++)
        swap->fds[i] = swap->files.files[i].fd;
    struct sl_io_setup setup = {.fds = swap->fds,
                                .fd_count = swap->files.count,
                                .depth = swap->options.queue_depth,
                                .thread_count = swap->options.thread_count,
                                .direct = swap->files.direct,
                                .poll = swap->options.poll,
                                .sq_poll = swap->options.submit_poll,
                                .faults = swap->options.faults};
    int code;
    swap->backend_kind = swap->options.backend;
    switch (swap->options.backend) {
    case SL_SWAP_URING:
        code = create_ring(swap, &setup);
        break;
    case SL_SWAP_THREADS:
        code = sl_io_threads_create(&swap->backend, &setup);
        break;
    case SL_SWAP_FAULTY:
        code = sl_io_faults_create(&swap->backend, &setup);
        break;
    default:
        code = create_automatic(swap, &setup);
        break;
    }
    if (code)
        sl_swap_fail(swap, SL_DOMAIN_IO, code, "swap space: %s cannot be started: %s",
                     swap->options.backend == SL_SWAP_URING ? "io_uring" : "its threads",
                     strerror(-code));
    return code;
}
