// SPDX-License-Identifier: Apache-2.0
/* One layer of a pass: forward, backward, new tokens.
 *
 * A whole layer is one operation per micro-batch. One that is cut goes through in tiles: each is
 * fetched, used by all micro-batches of the pass, and its slot is free for the next. A matrix is
 * multiplied with all rows of a micro-batch, so what the layer has computed so far stays on the
 * device for all of them, `saved` from its first tile to its last, `scratch` from a matrix's first
 * tile to its last. Norms and biases are small: they come first and stay.
 *
 *     forward    norms and biases | qkv, qkv, o, up, up, down
 *     backward   norms and biases | qkv, qkv, o, up, up (recomputation) | down, up, up, o, qkv, qkv
 *
 * Rejected: all tiles for one micro-batch before the next. It would keep one micro-batch's work,
 * but every tile would be fetched once for each, and the sums of the whole layer would lie beside
 * it.
 */
#include <stdlib.h>

#include "base/size.h"
#include "engine/step_emit.h"
#include "engine/step_layout.h"
#include "engine/transformer.h"

struct sl_emit_boundary *sl_emit_boundary(struct sl_emit *e, uint32_t layer, size_t micro_batch)
{
    return &e->x[layer * e->o->micro_batches + micro_batch];
}

uint32_t sl_emit_new_x(struct sl_emit *e, uint32_t layer, size_t micro_batch)
{
    struct sl_emit_boundary *x = sl_emit_boundary(e, layer, micro_batch);
    x->work = sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_ACTIVATIONS, e->x_bytes, "x", layer);
    return x->work;
}

/* Send a boundary to its tier, where that is not the device. */
static void park(struct sl_emit *e, uint32_t layer, size_t micro_batch)
{
    struct sl_emit_boundary *x = sl_emit_boundary(e, layer, micro_batch);
    bool stays = x->tier == SL_TIER_DEVICE || (e->o->unified && x->tier == SL_TIER_HOST);
    if (stays || !e->kind.backward)
        return;
    uint32_t from = x->work;
    int mb = (int)micro_batch;
    if (!e->o->unified) {
        uint32_t host =
            sl_emit_transient(e, SL_TIER_HOST, SL_STATE_ACTIVATIONS, e->x_bytes, "kept x", layer);
        sl_emit_move(e, SL_OP_DOWNLOAD, from, host, (int)layer, -1, mb);
        from = x->home = host;
    }
    if (x->tier == SL_TIER_NVME) {
        x->home = sl_emit_transient(e, SL_TIER_NVME, SL_STATE_ACTIVATIONS,
                                    sl_align_up(e->x_bytes, SL_PLAN_ALIGNMENT), "kept x", layer);
        sl_emit_move(e, SL_OP_EVICT, from, x->home, (int)layer, -1, mb);
    }
    x->work = SL_PLAN_NONE;
}

static void unpark(struct sl_emit *e, uint32_t layer, size_t micro_batch)
{
    struct sl_emit_boundary *x = sl_emit_boundary(e, layer, micro_batch);
    if (x->work != SL_PLAN_NONE)
        return;
    uint32_t from = x->home;
    int mb = (int)micro_batch;
    if (x->tier == SL_TIER_NVME) {
        uint32_t host =
            sl_emit_transient(e, SL_TIER_HOST, SL_STATE_ACTIVATIONS, e->x_bytes, "back x", layer);
        sl_emit_move(e, SL_OP_FETCH, from, host, (int)layer, -1, mb);
        from = host;
    }
    if (!e->o->unified) {
        x->work =
            sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_ACTIVATIONS, e->x_bytes, "back x", layer);
        sl_emit_move(e, SL_OP_UPLOAD, from, x->work, (int)layer, -1, mb);
    } else {
        x->work = from;
    }
}

struct sl_op_desc sl_emit_compute(enum sl_op_kind kind, const struct sl_step_plan *sp, uint32_t p,
                                  size_t micro_batch, uint64_t bytes, double flops,
                                  uint64_t product_bytes)
{
    return (struct sl_op_desc){.kind = kind,
                               .lane = SL_LANE_COMPUTE,
                               .unit = (int)sp->pieces[p].unit,
                               .piece = (int)p,
                               .micro_batch = (int)micro_batch,
                               .part = -1,
                               .bytes = bytes,
                               .flops = flops,
                               .product_bytes = product_bytes};
}

