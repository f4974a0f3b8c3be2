// SPDX-License-Identifier: Apache-2.0
/* A form of the optimizer step (which optimizer, which types) with arrays of its own, and the times
 * of what can be done with them. */
#ifndef SLUICE_BENCH_ADAM_FORM_H
#define SLUICE_BENCH_ADAM_FORM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "bench/adam_arrays.h"
#include "kernels/cpu/optim.h"
#include "offload/workers.h"

struct form {
    const char *name;
    enum sl_optim_kind kind;
    enum sl_master_kind master;
    enum sl_moment_kind moment;
    enum sl_dtype grad, weight; /* weight F32: none is written */
};

/* The first is the one that the others are compared with. */
#define FORM_COUNT 11
extern const struct form forms[FORM_COUNT];

struct subject {
    const struct form *form;
    struct sl_workers *workers; /* borrowed */
    struct arrays arrays;
    struct sl_optim_args args; /* over the arrays as LAYOUT_OURS places them */
    float *scales;             /* 8-bit moments: first and second, a scale per block */
    double *chunk_squares;
    uint64_t *chunk_nonfinite;
};

/* Map the arrays and do a first step: gradients of about 1e-3, weights of about 0.05. -ENOMEM. */
int subject_create(struct subject *subject, const struct form *form, size_t count,
                   struct sl_workers *workers, struct sl_error *error);
void subject_destroy(struct subject *subject);

/* ---- one pass over all elements, on all workers; seconds ---- */

double subject_step(struct subject *subject);

/* Norm, check, unscale, clip, update, write-out. */
double subject_phase(struct subject *subject);

/* In-place streaming of the same arrays, which does nothing else (bench/adam_arrays.h). */
double subject_stream(struct subject *subject, size_t layout, int way);

/* The seconds that the step would take if all arrays were in the cores' second-level caches: every
 * worker repeats it on a few thousand elements of its own. */
double subject_step_cached(struct subject *subject);

#endif
