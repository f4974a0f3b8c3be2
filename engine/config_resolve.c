// SPDX-License-Identifier: Apache-2.0
/* Precision, batch, and what is written while training: `auto` as Hugging Face resolves it, with
 * sluice's own train.* keys in the place of its training arguments. */
#include "engine/config_values.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The least normal fp16 number: with a smaller scale hardly a gradient is above 0. */
#define STATIC_SCALE_MIN 0x1p-14

/* The number of a DeepSpeed key that one of the trainer's own keys supplies: given, else own.
 * Both given and different is a contradiction. False: neither is there. */
static bool supply(struct sl_config_context *context, const char *path, const char *own_path,
                   double *number)
{
    const struct sl_value *value = sl_value(context, path), *own = sl_value(context, own_path);
    char a[32], b[32];
    if (sl_value_given(value) && sl_value_given(own) && value->number != own->number)
        sl_config_problem(context,
                          "%s %s (%s) and %s %s (%s) contradict each other; change one, or "
                          "write \"auto\" in the file",
                          path, sl_number_text(value->number, a), value->source, own_path,
                          sl_number_text(own->number, b), own->source);
    if (!sl_value_given(value) && !sl_value_given(own))
        return false;
    *number = sl_value_given(value) ? value->number : own->number;
    return true;
}

/* --- precision --- */

enum answer { NO, YES, AUTO, ABSENT };

static enum answer enabled(struct sl_config_context *context, const char *path)
{
    const struct sl_value *value = sl_value(context, path);
    if (value->state == SL_VALUE_ABSENT)
        return ABSENT;
    if (value->state == SL_VALUE_AUTO)
        return AUTO;
    return value->boolean ? YES : NO;
}

static enum sl_dtype named_precision(const char *name)
{
    return strcmp(name, "bf16") == 0 ? SL_BF16 : strcmp(name, "fp16") == 0 ? SL_F16 : SL_F32;
}

static const char *precision_text(enum sl_dtype precision)
{
    return precision == SL_BF16 ? "bf16" : precision == SL_F16 ? "fp16" : "32-bit";
}

static enum sl_dtype choose_precision(struct sl_config_context *context, enum answer fp16,
                                      enum answer bf16)
{
    const struct sl_value *own = sl_value(context, "train.precision");
    if (fp16 == YES)
        return SL_F16;
    if (bf16 == YES)
        return SL_BF16;
    if (sl_value_given(own)) {
        enum sl_dtype wanted = named_precision(own->text);
        sl_config_note(context, "precision: %s, from train.precision (%s)", precision_text(wanted),
                       own->source);
        return wanted;
    }
    if (bf16 == AUTO) {
        sl_config_note(context,
                       "precision: bf16: bf16.enabled is auto%s, and bf16 is the default of "
                       "train.precision; fp16 stays off",
                       fp16 == AUTO ? " as fp16.enabled is" : "");
        return SL_BF16;
    }
    if (fp16 == AUTO) {
        sl_config_note(context, "precision: fp16: fp16.enabled is auto and it is the only 16-bit "
                                "precision that the file names");
        return SL_F16;
    }
    if (!context->has_file && context->inputs->precision) {
        enum sl_dtype wanted = named_precision(context->inputs->precision);
        sl_config_note(context, "precision: %s, the type of the weights", precision_text(wanted));
        return wanted;
    }
    if (!context->has_file) {
        sl_config_note(context, "precision: bf16, the default without a --config");
        return SL_BF16;
    }
    sl_config_note(context, "precision: 32-bit: neither fp16 nor bf16 is on in the file; for less "
                            "memory add \"bf16\": {\"enabled\": true}");
    return SL_F32;
}

