// SPDX-License-Identifier: Apache-2.0
/* From trees and --set words to one typed value for each key.
 *
 * Problem   a file may hold a key under an old name, a number where DeepSpeed computes it as a
 *           float, a misspelt word; all of it is to be answered in one go, not one error at a time.
 * Choice    walk the tree once, look each dotted path up in the table, check the type there, and
 *           collect problems as lines. Nothing after this point looks at trees or spellings.
 * Invariant a value that is GIVEN has the key's type and lies in its range.
 */
#include "engine/config_values.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/size.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53: every whole number up to here is a double */

int sl_values_init(struct sl_config_context *context)
{
    size_t count = sl_key_count();
    context->values = calloc(count, sizeof(*context->values));
    if (!context->values)
        return sl_error_set(context->error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the keys");
    for (size_t i = 0; i < count; i++)
        context->values[i].key = sl_key_at(i);
    return 0;
}

void sl_values_finish(struct sl_config_context *context)
{
    for (size_t i = 0, n = context->values ? sl_key_count() : 0; i < n; i++) {
        free(context->values[i].note);
        free(context->values[i].resolved);
    }
    free(context->values);
    sl_tree_finish(&context->tree);
    sl_tree_finish(&context->yaml);
}

static struct sl_value *find(struct sl_config_context *context, const char *path, bool accelerate)
{
    size_t index = 0;
    const struct sl_key *key = sl_key_find(path, accelerate, &index);
    assert(key && "a key that the table does not have");
    return &context->values[index];
}

struct sl_value *sl_value(struct sl_config_context *context, const char *path)
{
    return find(context, path, false);
}

struct sl_value *sl_value_accelerate(struct sl_config_context *context, const char *path)
{
    return find(context, path, true);
}

double sl_value_number(struct sl_config_context *context, const char *path, double otherwise)
{
    const struct sl_value *value = sl_value(context, path);
    return sl_value_given(value) ? value->number : otherwise;
}

bool sl_value_bool(struct sl_config_context *context, const char *path, bool otherwise)
{
    const struct sl_value *value = sl_value(context, path);
    return sl_value_given(value) ? value->boolean : otherwise;
}

bool sl_value_is(struct sl_config_context *context, const char *path, const char *choice)
{
    const struct sl_value *value = sl_value(context, path);
    return sl_value_given(value) && strcmp(value->text, choice) == 0;
}

const char *sl_number_text(double number, char buffer[32])
{
    if (number == floor(number) && fabs(number) < 1e15) {
        snprintf(buffer, 32, "%.0f", number);
        return buffer;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buffer, 32, "%.*g", digits, number);
        if (strtod(buffer, NULL) == number)
            break;
    }
    return buffer;
}

/* "a whole number from 0 to 3", for messages. */
static void describe(const struct sl_key *key, char *text, size_t bytes)
{
    char low[32], high[32];
    if (key->type == SL_KEY_CHOICE) {
        snprintf(text, bytes, "one of %s", key->choices);
        return;
    }
    int used = snprintf(text, bytes, "%s", sl_key_type_name(key));
    if (key->type == SL_KEY_BOOL || key->type == SL_KEY_STRING || key->type == SL_KEY_WORDS)
        return;
    if (key->type == SL_KEY_NUMBER && key->min == 0 && key->max == 0)
        return;
    double max = key->max > 0 ? key->max : EXACT_MAX;
    snprintf(text + used, bytes - (size_t)used, " from %s to %s", sl_number_text(key->min, low),
             sl_number_text(max, high));
}

/* Numbers of every kind; false: not in range or not whole. */
static bool check_number(const struct sl_key *key, double number, double *out)
{
    bool bounded = key->min != 0 || key->max != 0;
    if (key->type == SL_KEY_ELEMENTS)
        number = trunc(number);
    if (key->type == SL_KEY_NUMBER && !bounded) {
        *out = number;
        return isfinite(number);
    }
    double max = key->max > 0 ? key->max : key->type == SL_KEY_NUMBER ? INFINITY : EXACT_MAX;
    if (!(number >= key->min && number <= max) ||
        (key->type == SL_KEY_COUNT && number != floor(number)))
        return false;
    *out = number;
    return true;
}

static bool read_choice(struct sl_value *value, const char *word)
{
    static _Thread_local char buffer[64];
    for (const char *c = value->key->choices; *c;) {
        size_t length = strcspn(c, "|");
        if (length < sizeof(buffer) && strlen(word) == length &&
            strncasecmp(c, word, length) == 0) {
            memcpy(buffer, c, length);
            buffer[length] = 0;
            value->text = buffer; /* the caller copies it */
            return true;
        }
        c += length + (c[length] == '|');
    }
    return false;
}

