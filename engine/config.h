// SPDX-License-Identifier: Apache-2.0
/* The resolved configuration of a run: what a DeepSpeed JSON or an Accelerate YAML, the --set keys
 * and the defaults come to, as plain values. No pointers: a struct sl_config may be copied.
 *
 * Every key that a user may write is in one table (engine/config_keys.h), from which
 * docs/config.md is generated. Loading reads files and looks at paths; it creates nothing.
 */
#ifndef SLUICE_ENGINE_CONFIG_H
#define SLUICE_ENGINE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "engine/loss_scaler.h"
#include "engine/schedule_lr.h"
#include "kernels/cpu/optim.h"

#define SL_CONFIG_PATH_BYTES 1024
#define SL_CONFIG_NVME_PATHS_MAX 16
#define SL_CONFIG_FROZEN_MAX 64
#define SL_CONFIG_PATTERN_BYTES 128
#define SL_CONFIG_TILE_AUTO (1ull << 62)

/* Kinds of state and the tiers they lie on. */
enum sl_config_kind {
    SL_CONFIG_WEIGHTS,
    SL_CONFIG_GRADIENTS,
    SL_CONFIG_OPTIMIZER,
    SL_CONFIG_ACTIVATIONS,
    SL_CONFIG_KIND_COUNT
};
enum sl_config_tier { SL_CONFIG_DEVICE, SL_CONFIG_HOST, SL_CONFIG_NVME, SL_CONFIG_TIER_COUNT };

const char *sl_config_kind_name(enum sl_config_kind kind); /* "weights", ... */
const char *sl_config_tier_name(enum sl_config_tier tier); /* "device", "host", "nvme" */

struct sl_config_placement {
    bool given;                            /* false: the plan chooses, fastest tier first */
    double fraction[SL_CONFIG_TIER_COUNT]; /* given: sums to 1 */
};

enum sl_config_order { SL_CONFIG_ORDER_AUTO, SL_CONFIG_LAYER_MAJOR, SL_CONFIG_BATCH_MAJOR };

enum sl_config_nvme_backend { SL_CONFIG_NVME_AUTO, SL_CONFIG_NVME_URING, SL_CONFIG_NVME_THREADS };

struct sl_config_nvme {
    char paths[SL_CONFIG_NVME_PATHS_MAX][SL_CONFIG_PATH_BYTES];
    size_t path_count;
    uint64_t block_bytes;  /* 0: chosen */
    uint64_t queue_depth;  /* 0: chosen */
    uint64_t thread_count; /* 0: chosen; workers of the fallback without io_uring */
    enum sl_config_nvme_backend backend;
    bool checksums;
};

struct sl_config_monitor {
    bool enabled;
    char output_path[SL_CONFIG_PATH_BYTES]; /* "": under the run's output folder */
    char job_name[SL_CONFIG_PATTERN_BYTES];
};

struct sl_config {
    /* batch: train_batch = micro_batch * accumulation, one rank */
    uint64_t micro_batch, accumulation, train_batch;
    bool micro_batch_auto;  /* asked for "auto" and nothing fixes it: micro_batch is what it is
                               where it cannot be chosen */
    bool train_batch_given; /* micro_batch_auto: the batch stays, accumulation follows */
    uint64_t sequence_length; /* 0: the smaller of 1024 and the model's positions */
    uint64_t steps;           /* updates; 0: from epochs */
    double epochs;            /* 0: from steps */
    uint64_t seed;

    /* precision: the type of each kind of tensor follows from it */
    enum sl_dtype precision;      /* SL_F32: 32-bit training */
    enum sl_dtype gradient_dtype; /* as stored between backward pass and update */
    enum sl_master_kind master_kind;
    enum sl_moment_kind moment_kind;

    /* update; hyper.lr is the schedule's base, hyper.step is set by the trainer */
    struct sl_optim_hyper optimizer;
    struct sl_schedule schedule;
    bool total_steps_of_run; /* schedule.total_steps is the run's count: sl_config_set_steps */
    double warmup_ratio;     /* > 0: warm-up steps are this share of the run's */
    double clip_norm;        /* 0: no clipping */
    struct sl_loss_scaler_options scaler;

    /* placement */
    struct sl_config_placement placement[SL_CONFIG_KIND_COUNT];
    uint64_t memory_bytes[SL_CONFIG_TIER_COUNT]; /* budgets; 0: what the machine has */
    struct sl_config_nvme nvme;

