// SPDX-License-Identifier: Apache-2.0
/* bench/nvme: the swap engine against fio's io_uring, on the same device in the same run.
 *
 * Problem   The rate of a device drifts by more than the difference that is looked for: here fio
 *           differs from itself by a factor of two within minutes.
 * Choice    Rounds of short windows: fio, the engine with sums off (on the very file that fio has),
 *           the engine with sums on. The order turns round every other round. What counts is the
 *           median over rounds of the ratio inside a round, with its interval. fio has the engine's
 *           block size and depth, direct I/O, registered files and buffers, huge pages. Processor
 * time is that of fio's job as it reports it, and of this whole process. Control   --control also
 * compares fio with itself, which shows what the method can resolve. Rejected  Means and single
 * long runs (they measure the neighbours); fio on a file of its own.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "bench/nvme_fio.h"
#include "bench/nvme_ratio.h"
#include "nvme/load.h"

#define PAIRS_MAX 256u

enum way { WAY_FIO, WAY_FIO_AGAIN, WAY_SUMS_OFF, WAY_SUMS_ON, WAY_COUNT };

struct options {
    const char *directory;
    uint64_t region_bytes, request_bytes;
    size_t block_bytes, depth;
    unsigned requests, pairs;
    double seconds;
    bool control, json, poll, submit_poll;
};

struct bench {
    struct options options;
    char directories[2][512];
    struct sl_swap *swaps[2]; /* sums off, sums on */
    void *memory;
    uint64_t memory_bytes;
    bool registered;
    double first_touch; /* rate of writing fresh extents over rate of writing them again */
};

struct mode {
    double rate[WAY_COUNT][PAIRS_MAX], cpu[WAY_COUNT][PAIRS_MAX];
    double p50_us[WAY_COUNT][PAIRS_MAX], p99_us[WAY_COUNT][PAIRS_MAX];
};

static int make_swap(struct bench *bench, int sums_on, struct sl_error *error)
{
    const struct options *options = &bench->options;
    char *directory = bench->directories[sums_on];
    snprintf(directory, sizeof(bench->directories[0]), "%s/bench-nvme-%d-%s", options->directory,
             (int)getpid(), sums_on ? "on" : "off");
    if (mkdir(directory, 0700) < 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: %s", directory, strerror(errno));
    const char *paths[] = {directory};
    const struct sl_swap_options swap_options = {.paths = paths,
                                                 .path_count = 1,
                                                 .bytes_total = options->region_bytes,
                                                 .block_bytes = options->block_bytes,
                                                 .queue_depth = options->depth,
                                                 .checksums_off = !sums_on,
                                                 .poll = options->poll,
                                                 .submit_poll = options->submit_poll};
    int code = sl_swap_create(&bench->swaps[sums_on], &swap_options, error);
    if (!code && sl_swap_register(bench->swaps[sums_on], bench->memory, bench->memory_bytes))
        bench->registered = false;
    return code;
}

/* Huge pages where there are any, as the arenas of a run. */
static int make_memory(struct bench *bench, struct sl_error *error)
{
    bench->memory_bytes = bench->options.request_bytes * bench->options.requests;
    bench->memory = aligned_alloc((size_t)2 << 20, sl_align_up(bench->memory_bytes, 2 << 20));
    if (!bench->memory)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the buffers");
    madvise(bench->memory, bench->memory_bytes, MADV_HUGEPAGE);
    uint64_t *words = bench->memory;
    for (uint64_t i = 0; i < bench->memory_bytes / 8; i++)
        words[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    bench->registered = true;
    return 0;
}

static int load(struct bench *bench, int sums_on, enum sl_load_kind kind, double seconds,
                struct sl_load_result *result, struct sl_error *error)
{
    const struct sl_load traffic = {.swap = bench->swaps[sums_on],
                                    .kind = kind,
                                    .region_bytes = bench->options.region_bytes,
                                    .memory = bench->memory,
                                    .request_bytes = bench->options.request_bytes,
                                    .requests = bench->options.requests,
                                    .duration_ns = (uint64_t)(seconds * 1e9)};
    return sl_load_run(&traffic, result, error);
}

/* Write every byte twice: fresh extents, then again. */
static int touch(struct bench *bench, struct sl_error *error)
{
    struct sl_load_result fresh, again;
    int code = 0;
    for (int sums_on = 0; sums_on < 2 && !code; sums_on++) {
        code = load(bench, sums_on, SL_LOAD_WRITE, 0, &fresh, error);
        if (!code)
            code = load(bench, sums_on, SL_LOAD_WRITE, 0, &again, error);
        if (!code)
            bench->first_touch = fresh.bytes_per_second / again.bytes_per_second;
    }
    return code;
}

static int engine_window(struct bench *bench, int sums_on, enum sl_load_kind kind, unsigned pair,
                         struct mode *mode, struct sl_error *error)
{
    struct sl_swap *swap = bench->swaps[sums_on];
    enum way way = sums_on ? WAY_SUMS_ON : WAY_SUMS_OFF;
    struct sl_load_result result;
    sl_swap_latency_reset(swap);
    int code = load(bench, sums_on, kind, bench->options.seconds, &result, error);
    if (code)
        return code;
    mode->rate[way][pair] = result.bytes_per_second;
    mode->cpu[way][pair] = result.cpu_seconds_per_gb;
    for (int write = 0; write < 2; write++) {
        double p50 = 1e-3 * (double)sl_swap_latency_ns(swap, write, 0.50);
        double p99 = 1e-3 * (double)sl_swap_latency_ns(swap, write, 0.99);
        mode->p50_us[way][pair] = fmax(mode->p50_us[way][pair], p50);
        mode->p99_us[way][pair] = fmax(mode->p99_us[way][pair], p99);
    }
    return 0;
}

static int fio_window(struct bench *bench, enum way way, enum sl_load_kind kind, unsigned pair,
                      struct mode *mode, struct sl_error *error)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), sl_swap_fd(bench->swaps[0], 0));
    struct sl_swap_stats stats;
    sl_swap_stats(bench->swaps[0], &stats);
    const struct fio_job job = {.path = path,
                                .kind = kind,
                                .region_bytes = bench->options.region_bytes,
                                .block_bytes = stats.block_bytes,
                                .depth = stats.queue_depth,
                                .seconds = bench->options.seconds,
                                .registered = bench->registered};
    struct fio_result result;
    int code = fio_run(&job, &result, error);
    if (code)
        return code;
    mode->rate[way][pair] = result.bytes_per_second;
    mode->cpu[way][pair] = result.cpu_seconds_per_gb;
    mode->p50_us[way][pair] = result.p50_us;
    mode->p99_us[way][pair] = result.p99_us;
    return 0;
}

