// SPDX-License-Identifier: Apache-2.0
/* The rates of this machine, each through the code that training uses: the optimizer kernel and the
 * worker pool for DRAM, the device's matrix product and copies, the swap engine for drives. A
 * benchmark of its own would measure another program.
 *
 * Memory and compute figures are means of many short runs; drives are the mean of a few passes over
 * a file that has been written before, as the swap space of a run has.
 */
#include "engine/hardware_measure.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/size.h"
#include "kernels/cpu/optim.h"
#include "nvme/load.h"
#include "offload/arena.h"
#include "offload/topology.h"

struct measure {
    const struct sl_measure_options *options;
    struct sl_measured *out;
    struct sl_error *error;
    uint64_t array_bytes, nvme_bytes;
    double seconds;
    double *runs; /* [RUNS_MAX] */
};

static void set(struct measure *m, double *field, double value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Set a field of the profile and say how it came about. */
static void set(struct measure *m, double *field, double value, const char *format, ...)
{
    double *at;
    *field = value;
    for (size_t i = 0; sl_hardware_field(&m->out->hardware, i, &at); i++) {
        if (at != field)
            continue;
        va_list args;
        va_start(args, format);
        vsnprintf(m->out->source[i], sizeof(m->out->source[i]), format, args);
        va_end(args);
        sl_log_write(m->options->log, SL_LOG_INFO, "%s: %.4g (%s)",
                     sl_hardware_field(&m->out->hardware, i, &at), value, m->out->source[i]);
    }
}

/* A run takes the next of so many windows of the arrays: short enough (milliseconds) that most are
 * not interrupted, and not in the cache, since all others lay in between. */
#define WINDOWS 16u

#define RUNS_MAX 4096u

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Run until the time is over, at least twice over all windows. A step is many such runs, and waits
 * for all of them: so the mean, less the slowest twentieth, which something else interrupted.
 * Negative: -errno. */
static double typical_seconds(const struct measure *m, int (*run)(void *arg), void *arg)
{
    double total = 0;
    unsigned count = 0;
    while (count < 2 * WINDOWS || (total < m->seconds && count < RUNS_MAX)) {
        uint64_t start_ns = sl_clock_ns();
        int result = run(arg);
        if (result)
            return result;
        m->runs[count] = (double)(sl_clock_ns() - start_ns) * 1e-9;
        total += m->runs[count++];
    }
    qsort(m->runs, count, sizeof(*m->runs), compare_seconds);
    unsigned kept = count - count / 20;
    total = 0;
    for (unsigned i = 0; i < kept; i++)
        total += m->runs[i];
    return total / kept;
}

/* ---- cores and DRAM ------------------------------------------------------------------------- */

#define UPDATE_BYTES 28.0 /* read 2 + 12, written 12 + 2 */
#define UPDATE_TASK 65536u

struct update {
    struct sl_workers *workers; /* NULL: the caller alone */
    unsigned char *base;
    size_t count; /* of the whole arrays */
    size_t window;
};

static size_t window_of(const struct update *update, size_t *first)
{
    size_t each = update->count / WINDOWS;
    *first = update->window % WINDOWS * each;
    return each;
}

static void update_run(const struct update *update, size_t first, size_t count)
{
    /* Arrays lie one after the other, staggered so that they do not fall on the same DRAM banks. */
    size_t n = update->count;
    unsigned char *at = update->base;
    struct sl_optim_args args = {
        .hyper = {.kind = SL_OPTIM_ADAMW,
                  .lr = 1e-4f,
                  .beta1 = 0.9f,
                  .beta2 = 0.999f,
                  .eps = 1e-8f,
                  .bias_correction = true,
                  .step = 1},
        .master_kind = SL_MASTER_F32,
        .moment_kind = SL_MOMENT_F32,
        .element_first = first,
        .count = count,
        .grad_dtype = SL_BF16,
        .grad_scale = 1,
        .weight_dtype = SL_BF16,
    };
    args.master = (float *)at + first;
    args.exp_avg = (float *)(at += n * 4 + 1088) + first;
    args.exp_avg_sq = (float *)(at += n * 4 + 1088) + first;
    args.grad = (uint16_t *)(at += n * 4 + 1088) + first;
    args.weight = (uint16_t *)(at += n * 2 + 1088) + first;
    sl_optim_step(&args);
}

static void update_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct update *update = arg;
    size_t first, count = window_of(update, &first), done = task * UPDATE_TASK;
    size_t left = count - done;
    update_run(update, first + done, left < UPDATE_TASK ? left : UPDATE_TASK);
}

