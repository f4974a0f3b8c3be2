// SPDX-License-Identifier: Apache-2.0
/* The answer for every key: honored, no effect here, or unsupported. */
#include "engine/config_values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value as text, from its type. */
static void value_text(const struct sl_value *value, char *text, size_t bytes)
{
    char a[32], b[32];
    if (value->resolved) {
        snprintf(text, bytes, "%s", value->resolved);
        return;
    }
    if (value->state != SL_VALUE_GIVEN) {
        snprintf(text, bytes, "%s", value->key->initial);
        return;
    }
    switch (value->key->type) {
    case SL_KEY_BOOL:
        snprintf(text, bytes, "%s", value->boolean ? "true" : "false");
        break;
    case SL_KEY_PAIR:
        snprintf(text, bytes, "[%s, %s]", sl_number_text(value->pair[0], a),
                 sl_number_text(value->pair[1], b));
        break;
    case SL_KEY_STRING:
    case SL_KEY_CHOICE:
    case SL_KEY_WORDS:
        snprintf(text, bytes, "%s", value->text ? value->text : "");
        break;
    case SL_KEY_BLOCK:
        snprintf(text, bytes, "%s", value->boolean ? "{...}" : "off");
        break;
    default:
        snprintf(text, bytes, "%s", sl_number_text(value->number, a));
    }
}

/* True where a value of an unsupported (or worth-a-warning) key asks for nothing. */
static bool harmless(const struct sl_value *value)
{
    char text[64];
    if (value->key->type == SL_KEY_BLOCK)
        return !value->boolean;
    if (value->state == SL_VALUE_AUTO)
        return true;
    value_text(value, text, sizeof(text));
    return value->key->harmless && strcmp(text, value->key->harmless) == 0;
}

static void source_text(const struct sl_value *value, char *text, size_t bytes)
{
    if (value->state == SL_VALUE_AUTO)
        snprintf(text, bytes, "auto, %s", value->source);
    else if (value->state == SL_VALUE_GIVEN)
        snprintf(text, bytes, "%s%s%s", value->source, value->given_as ? " as " : "",
                 value->given_as ? value->given_as : "");
    else
        snprintf(text, bytes, "%s", value->source ? value->source : "default");
}

static void push(struct sl_config_context *context, const struct sl_value *value,
                 enum sl_config_effect effect, const char *note)
{
    struct sl_config_report *report = context->report;
    char text[SL_CONFIG_PATH_BYTES], source[SL_CONFIG_PATH_BYTES + 64];
    value_text(value, text, sizeof(text));
    source_text(value, source, sizeof(source));
    if (report->row_count == report->row_capacity) {
        size_t capacity = report->row_capacity ? report->row_capacity * 2 : 128;
        struct sl_config_row *grown = realloc(report->rows, capacity * sizeof(*grown));
        if (!grown) {
            context->result = -ENOMEM;
            return;
        }
        report->rows = grown;
        report->row_capacity = capacity;
    }
    struct sl_config_row row = {
        .key = value->key->path,
        .value = strdup(text),
        .source = strdup(source),
        .from = value->state == SL_VALUE_AUTO    ? SL_CONFIG_FROM_AUTO
                : value->state == SL_VALUE_GIVEN ? value->from
                                                 : SL_CONFIG_FROM_DEFAULT,
        .effect = effect,
        .note = strdup(note),
    };
    if (!row.value || !row.source || !row.note)
        context->result = -ENOMEM;
    report->rows[report->row_count++] = row;
}

static void warn_for(struct sl_config_context *context, const struct sl_value *value,
                     const char *note)
{
    char text[64];
    value_text(value, text, sizeof(text));
    if (strcmp(value->key->path, "num_processes") == 0)
        sl_config_warn(context,
                       "%s: num_processes %s: one process runs, so the total batch is 1/%s "
                       "of the one on %s GPUs; raise gradient_accumulation_steps to keep it",
                       value->source, text, text, text);
    else
        sl_config_warn(context, "%s: %s %s has no effect here: %s", value->source, value->key->path,
                       text, note);
}

/* A deprecated name is said once, with the new one; pin_memory of both blocks is one old key. */
static void warn_renamed(struct sl_config_context *context, const struct sl_value *value)
{
    size_t index = 0;
    bool accelerate = (value->key->flags & SL_KEY_ACCELERATE) != 0;
    const struct sl_key *old = sl_key_find(value->given_as, accelerate, &index);
    if ((old->flags & SL_KEY_WARN) && strcmp(old->renamed, value->key->path) == 0)
        sl_config_warn(context, "%s: %s is an old name of %s: %s", value->source, old->path,
                       value->key->path, old->note);
}

static void answer(struct sl_config_context *context, const struct sl_value *value)
{
    enum sl_config_effect effect = value->answered ? value->effect : value->key->effect;
    const char *note = value->answered ? value->note : value->key->note;
    bool there = value->state != SL_VALUE_ABSENT;
    if (there && value->given_as)
        warn_renamed(context, value);
    if (there && effect == SL_CONFIG_UNSUPPORTED) {
        char text[64];
        value_text(value, text, sizeof(text));
        if (!harmless(value))
            sl_config_problem(context, "%s: %s %s is not supported: %s", value->source,
                              value->key->path, text, note);
        else
            effect = SL_CONFIG_NO_EFFECT;
    }
    if (there && effect == SL_CONFIG_NO_EFFECT && (value->key->flags & SL_KEY_WARN) &&
        !harmless(value))
        warn_for(context, value, note);
    const unsigned silent = SL_KEY_ACCELERATE | SL_KEY_SUPPLIES;
    if (there || (effect == SL_CONFIG_HONORED && !(value->key->flags & silent)))
        push(context, value, effect, note ? note : "");
}

void sl_config_rows(struct sl_config_context *context)
{
    for (size_t i = 0, n = sl_key_count(); i < n; i++)
        if (!context->values[i].key->renamed)
            answer(context, &context->values[i]);
}

const struct sl_config_row *sl_config_report_row(const struct sl_config_report *report,
                                                 const char *key)
{
    for (size_t i = 0; i < report->row_count; i++)
        if (strcmp(report->rows[i].key, key) == 0)
            return &report->rows[i];
    return NULL;
}

const char *sl_config_effect_name(enum sl_config_effect effect)
{
    static const char *const names[] = {"honored", "no effect here", "unsupported"};
    return (unsigned)effect < sizeof(names) / sizeof(names[0]) ? names[effect] : "unknown";
}
