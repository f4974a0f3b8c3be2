// SPDX-License-Identifier: Apache-2.0
/* The record of what ran when.
 *
 * Problem   The lanes' threads report an operation each few microseconds, and recording must cost
 *           next to nothing and allocate nothing.
 * Choice    One array of events made at creation; an atomic counter hands out places. All the work
 *           (sorting, naming, formatting) is left to the end, in sl_trace_write.
 * Tracks    A lane is one track, but slices of a track must nest, and the NVMe lanes have several
 *           operations in flight. So each lane has rows: a slice goes to the first row of its lane
 *           that is free at its start. A serial lane needs one row only.
 * Format    Chrome trace events ("X" slices, "M" names), which Perfetto opens. docs/plan.md.
 */
#include "offload/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS_MAX 64u /* per lane; deeper overlap shares the last row */

struct sl_trace {
    struct sl_trace_event *events;
    uint32_t capacity;
    atomic_uint_fast64_t count; /* offered, kept or not */
};

int sl_trace_create(struct sl_trace **out, uint32_t capacity, struct sl_error *error)
{
    *out = NULL;
    struct sl_trace *trace = calloc(1, sizeof(*trace));
    if (trace)
        trace->events = calloc(capacity ? capacity : 1, sizeof(*trace->events));
    if (!trace || !trace->events) {
        free(trace);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "trace: no memory for %u events (%zu bytes each)", capacity,
                            sizeof(struct sl_trace_event));
    }
    trace->capacity = capacity;
    atomic_init(&trace->count, 0);
    *out = trace;
    return 0;
}

void sl_trace_destroy(struct sl_trace *trace)
{
    if (!trace)
        return;
    free(trace->events);
    free(trace);
}

void sl_trace_add(struct sl_trace *trace, const struct sl_op *op, uint64_t instance,
                  uint64_t start_ns, uint64_t end_ns)
{
    /* Relaxed: the places are distinct, and the writer reads after the lanes have been joined. */
    uint64_t place = atomic_fetch_add_explicit(&trace->count, 1, memory_order_relaxed);
    if (place < trace->capacity)
        trace->events[place] = (struct sl_trace_event){op, instance, start_ns, end_ns};
}

uint32_t sl_trace_events(const struct sl_trace *trace, const struct sl_trace_event **events)
{
    uint64_t offered = atomic_load(&trace->count);
    *events = trace->events;
    return offered < trace->capacity ? (uint32_t)offered : trace->capacity;
}

static int compare_start(const void *a, const void *b)
{
    const struct sl_trace_event *x = *(const struct sl_trace_event *const *)a;
    const struct sl_trace_event *y = *(const struct sl_trace_event *const *)b;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    if (x->end_ns != y->end_ns)
        return x->end_ns < y->end_ns ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void write_string(FILE *file, const char *text)
{
    putc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f)
            fprintf(file, "\\u%04x", *c);
        else
            putc(*c, file);
    }
    putc('"', file);
}

static const char *segment_name(const struct sl_plan *plan, const struct sl_op *op)
{
    uint32_t index = (uint32_t)(op - plan->ops);
    for (uint32_t i = 0; i < plan->segment_count; i++) {
        const struct sl_segment *segment = &plan->segments[i];
        if (index - segment->op_first < segment->op_count)
            return segment->name;
    }
    return "";
}

static uint32_t track(enum sl_lane lane, uint32_t row)
{
    return (uint32_t)lane * ROWS_MAX + row + 1;
}

