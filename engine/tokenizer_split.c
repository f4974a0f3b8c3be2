// SPDX-License-Identifier: Apache-2.0
/* From a segment to words: the pre-tokenizer.
 *
 * A pre-tokenizer is a short list of steps; each hands its pieces to the next, and the last hands
 * words to BPE, so that no list of pieces is ever built. Two patterns cover nearly every byte-level
 * model, and they are written out here because a regular-expression engine, compiled or not, is
 * what limits tokenisation otherwise: GPT-2's
 *
 *     '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * and that of Llama 3 (n = 3) and Qwen (n = 1)
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}
 *     | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *
 * The tests compare both with PCRE2 on the pattern itself, at random and at every code point.
 */
#include <errno.h>
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

struct scan {
    const struct unicode_table *classes;
    const char *text;
    size_t bytes;
};

static inline uint8_t class_at(const struct scan *scan, size_t at, size_t *length)
{
    uint8_t lead = (uint8_t)scan->text[at];
    if (lead < 0x80) {
        *length = 1;
        return scan->classes->blocks[scan->classes->block_of[0]][lead];
    }
    return unicode_class(scan->classes, utf8_code(scan->text + at, length));
}

/* End of the run of characters from `at` on whose class & mask is `wanted`. */
static inline size_t run_end(const struct scan *scan, size_t at, uint8_t mask, bool any)
{
    size_t length;
    while (at < scan->bytes && ((class_at(scan, at, &length) & mask) != 0) == any)
        at += length;
    return at;
}

#define LNS (CHARACTER_LETTER | CHARACTER_NUMBER | CHARACTER_SPACE)

/* The run of white space [at, end): \s+(?!\S) keeps its last character for the next word. */
static size_t space_end(const struct scan *scan, size_t at)
{
    size_t end = run_end(scan, at, CHARACTER_SPACE, true);
    if (end == scan->bytes)
        return end;
    size_t last = end - 1;
    while (((uint8_t)scan->text[last] & 0xc0) == 0x80)
        last--;
    return last > at ? last : end;
}

static size_t contraction_end(const struct scan *scan, size_t at)
{
    const char *text = scan->text + at;
    size_t left = scan->bytes - at;
    if (left >= 2 && (text[1] == 's' || text[1] == 'd' || text[1] == 'm' || text[1] == 't'))
        return at + 2;
    if (left >= 3 && ((text[1] == 'l' && text[2] == 'l') || (text[1] == 'v' && text[2] == 'e') ||
                      (text[1] == 'r' && text[2] == 'e')))
        return at + 3;
    return 0;
}

static inline char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* Without case, where U+017F (long s) is an s. */
static size_t contraction_end_caseless(const struct scan *scan, size_t at)
{
    const char *text = scan->text + at;
    size_t left = scan->bytes - at;
    if (left < 2)
        return 0;
    char a = lower(text[1]), b = left >= 3 ? lower(text[2]) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    if (left >= 3 && text[1] == '\xc5' && text[2] == '\xbf')
        return at + 3;
    return 0;
}

static size_t gpt2_end(const struct scan *scan, size_t at)
{
    size_t length, end;
    if (scan->text[at] == '\'' && (end = contraction_end(scan, at)))
        return end;
    uint8_t class = class_at(scan, at, &length);
    size_t body = at;
    if (scan->text[at] == ' ' && at + 1 < scan->bytes) {
        body = at + 1;
        class = class_at(scan, body, &length);
    }
    if (class & CHARACTER_LETTER)
        return run_end(scan, body + length, CHARACTER_LETTER, true);
    if (class & CHARACTER_NUMBER)
        return run_end(scan, body + length, CHARACTER_NUMBER, true);
    if (!(class & CHARACTER_SPACE))
        return run_end(scan, body + length, LNS, false);
    return space_end(scan, at);
}

static size_t punctuation_end(const struct scan *scan, size_t at)
{
    at = run_end(scan, at, LNS, false);
    while (at < scan->bytes && (scan->text[at] == '\r' || scan->text[at] == '\n'))
        at++;
    return at;
}

/* \s*[\r\n]+ takes the run up to its last line break; where it has none, \s+(?!\S) and \s+. */
static size_t line_end(const struct scan *scan, size_t at)
{
    size_t end = run_end(scan, at, CHARACTER_SPACE, true);
    for (size_t i = end; i > at; i--)
        if (scan->text[i - 1] == '\n' || scan->text[i - 1] == '\r')
            return i;
    return space_end(scan, at);
}

