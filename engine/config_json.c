// SPDX-License-Identifier: Apache-2.0
/* JSON as DeepSpeed's users write it.
 *
 * Problem   DeepSpeed reads HJSON: comments, trailing commas, unquoted keys, 5e8 for an integer. A
 *           good answer to a wrong value needs its line and column, which JSON libraries drop.
 * Choice    a recursive reader of our own, one pass, no back-tracking, bounded in depth and nodes,
 *           that makes position-carrying nodes directly.
 * Rejected  rewriting to strict JSON for a library with a map of positions: two parsers have to
 *           agree, and values still lose their place. HJSON's quoteless strings: a forgotten
 *           quote would swallow the rest of the line silently, so they are refused by name.
 * Invariant every path either consumes a byte or fails, and depth is at most SL_TREE_DEPTH_MAX.
 */
#include "engine/config_tree.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct sl_tree *tree;
    struct sl_error *error;
    const char *at, *end, *line_start;
    unsigned line;
    char *scratch; /* as large as the text: holds one string or word */
};

static unsigned column(const struct reader *r)
{
    return (unsigned)(r->at - r->line_start) + 1;
}

#define FAIL(r, ...) sl_tree_error((r)->error, (r)->tree->path, (r)->line, column(r), __VA_ARGS__)

static bool more(const struct reader *r)
{
    return r->at < r->end;
}

static char peek(const struct reader *r)
{
    return r->at < r->end ? *r->at : 0;
}

static void advance(struct reader *r)
{
    if (*r->at++ == '\n') {
        r->line++;
        r->line_start = r->at;
    }
}

static bool starts(const struct reader *r, const char *word)
{
    size_t length = strlen(word);
    return (size_t)(r->end - r->at) >= length && memcmp(r->at, word, length) == 0;
}

/* Blanks and the three comment forms. A comment that is never closed is an error. */
static int skip_space(struct reader *r)
{
    while (more(r)) {
        char c = peek(r);
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            advance(r);
        } else if (c == '#' || starts(r, "//")) {
            while (more(r) && peek(r) != '\n')
                advance(r);
        } else if (starts(r, "/*")) {
            struct reader open = *r;
            advance(r);
            advance(r);
            while (more(r) && !starts(r, "*/"))
                advance(r);
            if (!more(r))
                return FAIL(&open, "this comment is never closed; end it with */");
            advance(r);
            advance(r);
        } else {
            break;
        }
    }
    return 0;
}

static int hex4(struct reader *r, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char c = peek(r);
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 16;
        if (digit == 16)
            return FAIL(r, "\\u takes four hexadecimal digits");
        *code = *code * 16 + digit;
        advance(r);
    }
    return 0;
}

static size_t put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t extra = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[extra] | (code >> (6 * extra)));
    for (size_t i = 1; i <= extra; i++)
        out[i] = (char)(0x80 | ((code >> (6 * (extra - i))) & 0x3f));
    return extra + 1;
}

static int read_unicode(struct reader *r, size_t *used)
{
    uint32_t code, low;
    int result = hex4(r, &code);
    if (result)
        return result;
    if (code >= 0xd800 && code < 0xdc00) {
        if (!starts(r, "\\u"))
            return FAIL(r, "half of a surrogate pair; write the character itself");
        r->at += 2;
        if ((result = hex4(r, &low)))
            return result;
        if (low < 0xdc00 || low > 0xdfff)
            return FAIL(r, "half of a surrogate pair; write the character itself");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return FAIL(r, "half of a surrogate pair; write the character itself");
    }
    if (code == 0)
        return FAIL(r, "a NUL character cannot be part of a value");
    *used += put_utf8(r->scratch + *used, code);
    return 0;
}

static int read_escape(struct reader *r, size_t *used)
{
    advance(r);
    char c = peek(r);
    static const char from[] = "\"'\\/bfnrt", to[] = "\"'\\/\b\f\n\r\t";
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        r->scratch[(*used)++] = to[found - from];
        advance(r);
        return 0;
    }
    if (c == 'u') {
        advance(r);
        return read_unicode(r, used);
    }
    return FAIL(r, "unknown escape in a string; a backslash itself is written \\\\");
}

/* A quoted string, at its opening quote; *out lives in the tree. */
static int read_string(struct reader *r, const char **out)
{
    struct reader open = *r;
    char quote = peek(r);
    size_t used = 0;
    advance(r);
    while (peek(r) != quote || !more(r)) {
        if (!more(r) || peek(r) == '\n')
            return FAIL(&open, "this string is never closed on its line; a quote is missing");
        if (peek(r) == '\\') {
            int result = read_escape(r, &used);
            if (result)
                return result;
            continue;
        }
        if ((unsigned char)peek(r) < 0x20 && peek(r) != '\t')
            return FAIL(r, "a control character inside a string");
        r->scratch[used++] = peek(r);
        advance(r);
    }
    advance(r);
    *out = sl_tree_string(r->tree, r->scratch, used);
    return *out ? 0 : -ENOMEM;
}

static bool word_byte(char c)
{
    return c && !strchr(" \t\r\n,:{}[]\"'#", c);
}

