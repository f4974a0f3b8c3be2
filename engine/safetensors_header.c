// SPDX-License-Identifier: Apache-2.0
/* The JSON head of a safetensors file.
 *
 * The head comes from strangers and may be 100 MB long. A general JSON library would build a tree
 * of several times that size before the first check; the grammar needed is three levels deep and
 * fixed, so this is a single pass over the text that writes straight into the tensor list. What the
 * grammar of the format does not name is an error, not something to skip.
 *
 * Bounds: the list grows to SL_SAFETENSORS_TENSORS_MAX entries, the name pool to the header's size
 * (decoding an escape never lengthens it). Integers are read with overflow checks; a fraction or an
 * exponent is refused. Recursion: none.
 *
 * Invariant after success: tensors are sorted by name, names are distinct, and their byte ranges,
 * sorted, cover [0, data_bytes) without a hole or an overlap.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/safetensors.h"

static const struct {
    const char *name;
    uint8_t bytes;
} types[SL_ST_TYPE_COUNT] = {
    [SL_ST_BOOL] = {"BOOL", 1},       [SL_ST_U8] = {"U8", 1},           [SL_ST_I8] = {"I8", 1},
    [SL_ST_F8_E5M2] = {"F8_E5M2", 1}, [SL_ST_F8_E4M3] = {"F8_E4M3", 1}, [SL_ST_I16] = {"I16", 2},
    [SL_ST_U16] = {"U16", 2},         [SL_ST_F16] = {"F16", 2},         [SL_ST_BF16] = {"BF16", 2},
    [SL_ST_I32] = {"I32", 4},         [SL_ST_U32] = {"U32", 4},         [SL_ST_F32] = {"F32", 4},
    [SL_ST_F64] = {"F64", 8},         [SL_ST_I64] = {"I64", 8},         [SL_ST_U64] = {"U64", 8},
};

const char *sl_safetensors_type_name(enum sl_safetensors_type type)
{
    return types[type].name;
}

size_t sl_safetensors_type_bytes(enum sl_safetensors_type type)
{
    return types[type].bytes;
}

enum sl_safetensors_type sl_safetensors_type_of(enum sl_dtype dtype)
{
    return dtype == SL_F32 ? SL_ST_F32 : dtype == SL_BF16 ? SL_ST_BF16 : SL_ST_F16;
}

struct parser {
    const char *path, *start, *at, *end;
    struct sl_safetensors *file;
    size_t capacity, pool_used;
    const char *tensor, *field; /* being read, for messages */
    struct sl_error *error;
};

static int refuse(struct parser *p, const char *what)
{
    if (p->tensor)
        return sl_error_set(p->error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: tensor \"%.80s\": %s%s%s (byte %zu)", p->path, p->tensor,
                            p->field ? p->field : "", p->field ? ": " : "", what,
                            8 + (size_t)(p->at - p->start));
    return sl_error_set(p->error, SL_DOMAIN_INPUT, -EINVAL, "%s: header: %s (byte %zu)", p->path,
                        what, 8 + (size_t)(p->at - p->start));
}

static void skip_space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

/* The next character that is no space, or 0 at the end. Does not consume it. */
static char peek(struct parser *p)
{
    skip_space(p);
    return p->at < p->end ? *p->at : '\0';
}

static int expect(struct parser *p, char c, const char *what)
{
    if (peek(p) != c || c == '\0')
        return refuse(p, what);
    p->at++;
    return 0;
}

static int hex4(struct parser *p, uint32_t *out)
{
    uint32_t value = 0;
    if (p->end - p->at < 4)
        return refuse(p, "a \\u escape is cut off");
    for (int i = 0; i < 4; i++) {
        char c = *p->at++;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16)
            return refuse(p, "a \\u escape is not hexadecimal");
        value = value * 16 + digit;
    }
    *out = value;
    return 0;
}

static size_t utf8_encode(uint32_t code, char *out)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

static int escape(struct parser *p, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end)
        return refuse(p, "an escape is cut off");
    char c = *p->at++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *(*to)++ = into[simple - from];
        return 0;
    }
    if (c != 'u')
        return refuse(p, "an escape that JSON does not have");
    uint32_t code, low;
    int rc = hex4(p, &code);
    if (rc)
        return rc;
    if (code >= 0xd800 && code < 0xdc00) {
        if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u')
            return refuse(p, "half of a surrogate pair");
        p->at += 2;
        rc = hex4(p, &low);
        if (rc)
            return rc;
        if (low < 0xdc00 || low > 0xdfff)
            return refuse(p, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return refuse(p, "half of a surrogate pair");
    }
    if (code == 0)
        return refuse(p, "a zero character in a string");
    *to += utf8_encode(code, *to);
    return 0;
}

