// SPDX-License-Identifier: Apache-2.0
/* CUDA kernels against the host device: norms, rotary positions, activations, additions, embedding,
 * cross-entropy. Both sides compute in f32 from the same 16-bit values, so a result differs by its
 * one rounding to the activation type (epsilon, relative) and by f32 rounding on the way: some
 * 2^-22 times the size of the terms, written at each test as `absolute`. */
#include "tests/cudasim/sim.h"

static struct sim sims[3]; /* SL_F32, SL_BF16, SL_F16 */

static int open_all(void **state)
{
    (void)state;
    for (int type = SL_F32; type <= SL_F16; type++)
        sim_open(&sims[type], (enum sl_dtype)type);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int type = SL_F32; type <= SL_F16; type++) {
        sl_device_destroy(sims[type].cuda);
        sl_device_destroy(sims[type].host);
        sl_workers_destroy(sims[type].workers);
    }
    assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
    return 0;
}

#define EACH_SIM(sim) for (struct sim *sim = sims; sim < sims + 3; sim++)

struct norm_shape {
    size_t rows, width, group, extra; /* row_stride = group * width + extra */
};

/* Widths of both kernels (a warp, a block), ragged ones, and per-head norms in a packed buffer. */
static const struct norm_shape norm_shapes[] = {{5, 64, 1, 0},   {3, 30, 1, 0},  {2, 1024, 1, 0},
                                                {2, 1000, 1, 0}, {3, 777, 1, 0}, {12, 64, 4, 128},
                                                {6, 24, 3, 16}};

static void norm_one(struct sim *sim, const struct norm_shape *shape, enum sl_norm_kind kind)
{
    size_t row_stride = shape->group * shape->width + shape->extra;
    size_t count = shape->rows / shape->group * row_stride;
    struct tensor x = tensor_random(sim, sim->type, count, 2, 0.5f), out = tensor_clone(sim, &x);
    struct tensor w = tensor_random(sim, sim->type, shape->width, 0.5f, 1);
    struct tensor b = tensor_random(sim, SL_F32, shape->width, 0.5f, 0);
    bool has_bias = kind == SL_NORM_LAYER;
    struct sl_norm_args args = {.kind = kind,
                                .rows = shape->rows,
                                .width = shape->width,
                                .row_group = shape->group,
                                .row_stride = row_stride,
                                .eps = 1e-5f,
                                .x = out.host, /* in place */
                                .weight = weight_host(&w),
                                .bias = weight_host(has_bias ? &b : NULL),
                                .out = out.host};
    SIM_OK(sim->host->ops->norm(sim->host, &args));
    args.x = args.out = out.device;
    args.weight = weight_device(&w);
    args.bias = weight_device(has_bias ? &b : NULL);
    SIM_OK(sim->cuda->ops->norm(sim->cuda, &args));
    /* values up to 6; a sum over `width` terms in another order */
    double absolute = 6 * 0x1p-22 * sqrt((double)shape->width), epsilon = sim_epsilon(sim->type);
    tensor_expect(sim, "norm", &out, absolute, 1.01 * epsilon);

    struct tensor dout = tensor_random(sim, sim->type, count, 1, 0);
    struct tensor dx = tensor_random(sim, sim->type, count, 1, 0);
    struct tensor dw = tensor_random(sim, SL_F32, shape->width, 1, 0);
    struct tensor db = tensor_random(sim, SL_F32, shape->width, 1, 0);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct sl_norm_backward_args back = {.kind = kind,
                                             .rows = shape->rows,
                                             .width = shape->width,
                                             .row_group = shape->group,
                                             .row_stride = row_stride,
                                             .eps = 1e-5f,
                                             .x = x.host,
                                             .weight = weight_host(&w),
                                             .dout = dout.host,
                                             .dx = dx.host,
                                             .accumulate_dx = accumulate != 0,
                                             .dweight = dw.host,
                                             .dbias = has_bias ? db.host : NULL};
        SIM_OK(sim->host->ops->norm_backward(sim->host, &back));
        back.x = x.device;
        back.weight = weight_device(&w);
        back.dout = dout.device;
        back.dx = dx.device;
        back.dweight = dw.device;
        back.dbias = has_bias ? db.device : NULL;
        SIM_OK(sim->cuda->ops->norm_backward(sim->cuda, &back));
        /* dx of the second pass adds to a dx that was rounded once: two roundings of values <= 8 */
        double twice = accumulate ? 8 * epsilon : 0;
        tensor_expect(sim, "dx", &dx, 4 * absolute + twice, 1.01 * epsilon);
        tensor_expect(sim, "dweight", &dw, 4 * absolute * (double)shape->rows, 0);
        if (has_bias)
            tensor_expect(sim, "dbias", &db, 4 * absolute * (double)shape->rows, 0);
    }
    struct tensor *all[] = {&x, &out, &w, &b, &dout, &dx, &dw, &db};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        tensor_free(sim, all[i]);
}

