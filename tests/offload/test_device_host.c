// SPDX-License-Identifier: Apache-2.0
/* The host device: names, memory, streams and events of host:discrete, its throttle, and that the
 * compute kernels give the bits of `host` there. */
#include "tests/test.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "offload/device.h"
#include "offload/workers.h"

struct rig {
    struct sl_workers *workers;
    struct sl_device *device;
};

static struct rig open_rig(const char *name, uint64_t link_bytes_per_second)
{
    struct rig rig = {0};
    struct sl_error error = {0};
    struct sl_workers_options options = {.thread_count = 2, .unpinned = true};
    assert_int_equal(sl_workers_create(&rig.workers, &options, &error), 0);
    struct sl_device_options device = {.name = name,
                                       .precision = SL_BF16,
                                       .workers = rig.workers,
                                       .link_bytes_per_second = link_bytes_per_second};
    assert_int_equal(sl_device_create(&rig.device, &device, &error), 0);
    return rig;
}

static void close_rig(struct rig *rig)
{
    sl_device_destroy(rig->device);
    sl_workers_destroy(rig->workers);
}

static void names_are_checked(void **state)
{
    (void)state;
    struct sl_workers *workers;
    struct sl_error error = {0};
    assert_int_equal(
        sl_workers_create(&workers, &(struct sl_workers_options){.thread_count = 1}, &error), 0);
    struct sl_device *device;
    struct sl_device_options options = {.name = "gpu", .workers = workers};
    assert_int_equal(sl_device_create(&device, &options, &error), -EINVAL);
    assert_null(device);
    assert_non_null(strstr(error.message, "\"gpu\""));
    assert_non_null(strstr(error.message, "host:discrete"));
    options.name = "host:discreet";
    error = (struct sl_error){0};
    assert_int_equal(sl_device_create(&device, &options, &error), -EINVAL);
    sl_device_destroy(NULL);
    sl_workers_destroy(workers);
}

static void properties_tell_what_is_used(void **state)
{
    (void)state;
    struct rig host = open_rig("host", 0), discrete = open_rig("host:discrete", 0);
    assert_true(host.device->properties.unified);
    assert_false(discrete.device->properties.unified);
    assert_int_equal(host.device->properties.kind, SL_DEVICE_HOST);
    assert_int_equal(discrete.device->properties.kind, SL_DEVICE_HOST_DISCRETE);
    assert_int_equal(host.device->activation_dtype, SL_F32);
    assert_true(host.device->properties.fixed_count > 0);
    for (size_t i = 0; i < host.device->properties.fixed_count; i++)
        assert_true(host.device->properties.fixed[i].bytes_host > 0);
    close_rig(&host);
    close_rig(&discrete);
}

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %llu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

