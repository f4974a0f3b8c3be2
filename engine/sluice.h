// SPDX-License-Identifier: Apache-2.0
/* Sluice as a library: train, plan and read checkpoints from a program of one's own. The command
 * line is a user of this header like any other.
 *
 *     struct sl_train_options options = {
 *         .run = {.model = "bible-2m", .data = &file, .data_count = 1}, .out = "out"};
 *     struct sl_train_result result;
 *     struct sl_error error = {0};
 *     if (sl_train(&options, &result, &error))
 *         fprintf(stderr, "%s\n", error.message);
 *
 * Memory   a run maps what its plan says before the first step and nothing after it
 * Threads  one run at a time per process; callbacks come from the calling thread
 * Errors   0 or a negative errno, with a sentence in struct sl_error; the library never prints and
 *          never exits
 */
#ifndef SLUICE_ENGINE_SLUICE_H
#define SLUICE_ENGINE_SLUICE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SL_API __attribute__((visibility("default")))

/* "0.1.0". */
SL_API const char *sl_version(void);

/* The user's arguments, as on the command line. All strings are borrowed during the call. */
struct sl_run_options {
    const char *model;       /* folder with config.json, or a preset: "tiny", "gpt2-124m", ... */
    const char *config;      /* DeepSpeed JSON, Accelerate YAML, or NULL */
    const char *const *sets; /* "key=value": docs/config.md */
    size_t set_count;
    const char *const *data; /* text, JSONL or token files */
    size_t data_count;
    const char *cache;        /* folder that keeps token ids of texts; NULL: none is kept */
    const char *device;       /* NULL: "auto"; "host", "host:discrete", "cuda", "cuda:N" */
    const char *hardware;     /* profile of this machine to choose and predict by; NULL: the saved
                                 one, if there is one */
    const struct sl_log *log; /* NULL: silence */
    const volatile sig_atomic_t *stop; /* nonzero: stop reading data, -ECANCELED; NULL: never */
};

/* Lanes, in this order, of every array below. */
enum { SL_LANES = 8 };
/* "compute", "h2d", "d2h", "cpu", "control", "nvme_read", "nvme_write", "net". */
SL_API const char *sl_lane_text(int lane);

/* What is known after a step. Times in seconds, of this step. */
struct sl_progress {
    uint64_t step, steps; /* done, of; step 0 brings eval_loss and nothing else */
    double loss;          /* nats per token */
    double norm, norm_clipped, lr, loss_scale;
    bool skipped; /* a gradient was not finite */
    uint64_t skipped_total;
    const char *speculation; /* "right", "wrong", "off"; NULL: schedule.speculate is 0 */
    double tokens_per_second, step_seconds, eta_seconds;
    double busy_seconds[SL_LANES], wait_seconds[SL_LANES];
    bool evaluated;
    double eval_loss;
    const char *saved; /* checkpoint just written, or NULL */
    bool due;          /* steps_per_print asks for a line: the first step, each so many, the last */
};

struct sl_train_options {
    struct sl_run_options run;
    const char *out;   /* output folder; made if needed */
    bool resume;       /* go on from the newest checkpoint in `out` */
    const char *trace; /* file for Perfetto, or NULL */
    void (*progress)(void *user, const struct sl_progress *progress);
    /* Called once with the plan as text, before memory is taken. NULL allowed. */
    void (*planned)(void *user, const char *text);
    /* Called once with the first sequence as text, what is trained and what is context told apart,
     * before the first step of a run that is not resumed. NULL allowed. */
    void (*example)(void *user, const char *text);
    void *user;
    const volatile sig_atomic_t *stop; /* nonzero: finish the step, save, return; NULL: never */
};

#define SL_RESULT_PATH_BYTES 4224

struct sl_train_result {
    uint64_t step;
    double loss, eval_loss;             /* NAN: not measured */
    uint64_t peak_bytes, planned_bytes; /* host memory: measured and predicted */
    uint64_t lane_bytes[SL_LANES];      /* moved in all */
    uint64_t growth_bytes;              /* resident memory gained after the second step */
    char checkpoint[SL_RESULT_PATH_BYTES];
    bool stopped;
};

/* Train. `result` may be NULL. Token ids of texts are kept in OUT/cache where run.cache is NULL,
 * unless data.cache is false.
 *
 * Errors   SL_DOMAIN_INPUT and SL_DOMAIN_MEMORY before anything is created but that cache; later
 *          ones leave the last checkpoint intact
 * Durable  checkpoints are whole or absent, whenever the process ends */
SL_API int sl_train(const struct sl_train_options *options, struct sl_train_result *result,
                    struct sl_error *error);

/* Plan a run: memory of every tier, bytes of every lane. Takes no memory and writes nothing.
 * -ENOMEM in SL_DOMAIN_MEMORY: it does not fit; the message says what is missing and what would.
 * Owner: the caller frees *text with free(). */
SL_API int sl_plan_run(const struct sl_run_options *options, bool json, char **text,
                       struct sl_error *error);

/* Compute the hash of a checkpoint's training state from its files, and compare it with the saved
 * one: -EBADMSG where they differ (both are filled). */
SL_API int sl_checkpoint_verify(const char *directory, uint64_t *hash, uint64_t *saved,
                                struct sl_error *error);

#ifdef __cplusplus
}
#endif

#endif