static bool read_pair(struct sl_value *value, const struct sl_node *node)
{
    if (node->kind == SL_NODE_LIST && node->count == 2) {
        const struct sl_node *first = node->child, *second = first->next;
        return first->kind == SL_NODE_NUMBER && second->kind == SL_NODE_NUMBER &&
               check_number(value->key, first->number, &value->pair[0]) &&
               check_number(value->key, second->number, &value->pair[1]);
    }
    if (node->kind != SL_NODE_STRING)
        return false;
    double a, b;
    char close = 0;
    const char *text = node->text + (node->text[0] == '[');
    return sscanf(text, "%lf , %lf %c", &a, &b, &close) >= 2 && (close == 0 || close == ']') &&
           check_number(value->key, a, &value->pair[0]) &&
           check_number(value->key, b, &value->pair[1]);
}

static bool read_words(struct sl_tree *tree, struct sl_value *value, const struct sl_node *node)
{
    if (node->kind != SL_NODE_LIST) {
        value->text = node->text;
        return node->kind == SL_NODE_STRING || node->kind == SL_NODE_NUMBER;
    }
    size_t bytes = 1, used = 0;
    for (const struct sl_node *word = node->child; word; word = word->next) {
        if (word->kind != SL_NODE_STRING)
            return false;
        bytes += strlen(word->text) + 1;
    }
    char *joined = sl_tree_alloc(tree, bytes);
    if (!joined)
        return false;
    for (const struct sl_node *word = node->child; word; word = word->next)
        used += (size_t)snprintf(joined + used, bytes - used, "%s%s", used ? "," : "", word->text);
    value->text = joined;
    return true;
}

/* A short text of what stands there, for messages and the report. */
static const char *node_text(struct sl_tree *tree, const struct sl_node *node)
{
    char buffer[160];
    if (node->kind == SL_NODE_STRING)
        snprintf(buffer, sizeof(buffer), "\"%.120s\"", node->text);
    else if (node->kind == SL_NODE_NUMBER)
        snprintf(buffer, sizeof(buffer), "%.120s", node->text);
    else if (node->kind == SL_NODE_BOOL)
        snprintf(buffer, sizeof(buffer), "%s", node->boolean ? "true" : "false");
    else
        snprintf(buffer, sizeof(buffer), "%s", sl_node_kind_name(node->kind));
    char *text = sl_tree_string(tree, buffer, strlen(buffer));
    return text ? text : "?";
}

/* Read one node as the key's type. `loose`: a word of --set, where everything is text. */
static bool read_typed(struct sl_tree *tree, struct sl_value *value, const struct sl_node *node,
                       bool loose)
{
    uint64_t bytes;
    switch (value->key->type) {
    case SL_KEY_BOOL:
        value->boolean = node->boolean;
        return node->kind == SL_NODE_BOOL;
    case SL_KEY_COUNT:
    case SL_KEY_ELEMENTS:
    case SL_KEY_NUMBER:
        return node->kind == SL_NODE_NUMBER &&
               check_number(value->key, node->number, &value->number);
    case SL_KEY_SIZE:
        if (node->kind == SL_NODE_STRING && sl_size_parse(node->text, &bytes) == 0)
            return check_number(value->key, (double)bytes, &value->number);
        return node->kind == SL_NODE_NUMBER &&
               check_number(value->key, trunc(node->number), &value->number);
    case SL_KEY_STRING:
        value->text = node->text;
        return node->kind == SL_NODE_STRING || (loose && node->text);
    case SL_KEY_CHOICE:
        if (node->kind == SL_NODE_BOOL && !node->boolean && read_choice(value, "no"))
            return true; /* YAML reads a bare `no` as false */
        return node->text && node->kind != SL_NODE_NUMBER && read_choice(value, node->text);
    case SL_KEY_PAIR:
        return read_pair(value, node);
    case SL_KEY_WORDS:
        return read_words(tree, value, node);
    case SL_KEY_BLOCK:
        value->boolean = true;
        return true;
    }
    return false;
}

static bool same_value(const struct sl_value *a, const struct sl_value *b)
{
    if (a->state != b->state)
        return false;
    if (a->state == SL_VALUE_AUTO)
        return true;
    const char *x = a->text ? a->text : "", *y = b->text ? b->text : "";
    return a->boolean == b->boolean && a->number == b->number && a->pair[0] == b->pair[0] &&
           a->pair[1] == b->pair[1] && strcmp(x, y) == 0;
}

struct place {
    struct sl_config_context *context;
    const char *path; /* of the file; NULL: --set */
    enum sl_config_source from;
    bool accelerate;
};

static const char *source_of(const struct place *place, const struct sl_node *node)
{
    char buffer[SL_CONFIG_PATH_BYTES + 32];
    if (!place->path)
        return "--set";
    snprintf(buffer, sizeof(buffer), "%s:%u", place->path, node->line);
    char *text = sl_tree_string(&place->context->tree, buffer, strlen(buffer));
    return text ? text : "?";
}

