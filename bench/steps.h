// SPDX-License-Identifier: Apache-2.0
/* Real training steps on synthetic tokens, for programs that measure them. */
#ifndef SLUICE_BENCH_STEPS_H
#define SLUICE_BENCH_STEPS_H

#include "engine/engine.h"

struct bench_steps {
    double seconds;                           /* median, from decision to decision */
    double mean_seconds;                      /* of the measured steps */
    double busy_seconds[SL_LANE_COUNT];       /* per step */
    double wait_seconds[SL_LANE_COUNT];       /* likewise */
    double bytes[SL_LANE_COUNT];              /* likewise, link and NVMe lanes */
    enum sl_lane busiest;
};

/* Start a planned engine, fill it, run `warm` and then `measured` steps (the last of which is not
 * followed by another). Errors: printed under `program`, and the program ends with 1. */
void bench_steps_run(struct sl_engine *engine, const char *program, uint32_t warm,
                     uint32_t measured, double clip, struct bench_steps *steps);

#endif
