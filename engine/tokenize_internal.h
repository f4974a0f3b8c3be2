// SPDX-License-Identifier: Apache-2.0
/* The pipeline from files to ids, shared by `sluice tokenize` and by datasets that read text. */
#ifndef SLUICE_ENGINE_TOKENIZE_INTERNAL_H
#define SLUICE_ENGINE_TOKENIZE_INTERNAL_H

#include "base/log.h"
#include "engine/chat.h"
#include "engine/tokenizer_internal.h"
#include "offload/workers.h"

/* Where ids go, in the order of the files. Ids carry STORE_UNTRAINED where they are not trained. */
struct token_sink {
    void *user;
    int (*put)(void *user, const uint32_t *ids, size_t count, struct sl_error *error);
    int (*end_document)(void *user, struct sl_error *error);
    /* After each batch, with what has been read up to `position`; NULL allowed. */
    int (*batch_done)(void *user, struct sl_error *error);
};

struct tokenize_position {
    uint64_t file, offset, records;
    uint64_t bytes_done; /* over all files */
    bool closed;         /* the last id was an end of text */
};

struct tokenize_source {
    const char *const *files;
    size_t file_count;
    const struct sl_tokenizer *tokenizer;
    struct sl_chat chat;
    bool chat_guessed;  /* no marker fitted and no template was named */
    bool allow_special; /* special tokens that a message spells are ids */
    bool train_on_prompt;
    bool text_only;             /* conversations are refused: the output has no marks */
    struct sl_workers *workers; /* NULL: the calling thread alone */
    const struct sl_log *log;
    bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total, uint64_t tokens);
    void *progress_user;
    uint64_t tokens; /* out */
    bool samples;    /* out: a conversation was among the records */
};

/* One piece of input with what comes of it. */
struct token_piece {
    char *text;
    size_t bytes, capacity;
    uint64_t first_record;
    uint64_t records;
    bool json, first, samples;
    struct sl_ids ids;
    struct sl_ids ends;              /* index in ids behind each document's last id */
    struct sl_chat_rendering render; /* scratch */
    struct sl_text marks;
    struct sl_error error;
};

bool tokenize_is_json(const char *path); /* .json, .jsonl, .ndjson */
bool tokenize_is_bin(const char *path);

/* Refuse what is no regular file, before an open could wait for a pipe's writer; its size. */
int tokenize_check_file(const char *path, uint64_t *bytes, struct sl_error *error);

/* Read, encode and hand over from `position` to the end. Errors name file, record and key. */
int tokenize_run(struct tokenize_source *source, struct token_sink *sink,
                 struct tokenize_position *position, struct sl_error *error);

/* Encode all records of a piece. */
int records_encode(const struct tokenize_source *source, struct sl_encoder *encoder,
                   const char *path, struct token_piece *piece);

/* Length of the longest prefix that ends behind a whole top-level object; *records counts them.
 * -EINVAL where something other than objects, commas and brackets stands between them. */
int records_cut(const char *text, size_t bytes, size_t *cut, uint64_t *records);

#endif
