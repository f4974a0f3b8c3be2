// SPDX-License-Identifier: Apache-2.0
/* The optimizer and the schedule. */
#include "engine/config_values.h"

#include <math.h>
#include <string.h>

static double supplied(struct sl_config_context *context, const char *path, const char *own_path,
                       double otherwise)
{
    const struct sl_value *value = sl_value(context, path), *own = sl_value(context, own_path);
    char a[32], b[32];
    if (sl_value_given(value) && sl_value_given(own) && value->number != own->number)
        sl_config_problem(context,
                          "%s %s (%s) and %s %s (%s) contradict each other; change one, or "
                          "write \"auto\" in the file",
                          path, sl_number_text(value->number, a), value->source, own_path,
                          sl_number_text(own->number, b), own->source);
    double number = sl_value_given(value) ? value->number
                    : sl_value_given(own) ? own->number
                                          : otherwise;
    sl_value_resolve(context, path, "%s", sl_number_text(number, a));
    return number;
}

static void resolve_betas(struct sl_config_context *context, struct sl_optim_hyper *hyper)
{
    static const char *const own_paths[] = {"train.adam_beta1", "train.adam_beta2"};
    const struct sl_value *pair = sl_value(context, "optimizer.params.betas");
    double beta[2] = {0.9, hyper->kind == SL_OPTIM_LION ? 0.99 : 0.999};
    char a[32], b[32];
    for (int i = 0; i < 2; i++) {
        const struct sl_value *own = sl_value(context, own_paths[i]);
        if (sl_value_given(pair) && sl_value_given(own) && pair->pair[i] != own->number)
            sl_config_problem(context,
                              "optimizer.params.betas[%d] %s (%s) and %s %s (%s) contradict "
                              "each other; change one, or write \"auto\" in the file",
                              i, sl_number_text(pair->pair[i], a), pair->source, own_paths[i],
                              sl_number_text(own->number, b), own->source);
        if (sl_value_given(own))
            beta[i] = own->number;
        if (sl_value_given(pair))
            beta[i] = pair->pair[i];
        if (beta[i] >= 1)
            sl_config_problem(context,
                              "optimizer.params.betas[%d] 1: a moment that never changes; "
                              "give less than 1",
                              i);
    }
    hyper->beta1 = (float)beta[0];
    hyper->beta2 = (float)beta[1];
    sl_value_resolve(context, "optimizer.params.betas", "[%s, %s]", sl_number_text(beta[0], a),
                     sl_number_text(beta[1], b));
}

static enum sl_optim_kind resolve_kind(struct sl_config_context *context)
{
    const struct sl_value *type = sl_value(context, "optimizer.type");
    if (!sl_value_given(type)) {
        if (context->report->problems.count == 0) /* or a type was there, and refused */
            sl_config_note(context,
                           "optimizer: AdamW with its defaults; there is no optimizer block");
        sl_value_resolve(context, "optimizer.type", "AdamW");
        return SL_OPTIM_ADAMW;
    }
    if (strcmp(type->text, "Lion") == 0)
        return SL_OPTIM_LION;
    if (strcmp(type->text, "Adagrad") == 0)
        return SL_OPTIM_ADAGRAD;
    if (strcmp(type->text, "SGD") == 0)
        return SL_OPTIM_SGD;
    if (strcmp(type->text, "AdamW") != 0) {
        bool decoupled = sl_value_bool(context, "optimizer.params.adam_w_mode", true);
        if (decoupled)
            sl_config_note(context,
                           "optimizer: %s decays as AdamW does, as in DeepSpeed; for L2 decay "
                           "set optimizer.params.adam_w_mode false",
                           type->text);
        return decoupled ? SL_OPTIM_ADAMW : SL_OPTIM_ADAM;
    }
    sl_value_answer(context, "optimizer.params.adam_w_mode", SL_CONFIG_NO_EFFECT,
                    "optimizer.type AdamW says it already");
    return SL_OPTIM_ADAMW;
}