/* Length of the well-formed UTF-8 sequence at `s`, or 0. */
static size_t utf8_length(const unsigned char *s, const unsigned char *end)
{
    size_t left = (size_t)(end - s);
    unsigned char a = s[0];
    size_t length = a < 0x80 ? 1 : a < 0xc2 ? 0 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : a < 0xf5 ? 4 : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((a == 0xe0 && s[1] < 0xa0) || (a == 0xed && s[1] > 0x9f) || (a == 0xf0 && s[1] < 0x90) ||
        (a == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

/* Read a string into the name pool. It stays there only if the caller adds its length to
 * pool_used. The pool holds header_bytes: every string with its quotes is longer than decoded. */
static int string(struct parser *p, char **out)
{
    int rc = expect(p, '"', "expected a string");
    if (rc)
        return rc;
    char *to = p->file->names + p->pool_used;
    *out = to;
    while (p->at < p->end && *p->at != '"') {
        unsigned char c = (unsigned char)*p->at;
        if (c < 0x20)
            return refuse(p, "a control character in a string");
        if (c == '\\') {
            p->at++;
            rc = escape(p, &to);
            if (rc)
                return rc;
            continue;
        }
        size_t length = utf8_length((const unsigned char *)p->at, (const unsigned char *)p->end);
        if (length == 0)
            return refuse(p, "not UTF-8");
        memcpy(to, p->at, length);
        to += length;
        p->at += length;
    }
    if (p->at == p->end)
        return refuse(p, "a string is cut off");
    p->at++;
    *to = '\0';
    return 0;
}

static int integer(struct parser *p, uint64_t *out)
{
    char c = peek(p);
    if (c < '0' || c > '9')
        return refuse(p, "expected an integer that is not negative");
    uint64_t value = 0;
    const char *first = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        if (!sl_size_mul(value, 10, &value) ||
            !sl_size_add(value, (uint64_t)(*p->at - '0'), &value))
            return refuse(p, "an integer over 2^64");
        p->at++;
    }
    if (*first == '0' && p->at - first > 1)
        return refuse(p, "an integer with a leading zero");
    if (p->at < p->end && (*p->at == '.' || *p->at == 'e' || *p->at == 'E'))
        return refuse(p, "expected an integer");
    *out = value;
    return 0;
}

/* "[" integers "]", at most `limit` of them. */
static int integers(struct parser *p, uint64_t *out, uint32_t limit, uint32_t *count,
                    const char *too_many)
{
    int rc = expect(p, '[', "expected a list");
    *count = 0;
    if (rc)
        return rc;
    if (peek(p) == ']') {
        p->at++;
        return 0;
    }
    for (;;) {
        if (*count == limit)
            return refuse(p, too_many);
        rc = integer(p, &out[(*count)++]);
        if (rc)
            return rc;
        if (peek(p) == ']') {
            p->at++;
            return 0;
        }
        rc = expect(p, ',', "expected , or ] in a list");
        if (rc)
            return rc;
    }
}

static int type_field(struct parser *p, struct sl_safetensor *tensor)
{
    char *text;
    int rc = string(p, &text);
    if (rc)
        return rc;
    for (int i = 0; i < SL_ST_TYPE_COUNT; i++) {
        if (strcmp(types[i].name, text) == 0) {
            tensor->type = (enum sl_safetensors_type)i;
            return 0;
        }
    }
    return sl_error_set(p->error, SL_DOMAIN_INPUT, -EINVAL,
                        "%s: tensor \"%.80s\": dtype \"%.40s\" is not supported", p->path,
                        p->tensor, text);
}

/* One of dtype, shape, data_offsets; `seen` has a bit for each. */
static int tensor_field(struct parser *p, struct sl_safetensor *tensor, unsigned *seen)
{
    char *key;
    uint64_t offsets[2];
    uint32_t count;
    int rc = string(p, &key);
    if (rc)
        return rc;
    unsigned bit = strcmp(key, "dtype") == 0          ? 1u
                   : strcmp(key, "shape") == 0        ? 2u
                   : strcmp(key, "data_offsets") == 0 ? 4u
                                                      : 0u;
    if (bit == 0)
        return refuse(p, "a field other than dtype, shape, data_offsets");
    if (*seen & bit)
        return refuse(p, "a field is given twice");
    *seen |= bit;
    rc = expect(p, ':', "expected : after a key");
    if (rc)
        return rc;
    if (bit == 1)
        return type_field(p, tensor);
    p->field = bit == 2 ? "shape" : "data_offsets";
    if (bit == 2) {
        rc = integers(p, tensor->shape, SL_SAFETENSORS_RANK_MAX, &tensor->rank,
                      "more than 8 dimensions");
    } else {
        rc = integers(p, offsets, 2, &count, "more than two values");
        if (!rc && count != 2)
            rc = refuse(p, "needs two values");
        tensor->begin = rc ? 0 : offsets[0];
        tensor->end = rc ? 0 : offsets[1];
    }
    p->field = NULL;
    return rc;
}

static int check_bytes(struct parser *p, const struct sl_safetensor *tensor)
{
    uint64_t bytes = types[tensor->type].bytes;
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (!sl_size_mul(bytes, tensor->shape[i], &bytes))
            return refuse(p, "shape overflows");
    if (tensor->end < tensor->begin || tensor->end - tensor->begin != bytes)
        return refuse(p, "data_offsets disagree with shape and dtype");
    return 0;
}

static int tensor_object(struct parser *p, struct sl_safetensor *tensor)
{
    unsigned seen = 0;
    int rc = expect(p, '{', "expected an object");
    while (!rc) {
        rc = tensor_field(p, tensor, &seen);
        if (rc)
            return rc;
        if (peek(p) == '}') {
            p->at++;
            break;
        }
        rc = expect(p, ',', "expected , or } after a field");
    }
    if (rc)
        return rc;
    if (seen != 7)
        return refuse(p, "needs dtype, shape and data_offsets");
    return check_bytes(p, tensor);
}

static int metadata_object(struct parser *p)
{
    char *text;
    int rc = expect(p, '{', "__metadata__: expected an object");
    if (rc)
        return rc;
    if (peek(p) == '}') {
        p->at++;
        return 0;
    }
    for (;;) {
        if ((rc = string(p, &text)) || (rc = expect(p, ':', "__metadata__: expected :")) ||
            (rc = string(p, &text)))
            return rc;
        if (peek(p) == '}') {
            p->at++;
            return 0;
        }
        rc = expect(p, ',', "__metadata__: expected , or }");
        if (rc)
            return rc;
    }
}

static int grow(struct parser *p)
{
    if (p->file->count < p->capacity)
        return 0;
    if (p->capacity == SL_SAFETENSORS_TENSORS_MAX)
        return refuse(p, "more than 1,048,576 tensors");
    size_t capacity = p->capacity ? p->capacity * 2 : 64;
    struct sl_safetensor *grown = realloc(p->file->tensors, capacity * sizeof *grown);
    if (!grown)
        return sl_error_set(p->error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for %zu tensors",
                            p->path, capacity);
    p->file->tensors = grown;
    p->capacity = capacity;
    return 0;
}

static int entry(struct parser *p, bool *metadata_seen)
{
    char *name;
    int rc = string(p, &name);
    if (!rc)
        rc = expect(p, ':', "expected : after a name");
    if (rc)
        return rc;
    if (strcmp(name, "__metadata__") == 0) {
        if (*metadata_seen)
            return refuse(p, "__metadata__ is given twice");
        *metadata_seen = true;
        return metadata_object(p);
    }
    rc = grow(p);
    if (rc)
        return rc;
    struct sl_safetensor *tensor = &p->file->tensors[p->file->count];
    *tensor = (struct sl_safetensor){.name = name};
    p->pool_used += strlen(name) + 1;
    p->tensor = name;
    rc = tensor_object(p, tensor);
    if (rc)
        return rc;
    p->tensor = NULL;
    p->file->count++;
    return 0;
}

static int entries(struct parser *p)
{
    bool metadata_seen = false;
    if (p->at == p->end || *p->at != '{')
        return refuse(p, "does not begin with {");
    p->at++;
    if (peek(p) == '}') {
        p->at++;
        return 0;
    }
    for (;;) {
        int rc = entry(p, &metadata_seen);
        if (rc)
            return rc;
        if (peek(p) == '}') {
            p->at++;
            return 0;
        }
        rc = expect(p, ',', "expected , or } after a tensor");
        if (rc)
            return rc;
    }
}

static int by_begin(const void *a, const void *b)
{
    const struct sl_safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* an empty tensor before the one it touches */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sl_safetensor *)a)->name, ((const struct sl_safetensor *)b)->name);
}

