// SPDX-License-Identifier: Apache-2.0
/* bench/adam: the optimizer step against the speed of memory, measured in the same run.
 *
 * Problem   Whether the step is one pass at memory speed can only be seen beside what this memory
 *           does at this moment with the same arrays.
 * Choice    Rounds: in each, every way and layout of plain streaming and the step itself run once;
 *           the best time of each over the rounds counts. So a neighbour's noise hits both.
 * Rejected  Averages (they measure the neighbours); a limit from a table.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "bench/adam_arrays.h"
#include "bench/adam_peers.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/optim.h"
#include "offload/topology.h"

#define TASK_ELEMENTS 65536u /* the norm's chunk; a multiple of the 8-bit block */

struct form {
    const char *name;
    enum sl_optim_kind kind;
    enum sl_master_kind master;
    enum sl_moment_kind moment;
    enum sl_dtype grad, weight; /* weight F32: none is written */
};

static const struct form forms[] = {
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
#define FORM_COUNT (sizeof(forms) / sizeof(forms[0]))

struct options {
    uint64_t count;
    size_t threads;
    unsigned rounds;
    bool json;
    const char *only;
    const char *python;
};

struct bench {
    struct options options;
    struct sl_workers *workers;
    struct arrays arrays;
    float *scales; /* 8-bit moments: first and second, a scale per block */
    struct sl_optim_args args;
    double *chunk_squares;
    uint64_t *chunk_nonfinite;
};

struct result {
    double step_seconds, phase_seconds, limit_seconds, aligned_seconds;
    size_t limit_layout;
    int limit_way;
    size_t bytes_per_element;
};

static void add_array(struct arrays *arrays, size_t bytes, enum array_mode mode)
{
    arrays->array[arrays->array_count++] = (struct array){bytes, mode, NULL};
}

/* Order: grad, master or low, weight, exp_avg, exp_avg_sq. */
static void describe(struct bench *bench, const struct form *form)
{
    struct arrays *arrays = &bench->arrays;
    *arrays = (struct arrays){.count = bench->options.count};
    bench->args.hyper.kind = form->kind;
    bench->args.hyper.momentum = form->kind == SL_OPTIM_SGD ? 0.9f : 0;
    bench->args.master_kind = form->master;
    bench->args.moment_kind = form->moment;
    bench->args.grad_dtype = form->grad;
    bench->args.weight_dtype = form->weight == SL_F32 ? SL_BF16 : form->weight;
    add_array(arrays, sl_dtype_bytes(form->grad), ARRAY_READ);
    if (form->master != SL_MASTER_NONE)
        add_array(arrays, form->master == SL_MASTER_F32 ? 4 : 2, ARRAY_UPDATE);
    if (form->weight != SL_F32)
        add_array(arrays, 2, form->master == SL_MASTER_F32 ? ARRAY_WRITE : ARRAY_UPDATE);
    if (sl_optim_has_exp_avg(&bench->args.hyper))
        add_array(arrays, sl_moment_bytes(form->moment), ARRAY_UPDATE);
    if (sl_optim_has_exp_avg_sq(&bench->args.hyper))
        add_array(arrays, sl_moment_bytes(form->moment), ARRAY_UPDATE);
}

static void point_args(struct bench *bench, const struct form *form)
{
    struct sl_optim_args *args = &bench->args;
    struct array *array = bench->arrays.array;
    args->grad = (array++)->data;
    args->master = NULL;
    args->low = NULL;
    args->weight = args->exp_avg = args->exp_avg_sq = NULL;
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
    args->exp_avg_scale = bench->scales;
    args->exp_avg_sq_scale = bench->scales + sl_div_up(bench->options.count, SL_OPTIM_Q8_BLOCK);
}

/* Gradients of about 1e-3 and weights of about 0.05, zero moments: the first step of a run. */
static void fill_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    struct bench *bench = arg;
    const struct sl_optim_args *args = &bench->args;
    size_t first = (size_t)task * TASK_ELEMENTS;
    size_t end = sl_min_u64(first + TASK_ELEMENTS, bench->options.count);
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

static void zero_moments(struct bench *bench)
{
    size_t bytes = sl_moment_bytes(bench->args.moment_kind) * bench->options.count;
    if (bench->args.exp_avg)
        memset(bench->args.exp_avg, 0, bytes);
    if (bench->args.exp_avg_sq)
        memset(bench->args.exp_avg_sq, 0, bytes);
    memset(bench->scales, 0,
           2 * sizeof(float) * sl_div_up(bench->options.count, SL_OPTIM_Q8_BLOCK));
}

static void step_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    struct bench *bench = arg;
    struct sl_optim_args part = bench->args;
    size_t first = (size_t)task * TASK_ELEMENTS, moment = sl_moment_bytes(part.moment_kind);
    part.element_first = first;
    part.count = sl_min_u64(TASK_ELEMENTS, bench->options.count - first);
    part.grad = (const char *)part.grad + first * sl_dtype_bytes(part.grad_dtype);
    part.master = part.master ? part.master + first : NULL;
    part.low = part.low ? part.low + first : NULL;
    part.weight = part.weight ? (char *)part.weight + 2 * first : NULL;
    part.exp_avg = part.exp_avg ? (char *)part.exp_avg + moment * first : NULL;
    part.exp_avg_sq = part.exp_avg_sq ? (char *)part.exp_avg_sq + moment * first : NULL;
    part.exp_avg_scale += first / SL_OPTIM_Q8_BLOCK;
    part.exp_avg_sq_scale += first / SL_OPTIM_Q8_BLOCK;
    sl_optim_step(&part);
}

