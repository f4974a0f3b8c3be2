// SPDX-License-Identifier: Apache-2.0
/* The worker pool.
 *
 * Problem   Phases of a few hundred microseconds (a layer's update, a matrix product) are handed to
 *           all cores many times per step, by several lanes at once, and nothing may be allocated.
 * Choice    Each call owns one of SL_WORKERS_CALLERS_MAX job slots. A slot's `claim` word packs a
 *           generation (24 bits) with the next task (40 bits): a thread reads the word, then the
 *           job's fields, then claims by compare-and-swap, which fails if the slot was reused in
 *           between. The caller works too, so a call makes progress even if every worker sleeps.
 *           Idle workers spin for a few microseconds, then sleep on a futex.
 * Rejected  Splitting tasks evenly beforehand: a core that is shared with I/O would then hold up
 * the others. A queue of jobs under a mutex: two lock hand-overs per task. OpenMP: it obeys
 *           OMP_NUM_THREADS=1, which launchers export, and it cannot serve two lanes at once.
 * Invariant The fields of a slot change only while its claim word is CLOSED; every claimed task is
 *           counted in `done` exactly once, and the caller returns only when done == count.
 */
#include "offload/workers.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "offload/topology.h"

#define CLAIM_INDEX_BITS 40
#define CLAIM_INDEX_MASK ((UINT64_C(1) << CLAIM_INDEX_BITS) - 1)
#define CLAIM_CLOSED CLAIM_INDEX_MASK

/* About 20 us of pauses: longer than the gap between two phases of one layer, shorter than what a
 * context switch costs a neighbour. Not used where threads outnumber cores. */
#define SPIN_MAX 1024

struct slot {
    _Alignas(64) _Atomic uint64_t claim;
    _Atomic(sl_task_fn) task;
    _Atomic(void *) arg;
    _Atomic uint64_t count;
    _Alignas(64) _Atomic uint64_t done;
    _Atomic uint32_t finished; /* futex: generation whose last task is done */
    _Atomic uint32_t waiting;
    _Atomic uint32_t owned;
};

struct worker {
    struct sl_workers *pool;
    pthread_t thread;
    size_t index;
    int cpu; /* -1: not pinned */
};

struct sl_workers {
    struct slot slots[SL_WORKERS_CALLERS_MAX];
    _Alignas(64) _Atomic uint32_t epoch; /* futex: changes with every job, and at the end */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    size_t thread_count;
    size_t started;
    unsigned spin_max;
    struct worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Claim and do tasks of one slot until none is left. True if at least one was done. */
static bool slot_work(struct slot *slot, size_t worker_index)
{
    bool worked = false;
    for (;;) {
        uint64_t seen = atomic_load_explicit(&slot->claim, memory_order_acquire);
        uint64_t index = seen & CLAIM_INDEX_MASK;
        sl_task_fn task = atomic_load_explicit(&slot->task, memory_order_relaxed);
        void *arg = atomic_load_explicit(&slot->arg, memory_order_relaxed);
        uint64_t count = atomic_load_explicit(&slot->count, memory_order_relaxed);
        /* Orders the three loads before the load inside the compare-and-swap. */
        atomic_thread_fence(memory_order_acquire);
        if (index == CLAIM_CLOSED || index >= count)
            return worked;
        if (!atomic_compare_exchange_weak_explicit(&slot->claim, &seen, seen + 1,
                                                   memory_order_acq_rel, memory_order_relaxed))
            continue;
        task(arg, (size_t)index, worker_index);
        worked = true;
        if (atomic_fetch_add_explicit(&slot->done, 1, memory_order_acq_rel) + 1 == count) {
            uint32_t generation = (uint32_t)(seen >> CLAIM_INDEX_BITS);
            /* Pairs with the caller's waiting = 1, then load of finished: one of the two sees the
             * other, so the wake cannot be lost. */
            atomic_store(&slot->finished, generation);
            if (atomic_load(&slot->waiting))
                futex_wake(&slot->finished, 1);
        }
    }
}

static bool pool_work(struct sl_workers *pool, size_t worker_index)
{
    bool worked = false;
    for (size_t i = 0; i < SL_WORKERS_CALLERS_MAX; i++)
        worked |= slot_work(&pool->slots[i], worker_index);
    return worked;
}

static void pin_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    /* A cpuset that shrank since the topology was read refuses: the thread then stays unpinned,
     * which is slower and not wrong. */
    (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

static void *worker_main(void *user)
{
    struct worker *worker = user;
    struct sl_workers *pool = worker->pool;
    if (worker->cpu >= 0)
        pin_to(worker->cpu);
    pthread_setname_np(pthread_self(), "sluice-worker");
    while (!atomic_load_explicit(&pool->stop, memory_order_acquire)) {
        uint32_t seen = atomic_load(&pool->epoch);
        if (pool_work(pool, worker->index))
            continue;
        unsigned spins = 0;
        while (spins < pool->spin_max && atomic_load(&pool->epoch) == seen) {
            pause_cpu();
            spins++;
        }
        if (atomic_load(&pool->epoch) != seen)
            continue;
        /* Pairs with run(): epoch + 1, then load of sleepers. The kernel compares epoch again. */
        atomic_fetch_add(&pool->sleepers, 1);
        futex_wait(&pool->epoch, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return NULL;
}

static void announce(struct sl_workers *pool, uint64_t wanted)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers) != 0)
        futex_wake(&pool->epoch, wanted > INT_MAX ? INT_MAX : (int)wanted);
}

static size_t slot_take(struct sl_workers *pool)
{
    for (;;) {
        for (size_t i = 0; i < SL_WORKERS_CALLERS_MAX; i++) {
            uint32_t expected = 0;
            if (atomic_compare_exchange_strong_explicit(&pool->slots[i].owned, &expected, 1,
                                                        memory_order_acquire, memory_order_relaxed))
                return i;
        }
        sched_yield(); /* more callers than the contract allows: they queue here */
    }
}

static void slot_wait(struct sl_workers *pool, struct slot *slot, uint32_t generation)
{
    for (unsigned spins = 0; spins < pool->spin_max; spins++) {
        if (atomic_load_explicit(&slot->finished, memory_order_acquire) == generation)
            return;
        pause_cpu();
    }
    atomic_store(&slot->waiting, 1);
    uint32_t finished;
    while ((finished = atomic_load(&slot->finished)) != generation)
        futex_wait(&slot->finished, finished);
    atomic_store_explicit(&slot->waiting, 0, memory_order_relaxed);
}

void sl_workers_run(struct sl_workers *pool, size_t task_count, sl_task_fn task, void *arg)
{
    assert(task_count < CLAIM_CLOSED);
    if (task_count == 0)
        return;
    size_t slot_index = slot_take(pool);
    struct slot *slot = &pool->slots[slot_index];
    size_t worker_index = pool->started + slot_index;

    uint64_t closed = atomic_load_explicit(&slot->claim, memory_order_relaxed);
    uint32_t generation = (uint32_t)((closed >> CLAIM_INDEX_BITS) + 1) & 0xffffffu;
    uint64_t base = (uint64_t)generation << CLAIM_INDEX_BITS;
    /* Close, then change the fields, then open: a reader that saw a mixture fails its claim. */
    atomic_store(&slot->claim, base | CLAIM_CLOSED);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot->task, task, memory_order_relaxed);
    atomic_store_explicit(&slot->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&slot->count, task_count, memory_order_relaxed);
    atomic_store_explicit(&slot->done, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->claim, base, memory_order_release);