/* What creation takes is what its fixed lines say, and a product takes nothing more. */
static void memory_is_taken_at_creation(void **state)
{
    (void)state;
    size_t side = 600;
    float *x = calloc(side * side, sizeof *x), *y = malloc(side * side * sizeof *y);
    float *w = malloc(side * side * sizeof *w);
    for (size_t i = 0; i < side * side; i++)
        y[i] = w[i] = 1;
    struct rig rig = {0};
    struct sl_error error = {0};
    struct sl_workers_options pool = {.thread_count = 2, .unpinned = true};
    assert_int_equal(sl_workers_create(&rig.workers, &pool, &error), 0);
    uint64_t before = resident_bytes(), fixed = 0;
    struct sl_device_options options = {
        .name = "host", .precision = SL_BF16, .workers = rig.workers};
    assert_int_equal(sl_device_create(&rig.device, &options, &error), 0);
    uint64_t created = resident_bytes();
    for (size_t i = 0; i < rig.device->properties.fixed_count; i++)
        fixed += rig.device->properties.fixed[i].bytes_host;
    struct sl_matmul_args args = {
        .rows = side, .inputs = side, .outputs = side, .x = x, .y = y, .weight = {w, SL_F32}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(rig.device->ops->matmul(rig.device, &args), 0);
    uint64_t used = resident_bytes();
    print_message("fixed lines %llu, creation took %llu, products %lld more bytes\n",
                  (unsigned long long)fixed, (unsigned long long)(created - before),
                  (long long)(used - created));
#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
    assert_true(created - before < fixed + (256u << 10)); /* beside it: pages of code */
    assert_true(used < created + (512u << 10));
#endif
#endif
    close_rig(&rig);
    free(x);
    free(y);
    free(w);
}

static void *device_memory(struct sl_device *device, uint64_t bytes)
{
    void *memory;
    assert_int_equal(device->ops->memory_alloc(device, bytes, &memory), 0);
    return memory;
}

static void memory_too_large_is_an_error(void **state)
{
    (void)state;
    struct rig rig = open_rig("host", 0);
    void *memory;
    assert_int_equal(rig.device->ops->memory_alloc(rig.device, UINT64_C(1) << 60, &memory),
                     -ENOMEM);
    assert_null(memory);
    assert_int_equal(rig.device->error.code, -ENOMEM);
    close_rig(&rig);
}

/* Up, across streams by events, and down again, many times, with buffers reused: a missing wait
 * shows as a wrong value. */
static void events_order_the_streams(void **state)
{
    (void)state;
    static const char *const names[] = {"host", "host:discrete"};
    enum { COUNT = 4096, ROUNDS = 200 };
    for (int n = 0; n < 2; n++) {
        struct rig rig = open_rig(names[n], 0);
        struct sl_device *d = rig.device;
        const struct sl_device_ops *ops = d->ops;
        float *up = calloc(COUNT, sizeof *up), *down = calloc(COUNT, sizeof *down);
        float *on_device = device_memory(d, COUNT * sizeof *up);
        float *sum = device_memory(d, COUNT * sizeof *sum);
        struct sl_event *uploaded, *computed, *fetched;
        assert_int_equal(ops->event_create(d, &uploaded), 0);
        assert_int_equal(ops->event_create(d, &computed), 0);
        assert_int_equal(ops->event_create(d, &fetched), 0);
        assert_int_equal(ops->event_synchronize(d, fetched), 0); /* never recorded: past */
        assert_int_equal(ops->zero(d, SL_STREAM_COMPUTE, sum, COUNT * sizeof *sum), 0);
        for (int round = 1; round <= ROUNDS; round++) {
            for (size_t i = 0; i < COUNT; i++)
                up[i] = (float)round;
            ops->copy(d, SL_STREAM_H2D, on_device, up, COUNT * sizeof *up);
            ops->event_record(d, SL_STREAM_H2D, uploaded);
            ops->event_wait(d, SL_STREAM_COMPUTE, uploaded);
            ops->event_wait(d, SL_STREAM_COMPUTE, fetched);
            struct sl_add_args add = {COUNT, sum, on_device, sum};
            assert_int_equal(ops->add(d, &add), 0);
            ops->event_record(d, SL_STREAM_COMPUTE, computed);
            ops->event_wait(d, SL_STREAM_D2H, computed);
            ops->copy(d, SL_STREAM_D2H, down, sum, COUNT * sizeof *down);
            ops->event_record(d, SL_STREAM_D2H, fetched);
            if (round % 3 == 0) {
                ops->event_synchronize(d, fetched);
                for (size_t i = 0; i < COUNT; i += 511)
                    assert_true(down[i] == (float)(round * (round + 1) / 2));
            }
        }
        ops->stream_synchronize(d, SL_STREAM_D2H);
        for (size_t i = 0; i < COUNT; i++)
            assert_true(down[i] == (float)(ROUNDS * (ROUNDS + 1) / 2));
        ops->event_destroy(d, uploaded);
        ops->event_destroy(d, computed);
        ops->event_destroy(d, fetched);
        ops->memory_free(d, on_device, COUNT * sizeof *up);
        ops->memory_free(d, sum, COUNT * sizeof *sum);
        free(up);
        free(down);
        close_rig(&rig);
    }
}

/* A copy stream waits for the other by itself: the submitter goes on at once. */
static void copy_streams_wait_for_each_other(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, SPEED = 20 << 20 }; /* 50 ms a copy */
    struct rig rig = open_rig("host:discrete", SPEED);
    struct sl_device *d = rig.device;
    char *from = malloc(BYTES), *to = calloc(1, BYTES), *memory = device_memory(d, BYTES);
    struct sl_event *event;
    memset(from, 42, BYTES);
    assert_int_equal(d->ops->event_create(d, &event), 0);
    uint64_t start = sl_clock_ns();
    d->ops->copy(d, SL_STREAM_H2D, memory, from, BYTES);
    d->ops->event_record(d, SL_STREAM_H2D, event);
    d->ops->event_wait(d, SL_STREAM_D2H, event);
    d->ops->copy(d, SL_STREAM_D2H, to, memory, BYTES);
    uint64_t submitted = sl_clock_ns();
    d->ops->stream_synchronize(d, SL_STREAM_D2H);
    uint64_t done = sl_clock_ns();
    assert_memory_equal(to, from, BYTES);
    assert_true(done - start >= 2 * UINT64_C(49000000)); /* one after the other */
    assert_true(submitted - start < done - start);
    d->ops->event_destroy(d, event);
    d->ops->memory_free(d, memory, BYTES);
    free(from);
    free(to);
    close_rig(&rig);
}

