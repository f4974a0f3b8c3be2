// SPDX-License-Identifier: Apache-2.0
/* The end of the model: final norm, logits, cross-entropy, and their backward pass.
 *
 * The logits of all tokens over the whole vocabulary are never in memory. They exist for a chunk of
 * rows at a time, over one tile of the vocabulary. With one tile, each chunk is visited once:
 * logits, statistics, loss, gradient in place, two products. With several tiles, a first visit of
 * all tiles makes the statistics (online softmax) and a second one the gradients: one more product
 * per tile, the price of a head that never lies in memory as a whole.
 */
#include "engine/transformer.h"

#include "base/size.h"

/* Of one chunk. Every chunk reads the table twice and adds to its whole f32 sum, so that few rows
 * are mostly memory traffic: with 16 MiB (64 rows of 50,257 columns) a step of gpt2-124m takes an
 * eighth longer on the host device. */
#define LOGITS_BYTES (64u << 20)
#define CHUNK_ROWS_ALIGN 64u

/* Chunks of equal size rather than full ones and a remainder. */
size_t sl_head_chunk_rows(size_t rows, size_t width)
{
    size_t most = LOGITS_BYTES / sizeof(float) / (width ? width : 1);
    most &= ~(size_t)(CHUNK_ROWS_ALIGN - 1);
    if (most < CHUNK_ROWS_ALIGN)
        most = CHUNK_ROWS_ALIGN;
    if (rows <= most)
        return rows;
    size_t even = sl_div_up(rows, sl_div_up(rows, most));
    return sl_div_up(even, CHUNK_ROWS_ALIGN) * CHUNK_ROWS_ALIGN;
}

uint64_t sl_head_logits_bytes(size_t rows, size_t width)
{
    return (uint64_t)sl_head_chunk_rows(rows, width) * width * sizeof(float);
}

static const unsigned char *weight_at(const struct sl_model *m, const struct sl_unit_memory *memory,
                                      const struct sl_param *param)
{
    (void)m;
    return memory->weights +
           (param->offset - memory->weights_first) * sl_dtype_bytes(memory->dtype);
}

static float *sum_at(const struct sl_model *m, const struct sl_unit_memory *memory,
                     const struct sl_param *param)
{
    if (!memory->sums || !param || memory->sums_offset[param - m->params] == UINT64_MAX)
        return NULL;
    return memory->sums + memory->sums_offset[param - m->params];
}

int sl_head_norm(struct sl_device *device, const struct sl_model *m, size_t rows,
                 const struct sl_unit_memory *memory, const void *x, void *h)
{
    const struct sl_param *weight = sl_model_param(m, memory->unit, SL_ROLE_FINAL_NORM);
    const struct sl_param *bias = sl_model_param(m, memory->unit, SL_ROLE_FINAL_NORM_BIAS);
    struct sl_norm_args args = {
        .kind = m->norm,
        .rows = rows,
        .width = m->hidden,
        .row_group = 1,
        .row_stride = m->hidden,
        .eps = m->norm_eps,
        .x = x,
        .weight = {weight_at(m, memory, weight), memory->dtype},
        .bias = {bias ? weight_at(m, memory, bias) : NULL, memory->dtype},
        .out = h,
    };
    return device->ops->norm(device, &args);
}

int sl_head_norm_backward(struct sl_device *device, const struct sl_model *m, size_t rows,
                          const struct sl_unit_memory *memory, const void *x, const void *dh,
                          void *dx)
{
    const struct sl_param *weight = sl_model_param(m, memory->unit, SL_ROLE_FINAL_NORM);
    const struct sl_param *bias = sl_model_param(m, memory->unit, SL_ROLE_FINAL_NORM_BIAS);
    struct sl_norm_backward_args args = {
        .kind = m->norm,
        .rows = rows,
        .width = m->hidden,
        .row_group = 1,
        .row_stride = m->hidden,
        .eps = m->norm_eps,
        .x = x,
        .weight = {weight_at(m, memory, weight), memory->dtype},
        .dout = dh,
        .dx = dx,
        .dweight = sum_at(m, memory, weight),
        .dbias = sum_at(m, memory, bias),
    };
    return device->ops->norm_backward(device, &args);
}

/* A chunk of rows of the head's arrays. */
struct chunk {
    size_t first, rows;
    unsigned char *h, *dh;
};

static struct chunk chunk_at(const struct sl_device *device, const struct sl_model *m,
                             const struct sl_head_memory *memory, size_t first, size_t rows)
{
    size_t shift = first * m->hidden * sl_dtype_bytes(device->activation_dtype);
    return (struct chunk){
        .first = first,
        .rows = rows < memory->rows - first ? rows : memory->rows - first,
        .h = (unsigned char *)(uintptr_t)memory->h + shift,
        .dh = memory->dh ? (unsigned char *)memory->dh + shift : NULL,
    };
}

