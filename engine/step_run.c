// SPDX-License-Identifier: Apache-2.0
/* Operations to calls. Nothing here decides an order or a place: the plan has done that. */
#include "engine/step_run.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/step_layout.h"
#include "engine/transformer.h"
#include "kernels/cpu/gradient.h"

/* Elements that one worker updates at a time: large enough to stream, small enough to share out.
 * Bit-neutral: the optimizer's result does not depend on the cut. */
#define UPDATE_ELEMENTS (64u * 1024u)

struct call {
    const struct sl_step_runner *r;
    const struct sl_step_plan *sp;
    const struct sl_op *op;
    const struct sl_step_args *args;
    struct sl_step_context *context;
};

static void *at(const struct call *c, uint32_t slot)
{
    return slot == SL_PLAN_NONE ? NULL : sl_executor_pointer(c->r->executor, slot);
}

static const struct sl_piece *piece_of(const struct call *c)
{
    return &c->sp->pieces[c->op->piece];
}

static size_t rows_of(const struct sl_step_plan *sp)
{
    return sp->options.batch * sp->options.sequence;
}

/* The four i32 rows of a micro-batch on the device. */
static const int32_t *input_row(const struct call *c, int row)
{
    const int32_t *inputs = at(c, c->sp->inputs_device[c->op->micro_batch]);
    return inputs + (size_t)row * rows_of(c->sp);
}

static struct sl_batch batch_of(const struct call *c)
{
    struct sl_batch batch = {
        .batch_count = c->sp->options.batch,
        .sequence_length = c->sp->options.sequence,
        .positions = input_row(c, 2),
        .first = input_row(c, 3),
    };
    for (int table = 0; table < 2; table++) {
        batch.rope_cos[table] = at(c, c->sp->rope[table][0]);
        batch.rope_sin[table] = at(c, c->sp->rope[table][1]);
    }
    return batch;
}

static struct sl_unit_memory memory_of(const struct call *c, const struct sl_piece *piece,
                                       uint32_t weights, uint32_t sums)
{
    return (struct sl_unit_memory){
        .unit = piece->unit,
        .weights = at(c, weights),
        .weights_first = piece->unit_first,
        .dtype = c->sp->options.precision,
        .sums = at(c, sums),
        .sums_offset = c->sp->sums_offset,
    };
}

static int zero_sums(const struct call *c, const struct sl_piece *piece, uint32_t sums)
{
    if (sums == SL_PLAN_NONE)
        return 0;
    return c->r->device->ops->zero(c->r->device, SL_STREAM_COMPUTE, at(c, sums),
                                   piece->sums_elements * sizeof(float));
}

static void run_input(const struct call *c)
{
    size_t rows = rows_of(c->sp);
    const struct sl_step_context *x = c->context;
    for (size_t i = 0; i < c->sp->options.micro_batches; i++) {
        int32_t *to = at(c, c->sp->inputs[i]);
        memcpy(to, x->ids + i * rows, rows * sizeof(int32_t));
        memcpy(to + rows, x->targets + i * rows, rows * sizeof(int32_t));
        memcpy(to + 2 * rows, x->positions + i * rows, rows * sizeof(int32_t));
        memcpy(to + 3 * rows, x->first + i * rows, rows * sizeof(int32_t));
    }
}

static struct sl_embedding_args embedding_of(const struct call *c)
{
    const struct sl_piece *piece = piece_of(c);
    const struct sl_model *m = c->sp->options.model;
    bool positions = piece->kind == SL_PIECE_POSITIONS;
    return (struct sl_embedding_args){
        .rows = c->sp->options.generate_positions ? c->context->rows : rows_of(c->sp),
        .width = m->hidden,
        .row_first = piece->row_first,
        .row_count = piece->row_count,
        .ids = input_row(c, positions ? 2 : 0),
        .scale = positions ? 1.0f : m->embedding_scale,
        .add = positions,
    };
}

