// SPDX-License-Identifier: Apache-2.0
/* Random reads and writes of a swap space against a model of it in memory.
 *
 * Up to IN_FLIGHT requests are out at once; one that overlaps a request in flight is not submitted
 * before that has ended, which is the caller's duty. A request that succeeds must agree with the
 * model, whatever the device does. Include after "tests/test.h".
 */
#ifndef SLUICE_TESTS_NVME_SWAP_MODEL_H
#define SLUICE_TESTS_NVME_SWAP_MODEL_H

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvme/swap.h"

enum { MODEL_IN_FLIGHT = 12, MODEL_UNIT = 4096, MODEL_UNITS_MAX = 40 };

struct model_place {
    struct sl_swap_request request;
    struct model *model;
    bool busy;
    atomic_bool ended;
    int calls, result;
    char *buffer;
};

struct model {
    struct sl_swap *swap;
    uint64_t units;
    char *bytes;           /* what the swap space holds */
    unsigned char *locked; /* [units] in flight */
    sem_t news;
    struct model_place places[MODEL_IN_FLIGHT];
    struct test_random random;
    int first_error; /* in order of return */
    uint64_t errors, reads, writes;
};

static char model_directory[128];

static inline const char *model_root(void)
{
    const char *root = getenv("SLUICE_TEST_TMP");
    return root ? root : "/tmp";
}

static inline int model_make_directory(void **state)
{
    (void)state;
    snprintf(model_directory, sizeof(model_directory), "%s/sluice-test-XXXXXX", model_root());
    return mkdtemp(model_directory) ? 0 : -1;
}

/* Fails where the swap space left anything behind. */
static inline int model_remove_directory(void **state)
{
    (void)state;
    return rmdir(model_directory);
}

static inline struct sl_swap *model_create_swap(struct sl_swap_options options)
{
    const char *paths[] = {model_directory};
    if (!options.paths) {
        options.paths = paths;
        options.path_count = 1;
    }
    struct sl_swap *swap = NULL;
    struct sl_error error = {0};
    int code = sl_swap_create(&swap, &options, &error);
    if (code)
        print_message("%s\n", error.message);
    assert_int_equal(code, 0);
    return swap;
}

static inline void *model_buffer(uint64_t bytes)
{
    void *buffer = aligned_alloc(SL_SWAP_ALIGNMENT, bytes);
    assert_non_null(buffer);
    return buffer;
}

static inline void model_fill(struct test_random *random, void *buffer, uint64_t bytes)
{
    uint64_t *words = buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = test_random_u64(random);
}

static inline void model_init(struct model *model, struct sl_swap *swap, uint64_t bytes,
                              struct test_random random)
{
    *model = (struct model){.swap = swap, .units = bytes / MODEL_UNIT, .random = random};
    model->bytes = calloc(1, bytes); /* unwritten reads as zeros */
    model->locked = calloc(1, model->units);
    sem_init(&model->news, 0, 0);
    for (int i = 0; i < MODEL_IN_FLIGHT; i++) {
        model->places[i].model = model;
        model->places[i].buffer = model_buffer((uint64_t)MODEL_UNITS_MAX * MODEL_UNIT);
    }
}

static inline void model_finish(struct model *model)
{
    for (int i = 0; i < MODEL_IN_FLIGHT; i++)
        free(model->places[i].buffer);
    sem_destroy(&model->news);
    free(model->locked);
    free(model->bytes);
}

static inline void model_done(struct sl_swap_request *request, int result)
{
    struct model_place *place = request->user;
    place->result = result;
    place->calls++;
    struct model *model = place->model;
    atomic_store(&place->ended, true);
    sem_post(&model->news);
}

/* Compare and release what has ended. */
static inline void model_collect(struct model *model)
{
    for (int i = 0; i < MODEL_IN_FLIGHT; i++) {
        struct model_place *place = &model->places[i];
        if (!place->busy || !atomic_exchange(&place->ended, false))
            continue;
        const struct sl_swap_request *request = &place->request;
        assert_int_equal(place->calls, 1);
        if (place->result) {
            model->errors++;
            if (!model->first_error)
                model->first_error = place->result;
        } else if (!request->write) {
            assert_memory_equal(place->buffer, model->bytes + request->offset_bytes,
                                request->bytes);
        }
        memset(model->locked + request->offset_bytes / MODEL_UNIT, 0, request->bytes / MODEL_UNIT);
        place->busy = false;
    }
}

static inline void model_wait(struct model *model)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    assert_int_equal(sem_timedwait(&model->news, &limit), 0); /* never a hang */
    model_collect(model);
}

static inline bool model_is_locked(const struct model *model, uint64_t unit, uint64_t count)
{
    return memchr(model->locked + unit, 1, count) != NULL;
}

static inline struct model_place *model_free_place(struct model *model)
{
    for (;;) {
        for (int i = 0; i < MODEL_IN_FLIGHT; i++)
            if (!model->places[i].busy)
                return &model->places[i];
        model_wait(model);
    }
}

static inline void model_operation(struct model *model)
{
    struct test_random *random = &model->random;
    struct model_place *place = model_free_place(model);
    uint64_t count = 1 + test_random_below(random, test_random_below(random, MODEL_UNITS_MAX) + 1);
    uint64_t unit = test_random_below(random, model->units - count + 1);
    bool write = test_random_below(random, 2);
    while (model_is_locked(model, unit, count))
        model_wait(model);
    uint64_t bytes = count * MODEL_UNIT;
    if (write) {
        model_fill(random, place->buffer, bytes);
        memcpy(model->bytes + unit * MODEL_UNIT, place->buffer, bytes);
    }
    memset(model->locked + unit, 1, count);
    place->busy = true;
    place->calls = 0;
    place->request = (struct sl_swap_request){.write = write,
                                              .offset_bytes = unit * MODEL_UNIT,
                                              .bytes = bytes,
                                              .buffer = place->buffer,
                                              .done = model_done,
                                              .user = place};
    *(write ? &model->writes : &model->reads) += 1;
    sl_swap_submit(model->swap, &place->request);
}

static inline void model_drain(struct model *model)
{
    for (int i = 0; i < MODEL_IN_FLIGHT; i++)
        while (model->places[i].busy)
            model_wait(model);
}

/* Run `count` operations, then read everything once. Stops at the first error. */
static inline void model_run(struct model *model, uint64_t count)
{
    for (uint64_t i = 0; i < count && !model->errors; i++)
        model_operation(model);
    model_drain(model);
    char *all = model_buffer(model->units * MODEL_UNIT);
    int code = sl_swap_transfer(model->swap, false, 0, all, model->units * MODEL_UNIT);
    if (code && !model->first_error)
        model->first_error = code;
    if (!code)
        assert_memory_equal(all, model->bytes, model->units * MODEL_UNIT);
    free(all);
}

#endif
