// SPDX-License-Identifier: Apache-2.0
/* Generation: the same uses as a forward pass, so that weights come from any tier; each layer
 * appends to its cache; the head looks at the last token alone. How many tokens are new is known
 * only when the segment runs: slots are as large as the most. */
#include "engine/step_emit.h"
#include "engine/step_layout.h"
#include "engine/transformer.h"

static struct sl_op_desc compute(const struct sl_emit *e, enum sl_op_kind kind, uint32_t p)
{
    const struct sl_piece *piece = &e->sp->pieces[p];
    return sl_emit_compute(kind, e->sp, p, 0, sl_piece_weight_bytes(e->sp, piece),
                           2.0 * (double)e->rows * (double)piece->elements, 0);
}

static uint32_t workspace(struct sl_emit *e, uint64_t bytes, const char *name, uint32_t index)
{
    return sl_emit_transient(e, SL_TIER_DEVICE, SL_STATE_WORKSPACE, bytes, name, index);
}

static void logits_tile(struct sl_emit *e, uint32_t tile, uint32_t h, uint32_t logits)
{
    uint32_t weights = sl_emit_use(e, tile);
    struct sl_step_args *args = sl_emit_op(e, compute(e, SL_OP_LOGITS, tile));
    args->weights = weights;
    args->h = h;
    args->logits = logits;
    sl_plan_reads(e->plan, weights);
    sl_plan_reads(e->plan, h);
    if (tile > e->sp->head_first)
        sl_plan_reads(e->plan, logits);
    sl_plan_writes(e->plan, logits);
}

void sl_emit_generate(struct sl_emit *e)
{
    struct sl_step_plan *sp = e->sp;
    uint32_t x = sl_emit_new_x(e, 0, 0);
    for (uint32_t p = 0; p < sp->first_layer_piece; p++) {
        uint32_t weights = sl_emit_use(e, p);
        struct sl_step_args *args = sl_emit_op(e, compute(e, SL_OP_EMBED, p));
        args->weights = weights;
        args->out = x;
        sl_plan_reads(e->plan, weights);
        sl_plan_reads(e->plan, sp->inputs_device[0]);
        if (p > 0)
            sl_plan_reads(e->plan, x);
        sl_plan_writes(e->plan, x);
    }
    for (uint32_t layer = 0; layer < e->o->model->layers; layer++)
        sl_emit_generate_layer(e, layer);
    x = sl_emit_boundary(e, e->o->model->layers, 0)->work;
    uint32_t norm_weights = sl_emit_use(e, sp->norm_piece);
    uint32_t h = workspace(e, e->x_bytes, "h", 0);
    struct sl_step_args *args = sl_emit_op(e, compute(e, SL_OP_HEAD_NORM, sp->norm_piece));
    args->norm_weights = norm_weights;
    args->x = x;
    args->h = h;
    sl_plan_reads(e->plan, norm_weights);
    sl_plan_reads(e->plan, x);
    sl_plan_writes(e->plan, h);
    uint64_t logits_bytes = (uint64_t)e->o->model->vocabulary * sizeof(float);
    uint32_t logits = e->o->unified ? sp->logits : workspace(e, logits_bytes, "logits", 0);
    for (uint32_t i = 0; i < sp->head_count; i++)
        logits_tile(e, sp->head_first + i, h, logits);
    if (!e->o->unified)
        sl_emit_move(e, SL_OP_DOWNLOAD, logits, sp->logits, -1, -1, 0);
}
