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
 * family needs them. Norm outputs and act(up) are cheap and are computed again in the backward
 * pass, which keeps `saved` at the width of the matrix products' results.
 */
#include "engine/transformer.h"

#include <assert.h>

#include "base/size.h"

#define ALIGNMENT 64u

struct sizes {
    size_t n, c, f, up, q, att; /* rows; widths in elements */
    size_t element;             /* bytes of an activation */
};

static struct sizes sizes_of(const struct sl_model *m, enum sl_dtype activation, size_t batch,
                             size_t sequence)
{
    return (struct sizes){
        .n = batch * sequence,
        .c = m->hidden,
        .f = m->ffn,
        .up = (size_t)m->ffn * (m->gated ? 2 : 1),
        .q = ((size_t)m->heads + 2 * (size_t)m->kv_heads) * m->head_size,
        .att = (size_t)m->heads * m->head_size,
        .element = sl_dtype_bytes(activation),
    };
}

struct saved {
    unsigned char *qkv, *att, *mid, *up, *raw, *o, *down;
    float *lse;
};

static unsigned char *take(unsigned char **at, uint64_t bytes)
{
    unsigned char *taken = *at;
    *at += sl_align_up(bytes, ALIGNMENT);
    return taken;
}

/* Lays `saved` out from base on; returns the end. base NULL: only the size. */
static unsigned char *lay_saved(struct saved *s, const struct sl_model *m, struct sizes z,
                                size_t batch, size_t sequence, unsigned char *base)
{
    unsigned char *at = base;
    s->qkv = take(&at, z.n * z.q * z.element);
    s->att = take(&at, z.n * z.att * z.element);
    s->mid = take(&at, z.n * z.c * z.element);
    s->up = take(&at, z.n * z.up * z.element);
    s->lse = (float *)(void *)take(&at, batch * m->heads * sequence * sizeof(float));
    s->raw = m->qk_norm ? take(&at, z.n * z.q * z.element) : NULL;
    s->o = m->post_norms ? take(&at, z.n * z.c * z.element) : NULL;
    s->down = m->post_norms ? take(&at, z.n * z.c * z.element) : NULL;
    return at;
}

struct scratch {
    unsigned char *n, *t;       /* [N, C] each */
    unsigned char *a, *da;      /* [N, F] each */
    unsigned char *dqkv, *datt; /* over a and da, which are dead by then */
    float *delta;
};

static unsigned char *lay_scratch(struct scratch *s, const struct sl_model *m, struct sizes z,
                                  size_t batch, size_t sequence, unsigned char *base)
{
    unsigned char *at = base;
    s->n = take(&at, z.n * z.c * z.element);
    s->t = take(&at, z.n * z.c * z.element);
    unsigned char *ffn = at, *attention = at;
    s->a = take(&ffn, z.n * z.f * z.element);
    s->da = take(&ffn, z.n * z.f * z.element);
    s->dqkv = take(&attention, z.n * z.q * z.element);
    s->datt = take(&attention, z.n * z.att * z.element);
    s->delta = (float *)(void *)take(&attention, batch * m->heads * sequence * sizeof(float));
    return ffn > attention ? ffn : attention;
}

uint64_t sl_layer_saved_bytes(const struct sl_model *model, enum sl_dtype activation, size_t batch,
                              size_t sequence)
{
    struct saved saved;
    struct sizes z = sizes_of(model, activation, batch, sequence);
    return (uint64_t)(uintptr_t)lay_saved(&saved, model, z, batch, sequence, NULL);
}

uint64_t sl_layer_scratch_bytes(const struct sl_model *model, enum sl_dtype activation,
                                size_t batch, size_t sequence)
{
    struct scratch scratch;
    struct sizes z = sizes_of(model, activation, batch, sequence);
    return (uint64_t)(uintptr_t)lay_scratch(&scratch, model, z, batch, sequence, NULL);
}

struct sl_layer_work sl_layer_work(const struct sl_model *m, size_t batch, size_t sequence,
                                   bool recomputed)
{
    struct sizes z = sizes_of(m, SL_F32, batch, sequence);
    uint64_t matrices = (uint64_t)z.c * z.q + (uint64_t)z.att * z.c + (uint64_t)z.c * z.up;
    if (!recomputed || m->post_norms) /* as in forward(): a norm's backward pass needs its input */
        matrices += (uint64_t)z.f * z.c;
    double attention = 2.0 * (double)z.att * ((double)sequence + 1) / 2;
    return (struct sl_layer_work){.flops = 2.0 * (double)z.n * ((double)matrices + attention),
                                  .weight_elements = matrices};
}

