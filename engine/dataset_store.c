// SPDX-License-Identifier: Apache-2.0
/* Token store: writer and map.
 *
 * The problem: ids of a corpus may be far larger than memory, and tokenising is the slow part of a
 * start, so the result is kept. The choice: ids go through a buffer straight into their final file;
 * document starts, whose number is unknown until the end, go into an unnamed second file and are
 * appended when the ids are complete. In memory the same code writes to a memfd, so that there is
 * one path and one format. Rejected: ids in growing heap arrays (a copy of the corpus in memory,
 * and twice that while it grows), and marks as a separate bit array (a third stream to keep aligned
 * for data that is small: only instruction data has marks).
 *
 * Invariant: the header is written last, after everything it describes.
 */
#include "engine/dataset_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/size.h"

#define HEADER_BYTES 4096u
#define SPOOL_BYTES (1u << 18)
#define STORE_BLOCK_BYTES (1u << 20) /* read at a time where all of a file is read */
#define STORE_VERSION 2u

static const char magic[8] = {'S', 'L', 'T', 'O', 'K', 'E', 'N', 'S'};

struct store_header {
    char magic[8];
    uint32_t version, id_bytes;
    uint32_t id_limit, flags; /* 1: marked, 2: samples */
    uint64_t key, fingerprint;
    uint64_t token_count, document_count, documents_offset;
    uint64_t checksum; /* XXH3 of the fields above */
};
_Static_assert(sizeof(struct store_header) == 72, "the file format has no padding");

struct spool {
    int fd;
    size_t used;
    uint8_t *buffer; /* [SPOOL_BYTES] */
    uint64_t offset;
};

struct store_writer {
    struct spool ids, documents;
    char *path, *partial; /* NULL: in memory */
    uint64_t key, token_count, document_count, document_start;
    uint32_t id_bytes, id_limit;
    bool marked, samples;
    XXH3_state_t *hash;
};