static int update_all(void *arg)
{
    struct update *update = arg;
    size_t first, count = window_of(update, &first);
    if (update->workers)
        sl_workers_run(update->workers, sl_div_up(count, UPDATE_TASK), update_task, update);
    else
        update_run(update, first, count);
    update->window++;
    return 0;
}

#define STREAM_TASK (1u << 18)

struct stream {
    struct sl_workers *workers;
    unsigned char *to, *from;
    size_t bytes; /* of a window */
    size_t window;
};

static void stream_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct stream *stream = arg;
    size_t first = task * STREAM_TASK, left = stream->bytes - first;
    size_t at = stream->window % WINDOWS * stream->bytes + first;
    memcpy(stream->to + at, stream->from + at, left < STREAM_TASK ? left : STREAM_TASK);
}

static int stream_all(void *arg)
{
    struct stream *stream = arg;
    sl_workers_run(stream->workers, sl_div_up(stream->bytes, STREAM_TASK), stream_task, stream);
    stream->window++;
    return 0;
}

static void nothing_task(void *arg, size_t task, size_t worker)
{
    (void)arg, (void)task, (void)worker;
}

static int nothing_all(void *arg)
{
    struct sl_workers *workers = arg;
    sl_workers_run(workers, sl_workers_thread_count(workers), nothing_task, NULL);
    return 0;
}

static int measure_host(struct measure *m)
{
    struct sl_hardware *h = &m->out->hardware;
    struct sl_workers *workers = m->options->workers;
    struct sl_topology *topology = calloc(1, sizeof(*topology));
    int result = topology ? sl_topology_read(topology, NULL, m->error) : -ENOMEM;
    if (!result)
        set(m, &h->host_memory_bytes, (double)topology->memory_available_bytes,
            "what this process could take when measured");
    free(topology);
    if (result)
        return result;
    size_t threads = sl_workers_thread_count(workers);
    set(m, &h->host_cores, (double)threads, "threads of the worker pool");

    struct sl_arena arena;
    result = sl_arena_create(&arena, 4 * m->array_bytes, workers, m->error);
    if (result)
        return result;
    struct update update = {.base = arena.base, .count = m->array_bytes / 4 - 4096};
    double one = typical_seconds(m, update_all, &update);
    update.workers = workers;
    double all = typical_seconds(m, update_all, &update);
    struct stream stream = {.workers = workers,
                            .to = arena.base,
                            .from = arena.base + 2 * m->array_bytes + 1088,
                            .bytes = (2 * m->array_bytes - 4096) / WINDOWS};
    double copy = typical_seconds(m, stream_all, &stream);
    sl_arena_destroy(&arena);

    size_t first;
    double bytes = UPDATE_BYTES * (double)window_of(&update, &first);
    double copy_rate = 2 * (double)stream.bytes / copy;
    set(m, &h->core_bytes_per_second, bytes / one, "AdamW on one thread, %zu elements, 28 B each",
        update.count);
    set(m, &h->host_bytes_per_second, fmax(bytes / all, copy_rate),
        "the larger of AdamW (%.1f GB/s) and copying (%.1f GB/s) on %zu threads",
        bytes / all * 1e-9, copy_rate * 1e-9, threads);
    double wake = typical_seconds(m, nothing_all, workers);
    set(m, &h->host_op_seconds, wake, "an empty run of the worker pool");
    return 0;
}

/* ---- device and link ------------------------------------------------------------------------ */

/* As in a step, each product has other weights than the last, out of memory rather than a cache. */
struct product {
    struct sl_device *device;
    struct sl_matmul_args args;
    const unsigned char *weights;
    size_t weight_bytes, weight_count, next;
};

