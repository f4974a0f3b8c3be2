// SPDX-License-Identifier: Apache-2.0
/* The tables that the variant libraries export, for isa.c and the tests. */
#ifndef SLUICE_KERNELS_CPU_VARIANTS_H
#define SLUICE_KERNELS_CPU_VARIANTS_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/optim.h"

extern const struct sl_cpu_kernels sl_cpu_kernels_scalar;
extern const struct sl_cpu_kernels sl_cpu_kernels_avx2;
extern const struct sl_cpu_kernels sl_cpu_kernels_avx512;
extern const struct sl_cpu_kernels sl_cpu_kernels_neon;

/* sl_optim_step with the variant of `kernels`. */
void sl_optim_step_with(const struct sl_cpu_kernels *kernels, const struct sl_optim_args *args);

#endif
