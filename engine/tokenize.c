// SPDX-License-Identifier: Apache-2.0
/* `sluice tokenize`: the pipeline with a .bin at its end, and a way to go on after a stop.
 *
 *     OUT.partial   header | ids so far
 *     OUT.state     key, file, offset in it, records, ids that OUT.partial then held
 *
 * The order of work does not depend on threads, so the state is one line: where the next batch
 * begins, and how many ids came before. It is written after the ids it counts are synced, under
 * another name and renamed; on a restart whatever lies beyond its count is cut off. The key is a
 * hash of the inputs and all choices: with other inputs the state does not count.
 */
#include "engine/tokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/tokenize_internal.h"

#define HEADER_BYTES 1024u
#define BUFFER_BYTES (1u << 20)
#define SYNC_BYTES ((uint64_t)64 << 20)

struct bin_writer {
    const struct sl_tokenize_options *options;
    int fd;
    uint32_t id_bytes;
    uint64_t header_bytes, count, synced_count, key;
    uint8_t *buffer;
    size_t used;
    uint64_t offset; /* in the file, of the buffer's first byte */
    struct tokenize_position *position;
    char *partial, *state, *state_next;
};

static int write_all(struct bin_writer *writer, const void *data, size_t bytes, uint64_t offset,
                     struct sl_error *error)
{
    const uint8_t *at = data;
    while (bytes) {
        ssize_t done = pwrite(writer->fd, at, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return sl_error_set(error, SL_DOMAIN_IO, done < 0 ? -errno : -EIO,
                                "%s: %s after %" PRIu64 " ids; free space and run it again, it "
                                "goes on from here",
                                writer->partial, done < 0 ? strerror(errno) : "short write",
                                writer->synced_count);
        at += done;
        offset += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return 0;
}

static int flush_ids(struct bin_writer *writer, struct sl_error *error)
{
    int code = write_all(writer, writer->buffer, writer->used, writer->offset, error);
    if (code)
        return code;
    writer->offset += writer->used;
    writer->used = 0;
    return 0;
}

static int put_ids(void *user, const uint32_t *ids, size_t count, struct sl_error *error)
{
    struct bin_writer *writer = user;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = ids[i];
        uint16_t narrow = (uint16_t)id;
        if (writer->used + 4 > BUFFER_BYTES) {
            int code = flush_ids(writer, error);
            if (code)
                return code;
        }
        memcpy(writer->buffer + writer->used, writer->id_bytes == 2 ? (void *)&narrow : &id,
               writer->id_bytes);
        writer->used += writer->id_bytes;
    }
    writer->count += count;
    if (writer->options->format == SL_BIN_LLMC && writer->count > INT32_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EFBIG,
                            "%s: over %d ids, more than an llm.c header can count; write several "
                            "files, or --format nanogpt",
                            writer->partial, INT32_MAX);
    return 0;
}

static int end_document(void *user, struct sl_error *error)
{
    (void)user;
    (void)error;
    return 0;
}

static int save_state(struct bin_writer *writer, struct sl_error *error)
{
    if (fsync(writer->fd))
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", writer->partial,
                            strerror(errno));
    FILE *file = fopen(writer->state_next, "we");
    bool good = file != NULL;
    const struct tokenize_position *position = writer->position;
    if (good)
        good = fprintf(file,
                       "sluice-tokenize 1 %016" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64
                       " %" PRIu64 " %d %" PRIu64 "\n",
                       writer->key, position->file, position->offset, position->records,
                       position->bytes_done, position->closed, writer->count) > 0;
    if (file && fflush(file) == 0 && fsync(fileno(file)))
        good = false;
    if (file && fclose(file))
        good = false;
    if (!good || rename(writer->state_next, writer->state))
        return sl_error_set(error, SL_DOMAIN_IO, errno ? -errno : -EIO, "%s: %s", writer->state,
                            strerror(errno));
    writer->synced_count = writer->count;
    return 0;
}

