// SPDX-License-Identifier: Apache-2.0
/* The arrays that an optimizer step streams, and the streaming of the same arrays that does nothing
 * else: the limit that the step is measured against. */
#ifndef SLUICE_BENCH_ADAM_ARRAYS_H
#define SLUICE_BENCH_ADAM_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "offload/workers.h"

enum array_mode { ARRAY_READ, ARRAY_UPDATE, ARRAY_WRITE };

struct array {
    size_t element_bytes;
    enum array_mode mode;
    unsigned char *data;
};

#define ARRAYS_MAX 6
#define LAYOUT_COUNT 6

struct arrays {
    size_t count; /* elements of each */
    size_t array_count;
    struct array array[ARRAYS_MAX];
    void *map;
    size_t map_bytes;
};

/* Array i begins i * layout_stagger_bytes[layout] after a page. 0 is the worst case: neighbours at
 * the same offset in a page share cache sets and DRAM banks. */
extern const size_t layout_stagger_bytes[LAYOUT_COUNT];
#define LAYOUT_OURS 2 /* what the arenas use */

/* Map zeroed memory for the arrays (count, array_count, element_bytes and mode are filled in),
 * touched by the workers. -ENOMEM. */
int arrays_map(struct arrays *arrays, struct sl_workers *workers, struct sl_error *error);
void arrays_unmap(struct arrays *arrays); /* what was not mapped, too */

/* Set the data pointers for one layout; contents do not move along. */
void arrays_lay_out(struct arrays *arrays, size_t layout);

/* Bytes that one pass must move per element: read and written once each. */
size_t arrays_bytes_per_element(const struct arrays *arrays);

/* Ways to stream: plain or non-temporal stores to what is only written, with prefetch or not. */
#define STREAM_WAYS 4

/* Pass once over all arrays on all workers: read what is read, update what is updated, write what
 * is written. Seconds. */
double arrays_stream(struct arrays *arrays, struct sl_workers *workers, int way);

#endif
