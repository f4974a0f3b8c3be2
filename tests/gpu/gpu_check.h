// SPDX-License-Identifier: Apache-2.0
/* The check of a real GPU: every operation of the CUDA device against the host device, and its time
 * against its floor (bytes or flops over ceilings measured in the same run). */
#ifndef SLUICE_TESTS_GPU_CHECK_H
#define SLUICE_TESTS_GPU_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/cpu/optim.h"
#include "offload/device.h"
#include "offload/workers.h"

enum operation {
    OP_NORM,
    OP_NORM_BACKWARD,
    OP_MATMUL,
    OP_ROPE,
    OP_ATTENTION,
    OP_ATTENTION_BACKWARD,
    OP_ATTENTION_CACHED,
    OP_ACT,
    OP_ACT_BACKWARD,
    OP_ADD,
    OP_EMBEDDING,
    OP_EMBEDDING_BACKWARD,
    OP_CROSS_ENTROPY,
    OP_GRADIENT_FINISH,
    OP_OPTIM,
};

struct check {
    struct sl_device *host, *cuda;
    enum sl_dtype type;
    bool small;                                            /* shapes for the simulated device */
    double copy_bytes_per_second, matrix_flops_per_second; /* 0 until measured */
    FILE *json;                                            /* or NULL */
    unsigned cases, failures;
};

/* One array on both devices. On the host it is f32, whatever the type (ids and raw arrays are the
 * same bytes on both). */
struct array {
    size_t count;
    enum sl_dtype dtype;
    void *host, *cuda;
};

/* Random values in (-1, 1) * scale, representable in dtype. with_host: also on the host. Exits the
 * program where memory ends: the check cannot go on. */
struct array array_make(struct check *c, enum sl_dtype dtype, size_t count, float scale,
                        bool with_host);
/* Integers below `limit`, the same bytes on both. */
struct array array_ids(struct check *c, size_t count, int32_t limit);
void array_free(struct check *c, struct array *a);

/* Call the operation on a device. */
int run(struct sl_device *device, enum operation op, const void *args);

/* Run on both devices. */
void run_both(struct check *c, enum operation op, const void *host, const void *cuda);

/* ||cuda - host|| / ||host|| <= allowed, and no NaN; one line of the report. */
void compare(struct check *c, const char *name, const struct array *a, double allowed);

/* Median time of the operation, queued back to back, and its share of the floor. */
void measure(struct check *c, const char *name, const char *shape, enum operation op,
             const void *args, double bytes, double flops);

/* Every operation once in the check's type: compared at moderate sizes, or timed at large ones. */
void cases_compare(struct check *c);
void cases_measure(struct check *c);

#endif