/* Parameters that the chosen kind does not have. */
static void answer_unused(struct sl_config_context *context, const struct sl_optim_hyper *hyper)
{
    bool adam = hyper->kind == SL_OPTIM_ADAM || hyper->kind == SL_OPTIM_ADAMW;
    bool sgd = hyper->kind == SL_OPTIM_SGD;
    static const char *const adam_only[] = {"optimizer.params.bias_correction",
                                            "optimizer.params.adam_w_mode"};
    for (int i = 0; !adam && i < 2; i++)
        sl_value_answer(context, adam_only[i], SL_CONFIG_NO_EFFECT, "only Adam has it");
    if (!adam && hyper->kind != SL_OPTIM_LION)
        sl_value_answer(context, "optimizer.params.betas", SL_CONFIG_NO_EFFECT,
                        "only Adam and Lion have it");
    if (sgd || hyper->kind == SL_OPTIM_LION)
        sl_value_answer(context, "optimizer.params.eps", SL_CONFIG_NO_EFFECT,
                        "this optimizer divides by no root");
    if (!sgd) {
        sl_value_answer(context, "optimizer.params.momentum", SL_CONFIG_NO_EFFECT,
                        "only SGD has it");
        sl_value_answer(context, "optimizer.params.nesterov", SL_CONFIG_NO_EFFECT,
                        "only SGD has it");
    }
}

static void resolve_state_types(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    const struct sl_value *master = sl_value(context, "optimizer.master");
    config->master_kind = sl_value_is(context, "optimizer.master", "split")  ? SL_MASTER_SPLIT
                          : sl_value_is(context, "optimizer.master", "none") ? SL_MASTER_NONE
                                                                             : SL_MASTER_F32;
    if (config->master_kind != SL_MASTER_F32 && config->precision != SL_BF16)
        sl_config_problem(context, "%s: optimizer.master %s is for bf16 training; write f32",
                          master->source, master->text);
    bool half = sl_value_bool(context, "bf16.bf16_optimizer_states", false) ||
                !sl_value_bool(context, "optimizer.params.fp32_optimizer_states", true);
    if (half && config->precision != SL_BF16)
        sl_config_problem(
            context, "bf16 optimizer states (bf16.bf16_optimizer_states, "
                     "optimizer.params.fp32_optimizer_states false) are for bf16 training; take "
                     "the key out");
    config->moment_kind = half ? SL_MOMENT_BF16 : SL_MOMENT_F32;
    const struct sl_value *moments = sl_value(context, "optimizer.moments");
    if (sl_value_given(moments))
        config->moment_kind = strcmp(moments->text, "bf16") == 0 ? SL_MOMENT_BF16
                              : strcmp(moments->text, "q8") == 0 ? SL_MOMENT_Q8
                                                                 : SL_MOMENT_F32;
    sl_value_resolve(context, "optimizer.moments", "%s",
                     config->moment_kind == SL_MOMENT_BF16 ? "bf16"
                     : config->moment_kind == SL_MOMENT_Q8 ? "q8"
                                                           : "f32");
}

void sl_resolve_optimizer(struct sl_config_context *context)
{
    struct sl_optim_hyper *hyper = &context->config->optimizer;
    hyper->kind = resolve_kind(context);
    bool adagrad = hyper->kind == SL_OPTIM_ADAGRAD;
    double lr =
        supplied(context, "optimizer.params.lr", "train.learning_rate", adagrad ? 1e-2 : 1e-3);
    context->config->schedule.base_lr = lr;
    hyper->lr = (float)lr;
    hyper->eps = (float)supplied(context, "optimizer.params.eps", "train.adam_epsilon",
                                 adagrad ? 1e-10 : 1e-8);
    hyper->weight_decay =
        (float)supplied(context, "optimizer.params.weight_decay", "train.weight_decay", 0);
    resolve_betas(context, hyper);
    hyper->momentum = (float)sl_value_number(context, "optimizer.params.momentum", 0);
    hyper->nesterov = sl_value_bool(context, "optimizer.params.nesterov", false);
    hyper->bias_correction = sl_value_bool(context, "optimizer.params.bias_correction", true);
    hyper->seed = context->config->seed;
    context->config->clip_norm = supplied(context, "gradient_clipping", "train.max_grad_norm", 1.0);
    answer_unused(context, hyper);
    resolve_state_types(context);
}

/* --- schedule --- */

