// SPDX-License-Identifier: Apache-2.0
/* Forward and backward of a group of micro-batches.
 *
 * With all micro-batches in one group the order is layer-major: a piece's weights are fetched once
 * per pass, its sum lives from its first to its last micro-batch and leaves once. With several
 * groups the sums are persistent. The order of additions is the same: micro-batches ascending; the
 * head's share of a tied table first, which is why embedding gradients wait for the last group.
 */
#include "base/size.h"
#include "engine/step_emit.h"
#include "engine/step_layout.h"
#include "engine/transformer.h"

static void embed(struct sl_emit *e, size_t first, size_t count)
{
    struct sl_step_plan *sp = e->sp;
    for (uint32_t p = 0; p < sp->first_layer_piece; p++) {
        uint32_t weights = sl_emit_use(e, p);
        for (size_t i = first; i < first + count; i++) {
            uint32_t x = p == 0 ? sl_emit_new_x(e, 0, i) : sl_emit_boundary(e, 0, i)->work;
            struct sl_step_args *args =
                sl_emit_op(e, sl_emit_compute(SL_OP_EMBED, sp, p, i, 2 * e->x_bytes, 0, 0));
            args->weights = weights;
            args->out = x;
            sl_plan_reads(e->plan, weights);
            sl_plan_reads(e->plan, sp->inputs_device[i]);
            if (p > 0)
                sl_plan_reads(e->plan, x);
            sl_plan_writes(e->plan, x);
        }
    }
}

static double head_flops(const struct sl_emit *e, const struct sl_piece *piece)
{
    return 2.0 * (double)e->rows * (double)piece->row_count * e->o->model->hidden;
}

static uint32_t logits_slot(struct sl_emit *e, const struct sl_piece *tile)
{
    return sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE,
                             sl_head_logits_bytes(e->rows, tile->row_count), "logits", tile->index);
}

static uint32_t new_dx(struct sl_emit *e, size_t micro_batch)
{
    e->dx[micro_batch] = sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE, e->x_bytes, "dx",
                                           (uint32_t)micro_batch);
    return e->dx[micro_batch];
}

/* The whole vocabulary in one tile: norm, logits, loss and backward in one operation. */
static void head_whole(struct sl_emit *e, size_t first, size_t count)
{
    struct sl_step_plan *sp = e->sp;
    uint32_t tile = sp->head_first;
    uint32_t norm_weights = sl_emit_use(e, sp->norm_piece);
    uint32_t weights = sl_emit_use(e, tile);
    double flops = head_flops(e, &sp->pieces[tile]) * (e->kind.backward ? 3 : 1);
    uint64_t bytes = sl_piece_weight_bytes(sp, &sp->pieces[tile]);
    for (size_t i = first; i < first + count; i++) {
        bool fresh = false, norm_fresh = false;
        uint32_t x = sl_emit_boundary(e, e->o->model->layers, i)->work;
        uint32_t h =
            sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE, e->x_bytes, "h", (uint32_t)i);
        uint32_t logits = logits_slot(e, &sp->pieces[tile]);
        uint32_t dx = SL_PLAN_NONE, sums = SL_PLAN_NONE, norm_sums = SL_PLAN_NONE;
        if (e->kind.backward) {
            dx = new_dx(e, i);
            sums = sl_emit_sums(e, tile, &fresh);
            norm_sums = sl_emit_sums(e, sp->norm_piece, &norm_fresh);
        }
        struct sl_step_args *args =
            sl_emit_op(e, sl_emit_compute(e->kind.backward ? SL_OP_HEAD : SL_OP_LOSS, sp, tile, i,
                                          bytes, flops, bytes * (e->kind.backward ? 2 : 1)));
        args->weights = weights;
        args->norm_weights = norm_weights;
        args->x = x;
        args->h = h;
        args->logits = logits;
        args->dx = dx;
        args->sums = sums;
        args->norm_sums = norm_sums;
        args->first = fresh || norm_fresh;
        sl_plan_reads(e->plan, weights);
        sl_plan_reads(e->plan, norm_weights);
        sl_plan_reads(e->plan, x);
        sl_plan_reads(e->plan, sp->inputs_device[i]);
        sl_plan_reads(e->plan, fresh ? SL_PLAN_NONE : sums);
        sl_plan_reads(e->plan, norm_fresh ? SL_PLAN_NONE : norm_sums);
        sl_plan_reads(e->plan, sp->control); /* the loss scale */
        sl_plan_writes(e->plan, h);
        sl_plan_writes(e->plan, logits);
        sl_plan_writes(e->plan, sp->stats[i]);
        sl_plan_writes(e->plan, dx);
        sl_plan_writes(e->plan, sums);
        sl_plan_writes(e->plan, norm_sums);
    }
}

