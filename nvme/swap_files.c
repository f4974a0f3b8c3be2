// SPDX-License-Identifier: Apache-2.0
/* Files that no end of the process leaves behind.
 *
 * Problem: a run that is killed must leave neither files nor locks, two runs must not share a
 * directory, and a full disk must be told at the start, not in hour nine.
 *
 * Choice: the lock is flock() on the directory itself, which dies with its descriptor and leaves no
 * lock file. The swap file comes from O_TMPFILE and has no name at any time; where the file system
 * has no O_TMPFILE it is created as sluice-swap-<pid>.tmp and unlinked at once, and what a kill
 * between the two left is removed by the next start, under the lock. fallocate() reserves every
 * byte, so ENOSPC happens here. A file system without fallocate gets zeros written.
 *
 * Rejected: a file with a pid in it (pids are reused), ftruncate alone (sparse files run out of
 * space later), posix_fallocate (its emulation is silent and slow).
 */
#include "nvme/swap_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/size.h"
#include "nvme/path_rate.h"

#define FILE_PREFIX "sluice-swap-"
#define MEASURE_BYTES_MIN ((uint64_t)1 << 30)

void sl_stripes_init(struct sl_stripes *stripes, size_t file_count, const double *weights,
                     uint64_t unit_bytes)
{
    *stripes = (struct sl_stripes){.unit_bytes = unit_bytes, .length = 1};
    if (file_count == 1) {
        stripes->count[0] = 1;
        return;
    }
    /* Always give the next unit to the file that lags most behind its share: smooth weighted round
     * robin, so that neighbours in the swap space lie on different devices. */
    stripes->length = weights ? SL_STRIPE_PATTERN_MAX / 4 : (uint32_t)file_count;
    double total = 0, credit[SL_SWAP_PATHS_MAX] = {0};
    for (size_t f = 0; f < file_count; f++)
        total += weights ? weights[f] : 1;
    for (uint32_t i = 0; i < stripes->length; i++) {
        size_t best = 0;
        for (size_t f = 0; f < file_count; f++) {
            credit[f] += (weights ? weights[f] : 1) / total;
            if (credit[f] > credit[best])
                best = f;
        }
        credit[best] -= 1;
        stripes->file[i] = (uint8_t)best;
        stripes->rank[i] = (uint8_t)stripes->count[best]++;
    }
}

uint64_t sl_stripes_file_bytes(const struct sl_stripes *stripes, unsigned file,
                               uint64_t bytes_total)
{
    if (stripes->length == 1)
        return bytes_total;
    uint64_t units = sl_div_up(bytes_total, stripes->unit_bytes);
    uint64_t in_file = units / stripes->length * stripes->count[file];
    for (uint32_t i = 0; i < units % stripes->length; i++)
        in_file += stripes->file[i] == file;
    return in_file * stripes->unit_bytes;
}

uint64_t sl_stripes_map(const struct sl_stripes *stripes, uint64_t offset_bytes, uint64_t bytes,
                        unsigned *file, uint64_t *file_offset)
{
    if (stripes->length == 1) {
        *file = 0;
        *file_offset = offset_bytes;
        return sl_min_u64(bytes, stripes->unit_bytes);
    }
    uint64_t unit = offset_bytes / stripes->unit_bytes;
    uint64_t within = offset_bytes % stripes->unit_bytes;
    uint32_t entry = (uint32_t)(unit % stripes->length);
    *file = stripes->file[entry];
    uint64_t in_file = unit / stripes->length * stripes->count[*file] + stripes->rank[entry];
    *file_offset = in_file * stripes->unit_bytes + within;
    return sl_min_u64(bytes, stripes->unit_bytes - within);
}

/* Names that a kill between create and unlink left. The directory's lock is held. */
static void remove_stale(int directory_fd)
{
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));)
        if (!strncmp(entry->d_name, FILE_PREFIX, sizeof(FILE_PREFIX) - 1))
            unlinkat(directory_fd, entry->d_name, 0);
    closedir(directory);
}

