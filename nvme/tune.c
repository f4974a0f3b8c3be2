// SPDX-License-Identifier: Apache-2.0
/* A sweep that ends in under a minute and does not believe a single window.
 *
 * Problem: rates of a drive drift while one looks, so the best of many single windows is the
 * luckiest one, and a large setting that wins by noise costs memory for nothing.
 *
 * Choice: one short window of mixed traffic per setting narrows the field; the best few are
 * measured again in turns, and the medians decide; among those within 3 % of the best the one with
 * the fewest bytes in flight wins. Mixed traffic decides because that is what a training step
 * makes. The figures given are those of the last, long window: caches of the drive that hide its
 * real rate fill up during the sweep. Checksums are on, as in a run.
 *
 * Rejected: sweeping reads and writes apart (their best settings differ and neither is the run's),
 * a model of the device.
 */
#include "nvme/tune.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/size.h"
#include "nvme/load.h"

#define REQUEST_BYTES ((uint64_t)16 << 20)
#define REQUESTS 8u
#define FINALISTS 4u
#define ROUNDS 3u
#define CLOSE_ENOUGH 0.97
#define IN_FLIGHT_BYTES_MAX ((size_t)64 << 20)

struct tuner {
    struct sl_swap *swap;
    void *memory;
    uint64_t file_bytes;
    double seconds_max;
    struct sl_tune_result *result;
    struct sl_error *error;
};

/* Below 256 KiB the processor pays for nothing, above 8 MiB reads wait long behind writes. */
static const size_t block_sizes[] = {256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20};
static const size_t depths[] = {4, 8, 16, 32, 64};

static int run_load(struct tuner *tuner, enum sl_load_kind kind, double seconds,
                    struct sl_load_result *out)
{
    const struct sl_load load = {.swap = tuner->swap,
                                 .kind = kind,
                                 .region_bytes = tuner->file_bytes,
                                 .memory = tuner->memory,
                                 .request_bytes = REQUEST_BYTES,
                                 .requests = REQUESTS,
                                 .duration_ns = (uint64_t)(seconds * 1e9)};
    return sl_load_run(&load, out, tuner->error);
}

static int set(struct tuner *tuner, size_t block_bytes, size_t depth)
{
    int code = sl_swap_retune(tuner->swap, block_bytes, depth, tuner->error);
    if (!code)
        tuner->result->registered =
            sl_swap_register(tuner->swap, tuner->memory, REQUESTS * REQUEST_BYTES) == 0;
    return code;
}

static int by_rate(const void *a, const void *b)
{
    double x = ((const struct sl_tune_point *)a)->mixed_bytes_per_second;
    double y = ((const struct sl_tune_point *)b)->mixed_bytes_per_second;
    return (x < y) - (x > y); /* the fastest first */
}

static int sweep(struct tuner *tuner, double window_seconds)
{
    struct sl_tune_result *result = tuner->result;
    for (size_t b = 0; b < sizeof(block_sizes) / sizeof(block_sizes[0]); b++)
        for (size_t d = 0; d < sizeof(depths) / sizeof(depths[0]); d++) {
            if (block_sizes[b] * depths[d] > IN_FLIGHT_BYTES_MAX)
                continue;
            struct sl_load_result window;
            int code = set(tuner, block_sizes[b], depths[d]);
            if (!code)
                code = run_load(tuner, SL_LOAD_MIXED, window_seconds, &window);
            if (code)
                return code;
            result->points[result->point_count++] =
                (struct sl_tune_point){block_sizes[b], depths[d], window.bytes_per_second};
        }
    qsort(result->points, result->point_count, sizeof(result->points[0]), by_rate);
    return 0;
}

static double median3(const double *values)
{
    double low = values[0] < values[1] ? values[0] : values[1];
    double high = values[0] < values[1] ? values[1] : values[0];
    return values[2] < low ? low : values[2] > high ? high : values[2];
}

/* The best few again, in turns, each direction; medians replace the single windows. */
static int decide(struct tuner *tuner, double window_seconds)
{
    _Static_assert(ROUNDS == 3, "median3");
    double rates[FINALISTS][3][ROUNDS] = {0};
    struct sl_tune_result *result = tuner->result;
    size_t finalists = sl_min_u64(FINALISTS, result->point_count);
    for (unsigned round = 0; round < ROUNDS; round++)
        for (size_t f = 0; f < finalists; f++) {
            int code = set(tuner, result->points[f].block_bytes, result->points[f].queue_depth);
            for (enum sl_load_kind kind = SL_LOAD_READ; kind <= SL_LOAD_MIXED && !code; kind++) {
                struct sl_load_result window;
                code = run_load(tuner, kind, window_seconds, &window);
                rates[f][kind][round] = window.bytes_per_second;
            }
            if (code)
                return code;
        }
    double best = 0;
    for (size_t f = 0; f < finalists; f++) {
        result->points[f].mixed_bytes_per_second = median3(rates[f][SL_LOAD_MIXED]);
        if (result->points[f].mixed_bytes_per_second > best)
            best = result->points[f].mixed_bytes_per_second;
    }
    size_t chosen = SIZE_MAX, least = SIZE_MAX;
    for (size_t f = 0; f < finalists; f++) {
        size_t in_flight = result->points[f].block_bytes * result->points[f].queue_depth;
        if (result->points[f].mixed_bytes_per_second >= CLOSE_ENOUGH * best && in_flight < least) {
            chosen = f;
            least = in_flight;
        }
    }
    result->block_bytes = result->points[chosen].block_bytes;
    result->queue_depth = result->points[chosen].queue_depth;
    result->read_bytes_per_second = median3(rates[chosen][SL_LOAD_READ]);
    result->write_bytes_per_second = median3(rates[chosen][SL_LOAD_WRITE]);
    result->mixed_bytes_per_second = result->points[chosen].mixed_bytes_per_second;
    qsort(result->points, result->point_count, sizeof(result->points[0]), by_rate);
    return set(tuner, result->block_bytes, result->queue_depth);
}

