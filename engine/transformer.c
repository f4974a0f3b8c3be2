// SPDX-License-Identifier: Apache-2.0
/* A layer, for every family:
 *
 *     n1  = norm1(x)
 *     qkv = n1 Wqkv^T (+ b)           raw kept beside where q and k are normed
 *     qkv = rope(qk_norm(qkv))
 *     att = attention(qkv)
 *     mid = x + post_norm1(att Wo^T (+ b))
 *     n2  = norm2(mid)
 *     up  = n2 Wup^T (+ b)            gated: gate and up side by side
 *     out = mid + post_norm2(act(up) Wdown^T (+ b))
 *
 * saved holds   [ qkv | att | mid | up | lse | raw qkv | o | down ]   the last three only where the
 * family needs them. The four products are stages, each done whole or in tiles of its matrix's rows
 * (struct sl_layer_tile): what stands before it is done with the first tile, what stands after it
 * with the last. Norm outputs and act(up) are cheap and are computed again in the backward
 * pass, which keeps `saved` at the width of the matrix products' results.
 */
#include "engine/transformer.h"

#include "base/size.h"
#include "engine/transformer_layout.h"

static const enum sl_role stages[] = {SL_ROLE_QKV, SL_ROLE_O, SL_ROLE_UP, SL_ROLE_DOWN};
#define STAGES (sizeof(stages) / sizeof(stages[0]))

/* Everything a layer's helpers need, so that they take one argument. */
struct layer {
    struct sl_device *device;
    const struct sl_device_ops *ops;
    const struct sl_model *m;
    const struct sl_batch *batch;
    const struct sl_layer_memory *memory;
    uint32_t layer;
    struct sl_layer_sizes z;
    struct sl_layer_saved saved;
    struct sl_layer_scratch scratch;
    const struct sl_layer_cache *cache; /* generation; NULL: training */
};

static struct layer layer_of(struct sl_device *device, const struct sl_model *m, uint32_t layer,
                             const struct sl_batch *batch, const struct sl_layer_memory *memory,
                             void *saved, void *scratch)
{
    struct layer l = {.device = device,
                      .ops = device->ops,
                      .m = m,
                      .batch = batch,
                      .memory = memory,
                      .layer = layer};
    l.z =
        sl_layer_sizes_of(m, device->activation_dtype, batch->batch_count, batch->sequence_length);
    sl_layer_lay_saved(&l.saved, m, l.z, batch->batch_count, batch->sequence_length, saved);
    sl_layer_lay_scratch(&l.scratch, m, l.z, batch->batch_count, batch->sequence_length, scratch);
    return l;
}

/* The part of a stage that this call is for; count 0: none of it. */
static struct sl_layer_part part_of(const struct layer *l, enum sl_role role)
{
    struct sl_layer_part part = sl_layer_matrix(&l->z, role);
    const struct sl_layer_tile *tile = l->memory->tile;
    if (!tile)
        return part;
    part.first = tile->row_first;
    part.count = tile->role == role ? tile->row_count : 0;
    part.begins = part.first == 0;
    part.ends = part.first + part.count == part.outputs;
    return part;
}

/* The memory with a norm or a bias. */
static const struct sl_unit_memory *vector_memory(const struct layer *l,
                                                  const struct sl_param *param)
{
    const struct sl_layer_memory *memory = l->memory;
    size_t k = memory->vector_count;
    if (!memory->tile)
        return &memory->matrices;
    while (k-- > 1 && memory->vectors[k].weights_first > param->offset)
        ;
    return &memory->vectors[k];
}

static struct sl_weight weight_at(const struct sl_unit_memory *memory, uint64_t element)
{
    size_t bytes = sl_dtype_bytes(memory->dtype);
    return (struct sl_weight){memory->weights + (element - memory->weights_first) * bytes,
                              memory->dtype};
}

static const struct sl_param *param_of(const struct layer *l, enum sl_role role)
{
    return sl_model_param(l->m, l->memory->matrices.unit, role);
}