static int run_embed(const struct call *c)
{
    struct sl_embedding_args args = embedding_of(c);
    args.table = (struct sl_weight){at(c, c->args->weights), c->sp->options.precision};
    args.out = at(c, c->args->out);
    return c->r->device->ops->embedding(c->r->device, &args);
}

static int run_embed_backward(const struct call *c)
{
    struct sl_embedding_args args = embedding_of(c);
    args.dout = at(c, c->args->dx);
    args.dtable = at(c, c->args->sums);
    int result = c->args->first ? zero_sums(c, piece_of(c), c->args->sums) : 0;
    return result ? result : c->r->device->ops->embedding_backward(c->r->device, &args);
}

/* A layer, or one tile of it, and the tile's rows. */
static struct sl_layer_memory layer_memory(const struct call *c, struct sl_layer_tile *tile)
{
    const struct sl_step_plan *sp = c->sp;
    const struct sl_piece *piece = piece_of(c);
    struct sl_layer_memory memory = {.matrices =
                                         memory_of(c, piece, c->args->weights, c->args->sums)};
    if (piece->kind == SL_PIECE_LAYER)
        return memory;
    *tile = (struct sl_layer_tile){piece->role, piece->row_first, piece->row_count};
    memory.tile = tile;
    memory.vector_count = sp->layer_vectors;
    const uint32_t *slots = sp->vector_slots + c->args->vectors;
    for (uint32_t k = 0; k < sp->layer_vectors; k++) {
        uint32_t p = sl_layer_piece_forward(sp, piece->unit - 1, k);
        memory.vectors[k] = memory_of(c, &sp->pieces[p], slots[k], slots[sp->layer_vectors + k]);
    }
    return memory;
}

static int zero_vectors(const struct call *c)
{
    const struct sl_step_plan *sp = c->sp;
    const uint32_t *sums = sp->vector_slots + c->args->vectors + sp->layer_vectors;
    int result = 0;
    for (uint32_t k = 0; k < sp->layer_vectors && !result; k++) {
        uint32_t p = sl_layer_piece_forward(sp, piece_of(c)->unit - 1, k);
        result = zero_sums(c, &sp->pieces[p], sums[k]);
    }
    return result;
}

static int run_layer(const struct call *c)
{
    const struct sl_step_args *a = c->args;
    struct sl_batch batch = batch_of(c);
    struct sl_layer_tile tile;
    struct sl_layer_memory memory = layer_memory(c, &tile);
    struct sl_device *device = c->r->device;
    const struct sl_model *m = c->sp->options.model;
    uint32_t layer = piece_of(c)->unit - 1;
    void *saved = at(c, a->saved), *scratch = at(c, a->scratch);
    if (c->op->kind != SL_OP_BACKWARD)
        return sl_layer_forward(device, m, layer, &batch, &memory, at(c, a->x), at(c, a->out),
                                saved, scratch);
    int result = a->first ? zero_sums(c, piece_of(c), a->sums) : 0;
    if (!result && a->first_vectors)
        result = zero_vectors(c);
    if (!result && a->recompute)
        result =
            sl_layer_forward(device, m, layer, &batch, &memory, at(c, a->x), NULL, saved, scratch);
    if (!result)
        result = sl_layer_backward(device, m, layer, &batch, &memory, at(c, a->x), at(c, a->dx),
                                   saved, scratch);
    return result;
}

static struct sl_head_memory head_of(const struct call *c)
{
    size_t rows = rows_of(c->sp);
    float *stats = at(c, c->sp->stats[c->op->micro_batch]);
    const struct sl_step_context *x = c->context;
    const struct sl_step_control *control = at(c, c->sp->control);
    double tokens = x->trained_tokens ? (double)x->trained_tokens : 1;
    return (struct sl_head_memory){
        .rows = rows,
        .targets = input_row(c, 1),
        .h = at(c, c->args->h),
        .dh = at(c, c->args->dx),
        .logits = at(c, c->args->logits),
        .row_max = stats,
        .row_sum = stats + rows,
        .target_logit = stats + 2 * rows,
        .loss = stats + 3 * rows,
        .scale = (float)(control->loss_scale / tokens),
    };
}