static void norms_match_host(void **state)
{
    (void)state;
    EACH_SIM(sim)
    for (size_t i = 0; i < sizeof(norm_shapes) / sizeof(*norm_shapes); i++)
        for (int kind = SL_NORM_RMS; kind <= SL_NORM_LAYER; kind++)
            norm_one(sim, &norm_shapes[i], (enum sl_norm_kind)kind);
}

/* Sums of a block's rows in shared memory and, past 96 KiB of them, in scratch. */
static void norm_backward_of_wide_rows(void **state)
{
    (void)state;
    struct norm_shape shape = {3, 26 * 1024, 1, 0};
    norm_one(&sims[SL_BF16], &shape, SL_NORM_RMS);
}

static void rope_one(struct sim *sim, size_t rows, size_t heads, size_t head_size, size_t rotary)
{
    size_t stride = (heads + 2) * head_size, positions_max = 64;
    struct tensor x = tensor_random(sim, sim->type, rows * stride, 1, 0);
    struct tensor table[2];
    int32_t positions[64];
    for (int i = 0; i < 2; i++)
        table[i] = tensor_random(sim, SL_F32, positions_max * rotary / 2, 1, 0);
    for (size_t n = 0; n < rows; n++)
        positions[n] = (int32_t)test_random_below(&sim->random, positions_max);
    int32_t *positions_device = sim_upload(sim, positions, rows * sizeof(int32_t));
    for (int inverse = 0; inverse < 2; inverse++) {
        struct sl_rope_args args = {.rows = rows,
                                    .heads = heads,
                                    .head_size = head_size,
                                    .rotary = rotary,
                                    .row_stride = stride,
                                    .x = x.host,
                                    .positions = positions,
                                    .cos = table[0].host,
                                    .sin = table[1].host,
                                    .inverse = inverse != 0};
        SIM_OK(sim->host->ops->rope(sim->host, &args));
        args.x = x.device;
        args.positions = positions_device;
        args.cos = table[0].device;
        args.sin = table[1].device;
        SIM_OK(sim->cuda->ops->rope(sim->cuda, &args));
        /* products of values <= 2; the second rotation starts from values rounded once more */
        double absolute = 2 * 0x1p-22 + (inverse ? 4 * sim_epsilon(sim->type) : 0);
        tensor_expect(sim, "rope", &x, absolute, 1.01 * sim_epsilon(sim->type));
    }
    sim->cuda->ops->memory_free(sim->cuda, positions_device, rows * sizeof(int32_t));
    tensor_free(sim, &x);
    tensor_free(sim, &table[0]);
    tensor_free(sim, &table[1]);
}

static void rope_matches_host(void **state)
{
    (void)state;
    EACH_SIM(sim)
    {
        rope_one(sim, 5, 3, 64, 64);
        rope_one(sim, 4, 2, 32, 16);
        rope_one(sim, 3, 2, 10, 6);
        rope_one(sim, 2, 1, 128, 96);
    }
}