    if (task_count > 1 && pool->started > 0)
        announce(pool, task_count - 1);
    slot_work(slot, worker_index);
    slot_wait(pool, slot, generation);
    atomic_store_explicit(&slot->owned, 0, memory_order_release);
}

size_t sl_workers_thread_count(const struct sl_workers *pool)
{
    return pool->thread_count;
}

size_t sl_workers_index_count(const struct sl_workers *pool)
{
    return pool->started + SL_WORKERS_CALLERS_MAX;
}

/* Threads for this machine: one per usable core, within the quota, less what is kept for others. */
static size_t choose_count(const struct sl_topology *topology,
                           const struct sl_workers_options *options)
{
    size_t count = topology->core_count;
    if (topology->cpu_quota > 0 && (double)count > topology->cpu_quota)
        count = (size_t)(topology->cpu_quota + 0.5);
    if (count == 0)
        count = 1;
    if (count >= SL_WORKERS_SPARE_FROM)
        count -= count > options->cores_reserved ? options->cores_reserved : count - 1;
    const char *omp = getenv("OMP_NUM_THREADS");
    if (omp && strtoul(omp, NULL, 10) != count)
        sl_log_write(options->log, SL_LOG_INFO,
                     "OMP_NUM_THREADS=%s is not obeyed: %zu compute threads on %zu usable cores; "
                     "set the thread count to choose another number",
                     omp, count, topology->core_count);
    return count;
}

static int start_workers(struct sl_workers *pool, const struct sl_topology *topology, bool pinned,
                         struct sl_error *error)
{
    for (size_t i = 0; i + 1 < pool->thread_count; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i;
        /* The first core is left to the calling lane. */
        worker->cpu = pinned && i + 1 < topology->core_count ? topology->cores[i + 1].cpu : -1;
        int rc = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (rc != 0)
            return sl_error_set(error, SL_DOMAIN_MEMORY, -rc,
                                "worker thread %zu of %zu: %s; lower the thread count or raise "
                                "the process limit (ulimit -u)",
                                i + 1, pool->thread_count - 1, strerror(rc));
        pool->started++;
    }
    return 0;
}

int sl_workers_create(struct sl_workers **out, const struct sl_workers_options *options,
                      struct sl_error *error)
{
    *out = NULL;
    struct sl_topology topology;
    int rc = sl_topology_read(&topology, NULL, error);
    if (rc < 0)
        return rc;
    if (options->thread_count > SL_TOPOLOGY_CORES_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "thread count %zu: at most %d; give a smaller number or 0 for one "
                            "per core",
                            options->thread_count, SL_TOPOLOGY_CORES_MAX);
    size_t count = options->thread_count ? options->thread_count : choose_count(&topology, options);
    size_t bytes = sizeof(struct sl_workers) + count * sizeof(struct worker);
    bytes = (bytes + 63) & ~(size_t)63;
    struct sl_workers *pool = aligned_alloc(64, bytes);
    if (!pool)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%zu bytes for %zu workers", bytes,
                            count);
    memset(pool, 0, bytes);
    pool->thread_count = count;
    for (size_t i = 0; i < SL_WORKERS_CALLERS_MAX; i++)
        atomic_init(&pool->slots[i].claim, CLAIM_CLOSED);
    pool->spin_max = count <= topology.core_count ? SPIN_MAX : 0;
    rc = start_workers(pool, &topology, !options->unpinned && count <= topology.core_count, error);
    if (rc < 0) {
        sl_workers_destroy(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void sl_workers_destroy(struct sl_workers *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, INT_MAX);
    for (size_t i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool);
}