static void check_precision(struct sl_config_context *context, enum answer fp16, enum answer bf16)
{
    const struct sl_value *own = sl_value(context, "train.precision");
    if (fp16 == YES && bf16 == YES)
        sl_config_problem(context,
                          "fp16.enabled true (%s) and bf16.enabled true (%s): one precision "
                          "is possible; set one of them false",
                          sl_value(context, "fp16.enabled")->source,
                          sl_value(context, "bf16.enabled")->source);
    if (!sl_value_given(own))
        return;
    enum sl_dtype wanted = named_precision(own->text);
    const char *other = NULL;
    if (fp16 == YES && wanted != SL_F16)
        other = "fp16.enabled";
    else if (bf16 == YES && wanted != SL_BF16)
        other = "bf16.enabled";
    else if (fp16 == NO && wanted == SL_F16)
        other = "fp16.enabled";
    else if (bf16 == NO && wanted == SL_BF16)
        other = "bf16.enabled";
    if (other)
        sl_config_problem(context,
                          "%s %s (%s) and train.precision %s (%s) contradict each other; "
                          "change one, or write \"auto\" in the file",
                          other, sl_value(context, other)->boolean ? "true" : "false",
                          sl_value(context, other)->source, own->text, own->source);
}

static void resolve_scaler(struct sl_config_context *context)
{
    struct sl_loss_scaler_options *scaler = &context->config->scaler;
    static const char *const keys[] = {
        "fp16.loss_scale", "fp16.initial_scale_power",    "fp16.loss_scale_window",
        "fp16.hysteresis", "fp16.consecutive_hysteresis", "fp16.min_loss_scale"};
    *scaler = (struct sl_loss_scaler_options){.initial = 1, .min = 1, .window = 1, .hysteresis = 1};
    scaler->skipped_max = (uint32_t)sl_value_number(context, "train.skipped_steps_max", 50);
    if (context->config->precision != SL_F16) {
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
            sl_value_answer(context, keys[i], SL_CONFIG_NO_EFFECT, "%s needs no loss scale",
                            precision_text(context->config->precision));
        return;
    }
    double fixed = sl_value_number(context, keys[0], 0);
    if (fixed > 0 && fixed < STATIC_SCALE_MIN)
        sl_config_problem(context,
                          "%s: fp16.loss_scale %g is below %g, under which fp16 gradients vanish; "
                          "write 0 (dynamic) or at least 1",
                          sl_value(context, keys[0])->source, fixed, STATIC_SCALE_MIN);
    scaler->dynamic = fixed == 0;
    scaler->initial = fixed != 0 ? fixed : exp2(sl_value_number(context, keys[1], 16));
    scaler->window = (uint64_t)sl_value_number(context, keys[2], 1000);
    scaler->hysteresis = (uint32_t)sl_value_number(context, keys[3], 2);
    scaler->consecutive = sl_value_bool(context, keys[4], false);
    scaler->min = sl_value_number(context, keys[5], 1);
    char text[32], first[32];
    for (size_t i = 1; !scaler->dynamic && i < sizeof(keys) / sizeof(keys[0]); i++)
        sl_value_answer(context, keys[i], SL_CONFIG_NO_EFFECT,
                        "the scale is static: fp16.loss_scale %s", sl_number_text(fixed, text));
    if (!scaler->dynamic)
        return;
    const char *source = sl_value(context, keys[5])->source;
    if (scaler->min < 1)
        sl_config_problem(context,
                          "%s: fp16.min_loss_scale %s must be at least 1 when "
                          "fp16.loss_scale is 0 (dynamic); write 1",
                          source, sl_number_text(scaler->min, text));
    else if (scaler->min > scaler->initial)
        sl_config_problem(context,
                          "%s: fp16.min_loss_scale %s is above the first scale %s (2 to the "
                          "fp16.initial_scale_power); lower it",
                          source, sl_number_text(scaler->min, text),
                          sl_number_text(scaler->initial, first));
    if (scaler->initial > 16777216)
        sl_config_warn(context,
                       "fp16.initial_scale_power: the first loss scale is %s, far above what "
                       "fp16 gradients bear; the first steps will be skipped, and counted",
                       sl_number_text(scaler->initial, text));
}

