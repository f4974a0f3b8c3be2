// SPDX-License-Identifier: Apache-2.0
#include "bench/steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/state.h"

/* What the lanes had done when a step was decided. */
struct seen {
    struct sl_engine *engine;
    struct sl_executor_stats stats;
};

static void predicted(struct sl_step_context *context, struct sl_optim_hyper *hyper)
{
    (void)context;
    *hyper = (struct sl_optim_hyper){.kind = SL_OPTIM_ADAMW,
                                     .lr = 1e-4f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.999f,
                                     .eps = 1e-8f,
                                     .bias_correction = true};
}

static void decided(struct sl_step_context *context, struct sl_step_control *control)
{
    struct seen *seen = context->user;
    sl_executor_stats(seen->engine->executor, &seen->stats);
    predicted(context, &control->hyper);
    control->loss_scale = 1;
}

/* ids, targets, positions, first: [rows] each. Owner: the caller, free(). */
static int32_t *make_inputs(const struct sl_step_options *o, size_t rows)
{
    int32_t *inputs = malloc(4 * rows * sizeof(*inputs));
    for (size_t i = 0; inputs && i < rows; i++) {
        inputs[i] = (int32_t)((i * 2654435761u >> 8) % o->model->vocabulary);
        inputs[rows + i] = (int32_t)(((i + 1) * 2654435761u >> 8) % o->model->vocabulary);
        inputs[2 * rows + i] = (int32_t)(i % o->sequence);
        inputs[3 * rows + i] = 0;
    }
    return inputs;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sum_up(struct bench_steps *steps, const struct seen *seen,
                   const struct sl_step_context *contexts, uint32_t warm, uint32_t measured)
{
    const struct sl_executor_stats *from = &seen[warm - 1].stats;
    const struct sl_executor_stats *to = &seen[warm + measured - 1].stats;
    double *seconds = malloc(measured * sizeof(*seconds));
    *steps = (struct bench_steps){0};
    for (uint32_t i = 0; seconds && i < measured; i++) {
        const struct sl_step_context *context = &contexts[warm + i];
        seconds[i] = (double)(context->finish_ns - context[-1].finish_ns) * 1e-9;
        steps->mean_seconds += seconds[i] / measured;
    }
    if (seconds) {
        qsort(seconds, measured, sizeof(*seconds), compare);
        steps->seconds = seconds[measured / 2];
    }
    free(seconds);
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        double n = measured;
        steps->busy_seconds[lane] = (double)(to->busy_ns[lane] - from->busy_ns[lane]) * 1e-9 / n;
        steps->wait_seconds[lane] = (double)(to->wait_ns[lane] - from->wait_ns[lane]) * 1e-9 / n;
        steps->bytes[lane] = (double)(to->bytes[lane] - from->bytes[lane]) / n;
        if (steps->busy_seconds[lane] > steps->busy_seconds[steps->busiest])
            steps->busiest = (enum sl_lane)lane;
    }
}

void bench_steps_run(struct sl_engine *engine, const char *program, uint32_t warm,
                     uint32_t measured, double clip, struct bench_steps *steps)
{
    const struct sl_step_options *o = &engine->sp.options;
    size_t rows = o->batch * o->sequence * o->micro_batches;
    uint32_t count = warm + measured;
    struct seen *seen = calloc(count, sizeof(*seen));
    struct sl_step_context *contexts = calloc(count, sizeof(*contexts));
    int32_t *inputs = make_inputs(o, rows);
    struct sl_error error = {0};
    int result = !seen || !contexts || !inputs
                     ? sl_error_set(&error, SL_DOMAIN_MEMORY, -1, "out of memory")
                     : sl_engine_start(engine, &error);
    if (!result)
        result = sl_state_initialize(engine, 1, &error);
    if (!result)
        sl_engine_control(engine)->loss_scale = 1;
    for (uint32_t i = 0; i < count && !result; i++) {
        seen[i].engine = engine;
        contexts[i] = (struct sl_step_context){.ids = inputs,
                                               .targets = inputs + rows,
                                               .positions = inputs + 2 * rows,
                                               .first = inputs + 3 * rows,
                                               .trained_tokens = rows,
                                               .clip = clip,
                                               .decided = decided,
                                               .predicted = predicted,
                                               .user = &seen[i]};
        result = sl_engine_step(engine, &contexts[i], &error);
    }
    if (!result)
        result = sl_engine_drain(engine, &error);
    if (result) {
        fprintf(stderr, "%s: %s\n", program, error.message);
        exit(1);
    }
    sum_up(steps, seen, contexts, warm, measured);
    free(seen);
    free(contexts);
    free(inputs);
}
