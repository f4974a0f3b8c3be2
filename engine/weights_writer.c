// SPDX-License-Identifier: Apache-2.0
/* Writing the weights of a model, fed by element ranges.
 *
 * All names, shapes and types are known before the first element, so every file is created at once
 * with its header and final size, and each range has its place: the caller can stream unit by unit
 * in any order. Ranges that follow each other are joined (weights_output.c). Files are filled in
 * the model's order up to the size limit, so that a reader who streams the layers touches them one
 * after the other.
 *
 * A transposed matrix is written by tiles of model rows, as weights.c reads it.
 *
 * Invariant: a folder that finish() accepted holds every element exactly as often as it was
 * written, which is once if the caller kept the contract; counts that do not add up are refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "engine/safetensors.h"
#include "engine/weights.h"
#include "engine/weights_output.h"

#define BUFFER_BYTES 65536u
#define SHARD_BYTES_DEFAULT 5000000000u
#define SHARD_NAME_BYTES 48

struct place {
    uint32_t shard;
    uint64_t offset_bytes; /* in the file */
    _Atomic uint64_t written;
};

struct sl_weights_writer {
    char *directory;
    const struct sl_model *model;
    enum sl_dtype dtype;
    struct sl_weights_output *output;
    uint32_t shard_count;
    struct place *places; /* [param_count] */
};

static void free_writer(struct sl_weights_writer *writer)
{
    sl_weights_output_destroy(writer->output);
    free(writer->places);
    free(writer->directory);
    free(writer);
}

void sl_weights_writer_abort(struct sl_weights_writer *writer)
{
    if (writer)
        free_writer(writer);
}

static void shard_name(const struct sl_weights_writer *writer, uint32_t shard,
                       char name[SHARD_NAME_BYTES])
{
    if (writer->shard_count == 1)
        snprintf(name, SHARD_NAME_BYTES, "model.safetensors");
    else
        snprintf(name, SHARD_NAME_BYTES, "model-%05u-of-%05u.safetensors", shard + 1,
                 writer->shard_count);
}

static uint64_t param_bytes(const struct sl_weights_writer *writer, size_t param)
{
    const struct sl_param *p = &writer->model->params[param];
    return p->rows * p->columns * sl_dtype_bytes(writer->dtype);
}

/* Give every parameter a shard; returns the number of shards. */
static uint32_t assign_shards(struct sl_weights_writer *writer, uint64_t limit)
{
    uint32_t shard = 0;
    uint64_t used = 0;
    for (size_t i = 0; i < writer->model->param_count; i++) {
        uint64_t bytes = param_bytes(writer, i);
        if (used > 0 && used + bytes > limit) {
            shard++;
            used = 0;
        }
        used += bytes;
        writer->places[i].shard = shard;
    }
    return shard + 1;
}

static struct sl_safetensor describe(const struct sl_weights_writer *writer, struct sl_param *p)
{
    struct sl_safetensor tensor = {.name = p->name, .type = sl_safetensors_type_of(writer->dtype)};
    if (p->vector) {
        tensor.rank = 1;
        tensor.shape[0] = p->columns;
    } else {
        tensor.rank = 2;
        tensor.shape[0] = p->transposed_in_file ? p->columns : p->rows;
        tensor.shape[1] = p->transposed_in_file ? p->rows : p->columns;
    }
    return tensor;
}

/* Params [first, end) are the shard. */
static int create_shard(struct sl_weights_writer *writer, uint32_t shard, size_t first, size_t end,
                        struct sl_safetensor *tensors, struct sl_error *error)
{
    char name[SHARD_NAME_BYTES], *path = NULL;
    uint64_t data_offset;
    shard_name(writer, shard, name);
    if (asprintf(&path, "%s/%s", writer->directory, name) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a path",
                            writer->directory);
    for (size_t i = first; i < end; i++)
        tensors[i - first] = describe(writer, &writer->model->params[i]);
    int fd, rc = sl_safetensors_create(path, tensors, end - first, &fd, &data_offset, error);
    if (!rc)
        sl_weights_output_add(writer->output, shard, fd, path);
    free(path);
    for (size_t k = 0; k < end - first && !rc; k++) {
        /* the name is the parameter's own array, so it tells the parameter */
        const char *at = tensors[k].name;
        const struct sl_param *p = (const struct sl_param *)(at - offsetof(struct sl_param, name));
        writer->places[p - writer->model->params].offset_bytes = data_offset + tensors[k].begin;
    }
    return rc;
}