/* The sum is fp32 in every mode; asking for less changes nothing, and that is said. */
static void resolve_gradient_dtype(struct sl_config_context *context)
{
    static const char path[] = "data_types.grad_accum_dtype";
    context->config->gradient_dtype = context->config->precision;
    const struct sl_value *value = sl_value(context, path);
    if (sl_value_given(value) && strcmp(value->text, "fp32") != 0)
        sl_value_answer(context, path, SL_CONFIG_NO_EFFECT,
                        "gradients are always summed in fp32, and rounded once afterwards");
}

void sl_resolve_precision(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    enum answer fp16 = enabled(context, "fp16.enabled"), bf16 = enabled(context, "bf16.enabled");
    check_precision(context, fp16, bf16);
    config->precision = choose_precision(context, fp16, bf16);
    sl_value_resolve(context, "fp16.enabled", "%s", config->precision == SL_F16 ? "true" : "false");
    sl_value_resolve(context, "bf16.enabled", "%s",
                     config->precision == SL_BF16 ? "true" : "false");
    sl_value_resolve(context, "train.precision", "%s",
                     config->precision == SL_F32 ? "fp32" : precision_text(config->precision));
    resolve_scaler(context);
    resolve_gradient_dtype(context);
}

/* --- batch --- */

static void batch_refused(struct sl_config_context *context, uint64_t batch, uint64_t micro,
                          uint64_t accumulation)
{
    unsigned long long b = batch, m = micro, a = accumulation;
    if (micro && accumulation && batch % (micro * accumulation) == 0)
        sl_config_problem(context,
                          "train_batch_size %llu is train_micro_batch_size_per_gpu %llu x "
                          "gradient_accumulation_steps %llu on %llu GPUs, and one GPU runs: write "
                          "gradient_accumulation_steps %llu for the same batch, or leave "
                          "train_batch_size out",
                          b, m, a, b / (m * a), b / m);
    else if (micro && accumulation)
        sl_config_problem(context,
                          "train_batch_size %llu is not train_micro_batch_size_per_gpu %llu x "
                          "gradient_accumulation_steps %llu = %llu on one GPU; leave one of the "
                          "three out",
                          b, m, a, m * a);
    else
        sl_config_problem(
            context, "train_batch_size %llu is not a multiple of %s %llu; change one of the two", b,
            micro ? "train_micro_batch_size_per_gpu" : "gradient_accumulation_steps",
            micro ? m : a);
}

/* Fill what is 0 from the others; false: they do not agree. */
static bool close_triangle(uint64_t *batch, uint64_t *micro, uint64_t *accumulation)
{
    if (*batch && *micro && *accumulation)
        return *batch == *micro * *accumulation;
    if (*batch && *micro) {
        *accumulation = *batch / *micro;
        return *batch % *micro == 0;
    }
    if (*batch && *accumulation) {
        *micro = *batch / *accumulation;
        return *batch % *accumulation == 0;
    }
    if (*batch) {
        *micro = *batch;
        *accumulation = 1;
        return true;
    }
    if (!*accumulation)
        *accumulation = 1;
    if (!*micro)
        *micro = 1;
    *batch = *micro * *accumulation;
    return true;
}

