// SPDX-License-Identifier: Apache-2.0
/* Reading parameters by element range.
 *
 * A plain parameter in the wanted type is read into the caller's memory. A conversion goes through
 * a stack buffer of 64 KiB, small enough to stay in a core's cache between the read and the
 * conversion. Long ranges come through a read-ahead (weights_stream.c), short ones and those of a
 * second thread by pread.
 *
 * A transposed matrix is cut into tiles of model rows. The file holds it as [inputs, outputs]: for
 * each input the tile's outputs lie together, and where the tile has all outputs several inputs
 * are one read. Rejected: a temporary copy of the whole matrix (memory that no plan has).
 */
#include "engine/weights.h"

#include <errno.h>
#include <stdlib.h>

#include "base/size.h"
#include "engine/weights_internal.h"

#define BUFFER_BYTES 65536u
#define STREAM_BYTES_MIN (1u << 20)

void sl_weights_close(struct sl_weights *weights)
{
    if (!weights)
        return;
    for (size_t i = 0; i < weights->file_count; i++)
        sl_safetensors_close(&weights->files[i]);
    sl_read_stream_destroy(weights->stream);
    pthread_mutex_destroy(&weights->stream_lock);
    free(weights->files);
    free(weights->sources);
    free(weights);
}

static enum sl_dtype dtype_of(enum sl_safetensors_type type)
{
    return type == SL_ST_F32 ? SL_F32 : type == SL_ST_BF16 ? SL_BF16 : SL_F16;
}

enum sl_dtype sl_weights_dtype(const struct sl_weights *weights, size_t param)
{
    return dtype_of(weights->sources[param].tensor->type);
}

static void convert(void *to, enum sl_dtype to_type, const void *from, enum sl_dtype from_type,
                    size_t count)
{
    if (from_type == SL_BF16 && to_type == SL_F32) {
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = sl_f32_from_bf16(((const uint16_t *)from)[i]);
    } else if (from_type == SL_F32 && to_type == SL_BF16) {
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = sl_bf16_from_f32(((const float *)from)[i]);
    } else {
        for (size_t i = 0; i < count; i++)
            sl_dtype_store(to, to_type, i, sl_dtype_load(from, from_type, i));
    }
}

/* One call's way to the bytes of a tensor. */
struct way {
    const struct sl_safetensors *file;
    const struct sl_safetensor *tensor;
    struct sl_read_stream *stream; /* NULL: pread */
};

static int read_bytes(const struct way *way, uint64_t first, size_t bytes, void *out,
                      struct sl_error *error)
{
    if (!way->stream)
        return sl_safetensors_read(way->file, way->tensor, first, bytes, out, error);
    return sl_read_stream_read(way->stream, way->file->path,
                               way->file->data_offset + way->tensor->begin + first, bytes, out,
                               error);
}

static int read_plain(const struct way *way, uint64_t first, size_t count, enum sl_dtype dtype,
                      char *out, struct sl_error *error)
{
    enum sl_dtype from = dtype_of(way->tensor->type);
    size_t from_bytes = sl_dtype_bytes(from), to_bytes = sl_dtype_bytes(dtype);
    if (from == dtype)
        return read_bytes(way, first * from_bytes, count * from_bytes, out, error);
    _Alignas(64) char buffer[BUFFER_BYTES];
    size_t step = BUFFER_BYTES / from_bytes;
    for (size_t at = 0; at < count; at += step) {
        size_t n = count - at < step ? count - at : step;
        int rc = read_bytes(way, (first + at) * from_bytes, n * from_bytes, buffer, error);
        if (rc)
            return rc;
        convert(out + at * to_bytes, dtype, buffer, from, n);
    }
    return 0;
}

/* Model rows [row, row + rows) x columns [column, column + columns) of a matrix that the file holds
 * transposed; out is the first wanted element, its rows `out_stride` elements apart. */
struct tile {
    uint64_t row, rows, column, columns;
    char *out;
    uint64_t out_stride;
};

/* A column of out: its elements lie `stride` apart. */
static void scatter(char *out, uint64_t stride, enum sl_dtype dtype, const char *from,
                    enum sl_dtype from_type, uint64_t count)
{
    if (dtype == from_type && dtype == SL_F32) {
        for (uint64_t i = 0; i < count; i++)
            ((float *)out)[i * stride] = ((const float *)from)[i];
    } else if (dtype == from_type) { /* bits, not values: a NaN stays as it is */
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *)out)[i * stride] = ((const uint16_t *)from)[i];
    } else {
        for (uint64_t i = 0; i < count; i++)
            sl_dtype_store(out, dtype, i * stride, sl_dtype_load(from, from_type, i));
    }
}

