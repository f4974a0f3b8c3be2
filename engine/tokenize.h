// SPDX-License-Identifier: Apache-2.0
/* Text and JSON files to a .bin of ids: what `sluice tokenize` does. */
#ifndef SLUICE_ENGINE_TOKENIZE_H
#define SLUICE_ENGINE_TOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/tokenizer.h"

struct sl_workers;

enum sl_bin_format {
    SL_BIN_LLMC,    /* header of 256 i32; u16 ids, or u32 where the vocabulary passes 65,536 */
    SL_BIN_NANOGPT, /* u16 ids and nothing else */
};

struct sl_tokenize_options {
    const char *const *files; /* plain text, or JSON by its suffix: {"text"} records */
    size_t file_count;
    const struct sl_tokenizer *tokenizer;
    const char *output;
    enum sl_bin_format format;
    const char *chat_template;  /* as in struct sl_dataset_options */
    bool train_on_prompt;       /* allow conversations, whose mask a .bin cannot hold */
    bool fresh;                 /* ignore what an earlier run left */
    uint64_t sync_bytes;        /* of ids between two states on the disk; 0: 64 MiB */
    struct sl_workers *workers; /* NULL: the calling thread alone */
    const struct sl_log *log;
    /* After each batch; false stops: the next call with the same options goes on from there. */
    bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total, uint64_t tokens);
    void *progress_user;
};

struct sl_tokenize_result {
    uint64_t tokens, bytes_read, bytes_written;
    uint64_t tokens_resumed, bytes_resumed; /* of an earlier run; known before the first progress */
};

/* Write `output`: OUTPUT.partial and OUTPUT.state until it is whole, then renamed.
 *
 * Memory     sl_tokenize_memory_bytes(), whatever the size of the files
 * Durability synced before the rename; the state is synced every sync_bytes: a killed run goes on
 *            from there
 * Errors     -ECANCELED (stopped by progress; can be resumed), -EINVAL, -EFBIG (the format's
 * limit), -errno of files. The state is kept on errors of the moment (disk full), too */
int sl_tokenize(const struct sl_tokenize_options *options, struct sl_tokenize_result *result,
                struct sl_error *error);

uint64_t sl_tokenize_memory_bytes(const struct sl_tokenize_options *options);

#endif