/* n copies take n times their bytes over the link's speed, and not less. */
static void throttle_paces_each_direction(void **state)
{
    (void)state;
    enum { BYTES = 1 << 18, COPIES = 20, SPEED = 100 << 20 }; /* 2.5 ms a copy, 50 ms in all */
    struct rig rig = open_rig("host:discrete", SPEED);
    struct sl_device *d = rig.device;
    char *from = calloc(2, BYTES), *memory = device_memory(d, 2 * BYTES);
    uint64_t start = sl_clock_ns();
    for (int i = 0; i < COPIES; i++) {
        d->ops->copy(d, SL_STREAM_H2D, memory, from, BYTES);
        d->ops->copy(d, SL_STREAM_D2H, from + BYTES, memory + BYTES, BYTES);
    }
    d->ops->stream_synchronize(d, SL_STREAM_H2D);
    d->ops->stream_synchronize(d, SL_STREAM_D2H);
    uint64_t took = sl_clock_ns() - start;
    assert_true(took >= UINT64_C(49900000));
    assert_true(took < UINT64_C(5000000000)); /* both at once; generous on a loaded machine */
    d->ops->memory_free(d, memory, 2 * BYTES);
    free(from);
    close_rig(&rig);
}

/* More items than the ring holds: the submitter waits for room, nothing is lost. */
static void a_full_ring_holds_the_submitter(void **state)
{
    (void)state;
    struct rig rig = open_rig("host:discrete", 0);
    struct sl_device *d = rig.device;
    enum { ITEMS = 5000 };
    uint32_t *from = malloc(ITEMS * sizeof *from), *to = calloc(ITEMS, sizeof *to);
    for (uint32_t i = 0; i < ITEMS; i++) {
        from[i] = i * 2654435761u;
        assert_int_equal(d->ops->copy(d, SL_STREAM_D2H, to + i, from + i, sizeof *to), 0);
    }
    d->ops->stream_synchronize(d, SL_STREAM_D2H);
    assert_memory_equal(from, to, ITEMS * sizeof *to);
    assert_int_equal(d->ops->zero(d, SL_STREAM_H2D, to, ITEMS * sizeof *to), 0);
    d->ops->stream_synchronize(d, SL_STREAM_H2D);
    for (size_t i = 0; i < ITEMS; i++)
        assert_int_equal(to[i], 0);
    free(from);
    free(to);
    close_rig(&rig);
}

/* Destroying the device finishes what was submitted. */
static void destroy_drains_the_streams(void **state)
{
    (void)state;
    char *from = malloc(1 << 20), *to = calloc(1, 1 << 20);
    memset(from, 7, 1 << 20);
    struct rig rig = open_rig("host:discrete", 50 << 20);
    rig.device->ops->copy(rig.device, SL_STREAM_H2D, to, from, 1 << 20);
    close_rig(&rig);
    assert_memory_equal(from, to, 1 << 20);
    free(from);
    free(to);
}

static void gradients_are_rounded_and_measured(void **state)
{
    (void)state;
    struct rig rig = open_rig("host", 0);
    size_t count = 2 * SL_GRADIENT_CHUNK + 1234;
    float *sum = malloc(count * sizeof *sum);
    uint16_t *out = malloc(count * sizeof *out);
    double squares[3];
    uint64_t nonfinite[3];
    for (size_t i = 0; i < count; i++)
        sum[i] = (float)(i % 97) / 64;
    sum[SL_GRADIENT_CHUNK + 5] = 1.0f / 0.0f;
    struct sl_gradient_finish_args args = {count, sum, out, SL_BF16, squares, nonfinite};
    assert_int_equal(rig.device->ops->gradient_finish(rig.device, &args), 0);
    assert_int_equal(nonfinite[0], 0);
    assert_int_equal(nonfinite[1], 1);
    assert_int_equal(nonfinite[2], 0);
    double want = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(out[i], sl_bf16_from_f32(sum[i]));
        double value = (double)sl_f32_from_bf16(out[i]);
        if (i >= 2 * SL_GRADIENT_CHUNK)
            want += value * value;
    }
    assert_true(squares[2] > want * (1 - 1e-12) && squares[2] < want * (1 + 1e-12));
    free(sum);
    free(out);
    close_rig(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_taken_at_creation),
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(properties_tell_what_is_used),
        cmocka_unit_test(memory_too_large_is_an_error),
        cmocka_unit_test(events_order_the_streams),
        cmocka_unit_test(copy_streams_wait_for_each_other),
        cmocka_unit_test(throttle_paces_each_direction),
        cmocka_unit_test(a_full_ring_holds_the_submitter),
        cmocka_unit_test(destroy_drains_the_streams),
        cmocka_unit_test(gradients_are_rounded_and_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