#define P "scheduler.params."

static double number(struct sl_config_context *context, const char *path, double otherwise)
{
    double value = sl_value_number(context, path, otherwise);
    char text[32];
    sl_value_resolve(context, path, "%s", sl_number_text(value, text));
    return value;
}

static void own_schedule(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    struct sl_schedule *schedule = &config->schedule;
    schedule->kind = sl_value_is(context, "train.lr_scheduler_type", "linear") ? SL_SCHEDULE_LINEAR
                     : sl_value_is(context, "train.lr_scheduler_type", "cosine")
                         ? SL_SCHEDULE_COSINE
                         : SL_SCHEDULE_CONSTANT;
    schedule->min_ratio = sl_value_number(context, "train.min_lr_ratio", 0);
    schedule->warmup_steps = (uint64_t)sl_value_number(context, "train.warmup_steps", 0);
    if (!sl_value_given(sl_value(context, "train.warmup_steps")))
        config->warmup_ratio = sl_value_number(context, "train.warmup_ratio", 0);
    config->total_steps_of_run = true;
    sl_value_resolve(context, "train.lr_scheduler_type", "%s", sl_schedule_name(schedule->kind));
}

/* DeepSpeed's warm-ups: steps from the file, or from the trainer's own keys, or 1000. */
static void warmup_steps(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    const struct sl_value *value = sl_value(context, P "warmup_num_steps");
    const struct sl_value *own = sl_value(context, "train.warmup_steps");
    const struct sl_value *ratio = sl_value(context, "train.warmup_ratio");
    char a[32], b[32];
    if (sl_value_given(value) && sl_value_given(own) && value->number != own->number)
        sl_config_problem(context,
                          P "warmup_num_steps %s (%s) and train.warmup_steps %s (%s) "
                            "contradict each other; change one, or write \"auto\" in the file",
                          sl_number_text(value->number, a), value->source,
                          sl_number_text(own->number, b), own->source);
    double steps = sl_value_given(value) ? value->number : sl_value_given(own) ? own->number : 1000;
    if (!sl_value_given(value) && !sl_value_given(own) && sl_value_given(ratio)) {
        config->warmup_ratio = ratio->number;
        sl_value_resolve(context, P "warmup_num_steps", "%s of the run's steps",
                         sl_number_text(ratio->number, a));
    } else {
        sl_value_resolve(context, P "warmup_num_steps", "%s", sl_number_text(steps, a));
    }
    config->schedule.warmup_steps = (uint64_t)steps;
    config->schedule.warmup_log = !sl_value_is(context, P "warmup_type", "linear");
}

/* A number in the file against one of the trainer's own keys, as Hugging Face compares them. Where
 * both are on the command line the user has just written the two side by side: a warning. */
static void must_agree(struct sl_config_context *context, const char *path, const char *own_path)
{
    const struct sl_value *value = sl_value(context, path), *own = sl_value(context, own_path);
    char a[32], b[32];
    if (!sl_value_given(value) || !sl_value_given(own) || value->number == own->number)
        return;
    void (*say)(struct sl_config_context *, const char *, ...) =
        value->from == SL_CONFIG_FROM_SET ? sl_config_warn : sl_config_problem;
    say(context,
        "%s %s (%s) and %s %s (%s) contradict each other; change one, or write \"auto\" in the "
        "file",
        path, sl_number_text(value->number, a), value->source, own_path,
        sl_number_text(own->number, b), own->source);
}

static void total_steps(struct sl_config_context *context)
{
    struct sl_config *config = context->config;
    const struct sl_value *value = sl_value(context, P "total_num_steps");
    if (value->state == SL_VALUE_ABSENT)
        sl_config_problem(context, P "total_num_steps is required by %s; give it, or \"auto\"",
                          sl_schedule_name(config->schedule.kind));
    if (!sl_value_given(value)) {
        config->total_steps_of_run = true;
        return;
    }
    config->schedule.total_steps = (uint64_t)value->number;
    if (config->steps)
        must_agree(context, P "total_num_steps", "train.steps");
}

