// SPDX-License-Identifier: Apache-2.0
/* From files to a token store.
 *
 * Files are read in pieces with pread (a mapped text that somebody truncates kills the process),
 * and the encoder says how much of a piece it could finish. An end-of-text id closes a document,
 * and each file ends with one where the tokenizer has any, so that two files never continue each
 * other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/dataset_internal.h"

#define PIECE_BYTES (1u << 20)
#define CACHE_VERSION 1u

/* Everything that decides the store's content, boiled down to 64 bits. */
static int cache_key(uint64_t *key, const struct sl_dataset_options *options,
                     struct sl_error *error)
{
    uint64_t fingerprint = options->tokenizer ? sl_tokenizer_fingerprint(options->tokenizer) : 0;
    uint64_t hash = fingerprint * 31 + CACHE_VERSION;
    for (size_t i = 0; i < options->file_count; i++) {
        struct stat status;
        if (stat(options->files[i], &status))
            return sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: %s", options->files[i],
                                strerror(errno));
        if (S_ISDIR(status.st_mode))
            return sl_error_set(error, SL_DOMAIN_INPUT, -EISDIR,
                                "%s: a folder; name its files one by one", options->files[i]);
        uint64_t facts[5] = {(uint64_t)status.st_size, (uint64_t)status.st_mtim.tv_sec,
                             (uint64_t)status.st_mtim.tv_nsec, (uint64_t)status.st_ino,
                             (uint64_t)status.st_dev};
        hash = XXH3_64bits_withSeed(facts, sizeof(facts), hash);
    }
    *key = hash;
    return 0;
}

struct text_reader {
    const char *path;
    int fd;
    struct sl_encoder *encoder;
    struct store_writer *writer;
    const struct sl_tokenizer *tokenizer;
    char *buffer;
    size_t capacity, held;
    bool closed; /* the last id was an end of text */
    struct sl_ids ids;
};

/* Hand ids to the store and close a document behind every end-of-text id. */
static int store_ids(struct text_reader *reader, struct sl_error *error)
{
    size_t from = 0;
    for (size_t i = 0; i < reader->ids.count; i++) {
        if (!sl_tokenizer_is_eos(reader->tokenizer, reader->ids.data[i]))
            continue;
        int code =
            store_writer_append(reader->writer, reader->ids.data + from, i + 1 - from, error);
        if (!code)
            code = store_writer_end_document(reader->writer, error);
        if (code)
            return code;
        from = i + 1;
    }
    if (reader->ids.count)
        reader->closed = from == reader->ids.count;
    return store_writer_append(reader->writer, reader->ids.data + from, reader->ids.count - from,
                               error);
}

static int fill(struct text_reader *reader, bool *end, struct sl_error *error)
{
    while (reader->held < reader->capacity) {
        ssize_t got =
            read(reader->fd, reader->buffer + reader->held, reader->capacity - reader->held);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", reader->path,
                                strerror(errno));
        *end = got == 0;
        if (*end)
            return 0;
        reader->held += (size_t)got;
    }
    return 0;
}

static int grow_buffer(struct text_reader *reader, struct sl_error *error)
{
    char *grown = realloc(reader->buffer, reader->capacity * 2);
    if (!grown)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "%s: no memory for a word longer than %zu bytes", reader->path,
                            reader->capacity);
    reader->buffer = grown;
    reader->capacity *= 2;
    return 0;
}

static int read_pieces(struct text_reader *reader, struct sl_error *error)
{
    bool first = true, end = false;
    while (!end) {
        int code = fill(reader, &end, error);
        if (code)
            return code;
        size_t consumed = 0;
        reader->ids.count = 0;
        code = sl_encode_piece(reader->encoder, reader->buffer, reader->held, first, end,
                               &reader->ids, &consumed, error);
        if (!code)
            code = store_ids(reader, error);
        if (!code && !end && consumed == 0)
            code = grow_buffer(reader, error);
        if (code)
            return code;
        first = first && consumed == 0;
        reader->held -= consumed;
        memmove(reader->buffer, reader->buffer + consumed, reader->held);
    }
    return 0;
}

static int read_text(struct text_reader *reader, const char *path, struct sl_error *error)
{
    uint64_t before = store_writer_token_count(reader->writer);
    reader->path = path;
    reader->held = 0;
    reader->closed = false;
    reader->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: %s", path, strerror(errno));
    int code = read_pieces(reader, error);
    close(reader->fd);
    if (code)
        return code;
    if (store_writer_token_count(reader->writer) == before)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: no text in it; leave it out or fill it", path);
    int32_t eos = sl_tokenizer_eos(reader->tokenizer);
    if (eos >= 0 && !reader->closed) {
        uint32_t id = (uint32_t)eos;
        code = store_writer_append(reader->writer, &id, 1, error);
    }
    return code ? code : store_writer_end_document(reader->writer, error);
}

static int make_store(struct token_store *store, const struct sl_dataset_options *options,
                      const char *path, uint64_t key, struct sl_error *error)
{
    struct text_reader reader = {.tokenizer = options->tokenizer, .capacity = PIECE_BYTES};
    uint32_t id_bytes = sl_tokenizer_vocabulary(options->tokenizer) <= 65536 ? 2 : 4;
    int code = store_writer_open(&reader.writer, path, id_bytes, key, error);
    if (!code)
        code = sl_encoder_create(&reader.encoder, options->tokenizer, error);
    if (!code) {
        reader.buffer = malloc(reader.capacity);
        if (!reader.buffer)
            code = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to read text");
    }
    for (size_t i = 0; i < options->file_count && !code; i++)
        code = read_text(&reader, options->files[i], error);
    if (!code)
        code = store_writer_finish(reader.writer, store, error);
    free(reader.buffer);
    sl_ids_finish(&reader.ids);
    sl_encoder_destroy(reader.encoder);
    store_writer_destroy(reader.writer);
    return code;
}

int dataset_read(struct token_store *store, const struct sl_dataset_options *options,
                 struct sl_error *error)
{
    uint64_t key = 0;
    int code = cache_key(&key, options, error);
    if (code)
        return code;
    if (!options->cache_directory)
        return make_store(store, options, NULL, key, error);
    char *path = NULL;
    if (asprintf(&path, "%s/tokens-%016llx.sluice", options->cache_directory,
                 (unsigned long long)key) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
    struct sl_error miss = {0};
    if (store_open(store, path, key, &miss) != 0) {
        if (miss.code != -ENOENT)
            sl_log_write(options->log, SL_LOG_WARNING, "%s (made again)", miss.message);
        code = make_store(store, options, path, key, error);
    } else {
        sl_log_write(options->log, SL_LOG_INFO, "%s: %llu tokens, already tokenised", path,
                     (unsigned long long)store->token_count);
    }
    free(path);
    return code;
}