void sl_resolve_batch(struct sl_config_context *context)
{
    double number[3] = {0, 0, 0};
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps"};
    supply(context, keys[0], "train.batch", &number[0]);
    supply(context, keys[1], "train.micro_batch", &number[1]);
    supply(context, keys[2], "train.accumulation", &number[2]);
    const struct sl_value *alone = sl_value(context, keys[2]);
    bool others_absent = sl_value(context, keys[0])->state == SL_VALUE_ABSENT &&
                         sl_value(context, keys[1])->state == SL_VALUE_ABSENT;
    if (sl_value_given(alone) && others_absent && number[0] == 0 && number[1] == 0 &&
        !context->accelerate)
        sl_config_problem(context,
                          "%s: gradient_accumulation_steps alone does not give a batch size; "
                          "add train_micro_batch_size_per_gpu (\"auto\" or 1)",
                          alone->source);
    struct sl_config *config = context->config;
    uint64_t batch = (uint64_t)number[0], micro = (uint64_t)number[1],
             accumulation = (uint64_t)number[2];
    bool free_micro = !micro && !batch;
    config->micro_batch_auto = !micro && !(batch && accumulation) &&
                               (sl_value(context, keys[1])->state == SL_VALUE_AUTO ||
                                sl_value(context, "train.micro_batch")->state == SL_VALUE_AUTO);
    config->train_batch_given = batch != 0;
    uint64_t given[3] = {batch, micro, accumulation};
    if (!close_triangle(&batch, &micro, &accumulation))
        batch_refused(context, given[0], given[1], given[2]);
    config->train_batch = batch;
    config->micro_batch = micro;
    config->accumulation = accumulation;
    for (int i = 0; i < 3; i++)
        sl_value_resolve(context, keys[i], "%llu",
                         (unsigned long long)(i == 0   ? batch
                                              : i == 1 ? micro
                                                       : accumulation));
    sl_config_note(context, "batch: %s%llu = micro-batch %llu x accumulation %llu%s",
                   config->micro_batch_auto ? "the micro-batch is auto: chosen by simulation where "
                                              "there is a hardware profile, else "
                                            : "",
                   (unsigned long long)batch, (unsigned long long)micro,
                   (unsigned long long)accumulation,
                   free_micro && !config->micro_batch_auto
                       ? "; no batch size is given, set train.micro_batch for another"
                       : "");
}

/* --- the rest of the run --- */

static uint64_t count(struct sl_config_context *context, const char *path, uint64_t otherwise)
{
    return (uint64_t)sl_value_number(context, path, (double)otherwise);
}

static void copy_text(struct sl_config_context *context, const char *path, char *out, size_t bytes)
{
    const struct sl_value *value = sl_value(context, path);
    if (!sl_value_given(value))
        return;
    if (strlen(value->text) >= bytes)
        sl_config_problem(context, "%s: %s is longer than %zu bytes; shorten it", value->source,
                          path, bytes - 1);
    else
        strcpy(out, value->text);
}

static void resolve_frozen(struct sl_config_context *context)
{
    const struct sl_value *value = sl_value(context, "train.frozen");
    struct sl_config *config = context->config;
    const char *word = sl_value_given(value) ? value->text : "";
    for (; *word; word += strcspn(word, ",")) {
        word += strspn(word, ", ");
        size_t length = strcspn(word, ",");
        if (length == 0)
            break;
        if (length >= SL_CONFIG_PATTERN_BYTES || config->frozen_count == SL_CONFIG_FROZEN_MAX) {
            sl_config_problem(context, "%s: train.frozen: at most %d patterns of %d bytes each",
                              value->source, SL_CONFIG_FROZEN_MAX, SL_CONFIG_PATTERN_BYTES - 1);
            return;
        }
        memcpy(config->frozen[config->frozen_count++], word, length);
    }
}

static void resolve_monitor(struct sl_config_context *context, const char *name,
                            struct sl_config_monitor *monitor)
{
    char path[64];
    snprintf(path, sizeof(path), "%s.enabled", name);
    monitor->enabled = sl_value_bool(context, path, false);
    snprintf(path, sizeof(path), "%s.output_path", name);
    copy_text(context, path, monitor->output_path, sizeof(monitor->output_path));
    if (!monitor->enabled)
        sl_value_answer(context, path, SL_CONFIG_NO_EFFECT, "%s is off", name);
    snprintf(path, sizeof(path), "%s.job_name", name);
    strcpy(monitor->job_name, "DeepSpeedJobName");
    copy_text(context, path, monitor->job_name, sizeof(monitor->job_name));
    if (!monitor->enabled)
        sl_value_answer(context, path, SL_CONFIG_NO_EFFECT, "%s is off", name);
}

