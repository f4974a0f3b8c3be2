// SPDX-License-Identifier: Apache-2.0
/* The executor against the sequential program that a plan means: random plans, many instances in a
 * random order of segments, and every byte of the persistent slots the same afterwards.
 *
 * Operations of the COMPUTE lane copy pieces of what they read over what they write, queued on the
 * compute stream; operations of the CPU lane write a hash of all that they read. An operation that
 * starts too early, or memory that is used again too early, ends in other bytes.
 *
 * The host's discrete device runs as it is and as a queued device (its copies are asynchronous, so
 * events matter and ThreadSanitizer sees every thread); tests/cudasim runs the same on the
 * simulated CUDA device, whose streams do nothing until somebody waits.
 */
#include "tests/offload/random_plan.h"

#include <string.h>

#include "offload/executor.h"
#include "offload/workers.h"

#ifdef TEST_CUDASIM
#include "tests/cudasim/sim.h"
#endif

#define INSTANCES 12u
#define PIECES 5u

struct world {
    struct sl_plan plan;
    struct random_plan random_plan;
    struct sl_device *device;
    struct sl_executor *executor; /* NULL: the sequential run */
    unsigned char *arena[SL_TIER_COUNT];
};

static void *slot_of(const struct world *w, uint32_t slot)
{
    const struct sl_slot *s = &w->plan.slots[slot];
    return w->arena[sl_plan_arena(&w->plan, s->tier)] + s->offset;
}

static int move(const struct world *w, void *to, const void *from, uint64_t bytes)
{
    if (w->executor)
        return w->device->ops->copy(w->device, SL_STREAM_COMPUTE, to, from, bytes);
    memmove(to, from, bytes);
    return 0;
}

/* Pieces of `to` from the slots that the operation reads, in turn. */
static int mix(const struct world *w, const struct sl_op *op, uint32_t to)
{
    const struct sl_access *access = &w->plan.accesses[op->access_first];
    uint64_t bytes = w->plan.slots[to].bytes, at = 0;
    int result = 0;
    for (uint32_t i = 0; at < bytes && !result; i++) {
        const struct sl_access *a = &access[i % op->access_count];
        uint64_t size = w->plan.slots[a->slot].bytes, piece = bytes / PIECES + 1;
        uint64_t part = piece < bytes - at ? piece : bytes - at;
        part = part < size ? part : size;
        if (a->write || a->slot == to)
            continue;
        uint64_t from = (at + op->lane_index * 64) % (size - part + 1);
        result = move(w, (unsigned char *)slot_of(w, to) + at,
                      (unsigned char *)slot_of(w, a->slot) + from, part);
        at += part;
    }
    return result;
}

static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static int run_op(void *user, const struct sl_op *op, void *context, struct sl_error *error)
{
    (void)error;
    const struct world *w = user;
    const struct sl_access *access = &w->plan.accesses[op->access_first];
    uint64_t hash = 0xcbf29ce484222325u ^ *(const uint64_t *)context;
    int result = 0;
    for (uint32_t i = 0; i < op->access_count && op->lane == SL_LANE_CPU; i++)
        if (!access[i].write)
            hash =
                hash_bytes(hash, slot_of(w, access[i].slot), w->plan.slots[access[i].slot].bytes);
    for (uint32_t i = 0; i < op->access_count && !result; i++) {
        if (!access[i].write)
            continue;
        if (op->lane == SL_LANE_COMPUTE) {
            result = mix(w, op, access[i].slot);
            continue;
        }
        unsigned char *to = slot_of(w, access[i].slot);
        for (uint64_t at = 0; at < w->plan.slots[access[i].slot].bytes; at++)
            to[at] = (unsigned char)((hash += 0x9e3779b97f4a7c15u) >> 56);
    }
    return result;
}

/* The sequential program: every operation in program order, copies by hand. */
static void run_in_order(struct world *w, uint32_t segment, uint64_t *context)
{
    const struct sl_segment *s = &w->plan.segments[segment];
    struct sl_error error = {0};
    for (uint32_t i = s->op_first; i < s->op_first + s->op_count; i++) {
        const struct sl_op *op = &w->plan.ops[i];
        if (op->kind == SL_OP_UPLOAD || op->kind == SL_OP_DOWNLOAD)
            memcpy(slot_of(w, sl_plan_op_slot(&w->plan, op, true, 0)),
                   slot_of(w, sl_plan_op_slot(&w->plan, op, false, 0)), op->bytes);
        else
            assert_int_equal(run_op(w, op, context, &error), 0);
    }
}

/* Nothing on NVMe: the swap space has its own tests, and the lanes in question are the others. */
static void build_world(struct world *w, struct test_random *random, bool unified)
{
    struct random_options o = random_plan_options(random);
    o.unified = unified;
    memset(o.weights_nvme, 0, sizeof(o.weights_nvme));
    memset(o.optimizer_nvme, 0, sizeof(o.optimizer_nvme));
    memset(w, 0, sizeof(*w));
    random_plan_build(&w->random_plan, &w->plan, o);
}

static unsigned char *host_arena(uint64_t bytes)
{
    unsigned char *memory = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
    assert_non_null(memory);
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)(i * 31 + (i >> 8));
    return memory;
}

/* Segments that may follow one another, drawn once for both runs. */
static void draw_segments(const struct sl_plan *plan, struct test_random *random,
                          uint32_t segments[INSTANCES])
{
    segments[0] = 0;
    for (uint32_t n = 1; n < INSTANCES; n++)
        do
            segments[n] = (uint32_t)test_random_below(random, plan->segment_count);
        while (!plan->segments[segments[n]].follows[segments[n - 1]]);
}

