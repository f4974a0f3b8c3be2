// SPDX-License-Identifier: Apache-2.0
/* Instruction sets of the CPU kernels, and the choice among them at start-up. */
#ifndef SLUICE_KERNELS_CPU_ISA_H
#define SLUICE_KERNELS_CPU_ISA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

struct sl_optim_args;
struct sl_optim_terms;

/* Weakest first. */
enum sl_cpu_isa { SL_CPU_SCALAR, SL_CPU_NEON, SL_CPU_AVX2, SL_CPU_AVX512, SL_CPU_ISA_COUNT };

/* One variant of every kernel. optim_step takes at most 2^32 elements that do not cross a multiple
 * of 2^32 (sl_optim_step cuts runs there). The rest: optim.h and gradient.h. */
struct sl_cpu_kernels {
    void (*optim_step)(const struct sl_optim_args *args, const struct sl_optim_terms *terms);
    void (*gradient_finish_chunk)(const float *sum, void *out, enum sl_dtype dtype, size_t count,
                                  double *squares, uint64_t *nonfinite);
    void (*gradient_measure_chunk)(const void *x, enum sl_dtype dtype, size_t count,
                                   double *squares, uint64_t *nonfinite);
    void (*gradient_accumulate)(float *sum, const void *x, enum sl_dtype dtype, size_t count);
    void (*cast_to_f32)(float *out, const void *x, enum sl_dtype dtype, size_t count);
    void (*cast_from_f32)(void *out, enum sl_dtype dtype, const float *x, size_t count);
};

/* "scalar", "neon", "avx2", "avx512". Never NULL. */
const char *sl_cpu_isa_name(enum sl_cpu_isa isa);

/* The kernels of one instruction set; NULL where it is not compiled in or the processor (or its
 * operating system) lacks it. */
const struct sl_cpu_kernels *sl_cpu_isa_kernels(enum sl_cpu_isa isa);

/* What the processor lacks for `isa`, or NULL where it can run it. For messages and skips. */
const char *sl_cpu_isa_missing(enum sl_cpu_isa isa);

/* Choose the variant for the process: the best there is, or the one that the environment variable
 * SLUICE_ISA names. Call once at start-up; kernels used before it take the best there is.
 *
 * Threads  any; not while kernels run
 * Errors   -EINVAL: SLUICE_ISA names none, or one that this processor lacks (the best is kept) */
int sl_cpu_isa_select(struct sl_error *error);

/* The variant in use. */
enum sl_cpu_isa sl_cpu_isa_active(void);

#endif
