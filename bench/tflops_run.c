// SPDX-License-Identifier: Apache-2.0
/* Steps are timed as they run in `sluice train`: two in flight, the update of one beside the
 * forward pass of the next. A step's time is from its decision (norm known) to the next one's, so
 * that each holds one forward and backward pass and one update. */
#include "bench/tflops_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/tflops_ceiling.h"
#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/flops_profile.h"
#include "engine/session.h"
#include "engine/state.h"

#define SETS_MAX 66

struct step {
    struct sl_step_context context;
    struct sl_executor_stats stats; /* when it was decided */
};

struct bench {
    struct sl_session session;
    struct sl_engine engine;
    struct sl_loss_scaler scaler;
    struct sl_error scaler_error;
    struct step *steps;
    uint64_t applied;
    int32_t *rows;
};

static void decided(struct sl_step_context *context, struct sl_step_control *control)
{
    struct bench *b = context->user;
    struct step *step = (struct step *)context; /* its first member */
    const struct sl_config *c = &b->session.config;
    bool skip;
    sl_executor_stats(b->engine.executor, &step->stats);
    sl_loss_scaler_update(&b->scaler, !control->apply, &skip, &b->scaler_error);
    control->hyper = c->optimizer;
    control->hyper.lr = (float)sl_schedule_lr(&c->schedule, b->applied);
    b->applied += control->apply;
    control->loss_scale = b->scaler.scale;
}

/* Tokens spread over the whole vocabulary: embedding rows and targets as far apart as in text, and
 * none favoured. */
static int make_rows(struct bench *b, struct sl_error *error)
{
    const struct sl_step_options *o = &b->engine.sp.options;
    size_t rows = o->batch * o->sequence * o->micro_batches;
    b->rows = malloc(4 * rows * sizeof(int32_t));
    if (!b->rows)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for batches");
    for (size_t i = 0; i < rows; i++) {
        b->rows[i] = (int32_t)((uint32_t)(i * 2654435761u >> 8) % o->model->vocabulary);
        b->rows[rows + i] =
            (int32_t)((uint32_t)((i + 1) * 2654435761u >> 8) % o->model->vocabulary);
        b->rows[2 * rows + i] = (int32_t)(i % o->sequence);
        b->rows[3 * rows + i] = 0;
    }
    return 0;
}

static int train(struct bench *b, uint32_t count, struct sl_error *error)
{
    const struct sl_step_options *o = &b->engine.sp.options;
    size_t rows = o->batch * o->sequence * o->micro_batches;
    int result = sl_engine_start(&b->engine, error);
    sl_loss_scaler_init(&b->scaler, &b->session.config.scaler);
    if (!result && b->session.model_has_weights)
        result = sl_checkpoint_load_weights(&b->engine, b->session.model_path, error);
    else if (!result)
        result = sl_state_initialize(&b->engine, b->session.config.seed, error);
    if (!result)
        sl_engine_control(&b->engine)->loss_scale = b->scaler.scale;
    for (uint32_t i = 0; i < count && !result; i++) {
        b->steps[i].context = (struct sl_step_context){.ids = b->rows,
                                                       .targets = b->rows + rows,
                                                       .positions = b->rows + 2 * rows,
                                                       .first = b->rows + 3 * rows,
                                                       .trained_tokens = rows,
                                                       .clip = b->session.config.clip_norm,
                                                       .decided = decided,
                                                       .user = b};
        result = sl_engine_step(&b->engine, &b->steps[i].context, error);
    }
    if (!result)
        result = sl_engine_drain(&b->engine, error);
    if (!result && b->scaler_error.code) {
        *error = b->scaler_error;
        result = error->code;
    }
    return result;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measured(const struct bench *b, const struct tflops_options *o, struct tflops_result *r)
{
    double seconds[TFLOPS_STEPS_MAX];
    const struct step *before = &b->steps[o->warm - 1];
    const struct step *last = &b->steps[o->warm + o->steps - 1];
    for (uint32_t i = 0; i < o->steps; i++)
        seconds[i] = 1e-9 * (double)(before[i + 1].context.finish_ns - before[i].context.finish_ns);
    qsort(seconds, o->steps, sizeof(seconds[0]), ascending);
    r->step_seconds = (seconds[(o->steps - 1) / 2] + seconds[o->steps / 2]) / 2;
    r->spread_seconds = (seconds[o->steps - 1] - seconds[0]) / 2;
    r->tokens_per_second =
        (double)(r->micro_batch * r->accumulation * r->sequence) / r->step_seconds;
    for (int lane = 0; lane < SL_LANES; lane++) {
        const struct sl_executor_stats *from = &before->stats, *to = &last->stats;
        r->busy_seconds[lane] = 1e-9 * (double)(to->busy_ns[lane] - from->busy_ns[lane]) / o->steps;
        r->wait_seconds[lane] = 1e-9 * (double)(to->wait_ns[lane] - from->wait_ns[lane]) / o->steps;
        r->bytes[lane] = (to->bytes[lane] - from->bytes[lane]) / o->steps;
    }
    r->loss = last->context.result.loss;
}

static void describe(const struct bench *b, struct tflops_result *r)
{
    const struct sl_step_options *o = &b->engine.sp.options;
    struct sl_memory_line lines[SL_MEMORY_LINES_MAX];
    size_t used = 0;
    snprintf(r->device, sizeof(r->device), "%s", b->engine.device->properties.name);
    r->threads = sl_workers_thread_count(b->engine.workers);
    r->precision = o->precision;
    r->parameters = o->model->param_elements;
    r->micro_batch = o->batch;
    r->accumulation = o->micro_batches;
    r->sequence = o->sequence;
    r->recompute = o->recompute;
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
            double share = o->placement.fraction[kind][tier];
            if (share <= 0 || used >= sizeof(r->placement))
                continue;
            int n = snprintf(r->placement + used, sizeof(r->placement) - used,
                             share < 1 ? "%s%s %s %.0f%%" : "%s%s %s", used ? ", " : "",
                             sl_placed_name((enum sl_placed)kind), sl_tier_name((enum sl_tier)tier),
                             100 * share);
            used += n > 0 ? (size_t)n : 0;
        }
    sl_engine_memory(&b->engine, lines, r->memory);
}

