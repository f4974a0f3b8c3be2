// SPDX-License-Identifier: Apache-2.0
/* Where state lies: DeepSpeed's stages and offload blocks as fractions per kind and tier.
 *
 *     block                                   weights   gradients  optimizer
 *     none at all                             auto      auto       auto
 *     stage 0..3, no offload                  device    device     device
 *     + offload_optimizer (stage >= 1)                  host       cpu: host, nvme: nvme; x ratio
 *     + offload_param (stage 3)               likewise  host       host: weights that leave the
 *                                                                  device are updated on the CPU
 *     activation_checkpointing.cpu_checkpointing: activations on the host, otherwise on the device
 *
 * placement.* keys are applied last and win. On one GPU a stage shards nothing, so it only says
 * which offload blocks DeepSpeed would look at.
 */
#include "engine/config_values.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define Z "zero_optimization."
#define OP Z "offload_param."
#define OO Z "offload_optimizer."

static void put(struct sl_config_context *context, enum sl_config_kind kind,
                enum sl_config_tier tier, double share)
{
    struct sl_config_placement *placement = &context->config->placement[kind];
    *placement = (struct sl_config_placement){.given = true};
    placement->fraction[tier] = share;
    placement->fraction[SL_CONFIG_DEVICE] += 1 - share;
}

/* Where an offload block sends its kind; SL_CONFIG_DEVICE: nowhere. A block that the stage rules
 * out is said to have no effect, because its user meant it. */
static enum sl_config_tier offload_tier(struct sl_config_context *context, const char *block,
                                        unsigned stage, unsigned stage_needed)
{
    char path[64];
    snprintf(path, sizeof(path), Z "%s.device", block);
    const struct sl_value *device = sl_value(context, path);
    if (!sl_value_given(device) || strcmp(device->text, "none") == 0)
        return SL_CONFIG_DEVICE;
    if (stage < stage_needed) {
        sl_value_answer(context, path, SL_CONFIG_NO_EFFECT, "needs stage %u%s, the stage is %u",
                        stage_needed, stage_needed < 3 ? " or more" : "", stage);
        sl_config_warn(context,
                       "%s: %s %s has no effect: it needs zero_optimization.stage %u%s, and "
                       "the stage is %u",
                       device->source, path, device->text, stage_needed,
                       stage_needed < 3 ? " or more" : "", stage);
        return SL_CONFIG_DEVICE;
    }
    return strcmp(device->text, "cpu") == 0 ? SL_CONFIG_HOST : SL_CONFIG_NVME;
}

static bool asks(struct sl_config_context *context, const char *path)
{
    const struct sl_value *device = sl_value(context, path);
    return sl_value_given(device) && strcmp(device->text, "none") != 0;
}

/* The stage; where nobody gives one, what the offload blocks need. */
static unsigned resolve_stage(struct sl_config_context *context)
{
    if (sl_value_given(sl_value(context, Z "stage")))
        return (unsigned)sl_value(context, Z "stage")->number;
    unsigned stage = asks(context, OP "device") ? 3 : asks(context, OO "device") ? 2 : 0;
    if (stage)
        sl_config_note(
            context,
            "zero_optimization.stage: %u, because an offload block needs it and no stage "
            "is given",
            stage);
    sl_value_resolve(context, Z "stage", "%u", stage);
    return stage;
}

static void zero_placement(struct sl_config_context *context)
{
    unsigned stage = resolve_stage(context);
    put(context, SL_CONFIG_WEIGHTS, SL_CONFIG_DEVICE, 1);
    put(context, SL_CONFIG_GRADIENTS, SL_CONFIG_DEVICE, 1);
    put(context, SL_CONFIG_OPTIMIZER, SL_CONFIG_DEVICE, 1);
    put(context, SL_CONFIG_ACTIVATIONS, SL_CONFIG_DEVICE, 1);
    enum sl_config_tier optimizer = offload_tier(context, "offload_optimizer", stage, 1);
    enum sl_config_tier weights = offload_tier(context, "offload_param", stage, 3);
    if (optimizer != SL_CONFIG_DEVICE) {
        double ratio = sl_value_number(context, OO "ratio", 1);
        put(context, SL_CONFIG_OPTIMIZER, optimizer, ratio);
        put(context, SL_CONFIG_GRADIENTS, SL_CONFIG_HOST, ratio);
    }
    if (weights != SL_CONFIG_DEVICE)
        put(context, SL_CONFIG_WEIGHTS, weights, sl_value_number(context, OP "ratio", 1));
    if (weights != SL_CONFIG_DEVICE && optimizer == SL_CONFIG_DEVICE) {
        put(context, SL_CONFIG_OPTIMIZER, SL_CONFIG_HOST, 1);
        put(context, SL_CONFIG_GRADIENTS, SL_CONFIG_HOST, 1);
        sl_config_note(context,
                       "placement: weights that leave the device are updated on the CPU, so "
                       "the optimizer state and the gradients lie in host memory");
    }
}