static void resolve_profiler(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    config->flops_profiler.enabled = sl_value_bool(context, "flops_profiler.enabled", false);
    config->flops_profiler.detailed = sl_value_bool(context, "flops_profiler.detailed", true);
    config->flops_profiler.step = count(context, "flops_profiler.profile_step", 1);
    config->flops_profiler.top_modules = count(context, "flops_profiler.top_modules", 1);
    config->flops_profiler.module_depth =
        (int64_t)sl_value_number(context, "flops_profiler.module_depth", -1);
    copy_text(context, "flops_profiler.output_file", config->flops_profiler.output_file,
              sizeof(config->flops_profiler.output_file));
}

#define VALIDATION_SHARE 0.02

static void resolve_data(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    if (!sl_value_is(context, "data.template", "auto"))
        copy_text(context, "data.template", config->data.chat_template,
                  sizeof(config->data.chat_template));
    config->data.train_on_prompt = sl_value_bool(context, "data.train_on_prompt", false);
    config->data.no_packing = !sl_value_bool(context, "data.packing", true);
    config->data.allow_special = sl_value_is(context, "data.special_tokens", "ids");
    config->data.in_order = !sl_value_bool(context, "data.shuffle", true);
    config->data.no_cache = !sl_value_bool(context, "data.cache", true);
    copy_text(context, "data.cache_path", config->data.cache_path, sizeof(config->data.cache_path));
    if (config->data.no_cache)
        sl_value_answer(context, "data.cache_path", SL_CONFIG_NO_EFFECT, "data.cache is off");
    double share = sl_value_number(context, "data.validation_fraction", VALIDATION_SHARE);
    config->data.validation_fraction = config->eval_interval ? share : 0;
    if (config->eval_interval && share <= 0)
        sl_config_problem(context, "train.eval_interval needs held-out data; set "
                                   "data.validation_fraction above 0, or the interval to 0");
    if (!config->eval_interval)
        sl_value_answer(context, "data.validation_fraction", SL_CONFIG_NO_EFFECT,
                        "train.eval_interval is 0: nothing is held out");
}

void sl_resolve_runtime(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    config->steps = count(context, "train.steps", 0);
    config->epochs = sl_value_number(context, "train.epochs", config->steps ? 0 : 1);
    config->seed = count(context, "train.seed", 0);
    config->sequence_length = count(context, "train.sequence_length", 0);
    config->print_steps = count(context, "steps_per_print", 10);
    config->eval_interval = count(context, "train.eval_interval", 0);
    config->eval_batches = count(context, "train.eval_batches", 0);
    config->eval_at_start = sl_value_bool(context, "train.eval_at_start", false);
    config->save_interval = count(context, "train.save_interval", 0);
    config->keep_last = count(context, "train.keep_last", 2);
    config->keep_best = sl_value_bool(context, "train.keep_best", false);
    config->activation_checkpointing =
        sl_value_bool(context, "train.activation_checkpointing", true);
    config->activation_checkpointing_given =
        sl_value_given(sl_value(context, "train.activation_checkpointing"));
    resolve_data(context);
    resolve_frozen(context);
    resolve_profiler(context);
    resolve_monitor(context, "csv_monitor", &config->csv);
    resolve_monitor(context, "tensorboard", &config->tensorboard);
    if (config->eval_at_start && config->eval_interval == 0)
        sl_config_problem(context,
                          "train.eval_at_start needs held-out data; set train.eval_interval");
    if (config->keep_best && config->eval_interval == 0)
        sl_config_problem(context, "train.keep_best needs evaluations; set train.eval_interval");
}
