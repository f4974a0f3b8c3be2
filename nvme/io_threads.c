// SPDX-License-Identifier: Apache-2.0
/* Blocks through worker threads, for machines that forbid io_uring and file systems without
 * O_DIRECT.
 *
 * Each worker takes the oldest operation and does it with preadv2 or pwritev2. Through the page
 * cache a write is pushed to the device before it counts as finished, and what was read or written
 * is dropped from the cache: the swap space must not push the rest of the machine's memory out, and
 * a finished write means the same as with O_DIRECT. Rejected: POSIX aio (glibc's is this, with
 * less control), libaio (blocks at submission without O_DIRECT, and is not everywhere).
 *
 * Invariant: an sl_io is in `waiting`, with one worker, or in `finished`.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "nvme/io_backend.h"

struct io_list {
    struct sl_io *head, *tail;
};

struct pool {
    struct sl_io_backend base;
    const int *fds;
    bool direct;
    pthread_mutex_t lock;
    pthread_cond_t work, news; /* for workers; for the thread that reaps */
    struct io_list waiting, finished;
    bool woken, stopping;
    size_t thread_count;
    pthread_t threads[];
};

static struct pool *pool_of(struct sl_io_backend *backend)
{
    return (struct pool *)backend;
}

static void list_push(struct io_list *list, struct sl_io *io)
{
    io->inner_next = NULL;
    if (list->tail)
        list->tail->inner_next = io;
    else
        list->head = io;
    list->tail = io;
}

static struct sl_io *list_pop(struct io_list *list)
{
    struct sl_io *io = list->head;
    if (io) {
        list->head = io->inner_next;
        if (!list->head)
            list->tail = NULL;
    }
    return io;
}

/* Page cache: make the write reach the device, then forget the pages. File systems that know no
 * write-back answer EINVAL, ENOSYS or ESPIPE; an error of the device is the write's error. */
static int64_t push_and_drop(int fd, bool write, uint64_t offset, int64_t bytes)
{
    if (write &&
        sync_file_range(fd, (off_t)offset, bytes,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                            SYNC_FILE_RANGE_WAIT_AFTER) < 0 &&
        errno != EINVAL && errno != ENOSYS && errno != ESPIPE)
        return -errno;
    posix_fadvise(fd, (off_t)offset, bytes, POSIX_FADV_DONTNEED);
    return bytes;
}

static int64_t transfer(const struct pool *pool, const struct sl_io *io)
{
    struct iovec range = {.iov_base = io->buffer + io->bytes_done,
                          .iov_len = io->bytes - io->bytes_done};
    int fd = pool->fds[io->file];
    uint64_t offset = io->file_offset + io->bytes_done;
    ssize_t moved = io->write ? pwritev2(fd, &range, 1, (off_t)offset, 0)
                              : preadv2(fd, &range, 1, (off_t)offset, 0);
    if (moved < 0)
        return -errno;
    return pool->direct || moved == 0 ? moved : push_and_drop(fd, io->write, offset, moved);
}

static void *work(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct sl_io *io = list_pop(&pool->waiting);
        if (!io && pool->stopping)
            break;
        if (!io) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        io->result = transfer(pool, io);
        pthread_mutex_lock(&pool->lock);
        list_push(&pool->finished, io);
        pthread_cond_signal(&pool->news);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void pool_queue(struct sl_io_backend *backend, struct sl_io *io)
{
    struct pool *pool = pool_of(backend);
    pthread_mutex_lock(&pool->lock);
    list_push(&pool->waiting, io);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_flush(struct sl_io_backend *backend)
{
    (void)backend;
}

static size_t pool_reap(struct sl_io_backend *backend, struct sl_io **finished, size_t max,
                        uint64_t timeout_ns)
{
    struct pool *pool = pool_of(backend);
    const uint64_t now_ns = sl_clock_ns();
    const uint64_t until_ns = timeout_ns > UINT64_MAX / 2 ? UINT64_MAX / 2 : now_ns + timeout_ns;
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    size_t count = 0;
    pthread_mutex_lock(&pool->lock);
    while (!pool->finished.head && !pool->woken && timeout_ns)
        if (pthread_cond_timedwait(&pool->news, &pool->lock, &until) == ETIMEDOUT)
            break;
    pool->woken = false;
    while (count < max && pool->finished.head)
        finished[count++] = list_pop(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
    return count;
}

static void pool_wake(struct sl_io_backend *backend)
{
    struct pool *pool = pool_of(backend);
    pthread_mutex_lock(&pool->lock);
    pool->woken = true;
    pthread_cond_signal(&pool->news);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_cancel(struct sl_io_backend *backend, struct sl_io *io)
{
    struct pool *pool = pool_of(backend);
    pthread_mutex_lock(&pool->lock);
    struct io_list kept = {0};
    for (struct sl_io *other; (other = list_pop(&pool->waiting));) {
        if (other == io) {
            io->result = -ECANCELED;
            list_push(&pool->finished, io);
        } else {
            list_push(&kept, other);
        }
    }
    pool->waiting = kept;
    pthread_cond_signal(&pool->news);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_destroy(struct sl_io_backend *backend)
{
    struct pool *pool = pool_of(backend);
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->news);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int sl_io_threads_create(struct sl_io_backend **out, const struct sl_io_setup *setup)
{
    static const struct sl_io_ops ops = {
        .queue = pool_queue,
        .flush = pool_flush,
        .reap = pool_reap,
        .wake = pool_wake,
        .cancel = pool_cancel,
        .destroy = pool_destroy,
    };
    struct pool *pool = calloc(1, sizeof(*pool) + setup->thread_count * sizeof(pthread_t));
    if (!pool)
        return -ENOMEM;
    pool->base.ops = &ops;
    pool->fds = setup->fds;
    pool->direct = setup->direct;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int code = 0;
    while (!code && pool->thread_count < setup->thread_count) {
        code = -pthread_create(&pool->threads[pool->thread_count], NULL, work, pool);
        pool->thread_count += !code;
    }
    if (code && !pool->thread_count) { /* fewer threads than wanted still work */
        pool_destroy(&pool->base);
        return code;
    }
    *out = &pool->base;
    return 0;
}
