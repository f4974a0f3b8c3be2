// SPDX-License-Identifier: Apache-2.0
/* Predicted against real on this machine: the machine is measured as `sluice doctor --measure`
 * does, and then the same plan runs under the virtual clock and in the executor.
 *
 *     bench-predict DIRECTORY [--config N]... [--profile FILE] [--ops] [--json]
 *
 * Each configuration runs between two measurements, in processes of their own, so that its peak
 * memory is its own and all figures are of the same minute; the prediction is the mean of the two
 * that the measurements give, and their distance a column: a machine that others share changes by
 * itself. What other programs took of the cores meanwhile is a column, too: where it is not near 0,
 * the row says nothing. The link of the host:discrete rows is throttled to the rate that the row
 * names, so it is stated, not measured.
 * --profile: a profile made before, in place of measuring; --ops: real and simulated seconds of
 * every kind of operation; --config: this row alone, counted from 1.
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/steps.h"
#include "bench/usage.h"
#include "engine/hardware_measure.h"
#include "engine/process_memory.h"
#include "engine/simulate_report.h"

#define PRESET "gpt2-124m"
#define BATCH 1u
#define SEQUENCE 128u
#define MICRO_BATCHES 2u
#define STEPS 6u /* two to fill the pipeline, four measured */
#define WARM 2u
#define MEASURED (STEPS - WARM)
#define EVENTS_MAX 100000u
static const struct config {
    const char *name, *device;
    enum sl_tier placement[SL_PLACED_COUNT]; /* weights, gradients, optimizer, activations */
    uint64_t link_bytes_per_second;          /* each direction; host:discrete */
} configs[] = {
    {"all in host memory", "host", {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST}},
    {"optimizer on NVMe", "host", {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_NVME, SL_TIER_HOST}},
    {"everything on NVMe", "host", {SL_TIER_NVME, SL_TIER_NVME, SL_TIER_NVME, SL_TIER_NVME}},
    {"discrete, link 1 GB/s",
     "host:discrete",
     {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST},
     1000000000},
    {"discrete, link 0.1 GB/s",
     "host:discrete",
     {SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST, SL_TIER_HOST},
     100000000},
};
#define CONFIG_COUNT (sizeof(configs) / sizeof(configs[0]))

struct arguments {
    const char *directory, *profile;
    bool chosen[CONFIG_COUNT], any_chosen, ops, json;
};

/* Of a lane and a kind of operation, per step. */
struct op_row {
    double real_seconds, simulated_seconds;
    unsigned count;
};

enum { BEFORE, AFTER, MEASUREMENTS };

/* What a configuration's processes leave behind: shared memory. */
struct outcome {
    struct sl_hardware hardware[MEASUREMENTS];
    double predicted[MEASUREMENTS], real, busiest;
    double others; /* the largest share of measuring and running */
    uint64_t predicted_peak_bytes, peak_bytes, arena_bytes[SL_TIER_COUNT];
    char bottleneck[32];
    bool exact;
    struct op_row ops[SL_LANE_COUNT][SL_OP_KIND_COUNT];
};

static void check(int result, const struct sl_error *error)
{
    if (!result)
        return;
    fprintf(stderr, "bench-predict: %s\n",
            error->code ? error->message : strerror(result < 0 ? -result : result));
    exit(1);
}

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sl_error none = {0};
    check(memory == MAP_FAILED ? errno : 0, &none);
    return memory;
}

/* ---- core time of other programs ------------------------------------------------------------ */

struct core_time {
    double all, own; /* seconds since some moment: all cores not idle, and this process */
};

