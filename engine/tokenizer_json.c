// SPDX-License-Identifier: Apache-2.0
/* tokenizer.json: vocabulary, merges and added tokens.
 *
 * The file decides ids, so nothing in it is skipped over: a part that is not implemented is an
 * error that names it. Byte-level models write bytes as printable stand-ins; they are undone here,
 * once, so that encoding looks words up as they stand in the text and decoding copies bytes.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

#define ID_MAX (1u << 22)
#define FILE_BYTES_MAX (256u << 20)

struct loader {
    struct sl_tokenizer *tokenizer;
    const char *name;
    struct sl_error *error;
    char *scratch; /* as long as two entries */
    size_t longest_entry;
};

static int refuse(const struct loader *loader, const char *what)
{
    return sl_error_set(loader->error, SL_DOMAIN_INPUT, -EINVAL, "%s: %s", loader->name, what);
}

static int no_memory(const struct loader *loader)
{
    return sl_error_set(loader->error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for it",
                        loader->name);
}

/* The stand-ins: printable Latin-1 as itself, the other 68 bytes in order from U+0100 on. */
static int byte_of(uint32_t code)
{
    bool visible = (code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xac) ||
                   (code >= 0xae && code <= 0xff);
    if (visible)
        return (int)code;
    if (code < 256 || code >= 256 + 68)
        return -1;
    unsigned hidden = code - 256; /* 0..32, 127..160, 173 */
    return (int)(hidden <= 32 ? hidden : hidden <= 66 ? 127 + hidden - 33 : 173);
}

bool byte_level_decode(const char *text, size_t bytes, char *out, size_t *out_bytes)
{
    *out_bytes = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        int byte = byte_of(utf8_code(text + at, &length));
        if (byte < 0)
            return false;
        out[(*out_bytes)++] = (char)byte;
    }
    return true;
}

static bool model_flag(json_t *model, const char *key)
{
    return json_is_true(json_object_get(model, key));
}

static int check_model(struct loader *loader, json_t *model)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model))
        return refuse(loader, "\"model\" is missing or no object");
    if (type && strcmp(type, "BPE") != 0)
        return sl_error_set(loader->error, SL_DOMAIN_INPUT, -ENOTSUP,
                            "%s: model.type \"%s\" is not supported, only \"BPE\"", loader->name,
                            type);
    json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0)
        return refuse(loader, "model.dropout is not supported: ids must not be random; set it to "
                              "null");
    const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const char *affix = json_string_value(json_object_get(model, affixes[i]));
        if (affix && affix[0])
            return sl_error_set(loader->error, SL_DOMAIN_INPUT, -ENOTSUP,
                                "%s: model.%s \"%s\" is not supported", loader->name, affixes[i],
                                affix);
    }
    if (!json_is_object(json_object_get(model, "vocab")))
        return refuse(loader, "model.vocab is missing or no object");
    if (!json_is_array(json_object_get(model, "merges")))
        return refuse(loader, "model.merges is missing or no array");
    return 0;
}

static int check_id(struct loader *loader, json_t *id, const char *of)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= ID_MAX)
        return sl_error_set(loader->error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: the id of \"%.64s\" is not an integer in [0, %u)", loader->name,
                            of, ID_MAX);
    uint32_t value = (uint32_t)json_integer_value(id);
    if (value >= loader->tokenizer->vocabulary)
        loader->tokenizer->vocabulary = value + 1;
    return 0;
}

/* First pass: the number of ids, and the bytes that pool and scratch need. */
static int measure(struct loader *loader, json_t *vocab, json_t *added, uint64_t *pool_bytes)
{
    const char *key;
    json_t *value;
    size_t index;
    *pool_bytes = 0;
    json_object_foreach(vocab, key, value)
    {
        int code = check_id(loader, value, key);
        if (code)
            return code;
        size_t bytes = strlen(key);
        if (bytes > loader->longest_entry)
            loader->longest_entry = bytes;
        *pool_bytes += bytes;
    }
    json_array_foreach(added, index, value)
    {
        json_t *content = json_object_get(value, "content");
        if (!json_is_string(content))
            return refuse(loader, "an entry of added_tokens has no \"content\"");
        int code = check_id(loader, json_object_get(value, "id"), json_string_value(content));
        if (code)
            return code;
        *pool_bytes += json_string_length(content);
    }
    if (loader->tokenizer->vocabulary == 0)
        return refuse(loader, "the vocabulary is empty");
    loader->scratch = malloc(2 * loader->longest_entry + 1);
    return loader->scratch ? 0 : no_memory(loader);
}

