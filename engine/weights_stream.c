// SPDX-License-Identifier: Apache-2.0
/* The read-ahead that makes a load run at the drive's speed.
 *
 * Tensor data of foreign files starts at any byte, so O_DIRECT cannot put it in place: somebody
 * copies or converts every byte. Done after each read this costs a third of the speed; here the
 * next chunks are on their way meanwhile. Buffered reads would overlap too, but reach a quarter of
 * the drive's speed on a cold file and push everything else out of the page cache.
 *
 *     chunks of the file   ... | base | base+1 | base+2 | base+3 | ...
 *                                 ^ caller copies    ^ thread fills base + filled
 *     chunk c lies in slot c % CHUNKS; slots [base, base + filled) are ready
 *
 * The caller alone moves `base`; the thread alone moves `filled` forward. A jump bumps
 * `generation`: the thread drops what it was reading and starts over at the new base.
 *
 * Invariant: the thread writes only slots outside [base, base + filled).
 */
#include "engine/weights_stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "nvme/file.h"

struct sl_read_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char *ring;   /* CHUNKS * CHUNK_BYTES */
    char *bounce; /* the reader's, for the file's tail */

    /* under the lock */
    char *path; /* wanted; NULL before the first read */
    uint64_t base, filled, generation;
    uint64_t bytes; /* of the file, once filled > 0 */
    bool stop;
    struct sl_error error; /* of this generation */

    /* the thread's own */
    struct sl_file_reader *reader;
    char *reader_path;
};

static char *slot(struct sl_read_stream *stream, uint64_t chunk)
{
    return stream->ring + chunk % SL_READ_STREAM_CHUNKS * SL_READ_STREAM_CHUNK_BYTES;
}

/* Make the reader be that of `path`. */
static int open_reader(struct sl_read_stream *stream, char *path, struct sl_error *error)
{
    if (stream->reader && strcmp(stream->reader_path, path) == 0) {
        free(path);
        return 0;
    }
    sl_file_reader_close(stream->reader);
    free(stream->reader_path);
    stream->reader = NULL;
    stream->reader_path = path;
    return sl_file_reader_open(&stream->reader, path, stream->bounce, SL_FILE_BUFFER_BYTES_MIN,
                               false, error);
}

static int read_chunk(struct sl_read_stream *stream, uint64_t chunk, struct sl_error *error)
{
    uint64_t size = sl_file_reader_bytes(stream->reader);
    uint64_t begin = chunk * SL_READ_STREAM_CHUNK_BYTES;
    if (begin >= size)
        return 0; /* past the end: nobody asks for it, or is told that the file is shorter */
    return sl_file_reader_read(stream->reader, begin, slot(stream, chunk),
                               sl_min_u64(SL_READ_STREAM_CHUNK_BYTES, size - begin), error);
}

static bool idle(const struct sl_read_stream *stream)
{
    return !stream->path || stream->error.code || stream->filled == SL_READ_STREAM_CHUNKS;
}

static void *fill_ring(void *argument)
{
    struct sl_read_stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->stop && idle(stream))
            pthread_cond_wait(&stream->changed, &stream->lock);
        if (stream->stop)
            break;
        uint64_t generation = stream->generation, chunk = stream->base + stream->filled;
        char *path = strdup(stream->path);
        pthread_mutex_unlock(&stream->lock);

        struct sl_error error = {0};
        int rc = path ? open_reader(stream, path, &error)
                      : sl_error_set(&error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
        if (!rc)
            read_chunk(stream, chunk, &error);

        pthread_mutex_lock(&stream->lock);
        if (generation == stream->generation) {
            stream->error = error;
            stream->filled += error.code == 0;
            stream->bytes = error.code ? 0 : sl_file_reader_bytes(stream->reader);
            pthread_cond_broadcast(&stream->changed);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

int sl_read_stream_create(struct sl_read_stream **out, struct sl_error *error)
{
    struct sl_read_stream *stream = calloc(1, sizeof *stream);
    *out = NULL;
    if (stream) {
        stream->ring =
            aligned_alloc(SL_FILE_ALIGNMENT, SL_READ_STREAM_CHUNKS * SL_READ_STREAM_CHUNK_BYTES);
        stream->bounce = aligned_alloc(SL_FILE_ALIGNMENT, SL_FILE_BUFFER_BYTES_MIN);
    }
    int rc = stream && stream->ring && stream->bounce ? 0 : -ENOMEM;
    if (!rc) {
        pthread_mutex_init(&stream->lock, NULL);
        pthread_cond_init(&stream->changed, NULL);
        rc = -pthread_create(&stream->thread, NULL, fill_ring, stream);
    }
    if (!rc) {
        *out = stream;
        return 0;
    }
    if (stream) {
        free(stream->ring);
        free(stream->bounce);
    }
    free(stream);
    return sl_error_set(error, SL_DOMAIN_MEMORY, rc, "cannot start reading ahead: %s",
                        strerror(-rc));
}

void sl_read_stream_destroy(struct sl_read_stream *stream)
{
    if (!stream)
        return;
    pthread_mutex_lock(&stream->lock);
    stream->stop = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    sl_file_reader_close(stream->reader);
    free(stream->reader_path);
    free(stream->path);
    free(stream->ring);
    free(stream->bounce);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

/* Make `chunk` the base: forward within the ring where it is near, else as a jump. */
static int move_base(struct sl_read_stream *stream, const char *path, uint64_t chunk)
{
    bool same = stream->path && strcmp(stream->path, path) == 0 && !stream->error.code;
    if (same && chunk >= stream->base && chunk <= stream->base + stream->filled) {
        stream->filled -= chunk - stream->base;
        stream->base = chunk;
        pthread_cond_broadcast(&stream->changed);
        return 0;
    }
    if (!stream->path || strcmp(stream->path, path) != 0) {
        char *copy = strdup(path);
        if (!copy)
            return -ENOMEM;
        free(stream->path);
        stream->path = copy;
    }
    stream->base = chunk;
    stream->filled = 0;
    stream->generation++;
    stream->error = (struct sl_error){0};
    pthread_cond_broadcast(&stream->changed);
    return 0;
}

int sl_read_stream_read(struct sl_read_stream *stream, const char *path, uint64_t offset,
                        size_t bytes, void *out, struct sl_error *error)
{
    char *to = out;
    while (bytes > 0) {
        uint64_t chunk = offset / SL_READ_STREAM_CHUNK_BYTES;
        size_t skip = offset % SL_READ_STREAM_CHUNK_BYTES;
        size_t usable = sl_min_u64(bytes, SL_READ_STREAM_CHUNK_BYTES - skip);
        pthread_mutex_lock(&stream->lock);
        int rc = move_base(stream, path, chunk);
        while (!rc && stream->filled == 0 && !stream->error.code)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct sl_error failure = stream->error;
        uint64_t file_bytes = stream->bytes;
        pthread_mutex_unlock(&stream->lock);
        if (rc)
            return sl_error_set(error, SL_DOMAIN_MEMORY, rc, "%s: no memory to read it", path);
        if (failure.code)
            return sl_error_set(error, failure.domain, failure.code, "%s", failure.message);
        if (offset + usable > file_bytes)
            return sl_error_set(error, SL_DOMAIN_IO, -ENODATA,
                                "%s: the file was cut off since it was opened", path);
        memcpy(to, slot(stream, chunk) + skip, usable);
        to += usable;
        offset += usable;
        bytes -= usable;
    }
    return 0;
}