static size_t llama3_end(const struct scan *scan, size_t at, unsigned digits_max)
{
    size_t length, next_length, end;
    if (scan->text[at] == '\'' && (end = contraction_end_caseless(scan, at)))
        return end;
    uint8_t class = class_at(scan, at, &length);
    if (class & CHARACTER_LETTER)
        return run_end(scan, at + length, CHARACTER_LETTER, true);
    if (class & CHARACTER_NUMBER) {
        end = at + length;
        for (unsigned i = 1; i < digits_max && end < scan->bytes; i++) {
            if (!(class_at(scan, end, &length) & CHARACTER_NUMBER))
                break;
            end += length;
        }
        return end;
    }
    uint8_t next = at + length < scan->bytes ? class_at(scan, at + length, &next_length) : 0;
    if ((next & CHARACTER_LETTER) && !(class & CHARACTER_NEWLINE))
        return run_end(scan, at + length + next_length, CHARACTER_LETTER, true);
    if (!(class & CHARACTER_SPACE))
        return punctuation_end(scan, at + length);
    if (scan->text[at] == ' ' && at + 1 < scan->bytes && !(next & LNS))
        return punctuation_end(scan, at + 1);
    return line_end(scan, at);
}

static int split_pattern(struct sl_encoder *encoder, size_t index, const char *text, size_t bytes)
{
    const struct step *step = &encoder->tokenizer->steps[index];
    struct scan scan = {encoder->classes, text, bytes};
    bool last = index + 1 == encoder->tokenizer->step_count;
    for (size_t at = 0, end; at < bytes; at = end) {
        end =
            step->kind == STEP_GPT2 ? gpt2_end(&scan, at) : llama3_end(&scan, at, step->digits_max);
        int code = last ? bpe_word(encoder, text + at, end - at)
                        : split_words(encoder, index + 1, text + at, end - at);
        if (code)
            return code;
    }
    return 0;
}

static int split_digits(struct sl_encoder *encoder, size_t index, const char *text, size_t bytes)
{
    const struct step *step = &encoder->tokenizer->steps[index];
    struct scan scan = {encoder->classes, text, bytes};
    size_t length;
    for (size_t at = 0, end; at < bytes; at = end) {
        bool digit = class_at(&scan, at, &length) & CHARACTER_DIGIT;
        end = digit && step->individual ? at + length
                                        : run_end(&scan, at + length, CHARACTER_DIGIT, digit);
        int code = split_words(encoder, index + 1, text + at, end - at);
        if (code)
            return code;
    }
    return 0;
}

/* Spans are kept as (end, is a match), the start being the end before. */
static int add_span(struct sl_ids *spans, size_t start, size_t end, bool match)
{
    if (end == start)
        return 0;
    if (end > UINT32_MAX)
        return -EOVERFLOW;
    if (!tokenizer_ids_reserve(spans, 2))
        return -ENOMEM;
    spans->data[spans->count++] = (uint32_t)end;
    spans->data[spans->count++] = match;
    return 0;
}

static int find_string(const struct step *step, const char *text, size_t bytes, size_t from,
                       size_t *start, size_t *end)
{
    const char *hit = memmem(text + from, bytes - from, step->content, step->content_bytes);
    if (!hit)
        return 0;
    *start = (size_t)(hit - text);
    *end = *start + step->content_bytes;
    return 1;
}

static int find_spans(struct sl_encoder *encoder, const struct step *step, struct sl_ids *spans,
                      const char *text, size_t bytes)
{
    size_t at = 0, from = 0;
    spans->count = 0;
    while (from <= bytes) {
        size_t start, end;
        int found = step->kind == STEP_REGEX
                        ? regex_next(step->regex, encoder->regex, text, bytes, from, &start, &end)
                        : find_string(step, text, bytes, from, &start, &end);
        if (found < 0)
            return found;
        if (!found)
            break;
        int code = add_span(spans, at, start, step->invert);
        if (!code)
            code = add_span(spans, start, end, !step->invert);
        if (code)
            return code;
        at = end;
        from = end;
        if (start == end) { /* an empty match: go on behind the next character */
            size_t length = 1;
            if (end < bytes)
                utf8_code(text + end, &length);
            from = end + length;
        }
    }
    return add_span(spans, at, bytes, step->invert);
}