/* Write what an id decodes to. In place of marks, spaces; <0xNN> becomes its byte. */
static void put_piece(struct sl_tokenizer *tokenizer, uint32_t id, const char *text, size_t bytes,
                      uint8_t flags)
{
    struct piece *piece = &tokenizer->pieces[id];
    char *out = tokenizer->pool + tokenizer->pool_bytes;
    size_t used = 0;
    unsigned byte;
    char end;
    if (tokenizer->byte_level) {
        if (!byte_level_decode(text, bytes, out, &used)) {
            memcpy(out, text, bytes);
            used = bytes;
        }
    } else if ((flags & PIECE_BYTE) && sscanf(text, "<0x%2X%c", &byte, &end) == 2) {
        out[used++] = (char)byte;
    } else {
        flags &= (uint8_t)~PIECE_BYTE;
        for (size_t at = 0; at < bytes;) {
            bool mark = tokenizer->space_marks && bytes - at >= 3 &&
                        memcmp(text + at, "\xe2\x96\x81", 3) == 0;
            out[used++] = mark ? ' ' : text[at];
            at += mark ? 3 : 1;
        }
    }
    *piece = (struct piece){(uint32_t)tokenizer->pool_bytes, (uint32_t)used,
                            (uint8_t)(flags | PIECE_KNOWN)};
    tokenizer->pool_bytes += used;
}

static bool is_byte_token(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789ABCDEF";
    return bytes == 6 && memcmp(text, "<0x", 3) == 0 && strchr(digits, text[3]) &&
           strchr(digits, text[4]) && text[5] == '>' && text[3] && text[4];
}

static int read_vocab(struct loader *loader, json_t *vocab, bool byte_pieces)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        uint32_t id = (uint32_t)json_integer_value(value);
        size_t bytes = strlen(key), raw_bytes = bytes;
        const char *raw = key;
        if (tokenizer->pieces[id].flags)
            return sl_error_set(loader->error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: model.vocab gives id %u twice, once to \"%.64s\"",
                                loader->name, id, key);
        bool byte = byte_pieces && is_byte_token(key, bytes);
        put_piece(tokenizer, id, key, bytes, byte ? PIECE_BYTE : 0);
        if (tokenizer->byte_level) {
            if (!byte_level_decode(key, bytes, loader->scratch, &raw_bytes))
                continue; /* no text can spell it */
            raw = loader->scratch;
        }
        string_table_put(&tokenizer->entries, raw, raw_bytes, id);
        if (tokenizer->byte_level && raw_bytes == 1)
            tokenizer->byte_ids[(uint8_t)raw[0]] = id;
        if (!tokenizer->byte_level && bytes == 1 && (uint8_t)key[0] < 128)
            tokenizer->ascii_ids[(uint8_t)key[0]] = id;
        if (!tokenizer->byte_level && is_byte_token(key, bytes))
            tokenizer->byte_ids[strtoul(key + 3, NULL, 16)] = id;
    }
    return 0;
}

/* "a b" or ["a", "b"]. */
static bool merge_halves(json_t *merge, const char **left, size_t *left_bytes, const char **right,
                         size_t *right_bytes)
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        *left = json_string_value(a);
        *right = json_string_value(b);
        *left_bytes = json_string_length(a);
        *right_bytes = json_string_length(b);
        return *left && *right;
    }
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    *left = text;
    *left_bytes = (size_t)(space - text);
    *right = space + 1;
    *right_bytes = strlen(space + 1);
    return true;
}

static uint32_t half_id(struct loader *loader, const char *text, size_t bytes, char *raw,
                        size_t *raw_bytes)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    *raw_bytes = bytes;
    if (tokenizer->byte_level) {
        if (!byte_level_decode(text, bytes, raw, raw_bytes))
            return NO_ID;
    } else {
        memcpy(raw, text, bytes);
    }
    return string_table_get(&tokenizer->entries, raw, *raw_bytes);
}

/* A merge that puts a mark behind something else: words may then not be cut before marks. */
static bool joins_at_mark(const char *text, size_t bytes)
{
    for (size_t at = 1; at + 3 <= bytes; at++)
        if (memcmp(text + at, "\xe2\x96\x81", 3) == 0 &&
            (at < 3 || memcmp(text + at - 3, "\xe2\x96\x81", 3) != 0))
            return true;
    return false;
}

/* The merge's three ids; joined is NO_ID where one of them is not in the vocabulary. */
static struct pair_slot merge_ids(struct loader *loader, const char *left, size_t left_bytes,
                                  const char *right, size_t right_bytes)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    struct pair_slot slot = {NO_ID, NO_ID, 0, NO_ID};
    char *both = loader->scratch;
    size_t raw_left, raw_right;
    if (left_bytes > loader->longest_entry || right_bytes > loader->longest_entry)
        return slot;
    slot.left = half_id(loader, left, left_bytes, both, &raw_left);
    if (slot.left != NO_ID)
        slot.right = half_id(loader, right, right_bytes, both + raw_left, &raw_right);
    if (slot.right != NO_ID) {
        slot.id = string_table_get(&tokenizer->entries, both, raw_left + raw_right);
        tokenizer->words_at_mark &= !joins_at_mark(both, raw_left + raw_right);
    }
    return slot;
}