static struct sl_head_tile tile_of(const struct call *c)
{
    const struct sl_piece *piece = piece_of(c);
    return (struct sl_head_tile){
        .table = {at(c, c->args->weights), c->sp->options.precision},
        .dtable = at(c, c->args->sums),
        .row_first = piece->row_first,
        .row_count = piece->row_count,
    };
}

static int run_head(const struct call *c)
{
    const struct sl_step_args *a = c->args;
    const struct sl_step_plan *sp = c->sp;
    const struct sl_piece *norm = &sp->pieces[sp->norm_piece];
    struct sl_device *device = c->r->device;
    struct sl_head_memory head = head_of(c);
    struct sl_unit_memory memory = memory_of(c, norm, a->norm_weights, a->norm_sums);
    struct sl_head_tile tile = tile_of(c);
    int result = 0;
    if (a->first) {
        result = zero_sums(c, piece_of(c), a->sums);
        if (!result)
            result = zero_sums(c, norm, a->norm_sums);
    }
    if (!result)
        result =
            sl_head_norm(device, sp->options.model, head.rows, &memory, at(c, a->x), at(c, a->h));
    if (!result)
        result = sl_head_whole(device, sp->options.model, &head, &tile);
    if (!result && c->op->kind == SL_OP_HEAD)
        result = sl_head_norm_backward(device, sp->options.model, head.rows, &memory, at(c, a->x),
                                       head.dh, head.dh);
    return result;
}

static int run_head_norm(const struct call *c)
{
    const struct sl_step_args *a = c->args;
    const struct sl_model *m = c->sp->options.model;
    struct sl_unit_memory memory = memory_of(c, piece_of(c), a->norm_weights, a->norm_sums);
    size_t rows = c->sp->options.generate_positions ? c->context->rows : rows_of(c->sp);
    if (c->op->kind == SL_OP_HEAD_NORM)
        return sl_head_norm(c->r->device, m, rows, &memory, at(c, a->x), at(c, a->h));
    int result = a->first ? zero_sums(c, piece_of(c), a->norm_sums) : 0;
    if (result)
        return result;
    void *dx = at(c, a->dx);
    return sl_head_norm_backward(c->r->device, m, rows, &memory, at(c, a->x), dx, dx);
}

static int run_head_tile(const struct call *c)
{
    const struct sl_step_plan *sp = c->sp;
    struct sl_head_memory head = head_of(c);
    struct sl_head_tile tile = tile_of(c);
    struct sl_device *device = c->r->device;
    if (c->op->kind == SL_OP_HEAD_STATS) {
        bool last = (uint32_t)c->op->piece == sp->head_first + sp->head_count - 1;
        int result = sl_head_stats(device, sp->options.model, &head, &tile);
        return result || !last ? result : sl_head_loss(device, &head);
    }
    int result = c->args->first ? zero_sums(c, piece_of(c), c->args->sums) : 0;
    return result ? result : sl_head_backward(device, sp->options.model, &head, &tile);
}

static int run_generate(const struct call *c)
{
    const struct sl_step_args *a = c->args;
    struct sl_batch batch = batch_of(c);
    batch.batch_count = 1;
    batch.sequence_length = c->context->rows;
    uint32_t layer = piece_of(c)->unit - 1;
    struct sl_layer_tile tile;
    struct sl_layer_memory memory = layer_memory(c, &tile);
    struct sl_layer_cache cache = {
        .position_first = c->context->position_first,
        .keys = at(c, c->sp->cache[2 * layer]),
        .values = at(c, c->sp->cache[2 * layer + 1]),
    };
    return sl_layer_generate(c->r->device, c->sp->options.model, layer, &batch, &memory, &cache,
                             at(c, a->x), at(c, a->out), at(c, a->saved), at(c, a->scratch));
}