static int create_shards(struct sl_weights_writer *writer, struct sl_error *error)
{
    size_t count = writer->model->param_count;
    struct sl_safetensor *tensors = calloc(count, sizeof *tensors);
    int rc = tensors ? sl_weights_output_create(&writer->output, writer->shard_count, error)
                     : sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for %zu names",
                                    writer->directory, count);
    for (size_t first = 0, end; first < count && !rc; first = end) {
        uint32_t shard = writer->places[first].shard;
        for (end = first; end < count && writer->places[end].shard == shard;)
            end++;
        rc = create_shard(writer, shard, first, end, tensors, error);
    }
    free(tensors);
    return rc;
}

/* Names here are ours, so they need no escapes. */
static int write_index(const struct sl_weights_writer *writer, struct sl_error *error)
{
    char *path = NULL, name[SHARD_NAME_BYTES];
    if (asprintf(&path, "%s/model.safetensors.index.json", writer->directory) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a path",
                            writer->directory);
    FILE *out = fopen(path, "wxe");
    bool failed = !out;
    if (out) {
        fprintf(out, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {",
                writer->model->param_elements * sl_dtype_bytes(writer->dtype));
        for (size_t i = 0; i < writer->model->param_count; i++) {
            shard_name(writer, writer->places[i].shard, name);
            fprintf(out, "%s\n    \"%s\": \"%s\"", i ? "," : "", writer->model->params[i].name,
                    name);
        }
        fputs("\n  }\n}\n", out);
        failed = fflush(out) != 0 || fsync(fileno(out)) != 0;
    }
    int rc = 0;
    if (failed)
        rc = sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: cannot write: %s", path,
                          strerror(errno));
    if (out)
        fclose(out);
    free(path);
    return rc;
}

int sl_weights_writer_create(struct sl_weights_writer **out,
                             const struct sl_weights_writer_options *options,
                             struct sl_error *error)
{
    struct sl_weights_writer *writer = calloc(1, sizeof *writer);
    *out = NULL;
    if (!writer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a weight writer");
    writer->model = options->model;
    writer->dtype = options->dtype;
    writer->directory = strdup(options->directory);
    writer->places = calloc(options->model->param_count, sizeof *writer->places);
    if (!writer->directory || !writer->places) {
        free_writer(writer);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a weight writer");
    }
    writer->shard_count = assign_shards(writer, options->shard_bytes_max ? options->shard_bytes_max
                                                                         : SHARD_BYTES_DEFAULT);
    int rc = create_shards(writer, error);
    if (!rc && writer->shard_count > 1)
        rc = write_index(writer, error);
    if (rc)
        free_writer(writer);
    else
        *out = writer;
    return rc;
}

static int write_bytes(const struct sl_weights_writer *writer, size_t param, const char *data,
                       size_t bytes, uint64_t offset, struct sl_error *error)
{
    const struct place *place = &writer->places[param];
    struct sl_error cause = {0};
    int rc = sl_weights_output_write(writer->output, place->shard, place->offset_bytes + offset,
                                     data, bytes, &cause);
    if (rc)
        sl_error_set(error, SL_DOMAIN_IO, rc, "%s: tensor \"%s\": %.500s", writer->directory,
                     writer->model->params[param].name, cause.message);
    return rc;
}

static void convert(void *to, enum sl_dtype to_type, const void *from, enum sl_dtype from_type,
                    size_t from_stride, size_t count)
{
    if (to_type == from_type && to_type == SL_F32) {
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = ((const float *)from)[i * from_stride];
    } else if (to_type == from_type) { /* bits, not values: a NaN stays as it is */
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i * from_stride];
    } else {
        for (size_t i = 0; i < count; i++)
            sl_dtype_store(to, to_type, i, sl_dtype_load(from, from_type, i * from_stride));
    }
}

static int write_plain(const struct sl_weights_writer *writer, size_t param, uint64_t first,
                       size_t count, enum sl_dtype dtype, const char *data, struct sl_error *error)
{
    size_t to_bytes = sl_dtype_bytes(writer->dtype), from_bytes = sl_dtype_bytes(dtype);
    if (dtype == writer->dtype)
        return write_bytes(writer, param, data, count * to_bytes, first * to_bytes, error);
    _Alignas(64) char buffer[BUFFER_BYTES];
    size_t step = BUFFER_BYTES / to_bytes;
    for (size_t at = 0; at < count; at += step) {
        size_t n = count - at < step ? count - at : step;
        convert(buffer, writer->dtype, data + at * from_bytes, dtype, 1, n);
        int rc = write_bytes(writer, param, buffer, n * to_bytes, (first + at) * to_bytes, error);
        if (rc)
            return rc;
    }
    return 0;
}