/* Join spans in place as the behaviour says; removed ones keep a mark of 2. */
static void join_spans(struct sl_ids *spans, enum split_behavior behavior)
{
    uint32_t *data = spans->data;
    size_t count = spans->count / 2, kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool match = data[2 * i + 1];
        bool after = i + 1 < count && data[2 * i + 3];
        bool join = false;
        if (behavior == SPLIT_CONTIGUOUS)
            join = i + 1 < count && match == after;
        else if (behavior == SPLIT_MERGED_WITH_PREVIOUS)
            join = i + 1 < count && after && !match;
        else if (behavior == SPLIT_MERGED_WITH_NEXT)
            join = i + 1 < count && match && !after;
        if (join)
            continue;
        data[2 * kept] = data[2 * i];
        data[2 * kept + 1] = match && behavior == SPLIT_REMOVED ? 2 : 0;
        kept++;
    }
    spans->count = 2 * kept;
}

static int split_spans(struct sl_encoder *encoder, size_t index, const char *text, size_t bytes)
{
    const struct step *step = &encoder->tokenizer->steps[index];
    struct sl_ids *spans = &encoder->step_spans[index];
    int code = find_spans(encoder, step, spans, text, bytes);
    if (code)
        return code;
    join_spans(spans, step->behavior);
    size_t at = 0;
    for (size_t i = 0; i < spans->count && !code; i += 2) {
        size_t end = spans->data[i];
        if (spans->data[i + 1] != 2)
            code = split_words(encoder, index + 1, text + at, end - at);
        encoder->at_start = false;
        at = end;
    }
    return code;
}

static int split_prefix_space(struct sl_encoder *encoder, size_t index, const char *text,
                              size_t bytes)
{
    if (bytes && text[0] == ' ')
        return split_words(encoder, index + 1, text, bytes);
    struct sl_text *copy = &encoder->step_text[index];
    copy->bytes = 0;
    int code = tokenizer_text_append(copy, " ", 1);
    if (!code)
        code = tokenizer_text_append(copy, text, bytes);
    return code ? code : split_words(encoder, index + 1, copy->data, copy->bytes);
}

static int split_metaspace(struct sl_encoder *encoder, size_t index, const char *text, size_t bytes)
{
    const struct step *step = &encoder->tokenizer->steps[index];
    struct sl_text *copy = &encoder->step_text[index];
    copy->bytes = 0;
    int code = 0;
    bool marked =
        bytes >= step->content_bytes && memcmp(text, step->content, step->content_bytes) == 0;
    marked = marked || (bytes && text[0] == ' ');
    bool wanted =
        step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && encoder->at_start);
    if (wanted && !marked)
        code = tokenizer_text_append(copy, step->content, step->content_bytes);
    for (size_t at = 0; at < bytes && !code;) {
        const char *space = memchr(text + at, ' ', bytes - at);
        size_t end = space ? (size_t)(space - text) : bytes;
        code = tokenizer_text_append(copy, text + at, end - at);
        if (!code && space)
            code = tokenizer_text_append(copy, step->content, step->content_bytes);
        at = end + (space != NULL);
    }
    return code ? code : split_words(encoder, index + 1, copy->data, copy->bytes);
}

/* No pre-tokenizer is left: a word, cut before marks where no merge could join over the cut. */
static int whole_words(struct sl_encoder *encoder, const char *text, size_t bytes)
{
    static const char mark[] = "\xe2\x96\x81";
    if (!encoder->tokenizer->words_at_mark)
        return bpe_word(encoder, text, bytes);
    size_t at = 0;
    while (at < bytes) {
        size_t end = at;
        while (bytes - end >= 3 && memcmp(text + end, mark, 3) == 0)
            end += 3;
        const char *next = memmem(text + end, bytes - end, mark, 3);
        end = next ? (size_t)(next - text) : bytes;
        int code = bpe_word(encoder, text + at, end - at);
        if (code)
            return code;
        at = end;
    }
    return 0;
}

int split_words(struct sl_encoder *encoder, size_t index, const char *text, size_t bytes)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    if (index == tokenizer->step_count)
        return tokenizer->byte_level ? bpe_word(encoder, text, bytes)
                                     : whole_words(encoder, text, bytes);
    switch (tokenizer->steps[index].kind) {
    case STEP_GPT2:
    case STEP_LLAMA3:
        return split_pattern(encoder, index, text, bytes);
    case STEP_DIGITS:
        return split_digits(encoder, index, text, bytes);
    case STEP_REGEX:
    case STEP_STRING:
        return split_spans(encoder, index, text, bytes);
    case STEP_PREFIX_SPACE:
        return split_prefix_space(encoder, index, text, bytes);
    case STEP_METASPACE:
        return split_metaspace(encoder, index, text, bytes);
    }
    return -EINVAL;
}