/* A norm's or a bias's weight from element `first` on, or NULL where it is absent. */
static struct sl_weight vector_of(const struct layer *l, enum sl_role role, size_t first)
{
    const struct sl_param *param = param_of(l, role);
    if (!param)
        return (struct sl_weight){NULL, l->memory->matrices.dtype};
    return weight_at(vector_memory(l, param), param->offset + first);
}

static struct sl_weight matrix_at(const struct layer *l, const struct sl_layer_part *part)
{
    uint64_t element = param_of(l, part->role)->offset + (uint64_t)part->first * part->inputs;
    return weight_at(&l->memory->matrices, element);
}

/* The f32 sum of a norm or a bias, or NULL where it is frozen or absent. */
static float *vector_sum(const struct layer *l, const struct sl_param *param)
{
    const struct sl_unit_memory *memory = param ? vector_memory(l, param) : NULL;
    if (!memory || !memory->sums || memory->sums_offset[param - l->m->params] == UINT64_MAX)
        return NULL;
    return memory->sums + memory->sums_offset[param - l->m->params];
}

static int norm(const struct layer *l, enum sl_role role, enum sl_role bias_role, const void *x,
                void *out)
{
    struct sl_norm_args args = {
        .kind = l->m->norm,
        .rows = l->z.n,
        .width = l->z.c,
        .row_group = 1,
        .row_stride = l->z.c,
        .eps = l->m->norm_eps,
        .x = x,
        .weight = vector_of(l, role, 0),
        .bias = l->m->norm == SL_NORM_LAYER ? vector_of(l, bias_role, 0) : (struct sl_weight){0},
        .out = out,
    };
    return l->ops->norm(l->device, &args);
}

static int norm_backward(const struct layer *l, enum sl_role role, enum sl_role bias_role,
                         const void *x, const void *dout, void *dx, bool accumulate)
{
    struct sl_norm_backward_args args = {
        .kind = l->m->norm,
        .rows = l->z.n,
        .width = l->z.c,
        .row_group = 1,
        .row_stride = l->z.c,
        .eps = l->m->norm_eps,
        .x = x,
        .weight = vector_of(l, role, 0),
        .dout = dout,
        .dx = dx,
        .accumulate_dx = accumulate,
        .dweight = vector_sum(l, param_of(l, role)),
        .dbias = l->m->norm == SL_NORM_LAYER ? vector_sum(l, param_of(l, bias_role)) : NULL,
    };
    return l->ops->norm_backward(l->device, &args);
}

static void *row_at(const struct layer *l, const void *y, size_t row)
{
    return (unsigned char *)(uintptr_t)y + row * l->z.element;
}

/* Columns of y. */
static int product(const struct layer *l, const struct sl_layer_part *part, const void *x, void *y)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_FORWARD,
        .rows = l->z.n,
        .inputs = part->inputs,
        .outputs = part->count,
        .y_stride = part->outputs,
        .x = (void *)(uintptr_t)x,
        .y = row_at(l, y, part->first),
        .weight = matrix_at(l, part),
        .bias = vector_of(l, part->bias, part->first),
    };
    return l->ops->matmul(l->device, &args);
}

/* dx (+)= of some columns of dy: the first ones overwrite it. */
static int input_gradient(const struct layer *l, const struct sl_layer_part *part, const void *dy,
                          void *dx)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_BACKWARD_INPUT,
        .rows = l->z.n,
        .inputs = part->inputs,
        .outputs = part->count,
        .y_stride = part->outputs,
        .x = dx,
        .y = row_at(l, dy, part->first),
        .accumulate = !part->begins,
        .weight = matrix_at(l, part),
    };
    return l->ops->matmul(l->device, &args);
}

/* Rows of a weight's gradient: neighbours in the sums. */
struct gradient_rows {
    size_t first, count; /* of the whole matrix */
    float *dweight, *dbias;
};