/* The last new token's row of one tile of logits. */
static int run_logits(const struct call *c)
{
    const struct sl_piece *piece = piece_of(c);
    const struct sl_model *m = c->sp->options.model;
    size_t last =
        (c->context->rows - 1) * m->hidden * sl_dtype_bytes(c->r->device->activation_dtype);
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_FORWARD,
        .rows = 1,
        .inputs = m->hidden,
        .outputs = piece->row_count,
        .x = (unsigned char *)at(c, c->args->h) + last,
        .y = (float *)at(c, c->args->logits) + piece->row_first,
        .y_f32 = true,
        .weight = {at(c, c->args->weights), c->sp->options.precision},
    };
    return c->r->device->ops->matmul(c->r->device, &args);
}

static int run_gradient(const struct call *c)
{
    const struct sl_step_plan *sp = c->sp;
    const struct sl_piece *piece = piece_of(c);
    const float *sums = at(c, c->args->sums);
    unsigned char *out = at(c, c->args->gradient);
    double *norms = (double *)at(c, sp->norms) + piece->chunk_first;
    uint64_t *nonfinite = (uint64_t *)at(c, sp->nonfinite) + piece->chunk_first;
    size_t element = sl_dtype_bytes(sp->options.precision);
    int result = 0;
    for (uint32_t i = piece->run_first; i < piece->run_first + piece->run_count && !result; i++) {
        const struct sl_run *run = &sp->runs[i];
        struct sl_gradient_finish_args args = {
            .count = run->count,
            .sum = sums + run->sums_offset,
            .out = out + run->gradient_offset * element,
            .dtype = sp->options.precision,
            .chunk_squares = norms + run->chunk_first,
            .chunk_nonfinite = nonfinite + run->chunk_first,
        };
        result = c->r->device->ops->gradient_finish(c->r->device, &args);
    }
    return result;
}

double sl_step_loss_sum(const struct sl_step_runner *runner, uint32_t micro_batch)
{
    size_t rows = rows_of(runner->sp);
    const float *loss = sl_executor_pointer(runner->executor, runner->sp->losses[micro_batch]);
    loss += 3 * rows;
    double sum = 0;
    for (size_t i = 0; i < rows; i++)
        sum += loss[i];
    return sum;
}

/* The parameter that owns a gradient chunk. */
static int32_t chunk_param(const struct sl_step_plan *sp, uint64_t chunk)
{
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        const struct sl_piece *piece = &sp->pieces[p];
        if (chunk < piece->chunk_first || chunk >= piece->chunk_first + piece->chunk_count)
            continue;
        int32_t found = -1;
        for (uint32_t i = piece->run_first; i < piece->run_first + piece->run_count; i++)
            if (piece->chunk_first + sp->runs[i].chunk_first <= chunk)
                found = (int32_t)sp->runs[i].param;
        return found;
    }
    return -1;
}

/* The step will be applied as it is, with the learning rate that is next: said before the backward
 * pass, by the arithmetic of run_decide, so that a right prediction is right to the bit. */
static void run_predict(const struct call *c)
{
    const struct sl_step_plan *sp = c->sp;
    const struct sl_step_control *control = at(c, sp->control);
    struct sl_step_control *prediction = at(c, sp->prediction);
    uint64_t *speculating = at(c, sp->speculating);
    *prediction = *control;
    prediction->updates += control->pending && control->apply;
    prediction->pending = prediction->apply = true;
    prediction->grad_scale = (float)(1.0 / (1.0 * control->loss_scale));
    /* A step like the last one: whether that was clipped is the best guess there is. */
    bool unclipped = control->apply && control->norm_clipped == control->norm;
    *speculating = c->context->predicted && (unclipped || sp->options.speculate_always);
    if (*speculating)
        c->context->predicted(c->context, &prediction->hyper);
}

