// SPDX-License-Identifier: Apache-2.0
/* From text to ids: clean, find added tokens, normalize, find added tokens again, split, merge.
 *
 *     text      a <s> b
 *     raw set   "a " | <s> | " b"                added tokens that are looked for as they are
 *     normalize "▁a▁" | <s> | "▁▁b"              each segment by itself, as the library does
 *     norm set  added tokens that are looked for in normalized text
 *     words     BPE
 *
 * Large texts are encoded piece by piece, and pieces by many threads, so places are needed where a
 * text may be cut without changing an id. Two are used: before a space between two ASCII letters
 * (sp) and behind a single line feed between a character that is no white space and an ASCII letter
 * (nl). A word of the two known patterns never reaches over them, nothing composes over them, and
 * opening the tokenizer checks that no added token and (without a pre-tokenizer) no merge does.
 * Where a tokenizer has another pattern, texts are encoded whole.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

size_t tokenizer_cut(const struct sl_tokenizer *tokenizer, const char *text, size_t bytes)
{
    for (size_t at = bytes; at-- > 2;) {
        char before = text[at - 2], mark = text[at - 1], after = text[at];
        if (!is_letter(after))
            continue;
        if (tokenizer->cut_at_space && mark == ' ' && is_letter(before))
            return at - 1;
        if (tokenizer->cut_at_newline && mark == '\n' && before > ' ')
            return at;
    }
    return 0;
}

size_t tokenizer_next_break(const struct sl_tokenizer *tokenizer, const char *text, size_t bytes,
                            size_t from)
{
    struct added_match match;
    if (tokenizer->kind == TOKENIZER_BYTES)
        return bytes;
    while (from < bytes &&
           added_set_find(&tokenizer->raw_set, text, bytes, from, 0, false, &match)) {
        const struct added_token *token = match.token;
        if (!token->left_strip && token->special && match.start >= from)
            return match.start;
        from = match.resume;
    }
    return bytes;
}

static int clean(struct sl_encoder *encoder, const char **text, size_t *bytes)
{
    size_t at = utf8_valid_prefix(*text, *bytes);
    if (at == *bytes)
        return 0;
    struct sl_text *out = &encoder->clean;
    out->bytes = 0;
    int code = tokenizer_text_append(out, *text, at);
    while (at < *bytes && !code) {
        size_t length;
        bool valid = utf8_next(*text + at, *bytes - at, &length) == UTF8_VALID;
        code = valid ? tokenizer_text_append(out, *text + at, length)
                     : tokenizer_text_append(out, "\xef\xbf\xbd", 3);
        at += length;
    }
    *text = out->data;
    *bytes = out->bytes;
    return code;
}

/* Where text that may change begins: the character before the first unstable one. */
static size_t stable_prefix(const struct unicode_table *classes, const char *text, size_t bytes,
                            size_t at)
{
    size_t previous = at, length;
    while (at < bytes) {
        if ((uint8_t)text[at] < 0xcc) { /* below U+0300 */
            previous = at;
            at += (uint8_t)text[at] < 0x80 ? 1 : 2;
            continue;
        }
        if (unicode_class(classes, utf8_code(text + at, &length)) & CHARACTER_UNSTABLE)
            return previous;
        previous = at;
        at += length;
    }
    return bytes;
}

static int compose_run(struct sl_text *out, const char *text, size_t bytes)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                           &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length < 0)
        return length == UTF8PROC_ERROR_NOMEM ? -ENOMEM : -EINVAL;
    int code = tokenizer_text_append(out, (const char *)composed, (size_t)length);
    free(composed);
    return code;
}

static int apply_nfc(struct sl_encoder *encoder, struct sl_text *out, const char **text,
                     size_t *bytes)
{
    size_t at = stable_prefix(encoder->classes, *text, *bytes, 0);
    if (at == *bytes)
        return 0;
    out->bytes = 0;
    int code = tokenizer_text_append(out, *text, at);
    while (at < *bytes && !code) {
        /* The run: its first character, then all that is unstable behind it. */
        size_t end = at, length;
        uint8_t class = unicode_class(encoder->classes, utf8_code(*text + end, &length));
        for (end += length; end < *bytes; end += length)
            if (!(unicode_class(encoder->classes, utf8_code(*text + end, &length)) &
                  CHARACTER_UNSTABLE))
                break;
        if (class & CHARACTER_NEWER_MARK) {
            utf8_code(*text + at, &length);
            code = tokenizer_text_append(out, *text + at, length);
            at += length;
        }
        if (!code && end > at)
            code = compose_run(out, *text + at, end - at);
        at = stable_prefix(encoder->classes, *text, *bytes, end);
        if (!code)
            code = tokenizer_text_append(out, *text + end, at - end);
    }
    *text = out->data;
    *bytes = out->bytes;
    return code;
}

