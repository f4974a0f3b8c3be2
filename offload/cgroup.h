// SPDX-License-Identifier: Apache-2.0
/* The limits of the control groups that this process lives in, version 1 and 2. */
#ifndef SLUICE_OFFLOAD_CGROUP_H
#define SLUICE_OFFLOAD_CGROUP_H

#include <stdint.h>

struct sl_cgroup_limits {
    double cpu_quota;                /* cores' worth of time; 0: none */
    uint64_t memory_limit_bytes;     /* UINT64_MAX: none */
    uint64_t memory_available_bytes; /* limit less what is in use and not reclaimable;
                                        UINT64_MAX: none */
};

/* The tightest limits on the way from this process's group to the root. What cannot be read does
 * not limit. `root` is put before /proc and /sys/fs/cgroup; NULL: this machine. */
void sl_cgroup_read(struct sl_cgroup_limits *out, const char *root);

/* MemTotal and MemAvailable of `root`/proc/meminfo, 0 where unreadable. */
void sl_meminfo_read(uint64_t *total_bytes, uint64_t *available_bytes, const char *root);

#endif
