// SPDX-License-Identifier: Apache-2.0
/* The machine as hwloc sees it, cut down to what this process may use.
 *
 * Problem   Threads must be one per physical core, on allowed cores only, near the memory that they
 *           stream; memory budgets must respect the container's limit.
 * Choice    hwloc for cores, nodes and core kinds; the process's affinity mask and the cgroup files
 *           on top. hwloc drops disallowed cpus of a cpuset by itself, not those of an affinity
 *           mask (taskset, srun), so the mask is applied here.
 * Rejected  /sys by hand: core kinds, offline cpus and odd NUMA layouts are hwloc's whole job.
 * Invariant core_count and node_count are at least 1, and every core's node index is valid.
 */
#include "offload/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "offload/cgroup.h"

/* The cpus that this process, or the captured one, may run on. */
static int affinity_set(hwloc_topology_t topology, const struct sl_topology_source *source,
                        hwloc_bitmap_t set, struct sl_error *error)
{
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(topology);
    hwloc_bitmap_copy(set, allowed);
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (!mask)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "cpu mask");
    bool known = false;
    if (source && source->affinity) {
        if (hwloc_bitmap_list_sscanf(mask, source->affinity) < 0) {
            hwloc_bitmap_free(mask);
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "affinity \"%s\": not a cpu list such as 0-3,8", source->affinity);
        }
        known = true;
    } else if (!source || !source->xml_path) {
        known = hwloc_get_cpubind(topology, mask, HWLOC_CPUBIND_PROCESS) == 0;
    }
    if (known)
        hwloc_bitmap_and(set, set, mask);
    hwloc_bitmap_free(mask);
    if (hwloc_bitmap_iszero(set))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "no cpu of this machine is in the affinity mask; widen it (taskset)");
    return 0;
}

static void read_nodes(struct sl_topology *out, hwloc_topology_t topology)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (out->node_count == SL_TOPOLOGY_NODES_MAX)
            break;
        out->nodes[out->node_count++] = (struct sl_numa_node){
            .os_index = (int)node->os_index,
            .memory_bytes = node->attr->numanode.local_memory,
        };
    }
    if (out->node_count == 0)
        out->nodes[out->node_count++] = (struct sl_numa_node){0};
}

static int node_of(const struct sl_topology *out, hwloc_topology_t topology, hwloc_obj_t core)
{
    hwloc_obj_t node = NULL;
    int index = 0;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL &&
           (size_t)index < out->node_count) {
        /* Nodes with no cpus of their own (HBM, CXL) share their neighbour's; the first, ordinary
         * memory, is taken. */
        if (hwloc_bitmap_intersects(node->cpuset, core->cpuset))
            return index;
        index++;
    }
    return 0;
}

static void add_core(struct sl_topology *out, hwloc_topology_t topology, hwloc_obj_t core,
                     hwloc_const_bitmap_t allowed)
{
    hwloc_bitmap_t usable = hwloc_bitmap_dup(core->cpuset);
    if (!usable)
        return;
    hwloc_bitmap_and(usable, usable, allowed);
    int cpu = hwloc_bitmap_first(usable);
    if (cpu >= 0 && out->core_count < SL_TOPOLOGY_CORES_MAX) {
        struct sl_core *to = &out->cores[out->core_count++];
        to->cpu = cpu;
        to->node = node_of(out, topology, core);
        int kind = hwloc_cpukinds_get_by_cpuset(topology, usable, 0);
        int efficiency = 0;
        if (kind >= 0 && hwloc_cpukinds_get_nr(topology, 0) > 1)
            hwloc_cpukinds_get_info(topology, (unsigned)kind, NULL, &efficiency, NULL, NULL, 0);
        to->efficiency = efficiency < 0 ? 0 : efficiency;
        out->nodes[to->node].core_count++;
        out->thread_count += (size_t)hwloc_bitmap_weight(usable);
    }
    hwloc_bitmap_free(usable);
}

static int by_node(const void *a, const void *b)
{
    const struct sl_core *x = a, *y = b;
    if (x->node != y->node)
        return x->node - y->node;
    if (x->efficiency != y->efficiency)
        return y->efficiency - x->efficiency;
    return x->cpu - y->cpu;
}

static void read_cores(struct sl_topology *out, hwloc_topology_t topology,
                       hwloc_const_bitmap_t allowed)
{
    /* Some virtual machines and old kernels show no cores, only hardware threads. */
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topology, type, core)) != NULL)
        add_core(out, topology, core, allowed);
    qsort(out->cores, out->core_count, sizeof(out->cores[0]), by_node);
}

static void read_limits(struct sl_topology *out, const char *root)
{
    uint64_t total = 0, available = 0;
    sl_meminfo_read(&total, &available, root);
    if (total == 0)
        for (size_t i = 0; i < out->node_count; i++)
            total += out->nodes[i].memory_bytes;
    if (available == 0)
        available = total;
    struct sl_cgroup_limits limits;
    sl_cgroup_read(&limits, root);
    out->cpu_quota = limits.cpu_quota;
    out->memory_total_bytes = total;
    out->memory_limit_bytes = limits.memory_limit_bytes < total ? limits.memory_limit_bytes : total;
    out->memory_available_bytes =
        limits.memory_available_bytes < available ? limits.memory_available_bytes : available;
}

static int load(hwloc_topology_t *topology, const struct sl_topology_source *source,
                struct sl_error *error)
{
    if (hwloc_topology_init(topology) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "hwloc topology");
    if (source && source->xml_path && hwloc_topology_set_xml(*topology, source->xml_path) < 0) {
        hwloc_topology_destroy(*topology);
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "topology \"%s\": not a readable hwloc XML file", source->xml_path);
    }
    if (hwloc_topology_load(*topology) < 0) {
        hwloc_topology_destroy(*topology);
        return sl_error_set(error, SL_DOMAIN_IO, -EIO, "hwloc could not read the topology%s%s",
                            source && source->xml_path ? " of " : "",
                            source && source->xml_path ? source->xml_path : "");
    }
    return 0;
}

int sl_topology_read(struct sl_topology *out, const struct sl_topology_source *source,
                     struct sl_error *error)
{
    memset(out, 0, sizeof(*out));
    hwloc_topology_t topology;
    int rc = load(&topology, source, error);
    if (rc < 0)
        return rc;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (!allowed) {
        rc = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "cpu mask");
        goto done;
    }
    rc = affinity_set(topology, source, allowed, error);
    if (rc < 0)
        goto done;
    read_nodes(out, topology);
    read_cores(out, topology, allowed);
    if (out->core_count == 0)
        rc = sl_error_set(error, SL_DOMAIN_IO, -EIO, "the topology has no usable core");
    else
        read_limits(out, source ? source->root : NULL);
done:
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return rc;
}
