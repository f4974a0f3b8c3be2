// SPDX-License-Identifier: Apache-2.0
/* The optimizer alone, under a model that is somebody else's: gradients come in, weights go out,
 * the state is kept here, in host memory or on NVMe.
 *
 *     struct sl_optimizer_options options = {.algorithm = SL_OPTIMIZER_ADAMW};
 *     struct sl_optimizer_group group = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
 *                                        .weight_decay = 0.01, .bias_correction = true};
 *     sl_optimizer_create(&optimizer, &options, &error);
 *     sl_optimizer_group_add(optimizer, &group, &g, &error);
 *     sl_optimizer_add(optimizer, &(struct sl_optimizer_param){"w", n, SL_BF16, g}, &i, &error);
 *     sl_optimizer_seal(optimizer, &plan, &error);           takes all memory
 *     sl_optimizer_step(optimizer, &(struct sl_optimizer_step){gradients, NULL, weights,
 *                       .clip_norm = 1, .grad_scale = 1}, &result, &error);
 *
 * Memory   what the plan says, taken by seal; a step allocates nothing
 * Threads  calls on one optimizer must not overlap; different optimizers are independent
 * Numerics the same bits for every number of threads, sub-group size, buffer count and placement
 * Errors   0 or a negative errno with a sentence. After a failed I/O in a step the state and the
 *          weights are a mixture of two steps: every later call but destroy returns that error
 */
#ifndef SLUICE_ENGINE_OPTIMIZER_H
#define SLUICE_ENGINE_OPTIMIZER_H

#include "base/dtype.h"
#include "engine/sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

enum sl_optimizer_algorithm {
    SL_OPTIMIZER_ADAMW,
    SL_OPTIMIZER_ADAM,
    SL_OPTIMIZER_LION,
    SL_OPTIMIZER_ADAGRAD,
    SL_OPTIMIZER_SGD,
};

/* Bytes of a moment: 4, 2, or 1 and a 64th. */
enum sl_optimizer_state { SL_OPTIMIZER_STATE_F32, SL_OPTIMIZER_STATE_BF16, SL_OPTIMIZER_STATE_Q8 };

/* What is kept besides a 16-bit weight. A parameter in f32 is its own master. */
enum sl_optimizer_master {
    SL_OPTIMIZER_MASTER_PLAIN, /* 4 bytes: an f32 copy */
    SL_OPTIMIZER_MASTER_SPLIT, /* 2 bytes: the lower half; with the bf16 weight the same f32 */
    SL_OPTIMIZER_MASTER_NONE,  /* nothing: the bf16 weight is rounded stochastically */
};

enum sl_optimizer_placement {
    SL_OPTIMIZER_HOST,
    SL_OPTIMIZER_NVME, /* what host_bytes_max leaves no room for is on NVMe; 0: everything */
};

struct sl_optimizer_options {
    enum sl_optimizer_algorithm algorithm;
    enum sl_optimizer_state state;
    enum sl_optimizer_master master;
    enum sl_optimizer_placement placement;
    const char *const *paths; /* [path_count] directories on NVMe; copied */
    size_t path_count;
    uint64_t host_bytes_max;     /* host memory of the plan at most; 0: no limit */
    uint64_t sub_group_elements; /* moved at a time, rounded up to 65,536; 0: 4 Mi */
    uint32_t buffers;            /* sub-groups in memory at a time, 2 to 64; 0: 4 */
    uint32_t threads;            /* 0: one per usable core */
    bool unpinned;               /* leave the threads' placement to the kernel */
    uint64_t seed;               /* stochastic rounding: Q8 state, no master */
    const struct sl_log *log;    /* borrowed until destroy; NULL: silence */
};

/* Hyper-parameters of a parameter group. */
struct sl_optimizer_group {
    double lr, beta1, beta2, eps, weight_decay;
    double momentum; /* SGD; zero or not is fixed by seal: it decides what is kept */
    bool nesterov;   /* SGD */
    bool bias_correction;
};

struct sl_optimizer_param {
    const char *name; /* copied; unique */
    uint64_t count;   /* elements */
    enum sl_dtype dtype;
    uint32_t group;
};

struct sl_optimizer_plan {
    uint64_t param_count, elements;
    uint64_t state_host_bytes, state_nvme_bytes;
    uint64_t buffer_bytes; /* sub-groups on their way from and to NVMe */
    uint64_t sums_bytes;   /* checksums, rings */
    uint64_t table_bytes;
    uint64_t host_bytes;                                   /* all of the above but NVMe */
    uint64_t sub_groups, sub_groups_nvme, sub_group_bytes; /* bytes: of the largest */
    uint64_t step_read_bytes, step_write_bytes;            /* NVMe, a step of all parameters */
    uint32_t buffers, threads;                             /* threads: 0 before seal */
};

/* What is given to a step. Arrays have an entry per parameter, in the order of sl_optimizer_add. */
struct sl_optimizer_step {
    const void *const *gradients;         /* NULL entry: this parameter is left alone */
    const enum sl_dtype *gradient_dtypes; /* NULL: that of each parameter */
    void *const
        *weights;      /* read and written, in the parameter's type; may be NULL without gradient */
    double clip_norm;  /* the gradient's norm at most; 0: no limit */
    double grad_scale; /* multiplies gradients first (1 / loss scale); above 0 */
    double lr;         /* above 0: of every group in this step; 0: each group's own */
};

struct sl_optimizer_result {
    double norm;                        /* of the gradients times grad_scale, before clipping */
    double norm_clipped;                /* after it */
    uint64_t nonfinite;                 /* elements that are NaN or infinite */
    int64_t nonfinite_param;            /* the first parameter that has one; -1: none */
    uint64_t bytes_read, bytes_written; /* NVMe */
    double norm_seconds, update_seconds, wait_seconds; /* wait: for NVMe, part of update */
    bool clipped;
    bool skipped; /* nonfinite: nothing was changed */
};

