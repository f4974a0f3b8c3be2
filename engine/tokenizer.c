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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* DIR or DIR/tokenizer.json: the folder and the file. */
static int find_file(struct sl_tokenizer *tokenizer, const char *where, char **path)
{
    struct stat status;
    if (stat(where, &status))
        return -errno;
    if (S_ISDIR(status.st_mode)) {
        tokenizer->directory = strdup(where);
        return asprintf(path, "%s/tokenizer.json", where) < 0 || !tokenizer->directory ? -ENOMEM
                                                                                       : 0;
    }
    const char *slash = strrchr(where, '/');
    tokenizer->directory = slash ? strndup(where, (size_t)(slash - where)) : strdup(".");
    *path = strdup(where);
    return *path && tokenizer->directory ? 0 : -ENOMEM;
}

static int open_files(struct sl_tokenizer *tokenizer, const char *where, struct sl_error *error)
{
    char *path = NULL;
    int code = find_file(tokenizer, where, &path);
    if (code)
        sl_error_set(error, SL_DOMAIN_INPUT, code,
                     "%s: %s; give a folder with a tokenizer.json of Hugging Face", where,
                     strerror(-code));
    else
        code = tokenizer_open_json(tokenizer, path, error);
    free(path);
    return code ? code : tokenizer_read_neighbours(tokenizer, error);
}

