// SPDX-License-Identifier: Apache-2.0
/* An arena: all host memory of a tier in one mapping of the exact size, touched before training so
 * that the figure of the plan is the figure of the process. Huge pages where the kernel gives them.
 */
#ifndef SLUICE_OFFLOAD_ARENA_H
#define SLUICE_OFFLOAD_ARENA_H

#include <stdint.h>

#include "base/error.h"
#include "offload/workers.h"

struct sl_arena {
    unsigned char *base; /* aligned to 2 MiB where large, to a page otherwise */
    uint64_t bytes;
    void *mapping; /* private */
    uint64_t mapping_bytes;
};

/* Map and touch `bytes` (0 gives an empty arena). First touch is done by the workers, so that on
 * NUMA machines pages lie near the threads that use them; workers NULL: by the caller. All zero.
 * Errors: -ENOMEM with the size. */
int sl_arena_create(struct sl_arena *arena, uint64_t bytes, struct sl_workers *workers,
                    struct sl_error *error);
void sl_arena_destroy(struct sl_arena *arena); /* a zeroed arena is allowed */

#endif
