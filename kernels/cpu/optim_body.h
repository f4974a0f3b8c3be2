// SPDX-License-Identifier: Apache-2.0
/* The optimizer step, in the operations of the vector header included before.
 *
 * Problem   The update moves 28 bytes per parameter through memory: it must be one pass, and every
 *           variant must give the same bits. With moments of 16 or 8 bits there is less to move,
 *           and the core itself becomes the limit.
 * Choice    Groups of 16 elements, two at a time, go through load, moments, ratio, weight, store in
 *           registers; the kind of optimizer and of moments are compile-time constants, the element
 *           types are branches that a core predicts. A tail is the same on padded copies. The order
 *           of operations is DeepSpeed's (kernels/cpu/optim.h); fma where fma is written, nowhere
 *           else. With 8-bit moments a block is encoded while the next one is updated.
 * Rejected  Constants for every combination of types (five times the code; 4 % of the time of
 *           8-bit moments in the cache, nothing elsewhere); reciprocal estimates (other bits on
 *           every processor); a block's moments encoded once the block is done (the divider then
 *           stands still).
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

/* ---- the update of 16 elements, in three stages ---- */

/* The divider takes as long as all the rest, and what waits for it fills the core's schedulers: the
 * stages of two groups, and with 8-bit moments other work, are written between one another. */
struct lanes {
    vf g, p, m, v;
    vf ratio; /* of Adam and Adagrad: first the root */
};

INLINE bool has_ratio(enum sl_optim_kind kind)
{
    return kind == SL_OPTIM_ADAMW || kind == SL_OPTIM_ADAM || kind == SL_OPTIM_ADAGRAD;
}

/* p is not needed before update_weight. */
INLINE bool weight_comes_last(enum sl_optim_kind kind)
{
    return kind == SL_OPTIM_ADAMW;
}

INLINE void update_lion(const terms_t *t, struct lanes *x)
{
    vf c = v_fma(x->g, v_set1(t->beta1_rest), v_mul(x->m, v_set1(t->beta1)));
    /* step_size * sign(c), with sign(0) = 0 and NaN kept: c - c is 0 or NaN. */
    vi sign = vi_and(vi_from_bits(c), vi_set1(0x80000000u));
    vf signed_step = v_from_bits(vi_xor(vi_from_bits(v_set1(t->step_size)), sign));
    vi nonzero = vi_or(v_less(c, v_set1(0)), v_less(v_set1(0), c));
    vf step = v_from_bits(vi_select(nonzero, vi_from_bits(signed_step), vi_from_bits(v_sub(c, c))));
    /* Not p (1 - lr wd): that factor, rounded, is a wrong decay of 3e-8 every step. */
    x->p = v_add(x->p, t->decays ? v_fma(x->p, v_set1(t->decay), step) : step);
    x->m = v_fma(x->g, v_set1(t->beta2_rest), v_mul(x->m, v_set1(t->beta2)));
}

INLINE void update_sgd(const terms_t *t, struct lanes *x)
{
    if (t->averages) {
        x->m = v_fma(x->m, v_set1(t->beta1), x->g);
        x->g = t->nesterov ? v_fma(x->m, v_set1(t->beta1), x->g) : x->m;
    }
    x->p = v_fma(x->g, v_set1(t->step_size), x->p);
}

INLINE void update_moments(const terms_t *t, enum sl_optim_kind kind, struct lanes *x)
{
    if (kind != SL_OPTIM_ADAMW && kind != SL_OPTIM_LION && t->decays)
        x->g = v_fma(x->p, v_set1(t->decay), x->g);
    if (kind == SL_OPTIM_LION) {
        update_lion(t, x);
    } else if (kind == SL_OPTIM_SGD) {
        update_sgd(t, x);
    } else if (kind == SL_OPTIM_ADAGRAD) {
        x->v = v_fma(x->g, x->g, x->v);
    } else {
        x->m = v_fma(x->g, v_set1(t->beta1_rest), v_mul(x->m, v_set1(t->beta1)));
        x->v = v_fma(v_mul(x->g, x->g), v_set1(t->beta2_rest), v_mul(x->v, v_set1(t->beta2)));
    }
    if (has_ratio(kind))
        x->ratio = v_sqrt(x->v);
}

