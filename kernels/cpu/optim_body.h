// SPDX-License-Identifier: Apache-2.0
/* The optimizer step, in the operations of the vector header included before.
 *
 * Problem   The update moves 28 bytes per parameter through memory and computes little: it must be
 *           one pass, and every variant must give the same bits.
 * Choice    A group of 16 elements goes through load, update, store in registers; the kind of
 *           optimizer and of moments are compile-time constants, the element types are branches
 * that a core predicts. A tail is the same group on padded copies. The order of operations is
 *           DeepSpeed's (kernels/cpu/optim.h); fma where fma is written, nowhere else.
 * Rejected  Constants for every combination of types (900 functions; the branches cost nothing
 *           beside the memory); reciprocal estimates (other bits on every processor).
 * Invariant No element's result depends on its position in the run.
 */
#ifndef SLUICE_KERNELS_CPU_OPTIM_BODY_H
#define SLUICE_KERNELS_CPU_OPTIM_BODY_H

#include <string.h>

#include "kernels/cpu/optim.h"
#include "kernels/cpu/optim_q8.h"
#include "kernels/cpu/optim_terms.h"
#include "kernels/cpu/vector_cast.h"

typedef struct sl_optim_args args_t;
typedef struct sl_optim_terms terms_t;

/* ---- the update of 16 elements: p, m, v in place ---- */

INLINE void update_adam(const terms_t *t, enum sl_optim_kind kind, vf g, vf *p, vf *m, vf *v)
{
    if (kind == SL_OPTIM_ADAM && t->decays)
        g = v_fma(*p, v_set1(t->decay), g);
    *m = v_fma(g, v_set1(t->beta1_rest), v_mul(*m, v_set1(t->beta1)));
    *v = v_fma(v_mul(g, g), v_set1(t->beta2_rest), v_mul(*v, v_set1(t->beta2)));
    vf root = v_fma(v_sqrt(*v), v_set1(t->root_scale), v_set1(t->eps));
    vf ratio = v_div(*m, root);
    /* Decay and step are summed before they meet the weight, which is rounded once then: half the
     * error of DeepSpeed's two additions (1.4e-6 against 0.7e-6 after 1,000 steps). */
    if (kind == SL_OPTIM_ADAMW && t->decays)
        *p = v_add(*p, v_fma(*p, v_set1(t->decay), v_mul(ratio, v_set1(t->step_size))));
    else
        *p = v_fma(ratio, v_set1(t->step_size), *p);
}

INLINE void update_lion(const terms_t *t, vf g, vf *p, vf *m)
{
    vf c = v_fma(g, v_set1(t->beta1_rest), v_mul(*m, v_set1(t->beta1)));
    /* step_size * sign(c), with sign(0) = 0 and NaN kept: c - c is 0 or NaN. */
    vi sign = vi_and(vi_from_bits(c), vi_set1(0x80000000u));
    vf signed_step = v_from_bits(vi_xor(vi_from_bits(v_set1(t->step_size)), sign));
    vi nonzero = vi_or(v_less(c, v_set1(0)), v_less(v_set1(0), c));
    vf step = v_from_bits(vi_select(nonzero, vi_from_bits(signed_step), vi_from_bits(v_sub(c, c))));
    /* Not p (1 - lr wd): that factor, rounded, is a wrong decay of 3e-8 every step. */
    *p = v_add(*p, t->decays ? v_fma(*p, v_set1(t->decay), step) : step);
    *m = v_fma(g, v_set1(t->beta2_rest), v_mul(*m, v_set1(t->beta2)));
}

INLINE void update_adagrad(const terms_t *t, vf g, vf *p, vf *v)
{
    if (t->decays)
        g = v_fma(*p, v_set1(t->decay), g);
    *v = v_fma(g, g, *v);
    vf ratio = v_div(g, v_add(v_sqrt(*v), v_set1(t->eps)));
    *p = v_fma(ratio, v_set1(t->step_size), *p);
}

