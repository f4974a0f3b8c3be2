// SPDX-License-Identifier: Apache-2.0
/* Pre-tokenizer patterns that are not among the two written out in tokenizer_split.c, by PCRE2.
 *
 * The library compiles patterns with Oniguruma. The syntax that tokenizers use is common to both,
 * but two things are not: PCRE2's \s counts U+180E, and its Unicode is older. So \s, \S, \p{L}
 * and \p{N} are written out as classes while a pattern is copied. The gate for pcre2.h.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"

#define STACK_BYTES_MAX (1u << 20)
#define SPACES                                                                                     \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"            \
    "\\x{205f}\\x{3000}"

struct pretoken_regex {
    pcre2_code *code;
};

struct regex_state {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int append_text(struct sl_text *out, const char *text)
{
    return tokenizer_text_append(out, text, strlen(text));
}

static int append_class(struct sl_text *out, char name, bool inside)
{
    const struct unicode_range *range = name == 'L' ? unicode_newer_letters : unicode_newer_numbers;
    int code = append_text(out, inside ? "" : "[");
    if (!code)
        code = append_text(out, name == 'L' ? "\\p{L}" : "\\p{N}");
    for (; range->last && !code; range++) {
        char text[40];
        snprintf(text, sizeof(text), "\\x{%x}-\\x{%x}", range->first, range->last);
        code = append_text(out, text);
    }
    return code ? code : append_text(out, inside ? "" : "]");
}

/* Copy one escape; *used is its length in the pattern. */
static int translate_escape(struct sl_text *out, const char *at, size_t left, bool inside,
                            size_t *used)
{
    *used = 2;
    if (left >= 2 && at[1] == 's')
        return append_text(out, inside ? SPACES : "[" SPACES "]");
    if (left >= 2 && at[1] == 'S' && !inside)
        return append_text(out, "[^" SPACES "]");
    if (left >= 5 && (memcmp(at, "\\p{L}", 5) == 0 || memcmp(at, "\\p{N}", 5) == 0)) {
        *used = 5;
        return append_class(out, at[3], inside);
    }
    *used = left < 2 ? left : 2;
    return tokenizer_text_append(out, at, *used);
}

static int translate(struct sl_text *out, const char *pattern, size_t bytes)
{
    bool inside = false;
    int code = 0;
    for (size_t at = 0, used; at < bytes && !code; at += used) {
        used = 1;
        if (pattern[at] == '\\') {
            code = translate_escape(out, pattern + at, bytes - at, inside, &used);
            continue;
        }
        if (pattern[at] == '[')
            inside = true;
        if (pattern[at] == ']')
            inside = false;
        code = tokenizer_text_append(out, pattern + at, 1);
    }
    return code;
}

int regex_compile(struct pretoken_regex **out, const char *pattern, size_t bytes,
                  struct sl_error *error)
{
    *out = calloc(1, sizeof(**out));
    struct sl_text text = {0};
    int code = *out ? translate(&text, pattern, bytes) : -ENOMEM;
    if (code) {
        sl_text_finish(&text);
        free(*out);
        *out = NULL;
        return sl_error_set(error, SL_DOMAIN_MEMORY, code, "no memory for a pattern");
    }
    int number;
    PCRE2_SIZE offset;
    (*out)->code = pcre2_compile((PCRE2_SPTR)text.data, text.bytes, PCRE2_UTF | PCRE2_UCP, &number,
                                 &offset, NULL);
    sl_text_finish(&text);
    if (!(*out)->code) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(number, reason, sizeof(reason));
        free(*out);
        *out = NULL;
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "pattern \"%.*s\": %s", (int)bytes,
                            pattern, (const char *)reason);
    }
    pcre2_jit_compile((*out)->code,
                      PCRE2_JIT_COMPLETE); /* without it matching is slower, not other */
    return 0;
}

void regex_free(struct pretoken_regex *regex)
{
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    free(regex);
}

int regex_state_create(struct regex_state **out)
{
    struct regex_state *state = *out = calloc(1, sizeof(*state));
    if (!state)
        return -ENOMEM;
    state->match = pcre2_match_data_create(1, NULL);
    state->context = pcre2_match_context_create(NULL);
    state->stack = pcre2_jit_stack_create(32768, STACK_BYTES_MAX, NULL);
    if (!state->match || !state->context) {
        regex_state_free(state);
        *out = NULL;
        return -ENOMEM;
    }
    if (state->stack)
        pcre2_jit_stack_assign(state->context, NULL, state->stack);
    return 0;
}

void regex_state_free(struct regex_state *state)
{
    if (!state)
        return;
    if (state->stack)
        pcre2_jit_stack_free(state->stack);
    pcre2_match_context_free(state->context);
    pcre2_match_data_free(state->match);
    free(state);
}

int regex_next(const struct pretoken_regex *regex, struct regex_state *state, const char *text,
               size_t bytes, size_t from, size_t *start, size_t *end)
{
    int found = pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                            state->match, state->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0)
        return found == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -E2BIG; /* a limit: a hostile pattern */
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(state->match);
    *start = ends[0];
    *end = ends[1];
    return 1;
}