static int read_tile(const struct way *way, uint64_t outputs, const struct tile *tile,
                     enum sl_dtype dtype, struct sl_error *error)
{
    enum sl_dtype from = dtype_of(way->tensor->type);
    size_t from_bytes = sl_dtype_bytes(from), to_bytes = sl_dtype_bytes(dtype);
    _Alignas(64) char buffer[BUFFER_BYTES];
    uint64_t together = tile->rows == outputs ? BUFFER_BYTES / (outputs * from_bytes) : 1;
    for (uint64_t k = 0; k < tile->columns; k += together) {
        uint64_t inputs = sl_min_u64(together, tile->columns - k);
        uint64_t first = (tile->column + k) * outputs + tile->row;
        int rc =
            read_bytes(way, first * from_bytes, inputs * tile->rows * from_bytes, buffer, error);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < inputs; i++)
            scatter(tile->out + (k + i) * to_bytes, tile->out_stride, dtype,
                    buffer + i * tile->rows * from_bytes, from, tile->rows);
    }
    return 0;
}

/* The range is a part of a row, whole rows, and a part of a row; rows are cut so that one row of a
 * tile in the file fits the buffer. */
static int read_transposed(const struct way *way, const struct sl_param *param, uint64_t first,
                           size_t count, enum sl_dtype dtype, char *out, struct sl_error *error)
{
    size_t to_bytes = sl_dtype_bytes(dtype);
    uint64_t rows_max = BUFFER_BYTES / sl_safetensors_type_bytes(way->tensor->type);
    uint64_t end = first + count;
    while (first < end) {
        struct tile tile = {.row = first / param->columns,
                            .column = first % param->columns,
                            .out = out,
                            .out_stride = param->columns};
        uint64_t whole_rows = (end - first) / param->columns;
        if (tile.column == 0 && whole_rows > 0) {
            tile.rows = sl_min_u64(whole_rows, rows_max);
            tile.columns = param->columns;
        } else {
            tile.rows = 1;
            tile.columns = sl_min_u64(param->columns - tile.column, end - first);
        }
        int rc = read_tile(way, param->rows, &tile, dtype, error);
        if (rc)
            return rc;
        first += tile.rows * tile.columns;
        out += tile.rows * tile.columns * to_bytes;
    }
    return 0;
}

/* The stream, for a read that is long and of bytes that lie together, unless another read has it.
 */
static struct sl_read_stream *take_stream(struct sl_weights *weights, const struct sl_param *param,
                                          size_t param_index, size_t count)
{
    uint64_t bytes = count * sl_dtype_bytes(sl_weights_dtype(weights, param_index));
    bool together = !param->transposed_in_file || count == param->rows * param->columns;
    if (bytes < STREAM_BYTES_MIN || !together || pthread_mutex_trylock(&weights->stream_lock) != 0)
        return NULL;
    if (!weights->stream)
        sl_read_stream_create(&weights->stream, NULL);
    if (!weights->stream) /* no memory for it: the read itself needs none */
        pthread_mutex_unlock(&weights->stream_lock);
    return weights->stream;
}

int sl_weights_read(struct sl_weights *weights, size_t param, uint64_t first, size_t count,
                    enum sl_dtype dtype, void *out, struct sl_error *error)
{
    const struct sl_param *p = &weights->model->params[param];
    if (param >= weights->model->param_count || first > p->rows * p->columns ||
        count > p->rows * p->columns - first)
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                            "read of %zu elements at %llu leaves parameter %zu", count,
                            (unsigned long long)first, param);
    struct way way = {.file = weights->sources[param].file,
                      .tensor = weights->sources[param].tensor,
                      .stream = take_stream(weights, p, param, count)};
    int rc = p->transposed_in_file ? read_transposed(&way, p, first, count, dtype, out, error)
                                   : read_plain(&way, first, count, dtype, out, error);
    if (way.stream)
        pthread_mutex_unlock(&weights->stream_lock);
    return rc;
}

static int by_place(const void *a, const void *b, void *context)
{
    const struct sl_weights_source *sources = context;
    const struct sl_weights_source *x = &sources[*(const size_t *)a];
    const struct sl_weights_source *y = &sources[*(const size_t *)b];
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->tensor->begin > y->tensor->begin) - (x->tensor->begin < y->tensor->begin);
}

void sl_weights_file_order(const struct sl_weights *weights, size_t *order)
{
    for (size_t i = 0; i < weights->model->param_count; i++)
        order[i] = i;
    qsort_r(order, weights->model->param_count, sizeof *order, by_place, weights->sources);
}
