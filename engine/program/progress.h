// SPDX-License-Identifier: Apache-2.0
/* The progress line: rewritten in place on a terminal; elsewhere a line where one is due and where
 * something happened. */
#ifndef SLUICE_ENGINE_PROGRAM_PROGRESS_H
#define SLUICE_ENGINE_PROGRAM_PROGRESS_H

#include <stdbool.h>

#include "engine/sluice.h"

struct progress_line {
    bool terminal;
    bool open; /* the cursor stands behind an unfinished line */
};

/* A struct sl_train_options.progress; user is the line. */
void progress_show(void *user, const struct sl_progress *progress);
void progress_end(struct progress_line *line);

#endif
