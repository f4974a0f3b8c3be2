// SPDX-License-Identifier: Apache-2.0
/* Training: the main road from a session to checkpoints. */
#ifndef SLUICE_ENGINE_TRAINER_H
#define SLUICE_ENGINE_TRAINER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/checkpoint.h"
#include "engine/session.h"

/* What is known after a step: for a progress line. */
struct sl_progress {
    uint64_t step, steps; /* done, of */
    double loss, norm, norm_clipped, lr, loss_scale;
    bool skipped;
    uint64_t skipped_total;
    double tokens_per_second, step_seconds, eta_seconds;
    double busy_seconds[SL_LANE_COUNT], wait_seconds[SL_LANE_COUNT]; /* of this step */
    bool evaluated;
    double eval_loss;  /* nats per token */
    const char *saved; /* checkpoint just written, or NULL */
};

struct sl_trainer_options {
    struct sl_session_options session;
    const char *out; /* output folder; made if needed */
    bool resume;
    const char *trace; /* file for Perfetto, or NULL */
    void (*progress)(void *user, const struct sl_progress *progress);
    /* The plan is made and checked, before memory is taken. */
    void (*planned)(void *user, const struct sl_engine *engine, const struct sl_session *session);
    void *user;
    const volatile sig_atomic_t *stop; /* finish the step, save, return; NULL: never */
};

struct sl_trainer_result {
    uint64_t step;
    double loss, eval_loss;
    uint64_t peak_bytes, planned_bytes; /* host memory: measured and predicted */
    uint64_t lane_bytes[SL_LANE_COUNT];
    uint64_t heap_growth_bytes; /* after step 1 */
    char checkpoint[SL_CHECKPOINT_PATH_BYTES];
    bool stopped;
};

/* Errors: input before anything is created; later ones leave the last checkpoint intact. */
int sl_train(const struct sl_trainer_options *options, struct sl_trainer_result *result,
             struct sl_error *error);

#endif