static void measure_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    struct bench *bench = arg;
    size_t first = (size_t)task * TASK_ELEMENTS;
    size_t count = sl_min_u64(TASK_ELEMENTS, bench->options.count - first);
    sl_gradient_measure_chunk(
        (const char *)bench->args.grad + first * sl_dtype_bytes(bench->args.grad_dtype),
        bench->args.grad_dtype, count, &bench->chunk_squares[task], &bench->chunk_nonfinite[task]);
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(sl_clock_ns() - start_ns) * 1e-9;
}

static double time_step(struct bench *bench)
{
    uint64_t start = sl_clock_ns();
    bench->args.hyper.step++;
    sl_workers_run(bench->workers, sl_div_up(bench->options.count, TASK_ELEMENTS), step_task,
                   bench);
    return seconds_since(start);
}

/* Norm, check, unscale, clip, update, write-out. */
static double time_phase(struct bench *bench)
{
    uint64_t start = sl_clock_ns();
    size_t tasks = sl_div_up(bench->options.count, TASK_ELEMENTS);
    sl_workers_run(bench->workers, tasks, measure_task, bench);
    double squares = 0;
    uint64_t nonfinite = 0;
    for (size_t i = 0; i < tasks; i++) {
        squares += bench->chunk_squares[i];
        nonfinite += bench->chunk_nonfinite[i];
    }
    const double loss_scale = 1, clip = 1;
    double excess = (sqrt(squares) / loss_scale + 1e-6) / clip;
    bench->args.grad_scale = (float)(1 / ((excess > 1 ? excess : 1) * loss_scale));
    if (nonfinite == 0)
        time_step(bench);
    return seconds_since(start);
}