/* Everything a layer's helpers need, so that they take one argument. */
struct layer {
    struct sl_device *device;
    const struct sl_device_ops *ops;
    const struct sl_model *m;
    const struct sl_batch *batch;
    const struct sl_unit_memory *memory;
    uint32_t layer;
    struct sizes z;
    struct saved saved;
    struct scratch scratch;
    const struct sl_layer_cache *cache; /* generation; NULL: training */
};

static struct layer layer_of(struct sl_device *device, const struct sl_model *m, uint32_t layer,
                             const struct sl_batch *batch, const struct sl_unit_memory *memory,
                             void *saved, void *scratch)
{
    struct layer l = {.device = device,
                      .ops = device->ops,
                      .m = m,
                      .batch = batch,
                      .memory = memory,
                      .layer = layer};
    l.z = sizes_of(m, device->activation_dtype, batch->batch_count, batch->sequence_length);
    lay_saved(&l.saved, m, l.z, batch->batch_count, batch->sequence_length, saved);
    lay_scratch(&l.scratch, m, l.z, batch->batch_count, batch->sequence_length, scratch);
    return l;
}

static struct sl_weight weight_of(const struct sl_model *m, const struct sl_unit_memory *memory,
                                  enum sl_role role)
{
    const struct sl_param *param = sl_model_param(m, memory->unit, role);
    if (!param)
        return (struct sl_weight){NULL, memory->dtype};
    return (struct sl_weight){memory->weights + (param->offset - memory->weights_first) *
                                                    sl_dtype_bytes(memory->dtype),
                              memory->dtype};
}

/* The f32 sum of a parameter, or NULL where it is frozen or absent. */
static float *sum_of(const struct sl_model *m, const struct sl_unit_memory *memory,
                     enum sl_role role)
{
    const struct sl_param *param = sl_model_param(m, memory->unit, role);
    if (!param || !memory->sums)
        return NULL;
    uint64_t offset = memory->sums_offset[param - m->params];
    return offset == UINT64_MAX ? NULL : memory->sums + offset;
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
        .weight = weight_of(l->m, l->memory, role),
        .bias = l->m->norm == SL_NORM_LAYER ? weight_of(l->m, l->memory, bias_role)
                                            : (struct sl_weight){0},
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
        .weight = weight_of(l->m, l->memory, role),
        .dout = dout,
        .dx = dx,
        .accumulate_dx = accumulate,
        .dweight = sum_of(l->m, l->memory, role),
        .dbias = l->m->norm == SL_NORM_LAYER ? sum_of(l->m, l->memory, bias_role) : NULL,
    };
    return l->ops->norm_backward(l->device, &args);
}

static int product(const struct layer *l, enum sl_role role, enum sl_role bias_role, const void *x,
                   size_t inputs, void *y, size_t outputs)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_FORWARD,
        .rows = l->z.n,
        .inputs = inputs,
        .outputs = outputs,
        .x = (void *)(uintptr_t)x,
        .y = y,
        .weight = weight_of(l->m, l->memory, role),
        .bias = weight_of(l->m, l->memory, bias_role),
    };
    return l->ops->matmul(l->device, &args);
}

/* dW += dy^T x for the tensors of a role, which may be several rows of one fused matrix, some of
 * them frozen: neighbours that are trained are one product. */
