// SPDX-License-Identifier: Apache-2.0
/* The CUDA device on the simulated runtime: how it opens, how it fails, and what order it keeps.
 * The order tests run under streams that do nothing early, everything early, and anything between;
 * each has a twin without its wait that must go wrong, or it would prove nothing. */
#include "tests/cudasim/sim.h"

#include <errno.h>

static struct {
    unsigned lines;
    char text[1024];
} logged;

static void log_line(void *user, enum sl_log_level level, const char *message)
{
    (void)user, (void)level;
    logged.lines++;
    snprintf(logged.text, sizeof(logged.text), "%s", message);
}

static const struct sl_log test_log = {log_line, NULL};

static int try_open(const char *name, struct sl_device **out, struct sl_error *error)
{
    struct sl_device_options options = {.name = name, .precision = SL_BF16, .log = &test_log};
    memset(error, 0, sizeof(*error));
    logged.lines = 0;
    return sl_device_create(out, &options, error);
}

static void expect_refusal(const char *name, int code, const char *part)
{
    struct sl_device *device = NULL;
    struct sl_error error;
    assert_int_equal(try_open(name, &device, &error), code);
    assert_null(device);
    assert_int_equal(error.code, code);
    if (!strstr(error.message, part))
        fail_msg("\"%s\" does not say \"%s\"", error.message, part);
}

static int reset(void **state)
{
    (void)state;
    SIM_CALL(cudasim_reset);
    return 0;
}

/* Before the module is loaded for the first time. */
static void a_module_that_is_not_there_is_named(void **state)
{
    (void)state;
    char *module = strdup(getenv("SLUICE_CUDA_MODULE"));
    assert_int_equal(setenv("SLUICE_CUDA_MODULE", "/nowhere/libsluice-cuda.so", 1), 0);
    expect_refusal("cuda", -ENODEV, "/nowhere/libsluice-cuda.so");
    assert_int_equal(setenv("SLUICE_CUDA_MODULE", module, 1), 0);
    free(module);
}

static void opening_says_what_is_missing(void **state)
{
    (void)state;
    SIM_CALL(cudasim_driver_version, 0);
    expect_refusal("cuda", -ENODEV, "no NVIDIA driver");
    SIM_CALL(cudasim_driver_version, 11040);
    expect_refusal("cuda", -ENODEV, "too old: it serves CUDA 11.4, this module needs 13.0");
    SIM_CALL(cudasim_reset);
    SIM_CALL(cudasim_devices, 0);
    expect_refusal("cuda:0", -ENODEV, "no NVIDIA GPU is visible");
    SIM_CALL(cudasim_devices, 2);
    expect_refusal("cuda:2", -ENODEV, "this machine has 2 GPUs");
    SIM_CALL(cudasim_memory, (uint64_t)40 << 20);
    expect_refusal("cuda", -ENOMEM, "of 40 MiB free");
    expect_refusal("cuda:x", -EINVAL, "unknown");
    expect_refusal("cuda:", -EINVAL, "unknown");
    assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
}

static void auto_without_a_gpu_is_the_host_and_says_so(void **state)
{
    (void)state;
    struct sl_device *device = NULL;
    struct sl_error error = {0};
    struct sl_workers *workers = NULL;
    struct sl_workers_options pool = {.thread_count = 1, .unpinned = true};
    assert_int_equal(sl_workers_create(&workers, &pool, &error), 0);
    struct sl_device_options options = {
        .name = "auto", .precision = SL_BF16, .workers = workers, .log = &test_log};
    SIM_CALL(cudasim_devices, 0);
    logged.lines = 0;
    assert_int_equal(sl_device_create(&device, &options, &error), 0);
    assert_int_equal(device->properties.kind, SL_DEVICE_HOST);
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.text, "no NVIDIA GPU is visible"));
    sl_device_destroy(device);
    SIM_CALL(cudasim_devices, 1);
    assert_int_equal(sl_device_create(&device, &options, &error), 0);
    if (device->properties.kind != SL_DEVICE_CUDA)
        fail_msg("%s", logged.text);
    sl_device_destroy(device);
    sl_workers_destroy(workers);
}

