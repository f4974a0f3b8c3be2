// SPDX-License-Identifier: Apache-2.0
/* What this process may use of the machine: cores, NUMA nodes, memory, after affinity and cgroups.
 *
 * The one place that includes hwloc. Budgets and thread counts come from here, so that a container
 * with 2 of 96 cores and 8 of 512 GiB is planned for as what it is.
 */
#ifndef SLUICE_OFFLOAD_TOPOLOGY_H
#define SLUICE_OFFLOAD_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SL_TOPOLOGY_CORES_MAX 1024
#define SL_TOPOLOGY_NODES_MAX 64

/* A physical core of which at least one hardware thread is allowed. */
struct sl_core {
    int cpu;        /* the kernel's number of its first allowed hardware thread */
    int node;       /* index into nodes[] */
    int efficiency; /* 0 where all cores are alike; else higher is faster */
};

struct sl_numa_node {
    int os_index; /* the kernel's number of the node */
    uint64_t memory_bytes;
    size_t core_count; /* usable cores whose nearest memory it is */
};

struct sl_topology {
    size_t core_count; /* at least 1; ordered by node, then by position */
    struct sl_core cores[SL_TOPOLOGY_CORES_MAX];
    size_t thread_count; /* allowed hardware threads on those cores */
    size_t node_count;   /* at least 1 */
    struct sl_numa_node nodes[SL_TOPOLOGY_NODES_MAX];
    double cpu_quota;                /* cores' worth of time per period; 0: no quota */
    uint64_t memory_total_bytes;     /* of the machine */
    uint64_t memory_limit_bytes;     /* the smallest of machine and cgroup limits */
    uint64_t memory_available_bytes; /* what can be taken now without swapping or a kill */
};

/* Where to look, for tests that replay captured machines. NULL or zero fields: this machine. */
struct sl_topology_source {
    const char *xml_path; /* an hwloc XML export */
    const char *root;     /* put before /proc and /sys/fs/cgroup */
    const char *affinity; /* cpu list such as "0-3,8", in place of the process's mask */
};

/* Read what this process may use.
 *
 * Threads  any; slow (milliseconds): once per start
 * Owner    the caller owns *out, plain data
 * Errors   -EINVAL (unreadable XML, empty affinity), -EIO (hwloc failed) */
int sl_topology_read(struct sl_topology *out, const struct sl_topology_source *source,
                     struct sl_error *error);

#endif