/* cpu_offload and its kind: true and false stand for a device. */
static bool old_offload(const struct sl_key *key, const struct sl_node *node,
                        struct sl_node *device)
{
    if (!key->renamed || !strstr(key->path, "cpu_offload") || strstr(key->path, "pin_memory") ||
        node->kind != SL_NODE_BOOL)
        return false;
    *device = *node;
    device->kind = SL_NODE_STRING;
    device->text = node->boolean ? "cpu" : "none";
    return true;
}

/* "auto" where somebody may supply the value; elsewhere it means the default. */
static bool is_auto(const struct sl_key *key, const struct sl_node *node)
{
    bool other = key->type == SL_KEY_STRING || key->type == SL_KEY_CHOICE ||
                 key->type == SL_KEY_WORDS || key->type == SL_KEY_BLOCK;
    return node->kind == SL_NODE_STRING && strcmp(node->text, "auto") == 0 &&
           (!other || (key->flags & SL_KEY_AUTO));
}

/* Accelerate's files quote freely: 'true' and '3' mean what they say. */
static const struct sl_node *unquote(const struct place *place, const struct sl_key *key,
                                     const struct sl_node *node, struct sl_node *plain)
{
    bool scalar =
        key->type == SL_KEY_BOOL || key->type == SL_KEY_COUNT || key->type == SL_KEY_NUMBER;
    if (!place->accelerate || !scalar || node->kind != SL_NODE_STRING)
        return node;
    *plain = *node;
    sl_node_from_word(plain, node->text, true);
    return plain;
}

static void store(const struct place *place, const struct sl_key *given, const char *target_path,
                  const struct sl_node *node)
{
    struct sl_config_context *context = place->context;
    struct sl_value *slot = find(context, target_path, place->accelerate);
    struct sl_value value = {.key = slot->key,
                             .state = SL_VALUE_GIVEN,
                             .from = place->from,
                             .source = source_of(place, node)};
    if (node->kind == SL_NODE_NULL && place->path)
        return; /* null: as if the key were not there */
    struct sl_node device, plain;
    node = unquote(place, value.key, node, &plain);
    if (old_offload(given, node, &device)) {
        if (!node->boolean)
            return;
        node = &device;
    }
    if (given->renamed)
        value.given_as = given->path;
    if (is_auto(value.key, node)) {
        value.state = SL_VALUE_AUTO;
    } else if (!read_typed(&context->tree, &value, node, !place->path || place->accelerate)) {
        char meant[200];
        describe(value.key, meant, sizeof(meant));
        sl_config_problem(context, "%s: %s %s: %s is meant%s%s", value.source, given->path,
                          node_text(&context->tree, node), meant,
                          value.key->type == SL_KEY_CHOICE ? "; " : "",
                          value.key->type == SL_KEY_CHOICE ? value.key->note : "");
        return;
    }
    if (value.key->type == SL_KEY_CHOICE && value.state == SL_VALUE_GIVEN) {
        value.text = sl_tree_string(&context->tree, value.text, strlen(value.text));
        if (!value.text)
            context->result = -ENOMEM;
    }
    if (value.key->type == SL_KEY_BLOCK) {
        const struct sl_node *enabled = sl_node_get(node, "enabled");
        bool off = node->kind == SL_NODE_BOOL ? !node->boolean
                   : node->kind == SL_NODE_OBJECT || node->kind == SL_NODE_LIST
                       ? node->count == 0 ||
                             (enabled && enabled->kind == SL_NODE_BOOL && !enabled->boolean)
                       : false;
        value.boolean = !off;
    }
    if (slot->state != SL_VALUE_ABSENT && place->path && slot->from == SL_CONFIG_FROM_FILE &&
        !same_value(slot, &value)) {
        sl_config_problem(context,
                          "%s: %s and %s (%s) are one key and have different values; "
                          "remove one of the two",
                          value.source, given->path,
                          slot->given_as ? slot->given_as : slot->key->path, slot->source);
        return;
    }
    *slot = value;
}

/* Places where DeepSpeed ignores what it does not know, and configurations in use have some. */
static bool is_loose(const struct place *place, const char *path)
{
    static const char *const blocks[] = {"activation_checkpointing.", "aio.", "checkpoint.",
                                         "data_types.", "flops_profiler."};
    for (size_t i = 0; !place->accelerate && i < sizeof(blocks) / sizeof(blocks[0]); i++)
        if (strncmp(path, blocks[i], strlen(blocks[i])) == 0)
            return place->path != NULL;
    return place->path && !strchr(path, '.');
}