static struct sl_device *open_cuda(void)
{
    struct sl_device *device = NULL;
    struct sl_error error;
    if (try_open("cuda", &device, &error))
        fail_msg("%s", error.message);
    return device;
}

/* Every allocation of the opening fails once: an error each time, and nothing is left behind. */
static void opening_survives_each_failed_allocation(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        SIM_CALL(cudasim_fail, CUDASIM_FAULT_MALLOC, nth);
        expect_refusal("cuda", -ENOMEM, "no room for workspace and scratch");
        assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
    }
    sl_device_destroy(open_cuda());
}

/* Every fifth kernel launch of the opening fails. */
static void opening_survives_each_failed_launch(void **state)
{
    (void)state;
    uint64_t before = SIM_CALL(cudasim_launches);
    sl_device_destroy(open_cuda());
    uint64_t launches = SIM_CALL(cudasim_launches) - before;
    assert_true(launches > 20);
    for (uint64_t nth = 1; nth <= launches; nth += 5) {
        SIM_CALL(cudasim_fail, CUDASIM_FAULT_LAUNCH, nth);
        expect_refusal("cuda", -EIO, "cudaErrorLaunchFailure");
        SIM_CALL(cudasim_reset);
        assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
    }
}

static void fixed_lines_cover_what_the_device_holds(void **state)
{
    (void)state;
    struct sl_device *device = open_cuda();
    uint64_t listed = 0;
    for (size_t i = 0; i < device->properties.fixed_count; i++)
        listed += device->properties.fixed[i].bytes_device;
    assert_true(listed >= SIM_CALL(cudasim_memory_used));
    assert_false(device->properties.unified);
    assert_int_equal(device->properties.memory_bytes, (uint64_t)1 << 30);
    sl_device_destroy(device);
}

static void an_allocation_too_large_leaves_the_device_whole(void **state)
{
    (void)state;
    struct sl_device *device = open_cuda();
    void *memory = NULL;
    assert_int_equal(device->ops->memory_alloc(device, (uint64_t)4 << 30, &memory), -ENOMEM);
    assert_null(memory);
    assert_non_null(strstr(device->error.message, "4096 MiB needed"));
    assert_int_equal(device->ops->memory_alloc(device, 4096, &memory), 0);
    assert_int_equal(device->ops->zero(device, SL_STREAM_COMPUTE, memory, 4096), 0);
    assert_int_equal(device->ops->stream_synchronize(device, SL_STREAM_COMPUTE), 0);
    device->ops->memory_free(device, memory, 4096);
    sl_device_destroy(device);
}

/* After the seal nothing is allocated; what is there goes on working, and the end says how often it
 * was tried. */
static void a_sealed_device_refuses_allocations(void **state)
{
    (void)state;
    struct sl_device *device = open_cuda();
    void *memory = NULL, *late = &memory;
    assert_int_equal(device->ops->memory_alloc(device, 4096, &memory), 0);
    device->ops->memory_seal(device);
    uint64_t used = SIM_CALL(cudasim_memory_used);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(device->ops->memory_alloc(device, 64, &late), -EPERM);
        assert_null(late);
    }
    assert_non_null(strstr(device->error.message, "64 bytes asked for after the plan was sealed"));
    assert_int_equal(SIM_CALL(cudasim_memory_used), used);
    assert_int_equal(device->ops->zero(device, SL_STREAM_COMPUTE, memory, 4096), 0);
    assert_int_equal(device->ops->stream_synchronize(device, SL_STREAM_COMPUTE), 0);
    device->ops->memory_free(device, memory, 4096);
    logged.lines = 0;
    sl_device_destroy(device);
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.text, "2 allocations were refused"));
}

