// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/host/host.h"

extern const struct sl_host_kernels sl_host_table_generic;
#ifdef __x86_64__
extern const struct sl_host_kernels sl_host_table_avx2;
extern const struct sl_host_kernels sl_host_table_avx512;
#endif

/* Best last. */
static const struct sl_host_kernels *const variants[] = {
    &sl_host_table_generic,
#ifdef __x86_64__
    &sl_host_table_avx2,
    &sl_host_table_avx512,
#endif
};

#ifdef __x86_64__
/* Asked of the processor itself: clang 14's __builtin_cpu_supports does not know this one. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static bool runs_here(const struct sl_host_kernels *kernels)
{
#ifdef __x86_64__
    if (kernels == &sl_host_table_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (kernels == &sl_host_table_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
    return kernels == &sl_host_table_generic;
}

const struct sl_host_kernels *sl_host_kernels_find(const char *isa)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strcmp(variants[i]->isa, isa) == 0)
            return runs_here(variants[i]) ? variants[i] : NULL;
    return NULL;
}

const struct sl_host_kernels *sl_host_kernels(void)
{
    size_t i = sizeof variants / sizeof *variants - 1;
    while (i > 0 && !runs_here(variants[i]))
        i--;
    return variants[i];
}
