// SPDX-License-Identifier: Apache-2.0
/* The weights of a model folder: every parameter of a struct sl_model, read from and written to
 * safetensors files by element ranges, so that the caller decides how much memory a load or a save
 * takes.
 *
 * Element order is the model's: row-major [rows, columns] of struct sl_param. Matrices that lie
 * transposed in the file (GPT-2) are transposed on the way.
 */
#ifndef SLUICE_ENGINE_WEIGHTS_H
#define SLUICE_ENGINE_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "engine/model.h"

struct sl_weights;

/* Open model.safetensors, or the files of model.safetensors.index.json, and account for every
 * tensor: those that are missing, extra or of another shape are one error that lists them.
 * Allowed extra: known buffers of old checkpoints, and the copy of a tied head.
 *
 * Memory   the heads of the files; no data is read
 * Owner    the caller, until sl_weights_close; `model` is borrowed until then
 * Errors   -ENOENT no weights in the folder (other formats are named); -EINVAL the list above, a
 *          broken file, or an index whose file names leave the folder */
int sl_weights_open(struct sl_weights **out, const char *directory, const struct sl_model *model,
                    struct sl_error *error);
void sl_weights_close(struct sl_weights *weights); /* NULL allowed */

/* The type in which the file holds a parameter. */
enum sl_dtype sl_weights_dtype(const struct sl_weights *weights, size_t param);

/* Elements [first, first + count) of model->params[param] as `dtype`. The file's own type is copied
 * bit for bit; otherwise converted as base/dtype.h does.
 *
 * A read of a mebibyte or more streams: a thread reads ahead with O_DIRECT while this one copies or
 * converts, and goes on past the end of the range. Reading in sl_weights_file_order keeps it busy.
 *
 * Shapes   out: [count] of dtype
 * Memory   64 KiB of stack; 16 MiB from the first streaming read until close
 * Threads  safe; one read at a time streams, others read by themselves */
int sl_weights_read(struct sl_weights *weights, size_t param, uint64_t first, size_t count,
                    enum sl_dtype dtype, void *out, struct sl_error *error);

/* The parameters by their place in the files: order[0] lies first. order: [param_count]. */
void sl_weights_file_order(const struct sl_weights *weights, size_t *order);

/* ---- Writing ---- */

struct sl_weights_writer;

struct sl_weights_writer_options {
    const char *directory;        /* exists; the caller makes it atomic (sl_model_folder_begin) */
    const struct sl_model *model; /* borrowed until finish or abort */
    enum sl_dtype dtype;          /* of the files */
    uint64_t shard_bytes_max;     /* 0: 5 GB; a tensor larger than that gets a file of its own */
};

/* Create the files, with their final sizes, and the index where there are several. */
int sl_weights_writer_create(struct sl_weights_writer **out,
                             const struct sl_weights_writer_options *options,
                             struct sl_error *error);

/* Write elements [first, first + count) of a parameter. Any order; every element once. Whole
 * parameters are fastest where the file is transposed.
 *
 * Shapes   data: [count] of dtype; converted where the file's type differs
 * Memory   64 KiB of stack; the writer has 8 MiB
 * Threads  safe on disjoint ranges; the writes themselves take turns
 * Errors   a failed write may show in a later call or in finish */
int sl_weights_writer_write(struct sl_weights_writer *writer, size_t param, uint64_t first,
                            size_t count, enum sl_dtype dtype, const void *data,
                            struct sl_error *error);

/* Check that every parameter is complete, fsync the files and the folder, free the writer (also
 * after an error). Durability: the weights survive a crash after success. */
int sl_weights_writer_finish(struct sl_weights_writer *writer, struct sl_error *error);
void sl_weights_writer_abort(struct sl_weights_writer *writer); /* NULL allowed; files remain */

/* ---- A folder that appears whole or not at all ---- */

#define SL_MODEL_FOLDER_PATH_BYTES 4096

/* Make an empty folder beside `directory` and give its path. A leftover of a crashed run with the
 * same name is emptied. -EEXIST where `directory` exists and is not an empty folder. */
int sl_model_folder_begin(const char *directory, char temporary[SL_MODEL_FOLDER_PATH_BYTES],
                          struct sl_error *error);

/* fsync the files of the temporary folder, give it its final name, fsync the parent. */
int sl_model_folder_commit(const char *temporary, const char *directory, struct sl_error *error);

void sl_model_folder_abort(const char *temporary); /* removes its files and the folder */

#endif