static int write_all(int fd, const void *data, size_t bytes, uint64_t offset)
{
    const uint8_t *at = data;
    while (bytes) {
        ssize_t done = pwrite(fd, at, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += done;
        offset += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return 0;
}

static int spool_flush(struct spool *spool)
{
    int code = write_all(spool->fd, spool->buffer, spool->used, spool->offset);
    if (code)
        return code;
    spool->offset += spool->used;
    spool->used = 0;
    return 0;
}

static int spool_open(struct spool *spool, int fd, uint64_t offset)
{
    if (fd < 0)
        return -errno;
    *spool = (struct spool){.fd = fd, .offset = offset, .buffer = malloc(SPOOL_BYTES)};
    return spool->buffer ? 0 : -ENOMEM;
}

static void spool_close(struct spool *spool)
{
    if (spool->fd >= 0)
        close(spool->fd);
    free(spool->buffer);
    *spool = (struct spool){.fd = -1};
}

static const char *writer_name(const struct store_writer *writer)
{
    return writer->partial ? writer->partial : "token store in memory";
}

static int writer_fail(const struct store_writer *writer, int code, struct sl_error *error)
{
    return sl_error_set(error, code == -ENOMEM ? SL_DOMAIN_MEMORY : SL_DOMAIN_IO, code,
                        "%s: %s after %llu tokens", writer_name(writer), strerror(-code),
                        (unsigned long long)writer->token_count);
}

/* path.partial, locked; where another process writes the same store, a name of its own. The lock
 * counts only while the file still has the name: the other one may have renamed it in between. */
static int open_partial(struct store_writer *writer)
{
    for (int attempt = 0; attempt < 8; attempt++) {
        struct stat opened, named;
        int fd = open(writer->partial, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0)
            return -1;
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (locked && fstat(fd, &opened) == 0 && stat(writer->partial, &named) == 0 &&
            opened.st_ino == named.st_ino && opened.st_dev == named.st_dev && ftruncate(fd, 0) == 0)
            return fd;
        close(fd);
        if (!locked)
            break;
    }
    free(writer->partial);
    if (asprintf(&writer->partial, "%s.%ld.partial", writer->path, (long)getpid()) < 0) {
        writer->partial = NULL;
        errno = ENOMEM;
        return -1;
    }
    return open(writer->partial, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
}

int store_writer_open(struct store_writer **out, const char *path, uint32_t id_bytes, uint64_t key,
                      struct sl_error *error)
{
    *out = NULL;
    struct store_writer *writer = calloc(1, sizeof(*writer));
    if (!writer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a token store");
    writer->ids.fd = writer->documents.fd = -1;
    writer->id_bytes = id_bytes;
    writer->key = key;
    writer->hash = XXH3_createState();
    int code = writer->hash ? 0 : -ENOMEM;
    if (!code && path) {
        writer->path = strdup(path);
        if (!writer->path || asprintf(&writer->partial, "%s.partial", path) < 0)
            code = -ENOMEM;
    }
    if (!code) {
        XXH3_64bits_reset(writer->hash);
        int fd = path ? open_partial(writer) : memfd_create("sluice-ids", MFD_CLOEXEC);
        code = spool_open(&writer->ids, fd, HEADER_BYTES);
    }
    if (!code)
        code = spool_open(&writer->documents, memfd_create("sluice-documents", MFD_CLOEXEC), 0);
    if (code) {
        writer_fail(writer, code, error);
        store_writer_destroy(writer);
        return code;
    }
    *out = writer;
    return 0;
}

static int put_id(struct store_writer *writer, uint32_t raw)
{
    struct spool *spool = &writer->ids;
    if (spool->used + 4 > SPOOL_BYTES) {
        XXH3_64bits_update(writer->hash, spool->buffer, spool->used);
        int code = spool_flush(spool);
        if (code)
            return code;
    }
    uint32_t id = raw & STORE_ID_MASK;
    writer->marked |= raw != id;
    if (id >= writer->id_limit)
        writer->id_limit = id + 1;
    uint16_t narrow = (uint16_t)raw;
    memcpy(spool->buffer + spool->used, writer->id_bytes == 2 ? (void *)&narrow : (void *)&raw,
           writer->id_bytes);
    spool->used += writer->id_bytes;
    writer->token_count++;
    return 0;
}

int store_writer_append(struct store_writer *writer, const uint32_t *ids, size_t count,
                        struct sl_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (writer->id_bytes == 2 && ids[i] > UINT16_MAX)
            return sl_error_set(error, SL_DOMAIN_INTERNAL, -ERANGE,
                                "id %u does not fit a 16-bit store", ids[i]);
        int code = put_id(writer, ids[i]);
        if (code)
            return writer_fail(writer, code, error);
    }
    return 0;
}

static int put_document(struct store_writer *writer, uint64_t start)
{
    struct spool *spool = &writer->documents;
    if (spool->used + 8 > SPOOL_BYTES) {
        int code = spool_flush(spool);
        if (code)
            return code;
    }
    memcpy(spool->buffer + spool->used, &start, 8);
    spool->used += 8;
    return 0;
}

int store_writer_end_document(struct store_writer *writer, struct sl_error *error)
{
    if (writer->token_count == writer->document_start)
        return 0;
    int code = put_document(writer, writer->document_start);
    if (code)
        return writer_fail(writer, code, error);
    writer->document_start = writer->token_count;
    writer->document_count++;
    return 0;
}

void store_writer_set_samples(struct store_writer *writer)
{
    writer->samples = true;
}

uint64_t store_writer_token_count(const struct store_writer *writer)
{
    return writer->token_count;
}

/* Copy the document starts behind the ids. */
static int append_documents(struct store_writer *writer, uint64_t offset)
{
    uint64_t total = (writer->document_count + 1) * 8;
    uint8_t *buffer = writer->ids.buffer; /* its ids are flushed */
    for (uint64_t at = 0; at < total;) {
        size_t bytes = (size_t)sl_min_u64(total - at, SPOOL_BYTES);
        ssize_t done = pread(writer->documents.fd, buffer, bytes, (off_t)at);
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        XXH3_64bits_update(writer->hash, buffer, (size_t)done);
        int code = write_all(writer->ids.fd, buffer, (size_t)done, offset + at);
        if (code)
            return code;
        at += (uint64_t)done;
    }
    return 0;
}

static int write_header(struct store_writer *writer, uint64_t documents_offset)
{
    struct store_header header = {
        .version = STORE_VERSION,
        .id_bytes = writer->id_bytes,
        .id_limit = writer->id_limit,
        .flags = writer->marked | writer->samples << 1,
        .key = writer->key,
        .fingerprint = XXH3_64bits_digest(writer->hash),
        .token_count = writer->token_count,
        .document_count = writer->document_count,
        .documents_offset = documents_offset,
    };
    memcpy(header.magic, magic, sizeof(magic));
    header.checksum = XXH3_64bits(&header, offsetof(struct store_header, checksum));
    return write_all(writer->ids.fd, &header, sizeof(header), 0);
}

static int map_store(struct token_store *store, int fd, const char *name, bool anonymous,
                     struct sl_error *error);

int store_writer_finish(struct store_writer *writer, struct token_store *store,
                        struct sl_error *error)
{
    int code = store_writer_end_document(writer, error);
    if (code)
        return code;
    XXH3_64bits_update(writer->hash, writer->ids.buffer, writer->ids.used);
    code = spool_flush(&writer->ids);
    if (!code)
        code = put_document(writer, writer->token_count);
    if (!code)
        code = spool_flush(&writer->documents);
    uint64_t documents_offset = sl_align_up(writer->ids.offset, 8);
    if (!code)
        code = append_documents(writer, documents_offset);
    if (!code)
        code = write_header(writer, documents_offset);
    if (!code && writer->path && fsync(writer->ids.fd))
        code = -errno;
    if (!code && writer->path && rename(writer->partial, writer->path))
        code = -errno;
    if (code)
        return writer_fail(writer, code, error);
    bool anonymous = !writer->path;
    code = map_store(store, writer->ids.fd, writer_name(writer), anonymous, error);
    free(writer->partial);
    writer->partial = NULL; /* renamed: nothing to remove */
    return code;
}

void store_writer_destroy(struct store_writer *writer)
{
    if (!writer)
        return;
    spool_close(&writer->ids);
    spool_close(&writer->documents);
    if (writer->partial)
        unlink(writer->partial);
    XXH3_freeState(writer->hash);
    free(writer->partial);
    free(writer->path);
    free(writer);
}

/* True where the header describes exactly the file. Counts are bounded first: nothing can wrap. */
static bool header_fits(const struct store_header *header, uint64_t file_bytes)
{
    if (memcmp(header->magic, magic, sizeof(magic)) != 0 || header->version != STORE_VERSION ||
        header->checksum != XXH3_64bits(header, offsetof(struct store_header, checksum)))
        return false;
    if (header->id_bytes != 2 && header->id_bytes != 4)
        return false;
    if (header->token_count > file_bytes / header->id_bytes ||
        header->document_count >= file_bytes / 8)
        return false;
    uint64_t ids_end = HEADER_BYTES + header->token_count * header->id_bytes;
    return header->documents_offset == sl_align_up(ids_end, 8) &&
           header->documents_offset + (header->document_count + 1) * 8 == file_bytes;
}

static bool documents_ascend(const struct token_store *store)
{
    for (uint64_t i = 0; i < store->document_count; i++)
        if (store->documents[i] >= store->documents[i + 1])
            return false;
    return store->documents[0] == 0 &&
           store->documents[store->document_count] == store->token_count;
}

static int map_store(struct token_store *store, int fd, const char *name, bool anonymous,
                     struct sl_error *error)
{
    struct stat status;
    if (fstat(fd, &status))
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", name, strerror(errno));
    if ((uint64_t)status.st_size < HEADER_BYTES)
        return sl_error_set(error, SL_DOMAIN_DATA, -EINVAL, "%s: %lld bytes are no token store",
                            name, (long long)status.st_size);
    size_t bytes = (size_t)status.st_size;
    /* What lies in memory is resident from the start, so that the plan counts it. */
    int flags = MAP_SHARED | (anonymous ? MAP_POPULATE : 0);
    const uint8_t *map = mmap(NULL, bytes, PROT_READ, flags, fd, 0);
    if (map == MAP_FAILED)
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", name, strerror(errno));
    const struct store_header *header = (const void *)map;
    *store = (struct token_store){.map = (void *)(uintptr_t)map, .map_bytes = bytes};
    bool good = header_fits(header, bytes);
    if (good) {
        store->ids = map + HEADER_BYTES;
        store->documents = (const void *)(map + header->documents_offset);
        store->token_count = header->token_count;
        store->document_count = header->document_count;
        store->fingerprint = header->fingerprint;
        store->id_bytes = header->id_bytes;
        store->id_limit = header->id_limit;
        store->marked = header->flags & 1;
        store->samples = header->flags & 2;
        store->eos = -1;
        store->anonymous = anonymous;
        good = documents_ascend(store);
        store_release(store, store->map, bytes);
    }
    if (!good) {
        store_close(store);
        return sl_error_set(error, SL_DOMAIN_DATA, -EINVAL,
                            "%s: not a whole token store; delete it to have it made again", name);
    }
    return 0;
}

static void hash_and_release(XXH3_state_t *hash, const struct token_store *store, const void *from,
                             uint64_t bytes)
{
    const uint8_t *at = from;
    for (uint64_t done = 0; done < bytes; done += STORE_BLOCK_BYTES) {
        uint64_t block = sl_min_u64(STORE_BLOCK_BYTES, bytes - done);
        XXH3_64bits_update(hash, at + done, block);
        store_release(store, at + done, block);
    }
}

/* Read all of it once: what is kept is believed no more than what is read from a disk. */
static bool content_is_whole(const struct token_store *store)
{
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return false;
    XXH3_64bits_reset(hash);
    hash_and_release(hash, store, store->ids, store->token_count * store->id_bytes);
    hash_and_release(hash, store, store->documents, (store->document_count + 1) * 8);
    uint64_t digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return digest == store->fingerprint;
}

int store_open(struct token_store *store, const char *path, uint64_t key, struct sl_error *error)
{
    *store = (struct token_store){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", path, strerror(errno));
    int code = map_store(store, fd, path, false, error);
    close(fd);
    if (!code && ((const struct store_header *)store->map)->key != key) {
        store_close(store);
        code = sl_error_set(error, SL_DOMAIN_DATA, -ENOENT, "%s: made from other input", path);
    } else if (!code && !content_is_whole(store)) {
        store_close(store);
        code = sl_error_set(error, SL_DOMAIN_DATA, -EINVAL,
                            "%s: its content is not what was written", path);
    }
    return code;
}

/* A fault maps what else is cached of the aligned block around it. */
#define FAULT_AROUND ((uintptr_t)64 << 10)

void store_release(const struct token_store *store, const void *from, uint64_t bytes)
{
    uintptr_t map = (uintptr_t)store->map, first = (uintptr_t)from, end = first + bytes;
    first -= first % FAULT_AROUND;
    end = sl_min_u64(sl_align_up(end, FAULT_AROUND), map + store->map_bytes);
    first = sl_max_u64(first, map);
    if (!store->anonymous && end > first)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

void store_close(struct token_store *store)
{
    if (store->map)
        munmap(store->map, store->map_bytes);
    *store = (struct token_store){0};
}

uint64_t store_document_of(const struct token_store *store, uint64_t index)
{
    uint64_t low = 0, high = store->document_count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (store->documents[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}
