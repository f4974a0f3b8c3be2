// SPDX-License-Identifier: Apache-2.0
/* Find the block size and queue depth that suit a device, and what it sustains: the measurement
 * behind `sluice tune nvme DIR`.
 */
#ifndef SLUICE_NVME_TUNE_H
#define SLUICE_NVME_TUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "nvme/swap.h"

#define SL_TUNE_POINTS_MAX 40u
#define SL_TUNE_STEPS 3u

struct sl_tune_options {
    const char *directory;
    uint64_t file_bytes; /* 0: 4 GiB, or half of what is free where that is less */
    double seconds_max;  /* 0: 50; at least 5. Writing the file comes on top on a slow device */
    const struct sl_log *log;
};

/* One setting and the rate of reading and writing at once, both directions together. */
struct sl_tune_point {
    size_t block_bytes, queue_depth;
    double mixed_bytes_per_second;
};

/* What one optimizer step costs on this device when the optimizer state of `parameters` lives on
 * it: 12 bytes per parameter (fp32 master weight and two moments) read and as many written. */
struct sl_tune_step {
    const char *name;
    double parameters;
    double seconds;             /* at the sustained mixed rate: the least time between two steps */
    double written_tb_per_step; /* 1e12 bytes */
    double written_tb_per_day;  /* stepping back to back */
};

struct sl_tune_result {
    struct sl_tune_point points[SL_TUNE_POINTS_MAX];
    size_t point_count;
    size_t block_bytes, queue_depth; /* the smallest setting within 3 % of the best */
    double read_bytes_per_second, write_bytes_per_second, mixed_bytes_per_second;
    double sustained_bytes_per_second, sustained_seconds; /* mixed */
    double first_touch_ratio; /* rate of writing fresh extents over rate of writing them again */
    double cpu_seconds_per_gb;
    double read_p50_us, read_p99_us, write_p50_us, write_p99_us; /* of a block, sustained mixed */
    enum sl_swap_backend backend;
    bool direct, registered;
    uint64_t file_bytes;
    double seconds; /* how long it all took */
    struct sl_tune_step steps[SL_TUNE_STEPS];
};

/* Measure. Creates a nameless file in the directory, 128 MiB of buffers, and nothing that stays.
 *
 * Errors   those of sl_swap_create, and of the device
 * Threads  one call at a time per directory
 */
int sl_tune_nvme(const struct sl_tune_options *options, struct sl_tune_result *result,
                 struct sl_error *error);

/* The steps for a device that sustains so much, reading and writing together. */
void sl_tune_steps(double mixed_bytes_per_second, struct sl_tune_step steps[SL_TUNE_STEPS]);

#endif
