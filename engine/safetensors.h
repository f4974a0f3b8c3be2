// SPDX-License-Identifier: Apache-2.0
/* The safetensors file format: a strict reader and the head of a writer. Nothing here knows models;
 * engine/weights.h does.
 *
 *     +--------+----------------------+------------------------------------+
 *     | u64 LE | N bytes of JSON      | tensor data, contiguous, no holes  |
 *     |   N    | padded with spaces   |                                    |
 *     +--------+----------------------+------------------------------------+
 *     0        8                      8 + N: data offset 0                  file size
 *
 * A file is refused unless it is exactly that: known types, sizes that agree with shapes, offsets
 * that cover the data once, no key twice. The reader holds the list of tensors and no data.
 */
#ifndef SLUICE_ENGINE_SAFETENSORS_H
#define SLUICE_ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

#define SL_SAFETENSORS_HEADER_BYTES_MAX 100000000u
#define SL_SAFETENSORS_TENSORS_MAX (1u << 20)
#define SL_SAFETENSORS_RANK_MAX 8u
#define SL_SAFETENSORS_ALIGNMENT                                                                   \
    4096u /* of the data that we write, so that O_DIRECT can read it                               \
           */

enum sl_safetensors_type {
    SL_ST_BOOL,
    SL_ST_U8,
    SL_ST_I8,
    SL_ST_F8_E5M2,
    SL_ST_F8_E4M3,
    SL_ST_I16,
    SL_ST_U16,
    SL_ST_F16,
    SL_ST_BF16,
    SL_ST_I32,
    SL_ST_U32,
    SL_ST_F32,
    SL_ST_F64,
    SL_ST_I64,
    SL_ST_U64,
    SL_ST_TYPE_COUNT
};

const char *sl_safetensors_type_name(enum sl_safetensors_type type);
size_t sl_safetensors_type_bytes(enum sl_safetensors_type type);
enum sl_safetensors_type sl_safetensors_type_of(enum sl_dtype dtype);

struct sl_safetensor {
    char *name; /* inside the owner's name pool; UTF-8 without zero bytes */
    enum sl_safetensors_type type;
    uint32_t rank;
    uint64_t shape[SL_SAFETENSORS_RANK_MAX];
    uint64_t begin, end; /* bytes, relative to the data */
};

/* The parsed head of a file: tensors sorted by name. */
struct sl_safetensors {
    char *path;
    int fd;
    uint64_t data_offset; /* in the file: 8 + N */
    struct sl_safetensor *tensors;
    size_t count;
    char *names; /* the pool */
};

/* Open a file for reading and check all of its head against its size.
 *
 * Memory   at most the header (<= 100 MB) and 96 bytes a tensor, whatever the file claims
 * Owner    the caller, until sl_safetensors_close; a failed open leaves nothing behind
 * Errors   -errno of the file system; -EINVAL for a broken rule, naming file, tensor and field */
int sl_safetensors_open(struct sl_safetensors *file, const char *path, struct sl_error *error);

void sl_safetensors_close(struct sl_safetensors *file); /* zeroed struct allowed */

/* The tensor of this name, or NULL. */
const struct sl_safetensor *sl_safetensors_find(const struct sl_safetensors *file,
                                                const char *name);

/* Read bytes [first, first + bytes) of a tensor. The range must lie inside it.
 *
 * Threads  safe */
int sl_safetensors_read(const struct sl_safetensors *file, const struct sl_safetensor *tensor,
                        uint64_t first, size_t bytes, void *out, struct sl_error *error);

/* The step of open that needs no file: parse and check `header` against the number of data bytes.
 * Fills tensors, count and names of `file` and nothing else. `path` is for messages. */
int sl_safetensors_parse(struct sl_safetensors *file, const char *path, const char *header,
                         size_t header_bytes, uint64_t data_bytes, struct sl_error *error);

/* Create `path` (it must not exist) with the header of `tensors` and room for their data.
 *
 * Shapes   tensors: [count]; name, type, rank and shape are read, begin and end are filled in;
 *          the array is reordered: by size of the type descending, then by name
 * Owner    *fd is the caller's; data of a tensor belongs at *data_offset + begin
 * Durable  nothing before the caller's fsync */
int sl_safetensors_create(const char *path, struct sl_safetensor *tensors, size_t count, int *fd,
                          uint64_t *data_offset, struct sl_error *error);

#endif