static void unknown(const struct place *place, const char *path, const struct sl_node *node)
{
    struct sl_config_context *context = place->context;
    char nearest[SL_KEY_PATH_BYTES];
    bool near = sl_key_nearest(path, place->accelerate, nearest);
    bool loose = is_loose(place, path);
    const char *dot = strchr(path, '.');
    if (loose && dot) /* the same word in another block is no misspelling here */
        near = near && strncmp(nearest, path, (size_t)(dot - path + 1)) == 0;
    const char *source = source_of(place, node);
    if (!near && !loose)
        near = sl_key_ending_with(path, place->accelerate, nearest);
    if (near)
        sl_config_problem(context, "%s: %s is not a key; did you mean %s?", source, path, nearest);
    else if (loose)
        sl_config_warn(context, "%s: %s is not a key of DeepSpeed or of Sluice, and is ignored",
                       source, path);
    else
        sl_config_problem(context,
                          "%s: %s is not a key; take it out (docs/config.md and `sluice config "
                          "--document` list all keys)",
                          source, path);
}

static void accept(const struct place *place, const char *path, const struct sl_node *node)
{
    size_t index;
    const struct sl_key *key = sl_key_find(path, place->accelerate, &index);
    if (!key) {
        unknown(place, path, node);
        return;
    }
    if ((key->flags & SL_KEY_OWN) && place->path && place->accelerate) {
        unknown(place, path, node);
        return;
    }
    store(place, key, key->renamed ? key->renamed : key->path, node);
    if (strcmp(key->path, "zero_optimization.cpu_offload_use_pin_memory") == 0)
        store(place, key, "zero_optimization.offload_param.pin_memory", node);
}

/* zero_optimization: true, the oldest form. */
static void accept_zero_bool(const struct place *place, const struct sl_node *node)
{
    struct sl_node stage = *node;
    stage.kind = SL_NODE_NUMBER;
    stage.number = node->boolean;
    stage.text = node->boolean ? "1" : "0";
    accept(place, "zero_optimization.stage", &stage);
}

static void walk(const struct place *place, const char *prefix, const struct sl_node *object)
{
    for (const struct sl_node *node = object->child; node; node = node->next) {
        char path[512];
        size_t index;
        int used =
            snprintf(path, sizeof(path), "%s%s%.200s", prefix, *prefix ? "." : "", node->name);
        bool own_block = !place->accelerate && strcmp(path, "sluice") == 0;
        bool block = own_block || sl_key_is_block(path, place->accelerate);
        bool leaf = sl_key_find(path, place->accelerate, &index) != NULL;
        if (used >= (int)sizeof(path) - 1)
            continue; /* unreachable: blocks nest three deep and a name is cut */
        if (block && node->kind == SL_NODE_OBJECT)
            walk(place, own_block ? "" : path, node);
        else if (block && !leaf && node->kind == SL_NODE_NULL)
            continue;
        else if (strcmp(path, "zero_optimization") == 0 && node->kind == SL_NODE_BOOL)
            accept_zero_bool(place, node);
        else if (block && !leaf)
            sl_config_problem(place->context, "%s: %s %s: an object is meant",
                              source_of(place, node), path, node_text(&place->context->tree, node));
        else
            accept(place, path, node);
    }
}

void sl_values_from_tree(struct sl_config_context *context, const struct sl_tree *tree,
                         bool accelerate)
{
    struct place place = {.context = context,
                          .path = tree->path,
                          .from = SL_CONFIG_FROM_FILE,
                          .accelerate = accelerate};
    const struct sl_node *zero = sl_node_get(tree->root, "zero_optimization");
    if (!accelerate && zero && zero->kind != SL_NODE_NULL)
        context->zero_block = true;
    walk(&place, "", tree->root);
}

void sl_values_from_set(struct sl_config_context *context, const char *set)
{
    const char *equals = strchr(set, '=');
    size_t length = equals ? (size_t)(equals - set) : 0, bad;
    if (!equals || length == 0 || length >= 200 || strlen(set) > 8192 ||
        !sl_utf8_valid(set, strlen(set), &bad)) {
        sl_config_problem(context, "--set %.80s: key=value is meant", set);
        return;
    }
    struct place place = {.context = context, .from = SL_CONFIG_FROM_SET};
    struct sl_node node = {0};
    char *path = sl_tree_string(&context->tree, set, length);
    char *word = sl_tree_string(&context->tree, equals + 1, strlen(equals + 1));
    if (!path || !word) {
        context->result = -ENOMEM;
        return;
    }
    sl_node_from_word(&node, word, false);
    if (node.kind == SL_NODE_NULL) {
        node.kind = SL_NODE_STRING;
        node.text = word;
    }
    if (strcmp(path, "zero_optimization") == 0 && node.kind == SL_NODE_BOOL)
        accept_zero_bool(&place, &node);
    else
        accept(&place, path, &node);
    if (strncmp(path, "zero_optimization.", 18) == 0)
        context->zero_block = true;
}
