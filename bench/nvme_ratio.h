// SPDX-License-Identifier: Apache-2.0
/* Paired windows: the median of ratios and a distribution-free interval for it. */
#ifndef SLUICE_BENCH_NVME_RATIO_H
#define SLUICE_BENCH_NVME_RATIO_H

#include <stddef.h>

struct ratio {
    double median, low, high; /* low and high enclose the true median */
    double confidence;        /* of that; at least 0.95 where there are enough pairs (6) */
};

/* The ratios a[i] / b[i]; count is at most 256. */
struct ratio ratio_of_pairs(const double *a, const double *b, size_t count);

double median_of(const double *values, size_t count);

#endif
