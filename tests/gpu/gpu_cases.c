// SPDX-License-Identifier: Apache-2.0
/* The cases of gpu_check: one function per group of operations, used twice. With `host` arrays the
 * results are compared, under a relative L2 error of a few epsilon of the activation type (two
 * roundings at most lie between the sides; backward attention also rounds p and ds); without, the
 * operation is timed. Bytes are each operand once; flops are the products' (attention: causal half,
 * backward 2.5 times forward, as is usual). */
#include <math.h>
#include <stdlib.h>

#include "tests/gpu/gpu_check.h"

/* N tokens (sequences of T), C hidden, F feed-forward, H and G heads of D, V columns of logits. */
struct dims {
    size_t N, C, F, H, G, D, T, V;
    bool host;
};

static double epsilon(const struct check *c)
{
    return c->type == SL_BF16 ? 0x1p-8 : c->type == SL_F16 ? 0x1p-11 : 0x1p-20;
}

static double size_of(const struct check *c)
{
    return (double)sl_dtype_bytes(c->type);
}

static void free_all(struct check *c, struct array *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++)
        array_free(c, &arrays[i]);
}

static void finish(struct check *c, const struct dims *d, const char *name, const char *shape,
                   enum operation op, const void *host, const void *cuda,
                   const struct array *result, double allowed, double bytes, double flops)
{
    if (d->host) {
        run_both(c, op, host, cuda);
        compare(c, name, result, allowed);
    } else {
        measure(c, name, shape, op, cuda, bytes, flops);
    }
}

static void case_norm(struct check *c, const struct dims *d)
{
    enum { X, W, OUT, DOUT, DX, DW, COUNT };
    double moved = (double)(d->N * d->C) * size_of(c);
    char shape[64];
    snprintf(shape, sizeof(shape), "%zu x %zu", d->N, d->C);
    struct array a[COUNT] = {
        array_make(c, c->type, d->N * d->C, 1, d->host),
        array_make(c, c->type, d->C, 1, d->host),
        array_make(c, c->type, d->N * d->C, 1, d->host),
        array_make(c, c->type, d->N * d->C, 1, d->host),
        array_make(c, c->type, d->N * d->C, 1, d->host),
        array_make(c, SL_F32, d->C, 1, d->host),
    };
    struct sl_norm_args cuda = {.rows = d->N,
                                .width = d->C,
                                .row_group = 1,
                                .row_stride = d->C,
                                .eps = 1e-5f,
                                .x = a[X].cuda,
                                .weight = {a[W].cuda, c->type},
                                .out = a[OUT].cuda};
    struct sl_norm_args host = cuda;
    host.x = a[X].host;
    host.weight = (struct sl_weight){a[W].host, SL_F32};
    host.out = a[OUT].host;
    finish(c, d, "norm", shape, OP_NORM, &host, &cuda, &a[OUT], epsilon(c), 2 * moved, 0);
    struct sl_norm_backward_args back = {.rows = d->N,
                                         .width = d->C,
                                         .row_group = 1,
                                         .row_stride = d->C,
                                         .eps = 1e-5f,
                                         .x = a[X].cuda,
                                         .weight = {a[W].cuda, c->type},
                                         .dout = a[DOUT].cuda,
                                         .dx = a[DX].cuda,
                                         .dweight = a[DW].cuda};
    struct sl_norm_backward_args back_host = back;
    back_host.x = a[X].host;
    back_host.weight = host.weight;
    back_host.dout = a[DOUT].host;
    back_host.dx = a[DX].host;
    back_host.dweight = a[DW].host;
    finish(c, d, "norm_backward", shape, OP_NORM_BACKWARD, &back_host, &back, &a[DX], epsilon(c),
           3 * moved, 0);
    if (d->host)
        compare(c, "norm_backward dweight", &a[DW], 0x1p-18);
    free_all(c, a, COUNT);
}

