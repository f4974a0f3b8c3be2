// SPDX-License-Identifier: Apache-2.0
/* OpenBLAS's sgemm, that own products are compared with. Called from here only. */
#ifndef SLUICE_BENCH_SGEMM_H
#define SLUICE_BENCH_SGEMM_H

#include <stddef.h>

/* c = a b of square matrices. */
void bench_sgemm(size_t side, const float *a, const float *b, float *c);

/* Let OpenBLAS use so many threads a call; 1 before bench_sgemm is called by several at once. */
void bench_sgemm_threads(size_t count);

/* The kernels that OpenBLAS chose: "Haswell", "SkylakeX". */
const char *bench_sgemm_core(void);

#endif
