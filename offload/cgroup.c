// SPDX-License-Identifier: Apache-2.0
/* Control group limits from the files of /sys/fs/cgroup.
 *
 * Problem   A container's limit is what kills a run at step 20, and neither sysconf nor hwloc knows
 *           it. Version 2 has one tree and `cpu.max`, `memory.max`; version 1 has a tree per
 *           controller. Inside a namespace the path in /proc/self/cgroup may not exist below the
 *           mount, whose root then is the group itself.
 * Choice    Walk from the group to the root and keep the tightest value of each kind: a limit of a
 *           parent binds too. Unreadable files do not limit.
 * Rejected  libcgroup: a dependency for reading five small files.
 */
#include "offload/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 1024

/* First line of a small file into text; false where it cannot be read. */
static bool read_line(const char *directory, const char *name, char *text, size_t bytes)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(text, (int)bytes, file) != NULL;
    fclose(file);
    return ok;
}

static uint64_t read_u64(const char *directory, const char *name, uint64_t fallback)
{
    char text[64];
    if (!read_line(directory, name, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return fallback; /* "max" */
    return strtoull(text, NULL, 10);
}

/* Page cache of the group that the kernel would drop before it kills. */
static uint64_t read_inactive_file(const char *directory)
{
    char path[PATH_BYTES + 64], line[128];
    snprintf(path, sizeof(path), "%s/memory.stat", directory);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    uint64_t bytes = 0;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "inactive_file %lu", &bytes) == 1 ||
            sscanf(line, "total_inactive_file %lu", &bytes) == 1)
            break;
    fclose(file);
    return bytes;
}

static void take_memory(struct sl_cgroup_limits *limits, const char *directory, uint64_t limit,
                        uint64_t used)
{
    if (limit >= UINT64_C(1) << 62) /* version 1 writes "no limit" as 2^63 less a page */
        return;
    uint64_t reclaimable = read_inactive_file(directory);
    used = used > reclaimable ? used - reclaimable : 0;
    uint64_t available = limit > used ? limit - used : 0;
    if (limit < limits->memory_limit_bytes)
        limits->memory_limit_bytes = limit;
    if (available < limits->memory_available_bytes)
        limits->memory_available_bytes = available;
}

static void take_quota(struct sl_cgroup_limits *limits, double quota, double period)
{
    if (quota <= 0 || period <= 0)
        return;
    if (limits->cpu_quota == 0 || quota / period < limits->cpu_quota)
        limits->cpu_quota = quota / period;
}

static void read_group_v2(struct sl_cgroup_limits *limits, const char *directory)
{
    char text[64];
    double quota, period;
    if (read_line(directory, "cpu.max", text, sizeof(text)) &&
        sscanf(text, "%lf %lf", &quota, &period) == 2)
        take_quota(limits, quota, period);
    uint64_t limit = read_u64(directory, "memory.max", UINT64_MAX);
    uint64_t high = read_u64(directory, "memory.high", UINT64_MAX);
    take_memory(limits, directory, limit < high ? limit : high,
                read_u64(directory, "memory.current", 0));
}

static void read_group_v1(struct sl_cgroup_limits *limits, const char *directory)
{
    char text[64];
    if (read_line(directory, "cpu.cfs_quota_us", text, sizeof(text)))
        take_quota(limits, strtod(text, NULL),
                   (double)read_u64(directory, "cpu.cfs_period_us", 100000));
    take_memory(limits, directory, read_u64(directory, "memory.limit_in_bytes", UINT64_MAX),
                read_u64(directory, "memory.usage_in_bytes", 0));
}

/* Read `mount` + `group` and every parent up to the mount itself. */
static void walk(struct sl_cgroup_limits *limits, const char *mount, const char *group,
                 void (*read_group)(struct sl_cgroup_limits *, const char *))
{
    char directory[PATH_BYTES];
    size_t mount_length = strlen(mount);
    if (mount_length + strlen(group) >= sizeof(directory))
        return;
    memcpy(directory, mount, mount_length + 1);
    strcpy(directory + mount_length, strcmp(group, "/") == 0 ? "" : group);
    for (;;) {
        read_group(limits, directory);
        char *slash = strrchr(directory + mount_length, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup: "0::/a/b" (version 2), "4:cpu,cpuacct:/a" (version 1). */
static void read_membership(struct sl_cgroup_limits *limits, const char *root, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *group++ = '\0';
    controllers++;
    char mount[PATH_BYTES];
    if (*controllers == '\0') {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup", root);
        walk(limits, mount, group, read_group_v2);
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/unified", root);
        walk(limits, mount, group, read_group_v2);
        return;
    }
    if (!strstr(controllers, "cpu") && !strstr(controllers, "memory"))
        return;
    snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/%s", root, controllers);
    walk(limits, mount, group, read_group_v1);
}

void sl_cgroup_read(struct sl_cgroup_limits *out, const char *root)
{
    *out = (struct sl_cgroup_limits){.memory_limit_bytes = UINT64_MAX,
                                     .memory_available_bytes = UINT64_MAX};
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root ? root : "");
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file))
        read_membership(out, root ? root : "", line);
    fclose(file);
}

void sl_meminfo_read(uint64_t *total_bytes, uint64_t *available_bytes, const char *root)
{
    *total_bytes = *available_bytes = 0;
    char path[PATH_BYTES], line[128];
    snprintf(path, sizeof(path), "%s/proc/meminfo", root ? root : "");
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    uint64_t kib;
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemTotal: %lu kB", &kib) == 1)
            *total_bytes = kib << 10;
        else if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1)
            *available_bytes = kib << 10;
    }
    fclose(file);
}
