// SPDX-License-Identifier: Apache-2.0
#include "bench/adam_form.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "kernels/cpu/gradient.h"

#define TASK_ELEMENTS 65536u /* the norm's chunk; a multiple of the 8-bit block */

/* 16 bytes of state each at most, 128 KiB: half of the smallest second-level cache in use. */
#define CACHED_ELEMENTS 8192u
#define CACHED_REPEATS 64 /* the first reads from memory */

const struct form forms[FORM_COUNT] = {
    {"adamw", SL_OPTIM_ADAMW, SL_MASTER_F32, SL_MOMENT_F32, SL_BF16, SL_BF16},
    {"adamw-f16", SL_OPTIM_ADAMW, SL_MASTER_F32, SL_MOMENT_F32, SL_F16, SL_F16},
    {"adamw-f32", SL_OPTIM_ADAMW, SL_MASTER_F32, SL_MOMENT_F32, SL_F32, SL_F32},
    {"adamw-split", SL_OPTIM_ADAMW, SL_MASTER_SPLIT, SL_MOMENT_F32, SL_BF16, SL_BF16},
    {"adamw-bf16-moments", SL_OPTIM_ADAMW, SL_MASTER_SPLIT, SL_MOMENT_BF16, SL_BF16, SL_BF16},
    {"adamw-q8", SL_OPTIM_ADAMW, SL_MASTER_F32, SL_MOMENT_Q8, SL_BF16, SL_BF16},
    {"adamw-split-q8", SL_OPTIM_ADAMW, SL_MASTER_SPLIT, SL_MOMENT_Q8, SL_BF16, SL_BF16},
    {"adamw-no-master", SL_OPTIM_ADAMW, SL_MASTER_NONE, SL_MOMENT_BF16, SL_BF16, SL_BF16},
    {"lion", SL_OPTIM_LION, SL_MASTER_SPLIT, SL_MOMENT_F32, SL_BF16, SL_BF16},
    {"adagrad", SL_OPTIM_ADAGRAD, SL_MASTER_SPLIT, SL_MOMENT_F32, SL_BF16, SL_BF16},
    {"sgd-momentum", SL_OPTIM_SGD, SL_MASTER_SPLIT, SL_MOMENT_F32, SL_BF16, SL_BF16},
};

static size_t task_count(const struct subject *subject)
{
    return sl_div_up(subject->arrays.count, TASK_ELEMENTS);
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(sl_clock_ns() - start_ns) * 1e-9;
}

/* ---- the arrays ---- */

static void add_array(struct arrays *arrays, size_t bytes, enum array_mode mode)
{
    arrays->array[arrays->array_count++] = (struct array){bytes, mode, NULL};
}

/* Order: grad, master or low, weight, exp_avg, exp_avg_sq. */
static void describe(struct subject *subject, size_t count)
{
    const struct form *form = subject->form;
    struct arrays *arrays = &subject->arrays;
    *arrays = (struct arrays){.count = count};
    subject->args = (struct sl_optim_args){
        .hyper = {.kind = form->kind,
                  .lr = 1e-4f,
                  .beta1 = 0.9f,
                  .beta2 = 0.999f,
                  .eps = 1e-8f,
                  .weight_decay = 0.01f,
                  .momentum = form->kind == SL_OPTIM_SGD ? 0.9f : 0,
                  .bias_correction = true},
        .master_kind = form->master,
        .moment_kind = form->moment,
        .grad_dtype = form->grad,
        .grad_scale = 1,
        .weight_dtype = form->weight == SL_F32 ? SL_BF16 : form->weight,
        .count = count,
    };
    add_array(arrays, sl_dtype_bytes(form->grad), ARRAY_READ);
    if (form->master != SL_MASTER_NONE)
        add_array(arrays, form->master == SL_MASTER_F32 ? 4 : 2, ARRAY_UPDATE);
    if (form->weight != SL_F32)
        add_array(arrays, 2, form->master == SL_MASTER_F32 ? ARRAY_WRITE : ARRAY_UPDATE);
    if (sl_optim_has_exp_avg(&subject->args.hyper))
        add_array(arrays, sl_moment_bytes(form->moment), ARRAY_UPDATE);
    if (sl_optim_has_exp_avg_sq(&subject->args.hyper))
        add_array(arrays, sl_moment_bytes(form->moment), ARRAY_UPDATE);
}

static void point_args(struct subject *subject)
{
    const struct form *form = subject->form;
    struct sl_optim_args *args = &subject->args;
    arrays_lay_out(&subject->arrays, LAYOUT_OURS);
    struct array *array = subject->arrays.array;
    args->grad = (array++)->data;
    if (form->master == SL_MASTER_F32)
        args->master = (float *)(array++)->data;
    else if (form->master == SL_MASTER_SPLIT)
        args->low = (uint16_t *)(array++)->data;
    if (form->weight != SL_F32)
        args->weight = (array++)->data;
    if (sl_optim_has_exp_avg(&args->hyper))
        args->exp_avg = (array++)->data;
    if (sl_optim_has_exp_avg_sq(&args->hyper))
        args->exp_avg_sq = (array++)->data;
    args->exp_avg_scale = subject->scales;
    args->exp_avg_sq_scale = subject->scales + sl_div_up(args->count, SL_OPTIM_Q8_BLOCK);
}

