// SPDX-License-Identifier: Apache-2.0
/* bench/adam: the optimizer step against the speed of memory, measured in the same run.
 *
 * Problem   Neighbours change the speed of a shared machine's memory by half within seconds: a
 *           figure says something only beside another one of the same moment.
 * Choice    Rounds. In each, every layout and way of plain streaming runs once, and between the
 *           layouts the step, its whole phase and AdamW with f32 state; the best time of each
 *           counts within its round, and what is reported of the rounds is the median: of their
 *           times, and of their ratios. The limit has four times the step's chances to be fast. The
 *           step in the cache, of the same round, tells what the cores alone could do.
 * Rejected  The best of a run (the limit and the step are then of different moments); averages
 *           (they measure the neighbours); a limit from a table.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "bench/adam_form.h"
#include "bench/adam_peers.h"
#include "bench/nvme_ratio.h"
#include "kernels/cpu/isa.h"

#define ROUNDS_MAX 256

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
    struct subject adamw; /* forms[0], beside which the others are measured */
};

/* Seconds of one pass, by round. */
struct times {
    double step[ROUNDS_MAX], phase[ROUNDS_MAX], cached[ROUNDS_MAX];
    double limit[ROUNDS_MAX], aligned[ROUNDS_MAX]; /* aligned: streaming in layout 0 */
    double adamw[ROUNDS_MAX];
};