static void head_norm(struct sl_emit *e, size_t i, uint32_t norm_weights)
{
    struct sl_step_plan *sp = e->sp;
    uint32_t x = sl_emit_boundary(e, e->o->model->layers, i)->work;
    e->h[i] =
        sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE, e->x_bytes, "h", (uint32_t)i);
    struct sl_step_args *args = sl_emit_op(
        e, sl_emit_compute(SL_OP_HEAD_NORM, sp, sp->norm_piece, i, 2 * e->x_bytes, 0, 0));
    args->norm_weights = norm_weights;
    args->x = x;
    args->h = e->h[i];
    sl_plan_reads(e->plan, norm_weights);
    sl_plan_reads(e->plan, x);
    sl_plan_writes(e->plan, e->h[i]);
}

static void head_stats(struct sl_emit *e, uint32_t tile, uint32_t weights, size_t i)
{
    struct sl_step_plan *sp = e->sp;
    uint32_t logits = logits_slot(e, &sp->pieces[tile]);
    uint64_t bytes = sl_piece_weight_bytes(sp, &sp->pieces[tile]);
    struct sl_step_args *args =
        sl_emit_op(e, sl_emit_compute(SL_OP_HEAD_STATS, sp, tile, i, bytes,
                                      head_flops(e, &sp->pieces[tile]), bytes));
    args->weights = weights;
    args->h = e->h[i];
    args->logits = logits;
    sl_plan_reads(e->plan, weights);
    sl_plan_reads(e->plan, e->h[i]);
    sl_plan_reads(e->plan, sp->inputs_device[i]);
    sl_plan_reads(e->plan, tile > sp->head_first ? sp->stats[i] : SL_PLAN_NONE);
    sl_plan_writes(e->plan, logits);
    sl_plan_writes(e->plan, sp->stats[i]);
}

static void head_tile_backward(struct sl_emit *e, uint32_t tile, uint32_t weights, size_t i)
{
    struct sl_step_plan *sp = e->sp;
    bool first_tile = tile == sp->head_first, fresh;
    uint32_t sums = sl_emit_sums(e, tile, &fresh);
    uint32_t logits = logits_slot(e, &sp->pieces[tile]);
    uint32_t dx = first_tile ? new_dx(e, i) : e->dx[i];
    uint64_t bytes = sl_piece_weight_bytes(sp, &sp->pieces[tile]);
    struct sl_step_args *args =
        sl_emit_op(e, sl_emit_compute(SL_OP_HEAD_BACKWARD, sp, tile, i, bytes,
                                      3 * head_flops(e, &sp->pieces[tile]), 2 * bytes));
    args->weights = weights;
    args->h = e->h[i];
    args->dx = dx;
    args->logits = logits;
    args->sums = sums;
    args->first = fresh;
    sl_plan_reads(e->plan, weights);
    sl_plan_reads(e->plan, e->h[i]);
    sl_plan_reads(e->plan, sp->inputs_device[i]);
    sl_plan_reads(e->plan, sp->stats[i]);
    sl_plan_reads(e->plan, sp->control); /* the loss scale */
    sl_plan_reads(e->plan, first_tile ? SL_PLAN_NONE : dx);
    sl_plan_reads(e->plan, fresh ? SL_PLAN_NONE : sums);
    sl_plan_writes(e->plan, logits);
    sl_plan_writes(e->plan, dx);
    sl_plan_writes(e->plan, sums);
}

