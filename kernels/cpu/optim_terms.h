// SPDX-License-Identifier: Apache-2.0
/* The per-step factors of an optimizer and the keys of its random counters: the same for every
 * element, computed once per call in fp64 from the hyper-parameters alone, so that a resumed run
 * and a run on another device have the same bits. CPU and CUDA kernels both take them from here.
 */
#ifndef SLUICE_KERNELS_CPU_OPTIM_TERMS_H
#define SLUICE_KERNELS_CPU_OPTIM_TERMS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/optim.h"

struct sl_optim_terms {
    float grad_scale;
    float beta1, beta1_rest; /* rest: 1 - beta; SGD: beta1 is the momentum */
    float beta2, beta2_rest;
    float eps;
    float root_scale; /* 1 / sqrt(1 - beta2^step) */
    float step_size;  /* negative: -lr, and / (1 - beta1^step) where bias is corrected */
    float decay;      /* AdamW, Lion: -lr wd, of the weight; others: wd, added to the gradient */
    bool decays;      /* false: the decay operation is left out */
    bool averages;    /* SGD: has momentum */
    bool nesterov;
    uint32_t random_key[2]; /* of elements [element_first / 2^32 * 2^32, + 2^32) */
};

/* x^n by squaring: exact rounding steps that no libm changes. 1 for n = 0. */
static inline double sl_optim_power(double x, uint64_t n)
{
    double result = 1;
    for (; n; n >>= 1) {
        if (n & 1)
            result *= x;
        x *= x;
    }
    return result;
}

static inline uint64_t sl_optim_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Key of the random numbers of 2^32 elements of one tensor in one step. */
static inline uint64_t sl_optim_random_key(uint64_t seed, uint64_t step, uint64_t tensor,
                                           uint64_t element_first)
{
    uint64_t key = sl_optim_mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    key = sl_optim_mix(key + step);
    key = sl_optim_mix(key + tensor);
    return sl_optim_mix(key + (element_first >> 32));
}

/* The 32 random bits of one element (its low 32 index bits). Every kernel computes these, in this
 * order. A bf16 weight without a master takes the low half of those with the halves of the key
 * swapped. */
static inline uint32_t sl_optim_random(const uint32_t key[2], uint32_t element)
{
    uint32_t x = element ^ key[0];
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) + key[1];
    x = (x ^ (x >> 16)) * 0x735a2d97u;
    return x ^ (x >> 15);
}

/* The 32 random bits of elements `element` and `element` + 16, with 8-bit moments: 16 numbers of
 * the block, each in eight further states. exp_avg takes the upper 20 bits in the first of the two
 * and the lower 20 in the second, exp_avg_sq the others. */
#define SL_OPTIM_Q8_STRIDE 0x9e3779b9u
static inline uint32_t sl_optim_random_q8(const uint32_t key[2], uint32_t element)
{
    uint32_t pair = element / 32 % 8;
    uint32_t x = sl_optim_random(key, (element & ~255u) | (element & 15u));
    x += pair * SL_OPTIM_Q8_STRIDE;
    x = (x ^ (x >> 16)) * 0x735a2d97u;
    return (x ^ (x >> 12)) * 0x21f0aaadu;
}

static inline struct sl_optim_terms sl_optim_terms_make(const struct sl_optim_args *args)
{
    const struct sl_optim_hyper *hyper = &args->hyper;
    bool sgd = hyper->kind == SL_OPTIM_SGD;
    bool adam = hyper->kind == SL_OPTIM_ADAMW || hyper->kind == SL_OPTIM_ADAM;
    bool decoupled = hyper->kind == SL_OPTIM_ADAMW || hyper->kind == SL_OPTIM_LION;
    double lr = hyper->lr, decay = hyper->weight_decay;
    double rest1 = 1, rest2 = 1;
    if (adam && hyper->bias_correction) {
        rest1 = 1 - sl_optim_power(hyper->beta1, hyper->step);
        rest2 = 1 - sl_optim_power(hyper->beta2, hyper->step);
    }
    uint64_t key = sl_optim_random_key(hyper->seed, hyper->step, args->tensor, args->element_first);
    return (struct sl_optim_terms){
        .grad_scale = args->grad_scale,
        .beta1 = sgd ? hyper->momentum : hyper->beta1,
        .beta1_rest = (float)(1 - (double)hyper->beta1),
        .beta2 = hyper->beta2,
        .beta2_rest = (float)(1 - (double)hyper->beta2),
        .eps = hyper->eps,
        .root_scale = (float)(1 / sqrt(rest2)),
        .step_size = (float)(-lr / rest1),
        .decay = decoupled ? (float)(-lr * decay) : (float)decay,
        .decays = decay != 0,
        .averages = sgd && hyper->momentum != 0,
        .nesterov = sgd && hyper->nesterov,
        .random_key = {(uint32_t)key, (uint32_t)(key >> 32)},
    };
}

#endif
