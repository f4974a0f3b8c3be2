// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/chat.h"
#include "engine/tokenize_internal.h"
#include "engine/weights.h"
#include "offload/workers.h"

#define SEQUENCE_DEFAULT 1024u
#define TELL_NS ((uint64_t)5000000000)
#define TILE_LIMIT_BYTES (256u << 20) /* tables above this are tiled by default, ... */
#define TILE_BYTES (64u << 20)        /* ... in tiles of this many bytes of weights */
/* Sub-groups: small enough that several are in flight, large enough to reach the drive's speed. */
#define SUB_GROUP_MAX (16u << 20)
#define SUB_GROUP_MIN (256u << 10)
#define SUB_GROUPS_WANTED 32u

/* Weights that are there and cannot be read would be replaced by random ones in silence. */
static int refuse_other_weights(const char *folder, struct sl_error *error)
{
    static const char *const files[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                        "consolidated.00.pth", "tf_model.h5", "flax_model.msgpack"};
    struct stat info;
    char path[SL_CONFIG_PATH_BYTES + 32];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
        if (stat(path, &info) == 0)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "--model %s: the weights are in %s, only safetensors are read; "
                                "convert them: in Python AutoModelForCausalLM.from_pretrained(...)"
                                ".save_pretrained(...)",
                                folder, files[i]);
    }
    return 0;
}

static int open_model(struct sl_session *s, const char *name, struct sl_error *error)
{
    struct stat info;
    char path[SL_CONFIG_PATH_BYTES];
    if (!name)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "--model is missing: give a folder with config.json or a preset");
    if (snprintf(path, sizeof(path), "%s/config.json", name) >= (int)sizeof(path))
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENAMETOOLONG, "--model: path too long");
    if (stat(path, &info) != 0) {
        /* A folder without that file, a LoRA adapter for one, is no misspelt preset. */
        bool folder = stat(name, &info) == 0 && S_ISDIR(info.st_mode);
        int result = sl_model_from_preset(&s->model, name, folder ? NULL : error);
        if (result == 0 || !folder)
            return result;
    }
    snprintf(s->model_path, sizeof(s->model_path), "%s", name);
    snprintf(path, sizeof(path), "%s/model.safetensors", name);
    s->model_has_weights = stat(path, &info) == 0;
    if (!s->model_has_weights) {
        snprintf(path, sizeof(path), "%s/model.safetensors.index.json", name);
        s->model_has_weights = stat(path, &info) == 0;
    }
    int result = sl_model_from_directory(&s->model, name, error);
    if (!result && !s->model_has_weights)
        result = refuse_other_weights(name, error);
    return result;
}

static int freeze(struct sl_session *s, struct sl_error *error)
{
    const char *patterns[SL_CONFIG_FROZEN_MAX];
    for (size_t i = 0; i < s->config.frozen_count; i++)
        patterns[i] = s->config.frozen[i];
    return sl_model_freeze(&s->model, patterns, s->config.frozen_count, error);
}

static uint32_t sequence_of(const struct sl_session *s)
{
    if (s->config.sequence_length)
        return (uint32_t)s->config.sequence_length;
    return (uint32_t)sl_min_u64(SEQUENCE_DEFAULT, s->model.positions_max);
}

static int check_sequence(const struct sl_session *s, struct sl_error *error)
{
    uint32_t sequence = sequence_of(s);
    if (s->model.position_table && sequence > s->model.positions_max)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "train.sequence_length %u: the model has positions up to %u; give a "
                            "shorter one",
                            sequence, s->model.positions_max);
    return 0;
}

/* A template that was named goes where the checkpoints of the model do that was tuned with it. */
static int carry_template(struct sl_session *s, const struct sl_chat *chat, struct sl_error *error)
{
    struct sl_chat own;
    bool same = sl_chat_detect(&own, sl_tokenizer_chat_template(s->tokenizer)) &&
                own.format == chat->format;
    return same ? 0
                : sl_tokenizer_set_chat_template(s->tokenizer, sl_chat_jinja(chat->format), error);
}

