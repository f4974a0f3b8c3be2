// SPDX-License-Identifier: Apache-2.0
/* Keep a swap space busy for a while and measure: what bench/nvme and the tuner share. */
#ifndef SLUICE_NVME_LOAD_H
#define SLUICE_NVME_LOAD_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "nvme/swap.h"

enum sl_load_kind { SL_LOAD_READ, SL_LOAD_WRITE, SL_LOAD_MIXED };

struct sl_load {
    struct sl_swap *swap;
    enum sl_load_kind kind; /* mixed: as many reads as writes, in halves of the region */
    uint64_t region_bytes;  /* from offset 0, walked in order, again and again */
    void *memory;           /* [requests * request_bytes], aligned, registered where possible */
    uint64_t request_bytes; /* one transfer of the plan: cut into blocks by the swap space */
    unsigned requests;      /* in flight at once, at most SL_LOAD_REQUESTS_MAX, even */
    uint64_t duration_ns;   /* 0: each byte of the region once */
};

#define SL_LOAD_REQUESTS_MAX 16u

struct sl_load_result {
    uint64_t bytes; /* read and written */
    double seconds, bytes_per_second;
    double cpu_seconds_per_gb; /* user and system, of the whole process, per 1e9 bytes */
};

/* Returns 0 or the code of the first failed request, with `error` filled from the swap space. */
int sl_load_run(const struct sl_load *load, struct sl_load_result *result, struct sl_error *error);

const char *sl_load_name(enum sl_load_kind kind);

#endif
