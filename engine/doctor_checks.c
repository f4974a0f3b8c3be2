// SPDX-License-Identifier: Apache-2.0
/* The rows about the machine. Each check asks the kernel the question that the engine will ask
 * later (a ring, an O_DIRECT open, a locked page), not a version number: containers answer
 * differently from the kernel that they run on.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/size.h"
#include "engine/doctor_internal.h"
#include "kernels/cpu/isa.h"
#include "kernels/host/host.h"
#include "nvme/swap.h"
#include "offload/device.h"
#include "offload/topology.h"
#include "offload/workers.h"

/* First line of root + path, or false. */
static bool read_line(const char *root, const char *path, char *line, size_t bytes)
{
    char full[PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", root ? root : "", path);
    FILE *file = fopen(full, "re");
    if (!file)
        return false;
    bool read = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = 0;
    return read;
}

void doctor_check_processor(struct sl_doctor *doctor, const struct sl_doctor_options *options)
{
    struct utsname name;
    if (uname(&name) == 0)
        doctor_add(doctor, "processor", "kernel", SL_VERDICT_OKAY, NULL, "%s %s %s", name.sysname,
                   name.release, name.machine);
    enum sl_cpu_isa isa = sl_cpu_isa_active();
    bool scalar = isa == SL_CPU_SCALAR;
    doctor_add(doctor, "processor", "optimizer kernels", scalar ? SL_VERDICT_NO : SL_VERDICT_OKAY,
               scalar
                   ? "the processor has no AVX2 or NEON (or SLUICE_ISA says scalar): updates run "
                     "several times slower"
                   : NULL,
               "%s", sl_cpu_isa_name(isa));
    doctor_add(doctor, "processor", "host device kernels", SL_VERDICT_OKAY, NULL, "%s",
               sl_host_kernels()->isa);
    struct sl_topology *topology = calloc(1, sizeof(*topology));
    struct sl_error error = {0};
    struct sl_topology_source source = {.root = options->root};
    if (!topology || sl_topology_read(topology, &source, &error)) {
        doctor_add(doctor, "processor", "topology", SL_VERDICT_FAIL, "see hwloc's lstopo", "%s",
                   error.message);
    } else {
        doctor_add(doctor, "processor", "cores", SL_VERDICT_OKAY, NULL,
                   "%zu cores, %zu hardware threads, %zu NUMA node%s allowed", topology->core_count,
                   topology->thread_count, topology->node_count,
                   topology->node_count == 1 ? "" : "s");
        if (topology->cpu_quota > 0 && topology->cpu_quota < (double)topology->core_count)
            doctor_add(doctor, "processor", "cpu quota", SL_VERDICT_NO,
                       "raise the container's cpu limit, or pin it to whole cores",
                       "the cgroup gives %.2f cores' worth of time to %zu cores",
                       topology->cpu_quota, topology->core_count);
    }
    free(topology);
}

static void check_huge_pages(struct sl_doctor *doctor, const char *root)
{
    char line[128];
    if (!read_line(root, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line))) {
        doctor_add(doctor, "memory", "huge pages", SL_VERDICT_NO, NULL,
                   "this kernel has no transparent huge pages; 4 KiB pages are used");
        return;
    }
    bool never = strstr(line, "[never]") != NULL;
    doctor_add(doctor, "memory", "huge pages", never ? SL_VERDICT_NO : SL_VERDICT_OKAY,
               never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : NULL,
               "transparent huge pages: %s", line);
}

static void check_memlock(struct sl_doctor *doctor)
{
    struct rlimit limit;
    char text[SL_SIZE_TEXT_BYTES];
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    bool unlimited = limit.rlim_cur == RLIM_INFINITY;
    doctor_add(doctor, "memory", "locked memory", unlimited ? SL_VERDICT_OKAY : SL_VERDICT_NO,
               unlimited ? NULL
                         : "ulimit -l unlimited, or memlock in /etc/security/limits.conf: I/O "
                           "buffers beyond the limit are mapped for each transfer",
               "limit %s", unlimited ? "none" : sl_size_format(limit.rlim_cur, text));
}

void doctor_check_memory(struct sl_doctor *doctor, const struct sl_doctor_options *options)
{
    struct sl_topology *topology = calloc(1, sizeof(*topology));
    struct sl_error error = {0};
    struct sl_topology_source source = {.root = options->root};
    if (topology && !sl_topology_read(topology, &source, &error)) {
        char total[SL_SIZE_TEXT_BYTES], limit[SL_SIZE_TEXT_BYTES], free_now[SL_SIZE_TEXT_BYTES];
        bool limited = topology->memory_limit_bytes < topology->memory_total_bytes;
        doctor_add(doctor, "memory", "host memory", SL_VERDICT_OKAY, NULL,
                   "%s, %s can be taken now", sl_size_format(topology->memory_total_bytes, total),
                   sl_size_format(topology->memory_available_bytes, free_now));
        doctor_add(doctor, "memory", "cgroup limit", SL_VERDICT_OKAY, NULL, "%s",
                   limited ? sl_size_format(topology->memory_limit_bytes, limit) : "none");
    }
    free(topology);
    check_memlock(doctor);
    check_huge_pages(doctor, options->root);
}