INLINE void update_ratio(const terms_t *t, enum sl_optim_kind kind, struct lanes *x)
{
    if (kind == SL_OPTIM_ADAGRAD)
        x->ratio = v_div(x->g, v_add(x->ratio, v_set1(t->eps)));
    else if (has_ratio(kind))
        x->ratio = v_div(x->m, v_fma(x->ratio, v_set1(t->root_scale), v_set1(t->eps)));
}

INLINE void update_weight(const terms_t *t, enum sl_optim_kind kind, struct lanes *x)
{
    /* Decay and step are summed before they meet the weight, which is rounded once then: half the
     * error of DeepSpeed's two additions (1.4e-6 against 0.7e-6 after 1,000 steps). */
    if (kind == SL_OPTIM_ADAMW && t->decays)
        x->p = v_add(x->p, v_fma(x->p, v_set1(t->decay), v_mul(x->ratio, v_set1(t->step_size))));
    else if (has_ratio(kind))
        x->p = v_fma(x->ratio, v_set1(t->step_size), x->p);
}

/* ---- where the elements lie ---- */

INLINE vf load_master(const args_t *a, size_t i)
{
    if (a->master_kind == SL_MASTER_F32)
        return v_load(a->master + i);
    const uint16_t *weight = (const uint16_t *)a->weight + i;
    return a->master_kind == SL_MASTER_SPLIT ? v_load_split(weight, a->low + i)
                                             : v_load_bf16(weight);
}

/* Add 16 random bits below the kept ones, the upper half: up with the probability of the remainder.
 * An infinity stays by itself, NaN is kept from being carried away. */
INLINE vi bf16_stochastic(vf x, vi random)
{
    return vi_keep_nan(vi_add(vi_from_bits(x), vi_and(random, vi_set1(0xffffu))), x);
}

/* The rounded copy of a master, past the caches or not. */
INLINE void store_weight(const args_t *a, size_t i, vf p, bool stream)
{
    uint16_t *to = (uint16_t *)a->weight + i;
    if (a->weight_dtype == SL_BF16) {
        if (stream)
            vi_stream_high(to, vi_bf16_from_master(p));
        else
            vi_store_high(to, vi_bf16_from_master(p));
    } else {
        if (stream)
            v_stream_f16(to, p);
        else
            v_store_f16(to, p);
    }
}

INLINE void store_master(const args_t *a, const terms_t *t, size_t i, vf p, bool stream)
{
    if (a->master_kind == SL_MASTER_F32) {
        v_store(a->master + i, p);
        if (a->weight)
            store_weight(a, i, p, stream);
    } else if (a->master_kind == SL_MASTER_SPLIT) {
        vi_store_high((uint16_t *)a->weight + i, vi_bf16_from_master(p));
        vi_store_low(a->low + i, vi_from_bits(p));
    } else {
        vi random = random_16(t, (uint32_t)(a->element_first + i), 1);
        vi_store_high((uint16_t *)a->weight + i, bf16_stochastic(p, random));
    }
}

INLINE vf load_moment(const void *moment, enum sl_moment_kind kind, size_t i)
{
    if (kind == SL_MOMENT_F32)
        return v_load((const float *)moment + i);
    return v_load_bf16((const uint16_t *)moment + i);
}

