// SPDX-License-Identifier: Apache-2.0
/* The folder of one run (--out): made, held against a second run, and taken away again where the
 * run is refused before its first step. */
#ifndef SLUICE_ENGINE_RUN_FOLDER_H
#define SLUICE_ENGINE_RUN_FOLDER_H

#include <stdbool.h>

#include "base/error.h"
#include "base/log.h"

struct sl_run_folder {
    const char *path; /* borrowed */
    int fd;           /* log.jsonl, locked; -1: not open */
    bool made_folder, made_log;
};

/* Make `path` if it is not there and lock it for this process.
 *
 * Errors   -EBUSY: another run writes there; -EEXIST: there are checkpoints and `resume` is false
 *          (a new run would mix with them); -ENOENT: there are none and it is true; else what mkdir
 * and open say. Nothing is left behind
 */
int sl_run_folder_open(struct sl_run_folder *folder, const char *path, bool resume,
                       const struct sl_log *log, struct sl_error *error);

/* Unlock. What _open has made and nothing was written to is removed. Allowed without _open where
 * `path` is NULL. */
void sl_run_folder_close(struct sl_run_folder *folder);

#endif