static void case_matmul(struct check *c, const struct dims *d)
{
    enum { X, W, Y, DW, COUNT };
    char shape[64];
    snprintf(shape, sizeof(shape), "%zu x %zu x %zu", d->N, d->C, d->F);
    double flops = 2.0 * (double)d->N * (double)d->C * (double)d->F;
    double bytes = (double)(d->N * d->C + d->C * d->F + d->N * d->F) * size_of(c);
    struct array a[COUNT] = {
        array_make(c, c->type, d->N * d->C, 1, d->host),
        array_make(c, c->type, d->F * d->C, 1, d->host),
        array_make(c, c->type, d->N * d->F, 1, d->host),
        array_make(c, SL_F32, d->F * d->C, 1, d->host),
    };
    static const char *const names[] = {"matmul", "matmul_backward_input",
                                        "matmul_backward_weight"};
    for (int kind = SL_MATMUL_FORWARD; kind <= SL_MATMUL_BACKWARD_WEIGHT; kind++) {
        struct sl_matmul_args cuda = {.kind = (enum sl_matmul_kind)kind,
                                      .rows = d->N,
                                      .inputs = d->C,
                                      .outputs = d->F,
                                      .x = a[X].cuda,
                                      .y = a[Y].cuda,
                                      .weight = {a[W].cuda, c->type},
                                      .dweight = a[DW].cuda};
        struct sl_matmul_args host = cuda;
        host.x = a[X].host;
        host.y = a[Y].host;
        host.weight = (struct sl_weight){a[W].host, SL_F32};
        host.dweight = a[DW].host;
        const struct array *result = kind == SL_MATMUL_FORWARD          ? &a[Y]
                                     : kind == SL_MATMUL_BACKWARD_INPUT ? &a[X]
                                                                        : &a[DW];
        /* each uses the result of the one before: up to three roundings */
        finish(c, d, names[kind], shape, OP_MATMUL, &host, &cuda, result, 3 * epsilon(c), bytes,
               flops);
    }
    free_all(c, a, COUNT);
}

static void case_elementwise(struct check *c, const struct dims *d)
{
    enum { IN, OUT, DOUT, QKV, COS, SIN, POSITIONS, COUNT };
    size_t width = (d->H + 2 * d->G) * d->D;
    char shape[64];
    struct array a[COUNT] = {
        array_make(c, c->type, 2 * d->N * d->F, 4, d->host),
        array_make(c, c->type, d->N * d->F, 1, d->host),
        array_make(c, c->type, d->N * d->F, 1, d->host),
        array_make(c, c->type, d->N * width, 1, d->host),
        array_make(c, SL_F32, d->T * d->D / 2, 1, d->host),
        array_make(c, SL_F32, d->T * d->D / 2, 1, d->host),
        array_ids(c, d->N, (int32_t)d->T),
    };
    double moved = (double)(d->N * d->F) * size_of(c);
    struct sl_act_args act = {.kind = SL_ACT_SILU,
                              .gated = true,
                              .rows = d->N,
                              .width = d->F,
                              .in = a[IN].cuda,
                              .out = a[OUT].cuda,
                              .dout = a[DOUT].cuda,
                              .din = a[IN].cuda};
    struct sl_act_args act_host = act;
    act_host.in = act_host.din = a[IN].host;
    act_host.out = a[OUT].host;
    act_host.dout = a[DOUT].host;
    snprintf(shape, sizeof(shape), "%zu x %zu, gated", d->N, d->F);
    finish(c, d, "act", shape, OP_ACT, &act_host, &act, &a[OUT], epsilon(c), 3 * moved, 0);
    finish(c, d, "act_backward", shape, OP_ACT_BACKWARD, &act_host, &act, &a[IN], epsilon(c),
           5 * moved, 0);
    struct sl_add_args add = {d->N * d->F, a[OUT].cuda, a[DOUT].cuda, a[OUT].cuda};
    struct sl_add_args add_host = {d->N * d->F, a[OUT].host, a[DOUT].host, a[OUT].host};
    snprintf(shape, sizeof(shape), "%zu x %zu", d->N, d->F);
    finish(c, d, "add", shape, OP_ADD, &add_host, &add, &a[OUT], 2 * epsilon(c), 3 * moved, 0);
    struct sl_rope_args rope = {.rows = d->N,
                                .heads = d->H + d->G,
                                .head_size = d->D,
                                .rotary = d->D,
                                .row_stride = width,
                                .x = a[QKV].cuda,
                                .positions = a[POSITIONS].cuda,
                                .cos = a[COS].cuda,
                                .sin = a[SIN].cuda};
    struct sl_rope_args rope_host = rope;
    rope_host.x = a[QKV].host;
    rope_host.positions = a[POSITIONS].host;
    rope_host.cos = a[COS].host;
    rope_host.sin = a[SIN].host;
    snprintf(shape, sizeof(shape), "%zu x %zu heads of %zu", d->N, d->H + d->G, d->D);
    finish(c, d, "rope", shape, OP_ROPE, &rope_host, &rope, &a[QKV], epsilon(c),
           2.0 * (double)(d->N * (d->H + d->G) * d->D) * size_of(c), 0);
    free_all(c, a, COUNT);
}