static void read_rope(struct sl_emit *e)
{
    for (int table = 0; table < 2; table++)
        for (int k = 0; k < 2; k++)
            sl_plan_reads(e->plan, e->sp->rope[table][k]);
}

static uint32_t saved_slot(struct sl_emit *e, uint32_t layer)
{
    const struct sl_step_options *o = e->o;
    return sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE,
                             sl_layer_saved_bytes(o->model, o->activation, o->batch, o->sequence),
                             "saved", layer);
}

static uint32_t scratch_slot(struct sl_emit *e, uint32_t layer)
{
    const struct sl_step_options *o = e->o;
    return sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE,
                             sl_layer_scratch_bytes(o->model, o->activation, o->batch, o->sequence),
                             "scratch", layer);
}

/* What the kernels of a layer's forward pass stream: each intermediate is written and read once. */
static uint64_t layer_stream_bytes(const struct sl_emit *e)
{
    const struct sl_step_options *o = e->o;
    return 2 *
           (sl_layer_saved_bytes(o->model, o->activation, o->batch, o->sequence) +
            sl_layer_scratch_bytes(o->model, o->activation, o->batch, o->sequence) + e->x_bytes);
}

static bool is_cut(const struct sl_step_plan *sp)
{
    return sp->layer_pieces > 1;
}

/* Is this the first tile of a matrix, or the whole layer? */
static bool begins(const struct sl_piece *piece)
{
    return piece->kind == SL_PIECE_LAYER || piece->row_first == 0;
}

/* Does this piece take part in a matrix's product? */
static bool has_matrix(const struct sl_piece *piece, enum sl_role role)
{
    return piece->kind == SL_PIECE_LAYER || piece->role == role;
}

/* ---- costs ---------------------------------------------------------------------------------- */

struct cost {
    uint64_t bytes, product_bytes;
    double flops;
};

static struct cost tile_cost(const struct sl_emit *e, const struct sl_piece *piece, bool backward)
{
    const struct sl_step_options *o = e->o;
    struct sl_layer_tile tile = {piece->role, piece->row_first, piece->row_count};
    struct sl_layer_work work =
        sl_layer_tile_work(o->model, o->batch, o->sequence, &tile, backward);
    struct sl_layer_work whole = sl_layer_work(o->model, o->batch, o->sequence, false);
    double share = (double)work.weight_elements / (double)whole.weight_elements;
    uint64_t stream = (uint64_t)(share * (double)layer_stream_bytes(e));
    struct cost cost = {.bytes = sl_piece_weight_bytes(e->sp, piece) + stream,
                        .product_bytes = work.weight_elements * sl_dtype_bytes(o->precision),
                        .flops = work.flops};
    if (backward) { /* gradients of weights and of inputs; the f32 sums are read and written */
        cost.bytes += stream + 2 * sizeof(float) * piece->sums_elements;
        cost.flops *= 2;
    }
    return cost;
}

static struct cost generate_cost(const struct sl_emit *e, const struct sl_piece *piece)
{
    return (struct cost){.bytes = sl_piece_weight_bytes(e->sp, piece),
                         .flops = 2.0 * (double)e->rows * (double)piece->elements};
}

static struct cost forward_cost(const struct sl_emit *e, const struct sl_piece *piece)
{
    if (piece->kind != SL_PIECE_LAYER)
        return tile_cost(e, piece, false);
    struct sl_layer_work work = sl_layer_work(e->o->model, e->o->batch, e->o->sequence, false);
    return (struct cost){.bytes = sl_piece_weight_bytes(e->sp, piece) + layer_stream_bytes(e),
                         .product_bytes = work.weight_elements * sl_dtype_bytes(e->o->precision),
                         .flops = work.flops};
}

/* Gradients of weights and of inputs are a forward pass's worth each; weights are taken in for
 * those of the inputs only. */