static void one_cycle(struct sl_config_context *context)
{
    struct sl_schedule *s = &context->config->schedule;
    static const char *const required[] = {P "cycle_min_lr", P "cycle_max_lr"};
    for (int i = 0; i < 2; i++)
        if (!sl_value_given(sl_value(context, required[i])))
            sl_config_problem(context, "%s is required by OneCycle", required[i]);
    s->cycle_min_lr = number(context, required[0], 0);
    s->cycle_max_lr = number(context, required[1], 0);
    s->decay_lr_rate = number(context, P "decay_lr_rate", 0);
    s->cycle_first_steps = number(context, P "cycle_first_step_size", 2000);
    s->cycle_second_steps = number(context, P "cycle_second_step_size", s->cycle_first_steps);
    s->cycle_first_stairs = (uint64_t)number(context, P "cycle_first_stair_count", 0);
    s->cycle_second_stairs =
        (uint64_t)number(context, P "cycle_second_stair_count", (double)s->cycle_first_stairs);
    s->decay_step_size = number(context, P "decay_step_size", 0);
    s->cycle_momentum = sl_value_bool(context, P "cycle_momentum", true);
    s->cycle_min_momentum = number(context, P "cycle_min_mom", 0.8);
    s->cycle_max_momentum = number(context, P "cycle_max_mom", 0.9);
    s->decay_momentum_rate = number(context, P "decay_mom_rate", 0);
    enum sl_optim_kind kind = context->config->optimizer.kind;
    if (s->cycle_momentum && (kind == SL_OPTIM_SGD || kind == SL_OPTIM_ADAGRAD)) {
        s->cycle_momentum = false;
        sl_value_answer(context, P "cycle_momentum", SL_CONFIG_NO_EFFECT,
                        "this optimizer has no beta1");
    }
    if (sl_value_given(sl_value(context, "optimizer.params.lr")))
        sl_value_answer(context, "optimizer.params.lr", SL_CONFIG_NO_EFFECT,
                        "OneCycle runs from cycle_min_lr to cycle_max_lr");
}

static void range_test(struct sl_config_context *context)
{
    struct sl_schedule *s = &context->config->schedule;
    s->range_min_lr = number(context, P "lr_range_test_min_lr", 1e-3);
    s->range_step_size = number(context, P "lr_range_test_step_size", 2000);
    s->range_step_rate = number(context, P "lr_range_test_step_rate", 1);
    s->range_staircase = sl_value_bool(context, P "lr_range_test_staircase", false);
}

static void deepspeed_schedule(struct sl_config_context *context)
{
    struct sl_schedule *s = &context->config->schedule;
    switch (s->kind) {
    case SL_SCHEDULE_WARMUP:
    case SL_SCHEDULE_WARMUP_DECAY:
        warmup_steps(context);
        s->warmup_min_lr = number(context, P "warmup_min_lr", 0);
        bool decay = s->kind == SL_SCHEDULE_WARMUP_DECAY;
        bool is_auto = sl_value(context, P "warmup_max_lr")->state == SL_VALUE_AUTO;
        s->warmup_max_lr =
            number(context, P "warmup_max_lr", decay && !is_auto ? 1e-3 : s->base_lr);
        must_agree(context, P "warmup_max_lr", "train.learning_rate");
        if (decay)
            total_steps(context);
        break;
    case SL_SCHEDULE_WARMUP_COSINE:
        warmup_steps(context);
        s->warmup_min_ratio = number(context, P "warmup_min_ratio", 0);
        s->min_ratio = number(context, P "cos_min_ratio", 1e-4);
        total_steps(context);
        break;
    case SL_SCHEDULE_ONE_CYCLE:
        one_cycle(context);
        break;
    default:
        range_test(context);
    }
}

/* Which schedules (bits by kind) a scheduler parameter belongs to. */
#define W (1u << SL_SCHEDULE_WARMUP)
#define WD (1u << SL_SCHEDULE_WARMUP_DECAY)
#define WC (1u << SL_SCHEDULE_WARMUP_COSINE)

