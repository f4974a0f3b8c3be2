// SPDX-License-Identifier: Apache-2.0
/* The flops profiler: parameters, multiply-accumulates and times of one training step, and the tree
 * of modules behind them, in the form that DeepSpeed's flops_profiler block asks for.
 */
#ifndef SLUICE_ENGINE_FLOPS_PROFILE_H
#define SLUICE_ENGINE_FLOPS_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model.h"

#define SL_FLOPS_MODULE_NAME_BYTES 48

/* A module, or `count` equal ones in a row. params and macs are those of one of them. */
struct sl_flops_module {
    char name[SL_FLOPS_MODULE_NAME_BYTES];
    uint32_t depth; /* 0: the model */
    uint32_t count;
    uint64_t params;
    double macs; /* of one forward pass over batch x sequence tokens */
};

struct sl_flops_options {
    uint64_t batch, sequence, micro_batches;
    bool recompute;        /* the backward pass runs the layers' forward pass again */
    int64_t module_depth;  /* deepest level printed; -1: all */
    uint64_t top_modules;  /* the most expensive ones listed at each level; 0: none */
    bool detailed;         /* the tree */
    uint64_t profile_step; /* for the title */
    /* Measured times of that step; 0: not known. */
    uint64_t forward_ns, backward_ns, update_ns, step_ns;
};

/* The tree in order, parents before their children.
 *
 * Memory   *modules is allocated; the caller frees it
 * Numerics matrix products and attention count, element-wise work does not; attention is causal,
 *          with each layer's window
 * Errors   -ENOMEM */
int sl_flops_modules(const struct sl_model *model, uint64_t batch, uint64_t sequence,
                     struct sl_flops_module **modules, size_t *count);

/* The whole table as text. The caller frees it; NULL: out of memory. */
char *sl_flops_profile_text(const struct sl_model *model, const struct sl_flops_options *options);

#endif