static int product_run(void *arg)
{
    struct product *product = arg;
    struct sl_device *device = product->device;
    size_t index = product->next++ % product->weight_count;
    product->args.weight.data = product->weights + index * product->weight_bytes;
    int result = device->ops->matmul(device, &product->args);
    return result ? result : device->ops->stream_synchronize(device, SL_STREAM_COMPUTE);
}

struct copies {
    struct sl_device *device;
    unsigned char *device_memory, *host_memory; /* two halves each */
    uint64_t bytes;
    bool up, down, inside;
};

static int copies_run(void *arg)
{
    struct copies *c = arg;
    struct sl_device *device = c->device;
    int result = 0;
    if (c->inside)
        result = device->ops->copy(device, SL_STREAM_COMPUTE, c->device_memory,
                                   c->device_memory + c->bytes, c->bytes);
    if (!result && c->up)
        result =
            device->ops->copy(device, SL_STREAM_H2D, c->device_memory, c->host_memory, c->bytes);
    if (!result && c->down)
        result = device->ops->copy(device, SL_STREAM_D2H, c->host_memory + c->bytes,
                                   c->device_memory + c->bytes, c->bytes);
    for (int stream = 0; stream < SL_STREAM_COUNT && !result; stream++)
        result = device->ops->stream_synchronize(device, (enum sl_stream)stream);
    return result;
}

#define PRODUCT_ROWS_FEW 64u

/* The host's products: a rate for the operations, and one for taking in the weights, from products
 * of few and of many rows. What DRAM takes to deliver the weights counts as bytes of the operation,
 * so it is left out here. */
static int set_host_product(struct measure *m, struct product *product, double many_seconds)
{
    struct sl_hardware *h = &m->out->hardware;
    size_t rows = product->args.rows, width = product->args.inputs;
    double elements = (double)width * (double)width;
    product->args.rows = PRODUCT_ROWS_FEW;
    double few_seconds = typical_seconds(m, product_run, product);
    if (few_seconds < 0)
        return (int)few_seconds;
    double row = (many_seconds - few_seconds) / (double)(rows - PRODUCT_ROWS_FEW);
    double weights = few_seconds - PRODUCT_ROWS_FEW * row - 2 * elements / h->host_bytes_per_second;
    if (row <= 0 || weights < 0) { /* disturbed: no more is known than one rate */
        row = many_seconds / (double)rows;
        weights = 0;
    }
    set(m, &h->core_flops_per_second, 2 * elements / row / h->host_cores,
        "products of %zu and %u rows with %zu x %zu 16-bit weights, by their difference, on %s",
        rows, PRODUCT_ROWS_FEW, width, width, product->device->properties.name);
    if (weights > 0)
        set(m, &h->core_weight_bytes_per_second, 2 * elements / weights / h->host_cores,
            "what no rows would take of the same products");
    set(m, &h->device_flops_peak, 2 * elements / row,
        "the measured rate; the nominal one is not known here");
    return 0;
}

static int measure_product(struct measure *m, unsigned char *memory, uint64_t bytes)
{
    struct sl_hardware *h = &m->out->hardware;
    struct sl_device *device = m->options->device;
    bool cuda = device->properties.kind == SL_DEVICE_CUDA;
    size_t rows = cuda ? 8192 : 512, width = cuda ? 8192 : 1024;
    size_t type = sl_dtype_bytes(device->activation_dtype);
    while ((2 * rows * type + width * 2) * width + 3 * 4096 > bytes)
        width /= 2;
    uint64_t activation_bytes = sl_align_up(rows * width * type, 4096);
    uint64_t weight_bytes = sl_align_up(width * width * 2, 4096);
    unsigned char *x = memory, *y = x + activation_bytes;
    struct product product = {
        .device = device,
        .weights = y + activation_bytes,
        .weight_bytes = weight_bytes,
        .weight_count = (bytes - 2 * activation_bytes) / weight_bytes,
        .args = {.kind = SL_MATMUL_FORWARD,
                 .rows = rows,
                 .inputs = width,
                 .outputs = width,
                 .x = x,
                 .y = y,
                 .weight.dtype = device->activation_dtype == SL_F16 ? SL_F16 : SL_BF16}};
    double typical = typical_seconds(m, product_run, &product);
    if (typical < 0)
        return (int)typical;
    if (cuda) {
        double rate = 2.0 * (double)rows * (double)width * (double)width / typical;
        set(m, &h->device_flops_per_second, rate,
            "product of %zu x %zu by %zu x %zu, 16-bit weights, on %s", rows, width, width, width,
            device->properties.name);
        set(m, &h->device_flops_peak, rate, "the measured rate; the nominal one is not known here");
    } else {
        int result = set_host_product(m, &product, typical);
        if (result)
            return result;
    }
    product.args.rows = 1;
    product.args.inputs = product.args.outputs = 64;
    typical = typical_seconds(m, product_run, &product);
    set(m, &h->device_op_seconds, typical < 0 ? 0 : typical, "start and end of a tiny product");
    return typical < 0 ? (int)typical : 0;
}

