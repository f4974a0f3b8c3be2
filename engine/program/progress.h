// SPDX-License-Identifier: Apache-2.0
/* The progress line: rewritten in place on a terminal, lines elsewhere. */
#ifndef SLUICE_ENGINE_PROGRAM_PROGRESS_H
#define SLUICE_ENGINE_PROGRAM_PROGRESS_H

#include <stdbool.h>

#include "engine/sluice.h"

struct progress_line {
    bool terminal;
    uint64_t every; /* off a terminal: a line every so many steps, and where something happened */
    bool open;      /* the cursor stands behind an unfinished line */
};

/* A struct sl_train_options.progress; user is the line. */
void progress_show(void *user, const struct sl_progress *progress);
void progress_end(struct progress_line *line);

#endif