static int add_gradient(const struct layer *l, const struct sl_layer_part *part,
                        const struct gradient_rows *rows, const void *x, const void *dy)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_BACKWARD_WEIGHT,
        .rows = l->z.n,
        .inputs = part->inputs,
        .outputs = rows->count,
        .y_stride = part->outputs,
        .x = (void *)(uintptr_t)x,
        .y = row_at(l, dy, rows->first),
        .dweight = rows->dweight,
        .dbias = rows->dbias,
    };
    return rows->count && (args.dweight || args.dbias) ? l->ops->matmul(l->device, &args) : 0;
}

static struct gradient_rows cut_rows(const struct sl_layer_part *part, size_t row, size_t rows)
{
    size_t first = sl_max_u64(row, part->first);
    size_t end = sl_min_u64(row + rows, part->first + part->count);
    return (struct gradient_rows){.first = first, .count = end > first ? end - first : 0};
}

/* The biases on their own, in one go per tensor. */
static int bias_gradient(const struct layer *l, const struct sl_layer_part *part, const void *x,
                         const void *dy)
{
    const struct sl_param *param = param_of(l, part->bias);
    const struct sl_param *last =
        l->m->params + l->m->unit_first_param[l->memory->matrices.unit + 1];
    size_t row = 0;
    int result = 0;
    for (; param && param < last && param->role == part->bias && !result; param++) {
        struct gradient_rows rows = cut_rows(part, row, param->columns);
        float *sum = vector_sum(l, param);
        rows.dbias = sum ? sum + (rows.first - row) : NULL;
        result = add_gradient(l, part, &rows, x, dy);
        row += param->columns;
    }
    return result;
}

/* The sum of the first bias of a role, where all of them are trained and so lie side by side. */
static float *fused_bias_sum(const struct layer *l, enum sl_role role)
{
    const struct sl_param *first = param_of(l, role), *param = first;
    const struct sl_param *last =
        l->m->params + l->m->unit_first_param[l->memory->matrices.unit + 1];
    for (; param && param < last && param->role == role; param++)
        if (!vector_sum(l, param))
            return NULL;
    return vector_sum(l, first);
}

/* dW += dy^T x for the tensors of a role, which may be several rows of one fused matrix, some of
 * them frozen: neighbours that are trained are one product. */
static int weight_gradient(const struct layer *l, const struct sl_layer_part *part, const void *x,
                           const void *dy)
{
    const struct sl_unit_memory *memory = &l->memory->matrices;
    const struct sl_param *param = param_of(l, part->role);
    const struct sl_param *last = l->m->params + l->m->unit_first_param[memory->unit + 1];
    float *bias = fused_bias_sum(l, part->bias);
    struct gradient_rows run = {0};
    size_t row = 0;
    int result = 0;
    for (; param < last && param->role == part->role && !result; param++) {
        struct gradient_rows rows = cut_rows(part, row, param->rows);
        uint64_t offset = memory->sums_offset[param - l->m->params];
        if (rows.count && memory->sums && offset != UINT64_MAX) /* a tile begins its own sums */
            rows.dweight = memory->sums + (rows.first > row ? 0 : offset);
        row += param->rows;
        if (!rows.count)
            continue;
        bool joins =
            run.count &&
            (rows.dweight ? run.dweight && rows.dweight == run.dweight + run.count * part->inputs
                          : !run.dweight);
        if (joins) {
            run.count += rows.count;
            continue;
        }
        result = add_gradient(l, part, &run, x, dy);
        run = rows;
    }
    bool whole = run.count == part->count;
    run.dbias = whole && bias ? bias + part->first : NULL;
    if (!result)
        result = add_gradient(l, part, &run, x, dy);
    return result || run.dbias ? result : bias_gradient(l, part, x, dy);
}