INLINE void store_moment(void *moment, enum sl_moment_kind kind, size_t i, vf x)
{
    if (kind == SL_MOMENT_F32)
        v_store((float *)moment + i, x);
    else
        vi_store_high((uint16_t *)moment + i, vi_bf16_from_f32(x));
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

INLINE struct lanes load_lanes(const args_t *a, const terms_t *t, enum sl_optim_kind kind, size_t i)
{
    struct lanes x = {.m = v_set1(0), .v = v_set1(0)};
    x.g = v_mul(v_load_dtype(a->grad, a->grad_dtype, i), v_set1(t->grad_scale));
    if (!weight_comes_last(kind))
        x.p = load_master(a, i);
    return x;
}

INLINE void finish_lanes(const args_t *a, const terms_t *t, enum sl_optim_kind kind, size_t i,
                         struct lanes *x, bool stream)
{
    if (weight_comes_last(kind))
        x->p = load_master(a, i);
    update_weight(t, kind, x);
    store_master(a, t, i, x->p, stream);
}

INLINE struct lanes begin_16(const args_t *a, const terms_t *t, enum sl_optim_kind kind,
                             enum sl_moment_kind moment, size_t i)
{
    struct lanes x = load_lanes(a, t, kind, i);
    if (keeps_exp_avg(kind, t))
        x.m = load_moment(a->exp_avg, moment, i);
    if (keeps_exp_avg_sq(kind))
        x.v = load_moment(a->exp_avg_sq, moment, i);
    update_moments(t, kind, &x);
    if (keeps_exp_avg(kind, t))
        store_moment(a->exp_avg, moment, i, x.m);
    if (keeps_exp_avg_sq(kind))
        store_moment(a->exp_avg_sq, moment, i, x.v);
    return x;
}

INLINE void step_32(const args_t *a, const terms_t *t, enum sl_optim_kind kind,
                    enum sl_moment_kind moment, size_t i, bool stream)
{
    struct lanes x = begin_16(a, t, kind, moment, i), y = begin_16(a, t, kind, moment, i + 16);
    update_ratio(t, kind, &x);
    update_ratio(t, kind, &y);
    finish_lanes(a, t, kind, i, &x, stream);
    finish_lanes(a, t, kind, i + 16, &y, stream);
}

/* ---- moments in 8 bits: a block's scales need its new moments first ---- */

/* New moments that are not encoded yet, element i of the run at i modulo the size. */
#define Q8_RING (2 * SL_OPTIM_Q8_BLOCK)
struct q8_ring {
    _Alignas(64) float m[Q8_RING], v[Q8_RING];
};

struct q8_update {
    vf m_scale, v_scale; /* old */
    vi m_max, v_max;     /* largest new magnitudes, as bits */
};

struct q8_encoding {
    vf m_inverse, v_inverse; /* of the new scales */
    vi random;
};

INLINE struct lanes begin_q8_16(const args_t *a, const terms_t *t, enum sl_optim_kind kind,
                                size_t i, struct q8_update *update, struct q8_ring *ring)
{
    struct lanes x = load_lanes(a, t, kind, i);
    if (keeps_exp_avg(kind, t))
        x.m = q8_decode_signed(vi_load_s8((const uint8_t *)a->exp_avg + i), update->m_scale);
    if (keeps_exp_avg_sq(kind))
        x.v = q8_decode_unsigned(vi_load_u8((const uint8_t *)a->exp_avg_sq + i), update->v_scale);
    update_moments(t, kind, &x);
    if (keeps_exp_avg(kind, t)) {
        v_store(ring->m + i % Q8_RING, x.m);
        update->m_max = vi_max(update->m_max, vi_and(vi_from_bits(x.m), vi_set1(0x7fffffffu)));
    }
    if (keeps_exp_avg_sq(kind)) {
        v_store(ring->v + i % Q8_RING, x.v);
        update->v_max = vi_max(update->v_max, vi_from_bits(x.v)); /* never negative */
    }
    return x;
}

INLINE void encode_exp_avg(const args_t *a, size_t i, vf inverse, struct q8_dither dither,
                           const struct q8_ring *ring)
{
    const float *m = ring->m + i % Q8_RING;
    vf x = v_load(m), y = v_load(m + 16);
    vi_store_s8((uint8_t *)a->exp_avg + i, q8_encode_signed(x, inverse, dither.high),
                q8_encode_signed(y, inverse, dither.low), x, y);
}

INLINE void encode_exp_avg_sq(const args_t *a, size_t i, vf inverse, struct q8_dither dither,
                              const struct q8_ring *ring)
{
    const float *v = ring->v + i % Q8_RING;
    vi_store_u8((uint8_t *)a->exp_avg_sq + i, q8_encode_unsigned(v_load(v), inverse, dither.low),
                q8_encode_unsigned(v_load(v + 16), inverse, dither.high));
}

/* The block that begins at element i. */
INLINE struct q8_update open_q8(const args_t *a, const terms_t *t, enum sl_optim_kind kind,
                                size_t i)
{
    const size_t block = i / SL_OPTIM_Q8_BLOCK;
    return (struct q8_update){
        .m_scale = v_set1(keeps_exp_avg(kind, t) ? a->exp_avg_scale[block] : 0),
        .v_scale = v_set1(keeps_exp_avg_sq(kind) ? a->exp_avg_sq_scale[block] : 0),
        .m_max = vi_set1(0),
        .v_max = vi_set1(0),
    };
}

/* The new scales of the block that element i is in. */
INLINE struct q8_encoding close_q8(const args_t *a, const terms_t *t, enum sl_optim_kind kind,
                                   size_t i, const struct q8_update *update)
{
    const size_t block = i / SL_OPTIM_Q8_BLOCK;
    const uint64_t element = a->element_first + block * SL_OPTIM_Q8_BLOCK;
    struct q8_encoding encoding = {.random = random_16(t, (uint32_t)element, 0)};
    if (keeps_exp_avg(kind, t)) {
        float scale = q8_scale(vi_max_lanes(update->m_max));
        a->exp_avg_scale[block] = scale;
        encoding.m_inverse = v_set1(scale > 0 ? Q8_ENCODE_SIGNED / scale : 0);
    }
    if (keeps_exp_avg_sq(kind)) {
        float scale = q8_scale(vi_max_lanes(update->v_max));
        a->exp_avg_sq_scale[block] = scale;
        encoding.v_inverse = v_set1(scale > 0 ? 1 / scale : 0);
    }
    return encoding;
}

/* ---- whole groups of elements ---- */

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

/* All elements, a multiple of 32. */
INLINE void step_whole(const args_t *args, const terms_t *terms, enum sl_optim_kind kind,
                       enum sl_moment_kind moment)
{
    /* Copies whose address stays here: what is loaded from them stays in registers over stores. */
    const args_t a = *args;
    const terms_t t = *terms;
    const bool stream = may_stream(&a);
    for (size_t i = 0; i < a.count; i += 32)
        step_32(&a, &t, kind, moment, i, stream);
    if (stream)
        v_fence();
}

/* How far encoding is behind the update: a block, whose scales must be known, and as much more as
 * it takes to find them. */
#define Q8_LAG (SL_OPTIM_Q8_BLOCK + 64)

struct q8_state {
    struct q8_update update;
    struct q8_encoding encoding, next; /* next: of the block that was updated last */
};

/* Update elements i to i + 31 and encode those Q8_LAG before; one of the two is left out near the
 * ends of the run. */
INLINE void unit_q8(const args_t *a, const terms_t *t, enum sl_optim_kind kind, size_t i,
                    bool updates, bool encodes, struct q8_state *state, struct q8_ring *ring,
                    bool stream)
{
    const size_t old = i - Q8_LAG;
    struct lanes x, y;
    struct q8_dither dither;
    if (updates) {
        x = begin_q8_16(a, t, kind, i, &state->update, ring);
        y = begin_q8_16(a, t, kind, i + 16, &state->update, ring);
    }
    if (encodes) {
        if (old % SL_OPTIM_Q8_BLOCK == 0)
            state->encoding = state->next;
        dither = q8_dither_of(random_q8_16(state->encoding.random, old % SL_OPTIM_Q8_BLOCK / 32));
        if (keeps_exp_avg(kind, t))
            encode_exp_avg(a, old, state->encoding.m_inverse, dither, ring);
    }
    if (updates) {
        update_ratio(t, kind, &x);
        update_ratio(t, kind, &y);
    }
    if (encodes && keeps_exp_avg_sq(kind))
        encode_exp_avg_sq(a, old, state->encoding.v_inverse, dither, ring);
    if (updates) {
        finish_lanes(a, t, kind, i, &x, stream);
        finish_lanes(a, t, kind, i + 16, &y, stream);
        const bool last = i + 32 == a->count;
        if (last || (i + 32) % SL_OPTIM_Q8_BLOCK == 0) {
            state->next = close_q8(a, t, kind, i, &state->update);
            if (!last)
                state->update = open_q8(a, t, kind, i + 32);
        }
    }
}

INLINE void step_whole_q8(const args_t *args, const terms_t *terms, enum sl_optim_kind kind)
{
    const args_t a = *args;
    const terms_t t = *terms;
    const bool stream = may_stream(&a);
    const size_t first_end = a.count < Q8_LAG ? a.count : Q8_LAG;
    struct q8_ring ring;
    struct q8_state state = {.update = open_q8(&a, &t, kind, 0), .next = {.random = vi_set1(0)}};
    size_t i = 0;
    for (; i < first_end; i += 32)
        unit_q8(&a, &t, kind, i, true, false, &state, &ring, stream);
    for (; i < a.count; i += 32)
        unit_q8(&a, &t, kind, i, true, true, &state, &ring, stream);
    for (i = Q8_LAG > a.count ? Q8_LAG : a.count; i < a.count + Q8_LAG; i += 32)
        unit_q8(&a, &t, kind, i, false, true, &state, &ring, stream);
    if (stream)
        v_fence();
}

#define DEFINE_STEP(name, kind)                                                                    \
    static void name(const args_t *a, const terms_t *t)                                            \
    {                                                                                              \
        if (a->moment_kind == SL_MOMENT_F32)                                                       \
            step_whole(a, t, kind, SL_MOMENT_F32);                                                 \
        else if (a->moment_kind == SL_MOMENT_BF16)                                                 \
            step_whole(a, t, kind, SL_MOMENT_BF16);                                                \
        else                                                                                       \
            step_whole_q8(a, t, kind);                                                             \
    }

DEFINE_STEP(step_adamw, SL_OPTIM_ADAMW)
DEFINE_STEP(step_adam, SL_OPTIM_ADAM)
DEFINE_STEP(step_lion, SL_OPTIM_LION)
DEFINE_STEP(step_adagrad, SL_OPTIM_ADAGRAD)
DEFINE_STEP(step_sgd, SL_OPTIM_SGD)

static void (*const steps[])(const args_t *, const terms_t *) = {
    [SL_OPTIM_ADAMW] = step_adamw,     [SL_OPTIM_ADAM] = step_adam, [SL_OPTIM_LION] = step_lion,
    [SL_OPTIM_ADAGRAD] = step_adagrad, [SL_OPTIM_SGD] = step_sgd,
};

/* ---- runs: whole groups, and the rest in padded copies ---- */

/* Room for a block of 8-bit moments; the others use the first 32. */
struct padded {
    _Alignas(64) float grad[SL_OPTIM_Q8_BLOCK], master[SL_OPTIM_Q8_BLOCK];
    float exp_avg[SL_OPTIM_Q8_BLOCK], exp_avg_sq[SL_OPTIM_Q8_BLOCK];
    uint16_t low[SL_OPTIM_Q8_BLOCK], weight[SL_OPTIM_Q8_BLOCK];
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

/* Element `first` of the run becomes element 0 of the copy; random counters and scales move along.
 */
static void pad_begin(struct padded *pad, const args_t *a, size_t first, size_t count)
{
    const size_t bytes = sl_moment_bytes(a->moment_kind), block = first / SL_OPTIM_Q8_BLOCK;
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
    pad->args.exp_avg_scale = a->exp_avg_scale ? a->exp_avg_scale + block : NULL;
    pad->args.exp_avg_sq_scale = a->exp_avg_sq_scale ? a->exp_avg_sq_scale + block : NULL;
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

static void optim_step(const args_t *args, const terms_t *terms)
{
    const bool q8 = args->moment_kind == SL_MOMENT_Q8;
    size_t rest = args->count % 32;
    if (rest > 0 && q8)
        rest = args->count % SL_OPTIM_Q8_BLOCK; /* a block is not taken apart */
    args_t whole = *args;
    whole.count -= rest;
    if (whole.count > 0)
        steps[args->hyper.kind](&whole, terms);
    if (rest > 0) {
        struct padded pad;
        pad_begin(&pad, args, whole.count, rest);
        pad.args.count = (rest + 31) & ~(size_t)31;
        steps[args->hyper.kind](&pad.args, terms);
        pad_end(&pad, args, whole.count, rest);
    }
}

#endif