/* Moments are zero from arrays_map. */
static void fill_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct subject *subject = arg;
    const struct sl_optim_args *args = &subject->args;
    size_t first = task * TASK_ELEMENTS;
    size_t end = sl_min_u64(first + TASK_ELEMENTS, args->count);
    for (size_t i = first; i < end; i++) {
        uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
        float x = (float)(int32_t)(z >> 32) * 0x1p-31f, y = (float)(int32_t)z * 0x1p-31f;
        sl_dtype_store((void *)args->grad, args->grad_dtype, i, x * 1e-3f);
        if (args->master)
            args->master[i] = y * 0.05f;
        if (args->weight)
            sl_dtype_store(args->weight, args->weight_dtype, i, y * 0.05f);
    }
}

int subject_create(struct subject *subject, const struct form *form, size_t count,
                   struct sl_workers *workers, struct sl_error *error)
{
    *subject = (struct subject){.form = form, .workers = workers};
    describe(subject, count);
    size_t tasks = task_count(subject);
    subject->scales = calloc(2 * sl_div_up(count, SL_OPTIM_Q8_BLOCK), sizeof(float));
    subject->chunk_squares = calloc(tasks, sizeof(double));
    subject->chunk_nonfinite = calloc(tasks, sizeof(uint64_t));
    int rc = subject->scales && subject->chunk_squares && subject->chunk_nonfinite
                 ? arrays_map(&subject->arrays, workers, error)
                 : sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%zu chunks", tasks);
    if (rc < 0) {
        subject_destroy(subject);
        return rc;
    }
    point_args(subject);
    sl_workers_run(workers, tasks, fill_task, subject);
    subject_step(subject);
    return 0;
}

void subject_destroy(struct subject *subject)
{
    arrays_unmap(&subject->arrays);
    free(subject->chunk_nonfinite);
    free(subject->chunk_squares);
    free(subject->scales);
}

/* ---- the times ---- */

static struct sl_optim_args part_of(const struct sl_optim_args *args, size_t first, size_t count)
{
    struct sl_optim_args part = *args;
    size_t moment = sl_moment_bytes(part.moment_kind);
    part.element_first = first;
    part.count = sl_min_u64(count, args->count - first);
    part.grad = (const char *)part.grad + first * sl_dtype_bytes(part.grad_dtype);
    part.master = part.master ? part.master + first : NULL;
    part.low = part.low ? part.low + first : NULL;
    part.weight = part.weight ? (char *)part.weight + 2 * first : NULL;
    part.exp_avg = part.exp_avg ? (char *)part.exp_avg + moment * first : NULL;
    part.exp_avg_sq = part.exp_avg_sq ? (char *)part.exp_avg_sq + moment * first : NULL;
    part.exp_avg_scale += first / SL_OPTIM_Q8_BLOCK;
    part.exp_avg_sq_scale += first / SL_OPTIM_Q8_BLOCK;
    return part;
}

static void step_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct subject *subject = arg;
    struct sl_optim_args part = part_of(&subject->args, task * TASK_ELEMENTS, TASK_ELEMENTS);
    sl_optim_step(&part);
}

double subject_step(struct subject *subject)
{
    uint64_t start = sl_clock_ns();
    subject->args.hyper.step++;
    sl_workers_run(subject->workers, task_count(subject), step_task, subject);
    return seconds_since(start);
}

static void measure_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    struct subject *subject = arg;
    struct sl_optim_args part = part_of(&subject->args, task * TASK_ELEMENTS, TASK_ELEMENTS);
    sl_gradient_measure_chunk(part.grad, part.grad_dtype, part.count, &subject->chunk_squares[task],
                              &subject->chunk_nonfinite[task]);
}

double subject_phase(struct subject *subject)
{
    uint64_t start = sl_clock_ns();
    size_t tasks = task_count(subject);
    sl_workers_run(subject->workers, tasks, measure_task, subject);
    double squares = 0;
    uint64_t nonfinite = 0;
    for (size_t i = 0; i < tasks; i++) {
        squares += subject->chunk_squares[i];
        nonfinite += subject->chunk_nonfinite[i];
    }
    const double loss_scale = 1, clip = 1;
    double excess = (sqrt(squares) / loss_scale + 1e-6) / clip;
    subject->args.grad_scale = (float)(1 / ((excess > 1 ? excess : 1) * loss_scale));
    if (nonfinite == 0)
        subject_step(subject);
    return seconds_since(start);
}

double subject_stream(struct subject *subject, size_t layout, int way)
{
    arrays_lay_out(&subject->arrays, layout);
    return arrays_stream(&subject->arrays, subject->workers, way);
}

static size_t cached_elements(const struct subject *subject)
{
    size_t share = subject->args.count / sl_workers_thread_count(subject->workers);
    share &= ~(size_t)(SL_OPTIM_Q8_BLOCK - 1);
    return share == 0 ? subject->args.count : sl_min_u64(share, CACHED_ELEMENTS);
}

static void cached_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct subject *subject = arg;
    size_t count = cached_elements(subject);
    struct sl_optim_args part = part_of(&subject->args, task * count, count);
    for (int repeat = 0; repeat < CACHED_REPEATS; repeat++)
        sl_optim_step(&part);
}

double subject_step_cached(struct subject *subject)
{
    size_t threads = sl_workers_thread_count(subject->workers), count = cached_elements(subject);
    if (count == subject->args.count)
        threads = 1;
    uint64_t start = sl_clock_ns();
    sl_workers_run(subject->workers, threads, cached_task, subject);
    double elements = (double)(threads * count * CACHED_REPEATS);
    return seconds_since(start) * (double)subject->args.count / elements;
}