static int sustain(struct tuner *tuner, double seconds)
{
    struct sl_tune_result *result = tuner->result;
    struct sl_load_result window;
    sl_swap_latency_reset(tuner->swap);
    int code = run_load(tuner, SL_LOAD_MIXED, seconds, &window);
    if (code)
        return code;
    result->sustained_bytes_per_second = window.bytes_per_second;
    result->sustained_seconds = window.seconds;
    result->cpu_seconds_per_gb = window.cpu_seconds_per_gb;
    result->read_p50_us = 1e-3 * (double)sl_swap_latency_ns(tuner->swap, false, 0.50);
    result->read_p99_us = 1e-3 * (double)sl_swap_latency_ns(tuner->swap, false, 0.99);
    result->write_p50_us = 1e-3 * (double)sl_swap_latency_ns(tuner->swap, true, 0.50);
    result->write_p99_us = 1e-3 * (double)sl_swap_latency_ns(tuner->swap, true, 0.99);
    struct sl_swap_stats stats;
    sl_swap_stats(tuner->swap, &stats);
    result->backend = stats.backend;
    result->direct = stats.direct;
    return 0;
}

/* Every byte twice: what fresh extents cost, and data with sums for the reads. */
static int fill(struct tuner *tuner)
{
    struct sl_load_result fresh, again;
    int code = set(tuner, 0, 0);
    if (!code)
        code = run_load(tuner, SL_LOAD_WRITE, 0, &fresh);
    if (!code)
        code = run_load(tuner, SL_LOAD_WRITE, 0, &again);
    if (!code)
        tuner->result->first_touch_ratio = fresh.bytes_per_second / again.bytes_per_second;
    return code;
}

static uint64_t choose_file_bytes(const struct sl_tune_options *options)
{
    const uint64_t least = 2 * REQUESTS * REQUEST_BYTES;
    uint64_t bytes = options->file_bytes ? options->file_bytes : (uint64_t)4 << 30;
    struct statvfs space;
    if (!options->file_bytes && statvfs(options->directory, &space) == 0)
        bytes = sl_min_u64(bytes, (uint64_t)space.f_bavail * space.f_frsize / 2);
    return sl_max_u64(bytes / least * least, least); /* too much is refused at creation */
}

static int measure(struct tuner *tuner)
{
    /* Shares of the budget: 28 windows of the sweep, 36 of the final rounds, the long one. */
    const uint64_t start_ns = sl_clock_ns();
    int code = fill(tuner);
    double left = tuner->seconds_max - (double)(sl_clock_ns() - start_ns) * 1e-9;
    left = left < 3 ? 3 : left;
    if (!code)
        code = sweep(tuner, left * 0.35 / 28);
    if (!code)
        code = decide(tuner, left * 0.35 / (FINALISTS * ROUNDS * 3));
    if (!code)
        code = sustain(tuner, left * 0.2);
    return code;
}

void sl_tune_steps(double mixed_bytes_per_second, struct sl_tune_step steps[SL_TUNE_STEPS])
{
    static const struct {
        const char *name;
        double parameters;
    } models[SL_TUNE_STEPS] = {{"7B", 7e9}, {"13B", 13e9}, {"70B", 70e9}};
    const double bytes_each_way = 12;
    for (size_t i = 0; i < SL_TUNE_STEPS; i++) {
        double bytes = bytes_each_way * models[i].parameters;
        double seconds = 2 * bytes / mixed_bytes_per_second;
        steps[i] = (struct sl_tune_step){.name = models[i].name,
                                         .parameters = models[i].parameters,
                                         .seconds = seconds,
                                         .written_tb_per_step = bytes * 1e-12,
                                         .written_tb_per_day = bytes * 1e-12 * 86400 / seconds};
    }
}

int sl_tune_nvme(const struct sl_tune_options *options, struct sl_tune_result *result,
                 struct sl_error *error)
{
    const uint64_t start_ns = sl_clock_ns();
    *result = (struct sl_tune_result){.file_bytes = choose_file_bytes(options)};
    struct tuner tuner = {.file_bytes = result->file_bytes,
                          .seconds_max = options->seconds_max ? options->seconds_max : 50,
                          .result = result,
                          .error = error};
    const struct sl_swap_options swap_options = {.paths = &options->directory,
                                                 .path_count = 1,
                                                 .bytes_total = result->file_bytes,
                                                 .log = options->log};
    const size_t memory_bytes = REQUESTS * REQUEST_BYTES;
    int code = sl_swap_create(&tuner.swap, &swap_options, error);
    if (code)
        return code;
    tuner.memory = aligned_alloc((size_t)2 << 20, memory_bytes);
    if (!tuner.memory) {
        sl_swap_destroy(tuner.swap);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "tuning: no memory for buffers");
    }
    madvise(tuner.memory, memory_bytes, MADV_HUGEPAGE);
    uint64_t *words = tuner.memory; /* not zeros: some devices do not store those */
    for (size_t i = 0; i < memory_bytes / 8; i++)
        words[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    code = measure(&tuner);
    sl_swap_destroy(tuner.swap);
    free(tuner.memory);
    sl_tune_steps(result->sustained_bytes_per_second, result->steps);
    result->seconds = (double)(sl_clock_ns() - start_ns) * 1e-9;
    return code;
}