/* Model rows [row, row + rows) x columns [column, column + columns), whose first element is data
 * and whose rows are as wide as the parameter. */
static int write_tile(const struct sl_weights_writer *writer, size_t param, uint64_t row,
                      uint64_t rows, uint64_t column, uint64_t columns, enum sl_dtype dtype,
                      const char *data, struct sl_error *error)
{
    const struct sl_param *p = &writer->model->params[param];
    size_t to_bytes = sl_dtype_bytes(writer->dtype), from_bytes = sl_dtype_bytes(dtype);
    _Alignas(64) char buffer[BUFFER_BYTES];
    uint64_t together = rows == p->rows ? BUFFER_BYTES / (rows * to_bytes) : 1;
    for (uint64_t k = 0; k < columns; k += together) {
        uint64_t inputs = sl_min_u64(together, columns - k);
        for (uint64_t i = 0; i < inputs; i++)
            convert(buffer + i * rows * to_bytes, writer->dtype, data + (k + i) * from_bytes, dtype,
                    p->columns, rows);
        int rc = write_bytes(writer, param, buffer, inputs * rows * to_bytes,
                             ((column + k) * p->rows + row) * to_bytes, error);
        if (rc)
            return rc;
    }
    return 0;
}

static int write_transposed(const struct sl_weights_writer *writer, size_t param, uint64_t first,
                            size_t count, enum sl_dtype dtype, const char *data,
                            struct sl_error *error)
{
    const struct sl_param *p = &writer->model->params[param];
    uint64_t end = first + count, rows_max = BUFFER_BYTES / sl_dtype_bytes(writer->dtype);
    while (first < end) {
        uint64_t column = first % p->columns, rows = (end - first) / p->columns, columns;
        if (column == 0 && rows > 0) {
            rows = sl_min_u64(rows, rows_max);
            columns = p->columns;
        } else {
            rows = 1;
            columns = sl_min_u64(p->columns - column, end - first);
        }
        int rc = write_tile(writer, param, first / p->columns, rows, column, columns, dtype, data,
                            error);
        if (rc)
            return rc;
        first += rows * columns;
        data += rows * columns * sl_dtype_bytes(dtype);
    }
    return 0;
}

int sl_weights_writer_write(struct sl_weights_writer *writer, size_t param, uint64_t first,
                            size_t count, enum sl_dtype dtype, const void *data,
                            struct sl_error *error)
{
    const struct sl_param *p = &writer->model->params[param];
    if (param >= writer->model->param_count || first > p->rows * p->columns ||
        count > p->rows * p->columns - first)
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                            "write of %zu elements at %" PRIu64 " leaves parameter %zu", count,
                            first, param);
    atomic_fetch_add(&writer->places[param].written, count);
    if (p->transposed_in_file)
        return write_transposed(writer, param, first, count, dtype, data, error);
    return write_plain(writer, param, first, count, dtype, data, error);
}

static int check_complete(struct sl_weights_writer *writer, struct sl_error *error)
{
    for (size_t i = 0; i < writer->model->param_count; i++) {
        const struct sl_param *p = &writer->model->params[i];
        uint64_t written = atomic_load(&writer->places[i].written);
        if (written != p->rows * p->columns)
            return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                                "%s: tensor \"%s\": %" PRIu64 " elements written, it has %" PRIu64,
                                writer->directory, p->name, written, p->rows * p->columns);
    }
    return 0;
}

static int sync_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

int sl_weights_writer_finish(struct sl_weights_writer *writer, struct sl_error *error)
{
    int rc = check_complete(writer, error);
    if (!rc) {
        rc = sl_weights_output_sync(writer->output, error);
        if (rc && error)
            sl_error_prefix(error, "%s", writer->directory);
    }
    if (!rc) {
        rc = sync_directory(writer->directory);
        if (rc)
            sl_error_set(error, SL_DOMAIN_IO, rc, "%s: fsync: %s", writer->directory,
                         strerror(-rc));
    }
    free_writer(writer);
    return rc;
}
