// SPDX-License-Identifier: Apache-2.0
/* Where sums are computed.
 *
 * One core hashes about 20 GB/s: more than one drive delivers, less than an array of them. So a
 * swap space on one path hashes on its I/O thread, which costs no wake-up and touches data while it
 * is in that core's cache; one on several paths has helpers, and the I/O thread only sends and
 * collects. Either way the device has a full queue meanwhile (swap_loop.c).
 *
 * Invariant: `hashing` is set from give to sl_swap_hashed; the block's request is not `done` and
 * its buffer is not given back in between.
 */
#include <errno.h>
#include <sys/prctl.h>

#include "nvme/swap_internal.h"

static void hash(struct sl_swap *swap, struct sl_io *io)
{
    if (io->write)
        sl_block_sums_set(&swap->sums, io->swap_offset, io->buffer, io->bytes);
    else
        io->hash_code =
            sl_block_sums_check(&swap->sums, io->swap_offset, io->buffer, io->bytes, &io->mismatch);
}

static void *help(void *argument)
{
    struct sl_swap *swap = argument;
    struct swap_hash *pool = &swap->hash;
    prctl(PR_SET_NAME, "sluice-hash");
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct sl_io *io = pool->waiting;
        if (!io && pool->stopping)
            break;
        if (!io) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        pool->waiting = io->hash_next;
        pthread_mutex_unlock(&pool->lock);
        hash(swap, io);
        io->hash_next = atomic_load_explicit(&pool->finished, memory_order_relaxed);
        /* Ordered before the load of `asleep`, as a submitter's push is. */
        while (!atomic_compare_exchange_weak(&pool->finished, &io->hash_next, io))
            ;
        if (atomic_load(&swap->asleep) && atomic_exchange(&swap->asleep, false))
            swap->backend->ops->wake(swap->backend);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int sl_swap_hash_start(struct sl_swap *swap)
{
    struct swap_hash *pool = &swap->hash;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->stopping = false;
    pool->thread_count = 0;
    int code = 0;
    while (swap->sums.sums && !code && pool->thread_count < swap->options.hash_threads) {
        code = -pthread_create(&pool->threads[pool->thread_count], NULL, help, swap);
        pool->thread_count += !code;
    }
    return pool->thread_count ? 0 : code; /* fewer helpers than wanted still help */
}

void sl_swap_hash_stop(struct sl_swap *swap)
{
    struct swap_hash *pool = &swap->hash;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
}

void sl_swap_hash_give(struct sl_swap *swap, struct sl_io *io)
{
    struct swap_hash *pool = &swap->hash;
    io->hashing = true;
    io->hash_code = 0;
    pool->outstanding++;
    if (!pool->thread_count) {
        io->hash_next = pool->listed;
        pool->listed = io;
        return;
    }
    io->hash_next = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->waiting)
        pool->waiting_tail->hash_next = io;
    else
        pool->waiting = io;
    pool->waiting_tail = io;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void sl_swap_hash_work(struct sl_swap *swap)
{
    struct swap_hash *pool = &swap->hash;
    for (struct sl_io *io = pool->listed; io; io = io->hash_next)
        hash(swap, io);
    struct sl_io *finished = pool->listed;
    pool->listed = NULL;
    if (pool->thread_count)
        finished = atomic_exchange(&pool->finished, NULL);
    while (finished) {
        struct sl_io *io = finished;
        finished = io->hash_next;
        pool->outstanding--;
        sl_swap_hashed(swap, io);
    }
}