int sl_tokenizer_open(struct sl_tokenizer **out, const char *directory, struct sl_error *error)
{
    *out = NULL;
    struct sl_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (!tokenizer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a tokenizer");
    tokenizer->bos = -1;
    int code = directory ? open_files(tokenizer, directory, error)
                         : tokenizer_open_bytes(tokenizer, error);
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
    added_set_finish(&tokenizer->raw_set);
    added_set_finish(&tokenizer->normalized_set);
    for (size_t i = 0; i < tokenizer->added_count; i++)
        free(tokenizer->added[i].content);
    for (size_t i = 0; i < TOKENIZER_NORMALIZERS_MAX; i++) {
        free(tokenizer->normalizers[i].pattern);
        free(tokenizer->normalizers[i].content);
    }
    for (size_t i = 0; i < TOKENIZER_STEPS_MAX; i++) {
        free(tokenizer->steps[i].content);
        regex_free(tokenizer->steps[i].regex);
    }
    string_table_finish(&tokenizer->entries);
    pair_table_finish(&tokenizer->merges);
    free(tokenizer->added);
    free(tokenizer->unknown_text);
    free(tokenizer->chat_template);
    free(tokenizer->directory);
    free(tokenizer->pieces);
    free(tokenizer->pool);
    free(tokenizer);
}

int sl_tokenizer_save(const struct sl_tokenizer *tokenizer, const char *directory,
                      struct sl_error *error)
{
    int code = tokenizer->kind == TOKENIZER_BYTES
                   ? tokenizer_save_bytes(tokenizer, directory, error)
                   : tokenizer_save_files(tokenizer, directory, error);
    if (!code && tokenizer->chat_template_set)
        code = tokenizer_save_chat_template(tokenizer, directory, error);
    return code;
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
    if (tokenizer->kind == TOKENIZER_BYTES) {
        bool end = strcmp(text, "<|endoftext|>") == 0;
        return end ? (int32_t)BYTES_END_OF_TEXT : text[0] && !text[1] ? (uint8_t)text[0] : -1;
    }
    for (size_t i = 0; i < tokenizer->added_count; i++)
        if (strcmp(tokenizer->added[i].content, text) == 0)
            return (int32_t)tokenizer->added[i].id;
    size_t bytes = strlen(text);
    uint32_t id = NO_ID;
    if (tokenizer->byte_level) {
        char *raw = malloc(bytes + 1);
        if (raw && utf8_valid_prefix(text, bytes) == bytes &&
            byte_level_decode(text, bytes, raw, &bytes))
            id = string_table_get(&tokenizer->entries, raw, bytes);
        free(raw);
    } else {
        id = string_table_get(&tokenizer->entries, text, bytes);
    }
    return id == NO_ID ? -1 : (int32_t)id;
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

int sl_tokenizer_set_chat_template(struct sl_tokenizer *tokenizer, const char *jinja,
                                   struct sl_error *error)
{
    char *copy = strdup(jinja);
    if (!copy)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a chat template");
    free(tokenizer->chat_template);
    tokenizer->chat_template = copy;
    tokenizer->chat_template_set = true;
    return 0;
}

const char *sl_tokenizer_chat_template(const struct sl_tokenizer *tokenizer)
{
    return tokenizer->chat_template;
}

static uint64_t added_set_bytes(const struct added_set *set)
{
    return set->edges ? (set->mask + 1) * sizeof(*set->edges) + set->node_count * 4u +
                            set->count * sizeof(*set->tokens)
                      : 0;
}

uint64_t sl_tokenizer_memory_bytes(const struct sl_tokenizer *tokenizer)
{
    uint64_t bytes = sizeof(*tokenizer) + tokenizer->vocabulary * sizeof(*tokenizer->pieces) +
                     tokenizer->pool_bytes + tokenizer->entries.pool_capacity;
    if (tokenizer->entries.slots)
        bytes += (tokenizer->entries.mask + 1) * sizeof(*tokenizer->entries.slots);
    if (tokenizer->merges.slots)
        bytes += (tokenizer->merges.mask + 1) * sizeof(*tokenizer->merges.slots);
    bytes += added_set_bytes(&tokenizer->raw_set) + added_set_bytes(&tokenizer->normalized_set);
    for (size_t i = 0; i < tokenizer->added_count; i++)
        bytes += sizeof(*tokenizer->added) + tokenizer->added[i].bytes + 1;
    return bytes;
}

uint64_t sl_encoder_memory_bytes(const struct sl_tokenizer *tokenizer)
{
    bool cached = tokenizer->kind == TOKENIZER_BPE;
    return sizeof(struct sl_encoder) + (cached ? CACHE_SLOTS * sizeof(struct cached_word) : 0);
}

int sl_encoder_create(struct sl_encoder **out, const struct sl_tokenizer *tokenizer,
                      struct sl_error *error)
{
    struct sl_encoder *encoder = *out = calloc(1, sizeof(**out));
    bool made = encoder != NULL;
    if (made && tokenizer->kind == TOKENIZER_BPE) {
        encoder->classes = unicode_table();
        encoder->cache = aligned_alloc(64, CACHE_SLOTS * sizeof(*encoder->cache));
        if (encoder->cache)
            memset(encoder->cache, 0, CACHE_SLOTS * sizeof(*encoder->cache));
        made = encoder->cache && regex_state_create(&encoder->regex) == 0;
    }
    if (!made) {
        sl_encoder_destroy(encoder);
        *out = NULL;
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for an encoder");
    }
    encoder->tokenizer = tokenizer;
    return 0;
}

void sl_encoder_destroy(struct sl_encoder *encoder)
{
    if (!encoder)
        return;
    for (size_t i = 0; i < TOKENIZER_STEPS_MAX; i++) {
        sl_text_finish(&encoder->step_text[i]);
        sl_ids_finish(&encoder->step_spans[i]);
    }
    sl_text_finish(&encoder->clean);
    sl_text_finish(&encoder->normal[0]);
    sl_text_finish(&encoder->normal[1]);
    sl_ids_finish(&encoder->symbols);
    free(encoder->chain);
    free(encoder->heap);
    free(encoder->cache);
    regex_state_free(encoder->regex);
    free(encoder);
}

static int encode_failed(struct sl_encoder *encoder, int code, size_t bytes, struct sl_error *error)
{
    if (code == -EINVAL)
        return sl_error_set(error, SL_DOMAIN_INPUT, code,
                            "no id for a character, and the unknown token \"%s\" is not in the "
                            "vocabulary",
                            encoder->tokenizer->unknown_text);
    if (code == -E2BIG)
        return sl_error_set(error, SL_DOMAIN_INPUT, code,
                            "the pre-tokenizer's pattern gave up in a text of %zu bytes", bytes);
    if (code == -EOVERFLOW)
        return sl_error_set(error, SL_DOMAIN_INPUT, code,
                            "a word of 2 GiB or more in a text of %zu bytes", bytes);
    return sl_error_set(error, SL_DOMAIN_MEMORY, code, "no memory for the ids of %zu bytes", bytes);
}

int sl_encode(struct sl_encoder *encoder, const char *text, size_t bytes, unsigned flags,
              struct sl_ids *ids, struct sl_error *error)
{
    size_t consumed, before = ids->count;
    encoder->out = ids;
    int code = encoder->tokenizer->kind == TOKENIZER_BYTES
                   ? tokenizer_encode_bytes(text, bytes, flags, true, ids, &consumed)
                   : encode_text(encoder, text, bytes, flags, true);
    if (code) {
        ids->count = before;
        return encode_failed(encoder, code, bytes, error);
    }
    return 0;
}

int sl_encode_piece(struct sl_encoder *encoder, const char *text, size_t bytes, bool first,
                    bool last, struct sl_ids *ids, size_t *consumed, struct sl_error *error)
{
    size_t before = ids->count;
    int code;
    encoder->out = ids;
    if (encoder->tokenizer->kind == TOKENIZER_BYTES) {
        code = tokenizer_encode_bytes(text, bytes, SL_ENCODE_DEFAULT, last, ids, consumed);
    } else {
        *consumed = last ? bytes : tokenizer_cut(encoder->tokenizer, text, bytes);
        code = encode_text(encoder, text, *consumed, SL_ENCODE_DEFAULT, first);
    }
    if (code) {
        ids->count = before;
        return encode_failed(encoder, code, bytes, error);
    }
    return 0;
}

void sl_decoder_begin(struct sl_decoder *decoder, const struct sl_tokenizer *tokenizer,
                      bool skip_special)
{
    *decoder = (struct sl_decoder){.tokenizer = tokenizer, .skip_special = skip_special};
}

int tokenizer_text_append(struct sl_text *text, const char *bytes, size_t count)
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
    return tokenizer_text_append(text, "\xef\xbf\xbd", 3);
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
        int code = kind == UTF8_VALID ? tokenizer_text_append(text, pending, length)
                                      : append_replacement(text);
        if (code)
            return code;
        decoder->pending_bytes = (uint8_t)(decoder->pending_bytes - length);
        memmove(decoder->pending, decoder->pending + length, decoder->pending_bytes);
    }
    return 0;
}

