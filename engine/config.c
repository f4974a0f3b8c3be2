// SPDX-License-Identifier: Apache-2.0
/* Loading a configuration: read, check, resolve, report.
 *
 *     file -> tree -> one value per key -> resolved struct sl_config
 *     --set words ----^                    report: rows, notes, warnings, problems
 *
 * Problems are collected, not returned at the first: a user gets the whole list in one run. Only a
 * file that cannot be read or parsed ends the loading at once. Nothing is written or created.
 */
#include "engine/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/size.h"
#include "engine/config_values.h"

const char *sl_config_kind_name(enum sl_config_kind kind)
{
    static const char *const names[] = {"weights", "gradients", "optimizer", "activations"};
    return (unsigned)kind < SL_CONFIG_KIND_COUNT ? names[kind] : "unknown";
}

const char *sl_config_tier_name(enum sl_config_tier tier)
{
    static const char *const names[] = {"device", "host", "nvme"};
    return (unsigned)tier < SL_CONFIG_TIER_COUNT ? names[tier] : "unknown";
}

void sl_config_set_steps(struct sl_config *config, uint64_t steps)
{
    config->steps = steps;
    if (config->total_steps_of_run)
        config->schedule.total_steps = steps;
    if (config->warmup_ratio > 0)
        config->schedule.warmup_steps = (uint64_t)(config->warmup_ratio * (double)steps + 0.5);
}

uint32_t sl_config_prefetch_layers(const struct sl_config *config, uint64_t layer_elements)
{
    uint64_t layers = sl_max_u64(config->prefetch_layers, 1), staged, unit;
    unit = sl_max_u64(layer_elements, 1);
    if (config->prefetch_elements_max)
        layers = sl_min_u64(layers, config->prefetch_elements_max / unit);
    if (config->live_elements_max)
        layers = sl_min_u64(layers, sl_max_u64(config->live_elements_max / unit, 1) - 1);
    if (config->param_buffer_count_max &&
        sl_size_mul(config->param_buffer_count_max, config->param_buffer_elements_max, &staged))
        layers = sl_min_u64(layers, sl_max_u64(staged / unit, 1) - 1);
    return (uint32_t)sl_max_u64(layers, 1);
}

/* DeepSpeed takes its JSON as base64 in place of a path. Returns the decoded bytes, or 0 where the
 * text is not base64 of an object. */
static size_t decode_base64(const char *text, char *out)
{
    size_t used = 0;
    unsigned bits = 0, held = 0;
    for (const char *c = text; *c && *c != '='; c++) {
        char u = *c;
        int value = u >= 'A' && u <= 'Z'   ? u - 'A'
                    : u >= 'a' && u <= 'z' ? u - 'a' + 26
                    : u >= '0' && u <= '9' ? u - '0' + 52
                    : u == '+' || u == '-' ? 62
                    : u == '/' || u == '_' ? 63
                                           : -1;
        if (value < 0)
            return 0;
        bits = bits << 6 | (unsigned)value;
        held += 6;
        if (held >= 8) {
            held -= 8;
            out[used++] = (char)(bits >> held & 0xff);
        }
    }
    size_t first = 0;
    while (first < used && isspace((unsigned char)out[first]))
        first++;
    return first < used && out[first] == '{' ? used : 0;
}

static bool has_suffix(const char *path, const char *suffix)
{
    size_t length = strlen(path), tail = strlen(suffix);
    return length >= tail && strcasecmp(path + length - tail, suffix) == 0;
}

/* By name first, then by whether the first thing that is not a comment opens an object. */
static bool looks_like_yaml(const char *path, const char *text, size_t bytes)
{
    if (has_suffix(path, ".yaml") || has_suffix(path, ".yml"))
        return true;
    if (has_suffix(path, ".json") || has_suffix(path, ".hjson"))
        return false;
    size_t i = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < bytes) {
        if (isspace((unsigned char)text[i])) {
            i++;
        } else if (text[i] == '#' || (text[i] == '/' && i + 1 < bytes && text[i + 1] == '/')) {
            while (i < bytes && text[i] != '\n')
                i++;
        } else {
            return text[i] != '{' && text[i] != '/';
        }
    }
    return false;
}

static int read_json(struct sl_config_context *context, const char *path, const char *text,
                     size_t bytes)
{
    int result = sl_tree_from_json(&context->tree, path, text, bytes, context->error);
    if (!result)
        sl_values_from_tree(context, &context->tree, false);
    return result;
}