static bool same_hyper(const struct sl_optim_hyper *a, const struct sl_optim_hyper *b)
{
    return a->kind == b->kind && a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
           a->eps == b->eps && a->weight_decay == b->weight_decay && a->momentum == b->momentum &&
           a->nesterov == b->nesterov && a->bias_correction == b->bias_correction &&
           a->seed == b->seed;
}

/* Must what the backward pass has updated be updated again? */
static void judge_prediction(const struct call *c, struct sl_step_control *control)
{
    const struct sl_step_plan *sp = c->sp;
    if (sp->prediction == SL_PLAN_NONE)
        return;
    const struct sl_step_control *prediction = at(c, sp->prediction);
    uint64_t speculated = *(const uint64_t *)at(c, sp->speculating);
    bool right = speculated && control->apply && prediction->updates == control->updates &&
                 prediction->grad_scale == control->grad_scale &&
                 same_hyper(&prediction->hyper, &control->hyper);
    *(uint64_t *)at(c, sp->redo) = !right;
    control->speculation = right        ? SL_SPECULATION_RIGHT
                           : speculated ? SL_SPECULATION_WRONG
                                        : SL_SPECULATION_OFF;
}

/* The global norm, in chunk order, which is tensor order; then clip, apply or skip. */
static void run_decide(const struct call *c)
{
    const struct sl_step_plan *sp = c->sp;
    struct sl_step_control *control = at(c, sp->control);
    struct sl_step_context *x = c->context;
    const double *norms = at(c, sp->norms);
    const uint64_t *nonfinite = at(c, sp->nonfinite);
    double squares = 0;
    uint64_t bad = 0;
    int32_t bad_param = -1;
    for (uint64_t i = 0; i < sp->chunk_count; i++) {
        squares += norms[i];
        if (nonfinite[i] && bad_param < 0)
            bad_param = chunk_param(sp, i);
        bad += nonfinite[i];
    }
    double loss = 0;
    for (uint32_t i = 0; i < sp->options.micro_batches; i++)
        loss += sl_step_loss_sum(c->r, i);
    double tokens = x->trained_tokens ? (double)x->trained_tokens : 1;
    double norm = sqrt(squares) / control->loss_scale;
    double shrink = x->clip > 0 ? fmax(1.0, (norm + 1e-6) / x->clip) : 1.0;
    control->updates += control->pending && control->apply;
    control->pending = true;
    control->apply = bad == 0 && isfinite(norm);
    control->grad_scale = control->apply ? (float)(1.0 / (shrink * control->loss_scale)) : 0.0f;
    control->loss = loss / tokens;
    control->norm = norm;
    control->norm_clipped = norm / shrink;
    control->nonfinite = bad;
    control->nonfinite_param = bad_param;
    x->decided(x, control);
    judge_prediction(c, control);
    x->result = *control;
    x->finish_ns = sl_clock_ns();
}

struct update {
    const struct call *c;
    const struct sl_sub_group *group;
    struct sl_step_control control;
    unsigned char *state, *gradient, *weights;
    const unsigned char *old_state; /* the version before this update; NULL: the same bytes */
};

