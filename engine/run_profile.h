// SPDX-License-Identifier: Apache-2.0
/* The flops_profiler block while training: the table of one step, written once. */
#ifndef SLUICE_ENGINE_RUN_PROFILE_H
#define SLUICE_ENGINE_RUN_PROFILE_H

#include "base/error.h"
#include "base/log.h"
#include "engine/config.h"
#include "engine/step_plan.h"

struct sl_progress;

/* After each step: nothing, until the step that the configuration names; then the table goes to
 * flops_profiler.output_file, or line by line to the log. Errors: -errno of the file, with path. */
int sl_run_profile_step(const struct sl_config *config, const struct sl_step_options *step,
                        const struct sl_progress *progress, const struct sl_log *log,
                        struct sl_error *error);

#endif