/* placement.<kind> and placement.<kind>.<tier> */
static void own_placement(struct sl_config_context *context, enum sl_config_kind kind)
{
    struct sl_config_placement *placement = &context->config->placement[kind];
    char path[64];
    snprintf(path, sizeof(path), "placement.%s", sl_config_kind_name(kind));
    const struct sl_value *whole = sl_value(context, path);
    if (sl_value_given(whole)) {
        *placement = (struct sl_config_placement){0};
        for (int tier = 0; tier < SL_CONFIG_TIER_COUNT; tier++)
            if (strcmp(whole->text, sl_config_tier_name((enum sl_config_tier)tier)) == 0)
                put(context, kind, (enum sl_config_tier)tier, 1);
    }
    double sum = 0, share[SL_CONFIG_TIER_COUNT] = {0};
    bool any = false, device = false;
    for (int tier = 0; tier < SL_CONFIG_TIER_COUNT; tier++) {
        snprintf(path, sizeof(path), "placement.%s.%s", sl_config_kind_name(kind),
                 sl_config_tier_name((enum sl_config_tier)tier));
        const struct sl_value *value = sl_value(context, path);
        if (!sl_value_given(value))
            continue;
        any = true;
        device = device || tier == SL_CONFIG_DEVICE;
        share[tier] = value->number;
        sum += value->number;
    }
    if (!any)
        return;
    if (sl_value_given(whole))
        sl_config_problem(context, "placement.%s and its shares are both given; take one out",
                          sl_config_kind_name(kind));
    if (sum > 1 + 1e-9 || (device && sum < 1 - 1e-9))
        sl_config_problem(context, "placement.%s.*: the shares sum to %g; they must sum to 1",
                          sl_config_kind_name(kind), sum);
    share[SL_CONFIG_DEVICE] += device ? 0 : fmax(0, 1 - sum);
    placement->given = true;
    memcpy(placement->fraction, share, sizeof(share));
}

static void resolve_text(struct sl_config_context *context, enum sl_config_kind kind)
{
    const struct sl_config_placement *placement = &context->config->placement[kind];
    char path[64], text[96] = "auto";
    size_t used = 0;
    snprintf(path, sizeof(path), "placement.%s", sl_config_kind_name(kind));
    for (int tier = 0; placement->given && tier < SL_CONFIG_TIER_COUNT; tier++)
        if (placement->fraction[tier] > 0)
            used += (size_t)snprintf(
                text + used, sizeof(text) - used, "%s%s %.4g%%", used ? ", " : "",
                sl_config_tier_name((enum sl_config_tier)tier), 100 * placement->fraction[tier]);
    sl_value_resolve(context, path, "%s", text);
    struct sl_value *value = sl_value(context, path);
    if (value->state == SL_VALUE_ABSENT && placement->given)
        value->source = "from the keys given";
}

/* --- NVMe folders --- */

static void check_folder(struct sl_config_context *context, const char *key, const char *path,
                         const char *source)
{
    struct stat status;
    if (!context->inputs->check_paths)
        return;
    if (stat(path, &status) != 0)
        sl_config_problem(context, "%s: %s \"%s\": %s; give a folder on a fast disk", source, key,
                          path, strerror(errno));
    else if (!S_ISDIR(status.st_mode))
        sl_config_problem(context, "%s: %s \"%s\" is not a folder; give a folder on a fast disk",
                          source, key, path);
    else if (access(path, W_OK | X_OK) != 0)
        sl_config_problem(context, "%s: %s \"%s\" is not writable: %s; give another folder", source,
                          key, path, strerror(errno));
}

static void add_path(struct sl_config_context *context, const char *key, const char *path,
                     size_t length, const char *source)
{
    struct sl_config_nvme *nvme = &context->config->nvme;
    char folder[SL_CONFIG_PATH_BYTES] = {0};
    if (length >= SL_CONFIG_PATH_BYTES || nvme->path_count == SL_CONFIG_NVME_PATHS_MAX) {
        sl_config_problem(context, "%s: %s: at most %d folders, of %d bytes each", source, key,
                          SL_CONFIG_NVME_PATHS_MAX, SL_CONFIG_PATH_BYTES - 1);
        return;
    }
    memcpy(folder, path, length);
    for (size_t i = 0; i < nvme->path_count; i++)
        if (strcmp(nvme->paths[i], folder) == 0)
            return;
    memcpy(nvme->paths[nvme->path_count++], folder, sizeof(folder));
    check_folder(context, key, folder, source);
}

static bool uses_nvme(const struct sl_config *config, enum sl_config_kind kind)
{
    return config->placement[kind].given && config->placement[kind].fraction[SL_CONFIG_NVME] > 0;
}