struct sl_optimizer;

/* Errors -EINVAL names the option. Owner: the caller, until destroy. */
SL_API int sl_optimizer_create(struct sl_optimizer **out,
                               const struct sl_optimizer_options *options, struct sl_error *error);
SL_API void sl_optimizer_destroy(struct sl_optimizer *optimizer); /* NULL allowed */

/* Add a group; *index is its number. Before seal. */
SL_API int sl_optimizer_group_add(struct sl_optimizer *optimizer,
                                  const struct sl_optimizer_group *group, uint32_t *index,
                                  struct sl_error *error);
/* Change a group's hyper-parameters, from the next step on. */
SL_API int sl_optimizer_group_set(struct sl_optimizer *optimizer, uint32_t index,
                                  const struct sl_optimizer_group *group, struct sl_error *error);

/* Add a parameter; *index is its place in the arrays of a step. Before seal.
 * Errors -EINVAL (count 0, type that the master does not go with), -EEXIST (name), -EBUSY (sealed)
 */
SL_API int sl_optimizer_add(struct sl_optimizer *optimizer, const struct sl_optimizer_param *param,
                            uint32_t *index, struct sl_error *error);

/* What seal would take. Takes none of it. -ENOMEM: the limit is too small; says what is needed. */
SL_API int sl_optimizer_plan(struct sl_optimizer *optimizer, struct sl_optimizer_plan *plan,
                             struct sl_error *error);
/* The plan for people. Owner: the caller frees *text with sl_optimizer_text_free. */
SL_API int sl_optimizer_plan_text(struct sl_optimizer *optimizer, char **text,
                                  struct sl_error *error);
SL_API void sl_optimizer_text_free(char *text);

/* Take all memory, start the threads, create the swap space; the state is zero and masters are
 * taken from the weights of the first step. `plan` may be NULL. After an error: destroy. */
SL_API int sl_optimizer_seal(struct sl_optimizer *optimizer, struct sl_optimizer_plan *plan,
                             struct sl_error *error);

/* Measure the gradients' norm and finiteness, then update weights and state in one pass.
 *
 * Shapes   gradients[i], weights[i]: [count of i], any alignment, no overlap
 * Units    a parameter's own count of updates drives its bias correction, from 1
 * Threads  the caller computes too
 * Errors   -EINVAL before anything is changed; of the swap space: see the head of this file.
 *          Gradients that are not finite are no error: `skipped`
 * Source   DeepSpeed's order of operations; clipping as torch.nn.utils.clip_grad_norm_ */
SL_API int sl_optimizer_step(struct sl_optimizer *optimizer, const struct sl_optimizer_step *step,
                             struct sl_optimizer_result *result, struct sl_error *error);

/* The caller has changed a 16-bit parameter's weights: take its master from them in the next step.
 */
SL_API int sl_optimizer_weights_changed(struct sl_optimizer *optimizer, uint32_t index,
                                        struct sl_error *error);

/* What is kept for a parameter. */
enum sl_optimizer_array {
    SL_OPTIMIZER_MASTER, /* f32; split: the lower halves, u16 */
    SL_OPTIMIZER_EXP_AVG,
    SL_OPTIMIZER_EXP_AVG_SQ,
    SL_OPTIMIZER_EXP_AVG_SCALE, /* Q8: f32, one per 256 elements */
    SL_OPTIMIZER_EXP_AVG_SQ_SCALE,
    SL_OPTIMIZER_ARRAYS
};

/* Entries and their bytes; 0 entries where this parameter has no such array. After seal. */
SL_API int sl_optimizer_array_shape(const struct sl_optimizer *optimizer, uint32_t index,
                                    enum sl_optimizer_array array, uint64_t *count,
                                    uint32_t *entry_bytes, struct sl_error *error);
/* Copy an array out of, or into, the state. Writing a master makes it the parameter's value. */
SL_API int sl_optimizer_array_read(struct sl_optimizer *optimizer, uint32_t index,
                                   enum sl_optimizer_array array, void *data,
                                   struct sl_error *error);
SL_API int sl_optimizer_array_write(struct sl_optimizer *optimizer, uint32_t index,
                                    enum sl_optimizer_array array, const void *data,
                                    struct sl_error *error);
/* Updates that a parameter has had. master_set: its master is valid (it has one, and it has been
 * taken from weights, written or loaded). */
SL_API int sl_optimizer_updates_get(const struct sl_optimizer *optimizer, uint32_t index,
                                    uint64_t *updates, bool *master_set, struct sl_error *error);
SL_API int sl_optimizer_updates_set(struct sl_optimizer *optimizer, uint32_t index,
                                    uint64_t updates, struct sl_error *error);

/* Write the state to a file (docs/python.md, "The state file"), or take it from one.
 *
 * Memory   both allocate 8 MiB and a table of names, freed on return
 * Durable  after save returns 0 the file is whole and survives a power loss; before, the one that
 *          was there is untouched
 * Errors   load: -EINVAL (made with other options or parameters: which), -EBADMSG (damaged). The
 *          file is checked as a whole before the state is touched */
SL_API int sl_optimizer_save(struct sl_optimizer *optimizer, const char *path,
                             struct sl_error *error);
SL_API int sl_optimizer_load(struct sl_optimizer *optimizer, const char *path,
                             struct sl_error *error);

/* sizeof the structs above, for bindings that declare them again: 0 options, 1 group, 2 param,
 * 3 plan, 4 step, 5 result, 6 struct sl_error; 0 for others. */
SL_API size_t sl_optimizer_struct_bytes(int which);

#ifdef __cplusplus
}
#endif

#endif