INLINE void update_sgd(const terms_t *t, vf g, vf *p, vf *m)
{
    if (t->decays)
        g = v_fma(*p, v_set1(t->decay), g);
    if (t->averages) {
        *m = v_fma(*m, v_set1(t->beta1), g);
        g = t->nesterov ? v_fma(*m, v_set1(t->beta1), g) : *m;
    }
    *p = v_fma(g, v_set1(t->step_size), *p);
}

INLINE void update_16(const terms_t *t, enum sl_optim_kind kind, vf g, vf *p, vf *m, vf *v)
{
    if (kind == SL_OPTIM_ADAMW || kind == SL_OPTIM_ADAM)
        update_adam(t, kind, g, p, m, v);
    else if (kind == SL_OPTIM_LION)
        update_lion(t, g, p, m);
    else if (kind == SL_OPTIM_ADAGRAD)
        update_adagrad(t, g, p, v);
    else
        update_sgd(t, g, p, m);
}

/* ---- where the elements lie ---- */

INLINE vf load_master(const args_t *a, size_t i)
{
    if (a->master_kind == SL_MASTER_F32)
        return v_load(a->master + i);
    vi weight = vi_load_u16((const uint16_t *)a->weight + i);
    if (a->master_kind == SL_MASTER_SPLIT)
        return v_master_from_split(weight, vi_load_u16(a->low + i));
    return v_from_bf16(weight);
}

/* Add 16 random bits below the kept ones and cut: up with the probability of the remainder. An
 * infinity stays by itself, NaN is kept from being carried away. */
INLINE vi bf16_stochastic(vf x, vi random)
{
    vi bits = vi_from_bits(x);
    vi rounded = vi_shr(vi_add(bits, vi_and(random, vi_set1(0xffffu))), 16);
    vi quiet = vi_or(vi_shr(bits, 16), vi_set1(0x40u));
    vi nan = vi_gt(vi_and(bits, vi_set1(0x7fffffffu)), vi_set1(0x7f800000u));
    return vi_select(nan, quiet, rounded);
}

INLINE void store_weight(const args_t *a, size_t i, vi half, bool stream)
{
    if (stream)
        vi_stream_u16((uint16_t *)a->weight + i, half);
    else
        vi_store_u16((uint16_t *)a->weight + i, half);
}

INLINE void store_master(const args_t *a, const terms_t *t, size_t i, vf p, bool stream)
{
    if (a->master_kind == SL_MASTER_F32) {
        v_store(a->master + i, p);
        if (a->weight)
            store_weight(a, i,
                         a->weight_dtype == SL_BF16 ? vi_bf16_from_master(p) : vi_f16_from_f32(p),
                         stream);
    } else if (a->master_kind == SL_MASTER_SPLIT) {
        vi_store_u16((uint16_t *)a->weight + i, vi_bf16_from_master(p));
        vi_store_u16(a->low + i, vi_and(vi_from_bits(p), vi_set1(0xffffu)));
    } else {
        vi random = random_16(t, (uint32_t)(a->element_first + i), 1);
        vi_store_u16((uint16_t *)a->weight + i, bf16_stochastic(p, random));
    }
}

INLINE vf load_moment(const void *moment, enum sl_moment_kind kind, size_t i)
{
    if (kind == SL_MOMENT_F32)
        return v_load((const float *)moment + i);
    return v_from_bf16(vi_load_u16((const uint16_t *)moment + i));
}

INLINE void store_moment(void *moment, enum sl_moment_kind kind, size_t i, vf x)
{
    if (kind == SL_MOMENT_F32)
        v_store((float *)moment + i, x);
    else
        vi_store_u16((uint16_t *)moment + i, vi_bf16_from_f32(x));
}

INLINE bool keeps_exp_avg(enum sl_optim_kind kind, const terms_t *t)
{
    return kind == SL_OPTIM_SGD ? t->averages : kind != SL_OPTIM_ADAGRAD;
}

