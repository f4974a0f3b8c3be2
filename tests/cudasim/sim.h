// SPDX-License-Identifier: Apache-2.0
/* What the tests of the CUDA module share: the host device and the simulated CUDA device side by
 * side, tensors that exist on both, and comparison under a stated tolerance.
 *
 * A tensor's values are representable in the activation type, so both sides start from the same
 * numbers; the host then computes in f32.
 */
#ifndef SLUICE_TESTS_CUDASIM_SIM_H
#define SLUICE_TESTS_CUDASIM_SIM_H

#include "tests/test.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "offload/device.h"
#include "offload/workers.h"
#include "tests/cudasim/cudasim.h"

struct sim {
    struct sl_workers *workers;
    struct sl_device *host, *cuda;
    enum sl_dtype type;
    struct test_random random;
};

/* The steering functions of the module that the loader has loaded. */
static inline void *sim_symbol(const char *name)
{
    static void *module;
    if (!module)
        module = dlopen(getenv("SLUICE_CUDA_MODULE"), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(module);
    void *symbol = dlsym(module, name);
    assert_non_null(symbol);
    return symbol;
}

#define SIM_CALL(name, ...) ((__typeof__(&name))sim_symbol(#name))(__VA_ARGS__)

static inline int sim_open_named(struct sim *sim, enum sl_dtype type, const char *name,
                                 struct sl_error *error)
{
    struct sl_workers_options workers = {.thread_count = 1, .unpinned = true};
    memset(sim, 0, sizeof(*sim));
    sim->type = type;
    assert_int_equal(sl_workers_create(&sim->workers, &workers, error), 0);
    struct sl_device_options options = {.name = "host", .precision = type, .workers = sim->workers};
    assert_int_equal(sl_device_create(&sim->host, &options, error), 0);
    options.name = name;
    return sl_device_create(&sim->cuda, &options, error);
}

static inline void sim_open(struct sim *sim, enum sl_dtype type)
{
    struct sl_error error = {0};
    int code = sim_open_named(sim, type, "cuda", &error);
    if (code)
        fail_msg("%s", error.message);
    sim->random = test_random_seed(20240801u + (unsigned)type);
}

static inline void sim_close(struct sim *sim)
{
    sl_device_destroy(sim->cuda);
    sl_device_destroy(sim->host);
    sl_workers_destroy(sim->workers);
    assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
    assert_int_equal(SIM_CALL(cudasim_pending), 0);
}

#define SIM_OK(call)                                                                               \
    do {                                                                                           \
        int sim_code = (call);                                                                     \
        if (sim_code)                                                                              \
            fail_msg("%s: %d: %s", #call, sim_code, sim->cuda->error.message);                     \
    } while (0)

/* Half a unit in the last place of 1: what one rounding to the type can do, relatively. */
static inline double sim_epsilon(enum sl_dtype type)
{
    return type == SL_BF16 ? 0x1p-8 : type == SL_F16 ? 0x1p-11 : 0x1p-24;
}

/* One array on both sides. host: f32 (the host device's activations) or raw bytes; device: `dtype`.
 */
struct tensor {
    size_t count;
    enum sl_dtype dtype;
    float *host;
    void *device;
};

static inline void *sim_upload(struct sim *sim, const void *from, size_t bytes)
{
    void *device = NULL;
    SIM_OK(sim->cuda->ops->memory_alloc(sim->cuda, bytes ? bytes : 1, &device));
    SIM_OK(sim->cuda->ops->copy(sim->cuda, SL_STREAM_COMPUTE, device, from, bytes));
    SIM_OK(sim->cuda->ops->stream_synchronize(sim->cuda, SL_STREAM_COMPUTE));
    return device;
}

static inline void sim_download(struct sim *sim, void *to, const void *device, size_t bytes)
{
    SIM_OK(sim->cuda->ops->copy(sim->cuda, SL_STREAM_COMPUTE, to, device, bytes));
    SIM_OK(sim->cuda->ops->stream_synchronize(sim->cuda, SL_STREAM_COMPUTE));
}

static inline void *sim_host_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(memory);
    return memory;
}

/* Put the host's values (rounded to dtype first) on the device. */
static inline void tensor_upload(struct sim *sim, struct tensor *t)
{
    size_t bytes = t->count * sl_dtype_bytes(t->dtype);
    void *rounded = sim_host_alloc(bytes);
    for (size_t i = 0; i < t->count; i++) {
        sl_dtype_store(rounded, t->dtype, i, t->host[i]);
        t->host[i] = sl_dtype_load(rounded, t->dtype, i);
    }
    t->device = sim_upload(sim, rounded, bytes);
    free(rounded);
}

/* Uniform in [offset - scale, offset + scale). */
static inline struct tensor tensor_random(struct sim *sim, enum sl_dtype dtype, size_t count,
                                          float scale, float offset)
{
    struct tensor t = {count, dtype, sim_host_alloc(count * sizeof(float)), NULL};
    for (size_t i = 0; i < count; i++)
        t.host[i] = offset + scale * test_random_float(&sim->random);
    tensor_upload(sim, &t);
    return t;
}

/* To be written: NaN on both sides until then. */
static inline struct tensor tensor_empty(struct sim *sim, enum sl_dtype dtype, size_t count)
{
    struct tensor t = {count, dtype, sim_host_alloc(count * sizeof(float)), NULL};
    for (size_t i = 0; i < count; i++)
        t.host[i] = NAN;
    tensor_upload(sim, &t);
    return t;
}

/* The same values again, in arrays of their own. */
static inline struct tensor tensor_clone(struct sim *sim, const struct tensor *from)
{
    struct tensor t = {from->count, from->dtype, sim_host_alloc(from->count * sizeof(float)), NULL};
    memcpy(t.host, from->host, from->count * sizeof(float));
    tensor_upload(sim, &t);
    return t;
}

static inline void tensor_free(struct sim *sim, struct tensor *t)
{
    sim->cuda->ops->memory_free(sim->cuda, t->device, t->count * sl_dtype_bytes(t->dtype));
    free(t->host);
    memset(t, 0, sizeof(*t));
}

/* The device's values as f32 (to be freed). */
static inline float *tensor_fetch(struct sim *sim, const struct tensor *t)
{
    size_t bytes = t->count * sl_dtype_bytes(t->dtype);
    void *raw = sim_host_alloc(bytes);
    float *out = sim_host_alloc(t->count * sizeof(float));
    sim_download(sim, raw, t->device, bytes);
    for (size_t i = 0; i < t->count; i++)
        out[i] = sl_dtype_load(raw, t->dtype, i);
    free(raw);
    return out;
}

/* |device - host| <= absolute + relative * |host|, element by element. */
static inline void tensor_expect(struct sim *sim, const char *what, const struct tensor *t,
                                 double absolute, double relative)
{
    float *device = tensor_fetch(sim, t);
    for (size_t i = 0; i < t->count; i++) {
        double want = t->host[i], got = device[i];
        if (!(fabs(got - want) <= absolute + relative * fabs(want)))
            fail_msg("%s[%zu] (%s): device %.9g, host %.9g, difference %.3g, allowed %.3g", what, i,
                     sl_dtype_name(t->dtype), got, want, fabs(got - want),
                     absolute + relative * fabs(want));
    }
    free(device);
}

static inline void tensor_expect_bits(struct sim *sim, const char *what, const struct tensor *t)
{
    float *device = tensor_fetch(sim, t);
    for (size_t i = 0; i < t->count; i++)
        if (sl_bits_from_f32(device[i]) != sl_bits_from_f32(t->host[i]))
            fail_msg("%s[%zu]: device %a, host %a", what, i, (double)device[i], (double)t->host[i]);
    free(device);
}

/* A weight of the host and of the device from one tensor (the host's copy is f32). */
static inline struct sl_weight weight_host(const struct tensor *t)
{
    return (struct sl_weight){t ? t->host : NULL, SL_F32};
}

static inline struct sl_weight weight_device(const struct tensor *t)
{
    return (struct sl_weight){t ? t->device : NULL, t ? t->dtype : SL_F32};
}

/* FNV-1a of the device's bytes: equal bits in every thread order. */
static inline uint64_t tensor_hash(struct sim *sim, const struct tensor *t)
{
    size_t bytes = t->count * sl_dtype_bytes(t->dtype);
    unsigned char *raw = sim_host_alloc(bytes);
    sim_download(sim, raw, t->device, bytes);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ raw[i]) * 0x100000001b3u;
    free(raw);
    return hash;
}

#endif