static int read_merges(struct loader *loader, json_t *merges)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    size_t index, left_bytes, right_bytes;
    const char *left, *right;
    json_t *merge;
    tokenizer->words_at_mark = true;
    json_array_foreach(merges, index, merge)
    {
        if (!merge_halves(merge, &left, &left_bytes, &right, &right_bytes))
            return sl_error_set(loader->error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]",
                                loader->name, index);
        struct pair_slot slot = merge_ids(loader, left, left_bytes, right, right_bytes);
        if (slot.id == NO_ID)
            return sl_error_set(loader->error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: model.merges[%zu]: \"%.64s\" and \"%.64s\" or what they give "
                                "is not in model.vocab",
                                loader->name, index, left, right);
        slot.rank = (uint32_t)index;
        pair_table_put(&tokenizer->merges, slot);
    }
    return 0;
}

static int read_added(struct loader *loader, json_t *added)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    size_t count = json_array_size(added), index;
    json_t *entry;
    tokenizer->added = calloc(count + 1, sizeof(*tokenizer->added));
    if (!tokenizer->added)
        return no_memory(loader);
    json_array_foreach(added, index, entry)
    {
        json_t *content = json_object_get(entry, "content");
        struct added_token *token = &tokenizer->added[tokenizer->added_count++];
        *token = (struct added_token){
            .content = strdup(json_string_value(content)),
            .bytes = json_string_length(content),
            .id = (uint32_t)json_integer_value(json_object_get(entry, "id")),
            .single_word = json_is_true(json_object_get(entry, "single_word")),
            .left_strip = json_is_true(json_object_get(entry, "lstrip")),
            .right_strip = json_is_true(json_object_get(entry, "rstrip")),
            .normalized = json_is_true(json_object_get(entry, "normalized")),
            .special = json_is_true(json_object_get(entry, "special")),
        };
        if (!token->content)
            return no_memory(loader);
        if (!(tokenizer->pieces[token->id].flags & PIECE_KNOWN))
            put_piece(tokenizer, token->id, token->content, token->bytes, 0);
        tokenizer->pieces[token->id].flags |=
            (uint8_t)(PIECE_ADDED | (token->special ? PIECE_SPECIAL : 0));
    }
    return 0;
}

/* Tokens that are looked for in normalized text are themselves normalized first. */
static int normalize_added(struct loader *loader)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    struct sl_encoder encoder = {.tokenizer = tokenizer, .classes = unicode_table()};
    int code = 0;
    for (size_t i = 0; i < tokenizer->added_count && !code; i++) {
        struct added_token *token = &tokenizer->added[i];
        const char *text = token->content;
        size_t bytes = token->bytes;
        if (!token->normalized || tokenizer->normalizer_count == 0)
            continue;
        code = normalize(&encoder, &text, &bytes);
        char *copy = code ? NULL : malloc(bytes + 1);
        if (!code && !copy)
            code = -ENOMEM;
        if (code)
            break;
        memcpy(copy, text, bytes);
        copy[bytes] = 0;
        free(token->content);
        token->content = copy;
        token->bytes = bytes;
    }
    sl_text_finish(&encoder.normal[0]);
    sl_text_finish(&encoder.normal[1]);
    if (!code)
        code = added_set_make(&tokenizer->raw_set, tokenizer->added, tokenizer->added_count, false);
    if (!code)
        code = added_set_make(&tokenizer->normalized_set, tokenizer->added, tokenizer->added_count,
                              true);
    return code ? no_memory(loader) : 0;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Where texts may be cut (tokenizer_encode.c): only where nothing can reach over the cut. */
