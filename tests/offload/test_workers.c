// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "offload/topology.h"
#include "offload/workers.h"

static struct sl_workers *make(size_t threads)
{
    struct sl_workers *workers = NULL;
    struct sl_error error = {0};
    struct sl_workers_options options = {.thread_count = threads};
    int rc = sl_workers_create(&workers, &options, &error);
    if (rc < 0)
        fail_msg("%s", error.message);
    return workers;
}

#define TASKS_MAX 5000

struct job {
    struct sl_workers *workers;
    _Atomic uint32_t done[TASKS_MAX];
    _Atomic uint32_t *busy; /* per worker index: shared by all jobs of a test */
    _Atomic uint32_t faults;
    uint64_t seed;
};

static void mark(void *arg, size_t task, size_t worker)
{
    struct job *job = arg;
    if (worker >= sl_workers_index_count(job->workers) ||
        atomic_fetch_add(&job->busy[worker], 1) != 0)
        atomic_fetch_add(&job->faults, 1);
    for (volatile int spin = (int)((task * 2654435761u) >> 24 & 63); spin > 0; spin--)
        ;
    atomic_fetch_add(&job->done[task], 1);
    atomic_fetch_sub(&job->busy[worker], 1);
}

static void check_job(struct job *job, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(atomic_load(&job->done[i]), 1);
    assert_int_equal(atomic_load(&job->faults), 0);
}

static void every_task_runs_once(void **state)
{
    (void)state;
    static const size_t threads[] = {1, 2, 3, 8};
    static const size_t counts[] = {0, 1, 2, 3, 7, 64, TASKS_MAX};
    static struct job job;
    for (size_t t = 0; t < 4; t++) {
        struct sl_workers *workers = make(threads[t]);
        assert_int_equal(sl_workers_thread_count(workers), threads[t]);
        _Atomic uint32_t *busy = calloc(sl_workers_index_count(workers), sizeof(*busy));
        for (size_t repeat = 0; repeat < 20; repeat++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                memset(&job, 0, sizeof(job));
                job.workers = workers;
                job.busy = busy;
                sl_workers_run(workers, counts[c], mark, &job);
                check_job(&job, counts[c]);
                assert_int_equal(atomic_load(&job.done[counts[c] % TASKS_MAX]),
                                 counts[c] == TASKS_MAX);
            }
        free(busy);
        sl_workers_destroy(workers);
    }
}

static void *caller(void *arg)
{
    struct job *job = arg;
    struct test_random random = {job->seed};
    for (int repeat = 0; repeat < 300; repeat++) {
        size_t count = 1 + test_random_below(&random, 40);
        for (size_t i = 0; i < count; i++)
            atomic_store(&job->done[i], 0);
        sl_workers_run(job->workers, count, mark, job);
        for (size_t i = 0; i < count; i++)
            if (atomic_load(&job->done[i]) != 1)
                atomic_fetch_add(&job->faults, 1);
    }
    return NULL;
}

/* More callers than the contract's at once, too: they queue. */
static void callers_share_the_pool(void **state)
{
    (void)state;
    static const size_t callers[] = {2, SL_WORKERS_CALLERS_MAX, SL_WORKERS_CALLERS_MAX + 3};
    static struct job jobs[SL_WORKERS_CALLERS_MAX + 3];
    struct sl_workers *workers = make(3);
    _Atomic uint32_t *busy = calloc(sl_workers_index_count(workers), sizeof(*busy));
    for (size_t c = 0; c < 3; c++) {
        pthread_t threads[SL_WORKERS_CALLERS_MAX + 3];
        memset(jobs, 0, sizeof(jobs));
        for (size_t i = 0; i < callers[c]; i++) {
            jobs[i].workers = workers;
            jobs[i].busy = busy;
            jobs[i].seed = 100 * c + i;
            assert_int_equal(pthread_create(&threads[i], NULL, caller, &jobs[i]), 0);
        }
        for (size_t i = 0; i < callers[c]; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(atomic_load(&jobs[i].faults), 0);
        }
    }
    free(busy);
    sl_workers_destroy(workers);
}

static void add_plain(void *arg, size_t task, size_t worker)
{
    (void)worker;
    uint64_t *values = arg;
    values[task] = 3 * values[task] + 1;
}