static int weight_gradient(const struct layer *l, enum sl_role role, enum sl_role bias_role,
                           const void *x, size_t inputs, const void *dy, size_t outputs)
{
    const struct sl_model *m = l->m;
    const uint64_t *offset = l->memory->sums_offset;
    if (!l->memory->sums)
        return 0;
    uint64_t last = m->unit_first_param[l->memory->unit + 1];
    const struct sl_param *param = sl_model_param(m, l->memory->unit, role);
    const struct sl_param *bias = sl_model_param(m, l->memory->unit, bias_role);
    bool fused_bias = bias != NULL;
    for (uint64_t i = bias ? (uint64_t)(bias - m->params) : last;
         i < last && m->params[i].role == bias_role; i++)
        fused_bias = fused_bias && offset[i] != UINT64_MAX;
    size_t row = 0;
    for (uint64_t i = (uint64_t)(param - m->params); i < last && m->params[i].role == role;) {
        uint64_t j = i;
        size_t rows = 0;
        bool trained = offset[i] != UINT64_MAX;
        while (j < last && m->params[j].role == role && (offset[j] != UINT64_MAX) == trained &&
               (!trained || offset[j] == offset[i] + rows * inputs))
            rows += m->params[j++].rows;
        bool whole = rows == outputs;
        struct sl_matmul_args args = {
            .kind = SL_MATMUL_BACKWARD_WEIGHT,
            .rows = l->z.n,
            .inputs = inputs,
            .outputs = rows,
            .y_stride = outputs,
            .x = (void *)(uintptr_t)x,
            .y = (unsigned char *)(uintptr_t)dy + row * l->z.element,
            .dweight = trained ? l->memory->sums + offset[i] : NULL,
            .dbias = whole && fused_bias ? l->memory->sums + offset[bias - m->params] : NULL,
        };
        int result = args.dweight || args.dbias ? l->ops->matmul(l->device, &args) : 0;
        if (result)
            return result;
        row += rows;
        i = j;
        if (whole && (fused_bias || !bias))
            return 0;
    }
    /* Fused and partly frozen: the biases on their own, in one go per tensor. */
    row = 0;
    for (uint64_t i = bias ? (uint64_t)(bias - m->params) : last;
         i < last && m->params[i].role == bias_role; i++) {
        struct sl_matmul_args args = {
            .kind = SL_MATMUL_BACKWARD_WEIGHT,
            .rows = l->z.n,
            .inputs = inputs,
            .outputs = m->params[i].columns,
            .y_stride = outputs,
            .x = (void *)(uintptr_t)x,
            .y = (unsigned char *)(uintptr_t)dy + row * l->z.element,
            .dbias = offset[i] != UINT64_MAX ? l->memory->sums + offset[i] : NULL,
        };
        int result = args.dbias ? l->ops->matmul(l->device, &args) : 0;
        if (result)
            return result;
        row += m->params[i].columns;
    }
    return 0;
}