static void pageable_memory_is_announced_once(void **state)
{
    (void)state;
    struct sl_device *device = open_cuda();
    char *host = aligned_alloc(4096, 8192);
    assert_non_null(host);
    SIM_CALL(cudasim_fail, CUDASIM_FAULT_HOST_REGISTER, 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(device->ops->host_register(device, host, 4096), -ENOTSUP);
    assert_int_equal(logged.lines, 1);
    assert_non_null(strstr(logged.text, "could not be page-locked"));
    device->ops->host_unregister(device, host, 4096);
    /* and copies still work */
    void *memory = NULL;
    char back[64] = {0};
    assert_int_equal(device->ops->memory_alloc(device, 64, &memory), 0);
    memset(host, 42, 64);
    assert_int_equal(device->ops->copy(device, SL_STREAM_H2D, memory, host, 64), 0);
    assert_int_equal(device->ops->copy(device, SL_STREAM_D2H, back, memory, 64), 0);
    assert_memory_equal(back, host, 64);
    device->ops->memory_free(device, memory, 64);
    free(host);
    sl_device_destroy(device);
}

/* ---- failures while running ---- */

static void a_refused_launch_names_its_operation_and_sticks(void **state)
{
    (void)state;
    struct sl_device *device = open_cuda();
    void *memory = NULL;
    assert_int_equal(device->ops->memory_alloc(device, 4096, &memory), 0);
    struct sl_add_args add = {64, memory, memory, memory};
    SIM_CALL(cudasim_fail, CUDASIM_FAULT_LAUNCH, 1);
    assert_int_equal(device->ops->add(device, &add), -EIO);
    assert_non_null(strstr(device->error.message, "add failed: cudaErrorLaunchFailure"));
    char first[SL_ERROR_MESSAGE_BYTES];
    memcpy(first, device->error.message, sizeof(first));
    assert_int_equal(device->ops->add(device, &add), -EIO);
    assert_int_equal(device->ops->zero(device, SL_STREAM_H2D, memory, 16), -EIO);
    assert_int_equal(device->ops->stream_synchronize(device, SL_STREAM_D2H), -EIO);
    assert_string_equal(first, device->error.message);
    device->ops->memory_free(device, memory, 4096);
    sl_device_destroy(device);
}

/* The device is lost at the n-th operation that it executes, for every n of a short run: some wait
 * finds it, the message lists what was queued, and the end is clean. */
static void a_lost_device_is_found_by_a_wait(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 4; nth++) {
        struct sl_device *device = open_cuda();
        void *memory = NULL;
        struct sl_event *event = NULL;
        assert_int_equal(device->ops->memory_alloc(device, 4096, &memory), 0);
        assert_int_equal(device->ops->event_create(device, &event), 0);
        struct sl_add_args add = {64, memory, memory, memory};
        struct sl_act_args act = {
            .kind = SL_ACT_SILU, .rows = 1, .width = 64, .in = memory, .out = memory};
        SIM_CALL(cudasim_fail, CUDASIM_FAULT_LOST, nth);
        assert_int_equal(device->ops->zero(device, SL_STREAM_COMPUTE, memory, 4096), 0);
        assert_int_equal(device->ops->add(device, &add), 0);
        assert_int_equal(device->ops->act(device, &act), 0);
        assert_int_equal(device->ops->add(device, &add), 0);
        assert_int_equal(device->ops->event_record(device, SL_STREAM_COMPUTE, event), 0);
        assert_int_equal(device->ops->event_synchronize(device, event), -EIO);
        assert_non_null(strstr(device->error.message, "zero, add, act, add"));
        assert_int_equal(device->ops->add(device, &add), -EIO);
        device->ops->event_destroy(device, event);
        device->ops->memory_free(device, memory, 4096);
        sl_device_destroy(device);
        SIM_CALL(cudasim_reset);
        assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
        assert_int_equal(SIM_CALL(cudasim_pending), 0);
    }
}