static struct cost backward_cost(const struct sl_emit *e, const struct sl_piece *piece,
                                 bool recompute)
{
    if (piece->kind != SL_PIECE_LAYER)
        return tile_cost(e, piece, true);
    struct sl_layer_work once = sl_layer_work(e->o->model, e->o->batch, e->o->sequence, false);
    struct sl_layer_work again = sl_layer_work(e->o->model, e->o->batch, e->o->sequence, true);
    uint64_t products = once.weight_elements + (recompute ? again.weight_elements : 0);
    /* Weights twice, and the f32 sums read and written. */
    uint64_t weights =
        2 * sl_piece_weight_bytes(e->sp, piece) + 2 * sizeof(float) * piece->sums_elements;
    return (struct cost){.bytes = weights + (recompute ? 3 : 2) * layer_stream_bytes(e),
                         .product_bytes = products * sl_dtype_bytes(e->o->precision),
                         .flops = 2 * once.flops + (recompute ? again.flops : 0)};
}

/* ---- uses ----------------------------------------------------------------------------------- */

void sl_emit_forward_uses(struct sl_emit *e, uint32_t layer, bool update)
{
    for (uint32_t k = 0; k < e->sp->layer_pieces; k++)
        sl_emit_add_use(e, sl_layer_piece_forward(e->sp, layer, k), update);
}

/* Is a tile's product part of the recomputation? The last one is where a norm follows it. */
static bool recomputed(const struct sl_emit *e, const struct sl_piece *piece)
{
    return piece->role != SL_ROLE_DOWN || e->o->model->post_norms;
}

void sl_emit_backward_uses(struct sl_emit *e, uint32_t layer)
{
    const struct sl_step_plan *sp = e->sp;
    for (uint32_t k = 0; k < sp->layer_vectors; k++)
        sl_emit_add_use(e, sl_layer_piece_forward(sp, layer, k), false);
    for (uint32_t k = sp->layer_vectors; k < sp->layer_pieces && is_cut(sp) && e->o->recompute;
         k++) {
        uint32_t p = sl_layer_piece_forward(sp, layer, k);
        if (recomputed(e, &sp->pieces[p]))
            sl_emit_add_use(e, p, false);
    }
    for (uint32_t k = 0; k < sp->layer_pieces - sp->layer_vectors; k++)
        sl_emit_add_use(e, sl_layer_piece_backward(sp, layer, k), false);
}

/* The weights of a cut layer's norms and biases, for the whole visit, and room for their sums. */
static void use_vectors(struct sl_emit *e, uint32_t layer)
{
    struct sl_step_plan *sp = e->sp;
    size_t count = sp->layer_vectors;
    e->vectors = (uint32_t)sp->vector_slot_count;
    if (!is_cut(sp))
        return;
    size_t wanted = sp->vector_slot_count + 2 * count;
    uint32_t *grown = realloc(sp->vector_slots, wanted * sizeof(*grown));
    if (grown)
        sp->vector_slots = grown;
    else
        e->plan->out_of_memory = true;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t slot = sl_emit_use(e, sl_layer_piece_forward(sp, layer, k));
        if (!grown)
            continue;
        grown[e->vectors + k] = slot;
        grown[e->vectors + count + k] = SL_PLAN_NONE;
    }
    if (grown)
        sp->vector_slot_count = wanted;
}

static void read_vectors(struct sl_emit *e, struct sl_step_args *args)
{
    const struct sl_step_plan *sp = e->sp;
    args->vectors = e->vectors;
    for (uint32_t k = 0; k < sp->layer_vectors && !e->plan->out_of_memory; k++)
        sl_plan_reads(e->plan, sp->vector_slots[e->vectors + k]);
}

/* An operation of the backward pass adds to some of their sums: it is taken to add to all. */
static void add_to_vectors(struct sl_emit *e, struct sl_step_args *args, uint32_t layer)
{
    const struct sl_step_plan *sp = e->sp;
    for (uint32_t k = 0; k < sp->layer_vectors && !e->plan->out_of_memory; k++) {
        bool fresh;
        uint32_t sums = sl_emit_sums(e, sl_layer_piece_forward(sp, layer, k), &fresh);
        sp->vector_slots[e->vectors + sp->layer_vectors + k] = sums;
        if (fresh)
            args->first_vectors = true;
        else
            sl_plan_reads(e->plan, sums);
        sl_plan_writes(e->plan, sums);
    }
}

