// SPDX-License-Identifier: Apache-2.0
/* Checkpoints: a model folder that `transformers` loads, with the training state beside it.
 *
 *     OUT/checkpoint-00000200/
 *         config.json model.safetensors tokenizer.json ...   weights in the run's precision
 *         sluice.json                                        the manifest (docs/checkpoint.md)
 *         sluice-master.safetensors                          f32, in the names of the weights
 *         sluice-exp_avg.safetensors  sluice-exp_avg_sq.safetensors
 *
 * Files are the same bytes whatever the placement. A checkpoint is written beside its name and
 * renamed when all of it is on the disk: it is whole or absent.
 */
#ifndef SLUICE_ENGINE_CHECKPOINT_H
#define SLUICE_ENGINE_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/dataset.h"
#include "engine/engine.h"
#include "engine/loss_scaler.h"
#include "engine/tokenizer.h"

#define SL_CHECKPOINT_PATH_BYTES 4224
#define SL_FINGERPRINT_BYTES 256

/* What a manifest says. New field: also checkpoint_manifest.c and docs/checkpoint.md. */
struct sl_checkpoint {
    uint64_t step, updates; /* steps done, and those of them that were applied */
    uint64_t seed;
    struct sl_dataset_state data;
    uint64_t data_fingerprint;
    uint8_t scaler[SL_LOSS_SCALER_STATE_BYTES];
    enum sl_dtype precision;
    enum sl_optim_kind optimizer;
    enum sl_moment_kind moments;
    enum sl_master_kind master; /* numeric: NONE or not */
    uint64_t micro_batch, accumulation, sequence_length; /* numeric keys */
    uint64_t tile_bytes, layer_bytes;                    /* likewise */
    uint64_t delayed_update;                             /* 1: likewise */
    uint64_t param_elements;
    double eval_loss, best_loss;            /* NAN: not measured */
    char fingerprint[SL_FINGERPRINT_BYTES]; /* what else the bits depend on */
    uint64_t state_hash;                    /* sl_state_hash() */
};

/* The GPU's name, or "host": neither its threads nor its instruction set decide any bit. */
void sl_checkpoint_fingerprint(const struct sl_engine *engine, char text[SL_FINGERPRINT_BYTES]);

/* Write a checkpoint of a flushed engine as `directory`, which must not exist. state_hash is filled
 * in. `origin` (or NULL) is the folder that the model came from, whose small files are carried
 * over. Durability: survives a crash after success; after a failure nothing is there. */
int sl_checkpoint_save(struct sl_engine *engine, const char *directory, const char *origin,
                       const struct sl_tokenizer *tokenizer, struct sl_checkpoint *checkpoint,
                       struct sl_error *error);

/* Read the manifest. Errors: -ENOENT, -EINVAL with the field. */
int sl_checkpoint_read(const char *directory, struct sl_checkpoint *checkpoint,
                       struct sl_error *error);

/* Fill a started engine. The state's hash is compared with the manifest's: -EBADMSG names both. */
int sl_checkpoint_load(struct sl_engine *engine, const char *directory,
                       const struct sl_checkpoint *checkpoint, struct sl_error *error);

/* Fill masters and weights from a model folder, moments zero. */
int sl_checkpoint_load_weights(struct sl_engine *engine, const char *directory,
                               struct sl_error *error);

/* The state hash, computed from the files. */
int sl_checkpoint_hash(const char *directory, uint64_t *hash, struct sl_error *error);

/* The checkpoint of the highest step below `out`, or -ENOENT. */
int sl_checkpoint_latest(const char *out, char path[SL_CHECKPOINT_PATH_BYTES],
                         struct sl_error *error);

/* OUT/checkpoint-%08u */
void sl_checkpoint_path(const char *out, uint64_t step, char path[SL_CHECKPOINT_PATH_BYTES]);

/* Remove all but the `keep` newest (0: keep all) and `except` (may be NULL). */
int sl_checkpoint_prune(const char *out, uint64_t keep, const char *except, struct sl_error *error);

/* checkpoint_manifest.c */
int sl_checkpoint_manifest_write(const char *directory, const struct sl_checkpoint *checkpoint,
                                 struct sl_error *error);

#endif