/* Plain memory: what the caller wrote is seen by tasks, what tasks wrote is seen by the caller. */
static void memory_is_ordered(void **state)
{
    (void)state;
    struct sl_workers *workers = make(2);
    uint64_t values[64], expected[64];
    for (size_t i = 0; i < 64; i++)
        values[i] = expected[i] = i;
    for (int repeat = 0; repeat < 5000; repeat++) {
        sl_workers_run(workers, 64, add_plain, values);
        for (size_t i = 0; i < 64; i++) {
            expected[i] = 3 * expected[i] + 1;
            assert_true(values[i] == expected[i]);
            values[i] ^= (uint64_t)repeat;
            expected[i] ^= (uint64_t)repeat;
        }
    }
    sl_workers_destroy(workers);
}

static void idle_workers_wake(void **state)
{
    (void)state;
    struct sl_workers *workers = make(2);
    uint64_t values[2] = {0, 0};
    for (int repeat = 0; repeat < 20; repeat++) {
        struct timespec pause = {0, 2000000}; /* longer than any spin: they sleep */
        nanosleep(&pause, NULL);
        sl_workers_run(workers, 2, add_plain, values);
    }
    assert_true(values[0] == values[1] && values[0] == 1743392200); /* (3^20 - 1) / 2 */
    sl_workers_destroy(workers);
}

struct log_lines {
    int count;
    char last[1024];
};

static void keep_line(void *user, enum sl_log_level level, const char *message)
{
    (void)level;
    struct log_lines *lines = user;
    lines->count++;
    snprintf(lines->last, sizeof(lines->last), "%s", message);
}

static void omp_num_threads_is_not_obeyed_silently(void **state)
{
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    struct log_lines lines = {0};
    struct sl_log log = {keep_line, &lines};
    struct sl_workers_options options = {.log = &log};
    struct sl_workers *workers;
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(sl_workers_create(&workers, &options, NULL), 0);
    if (sl_workers_thread_count(workers) > 1) {
        assert_int_equal(lines.count, 1);
        assert_non_null(strstr(lines.last, "OMP_NUM_THREADS=1 is not obeyed"));
    }
    sl_workers_destroy(workers);
    unsetenv("OMP_NUM_THREADS");
}

static size_t thread_count_of(const struct sl_workers_options *options)
{
    struct sl_workers *workers;
    struct sl_error error = {0};
    if (sl_workers_create(&workers, options, &error) < 0)
        fail_msg("%s", error.message);
    size_t count = sl_workers_thread_count(workers);
    sl_workers_destroy(workers);
    return count;
}

/* On a machine of two nodes with four cores of two hardware threads each, which hwloc makes up. */
static void reserved_cores_are_left_alone(void **state)
{
    (void)state;
    static struct sl_topology topology;
    setenv("HWLOC_SYNTHETIC", "numanode:2 core:4 pu:2", 1);
    assert_int_equal(sl_topology_read(&topology, NULL, NULL), 0);
    assert_int_equal(topology.node_count, 2);
    assert_int_equal(topology.core_count, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(topology.cores[i].node, i / 4);
    size_t all = 8; /* the quota of this process's own control group holds here too */
    if (topology.cpu_quota > 0 && topology.cpu_quota < 8)
        all = topology.cpu_quota < 1.5 ? 1 : (size_t)(topology.cpu_quota + 0.5);
    static const size_t reserved[] = {0, 1, 2, 7, 8, 1000};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        struct sl_workers_options options = {.cores_reserved = reserved[i]};
        size_t left = all > reserved[i] ? all - reserved[i] : 1; /* one remains */
        if (all < SL_WORKERS_SPARE_FROM)
            left = all;
        assert_int_equal(thread_count_of(&options), left);
        options.thread_count = 5; /* a number that is asked for is not lessened */
        assert_int_equal(thread_count_of(&options), 5);
    }
    unsetenv("HWLOC_SYNTHETIC");
}

static void absurd_counts_are_refused(void **state)
{
    (void)state;
    struct sl_workers *workers = (struct sl_workers *)1;
    struct sl_error error = {0};
    struct sl_workers_options options = {.thread_count = 1000000};
    assert_int_equal(sl_workers_create(&workers, &options, &error), -EINVAL);
    assert_null(workers);
    assert_non_null(strstr(error.message, "1000000"));
    sl_workers_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(callers_share_the_pool),
        cmocka_unit_test(memory_is_ordered),
        cmocka_unit_test(idle_workers_wake),
        cmocka_unit_test(omp_num_threads_is_not_obeyed_silently),
        cmocka_unit_test(reserved_cores_are_left_alone),
        cmocka_unit_test(absurd_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
