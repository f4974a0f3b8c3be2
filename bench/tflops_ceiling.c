// SPDX-License-Identifier: Apache-2.0
#include "bench/tflops_ceiling.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "bench/sgemm.h"
#include "offload/device.h"
#include "offload/workers.h"

#define ROUNDS 3
#define FILL_PERIOD 1021u /* values repeat after so many: no two rows alike */

static void keep_best(struct tflops_ceiling *c, double speed, const char *format, size_t side)
{
    if (speed <= c->flops_per_second)
        return;
    c->flops_per_second = speed;
    snprintf(c->shape, sizeof(c->shape), format, side, side, side);
}

static float value_at(size_t i)
{
    return (float)(i * 2654435761u % FILL_PERIOD) / FILL_PERIOD - 0.5f;
}

struct host_job {
    size_t side;
    float *memory; /* per task: a, b, c of HOST_SIDE_MAX squared */
};

#define HOST_SIDE_MAX 2048u
static const size_t host_sides[] = {512, 1024, 2048};

static void host_task(void *arg, size_t task, size_t worker)
{
    const struct host_job *job = arg;
    size_t area = (size_t)HOST_SIDE_MAX * HOST_SIDE_MAX, side = job->side;
    float *a = job->memory + 3 * task * area;
    (void)worker;
    bench_sgemm(side, a, a + area, a + 2 * area);
}

static int host_ceiling(struct tflops_ceiling *c, struct sl_workers *workers,
                        struct sl_error *error)
{
    size_t threads = sl_workers_thread_count(workers);
    size_t count = 3 * threads * HOST_SIDE_MAX * HOST_SIDE_MAX;
    struct host_job job = {.memory = malloc(count * sizeof(float))};
    if (!job.memory)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to measure the ceiling");
    for (size_t i = 0; i < count; i++)
        job.memory[i] = value_at(i);
    bench_sgemm_threads(1);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < sizeof(host_sides) / sizeof(host_sides[0]); i++) {
            job.side = host_sides[i];
            double side = (double)job.side;
            uint64_t start_ns = sl_clock_ns();
            sl_workers_run(workers, threads, host_task, &job);
            double seconds = 1e-9 * (double)(sl_clock_ns() - start_ns);
            keep_best(c, 2 * side * side * side * (double)threads / seconds,
                      "OpenBLAS sgemm %zu x %zu x %zu per thread", job.side);
        }
    free(job.memory);
    return 0;
}

static const uint32_t device_sides[] = {2048, 4096, TFLOPS_PRODUCT_MAX};

static int fill(struct sl_device *device, unsigned char *memory, uint64_t bytes,
                enum sl_dtype dtype, void *block, size_t block_bytes)
{
    size_t count = block_bytes / sl_dtype_bytes(dtype);
    int result = 0;
    for (size_t i = 0; i < count; i++)
        sl_dtype_store(block, dtype, i, value_at(i));
    for (uint64_t at = 0; at < bytes && !result; at += block_bytes)
        result = device->ops->copy(device, SL_STREAM_H2D, memory + at, block,
                                   sl_min_u64(block_bytes, bytes - at));
    return result ? result : device->ops->stream_synchronize(device, SL_STREAM_H2D);
}

static int device_products(struct tflops_ceiling *c, struct sl_device *device,
                           enum sl_dtype precision, unsigned char *memory, uint32_t side_max)
{
    uint64_t area = (uint64_t)side_max * side_max * sizeof(float);
    int result = 0;
    for (int round = 0; round <= ROUNDS && !result; round++) /* the first one warms up */
        for (size_t i = 0; i < sizeof(device_sides) / sizeof(device_sides[0]) && !result; i++) {
            size_t side = sl_min_u64(device_sides[i], side_max);
            struct sl_matmul_args args = {.kind = SL_MATMUL_FORWARD,
                                          .rows = side,
                                          .inputs = side,
                                          .outputs = side,
                                          .x = memory,
                                          .weight = {memory + area, precision},
                                          .y = memory + 2 * area};
            int repeats = 16;
            uint64_t start_ns = sl_clock_ns();
            for (int n = 0; n < repeats && !result; n++)
                result = device->ops->matmul(device, &args);
            if (!result)
                result = device->ops->stream_synchronize(device, SL_STREAM_COMPUTE);
            double seconds = 1e-9 * (double)(sl_clock_ns() - start_ns), length = (double)side;
            if (round > 0 && !result)
                keep_best(c, 2 * length * length * length * repeats / seconds,
                          "device product %zu x %zu x %zu", side);
        }
    return result;
}

static int device_ceiling(struct tflops_ceiling *c, struct sl_device *device,
                          enum sl_dtype precision, uint32_t side_max, struct sl_error *error)
{
    uint64_t area = (uint64_t)side_max * side_max * sizeof(float);
    size_t block_bytes = (size_t)1 << 22;
    void *block = malloc(block_bytes), *memory = NULL;
    int result = block ? device->ops->memory_alloc(device, 3 * area, &memory) : -ENOMEM;
    if (!result)
        result = fill(device, memory, area, device->activation_dtype, block, block_bytes);
    if (!result)
        result = fill(device, (unsigned char *)memory + area, area, precision, block, block_bytes);
    if (!result)
        result = device_products(c, device, precision, memory, side_max);
    if (result)
        sl_error_set(error, SL_DOMAIN_DEVICE, result, "measuring the ceiling: %s",
                     device->error.code ? device->error.message : strerror(-result));
    if (memory)
        device->ops->memory_free(device, memory, 3 * area);
    free(block);
    return result;
}

int tflops_ceiling_raise(struct tflops_ceiling *c, const char *name, enum sl_dtype precision,
                         size_t thread_count, uint32_t product_max, struct sl_error *error)
{
    struct sl_workers *workers = NULL;
    struct sl_device *device = NULL;
    struct sl_workers_options pool = {.thread_count = thread_count};
    int result = sl_workers_create(&workers, &pool, error);
    struct sl_device_options options = {
        .name = name ? name : "auto", .precision = precision, .workers = workers};
    if (!result)
        result = sl_device_create(&device, &options, error);
    if (!result)
        result = device->properties.kind == SL_DEVICE_CUDA
                     ? device_ceiling(c, device, precision, product_max, error)
                     : host_ceiling(c, workers, error);
    sl_device_destroy(device);
    sl_workers_destroy(workers);
    return result;
}
