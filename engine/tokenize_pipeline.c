// SPDX-License-Identifier: Apache-2.0
/* From files to ids: read pieces, encode them in parallel, hand them over in order.
 *
 *     reader    | piece 0 | piece 1 | ... | piece n |     cut where an id cannot reach over
 *     workers     ids 0     ids 1     ...   ids n         one encoder each
 *     sink      in order
 *
 * Fork and join over a batch rather than a queue with a writer of its own: reading and writing are
 * a hundredth of the work, ids and their order do not depend on the number of workers, and where to
 * go on after a stop is a single number, the offset behind the last batch. Files are read with
 * pread, as a mapped file that somebody truncates kills the process.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/tokenize_internal.h"

#define PIECE_BYTES (1u << 20)
#define PIECE_BYTES_MAX ((size_t)1 << 31)
#define PIECES_PER_WORKER 2u

struct pipeline {
    struct tokenize_source *source;
    struct token_sink *sink;
    struct tokenize_position *position;
    struct sl_encoder **encoders; /* [encoder_count], by worker index */
    size_t encoder_count;
    struct token_piece *pieces; /* [piece_capacity] */
    size_t piece_capacity, piece_count;
    struct sl_text carry; /* read, but not part of a piece yet */
    const char *path;
    int fd;
    bool json, end;
    uint64_t offset, bytes_total; /* read so far in this file */
};

static bool has_suffix(const char *path, const char *suffix)
{
    size_t length = strlen(path), wanted = strlen(suffix);
    return length > wanted && strcasecmp(path + length - wanted, suffix) == 0;
}

bool tokenize_is_json(const char *path)
{
    return has_suffix(path, ".json") || has_suffix(path, ".jsonl") || has_suffix(path, ".ndjson");
}

bool tokenize_is_bin(const char *path)
{
    return has_suffix(path, ".bin");
}

/* Files that are text only once they are unpacked: their bytes would be trained on in silence. */
static int refuse_packed(const char *path, struct sl_error *error)
{
    static const struct {
        const char *magic, *name;
    } packed[] = {
        {"\x1f\x8b", "gzip"},
        {"\xfd"
         "7zXZ",
         "xz"},
        {"\x28\xb5\x2f\xfd", "zstd"},
        {"BZh", "bzip2"},
        {"PK\x03\x04", "zip"},
        {"PAR1", "Parquet"},
        {"ARROW1", "Arrow"},
    };
    char head[8] = {0};
    FILE *file = fopen(path, "re");
    if (!file)
        return sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: %s", path, strerror(errno));
    size_t got = fread(head, 1, sizeof(head), file);
    fclose(file);
    for (size_t i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
        if (got >= strlen(packed[i].magic) &&
            memcmp(head, packed[i].magic, strlen(packed[i].magic)) == 0)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: %s data, not text; unpack or convert it to text or .jsonl "
                                "first",
                                path, packed[i].name);
    return 0;
}

int tokenize_check_file(const char *path, uint64_t *bytes, struct sl_error *error)
{
    struct stat status;
    if (stat(path, &status))
        return sl_error_set(error, SL_DOMAIN_INPUT, -errno,
                            "%s: %s; give text, .jsonl or .bin files", path, strerror(errno));
    if (S_ISDIR(status.st_mode))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EISDIR,
                            "%s: a folder; name its files one by one", path);
    if (!S_ISREG(status.st_mode))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: a pipe or a device, but data is read more than once; write it to "
                            "a file first",
                            path);
    *bytes = (uint64_t)status.st_size;
    return tokenize_is_bin(path) ? 0 : refuse_packed(path, error);
}

/* Where a piece of text may end. A byte text may end anywhere but inside <|endoftext|>. */
static size_t text_cut(const struct sl_tokenizer *tokenizer, const char *text, size_t bytes)
{
    if (tokenizer->kind == TOKENIZER_BPE)
        return tokenizer_cut(tokenizer, text, bytes);
    size_t tail = bytes < 12 ? bytes : 12;
    const char *mark = memchr(text + bytes - tail, '<', tail);
    return mark ? (size_t)(mark - text) : bytes;
}