static void case_attention(struct check *c, const struct dims *d, size_t head_size)
{
    enum { QKV, OUT, DOUT, DQKV, LSE, DELTA, COUNT };
    size_t width = (d->H + 2 * d->G) * head_size;
    char shape[64];
    struct array a[COUNT] = {
        array_make(c, c->type, d->N * width, 1, d->host),
        array_make(c, c->type, d->N * d->H * head_size, 1, d->host),
        array_make(c, c->type, d->N * d->H * head_size, 1, d->host),
        array_make(c, c->type, d->N * width, 1, d->host),
        array_make(c, SL_F32, d->N * d->H, 1, d->host),
        array_make(c, SL_F32, d->N * d->H, 1, d->host),
    };
    struct sl_attention_backward_args cuda = {.forward = {.batch_count = d->N / d->T,
                                                          .sequence_length = d->T,
                                                          .heads = d->H,
                                                          .kv_heads = d->G,
                                                          .head_size = head_size,
                                                          .scale = 1 / sqrtf((float)head_size),
                                                          .qkv = a[QKV].cuda,
                                                          .out = a[OUT].cuda,
                                                          .lse = a[LSE].cuda},
                                              .dout = a[DOUT].cuda,
                                              .dqkv = a[DQKV].cuda,
                                              .delta = a[DELTA].cuda};
    struct sl_attention_backward_args host = cuda;
    host.forward.qkv = a[QKV].host;
    host.forward.out = a[OUT].host;
    host.forward.lse = a[LSE].host;
    host.dout = a[DOUT].host;
    host.dqkv = a[DQKV].host;
    host.delta = a[DELTA].host;
    snprintf(shape, sizeof(shape), "%zu x %zu, %zu/%zu heads of %zu", d->N / d->T, d->T, d->H, d->G,
             head_size);
    double flops = 2.0 * (double)(d->N * d->H * head_size) * (double)d->T;
    double bytes = (double)(d->N * (width + d->H * head_size)) * size_of(c);
    finish(c, d, "attention", shape, OP_ATTENTION, &host.forward, &cuda.forward, &a[OUT],
           2 * epsilon(c), bytes, flops);
    finish(c, d, "attention_backward", shape, OP_ATTENTION_BACKWARD, &host, &cuda, &a[DQKV],
           4 * epsilon(c), 2.5 * bytes, 2.5 * flops);
    free_all(c, a, COUNT);
}

/* One new token (bytes of the whole cache, more of it than caches on the chip hold where timed). */
static void case_attention_cached(struct check *c, const struct dims *d, size_t head_size)
{
    enum { QKV, KEYS, VALUES, OUT, COUNT };
    size_t positions = d->host ? d->N : 8 * d->N, width = d->G * head_size;
    char shape[64];
    struct array a[COUNT] = {
        array_make(c, c->type, (d->H + 2 * d->G) * head_size, 1, d->host),
        array_make(c, c->type, positions * width, 1, d->host),
        array_make(c, c->type, positions * width, 1, d->host),
        array_make(c, c->type, d->H * head_size, 1, d->host),
    };
    struct sl_attention_cached_args cuda = {.rows = 1,
                                            .position_first = positions - 1,
                                            .heads = d->H,
                                            .kv_heads = d->G,
                                            .head_size = head_size,
                                            .scale = 1 / sqrtf((float)head_size),
                                            .qkv = a[QKV].cuda,
                                            .keys = a[KEYS].cuda,
                                            .values = a[VALUES].cuda,
                                            .out = a[OUT].cuda};
    struct sl_attention_cached_args host = cuda;
    host.qkv = a[QKV].host;
    host.keys = a[KEYS].host;
    host.values = a[VALUES].host;
    host.out = a[OUT].host;
    snprintf(shape, sizeof(shape), "%zu keys, %zu/%zu heads of %zu", positions, d->H, d->G,
             head_size);
    finish(c, d, "attention_cached", shape, OP_ATTENTION_CACHED, &host, &cuda, &a[OUT],
           2 * epsilon(c), 2.0 * (double)(positions * width) * size_of(c), 0);
    free_all(c, a, COUNT);
}

