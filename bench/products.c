// SPDX-License-Identifier: Apache-2.0
/* bench-products: what the host device's matrix products and attention reach of OpenBLAS's peak.
 *
 *   matmul [--threads N] [--seconds S] [--cpu-time] [--json]
 *
 * The ceiling is measured in the same run: one 1,024-cubed sgemm per thread at a time, all threads
 * at once. Ceiling and shapes are measured in turns and the best round of each counts, so that
 * other load on the machine falls on both. A shape's three products (forward, dX, dW) are timed
 * apart, with fp32 and with bf16 weights (which are widened on the way). --cpu-time counts the CPU
 * time of one thread instead of wall-clock time: the figures of a machine that is busy otherwise.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/sgemm.h"
#include "bench/usage.h"
#include "offload/device.h"
#include "offload/workers.h"

struct shape {
    const char *model, *name;
    size_t rows, inputs, outputs, count; /* count: times per forward pass of the model */
};

static const struct shape shapes[] = {
    {"gpt2-124m", "qkv", 1024, 768, 2304, 12},
    {"gpt2-124m", "attention out", 1024, 768, 768, 12},
    {"gpt2-124m", "feed-forward in", 1024, 768, 3072, 12},
    {"gpt2-124m", "feed-forward out", 1024, 3072, 768, 12},
    {"gpt2-124m", "head tile", 1024, 768, 8192, 6},
    {"demo", "qkv", 512, 192, 576, 6},
    {"demo", "attention out", 512, 192, 192, 6},
    {"demo", "gate and up", 512, 192, 1024, 6},
    {"demo", "down", 512, 512, 192, 6},
    {"demo", "head", 512, 192, 256, 1},
    {"llama-1b", "gate and up", 512, 2048, 16384, 16},
};
#define SHAPES (sizeof shapes / sizeof *shapes)
#define KINDS 5u
static const char *const kind_names[KINDS] = {"fwd f32", "fwd bf16", "dX f32", "dX bf16", "dW"};

static struct sl_workers *workers;
static struct sl_device *device;
static float *left, *right, *result; /* each of ARRAY elements */
static uint16_t *half;
#define ARRAY ((size_t)36 << 20)
#define PEAK_SIDE 1024u

static bool cpu_time;

