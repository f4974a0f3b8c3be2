// SPDX-License-Identifier: Apache-2.0
/* The interval is that of the sign test: order statistics k and n + 1 - k enclose the median with
 * probability 1 - 2 P(Binomial(n, 1/2) < k), whatever the distribution of the noise.
 */
#include "bench/nvme_ratio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX 256u

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_sorted(const double *sorted, size_t count)
{
    return count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

double median_of(const double *values, size_t count)
{
    double sorted[COUNT_MAX];
    count = count > COUNT_MAX ? COUNT_MAX : count;
    if (count == 0)
        return 0;
    memcpy(sorted, values, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), compare);
    return median_sorted(sorted, count);
}

struct ratio ratio_of_pairs(const double *a, const double *b, size_t count)
{
    double ratios[COUNT_MAX];
    struct ratio result = {0};
    count = count > COUNT_MAX ? COUNT_MAX : count;
    if (count == 0)
        return result;
    for (size_t i = 0; i < count; i++)
        ratios[i] = a[i] / b[i];
    qsort(ratios, count, sizeof(*ratios), compare);
    result.median = median_sorted(ratios, count);
    /* The narrowest interval of at least 95 %; with fewer than six pairs the whole range. */
    double term = pow(0.5, (double)count), below = 0;
    size_t k = 0;
    for (size_t i = 0; i < count / 2 && 1 - 2 * (below + term) >= 0.95; i++) {
        below += term;
        term *= (double)(count - i) / (double)(i + 1);
        k = i;
    }
    result.low = ratios[k];
    result.high = ratios[count - 1 - k];
    result.confidence = 1 - 2 * (below > 0 ? below : term);
    return result;
}