static void case_embedding(struct check *c, const struct dims *d)
{
    enum { IDS, TABLE, OUT, DTABLE, COUNT };
    char shape[64];
    snprintf(shape, sizeof(shape), "%zu of %zu rows x %zu", d->N, d->V, d->C);
    struct array a[COUNT] = {
        array_ids(c, d->N, (int32_t)d->V),
        array_make(c, c->type, d->V * d->C, 1, d->host),
        array_make(c, c->type, d->N * d->C, 1, d->host),
        array_make(c, SL_F32, d->V * d->C, 1, d->host),
    };
    struct sl_embedding_args cuda = {.rows = d->N,
                                     .width = d->C,
                                     .row_count = d->V,
                                     .ids = a[IDS].cuda,
                                     .scale = 1,
                                     .table = {a[TABLE].cuda, c->type},
                                     .out = a[OUT].cuda,
                                     .dout = a[OUT].cuda,
                                     .dtable = a[DTABLE].cuda};
    struct sl_embedding_args host = cuda;
    host.ids = a[IDS].host;
    host.table = (struct sl_weight){a[TABLE].host, SL_F32};
    host.out = a[OUT].host;
    host.dout = a[OUT].host;
    host.dtable = a[DTABLE].host;
    double moved = (double)(d->N * d->C);
    finish(c, d, "embedding", shape, OP_EMBEDDING, &host, &cuda, &a[OUT], epsilon(c),
           2 * moved * size_of(c), 0);
    finish(c, d, "embedding_backward", shape, OP_EMBEDDING_BACKWARD, &host, &cuda, &a[DTABLE],
           0x1p-20, moved * (size_of(c) + 8), 0);
    free_all(c, a, COUNT);
}

static void case_cross_entropy(struct check *c, const struct dims *d)
{
    enum { LOGITS, TARGETS, MAX, SUM, TARGET, LOSS, COUNT };
    size_t rows = d->N > 2048 ? 2048 : d->N;
    char shape[64];
    snprintf(shape, sizeof(shape), "%zu x %zu", rows, d->V);
    struct array a[COUNT] = {
        array_make(c, SL_F32, rows * d->V, 8, d->host), array_ids(c, rows, (int32_t)d->V),
        array_make(c, SL_F32, rows, 1, d->host),        array_make(c, SL_F32, rows, 1, d->host),
        array_make(c, SL_F32, rows, 1, d->host),        array_make(c, SL_F32, rows, 1, d->host),
    };
    struct sl_cross_entropy_args cuda = {.rows = rows,
                                         .width = d->V,
                                         .reset = true,
                                         .scale = 1,
                                         .logits = a[LOGITS].cuda,
                                         .targets = a[TARGETS].cuda,
                                         .row_max = a[MAX].cuda,
                                         .row_sum = a[SUM].cuda,
                                         .target_logit = a[TARGET].cuda,
                                         .loss = a[LOSS].cuda};
    struct sl_cross_entropy_args host = cuda;
    host.logits = a[LOGITS].host;
    host.targets = a[TARGETS].host;
    host.row_max = a[MAX].host;
    host.row_sum = a[SUM].host;
    host.target_logit = a[TARGET].host;
    host.loss = a[LOSS].host;
    double moved = (double)(rows * d->V) * 4;
    static const char *const names[] = {"cross_entropy_stats", "cross_entropy_backward",
                                        "cross_entropy_loss"};
    static const enum sl_cross_entropy_kind order[] = {SL_CE_STATS, SL_CE_LOSS, SL_CE_BACKWARD};
    for (int i = 0; i < 3; i++) {
        host.kind = cuda.kind = order[i];
        if (!d->host && order[i] == SL_CE_LOSS)
            run(c->cuda, OP_CROSS_ENTROPY, &cuda);
        else
            finish(c, d, names[order[i]], shape, OP_CROSS_ENTROPY, &host, &cuda,
                   order[i] == SL_CE_STATS  ? &a[SUM]
                   : order[i] == SL_CE_LOSS ? &a[LOSS]
                                            : &a[LOGITS],
                   0x1p-18, order[i] == SL_CE_STATS ? moved : 2 * moved, 0);
    }
    free_all(c, a, COUNT);
}

/* The optimizer's and the rounding's bits are the host's: tests/cudasim proves that, and here the
 * relative error must be 0. */
