// SPDX-License-Identifier: Apache-2.0
/* The stand-alone optimizer as its own files see it.
 *
 *     parameter   |unit 65536|unit 65536|unit 123|  |unit 768|  ...
 *     sub-group   |------- state moved together --------------|
 *     unit state  | master | exp_avg | exp_avg_sq | scales |   each on 64 bytes
 *
 * A unit is a task of both passes, the chunk of the norm and the step of the file's hash; it never
 * depends on sub-groups, so neither do bits.
 */
#ifndef SLUICE_ENGINE_OPTIMIZER_INTERNAL_H
#define SLUICE_ENGINE_OPTIMIZER_INTERNAL_H

#include <pthread.h>

#include "engine/optimizer.h"
#include "kernels/cpu/optim.h"
#include "kernels/ops.h"
#include "nvme/swap.h"
#include "offload/arena.h"
#include "offload/workers.h"

#define OPTIMIZER_UNIT SL_GRADIENT_CHUNK
#define OPTIMIZER_SLOTS_MAX 64u

struct optimizer_param {
    char *name;
    uint64_t count;
    enum sl_dtype dtype;
    uint32_t group;
    uint64_t unit_first;
    uint64_t updates;
    bool master_set;
};

struct optimizer_unit {
    uint32_t param;
    uint32_t count;
    uint64_t first;  /* element of its tensor */
    uint64_t offset; /* of its state, in its sub-group's */
};

struct optimizer_sub_group {
    uint64_t unit_first, unit_count;
    uint64_t bytes;  /* multiple of SL_SWAP_ALIGNMENT */
    uint64_t offset; /* in the arena, or in the swap space */
    bool nvme;
};

enum slot_state { SLOT_IDLE, SLOT_READING, SLOT_READY, SLOT_WRITING };

/* A buffer through which sub-groups of NVMe pass. It takes every slot_count-th of them; a read that
 * follows a write is submitted by the write's completion, so no thread waits in between. */
struct optimizer_slot {
    struct sl_optimizer *optimizer;
    struct sl_swap_request request;
    void *buffer;
    enum slot_state state;
    uint64_t next; /* index into active[] of the sub-group to read after the write */
};

struct sl_optimizer {
    struct sl_optimizer_options options;
    char **paths;
    struct optimizer_param *params;
    size_t param_count, param_room;
    struct sl_optimizer_group *groups;
    size_t group_count, group_room;

    bool laid_out, sealed;
    struct sl_error failure; /* first I/O error */
    struct sl_optimizer_plan plan;
    struct optimizer_unit *units;
    uint64_t unit_count;
    struct optimizer_sub_group *sub_groups;
    uint64_t sub_group_count;

    struct sl_swap_options swap_options; /* tests choose the backend before seal */
    struct sl_swap *swap;
    struct sl_workers *workers;
    struct sl_arena arena; /* state on the host, then the slots' buffers */

    /* Of the step that runs. */
    double *squares;     /* [unit_count] */
    uint64_t *nonfinite; /* [unit_count] */
    uint64_t *active;    /* [sub_group_count] sub-groups on NVMe that have a gradient, in order */
    uint64_t active_count;
    struct optimizer_slot slots[OPTIMIZER_SLOTS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* Where the arrays of a unit are, from the start of its state; *bytes: of all. */
struct optimizer_arrays {
    uint64_t offset[SL_OPTIMIZER_ARRAYS];
    uint64_t bytes[SL_OPTIMIZER_ARRAYS]; /* 0: it has none */
    uint64_t total;
};
void optimizer_arrays_of(const struct sl_optimizer *optimizer, const struct optimizer_param *param,
                         uint64_t count, struct optimizer_arrays *arrays);

/* Bytes of an entry of an array; the master's depends on its form. */
uint32_t optimizer_entry_bytes(const struct sl_optimizer *optimizer, enum sl_optimizer_array array);

/* Hyper-parameters of a group as the kernels take them. */
struct sl_optim_hyper optimizer_hyper(const struct sl_optimizer *optimizer, uint32_t group);

/* 0 where the optimizer is sealed and sound; otherwise fills `error`. */
int optimizer_usable(const struct sl_optimizer *optimizer, struct sl_error *error);
int optimizer_param_check(const struct sl_optimizer *optimizer, uint32_t index,
                          struct sl_error *error);

/* Record the swap space's error, or `code`, as the optimizer's end. */
int optimizer_fail(struct sl_optimizer *optimizer, int code, struct sl_error *error);

/* Walk units [first, first + count) in order with their state in memory; a sub-group on NVMe is
 * read, and written back where `write`. */
typedef int (*optimizer_visitor)(void *user, const struct optimizer_unit *unit,
                                 unsigned char *state, struct sl_error *error);
int optimizer_visit(struct sl_optimizer *optimizer, uint64_t first, uint64_t count, bool write,
                    optimizer_visitor visitor, void *user, struct sl_error *error);

#endif
