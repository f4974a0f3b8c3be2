// SPDX-License-Identifier: Apache-2.0
#include "engine/state.h"

#include <errno.h>
#include <string.h>

#include "base/size.h"
#include "engine/engine.h"
#include "engine/state_hash.h"
#include "engine/step_layout.h"

#define FILL_ELEMENTS 65536u /* one worker task of initial values */
#define FILL_CHUNK 2048u     /* on a worker's stack */

static bool addressable(const struct sl_step_plan *sp, enum sl_tier tier)
{
    return tier == SL_TIER_HOST || (tier == SL_TIER_DEVICE && sp->options.unified);
}

void sl_state_stage_bytes(const struct sl_step_plan *sp, uint64_t bytes[2])
{
    bytes[0] = bytes[1] = 0;
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        const struct sl_piece *piece = &sp->pieces[p];
        if (!addressable(sp, piece->weights_tier))
            bytes[0] = sl_max_u64(bytes[0], sp->plan.slots[piece->weights].bytes);
    }
    for (uint32_t g = 0; g < sp->group_count; g++)
        if (!addressable(sp, sp->groups[g].tier))
            bytes[1] = sl_max_u64(bytes[1], sp->groups[g].state_bytes);
}

/* Bring a home slot to host memory, or take it back. */
struct staged {
    uint32_t slot;
    unsigned char *memory;
    bool copied;
};

/* Where a slot's current version begins. */
static uint64_t slot_skip(const struct sl_engine *engine, const struct sl_slot *slot)
{
    return slot->versioned && engine->version ? sl_slot_bytes(slot) : 0;
}

static int move(struct sl_engine *engine, const struct staged *staged, bool back,
                struct sl_error *error)
{
    const struct sl_slot *slot = &engine->sp.plan.slots[staged->slot];
    uint64_t bytes = sl_slot_bytes(slot), skip = slot_skip(engine, slot);
    int result;
    if (slot->tier == SL_TIER_NVME) {
        result =
            sl_swap_transfer(engine->swap, back, slot->offset + skip, staged->memory, bytes);
        if (result)
            sl_swap_error(engine->swap, error);
        return result;
    }
    struct sl_device *device = engine->device;
    unsigned char *home = sl_executor_pointer(engine->executor, staged->slot);
    home += skip;
    enum sl_stream stream = back ? SL_STREAM_H2D : SL_STREAM_D2H;
    result = device->ops->copy(device, stream, back ? home : staged->memory,
                               back ? staged->memory : home, bytes);
    if (!result)
        result = device->ops->stream_synchronize(device, stream);
    if (result && error && device->error.code)
        *error = device->error;
    return result;
}

static int stage(struct sl_engine *engine, struct staged *staged, uint32_t slot, int which,
                 enum sl_state_visit_mode mode, struct sl_error *error)
{
    const struct sl_plan *plan = &engine->sp.plan;
    staged->slot = slot;
    staged->copied = !addressable(&engine->sp, plan->slots[slot].tier);
    if (staged->copied)
        staged->memory = engine->host.base + plan->persistent_bytes[SL_TIER_HOST] +
                         (which ? engine->stage_bytes[0] : 0);
    else
        staged->memory = (unsigned char *)sl_executor_pointer(engine->executor, slot) +
                         slot_skip(engine, &plan->slots[slot]);
    if (mode == SL_STATE_FILL)
        memset(staged->memory, 0, sl_slot_bytes(&plan->slots[slot]));
    else if (staged->copied)
        return move(engine, staged, false, error);
    return 0;
}

static int unstage(struct sl_engine *engine, const struct staged *staged,
                   enum sl_state_visit_mode mode, struct sl_error *error)
{
    return staged->copied && mode != SL_STATE_READ ? move(engine, staged, true, error) : 0;
}