static void act_one(struct sim *sim, enum sl_act_kind kind, bool gated, size_t rows, size_t width)
{
    size_t in_count = rows * width * (gated ? 2 : 1);
    struct tensor in = tensor_random(sim, sim->type, in_count, 6, 0);
    struct tensor out = tensor_empty(sim, sim->type, rows * width);
    struct tensor dout = tensor_random(sim, sim->type, rows * width, 1, 0);
    struct sl_act_args args = {.kind = kind,
                               .gated = gated,
                               .rows = rows,
                               .width = width,
                               .in = in.host,
                               .out = out.host,
                               .dout = dout.host,
                               .din = in.host};
    struct sl_act_args device = args;
    device.in = device.din = in.device;
    device.out = out.device;
    device.dout = dout.device;
    SIM_OK(sim->host->ops->act(sim->host, &args));
    SIM_OK(sim->cuda->ops->act(sim->cuda, &device));
    /* |act * up| <= 36; exp, tanh and erf of both libraries to 2^-20 */
    tensor_expect(sim, "act", &out, 36 * 0x1p-20, 1.01 * sim_epsilon(sim->type));
    SIM_OK(sim->host->ops->act_backward(sim->host, &args));
    SIM_OK(sim->cuda->ops->act_backward(sim->cuda, &device));
    tensor_expect(sim, "dact", &in, 36 * 0x1p-20, 1.01 * sim_epsilon(sim->type));
    tensor_free(sim, &in);
    tensor_free(sim, &out);
    tensor_free(sim, &dout);
}

static void activations_match_host(void **state)
{
    (void)state;
    EACH_SIM(sim)
    for (int kind = SL_ACT_SILU; kind <= SL_ACT_GELU; kind++)
        for (int gated = 0; gated < 2; gated++) {
            act_one(sim, (enum sl_act_kind)kind, gated != 0, 7, 64);
            act_one(sim, (enum sl_act_kind)kind, gated != 0, 3, 37);
        }
}

static void add_matches_host(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 7, 8, 9, 2048, 2051};
    EACH_SIM(sim)
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        struct tensor a = tensor_random(sim, sim->type, counts[i], 1, 0);
        struct tensor b = tensor_random(sim, sim->type, counts[i], 1, 0);
        struct sl_add_args args = {counts[i], a.host, b.host, a.host};
        SIM_OK(sim->host->ops->add(sim->host, &args));
        struct sl_add_args device = {counts[i], a.device, b.device, a.device};
        SIM_OK(sim->cuda->ops->add(sim->cuda, &device));
        tensor_expect(sim, "add", &a, 0, sim_epsilon(sim->type)); /* one rounding, nothing else */
        tensor_free(sim, &a);
        tensor_free(sim, &b);
    }
}

static void embedding_one(struct sim *sim, size_t width, bool add)
{
    enum { ROWS = 300, VOCABULARY = 40, TILE_FIRST = 8, TILE_ROWS = 20 };
    int32_t ids[ROWS];
    for (size_t n = 0; n < ROWS; n++)
        ids[n] = (int32_t)test_random_below(&sim->random, VOCABULARY);
    int32_t *ids_device = sim_upload(sim, ids, sizeof(ids));
    struct tensor table = tensor_random(sim, sim->type, TILE_ROWS * width, 1, 0);
    struct tensor out = tensor_random(sim, sim->type, ROWS * width, 1, 0);
    struct tensor dtable = tensor_random(sim, SL_F32, TILE_ROWS * width, 1, 0);
    struct sl_embedding_args args = {.rows = ROWS,
                                     .width = width,
                                     .row_first = TILE_FIRST,
                                     .row_count = TILE_ROWS,
                                     .ids = ids,
                                     .scale = 1.375f,
                                     .add = add,
                                     .table = weight_host(&table),
                                     .out = out.host,
                                     .dtable = dtable.host};
    struct sl_embedding_args device = args;
    device.ids = ids_device;
    device.table = weight_device(&table);
    device.out = out.device;
    device.dtable = dtable.device;
    SIM_OK(sim->host->ops->embedding(sim->host, &args));
    SIM_OK(sim->cuda->ops->embedding(sim->cuda, &device));
    tensor_expect(sim, "embedding", &out, 0x1p-22, 1.01 * sim_epsilon(sim->type));
    struct tensor dout = tensor_random(sim, sim->type, ROWS * width, 1, 0);
    args.dout = dout.host;
    device.dout = dout.device;
    SIM_OK(sim->host->ops->embedding_backward(sim->host, &args));
    SIM_OK(sim->cuda->ops->embedding_backward(sim->cuda, &device));
    /* about 10 additions of values <= 1.4 in the same order; fma or not is the host's choice */
    tensor_expect(sim, "dtable", &dtable, 32 * 0x1p-22, 0);
    sim->cuda->ops->memory_free(sim->cuda, ids_device, sizeof(ids));
    tensor_free(sim, &table);
    tensor_free(sim, &out);
    tensor_free(sim, &dtable);
    tensor_free(sim, &dout);
}