static void describe_data(const struct sl_session *s, const struct sl_dataset_options *data,
                          const struct sl_chat *chat)
{
    bool examples = sl_dataset_has_examples(s->dataset);
    if (examples)
        sl_log_write(data->log, SL_LOG_INFO, "conversations: template %s, loss on %s, %s",
                     sl_chat_format_name(chat->format),
                     data->train_on_prompt ? "every token" : "answers",
                     data->no_packing ? "one in a sequence" : "packed");
    if (examples && !sl_chat_has_tokens(chat, s->tokenizer))
        sl_log_write(data->log, SL_LOG_WARNING,
                     "%s is no token of this tokenizer: the frames of template %s are plain text, "
                     "which messages can imitate",
                     sl_chat_end(chat), sl_chat_format_name(chat->format));
    sl_log_write(data->log, SL_LOG_INFO,
                 "data: %llu tokens, %llu sequences of %u, %llu held out for evaluation",
                 (unsigned long long)sl_dataset_tokens(s->dataset),
                 (unsigned long long)sl_dataset_sequences(s->dataset), data->sequence_length,
                 (unsigned long long)sl_dataset_eval_sequences(s->dataset));
}

struct reading {
    const struct sl_run_options *o;
    uint64_t told_ns;
};

/* A line every few seconds; small texts are done before the first. */
static bool tell_progress(void *user, uint64_t done, uint64_t total, uint64_t tokens)
{
    struct reading *reading = user;
    uint64_t now = sl_clock_ns();
    if (now - reading->told_ns >= TELL_NS) {
        reading->told_ns = now;
        sl_log_write(reading->o->log, SL_LOG_INFO, "tokenizing: %.0f %%, %.1f M tokens",
                     100 * (double)done / (double)(total ? total : 1), (double)tokens * 1e-6);
    }
    return !(reading->o->stop && *reading->o->stop);
}

/* Texts are encoded by all threads, on a pool that ends before the engine's begins. */
static int read_data(struct sl_session *s, const struct sl_run_options *o, struct sl_error *error)
{
    const struct sl_config *c = &s->config;
    const char *cache = c->data.cache_path[0] ? c->data.cache_path : o->cache;
    struct sl_workers_options pool = {.thread_count = c->threads, .log = o->log};
    struct reading reading = {.o = o, .told_ns = sl_clock_ns()};
    struct sl_chat chat;
    bool guessed;
    struct sl_dataset_options data = {
        .files = o->data,
        .file_count = o->data_count,
        .tokenizer = s->tokenizer,
        .cache_directory = o->cache && !c->data.no_cache ? cache : NULL,
        .sequence_length = sequence_of(s),
        .validation_fraction = c->data.validation_fraction,
        .seed = c->seed,
        .in_order = c->data.in_order,
        .chat_template = c->data.chat_template[0] ? c->data.chat_template : NULL,
        .train_on_prompt = c->data.train_on_prompt,
        .allow_special = c->data.allow_special,
        .no_packing = c->data.no_packing,
        .log = o->log,
        .progress = tell_progress,
        .progress_user = &reading,
    };
    int result = sl_workers_create(&data.workers, &pool, error);
    if (!result)
        result = sl_dataset_open(&s->dataset, &data, error);
    if (!result)
        result = sl_chat_choose(&chat, s->tokenizer, data.chat_template, &guessed, error);
    if (!result)
        describe_data(s, &data, &chat);
    if (!result && data.chat_template && sl_dataset_has_examples(s->dataset))
        result = carry_template(s, &chat, error);
    sl_workers_destroy(data.workers);
    return result;
}