static void check_ring(struct sl_doctor *doctor, const char *root)
{
    /* No entries is refused with EINVAL where rings are allowed. */
    long result = syscall(SYS_io_uring_setup, 0, NULL);
    int code = result < 0 ? errno : 0;
    if (result >= 0)
        close((int)result);
    bool allowed = code == EINVAL || code == EFAULT;
    char line[32] = "";
    read_line(root, "/proc/sys/kernel/io_uring_disabled", line, sizeof(line));
    const char *remedy = code == ENOSYS ? "needs Linux 5.15 or newer; threads are used instead"
                         : line[0] > '0'
                             ? "sysctl kernel.io_uring_disabled=0; threads are used instead"
                             : "the container's seccomp profile forbids it; threads are used "
                               "instead";
    doctor_add(doctor, "storage", "io_uring", allowed ? SL_VERDICT_OKAY : SL_VERDICT_NO,
               allowed ? NULL : remedy, "%s", allowed ? "allowed" : strerror(code));
}

/* Write one page with O_DIRECT and remove the file. Returns 0 or the errno; *direct tells whether
 * O_DIRECT was possible. */
static int try_path(const char *path, bool *direct)
{
    char name[PATH_MAX];
    snprintf(name, sizeof(name), "%s/.sluice-doctor-%ld", path, (long)getpid());
    *direct = true;
    int file = open(name, O_CREAT | O_EXCL | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0 && errno == EINVAL) {
        *direct = false;
        unlink(name); /* some file systems make the file before they refuse the flag */
        file = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    }
    if (file < 0)
        return errno;
    void *page = NULL;
    int code = posix_memalign(&page, 4096, 4096);
    if (!code) {
        memset(page, 0x5a, 4096);
        if (pwrite(file, page, 4096, 0) != 4096)
            code = errno ? errno : EIO;
    }
    free(page);
    close(file);
    unlink(name);
    return code;
}

static void check_path(struct sl_doctor *doctor, const char *path)
{
    bool direct;
    int code = try_path(path, &direct);
    bool memory = sl_swap_path_is_memory(path);
    struct statvfs system;
    char room[SL_SIZE_TEXT_BYTES] = "?";
    if (statvfs(path, &system) == 0)
        sl_size_format((uint64_t)system.f_bavail * system.f_frsize, room);
    if (code)
        doctor_add(doctor, "storage", "NVMe path", SL_VERDICT_FAIL,
                   "give a directory on a local drive that this user may write to", "%s: %s", path,
                   strerror(code));
    else if (memory)
        doctor_add(doctor, "storage", "NVMe path", SL_VERDICT_NO,
                   "give a directory on a local drive; what lies in memory counts for memory.host",
                   "%s: %s free, in memory (tmpfs), not on a drive", path, room);
    else
        doctor_add(doctor, "storage", "NVMe path", direct ? SL_VERDICT_OKAY : SL_VERDICT_NO,
                   direct ? NULL
                          : "O_DIRECT is refused here (some network file systems): "
                            "transfers pass through the page cache; use ext4 or xfs",
                   "%s: %s free, O_DIRECT %s", path, room, direct ? "works" : "does not work");
}

void doctor_check_storage(struct sl_doctor *doctor, const struct sl_doctor_options *options)
{
    check_ring(doctor, options->root);
    for (size_t i = 0; i < options->nvme_path_count; i++)
        check_path(doctor, options->nvme_paths[i]);
    if (!options->nvme_path_count)
        doctor_add(doctor, "storage", "NVMe path", SL_VERDICT_NO, NULL,
                   "none given: sluice doctor DIR checks one");
}

static void try_device(struct sl_doctor *doctor, const char *name, const char *row,
                       struct sl_workers *workers)
{
    struct sl_device_options options = {.name = name, .precision = SL_BF16, .workers = workers};
    struct sl_device *device = NULL;
    struct sl_error error = {0};
    char text[SL_SIZE_TEXT_BYTES];
    if (sl_device_create(&device, &options, &error)) {
        doctor_add(doctor, "devices", row, SL_VERDICT_NO,
                   strcmp(name, "host") != 0
                       ? "needs the NVIDIA driver, and a build with the CUDA Toolkit (cuda-nvcc, "
                         "libcublas)"
                       : NULL,
                   "%s", error.message);
        return;
    }
    doctor_add(doctor, "devices", row, SL_VERDICT_OKAY, NULL, "%s%s%s", device->properties.name,
               device->properties.memory_bytes ? ", " : "",
               device->properties.memory_bytes
                   ? sl_size_format(device->properties.memory_bytes, text)
                   : "");
    sl_device_destroy(device);
}

void doctor_check_device(struct sl_doctor *doctor)
{
    struct sl_workers *workers = NULL;
    struct sl_error error = {0};
    struct sl_workers_options options = {.unpinned = true};
    if (sl_workers_create(&workers, &options, &error)) {
        doctor_add(doctor, "devices", "workers", SL_VERDICT_FAIL,
                   "raise the limit of threads "
                   "(ulimit -u)",
                   "%s", error.message);
        return;
    }
    try_device(doctor, "host", "host", workers);
    try_device(doctor, "cuda", "cuda", workers);
    sl_workers_destroy(workers);
}
