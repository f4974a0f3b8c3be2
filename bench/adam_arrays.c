// SPDX-License-Identifier: Apache-2.0
/* Streaming of the arrays of an optimizer step.
 *
 * Problem   "95 % of the memory's speed" means nothing unless the limit has the same number of
 *           streams, the same mixture of reads and writes, and the best placement: page-aligned
 *           arrays alias in the caches and would flatter what is measured against them.
 * Choice    64 elements of every array at a time, in order, with one operation per vector; six
 *           staggers, plain and non-temporal stores, with and without prefetch. The caller keeps
 *           the fastest of all.
 * Rejected  STREAM's triad: three streams, one of them written, is another machine's question.
 */
#include "bench/adam_arrays.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/size.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

const size_t layout_stagger_bytes[LAYOUT_COUNT] = {0, 256, 1088, 2112, 4160, 9280};

#define STREAM_TASK 65536 /* elements per task, as in the step */
#define PREFETCH_BYTES 1024

static size_t array_room(const struct arrays *arrays, size_t i)
{
    size_t stagger_max = layout_stagger_bytes[LAYOUT_COUNT - 1] * ARRAYS_MAX;
    return sl_align_up(arrays->count * arrays->array[i].element_bytes + stagger_max, 4096);
}

static void touch(void *arg, size_t task, size_t worker)
{
    (void)worker;
    struct arrays *arrays = arg;
    size_t first = task << 21;
    size_t bytes = sl_min_u64(arrays->map_bytes - first, UINT64_C(1) << 21);
    memset((char *)arrays->map + first, 0, bytes);
}

int arrays_map(struct arrays *arrays, struct sl_workers *workers, struct sl_error *error)
{
    arrays->map_bytes = 0;
    for (size_t i = 0; i < arrays->array_count; i++)
        arrays->map_bytes += array_room(arrays, i);
    arrays->map =
        mmap(NULL, arrays->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arrays->map == MAP_FAILED) {
        arrays->map = NULL;
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "%zu bytes of memory; give a smaller --count", arrays->map_bytes);
    }
    madvise(arrays->map, arrays->map_bytes, MADV_HUGEPAGE);
    sl_workers_run(workers, (arrays->map_bytes + (1 << 21) - 1) >> 21, touch, arrays);
    return 0;
}

void arrays_unmap(struct arrays *arrays)
{
    if (arrays->map)
        munmap(arrays->map, arrays->map_bytes);
    arrays->map = NULL;
}

void arrays_lay_out(struct arrays *arrays, size_t layout)
{
    unsigned char *at = arrays->map;
    for (size_t i = 0; i < arrays->array_count; i++) {
        arrays->array[i].data = at + i * layout_stagger_bytes[layout];
        at += array_room(arrays, i);
    }
}

size_t arrays_bytes_per_element(const struct arrays *arrays)
{
    size_t bytes = 0;
    for (size_t i = 0; i < arrays->array_count; i++)
        bytes += arrays->array[i].element_bytes * (arrays->array[i].mode == ARRAY_UPDATE ? 2 : 1);
    return bytes;
}

/* ---- 64 bytes of one array ---- */

#if defined(__x86_64__)
#define STREAM_TARGET __attribute__((target("avx2")))
typedef __m256i line_t;
#define LINE_PARTS 2
#define line_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define line_store(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define line_stream(p, x) _mm256_stream_si256((__m256i *)(p), x)
#define line_add(a, b) _mm256_add_epi32(a, b)
#define line_set(v) _mm256_set1_epi32(v)
#else
#define STREAM_TARGET
typedef uint32_t line_t __attribute__((vector_size(32)));
#define LINE_PARTS 2
static inline line_t line_load(const void *p)
{
    line_t x;
    memcpy(&x, p, sizeof(x));
    return x;
}
#define line_store(p, x)                                                                           \
    do {                                                                                           \
        line_t value_ = (x);                                                                       \
        memcpy(p, &value_, sizeof(value_));                                                        \
    } while (0)
#define line_stream line_store
#define line_add(a, b) ((a) + (b))
#define line_set(v) ((line_t){v, v, v, v, v, v, v, v})
#endif

struct stream {
    struct arrays *arrays;
    int way;
};

STREAM_TARGET static void stream_array(const struct array *array, size_t first, int way,
                                       line_t *sink)
{
    unsigned char *at = array->data + first * array->element_bytes;
    const line_t one = line_set(1);
    for (size_t line = 0; line < array->element_bytes; line++, at += 64) {
        if ((way & 2) && array->mode != ARRAY_WRITE)
            __builtin_prefetch(at + PREFETCH_BYTES);
        for (size_t part = 0; part < LINE_PARTS; part++) {
            unsigned char *p = at + part * 32;
            if (array->mode == ARRAY_READ)
                *sink = line_add(*sink, line_load(p));
            else if (array->mode == ARRAY_UPDATE)
                line_store(p, line_add(line_load(p), one));
            else if ((way & 1) && (uintptr_t)p % 32 == 0)
                line_stream(p, one);
            else
                line_store(p, one);
        }
    }
}

STREAM_TARGET static void stream_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct stream *stream = arg;
    size_t first = task * STREAM_TASK;
    size_t end = sl_min_u64(first + STREAM_TASK, stream->arrays->count) & ~(size_t)63;
    line_t sink = line_set(0);
    for (; first < end; first += 64)
        for (size_t i = 0; i < stream->arrays->array_count; i++)
            stream_array(&stream->arrays->array[i], first, stream->way, &sink);
    __asm__ volatile("" : : "m"(sink) : "memory");
}

double arrays_stream(struct arrays *arrays, struct sl_workers *workers, int way)
{
    struct stream stream = {arrays, way};
    uint64_t start = sl_clock_ns();
    sl_workers_run(workers, sl_div_up(arrays->count, STREAM_TASK), stream_task, &stream);
    return (double)(sl_clock_ns() - start) * 1e-9;
}