static uint64_t now_ns(void)
{
    struct timespec t;
    if (!cpu_time)
        return sl_clock_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void peak_task(void *arg, size_t task_index, size_t worker_index)
{
    size_t area = (size_t)PEAK_SIDE * PEAK_SIDE;
    (void)arg, (void)worker_index;
    bench_sgemm(PEAK_SIDE, left, right, result + task_index * area);
}

static double peak_gflops(void)
{
    size_t threads = sl_workers_thread_count(workers);
    uint64_t start = now_ns();
    sl_workers_run(workers, threads, peak_task, NULL);
    double side = PEAK_SIDE;
    return (double)threads * 2 * side * side * side / (double)(now_ns() - start);
}

/* OpenBLAS left to itself: its own choice of core, its own threads. */
#define ALONE_SIDE 2048u

static double alone_gflops(void)
{
    double best = 0, side = ALONE_SIDE;
    for (int round = 0; round < 4; round++) {
        uint64_t start = now_ns();
        bench_sgemm(ALONE_SIDE, left, right, result);
        double speed = 2 * side * side * side / (double)(now_ns() - start);
        best = speed > best ? speed : best;
    }
    return best;
}

static void product(const struct shape *s, size_t kind)
{
    struct sl_matmul_args args = {.rows = s->rows, .inputs = s->inputs, .outputs = s->outputs};
    if (kind < 2) {
        args.kind = SL_MATMUL_FORWARD;
        args.x = left;
        args.y = result;
    } else if (kind < 4) {
        args.kind = SL_MATMUL_BACKWARD_INPUT;
        args.y = left;
        args.x = result;
    } else {
        args.kind = SL_MATMUL_BACKWARD_WEIGHT;
        args.x = left;
        args.y = right;
        args.dweight = result;
    }
    bool is_half = kind == 1 || kind == 3;
    args.weight = (struct sl_weight){is_half ? (void *)half : right, is_half ? SL_BF16 : SL_F32};
    device->ops->matmul(device, &args);
}

/* Best of a few calls, a call being repeated for at least a millisecond. */
static double product_gflops(const struct shape *s, size_t kind)
{
    double flops = 2.0 * (double)s->rows * (double)s->inputs * (double)s->outputs, best = 0;
    size_t repeats = 1 + (size_t)(2e8 / flops);
    for (int round = 0; round < 3; round++) {
        uint64_t start = now_ns();
        for (size_t i = 0; i < repeats; i++)
            product(s, kind);
        double speed = flops * (double)repeats / (double)(now_ns() - start);
        best = speed > best ? speed : best;
    }
    return best;
}

struct attention_shape {
    const char *model;
    size_t batch, length, heads, kv_heads, size;
};
static const struct attention_shape attentions[] = {
    {"gpt2-124m", 1, 1024, 12, 12, 64},
    {"demo", 2, 256, 6, 3, 32},
    {"llama-1b", 1, 512, 32, 8, 64},
};
#define ATTENTIONS (sizeof attentions / sizeof *attentions)

/* FLOPs of the causal half, as a model's cost is counted: 2 products forward, 5 backward. */
static double attention_gflops(const struct attention_shape *s, bool backward)
{
    size_t rows = s->batch * s->length, width = (s->heads + 2 * s->kv_heads) * s->size;
    float *out = result, *lse = result + rows * s->heads * s->size;
    struct sl_attention_backward_args args = {.forward = {.batch_count = s->batch,
                                                          .sequence_length = s->length,
                                                          .heads = s->heads,
                                                          .kv_heads = s->kv_heads,
                                                          .head_size = s->size,
                                                          .scale = 0.125f,
                                                          .qkv = left,
                                                          .out = out,
                                                          .lse = lse},
                                              .dout = right,
                                              .dqkv = lse + rows * s->heads,
                                              .delta = lse + rows * s->heads + rows * width};
    double best = 0;
    double flops = (backward ? 10.0 : 4.0) * (double)(rows * s->length * s->heads * s->size) / 2;
    if (backward)
        device->ops->attention(device, &args.forward);
    for (int round = 0; round < 3; round++) {
        uint64_t start = now_ns();
        if (backward)
            device->ops->attention_backward(device, &args);
        else
            device->ops->attention(device, &args.forward);
        double speed = flops / (double)(now_ns() - start);
        best = speed > best ? speed : best;
    }
    return best;
}

struct figures {
    char alone_core[32];
    double alone, peak, product[SHAPES][KINDS], attention[ATTENTIONS][2];
};

static void measure_round(struct figures *f)
{
    for (size_t i = 0; i < SHAPES; i++) {
        double peak = peak_gflops();
        f->peak = peak > f->peak ? peak : f->peak;
        for (size_t kind = 0; kind < KINDS; kind++) {
            double speed = product_gflops(&shapes[i], kind);
            f->product[i][kind] = speed > f->product[i][kind] ? speed : f->product[i][kind];
        }
    }
    for (size_t i = 0; i < ATTENTIONS; i++)
        for (int backward = 0; backward < 2; backward++) {
            double speed = attention_gflops(&attentions[i], backward);
            double *best = &f->attention[i][backward];
            *best = speed > *best ? speed : *best;
        }
}

/* All products of a model's step at their measured speeds, over the same at the peak. */
static double step_share(const struct figures *f, const char *model, bool bf16)
{
    double flops = 0, ns = 0;
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        if (strcmp(s->model, model) != 0)
            continue;
        double each =
            2.0 * (double)s->rows * (double)s->inputs * (double)s->outputs * (double)s->count;
        flops += 3 * each;
        ns += each / f->product[i][bf16] + each / f->product[i][2 + bf16] + each / f->product[i][4];
    }
    return flops / ns / f->peak;
}

static void print_table(const struct figures *f)
{
    printf("device   %s\n", device->properties.name);
    if (f->alone > 0)
        printf("before   OpenBLAS left to itself (%s, its own threads), 2048-cubed sgemm: %.1f "
               "GFLOP/s\n",
               f->alone_core, f->alone);
    printf("ceiling  OpenBLAS sgemm, %zu threads, 1024 x 1024 x 1024 each: %.1f GFLOP/s\n\n",
           sl_workers_thread_count(workers), f->peak);
    printf("%-10s %-17s %-18s", "model", "product", "rows x in x out");
    for (size_t kind = 0; kind < KINDS; kind++)
        printf(" %14s", kind_names[kind]);
    printf("\n");
    for (size_t i = 0; i < SHAPES; i++) {
        char size[40];
        snprintf(size, sizeof size, "%zu x %zu x %zu", shapes[i].rows, shapes[i].inputs,
                 shapes[i].outputs);
        printf("%-10s %-17s %-18s", shapes[i].model, shapes[i].name, size);
        for (size_t kind = 0; kind < KINDS; kind++)
            printf("  %6.1f (%3.0f%%)", f->product[i][kind], 100 * f->product[i][kind] / f->peak);
        printf("\n");
    }
    printf("\n%-10s %-36s %14s %14s\n", "model", "attention, causal FLOPs", "forward", "backward");
    for (size_t i = 0; i < ATTENTIONS; i++) {
        const struct attention_shape *s = &attentions[i];
        char size[64];
        snprintf(size, sizeof size, "%zu x %zu tokens, %zu/%zu heads of %zu", s->batch, s->length,
                 s->heads, s->kv_heads, s->size);
        printf("%-10s %-36s", s->model, size);
        for (int b = 0; b < 2; b++)
            printf("  %6.1f (%3.0f%%)", f->attention[i][b], 100 * f->attention[i][b] / f->peak);
        printf("\n");
    }
    printf("\nall products of a step, of the ceiling: gpt2-124m %.0f%% (fp32), %.0f%% (bf16); "
           "demo %.0f%% (fp32), %.0f%% (bf16)\n",
           100 * step_share(f, "gpt2-124m", false), 100 * step_share(f, "gpt2-124m", true),
           100 * step_share(f, "demo", false), 100 * step_share(f, "demo", true));
}