static void expect_persistent(const struct world *want, const struct world *got)
{
    for (uint32_t i = 0; i < want->plan.slot_count; i++) {
        const struct sl_slot *s = &want->plan.slots[i];
        if (!s->persistent || s->parent != SL_PLAN_NONE)
            continue;
        if (memcmp(slot_of(want, i), slot_of(got, i), s->bytes) != 0)
            fail_msg("slot %s (%s) differs", s->name, sl_tier_name(s->tier));
    }
}

static void run_world(struct world *w, struct sl_device *device, const uint32_t *segments,
                      const uint64_t *contexts)
{
    const struct sl_device_ops *ops = device->ops;
    uint64_t device_bytes = w->plan.tier_bytes[SL_TIER_DEVICE];
    uint64_t host_bytes = w->plan.tier_bytes[SL_TIER_HOST];
    void *memory = NULL;
    struct sl_error error = {0};
    unsigned char *first = host_arena(device_bytes);
    w->device = device;
    w->arena[SL_TIER_HOST] = host_arena(host_bytes);
    int registered = ops->host_register(device, w->arena[SL_TIER_HOST], host_bytes);
    assert_int_equal(ops->memory_alloc(device, device_bytes, &memory), 0);
    assert_int_equal(ops->copy(device, SL_STREAM_H2D, memory, first, device_bytes), 0);
    assert_int_equal(ops->stream_synchronize(device, SL_STREAM_H2D), 0);
    w->arena[SL_TIER_DEVICE] = memory;
    struct sl_executor_options options = {.plan = &w->plan,
                                          .device = device,
                                          .arena = {memory, w->arena[SL_TIER_HOST]},
                                          .runner = run_op,
                                          .user = w};
    assert_int_equal(sl_executor_create(&w->executor, &options, &error), 0);
    for (uint32_t n = 0; n < INSTANCES; n++)
        assert_int_equal(sl_executor_submit(w->executor, segments[n], 0, (void *)&contexts[n]), 0);
    assert_int_equal(sl_executor_wait(w->executor, 0), 0);
    struct sl_executor_stats stats;
    sl_executor_stats(w->executor, &stats);
    assert_true(stats.bytes[SL_LANE_COMPUTE] > 0);
    sl_executor_destroy(w->executor);
    /* back to the host, where the slots are compared */
    assert_int_equal(ops->copy(device, SL_STREAM_D2H, first, memory, device_bytes), 0);
    assert_int_equal(ops->stream_synchronize(device, SL_STREAM_D2H), 0);
    if (registered == 0)
        ops->host_unregister(device, w->arena[SL_TIER_HOST], host_bytes);
    ops->memory_free(device, memory, device_bytes);
    w->arena[SL_TIER_DEVICE] = first;
}

static void free_world(struct world *w)
{
    free(w->arena[SL_TIER_DEVICE]);
    free(w->arena[SL_TIER_HOST]);
    sl_plan_finish(&w->plan);
}

/* One random plan, in order and by the executor. */
static void compare(struct sl_device *device, uint64_t seed)
{
    struct test_random random = test_random_seed(seed), again = random;
    struct world want, got;
    uint32_t segments[INSTANCES];
    uint64_t contexts[INSTANCES];
    build_world(&want, &random, false);
    build_world(&got, &again, false);
    draw_segments(&want.plan, &random, segments);
    want.arena[SL_TIER_DEVICE] = host_arena(want.plan.tier_bytes[SL_TIER_DEVICE]);
    want.arena[SL_TIER_HOST] = host_arena(want.plan.tier_bytes[SL_TIER_HOST]);
    for (uint32_t n = 0; n < INSTANCES; n++) {
        contexts[n] = n;
        run_in_order(&want, segments[n], &contexts[n]);
    }
    run_world(&got, device, segments, contexts);
    expect_persistent(&want, &got);
    free_world(&want);
    free_world(&got);
}

#ifndef TEST_CUDASIM

static int elapsed(struct sl_device *device, struct sl_event *begin, struct sl_event *end,
                   uint64_t *ns)
{
    (void)device, (void)begin, (void)end;
    *ns = 1000;
    return 0;
}

static void discrete(bool queued)
{
    struct sl_error error = {0};
    struct sl_workers *workers = NULL;
    struct sl_device *device = NULL;
    struct sl_workers_options pool = {.thread_count = 2, .unpinned = true};
    assert_int_equal(sl_workers_create(&workers, &pool, &error), 0);
    struct sl_device_options options = {
        .name = "host:discrete", .precision = SL_F32, .workers = workers};
    assert_int_equal(sl_device_create(&device, &options, &error), 0);
    struct sl_device_ops ops = *device->ops;
    const struct sl_device_ops *own = device->ops;
    ops.event_elapsed = elapsed;
    if (queued) {
        device->ops = &ops;
        device->properties.queued = true;
    }
    for (uint64_t seed = 1; seed <= 12; seed++)
        compare(device, seed);
    device->ops = own;
    sl_device_destroy(device);
    sl_workers_destroy(workers);
}

static void one_at_a_time(void **state)
{
    (void)state;
    discrete(false);
}

static void queued_ahead(void **state)
{
    (void)state;
    discrete(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_at_a_time),
                                       cmocka_unit_test(queued_ahead)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void queued_in_any_stream_order(void **state)
{
    (void)state;
    struct sim sim;
    sim_open(&sim, SL_F32);
    for (int order = CUDASIM_STREAMS_LAZY; order <= CUDASIM_STREAMS_SHUFFLED; order++)
        for (uint64_t seed = 1; seed <= 8; seed++) {
            SIM_CALL(cudasim_set_stream_order, (enum cudasim_stream_order)order, seed);
            compare(sim.cuda, seed);
        }
    sim_close(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(queued_in_any_stream_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