static void write_event(FILE *file, const struct sl_plan *plan, const struct sl_trace_event *event,
                        uint32_t row, uint64_t origin_ns)
{
    const struct sl_op *op = event->op;
    char name[96];
    int used = snprintf(name, sizeof(name), "%s", sl_op_kind_name(op->kind));
    if (op->unit >= 0)
        used += snprintf(name + used, sizeof(name) - (size_t)used, " u%d", op->unit);
    if (op->piece >= 0)
        used += snprintf(name + used, sizeof(name) - (size_t)used, ".%d", op->piece);
    if (op->micro_batch >= 0)
        snprintf(name + used, sizeof(name) - (size_t)used, " mb%d", op->micro_batch);
    fputs(",\n{\"ph\":\"X\",\"pid\":1,\"name\":", file);
    write_string(file, name);
    fputs(",\"cat\":", file);
    write_string(file, segment_name(plan, op));
    uint64_t start_ns = event->start_ns - origin_ns;
    uint64_t length_ns = event->end_ns > event->start_ns ? event->end_ns - event->start_ns : 0;
    fprintf(file,
            ",\"tid\":%u,\"ts\":%" PRIu64 ".%03u,\"dur\":%" PRIu64 ".%03u,\"args\":{\"op\":%td,"
            "\"instance\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"gflop\":%.6f,\"part\":%d}}",
            track(op->lane, row), start_ns / 1000, (unsigned)(start_ns % 1000), length_ns / 1000,
            (unsigned)(length_ns % 1000), op - plan->ops, event->instance, op->bytes,
            op->flops * 1e-9, op->part);
}

static void write_events(FILE *file, const struct sl_plan *plan,
                         const struct sl_trace_event **sorted, uint32_t count)
{
    uint64_t row_end[SL_LANE_COUNT][ROWS_MAX] = {{0}};
    uint32_t rows[SL_LANE_COUNT] = {0};
    uint64_t origin_ns = count ? sorted[0]->start_ns : 0;
    for (uint32_t i = 0; i < count; i++) {
        enum sl_lane lane = sorted[i]->op->lane;
        uint32_t row = 0;
        while (row < rows[lane] && row + 1 < ROWS_MAX && row_end[lane][row] > sorted[i]->start_ns)
            row++;
        if (row == rows[lane])
            rows[lane]++;
        row_end[lane][row] = sorted[i]->end_ns;
        write_event(file, plan, sorted[i], row, origin_ns);
    }
    for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++)
        for (uint32_t row = 0; row < rows[lane]; row++) {
            fprintf(file,
                    ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_name\","
                    "\"args\":{\"name\":\"%s%s\"}}",
                    track(lane, row), sl_lane_name(lane), row ? " +" : "");
            fprintf(file,
                    ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%u,\"name\":\"thread_sort_index\","
                    "\"args\":{\"sort_index\":%u}}",
                    track(lane, row), track(lane, row));
        }
}

int sl_trace_check_path(const char *path, struct sl_error *error)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    bool there = access(path, F_OK) == 0;
    if (there ? access(path, W_OK) == 0 : access(folder, W_OK) == 0)
        return 0;
    int code = errno;
    return sl_error_set(error, SL_DOMAIN_INPUT, -code,
                        "trace \"%s\": %s; give a file in a folder that this user may write to",
                        path, strerror(code));
}

int sl_trace_write(const struct sl_trace *trace, const struct sl_plan *plan, const char *path,
                   struct sl_error *error)
{
    uint64_t offered = atomic_load(&trace->count);
    const struct sl_trace_event *events;
    uint32_t count = sl_trace_events(trace, &events);
    const struct sl_trace_event **sorted = malloc(((size_t)count + 1) * sizeof(*sorted));
    if (!sorted)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "trace: no memory to sort %u events",
                            count);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = &events[i];
    qsort(sorted, count, sizeof(*sorted), compare_start);

    int result = 0;
    FILE *file = fopen(path, "we");
    if (!file) {
        int code = errno;
        result = sl_error_set(error, SL_DOMAIN_IO, -code, "trace \"%s\": %s", path, strerror(code));
        goto out;
    }
    fprintf(file,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"events\":%u,\"dropped\":%" PRIu64
            "},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
            "\"args\":{\"name\":\"sluice\"}}",
            count, offered - count);
    write_events(file, plan, sorted, count);
    fputs("\n]}\n", file);
    bool failed = ferror(file) != 0;
    errno = 0;
    if (fclose(file) != 0 || failed) {
        int code = errno ? errno : EIO;
        result = sl_error_set(error, SL_DOMAIN_IO, -code, "trace \"%s\": writing failed: %s", path,
                              strerror(code));
    }
out:
    free(sorted);
    return result;
}
