// SPDX-License-Identifier: Apache-2.0
/* A file that is complete under its name, or not there.
 *
 * Problem: a checkpoint must survive a crash at any instant, at the device's speed, in little
 * memory, whatever sizes its pieces have.
 *
 * Choice: pieces are gathered in halves of the caller's buffer. A full half goes to one thread that
 * writes it with O_DIRECT while the caller fills the other: copying hides behind the device. The
 * tail is padded to the alignment and cut off with ftruncate. Then fsync, rename, fsync of the
 * directory: the rename is the commit point. The partial file has a fixed name, so that killed runs
 * leave at most one, and the next attempt overwrites it.
 *
 * Rejected: O_TMPFILE with linkat (cannot replace an existing file in one step), io_uring (one
 * stream of large writes needs no queue; the kernel already splits each over the device's queue).
 *
 * Invariant: half `filling` belongs to the caller, the other to the thread while `pending` is set.
 */
#include "nvme/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/stat.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/size.h"
#include "nvme/file_internal.h"

struct sl_file_writer {
    char *path, *partial;
    int fd;
    bool direct;
    char *halves[2];
    size_t half_bytes;
    unsigned filling;
    size_t filled;
    uint64_t position;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool pending, stopping;
    const char *pending_data;
    size_t pending_bytes;
    uint64_t pending_offset;
    struct sl_error failure; /* the first one */
};

static bool direct_fits(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx info = {0};
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN))
        return info.stx_dio_offset_align && info.stx_dio_offset_align <= SL_FILE_ALIGNMENT &&
               info.stx_dio_mem_align <= SL_FILE_ALIGNMENT;
#endif
    (void)fd;
    return true;
}

int sl_file_open_direct(const char *path, int flags, unsigned mode, bool direct_off, bool *direct)
{
    int fd = direct_off ? -1 : open(path, flags | O_DIRECT | O_CLOEXEC, mode);
    if (fd < 0 && !direct_off && errno != EINVAL)
        return -errno;
    if (fd >= 0 && !direct_fits(fd)) {
        close(fd);
        fd = -1;
    }
    *direct = fd >= 0;
    if (fd < 0)
        fd = open(path, flags | O_CLOEXEC, mode);
    return fd < 0 ? -errno : fd;
}

static int parent_of(const char *path, char **parent)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        *parent = strdup(".");
    else
        *parent = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    return *parent ? 0 : -ENOMEM;
}

int sl_file_sync_parent(const char *path, struct sl_error *error)
{
    char *parent;
    int code = parent_of(path, &parent);
    if (code)
        return sl_error_set(error, SL_DOMAIN_MEMORY, code, "\"%s\": no memory", path);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) < 0)
        code = -errno;
    if (fd >= 0)
        close(fd);
    /* A file system that cannot sync directories (EINVAL) has no more to give. */
    if (code && code != -EINVAL)
        sl_error_set(error, SL_DOMAIN_IO, code, "directory \"%s\": cannot be synced: %s", parent,
                     strerror(-code));
    free(parent);
    return code == -EINVAL ? 0 : code;
}

static int describe(struct sl_file_writer *writer, struct sl_error *error, int code, uint64_t bytes,
                    uint64_t offset)
{
    struct statvfs space;
    if ((code == -ENOSPC || code == -EDQUOT) && fstatvfs(writer->fd, &space) == 0) {
        char needed[SL_SIZE_TEXT_BYTES], available[SL_SIZE_TEXT_BYTES];
        return sl_error_set(error, SL_DOMAIN_IO, code,
                            "\"%s\": %s needed, %s free%s; free space or give another path",
                            writer->path, sl_size_format(bytes, needed),
                            sl_size_format((uint64_t)space.f_bavail * space.f_frsize, available),
                            code == -EDQUOT ? " (the user's quota is smaller)" : "");
    }
    return sl_error_set(error, SL_DOMAIN_IO, code,
                        "\"%s\": writing %" PRIu64 " B at offset %" PRIu64 ": %s", writer->partial,
                        bytes, offset, strerror(-code));
}