static int check_cover(struct parser *p, uint64_t data_bytes)
{
    struct sl_safetensors *file = p->file;
    uint64_t end = 0;
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_begin);
    for (size_t i = 0; i < file->count; i++) {
        p->tensor = file->tensors[i].name;
        if (file->tensors[i].begin != end)
            return refuse(p, file->tensors[i].begin < end ? "overlaps another tensor"
                                                          : "a hole lies before its data");
        end = file->tensors[i].end;
    }
    p->tensor = NULL;
    if (end != data_bytes)
        return sl_error_set(p->error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: the tensors need %llu bytes of data, the file has %llu%s", p->path,
                            (unsigned long long)end, (unsigned long long)data_bytes,
                            data_bytes < end ? ": it is cut off" : "");
    if (file->count > 0)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0) {
            p->tensor = file->tensors[i].name;
            return refuse(p, "its name is given twice");
        }
    }
    return 0;
}

int sl_safetensors_parse(struct sl_safetensors *file, const char *path, const char *header,
                         size_t header_bytes, uint64_t data_bytes, struct sl_error *error)
{
    struct parser p = {.path = path,
                       .start = header,
                       .at = header,
                       .end = header + header_bytes,
                       .file = file,
                       .error = error};
    file->tensors = NULL;
    file->count = 0;
    file->names = malloc(header_bytes + 1);
    if (!file->names)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a header of %zu B",
                            path, header_bytes);
    int rc = entries(&p);
    if (!rc && peek(&p) != '\0')
        rc = refuse(&p, "text after the closing }");
    if (!rc && p.at != p.end)
        rc = refuse(&p, "a zero character after the closing }");
    if (!rc)
        rc = check_cover(&p, data_bytes);
    if (rc) {
        free(file->tensors);
        free(file->names);
        file->tensors = NULL;
        file->names = NULL;
        file->count = 0;
    }
    return rc;
}