INLINE bool keeps_exp_avg_sq(enum sl_optim_kind kind)
{
    return kind != SL_OPTIM_LION && kind != SL_OPTIM_SGD;
}

/* ---- moments in f32 or bf16 ---- */

INLINE void step_16(const args_t *a, const terms_t *t, enum sl_optim_kind kind,
                    enum sl_moment_kind moment, size_t i, bool stream)
{
    vf g = v_mul(v_load_dtype(a->grad, a->grad_dtype, i), v_set1(t->grad_scale));
    vf p = load_master(a, i);
    vf m = v_set1(0), v = v_set1(0);
    if (keeps_exp_avg(kind, t))
        m = load_moment(a->exp_avg, moment, i);
    if (keeps_exp_avg_sq(kind))
        v = load_moment(a->exp_avg_sq, moment, i);
    update_16(t, kind, g, &p, &m, &v);
    if (keeps_exp_avg(kind, t))
        store_moment(a->exp_avg, moment, i, m);
    if (keeps_exp_avg_sq(kind))
        store_moment(a->exp_avg_sq, moment, i, v);
    store_master(a, t, i, p, stream);
}

/* ---- moments in 8 bits: a block's scales need its new moments first ---- */

struct q8_block {
    float m[SL_OPTIM_Q8_BLOCK], v[SL_OPTIM_Q8_BLOCK];
    vi m_max, v_max; /* largest magnitudes, as bits */
    vi random;
};

INLINE void step_q8_16(const args_t *a, const terms_t *t, enum sl_optim_kind kind, size_t i,
                       vf m_scale, vf v_scale, struct q8_block *block, size_t at, bool stream)
{
    vf g = v_mul(v_load_dtype(a->grad, a->grad_dtype, i), v_set1(t->grad_scale));
    vf p = load_master(a, i);
    vf m = v_set1(0), v = v_set1(0);
    if (keeps_exp_avg(kind, t))
        m = q8_decode_signed(vi_load_s8((const uint8_t *)a->exp_avg + i), m_scale);
    if (keeps_exp_avg_sq(kind))
        v = q8_decode_unsigned(vi_load_u8((const uint8_t *)a->exp_avg_sq + i), v_scale);
    update_16(t, kind, g, &p, &m, &v);
    store_master(a, t, i, p, stream);
    v_store(block->m + at, m);
    v_store(block->v + at, v);
    block->m_max = vi_max(block->m_max, vi_and(vi_from_bits(m), vi_set1(0x7fffffffu)));
    block->v_max = vi_max(block->v_max, vi_from_bits(v)); /* never negative */
}

INLINE void encode_q8_32(const args_t *a, const terms_t *t, enum sl_optim_kind kind, size_t i,
                         const struct q8_block *block, size_t at, vf m_inverse, vf v_inverse)
{
    struct q8_dither dither = q8_dither_of(random_q8_16(block->random, (uint32_t)at / 32));
    if (keeps_exp_avg(kind, t)) {
        vf x = v_load(block->m + at), y = v_load(block->m + at + 16);
        vi_store_s8((uint8_t *)a->exp_avg + i, q8_encode_signed(x, m_inverse, dither.high),
                    q8_encode_signed(y, m_inverse, dither.low), x, y);
    }
    if (keeps_exp_avg_sq(kind)) {
        vf x = v_load(block->v + at), y = v_load(block->v + at + 16);
        vi_store_u8((uint8_t *)a->exp_avg_sq + i, q8_encode_unsigned(x, v_inverse, dither.low),
                    q8_encode_unsigned(y, v_inverse, dither.high));
    }
}

/* ---- tails: the same on padded copies ---- */

/* Room for a pair of groups, the unit of 8-bit moments; the others use the first half. */
struct padded {
    _Alignas(64) float grad[32], master[32], exp_avg[32], exp_avg_sq[32];
    uint16_t low[32], weight[32];
    args_t args;
};

