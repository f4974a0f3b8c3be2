// SPDX-License-Identifier: Apache-2.0
/* What became of every key: the rows behind `sluice config`, and the warnings of a start. */
#ifndef SLUICE_ENGINE_CONFIG_REPORT_H
#define SLUICE_ENGINE_CONFIG_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/config.h"

enum sl_config_effect {
    SL_CONFIG_HONORED,
    SL_CONFIG_NO_EFFECT,   /* legal, and nothing here depends on it; the note says why */
    SL_CONFIG_UNSUPPORTED, /* refused unless it asks for nothing; the note says what to use */
};

/* Where a value came from. */
enum sl_config_source {
    SL_CONFIG_FROM_DEFAULT,
    SL_CONFIG_FROM_FILE,
    SL_CONFIG_FROM_SET,
    SL_CONFIG_FROM_AUTO, /* the file said "auto" */
};

struct sl_config_row {
    const char *key; /* canonical dotted name */
    char *value;     /* as resolved */
    char *source;    /* "ds.json:12", "--set", "default", "auto, ds.json:3" */
    enum sl_config_source from;
    enum sl_config_effect effect;
    char *note; /* why, or what it does; may be "" */
};

struct sl_config_lines {
    char **line;
    size_t count, capacity;
};

struct sl_config_report {
    struct sl_config_row *rows;
    size_t row_count, row_capacity;
    struct sl_config_lines warnings; /* one line each at the start of training */
    struct sl_config_lines notes;    /* choices made: precision, optimizer, batch */
    struct sl_config_lines problems; /* why it was refused */
};

void sl_config_report_finish(struct sl_config_report *report); /* zeroed struct allowed */

/* The row of a canonical key, or NULL. */
const struct sl_config_row *sl_config_report_row(const struct sl_config_report *report,
                                                 const char *key);

/* `sluice config FILE`: warnings, choices, then each key with source and effect; or JSON.
 * Owner    the caller frees the returned text; NULL: out of memory */
char *sl_config_report_text(const struct sl_config_report *report, const struct sl_config *config);
char *sl_config_report_json(const struct sl_config_report *report, const struct sl_config *config);

/* docs/config.md, from the table of keys. The caller frees it. */
char *sl_config_document(void);

const char *sl_config_effect_name(enum sl_config_effect effect);

#endif
