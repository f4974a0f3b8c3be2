// SPDX-License-Identifier: Apache-2.0
/* Whole files, sequentially and durably: checkpoints and safetensors.
 *
 * The writer makes a file appear complete or not at all; the reader fetches any byte range. Both
 * use O_DIRECT where the file system takes it, so that gigabytes do not push the page cache out,
 * and work in memory that the caller gives. Huge pages for that memory, and for what is read in
 * place, double the rate: fewer segments per request.
 */
#ifndef SLUICE_NVME_FILE_H
#define SLUICE_NVME_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SL_FILE_ALIGNMENT 4096u
#define SL_FILE_BUFFER_BYTES_MIN (2u * SL_FILE_ALIGNMENT)
#define SL_FILE_BUFFER_BYTES ((size_t)16 << 20) /* enough for the device's speed */

struct sl_file_writer_options {
    const char *path;    /* replaced at commit; written as path.partial until then */
    void *buffer;        /* aligned to SL_FILE_ALIGNMENT; lent until commit or abort */
    size_t buffer_bytes; /* multiple of SL_FILE_BUFFER_BYTES_MIN */
    uint64_t bytes; /* expected size, allocated at once so that a full disk shows now; 0: none */
    unsigned mode;  /* permission bits; 0: 0644, less the umask */
    bool direct_off;
};

struct sl_file_writer;

/* Create path.partial (one left by a killed run is overwritten).
 *
 * Errors   -ENOENT, -EACCES, -ENOSPC (bytes needed and free are named), -ENOMEM
 * Threads  one at a time per writer; it starts one of its own that writes while the caller fills
 */
int sl_file_writer_open(struct sl_file_writer **out, const struct sl_file_writer_options *options,
                        struct sl_error *error);

/* Append bytes. `data` has been copied on return. A failed write may be reported by a later call;
 * from then on every call returns it. */
int sl_file_writer_append(struct sl_file_writer *writer, const void *data, uint64_t bytes,
                          struct sl_error *error);

/* Bytes appended so far. */
uint64_t sl_file_writer_position(const struct sl_file_writer *writer);

/* Finish the file and give it its name; frees the writer, also on failure (the partial file is
 * removed and the old one, if any, is untouched).
 *
 * Durability  after 0 the file and its name survive a power loss: written, fsync, rename, fsync of
 *             the directory, each checked. Before, the old file does.
 */
int sl_file_writer_commit(struct sl_file_writer *writer, struct sl_error *error);

/* Remove the partial file and free the writer; NULL allowed. */
void sl_file_writer_abort(struct sl_file_writer *writer);

struct sl_file_reader;

/* buffer is for the parts of ranges that O_DIRECT cannot put in place: aligned to
 * SL_FILE_ALIGNMENT, a multiple of SL_FILE_BUFFER_BYTES_MIN, lent until close.
 *
 * Errors   -ENOENT, -EACCES, -EISDIR, -ENOMEM
 */
int sl_file_reader_open(struct sl_file_reader **out, const char *path, void *buffer,
                        size_t buffer_bytes, bool direct_off, struct sl_error *error);

uint64_t sl_file_reader_bytes(const struct sl_file_reader *reader);

/* Read exactly `bytes` bytes at `offset_bytes`, both arbitrary. Where memory and offset are
 * congruent modulo SL_FILE_ALIGNMENT nothing but head and tail is copied.
 *
 * Errors   -ERANGE past the end, -EIO and what the device says; `data` is then undefined
 * Threads  one at a time per reader
 */
int sl_file_reader_read(struct sl_file_reader *reader, uint64_t offset_bytes, void *data,
                        uint64_t bytes, struct sl_error *error);

void sl_file_reader_close(struct sl_file_reader *reader); /* NULL allowed */

/* fsync the directory that holds `path`, so that names created or removed in it survive. */
int sl_file_sync_parent(const char *path, struct sl_error *error);

#endif
