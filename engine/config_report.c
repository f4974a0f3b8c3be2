// SPDX-License-Identifier: Apache-2.0
/* `sluice config FILE`: what a configuration comes to, for people and for programs. */
#include "engine/config_report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

static const char *precision_name(enum sl_dtype dtype)
{
    return dtype == SL_F32 ? "fp32" : dtype == SL_BF16 ? "bf16" : "fp16";
}

static const char *optimizer_name(enum sl_optim_kind kind)
{
    static const char *const names[] = {
        [SL_OPTIM_ADAMW] = "AdamW",     [SL_OPTIM_ADAM] = "Adam", [SL_OPTIM_LION] = "Lion",
        [SL_OPTIM_ADAGRAD] = "Adagrad", [SL_OPTIM_SGD] = "SGD",
    };
    return names[kind];
}

static const char *master_name(enum sl_master_kind kind)
{
    return kind == SL_MASTER_F32 ? "f32" : kind == SL_MASTER_SPLIT ? "split" : "none";
}

static const char *moment_name(enum sl_moment_kind kind)
{
    return kind == SL_MOMENT_F32 ? "f32" : kind == SL_MOMENT_BF16 ? "bf16" : "q8";
}

/* --- text --- */

static void print_lines(FILE *out, const char *title, const struct sl_config_lines *lines)
{
    if (lines->count == 0)
        return;
    fprintf(out, "%s\n", title);
    for (size_t i = 0; i < lines->count; i++)
        fprintf(out, "  %s\n", lines->line[i]);
    fputc('\n', out);
}

static void print_placement(FILE *out, const struct sl_config *config)
{
    for (int kind = 0; kind < SL_CONFIG_KIND_COUNT; kind++) {
        const struct sl_config_placement *placement = &config->placement[kind];
        fprintf(out, "  %-14s", sl_config_kind_name((enum sl_config_kind)kind));
        if (!placement->given)
            fputs(" chosen by the plan, fastest tier first", out);
        for (int tier = 0; placement->given && tier < SL_CONFIG_TIER_COUNT; tier++)
            if (placement->fraction[tier] > 0)
                fprintf(out, " %.4g%% %s", 100 * placement->fraction[tier],
                        sl_config_tier_name((enum sl_config_tier)tier));
        fputc('\n', out);
    }
    for (size_t i = 0; i < config->nvme.path_count; i++)
        fprintf(out, "  %-14s %s\n", "nvme folder", config->nvme.paths[i]);
}

static void print_resolved(FILE *out, const struct sl_config *config)
{
    const struct sl_optim_hyper *hyper = &config->optimizer;
    fputs("What it comes to\n", out);
    fprintf(out, "  %-14s %llu samples = micro-batch %llu x accumulation %llu\n", "batch",
            (unsigned long long)config->train_batch, (unsigned long long)config->micro_batch,
            (unsigned long long)config->accumulation);
    fprintf(out, "  %-14s %s, gradients stored as %s, master %s, moments %s\n", "precision",
            precision_name(config->precision), precision_name(config->gradient_dtype),
            master_name(config->master_kind), moment_name(config->moment_kind));
    fprintf(out, "  %-14s %s, lr %g, betas %g %g, eps %g, weight decay %g\n", "optimizer",
            optimizer_name(hyper->kind), (double)hyper->lr, (double)hyper->beta1,
            (double)hyper->beta2, (double)hyper->eps, (double)hyper->weight_decay);
    fprintf(out, "  %-14s %s\n", "schedule", sl_schedule_name(config->schedule.kind));
    if (config->clip_norm > 0)
        fprintf(out, "  %-14s norm %g\n", "clipping", config->clip_norm);
    else
        fprintf(out, "  %-14s none\n", "clipping");
    if (config->precision == SL_F16)
        fprintf(out, "  %-14s %s, from %g\n", "loss scale",
                config->scaler.dynamic ? "dynamic" : "static", config->scaler.initial);
    print_placement(out, config);
    fputc('\n', out);
}

/* "/a/b/ds.json:12" as "ds.json:12"; an "auto, " before it stays. */
static void print_source(FILE *out, const char *source)
{
    const char *comma = strncmp(source, "auto, ", 6) == 0 ? source + 6 : source;
    const char *end = strstr(comma, " as "), *name = comma;
    for (const char *c = comma; *c && c != end; c++)
        if (*c == '/')
            name = c + 1;
    fprintf(out, "%.*s%s\n", (int)(comma - source), source, name);
}

static void print_row(FILE *out, const struct sl_config_row *row)
{
    fprintf(out, "  %-56s %-16s ", row->key, *row->value ? row->value : "-");
    print_source(out, row->source);
    if (row->effect != SL_CONFIG_HONORED)
        fprintf(out, "      %s: %s\n", sl_config_effect_name(row->effect), row->note);
    else if (row->from != SL_CONFIG_FROM_DEFAULT && *row->note)
        fprintf(out, "      %s\n", row->note);
}

static void print_rows(FILE *out, const struct sl_config_report *report)
{
    static const struct {
        const char *title;
        bool given;
        enum sl_config_effect effect;
    } sections[] = {
        {"Given and honored", true, SL_CONFIG_HONORED},
        {"Given, no effect here", true, SL_CONFIG_NO_EFFECT},
        {"Given, not supported", true, SL_CONFIG_UNSUPPORTED},
        {"Defaults", false, SL_CONFIG_HONORED},
    };
    for (size_t s = 0; s < sizeof(sections) / sizeof(sections[0]); s++) {
        bool titled = false;
        for (size_t i = 0; i < report->row_count; i++) {
            const struct sl_config_row *row = &report->rows[i];
            if ((row->from != SL_CONFIG_FROM_DEFAULT) != sections[s].given ||
                row->effect != sections[s].effect || (!sections[s].given && !*row->value))
                continue;
            if (!titled)
                fprintf(out, "%s%s\n", s ? "\n" : "", sections[s].title);
            titled = true;
            print_row(out, row);
        }
    }
}