static int measure_link(struct measure *m, unsigned char *memory, uint64_t bytes)
{
    struct sl_hardware *h = &m->out->hardware;
    struct sl_device *device = m->options->device;
    struct sl_arena arena;
    int result = sl_arena_create(&arena, bytes, m->options->workers, m->error);
    if (result)
        return result;
    bool registered = device->ops->host_register(device, arena.base, bytes) == 0;
    const char *pages = registered ? "page-locked memory" : "ordinary memory";
    struct copies up = {device, memory, arena.base, bytes / 2, .up = true};
    struct copies down = {device, memory, arena.base, bytes / 2, .down = true};
    struct copies both = {device, memory, arena.base, bytes / 2, .up = true, .down = true};
    struct copies tiny = {device, memory, arena.base, 4096, .up = true};
    double seconds[4];
    struct copies *all[] = {&up, &down, &both, &tiny};
    for (int i = 0; i < 4 && !result; i++) {
        seconds[i] = typical_seconds(m, copies_run, all[i]);
        result = seconds[i] < 0 ? (int)seconds[i] : 0;
    }
    if (registered)
        device->ops->host_unregister(device, arena.base, bytes);
    sl_arena_destroy(&arena);
    if (result)
        return result;
    double half = (double)(bytes / 2);
    set(m, &h->link_op_seconds, seconds[3], "a copy of 4 KiB");
    set(m, &h->link_up_bytes_per_second, half / seconds[0], "copies of %.0f MB of %s", half * 1e-6,
        pages);
    set(m, &h->link_down_bytes_per_second, half / seconds[1], "likewise");
    set(m, &h->link_both_bytes_per_second, 2 * half / seconds[2], "both directions at once");
    return 0;
}

#define PATTERN_BYTES (1u << 20)

/* Values of magnitude 0.5 to 2, as floats of 16 and of 32 bits alike: a processor multiplies zeros
 * with less power, and so faster, than what a model holds. */
static int fill(struct sl_device *device, unsigned char *memory, uint64_t bytes)
{
    uint16_t *pattern = malloc(PATTERN_BYTES);
    if (!pattern)
        return -ENOMEM;
    uint32_t state = 1;
    for (size_t i = 0; i < PATTERN_BYTES / sizeof(*pattern); i++) {
        state = state * 1664525u + 1013904223u;
        uint16_t sign = (uint16_t)(state >> 16 & 0x8000);
        pattern[i] = (uint16_t)(sign | (0x3f00 + (state >> 8 & 0xff)));
    }
    int result = 0;
    for (uint64_t at = 0; at < bytes && !result; at += PATTERN_BYTES)
        result = device->ops->copy(device, SL_STREAM_H2D, memory + at, pattern,
                                   sl_min_u64(PATTERN_BYTES, bytes - at));
    if (!result)
        result = device->ops->stream_synchronize(device, SL_STREAM_H2D);
    free(pattern);
    return result;
}

