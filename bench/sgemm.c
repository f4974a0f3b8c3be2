// SPDX-License-Identifier: Apache-2.0
#include "bench/sgemm.h"

#include <cblas.h>

void bench_sgemm(size_t side, const float *a, const float *b, float *c)
{
    blasint n = (blasint)side;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
}

void bench_sgemm_threads(size_t count)
{
    openblas_set_num_threads((int)count);
}

const char *bench_sgemm_core(void)
{
    return openblas_get_corename();
}