static struct sl_state_span span_of(const struct sl_step_plan *sp, const struct sl_sub_group *g,
                                    const struct sl_run *run, unsigned char *weights,
                                    unsigned char *state)
{
    const struct sl_step_options *o = &sp->options;
    uint64_t index = run->state_offset;
    size_t moment = sl_moment_bytes(o->moment_kind);
    struct sl_state_span span = {
        .param = run->param,
        .first = run->param_first,
        .count = run->count,
        .weight = weights + run->weight_offset * sl_dtype_bytes(o->precision),
    };
    span.trained = true;
    if (g->master_kind == SL_MASTER_NONE)
        span.master = NULL;
    else if (g->master_bytes == 0)
        span.master = span.weight;
    else if (g->master_kind == SL_MASTER_SPLIT)
        span.low = (uint16_t *)(void *)(state + g->master_offset) + index;
    else
        span.master = (float *)(void *)(state + g->master_offset) + index;
    if (g->moment_offset[0] != UINT64_MAX)
        span.exp_avg = state + g->moment_offset[0] + index * moment;
    if (g->moment_offset[1] != UINT64_MAX)
        span.exp_avg_sq = state + g->moment_offset[1] + index * moment;
    if (g->scale_offset[0] != UINT64_MAX)
        span.exp_avg_scale =
            (float *)(void *)(state + g->scale_offset[0]) + index / SL_OPTIM_Q8_BLOCK;
    if (g->scale_offset[1] != UINT64_MAX)
        span.exp_avg_sq_scale =
            (float *)(void *)(state + g->scale_offset[1]) + index / SL_OPTIM_Q8_BLOCK;
    return span;
}

struct visit {
    struct sl_engine *engine;
    enum sl_state_visit_mode mode;
    sl_state_visitor visitor;
    void *user;
    struct staged weights, state;
    uint32_t group; /* staged, or UINT32_MAX */
};

static int switch_group(struct visit *v, uint32_t group, struct sl_error *error)
{
    if (v->group == group)
        return 0;
    int result = 0;
    if (v->group != UINT32_MAX)
        result = unstage(v->engine, &v->state, v->mode, error);
    v->group = group;
    if (!result && group != UINT32_MAX)
        result = stage(v->engine, &v->state, v->engine->sp.groups[group].state, 1, v->mode, error);
    return result;
}

/* The sub-group that holds run r of a piece. */
static uint32_t group_of_run(const struct sl_step_plan *sp, const struct sl_piece *piece,
                             uint32_t r)
{
    for (uint32_t g = piece->group_first; g < piece->group_first + piece->group_count; g++)
        if (r >= sp->groups[g].run_first && r < sp->groups[g].run_first + sp->groups[g].run_count)
            return g;
    return UINT32_MAX;
}

static int visit_param(struct visit *v, const struct sl_piece *piece, uint64_t param,
                       uint32_t *next_run, struct sl_error *error)
{
    const struct sl_step_plan *sp = &v->engine->sp;
    const struct sl_param *tensor = &sp->options.model->params[param];
    uint64_t first = sl_max_u64(tensor->offset, piece->unit_first);
    uint64_t end = sl_min_u64(tensor->offset + tensor->rows * tensor->columns,
                              piece->unit_first + piece->elements);
    if (first >= end)
        return 0;
    if (tensor->frozen) {
        struct sl_state_span span = {
            .param = (uint32_t)param,
            .first = first - tensor->offset,
            .count = end - first,
            .weight = v->weights.memory +
                      (first - piece->unit_first) * sl_dtype_bytes(sp->options.precision),
        };
        return v->visitor(v->user, &span, error);
    }
    int result = 0;
    for (; *next_run < piece->run_first + piece->run_count && !result; (*next_run)++) {
        const struct sl_run *run = &sp->runs[*next_run];
        if (run->param != param)
            break;
        uint32_t group = group_of_run(sp, piece, *next_run);
        result = switch_group(v, group, error);
        if (result)
            break;
        struct sl_state_span span =
            span_of(sp, &sp->groups[group], run, v->weights.memory, v->state.memory);
        result = v->visitor(v->user, &span, error);
    }
    return result;
}

