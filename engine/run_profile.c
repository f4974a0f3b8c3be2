// SPDX-License-Identifier: Apache-2.0
#include "engine/run_profile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/flops_profile.h"
#include "engine/trainer.h"

static uint64_t ns_of(double seconds)
{
    return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0;
}

static void to_log(char *text, const struct sl_log *log)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        sl_log_write(log, SL_LOG_INFO, "%s", line);
}

static int to_file(const char *text, const char *path, struct sl_error *error)
{
    FILE *file = fopen(path, "we");
    bool wrote = file && fputs(text, file) >= 0;
    int failed = file ? fclose(file) : -1;
    if (!wrote || failed)
        return sl_error_set(error, SL_DOMAIN_IO, errno ? -errno : -EIO,
                            "flops_profiler.output_file %s: %s", path, strerror(errno));
    return 0;
}

int sl_run_profile_step(const struct sl_config *config, const struct sl_step_options *step,
                        const struct sl_progress *progress, const struct sl_log *log,
                        struct sl_error *error)
{
    if (!config->flops_profiler.enabled || progress->step != config->flops_profiler.step)
        return 0;
    struct sl_flops_options options = {
        .batch = step->batch,
        .sequence = step->sequence,
        .micro_batches = step->micro_batches,
        .recompute = step->recompute,
        .module_depth = config->flops_profiler.module_depth,
        .top_modules = config->flops_profiler.top_modules,
        .detailed = config->flops_profiler.detailed,
        .profile_step = progress->step,
        .update_ns = ns_of(progress->busy_seconds[SL_LANE_CPU]),
        .step_ns = ns_of(progress->step_seconds),
    };
    char *text = sl_flops_profile_text(step->model, &options);
    if (!text)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the flops profile");
    int result = 0;
    if (config->flops_profiler.output_file[0])
        result = to_file(text, config->flops_profiler.output_file, error);
    else
        to_log(text, log);
    free(text);
    return result;
}