static int write_all(struct sl_file_writer *writer, const char *data, size_t bytes, uint64_t offset,
                     struct sl_error *error)
{
    while (bytes) {
        ssize_t n = pwrite(writer->fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return describe(writer, error, n < 0 ? -errno : -EIO, bytes, offset);
        if (writer->direct) { /* the rest must start on a boundary again */
            n &= ~(ssize_t)(SL_FILE_ALIGNMENT - 1);
            if (n == 0)
                return describe(writer, error, -EIO, bytes, offset);
        }
        data += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static void *write_halves(void *argument)
{
    struct sl_file_writer *writer = argument;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        while (!writer->pending && !writer->stopping)
            pthread_cond_wait(&writer->changed, &writer->lock);
        if (!writer->pending)
            break;
        bool failed = writer->failure.code != 0;
        pthread_mutex_unlock(&writer->lock);
        struct sl_error error = {0};
        if (!failed)
            write_all(writer, writer->pending_data, writer->pending_bytes, writer->pending_offset,
                      &error);
        pthread_mutex_lock(&writer->lock);
        if (error.code && !writer->failure.code)
            writer->failure = error;
        writer->pending = false;
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

/* Wait until the thread has nothing; returns the first failure. */
static int drain(struct sl_file_writer *writer, struct sl_error *error)
{
    pthread_mutex_lock(&writer->lock);
    while (writer->pending)
        pthread_cond_wait(&writer->changed, &writer->lock);
    int code = writer->failure.code;
    if (code && error && !error->code)
        *error = writer->failure;
    pthread_mutex_unlock(&writer->lock);
    return code;
}

/* Give the filled half to the thread and go on in the other. */
static int hand_over(struct sl_file_writer *writer, struct sl_error *error)
{
    int code = drain(writer, error);
    if (code)
        return code;
    pthread_mutex_lock(&writer->lock);
    writer->pending_data = writer->halves[writer->filling];
    writer->pending_bytes =
        writer->direct ? sl_align_up(writer->filled, SL_FILE_ALIGNMENT) : writer->filled;
    writer->pending_offset = writer->position - writer->filled;
    writer->pending = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    writer->filling = !writer->filling;
    writer->filled = 0;
    return 0;
}

int sl_file_writer_append(struct sl_file_writer *writer, const void *data, uint64_t bytes,
                          struct sl_error *error)
{
    for (const char *from = data; bytes;) {
        size_t n = sl_min_u64(bytes, writer->half_bytes - writer->filled);
        memcpy(writer->halves[writer->filling] + writer->filled, from, n);
        writer->filled += n;
        writer->position += n;
        from += n;
        bytes -= n;
        int code = writer->filled == writer->half_bytes ? hand_over(writer, error) : 0;
        if (code)
            return code;
    }
    return 0;
}

uint64_t sl_file_writer_position(const struct sl_file_writer *writer)
{
    return writer->position;
}

static void stop_thread(struct sl_file_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    writer->stopping = true;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    pthread_join(writer->thread, NULL);
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
}

static void release(struct sl_file_writer *writer)
{
    if (writer->fd >= 0)
        close(writer->fd);
    free(writer->partial);
    free(writer->path);
    free(writer);
}

static int step(struct sl_file_writer *writer, int result, const char *what, struct sl_error *error)
{
    if (result == 0)
        return 0;
    int code = -errno;
    return sl_error_set(error, SL_DOMAIN_IO, code, "\"%s\": %s: %s", writer->path, what,
                        strerror(-code));
}

int sl_file_writer_commit(struct sl_file_writer *writer, struct sl_error *error)
{
    if (writer->filled % SL_FILE_ALIGNMENT) /* the padding is cut off below */
        memset(writer->halves[writer->filling] + writer->filled, 0,
               SL_FILE_ALIGNMENT - writer->filled % SL_FILE_ALIGNMENT);
    int code = writer->filled ? hand_over(writer, error) : 0;
    if (!code)
        code = drain(writer, error);
    stop_thread(writer);
    if (!code)
        code = step(writer, ftruncate(writer->fd, (off_t)writer->position), "cannot set its size",
                    error);
    if (!code)
        code = step(writer, fsync(writer->fd), "fsync failed", error);
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) < 0 && !code)
        code = step(writer, -1, "close failed", error);
    if (!code)
        code = step(writer, rename(writer->partial, writer->path), "cannot be renamed", error);
    if (code)
        unlink(writer->partial);
    else
        code = sl_file_sync_parent(writer->path, error);
    release(writer);
    return code;
}

void sl_file_writer_abort(struct sl_file_writer *writer)
{
    if (!writer)
        return;
    stop_thread(writer);
    unlink(writer->partial);
    release(writer);
}

static int allocate(struct sl_file_writer *writer, uint64_t bytes, struct sl_error *error)
{
    struct statvfs space; /* fallocate() would take what there is before it fails */
    struct rlimit limit;  /* and SIGXFSZ would end the program */
    if (fstatvfs(writer->fd, &space) == 0 && bytes > (uint64_t)space.f_bfree * space.f_frsize)
        return describe(writer, error, -ENOSPC, bytes, 0);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        return describe(writer, error, -EFBIG, bytes, 0);
    int code = 0;
    while (bytes && !code && fallocate(writer->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) < 0) {
        if (errno != EINTR)
            code = -errno;
    }
    if (code == 0 || code == -EOPNOTSUPP || code == -ENOSYS)
        return 0;
    return describe(writer, error, code, bytes, 0);
}

static int start(struct sl_file_writer *writer)
{
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = -pthread_create(&writer->thread, NULL, write_halves, writer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

int sl_file_writer_open(struct sl_file_writer **out, const struct sl_file_writer_options *options,
                        struct sl_error *error)
{
    assert((uintptr_t)options->buffer % SL_FILE_ALIGNMENT == 0 && options->buffer_bytes &&
           options->buffer_bytes % SL_FILE_BUFFER_BYTES_MIN == 0);
    struct sl_file_writer *writer = calloc(1, sizeof(*writer));
    if (!writer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "\"%s\": no memory", options->path);
    writer->fd = -1;
    writer->half_bytes = options->buffer_bytes / 2;
    writer->halves[0] = options->buffer;
    writer->halves[1] = writer->halves[0] + writer->half_bytes;
    writer->path = strdup(options->path);
    int code = 0;
    if (!writer->path || asprintf(&writer->partial, "%s.partial", options->path) < 0) {
        writer->partial = NULL;
        code = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "\"%s\": no memory", options->path);
        goto fail;
    }
    writer->fd = sl_file_open_direct(writer->partial, O_WRONLY | O_CREAT | O_TRUNC,
                                     options->mode ? options->mode : 0644, options->direct_off,
                                     &writer->direct);
    if (writer->fd < 0) {
        code = sl_error_set(error, SL_DOMAIN_INPUT, writer->fd, "\"%s\": cannot be created: %s",
                            writer->partial, strerror(-writer->fd));
        goto fail;
    }
    code = allocate(writer, options->bytes, error);
    if (code)
        goto remove;
    code = start(writer);
    if (code) {
        sl_error_set(error, SL_DOMAIN_IO, code, "\"%s\": cannot start a thread", writer->path);
        goto remove;
    }
    *out = writer;
    return 0;

remove:
    unlink(writer->partial);
fail:
    release(writer);
    return code;
}
