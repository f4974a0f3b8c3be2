// SPDX-License-Identifier: Apache-2.0
#include "engine/monitor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/monitor_writers.h"

struct sl_monitor {
    struct sl_csv_monitor *csv;
    struct sl_event_file *events;
};

int sl_make_folders(const char *path, struct sl_error *error)
{
    char part[4 * SL_CONFIG_PATH_BYTES];
    size_t length = strlen(path);
    if (length >= sizeof(part))
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENAMETOOLONG, "%.80s...: path too long", path);
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        char kept = part[i];
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return sl_error_set(error, SL_DOMAIN_IO, -errno, "cannot make the folder %s: %s", part,
                                strerror(errno));
        part[i] = kept;
    }
    return 0;
}

static int folder_of(const struct sl_config_monitor *options, const char *out_folder,
                     const char *name, char *folder, size_t bytes, struct sl_error *error)
{
    int used = options->output_path[0]
                   ? snprintf(folder, bytes, "%s/%s", options->output_path, options->job_name)
                   : snprintf(folder, bytes, "%s/%s/%s", out_folder, name, options->job_name);
    if (used < 0 || (size_t)used >= bytes)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENAMETOOLONG, "%s.output_path is too long",
                            name);
    return 0;
}

int sl_monitor_create(struct sl_monitor **out, const struct sl_config *config,
                      const char *out_folder, struct sl_error *error)
{
    char folder[3 * SL_CONFIG_PATH_BYTES];
    *out = NULL;
    if (!config->csv.enabled && !config->tensorboard.enabled)
        return 0;
    struct sl_monitor *monitor = calloc(1, sizeof(*monitor));
    if (!monitor)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the monitors");
    int result = 0;
    if (config->csv.enabled) {
        result = folder_of(&config->csv, out_folder, "csv_monitor", folder, sizeof(folder), error);
        if (!result)
            result = sl_csv_monitor_create(&monitor->csv, folder, error);
    }
    if (!result && config->tensorboard.enabled) {
        result = folder_of(&config->tensorboard, out_folder, "tensorboard", folder, sizeof(folder),
                           error);
        if (!result)
            result = sl_event_file_create(&monitor->events, folder, error);
    }
    if (result)
        sl_monitor_destroy(monitor);
    else
        *out = monitor;
    return result;
}

int sl_monitor_write(struct sl_monitor *monitor, const char *tag, double value, uint64_t step,
                     struct sl_error *error)
{
    int result = 0;
    if (monitor && monitor->csv)
        result = sl_csv_monitor_write(monitor->csv, tag, value, step, error);
    if (!result && monitor && monitor->events)
        result = sl_event_file_scalar(monitor->events, tag, (float)value, step, error);
    return result;
}

void sl_monitor_destroy(struct sl_monitor *monitor)
{
    if (!monitor)
        return;
    sl_csv_monitor_destroy(monitor->csv);
    sl_event_file_destroy(monitor->events);
    free(monitor);
}
