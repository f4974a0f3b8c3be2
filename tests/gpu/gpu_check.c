// SPDX-License-Identifier: Apache-2.0
/* gpu_check [--small] [--json FILE]: see gpu_check.h. Exit code 0: all operations agree. */
#include "tests/gpu/gpu_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define PATTERN_ELEMENTS ((size_t)1 << 20)
#define BATCHES 7

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "gpu_check: %s: %s\n", what, why);
    exit(1);
}

static void need(struct check *c, int code, const char *what)
{
    if (code)
        stop(what, c->cuda->error.code ? c->cuda->error.message : c->host->error.message);
}

static void *host_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory)
        stop("host memory", "none left");
    return memory;
}

static void synchronize(struct check *c)
{
    need(c, c->cuda->ops->stream_synchronize(c->cuda, SL_STREAM_COMPUTE), "stream_synchronize");
}

static float next_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int64_t)(*state >> 40) - (1 << 23)) * 0x1p-23f;
}

/* The device's array repeats a pattern of a million values, so that gigabytes fill quickly. */
struct array array_make(struct check *c, enum sl_dtype dtype, size_t count, float scale,
                        bool with_host)
{
    static uint64_t state = 1;
    struct array a = {.count = count, .dtype = dtype};
    size_t size = sl_dtype_bytes(dtype);
    size_t pattern = count < PATTERN_ELEMENTS ? count : PATTERN_ELEMENTS;
    void *values = host_alloc(pattern * size);
    for (size_t i = 0; i < pattern; i++)
        sl_dtype_store(values, dtype, i, scale * next_value(&state));
    need(c, c->cuda->ops->memory_alloc(c->cuda, count * size, &a.cuda), "memory_alloc");
    for (size_t at = 0; at < count; at += pattern) {
        size_t part = count - at < pattern ? count - at : pattern;
        need(c,
             c->cuda->ops->copy(c->cuda, SL_STREAM_COMPUTE, (char *)a.cuda + at * size, values,
                                part * size),
             "copy");
    }
    synchronize(c);
    if (with_host) {
        float *host = host_alloc(count * sizeof(float));
        for (size_t i = 0; i < count; i++)
            host[i] = sl_dtype_load(values, dtype, i % pattern);
        a.host = host;
    }
    free(values);
    return a;
}

struct array array_ids(struct check *c, size_t count, int32_t limit)
{
    static uint64_t state = 2;
    struct array a = {.count = count, .dtype = SL_F32, .host = host_alloc(count * 4)};
    for (size_t i = 0; i < count; i++)
        ((int32_t *)a.host)[i] = (int32_t)((next_value(&state) + 1) * 0.5f * (float)limit) % limit;
    need(c, c->cuda->ops->memory_alloc(c->cuda, count * 4, &a.cuda), "memory_alloc");
    need(c, c->cuda->ops->copy(c->cuda, SL_STREAM_COMPUTE, a.cuda, a.host, count * 4), "copy");
    synchronize(c);
    return a;
}

void array_free(struct check *c, struct array *a)
{
    c->cuda->ops->memory_free(c->cuda, a->cuda, a->count * sl_dtype_bytes(a->dtype));
    free(a->host);
    memset(a, 0, sizeof(*a));
}

int run(struct sl_device *device, enum operation op, const void *args)
{
    const struct sl_device_ops *ops = device->ops;
    switch (op) {
    case OP_NORM:
        return ops->norm(device, args);
    case OP_NORM_BACKWARD:
        return ops->norm_backward(device, args);
    case OP_MATMUL:
        return ops->matmul(device, args);
    case OP_ROPE:
        return ops->rope(device, args);
    case OP_ATTENTION:
        return ops->attention(device, args);
    case OP_ATTENTION_BACKWARD:
        return ops->attention_backward(device, args);
    case OP_ATTENTION_CACHED:
        return ops->attention_cached(device, args);
    case OP_ACT:
        return ops->act(device, args);
    case OP_ACT_BACKWARD:
        return ops->act_backward(device, args);
    case OP_ADD:
        return ops->add(device, args);
    case OP_EMBEDDING:
        return ops->embedding(device, args);
    case OP_EMBEDDING_BACKWARD:
        return ops->embedding_backward(device, args);
    case OP_CROSS_ENTROPY:
        return ops->cross_entropy(device, args);
    case OP_GRADIENT_FINISH:
        return ops->gradient_finish(device, args);
    case OP_OPTIM:
        return ops->optim(device, args);
    }
    return -1;
}

