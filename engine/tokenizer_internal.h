// SPDX-License-Identifier: Apache-2.0
/* What the tokenizer's own files share; nobody else includes it. */
#ifndef SLUICE_ENGINE_TOKENIZER_INTERNAL_H
#define SLUICE_ENGINE_TOKENIZER_INTERNAL_H

#include "engine/tokenizer.h"

#define TOKENIZER_EOS_MAX 16
#define BYTES_END_OF_TEXT 256u

enum piece_flags {
    PIECE_KNOWN = 1,
    PIECE_ADDED = 2,
    PIECE_SPECIAL = 4,
    PIECE_BYTE = 8, /* <0xNN>: decodes as one byte of a run */
};

/* What an id decodes to: pool[offset, offset + bytes). */
struct piece {
    uint32_t offset, bytes;
    uint8_t flags;
};

enum tokenizer_kind { TOKENIZER_BYTES, TOKENIZER_BPE };

struct sl_tokenizer {
    enum tokenizer_kind kind;
    struct piece *pieces; /* [vocabulary] */
    uint32_t vocabulary;
    char *pool;
    size_t pool_bytes;
    int32_t bos;
    int32_t eos[TOKENIZER_EOS_MAX];
    size_t eos_count;
    uint64_t fingerprint;
};

struct sl_encoder {
    const struct sl_tokenizer *tokenizer;
};

/* Room for `more` further elements; false where memory or the size type ends. */
bool tokenizer_ids_reserve(struct sl_ids *ids, size_t more);
bool tokenizer_text_reserve(struct sl_text *text, size_t more);

int tokenizer_open_bytes(struct sl_tokenizer *tokenizer, struct sl_error *error);
int tokenizer_save_bytes(const struct sl_tokenizer *tokenizer, const char *directory,
                         struct sl_error *error);
int tokenizer_encode_bytes(const char *text, size_t bytes, unsigned flags, bool last,
                           struct sl_ids *ids, size_t *consumed);

#endif