/* The folder of one offload block; required where its device is nvme. */
static void offload_path(struct sl_config_context *context, const char *block,
                         enum sl_config_kind kind)
{
    char path[64], device[64];
    snprintf(path, sizeof(path), Z "%s.nvme_path", block);
    snprintf(device, sizeof(device), Z "%s.device", block);
    const struct sl_value *value = sl_value(context, path);
    bool asked = sl_value_is(context, device, "nvme") && uses_nvme(context->config, kind);
    bool own = sl_value_given(sl_value(context, "nvme.path"));
    if (!asked) {
        sl_value_answer(context, path, SL_CONFIG_NO_EFFECT, "the device is not nvme");
    } else if (own) {
        sl_value_answer(context, path, SL_CONFIG_NO_EFFECT, "nvme.path is given");
    } else if (!sl_value_given(value) || !*value->text) {
        sl_config_problem(context,
                          "%s: %s is nvme, but %s is not given; give a folder on a fast disk",
                          sl_value(context, device)->source, device, path);
    } else {
        add_path(context, path, value->text, strlen(value->text), value->source);
    }
}

static void resolve_paths(struct sl_config_context *context)
{
    const struct sl_config *config = context->config;
    const struct sl_value *own = sl_value(context, "nvme.path");
    for (const char *word = sl_value_given(own) ? own->text : ""; *word;
         word += strcspn(word, ",")) {
        word += strspn(word, ",");
        size_t length = strcspn(word, ",");
        if (length)
            add_path(context, "nvme.path", word, length, own->source);
    }
    offload_path(context, "offload_optimizer", SL_CONFIG_OPTIMIZER);
    offload_path(context, "offload_param", SL_CONFIG_WEIGHTS);
    bool offload =
        sl_value_is(context, OO "device", "nvme") || sl_value_is(context, OP "device", "nvme");
    for (int kind = 0; kind < SL_CONFIG_KIND_COUNT; kind++)
        if (uses_nvme(config, (enum sl_config_kind)kind) && config->nvme.path_count == 0 &&
            !offload)
            sl_config_problem(context,
                              "placement.%s asks for nvme, but nvme.path is not given; give "
                              "a folder on a fast disk",
                              sl_config_kind_name((enum sl_config_kind)kind));
}

/* A GPU updates what lies beside the optimizer state, so such pieces stay on it whole. */
static void warn_of_device_updates(struct sl_config_context *context)
{
    const struct sl_config_placement *optimizer = &context->config->placement[SL_CONFIG_OPTIMIZER];
    const struct sl_config_placement *weights = &context->config->placement[SL_CONFIG_WEIGHTS];
    double updated = optimizer->fraction[SL_CONFIG_DEVICE];
    if (optimizer->given && weights->given && updated > weights->fraction[SL_CONFIG_DEVICE] + 1e-9)
        sl_config_warn(
            context,
            "placement: %.4g%% of the optimizer state is on the device, and on a GPU the "
            "weights and gradients that it updates stay beside it; for weights elsewhere "
            "put the optimizer state on host or nvme",
            100 * updated);
}

void sl_resolve_placement(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    if (context->zero_block)
        zero_placement(context);
    else
        sl_config_note(context, "placement: auto, the fastest tier first; there is no "
                                "zero_optimization block");
    if (sl_value_bool(context, "activation_checkpointing.cpu_checkpointing", false))
        put(context, SL_CONFIG_ACTIVATIONS, SL_CONFIG_HOST, 1);
    for (int kind = 0; kind < SL_CONFIG_KIND_COUNT; kind++) {
        own_placement(context, (enum sl_config_kind)kind);
        resolve_text(context, (enum sl_config_kind)kind);
    }
    warn_of_device_updates(context);
    if (!config->activation_checkpointing &&
        config->placement[SL_CONFIG_ACTIVATIONS].fraction[SL_CONFIG_DEVICE] < 1 &&
        config->placement[SL_CONFIG_ACTIVATIONS].given)
        sl_config_problem(context,
                          "train.activation_checkpointing false keeps all activations on the "
                          "device; take cpu_checkpointing or placement.activations out");
    resolve_paths(context);
}

/* --- limits of the plan --- */

/* An upper bound: given, or from the hidden size where it is auto, or DeepSpeed's default. */
static uint64_t bound(struct sl_config_context *context, const char *path, double from_hidden,
                      double otherwise)
{
    const struct sl_value *value = sl_value(context, path);
    double number = sl_value_given(value)                              ? value->number
                    : value->state == SL_VALUE_AUTO && from_hidden > 0 ? floor(from_hidden)
                                                                       : otherwise;
    char text[32];
    sl_value_resolve(context, path, "%s", sl_number_text(number, text));
    return (uint64_t)number;
}