static int open_directory(struct sl_swap_file *file, struct sl_error *error)
{
    file->directory_fd = open(file->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->directory_fd < 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -errno,
                            "nvme_path \"%s\": %s; give a directory that exists and is writable",
                            file->path, strerror(errno));
    if (flock(file->directory_fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EBUSY,
                            "nvme_path \"%s\": another run holds this directory's lock; wait for "
                            "its end or give another directory",
                            file->path);
    return sl_error_set(error, SL_DOMAIN_IO, -errno, "nvme_path \"%s\": cannot lock: %s",
                        file->path, strerror(errno));
}

/* A file without a name, mode 0600. */
static int open_nameless(struct sl_swap_file *file, int flags)
{
    const int common = O_RDWR | O_CLOEXEC | flags;
    int fd = openat(file->directory_fd, ".", O_TMPFILE | common, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd >= 0 ? fd : -errno;
    char name[64];
    snprintf(name, sizeof(name), FILE_PREFIX "%ld.tmp", (long)getpid());
    fd = openat(file->directory_fd, name, O_CREAT | O_EXCL | common, 0600);
    if (fd < 0)
        return -errno;
    if (unlinkat(file->directory_fd, name, 0) < 0) {
        int code = -errno;
        close(fd);
        return code;
    }
    return fd;
}

/* Does O_DIRECT take our alignment on this file? Kernels before 6.1 do not say: trust open(). */
static bool direct_alignment_fits(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx info = {0};
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN))
        return info.stx_dio_offset_align != 0 && info.stx_dio_offset_align <= SL_SWAP_ALIGNMENT &&
               info.stx_dio_mem_align <= SL_SWAP_ALIGNMENT;
#endif
    (void)fd;
    return true;
}

static int open_data(struct sl_swap_file *file, const struct sl_swap_options *options,
                     struct sl_error *error)
{
    int fd = options->direct_off ? -EINVAL : open_nameless(file, O_DIRECT);
    if (fd >= 0 && !direct_alignment_fits(fd)) {
        close(fd);
        fd = -EINVAL;
    }
    file->direct = fd >= 0;
    if (fd == -EINVAL)
        fd = open_nameless(file, 0);
    if (fd < 0)
        return sl_error_set(error, fd == -EIO ? SL_DOMAIN_IO : SL_DOMAIN_INPUT, fd,
                            "nvme_path \"%s\": cannot create a file: %s; give a directory on a "
                            "local drive that this user may write to",
                            file->path, strerror(-fd));
    file->fd = fd;
    return 0;
}

static int write_zeros(int fd, uint64_t bytes)
{
    const size_t chunk = 1 << 20;
    void *zeros = aligned_alloc(SL_SWAP_ALIGNMENT, chunk);
    if (!zeros)
        return -ENOMEM;
    memset(zeros, 0, chunk);
    int code = 0;
    for (uint64_t at = 0; at < bytes && !code;) {
        ssize_t n = pwrite(fd, zeros, sl_min_u64(chunk, bytes - at), (off_t)at);
        if (n > 0)
            at += (uint64_t)n;
        else if (n == 0 || errno != EINTR)
            code = n == 0 ? -EIO : -errno;
    }
    free(zeros);
    return code;
}

/* Would it fit? Asked first, because fallocate() takes what there is from everyone else before it
 * fails, and SIGXFSZ would end a program that passes its file size limit. */
static int room_for(const struct sl_swap_file *file, uint64_t *available)
{
    struct statvfs space;
    struct rlimit limit;
    *available = UINT64_MAX;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < file->bytes) {
        *available = limit.rlim_cur;
        return -EFBIG;
    }
    if (fstatvfs(file->directory_fd, &space) < 0)
        return 0;
    *available = (uint64_t)space.f_bavail * space.f_frsize;
    return file->bytes > (uint64_t)space.f_bfree * space.f_frsize ? -ENOSPC : 0;
}

static int allocate(struct sl_swap_file *file, struct sl_error *error)
{
    uint64_t available;
    int code = room_for(file, &available);
    while (!code && fallocate(file->fd, 0, 0, (off_t)file->bytes) < 0) {
        if (errno != EINTR)
            code = -errno;
    }
    if (code == -EOPNOTSUPP || code == -ENOSYS)
        code = write_zeros(file->fd, file->bytes);
    if (!code)
        return 0;
    char needed_text[SL_SIZE_TEXT_BYTES], free_text[SL_SIZE_TEXT_BYTES];
    sl_size_format(file->bytes, needed_text);
    sl_size_format(available, free_text);
    if (code == -EFBIG)
        return sl_error_set(error, SL_DOMAIN_INPUT, code,
                            "nvme_path \"%s\": a file of %s is needed, %s are allowed; raise the "
                            "file size limit (ulimit -f) or give more paths",
                            file->path, needed_text, free_text);
    if (code == -ENOSPC || code == -EDQUOT)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOSPC,
                            "nvme_path \"%s\": %s needed, %s free%s; give another path or offload "
                            "less",
                            file->path, needed_text, free_text,
                            code == -EDQUOT ? " (the user's quota is smaller)" : "");
    return sl_error_set(error, SL_DOMAIN_IO, code, "nvme_path \"%s\": cannot allocate %s: %s",
                        file->path, needed_text, strerror(-code));
}