static int read_more(struct pipeline *pipeline, struct token_piece *piece, struct sl_error *error)
{
    while (piece->bytes < piece->capacity) {
        ssize_t got = pread(pipeline->fd, piece->text + piece->bytes,
                            piece->capacity - piece->bytes, (off_t)pipeline->offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s at byte %llu", pipeline->path,
                                strerror(errno), (unsigned long long)pipeline->offset);
        if (got == 0) {
            pipeline->end = true;
            return 0;
        }
        piece->bytes += (size_t)got;
        pipeline->offset += (uint64_t)got;
    }
    return 0;
}

static int reserve_piece(struct pipeline *pipeline, struct token_piece *piece, size_t capacity,
                         struct sl_error *error)
{
    if (capacity > PIECE_BYTES_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EFBIG, "%s: %s of more than %zu MiB",
                            pipeline->path,
                            pipeline->json ? "a record"
                                           : "a text that cannot be cut (this "
                                             "tokenizer's pattern), ",
                            PIECE_BYTES_MAX >> 20);
    if (capacity <= piece->capacity)
        return 0;
    char *grown = realloc(piece->text, capacity);
    if (!grown)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "%s: no memory for a piece of %zu "
                            "bytes",
                            pipeline->path, capacity);
    piece->text = grown;
    piece->capacity = capacity;
    return 0;
}

static int cut_piece(struct pipeline *pipeline, struct token_piece *piece, size_t *cut,
                     struct sl_error *error)
{
    if (!pipeline->json) {
        *cut = pipeline->end ? piece->bytes
                             : text_cut(pipeline->source->tokenizer, piece->text, piece->bytes);
        return 0;
    }
    int code = records_cut(piece->text, piece->bytes, cut, &piece->records);
    if (!code && pipeline->end && *cut < piece->bytes)
        code = -EINVAL;
    if (code)
        return sl_error_set(error, SL_DOMAIN_INPUT, code, "%s: record %llu is %s", pipeline->path,
                            (unsigned long long)(pipeline->position->records + piece->records + 1),
                            pipeline->end ? "no whole JSON object" : "no JSON object");
    return 0;
}

/* One piece more. False where the file is at its end and nothing is left. */
static int fill_piece(struct pipeline *pipeline, struct token_piece *piece, bool *filled,
                      struct sl_error *error)
{
    size_t cut = 0;
    piece->bytes = 0;
    piece->first = !pipeline->json && pipeline->offset == 0;
    piece->json = pipeline->json;
    piece->first_record = pipeline->position->records;
    piece->records = 0;
    int code = reserve_piece(pipeline, piece, pipeline->carry.bytes + PIECE_BYTES, error);
    if (code)
        return code;
    memcpy(piece->text, pipeline->carry.data ? pipeline->carry.data : "", pipeline->carry.bytes);
    piece->bytes = pipeline->carry.bytes;
    while (!code && cut == 0) {
        code = read_more(pipeline, piece, error);
        if (!code)
            code = cut_piece(pipeline, piece, &cut, error);
        if (code || pipeline->end)
            break;
        if (cut == 0)
            code = reserve_piece(pipeline, piece, piece->capacity * 2, error);
    }
    if (code)
        return code;
    pipeline->carry.bytes = 0;
    code = tokenizer_text_append(&pipeline->carry, piece->text + cut, piece->bytes - cut);
    piece->bytes = cut;
    pipeline->position->records += piece->records;
    *filled = cut > 0;
    return code ? sl_error_set(error, SL_DOMAIN_MEMORY, code, "%s: no memory", pipeline->path) : 0;
}

