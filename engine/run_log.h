// SPDX-License-Identifier: Apache-2.0
/* OUT/log.jsonl, a line a step, and the monitors that the configuration asks for. */
#ifndef SLUICE_ENGINE_RUN_LOG_H
#define SLUICE_ENGINE_RUN_LOG_H

#include <stdint.h>

#include "base/error.h"
#include "engine/config.h"

struct sl_progress;
struct sl_run_log;

int sl_run_log_open(struct sl_run_log **out, const char *directory, const struct sl_config *config,
                    struct sl_error *error);

/* The run starts after `step`: lines of later steps, from a run that ended after its last
 * checkpoint, are cut off; step 0 starts the file afresh. */
int sl_run_log_begin(struct sl_run_log *log, uint64_t step, struct sl_error *error);

/* Append a step. In the file (not on the disk) when the call returns. Errors: -errno, with path. */
int sl_run_log_step(struct sl_run_log *log, const struct sl_progress *progress,
                    struct sl_error *error);

void sl_run_log_close(struct sl_run_log *log); /* NULL allowed */

#endif