static int batch_done(void *user, struct sl_error *error)
{
    struct bin_writer *writer = user;
    uint64_t interval = writer->options->sync_bytes ? writer->options->sync_bytes : SYNC_BYTES;
    if ((writer->count - writer->synced_count) * writer->id_bytes < interval)
        return 0;
    int code = flush_ids(writer, error);
    return code ? code : save_state(writer, error);
}

/* True where a state of the same inputs is there and the ids it counts are, too. */
static bool load_state(struct bin_writer *writer)
{
    FILE *file = fopen(writer->state, "re");
    if (!file)
        return false;
    struct tokenize_position *position = writer->position;
    uint64_t key = 0, count = 0;
    int closed = 0;
    int got = fscanf(file,
                     "sluice-tokenize 1 %" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                     " %d %" SCNu64,
                     &key, &position->file, &position->offset, &position->records,
                     &position->bytes_done, &closed, &count);
    fclose(file);
    struct stat status;
    uint64_t wanted = writer->header_bytes + count * writer->id_bytes;
    bool good = got == 7 && key == writer->key && count < UINT64_MAX / 8 &&
                position->file <= writer->options->file_count &&
                stat(writer->partial, &status) == 0 && (uint64_t)status.st_size >= wanted;
    if (!good) {
        *position = (struct tokenize_position){0};
        return false;
    }
    position->closed = closed;
    writer->count = writer->synced_count = count;
    writer->offset = wanted;
    return true;
}

static int make_key(struct bin_writer *writer, const struct tokenize_source *source,
                    struct sl_error *error)
{
    const struct sl_tokenize_options *options = writer->options;
    uint64_t choices[] = {sl_tokenizer_fingerprint(options->tokenizer), options->format,
                          options->train_on_prompt, options->file_count};
    uint64_t hash = XXH3_64bits(choices, sizeof(choices));
    hash = XXH3_64bits_withSeed(&source->chat, sizeof(source->chat), hash);
    for (size_t i = 0; i < options->file_count; i++) {
        struct stat status;
        if (stat(options->files[i], &status))
            return sl_error_set(error, SL_DOMAIN_INPUT, errno ? -errno : -EIO, "%s: %s",
                                options->files[i], strerror(errno));
        uint64_t facts[] = {(uint64_t)status.st_size, (uint64_t)status.st_mtim.tv_sec,
                            (uint64_t)status.st_mtim.tv_nsec, (uint64_t)status.st_ino};
        hash = XXH3_64bits_withSeed(facts, sizeof(facts), hash);
    }
    writer->key = hash;
    return 0;
}

static int open_output(struct bin_writer *writer, struct sl_error *error)
{
    const struct sl_tokenize_options *options = writer->options;
    uint32_t vocabulary = sl_tokenizer_vocabulary(options->tokenizer);
    writer->id_bytes = vocabulary <= 65536 ? 2 : 4;
    writer->header_bytes = options->format == SL_BIN_LLMC ? HEADER_BYTES : 0;
    writer->offset = writer->header_bytes;
    if (options->format == SL_BIN_NANOGPT && writer->id_bytes != 2)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: nanoGPT files hold 16-bit ids, the vocabulary has %u; use the "
                            "llm.c format",
                            options->output, vocabulary);
    writer->buffer = malloc(BUFFER_BYTES);
    if (!writer->buffer || asprintf(&writer->partial, "%s.partial", options->output) < 0 ||
        asprintf(&writer->state, "%s.state", options->output) < 0 ||
        asprintf(&writer->state_next, "%s.state.next", options->output) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to tokenise");
    bool resumed = !options->fresh && load_state(writer);
    writer->fd =
        open(writer->partial, O_RDWR | O_CREAT | O_CLOEXEC | (resumed ? 0 : O_TRUNC), 0644);
    if (writer->fd < 0 || (resumed && ftruncate(writer->fd, (off_t)writer->offset)))
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", writer->partial,
                            strerror(errno));
    int32_t eos = sl_tokenizer_eos(options->tokenizer);
    if (eos < 0)
        sl_log_write(options->log, SL_LOG_WARNING,
                     "the tokenizer names no end-of-text token (tokenizer_config.json, "
                     "generation_config.json or config.json beside it do): nothing stands between "
                     "documents");
    if (!resumed && options->format == SL_BIN_LLMC && eos >= 0) {
        uint32_t id = (uint32_t)eos; /* llm.c begins documents with it */
        return put_ids(writer, &id, 1, error);
    }
    return 0;
}