static void head_norm_backward(struct sl_emit *e, size_t i, uint32_t norm_weights)
{
    struct sl_step_plan *sp = e->sp;
    bool fresh;
    uint32_t sums = sl_emit_sums(e, sp->norm_piece, &fresh);
    uint32_t x = sl_emit_boundary(e, e->o->model->layers, i)->work;
    struct sl_step_args *args = sl_emit_op(
        e, sl_emit_compute(SL_OP_HEAD_NORM_BACKWARD, sp, sp->norm_piece, i, 3 * e->x_bytes, 0, 0));
    args->norm_weights = norm_weights;
    args->x = x;
    args->dx = e->dx[i];
    args->norm_sums = sums;
    args->first = fresh;
    sl_plan_reads(e->plan, norm_weights);
    sl_plan_reads(e->plan, x);
    sl_plan_reads(e->plan, e->dx[i]);
    sl_plan_reads(e->plan, fresh ? SL_PLAN_NONE : sums);
    sl_plan_writes(e->plan, e->dx[i]);
    sl_plan_writes(e->plan, sums);
}

/* The sums of a tied tile wait for the embedding's share, which is the last of a step. On NVMe
 * where the gradient lives there; and away from a device of its own where layers go through in
 * tiles, so that a table's sums are not what it must have room for. */
static bool sums_leave(const struct sl_emit *e, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    if (piece->sums != SL_PLAN_NONE || e->sp->head_count == 1)
        return false;
    return e->o->unified ? piece->gradient_tier == SL_TIER_NVME
                         : piece->gradient_tier != SL_TIER_DEVICE && e->o->layer_bytes > 0;
}

static void park_sums(struct sl_emit *e, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    if (e->sums[p] == SL_PLAN_NONE || !sums_leave(e, p))
        return;
    uint64_t bytes = piece->sums_elements * sizeof(float);
    if (!e->o->unified) {
        uint32_t host =
            sl_emit_transient(e, SL_TIER_HOST, SL_STATE_GRADIENTS, bytes, "leaving sums", p);
        sl_emit_move(e, SL_OP_DOWNLOAD, e->sums[p], host, (int)piece->unit, (int)p, -1);
        e->sums[p] = host;
    }
    if (piece->gradient_tier != SL_TIER_NVME)
        return;
    uint32_t home = sl_emit_transient(e, SL_TIER_NVME, SL_STATE_GRADIENTS,
                                      sl_align_up(bytes, SL_PLAN_ALIGNMENT), "kept sums", p);
    sl_emit_move(e, SL_OP_EVICT, e->sums[p], home, (int)piece->unit, (int)p, -1);
    e->sums[p] = home;
}

static void unpark_sums(struct sl_emit *e, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    if (p >= e->sp->first_layer_piece || e->sums[p] == SL_PLAN_NONE || !sums_leave(e, p) ||
        e->plan->out_of_memory || e->plan->slots[e->sums[p]].tier == SL_TIER_DEVICE)
        return;
    uint64_t bytes = piece->sums_elements * sizeof(float);
    if (piece->gradient_tier == SL_TIER_NVME) {
        uint32_t back = sl_emit_transient(e, e->o->unified ? SL_TIER_DEVICE : SL_TIER_HOST,
                                          SL_STATE_WORKSPACE, bytes, "back sums", p);
        sl_emit_move(e, SL_OP_FETCH, e->sums[p], back, (int)piece->unit, (int)p, -1);
        e->sums[p] = back;
    }
    if (!e->o->unified) {
        uint32_t device =
            sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE, bytes, "back sums", p);
        sl_emit_move(e, SL_OP_UPLOAD, e->sums[p], device, (int)piece->unit, (int)p, -1);
        e->sums[p] = device;
    }
}

