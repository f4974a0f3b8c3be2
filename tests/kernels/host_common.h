// SPDX-License-Identifier: Apache-2.0
/* What the tests of the host device's kernels share: devices of several thread counts, seeded
 * values, and comparison with references in fp64. */
#ifndef SLUICE_TESTS_KERNELS_HOST_COMMON_H
#define SLUICE_TESTS_KERNELS_HOST_COMMON_H

#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/device.h"
#include "offload/workers.h"

static const size_t thread_counts[] = {1, 2, 3, 5};
#define THREAD_COUNTS (sizeof thread_counts / sizeof *thread_counts)

struct rig {
    struct sl_workers *workers;
    struct sl_device *device;
};

static inline struct rig rig_open(size_t threads)
{
    struct rig rig = {0};
    struct sl_error error = {0};
    struct sl_workers_options options = {.thread_count = threads, .unpinned = true};
    assert_int_equal(sl_workers_create(&rig.workers, &options, &error), 0);
    struct sl_device_options device = {.name = "host", .precision = SL_F32, .workers = rig.workers};
    assert_int_equal(sl_device_create(&rig.device, &device, &error), 0);
    return rig;
}

static inline void rig_close(struct rig *rig)
{
    sl_device_destroy(rig->device);
    sl_workers_destroy(rig->workers);
}

/* The devices of all thread counts, opened once per test program. */
static struct rig rigs[THREAD_COUNTS];

static inline int rigs_open(void **state)
{
    (void)state;
    for (size_t i = 0; i < THREAD_COUNTS; i++)
        rigs[i] = rig_open(thread_counts[i]);
    return 0;
}

static inline int rigs_close(void **state)
{
    (void)state;
    for (size_t i = 0; i < THREAD_COUNTS; i++)
        rig_close(&rigs[i]);
    return 0;
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;

/* Uniform in (-1, 1), a multiple of 2^-16: sums of products of a few are exact in fp64. */
static inline float random_value(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (float)((int64_t)(random_state >> 47) - 65536) * 0x1p-16f;
}

static inline size_t random_below(size_t limit)
{
    random_value();
    return (size_t)((random_state >> 11) % limit);
}

static inline float *random_array(size_t count)
{
    float *x = aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64);
    assert_non_null(x);
    for (size_t i = 0; i < count; i++)
        x[i] = random_value();
    return x;
}

static inline float *copy_array(const float *from, size_t count)
{
    float *x = aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64);
    assert_non_null(x);
    memcpy(x, from, count * sizeof(float));
    return x;
}

/* x rounded to dtype and as a weight; *rounded receives the rounded values as f32. */
static inline void *weight_array(const float *x, size_t count, enum sl_dtype dtype, float *rounded)
{
    void *w = aligned_alloc(64, (count * sl_dtype_bytes(dtype) + 127) / 64 * 64);
    assert_non_null(w);
    for (size_t i = 0; i < count; i++) {
        sl_dtype_store(w, dtype, i, x[i]);
        if (rounded)
            rounded[i] = sl_dtype_load(w, dtype, i);
    }
    return w;
}

static inline double *widen_array(const float *x, size_t count)
{
    double *d = malloc((count + 1) * sizeof(double));
    assert_non_null(d);
    for (size_t i = 0; i < count; i++)
        d[i] = x[i];
    return d;
}

/* |got - want| <= tolerance * max(1, largest |want|): tolerance is relative to the array's scale.
 */
static inline void check_close(const char *what, const float *got, const double *want, size_t count,
                               double tolerance)
{
    double scale = 1;
    for (size_t i = 0; i < count; i++)
        scale = fmax(scale, fabs(want[i]));
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * scale))
            fail_msg("%s[%zu]: got %.9g, want %.9g, scale %.3g, tolerance %.3g", what, i, got[i],
                     want[i], scale, tolerance * scale);
}

static inline void check_same_bits(const char *what, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s[%zu]: %.9g is not %.9g", what, i, a[i], b[i]);
}

/* f32 sums of n terms of size one: rounding error grows like n in the worst case and like sqrt(n)
 * in practice; 4 sqrt(n) units leave room without hiding a lost term. */
static inline double sum_tolerance(size_t terms)
{
    return 4 * sqrt((double)terms + 1) * 0x1p-24;
}

/* Central difference of loss(x) for every element of x, in fp64: the truncation error is h^2 and
 * the rounding error 1e-16 / h, both below 1e-9 at h = 1e-5. */
typedef double (*loss_fn)(const void *context);

static inline double *finite_difference(loss_fn loss, const void *context, double *x, size_t count)
{
    const double h = 1e-5;
    double *gradient = malloc((count + 1) * sizeof(double));
    assert_non_null(gradient);
    for (size_t i = 0; i < count; i++) {
        double kept = x[i];
        x[i] = kept + h;
        double up = loss(context);
        x[i] = kept - h;
        double down = loss(context);
        x[i] = kept;
        gradient[i] = (up - down) / (2 * h);
    }
    return gradient;
}

#endif
