// SPDX-License-Identifier: Apache-2.0
/* Token and position embedding. Backward goes by columns: each piece walks all tokens in ascending
 * order over its own columns, so that a row used by many tokens is summed in one order without
 * locks or sorting. */
#include "kernels/host/simd.h"
#include "kernels/host/variant.h"

static bool in_tile(const struct sl_host_embedding *a, size_t token, size_t *row)
{
    int32_t id = a->ids[token];
    if (id < 0 || (size_t)id < a->row_first || (size_t)id - a->row_first >= a->row_count)
        return false;
    *row = (size_t)id - a->row_first;
    return true;
}

void HOST(embedding)(const struct sl_host_embedding *a, size_t first, size_t count)
{
    vf scale = vset(a->scale);
    size_t row;
    for (size_t token = first; token < first + count; token++) {
        if (!in_tile(a, token, &row))
            continue;
        float *out = a->out + token * a->width;
        for (size_t i = 0; i < a->width; i += LANES) {
            size_t n = a->width - i < LANES ? a->width - i : LANES;
            vf w = vload_weight(a->table.data, a->table.dtype, row * a->width + i, n);
            w = vmul(w, scale);
            vstore_n(out + i, a->add ? vadd(vload_n(out + i, n), w) : w, n);
        }
    }
}

void HOST(embedding_backward)(const struct sl_host_embedding *a, size_t first, size_t count)
{
    vf scale = vset(a->scale);
    size_t row;
    for (size_t token = 0; token < a->rows; token++) {
        if (!in_tile(a, token, &row))
            continue;
        const float *dout = a->dout + token * a->width;
        float *sum = a->dtable + row * a->width;
        for (size_t i = first; i < first + count; i += LANES) {
            size_t n = first + count - i < LANES ? first + count - i : LANES;
            vf d = vmul(vload_n(dout + i, n), scale);
            vstore_n(sum + i, vadd(vload_n(sum + i, n), d), n);
        }
    }
}