static int input_gradient(const struct layer *l, enum sl_role role, const void *dy, size_t outputs,
                          void *dx, size_t inputs)
{
    struct sl_matmul_args args = {
        .kind = SL_MATMUL_BACKWARD_INPUT,
        .rows = l->z.n,
        .inputs = inputs,
        .outputs = outputs,
        .x = dx,
        .y = (void *)(uintptr_t)dy,
        .weight = weight_of(l->m, l->memory, role),
    };
    return l->ops->matmul(l->device, &args);
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
            .weight = weight_of(m, l->memory, k ? SL_ROLE_K_NORM : SL_ROLE_Q_NORM),
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
            .weight = weight_of(m, l->memory, role),
            .dout = (const unsigned char *)dqkv + shift,
            .dx = (unsigned char *)dqkv + shift,
            .dweight = sum_of(m, l->memory, role),
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

static int attention_forward(const struct layer *l, const void *x)
{
    const struct saved *s = &l->saved;
    unsigned char *raw = s->raw ? s->raw : s->qkv;
    int result = norm(l, SL_ROLE_NORM1, SL_ROLE_NORM1_BIAS, x, l->scratch.n);
    if (!result)
        result = product(l, SL_ROLE_QKV, SL_ROLE_QKV_BIAS, l->scratch.n, l->z.c, raw, l->z.q);
    if (!result && s->raw) {
        result = l->ops->copy(l->device, SL_STREAM_COMPUTE, s->qkv, s->raw,
                              l->z.n * l->z.q * l->z.element);
        if (!result)
            result = head_norms(l, s->raw, s->qkv);
    }
    if (!result)
        result = rotate(l, s->qkv, false);
    if (!result)
        result = l->cache ? attend_cached(l) : attend(l);
    unsigned char *o = s->o ? s->o : l->scratch.t;
    if (!result)
        result = product(l, SL_ROLE_O, SL_ROLE_O_BIAS, s->att, l->z.att, o, l->z.c);
    if (!result && s->o)
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

static int forward(const struct layer *l, const void *x, void *out)
{
    const struct saved *s = &l->saved;
    int result = attention_forward(l, x);
    if (!result)
        result = norm(l, SL_ROLE_NORM2, SL_ROLE_NORM2_BIAS, s->mid, l->scratch.n);
    if (!result)
        result = product(l, SL_ROLE_UP, SL_ROLE_UP_BIAS, l->scratch.n, l->z.c, s->up, l->z.up);
    if (result || (!out && !s->down))
        return result;
    result = activate(l);
    unsigned char *down = s->down ? s->down : out;
    if (!result)
        result = product(l, SL_ROLE_DOWN, SL_ROLE_DOWN_BIAS, l->scratch.a, l->z.f, down, l->z.c);
    if (result || !out)
        return result;
    if (s->down)
        result = norm(l, SL_ROLE_POST_NORM2, SL_ROLE_COUNT, s->down, out);
    if (!result)
        result = add(l, s->mid, out, out);
    return result;
}

int sl_layer_forward(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                     const struct sl_batch *batch, const struct sl_unit_memory *memory,
                     const void *x, void *out, void *saved, void *scratch)
{
    struct layer l = layer_of(device, model, layer, batch, memory, saved, scratch);
    return forward(&l, x, out);
}

int sl_layer_generate(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                      const struct sl_batch *batch, const struct sl_unit_memory *memory,
                      const struct sl_layer_cache *cache, const void *x, void *out, void *saved,
                      void *scratch)
{
    struct layer l = layer_of(device, model, layer, batch, memory, saved, scratch);
    l.cache = cache;
    return forward(&l, x, out);
}

static int ffn_backward(const struct layer *l, void *dx)
{
    const struct saved *s = &l->saved;
    const struct scratch *c = &l->scratch;
    const void *dy = dx;
    int result = 0;
    if (s->down) {
        result = norm_backward(l, SL_ROLE_POST_NORM2, SL_ROLE_COUNT, s->down, dx, c->t, false);
        dy = c->t;
    }
    if (!result)
        result = activate(l);
    if (!result)
        result = weight_gradient(l, SL_ROLE_DOWN, SL_ROLE_DOWN_BIAS, c->a, l->z.f, dy, l->z.c);
    if (!result)
        result = input_gradient(l, SL_ROLE_DOWN, dy, l->z.c, c->da, l->z.f);
    struct sl_act_args act = {
        .kind = l->m->act,
        .gated = l->m->gated,
        .rows = l->z.n,
        .width = l->z.f,
        .in = s->up,
        .dout = c->da,
        .din = s->up,
    };
    if (!result)
        result = l->ops->act_backward(l->device, &act);
    if (!result)
        result = norm(l, SL_ROLE_NORM2, SL_ROLE_NORM2_BIAS, s->mid, c->n);
    if (!result)
        result = weight_gradient(l, SL_ROLE_UP, SL_ROLE_UP_BIAS, c->n, l->z.c, s->up, l->z.up);
    if (!result)
        result = input_gradient(l, SL_ROLE_UP, s->up, l->z.up, c->n, l->z.c);
    if (!result)
        result = norm_backward(l, SL_ROLE_NORM2, SL_ROLE_NORM2_BIAS, s->mid, c->n, dx, true);
    return result;
}

static int attention_backward(const struct layer *l, const void *x, void *dx)
{
    const struct saved *s = &l->saved;
    const struct scratch *c = &l->scratch;
    const void *dy = dx;
    int result = 0;
    if (s->o) {
        result = norm_backward(l, SL_ROLE_POST_NORM1, SL_ROLE_COUNT, s->o, dx, c->t, false);
        dy = c->t;
    }
    if (!result)
        result = weight_gradient(l, SL_ROLE_O, SL_ROLE_O_BIAS, s->att, l->z.att, dy, l->z.c);
    if (!result)
        result = input_gradient(l, SL_ROLE_O, dy, l->z.c, c->datt, l->z.att);
    struct sl_attention_backward_args attention = {
        .forward = attention_of(l), .dout = c->datt, .dqkv = c->dqkv, .delta = c->delta};
    if (!result)
        result = l->ops->attention_backward(l->device, &attention);
    if (!result)
        result = rotate(l, c->dqkv, true);
    if (!result && s->raw)
        result = head_norms_backward(l, s->raw, c->dqkv);
    if (!result)
        result = norm(l, SL_ROLE_NORM1, SL_ROLE_NORM1_BIAS, x, c->n);
    if (!result)
        result = weight_gradient(l, SL_ROLE_QKV, SL_ROLE_QKV_BIAS, c->n, l->z.c, c->dqkv, l->z.q);
    if (!result)
        result = input_gradient(l, SL_ROLE_QKV, c->dqkv, l->z.q, c->n, l->z.c);
    if (!result)
        result = norm_backward(l, SL_ROLE_NORM1, SL_ROLE_NORM1_BIAS, x, c->n, dx, true);
    return result;
}

int sl_layer_backward(struct sl_device *device, const struct sl_model *model, uint32_t layer,
                      const struct sl_batch *batch, const struct sl_unit_memory *memory,
                      const void *x, void *dx, void *saved, void *scratch)
{
    struct layer l = layer_of(device, model, layer, batch, memory, saved, scratch);
    int result = ffn_backward(&l, dx);
    if (!result)
        result = attention_backward(&l, x, dx);
    return result;
}