static int finish(struct bin_writer *writer, struct sl_error *error)
{
    int code = flush_ids(writer, error);
    if (!code && writer->header_bytes) {
        uint32_t header[HEADER_BYTES / 4] = {writer->id_bytes == 2 ? 20240520u : 20240801u,
                                             writer->id_bytes == 2 ? 1 : 7,
                                             (uint32_t)writer->count};
        code = write_all(writer, header, sizeof(header), 0, error);
    }
    if (code)
        return code;
    if (fsync(writer->fd) || rename(writer->partial, writer->options->output))
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", writer->options->output,
                            strerror(errno));
    unlink(writer->state);
    return 0;
}

static void writer_close(struct bin_writer *writer)
{
    if (writer->fd >= 0)
        close(writer->fd);
    free(writer->buffer);
    free(writer->partial);
    free(writer->state);
    free(writer->state_next);
}

int sl_tokenize(const struct sl_tokenize_options *options, struct sl_tokenize_result *result,
                struct sl_error *error)
{
    *result = (struct sl_tokenize_result){0};
    struct tokenize_position position = {0};
    struct bin_writer writer = {.options = options, .fd = -1, .position = &position};
    struct tokenize_source source = {.files = options->files,
                                     .file_count = options->file_count,
                                     .tokenizer = options->tokenizer,
                                     .train_on_prompt = options->train_on_prompt,
                                     .text_only = !options->train_on_prompt,
                                     .workers = options->workers,
                                     .log = options->log,
                                     .progress = options->progress,
                                     .progress_user = options->progress_user};
    struct token_sink sink = {&writer, put_ids, end_document, batch_done};
    int code = sl_chat_choose(&source.chat, source.tokenizer, options->chat_template,
                              &source.chat_guessed, error);
    if (!code)
        code = make_key(&writer, &source, error);
    if (!code)
        code = open_output(&writer, error);
    if (!code) {
        result->tokens_resumed = writer.synced_count;
        result->bytes_resumed = position.bytes_done;
        source.tokens = writer.count;
        code = tokenize_run(&source, &sink, &position, error);
    }
    if (code == -ECANCELED) { /* keep what is done, whole batches only */
        struct sl_error ignored = {0};
        if (flush_ids(&writer, &ignored) == 0)
            save_state(&writer, &ignored);
    }
    if (!code)
        code = finish(&writer, error);
    /* Without a state nothing can go on from what was written. */
    if (code && writer.fd >= 0 && access(writer.state, F_OK) != 0)
        unlink(writer.partial);
    result->tokens = writer.count;
    result->bytes_read = position.bytes_done;
    result->bytes_written = writer.header_bytes + writer.count * writer.id_bytes;
    writer_close(&writer);
    return code;
}

uint64_t sl_tokenize_memory_bytes(const struct sl_tokenize_options *options)
{
    size_t workers = options->workers ? sl_workers_thread_count(options->workers) : 1;
    size_t encoders = options->workers ? sl_workers_index_count(options->workers) : 1;
    uint64_t piece = 6u << 20; /* its text, at most an id a byte, and room to grow */
    return BUFFER_BYTES + encoders * sl_encoder_memory_bytes(options->tokenizer) +
           2 * workers * piece;
}