static void keep_min(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

static void measure_limit(struct bench *bench, struct result *result)
{
    for (size_t layout = 0; layout < LAYOUT_COUNT; layout++) {
        arrays_lay_out(&bench->arrays, layout);
        for (int way = 0; way < STREAM_WAYS; way++) {
            double seconds = arrays_stream(&bench->arrays, bench->workers, way);
            if (layout == 0)
                keep_min(&result->aligned_seconds, seconds);
            if (result->limit_seconds == 0 || seconds < result->limit_seconds) {
                result->limit_seconds = seconds;
                result->limit_layout = layout;
                result->limit_way = way;
            }
        }
    }
}

static int measure_form(struct bench *bench, const struct form *form, struct result *result,
                        struct sl_error *error)
{
    *result = (struct result){0};
    describe(bench, form);
    int rc = arrays_map(&bench->arrays, bench->workers, error);
    if (rc < 0)
        return rc;
    result->bytes_per_element = arrays_bytes_per_element(&bench->arrays);
    for (unsigned round = 0; round < bench->options.rounds; round++) {
        measure_limit(bench, result);
        arrays_lay_out(&bench->arrays, LAYOUT_OURS);
        point_args(bench, form);
        bench->args.hyper.step = 0;
        bench->args.grad_scale = 1;
        sl_workers_run(bench->workers, sl_div_up(bench->options.count, TASK_ELEMENTS), fill_task,
                       bench);
        zero_moments(bench);
        time_step(bench);
        for (int repeat = 0; repeat < 6; repeat++) {
            keep_min(&result->step_seconds, time_step(bench));
            keep_min(&result->phase_seconds, time_phase(bench));
        }
    }
    arrays_unmap(&bench->arrays);
    return 0;
}

static void print_row(const struct bench *bench, const struct form *form,
                      const struct result *result, bool first)
{
    double params = (double)bench->options.count * 1e-9;
    double bytes = params * (double)result->bytes_per_element;
    if (bench->options.json) {
        printf("%s\n    {\"form\": \"%s\", \"bytes_per_param\": %zu, "
               "\"step_gparam_per_s\": %.4f, \"step_gb_per_s\": %.3f, "
               "\"phase_gparam_per_s\": %.4f, \"limit_gb_per_s\": %.3f, "
               "\"limit_stagger_bytes\": %zu, \"page_aligned_gb_per_s\": %.3f, "
               "\"step_of_limit\": %.4f}",
               first ? "" : ",", form->name, result->bytes_per_element,
               params / result->step_seconds, bytes / result->step_seconds,
               params / result->phase_seconds, bytes / result->limit_seconds,
               layout_stagger_bytes[result->limit_layout], bytes / result->aligned_seconds,
               result->limit_seconds / result->step_seconds);
        return;
    }
    printf("%-20s %5zu %10.3f %8.1f %10.1f %8.1f %% %12.3f\n", form->name,
           result->bytes_per_element, params / result->step_seconds, bytes / result->step_seconds,
           bytes / result->limit_seconds, 100 * result->limit_seconds / result->step_seconds,
           params / result->phase_seconds);
    fflush(stdout);
}

static void print_head(const struct bench *bench)
{
    const struct options *options = &bench->options;
    size_t threads = sl_workers_thread_count(bench->workers);
    const char *isa = sl_cpu_isa_name(sl_cpu_isa_active());
    if (options->json) {
        printf("{\n  \"count\": %llu, \"threads\": %zu, \"isa\": \"%s\", \"rounds\": %u,\n"
               "  \"forms\": [",
               (unsigned long long)options->count, threads, isa, options->rounds);
        return;
    }
    printf("%llu parameters, %zu threads, %s; best of %u rounds\n"
           "limit: in-place streaming of the same arrays, best of %d layouts and %d ways\n\n"
           "%-20s %5s %10s %8s %10s %10s %12s\n",
           (unsigned long long)options->count, threads, isa, options->rounds, LAYOUT_COUNT,
           STREAM_WAYS, "step", "B/par", "Gparam/s", "GB/s", "limit GB/s", "of limit",
           "phase Gpar/s");
}

static const char usage[] =
    "usage: adam [--count N] [--threads N] [--rounds N] [--only FORM] [--python PATH] [--json]\n"
    "  --count N      parameters (default 32M)\n"
    "  --threads N    compute threads (default: one per usable core)\n"
    "  --rounds N     repetitions of limit and step; the best counts (default 5)\n"
    "  --only FORM    one form of the step, such as adamw or adamw-split\n"
    "  --python PATH  measure torch and DeepSpeed too, with this Python\n"
    "SLUICE_ISA=scalar|avx2|avx512|neon forces the instruction set.\n";

static int parse(struct options *options, int argc, char **argv)
{
    static const struct option names[] = {
        {"count", required_argument, NULL, 'c'},  {"threads", required_argument, NULL, 't'},
        {"rounds", required_argument, NULL, 'r'}, {"only", required_argument, NULL, 'o'},
        {"python", required_argument, NULL, 'p'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
    *options = (struct options){.count = UINT64_C(32) << 20, .rounds = 5};
    for (int letter; (letter = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (letter == 'c' && sl_size_parse(optarg, &options->count) < 0)
            return -EINVAL;
        if (letter == 't')
            options->threads = strtoul(optarg, NULL, 10);
        if (letter == 'r')
            options->rounds = (unsigned)strtoul(optarg, NULL, 10);
        if (letter == 'o')
            options->only = optarg;
        if (letter == 'p')
            options->python = optarg;
        if (letter == 'j')
            options->json = true;
        if (letter == '?' || letter == 'h')
            return letter == 'h' ? 1 : -EINVAL;
    }
    return options->count < 64 || options->rounds == 0 || optind < argc ? -EINVAL : 0;
}

static int run(struct bench *bench, struct sl_error *error)
{
    struct result result, plain = {0};
    bool first = true;
    print_head(bench);
    for (size_t i = 0; i < FORM_COUNT; i++) {
        if (bench->options.only && strcmp(bench->options.only, forms[i].name) != 0)
            continue;
        int rc = measure_form(bench, &forms[i], &result, error);
        if (rc < 0)
            return rc;
        if (i == 0)
            plain = result;
        print_row(bench, &forms[i], &result, first);
        first = false;
    }
    if (first)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "--only %s: no such form",
                            bench->options.only);
    if (bench->options.json)
        printf("\n  ]");
    int rc = 0;
    if (bench->options.python)
        rc = peers_report(bench->options.python, bench->options.count,
                          sl_workers_thread_count(bench->workers), bench->options.json,
                          plain.phase_seconds, error);
    printf(bench->options.json ? "\n}\n" : "");
    return rc;
}

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (!memory)
        abort(); /* a bench of a few megabytes of bookkeeping */
    return memory;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct sl_error error = {0};
    int rc = parse(&bench.options, argc, argv);
    if (rc != 0) {
        fputs(usage, rc < 0 ? stderr : stdout);
        return rc < 0 ? 2 : 0;
    }
    struct sl_workers_options workers = {.thread_count = bench.options.threads};
    if (sl_cpu_isa_select(&error) < 0 || sl_workers_create(&bench.workers, &workers, &error) < 0) {
        fprintf(stderr, "adam: %s\n", error.message);
        return error.domain == SL_DOMAIN_INPUT ? 2 : 1;
    }
    bench.args.hyper = (struct sl_optim_hyper){.lr = 1e-4f,
                                               .beta1 = 0.9f,
                                               .beta2 = 0.999f,
                                               .eps = 1e-8f,
                                               .weight_decay = 0.01f,
                                               .bias_correction = true};
    size_t tasks = sl_div_up(bench.options.count, TASK_ELEMENTS);
    bench.chunk_squares = allocate(tasks, sizeof(double));
    bench.chunk_nonfinite = allocate(tasks, sizeof(uint64_t));
    bench.scales = allocate(2 * sl_div_up(bench.options.count, SL_OPTIM_Q8_BLOCK), sizeof(float));
    rc = run(&bench, &error);
    if (rc < 0)
        fprintf(stderr, "adam: %s\n", error.message);
    free(bench.scales);
    free(bench.chunk_nonfinite);
    free(bench.chunk_squares);
    sl_workers_destroy(bench.workers);
    return rc == 0 ? 0 : error.domain == SL_DOMAIN_INPUT ? 2 : 1;
}