/* ---- order across streams ---- */

enum { ROUNDS = 6, COUNT = 256 };

struct lanes {
    struct sl_device *device;
    float *host;    /* [ROUNDS][COUNT] in, pinned */
    float *results; /* [ROUNDS][COUNT] out, pinned */
    float *slot[2]; /* device: what h2d fills and compute reads, used in turn */
    float *out[2];  /* device: what compute writes and d2h reads */
    struct sl_event *filled[2], *computed[2], *emptied[2];
};

static void check(struct lanes *l, int code)
{
    if (code)
        fail_msg("%s", l->device->error.message);
}

static void lanes_open(struct lanes *l)
{
    size_t bytes = ROUNDS * COUNT * sizeof(float);
    struct sl_device_options options = {.name = "cuda", .precision = SL_F32};
    struct sl_error error = {0};
    memset(l, 0, sizeof(*l));
    assert_int_equal(sl_device_create(&l->device, &options, &error), 0);
    const struct sl_device_ops *ops = l->device->ops;
    l->host = sim_host_alloc(bytes);
    l->results = sim_host_alloc(bytes);
    memset(l->results, 0, bytes);
    for (size_t i = 0; i < ROUNDS * COUNT; i++)
        l->host[i] = (float)(i + 1);
    check(l, ops->host_register(l->device, l->host, bytes));
    check(l, ops->host_register(l->device, l->results, bytes));
    for (int i = 0; i < 2; i++) {
        check(l, ops->memory_alloc(l->device, COUNT * sizeof(float), (void **)&l->slot[i]));
        check(l, ops->memory_alloc(l->device, COUNT * sizeof(float), (void **)&l->out[i]));
        check(l, ops->zero(l->device, SL_STREAM_COMPUTE, l->slot[i], COUNT * sizeof(float)));
        check(l, ops->event_create(l->device, &l->filled[i]));
        check(l, ops->event_create(l->device, &l->computed[i]));
        check(l, ops->event_create(l->device, &l->emptied[i]));
    }
    check(l, ops->stream_synchronize(l->device, SL_STREAM_COMPUTE));
}

static void lanes_close(struct lanes *l)
{
    const struct sl_device_ops *ops = l->device->ops;
    for (int i = 0; i < 2; i++) {
        ops->event_destroy(l->device, l->filled[i]);
        ops->event_destroy(l->device, l->computed[i]);
        ops->event_destroy(l->device, l->emptied[i]);
        ops->memory_free(l->device, l->slot[i], COUNT * sizeof(float));
        ops->memory_free(l->device, l->out[i], COUNT * sizeof(float));
    }
    ops->host_unregister(l->device, l->host, 0);
    ops->host_unregister(l->device, l->results, 0);
    free(l->host);
    free(l->results);
    sl_device_destroy(l->device);
}

enum wait { WAIT_FILLED, WAIT_COMPUTED, WAIT_EMPTIED, WAIT_OUT_FREE, WAIT_NONE_MISSING };

static void wait_for(struct lanes *l, enum sl_stream stream, struct sl_event *event, bool missing)
{
    if (!missing)
        check(l, l->device->ops->event_wait(l->device, stream, event));
}

/* Fetch, double, evict, through two buffers each way: the pattern of every layer of a step. Returns
 * how many results are wrong. */
