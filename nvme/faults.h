// SPDX-License-Identifier: Apache-2.0
/* Seeded faults of a storage device, for tests: SL_SWAP_FAULTY wraps a working backend and lets
 * operations go wrong. Chances are per operation, in [0, 1]; at most one fault hits an operation.
 */
#ifndef SLUICE_NVME_FAULTS_H
#define SLUICE_NVME_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "nvme/swap.h"

enum sl_fault {
    SL_FAULT_SHORT,       /* fewer bytes than asked for, on and off boundaries: to be retried */
    SL_FAULT_EINTR,       /* to be retried */
    SL_FAULT_EAGAIN,      /* to be retried */
    SL_FAULT_EIO,         /* the run ends */
    SL_FAULT_ENOSPC,      /* the run ends */
    SL_FAULT_FLIP_READ,   /* one bit changed on the way to memory: the sum finds it */
    SL_FAULT_FLIP_WRITE,  /* one bit changed on the way to the device: the next read finds it */
    SL_FAULT_MISDIRECTED, /* a write lands elsewhere in the file: likewise */
    SL_FAULT_LOST,        /* a write is acknowledged and not done: likewise */
    SL_FAULT_STALL,       /* never comes back, or after stall_release_ns: the watchdog reports it */
    SL_FAULT_COUNT,
};

struct sl_swap_faults {
    uint64_t seed;
    double chance[SL_FAULT_COUNT];
    uint64_t first_operation; /* operations before it (counted from 0) go well */
    uint64_t faults_max;      /* so many at most; 0: no limit */
    double delay_chance;      /* comes back late, by up to delay_ns_max */
    uint64_t delay_ns_max;
    uint64_t read_bytes_per_second, write_bytes_per_second; /* a slow device; 0: as it is */
    bool reorder;               /* finished operations come back in random order */
    uint64_t quota_bytes;       /* the disk is full after so many bytes written; 0: never */
    uint64_t stall_release_ns;  /* 0: a stalled operation stays out for good */
    enum sl_swap_backend inner; /* SL_SWAP_URING or SL_SWAP_THREADS */
    /* [SL_FAULT_COUNT] how often each was injected, written on the I/O thread: read it after
     * sl_swap_destroy. NULL allowed. */
    uint64_t *injected;
};

const char *sl_fault_name(enum sl_fault fault);

#endif