static void case_update(struct check *c, const struct dims *d)
{
    enum { GRAD, MASTER, M, V, WEIGHT, OUT, COUNT };
    size_t count = d->C * d->F, chunks = (count + SL_GRADIENT_CHUNK - 1) / SL_GRADIENT_CHUNK;
    char shape[64];
    snprintf(shape, sizeof(shape), "%zu", count);
    struct array a[COUNT] = {
        array_make(c, SL_F32, count, 1, d->host), array_make(c, SL_F32, count, 1, d->host),
        array_make(c, SL_F32, count, 1, d->host), array_make(c, SL_F32, count, 0, d->host),
        array_make(c, SL_BF16, count, 1, false),  array_make(c, SL_F32, count, 1, d->host),
    };
    double *squares = calloc(2 * chunks, sizeof(double));
    uint64_t *bad = calloc(2 * chunks, sizeof(uint64_t));
    if (!squares || !bad)
        exit(1);
    struct sl_gradient_finish_args cuda = {count, a[GRAD].cuda, a[OUT].cuda, SL_F32, squares, bad};
    struct sl_gradient_finish_args host = {count,  a[GRAD].host,     a[OUT].host,
                                           SL_F32, squares + chunks, bad + chunks};
    if (!d->host) { /* the usual case: f32 sums to a bf16 gradient */
        cuda.out = a[WEIGHT].cuda;
        cuda.dtype = SL_BF16;
    }
    finish(c, d, "gradient_finish", shape, OP_GRADIENT_FINISH, &host, &cuda, &a[OUT], 0,
           (double)count * 6, 0);
    if (d->host)
        for (size_t i = 0; i < chunks; i++)
            if (squares[i] < squares[chunks + i] || squares[i] > squares[chunks + i]) {
                printf("FAILED   sum of squares %zu: %a, not %a\n", i, squares[i],
                       squares[chunks + i]);
                c->failures++;
            }
    free(squares);
    free(bad);
    struct sl_optim_args step = {.hyper = {.kind = SL_OPTIM_ADAMW,
                                           .lr = 1e-3f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .eps = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .bias_correction = true,
                                           .step = 3},
                                 .count = count,
                                 .grad = a[GRAD].cuda,
                                 .grad_dtype = SL_F32,
                                 .grad_scale = 0.5f,
                                 .master = a[MASTER].cuda,
                                 .weight_dtype = SL_BF16,
                                 .exp_avg = a[M].cuda,
                                 .exp_avg_sq = a[V].cuda};
    struct sl_optim_args step_host = step;
    step_host.grad = a[GRAD].host;
    step_host.master = a[MASTER].host;
    step_host.exp_avg = a[M].host;
    step_host.exp_avg_sq = a[V].host;
    if (!d->host) {
        step.weight = a[WEIGHT].cuda;
        step.grad = a[WEIGHT].cuda; /* bf16, as gradients arrive */
        step.grad_dtype = SL_BF16;
    }
    finish(c, d, "optim (AdamW)", shape, OP_OPTIM, &step_host, &step, &a[MASTER], 0,
           (double)count * 28, 0);
    free_all(c, a, COUNT);
}

static void all_cases(struct check *c, const struct dims *d, const size_t *head_sizes,
                      size_t head_size_count)
{
    case_norm(c, d);
    case_matmul(c, d);
    case_elementwise(c, d);
    for (size_t i = 0; i < head_size_count; i++)
        case_attention(c, d, head_sizes[i]);
    for (size_t i = 0; i < head_size_count; i++)
        case_attention_cached(c, d, head_sizes[i]);
    case_embedding(c, d);
    case_cross_entropy(c, d);
    case_update(c, d);
}

void cases_compare(struct check *c)
{
    static const size_t head_sizes[] = {64, 96, 128, 256};
    struct dims d = {512, 1024, 1536, 8, 2, 128, 256, 5000, true};
    struct dims small = {24, 64, 40, 2, 1, 32, 12, 50, true};
    all_cases(c, c->small ? &small : &d, head_sizes, c->small ? 2 : 4);
}

void cases_measure(struct check *c)
{
    static const size_t head_sizes[] = {64, 128, 256};
    struct dims d = {8192, 4096, 14336, 32, 8, 128, 4096, 32768, false};
    struct dims small = {24, 64, 40, 2, 1, 32, 12, 50, false};
    all_cases(c, c->small ? &small : &d, head_sizes, c->small ? 1 : 3);
}