/* q_norm over the H query heads, k_norm over the G key heads of the packed buffer. */
static int head_norms(const struct layer *l, const void *raw, void *qkv)
{
    const struct sl_model *m = l->m;
    for (int k = 0; k < 2; k++) {
        size_t shift = k ? l->z.att * l->z.element : 0;
        size_t heads = k ? m->kv_heads : m->heads;
        struct sl_norm_args args = {
            .kind = m->norm,
            .rows = l->z.n * heads,
            .width = m->head_size,
            .row_group = heads,
            .row_stride = l->z.q,
            .eps = m->norm_eps,
            .x = (const unsigned char *)raw + shift,
            .weight = vector_of(l, k ? SL_ROLE_K_NORM : SL_ROLE_Q_NORM, 0),
            .out = (unsigned char *)qkv + shift,
        };
        int result = l->ops->norm(l->device, &args);
        if (result)
            return result;
    }
    return 0;
}

static int head_norms_backward(const struct layer *l, const void *raw, void *dqkv)
{
    const struct sl_model *m = l->m;
    for (int k = 0; k < 2; k++) {
        size_t shift = k ? l->z.att * l->z.element : 0;
        size_t heads = k ? m->kv_heads : m->heads;
        enum sl_role role = k ? SL_ROLE_K_NORM : SL_ROLE_Q_NORM;
        struct sl_norm_backward_args args = {
            .kind = m->norm,
            .rows = l->z.n * heads,
            .width = m->head_size,
            .row_group = heads,
            .row_stride = l->z.q,
            .eps = m->norm_eps,
            .x = (const unsigned char *)raw + shift,
            .weight = vector_of(l, role, 0),
            .dout = (const unsigned char *)dqkv + shift,
            .dx = (unsigned char *)dqkv + shift,
            .dweight = vector_sum(l, param_of(l, role)),
        };
        int result = l->ops->norm_backward(l->device, &args);
        if (result)
            return result;
    }
    return 0;
}

static int rotate(const struct layer *l, void *qkv, bool inverse)
{
    const struct sl_model *m = l->m;
    unsigned which = m->rope_index[l->layer];
    if (m->rope[which].kind == SL_ROPE_NONE)
        return 0;
    struct sl_rope_args args = {
        .rows = l->z.n,
        .heads = (size_t)m->heads + m->kv_heads, /* q and k lie side by side */
        .head_size = m->head_size,
        .rotary = m->rotary,
        .row_stride = l->z.q,
        .x = qkv,
        .positions = l->batch->positions,
        .cos = l->batch->rope_cos[which],
        .sin = l->batch->rope_sin[which],
        .inverse = inverse,
    };
    return l->ops->rope(l->device, &args);
}

static struct sl_attention_args attention_of(const struct layer *l)
{
    const struct sl_model *m = l->m;
    return (struct sl_attention_args){
        .batch_count = l->batch->batch_count,
        .sequence_length = l->batch->sequence_length,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_size = m->head_size,
        .scale = m->attention_scale,
        .softcap = m->attention_softcap,
        .window = m->window[l->layer],
        .first = l->batch->first,
        .qkv = l->saved.qkv,
        .out = l->saved.att,
        .lse = l->saved.lse,
    };
}

static int add(const struct layer *l, const void *a, const void *b, void *out)
{
    struct sl_add_args args = {.count = l->z.n * l->z.c, .a = a, .b = b, .out = out};
    return l->ops->add(l->device, &args);
}

static int attend(const struct layer *l)
{
    struct sl_attention_args args = attention_of(l);
    return l->ops->attention(l->device, &args);
}

static int attend_cached(const struct layer *l)
{
    const struct sl_model *m = l->m;
    struct sl_attention_cached_args args = {
        .rows = l->z.n,
        .position_first = l->cache->position_first,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_size = m->head_size,
        .scale = m->attention_scale,
        .softcap = m->attention_softcap,
        .window = m->window[l->layer],
        .qkv = l->saved.qkv,
        .keys = l->cache->keys,
        .values = l->cache->values,
        .out = l->saved.att,
    };
    return l->ops->attention_cached(l->device, &args);
}