char *sl_config_report_text(const struct sl_config_report *report, const struct sl_config *config)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    print_lines(out, "Refused", &report->problems);
    print_lines(out, "Warnings", &report->warnings);
    print_lines(out, "Choices", &report->notes);
    if (report->problems.count == 0)
        print_resolved(out, config);
    print_rows(out, report);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* --- JSON --- */

static json_t *lines_json(const struct sl_config_lines *lines)
{
    json_t *list = json_array();
    for (size_t i = 0; i < lines->count; i++)
        json_array_append_new(list, json_string(lines->line[i]));
    return list;
}

static json_t *rows_json(const struct sl_config_report *report)
{
    json_t *list = json_array();
    for (size_t i = 0; i < report->row_count; i++) {
        const struct sl_config_row *row = &report->rows[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s, s:s}", "key", row->key, "value",
                                        row->value, "source", row->source, "effect",
                                        sl_config_effect_name(row->effect), "note", row->note));
    }
    return list;
}

static json_t *placement_json(const struct sl_config *config)
{
    json_t *all = json_object();
    for (int kind = 0; kind < SL_CONFIG_KIND_COUNT; kind++) {
        const struct sl_config_placement *placement = &config->placement[kind];
        const char *name = sl_config_kind_name((enum sl_config_kind)kind);
        if (placement->given)
            json_object_set_new(all, name,
                                json_pack("{s:f, s:f, s:f}", "device", placement->fraction[0],
                                          "host", placement->fraction[1], "nvme",
                                          placement->fraction[2]));
        else
            json_object_set_new(all, name, json_string("auto"));
    }
    return all;
}

static json_t *count_json(uint64_t count)
{
    return json_integer((json_int_t)sl_min_u64(count, INT64_MAX));
}

/* The decimal that a float was written as: 0.9, not 0.899999976. */
static double as_written(float value)
{
    char text[32];
    snprintf(text, sizeof(text), "%.7g", (double)value);
    return strtod(text, NULL);
}

static json_t *optimizer_json(const struct sl_config *config)
{
    const struct sl_optim_hyper *hyper = &config->optimizer;
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:s, s:s}", "type",
                     optimizer_name(hyper->kind), "lr", config->schedule.base_lr, "beta1",
                     as_written(hyper->beta1), "beta2", as_written(hyper->beta2), "eps",
                     as_written(hyper->eps), "weight_decay", as_written(hyper->weight_decay),
                     "momentum", as_written(hyper->momentum), "nesterov", hyper->nesterov,
                     "bias_correction", hyper->bias_correction, "master",
                     master_name(config->master_kind), "moments", moment_name(config->moment_kind));
}

static json_t *limits_json(const struct sl_config *config)
{
    json_t *limits = json_object();
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"memory_device_bytes", config->memory_bytes[SL_CONFIG_DEVICE]},
        {"memory_host_bytes", config->memory_bytes[SL_CONFIG_HOST]},
        {"memory_nvme_bytes", config->memory_bytes[SL_CONFIG_NVME]},
        {"sub_group_elements_max", config->sub_group_elements_max},
        {"prefetch_elements_max", config->prefetch_elements_max},
        {"live_elements_max", config->live_elements_max},
        {"param_buffer_count_max", config->param_buffer_count_max},
        {"param_buffer_elements_max", config->param_buffer_elements_max},
        {"optimizer_buffer_count_max", config->optimizer_buffer_count_max},
        {"nvme_block_bytes", config->nvme.block_bytes},
        {"nvme_queue_depth", config->nvme.queue_depth},
        {"nvme_threads", config->nvme.thread_count},
        {"threads", config->threads},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        json_object_set_new(limits, rows[i].name, count_json(rows[i].value));
    return limits;
}

static json_t *resolved_json(const struct sl_config *config)
{
    json_t *paths = json_array();
    for (size_t i = 0; i < config->nvme.path_count; i++)
        json_array_append_new(paths, json_string(config->nvme.paths[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:s, s:s, s:o, s:s, s:f, s:{s:b, s:f, s:f}, s:o, s:o, s:o}",
        "train_batch_size", count_json(config->train_batch), "micro_batch",
        count_json(config->micro_batch), "accumulation", count_json(config->accumulation), "steps",
        count_json(config->steps), "precision", precision_name(config->precision), "gradient_dtype",
        precision_name(config->gradient_dtype), "optimizer", optimizer_json(config), "schedule",
        sl_schedule_name(config->schedule.kind), "gradient_clipping", config->clip_norm,
        "loss_scale", "dynamic", config->scaler.dynamic, "initial", config->scaler.initial, "min",
        config->scaler.min, "placement", placement_json(config), "nvme_paths", paths, "limits",
        limits_json(config));
}

char *sl_config_report_json(const struct sl_config_report *report, const struct sl_config *config)
{
    bool accepted = report->problems.count == 0;
    json_t *root =
        json_pack("{s:b, s:o, s:o, s:o, s:o, s:o}", "accepted", accepted, "problems",
                  lines_json(&report->problems), "warnings", lines_json(&report->warnings),
                  "choices", lines_json(&report->notes), "resolved",
                  accepted ? resolved_json(config) : json_null(), "keys", rows_json(report));
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    return text;
}
