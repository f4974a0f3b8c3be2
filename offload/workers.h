// SPDX-License-Identifier: Apache-2.0
/* The one pool of pinned threads that host compute and the CPU optimizer share.
 *
 * Work is given as a number of tasks that is a function of the problem alone, never of the thread
 * count, and each task is done by one thread: so results do not depend on the number of threads.
 * Several lanes may run tasks at once; the thread that calls sl_workers_run takes tasks itself.
 */
#ifndef SLUICE_OFFLOAD_WORKERS_H
#define SLUICE_OFFLOAD_WORKERS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/log.h"

struct sl_workers;

#define SL_WORKERS_SPARE_FROM 8u

struct sl_workers_options {
    size_t thread_count;      /* threads that compute, the caller's included; 0: by topology */
    /* Cores to leave to the threads of drives and devices, which need one from time to time while a
     * worker that loses its own holds up all others. Where thread_count is 0 and there are
     * SL_WORKERS_SPARE_FROM cores or more. */
    size_t cores_reserved;
    bool unpinned;            /* leave placement to the kernel */
    const struct sl_log *log; /* borrowed until destroy; NULL allowed */
};

/* Calls of at most this many lanes may be in sl_workers_run at the same time. */
#define SL_WORKERS_CALLERS_MAX 8

/* task_index in [0, task_count). worker_index in [0, sl_workers_index_count()), unique among tasks
 * that run at the same moment: an index into per-thread scratch. */
typedef void (*sl_task_fn)(void *arg, size_t task_index, size_t worker_index);

/* Threads  the pool starts thread_count - 1 threads
 * Owner    the caller owns *out until sl_workers_destroy
 * Errors   -EINVAL, -ENOMEM, -EAGAIN; *out is NULL on error */
int sl_workers_create(struct sl_workers **out, const struct sl_workers_options *options,
                      struct sl_error *error);

/* Waits for running tasks; NULL is allowed. */
void sl_workers_destroy(struct sl_workers *workers);

/* Threads that compute when one lane calls, the caller included. */
size_t sl_workers_thread_count(const struct sl_workers *workers);

/* Number of distinct worker_index values. */
size_t sl_workers_index_count(const struct sl_workers *workers);

/* Run all tasks and return when the last is done. Allocates nothing. task_count 0 returns at once.
 *
 * Threads  callable from SL_WORKERS_CALLERS_MAX threads at once, not from inside a task
 * Ordering what the caller wrote before is seen by every task; what tasks wrote is seen after */
void sl_workers_run(struct sl_workers *workers, size_t task_count, sl_task_fn task, void *arg);

#endif