int tflops_count(const struct sl_step_options *o, bool tiled_head, double *model, double *hardware)
{
    struct sl_flops_module *modules;
    size_t count;
    int result = sl_flops_modules(o->model, o->batch, o->sequence, &modules, &count);
    if (result)
        return result;
    double again = 0, layers = 1;
    for (size_t i = 0; i < count; i++) {
        const struct sl_flops_module *m = &modules[i];
        bool layer = m->depth == 1 && strncmp(m->name, "layer", 5) == 0;
        if (m->depth == 1)
            layers = layer ? m->count : 0;
        if (layer && o->recompute)
            again += layers * m->macs;
        /* The last product of a recomputed layer is left out, unless a norm behind it needs it. */
        if (o->recompute && !o->model->post_norms && m->depth == 3 && strcmp(m->name, "down") == 0)
            again -= layers * m->macs;
        if (tiled_head && m->depth == 1 && strncmp(m->name, "head", 4) == 0)
            again += m->macs;
    }
    *model = 6 * modules[0].macs * (double)o->micro_batches;
    *hardware = *model + 2 * again * (double)o->micro_batches;
    free(modules);
    return 0;
}

static int open_bench(struct bench *b, const struct tflops_options *o, struct sl_error *error)
{
    const char *sets[SETS_MAX];
    char steps[48];
    struct sl_run_options run = o->run;
    if (run.set_count >= SETS_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%zu --set options, at most %d",
                            run.set_count, SETS_MAX - 1);
    snprintf(steps, sizeof(steps), "train.steps=%u", o->warm + o->steps);
    if (run.set_count)
        memcpy(sets, run.sets, run.set_count * sizeof(sets[0]));
    sets[run.set_count++] = steps;
    run.sets = sets;
    b->steps = calloc(o->warm + o->steps, sizeof(*b->steps));
    if (!b->steps)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for %u steps",
                            o->warm + o->steps);
    int result = sl_session_open(&b->session, &run, error);
    return result ? result : sl_model_check_training(&b->session.model, error);
}

int tflops_run(const struct tflops_options *o, struct tflops_result *r, struct sl_error *error)
{
    struct bench *b = calloc(1, sizeof(*b));
    struct tflops_ceiling ceiling = {0};
    *r = (struct tflops_result){0};
    if (!b)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    int result = open_bench(b, o, error);
    const struct sl_engine_options *e = &b->session.engine;
    const char *device = o->run.device;
    if (!result)
        result = tflops_ceiling_raise(&ceiling, device, e->step.precision, e->thread_count,
                                      o->product_max, error);
    if (!result)
        result = sl_engine_plan(&b->engine, e, error);
    if (!result)
        result = make_rows(b, error);
    if (!result)
        result = train(b, o->warm + o->steps, error);
    if (!result) {
        describe(b, r);
        measured(b, o, r);
        result = tflops_count(&b->engine.sp.options, b->engine.sp.head_count > 1, &r->model_flops,
                              &r->hardware_flops);
    }
    sl_engine_finish(&b->engine);
    if (!result)
        result = tflops_ceiling_raise(&ceiling, device, e->step.precision, e->thread_count,
                                      o->product_max, error);
    r->ceiling = ceiling.flops_per_second;
    memcpy(r->ceiling_shape, ceiling.shape, sizeof(ceiling.shape));
    sl_session_close(&b->session);
    free(b->steps);
    free(b->rows);
    free(b);
    return result;
}