    /* upper bounds on what the plan may take; 0: no bound of the user's */
    uint64_t sub_group_elements_max; /* 1: one tensor per sub-group */
    uint64_t param_buffer_count_max, param_buffer_elements_max;
    uint64_t optimizer_buffer_count_max;
    uint64_t prefetch_elements_max, live_elements_max; /* sl_config_prefetch_layers */
    bool optimizer_pipeline_read, optimizer_pipeline_write;
    uint64_t threads; /* host workers; 0: every core */

    /* schedule of the plan */
    enum sl_config_order order;
    uint64_t prefetch_layers;   /* 0: chosen */
    uint64_t micro_batch_group; /* micro-batches per layer visit; 0: all of them */
    bool activation_checkpointing, activation_checkpointing_given; /* not given: may be chosen */
    double speculate; /* share of the parameters that is updated during the backward pass */
    bool speculate_given;
    bool speculate_always;
    bool delayed_update; /* numeric key */
    uint64_t tile_table_bytes; /* numeric key; 0: never; SL_CONFIG_TILE_AUTO: by the table */
    uint64_t tile_layer_bytes; /* numeric key; 0: never */

    /* from files to sequences: engine/dataset.h */
    struct {
        char chat_template[16]; /* "": by the model's own */
        bool train_on_prompt, no_packing, allow_special, in_order, no_cache;
        double validation_fraction;            /* 0 where nothing is evaluated */
        char cache_path[SL_CONFIG_PATH_BYTES]; /* "": in the run's output folder */
    } data;

    /* what is written while training */
    uint64_t print_steps;   /* a progress line every so many steps; 0: none */
    uint64_t eval_interval; /* 0: no evaluation */
    uint64_t eval_batches;  /* 0: the whole evaluation set */
    bool eval_at_start;     /* also before the first step */
    uint64_t save_interval; /* 0: only at the end */
    uint64_t keep_last;     /* checkpoints kept; 0: all */
    bool keep_best;         /* by evaluation loss */
    struct {
        bool enabled, detailed;
        uint64_t step, top_modules;
        int64_t module_depth;
        char output_file[SL_CONFIG_PATH_BYTES];
    } flops_profiler;
    struct sl_config_monitor csv, tensorboard;

    char frozen[SL_CONFIG_FROZEN_MAX][SL_CONFIG_PATTERN_BYTES]; /* parameter name patterns */
    size_t frozen_count;
};

/* What `auto` needs to know of the model; zeros where there is none yet. */
struct sl_config_model_facts {
    uint64_t hidden, layers, param_elements, positions_max;
};

struct sl_config_inputs {
    const char *path;        /* DeepSpeed JSON or Accelerate YAML, or base64 of the JSON; or NULL */
    const char *const *sets; /* "key=value", in order; a later one wins */
    size_t set_count;
    struct sl_config_model_facts model;
    bool check_paths;      /* NVMe folders must exist and be writable */
    const char *precision; /* the default of train.precision without a file; NULL: bf16 */
};

/* Tell a configuration how many updates the run makes, where that was not known at loading (it
 * follows from epochs and the data): sets steps, and what a schedule derives from them. */
void sl_config_set_steps(struct sl_config *config, uint64_t steps);

/* Layers that may be fetched ahead of their use: schedule.prefetch_layers, or 1, within the bounds
 * of the prefetch bucket, the live parameters and the staging buffers. Never less than 1.
 *
 * Units    layer_elements: of the largest layer */
uint32_t sl_config_prefetch_layers(const struct sl_config *config, uint64_t layer_elements);

struct sl_config_report; /* engine/config_report.h */

/* Read, check and resolve.
 *
 * Memory   *config is written whole; the report owns its strings until sl_config_report_finish.
 *          report may be NULL; otherwise zeroed before, and finished by the caller in every case
 * Threads  any; no shared state
 * Errors   SL_DOMAIN_INPUT, -EINVAL or the errno of reading: file, line, key, value and remedy.
 *          Several problems are listed at once, one a line; report->problems has all of them */
int sl_config_load(struct sl_config *config, const struct sl_config_inputs *inputs,
                   struct sl_config_report *report, struct sl_error *error);

#endif