/* ---- passes --------------------------------------------------------------------------------- */

/* The working memory of a layer and micro-batch: written whole by what begins it. */
static void use_work(struct sl_emit *e, struct sl_step_args *args, size_t i, bool saved_fresh,
                     bool scratch_fresh)
{
    args->saved = e->saved_now[i];
    args->scratch = e->scratch_now[i];
    if (!saved_fresh)
        sl_plan_reads(e->plan, args->saved);
    if (!scratch_fresh)
        sl_plan_reads(e->plan, args->scratch);
}

static void write_work(struct sl_emit *e, const struct sl_step_args *args)
{
    sl_plan_writes(e->plan, args->saved);
    sl_plan_writes(e->plan, args->scratch);
}

/* One piece's FORWARD, GENERATE or RECOMPUTE; the last is for what was not kept and has no output.
 */
static void forward_piece(struct sl_emit *e, enum sl_op_kind kind, uint32_t p, uint32_t weights,
                          uint32_t layer, size_t i)
{
    struct sl_step_plan *sp = e->sp;
    const struct sl_piece *piece = &sp->pieces[p];
    struct cost cost = kind == SL_OP_GENERATE ? generate_cost(e, piece) : forward_cost(e, piece);
    bool layer_begins = begins(piece) && has_matrix(piece, SL_ROLE_QKV);
    bool makes_out = kind != SL_OP_RECOMPUTE && has_matrix(piece, SL_ROLE_DOWN);
    uint32_t x = sl_emit_boundary(e, layer, i)->work, out = SL_PLAN_NONE;
    if (makes_out)
        out = begins(piece) ? sl_emit_new_x(e, layer + 1, i)
                            : sl_emit_boundary(e, layer + 1, i)->work;
    if (layer_begins)
        e->saved_now[i] = saved_slot(e, layer);
    if (begins(piece))
        e->scratch_now[i] = scratch_slot(e, layer);
    struct sl_step_args *args =
        sl_emit_op(e, sl_emit_compute(kind, sp, p, i, cost.bytes, cost.flops, cost.product_bytes));
    args->weights = weights;
    args->x = x;
    args->out = out;
    sl_plan_reads(e->plan, weights);
    read_vectors(e, args);
    sl_plan_reads(e->plan, x);
    sl_plan_reads(e->plan, sp->inputs_device[i]);
    read_rope(e);
    if (!begins(piece))
        sl_plan_reads(e->plan, out);
    use_work(e, args, i, layer_begins, begins(piece));
    for (uint32_t k = 2 * layer; k < 2 * layer + 2 && kind == SL_OP_GENERATE; k++) {
        sl_plan_reads(e->plan, sp->cache[k]);
        sl_plan_writes(e->plan, sp->cache[k]);
    }
    sl_plan_writes(e->plan, out);
    write_work(e, args);
}

void sl_emit_forward_layer(struct sl_emit *e, uint32_t layer, size_t first, size_t count)
{
    struct sl_step_plan *sp = e->sp;
    use_vectors(e, layer);
    for (uint32_t k = sp->layer_vectors; k < sp->layer_pieces; k++) {
        uint32_t p = sl_layer_piece_forward(sp, layer, k);
        uint32_t weights = sl_emit_use(e, p);
        for (size_t i = first; i < first + count; i++) {
            forward_piece(e, SL_OP_FORWARD, p, weights, layer, i);
            if (k + 1 < sp->layer_pieces)
                continue;
            if (e->kind.backward && !e->o->recompute)
                e->saved[layer * e->o->micro_batches + i] = e->saved_now[i];
            park(e, layer, i);
        }
    }
}

