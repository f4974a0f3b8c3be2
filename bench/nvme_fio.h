// SPDX-License-Identifier: Apache-2.0
/* fio as the limit: one window of its io_uring engine on a given file. */
#ifndef SLUICE_BENCH_NVME_FIO_H
#define SLUICE_BENCH_NVME_FIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "nvme/load.h"

struct fio_job {
    const char *path;
    enum sl_load_kind kind;
    uint64_t region_bytes;
    size_t block_bytes, depth;
    double seconds;
    bool registered; /* registered buffers and files, as the engine has them */
};

struct fio_result {
    double bytes_per_second, cpu_seconds_per_gb;
    double p50_us, p99_us; /* of completion; of the slower direction where both run */
};

/* -ENOENT where fio is not installed. */
int fio_run(const struct fio_job *job, struct fio_result *result, struct sl_error *error);

#endif
