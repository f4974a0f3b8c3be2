// SPDX-License-Identifier: Apache-2.0
#include "engine/config_tree.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES 16384u

struct sl_tree_chunk {
    struct sl_tree_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void *sl_tree_alloc(struct sl_tree *tree, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    struct sl_tree_chunk *chunk = tree->chunks;
    if (!chunk || chunk->size - chunk->used < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        chunk = malloc(sizeof(*chunk) + size);
        if (!chunk)
            return NULL;
        *chunk = (struct sl_tree_chunk){.next = tree->chunks, .size = size};
        tree->chunks = chunk;
    }
    void *memory = chunk->data + chunk->used;
    chunk->used += bytes;
    memset(memory, 0, bytes);
    return memory;
}

char *sl_tree_string(struct sl_tree *tree, const char *text, size_t bytes)
{
    char *copy = sl_tree_alloc(tree, bytes + 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void sl_tree_finish(struct sl_tree *tree)
{
    while (tree->chunks) {
        struct sl_tree_chunk *next = tree->chunks->next;
        free(tree->chunks);
        tree->chunks = next;
    }
    *tree = (struct sl_tree){0};
}

int sl_tree_error(struct sl_error *error, const char *path, unsigned line, unsigned column,
                  const char *format, ...)
{
    char message[SL_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s:%u:%u: %s", path, line, column,
                        message);
}

const struct sl_node *sl_node_get(const struct sl_node *object, const char *name)
{
    if (!object || object->kind != SL_NODE_OBJECT)
        return NULL;
    for (const struct sl_node *node = object->child; node; node = node->next)
        if (strcmp(node->name, name) == 0)
            return node;
    return NULL;
}

static int add_checks(struct sl_tree *tree, const struct sl_node *parent, const char *name,
                      unsigned line, unsigned column, struct sl_error *error)
{
    if (tree->node_count >= SL_TREE_NODES_MAX)
        return sl_tree_error(error, tree->path, line, column,
                             "more than %u values: this is not a training configuration",
                             SL_TREE_NODES_MAX);
    if (!parent || parent->kind != SL_NODE_OBJECT)
        return 0;
    if (parent->count >= SL_TREE_KEYS_MAX)
        return sl_tree_error(error, tree->path, line, column,
                             "more than %u keys in one object: this is not a training "
                             "configuration",
                             SL_TREE_KEYS_MAX);
    const struct sl_node *first = sl_node_get(parent, name);
    if (first)
        return sl_tree_error(error, tree->path, line, column,
                             "duplicate key \"%.80s\", first given at line %u, column %u; remove "
                             "one of the two",
                             name, first->line, first->column);
    return 0;
}

int sl_tree_add(struct sl_tree *tree, struct sl_node *parent, const char *name, unsigned line,
                unsigned column, struct sl_node **out, struct sl_error *error)
{
    int result = add_checks(tree, parent, name, line, column, error);
    if (result)
        return result;
    struct sl_node *node = sl_tree_alloc(tree, sizeof(*node));
    if (!node)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for its values",
                            tree->path);
    node->name = name;
    node->line = line;
    node->column = column;
    tree->node_count++;
    if (!parent) {
        tree->root = node;
    } else {
        if (parent->last)
            parent->last->next = node;
        else
            parent->child = node;
        parent->last = node;
        parent->count++;
    }
    *out = node;
    return 0;
}

const char *sl_node_kind_name(enum sl_node_kind kind)
{
    static const char *const names[] = {
        [SL_NODE_NULL] = "null",       [SL_NODE_BOOL] = "a boolean", [SL_NODE_NUMBER] = "a number",
        [SL_NODE_STRING] = "a string", [SL_NODE_LIST] = "a list",    [SL_NODE_OBJECT] = "an object",
    };
    return names[kind];
}

static bool word_is(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strcasecmp(word, *list) == 0)
            return true;
    return false;
}

/* A decimal number as a whole; "1e8", "5.", ".5" count, "0x10", "inf" and "nan" do not. */
static bool word_number(const char *word, double *number)
{
    const char *c = word;
    if (*c == '-' || *c == '+')
        c++;
    if (!isdigit((unsigned char)*c) && !(*c == '.' && isdigit((unsigned char)c[1])))
        return false;
    if (c[0] == '0' && (c[1] == 'x' || c[1] == 'X'))
        return false;
    char *end = NULL;
    *number = strtod(word, &end);
    return *end == 0 && isfinite(*number);
}

void sl_node_from_word(struct sl_node *node, const char *word, bool yaml)
{
    static const char *const yes[] = {"true", "yes", "on", NULL}, *const json_yes[] = {"true",
                                                                                       NULL};
    static const char *const no[] = {"false", "no", "off", NULL}, *const json_no[] = {"false",
                                                                                      NULL};
    static const char *const none[] = {"null", "~", "", NULL}, *const json_none[] = {"null", NULL};
    node->text = word;
    if (word_is(word, yaml ? none : json_none)) {
        node->kind = SL_NODE_NULL;
    } else if (word_is(word, yaml ? yes : json_yes) || word_is(word, yaml ? no : json_no)) {
        node->kind = SL_NODE_BOOL;
        node->boolean = word_is(word, yes);
    } else if (word_number(word, &node->number)) {
        node->kind = SL_NODE_NUMBER;
    } else {
        node->kind = SL_NODE_STRING;
    }
}

static int read_error(struct sl_error *error, const char *path, int code)
{
    return sl_error_set(error, SL_DOMAIN_INPUT, -code,
                        "%s: %s; give the path of a DeepSpeed JSON "
                        "or an Accelerate YAML",
                        path, strerror(code));
}

int sl_tree_read_file(const char *path, char **text, size_t *bytes, struct sl_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return read_error(error, path, errno);
    int result = 0;
    struct stat status;
    char *buffer = NULL;
    size_t used = 0;
    if (fstat(fd, &status) != 0) {
        result = read_error(error, path, errno);
        goto done;
    }
    if (S_ISDIR(status.st_mode)) {
        result = read_error(error, path, EISDIR);
        goto done;
    }
    if (S_ISFIFO(status.st_mode)) /* <(...) of a shell: wait for its writer */
        (void)fcntl(fd, F_SETFL, 0);
    buffer = malloc(SL_TREE_FILE_BYTES_MAX + 1);
    if (!buffer) {
        result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory to read it", path);
        goto done;
    }
    while (used <= SL_TREE_FILE_BYTES_MAX) {
        ssize_t got = read(fd, buffer + used, SL_TREE_FILE_BYTES_MAX + 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            result = read_error(error, path, errno);
            goto done;
        }
        if (got == 0)
            break;
        used += (size_t)got;
    }
    if (used > SL_TREE_FILE_BYTES_MAX) {
        result = sl_error_set(error, SL_DOMAIN_INPUT, -EFBIG,
                              "%s: larger than %u bytes: this is not a training configuration",
                              path, SL_TREE_FILE_BYTES_MAX);
        goto done;
    }
    *text = buffer;
    *bytes = used;
    buffer = NULL;
done:
    free(buffer);
    close(fd);
    return result;
}

bool sl_utf8_valid(const char *text, size_t bytes, size_t *bad)
{
    const unsigned char *c = (const unsigned char *)text;
    for (size_t i = 0; i < bytes;) {
        size_t length = c[i] < 0x80         ? 1
                        : (c[i] >> 5) == 6  ? 2
                        : (c[i] >> 4) == 14 ? 3
                        : (c[i] >> 3) == 30 ? 4
                                            : 0;
        uint32_t code = length == 1 ? c[i] : length ? c[i] & (0x7fu >> length) : 0;
        *bad = i;
        if (length == 0 || i + length > bytes || c[i] == 0)
            return false;
        for (size_t k = 1; k < length; k++) {
            if ((c[i + k] & 0xc0) != 0x80)
                return false;
            code = code << 6 | (c[i + k] & 0x3f);
        }
        static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
        if (code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return false;
        i += length;
    }
    return true;
}
