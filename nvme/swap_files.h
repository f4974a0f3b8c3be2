// SPDX-License-Identifier: Apache-2.0
/* The files below a swap space: locked directories, nameless files allocated in full, and the map
 * from an offset of the swap space to a file and an offset in it.
 */
#ifndef SLUICE_NVME_SWAP_FILES_H
#define SLUICE_NVME_SWAP_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "nvme/swap.h"

#define SL_STRIPE_PATTERN_MAX 256u

struct sl_swap_file {
    char *path; /* of the directory, for messages */
    int directory_fd;
    int fd;
    bool direct;
    uint64_t bytes;
};

/* Stripe units go to files in a repeating pattern; file f holds count[f] units of each repetition,
 * one after the other. */
struct sl_stripes {
    uint64_t unit_bytes;
    uint32_t length;
    uint8_t file[SL_STRIPE_PATTERN_MAX];
    uint8_t rank[SL_STRIPE_PATTERN_MAX]; /* how many earlier entries have the same file */
    uint32_t count[SL_SWAP_PATHS_MAX];
};

struct sl_swap_files {
    struct sl_swap_file files[SL_SWAP_PATHS_MAX];
    size_t count;
    bool direct; /* on every path */
    struct sl_stripes stripes;
};

/* Lock, open and allocate. On failure nothing stays behind and `error` says why. */
int sl_swap_files_open(struct sl_swap_files *files, const struct sl_swap_options *options,
                       struct sl_error *error);
void sl_swap_files_close(struct sl_swap_files *files);

/* Fill the pattern from weights (NULL: equal). */
void sl_stripes_init(struct sl_stripes *stripes, size_t file_count, const double *weights,
                     uint64_t unit_bytes);
/* How many bytes file `file` needs for a swap space of bytes_total. */
uint64_t sl_stripes_file_bytes(const struct sl_stripes *stripes, unsigned file,
                               uint64_t bytes_total);
/* Where offset_bytes lies, and how many bytes follow it contiguously (at most `bytes`). */
uint64_t sl_stripes_map(const struct sl_stripes *stripes, uint64_t offset_bytes, uint64_t bytes,
                        unsigned *file, uint64_t *file_offset);

#endif
