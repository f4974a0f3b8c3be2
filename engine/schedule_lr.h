// SPDX-License-Identifier: Apache-2.0
/* The learning rate (and for OneCycle the momentum) of a step, as a function of the step's index.
 *
 * A schedule has no state: step i of a resumed run gets the same rate as in an unbroken one. What
 * counts as a step is an update that was applied; a step skipped for overflow does not advance it.
 */
#ifndef SLUICE_ENGINE_SCHEDULE_LR_H
#define SLUICE_ENGINE_SCHEDULE_LR_H

#include <stdbool.h>
#include <stdint.h>

enum sl_schedule_kind {
    SL_SCHEDULE_CONSTANT,      /* after a linear warm-up of warmup_steps */
    SL_SCHEDULE_LINEAR,        /* linear warm-up, then linearly down to min_ratio at total_steps */
    SL_SCHEDULE_COSINE,        /* linear warm-up, then half a cosine down to min_ratio */
    SL_SCHEDULE_WARMUP,        /* DeepSpeed WarmupLR */
    SL_SCHEDULE_WARMUP_DECAY,  /* DeepSpeed WarmupDecayLR */
    SL_SCHEDULE_WARMUP_COSINE, /* DeepSpeed WarmupCosineLR */
    SL_SCHEDULE_ONE_CYCLE,     /* DeepSpeed OneCycle */
    SL_SCHEDULE_LR_RANGE_TEST, /* DeepSpeed LRRangeTest */
};

/* Every field that the kind does not name is ignored. */
struct sl_schedule {
    enum sl_schedule_kind kind;
    double base_lr; /* the optimizer's lr */
    uint64_t warmup_steps, total_steps;
    bool warmup_log; /* DeepSpeed's three warm-ups: log (their default) or linear */
    double warmup_min_lr, warmup_max_lr; /* WARMUP, WARMUP_DECAY */
    double warmup_min_ratio;             /* WARMUP_COSINE */
    double min_ratio;                    /* LINEAR, COSINE; cos_min_ratio of WARMUP_COSINE */
    double cycle_min_lr, cycle_max_lr, decay_lr_rate; /* ONE_CYCLE */
    double cycle_first_steps, cycle_second_steps;     /* not 0 together */
    double decay_step_size;
    uint64_t cycle_first_stairs, cycle_second_stairs; /* 0: continuous */
    bool cycle_momentum;
    double cycle_min_momentum, cycle_max_momentum, decay_momentum_rate;
    double range_min_lr, range_step_rate, range_step_size; /* LR_RANGE_TEST */
    bool range_staircase;
};

/* The learning rate of update number `step`, counted from 0.
 *
 * Threads  any
 * Errors   none; the configuration has been checked
 * Source   DeepSpeed 0.19 deepspeed/runtime/lr_schedules.py; transformers' get_*_schedule */
double sl_schedule_lr(const struct sl_schedule *schedule, uint64_t step);

/* OneCycle's momentum (Adam's beta1) for this step; `otherwise` for every other schedule. */
double sl_schedule_momentum(const struct sl_schedule *schedule, uint64_t step, double otherwise);

/* "WarmupDecayLR", "cosine", ... as a configuration spells it. Never NULL. */
const char *sl_schedule_name(enum sl_schedule_kind kind);

#endif