static void print_json(const struct figures *f)
{
    printf("{\"device\": \"%s\", \"threads\": %zu, \"openblas_alone_gflops\": %.1f, "
           "\"ceiling_gflops\": "
           "%.1f, \"products\": [",
           device->properties.name, sl_workers_thread_count(workers), f->alone, f->peak);
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape *s = &shapes[i];
        printf("%s{\"model\": \"%s\", \"product\": \"%s\", \"rows\": %zu, \"inputs\": %zu, "
               "\"outputs\": %zu, \"forward_f32_gflops\": %.1f, \"forward_bf16_gflops\": %.1f, "
               "\"dx_f32_gflops\": %.1f, \"dx_bf16_gflops\": %.1f, \"dw_gflops\": %.1f}",
               i ? ", " : "", s->model, s->name, s->rows, s->inputs, s->outputs, f->product[i][0],
               f->product[i][1], f->product[i][2], f->product[i][3], f->product[i][4]);
    }
    printf("], \"attention\": [");
    for (size_t i = 0; i < ATTENTIONS; i++)
        printf("%s{\"model\": \"%s\", \"forward_gflops\": %.1f, \"backward_gflops\": %.1f}",
               i ? ", " : "", attentions[i].model, f->attention[i][0], f->attention[i][1]);
    printf("], \"gpt2_124m_step_share_f32\": %.3f, \"gpt2_124m_step_share_bf16\": %.3f, "
           "\"demo_step_share_f32\": %.3f, \"demo_step_share_bf16\": %.3f}\n",
           step_share(f, "gpt2-124m", false), step_share(f, "gpt2-124m", true),
           step_share(f, "demo", false), step_share(f, "demo", true));
}

static float *filled(void)
{
    float *x = aligned_alloc(4096, ARRAY * sizeof *x);
    for (size_t i = 0; x && i < ARRAY; i++)
        x[i] = (float)((i * 2654435761u) % 1024) / 1024 - 0.5f;
    return x;
}

int main(int argc, char **argv)
{
    size_t threads = 0;
    double seconds = 8;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--cpu-time") == 0) {
            cpu_time = true;
            threads = 1;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            threads = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            seconds = strtod(argv[++i], NULL);
        } else {
            return bench_usage(argc, argv,
                               "usage: bench-products [--threads N] [--seconds S] [--cpu-time] "
                               "[--json]\n");
        }
    }
    left = filled();
    right = filled();
    result = filled();
    half = calloc(ARRAY, sizeof *half);
    if (!left || !right || !result || !half) {
        fprintf(stderr, "matmul: no memory\n");
        return 1;
    }
    struct figures figures = {0};
    snprintf(figures.alone_core, sizeof figures.alone_core, "%s", bench_sgemm_core());
    if (!cpu_time)
        figures.alone = alone_gflops();
    bench_sgemm_threads(1);
    struct sl_error error = {0};
    struct sl_workers_options pool = {.thread_count = threads};
    if (sl_workers_create(&workers, &pool, &error) == 0) {
        struct sl_device_options options = {.name = "host", .workers = workers};
        sl_device_create(&device, &options, &error);
    }
    if (!device) {
        fprintf(stderr, "matmul: %s\n", error.message);
        return 1;
    }
    for (size_t i = 0; i < ARRAY; i++)
        half[i] = sl_bf16_from_f32(right[i]);
    uint64_t start = sl_clock_ns();
    do
        measure_round(&figures);
    while ((double)(sl_clock_ns() - start) < seconds * 1e9);
    if (json)
        print_json(&figures);
    else
        print_table(&figures);
    free(left);
    free(right);
    free(result);
    free(half);
    sl_device_destroy(device);
    sl_workers_destroy(workers);
    return 0;
}