static int forward_qkv(const struct layer *l, const struct sl_layer_part *part, const void *x)
{
    const struct sl_layer_saved *s = &l->saved;
    unsigned char *raw = s->raw ? s->raw : s->qkv;
    int result = 0;
    if (part->begins)
        result = norm(l, SL_ROLE_NORM1, SL_ROLE_NORM1_BIAS, x, l->scratch.n);
    if (!result)
        result = product(l, part, l->scratch.n, raw);
    if (result || !part->ends)
        return result;
    if (s->raw) {
        result = l->ops->copy(l->device, SL_STREAM_COMPUTE, s->qkv, s->raw,
                              l->z.n * l->z.q * l->z.element);
        if (!result)
            result = head_norms(l, s->raw, s->qkv);
    }
    if (!result)
        result = rotate(l, s->qkv, false);
    if (!result)
        result = l->cache ? attend_cached(l) : attend(l);
    return result;
}

static int forward_o(const struct layer *l, const struct sl_layer_part *part, const void *x)
{
    const struct sl_layer_saved *s = &l->saved;
    unsigned char *o = s->o ? s->o : l->scratch.t;
    int result = product(l, part, s->att, o);
    if (result || !part->ends)
        return result;
    if (s->o)
        result = norm(l, SL_ROLE_POST_NORM1, SL_ROLE_COUNT, s->o, l->scratch.t);
    if (!result)
        result = add(l, x, l->scratch.t, s->mid);
    return result;
}

static int activate(const struct layer *l)
{
    struct sl_act_args args = {
        .kind = l->m->act,
        .gated = l->m->gated,
        .rows = l->z.n,
        .width = l->z.f,
        .in = l->saved.up,
        .out = l->scratch.a,
    };
    return l->ops->act(l->device, &args);
}

static int forward_up(const struct layer *l, const struct sl_layer_part *part)
{
    int result = 0;
    if (part->begins)
        result = norm(l, SL_ROLE_NORM2, SL_ROLE_NORM2_BIAS, l->saved.mid, l->scratch.n);
    return result ? result : product(l, part, l->scratch.n, l->saved.up);
}

static int forward_down(const struct layer *l, const struct sl_layer_part *part, void *out)
{
    const struct sl_layer_saved *s = &l->saved;
    unsigned char *down = s->down ? s->down : out;
    if (!down) /* recomputation */
        return 0;
    int result = part->begins ? activate(l) : 0;
    if (!result)
        result = product(l, part, l->scratch.a, down);
    if (result || !part->ends || !out)
        return result;
    if (s->down)
        result = norm(l, SL_ROLE_POST_NORM2, SL_ROLE_COUNT, s->down, out);
    if (!result)
        result = add(l, s->mid, out, out);
    return result;
}

static int forward(const struct layer *l, const void *x, void *out)
{
    int result = 0;
    for (size_t i = 0; i < STAGES && !result; i++) {
        struct sl_layer_part part = part_of(l, stages[i]);
        if (!part.count)
            continue;
        result = part.role == SL_ROLE_QKV  ? forward_qkv(l, &part, x)
                 : part.role == SL_ROLE_O  ? forward_o(l, &part, x)
                 : part.role == SL_ROLE_UP ? forward_up(l, &part)
                                           : forward_down(l, &part, out);
    }
    return result;
}

int sl_layer_forward(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                     const struct sl_batch *batch, const struct sl_layer_memory *memory,
                     const void *x, void *out, void *saved, void *scratch)
{
    struct layer l = layer_of(device, model, layer, batch, memory, saved, scratch);
    return forward(&l, x, out);
}

int sl_layer_generate(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                      const struct sl_batch *batch, const struct sl_layer_memory *memory,
                      const struct sl_layer_cache *cache, const void *x, void *out, void *saved,
                      void *scratch)
{
    struct layer l = layer_of(device, model, layer, batch, memory, saved, scratch);
    l.cache = cache;
    return forward(&l, x, out);
}