static size_t pipeline(struct lanes *l, enum wait missing)
{
    const struct sl_device_ops *ops = l->device->ops;
    size_t bytes = COUNT * sizeof(float), wrong = 0;
    memset(l->results, 0, ROUNDS * bytes);
    for (int round = 0; round < ROUNDS; round++) {
        int i = round % 2;
        if (round >= 2) /* the slot's reader of two rounds ago is done */
            wait_for(l, SL_STREAM_H2D, l->computed[i], missing == WAIT_COMPUTED);
        check(l, ops->copy(l->device, SL_STREAM_H2D, l->slot[i], l->host + round * COUNT, bytes));
        check(l, ops->event_record(l->device, SL_STREAM_H2D, l->filled[i]));
        wait_for(l, SL_STREAM_COMPUTE, l->filled[i], missing == WAIT_FILLED);
        if (round >= 2)
            wait_for(l, SL_STREAM_COMPUTE, l->emptied[i], missing == WAIT_OUT_FREE);
        struct sl_add_args add = {COUNT, l->slot[i], l->slot[i], l->out[i]};
        check(l, ops->add(l->device, &add));
        check(l, ops->event_record(l->device, SL_STREAM_COMPUTE, l->computed[i]));
        wait_for(l, SL_STREAM_D2H, l->computed[i], missing == WAIT_EMPTIED);
        check(l, ops->copy(l->device, SL_STREAM_D2H, l->results + round * COUNT, l->out[i], bytes));
        check(l, ops->event_record(l->device, SL_STREAM_D2H, l->emptied[i]));
    }
    check(l, ops->event_synchronize(l->device, l->emptied[(ROUNDS - 1) % 2]));
    for (size_t i = 0; i < ROUNDS * COUNT; i++)
        wrong += l->results[i] != 2 * l->host[i];
    for (int stream = 0; stream < SL_STREAM_COUNT; stream++)
        check(l, ops->stream_synchronize(l->device, (enum sl_stream)stream));
    return wrong;
}

static void waits_keep_the_order_in_any_interleaving(void **state)
{
    (void)state;
    struct lanes l;
    lanes_open(&l);
    for (int order = CUDASIM_STREAMS_LAZY; order <= CUDASIM_STREAMS_SHUFFLED; order++)
        for (uint64_t seed = 1; seed <= 10; seed++) {
            SIM_CALL(cudasim_set_stream_order, (enum cudasim_stream_order)order, seed);
            assert_int_equal(pipeline(&l, WAIT_NONE_MISSING), 0);
        }
    lanes_close(&l);
}

/* Without any one of the waits some interleaving gives wrong results. */
static void each_missing_wait_is_found(void **state)
{
    (void)state;
    struct lanes l;
    lanes_open(&l);
    for (int missing = WAIT_FILLED; missing < WAIT_NONE_MISSING; missing++) {
        size_t wrong = 0;
        for (int order = CUDASIM_STREAMS_LAZY; order <= CUDASIM_STREAMS_SHUFFLED; order++)
            for (uint64_t seed = 1; seed <= 10; seed++) {
                SIM_CALL(cudasim_set_stream_order, (enum cudasim_stream_order)order, seed);
                wrong += pipeline(&l, (enum wait)missing);
            }
        if (!wrong)
            fail_msg("the missing wait %d was not found", missing);
    }
    lanes_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_that_is_not_there_is_named),
        cmocka_unit_test_setup(opening_says_what_is_missing, reset),
        cmocka_unit_test_setup(auto_without_a_gpu_is_the_host_and_says_so, reset),
        cmocka_unit_test_setup(opening_survives_each_failed_allocation, reset),
        cmocka_unit_test_setup(opening_survives_each_failed_launch, reset),
        cmocka_unit_test_setup(fixed_lines_cover_what_the_device_holds, reset),
        cmocka_unit_test_setup(an_allocation_too_large_leaves_the_device_whole, reset),
        cmocka_unit_test_setup(a_sealed_device_refuses_allocations, reset),
        cmocka_unit_test_setup(pageable_memory_is_announced_once, reset),
        cmocka_unit_test_setup(a_refused_launch_names_its_operation_and_sticks, reset),
        cmocka_unit_test_setup(a_lost_device_is_found_by_a_wait, reset),
        cmocka_unit_test_setup(waits_keep_the_order_in_any_interleaving, reset),
        cmocka_unit_test_setup(each_missing_wait_is_found, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
