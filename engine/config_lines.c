// SPDX-License-Identifier: Apache-2.0
/* The report's lines and rows, and who may write them. */
#include "engine/config_values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 2048

static char *line_from(struct sl_config_context *context, const char *format, va_list args)
{
    char buffer[LINE_BYTES];
    vsnprintf(buffer, sizeof(buffer), format, args);
    char *line = strdup(buffer);
    if (!line)
        context->result = -ENOMEM;
    return line;
}

static void append(struct sl_config_context *context, struct sl_config_lines *lines, char *line)
{
    if (!line)
        return;
    for (size_t i = 0; i < lines->count; i++)
        if (strcmp(lines->line[i], line) == 0) {
            free(line);
            return;
        }
    if (lines->count == lines->capacity) {
        size_t capacity = lines->capacity ? lines->capacity * 2 : 8;
        char **grown = realloc(lines->line, capacity * sizeof(*grown));
        if (!grown) {
            context->result = -ENOMEM;
            free(line);
            return;
        }
        lines->line = grown;
        lines->capacity = capacity;
    }
    lines->line[lines->count++] = line;
}

#define DEFINE(function, member)                                                                   \
    void function(struct sl_config_context *context, const char *format, ...)                      \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        append(context, &context->report->member, line_from(context, format, args));               \
        va_end(args);                                                                              \
    }

DEFINE(sl_config_problem, problems)
DEFINE(sl_config_warn, warnings)
DEFINE(sl_config_note, notes)

void sl_value_resolve(struct sl_config_context *context, const char *path, const char *format, ...)
{
    struct sl_value *value = sl_value(context, path);
    va_list args;
    va_start(args, format);
    free(value->resolved);
    value->resolved = line_from(context, format, args);
    va_end(args);
}

void sl_value_answer(struct sl_config_context *context, const char *path,
                     enum sl_config_effect effect, const char *format, ...)
{
    struct sl_value *value = sl_value(context, path);
    va_list args;
    va_start(args, format);
    free(value->note);
    value->note = line_from(context, format, args);
    value->effect = effect;
    value->answered = true;
    va_end(args);
}

static void lines_finish(struct sl_config_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++)
        free(lines->line[i]);
    free(lines->line);
}

void sl_config_report_finish(struct sl_config_report *report)
{
    for (size_t i = 0; i < report->row_count; i++) {
        free(report->rows[i].value);
        free(report->rows[i].source);
        free(report->rows[i].note);
    }
    free(report->rows);
    lines_finish(&report->warnings);
    lines_finish(&report->notes);
    lines_finish(&report->problems);
    *report = (struct sl_config_report){0};
}
