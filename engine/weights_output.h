// SPDX-License-Identifier: Apache-2.0
/* Positioned writes into several files: neighbours are joined, and whole blocks go to the drive
 * with O_DIRECT. Used by the weight writer. */
#ifndef SLUICE_ENGINE_WEIGHTS_OUTPUT_H
#define SLUICE_ENGINE_WEIGHTS_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SL_WEIGHTS_OUTPUT_BUFFER_BYTES ((size_t)8 << 20)

struct sl_weights_output;

/* Memory: the buffer above. Owner: the caller, until destroy. */
int sl_weights_output_create(struct sl_weights_output **out, uint32_t file_count,
                             struct sl_error *error);
void sl_weights_output_destroy(struct sl_weights_output *output); /* NULL allowed; writes nothing */

/* Give file `index`: an open descriptor, which is owned from here on, and its path. */
void sl_weights_output_add(struct sl_weights_output *output, uint32_t index, int fd,
                           const char *path);

/* Write bytes at `offset` of a file. `data` has been copied or written on return; a failure may
 * show in a later call.
 *
 * Threads  safe on disjoint ranges; calls take turns */
int sl_weights_output_write(struct sl_weights_output *output, uint32_t index, uint64_t offset,
                            const void *data, size_t bytes, struct sl_error *error);

/* Write what is buffered and fsync every file. Durability: after 0 the data survives a crash. */
int sl_weights_output_sync(struct sl_weights_output *output, struct sl_error *error);

#endif