/* A document ends behind each end-of-text id. */
static int find_ends(const struct sl_tokenizer *tokenizer, struct token_piece *piece)
{
    for (size_t i = 0; i < piece->ids.count; i++) {
        if (!sl_tokenizer_is_eos(tokenizer, piece->ids.data[i]))
            continue;
        if (!tokenizer_ids_reserve(&piece->ends, 1))
            return -ENOMEM;
        piece->ends.data[piece->ends.count++] = (uint32_t)(i + 1);
    }
    return 0;
}

static void encode_piece(void *arg, size_t task_index, size_t worker_index)
{
    struct pipeline *pipeline = arg;
    struct token_piece *piece = &pipeline->pieces[task_index];
    struct sl_encoder *encoder = pipeline->encoders[worker_index];
    const struct sl_tokenizer *tokenizer = pipeline->source->tokenizer;
    piece->ids.count = piece->ends.count = 0;
    piece->samples = false;
    if (piece->json) {
        records_encode(pipeline->source, encoder, pipeline->path, piece);
        return;
    }
    size_t consumed;
    sl_encode_piece(encoder, piece->text, piece->bytes, piece->first, true, &piece->ids, &consumed,
                    &piece->error);
    if (!piece->error.code && find_ends(tokenizer, piece))
        sl_error_set(&piece->error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory");
    sl_error_prefix(&piece->error, "%s", pipeline->path);
}

static int hand_over(struct pipeline *pipeline, struct token_piece *piece, struct sl_error *error)
{
    struct token_sink *sink = pipeline->sink;
    size_t from = 0;
    for (size_t i = 0; i < piece->ends.count; i++) {
        size_t end = piece->ends.data[i];
        int code = sink->put(sink->user, piece->ids.data + from, end - from, error);
        if (!code)
            code = sink->end_document(sink->user, error);
        if (code)
            return code;
        from = end;
    }
    if (piece->ids.count)
        pipeline->position->closed = from == piece->ids.count;
    pipeline->source->samples |= piece->samples;
    pipeline->source->tokens += piece->ids.count;
    return sink->put(sink->user, piece->ids.data + from, piece->ids.count - from, error);
}

static int run_batch(struct pipeline *pipeline, struct sl_error *error)
{
    struct tokenize_source *source = pipeline->source;
    uint64_t before = pipeline->position->offset;
    if (source->workers)
        sl_workers_run(source->workers, pipeline->piece_count, encode_piece, pipeline);
    else
        for (size_t i = 0; i < pipeline->piece_count; i++)
            encode_piece(pipeline, i, 0);
    for (size_t i = 0; i < pipeline->piece_count; i++) {
        struct token_piece *piece = &pipeline->pieces[i];
        if (piece->error.code)
            return sl_error_set(error, piece->error.domain, piece->error.code, "%s",
                                piece->error.message);
        int code = hand_over(pipeline, piece, error);
        if (code)
            return code;
    }
    pipeline->position->offset = pipeline->offset - pipeline->carry.bytes;
    pipeline->position->bytes_done += pipeline->position->offset - before;
    if (source->progress && !source->progress(source->progress_user, pipeline->position->bytes_done,
                                              pipeline->bytes_total, source->tokens))
        return sl_error_set(error, SL_DOMAIN_INTERRUPT, -ECANCELED, "stopped on request");
    return 0;
}

static int close_file(struct pipeline *pipeline, struct sl_error *error)
{
    int32_t eos = sl_tokenizer_eos(pipeline->source->tokenizer);
    struct token_sink *sink = pipeline->sink;
    if (pipeline->json || pipeline->position->closed)
        return 0;
    uint32_t id = (uint32_t)eos;
    int code = eos >= 0 ? sink->put(sink->user, &id, 1, error) : 0;
    pipeline->source->tokens += eos >= 0;
    return code ? code : sink->end_document(sink->user, error);
}

static int run_file(struct pipeline *pipeline, struct sl_error *error)
{
    struct tokenize_position *position = pipeline->position;
    uint64_t before = pipeline->source->tokens;
    bool whole = position->offset == 0;
    pipeline->path = pipeline->source->files[position->file];
    pipeline->json = tokenize_is_json(pipeline->path);
    pipeline->end = false;
    pipeline->offset = position->offset;
    pipeline->carry.bytes = 0;
    pipeline->fd = open(pipeline->path, O_RDONLY | O_CLOEXEC);
    if (pipeline->fd < 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: %s", pipeline->path,
                            strerror(errno));
    int code = 0;
    bool filled = true;
    while (!code && filled) {
        pipeline->piece_count = 0;
        while (!code && filled && pipeline->piece_count < pipeline->piece_capacity) {
            code = fill_piece(pipeline, &pipeline->pieces[pipeline->piece_count], &filled, error);
            pipeline->piece_count += !code && filled;
            filled = filled && !(pipeline->end && pipeline->carry.bytes == 0);
        }
        if (!code && pipeline->piece_count)
            code = run_batch(pipeline, error);
        if (!code && filled && pipeline->sink->batch_done)
            code = pipeline->sink->batch_done(pipeline->sink->user, error);
    }
    close(pipeline->fd);
    if (!code && whole && pipeline->source->tokens == before)
        code = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: no text in it; leave it out or fill it", pipeline->path);
    return code ? code : close_file(pipeline, error);
}

static int prepare(struct pipeline *pipeline, struct sl_error *error)
{
    struct tokenize_source *source = pipeline->source;
    size_t workers = source->workers ? sl_workers_thread_count(source->workers) : 1;
    pipeline->encoder_count = source->workers ? sl_workers_index_count(source->workers) : 1;
    pipeline->piece_capacity = workers * PIECES_PER_WORKER;
    pipeline->encoders = calloc(pipeline->encoder_count, sizeof(*pipeline->encoders));
    pipeline->pieces = calloc(pipeline->piece_capacity, sizeof(*pipeline->pieces));
    if (!pipeline->encoders || !pipeline->pieces)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to tokenise");
    for (size_t i = 0; i < pipeline->encoder_count; i++) {
        int code = sl_encoder_create(&pipeline->encoders[i], source->tokenizer, error);
        if (code)
            return code;
    }
    for (size_t i = 0; i < source->file_count; i++) {
        uint64_t bytes;
        int code = tokenize_check_file(source->files[i], &bytes, error);
        if (code)
            return code;
        pipeline->bytes_total += bytes;
    }
    return 0;
}

static void clean_up(struct pipeline *pipeline)
{
    for (size_t i = 0; pipeline->pieces && i < pipeline->piece_capacity; i++) {
        struct token_piece *piece = &pipeline->pieces[i];
        free(piece->text);
        sl_ids_finish(&piece->ids);
        sl_ids_finish(&piece->ends);
        sl_chat_rendering_finish(&piece->render);
        sl_text_finish(&piece->marks);
    }
    for (size_t i = 0; pipeline->encoders && i < pipeline->encoder_count; i++)
        sl_encoder_destroy(pipeline->encoders[i]);
    sl_text_finish(&pipeline->carry);
    free(pipeline->pieces);
    free(pipeline->encoders);
}

int tokenize_run(struct tokenize_source *source, struct token_sink *sink,
                 struct tokenize_position *position, struct sl_error *error)
{
    struct pipeline pipeline = {.source = source, .sink = sink, .position = position};
    int code = prepare(&pipeline, error);
    while (!code && position->file < source->file_count) {
        code = run_file(&pipeline, error);
        if (code)
            break;
        position->file++;
        position->offset = position->records = 0;
        position->closed = false;
        if (sink->batch_done)
            code = sink->batch_done(sink->user, error);
    }
    if (!code && source->samples && source->chat_guessed)
        sl_log_write(source->log, SL_LOG_WARNING,
                     "no known marker in the model's chat template: conversations are written one "
                     "below the other (template plain); name one with data.template");
    clean_up(&pipeline);
    return code;
}