static int logits_of(struct sl_device *device, const struct sl_model *m,
                     const struct sl_head_memory *memory, const struct sl_head_tile *tile,
                     struct chunk chunk)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_FORWARD,
        .rows = chunk.rows,
        .inputs = m->hidden,
        .outputs = tile->row_count,
        .x = chunk.h,
        .y = memory->logits,
        .y_f32 = true,
        .weight = tile->table,
    };
    return device->ops->matmul(device, &args);
}

static struct sl_cross_entropy_args entropy_of(const struct sl_model *m,
                                               const struct sl_head_memory *memory,
                                               const struct sl_head_tile *tile, struct chunk chunk,
                                               enum sl_cross_entropy_kind kind)
{
    return (struct sl_cross_entropy_args){
        .kind = kind,
        .rows = chunk.rows,
        .width = tile ? tile->row_count : 0,
        .column_first = tile ? tile->row_first : 0,
        .logits = memory->logits,
        .reset = tile && tile->row_first == 0,
        .softcap = m ? m->final_softcap : 0,
        .scale = memory->scale,
        .targets = memory->targets + chunk.first,
        .row_max = memory->row_max + chunk.first,
        .row_sum = memory->row_sum + chunk.first,
        .target_logit = memory->target_logit + chunk.first,
        .loss = memory->loss + chunk.first,
    };
}

/* logits hold dlogits: the two products of the head's backward pass. */
static int products(struct sl_device *device, const struct sl_model *m,
                    const struct sl_head_memory *memory, const struct sl_head_tile *tile,
                    struct chunk chunk)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_BACKWARD_INPUT,
        .rows = chunk.rows,
        .inputs = m->hidden,
        .outputs = tile->row_count,
        .x = chunk.dh,
        .y = memory->logits,
        .y_f32 = true,
        .accumulate = tile->row_first != 0,
        .weight = tile->table,
    };
    int result = device->ops->matmul(device, &args);
    if (result || !tile->dtable)
        return result;
    args.kind = SL_MATMUL_BACKWARD_WEIGHT;
    args.x = chunk.h;
    args.accumulate = false;
    args.weight = (struct sl_weight){0};
    args.dweight = tile->dtable;
    return device->ops->matmul(device, &args);
}

int sl_head_stats(struct sl_device *device, const struct sl_model *m,
                  const struct sl_head_memory *memory, const struct sl_head_tile *tile)
{
    size_t rows = sl_head_chunk_rows(memory->rows, tile->row_count);
    int result = 0;
    for (size_t first = 0; first < memory->rows && !result; first += rows) {
        struct chunk chunk = chunk_at(device, m, memory, first, rows);
        struct sl_cross_entropy_args args = entropy_of(m, memory, tile, chunk, SL_CE_STATS);
        result = logits_of(device, m, memory, tile, chunk);
        if (!result)
            result = device->ops->cross_entropy(device, &args);
    }
    return result;
}

int sl_head_loss(struct sl_device *device, const struct sl_head_memory *memory)
{
    struct chunk all = {.first = 0, .rows = memory->rows};
    struct sl_cross_entropy_args args = entropy_of(NULL, memory, NULL, all, SL_CE_LOSS);
    return device->ops->cross_entropy(device, &args);
}

int sl_head_backward(struct sl_device *device, const struct sl_model *m,
                     const struct sl_head_memory *memory, const struct sl_head_tile *tile)
{
    size_t rows = sl_head_chunk_rows(memory->rows, tile->row_count);
    int result = 0;
    for (size_t first = 0; first < memory->rows && !result; first += rows) {
        struct chunk chunk = chunk_at(device, m, memory, first, rows);
        struct sl_cross_entropy_args args = entropy_of(m, memory, tile, chunk, SL_CE_BACKWARD);
        result = logits_of(device, m, memory, tile, chunk);
        if (!result)
            result = device->ops->cross_entropy(device, &args);
        if (!result)
            result = products(device, m, memory, tile, chunk);
    }
    return result;
}

int sl_head_whole(struct sl_device *device, const struct sl_model *m,
                  const struct sl_head_memory *memory, const struct sl_head_tile *tile)
{
    size_t rows = sl_head_chunk_rows(memory->rows, tile->row_count);
    int result = 0;
    for (size_t first = 0; first < memory->rows && !result; first += rows) {
        struct chunk chunk = chunk_at(device, m, memory, first, rows);
        struct sl_cross_entropy_args args = entropy_of(m, memory, tile, chunk, SL_CE_STATS);
        result = logits_of(device, m, memory, tile, chunk);
        if (!result)
            result = device->ops->cross_entropy(device, &args);
        args.kind = SL_CE_LOSS;
        if (!result)
            result = device->ops->cross_entropy(device, &args);
        if (result || !memory->dh)
            continue;
        args.kind = SL_CE_BACKWARD;
        args.softcapped = true; /* STATS has capped them in place */
        result = device->ops->cross_entropy(device, &args);
        if (!result)
            result = products(device, m, memory, tile, chunk);
    }
    return result;
}