static void embedding_matches_host(void **state)
{
    (void)state;
    EACH_SIM(sim)
    for (int add = 0; add < 2; add++) {
        embedding_one(sim, 48, add != 0);
        embedding_one(sim, 33, add != 0);
    }
}

static void loss_one(struct sim *sim, size_t vocabulary, size_t tile, float softcap)
{
    enum { ROWS = 9 };
    int32_t targets[ROWS];
    for (size_t n = 0; n < ROWS; n++)
        targets[n] = n == 4 ? -100 : (int32_t)test_random_below(&sim->random, vocabulary);
    int32_t *targets_device = sim_upload(sim, targets, sizeof(targets));
    struct tensor rows[4]; /* max, sum, target logit, loss */
    for (int i = 0; i < 4; i++)
        rows[i] = tensor_empty(sim, SL_F32, ROWS);
    for (size_t first = 0; first < vocabulary; first += tile) {
        size_t width = vocabulary - first < tile ? vocabulary - first : tile;
        struct tensor logits = tensor_random(sim, SL_F32, ROWS * width, 20, 0);
        struct sl_cross_entropy_args args = {.kind = SL_CE_STATS,
                                             .rows = ROWS,
                                             .width = width,
                                             .column_first = first,
                                             .logits = logits.host,
                                             .reset = first == 0,
                                             .softcap = softcap,
                                             .softcapped = true,
                                             .scale = 0.125f,
                                             .targets = targets,
                                             .row_max = rows[0].host,
                                             .row_sum = rows[1].host,
                                             .target_logit = rows[2].host,
                                             .loss = rows[3].host};
        struct sl_cross_entropy_args device = args;
        device.logits = logits.device;
        device.targets = targets_device;
        device.row_max = rows[0].device;
        device.row_sum = rows[1].device;
        device.target_logit = rows[2].device;
        device.loss = rows[3].device;
        SIM_OK(sim->host->ops->cross_entropy(sim->host, &args));
        SIM_OK(sim->cuda->ops->cross_entropy(sim->cuda, &device));
        tensor_expect(sim, "capped logits", &logits, 20 * 0x1p-21, 0);
        if (first + width >= vocabulary) {
            args.kind = device.kind = SL_CE_LOSS;
            SIM_OK(sim->host->ops->cross_entropy(sim->host, &args));
            SIM_OK(sim->cuda->ops->cross_entropy(sim->cuda, &device));
            tensor_expect(sim, "loss", &rows[3], 40 * 0x1p-21, 0);
            args.kind = device.kind = SL_CE_BACKWARD;
            SIM_OK(sim->host->ops->cross_entropy(sim->host, &args));
            SIM_OK(sim->cuda->ops->cross_entropy(sim->cuda, &device));
            /* probabilities times scale <= 1/8; exp of arguments off by 40 * 2^-21 */
            tensor_expect(sim, "dlogits", &logits, 0.125 * 40 * 0x1p-20, 0);
        }
        tensor_free(sim, &logits);
    }
    for (int i = 0; i < 4; i++)
        tensor_free(sim, &rows[i]);
    sim->cuda->ops->memory_free(sim->cuda, targets_device, sizeof(targets));
}

static void cross_entropy_matches_host(void **state)
{
    (void)state;
    struct sim *sim = &sims[SL_BF16]; /* logits are f32 in every mode */
    loss_one(sim, 1000, 1000, 0);
    loss_one(sim, 3001, 1024, 0);
    loss_one(sim, 517, 100, 30);
    loss_one(sim, 2, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_match_host),           cmocka_unit_test(norm_backward_of_wide_rows),
        cmocka_unit_test(rope_matches_host),          cmocka_unit_test(activations_match_host),
        cmocka_unit_test(add_matches_host),           cmocka_unit_test(embedding_matches_host),
        cmocka_unit_test(cross_entropy_matches_host),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
