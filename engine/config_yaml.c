// SPDX-License-Identifier: Apache-2.0
/* Accelerate's YAML into the same tree as the JSON.
 *
 * Choice    libyaml's event stream, so that a hostile file is stopped at the first event past a
 *           limit and no document is ever composed in memory. Aliases are refused: Accelerate
 *           writes none, and they are how a small file becomes a huge one.
 */
#include "engine/config_tree.h"

#include <errno.h>
#include <string.h>
#include <yaml.h>

struct frame {
    struct sl_node *node;
    const char *name; /* key that waits for its value */
    unsigned line, column;
};

struct reader {
    struct sl_tree *tree;
    struct sl_error *error;
    struct frame frames[SL_TREE_DEPTH_MAX];
    size_t depth; /* open lists and objects */
};

#define FAIL(r, mark, ...)                                                                         \
    sl_tree_error((r)->error, (r)->tree->path, (unsigned)(mark).line + 1,                          \
                  (unsigned)(mark).column + 1, __VA_ARGS__)

/* A node for a value under the innermost open container, taking its waiting key. */
static int add(struct reader *r, const yaml_event_t *event, struct sl_node **node)
{
    struct frame *top = r->depth ? &r->frames[r->depth - 1] : NULL;
    const char *name = top ? top->name : NULL;
    if (top)
        top->name = NULL;
    if (!top && r->tree->root)
        return FAIL(r, event->start_mark, "a second document; one is expected");
    return sl_tree_add(r->tree, top ? top->node : NULL, name, (unsigned)event->start_mark.line + 1,
                       (unsigned)event->start_mark.column + 1, node, r->error);
}

static int open_node(struct reader *r, const yaml_event_t *event, enum sl_node_kind kind)
{
    struct sl_node *node;
    if (r->depth && r->frames[r->depth - 1].node->kind == SL_NODE_OBJECT &&
        !r->frames[r->depth - 1].name)
        return FAIL(r, event->start_mark, "a key must be a plain word");
    if (r->depth == SL_TREE_DEPTH_MAX)
        return FAIL(r, event->start_mark,
                    "nested deeper than %u: this is not a training "
                    "configuration",
                    SL_TREE_DEPTH_MAX);
    int result = add(r, event, &node);
    if (result)
        return result;
    node->kind = kind;
    r->frames[r->depth++] = (struct frame){.node = node};
    return 0;
}

static int scalar(struct reader *r, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (memchr(value, 0, length))
        return FAIL(r, event->start_mark, "a NUL character cannot be part of a value");
    char *text = sl_tree_string(r->tree, value, length);
    if (!text)
        return -ENOMEM;
    struct frame *top = r->depth ? &r->frames[r->depth - 1] : NULL;
    if (top && top->node->kind == SL_NODE_OBJECT && !top->name) {
        if (sl_node_get(top->node, text)) {
            struct sl_node *unused;
            return sl_tree_add(r->tree, top->node, text, (unsigned)event->start_mark.line + 1,
                               (unsigned)event->start_mark.column + 1, &unused, r->error);
        }
        top->name = text;
        return 0;
    }
    struct sl_node *node;
    int result = add(r, event, &node);
    if (result)
        return result;
    node->kind = SL_NODE_STRING;
    node->text = text;
    if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        sl_node_from_word(node, text, true);
    return 0;
}

static int handle(struct reader *r, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return scalar(r, event);
    case YAML_MAPPING_START_EVENT:
        return open_node(r, event, SL_NODE_OBJECT);
    case YAML_SEQUENCE_START_EVENT:
        return open_node(r, event, SL_NODE_LIST);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        r->depth--;
        return 0;
    case YAML_ALIAS_EVENT:
        return FAIL(r, event->start_mark, "an alias (*name) is not read; write the value itself");
    default:
        return 0;
    }
}

static int parse(struct reader *r, yaml_parser_t *parser)
{
    for (;;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) {
            if (parser->error == YAML_MEMORY_ERROR)
                return -ENOMEM;
            return FAIL(r, parser->problem_mark, "not YAML: %s",
                        parser->problem ? parser->problem : "unreadable");
        }
        yaml_event_type_t type = event.type;
        int result = handle(r, &event);
        yaml_event_delete(&event);
        if (result || type == YAML_STREAM_END_EVENT)
            return result;
    }
}

int sl_tree_from_yaml(struct sl_tree *tree, const char *path, const char *text, size_t bytes,
                      struct sl_error *error)
{
    struct reader r = {.tree = tree, .error = error};
    yaml_parser_t parser;
    size_t bad;
    tree->path = sl_tree_string(tree, path, strlen(path));
    if (!tree->path || !yaml_parser_initialize(&parser))
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory to read it", path);
    int result = 0;
    if (bytes > SL_TREE_FILE_BYTES_MAX)
        result = sl_tree_error(error, path, 1, 1,
                               "larger than %u bytes: this is not a training configuration",
                               SL_TREE_FILE_BYTES_MAX);
    else if (!sl_utf8_valid(text, bytes, &bad))
        result = sl_tree_error(error, path, 1, 1, "not UTF-8 text at byte %zu", bad);
    if (!result) {
        yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
        yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
        result = parse(&r, &parser);
    }
    if (!result && (!tree->root || tree->root->kind != SL_NODE_OBJECT))
        result = sl_tree_error(error, path, 1, 1,
                               "an Accelerate configuration is a mapping of keys "
                               "to values");
    if (result == -ENOMEM)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "%s: no memory to read it", path);
    yaml_parser_delete(&parser);
    return result;
}
