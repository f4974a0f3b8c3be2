// SPDX-License-Identifier: Apache-2.0
/* A record of what each lane did when, written as Chrome trace JSON that Perfetto opens: one track
 * per lane, one slice per operation. Used by the executor (real time) and the simulator (virtual).
 */
#ifndef SLUICE_OFFLOAD_TRACE_H
#define SLUICE_OFFLOAD_TRACE_H

#include <stdint.h>

#include "base/error.h"
#include "offload/plan.h"

struct sl_trace;

struct sl_trace_event {
    const struct sl_op *op;
    uint64_t instance, start_ns, end_ns;
};

/* Room for `capacity` events, allocated now; further events are counted, not kept. */
int sl_trace_create(struct sl_trace **out, uint32_t capacity, struct sl_error *error);
void sl_trace_destroy(struct sl_trace *trace); /* NULL allowed */

/* Record one operation. Threads: any, several at once. `instance` counts segment instances. */
void sl_trace_add(struct sl_trace *trace, const struct sl_op *op, uint64_t instance,
                  uint64_t start_ns, uint64_t end_ns);

/* What was kept, in no order. Only once all lanes have come to rest. Owner: the trace. */
uint32_t sl_trace_events(const struct sl_trace *trace, const struct sl_trace_event **events);

/* Whether `path` can be written: asked before the run that the trace is of. Makes nothing. */
int sl_trace_check_path(const char *path, struct sl_error *error);

/* Write the file (JSON, times in microseconds from the first event). */
int sl_trace_write(const struct sl_trace *trace, const struct sl_plan *plan, const char *path,
                   struct sl_error *error);

#endif