static int reject_twice(const struct sl_swap_files *files, struct sl_error *error)
{
    for (size_t a = 0; a < files->count; a++)
        for (size_t b = a + 1; b < files->count; b++) {
            struct stat first, second;
            if (stat(files->files[a].path, &first) == 0 &&
                stat(files->files[b].path, &second) == 0 && first.st_dev == second.st_dev &&
                first.st_ino == second.st_ino)
                return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                    "nvme_path \"%s\" and \"%s\" are one directory; list it once",
                                    files->files[a].path, files->files[b].path);
        }
    return 0;
}

/* Stripes in proportion to what each path can take, measured where the space is large enough for a
 * quarter of a second not to matter. */
static void choose_stripes(struct sl_swap_files *files, const struct sl_swap_options *options)
{
    double rates[SL_SWAP_PATHS_MAX];
    const double *weights = options->path_weights;
    if (!weights && files->count > 1 && options->bytes_total >= MEASURE_BYTES_MIN) {
        int code = sl_path_rates(files->files, files->count, rates);
        if (code)
            sl_log_write(options->log, SL_LOG_WARNING,
                         "swap space: the paths cannot be measured (%s): equal stripes",
                         strerror(-code));
        else
            weights = rates;
        for (size_t i = 0; !code && i < files->count; i++)
            sl_log_write(options->log, SL_LOG_INFO, "swap space: \"%s\" writes %.2f GB/s",
                         files->files[i].path, rates[i] * 1e-9);
    }
    sl_stripes_init(&files->stripes, files->count, weights, options->block_bytes);
}

bool sl_swap_path_is_memory(const char *path)
{
    struct statfs system;
    return statfs(path, &system) == 0 &&
           (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

uint64_t sl_swap_paths_free_bytes(const char *const *paths, size_t count)
{
    uint64_t total = 0;
    dev_t seen[SL_SWAP_PATHS_MAX];
    size_t seen_count = 0;
    for (size_t i = 0; i < count && i < SL_SWAP_PATHS_MAX; i++) {
        struct stat info;
        struct statvfs space;
        if (stat(paths[i], &info) != 0 || statvfs(paths[i], &space) != 0)
            continue;
        bool again = false;
        for (size_t j = 0; j < seen_count; j++)
            again = again || seen[j] == info.st_dev;
        if (again)
            continue;
        seen[seen_count++] = info.st_dev;
        total += (uint64_t)space.f_bavail * space.f_frsize;
    }
    return total;
}

static int open_all(struct sl_swap_files *files, const struct sl_swap_options *options,
                    struct sl_error *error)
{
    int code = reject_twice(files, error);
    for (size_t i = 0; i < files->count && !code; i++) {
        code = open_directory(&files->files[i], error);
        if (!code)
            remove_stale(files->files[i].directory_fd);
    }
    if (code)
        return code;
    choose_stripes(files, options);
    for (size_t i = 0; i < files->count && !code; i++) {
        struct sl_swap_file *file = &files->files[i];
        if (sl_swap_path_is_memory(file->path))
            sl_log_write(options->log, SL_LOG_WARNING,
                         "swap space: \"%s\" lies in memory (tmpfs), not on a drive: what is "
                         "swapped there stays in host memory; give a directory on a drive",
                         file->path);
        file->bytes = sl_stripes_file_bytes(&files->stripes, (unsigned)i, options->bytes_total);
        code = open_data(file, options, error);
        if (!code && file->bytes)
            code = allocate(file, error);
        files->direct = files->direct && file->direct;
    }
    return code;
}

int sl_swap_files_open(struct sl_swap_files *files, const struct sl_swap_options *options,
                       struct sl_error *error)
{
    *files = (struct sl_swap_files){.count = options->path_count, .direct = true};
    int code = 0;
    for (size_t i = 0; i < files->count; i++) {
        files->files[i] = (struct sl_swap_file){.fd = -1, .directory_fd = -1};
        files->files[i].path = strdup(options->paths[i]);
        if (!files->files[i].path)
            code = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "swap paths: no memory");
    }
    if (!code)
        code = open_all(files, options, error);
    if (code)
        sl_swap_files_close(files);
    return code;
}

void sl_swap_files_close(struct sl_swap_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        struct sl_swap_file *file = &files->files[i];
        if (file->fd >= 0)
            close(file->fd);
        if (file->directory_fd >= 0)
            close(file->directory_fd);
        free(file->path);
    }
    files->count = 0;
}