int sl_state_visit(struct sl_engine *engine, enum sl_state_visit_mode mode,
                   sl_state_visitor visitor, void *user, struct sl_error *error)
{
    struct visit v = {
        .engine = engine, .mode = mode, .visitor = visitor, .user = user, .group = UINT32_MAX};
    const struct sl_step_plan *sp = &engine->sp;
    const struct sl_model *m = sp->options.model;
    int result = 0;
    for (uint32_t p = 0; p < sp->piece_count && !result; p++) {
        const struct sl_piece *piece = &sp->pieces[p];
        result = stage(engine, &v.weights, piece->weights, 0, mode, error);
        uint32_t run = piece->run_first;
        for (uint64_t i = m->unit_first_param[piece->unit];
             i < m->unit_first_param[piece->unit + 1] && !result; i++)
            result = visit_param(&v, piece, i, &run, error);
        if (!result)
            result = switch_group(&v, UINT32_MAX, error);
        if (!result)
            result = unstage(engine, &v.weights, mode, error);
    }
    if (result && error && error->code == 0)
        sl_error_set(error, SL_DOMAIN_IO, result, "training state: %s", strerror(-result));
    return result;
}

void sl_state_master_load(const struct sl_step_plan *sp, const struct sl_state_span *span,
                          uint64_t first, uint64_t count, float *out)
{
    if (span->master) {
        memcpy(out, span->master + first, count * sizeof(float));
    } else if (span->low) {
        const uint16_t *weight = span->weight;
        for (uint64_t i = 0; i < count; i++)
            out[i] = sl_master_from_split(weight[first + i], span->low[first + i]);
    } else {
        for (uint64_t i = 0; i < count; i++)
            out[i] = sl_dtype_load(span->weight, sp->options.precision, first + i);
    }
}

void sl_state_master_store(const struct sl_step_plan *sp, const struct sl_state_span *span,
                           uint64_t first, uint64_t count, const float *values)
{
    enum sl_dtype dtype = sp->options.precision;
    for (uint64_t i = 0; i < count; i++) {
        if (dtype == SL_BF16)
            ((uint16_t *)span->weight)[first + i] = sl_bf16_from_master(values[i]);
        else
            sl_dtype_store(span->weight, dtype, first + i, values[i]);
        if (span->master)
            span->master[first + i] = values[i];
        if (span->low)
            span->low[first + i] = (uint16_t)(sl_bits_from_f32(values[i]) & 0xffff);
    }
}

struct fill {
    struct sl_engine *engine;
    uint64_t seed;
    const struct sl_state_span *span;
};

static void fill_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct fill *f = arg;
    const struct sl_model *m = f->engine->sp.options.model;
    uint64_t first = (uint64_t)task * FILL_ELEMENTS;
    uint64_t end = sl_min_u64(first + FILL_ELEMENTS, f->span->count);
    float values[FILL_CHUNK];
    for (; first < end; first += FILL_CHUNK) {
        uint64_t count = sl_min_u64(FILL_CHUNK, end - first);
        sl_model_initial(m, &m->params[f->span->param], f->seed, f->span->first + first, count,
                         values);
        sl_state_master_store(&f->engine->sp, f->span, first, count, values);
    }
}

static int fill_span(void *user, const struct sl_state_span *span, struct sl_error *error)
{
    (void)error;
    struct fill *f = user;
    f->span = span;
    sl_workers_run(f->engine->workers, sl_div_up(span->count, FILL_ELEMENTS), fill_task, f);
    return 0;
}

int sl_state_initialize(struct sl_engine *engine, uint64_t seed, struct sl_error *error)
{
    struct fill fill = {.engine = engine, .seed = seed};
    return sl_state_visit(engine, SL_STATE_FILL, fill_span, &fill, error);
}

struct hash {
    const struct sl_step_plan *sp;
    struct sl_state_hasher *hasher;
};

static int hash_span(void *user, const struct sl_state_span *span, struct sl_error *error)
{
    (void)error;
    struct hash *h = user;
    sl_state_hasher_add(h->hasher, h->sp, span);
    return 0;
}

int sl_state_hash(struct sl_engine *engine, uint64_t *hash, struct sl_error *error)
{
    struct hash h = {.sp = &engine->sp};
    int result = sl_state_hasher_create(&h.hasher, error);
    if (!result)
        result = sl_state_visit(engine, SL_STATE_READ, hash_span, &h, error);
    if (!result)
        *hash = sl_state_hasher_value(h.hasher);
    sl_state_hasher_destroy(h.hasher);
    return result;
}
