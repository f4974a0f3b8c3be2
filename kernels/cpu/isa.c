// SPDX-License-Identifier: Apache-2.0
/* One table per instruction set, one pointer to the table in use.
 *
 * Problem   One program for every processor of an architecture, with kernels that must not be
 *           reached by one that lacks their instructions.
 * Choice    Each variant is a static library with its own flags that exports one table. The pointer
 *           is set once at start-up; a kernel call is one load and one indirect call per run of
 *           thousands of elements.
 * Rejected  ifunc and target_clones: glibc and linker dependent, cannot be forced by a user, and
 *           clones let the compiler contract differently per clone.
 * Invariant A table is returned only if the processor and the operating system can run it.
 */
#include "kernels/cpu/isa.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/gradient.h"
#include "kernels/cpu/optim.h"
#include "kernels/cpu/optim_terms.h"
#include "kernels/cpu/variants.h"

static const char *const isa_names[SL_CPU_ISA_COUNT] = {"scalar", "neon", "avx2", "avx512"};

const char *sl_cpu_isa_name(enum sl_cpu_isa isa)
{
    return isa < SL_CPU_ISA_COUNT ? isa_names[isa] : "unknown";
}

#if defined(__x86_64__)
static const char *missing_avx2(void)
{
    __builtin_cpu_init(); /* checks the operating system's save area too */
    if (!__builtin_cpu_supports("avx2"))
        return "AVX2";
    if (!__builtin_cpu_supports("fma"))
        return "FMA";
    /* F16C came before AVX2 and FMA in every processor that has them. */
    return NULL;
}

static const char *missing_avx512(void)
{
    if (missing_avx2())
        return missing_avx2();
    if (!__builtin_cpu_supports("avx512f"))
        return "AVX-512F";
    if (!__builtin_cpu_supports("avx512bw"))
        return "AVX-512BW";
    if (!__builtin_cpu_supports("avx512dq"))
        return "AVX-512DQ";
    if (!__builtin_cpu_supports("avx512vl"))
        return "AVX-512VL";
    return NULL;
}
#endif

const char *sl_cpu_isa_missing(enum sl_cpu_isa isa)
{
    switch (isa) {
    case SL_CPU_SCALAR:
        return NULL;
#if defined(__aarch64__)
    case SL_CPU_NEON:
        return NULL;
#elif defined(__x86_64__)
    case SL_CPU_AVX2:
        return missing_avx2();
    case SL_CPU_AVX512:
        return missing_avx512();
#endif
    default:
        return "its architecture";
    }
}

const struct sl_cpu_kernels *sl_cpu_isa_kernels(enum sl_cpu_isa isa)
{
    if (sl_cpu_isa_missing(isa))
        return NULL;
    switch (isa) {
#if defined(__aarch64__)
    case SL_CPU_NEON:
        return &sl_cpu_kernels_neon;
#elif defined(__x86_64__)
    case SL_CPU_AVX2:
        return &sl_cpu_kernels_avx2;
    case SL_CPU_AVX512:
        return &sl_cpu_kernels_avx512;
#endif
    default:
        return &sl_cpu_kernels_scalar;
    }
}

static _Atomic int active_isa = -1;
static _Atomic(const struct sl_cpu_kernels *) active_kernels;

static void activate(enum sl_cpu_isa isa)
{
    atomic_store_explicit(&active_isa, (int)isa, memory_order_relaxed);
    atomic_store_explicit(&active_kernels, sl_cpu_isa_kernels(isa), memory_order_release);
}

static enum sl_cpu_isa best(void)
{
    enum sl_cpu_isa isa = SL_CPU_ISA_COUNT - 1;
    while (sl_cpu_isa_missing(isa))
        isa--;
    return isa;
}

int sl_cpu_isa_select(struct sl_error *error)
{
    activate(best());
    const char *name = getenv("SLUICE_ISA");
    if (!name || !*name)
        return 0;
    for (enum sl_cpu_isa isa = 0; isa < SL_CPU_ISA_COUNT; isa++) {
        if (strcmp(name, isa_names[isa]) != 0)
            continue;
        const char *missing = sl_cpu_isa_missing(isa);
        if (missing)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "SLUICE_ISA \"%s\": this processor lacks %s; unset it to use %s",
                                name, missing, sl_cpu_isa_name(best()));
        activate(isa);
        return 0;
    }
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "SLUICE_ISA \"%s\": not one of scalar, neon, avx2, avx512; unset it to "
                        "use %s",
                        name, sl_cpu_isa_name(best()));
}

static const struct sl_cpu_kernels *kernels(void)
{
    const struct sl_cpu_kernels *table =
        atomic_load_explicit(&active_kernels, memory_order_acquire);
    if (__builtin_expect(!table, 0)) {
        sl_cpu_isa_select(NULL); /* the same answer from every thread that comes here first */
        table = atomic_load_explicit(&active_kernels, memory_order_acquire);
    }
    return table;
}

enum sl_cpu_isa sl_cpu_isa_active(void)
{
    kernels();
    return (enum sl_cpu_isa)atomic_load_explicit(&active_isa, memory_order_relaxed);
}

void sl_optim_step(const struct sl_optim_args *args)
{
    sl_optim_step_with(kernels(), args);
}

void sl_gradient_finish_chunk(const float *sum, void *out, enum sl_dtype dtype, size_t count,
                              double *squares, uint64_t *nonfinite)
{
    kernels()->gradient_finish_chunk(sum, out, dtype, count, squares, nonfinite);
}

void sl_gradient_measure_chunk(const void *x, enum sl_dtype dtype, size_t count, double *squares,
                               uint64_t *nonfinite)
{
    kernels()->gradient_measure_chunk(x, dtype, count, squares, nonfinite);
}

void sl_gradient_accumulate(float *sum, const void *x, enum sl_dtype dtype, size_t count)
{
    kernels()->gradient_accumulate(sum, x, dtype, count);
}

void sl_cast_to_f32(float *out, const void *x, enum sl_dtype dtype, size_t count)
{
    kernels()->cast_to_f32(out, x, dtype, count);
}

void sl_cast_from_f32(void *out, enum sl_dtype dtype, const float *x, size_t count)
{
    kernels()->cast_from_f32(out, dtype, x, count);
}
