// SPDX-License-Identifier: Apache-2.0
/* Opening, reading and creating safetensors files; the parser is in safetensors_header.c.
 *
 * Reads go through pread, not through a map of the file: a file that shrinks under a map kills the
 * process, and the pages of a mapped model count as its memory. The head is read whole, which is
 * why its size is checked against the limit and the file before anything is allocated.
 *
 * A file is created with its final size first, so that a full disk is reported before training
 * data is lost in it, and tensors can be written in any order.
 */
#include "engine/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"

static int read_fully(int fd, void *out, size_t bytes, uint64_t offset)
{
    char *to = out;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -ENODATA;
        to += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int io_error(struct sl_error *error, int rc, const char *path, const char *what)
{
    return sl_error_set(error, SL_DOMAIN_IO, rc, "%s: %s: %s", path, what, strerror(-rc));
}

static int read_header(struct sl_safetensors *file, struct sl_error *error)
{
    struct stat info;
    unsigned char prefix[8];
    if (fstat(file->fd, &info) != 0)
        return io_error(error, -errno, file->path, "cannot stat");
    if (!S_ISREG(info.st_mode))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: not a regular file", file->path);
    uint64_t size = (uint64_t)info.st_size, header_bytes = 0;
    if (size < 8)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: %" PRIu64 " bytes: too short for a safetensors file", file->path,
                            size);
    int rc = read_fully(file->fd, prefix, 8, 0);
    if (rc)
        return io_error(error, rc, file->path, "cannot read");
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | prefix[i];
    if (header_bytes > SL_SAFETENSORS_HEADER_BYTES_MAX || header_bytes > size - 8)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: header of %" PRIu64 " bytes: at most %" PRIu64
                            " are possible; the file is damaged or no safetensors file",
                            file->path, header_bytes,
                            sl_min_u64(SL_SAFETENSORS_HEADER_BYTES_MAX, size - 8));
    char *header = malloc(header_bytes + 1);
    if (!header)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "%s: no memory for its header of %" PRIu64 " bytes", file->path,
                            header_bytes);
    rc = read_fully(file->fd, header, header_bytes, 8);
    if (rc)
        io_error(error, rc, file->path, "cannot read the header");
    file->data_offset = 8 + header_bytes;
    if (!rc)
        rc = sl_safetensors_parse(file, file->path, header, header_bytes, size - 8 - header_bytes,
                                  error);
    free(header);
    return rc;
}

int sl_safetensors_open(struct sl_safetensors *file, const char *path, struct sl_error *error)
{
    *file = (struct sl_safetensors){.fd = -1, .path = strdup(path)};
    if (!file->path)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory to open it", path);
    int rc = 0;
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe must not block us */
    if (file->fd < 0) {
        rc = -errno;
        sl_error_set(error, rc == -ENOENT ? SL_DOMAIN_INPUT : SL_DOMAIN_IO, rc,
                     "%s: cannot open: %s", path, strerror(-rc));
    }
    if (!rc)
        rc = read_header(file, error);
    if (rc)
        sl_safetensors_close(file);
    return rc;
}

void sl_safetensors_close(struct sl_safetensors *file)
{
    if (file->path && file->fd >= 0)
        close(file->fd);
    free(file->path);
    free(file->tensors);
    free(file->names);
    *file = (struct sl_safetensors){.fd = -1};
}

const struct sl_safetensor *sl_safetensors_find(const struct sl_safetensors *file, const char *name)
{
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->tensors[middle].name);
        if (order == 0)
            return &file->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

int sl_safetensors_read(const struct sl_safetensors *file, const struct sl_safetensor *tensor,
                        uint64_t first, size_t bytes, void *out, struct sl_error *error)
{
    if (first > tensor->end - tensor->begin || bytes > tensor->end - tensor->begin - first)
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                            "%s: tensor \"%.80s\": a read of %zu bytes at %" PRIu64
                            " leaves its %" PRIu64,
                            file->path, tensor->name, bytes, first, tensor->end - tensor->begin);
    int rc = read_fully(file->fd, out, bytes, file->data_offset + tensor->begin + first);
    if (rc)
        return sl_error_set(error, SL_DOMAIN_IO, rc, "%s: tensor \"%.80s\": cannot read: %s",
                            file->path, tensor->name,
                            rc == -ENODATA ? "the file was cut off since it was opened"
                                           : strerror(-rc));
    return 0;
}

