// SPDX-License-Identifier: Apache-2.0
/* Read-ahead over one file at a time: a thread fills a ring of chunks with O_DIRECT while the
 * caller copies or converts the chunk before. */
#ifndef SLUICE_ENGINE_WEIGHTS_STREAM_H
#define SLUICE_ENGINE_WEIGHTS_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* 4 x 4 MiB: two chunks keep a drive busy, the others cover a caller that pauses. */
#define SL_READ_STREAM_CHUNK_BYTES ((size_t)4 << 20)
#define SL_READ_STREAM_CHUNKS 4u

struct sl_read_stream;

/* Allocate the ring and start the thread. Owner: the caller, until destroy. */
int sl_read_stream_create(struct sl_read_stream **out, struct sl_error *error);
void sl_read_stream_destroy(struct sl_read_stream *stream); /* NULL allowed */

/* Read bytes [offset, offset + bytes) of `path`, both arbitrary. Going on where the last call
 * ended, or a little later, is fast; a jump costs the wait for one chunk.
 *
 * Threads  one caller at a time
 * Errors   what nvme/file.h says of opening and reading; the next call starts afresh */
int sl_read_stream_read(struct sl_read_stream *stream, const char *path, uint64_t offset,
                        size_t bytes, void *out, struct sl_error *error);

#endif