static struct core_time core_time(void)
{
    struct core_time time = {0};
    unsigned long long t[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (file) {
        if (fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
                   &t[4], &t[5], &t[6], &t[7]) == 8) /* user nice system idle iowait irq softirq
                                                        steal */
            time.all =
                (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
        fclose(file);
    }
    time.own = sl_clock_process_seconds();
    return time;
}

/* Share of the machine's cores that others have taken since. */
static double others_since(struct core_time from, uint64_t start_ns)
{
    struct core_time to = core_time();
    double seconds = (double)(sl_clock_ns() - start_ns) * 1e-9;
    return fmax(0, to.all - from.all - (to.own - from.own)) /
           (seconds * (double)sysconf(_SC_NPROCESSORS_ONLN));
}

/* ---- one configuration ---------------------------------------------------------------------- */

static bool uses_nvme(const struct config *config)
{
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        if (config->placement[kind] == SL_TIER_NVME)
            return true;
    return false;
}

static void measure(struct sl_hardware *out, const struct config *config, const char *directory)
{
    struct sl_workers *workers;
    struct sl_device *device;
    struct sl_workers_options pool = {0};
    struct sl_error error = {0};
    check(sl_workers_create(&workers, &pool, &error), &error);
    struct sl_device_options named = {.name = "host", .precision = SL_BF16, .workers = workers};
    check(sl_device_create(&device, &named, &error), &error);
    struct sl_measure_options options = {.workers = workers,
                                         .device = device,
                                         .nvme_paths = &directory,
                                         .nvme_path_count = uses_nvme(config)};
    struct sl_measured *measured = calloc(1, sizeof(*measured));
    check(measured ? sl_hardware_measure(measured, &options, &error) : -ENOMEM, &error);
    *out = measured->hardware;
    free(measured);
    sl_device_destroy(device);
    sl_workers_destroy(workers);
}

/* Simulated ones: of each measurement's prediction. */
static void add_events(struct outcome *outcome, const struct sl_trace *trace, uint64_t first,
                       uint64_t end, bool real)
{
    const struct sl_trace_event *events;
    uint32_t count = sl_trace_events(trace, &events);
    for (uint32_t i = 0; i < count; i++) {
        const struct sl_trace_event *event = &events[i];
        if (event->instance < first || event->instance >= end)
            continue;
        struct op_row *row = &outcome->ops[event->op->lane][event->op->kind];
        double seconds = (double)(event->end_ns - event->start_ns) * 1e-9 / (double)(end - first);
        if (real) {
            row->real_seconds += seconds;
            row->count++;
        } else {
            row->simulated_seconds += seconds / MEASUREMENTS;
        }
    }
}

static void measure_around(struct outcome *outcome, int when, const struct config *config,
                           const struct arguments *arguments)
{
    struct sl_hardware *hardware = &outcome->hardware[when];
    struct sl_error error = {0};
    struct core_time from = core_time();
    uint64_t start_ns = sl_clock_ns();
    if (arguments->profile) {
        check(sl_hardware_load(hardware, arguments->profile, &error), &error);
        return;
    }
    measure(hardware, config, arguments->directory);
    outcome->others = fmax(outcome->others, others_since(from, start_ns));
}

static void plan_config(struct sl_engine *engine, struct sl_model *model,
                        const struct config *config, const struct arguments *arguments)
{
    struct sl_error error = {0};
    check(sl_model_from_preset(model, PRESET, &error), &error);
    struct sl_engine_options options = {
        .step = {.model = model,
                 .precision = SL_BF16,
                 .batch = BATCH,
                 .sequence = SEQUENCE,
                 .micro_batches = MICRO_BATCHES,
                 .group = MICRO_BATCHES,
                 .recompute = true,
                 .sub_group_elements = 10000000,
                 .optimizer_buffers = 3,
                 .prefetch = 1,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .device = config->device,
        .link_bytes_per_second = config->link_bytes_per_second,
        .swap = {.paths = &arguments->directory, .path_count = 1},
        .trace_events = arguments->ops ? EVENTS_MAX : 0,
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        options.step.placement.fraction[kind][config->placement[kind]] = 1;
    check(sl_engine_plan(engine, &options, &error), &error);
}

static void predict(struct outcome *outcome, const struct sl_engine *engine,
                    const struct config *config, int when, struct sl_report *report)
{
    struct sl_hardware hardware = outcome->hardware[when];
    if (!engine->sp.options.unified) {
        hardware.link_up_bytes_per_second = (double)config->link_bytes_per_second;
        hardware.link_down_bytes_per_second = (double)config->link_bytes_per_second;
        hardware.link_both_bytes_per_second = 0;
    }
    struct sl_report_options options = {.hardware = &hardware};
    struct sl_error error = {0};
    check(sl_report_make(report, &engine->sp, &options, &error), &error);
    outcome->predicted[when] = report->seconds_per_step;
    snprintf(outcome->bottleneck, sizeof(outcome->bottleneck), "%s", report->bottleneck);

    uint32_t segments[] = {engine->sp.prologue, engine->sp.step, engine->sp.step, engine->sp.step};
    struct sl_simulation_options run = {.plan = &engine->sp.plan,
                                        .hardware = &hardware,
                                        .segments = segments,
                                        .segment_count = 4,
                                        .measured = 1};
    struct sl_simulation simulation;
    check(sl_trace_create(&run.trace, EVENTS_MAX, &error), &error);
    check(sl_simulate(&simulation, &run, &error), &error);
    add_events(outcome, run.trace, 3, 4, false);
    sl_trace_destroy(run.trace);
}

static void predict_config(struct outcome *outcome, const struct config *config,
                           const struct arguments *arguments)
{
    struct sl_model model;
    struct sl_engine engine;
    struct sl_report report;
    plan_config(&engine, &model, config, arguments);
    for (int when = 0; when < MEASUREMENTS; when++)
        predict(outcome, &engine, config, when, &report);
    outcome->exact = outcome->arena_bytes[SL_TIER_HOST] == report.plan_bytes[SL_TIER_HOST] &&
                     outcome->arena_bytes[SL_TIER_DEVICE] == report.plan_bytes[SL_TIER_DEVICE];
    struct sl_memory_line lines[SL_MEMORY_LINES_MAX];
    uint64_t total[SL_TIER_COUNT];
    sl_engine_memory(&engine, lines, total);
    /* The device memory of host:discrete is memory of the host, too. */
    outcome->predicted_peak_bytes = total[SL_TIER_HOST] + total[SL_TIER_DEVICE];
    sl_engine_finish(&engine);
    sl_model_finish(&model);
}

static void run_config(struct outcome *outcome, const struct config *config,
                       const struct arguments *arguments)
{
    struct sl_model model;
    struct sl_engine engine;
    struct bench_steps steps;
    plan_config(&engine, &model, config, arguments);
    struct core_time from = core_time();
    uint64_t start_ns = sl_clock_ns();
    bench_steps_run(&engine, "bench-predict", WARM, MEASURED, 1, &steps);
    outcome->others = fmax(outcome->others, others_since(from, start_ns));
    outcome->real = steps.mean_seconds;
    outcome->busiest = steps.busy_seconds[steps.busiest];
    outcome->peak_bytes = sl_process_peak_bytes();
    outcome->arena_bytes[SL_TIER_HOST] = engine.host.bytes;
    outcome->arena_bytes[SL_TIER_DEVICE] = engine.device_memory_bytes;
    if (arguments->ops)
        add_events(outcome, engine.trace, WARM, STEPS, true);
    sl_engine_finish(&engine);
    sl_model_finish(&model);
}

/* ---- processes and output ------------------------------------------------------------------- */

enum task { MEASURE_BEFORE, RUN, MEASURE_AFTER, PREDICT };

/* The parent has no thread and next to no memory: each child starts as the program did. */
static void in_child(enum task task, struct outcome *outcome, const struct config *config,
                     const struct arguments *arguments)
{
    fflush(NULL);
    pid_t child = fork();
    struct sl_error none = {0};
    check(child < 0 ? errno : 0, &none);
    if (child == 0) {
        if (task == MEASURE_BEFORE || task == MEASURE_AFTER)
            measure_around(outcome, task == MEASURE_BEFORE ? BEFORE : AFTER, config, arguments);
        else if (task == RUN)
            run_config(outcome, config, arguments);
        else
            predict_config(outcome, config, arguments);
        exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        exit(1); /* it has said why */
}

static void print_ops(const struct outcome *outcome)
{
    printf("\n| lane | operation | number | real | simulated | error |\n"
           "| --- | --- | --- | --- | --- | --- |\n");
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        for (int kind = 0; kind < SL_OP_KIND_COUNT; kind++) {
            const struct op_row *row = &outcome->ops[lane][kind];
            if (row->count)
                printf("| %s | %s | %u | %.4f s | %.4f s | %+.1f %% |\n",
                       sl_lane_name((enum sl_lane)lane), sl_op_kind_name((enum sl_op_kind)kind),
                       row->count / MEASURED, row->real_seconds, row->simulated_seconds,
                       100 * (row->simulated_seconds / row->real_seconds - 1));
        }
    printf("\n");
}

static void print_outcome(const struct config *config, const struct outcome *o, bool json,
                          bool first)
{
    double peak = (double)o->predicted_peak_bytes / (double)o->peak_bytes - 1;
    double predicted = (o->predicted[BEFORE] + o->predicted[AFTER]) / 2;
    double apart = fabs(o->predicted[AFTER] - o->predicted[BEFORE]) / 2 / predicted;
    if (json)
        printf("%s  {\"config\": \"%s\", \"real_seconds\": %.6g, "
               "\"predicted_before_seconds\": %.6g, \"predicted_after_seconds\": %.6g, "
               "\"busiest_lane_seconds\": %.6g, \"bottleneck\": \"%s\", \"arenas_exact\": %s, "
               "\"peak_bytes\": %llu, \"predicted_peak_bytes\": %llu, \"others_share\": %.4f}",
               first ? "" : ",\n", config->name, o->real, o->predicted[BEFORE], o->predicted[AFTER],
               o->busiest, o->bottleneck, o->exact ? "true" : "false",
               (unsigned long long)o->peak_bytes, (unsigned long long)o->predicted_peak_bytes,
               o->others);
    else
        printf("| %s | %.3f s | %.3f s +- %.1f %% | %+.1f %% | %.2f | %s | %s | %+.1f %% | "
               "%.1f %% |\n",
               config->name, o->real, predicted, 100 * apart, 100 * (predicted / o->real - 1),
               o->real / o->busiest, o->bottleneck, o->exact ? "exact" : "differ", 100 * peak,
               100 * o->others);
}

static void do_config(const struct arguments *arguments, size_t index, bool first)
{
    const struct config *config = &configs[index];
    struct outcome *outcome = shared(sizeof(*outcome));
    for (int task = MEASURE_BEFORE; task <= PREDICT; task++)
        in_child((enum task)task, outcome, config, arguments);
    print_outcome(config, outcome, arguments->json, first);
    if (arguments->ops && !arguments->json)
        print_ops(outcome);
    munmap(outcome, sizeof(*outcome));
}

static bool parse(struct arguments *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--json")) {
            a->json = true;
        } else if (!strcmp(argv[i], "--ops")) {
            a->ops = true;
        } else if (!strcmp(argv[i], "--profile") && more) {
            a->profile = argv[++i];
        } else if (!strcmp(argv[i], "--config") && more) {
            unsigned long number = strtoul(argv[++i], NULL, 10);
            if (number < 1 || number > CONFIG_COUNT)
                return false;
            a->chosen[number - 1] = a->any_chosen = true;
        } else if (argv[i][0] != '-' && !a->directory) {
            a->directory = argv[i];
        } else {
            return false;
        }
    }
    return a->directory != NULL;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {0};
    if (!parse(&arguments, argc, argv))
        return bench_usage(argc, argv,
                           "usage: bench-predict DIRECTORY [--config 1..5]... [--profile FILE] "
                           "[--ops] [--json]\n");
    printf(arguments.json ? "[\n"
                          : "| " PRESET " | real | predicted | error | real over busiest lane | "
                            "bottleneck | arenas | peak memory | cores of others |\n"
                            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    bool first = true;
    for (size_t i = 0; i < CONFIG_COUNT; i++) {
        if (arguments.any_chosen && !arguments.chosen[i])
            continue;
        do_config(&arguments, i, first);
        first = false;
    }
    if (arguments.json)
        printf("\n]\n");
    return 0;
}