static int by_type_and_name(const void *a, const void *b)
{
    const struct sl_safetensor *x = a, *y = b;
    size_t x_bytes = sl_safetensors_type_bytes(x->type),
           y_bytes = sl_safetensors_type_bytes(y->type);
    if (x_bytes != y_bytes)
        return x_bytes > y_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Writes a JSON string; our names are ASCII identifiers, so only these two need an escape. */
static void print_name(FILE *out, const char *name)
{
    fputc('"', out);
    for (; *name; name++) {
        if (*name == '"' || *name == '\\')
            fputc('\\', out);
        fputc(*name, out);
    }
    fputc('"', out);
}

static uint64_t print_header(FILE *out, struct sl_safetensor *tensors, size_t count)
{
    uint64_t end = 0;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
    for (size_t i = 0; i < count; i++) {
        struct sl_safetensor *t = &tensors[i];
        uint64_t bytes = sl_safetensors_type_bytes(t->type);
        fputc(',', out);
        print_name(out, t->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", sl_safetensors_type_name(t->type));
        for (uint32_t d = 0; d < t->rank; d++) {
            fprintf(out, "%s%" PRIu64, d ? "," : "", t->shape[d]);
            bytes *= t->shape[d];
        }
        t->begin = end;
        t->end = end += bytes;
        fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end);
    }
    fputc('}', out);
    return end;
}

static int write_head(int fd, const char *path, char *header, size_t bytes, uint64_t padded,
                      uint64_t data_bytes, struct sl_error *error)
{
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((padded - 8) >> (8 * i));
    char *block = malloc(padded);
    if (!block)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for its header", path);
    memset(block, ' ', padded);
    memcpy(block, prefix, 8);
    memcpy(block + 8, header, bytes);
    int rc = 0;
    for (size_t at = 0; at < padded && !rc;) {
        ssize_t n = pwrite(fd, block + at, padded - at, (off_t)at);
        if (n < 0 && errno != EINTR)
            rc = io_error(error, -errno, path, "cannot write the header");
        else if (n > 0)
            at += (size_t)n;
    }
    free(block);
    if (rc)
        return rc;
    rc = fallocate(fd, 0, 0, (off_t)(padded + data_bytes)) == 0 ? 0 : -errno;
    if (rc == -ENOSPC || rc == -EFBIG || rc == -EDQUOT) {
        char need[SL_SIZE_TEXT_BYTES];
        return sl_error_set(error, SL_DOMAIN_IO, rc, "%s: %s are needed: %s", path,
                            sl_size_format(padded + data_bytes, need), strerror(-rc));
    }
    if (rc && ftruncate(fd, (off_t)(padded + data_bytes)) != 0) /* no fallocate there: a size */
        return io_error(error, -errno, path, "cannot set its size");
    return 0;
}

int sl_safetensors_create(const char *path, struct sl_safetensor *tensors, size_t count, int *fd,
                          uint64_t *data_offset, struct sl_error *error)
{
    char *header = NULL;
    size_t header_bytes = 0;
    FILE *out = open_memstream(&header, &header_bytes);
    if (!out)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for its header", path);
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, by_type_and_name);
    uint64_t data_bytes = print_header(out, tensors, count);
    if (fclose(out) != 0) {
        free(header);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for its header", path);
    }
    uint64_t padded = sl_align_up(8 + header_bytes, SL_SAFETENSORS_ALIGNMENT);
    int rc = 0;
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (*fd < 0)
        rc = io_error(error, -errno, path, "cannot create");
    if (!rc)
        rc = write_head(*fd, path, header, header_bytes, padded, data_bytes, error);
    free(header);
    if (rc && *fd >= 0) {
        close(*fd);
        *fd = -1;
        unlink(path);
    }
    *data_offset = padded;
    return rc;
}