static int measure_device(struct measure *m)
{
    struct sl_hardware *h = &m->out->hardware;
    struct sl_device *device = m->options->device;
    bool cuda = device->properties.kind == SL_DEVICE_CUDA;
    uint64_t bytes = cuda ? 1ull << 30 : m->array_bytes;
    void *memory = NULL;
    h->device_is_host = !cuda;
    if (cuda)
        set(m, &h->device_memory_bytes, (double)device->properties.memory_bytes,
            "reported by the driver");
    int result = device->ops->memory_alloc(device, bytes, &memory);
    if (!result)
        result = fill(device, memory, bytes);
    if (!result)
        result = measure_product(m, memory, bytes);
    if (!result && cuda) {
        struct copies inside = {device, memory, NULL, bytes / 2, .inside = true};
        double typical = typical_seconds(m, copies_run, &inside);
        result = typical < 0 ? (int)typical : 0;
        if (!result)
            set(m, &h->device_bytes_per_second, (double)bytes / typical,
                "a copy inside device memory, bytes read and written");
    }
    if (!result && !device->properties.unified)
        result = measure_link(m, memory, bytes);
    if (memory)
        device->ops->memory_free(device, memory, bytes);
    if (result && m->error && !m->error->code)
        *m->error = device->error;
    return result;
}

/* ---- drives --------------------------------------------------------------------------------- */

/* A transfer of training is a sub-group's state or a layer's weights: tens of megabytes, a few of
 * them in flight. */
#define DRIVE_CHUNK (16u << 20)
#define DRIVE_IN_FLIGHT 4u
#define DRIVE_ROUNDS 2u /* of writing, reading, and both at once */

/* Free bytes on the paths; two paths of one file system count once. */
static double room(const struct sl_measure_options *options)
{
    double bytes = 0;
    unsigned long seen[SL_SWAP_PATHS_MAX];
    for (size_t i = 0; i < options->nvme_path_count && i < SL_SWAP_PATHS_MAX; i++) {
        struct statvfs system;
        bool known = statvfs(options->nvme_paths[i], &system) != 0;
        seen[i] = known ? 0 : system.f_fsid;
        for (size_t j = 0; j < i && !known; j++)
            known = seen[j] == seen[i];
        if (!known)
            bytes += (double)system.f_bavail * (double)system.f_frsize;
    }
    return bytes;
}

/* Of all rounds, by kind of load. */
struct drive_sums {
    double bytes[SL_LOAD_MIXED + 1], seconds[SL_LOAD_MIXED + 1];
    double all_bytes, core_seconds; /* of the whole process */
    double small_seconds;           /* a read of 4 KiB */
};

static int time_loads(struct measure *m, struct sl_load *load, struct drive_sums *sums)
{
    static const enum sl_load_kind kinds[] = {SL_LOAD_WRITE, SL_LOAD_READ, SL_LOAD_MIXED};
    int result = 0;
    for (uint32_t round = 0; round < DRIVE_ROUNDS; round++)
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && !result; i++) {
            struct sl_load_result pass;
            load->kind = kinds[i];
            result = sl_load_run(load, &pass, m->error);
            sums->bytes[kinds[i]] += (double)pass.bytes;
            sums->seconds[kinds[i]] += pass.seconds;
            sums->all_bytes += (double)pass.bytes;
            sums->core_seconds += pass.cpu_seconds_per_gb * 1e-9 * (double)pass.bytes;
        }
    return result;
}

static int time_small_reads(struct measure *m, const struct sl_load *load, struct drive_sums *sums)
{
    uint64_t start_ns = sl_clock_ns();
    int result = 0;
    for (uint64_t i = 0; i < 16 && !result; i++)
        result = sl_swap_transfer(load->swap, false, i * (DRIVE_CHUNK / 4), load->memory, 4096);
    sums->small_seconds = (double)(sl_clock_ns() - start_ns) * 1e-9 / 16;
    if (result)
        sl_swap_error(load->swap, m->error);
    return result;
}

