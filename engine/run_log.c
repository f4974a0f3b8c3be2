// SPDX-License-Identifier: Apache-2.0
#include "engine/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/monitor.h"
#include "engine/trainer.h"

struct sl_run_log {
    FILE *file;
    char path[SL_CONFIG_PATH_BYTES];
    struct sl_monitor *monitor;
};

static int failed(const struct sl_run_log *log, struct sl_error *error)
{
    int code = errno ? -errno : -EIO;
    return sl_error_set(error, SL_DOMAIN_IO, code, "%s: %s", log->path, strerror(-code));
}

int sl_run_log_open(struct sl_run_log **out, const char *directory, const struct sl_config *config,
                    struct sl_error *error)
{
    struct sl_run_log *log = calloc(1, sizeof(*log));
    *out = NULL;
    if (!log)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for the log");
    snprintf(log->path, sizeof(log->path), "%s/log.jsonl", directory);
    log->file = fopen(log->path, "a+e");
    int result = log->file ? 0 : failed(log, error);
    if (!result)
        result = sl_monitor_create(&log->monitor, config, directory, error);
    if (result) {
        sl_run_log_close(log);
        return result;
    }
    *out = log;
    return 0;
}

int sl_run_log_begin(struct sl_run_log *log, uint64_t step, struct sl_error *error)
{
    char *line = NULL;
    size_t capacity = 0;
    long keep = 0;
    rewind(log->file);
    while (step > 0 && getline(&line, &capacity, log->file) > 0) {
        unsigned long long at;
        bool whole = line[strlen(line) - 1] == '\n'; /* a kill may have cut the last one */
        if (!whole || sscanf(line, "{\"step\": %llu", &at) != 1 || at > step)
            break;
        keep = ftell(log->file);
    }
    free(line);
    if (fflush(log->file) != 0 || ftruncate(fileno(log->file), keep) != 0 ||
        fseek(log->file, 0, SEEK_END) != 0)
        return failed(log, error);
    return 0;
}

/* JSON has no NaN: null. */
static void put_number(FILE *file, const char *key, double value)
{
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.9g", key, value);
    else
        fprintf(file, ", \"%s\": null", key);
}

static int write_monitors(struct sl_run_log *log, const struct sl_progress *p,
                          struct sl_error *error)
{
    struct {
        const char *tag;
        double value;
        bool there;
    } figures[] = {
        {"Train/Samples/train_loss", p->loss, p->step > 0},
        {"Train/Samples/lr", p->lr, p->step > 0},
        {"Train/Samples/loss_scale", p->loss_scale, p->step > 0},
        {"Train/Samples/grad_norm", p->norm, p->step > 0},
        {"Train/Samples/tokens_per_second", p->tokens_per_second, p->step > 0},
        {"Train/Samples/eval_loss", p->eval_loss, p->evaluated},
    };
    int result = 0;
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]) && !result; i++)
        if (figures[i].there)
            result =
                sl_monitor_write(log->monitor, figures[i].tag, figures[i].value, p->step, error);
    return result;
}

/* What a step has; an evaluation before the first one has none of it. */
static void put_training(FILE *file, const struct sl_progress *p)
{
    put_number(file, "loss", p->loss);
    put_number(file, "grad_norm", p->norm);
    put_number(file, "grad_norm_clipped", p->norm_clipped);
    put_number(file, "lr", p->lr);
    put_number(file, "loss_scale", p->loss_scale);
    fprintf(file, ", \"skipped\": %s", p->skipped ? "true" : "false");
    if (p->speculation)
        fprintf(file, ", \"speculation\": \"%s\"", p->speculation);
    put_number(file, "step_seconds", p->step_seconds);
    put_number(file, "tokens_per_second", p->tokens_per_second);
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        char key[48];
        if (p->busy_seconds[lane] == 0 && p->wait_seconds[lane] == 0)
            continue;
        snprintf(key, sizeof(key), "busy_%s_seconds", sl_lane_name((enum sl_lane)lane));
        put_number(file, key, p->busy_seconds[lane]);
        snprintf(key, sizeof(key), "wait_%s_seconds", sl_lane_name((enum sl_lane)lane));
        put_number(file, key, p->wait_seconds[lane]);
    }
}

int sl_run_log_step(struct sl_run_log *log, const struct sl_progress *p, struct sl_error *error)
{
    FILE *file = log->file;
    errno = 0;
    fprintf(file, "{\"step\": %llu", (unsigned long long)p->step);
    if (p->step)
        put_training(file, p);
    if (p->evaluated)
        put_number(file, "eval_loss", p->eval_loss);
    fprintf(file, "}\n");
    if (fflush(file) != 0 || ferror(file))
        return failed(log, error);
    return write_monitors(log, p, error);
}

void sl_run_log_close(struct sl_run_log *log)
{
    if (!log)
        return;
    if (log->file)
        fclose(log->file);
    sl_monitor_destroy(log->monitor);
    free(log);
}
