// SPDX-License-Identifier: Apache-2.0
/* Sums made and checked beside the I/O: on the I/O thread itself, or by helpers. */
#ifndef SLUICE_NVME_SWAP_HASH_H
#define SLUICE_NVME_SWAP_HASH_H

#include <pthread.h>
#include <stdatomic.h>

#include "nvme/io_backend.h"

#define SWAP_HASH_THREADS_MAX 16u

struct sl_swap;

struct swap_hash {
    struct sl_io *listed; /* without helpers: to be hashed in this turn */
    size_t outstanding;   /* given, not returned */
    size_t thread_count;
    pthread_t threads[SWAP_HASH_THREADS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct sl_io *waiting, *waiting_tail;
    bool stopping;
    _Atomic(struct sl_io *) finished;
};

/* Starts options.hash_threads helpers. 0 or a negative errno. */
int sl_swap_hash_start(struct sl_swap *swap);
void sl_swap_hash_stop(struct sl_swap *swap);

/* On the I/O thread: give a write that was queued, or a read that came back. */
void sl_swap_hash_give(struct sl_swap *swap, struct sl_io *io);

/* On the I/O thread: hash what is listed, or take back what the helpers have done; sl_swap_hashed
 * gets each. */
void sl_swap_hash_work(struct sl_swap *swap);

#endif