static int read_word(struct reader *r, const char **out)
{
    const char *start = r->at;
    while (more(r) && word_byte(peek(r)) && !starts(r, "//") && !starts(r, "/*"))
        advance(r);
    *out = sl_tree_string(r->tree, start, (size_t)(r->at - start));
    return *out ? 0 : -ENOMEM;
}

static int read_key(struct reader *r, const char **name)
{
    char c = peek(r);
    if (c == '"' || c == '\'')
        return read_string(r, name);
    if (!word_byte(c))
        return FAIL(r, "a key is expected here, not '%c'", c < ' ' ? '?' : c);
    return read_word(r, name);
}

static int read_value(struct reader *r, struct sl_node *parent, const char *name, unsigned depth);

static int read_scalar(struct reader *r, struct sl_node *node)
{
    char c = peek(r);
    if (c == '"' || c == '\'') {
        node->kind = SL_NODE_STRING;
        return read_string(r, &node->text);
    }
    struct reader at = *r;
    if (!word_byte(c))
        return FAIL(r,
                    more(r) ? "a value is expected here, not '%c'"
                            : "the file ends here, where "
                              "a value is expected%c",
                    more(r) ? (c < ' ' ? '?' : c) : ' ');
    const char *word;
    int result = read_word(r, &word);
    if (result)
        return result;
    sl_node_from_word(node, word, false);
    if (node->kind == SL_NODE_STRING)
        return FAIL(&at, "%.60s is neither a number nor true, false or null; a string needs quotes",
                    word);
    return 0;
}

/* The members of an object or list up to its closing bracket; commas may trail, and a line break
 * may stand for one, as in HJSON. */
static int read_members(struct reader *r, struct sl_node *node, unsigned depth)
{
    char close = node->kind == SL_NODE_OBJECT ? '}' : ']';
    struct reader open = *r;
    advance(r);
    for (;;) {
        int result = skip_space(r);
        if (result)
            return result;
        if (!more(r))
            return FAIL(&open, "this %c is never closed", close == '}' ? '{' : '[');
        if (peek(r) == close) {
            advance(r);
            return 0;
        }
        const char *name = NULL;
        unsigned line = r->line;
        if (node->kind == SL_NODE_OBJECT) {
            struct reader key = *r;
            if ((result = read_key(r, &name)) || (result = skip_space(r)))
                return result;
            if (peek(r) != ':')
                return FAIL(r, "a colon is expected after the key \"%.60s\"", name);
            advance(r);
            if (sl_node_get(node, name)) {
                struct sl_node *unused;
                return sl_tree_add(r->tree, node, name, key.line, column(&key), &unused, r->error);
            }
        }
        if ((result = read_value(r, node, name, depth)))
            return result;
        line = r->line;
        if ((result = skip_space(r)))
            return result;
        if (peek(r) == ',')
            advance(r);
        else if (more(r) && peek(r) != close && r->line == line)
            return FAIL(r, "a comma or %c is expected here", close);
    }
}

static int read_value(struct reader *r, struct sl_node *parent, const char *name, unsigned depth)
{
    int result = skip_space(r);
    if (result)
        return result;
    if (depth >= SL_TREE_DEPTH_MAX)
        return FAIL(r, "nested deeper than %u: this is not a training configuration",
                    SL_TREE_DEPTH_MAX);
    struct sl_node *node;
    if ((result = sl_tree_add(r->tree, parent, name, r->line, column(r), &node, r->error)))
        return result;
    if (peek(r) == '{' || peek(r) == '[') {
        node->kind = peek(r) == '{' ? SL_NODE_OBJECT : SL_NODE_LIST;
        return read_members(r, node, depth + 1);
    }
    return read_scalar(r, node);
}

int sl_tree_from_json(struct sl_tree *tree, const char *path, const char *text, size_t bytes,
                      struct sl_error *error)
{
    struct reader r = {.tree = tree, .error = error, .at = text, .end = text + bytes, .line = 1};
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        r.at += 3;
    r.line_start = r.at;
    tree->path = sl_tree_string(tree, path, strlen(path));
    r.scratch = malloc(bytes + 8);
    int result = tree->path && r.scratch ? 0 : -ENOMEM;
    size_t bad;
    if (!result && bytes > SL_TREE_FILE_BYTES_MAX)
        result = FAIL(&r, "larger than %u bytes: this is not a training configuration",
                      SL_TREE_FILE_BYTES_MAX);
    if (!result && !sl_utf8_valid(text, bytes, &bad)) {
        while (r.at < text + bad)
            advance(&r);
        result = FAIL(&r, "not UTF-8 text at byte %zu", bad);
    }
    if (!result)
        result = skip_space(&r);
    if (!result && peek(&r) != '{')
        result = FAIL(&r, "a configuration is one object; { is expected here");
    if (!result)
        result = read_value(&r, NULL, NULL, 0);
    if (!result)
        result = skip_space(&r);
    if (!result && more(&r))
        result = FAIL(&r, "text after the closing }; one object is expected");
    if (result == -ENOMEM)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "%s: no memory to read it", path);
    free(r.scratch);
    return result;
}
