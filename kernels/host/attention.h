// SPDX-License-Identifier: Apache-2.0
/* What forward and backward attention share. Internal to kernels/host. */
#ifndef SLUICE_KERNELS_HOST_ATTENTION_H
#define SLUICE_KERNELS_HOST_ATTENTION_H

#include "kernels/host/host.h"

/* First key that query i (in its sequence) sees; the last is i itself. */
static inline size_t attention_start(const struct sl_host_attention *a, size_t batch, size_t i)
{
    size_t start = a->window && i + 1 > a->window ? i + 1 - a->window : 0;
    if (a->first) {
        size_t document = (size_t)a->first[batch * a->sequence_length + i];
        start = document > start ? document : start;
    }
    return start;
}

/* First key that any query of the block sees, rounded down to whole vectors. */
static inline size_t attention_block_start(const struct sl_host_attention *a, size_t batch,
                                           size_t query, size_t query_count)
{
    size_t low = query;
    for (size_t i = query; i < query + query_count; i++) {
        size_t start = attention_start(a, batch, i);
        low = start < low ? start : low;
    }
    return low & ~(size_t)15;
}

static inline size_t attention_row(const struct sl_host_attention *a)
{
    return (a->heads + 2 * a->kv_heads) * a->head_size;
}

/* Keys of a chunk [key, key + count) that query i sees, relative to the chunk: [low, high). */
struct attention_range {
    size_t low, high;
};

static inline struct attention_range
attention_range(const struct sl_host_attention *a, size_t batch, size_t i, size_t key, size_t count)
{
    size_t start = attention_start(a, batch, i);
    struct attention_range r = {start > key ? start - key : 0, i + 1 > key ? i + 1 - key : 0};
    r.low = r.low < count ? r.low : count;
    r.high = r.high < count ? r.high : count;
    if (r.high < r.low)
        r.high = r.low;
    return r;
}

#endif