/* The JSON that deepspeed_config_file names: as written, then beside the YAML. */
static int read_named_json(struct sl_config_context *context)
{
    const struct sl_value *file =
        sl_value_accelerate(context, "deepspeed_config.deepspeed_config_file");
    if (!sl_value_given(file))
        return 0;
    char beside[SL_CONFIG_PATH_BYTES];
    const char *yaml = context->inputs->path, *slash = strrchr(yaml, '/');
    snprintf(beside, sizeof(beside), "%.*s%s", slash ? (int)(slash - yaml + 1) : 0, yaml,
             file->text);
    const char *path = access(file->text, R_OK) == 0 ? file->text : beside;
    if (access(path, R_OK) != 0) {
        bool two = strcmp(beside, file->text) != 0 && file->text[0] != '/';
        return sl_error_set(context->error, SL_DOMAIN_INPUT, -ENOENT,
                            "%s: deepspeed_config.deepspeed_config_file \"%s\" is missing; tried "
                            "%s%s%s; give its path",
                            file->source, file->text, file->text, two ? " and " : "",
                            two ? beside : "");
    }
    char *text = NULL;
    size_t bytes = 0;
    int result = sl_tree_read_file(path, &text, &bytes, context->error);
    if (!result)
        result = read_json(context, path, text, bytes);
    free(text);
    return result;
}

static int read_yaml(struct sl_config_context *context, const char *path, const char *text,
                     size_t bytes)
{
    int result = sl_tree_from_yaml(&context->yaml, path, text, bytes, context->error);
    if (result)
        return result;
    context->accelerate = true;
    sl_values_from_tree(context, &context->yaml, true);
    return read_named_json(context);
}

/* Base64 is tried where no file has that name. */
static int read_base64(struct sl_config_context *context, const char *path, bool *done)
{
    size_t length = strlen(path);
    *done = false;
    if (length < 4 || length > 2 * SL_TREE_FILE_BYTES_MAX || access(path, F_OK) == 0)
        return 0;
    char *decoded = malloc(length + 1);
    if (!decoded)
        return sl_error_set(context->error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the config");
    size_t bytes = decode_base64(path, decoded);
    int result = 0;
    if (bytes) {
        *done = true;
        result = read_json(context, "base64", decoded, bytes);
    }
    free(decoded);
    return result;
}

int sl_values_read(struct sl_config_context *context)
{
    const char *path = context->inputs->path;
    int result = 0;
    if (path) {
        bool done = false;
        context->has_file = true;
        char *text = NULL;
        size_t bytes = 0;
        result = read_base64(context, path, &done);
        if (!result && !done)
            result = sl_tree_read_file(path, &text, &bytes, context->error);
        if (!result && !done)
            result = looks_like_yaml(path, text, bytes) ? read_yaml(context, path, text, bytes)
                                                        : read_json(context, path, text, bytes);
        free(text);
    }
    for (size_t i = 0; !result && i < context->inputs->set_count; i++)
        sl_values_from_set(context, context->inputs->sets[i]);
    return result;
}

static const struct sl_config defaults = {
    .micro_batch = 1,
    .accumulation = 1,
    .train_batch = 1,
    .clip_norm = 1,
    .optimizer_pipeline_read = true,
    .optimizer_pipeline_write = true,
    .activation_checkpointing = true,
    .nvme.checksums = true,
    .keep_last = 2,
    .print_steps = 10,
};

static void resolve(struct sl_config_context *context)
{
    *context->config = defaults;
    if (context->accelerate)
        sl_resolve_accelerate(context);
    sl_resolve_runtime(context);
    sl_resolve_precision(context);
    sl_resolve_batch(context);
    sl_resolve_optimizer(context);
    sl_resolve_schedule(context);
    sl_resolve_placement(context);
    sl_resolve_limits(context);
    sl_config_rows(context);
}

/* All problems in one error, as many as fit. */
static int refuse(struct sl_config_context *context)
{
    const struct sl_config_lines *problems = &context->report->problems;
    char message[SL_ERROR_MESSAGE_BYTES];
    size_t used = 0, i = 0;
    for (; i < problems->count; i++) {
        size_t need = strlen(problems->line[i]) + 1;
        if (i && used + need + 24 > sizeof(message))
            break;
        int wrote = snprintf(message + used, sizeof(message) - used, "%s%s", i ? "\n" : "",
                             problems->line[i]);
        used = used + (size_t)wrote < sizeof(message) ? used + (size_t)wrote : sizeof(message) - 1;
    }
    if (i < problems->count && used + 24 < sizeof(message))
        snprintf(message + used, sizeof(message) - used, "\nand %zu more", problems->count - i);
    return sl_error_set(context->error, SL_DOMAIN_INPUT, -EINVAL, "%s", message);
}

int sl_config_load(struct sl_config *config, const struct sl_config_inputs *inputs,
                   struct sl_config_report *report, struct sl_error *error)
{
    struct sl_config_report own_report = {0};
    struct sl_config_context context = {
        .inputs = inputs,
        .config = config,
        .report = report ? report : &own_report,
        .error = error,
    };
    *config = defaults;
    int result = sl_values_init(&context);
    if (!result)
        result = sl_values_read(&context);
    if (!result) {
        resolve(&context);
        result = context.result ? sl_error_set(error, SL_DOMAIN_MEMORY, context.result,
                                               "no memory for the "
                                               "configuration's report")
                                : 0;
    }
    if (!result && context.report->problems.count)
        result = refuse(&context);
    sl_values_finish(&context);
    sl_config_report_finish(&own_report);
    return result;
}
