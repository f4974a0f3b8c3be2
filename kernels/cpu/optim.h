// SPDX-License-Identifier: Apache-2.0
/* The optimizer step on a run of elements: one fused pass over memory that unscales, clips, decays,
 * updates, rounds and writes out. Variants (scalar, AVX2, AVX-512, NEON, CUDA) are bit-equal.
 */
#ifndef SLUICE_KERNELS_CPU_OPTIM_H
#define SLUICE_KERNELS_CPU_OPTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

enum sl_optim_kind { SL_OPTIM_ADAMW, SL_OPTIM_ADAM, SL_OPTIM_LION, SL_OPTIM_ADAGRAD, SL_OPTIM_SGD };

/* Where the fp32 master is. */
enum sl_master_kind {
    SL_MASTER_F32,   /* master[] f32; weight[] is its rounded copy (or NULL) */
    SL_MASTER_SPLIT, /* weight[] bf16 and low[] u16 together are the master, losslessly */
    SL_MASTER_NONE,  /* weight[] bf16 alone, stochastic rounding */
};

/* How moments are kept: 4, 2, or 1 byte per element and moment (8-bit: dynamic quantization in
 * blocks of SL_OPTIM_Q8_BLOCK tensor elements with one f32 scale per block and moment). */
enum sl_moment_kind { SL_MOMENT_F32, SL_MOMENT_BF16, SL_MOMENT_Q8 };
#define SL_OPTIM_Q8_BLOCK 256u

/* Bytes of one element of one moment, scales aside. */
static inline size_t sl_moment_bytes(enum sl_moment_kind kind)
{
    return kind == SL_MOMENT_F32 ? 4 : kind == SL_MOMENT_BF16 ? 2 : 1;
}

/* Hyper-parameters of one step, the same for every element of a parameter group. */
struct sl_optim_hyper {
    enum sl_optim_kind kind;
    float lr, beta1, beta2, eps, weight_decay;
    float momentum; /* SGD */
    bool nesterov;  /* SGD */
    bool bias_correction;
    uint64_t step; /* counts from 1 */
    uint64_t seed; /* stochastic rounding */
};

/* Shapes   every array: [count], element i is element element_first + i of its tensor;
 *          Q8 scales: one f32 per SL_OPTIM_Q8_BLOCK elements, element_first a multiple of it
 * Memory   host for the CPU variants, device for a device's; no alignment is required, 64-byte
 *          aligned arrays with the same phase are fastest; no overlap
 * Units    grad is multiplied by grad_scale first (unscale and clip in one factor) */
struct sl_optim_args {
    struct sl_optim_hyper hyper;
    enum sl_master_kind master_kind;
    enum sl_moment_kind moment_kind;
    uint64_t tensor; /* identity of the tensor, for the random counters */
    uint64_t element_first;
    size_t count;
    const void *grad;
    enum sl_dtype grad_dtype;
    float grad_scale;
    float *master; /* SL_MASTER_F32 */
    uint16_t *low; /* SL_MASTER_SPLIT */
    void *weight;  /* weight_dtype; NULL: master is the weight (fp32 mode) */
    enum sl_dtype weight_dtype;
    void *exp_avg;    /* first moment; Adagrad and SGD without momentum: NULL */
    void *exp_avg_sq; /* second moment; Lion and SGD: NULL */
    float *exp_avg_scale, *exp_avg_sq_scale; /* Q8 */
};

/* Which of the two moments this optimizer keeps. */
static inline bool sl_optim_has_exp_avg(const struct sl_optim_hyper *hyper)
{
    return hyper->kind != SL_OPTIM_ADAGRAD &&
           !(hyper->kind == SL_OPTIM_SGD && hyper->momentum == 0);
}

static inline bool sl_optim_has_exp_avg_sq(const struct sl_optim_hyper *hyper)
{
    return hyper->kind != SL_OPTIM_LION && hyper->kind != SL_OPTIM_SGD;
}

/* -EINVAL with a message that names the value and its limit, or 0. */
int sl_optim_check(const struct sl_optim_hyper *hyper, struct sl_error *error);

/* Do the step with the variant chosen at start-up.
 *
 * Threads  safe on disjoint runs; starts none
 * Owner    borrows everything until return
 * Errors   none; asserts on a broken contract
 * Numerics bit-equal to the scalar variant, docs/numerics.md
 * Source   DeepSpeed's order of operations; AdamW, arXiv:1711.05101 algorithm 2 */
void sl_optim_step(const struct sl_optim_args *args);

#endif
