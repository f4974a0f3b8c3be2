// SPDX-License-Identifier: Apache-2.0
/* The tokenizer's front: opening, what is asked of an open one, and decoding.
 *
 * Every kind decodes the same way. Opening turns each id into the bytes it stands for (the
 * byte-level alphabet undone, the SentencePiece mark turned into a space), so that decoding is
 * appending bytes. What remains is that one character may be spread over several ids: the decoder
 * holds back the bytes of an unfinished character, at most three, and lets them go as soon as it is
 * finished or cannot be any more. Rejected: decoding all ids again after each one, as generation
 * loops often do, which is quadratic and still wrong inside a character.
 */
#include "engine/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

static bool grow(void **data, size_t *capacity, size_t count, size_t more, size_t element_bytes)
{
    size_t wanted;
    if (__builtin_add_overflow(count, more, &wanted) || wanted > SIZE_MAX / 2 / element_bytes)
        return false;
    if (wanted <= *capacity)
        return true;
    size_t next = *capacity + *capacity / 2;
    if (next < wanted)
        next = wanted < 64 ? 64 : wanted;
    void *moved = realloc(*data, next * element_bytes);
    if (!moved)
        return false;
    *data = moved;
    *capacity = next;
    return true;
}

bool tokenizer_ids_reserve(struct sl_ids *ids, size_t more)
{
    void *data = ids->data;
    bool ok = grow(&data, &ids->capacity, ids->count, more, sizeof(*ids->data));
    ids->data = data;
    return ok;
}

bool tokenizer_text_reserve(struct sl_text *text, size_t more)
{
    void *data = text->data;
    bool ok = grow(&data, &text->capacity, text->bytes, more, 1);
    text->data = data;
    return ok;
}

void sl_ids_finish(struct sl_ids *ids)
{
    free(ids->data);
    *ids = (struct sl_ids){0};
}

void sl_text_finish(struct sl_text *text)
{
    free(text->data);
    *text = (struct sl_text){0};
}

int sl_tokenizer_open(struct sl_tokenizer **out, const char *directory, struct sl_error *error)
{
    *out = NULL;
    if (directory)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOTSUP,
                            "tokenizer \"%s\": only the byte tokenizer is built in", directory);
    struct sl_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (!tokenizer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a tokenizer");
    tokenizer->bos = -1;
    int code = tokenizer_open_bytes(tokenizer, error);
    if (code) {
        sl_tokenizer_close(tokenizer);
        return code;
    }
    *out = tokenizer;
    return 0;
}

void sl_tokenizer_close(struct sl_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    free(tokenizer->pieces);
    free(tokenizer->pool);
    free(tokenizer);
}

int sl_tokenizer_save(const struct sl_tokenizer *tokenizer, const char *directory,
                      struct sl_error *error)
{
    return tokenizer_save_bytes(tokenizer, directory, error);
}

uint32_t sl_tokenizer_vocabulary(const struct sl_tokenizer *tokenizer)
{
    return tokenizer->vocabulary;
}

int32_t sl_tokenizer_bos(const struct sl_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t sl_tokenizer_eos(const struct sl_tokenizer *tokenizer)
{
    return tokenizer->eos_count ? tokenizer->eos[0] : -1;
}

bool sl_tokenizer_is_eos(const struct sl_tokenizer *tokenizer, uint32_t id)
{
    for (size_t i = 0; i < tokenizer->eos_count; i++)
        if ((uint32_t)tokenizer->eos[i] == id)
            return true;
    return false;
}

int32_t sl_tokenizer_id(const struct sl_tokenizer *tokenizer, const char *text)
{
    size_t bytes = strlen(text);
    for (uint32_t id = 0; id < tokenizer->vocabulary; id++) {
        const struct piece *piece = &tokenizer->pieces[id];
        if ((piece->flags & PIECE_KNOWN) && piece->bytes == bytes &&
            memcmp(tokenizer->pool + piece->offset, text, bytes) == 0)
            return (int32_t)id;
    }
    return -1;
}

const char *sl_tokenizer_piece(const struct sl_tokenizer *tokenizer, uint32_t id, size_t *bytes)
{
    *bytes = 0;
    if (id >= tokenizer->vocabulary)
        return "";
    *bytes = tokenizer->pieces[id].bytes;
    return tokenizer->pool + tokenizer->pieces[id].offset;
}

bool sl_tokenizer_is_special(const struct sl_tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocabulary && (tokenizer->pieces[id].flags & PIECE_SPECIAL);
}

uint64_t sl_tokenizer_fingerprint(const struct sl_tokenizer *tokenizer)
{
    return tokenizer->fingerprint;
}

uint64_t sl_tokenizer_memory_bytes(const struct sl_tokenizer *tokenizer)
{
    return sizeof(*tokenizer) + tokenizer->vocabulary * sizeof(*tokenizer->pieces) +
           tokenizer->pool_bytes;
}

uint64_t sl_encoder_memory_bytes(const struct sl_tokenizer *tokenizer)
{
    (void)tokenizer;
    return sizeof(struct sl_encoder);
}

int sl_encoder_create(struct sl_encoder **out, const struct sl_tokenizer *tokenizer,
                      struct sl_error *error)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for an encoder");
    (*out)->tokenizer = tokenizer;
    return 0;
}

