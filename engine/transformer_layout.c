// SPDX-License-Identifier: Apache-2.0
/* A layer in numbers: widths, working memory, work. */
#include "engine/transformer_layout.h"

#include "base/size.h"

#define ALIGNMENT 64u

struct sl_layer_sizes sl_layer_sizes_of(const struct sl_model *m, enum sl_dtype activation,
                                        size_t batch, size_t sequence)
{
    return (struct sl_layer_sizes){
        .n = batch * sequence,
        .c = m->hidden,
        .f = m->ffn,
        .up = (size_t)m->ffn * (m->gated ? 2 : 1),
        .q = ((size_t)m->heads + 2 * (size_t)m->kv_heads) * m->head_size,
        .att = (size_t)m->heads * m->head_size,
        .element = sl_dtype_bytes(activation),
    };
}

static unsigned char *take(unsigned char **at, uint64_t bytes)
{
    unsigned char *taken = *at;
    *at += sl_align_up(bytes, ALIGNMENT);
    return taken;
}

unsigned char *sl_layer_lay_saved(struct sl_layer_saved *s, const struct sl_model *m,
                                  struct sl_layer_sizes z, size_t batch, size_t sequence,
                                  unsigned char *base)
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

unsigned char *sl_layer_lay_scratch(struct sl_layer_scratch *s, const struct sl_model *m,
                                    struct sl_layer_sizes z, size_t batch, size_t sequence,
                                    unsigned char *base)
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
    struct sl_layer_saved saved;
    struct sl_layer_sizes z = sl_layer_sizes_of(model, activation, batch, sequence);
    return (uint64_t)(uintptr_t)sl_layer_lay_saved(&saved, model, z, batch, sequence, NULL);
}

uint64_t sl_layer_scratch_bytes(const struct sl_model *model, enum sl_dtype activation,
                                size_t batch, size_t sequence)
{
    struct sl_layer_scratch scratch;
    struct sl_layer_sizes z = sl_layer_sizes_of(model, activation, batch, sequence);
    return (uint64_t)(uintptr_t)sl_layer_lay_scratch(&scratch, model, z, batch, sequence, NULL);
}

struct sl_layer_part sl_layer_matrix(const struct sl_layer_sizes *z, enum sl_role role)
{
    switch (role) {
    case SL_ROLE_QKV:
        return (struct sl_layer_part){role, SL_ROLE_QKV_BIAS, z->c, z->q, 0, z->q, true, true};
    case SL_ROLE_O:
        return (struct sl_layer_part){role, SL_ROLE_O_BIAS, z->att, z->c, 0, z->c, true, true};
    case SL_ROLE_UP:
        return (struct sl_layer_part){role, SL_ROLE_UP_BIAS, z->c, z->up, 0, z->up, true, true};
    case SL_ROLE_DOWN:
        return (struct sl_layer_part){role, SL_ROLE_DOWN_BIAS, z->f, z->c, 0, z->c, true, true};
    default:
        return (struct sl_layer_part){.role = role};
    }
}

/* Multiply-adds of one query: scores and sums over the keys that it sees on average. */
static double attention_work(const struct sl_layer_sizes *z, size_t sequence)
{
    return 2.0 * (double)z->att * ((double)sequence + 1) / 2;
}

struct sl_layer_work sl_layer_work(const struct sl_model *m, size_t batch, size_t sequence,
                                   bool recomputed)
{
    struct sl_layer_sizes z = sl_layer_sizes_of(m, SL_F32, batch, sequence);
    uint64_t matrices = (uint64_t)z.c * z.q + (uint64_t)z.att * z.c + (uint64_t)z.c * z.up;
    if (!recomputed || m->post_norms) /* as in forward(): a norm's backward pass needs its input */
        matrices += (uint64_t)z.f * z.c;
    double attention = attention_work(&z, sequence);
    return (struct sl_layer_work){.flops = 2.0 * (double)z.n * ((double)matrices + attention),
                                  .weight_elements = matrices};
}

struct sl_layer_work sl_layer_tile_work(const struct sl_model *m, size_t batch, size_t sequence,
                                        const struct sl_layer_tile *tile, bool backward)
{
    struct sl_layer_sizes z = sl_layer_sizes_of(m, SL_F32, batch, sequence);
    struct sl_layer_part part = sl_layer_matrix(&z, tile->role);
    uint64_t elements = (uint64_t)tile->row_count * part.inputs;
    bool attends = tile->role == (backward ? SL_ROLE_O : SL_ROLE_QKV) &&
                   tile->row_first + tile->row_count == part.outputs;
    double attention = attends ? attention_work(&z, sequence) : 0;
    return (struct sl_layer_work){.flops = 2.0 * (double)z.n * ((double)elements + attention),
                                  .weight_elements = elements};
}