/* <0xNN>: a broken run gives one U+FFFD a byte, as the library's ByteFallback has it. */
static int push_fallback_byte(struct sl_decoder *decoder, char byte, struct sl_text *text)
{
    size_t length;
    decoder->pending[decoder->pending_bytes++] = (uint8_t)byte;
    decoder->byte_run = true;
    switch (utf8_next((const char *)decoder->pending, decoder->pending_bytes, &length)) {
    case UTF8_UNFINISHED:
        return 0;
    case UTF8_VALID:
        decoder->pending_bytes = 0;
        return tokenizer_text_append(text, (const char *)decoder->pending, length);
    case UTF8_BROKEN:
        break;
    }
    /* All but the last byte are beyond repair; the last may begin a character. */
    uint8_t last = decoder->pending[decoder->pending_bytes - 1];
    size_t lost = decoder->pending_bytes - 1u;
    int code = 0;
    for (size_t i = 0; i < lost && !code; i++)
        code = append_replacement(text);
    decoder->pending_bytes = 0;
    if (code)
        return code;
    if (lost)
        return push_fallback_byte(decoder, (char)last, text);
    return append_replacement(text);
}

static int flush_pending(struct sl_decoder *decoder, struct sl_text *text)
{
    int code = 0;
    size_t count = decoder->byte_run ? decoder->pending_bytes : decoder->pending_bytes != 0;
    for (size_t i = 0; i < count && !code; i++)
        code = append_replacement(text);
    decoder->pending_bytes = 0;
    return code;
}

/* What the decoder takes off the front of a text. */
static void strip_first(struct sl_decoder *decoder, const char **piece, size_t *bytes)
{
    enum first_strip strip = decoder->tokenizer->first_strip;
    while (*bytes && **piece == ' ' && strip != STRIP_NOTHING) {
        ++*piece;
        --*bytes;
        if (strip == STRIP_ONE_SPACE)
            break;
    }
}

int sl_decoder_push(struct sl_decoder *decoder, uint32_t id, struct sl_text *text)
{
    const struct sl_tokenizer *tokenizer = decoder->tokenizer;
    if (decoder->skip_special && sl_tokenizer_is_special(tokenizer, id))
        return 0;
    size_t bytes;
    const char *piece = sl_tokenizer_piece(tokenizer, id, &bytes);
    if (bytes == 0)
        return 0;
    int code = 0;
    if (!decoder->started)
        strip_first(decoder, &piece, &bytes);
    else if (tokenizer->join_with_spaces)
        code = tokenizer_text_append(text, " ", 1);
    decoder->started = true;
    if (!code && (tokenizer->pieces[id].flags & PIECE_BYTE))
        return bytes ? push_fallback_byte(decoder, piece[0], text) : 0;
    if (!code && decoder->byte_run)
        code = flush_pending(decoder, text);
    decoder->byte_run = false;
    if (!code && decoder->pending_bytes == 0) { /* fast: whole characters go out as they are */
        size_t whole = utf8_valid_prefix(piece, bytes);
        code = tokenizer_text_append(text, piece, whole);
        piece += whole;
        bytes -= whole;
    }
    for (size_t i = 0; i < bytes && !code; i++)
        code = push_byte(decoder, piece[i], text);
    return code;
}

int sl_decoder_end(struct sl_decoder *decoder, struct sl_text *text)
{
    return flush_pending(decoder, text);
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
