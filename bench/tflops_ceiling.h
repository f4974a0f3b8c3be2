// SPDX-License-Identifier: Apache-2.0
/* The fastest matrix product that a device does: what model FLOP/s are a share of. */
#ifndef SLUICE_BENCH_TFLOPS_CEILING_H
#define SLUICE_BENCH_TFLOPS_CEILING_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

#define TFLOPS_PRODUCT_MAX 8192u

struct tflops_ceiling {
    double flops_per_second;
    char shape[64]; /* of the best one, in words */
};

/* Raise *ceiling where a product is faster now: to be called before and after what it is compared
 * with. Host device: OpenBLAS sgemm, one square product per thread, all threads at once, sides 512
 * to 2048. Others: the device's own product, weights of `precision`, sides 2048 to 8192, none above
 * product_max.
 *
 * Memory   up to 64 MiB per thread on the host; 3 x 4 product_max^2 bytes on a device; given back
 * Errors   device and memory */
int tflops_ceiling_raise(struct tflops_ceiling *ceiling, const char *device,
                         enum sl_dtype precision, size_t thread_count, uint32_t product_max,
                         struct sl_error *error);

#endif
