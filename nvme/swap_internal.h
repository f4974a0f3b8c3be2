// SPDX-License-Identifier: Apache-2.0
/* The swap space as its own files see it: swap.c (the public calls) and swap_loop.c (its thread).
 */
#ifndef SLUICE_NVME_SWAP_INTERNAL_H
#define SLUICE_NVME_SWAP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "nvme/block_sums.h"
#include "nvme/io_backend.h"
#include "nvme/swap.h"
#include "nvme/swap_files.h"
#include "nvme/swap_hash.h"

struct swap_queue {
    struct sl_swap_request *head, *tail;
};

/* A histogram of latencies: eight buckets to each power of two, from 1 us on. */
#define SWAP_LATENCY_BUCKETS 256u

static inline unsigned swap_latency_bucket(uint64_t ns)
{
    uint64_t units = ns >> 7; /* 128 ns: a microsecond has the top bit at 3 */
    if (units < 8)
        return 0;
    unsigned top = 63u - (unsigned)__builtin_clzll(units);
    unsigned index = (top - 3) * 8 + (unsigned)((units >> (top - 3)) & 7u) + 1;
    return index < SWAP_LATENCY_BUCKETS ? index : SWAP_LATENCY_BUCKETS - 1;
}

static inline uint64_t swap_latency_limit_ns(unsigned bucket)
{
    if (bucket == 0)
        return 8u << 7;
    unsigned top = (bucket - 1) / 8, sub = (bucket - 1) % 8;
    return (uint64_t)(9 + sub) << (top + 7);
}

/* A call that must run on the I/O thread; its caller waits. */
struct swap_control {
    void *memory; /* to register; NULL: only look for cancelled requests */
    uint64_t bytes;
    int result;
    bool finished;
    struct swap_control *next;
};

struct sl_swap {
    struct sl_swap_options options;
    struct sl_swap_files files;
    struct sl_block_sums sums;
    pthread_t thread;

    /* Shared with submitters. `inbox` is a stack that the thread takes whole. A submitter that
     * finds `asleep` set clears it and wakes the backend: one wake-up per sleep, none while the
     * thread is busy or its queue is full. */
    _Atomic(struct sl_swap_request *) inbox;
    atomic_bool asleep, stopping, cancelling, controlling;
    atomic_int failed; /* code of `error` */

    pthread_mutex_t lock; /* error, controls, started */
    pthread_cond_t changed;
    struct sl_error error;
    struct swap_control *controls;
    bool started;
    int start_code;

    /* The I/O thread's own. */
    struct sl_io_backend *backend;
    enum sl_swap_backend backend_kind;
    struct swap_queue queues[2]; /* by sl_swap_request.write */
    uint64_t bytes_out[2];       /* in flight, by direction: the arbitration's measure */
    struct sl_io *slots, *free_slots, *delayed;
    struct sl_io **finished; /* [queue_depth] */
    size_t slot_count, in_flight;
    struct swap_hash hash;
    uint64_t next_watch_ns;
    uint64_t awake_since_ns; /* the thread has looked in time since then */
    uint64_t abandon_ns;
    size_t deadline_count; /* requests that have one */
    int fds[SL_SWAP_PATHS_MAX];
    bool register_logged;

    _Atomic uint64_t bytes_read, bytes_written, reads, writes, retries;
    _Atomic uint64_t latency[2][SWAP_LATENCY_BUCKETS];
};

/* The I/O thread. Signals started/start_code when its backend runs, or could not be made. */
void *sl_swap_loop(void *swap);

/* A block's sum is made or checked (swap_hash.c gives it back). On the I/O thread. */
void sl_swap_hashed(struct sl_swap *swap, struct sl_io *io);

/* Choose and create the backend, on the thread that will drive it. */
int sl_swap_start_backend(struct sl_swap *swap);

/* Record the first failure; later ones are dropped. Returns the code that stands. */
int sl_swap_fail(struct sl_swap *swap, enum sl_domain domain, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