static void copy_in(void *to, const void *array, size_t first, size_t count, size_t bytes)
{
    if (array)
        memcpy(to, (const char *)array + first * bytes, count * bytes);
}

static void copy_out(void *array, const void *from, size_t first, size_t count, size_t bytes)
{
    if (array)
        memcpy((char *)array + first * bytes, from, count * bytes);
}

/* Element `first` of the run becomes element 0 of the copy; random counters move along. */
static void pad_begin(struct padded *pad, const args_t *a, size_t first, size_t count)
{
    size_t bytes = sl_moment_bytes(a->moment_kind);
    memset(pad, 0, sizeof(*pad));
    copy_in(pad->grad, a->grad, first, count, sl_dtype_bytes(a->grad_dtype));
    copy_in(pad->master, a->master, first, count, 4);
    copy_in(pad->low, a->low, first, count, 2);
    copy_in(pad->weight, a->weight, first, count, 2);
    copy_in(pad->exp_avg, a->exp_avg, first, count, bytes);
    copy_in(pad->exp_avg_sq, a->exp_avg_sq, first, count, bytes);
    pad->args = *a;
    pad->args.element_first += first;
    pad->args.grad = pad->grad;
    pad->args.master = pad->master;
    pad->args.low = pad->low;
    pad->args.weight = a->weight ? pad->weight : NULL;
    pad->args.exp_avg = pad->exp_avg;
    pad->args.exp_avg_sq = pad->exp_avg_sq;
}

static void pad_end(const struct padded *pad, const args_t *a, size_t first, size_t count)
{
    size_t bytes = sl_moment_bytes(a->moment_kind);
    copy_out(a->master, pad->master, first, count, 4);
    copy_out(a->low, pad->low, first, count, 2);
    copy_out(a->weight, pad->weight, first, count, 2);
    copy_out(a->exp_avg, pad->exp_avg, first, count, bytes);
    copy_out(a->exp_avg_sq, pad->exp_avg_sq, first, count, bytes);
}

/* ---- runs ---- */

/* Whether weights may be written past the caches: the line that an ordinary store would first read
 * is 2 of 30 bytes per parameter. AdamW, bf16 in and out, one Zen 5 core, AVX-512, best of 40
 * passes over 6M parameters: 2.29 Gparam/s, 2.10 with ordinary stores. Arrays that are updated in
 * place gain nothing: their lines are in the cache already. Prefetch by software, 1 or 2 KiB ahead
 * in every array, was within 1 % of none either way, and is left out. */
INLINE bool may_stream(const args_t *a)
{
    return a->master_kind == SL_MASTER_F32 && a->weight &&
           (uintptr_t)a->weight % VECTOR_STREAM_ALIGN == 0;
}

INLINE void step_run(const args_t *args, const terms_t *terms, enum sl_optim_kind kind,
                     enum sl_moment_kind moment)
{
    /* Copies whose address stays here: what is loaded from them stays in registers over stores. */
    const args_t a = *args;
    const terms_t t = *terms;
    const bool stream = may_stream(&a);
    size_t i = 0;
    for (; i + 16 <= a.count; i += 16)
        step_16(&a, &t, kind, moment, i, stream);
    if (i < a.count) {
        struct padded pad;
        pad_begin(&pad, args, i, a.count - i);
        step_16(&pad.args, &t, kind, moment, 0, false);
        pad_end(&pad, args, i, a.count - i);
    }
    if (stream)
        v_fence();
}