static int window(struct bench *bench, enum way way, enum sl_load_kind kind, unsigned pair,
                  struct mode *mode, struct sl_error *error)
{
    if (way == WAY_FIO_AGAIN && !bench->options.control)
        return 0;
    return way == WAY_FIO || way == WAY_FIO_AGAIN
               ? fio_window(bench, way, kind, pair, mode, error)
               : engine_window(bench, way == WAY_SUMS_ON, kind, pair, mode, error);
}

static int run_mode(struct bench *bench, enum sl_load_kind kind, struct mode *mode,
                    struct sl_error *error)
{
    memset(mode, 0, sizeof(*mode));
    for (unsigned pair = 0; pair < bench->options.pairs; pair++)
        for (int i = 0; i < WAY_COUNT; i++) {
            enum way way = pair % 2 ? WAY_COUNT - 1 - i : i;
            int code = window(bench, way, kind, pair, mode, error);
            if (code)
                return code;
        }
    return 0;
}

static const char *const way_names[] = {"fio", "fio again", "sums off", "sums on"};
static const char *const way_keys[] = {"fio", "fio_again", "sums_off", "sums_on"};

static void print_json(const struct bench *bench, enum sl_load_kind kind, const struct mode *mode)
{
    unsigned pairs = bench->options.pairs;
    printf("%s\n    {\"mode\": \"%s\"", kind == SL_LOAD_READ ? "" : ",", sl_load_name(kind));
    for (int way = 0; way < WAY_COUNT; way++) {
        if (way == WAY_FIO_AGAIN && !bench->options.control)
            continue;
        printf(",\n     \"%s\": {\"gb_per_s\": %.4f, \"cpu_s_per_gb\": %.5f, \"p50_us\": %.1f, "
               "\"p99_us\": %.1f}",
               way_keys[way], 1e-9 * median_of(mode->rate[way], pairs),
               median_of(mode->cpu[way], pairs), median_of(mode->p50_us[way], pairs),
               median_of(mode->p99_us[way], pairs));
    }
    static const struct {
        const char *key;
        enum way a, b;
        bool cpu;
    } ratios[] = {{"rate_sums_off_over_fio", WAY_SUMS_OFF, WAY_FIO, false},
                  {"rate_sums_on_over_fio", WAY_SUMS_ON, WAY_FIO, false},
                  {"rate_sums_on_over_off", WAY_SUMS_ON, WAY_SUMS_OFF, false},
                  {"cpu_sums_off_over_fio", WAY_SUMS_OFF, WAY_FIO, true},
                  {"cpu_sums_on_over_fio", WAY_SUMS_ON, WAY_FIO, true},
                  {"rate_fio_again_over_fio", WAY_FIO_AGAIN, WAY_FIO, false}};
    for (size_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++) {
        if (ratios[i].a == WAY_FIO_AGAIN && !bench->options.control)
            continue;
        struct ratio ratio =
            ratios[i].cpu ? ratio_of_pairs(mode->cpu[ratios[i].a], mode->cpu[ratios[i].b], pairs)
                          : ratio_of_pairs(mode->rate[ratios[i].a], mode->rate[ratios[i].b], pairs);
        printf(",\n     \"%s\": {\"median\": %.4f, \"low\": %.4f, \"high\": %.4f, "
               "\"confidence\": %.3f}",
               ratios[i].key, ratio.median, ratio.low, ratio.high, ratio.confidence);
    }
    printf("}");
}

