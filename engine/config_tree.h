// SPDX-License-Identifier: Apache-2.0
/* A configuration file as a tree whose every node knows its line and column.
 *
 * Both readers (JSON with comments, YAML) make the same tree, under the same limits; everything
 * after them works on the tree alone.
 */
#ifndef SLUICE_ENGINE_CONFIG_TREE_H
#define SLUICE_ENGINE_CONFIG_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Configurations that people write are a few KiB; these bounds keep time and memory small
 * whatever is given. */
#define SL_TREE_FILE_BYTES_MAX (1u << 20)
#define SL_TREE_DEPTH_MAX 64u
#define SL_TREE_NODES_MAX 16384u
#define SL_TREE_KEYS_MAX 1024u /* of one object */

enum sl_node_kind {
    SL_NODE_NULL,
    SL_NODE_BOOL,
    SL_NODE_NUMBER,
    SL_NODE_STRING,
    SL_NODE_LIST,
    SL_NODE_OBJECT,
};

struct sl_node {
    enum sl_node_kind kind;
    bool boolean;
    unsigned line, column; /* from 1 */
    double number;
    const char *name;                    /* key inside an object; NULL otherwise */
    const char *text;                    /* of a string; a number as written */
    struct sl_node *child, *last, *next; /* of a list or object, in order */
    size_t count;
};

struct sl_tree {
    struct sl_node *root;
    char *path; /* as shown in messages */
    size_t node_count;
    struct sl_tree_chunk *chunks;
};

void sl_tree_finish(struct sl_tree *tree); /* zeroed struct allowed */

/* For the readers: memory that lives as long as the tree; NULL: out of memory. */
void *sl_tree_alloc(struct sl_tree *tree, size_t bytes);
char *sl_tree_string(struct sl_tree *tree, const char *text, size_t bytes);

/* A new node, the last child of `parent` (NULL: the root). Refuses a name that the parent has
 * already, and more than the limits above. */
int sl_tree_add(struct sl_tree *tree, struct sl_node *parent, const char *name, unsigned line,
                unsigned column, struct sl_node **out, struct sl_error *error);

const struct sl_node *sl_node_get(const struct sl_node *object, const char *name);
const char *sl_node_kind_name(enum sl_node_kind kind); /* "a number", "an object", ... */

/* "file:line:column: message" */
int sl_tree_error(struct sl_error *error, const char *path, unsigned line, unsigned column,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Parse `bytes` bytes of JSON with HJSON's comments, trailing commas and unquoted keys.
 *
 * Memory   bounded by the limits above; the tree keeps no pointer into text
 * Errors   -EINVAL with file, line and column: syntax, a duplicate key, a limit; -ENOMEM */
int sl_tree_from_json(struct sl_tree *tree, const char *path, const char *text, size_t bytes,
                      struct sl_error *error);

/* The same for one YAML document (YAML 1.1 scalars as PyYAML reads them); aliases are refused. */
int sl_tree_from_yaml(struct sl_tree *tree, const char *path, const char *text, size_t bytes,
                      struct sl_error *error);

/* The scalar that an unquoted word is in YAML or after --set key=: null, bool, number or string. */
void sl_node_from_word(struct sl_node *node, const char *word, bool yaml);

/* Read a whole file, at most SL_TREE_FILE_BYTES_MAX bytes. The caller frees *text. */
int sl_tree_read_file(const char *path, char **text, size_t *bytes, struct sl_error *error);

/* True where text[0 .. bytes) is UTF-8 without NUL. *bad is the offset of the first fault. */
bool sl_utf8_valid(const char *text, size_t bytes, size_t *bad);

#endif
