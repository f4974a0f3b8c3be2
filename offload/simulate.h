// SPDX-License-Identifier: Apache-2.0
/* The simulator: a sealed plan under a virtual clock, on hardware that is a list of rates.
 *
 * The executor's rules are kept (lane order, waits, two instances in flight, several operations in
 * flight on the NVMe lanes); only the work is replaced by time. Lanes share what they share in the
 * machine: an upload also needs DRAM, an update cores and DRAM, reads and writes one drive.
 */
#ifndef SLUICE_OFFLOAD_SIMULATE_H
#define SLUICE_OFFLOAD_SIMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "offload/plan.h"

struct sl_trace;

#define SL_HARDWARE_NAME_BYTES 64
#define SL_HARDWARE_TEXT_BYTES 256

/* A machine as one rank sees it. Rates are what long operations reach, not what a data sheet says,
 * except for device_flops_peak. Zero where a resource is absent; shared limits: zero is no limit.
 */
struct sl_hardware {
    char name[SL_HARDWARE_NAME_BYTES];
    char description[SL_HARDWARE_TEXT_BYTES];
    bool device_is_host;                 /* compute runs on the cores and DRAM below */
    double device_memory_bytes;          /* 0 where the device is the host */
    double device_flops_peak;            /* nominal dense 16-bit rate: what MFU is a share of */
    double device_flops_per_second;      /* reached by large matrix products */
    double device_bytes_per_second;      /* device memory, reached by streaming kernels */
    double device_op_seconds;            /* start and end of one plan operation */
    double link_up_bytes_per_second;     /* host to device, alone */
    double link_down_bytes_per_second;   /* device to host, alone */
    double link_both_bytes_per_second;   /* up and down at once, half each, together; 0: no limit */
    double link_host_bytes_per_second;   /* all devices of the host together; 0: no limit */
    double link_op_seconds;              /* start and end of one copy */
    double host_memory_bytes;            /* DRAM */
    double host_bytes_per_second;        /* DRAM, read and written */
    double host_cores;                   /* that compute */
    double core_bytes_per_second;        /* DRAM traffic that one core makes in the update */
    double core_flops_per_second;        /* of one core in matrix products; where device_is_host */
    double core_weight_bytes_per_second; /* weights that one core widens and packs for products;
                                            where device_is_host; 0: that costs nothing */
    double core_nvme_bytes_per_second;  /* that one core's time moves through the swap engine: sums,
                                           submission; 0: that costs nothing */
    double host_op_seconds;             /* start and end of one operation of the workers */
    double nvme_bytes;                  /* capacity */
    double nvme_read_bytes_per_second;  /* alone */
    double nvme_write_bytes_per_second; /* alone, sustained */
    double nvme_mixed_bytes_per_second; /* read and written at once, half each, together; 0: no
                                           limit */
    double nvme_op_seconds;             /* latency of one transfer */
    double net_bytes_per_second;        /* of one rank in a ring */
    double net_op_seconds;              /* latency of one collective */
    double ranks_per_host;              /* devices in the host that the profile describes */
};

/* What operations draw on. */
enum sl_resource {
    SL_RESOURCE_DEVICE_FLOPS,
    SL_RESOURCE_DEVICE_MEMORY,
    SL_RESOURCE_LINK_UP,
    SL_RESOURCE_LINK_DOWN,
    SL_RESOURCE_LINK, /* both directions, in seconds of one */
    SL_RESOURCE_CORES,
    SL_RESOURCE_DRAM,
    SL_RESOURCE_NVME_READ,
    SL_RESOURCE_NVME_WRITE,
    SL_RESOURCE_NVME, /* both directions, in seconds of one */
    SL_RESOURCE_NET,
    SL_RESOURCE_COUNT
};
const char *sl_resource_name(enum sl_resource resource);

/* The share of one of `ranks` devices that work at once, `ranks_per_host` of them in a host: cores,
 * DRAM, drive and the host's side of the link are divided; the device and the network are not. */
struct sl_hardware sl_hardware_share(const struct sl_hardware *hardware, uint32_t ranks);

struct sl_simulation_options {
    const struct sl_plan *plan; /* sealed, borrowed */
    const struct sl_hardware *hardware;
    const uint32_t *segments; /* instances to run, in order; each may follow the one before it */
    uint32_t segment_count;
    uint32_t measured;      /* the last so many instances are the steady state; at least 1 */
    struct sl_trace *trace; /* NULL: none; all instances */
    double *op_end_seconds; /* NULL, or [op_count]: the end of each operation's last run */
};

/* Seconds and shares are of the measured instances, seconds per instance. */
struct sl_simulation {
    double total_seconds;               /* of the whole sequence */
    double step_seconds;                /* end to end, from the end of one to the end of the next */
    double busy_seconds[SL_LANE_COUNT]; /* at least one operation in work */
    double wait_seconds[SL_LANE_COUNT]; /* step_seconds - busy_seconds */
    /* Of the waiting of a lane (first index), what it waited for: the lane that was at work at the
     * end of the chain of waits. The rest: it had nothing left to do. */
    double blocked_seconds[SL_LANE_COUNT][SL_LANE_COUNT];
    double solo_seconds[SL_LANE_COUNT]; /* sum over its operations, had each the machine alone */
    double used_share[SL_RESOURCE_COUNT]; /* of the resource, 0 to 1 */
    double bound_seconds; /* no schedule of these operations takes less: max over lanes and shared
                             resources */
    enum sl_lane bound_lane; /* the one that gives the bound; or, where a shared resource does: */
    enum sl_resource bound_resource;
    bool bound_is_resource;
};

/* Run the plan under the virtual clock.
 *
 * Memory   allocates; frees everything before it returns
 * Threads  any; starts none
 * Errors   -ENOMEM; -EINVAL where the hardware lacks what the plan uses (named), or where the
 *          sequence is not allowed; -EDEADLK on a plan that the checker would refuse */
int sl_simulate(struct sl_simulation *out, const struct sl_simulation_options *options,
                struct sl_error *error);

/* Seconds of one operation alone on the machine, latency included. */
double sl_simulate_op_seconds(const struct sl_hardware *hardware, const struct sl_op *op);

/* How long it would use each resource, had it the whole of it. */
void sl_simulate_op_draw(const struct sl_hardware *hardware, const struct sl_op *op,
                         double seconds[SL_RESOURCE_COUNT]);

#endif