void run_both(struct check *c, enum operation op, const void *host, const void *cuda)
{
    need(c, run(c->host, op, host), "host operation");
    need(c, run(c->cuda, op, cuda), "CUDA operation");
}

static void record(struct check *c, const char *text)
{
    if (c->json)
        fprintf(c->json, "%s    %s", c->cases ? ",\n" : "", text);
    c->cases++;
}

void compare(struct check *c, const char *name, const struct array *a, double allowed)
{
    size_t size = sl_dtype_bytes(a->dtype);
    void *raw = host_alloc(a->count * size);
    double difference = 0, norm = 0;
    need(c, c->cuda->ops->copy(c->cuda, SL_STREAM_COMPUTE, raw, a->cuda, a->count * size), "copy");
    synchronize(c);
    for (size_t i = 0; i < a->count; i++) {
        double want = (double)((const float *)a->host)[i];
        double got = (double)sl_dtype_load(raw, a->dtype, i);
        difference += (got - want) * (got - want);
        norm += want * want;
    }
    free(raw);
    double error = sqrt(difference) / (norm > 0 ? sqrt(norm) : 1);
    bool passed = error <= allowed; /* false for NaN */
    char line[256];
    printf("%-8s %-4s %-26s error %9.3g  allowed %9.3g\n", passed ? "ok" : "FAILED",
           sl_dtype_name(c->type), name, error, allowed);
    snprintf(line, sizeof(line),
             "{\"compare\": \"%s\", \"type\": \"%s\", \"relative_error\": %g, \"allowed\": %g, "
             "\"passed\": %s}",
             name, sl_dtype_name(c->type), isfinite(error) ? error : -1.0, allowed,
             passed ? "true" : "false");
    record(c, line);
    c->failures += !passed;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call: the median over batches that each last 20 ms or more. */
static double seconds_per_call(struct check *c, enum operation op, const void *args, double *spread)
{
    double times[BATCHES];
    size_t calls = 1;
    for (int warm = 0; warm < (c->small ? 1 : 3); warm++)
        need(c, run(c->cuda, op, args), "operation");
    synchronize(c);
    for (int batch = 0; batch < BATCHES;) {
        uint64_t start = sl_clock_ns();
        for (size_t i = 0; i < calls; i++)
            need(c, run(c->cuda, op, args), "operation");
        synchronize(c);
        double seconds = (double)(sl_clock_ns() - start) * 1e-9;
        if (!c->small && seconds < 0.02) {
            calls *= 2; /* too short to time: again, with more */
            continue;
        }
        times[batch++] = seconds / (double)calls;
        if (c->small)
            break;
    }
    int count = c->small ? 1 : BATCHES;
    qsort(times, (size_t)count, sizeof(*times), by_value);
    *spread = (times[count - 1] - times[0]) / times[count / 2] / 2;
    return times[count / 2];
}

void measure(struct check *c, const char *name, const char *shape, enum operation op,
             const void *args, double bytes, double flops)
{
    double spread, seconds = seconds_per_call(c, op, args, &spread);
    double by_bytes = c->copy_bytes_per_second > 0 ? bytes / c->copy_bytes_per_second : 0;
    double by_flops = c->matrix_flops_per_second > 0 ? flops / c->matrix_flops_per_second : 0;
    double floor = by_bytes > by_flops ? by_bytes : by_flops;
    char line[512];
    printf(
        "%-26s %-30s %9.3f ms ± %2.0f %%  floor %9.3f ms (%s)  %3.0f %%  %7.1f GB/s %7.1f TFLOPS\n",
        name, shape, seconds * 1e3, spread * 100, floor * 1e3,
        by_bytes > by_flops ? "bytes" : "flops", floor / seconds * 100, bytes / seconds * 1e-9,
        flops / seconds * 1e-12);
    snprintf(line, sizeof(line),
             "{\"time\": \"%s\", \"shape\": \"%s\", \"milliseconds\": %g, \"spread\": %g, "
             "\"floor_milliseconds\": %g, \"share_of_floor\": %g, \"bytes\": %g, \"flops\": %g}",
             name, shape, seconds * 1e3, spread, floor * 1e3, floor / seconds, bytes, flops);
    record(c, line);
}

/* What this machine can do: a large copy within the device, a large product of random matrices. */
static void measure_ceilings(struct check *c)
{
    size_t n = c->small ? 64 : 8192, bytes = c->small ? 1 << 16 : (size_t)1 << 30;
    struct array from = array_make(c, SL_BF16, bytes / 2, 1, false);
    struct array to = array_make(c, SL_BF16, bytes / 2, 1, false);
    double best = 0;
    for (int i = 0; i < 10; i++) {
        uint64_t start = sl_clock_ns();
        for (int j = 0; j < 10; j++)
            need(c, c->cuda->ops->copy(c->cuda, SL_STREAM_COMPUTE, to.cuda, from.cuda, bytes),
                 "copy");
        synchronize(c);
        double rate = 20.0 * (double)bytes / ((double)(sl_clock_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    }
    c->copy_bytes_per_second = best;
    array_free(c, &from);
    array_free(c, &to);
    struct array x = array_make(c, c->type, n * n, 1, false);
    struct array w = array_make(c, c->type, n * n, 1, false);
    struct array y = array_make(c, c->type, n * n, 1, false);
    struct sl_matmul_args args = {.kind = SL_MATMUL_FORWARD,
                                  .rows = n,
                                  .inputs = n,
                                  .outputs = n,
                                  .x = x.cuda,
                                  .y = y.cuda,
                                  .weight = {w.cuda, c->type}};
    double spread, flops = 2.0 * (double)n * (double)n * (double)n;
    c->matrix_flops_per_second = flops / seconds_per_call(c, OP_MATMUL, &args, &spread);
    array_free(c, &x);
    array_free(c, &w);
    array_free(c, &y);
    printf("ceilings: copy %.1f GB/s (read and written), %s product %.1f TFLOPS\n",
           c->copy_bytes_per_second * 1e-9, sl_dtype_name(c->type),
           c->matrix_flops_per_second * 1e-12);
}

static void open_devices(struct check *c, struct sl_workers *workers, enum sl_dtype type)
{
    struct sl_error error = {0};
    struct sl_device_options options = {.name = "host", .precision = type, .workers = workers};
    c->type = type;
    if (sl_device_create(&c->host, &options, &error))
        stop("host device", error.message);
    options.name = "cuda";
    if (sl_device_create(&c->cuda, &options, &error))
        stop("CUDA device", error.message);
}

static void close_devices(struct check *c)
{
    sl_device_destroy(c->cuda);
    sl_device_destroy(c->host);
    c->cuda = c->host = NULL;
}

static void describe(struct check *c)
{
    const struct sl_device_properties *p = &c->cuda->properties;
    printf("device: %s, %.1f GiB\n", p->name, (double)p->memory_bytes * 0x1p-30);
    for (size_t i = 0; i < p->fixed_count; i++)
        printf("  %-40s %8.1f MiB\n", p->fixed[i].name, (double)p->fixed[i].bytes_device * 0x1p-20);
    if (c->json)
        fprintf(c->json, "{\n  \"device\": \"%s\",\n  \"memory_bytes\": %llu,\n", p->name,
                (unsigned long long)p->memory_bytes);
}

int main(int argc, char **argv)
{
    struct check c = {0};
    struct sl_error error = {0};
    struct sl_workers *workers = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            c.small = true;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            c.json = fopen(argv[++i], "w");
        else
            stop(argv[i], "usage: gpu_check [--small] [--json FILE]");
    }
    struct sl_workers_options pool = {.thread_count = c.small ? 1 : 0, .unpinned = true};
    if (sl_workers_create(&workers, &pool, &error))
        stop("workers", error.message);
    open_devices(&c, workers, SL_BF16);
    describe(&c);
    measure_ceilings(&c);
    if (c.json)
        fprintf(c.json,
                "  \"copy_bytes_per_second\": %g,\n  \"matrix_flops_per_second\": %g,\n"
                "  \"results\": [\n",
                c.copy_bytes_per_second, c.matrix_flops_per_second);
    cases_compare(&c);
    cases_measure(&c);
    close_devices(&c);
    for (int type = SL_F32; type <= SL_F16; type += 2) {
        open_devices(&c, workers, (enum sl_dtype)type);
        cases_compare(&c);
        close_devices(&c);
    }
    if (c.json) {
        fprintf(c.json, "\n  ],\n  \"failures\": %u\n}\n", c.failures);
        fclose(c.json);
    }
    sl_workers_destroy(workers);
    printf("%u results, %u failed\n", c.cases, c.failures);
    return c.failures ? 1 : 0;
}
