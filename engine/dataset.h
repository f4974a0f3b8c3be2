// SPDX-License-Identifier: Apache-2.0
/* Training examples: files become token ids once, and ids become fixed-length sequences.
 *
 *     files --(reader, template, encoder)--> token store: ids | trained bits | document starts
 *     token store --(split, packing)--> N training and M held-out sequences of T + 1 ids
 *     (seed, epoch, index) --(a keyed permutation)--> which sequence comes next
 *
 * The place in the data is (epoch, index), 16 bytes. Nothing else is remembered, so a resumed run
 * sees exactly what the uninterrupted one would have seen. Documents never see each other: `first`
 * and `positions` restart at every document.
 */
#ifndef SLUICE_ENGINE_DATASET_H
#define SLUICE_ENGINE_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/tokenizer.h"

struct sl_dataset;
struct sl_workers;

/* Files by their suffix: .json .jsonl .ndjson hold records ({"text"}, OpenAI messages, ShareGPT,
 * Alpaca, {"prompt", "completion"}), .bin holds ids (llm.c, nanoGPT), all others are plain text.
 * Records that are conversations are examples: packed whole, trained on their answers. All else is
 * a stream that is cut every sequence_length tokens. */
struct sl_dataset_options {
    const char *const *files;
    size_t file_count;
    const struct sl_tokenizer *tokenizer; /* borrowed until close; .bin files may do without one */
    const char *cache_directory; /* token store kept here between runs, made if needed; NULL: in
                                    memory, unless the input is a .bin file: mapped as it is */
    uint32_t sequence_length;    /* T */
    double
        validation_fraction; /* of sequences or examples, in [0, 0.5]; > 0 holds out one or more */
    uint64_t seed;
    bool in_order; /* no shuffling */

    const char
        *chat_template;   /* "chatml", "llama3", ... (engine/chat.h); NULL: by the tokenizer's */
    bool train_on_prompt; /* conversations: all tokens are trained, not answers alone */
    bool allow_special;   /* special tokens that a message spells are ids, not text */
    bool no_packing;      /* conversations: one to a sequence */
    struct sl_workers *workers; /* threads for tokenising, borrowed during open; NULL: the caller */
    const struct sl_log *log;   /* borrowed until close; NULL allowed */

    /* Called now and then while tokenising; false stops with -ECANCELED. NULL allowed. */
    bool (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total, uint64_t tokens);
    void *progress_user;
};

/* Where a run stands in its data. Stored as two little-endian u64, epoch then index. */
struct sl_dataset_state {
    uint64_t epoch;
    uint64_t index; /* sequences of this epoch already given */
};

/* What one call hands out. All arrays: [batch, T] i32, owned by the caller.
 *   ids        input tokens; slots behind the last document hold 0
 *   targets    the next token, -1 where it is not trained on
 *   positions  from 0 in each document
 *   first      in-sequence index of the first token of the same document (attention mask) */
struct sl_dataset_batch {
    int32_t *ids, *targets, *positions, *first;
    uint64_t trained_tokens; /* out: targets that are not -1 */
};

/* Read, tokenise, split and pack.
 *
 * Memory   sl_dataset_memory_bytes() afterwards; during tokenisation one piece of a file more
 * Threads  the dataset is read-only afterwards: any number of threads may call next with their own
 *          state
 * Owner    the caller owns *out until sl_dataset_close
 * Errors   -ENOENT, -EACCES, -EIO (files, by name), -EINVAL (empty data; fewer tokens than one
 *          sequence; nothing to train on), -ENOMEM
 */
int sl_dataset_open(struct sl_dataset **out, const struct sl_dataset_options *options,
                    struct sl_error *error);
void sl_dataset_close(struct sl_dataset *dataset); /* NULL allowed */

/* Fill `batch_count` sequences and move `state` past them; the epoch turns where it ends. Allocates
 * nothing and cannot fail: everything was checked when the dataset was opened. */
void sl_dataset_next(const struct sl_dataset *dataset, struct sl_dataset_state *state,
                     size_t batch_count, struct sl_dataset_batch *batch);

/* Fill held-out sequences [index, index + batch_count). Returns how many there were; the rows
 * behind them are filled with ignored targets, so that a batch may always be run whole. */
size_t sl_dataset_eval(const struct sl_dataset *dataset, uint64_t index, size_t batch_count,
                       struct sl_dataset_batch *batch);

uint64_t sl_dataset_sequences(const struct sl_dataset *dataset);      /* of an epoch */
uint64_t sl_dataset_eval_sequences(const struct sl_dataset *dataset); /* held out */
uint64_t sl_dataset_tokens(const struct sl_dataset *dataset);         /* in the store */
uint32_t sl_dataset_sequence_length(const struct sl_dataset *dataset);

/* One more than the largest id, for the check against the model's vocabulary. */
uint32_t sl_dataset_id_limit(const struct sl_dataset *dataset);

/* A hash of ids, split and packing: recorded with a run, compared at a resume. */
uint64_t sl_dataset_fingerprint(const struct sl_dataset *dataset);

/* Heap and anonymous memory held while open. Mapped files are page cache and not counted. */
uint64_t sl_dataset_memory_bytes(const struct sl_dataset *dataset);

/* True where the data are examples (conversations), false where they are a stream. */
bool sl_dataset_has_examples(const struct sl_dataset *dataset);

/* Append the training sequence that is `index`th in epoch 0, for people to read: a line for each
 * stretch of tokens that is trained or is context, documents told apart, cut after about
 * `bytes_max` bytes. Errors: -ENOMEM. */
int sl_dataset_show(const struct sl_dataset *dataset, const struct sl_tokenizer *tokenizer,
                    uint64_t index, size_t bytes_max, struct sl_text *text);

/* Length of an epoch's position as stored in a checkpoint. */
#define SL_DATASET_STATE_BYTES 16
void sl_dataset_state_store(const struct sl_dataset_state *state,
                            uint8_t bytes[SL_DATASET_STATE_BYTES]);
void sl_dataset_state_load(struct sl_dataset_state *state,
                           const uint8_t bytes[SL_DATASET_STATE_BYTES]);

#endif
