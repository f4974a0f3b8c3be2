// SPDX-License-Identifier: Apache-2.0
/* What train, plan and simulate have in common: from the user's arguments to a model, a resolved
 * configuration, the data, and the options of an engine. Creates and writes nothing.
 */
#ifndef SLUICE_ENGINE_SESSION_H
#define SLUICE_ENGINE_SESSION_H

#include "base/error.h"
#include "base/log.h"
#include "engine/config.h"
#include "engine/config_report.h"
#include "engine/dataset.h"
#include "engine/engine.h"
#include "engine/hardware.h"
#include "engine/model.h"
#include "engine/sluice.h"
#include "engine/tokenizer.h"

struct sl_session {
    struct sl_model model;
    bool model_has_weights; /* `model` is a folder with weights */
    char model_path[SL_CONFIG_PATH_BYTES];
    struct sl_config config;
    struct sl_config_report report;
    struct sl_tokenizer *tokenizer;
    struct sl_dataset *dataset; /* NULL without data */
    uint64_t steps;             /* of the run; 0 where neither steps nor data are given */
    uint64_t steps_given;       /* train.steps; 0: from epochs and data */
    const char *nvme_paths[SL_CONFIG_NVME_PATHS_MAX];
    struct sl_hardware hardware; /* of this machine, where has_hardware */
    bool has_hardware;
    struct sl_engine_options engine;
};

/* Owner: the caller, until sl_session_close; a failed open leaves nothing. The session must not
 * move while an engine made from it lives. Errors: SL_DOMAIN_INPUT with key or file, -ENOMEM. */
int sl_session_open(struct sl_session *session, const struct sl_run_options *options,
                    struct sl_error *error);
/* The same for a simulation: NVMe folders need not exist here. */
int sl_session_open_elsewhere(struct sl_session *session, const struct sl_run_options *options,
                              struct sl_error *error);
/* The same for reading weights as they are: train.precision is by default the type in which the
 * folder holds them. */
int sl_session_open_weights(struct sl_session *session, const struct sl_run_options *options,
                            struct sl_error *error);

/* Another batch than the configuration's: what "auto" has become, or what a run was begun with. The
 * run's steps follow. Errors: the data has fewer samples. */
int sl_session_set_batch(struct sl_session *session, uint64_t micro_batch, uint64_t accumulation,
                         struct sl_error *error);
void sl_session_close(struct sl_session *session); /* a zeroed one is allowed */

#endif