/* What a folder lacks and training would make up. */
static void warn_of_missing(const struct sl_session *s, const struct sl_run_options *o,
                            bool has_tokenizer)
{
    bool text = false;
    for (size_t i = 0; i < o->data_count; i++)
        text = text || !tokenize_is_bin(o->data[i]);
    if (s->model_path[0] && text && !has_tokenizer)
        sl_log_write(o->log, SL_LOG_WARNING,
                     "%s has no tokenizer.json: every byte is a token; if the model has a "
                     "tokenizer: in Python AutoTokenizer.from_pretrained(...).save_pretrained(...)",
                     s->model_path);
    if (s->model_path[0] && o->data_count && !s->model_has_weights)
        sl_log_write(o->log, SL_LOG_WARNING, "%s has no model.safetensors: weights begin at random",
                     s->model_path);
}

static int open_data(struct sl_session *s, const struct sl_run_options *o, struct sl_error *error)
{
    char tokenizer_path[SL_CONFIG_PATH_BYTES + 32];
    struct stat info;
    snprintf(tokenizer_path, sizeof(tokenizer_path), "%s/tokenizer.json", s->model_path);
    bool own = s->model_path[0] && stat(tokenizer_path, &info) == 0;
    warn_of_missing(s, o, own);
    int result = sl_tokenizer_open(&s->tokenizer, own ? s->model_path : NULL, error);
    if (result || o->data_count == 0)
        return result;
    result = sl_model_check_training(&s->model, error); /* before hours of tokenizing */
    if (!result)
        result = read_data(s, o, error);
    if (!result && sl_dataset_id_limit(s->dataset) > s->model.vocabulary)
        result = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                              "the data has token ids up to %u but the model's vocabulary is %u: "
                              "the tokenizer does not belong to this model",
                              sl_dataset_id_limit(s->dataset) - 1, s->model.vocabulary);
    return result;
}

static int count_steps(struct sl_session *s, struct sl_error *error)
{
    struct sl_config *c = &s->config;
    s->steps = s->steps_given;
    if (!s->steps && s->dataset) {
        uint64_t per_epoch = sl_dataset_sequences(s->dataset) / c->train_batch;
        if (per_epoch == 0)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "a batch of %llu sequences is more than the %llu that the data "
                                "gives; lower train.batch or train.sequence_length",
                                (unsigned long long)c->train_batch,
                                (unsigned long long)sl_dataset_sequences(s->dataset));
        s->steps = (uint64_t)ceil((c->epochs > 0 ? c->epochs : 1) * (double)per_epoch);
    }
    if (s->steps)
        sl_config_set_steps(c, s->steps);
    return 0;
}

static uint64_t choose_sub_group(const struct sl_session *s)
{
    uint64_t chosen = s->model.param_elements / SUB_GROUPS_WANTED;
    chosen = sl_max_u64(sl_min_u64(chosen, SUB_GROUP_MAX), SUB_GROUP_MIN);
    uint64_t bound = s->config.sub_group_elements_max;
    return bound ? sl_min_u64(bound, chosen) : chosen;
}

static uint64_t tile_bytes(const struct sl_session *s)
{
    if (s->config.tile_table_bytes != SL_CONFIG_TILE_AUTO)
        return s->config.tile_table_bytes;
    uint64_t table =
        (uint64_t)s->model.vocabulary * s->model.hidden * sl_dtype_bytes(s->config.precision);
    return table > TILE_LIMIT_BYTES ? TILE_BYTES : 0;
}

static uint32_t choose_buffers(const struct sl_config *c)
{
    uint64_t buffers = 1u + c->optimizer_pipeline_read + c->optimizer_pipeline_write;
    if (c->optimizer_buffer_count_max)
        buffers = sl_min_u64(buffers, c->optimizer_buffer_count_max);
    return (uint32_t)buffers;
}

/* What the user did not give may be chosen by simulation. Bounds of the user's on buffers are kept
 * by leaving alone what they bound. */