static void print_ratio(const char *name, const double *a, const double *b, unsigned pairs)
{
    struct ratio ratio = ratio_of_pairs(a, b, pairs);
    printf("       %-24s %.3f  [%.3f, %.3f]\n", name, ratio.median, ratio.low, ratio.high);
}

static void print_table(const struct bench *bench, enum sl_load_kind kind, const struct mode *mode)
{
    unsigned pairs = bench->options.pairs;
    for (int way = 0; way < WAY_COUNT; way++)
        if (way != WAY_FIO_AGAIN || bench->options.control)
            printf("%-6s %-10s %8.3f %12.4f %10.0f %10.0f\n",
                   way == WAY_FIO ? sl_load_name(kind) : "", way_names[way],
                   1e-9 * median_of(mode->rate[way], pairs), median_of(mode->cpu[way], pairs),
                   median_of(mode->p50_us[way], pairs), median_of(mode->p99_us[way], pairs));
    print_ratio("rate, sums off / fio", mode->rate[WAY_SUMS_OFF], mode->rate[WAY_FIO], pairs);
    print_ratio("rate, sums on / fio", mode->rate[WAY_SUMS_ON], mode->rate[WAY_FIO], pairs);
    print_ratio("rate, sums on / off", mode->rate[WAY_SUMS_ON], mode->rate[WAY_SUMS_OFF], pairs);
    print_ratio("cpu, sums off / fio", mode->cpu[WAY_SUMS_OFF], mode->cpu[WAY_FIO], pairs);
    print_ratio("cpu, sums on / fio", mode->cpu[WAY_SUMS_ON], mode->cpu[WAY_FIO], pairs);
    if (bench->options.control)
        print_ratio("rate, fio again / fio", mode->rate[WAY_FIO_AGAIN], mode->rate[WAY_FIO], pairs);
    printf("\n");
    fflush(stdout);
}

static void print_head(const struct bench *bench)
{
    struct sl_swap_stats stats;
    sl_swap_stats(bench->swaps[0], &stats);
    const struct options *options = &bench->options;
    const char *backend = stats.backend == SL_SWAP_URING ? "io_uring" : "threads";
    if (options->json) {
        printf("{\n  \"block_bytes\": %zu, \"queue_depth\": %zu, \"request_bytes\": %llu,\n"
               "  \"region_bytes\": %llu, \"backend\": \"%s\", \"direct\": %s, "
               "\"registered_buffers\": %s,\n  \"pairs\": %u, \"window_s\": %.2f, "
               "\"first_touch_rate_ratio\": %.3f,\n  \"modes\": [",
               stats.block_bytes, stats.queue_depth, (unsigned long long)options->request_bytes,
               (unsigned long long)options->region_bytes, backend, stats.direct ? "true" : "false",
               bench->registered ? "true" : "false", options->pairs, options->seconds,
               bench->first_touch);
        return;
    }
    char block[SL_SIZE_TEXT_BYTES], request[SL_SIZE_TEXT_BYTES], region[SL_SIZE_TEXT_BYTES];
    printf(
        "blocks of %s, %zu in flight, requests of %s, file of %s; %s%s%s\n"
        "%u rounds of %.1f s windows; medians; ratios are medians of ratios inside a round, with "
        "their interval\nfirst writing of fresh extents: %.2f of the rate of writing them "
        "again\n\n%-6s %-10s %8s %12s %10s %10s\n",
        sl_size_format(stats.block_bytes, block), stats.queue_depth,
        sl_size_format(options->request_bytes, request),
        sl_size_format(options->region_bytes, region), backend,
        stats.direct ? ", O_DIRECT" : ", page cache",
        bench->registered ? ", registered buffers" : ", buffers not registered", options->pairs,
        options->seconds, bench->first_touch, "", "", "GB/s", "CPU s/GB", "p50 us", "p99 us");
    fflush(stdout);
}

