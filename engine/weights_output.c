// SPDX-License-Identifier: Apache-2.0
/* Positioned writes, joined and aligned.
 *
 * Tensors lie at any byte of a file and arrive in pieces of any size, so O_DIRECT cannot take them
 * as they come; plain writes reach a tenth of a drive's speed on a busy machine and push everything
 * else out of the page cache. So pieces that follow each other are joined in one buffer, laid out
 * with the phase of their place in the file, and its whole blocks are written with O_DIRECT:
 *
 *     file     |....xxxxxxxx|xxxxxxxxxxxx|xxxxxxxxxxxx|xxxx........|
 *     buffer   |....head    | middle: O_DIRECT        |tail        |
 *
 * Head and tail share their block with a neighbour and go through the page cache, which merges
 * them. That is coherent because a block is written either as a whole by O_DIRECT or only in parts
 * by plain writes: two disjoint ranges never own the same whole block.
 *
 * Invariant: the buffer holds bytes [start, end) of one file, start at buffer[start % BLOCK].
 */
#include "engine/weights_output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"

#define BLOCK 4096u

struct file {
    int fd, direct_fd; /* direct_fd -1: the file system does not take it */
};

struct sl_weights_output {
    pthread_mutex_t lock;
    struct file *files;
    uint32_t file_count;
    char *buffer;
    uint32_t file; /* of the buffered bytes */
    uint64_t start, end;
};

int sl_weights_output_create(struct sl_weights_output **out, uint32_t file_count,
                             struct sl_error *error)
{
    struct sl_weights_output *output = calloc(1, sizeof *output);
    *out = NULL;
    if (output) {
        output->files = calloc(file_count, sizeof *output->files);
        output->buffer = aligned_alloc(BLOCK, SL_WEIGHTS_OUTPUT_BUFFER_BYTES);
    }
    if (!output || !output->files || !output->buffer) {
        if (output) {
            free(output->files);
            free(output->buffer);
        }
        free(output);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to write weights");
    }
    for (uint32_t i = 0; i < file_count; i++)
        output->files[i] = (struct file){-1, -1};
    output->file_count = file_count;
    pthread_mutex_init(&output->lock, NULL);
    *out = output;
    return 0;
}

void sl_weights_output_destroy(struct sl_weights_output *output)
{
    if (!output)
        return;
    for (uint32_t i = 0; i < output->file_count; i++) {
        if (output->files[i].fd >= 0)
            close(output->files[i].fd);
        if (output->files[i].direct_fd >= 0)
            close(output->files[i].direct_fd);
    }
    pthread_mutex_destroy(&output->lock);
    free(output->files);
    free(output->buffer);
    free(output);
}

void sl_weights_output_add(struct sl_weights_output *output, uint32_t index, int fd,
                           const char *path)
{
    output->files[index].fd = fd;
    output->files[index].direct_fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
}

static int write_fully(int fd, const char *data, uint64_t bytes, uint64_t offset)
{
    while (bytes > 0) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* Whole blocks; where the drive refuses them (or took an odd part), through the page cache. */
static int write_blocks(struct file *file, const char *data, uint64_t bytes, uint64_t offset)
{
    if (file->direct_fd >= 0) {
        int rc = write_fully(file->direct_fd, data, bytes, offset);
        if (rc != -EINVAL)
            return rc;
        close(file->direct_fd);
        file->direct_fd = -1;
    }
    return write_fully(file->fd, data, bytes, offset);
}

/* Write the buffered bytes and empty the buffer. With `keep_tail` the last partial block stays in
 * it, for the bytes that follow. */
static int flush(struct sl_weights_output *output, int keep_tail)
{
    uint64_t start = output->start, end = output->end, phase = start % BLOCK;
    if (start == end)
        return 0;
    struct file *file = &output->files[output->file];
    uint64_t middle = sl_align_up(start, BLOCK), tail = end & ~(uint64_t)(BLOCK - 1);
    char *at = output->buffer + phase;
    int rc = 0;
    if (middle >= tail) { /* less than one whole block */
        rc = write_fully(file->fd, at, end - start, start);
        output->start = output->end;
        return rc;
    }
    rc = write_fully(file->fd, at, middle - start, start);
    if (!rc)
        rc = write_blocks(file, at + (middle - start), tail - middle, middle);
    char *rest = at + (tail - start);
    if (keep_tail) {
        memmove(output->buffer, rest, end - tail);
        output->start = tail;
    } else {
        if (!rc)
            rc = write_fully(file->fd, rest, end - tail, tail);
        output->start = end;
    }
    return rc;
}

static int append(struct sl_weights_output *output, uint32_t index, uint64_t offset,
                  const char *data, size_t bytes)
{
    int rc = 0;
    if (output->start != output->end && (output->file != index || output->end != offset))
        rc = flush(output, 0);
    if (output->start == output->end) {
        output->file = index;
        output->start = output->end = offset;
    }
    while (bytes > 0 && !rc) {
        size_t used = output->start % BLOCK + (size_t)(output->end - output->start);
        size_t n = sl_min_u64(bytes, SL_WEIGHTS_OUTPUT_BUFFER_BYTES - used);
        memcpy(output->buffer + used, data, n);
        output->end += n;
        data += n;
        bytes -= n;
        if (used + n == SL_WEIGHTS_OUTPUT_BUFFER_BYTES)
            rc = flush(output, 1);
    }
    return rc;
}

int sl_weights_output_write(struct sl_weights_output *output, uint32_t index, uint64_t offset,
                            const void *data, size_t bytes, struct sl_error *error)
{
    pthread_mutex_lock(&output->lock);
    int rc = append(output, index, offset, data, bytes);
    pthread_mutex_unlock(&output->lock);
    if (rc)
        sl_error_set(error, SL_DOMAIN_IO, rc, "cannot write weights: %s", strerror(-rc));
    return rc;
}

int sl_weights_output_sync(struct sl_weights_output *output, struct sl_error *error)
{
    pthread_mutex_lock(&output->lock);
    int rc = flush(output, 0);
    for (uint32_t i = 0; i < output->file_count && !rc; i++)
        if (fsync(output->files[i].fd) != 0)
            rc = -errno;
    pthread_mutex_unlock(&output->lock);
    if (rc)
        sl_error_set(error, SL_DOMAIN_IO, rc, "cannot make weights durable: %s", strerror(-rc));
    return rc;
}