static struct sl_optim_args optim_of(const struct update *u, const struct sl_run *run,
                                     uint64_t first, uint64_t count)
{
    const struct sl_step_plan *sp = u->c->sp;
    const struct sl_step_options *o = &sp->options;
    const struct sl_sub_group *g = u->group;
    size_t element = sl_dtype_bytes(o->precision);
    uint64_t index = run->state_offset + first;
    size_t moment = sl_moment_bytes(o->moment_kind);
    struct sl_optim_args args = {
        .hyper = u->control.hyper,
        .master_kind = g->master_kind,
        .moment_kind = o->moment_kind,
        .tensor = run->param,
        .element_first = run->param_first + first,
        .count = count,
        .grad = u->gradient + (run->gradient_offset - g->gradient_offset + first) * element,
        .grad_dtype = o->precision,
        .grad_scale = u->control.grad_scale,
        .weight = u->weights + (run->weight_offset + first) * element,
        .weight_dtype = o->precision,
    };
    args.hyper.step = u->control.updates + 1;
    if (!o->model->params[run->param].decay)
        args.hyper.weight_decay = 0;
    if (g->master_kind == SL_MASTER_NONE) {
        /* the weight is all there is */
    } else if (g->master_bytes == 0) {
        args.master = (float *)args.weight;
        args.weight = NULL;
    } else if (g->master_kind == SL_MASTER_SPLIT) {
        args.low = (uint16_t *)(void *)(u->state + g->master_offset) + index;
    } else {
        args.master = (float *)(void *)(u->state + g->master_offset) + index;
    }
    if (g->moment_offset[0] != UINT64_MAX)
        args.exp_avg = u->state + g->moment_offset[0] + index * moment;
    if (g->moment_offset[1] != UINT64_MAX)
        args.exp_avg_sq = u->state + g->moment_offset[1] + index * moment;
    if (g->scale_offset[0] != UINT64_MAX)
        args.exp_avg_scale =
            (float *)(void *)(u->state + g->scale_offset[0]) + index / SL_OPTIM_Q8_BLOCK;
    if (g->scale_offset[1] != UINT64_MAX)
        args.exp_avg_sq_scale =
            (float *)(void *)(u->state + g->scale_offset[1]) + index / SL_OPTIM_Q8_BLOCK;
    return args;
}

/* The weight of a plain master, where a skipped step must still fill the slot on its way. */
static void round_masters(const struct sl_optim_args *args)
{
    for (size_t i = 0; i < args->count; i++) {
        if (args->weight_dtype == SL_BF16)
            ((uint16_t *)args->weight)[i] = sl_bf16_from_master(args->master[i]);
        else
            sl_dtype_store(args->weight, args->weight_dtype, i, args->master[i]);
    }
}

/* In fp32 mode a weight that the host cannot reach has its master beside the moments, and the new
 * weight is a copy of it. */
static void step_elements(const struct sl_optim_args *args)
{
    if (args->master && args->weight && args->weight_dtype == SL_F32) {
        struct sl_optim_args alone = *args;
        alone.weight = NULL;
        sl_optim_step(&alone);
        memcpy(args->weight, args->master, args->count * sizeof(float));
    } else {
        sl_optim_step(args);
    }
}

/* The old version of a run's elements into the new one, which is then updated while it is in the
 * cache. */
static void copy_state(const struct update *u, uint64_t index, uint64_t count)
{
    const struct sl_sub_group *g = u->group;
    enum sl_moment_kind kind = u->c->sp->options.moment_kind;
    size_t moment = sl_moment_bytes(kind);
    uint64_t at = g->master_offset + index * sizeof(float);
    memcpy(u->state + at, u->old_state + at, count * sizeof(float));
    for (int k = 0; k < 2; k++) {
        at = g->moment_offset[k] + index * moment;
        if (g->moment_offset[k] != UINT64_MAX)
            memcpy(u->state + at, u->old_state + at, count * moment);
        at = g->scale_offset[k] + index / SL_OPTIM_Q8_BLOCK * sizeof(float);
        if (g->scale_offset[k] != UINT64_MAX)
            memcpy(u->state + at, u->old_state + at,
                   sl_div_up(count, SL_OPTIM_Q8_BLOCK) * sizeof(float));
    }
}

