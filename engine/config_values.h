// SPDX-License-Identifier: Apache-2.0
/* Between the files and the resolved configuration: one value for each key of the table, and who
 * gave it. Private to engine/config*.c. */
#ifndef SLUICE_ENGINE_CONFIG_VALUES_H
#define SLUICE_ENGINE_CONFIG_VALUES_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/config.h"
#include "engine/config_keys.h"
#include "engine/config_report.h"
#include "engine/config_tree.h"

enum sl_value_state { SL_VALUE_ABSENT, SL_VALUE_AUTO, SL_VALUE_GIVEN };

struct sl_value {
    const struct sl_key *key;
    enum sl_value_state state;
    enum sl_config_source from;
    const char *source;   /* "ds.json:12", "--set" */
    const char *given_as; /* the name in the file where it is another one */
    bool boolean;
    double number, pair[2];
    const char *text; /* strings, choices (as the table spells them), words joined by commas */
    bool answered;    /* effect and note below replace the table's */
    enum sl_config_effect effect;
    char *note;
    char *resolved; /* replaces the text of the value in the report */
};

struct sl_config_context {
    const struct sl_config_inputs *inputs;
    struct sl_config *config;
    struct sl_config_report *report;
    struct sl_error *error;
    struct sl_tree tree; /* what values point into; the file's own nodes too */
    struct sl_tree yaml;
    struct sl_value *values; /* [sl_key_count()] */
    bool has_file, accelerate;
    bool zero_block; /* the file says where state lies */
    int result;      /* of a failed allocation */
};

/* Fill the context's values. Problems go to the report; only what ends the reading at once (a file
 * that cannot be read, a syntax error) is returned. */
int sl_values_init(struct sl_config_context *context);
int sl_values_read(struct sl_config_context *context);
void sl_values_finish(struct sl_config_context *context);

/* Each walks a tree or a list of settings into values; in config_values.c. */
void sl_values_from_tree(struct sl_config_context *context, const struct sl_tree *tree,
                         bool accelerate);
void sl_values_from_set(struct sl_config_context *context, const char *set);

/* The value of a key of the table; asserts that the key exists. */
struct sl_value *sl_value(struct sl_config_context *context, const char *path);
struct sl_value *sl_value_accelerate(struct sl_config_context *context, const char *path);

static inline bool sl_value_given(const struct sl_value *value)
{
    return value->state == SL_VALUE_GIVEN;
}

double sl_value_number(struct sl_config_context *context, const char *path, double otherwise);
bool sl_value_bool(struct sl_config_context *context, const char *path, bool otherwise);
bool sl_value_is(struct sl_config_context *context, const char *path, const char *choice);

/* Set the report's text for a value, and its answer. */
void sl_value_resolve(struct sl_config_context *context, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void sl_value_answer(struct sl_config_context *context, const char *path,
                     enum sl_config_effect effect, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Lines of the report. */
void sl_config_problem(struct sl_config_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sl_config_warn(struct sl_config_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sl_config_note(struct sl_config_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "5e8" as 500000000, 1e-5 as 1e-05; the shortest form that reads back the same. */
const char *sl_number_text(double number, char buffer[32]);

/* Steps of resolution, in this order. */
void sl_resolve_accelerate(struct sl_config_context *context);
void sl_resolve_precision(struct sl_config_context *context);
void sl_resolve_batch(struct sl_config_context *context);
void sl_resolve_optimizer(struct sl_config_context *context);
void sl_resolve_schedule(struct sl_config_context *context);
void sl_resolve_placement(struct sl_config_context *context);
void sl_resolve_limits(struct sl_config_context *context);
void sl_resolve_runtime(struct sl_config_context *context);
void sl_config_rows(struct sl_config_context *context);

#endif