static int backward_down(const struct layer *l, const struct sl_layer_part *part, void *dx)
{
    const struct sl_layer_saved *s = &l->saved;
    const struct sl_layer_scratch *c = &l->scratch;
    const void *dy = s->down ? c->t : dx;
    int result = 0;
    if (part->begins && s->down)
        result = norm_backward(l, SL_ROLE_POST_NORM2, SL_ROLE_COUNT, s->down, dx, c->t, false);
    if (!result && part->begins)
        result = activate(l);
    if (!result)
        result = weight_gradient(l, part, c->a, dy);
    if (!result)
        result = input_gradient(l, part, dy, c->da);
    struct sl_act_args act = {
        .kind = l->m->act,
        .gated = l->m->gated,
        .rows = l->z.n,
        .width = l->z.f,
        .in = s->up,
        .dout = c->da,
        .din = s->up,
    };
    if (!result && part->ends)
        result = l->ops->act_backward(l->device, &act);
    return result;
}

static int backward_up(const struct layer *l, const struct sl_layer_part *part, void *dx)
{
    const struct sl_layer_saved *s = &l->saved;
    const struct sl_layer_scratch *c = &l->scratch;
    int result = 0;
    if (part->begins)
        result = norm(l, SL_ROLE_NORM2, SL_ROLE_NORM2_BIAS, s->mid, c->n);
    if (!result)
        result = weight_gradient(l, part, c->n, s->up);
    if (!result)
        result = input_gradient(l, part, s->up, c->t);
    if (!result && part->ends)
        result = norm_backward(l, SL_ROLE_NORM2, SL_ROLE_NORM2_BIAS, s->mid, c->t, dx, true);
    return result;
}

static int backward_o(const struct layer *l, const struct sl_layer_part *part, const void *dx)
{
    const struct sl_layer_saved *s = &l->saved;
    const struct sl_layer_scratch *c = &l->scratch;
    const void *dy = s->o ? c->t : dx;
    int result = 0;
    if (part->begins && s->o)
        result = norm_backward(l, SL_ROLE_POST_NORM1, SL_ROLE_COUNT, s->o, dx, c->t, false);
    if (!result)
        result = weight_gradient(l, part, s->att, dy);
    if (!result)
        result = input_gradient(l, part, dy, c->datt);
    if (result || !part->ends)
        return result;
    struct sl_attention_backward_args attention = {
        .forward = attention_of(l), .dout = c->datt, .dqkv = c->dqkv, .delta = c->delta};
    result = l->ops->attention_backward(l->device, &attention);
    if (!result)
        result = rotate(l, c->dqkv, true);
    if (!result && s->raw)
        result = head_norms_backward(l, s->raw, c->dqkv);
    return result;
}

static int backward_qkv(const struct layer *l, const struct sl_layer_part *part, const void *x,
                        void *dx)
{
    const struct sl_layer_scratch *c = &l->scratch;
    int result = 0;
    if (part->begins)
        result = norm(l, SL_ROLE_NORM1, SL_ROLE_NORM1_BIAS, x, c->n);
    if (!result)
        result = weight_gradient(l, part, c->n, c->dqkv);
    if (!result)
        result = input_gradient(l, part, c->dqkv, c->t);
    if (!result && part->ends)
        result = norm_backward(l, SL_ROLE_NORM1, SL_ROLE_NORM1_BIAS, x, c->t, dx, true);
    return result;
}

int sl_layer_backward(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                      const struct sl_batch *batch, const struct sl_layer_memory *memory,
                      const void *x, void *dx, void *saved, void *scratch)
{
    struct layer l = layer_of(device, model, layer, batch, memory, saved, scratch);
    int result = 0;
    for (size_t i = STAGES; i-- > 0 && !result;) {
        struct sl_layer_part part = part_of(&l, stages[i]);
        if (!part.count)
            continue;
        result = part.role == SL_ROLE_DOWN ? backward_down(&l, &part, dx)
                 : part.role == SL_ROLE_UP ? backward_up(&l, &part, dx)
                 : part.role == SL_ROLE_O  ? backward_o(&l, &part, dx)
                                           : backward_qkv(&l, &part, x, dx);
    }
    return result;
}