static void resolve_schedule_of_plan(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    config->order = sl_value_is(context, "schedule.order", "layer-major")   ? SL_CONFIG_LAYER_MAJOR
                    : sl_value_is(context, "schedule.order", "batch-major") ? SL_CONFIG_BATCH_MAJOR
                                                                            : SL_CONFIG_ORDER_AUTO;
    config->prefetch_layers = (uint64_t)sl_value_number(context, "schedule.prefetch_layers", 0);
    config->micro_batch_group = (uint64_t)sl_value_number(context, "schedule.micro_batch_group", 0);
    config->tile_table_bytes =
        (uint64_t)sl_value_number(context, "tiling.table_bytes", (double)SL_CONFIG_TILE_AUTO);
    config->tile_layer_bytes = (uint64_t)sl_value_number(context, "tiling.layer_bytes", 0);
    config->threads = (uint64_t)sl_value_number(context, "threads", 0);
    config->speculate = sl_value_number(context, "schedule.speculate", 0);
    config->speculate_given = sl_value_given(sl_value(context, "schedule.speculate"));
    config->speculate_always = sl_value_bool(context, "schedule.speculate_always", false);
    config->delayed_update = sl_value_bool(context, "schedule.delayed_update", false);
    if (config->delayed_update && config->speculate > 0)
        sl_config_problem(context, "schedule.speculate and schedule.delayed_update: nobody waits "
                                   "for a delayed update; take one of the two out");
}

static void resolve_nvme(struct sl_config_context *context)
{
    struct sl_config_nvme *nvme = &context->config->nvme;
    nvme->block_bytes = (uint64_t)sl_value_number(context, "nvme.block_size",
                                                  sl_value_number(context, "aio.block_size", 0));
    nvme->queue_depth = (uint64_t)sl_value_number(context, "nvme.queue_depth",
                                                  sl_value_number(context, "aio.queue_depth", 0));
    nvme->thread_count = (uint64_t)sl_value_number(context, "aio.intra_op_parallelism", 0);
    nvme->checksums = sl_value_bool(context, "nvme.checksums", true);
    nvme->backend = sl_value_is(context, "nvme.backend", "uring")     ? SL_CONFIG_NVME_URING
                    : sl_value_is(context, "nvme.backend", "threads") ? SL_CONFIG_NVME_THREADS
                                                                      : SL_CONFIG_NVME_AUTO;
    if (nvme->block_bytes % 4096) {
        const struct sl_value *own = sl_value(context, "nvme.block_size");
        const char *key = sl_value_given(own) ? "nvme.block_size" : "aio.block_size";
        sl_config_problem(context,
                          "%s: %s %llu is not a multiple of 4096, which direct I/O needs; "
                          "write %llu",
                          sl_value(context, key)->source, key,
                          (unsigned long long)nvme->block_bytes,
                          (unsigned long long)((nvme->block_bytes / 4096 + 1) * 4096));
    }
}

void sl_resolve_limits(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    double hidden = (double)context->inputs->model.hidden;
    static const char *const budgets[] = {"memory.device", "memory.host", "memory.nvme"};
    for (int tier = 0; tier < SL_CONFIG_TIER_COUNT; tier++)
        config->memory_bytes[tier] = (uint64_t)sl_value_number(context, budgets[tier], 0);
    config->optimizer_pipeline_read = sl_value_bool(context, OO "pipeline_read", true);
    config->optimizer_pipeline_write = sl_value_bool(context, OO "pipeline_write", true);
    resolve_schedule_of_plan(context);
    resolve_nvme(context);
    bound(context, Z "reduce_bucket_size", hidden * hidden, 5e8);
    bound(context, Z "stage3_max_reuse_distance", 0, 1e9);
    bound(context, Z "stage3_param_persistence_threshold", 10 * hidden, 1e5);
    uint64_t prefetch = bound(context, Z "stage3_prefetch_bucket_size", 0.9 * hidden * hidden, 5e7);
    uint64_t live = bound(context, Z "stage3_max_live_parameters", 0, 1e9);
    uint64_t sub_group = bound(context, Z "sub_group_size", 0, 1e9);
    uint64_t param_count = bound(context, OP "buffer_count", 0, 5);
    uint64_t param_elements = bound(context, OP "buffer_size", 0, 1e8);
    bound(context, OP "max_in_cpu", 0, 1e9);
    uint64_t optimizer_count = bound(context, OO "buffer_count", 0, 4);
    if (!context->zero_block) {
        return; /* nobody asked for DeepSpeed's bounds */
    }
    config->prefetch_elements_max = prefetch ? prefetch : 1;
    config->live_elements_max = live ? live : 1;
    config->sub_group_elements_max = sub_group ? sub_group : 1;
    config->param_buffer_count_max = param_count;
    config->param_buffer_elements_max = param_elements ? param_elements : 1;
    config->optimizer_buffer_count_max = optimizer_count;
}