static int apply_prepend(const struct normalizer *normalizer, struct sl_text *out,
                         const char **text, size_t *bytes)
{
    if (*bytes == 0)
        return 0;
    out->bytes = 0;
    int code = tokenizer_text_append(out, normalizer->content, normalizer->content_bytes);
    if (!code)
        code = tokenizer_text_append(out, *text, *bytes);
    *text = out->data;
    *bytes = out->bytes;
    return code;
}

static int apply_replace(const struct normalizer *normalizer, struct sl_text *out,
                         const char **text, size_t *bytes)
{
    const char *hit = memmem(*text, *bytes, normalizer->pattern, normalizer->pattern_bytes);
    if (!hit)
        return 0;
    size_t at = 0;
    int code = 0;
    out->bytes = 0;
    while (hit && !code) {
        size_t start = (size_t)(hit - *text);
        code = tokenizer_text_append(out, *text + at, start - at);
        if (!code)
            code = tokenizer_text_append(out, normalizer->content, normalizer->content_bytes);
        at = start + normalizer->pattern_bytes;
        hit = memmem(*text + at, *bytes - at, normalizer->pattern, normalizer->pattern_bytes);
    }
    if (!code)
        code = tokenizer_text_append(out, *text + at, *bytes - at);
    *text = out->data;
    *bytes = out->bytes;
    return code;
}

/* The two buffers take turns, because a normalizer reads what the one before wrote. */
int normalize(struct sl_encoder *encoder, const char **text, size_t *bytes)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    for (size_t i = 0; i < tokenizer->normalizer_count; i++) {
        const struct normalizer *normalizer = &tokenizer->normalizers[i];
        if (normalizer->kind == NORMALIZER_PREPEND && encoder->continued)
            continue;
        struct sl_text *out = &encoder->normal[*text == encoder->normal[0].data];
        int code = normalizer->kind == NORMALIZER_NFC ? apply_nfc(encoder, out, text, bytes)
                   : normalizer->kind == NORMALIZER_PREPEND
                       ? apply_prepend(normalizer, out, text, bytes)
                       : apply_replace(normalizer, out, text, bytes);
        if (code)
            return code;
    }
    return 0;
}

static int emit_id(struct sl_encoder *encoder, uint32_t id)
{
    if (!tokenizer_ids_reserve(encoder->out, 1))
        return -ENOMEM;
    encoder->out->data[encoder->out->count++] = id;
    return 0;
}

/* Text between added tokens of `set` goes to `segment`, the tokens themselves to the ids. */
typedef int (*segment_fn)(struct sl_encoder *encoder, const char *text, size_t bytes,
                          unsigned flags);

static int split_added(struct sl_encoder *encoder, const struct added_set *set, const char *text,
                       size_t bytes, unsigned flags, segment_fn segment)
{
    struct added_match match = {0};
    size_t at = 0;
    bool started = encoder->at_start, plain = flags & SL_ENCODE_PLAIN;
    while (!(flags & SL_ENCODE_NO_ADDED) &&
           added_set_find(set, text, bytes, match.resume, at, plain, &match)) {
        int code = 0;
        encoder->at_start = started && at == 0;
        encoder->continued = encoder->continued && at == 0;
        if (match.start > at)
            code = segment(encoder, text + at, match.start - at, flags);
        if (!code)
            code = emit_id(encoder, match.id);
        if (code)
            return code;
        at = match.end;
    }
    encoder->at_start = started && at == 0;
    encoder->continued = encoder->continued && at == 0;
    return at < bytes ? segment(encoder, text + at, bytes - at, flags) : 0;
}

static int encode_normal(struct sl_encoder *encoder, const char *text, size_t bytes, unsigned flags)
{
    (void)flags;
    return split_words(encoder, 0, text, bytes);
}

static int encode_segment(struct sl_encoder *encoder, const char *text, size_t bytes,
                          unsigned flags)
{
    int code = normalize(encoder, &text, &bytes);
    if (code)
        return code;
    return split_added(encoder, &encoder->tokenizer->normalized_set, text, bytes, flags,
                       encode_normal);
}

int encode_text(struct sl_encoder *encoder, const char *text, size_t bytes, unsigned flags,
                bool first)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    bool template = flags & SL_ENCODE_TEMPLATE;
    int code = clean(encoder, &text, &bytes);
    for (size_t i = 0; template && i < tokenizer->template_before_count && !code; i++)
        code = emit_id(encoder, tokenizer->template_before[i]);
    encoder->at_start = first && !(flags & (SL_ENCODE_INSIDE | SL_ENCODE_CONTINUED));
    encoder->continued = !first || (flags & SL_ENCODE_CONTINUED);
    if (!code)
        code = split_added(encoder, &tokenizer->raw_set, text, bytes, flags, encode_segment);
    for (size_t i = 0; template && i < tokenizer->template_after_count && !code; i++)
        code = emit_id(encoder, tokenizer->template_after[i]);
    return code;
}
