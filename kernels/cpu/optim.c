// SPDX-License-Identifier: Apache-2.0
/* The contract of an optimizer step: what is refused, and how a run is cut for the variants. */
#include "kernels/cpu/optim.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "kernels/cpu/optim_terms.h"
#include "kernels/cpu/variants.h"

static int refuse(struct sl_error *error, const char *name, double value, const char *limit)
{
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "optimizer.%s %g: must be %s", name, value,
                        limit);
}

/* Comparisons are written so that NaN fails them. */
static bool in_unit(float value)
{
    return value >= 0 && value < 1;
}

int sl_optim_check(const struct sl_optim_hyper *hyper, struct sl_error *error)
{
    enum sl_optim_kind kind = hyper->kind;
    bool adam = kind == SL_OPTIM_ADAMW || kind == SL_OPTIM_ADAM;
    if (kind > SL_OPTIM_SGD)
        return refuse(error, "kind", kind, "one of AdamW, Adam, Lion, Adagrad, SGD");
    if (!(hyper->lr >= 0 && isfinite(hyper->lr)))
        return refuse(error, "lr", hyper->lr, "finite and at least 0");
    if (!(hyper->weight_decay >= 0 && isfinite(hyper->weight_decay)))
        return refuse(error, "weight_decay", hyper->weight_decay, "finite and at least 0");
    if ((adam || kind == SL_OPTIM_LION) && !in_unit(hyper->beta1))
        return refuse(error, "betas[0]", hyper->beta1, "at least 0 and below 1");
    if ((adam || kind == SL_OPTIM_LION) && !in_unit(hyper->beta2))
        return refuse(error, "betas[1]", hyper->beta2, "at least 0 and below 1");
    if ((adam || kind == SL_OPTIM_ADAGRAD) && !(hyper->eps > 0 && isfinite(hyper->eps)))
        return refuse(error, "eps", hyper->eps,
                      "finite and above 0 (a gradient of 0 gives 0/0 otherwise)");
    if (kind == SL_OPTIM_SGD && !in_unit(hyper->momentum))
        return refuse(error, "momentum", hyper->momentum, "at least 0 and below 1");
    if (kind == SL_OPTIM_SGD && hyper->nesterov && hyper->momentum == 0)
        return refuse(error, "momentum", hyper->momentum, "above 0 where nesterov is true");
    if (hyper->step == 0)
        return refuse(error, "step", 0, "at least 1: steps count from 1");
    return 0;
}

static void assert_contract(const struct sl_optim_args *args)
{
    const struct sl_optim_hyper *hyper = &args->hyper;
    bool q8 = args->moment_kind == SL_MOMENT_Q8;
    assert(args->grad);
    assert(args->master_kind != SL_MASTER_F32 || args->master);
    assert(args->master_kind != SL_MASTER_SPLIT || (args->low && args->weight));
    assert(args->master_kind != SL_MASTER_NONE || args->weight);
    assert(args->master_kind == SL_MASTER_F32 || args->weight_dtype == SL_BF16);
    assert(!args->weight || args->weight_dtype != SL_F32);
    assert(!sl_optim_has_exp_avg(hyper) || (args->exp_avg && (!q8 || args->exp_avg_scale)));
    assert(!sl_optim_has_exp_avg_sq(hyper) ||
           (args->exp_avg_sq && (!q8 || args->exp_avg_sq_scale)));
    assert(!q8 || args->element_first % SL_OPTIM_Q8_BLOCK == 0);
    assert(hyper->step > 0);
    (void)hyper;
    (void)q8;
}

static void *advance(void *array, uint64_t bytes)
{
    return array ? (char *)array + bytes : NULL;
}

/* The part of a run that begins `skip` elements in. */
static struct sl_optim_args part_of(const struct sl_optim_args *args, uint64_t skip, uint64_t count)
{
    static const unsigned moment_bytes[] = {4, 2, 1};
    struct sl_optim_args part = *args;
    unsigned bytes = moment_bytes[args->moment_kind];
    part.element_first += skip;
    part.count = count;
    part.grad = (const char *)args->grad + skip * sl_dtype_bytes(args->grad_dtype);
    part.master = advance(args->master, skip * 4);
    part.low = advance(args->low, skip * 2);
    part.weight = advance(args->weight, skip * sl_dtype_bytes(args->weight_dtype));
    part.exp_avg = advance(args->exp_avg, skip * bytes);
    part.exp_avg_sq = advance(args->exp_avg_sq, skip * bytes);
    part.exp_avg_scale = advance(args->exp_avg_scale, skip / SL_OPTIM_Q8_BLOCK * 4);
    part.exp_avg_sq_scale = advance(args->exp_avg_sq_scale, skip / SL_OPTIM_Q8_BLOCK * 4);
    return part;
}

void sl_optim_step_with(const struct sl_cpu_kernels *kernels, const struct sl_optim_args *args)
{
    if (args->count == 0)
        return;
    assert_contract(args);
    /* Random counters are 32 bits below a key that holds the rest of the element's index: a run is
     * cut where the rest changes. */
    const uint64_t segment = UINT64_C(1) << 32;
    for (uint64_t done = 0; done < args->count;) {
        uint64_t room = segment - (args->element_first + done) % segment;
        uint64_t left = args->count - done;
        struct sl_optim_args part = part_of(args, done, left < room ? left : room);
        struct sl_optim_terms terms = sl_optim_terms_make(&part);
        kernels->optim_step(&part, &terms);
        done += part.count;
    }
}