static unsigned schedules_of(const char *leaf)
{
    static const struct {
        const char *leaf;
        unsigned kinds;
    } table[] = {
        {"warmup_min_lr", W | WD},
        {"warmup_max_lr", W | WD},
        {"warmup_num_steps", W | WD | WC},
        {"warmup_type", W | WD | WC},
        {"total_num_steps", WD | WC},
        {"warmup_min_ratio", WC},
        {"cos_min_ratio", WC},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(leaf, table[i].leaf) == 0)
            return table[i].kinds;
    if (strncmp(leaf, "lr_range_test", 13) == 0)
        return 1u << SL_SCHEDULE_LR_RANGE_TEST;
    return 1u << SL_SCHEDULE_ONE_CYCLE;
}

static void answer_foreign_params(struct sl_config_context *context)
{
    enum sl_schedule_kind kind = context->config->schedule.kind;
    for (size_t i = 0, n = sl_key_count(); i < n; i++) {
        const struct sl_key *key = sl_key_at(i);
        if (strncmp(key->path, P, strlen(P)) != 0 || key->effect != SL_CONFIG_HONORED ||
            (schedules_of(key->path + strlen(P)) >> kind & 1))
            continue;
        sl_value_answer(context, key->path, SL_CONFIG_NO_EFFECT, "%s does not have it",
                        sl_schedule_name(kind));
        const struct sl_value *value = sl_value(context, key->path);
        if (sl_value_given(value) && sl_value_given(sl_value(context, "scheduler.type")))
            sl_config_warn(context, "%s: %s has no effect: %s does not have it", value->source,
                           key->path, sl_schedule_name(kind));
    }
}

static void params_without_type(struct sl_config_context *context)
{
    for (size_t i = 0, n = sl_key_count(); i < n; i++) {
        const struct sl_key *key = sl_key_at(i);
        if (strncmp(key->path, P, strlen(P)) != 0)
            continue;
        const struct sl_value *value = sl_value(context, key->path);
        if (value->state == SL_VALUE_ABSENT)
            continue;
        sl_config_problem(context,
                          "%s: scheduler.params without scheduler.type; give the type (WarmupLR, "
                          "WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest)",
                          value->source);
        return;
    }
}

void sl_resolve_schedule(struct sl_config_context *context)
{
    static const enum sl_schedule_kind kinds[] = {SL_SCHEDULE_WARMUP, SL_SCHEDULE_WARMUP_DECAY,
                                                  SL_SCHEDULE_WARMUP_COSINE, SL_SCHEDULE_ONE_CYCLE,
                                                  SL_SCHEDULE_LR_RANGE_TEST};
    struct sl_config *config = context->config;
    const struct sl_value *type = sl_value(context, "scheduler.type");
    const struct sl_value *own = sl_value(context, "train.lr_scheduler_type");
    if (sl_value_given(type) && sl_value_given(own))
        sl_config_problem(context,
                          "scheduler.type %s (%s) and train.lr_scheduler_type %s (%s) "
                          "contradict each other; take one out",
                          type->text, type->source, own->text, own->source);
    if (!sl_value_given(type)) {
        own_schedule(context);
        params_without_type(context);
    } else {
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
            if (strcmp(type->text, sl_schedule_name(kinds[i])) == 0)
                config->schedule.kind = kinds[i];
        deepspeed_schedule(context);
        sl_value_answer(context, "train.lr_scheduler_type", SL_CONFIG_NO_EFFECT,
                        "the scheduler block decides");
        sl_value_answer(context, "train.min_lr_ratio", SL_CONFIG_NO_EFFECT,
                        "the scheduler block decides");
    }
    answer_foreign_params(context);
    if (config->steps)
        sl_config_set_steps(config, config->steps);
    if (config->total_steps_of_run && sl_value_given(type))
        sl_value_resolve(context, P "total_num_steps", config->steps ? "%llu" : "the run's steps",
                         (unsigned long long)config->steps);
    const struct sl_schedule *s = &config->schedule;
    bool ends = s->kind == SL_SCHEDULE_WARMUP_DECAY || s->kind == SL_SCHEDULE_WARMUP_COSINE;
    if (ends && s->total_steps && s->warmup_steps > s->total_steps)
        sl_config_warn(context,
                       "scheduler: the warm-up of %llu steps is longer than the schedule of "
                       "%llu; the learning rate never reaches its maximum",
                       (unsigned long long)s->warmup_steps, (unsigned long long)s->total_steps);
}