static struct sl_choose_free free_settings(const struct sl_config *c)
{
    return (struct sl_choose_free){
        .order = c->order == SL_CONFIG_ORDER_AUTO && !c->micro_batch_group,
        .recompute = !c->activation_checkpointing_given,
        .prefetch = !c->prefetch_layers && !c->prefetch_elements_max && !c->live_elements_max &&
                    !c->param_buffer_count_max && !c->param_buffer_elements_max,
        .buffers = c->optimizer_pipeline_read && c->optimizer_pipeline_write &&
                   !c->optimizer_buffer_count_max,
        .speculate = !c->speculate_given && !c->delayed_update,
        .sub_group = true,
        .sub_group_max = c->sub_group_elements_max,
    };
}

/* Micro-batches per visit of a layer; 0: all. */
static uint64_t group_of(const struct sl_config *c)
{
    return c->order == SL_CONFIG_BATCH_MAJOR ? 1 : c->micro_batch_group;
}

static struct sl_batch_free free_batch(const struct sl_session *s)
{
    const struct sl_config *c = &s->config;
    return (struct sl_batch_free){
        .free = c->micro_batch_auto,
        .total = c->train_batch_given ? c->train_batch : 0,
        .accumulation = c->accumulation,
        .total_max = s->dataset ? sl_dataset_sequences(s->dataset) : 0,
        .group = group_of(c),
    };
}

int sl_session_set_batch(struct sl_session *s, uint64_t micro_batch, uint64_t accumulation,
                         struct sl_error *error)
{
    struct sl_config *c = &s->config;
    c->micro_batch = micro_batch;
    c->accumulation = accumulation;
    c->train_batch = micro_batch * accumulation;
    sl_batch_set(&s->engine.step, micro_batch, accumulation, group_of(c));
    return count_steps(s, error);
}

static uint64_t largest_layer(const struct sl_model *model)
{
    uint64_t largest = 1;
    for (uint32_t unit = 1; unit <= model->layers; unit++)
        largest = sl_max_u64(largest, model->unit_elements[unit]);
    return largest;
}

static void fill_engine(struct sl_session *s, const struct sl_run_options *o)
{
    const struct sl_config *c = &s->config;
    struct sl_engine_options *e = &s->engine;
    *e = (struct sl_engine_options){
        .step = {.model = &s->model,
                 .precision = c->precision,
                 .sequence = sequence_of(s),
                 .recompute = c->activation_checkpointing,
                 .sub_group_elements = choose_sub_group(s),
                 .optimizer_buffers = choose_buffers(c),
                 .prefetch = sl_config_prefetch_layers(c, largest_layer(&s->model)),
                 .tile_bytes = tile_bytes(s),
                 .layer_bytes = c->tile_layer_bytes,
                 .hyper = c->optimizer,
                 .moment_kind = c->moment_kind,
                 .speculate = c->speculate,
                 .speculate_always = c->speculate_always,
                 .delayed_update = c->delayed_update,
                 .master_kind = c->master_kind},
        .device = o->device,
        .thread_count = c->threads,
        .swap = {.paths = s->nvme_paths,
                 .path_count = c->nvme.path_count,
                 .block_bytes = c->nvme.block_bytes,
                 .queue_depth = c->nvme.queue_depth,
                 .thread_count = c->nvme.thread_count,
                 .backend = c->nvme.backend == SL_CONFIG_NVME_URING     ? SL_SWAP_URING
                            : c->nvme.backend == SL_CONFIG_NVME_THREADS ? SL_SWAP_THREADS
                                                                        : SL_SWAP_AUTO,
                 .checksums_off = !c->nvme.checksums},
        .find_nearest = true,
        .log = o->log,
    };
    e->free = free_settings(c);
    e->hardware = s->has_hardware ? &s->hardware : NULL;
    e->batch = free_batch(s);
    sl_batch_set(&e->step, c->micro_batch, c->accumulation, group_of(c));
    for (size_t i = 0; i < c->nvme.path_count; i++)
        s->nvme_paths[i] = c->nvme.paths[i];
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        e->budget_bytes[tier] = c->memory_bytes[tier];
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        e->placement_free[kind] = !c->placement[kind].given;
        memcpy(e->step.placement.fraction[kind], c->placement[kind].fraction,
               sizeof(e->step.placement.fraction[kind]));
    }
}

