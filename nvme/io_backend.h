// SPDX-License-Identifier: Apache-2.0
/* One interface for what moves blocks between memory and files: io_uring (ring.c), threads
 * (io_threads.c), and a decorator that injects faults (faults.c).
 *
 * One thread, the swap's I/O thread, calls everything but `wake`. A backend moves bytes and reports
 * results; retries, sums, arbitration and deadlines are the loop's (swap_loop.c).
 */
#ifndef SLUICE_NVME_IO_BACKEND_H
#define SLUICE_NVME_IO_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvme/block_sums.h"

struct sl_swap_request;
struct sl_swap_faults;

/* One read or write of a contiguous range of one file. The loop owns it; it is lent to the backend
 * from `queue` until `reap` returns it. */
struct sl_io {
    bool write;
    bool overdue;  /* the watchdog or a deadline has reported it */
    unsigned file; /* index into sl_io_setup.fds */
    uint64_t file_offset;
    char *buffer;
    uint32_t bytes;
    uint32_t bytes_done; /* finished by earlier attempts */
    uint32_t attempts;   /* in a row without progress */
    int64_t result;      /* of this attempt: bytes moved, or a negative errno */
    uint64_t not_before_ns;
    uint64_t started_ns;
    uint64_t swap_offset;
    struct sl_swap_request *request;
    struct sl_io *next; /* for whoever holds it */
    /* private to swap_hash.c and the loop */
    bool hashing; /* its sum is being made or checked */
    bool landed;  /* a write that came back before its sum was made */
    int hash_code;
    struct sl_block_mismatch mismatch;
    struct sl_io *hash_next;
    /* private to a backend */
    struct sl_io *inner_next;
    void *backend_data;
};

struct sl_io_setup {
    const int *fds;
    size_t fd_count;
    size_t depth;
    size_t thread_count;
    bool direct;
    bool poll;    /* io_uring: poll the device for completions (IORING_SETUP_IOPOLL) */
    bool sq_poll; /* io_uring: a kernel thread submits (IORING_SETUP_SQPOLL) */
    const struct sl_swap_faults *faults;
};

struct sl_io_backend {
    const struct sl_io_ops *ops;
};

struct sl_io_ops {
    /* Accept `io` for its remaining bytes. At most `depth` are out at once; never fails, what goes
     * wrong is the result of `io`. It may be sent at the next flush or reap only. */
    void (*queue)(struct sl_io_backend *backend, struct sl_io *io);
    /* Send what is queued, without waiting. */
    void (*flush)(struct sl_io_backend *backend);
    /* Send what is queued, then take back at most `max` finished operations. Returns at the first
     * of: something finished, `wake`, timeout (0: do not wait; UINT64_MAX: no limit). */
    size_t (*reap)(struct sl_io_backend *backend, struct sl_io **finished, size_t max,
                   uint64_t timeout_ns);
    /* Make the current or the next waiting reap return. Threads: any. */
    void (*wake)(struct sl_io_backend *backend);
    /* Ask for `io` back early: it returns through reap with -ECANCELED, or with its real result. */
    void (*cancel)(struct sl_io_backend *backend, struct sl_io *io);
    /* Map memory once for all later operations. 0 or a negative errno; may be NULL. */
    int (*register_memory)(struct sl_io_backend *backend, void *memory, uint64_t bytes);
    void (*destroy)(struct sl_io_backend *backend);
};

/* Create a backend on the thread that will drive it. 0 or a negative errno. */
int sl_io_ring_create(struct sl_io_backend **out, const struct sl_io_setup *setup);
int sl_io_threads_create(struct sl_io_backend **out, const struct sl_io_setup *setup);
/* Wraps the backend that setup->faults names. */
int sl_io_faults_create(struct sl_io_backend **out, const struct sl_io_setup *setup);

#endif
