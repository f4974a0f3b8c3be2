// SPDX-License-Identifier: Apache-2.0
/* Any byte range of a file, through the aligned blocks that cover it.
 *
 *   file    |....xxxxxxxx|xxxxxxxxxxxx|xxxx........|
 *                head         middle    tail
 *
 * Head and tail go through the caller's bounce buffer. The middle goes straight to its place where
 * memory and offset are congruent modulo the alignment, through the buffer where they are not.
 */
#include "nvme/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "nvme/file_internal.h"

#define READ_BYTES_MAX ((size_t)64 << 20) /* one system call; far below Linux's 2 GiB */

struct sl_file_reader {
    char *path;
    int fd;
    bool direct;
    uint64_t bytes;
    char *buffer;
    size_t buffer_bytes;
};

int sl_file_reader_open(struct sl_file_reader **out, const char *path, void *buffer,
                        size_t buffer_bytes, bool direct_off, struct sl_error *error)
{
    assert((uintptr_t)buffer % SL_FILE_ALIGNMENT == 0 && buffer_bytes &&
           buffer_bytes % SL_FILE_BUFFER_BYTES_MIN == 0);
    struct sl_file_reader *reader = calloc(1, sizeof(*reader));
    if (!reader || !(reader->path = strdup(path))) {
        free(reader);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "\"%s\": no memory", path);
    }
    reader->buffer = buffer;
    reader->buffer_bytes = buffer_bytes;
    reader->fd = sl_file_open_direct(path, O_RDONLY, 0, direct_off, &reader->direct);
    int code = reader->fd < 0 ? reader->fd : 0;
    struct stat info;
    if (!code && fstat(reader->fd, &info) < 0)
        code = -errno;
    if (!code && !S_ISREG(info.st_mode))
        code = S_ISDIR(info.st_mode) ? -EISDIR : -EINVAL;
    if (code) {
        sl_error_set(error, SL_DOMAIN_INPUT, code, "\"%s\": cannot be opened: %s", path,
                     code == -EINVAL ? "not a regular file" : strerror(-code));
        sl_file_reader_close(reader);
        return code;
    }
    reader->bytes = (uint64_t)info.st_size;
    *out = reader;
    return 0;
}

void sl_file_reader_close(struct sl_file_reader *reader)
{
    if (!reader)
        return;
    if (reader->fd >= 0)
        close(reader->fd);
    free(reader->path);
    free(reader);
}

uint64_t sl_file_reader_bytes(const struct sl_file_reader *reader)
{
    return reader->bytes;
}

/* Read at least `needed` of `bytes`; offset, data and bytes are aligned where O_DIRECT is on. */
static int read_all(struct sl_file_reader *reader, uint64_t offset, char *data, size_t bytes,
                    size_t needed, struct sl_error *error)
{
    for (size_t done = 0; done < needed;) {
        ssize_t n = pread(reader->fd, data + done, sl_min_u64(bytes - done, READ_BYTES_MAX),
                          (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int code = -errno;
            return sl_error_set(error, SL_DOMAIN_IO, code,
                                "\"%s\": reading %zu B at offset %" PRIu64 ": %s", reader->path,
                                needed - done, offset + done, strerror(-code));
        }
        if (n == 0)
            return sl_error_set(error, SL_DOMAIN_IO, -EIO,
                                "\"%s\": ends at %" PRIu64 " of %" PRIu64
                                " B; it became shorter while it was read",
                                reader->path, offset + done, reader->bytes);
        done += (size_t)n;
        if (reader->direct && done < needed) { /* the next read must start on a boundary */
            size_t boundary = done & ~(size_t)(SL_FILE_ALIGNMENT - 1);
            if (boundary == done - (size_t)n && (size_t)n < SL_FILE_ALIGNMENT)
                return sl_error_set(error, SL_DOMAIN_IO, -EIO,
                                    "\"%s\": a read at offset %" PRIu64 " stays short",
                                    reader->path, offset + done);
            done = boundary;
        }
    }
    return 0;
}

/* Copy [offset, offset + bytes) to data through the buffer. */
static int read_bounced(struct sl_file_reader *reader, uint64_t offset, char *data, uint64_t bytes,
                        struct sl_error *error)
{
    while (bytes) {
        uint64_t start = offset & ~(uint64_t)(SL_FILE_ALIGNMENT - 1);
        size_t skip = (size_t)(offset - start);
        size_t usable = sl_min_u64(bytes, reader->buffer_bytes - skip);
        size_t covered = sl_align_up(skip + usable, SL_FILE_ALIGNMENT);
        int code = read_all(reader, start, reader->buffer, covered, skip + usable, error);
        if (code)
            return code;
        memcpy(data, reader->buffer + skip, usable);
        offset += usable;
        data += usable;
        bytes -= usable;
    }
    return 0;
}

int sl_file_reader_read(struct sl_file_reader *reader, uint64_t offset_bytes, void *data,
                        uint64_t bytes, struct sl_error *error)
{
    if (offset_bytes > reader->bytes || bytes > reader->bytes - offset_bytes)
        return sl_error_set(error, SL_DOMAIN_DATA, -ERANGE,
                            "\"%s\": %" PRIu64 " B at offset %" PRIu64
                            " wanted, the file has %" PRIu64 " B; it is cut short or damaged",
                            reader->path, bytes, offset_bytes, reader->bytes);
    char *to = data;
    if (!reader->direct)
        return read_all(reader, offset_bytes, to, bytes, bytes, error);
    const uint64_t mask = SL_FILE_ALIGNMENT - 1;
    if ((((uintptr_t)to ^ offset_bytes) & mask) || bytes < 2 * SL_FILE_ALIGNMENT)
        return read_bounced(reader, offset_bytes, to, bytes, error);
    uint64_t head = -offset_bytes & mask;
    uint64_t middle = (bytes - head) & ~mask;
    int code = read_bounced(reader, offset_bytes, to, head, error);
    if (!code)
        code = read_all(reader, offset_bytes + head, to + head, middle, middle, error);
    if (!code)
        code = read_bounced(reader, offset_bytes + head + middle, to + head + middle,
                            bytes - head - middle, error);
    return code;
}
