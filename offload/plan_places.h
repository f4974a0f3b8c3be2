// SPDX-License-Identifier: Apache-2.0
/* Places for byte ranges that live for a while: each at the lowest offset that is free during its
 * whole life. */
#ifndef SLUICE_OFFLOAD_PLAN_PLACES_H
#define SLUICE_OFFLOAD_PLAN_PLACES_H

#include <stdint.h>

struct sl_place {
    uint32_t first, last; /* life, both included */
    uint64_t bytes;
    uint64_t offset; /* filled in */
};

/* Place them one after the other, in the order given, from offset 0 on: each at the lowest offset
 * where its bytes meet none of those placed before that live at the same time. Lives are within
 * [0, times).
 *
 * Errors   -ENOMEM */
int sl_places_find(struct sl_place *places, uint32_t count, uint32_t times);

#endif