_Static_assert((int)SL_CONFIG_KIND_COUNT == (int)SL_PLACED_COUNT &&
                   (int)SL_CONFIG_ACTIVATIONS == (int)SL_PLACED_ACTIVATIONS &&
                   (int)SL_CONFIG_NVME == (int)SL_TIER_NVME,
               "the configuration and the plan name kinds and tiers in the same order");

/* The profile that was named, or the one that was saved. */
static int open_hardware(struct sl_session *s, const struct sl_run_options *o,
                         struct sl_error *error)
{
    int result = o->hardware ? sl_hardware_load(&s->hardware, o->hardware, error)
                             : sl_hardware_load_saved(&s->hardware, error);
    s->has_hardware = result == 0;
    return !o->hardware && result == -ENOENT ? 0 : result;
}

/* The type of most elements: norms may be kept in another. */
static int weights_precision(const struct sl_session *s, const char **name, struct sl_error *error)
{
    static const char *const names[] = {[SL_F32] = "fp32", [SL_BF16] = "bf16", [SL_F16] = "fp16"};
    struct sl_weights *weights;
    uint64_t elements[3] = {0};
    int result = sl_weights_open(&weights, s->model_path, &s->model, error);
    if (result)
        return result;
    for (size_t i = 0; i < s->model.param_count; i++)
        elements[sl_weights_dtype(weights, i)] +=
            s->model.params[i].rows * s->model.params[i].columns;
    sl_weights_close(weights);
    enum sl_dtype most = SL_F32;
    for (enum sl_dtype t = SL_BF16; t <= SL_F16; t++)
        if (elements[t] > elements[most])
            most = t;
    *name = names[most];
    return 0;
}

enum purpose { TO_RUN, TO_SIMULATE, TO_READ_WEIGHTS };

static int open_session(struct sl_session *s, const struct sl_run_options *o, enum purpose purpose,
                        struct sl_error *error)
{
    const char *precision = NULL;
    *s = (struct sl_session){0};
    int result = open_model(s, o->model, error);
    if (!result && purpose == TO_READ_WEIGHTS && s->model_has_weights)
        result = weights_precision(s, &precision, error);
    if (!result) {
        struct sl_config_inputs inputs = {
            .path = o->config,
            .sets = o->sets,
            .set_count = o->set_count,
            .model = {s->model.hidden, s->model.layers, s->model.param_elements,
                      s->model.positions_max},
            .check_paths = purpose != TO_SIMULATE,
            .precision = precision,
        };
        result = sl_config_load(&s->config, &inputs, &s->report, error);
        s->steps_given = s->config.steps;
    }
    if (!result && purpose == TO_RUN)
        result = open_hardware(s, o, error);
    if (!result)
        result = freeze(s, error);
    if (!result)
        result = check_sequence(s, error);
    if (!result)
        result = open_data(s, o, error);
    if (!result)
        result = count_steps(s, error);
    if (result) {
        sl_session_close(s);
        return result;
    }
    fill_engine(s, o);
    return 0;
}

int sl_session_open(struct sl_session *s, const struct sl_run_options *o, struct sl_error *error)
{
    return open_session(s, o, TO_RUN, error);
}

int sl_session_open_elsewhere(struct sl_session *s, const struct sl_run_options *o,
                              struct sl_error *error)
{
    return open_session(s, o, TO_SIMULATE, error);
}

int sl_session_open_weights(struct sl_session *s, const struct sl_run_options *o,
                            struct sl_error *error)
{
    return open_session(s, o, TO_READ_WEIGHTS, error);
}

void sl_session_close(struct sl_session *s)
{
    sl_dataset_close(s->dataset);
    sl_tokenizer_close(s->tokenizer);
    sl_config_report_finish(&s->report);
    sl_model_finish(&s->model);
    *s = (struct sl_session){0};
}