void sl_encoder_destroy(struct sl_encoder *encoder)
{
    free(encoder);
}

int sl_encode(struct sl_encoder *encoder, const char *text, size_t bytes, unsigned flags,
              struct sl_ids *ids, struct sl_error *error)
{
    (void)encoder;
    size_t consumed, before = ids->count;
    int code = tokenizer_encode_bytes(text, bytes, flags, true, ids, &consumed);
    if (code) {
        ids->count = before;
        return sl_error_set(error, SL_DOMAIN_MEMORY, code, "no memory for the ids of %zu bytes",
                            bytes);
    }
    return 0;
}

int sl_encode_piece(struct sl_encoder *encoder, const char *text, size_t bytes, bool first,
                    bool last, struct sl_ids *ids, size_t *consumed, struct sl_error *error)
{
    (void)encoder;
    (void)first;
    size_t before = ids->count;
    int code = tokenizer_encode_bytes(text, bytes, SL_ENCODE_DEFAULT, last, ids, consumed);
    if (code) {
        ids->count = before;
        return sl_error_set(error, SL_DOMAIN_MEMORY, code, "no memory for the ids of %zu bytes",
                            bytes);
    }
    return 0;
}

void sl_decoder_begin(struct sl_decoder *decoder, const struct sl_tokenizer *tokenizer,
                      bool skip_special)
{
    *decoder = (struct sl_decoder){.tokenizer = tokenizer, .skip_special = skip_special};
}

static int append(struct sl_text *text, const char *bytes, size_t count)
{
    if (count == 0)
        return 0;
    if (!tokenizer_text_reserve(text, count))
        return -ENOMEM;
    memcpy(text->data + text->bytes, bytes, count);
    text->bytes += count;
    return 0;
}

static int append_replacement(struct sl_text *text)
{
    return append(text, "\xef\xbf\xbd", 3);
}

/* One byte more. The pending bytes are always a proper prefix of a character. */
static int push_byte(struct sl_decoder *decoder, char byte, struct sl_text *text)
{
    decoder->pending[decoder->pending_bytes++] = (uint8_t)byte;
    while (decoder->pending_bytes) {
        const char *pending = (const char *)decoder->pending;
        size_t length;
        enum utf8_kind kind = utf8_next(pending, decoder->pending_bytes, &length);
        if (kind == UTF8_UNFINISHED)
            return 0;
        int code = kind == UTF8_VALID ? append(text, pending, length) : append_replacement(text);
        if (code)
            return code;
        decoder->pending_bytes = (uint8_t)(decoder->pending_bytes - length);
        memmove(decoder->pending, decoder->pending + length, decoder->pending_bytes);
    }
    return 0;
}

int sl_decoder_push(struct sl_decoder *decoder, uint32_t id, struct sl_text *text)
{
    const struct sl_tokenizer *tokenizer = decoder->tokenizer;
    if (decoder->skip_special && sl_tokenizer_is_special(tokenizer, id))
        return 0;
    size_t bytes;
    const char *piece = sl_tokenizer_piece(tokenizer, id, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        int code = push_byte(decoder, piece[i], text);
        if (code)
            return code;
    }
    return 0;
}

int sl_decoder_end(struct sl_decoder *decoder, struct sl_text *text)
{
    bool held = decoder->pending_bytes != 0;
    decoder->pending_bytes = 0;
    return held ? append_replacement(text) : 0;
}

int sl_decode(const struct sl_tokenizer *tokenizer, const uint32_t *ids, size_t count,
              bool skip_special, struct sl_text *text)
{
    struct sl_decoder decoder;
    sl_decoder_begin(&decoder, tokenizer, skip_special);
    for (size_t i = 0; i < count; i++) {
        int code = sl_decoder_push(&decoder, ids[i], text);
        if (code)
            return code;
    }
    return sl_decoder_end(&decoder, text);
}