static void set_drive(struct measure *m, const struct drive_sums *sums, bool direct)
{
    struct sl_hardware *h = &m->out->hardware;
    const double *bytes = sums->bytes, *seconds = sums->seconds;
    const char *how = direct ? "O_DIRECT" : "through the page cache: O_DIRECT is refused here";
    set(m, &h->nvme_write_bytes_per_second, bytes[SL_LOAD_WRITE] / seconds[SL_LOAD_WRITE],
        "%.2f GB written again, %s", bytes[SL_LOAD_WRITE] * 1e-9, how);
    set(m, &h->nvme_read_bytes_per_second, bytes[SL_LOAD_READ] / seconds[SL_LOAD_READ],
        "%.2f GB read, %s", bytes[SL_LOAD_READ] * 1e-9, how);
    set(m, &h->nvme_mixed_bytes_per_second, bytes[SL_LOAD_MIXED] / seconds[SL_LOAD_MIXED],
        "%.2f GB, read and written at once, %s", bytes[SL_LOAD_MIXED] * 1e-9, how);
    set(m, &h->core_nvme_bytes_per_second, sums->all_bytes / sums->core_seconds,
        "processor time of these transfers, sums included");
    set(m, &h->nvme_op_seconds, sums->small_seconds, "a read of 4 KiB");
    set(m, &h->nvme_bytes, room(m->options), "free on the file systems of the paths");
}

static int measure_drive(struct measure *m)
{
    struct sl_swap_options options = {.paths = m->options->nvme_paths,
                                      .path_count = m->options->nvme_path_count,
                                      .bytes_total = m->nvme_bytes,
                                      .prewrite = true,
                                      .log = m->options->log};
    struct sl_load load = {
        .region_bytes = m->nvme_bytes, .request_bytes = DRIVE_CHUNK, .requests = DRIVE_IN_FLIGHT};
    struct drive_sums sums = {0};
    struct sl_swap_stats stats = {0};
    struct sl_arena arena = {0};
    int result = sl_swap_create(&load.swap, &options, m->error);
    if (!result)
        result = sl_arena_create(&arena, (uint64_t)DRIVE_CHUNK * DRIVE_IN_FLIGHT,
                                 m->options->workers, m->error);
    if (!result) {
        load.memory = arena.base;
        sl_swap_register(load.swap, arena.base, arena.bytes);
        result = time_loads(m, &load, &sums);
    }
    if (!result)
        result = time_small_reads(m, &load, &sums);
    if (!result) {
        sl_swap_stats(load.swap, &stats);
        set_drive(m, &sums, stats.direct);
    }
    sl_swap_destroy(load.swap);
    sl_arena_destroy(&arena);
    return result;
}

int sl_hardware_measure(struct sl_measured *out, const struct sl_measure_options *options,
                        struct sl_error *error)
{
    memset(out, 0, sizeof(*out));
    struct measure m = {
        .options = options,
        .out = out,
        .error = error,
        .array_bytes = options->array_bytes ? options->array_bytes : 256u << 20,
        .nvme_bytes = sl_align_up(options->nvme_bytes ? options->nvme_bytes : 1ull << 30,
                                  2 * (uint64_t)DRIVE_CHUNK * DRIVE_IN_FLIGHT),
        .seconds = options->seconds > 0 ? options->seconds : 0.5,
    };
    struct sl_hardware *h = &out->hardware;
    snprintf(h->name, sizeof(h->name), "%s", options->name ? options->name : "this-machine");
    snprintf(h->description, sizeof(h->description), "%s, measured by sluice doctor --measure",
             options->device->properties.name);
    h->ranks_per_host = 1;
    m.runs = malloc(RUNS_MAX * sizeof(*m.runs));
    int result = m.runs ? measure_host(&m) : -ENOMEM;
    if (!result)
        result = measure_device(&m);
    if (!result && options->nvme_path_count)
        result = measure_drive(&m);
    free(m.runs);
    if (result)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "measuring: %s", strerror(-result));
    return result;
}

int sl_measured_write(const struct sl_measured *measured, const char *path, struct sl_error *error)
{
    const char *source[SL_HARDWARE_FIELDS_MAX];
    for (size_t i = 0; i < SL_HARDWARE_FIELDS_MAX; i++)
        source[i] = measured->source[i][0] ? measured->source[i] : "one device in use";
    return sl_hardware_write(&measured->hardware, source, path, error);
}
