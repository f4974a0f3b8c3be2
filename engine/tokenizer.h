// SPDX-License-Identifier: Apache-2.0
/* Text to token ids and back.
 *
 * A tokenizer is read-only once open and shared by all threads. What changes while text is encoded
 * (scratch, word cache) lies in an encoder, one per thread; what changes while ids are decoded lies
 * in a decoder, a plain struct.
 *
 *     text --(added tokens, normalizer, pre-tokenizer, BPE: an encoder)--> ids
 *     ids  --(a decoder, which holds back the bytes of an unfinished character)--> text
 *
 * Ids are those of the `tokenizers` library on the same tokenizer.json. Bytes that are not UTF-8
 * count as U+FFFD, one for each maximal part, as Python's decode(errors="replace") has it; the byte
 * tokenizer alone keeps every byte.
 */
#ifndef SLUICE_ENGINE_TOKENIZER_H
#define SLUICE_ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sl_tokenizer;
struct sl_encoder;

/* Growing arrays that their user owns: start from zero, end with the finish function. */
struct sl_ids {
    uint32_t *data;
    size_t count, capacity;
};
struct sl_text {
    char *data; /* never NUL-terminated by the decoder's own doing: use `bytes` */
    size_t bytes, capacity;
};
void sl_ids_finish(struct sl_ids *ids);
void sl_text_finish(struct sl_text *text);

/* Open DIR/tokenizer.json (with tokenizer_config.json and generation_config.json where they are),
 * or a path that names the JSON file itself. NULL gives the byte tokenizer: id = byte, and 256 =
 * <|endoftext|>.
 *
 * Owner    the caller owns *out until sl_tokenizer_close; NULL on error
 * Threads  a tokenizer may be used from any number of threads
 * Errors   -ENOENT, -EINVAL (names file and part; unsupported parts by their type), -ENOMEM
 */
int sl_tokenizer_open(struct sl_tokenizer **out, const char *directory, struct sl_error *error);
void sl_tokenizer_close(struct sl_tokenizer *tokenizer); /* NULL allowed */

/* Write what `tokenizers` and `transformers` load: DIR/tokenizer.json and tokenizer_config.json.
 * A tokenizer that came from files is copied as it was read, but for a chat template that was set.
 * Errors: -errno of the file. */
int sl_tokenizer_save(const struct sl_tokenizer *tokenizer, const char *directory,
                      struct sl_error *error);

/* One more than the largest id. A model's vocabulary may be larger (padding), never smaller. */
uint32_t sl_tokenizer_vocabulary(const struct sl_tokenizer *tokenizer);

/* -1 where there is none. Ends of text: there may be several (generation_config.json). */
int32_t sl_tokenizer_bos(const struct sl_tokenizer *tokenizer);
int32_t sl_tokenizer_eos(const struct sl_tokenizer *tokenizer);
bool sl_tokenizer_is_eos(const struct sl_tokenizer *tokenizer, uint32_t id);

/* The id of an entry by its text in tokenizer.json, added tokens included; -1 where absent. */
int32_t sl_tokenizer_id(const struct sl_tokenizer *tokenizer, const char *text);

/* The bytes that an id stands for: a view into the tokenizer; *bytes = 0 for unknown ids. */
const char *sl_tokenizer_piece(const struct sl_tokenizer *tokenizer, uint32_t id, size_t *bytes);

/* True for added tokens that are marked special (left out of decoded text on request). */
bool sl_tokenizer_is_special(const struct sl_tokenizer *tokenizer, uint32_t id);

/* The chat template of its folder as Jinja text, or NULL (engine/chat.h chooses by it). */
const char *sl_tokenizer_chat_template(const struct sl_tokenizer *tokenizer);

/* Let sl_tokenizer_save write `jinja` in place of that text. Errors: -ENOMEM. */
int sl_tokenizer_set_chat_template(struct sl_tokenizer *tokenizer, const char *jinja,
                                   struct sl_error *error);

/* A hash of everything that decides ids: equal hashes give equal ids. */
uint64_t sl_tokenizer_fingerprint(const struct sl_tokenizer *tokenizer);

/* Heap held by the tokenizer and by one encoder (word cache included), for the memory plan. */
uint64_t sl_tokenizer_memory_bytes(const struct sl_tokenizer *tokenizer);
uint64_t sl_encoder_memory_bytes(const struct sl_tokenizer *tokenizer);

int sl_encoder_create(struct sl_encoder **out, const struct sl_tokenizer *tokenizer,
                      struct sl_error *error);
void sl_encoder_destroy(struct sl_encoder *encoder); /* NULL allowed */

enum sl_encode_flags {
    SL_ENCODE_DEFAULT = 0,
    SL_ENCODE_TEMPLATE = 1,   /* add what the post-processor adds (a leading BOS) */
    SL_ENCODE_PLAIN = 2,      /* special tokens in the text are text, not ids */
    SL_ENCODE_INSIDE = 4,     /* the text begins behind a special token, not at the very start */
    SL_ENCODE_NO_ADDED = 8,   /* all added tokens in the text are text */
    SL_ENCODE_CONTINUED = 16, /* the text continues a text: nothing is put in front of it */
};

/* Append the ids of a whole text to `ids`.
 *
 * Memory   text: [bytes], borrowed until return; no NUL needed, NUL bytes are text
 * Threads  one thread per encoder
 * Errors   -ENOMEM, -EINVAL (no id for a piece and no unknown token), -EOVERFLOW; ids keeps what
 *          it held before
 */
int sl_encode(struct sl_encoder *encoder, const char *text, size_t bytes, unsigned flags,
              struct sl_ids *ids, struct sl_error *error);

/* Append the ids of a prefix of a text that continues: *consumed bytes are done, the caller passes
 * the rest again with more behind it. Concatenated, the ids are those of sl_encode on the whole.
 * `first`: the text starts here; `last`: it ends here (then everything is consumed). *consumed may
 * be 0: the caller then needs a larger piece. */
int sl_encode_piece(struct sl_encoder *encoder, const char *text, size_t bytes, bool first,
                    bool last, struct sl_ids *ids, size_t *consumed, struct sl_error *error);

/* Decoding as a stream. Only whole characters come out; sl_decoder_end gives what was held back. */
struct sl_decoder {
    const struct sl_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    bool started;
    bool byte_run; /* pending came from <0xNN> tokens */
    uint8_t pending[4];
    uint8_t pending_bytes;
};
void sl_decoder_begin(struct sl_decoder *decoder, const struct sl_tokenizer *tokenizer,
                      bool skip_special);

/* Append the text that `id` completes. Unknown ids append nothing. Errors: -ENOMEM. */
int sl_decoder_push(struct sl_decoder *decoder, uint32_t id, struct sl_text *text);
int sl_decoder_end(struct sl_decoder *decoder, struct sl_text *text);

/* begin, push all, end. */
int sl_decode(const struct sl_tokenizer *tokenizer, const uint32_t *ids, size_t count,
              bool skip_special, struct sl_text *text);

#endif