static void find_cuts(struct sl_tokenizer *tokenizer)
{
    bool pattern = false, other = false, front = false;
    for (size_t i = 0; i < tokenizer->step_count; i++) {
        const struct step *step = &tokenizer->steps[i];
        pattern |= step->kind == STEP_GPT2 || step->kind == STEP_LLAMA3;
        front |= step->kind == STEP_PREFIX_SPACE || step->kind == STEP_METASPACE;
        other |= step->kind == STEP_REGEX ||
                 (step->kind == STEP_STRING && strcmp(step->content, " ") != 0 &&
                  strcmp(step->content, "\xe2\x96\x81") != 0);
    }
    bool marks = false;
    for (size_t i = 0; i < tokenizer->normalizer_count; i++) {
        const struct normalizer *normalizer = &tokenizer->normalizers[i];
        front |= normalizer->kind == NORMALIZER_PREPEND;
        if (normalizer->kind == NORMALIZER_REPLACE) {
            bool mark = strcmp(normalizer->pattern, " ") == 0 &&
                        strcmp(normalizer->content, "\xe2\x96\x81") == 0;
            marks |= mark;
            other |= !mark;
        }
    }
    for (size_t i = 0; i < tokenizer->step_count; i++)
        marks |= tokenizer->steps[i].kind == STEP_METASPACE;
    bool words = tokenizer->byte_level ? pattern : marks && tokenizer->words_at_mark;
    tokenizer->cut_at_space = words && !other;
    tokenizer->cut_at_newline = tokenizer->byte_level && pattern && !other && !front;
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        const char *text = tokenizer->added[i].content;
        for (size_t at = 0; text[at]; at++) {
            char next = text[at + 1];
            if (is_letter(text[at]) && (next == ' ' || next == 0))
                tokenizer->cut_at_space = false;
            if (text[at] == '\n' && (is_letter(next) || next == 0))
                tokenizer->cut_at_newline = false;
        }
        if (tokenizer->added[i].left_strip && is_letter(text[0]))
            tokenizer->cut_at_space = tokenizer->cut_at_newline = false;
    }
}

static int read_model(struct loader *loader, json_t *root)
{
    struct sl_tokenizer *tokenizer = loader->tokenizer;
    json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    int code = check_model(loader, model);
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    uint64_t pool_bytes;
    if (!code)
        code = measure(loader, vocab, added, &pool_bytes);
    if (code)
        return code;
    tokenizer->byte_fallback = model_flag(model, "byte_fallback");
    tokenizer->fuse_unknown = model_flag(model, "fuse_unk");
    tokenizer->ignore_merges = model_flag(model, "ignore_merges");
    tokenizer->pieces = calloc(tokenizer->vocabulary, sizeof(*tokenizer->pieces));
    tokenizer->pool = malloc(pool_bytes + 1);
    if (!tokenizer->pieces || !tokenizer->pool ||
        !string_table_make(&tokenizer->entries, json_object_size(vocab), pool_bytes) ||
        !pair_table_make(&tokenizer->merges, json_array_size(merges)))
        return no_memory(loader);
    json_t *decoder = json_object_get(root, "decoder");
    bool byte_pieces = false;
    json_t *list = json_object_get(decoder, "decoders"), *entry;
    size_t index;
    json_array_foreach(list, index, entry)
    {
        const char *type = json_string_value(json_object_get(entry, "type"));
        byte_pieces |= type && strcmp(type, "ByteFallback") == 0;
    }
    code = read_vocab(loader, vocab, byte_pieces);
    if (!code)
        code = read_merges(loader, merges);
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    if (!code && unknown) {
        tokenizer->unknown_text = strdup(unknown);
        tokenizer->unknown_id = string_table_get(&tokenizer->entries, unknown, strlen(unknown));
        code = tokenizer->unknown_text ? 0 : no_memory(loader);
    }
    if (!code)
        code = read_added(loader, added);
    return code;
}

int tokenizer_parse_json(struct sl_tokenizer *tokenizer, const char *text, size_t bytes,
                         const char *name, struct sl_error *error)
{
    struct loader loader = {.tokenizer = tokenizer, .name = name, .error = error};
    json_error_t at;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!root)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: line %d, column %d: %.200s", name,
                            at.line, at.column, at.text);
    tokenizer->kind = TOKENIZER_BPE;
    tokenizer->unknown_id = NO_ID;
    memset(tokenizer->byte_ids, 0xff, sizeof(tokenizer->byte_ids));
    memset(tokenizer->ascii_ids, 0xff, sizeof(tokenizer->ascii_ids));
    int code = json_is_object(root) ? 0 : refuse(&loader, "not a JSON object");
    if (!code)
        code = tokenizer_parse_parts(tokenizer, root, name, error);
    if (!code)
        code = read_model(&loader, root);
    if (!code)
        code = tokenizer_parse_template(tokenizer, root, name, error);
    if (!code)
        code = normalize_added(&loader);
    if (!code)
        find_cuts(tokenizer);
    tokenizer->fingerprint = XXH3_64bits(text, bytes);
    free(loader.scratch);
    json_decref(root);
    return code;
}

int tokenizer_open_json(struct sl_tokenizer *tokenizer, const char *path, struct sl_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    int code = tokenizer_read_file(path, FILE_BYTES_MAX, &text, &bytes, error);
    if (!code)
        code = tokenizer_parse_json(tokenizer, text, bytes, path, error);
    free(text);
    return code;
}