/* Elements [first, first + count) of the run, one block or the tensor's last piece of one. */
INLINE void step_block_q8(const args_t *args, const args_t *a, const terms_t *t,
                          enum sl_optim_kind kind, size_t first, size_t count, bool stream)
{
    struct q8_block block;
    struct padded pad;
    const size_t full = count & ~(size_t)31, index = first / SL_OPTIM_Q8_BLOCK;
    const vf m_old = v_set1(keeps_exp_avg(kind, t) ? a->exp_avg_scale[index] : 0);
    const vf v_old = v_set1(keeps_exp_avg_sq(kind) ? a->exp_avg_sq_scale[index] : 0);
    block.m_max = block.v_max = vi_set1(0);
    block.random = random_16(t, (uint32_t)(a->element_first + first), 0);
    for (size_t at = 0; at < full; at += 16)
        step_q8_16(a, t, kind, first + at, m_old, v_old, &block, at, stream);
    if (full < count) {
        pad_begin(&pad, args, first + full, count - full);
        step_q8_16(&pad.args, t, kind, 0, m_old, v_old, &block, full, false);
        step_q8_16(&pad.args, t, kind, 16, m_old, v_old, &block, full + 16, false);
    }
    float m_scale = q8_scale(max_lanes(block.m_max));
    float v_scale = q8_scale(max_lanes(block.v_max));
    vf m_inverse = v_set1(m_scale > 0 ? Q8_ENCODE_SIGNED / m_scale : 0);
    vf v_inverse = v_set1(v_scale > 0 ? 1 / v_scale : 0);
    for (size_t at = 0; at < full; at += 32)
        encode_q8_32(a, t, kind, first + at, &block, at, m_inverse, v_inverse);
    if (full < count) {
        encode_q8_32(&pad.args, t, kind, 0, &block, full, m_inverse, v_inverse);
        pad_end(&pad, args, first + full, count - full);
    }
    if (keeps_exp_avg(kind, t))
        a->exp_avg_scale[index] = m_scale;
    if (keeps_exp_avg_sq(kind))
        a->exp_avg_sq_scale[index] = v_scale;
}

INLINE void step_run_q8(const args_t *args, const terms_t *terms, enum sl_optim_kind kind)
{
    const args_t a = *args;
    const terms_t t = *terms;
    const bool stream = may_stream(&a);
    size_t first = 0;
    for (; first + SL_OPTIM_Q8_BLOCK <= a.count; first += SL_OPTIM_Q8_BLOCK)
        step_block_q8(args, &a, &t, kind, first, SL_OPTIM_Q8_BLOCK, stream);
    if (first < a.count)
        step_block_q8(args, &a, &t, kind, first, a.count - first, stream);
    if (stream)
        v_fence();
}

#define DEFINE_STEP(name, kind)                                                                    \
    static void name(const args_t *a, const terms_t *t)                                            \
    {                                                                                              \
        if (a->moment_kind == SL_MOMENT_F32)                                                       \
            step_run(a, t, kind, SL_MOMENT_F32);                                                   \
        else if (a->moment_kind == SL_MOMENT_BF16)                                                 \
            step_run(a, t, kind, SL_MOMENT_BF16);                                                  \
        else                                                                                       \
            step_run_q8(a, t, kind);                                                               \
    }

DEFINE_STEP(step_adamw, SL_OPTIM_ADAMW)
DEFINE_STEP(step_adam, SL_OPTIM_ADAM)
DEFINE_STEP(step_lion, SL_OPTIM_LION)
DEFINE_STEP(step_adagrad, SL_OPTIM_ADAGRAD)
DEFINE_STEP(step_sgd, SL_OPTIM_SGD)

static void optim_step(const args_t *args, const terms_t *terms)
{
    switch (args->hyper.kind) {
    case SL_OPTIM_ADAMW:
        step_adamw(args, terms);
        break;
    case SL_OPTIM_ADAM:
        step_adam(args, terms);
        break;
    case SL_OPTIM_LION:
        step_lion(args, terms);
        break;
    case SL_OPTIM_ADAGRAD:
        step_adagrad(args, terms);
        break;
    case SL_OPTIM_SGD:
        step_sgd(args, terms);
        break;
    }
}

#endif