static void backward_piece(struct sl_emit *e, uint32_t p, uint32_t weights, uint32_t layer,
                           size_t i)
{
    struct sl_step_plan *sp = e->sp;
    const struct sl_piece *piece = &sp->pieces[p];
    bool recompute = !is_cut(sp) && e->o->recompute, fresh;
    /* The gradient of qkv lies in what the last tile of O has left. */
    bool scratch_fresh = begins(piece) && (!is_cut(sp) || piece->role != SL_ROLE_QKV);
    struct cost cost = backward_cost(e, piece, recompute);
    uint32_t sums = sl_emit_sums(e, p, &fresh);
    if (recompute)
        e->saved_now[i] = saved_slot(e, layer);
    if (scratch_fresh)
        e->scratch_now[i] = scratch_slot(e, layer);
    uint32_t x = sl_emit_boundary(e, layer, i)->work;
    struct sl_step_args *args = sl_emit_op(
        e, sl_emit_compute(SL_OP_BACKWARD, sp, p, i, cost.bytes, cost.flops, cost.product_bytes));
    args->weights = weights;
    args->x = x;
    args->dx = e->dx[i];
    args->sums = sums;
    args->first = fresh;
    args->recompute = recompute;
    sl_plan_reads(e->plan, weights);
    read_vectors(e, args);
    sl_plan_reads(e->plan, x);
    sl_plan_reads(e->plan, e->dx[i]);
    sl_plan_reads(e->plan, sp->inputs_device[i]);
    read_rope(e);
    use_work(e, args, i, recompute, scratch_fresh);
    if (!fresh)
        sl_plan_reads(e->plan, sums);
    add_to_vectors(e, args, layer);
    sl_plan_writes(e->plan, sums);
    sl_plan_writes(e->plan, e->dx[i]);
    write_work(e, args);
}

/* What a layer's operations read, back on the device; of the layer that is next, on its way. */
static void unpark_all(struct sl_emit *e, uint32_t layer, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++)
        unpark(e, layer, i);
    for (size_t i = first; i < first + count && layer > 0; i++)
        unpark(e, layer - 1, i);
}

static void recompute_tiles(struct sl_emit *e, uint32_t layer, size_t first, size_t count)
{
    const struct sl_step_plan *sp = e->sp;
    for (uint32_t k = sp->layer_vectors; k < sp->layer_pieces; k++) {
        uint32_t p = sl_layer_piece_forward(sp, layer, k);
        if (!recomputed(e, &sp->pieces[p]))
            continue;
        uint32_t weights = sl_emit_use(e, p);
        if (k == sp->layer_vectors)
            unpark_all(e, layer, first, count);
        for (size_t i = first; i < first + count; i++)
            forward_piece(e, SL_OP_RECOMPUTE, p, weights, layer, i);
    }
}

void sl_emit_backward_layer(struct sl_emit *e, uint32_t layer, size_t first, size_t count)
{
    const struct sl_step_plan *sp = e->sp;
    bool last_group = first + count == e->o->micro_batches;
    bool tiles_again = is_cut(sp) && e->o->recompute;
    use_vectors(e, layer);
    if (tiles_again)
        recompute_tiles(e, layer, first, count);
    for (size_t i = first; i < first + count && !e->o->recompute; i++)
        e->saved_now[i] = e->saved[layer * e->o->micro_batches + i];
    for (uint32_t k = 0; k < sp->layer_pieces; k++) {
        uint32_t p = sl_layer_piece_backward(sp, layer, k);
        if (sp->pieces[p].kind != SL_PIECE_VECTORS) {
            uint32_t weights = sl_emit_use(e, p);
            if (k == 0 && !tiles_again)
                unpark_all(e, layer, first, count);
            for (size_t i = first; i < first + count; i++)
                backward_piece(e, p, weights, layer, i);
        }
        if (last_group)
            sl_emit_gradient(e, p);
    }
}

void sl_emit_generate_layer(struct sl_emit *e, uint32_t layer)
{
    const struct sl_step_plan *sp = e->sp;
    use_vectors(e, layer);
    for (uint32_t k = sp->layer_vectors; k < sp->layer_pieces; k++) {
        uint32_t p = sl_layer_piece_forward(sp, layer, k);
        forward_piece(e, SL_OP_GENERATE, p, sl_emit_use(e, p), layer, 0);
    }
}