static void keep_min(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

/* `of` may be the subject that the others are compared with. */
static void measure_round(struct bench *bench, struct subject *of, struct times *times, unsigned i)
{
    for (size_t layout = 0; layout < LAYOUT_COUNT; layout++) {
        for (int way = 0; way < STREAM_WAYS; way++) {
            double seconds = subject_stream(of, layout, way);
            keep_min(&times->limit[i], seconds);
            if (layout == 0)
                keep_min(&times->aligned[i], seconds);
        }
        keep_min(&times->step[i], subject_step(of));
        keep_min(&times->adamw[i],
                 of == &bench->adamw ? times->step[i] : subject_step(&bench->adamw));
        keep_min(&times->phase[i], subject_phase(of));
        keep_min(&times->cached[i], subject_step_cached(of));
    }
}

static int measure_form(struct bench *bench, const struct form *form, struct times *times,
                        size_t *bytes, struct sl_error *error)
{
    memset(times, 0, sizeof(*times));
    struct subject own = {0}, *of = &bench->adamw;
    if (form != bench->adamw.form) {
        int rc = subject_create(&own, form, bench->options.count, bench->workers, error);
        if (rc < 0)
            return rc;
        of = &own;
    }
    *bytes = arrays_bytes_per_element(&of->arrays);
    for (unsigned round = 0; round < bench->options.rounds; round++)
        measure_round(bench, of, times, round);
    if (of == &own)
        subject_destroy(&own);
    return 0;
}

static void print_row(const struct bench *bench, const struct form *form, const struct times *times,
                      size_t bytes_per_param, bool first)
{
    unsigned rounds = bench->options.rounds;
    double params = (double)bench->options.count * 1e-9, bytes = params * (double)bytes_per_param;
    double step = median_of(times->step, rounds), limit = median_of(times->limit, rounds);
    double phase = params / median_of(times->phase, rounds);
    double cached = params / median_of(times->cached, rounds);
    struct ratio of_limit = ratio_of_pairs(times->limit, times->step, rounds);
    struct ratio of_adamw = ratio_of_pairs(times->adamw, times->step, rounds);
    if (bench->options.json) {
        printf("%s\n    {\"form\": \"%s\", \"bytes_per_param\": %zu, "
               "\"step_gparam_per_s\": %.4f, \"step_gb_per_s\": %.3f, \"limit_gb_per_s\": %.3f, "
               "\"page_aligned_gb_per_s\": %.3f, \"step_of_limit\": %.4f, "
               "\"step_of_limit_low\": %.4f, \"step_of_limit_high\": %.4f, "
               "\"times_adamw\": %.4f, \"times_adamw_low\": %.4f, \"times_adamw_high\": %.4f, "
               "\"phase_gparam_per_s\": %.4f, \"cached_gparam_per_s\": %.4f}",
               first ? "" : ",", form->name, bytes_per_param, params / step, bytes / step,
               bytes / limit, bytes / median_of(times->aligned, rounds), of_limit.median,
               of_limit.low, of_limit.high, of_adamw.median, of_adamw.low, of_adamw.high, phase,
               cached);
        return;
    }
    printf("%-20s %5zu %9.3f %7.1f %7.1f %8.1f %% %9.2f %9.3f %9.3f\n", form->name, bytes_per_param,
           params / step, bytes / step, bytes / limit, 100 * of_limit.median, of_adamw.median,
           phase, cached);
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
    printf("%llu parameters, %zu threads, %s; medians of %u rounds, ratios within a round\n"
           "limit: in-place streaming of the same arrays, best of %d layouts and %d ways\n"
           "phase: with norm, check, clipping and write-out; cached: the step, arrays in L2\n\n"
           "%-20s %5s %9s %7s %7s %10s %9s %9s %9s\n"
           "%-20s %5s %9s %7s %7s %10s %9s %9s %9s\n",
           (unsigned long long)options->count, threads, isa, options->rounds, LAYOUT_COUNT,
           STREAM_WAYS, "step", "B/", "step", "step", "limit", "step of", "times", "phase",
           "cached", "", "param", "Gparam/s", "GB/s", "GB/s", "limit", "adamw", "Gparam/s",
           "Gparam/s");
}

static double phase_of_adamw(void *user)
{
    struct bench *bench = user;
    return subject_phase(&bench->adamw);
}

static int run(struct bench *bench, struct sl_error *error)
{
    static struct times times;
    const struct options *options = &bench->options;
    int rc = subject_create(&bench->adamw, &forms[0], options->count, bench->workers, error);
    if (rc < 0)
        return rc;
    bool first = true;
    print_head(bench);
    for (size_t i = 0; rc == 0 && i < FORM_COUNT; i++) {
        size_t bytes;
        if (options->only && strcmp(options->only, forms[i].name) != 0)
            continue;
        rc = measure_form(bench, &forms[i], &times, &bytes, error);
        if (rc == 0)
            print_row(bench, &forms[i], &times, bytes, first);
        first = false;
    }
    if (first)
        rc =
            sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "--only %s: no such form", options->only);
    if (options->json)
        printf("\n  ]");
    if (rc == 0 && options->python) {
        struct peers_options peers = {.python = options->python,
                                      .count = options->count,
                                      .threads = sl_workers_thread_count(bench->workers),
                                      .rounds = options->rounds,
                                      .json = options->json,
                                      .our_phase = phase_of_adamw,
                                      .user = bench};
        rc = peers_report(&peers, error);
    }
    printf(options->json ? "\n}\n" : "");
    subject_destroy(&bench->adamw);
    return rc;
}

static const char usage[] =
    "usage: adam [--count N] [--threads N] [--rounds N] [--only FORM] [--python PATH] [--json]\n"
    "  --count N      parameters (default 32M)\n"
    "  --threads N    compute threads (default: one per usable core)\n"
    "  --rounds N     repetitions of all that is compared (default 7, at most 256)\n"
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
    *options = (struct options){.count = UINT64_C(32) << 20, .rounds = 7};
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
    bool rounds = options->rounds > 0 && options->rounds <= ROUNDS_MAX;
    return options->count < 64 || !rounds || optind < argc ? -EINVAL : 0;
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
    rc = run(&bench, &error);
    if (rc < 0)
        fprintf(stderr, "adam: %s\n", error.message);
    sl_workers_destroy(bench.workers);
    return rc == 0 ? 0 : error.domain == SL_DOMAIN_INPUT ? 2 : 1;
}