static void update_task(void *arg, size_t task, size_t worker)
{
    (void)worker;
    const struct update *u = arg;
    const struct sl_step_plan *sp = u->c->sp;
    for (uint32_t i = u->group->run_first; i < u->group->run_first + u->group->run_count; i++) {
        const struct sl_run *run = &sp->runs[i];
        uint64_t tasks = sl_div_up(run->count, UPDATE_ELEMENTS);
        if (task >= tasks) {
            task -= tasks;
            continue;
        }
        uint64_t first = (uint64_t)task * UPDATE_ELEMENTS;
        uint64_t count = sl_min_u64(UPDATE_ELEMENTS, run->count - first);
        struct sl_optim_args args = optim_of(u, run, first, count);
        if (u->old_state)
            copy_state(u, run->state_offset + first, count);
        if (u->control.apply)
            step_elements(&args);
        else if (args.weight && args.master)
            round_masters(&args);
        return;
    }
}

static int run_update(const struct call *c)
{
    const struct sl_step_plan *sp = c->sp;
    const struct sl_sub_group *group = &sp->groups[c->op->part];
    struct update u = {
        .c = c,
        .group = group,
        .control = *(const struct sl_step_control *)at(c, c->args->control),
        .state = at(c, c->args->state),
        .gradient = at(c, c->args->gradient),
        .weights = at(c, c->args->weights),
    };
    if (sp->plan.slots[c->args->state].versioned) {
        bool second = c->op->version ^ c->context->version; /* holds the old version */
        u.old_state = u.state + (second ? group->state_bytes : 0);
        u.state += second ? 0 : group->state_bytes;
    }
    u.control.apply = u.control.apply && u.control.pending;
    if (!u.control.apply && !c->args->fill_weights)
        return 0;
    if (c->op->lane == SL_LANE_COMPUTE) {
        int result = 0;
        for (uint32_t i = group->run_first; i < group->run_first + group->run_count && !result;
             i++) {
            struct sl_optim_args args = optim_of(&u, &sp->runs[i], 0, sp->runs[i].count);
            result = c->r->device->ops->optim(c->r->device, &args);
        }
        return result;
    }
    size_t tasks = 0;
    for (uint32_t i = group->run_first; i < group->run_first + group->run_count; i++)
        tasks += sl_div_up(sp->runs[i].count, UPDATE_ELEMENTS);
    sl_workers_run(c->r->workers, tasks, update_task, &u);
    return 0;
}

int sl_step_run_op(void *user, const struct sl_op *op, void *context, struct sl_error *error)
{
    const struct sl_step_runner *r = user;
    struct call c = {.r = r,
                     .sp = r->sp,
                     .op = op,
                     .args = &r->sp->args[op - r->sp->plan.ops],
                     .context = context};
    int result = 0;
    switch (op->kind) {
    case SL_OP_INPUT:
        run_input(&c);
        break;
    case SL_OP_EMBED:
        result = run_embed(&c);
        break;
    case SL_OP_FORWARD:
    case SL_OP_RECOMPUTE:
    case SL_OP_BACKWARD:
        result = run_layer(&c);
        break;
    case SL_OP_HEAD:
    case SL_OP_LOSS:
        result = run_head(&c);
        break;
    case SL_OP_HEAD_NORM:
    case SL_OP_HEAD_NORM_BACKWARD:
        result = run_head_norm(&c);
        break;
    case SL_OP_HEAD_STATS:
    case SL_OP_HEAD_BACKWARD:
        result = run_head_tile(&c);
        break;
    case SL_OP_GENERATE:
        result = run_generate(&c);
        break;
    case SL_OP_LOGITS:
        result = run_logits(&c);
        break;
    case SL_OP_EMBED_BACKWARD:
        result = run_embed_backward(&c);
        break;
    case SL_OP_GRADIENT:
        result = run_gradient(&c);
        break;
    case SL_OP_PREDICT:
        run_predict(&c);
        break;
    case SL_OP_DECIDE:
        run_decide(&c);
        break;
    case SL_OP_UPDATE:
        result = run_update(&c);
        break;
    default:
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL, "no runner for \"%s\"",
                            sl_op_kind_name(op->kind));
    }
    if (result && r->device->error.code)
        *error = r->device->error;
    return result;
}