static const char usage[] =
    "usage: nvme [--dir DIR] [--size N] [--block N] [--depth N] [--request N] [--requests N]\n"
    "            [--pairs N] [--seconds S] [--control] [--poll] [--submit-poll] [--json]\n"
    "  --dir DIR      on the device to measure (default: .); twice --size is needed\n"
    "  --size N       file size (default 2GiB)\n"
    "  --block N      size of one I/O, and fio's (default: the engine's own choice)\n"
    "  --depth N      I/Os in flight, and fio's (default: the engine's own choice)\n"
    "  --request N    size of one transfer of the engine (default 16MiB)\n"
    "  --requests N   transfers in flight (default 4)\n"
    "  --pairs N      rounds (default 11)\n"
    "  --seconds S    length of a window (default 1.5)\n"
    "  --control      fio against itself as well\n";

static int parse(struct options *options, int argc, char **argv)
{
    static const struct option names[] = {
        {"dir", required_argument, NULL, 'd'},     {"size", required_argument, NULL, 's'},
        {"block", required_argument, NULL, 'b'},   {"depth", required_argument, NULL, 'q'},
        {"request", required_argument, NULL, 'r'}, {"requests", required_argument, NULL, 'n'},
        {"pairs", required_argument, NULL, 'p'},   {"seconds", required_argument, NULL, 't'},
        {"control", no_argument, NULL, 'c'},       {"poll", no_argument, NULL, 'i'},
        {"submit-poll", no_argument, NULL, 'k'},   {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
    *options = (struct options){.directory = ".",
                                .region_bytes = (uint64_t)2 << 30,
                                .request_bytes = 16 << 20,
                                .requests = 4,
                                .pairs = 11,
                                .seconds = 1.5};
    uint64_t value = 0;
    for (int letter; (letter = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        bool sized = strchr("sbqrnp", letter) != NULL;
        if (sized && sl_size_parse(optarg, &value) < 0)
            return -EINVAL;
        switch (letter) {
        case 'd':
            options->directory = optarg;
            break;
        case 's':
            options->region_bytes = value;
            break;
        case 'b':
            options->block_bytes = value;
            break;
        case 'q':
            options->depth = value;
            break;
        case 'r':
            options->request_bytes = value;
            break;
        case 'n':
            options->requests = (unsigned)value;
            break;
        case 'p':
            options->pairs = (unsigned)value;
            break;
        case 't':
            options->seconds = strtod(optarg, NULL);
            break;
        case 'c':
            options->control = true;
            break;
        case 'i':
            options->poll = true;
            break;
        case 'k':
            options->submit_poll = true;
            break;
        case 'j':
            options->json = true;
            break;
        default:
            return letter == 'h' ? 1 : -EINVAL;
        }
    }
    bool fine = optind == argc && options->pairs >= 1 && options->pairs <= PAIRS_MAX &&
                options->seconds > 0 && options->requests >= 2 && options->requests % 2 == 0 &&
                options->requests <= SL_LOAD_REQUESTS_MAX && options->request_bytes >= 4096 &&
                options->request_bytes % 4096 == 0 && options->region_bytes % 4096 == 0 &&
                options->region_bytes >= 2 * options->requests * options->request_bytes;
    return fine ? 0 : -EINVAL;
}

static int run(struct bench *bench, struct sl_error *error)
{
    static struct mode mode;
    int code = make_memory(bench, error);
    for (int sums_on = 0; sums_on < 2 && !code; sums_on++)
        code = make_swap(bench, sums_on, error);
    if (!code)
        code = touch(bench, error);
    if (code)
        return code;
    print_head(bench);
    for (enum sl_load_kind kind = SL_LOAD_READ; kind <= SL_LOAD_MIXED && !code; kind++) {
        code = run_mode(bench, kind, &mode, error);
        if (!code && bench->options.json)
            print_json(bench, kind, &mode);
        else if (!code)
            print_table(bench, kind, &mode);
    }
    if (!code && bench->options.json)
        printf("\n  ]\n}\n");
    return code;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct sl_error error = {0};
    int code = parse(&bench.options, argc, argv);
    if (code) {
        fputs(usage, code > 0 ? stdout : stderr);
        return code > 0 ? 0 : 2;
    }
    code = run(&bench, &error);
    if (code)
        fprintf(stderr, "nvme: %s\n", error.message);
    for (int i = 0; i < 2; i++) {
        sl_swap_destroy(bench.swaps[i]);
        if (bench.directories[i][0])
            rmdir(bench.directories[i]);
    }
    free(bench.memory);
    return code ? 1 : 0;
}