static void head_tiled(struct sl_emit *e, size_t first, size_t count)
{
    struct sl_step_plan *sp = e->sp;
    bool last_group = first + count == e->o->micro_batches;
    bool tied = sp->head_first < sp->norm_piece;
    uint32_t norm_weights = sl_emit_use(e, sp->norm_piece);
    for (size_t i = first; i < first + count; i++)
        head_norm(e, i, norm_weights);
    for (uint32_t t = sp->head_first; t < sp->head_first + sp->head_count; t++) {
        uint32_t weights = sl_emit_use(e, t);
        for (size_t i = first; i < first + count; i++)
            head_stats(e, t, weights, i);
    }
    if (!e->kind.backward)
        return;
    for (uint32_t t = sp->head_first; t < sp->head_first + sp->head_count; t++) {
        uint32_t weights = sl_emit_use(e, t);
        for (size_t i = first; i < first + count; i++)
            head_tile_backward(e, t, weights, i);
        if (tied)
            park_sums(e, t);
        else if (last_group)
            sl_emit_gradient(e, t);
    }
    for (size_t i = first; i < first + count; i++)
        head_norm_backward(e, i, norm_weights);
}

static void embed_backward(struct sl_emit *e)
{
    struct sl_step_plan *sp = e->sp;
    for (uint32_t p = 0; p < sp->first_layer_piece; p++) {
        if (!sp->pieces[p].sums_elements)
            continue;
        if (p == 0)
            unpark_sums(e, 0);
        unpark_sums(e, p + 1); /* one tile ahead */
        for (size_t i = 0; i < e->o->micro_batches; i++) {
            bool fresh;
            uint32_t sums = sl_emit_sums(e, p, &fresh);
            struct sl_step_args *args = sl_emit_op(
                e, sl_emit_compute(SL_OP_EMBED_BACKWARD, sp, p, i, 3 * e->x_bytes, 0, 0));
            args->dx = e->dx[i];
            args->sums = sums;
            args->first = fresh;
            sl_plan_reads(e->plan, e->dx[i]);
            sl_plan_reads(e->plan, sp->inputs_device[i]);
            sl_plan_reads(e->plan, fresh ? SL_PLAN_NONE : sums);
            sl_plan_writes(e->plan, sums);
        }
        sl_emit_gradient(e, p);
    }
}

/* What the step will probably decide, said before the first gradient is ready. */
static void predict(struct sl_emit *e)
{
    const struct sl_step_plan *sp = e->sp;
    if (sp->prediction == SL_PLAN_NONE)
        return;
    sl_emit_op(e, (struct sl_op_desc){.kind = SL_OP_PREDICT,
                                      .lane = SL_LANE_CONTROL,
                                      .unit = -1,
                                      .piece = -1,
                                      .micro_batch = -1,
                                      .part = -1});
    sl_plan_reads(e->plan, sp->control);
    sl_plan_writes(e->plan, sp->prediction);
    sl_plan_writes(e->plan, sp->speculating);
}

void sl_emit_pass(struct sl_emit *e, size_t first, size_t count)
{
    struct sl_step_plan *sp = e->sp;
    const struct sl_model *m = e->o->model;
    bool last_group = first + count == e->o->micro_batches;
    embed(e, first, count);
    for (uint32_t layer = 0; layer < m->layers; layer++)
        sl_emit_forward_layer(e, layer, first, count);
    if (last_group && e->kind.backward)
        predict(e);
    if (sp->head_count == 1)
        head_whole(e, first, count);
    else
        head_tiled(e, first, count);
    if (!e->kind.backward)
        return;
    if (last_group) {
        sl_emit_gradient(e, sp->norm_piece);
        if (sp->head_count == 1 && sp->head_first > sp->norm_piece)
            sl_emit_gradient(e, sp->head_first);
    }
    for (uint32_t layer = m->layers; layer-- > 0;)
        sl_emit_backward_layer(e, layer, first, count);
    if (last_group)
        embed_backward(e);
}
