// SPDX-License-Identifier: Apache-2.0
/* Matrix products, gradient rounding and the optimizer of the CUDA module against the host device.
 * Gradient and optimizer are bit-equal: a tensor's bits do not depend on where its state lies. */
#include "tests/cudasim/sim.h"

#include "kernels/cpu/optim.h"

static struct sim sims[3];

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

/* ---- matrix products ---- */

struct product {
    size_t rows, inputs, outputs, x_extra, y_extra; /* extra: stride beyond the width */
    bool y_f32, accumulate;
    int bias; /* 0: none, 1: the activation type, 2: f32 */
};

/* Tolerance: |x|, |w|, |y| <= 1, so a sum of k terms is at most k; f32 sums in another order differ
 * by 2^-23 of that, the result's rounding by epsilon. A f32 dy is rounded to the 16-bit type by
 * the module and not by the host: epsilon of each of the k terms. */
static void product_forward(struct sim *sim, const struct product *p)
{
    size_t x_stride = p->inputs + p->x_extra, y_stride = p->outputs + p->y_extra;
    enum sl_dtype result = p->y_f32 ? SL_F32 : sim->type;
    struct tensor x = tensor_random(sim, sim->type, p->rows * x_stride, 1, 0);
    struct tensor w = tensor_random(sim, sim->type, p->outputs * p->inputs, 1, 0);
    struct tensor b = tensor_random(sim, p->bias == 2 ? SL_F32 : sim->type, p->outputs, 1, 0);
    struct tensor y = tensor_random(sim, result, p->rows * y_stride, 1, 0);
    struct sl_matmul_args args = {.kind = SL_MATMUL_FORWARD,
                                  .rows = p->rows,
                                  .inputs = p->inputs,
                                  .outputs = p->outputs,
                                  .x_stride = p->x_extra ? x_stride : 0,
                                  .y_stride = p->y_extra ? y_stride : 0,
                                  .x = x.host,
                                  .y = y.host,
                                  .y_f32 = p->y_f32,
                                  .accumulate = p->accumulate,
                                  .weight = weight_host(&w),
                                  .bias = weight_host(p->bias ? &b : NULL)};
    SIM_OK(sim->host->ops->matmul(sim->host, &args));
    args.x = x.device;
    args.y = y.device;
    args.weight = weight_device(&w);
    args.bias = weight_device(p->bias ? &b : NULL);
    SIM_OK(sim->cuda->ops->matmul(sim->cuda, &args));
    /* a bias of another type is added to the rounded result: one rounding more of values <= k */
    double k = (double)p->inputs, epsilon = p->y_f32 ? 0x1p-24 : sim_epsilon(sim->type);
    double again = p->bias == 2 ? epsilon * (2 + sqrt(k)) * 2 : 0;
    tensor_expect(sim, "y", &y, k * 0x1p-23 + again, 1.01 * epsilon);
    struct tensor *all[] = {&x, &w, &b, &y};
    for (size_t i = 0; i < 4; i++)
        tensor_free(sim, all[i]);
}

static void product_backward(struct sim *sim, const struct product *p)
{
    size_t x_stride = p->inputs + p->x_extra, y_stride = p->outputs + p->y_extra;
    struct tensor x = tensor_random(sim, sim->type, p->rows * x_stride, 1, 0);
    struct tensor dx = tensor_random(sim, sim->type, p->rows * x_stride, 1, 0);
    struct tensor w = tensor_random(sim, sim->type, p->outputs * p->inputs, 1, 0);
    struct tensor dy = tensor_random(sim, p->y_f32 ? SL_F32 : sim->type, p->rows * y_stride, 1, 0);
    struct tensor dw = tensor_random(sim, SL_F32, p->outputs * p->inputs, 1, 0);
    struct tensor db = tensor_random(sim, SL_F32, p->outputs, 1, 0);
    struct sl_matmul_args host = {.kind = SL_MATMUL_BACKWARD_INPUT,
                                  .rows = p->rows,
                                  .inputs = p->inputs,
                                  .outputs = p->outputs,
                                  .x_stride = x_stride,
                                  .y_stride = y_stride,
                                  .x = dx.host,
                                  .y = dy.host,
                                  .y_f32 = p->y_f32,
                                  .accumulate = p->accumulate,
                                  .weight = weight_host(&w)};
    struct sl_matmul_args device = host;
    device.x = dx.device;
    device.y = dy.device;
    device.weight = weight_device(&w);
    SIM_OK(sim->host->ops->matmul(sim->host, &host));
    SIM_OK(sim->cuda->ops->matmul(sim->cuda, &device));
    double epsilon = sim_epsilon(sim->type), k = (double)p->outputs;
    double rounded = p->y_f32 && sim->type != SL_F32 ? epsilon : 0;
    tensor_expect(sim, "dx", &dx, k * (0x1p-23 + rounded), 1.01 * epsilon);

    host.kind = device.kind = SL_MATMUL_BACKWARD_WEIGHT;
    host.x = x.host;
    device.x = x.device;
    host.dweight = dw.host;
    device.dweight = dw.device;
    host.dbias = p->bias ? db.host : NULL;
    device.dbias = p->bias ? db.device : NULL;
    SIM_OK(sim->host->ops->matmul(sim->host, &host));
    SIM_OK(sim->cuda->ops->matmul(sim->cuda, &device));
    k = (double)p->rows;
    tensor_expect(sim, "dw", &dw, (k + 1) * (0x1p-23 + rounded), 0);
    tensor_expect(sim, "db", &db, (k + 1) * 0x1p-23, 0);
    struct tensor *all[] = {&x, &dx, &w, &dy, &dw, &db};
    for (size_t i = 0; i < 6; i++)
        tensor_free(sim, all[i]);
}

static void products_match_host(void **state)
{
    (void)state;
    static const struct product products[] = {
        {1, 8, 8, 0, 0, false, false, 0},      {5, 24, 40, 0, 0, false, false, 1},
        {70, 64, 33, 8, 7, false, true, 1},    {33, 48, 96, 0, 16, true, false, 0},
        {150, 31, 20, 3, 0, false, false, 2},  {300, 16, 72, 0, 0, true, true, 2},
        {17, 128, 257, 16, 0, false, true, 0},
    };
    for (struct sim *sim = sims; sim < sims + 3; sim++)
        for (size_t i = 0; i < sizeof(products) / sizeof(*products); i++) {
            product_forward(sim, &products[i]);
            product_backward(sim, &products[i]);
        }
}

/* dlogits of 300,000 columns: 64 MiB of scratch hold 64 rows of them, so 100 rows are two slices.
 */
static void wide_logits_go_in_slices(void **state)
{
    (void)state;
    static const struct product wide = {100, 1, 300000, 0, 0, true, false, 0};
    product_backward(&sims[SL_BF16], &wide);
}

/* ---- gradients ---- */

/* The bits of a NaN that an operation makes are the processor's choice, so the optimizer's inputs
 * stay finite in f16 too (a step with others is skipped before it gets here). */
static float gradient_value(struct test_random *random, float large)
{
    switch (test_random_below(random, 40)) {
    case 0:
        return 0.0f;
    case 1:
        return sl_f32_from_bits((uint32_t)test_random_u64(random) & 0x807fffffu);
    case 2:
        return test_random_float(random) * large;
    default:
        return test_random_float(random);
    }
}

static void gradient_one(struct sim *sim, enum sl_dtype dtype, size_t count, bool special)
{
    size_t chunks = (count + SL_GRADIENT_CHUNK - 1) / SL_GRADIENT_CHUNK;
    size_t out_bytes = count * sl_dtype_bytes(dtype);
    float *sum = sim_host_alloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        sum[i] = gradient_value(&sim->random, 1e5f); /* beyond f16 */
    if (special)
        for (int i = 0; i < 5; i++)
            sum[test_random_below(&sim->random, count)] =
                i % 2 ? sl_f32_from_bits(0xff812345u) : INFINITY;
    void *out = sim_host_alloc(out_bytes), *device_out = sim_host_alloc(out_bytes);
    double *squares[2];
    uint64_t *bad[2];
    for (int i = 0; i < 2; i++) {
        squares[i] = calloc(chunks, sizeof(double));
        bad[i] = calloc(chunks, sizeof(uint64_t));
        assert_true(squares[i] && bad[i]);
    }
    void *sum_device = sim_upload(sim, sum, count * sizeof(float));
    void *out_device = sim_upload(sim, out, out_bytes);
    struct sl_gradient_finish_args args = {count, sum, out, dtype, squares[0], bad[0]};
    SIM_OK(sim->host->ops->gradient_finish(sim->host, &args));
    struct sl_gradient_finish_args device = {count, sum_device, out_device,
                                             dtype, squares[1], bad[1]};
    SIM_OK(sim->cuda->ops->gradient_finish(sim->cuda, &device));
    sim_download(sim, device_out, out_device, out_bytes);
    assert_memory_equal(out, device_out, out_bytes);
    assert_memory_equal(bad[0], bad[1], chunks * sizeof(uint64_t));
    for (size_t i = 0; i < chunks; i++)
        if (!(isnan(squares[0][i]) && isnan(squares[1][i])))
            assert_memory_equal(&squares[0][i], &squares[1][i], sizeof(double));
    sim->cuda->ops->memory_free(sim->cuda, sum_device, count * sizeof(float));
    sim->cuda->ops->memory_free(sim->cuda, out_device, out_bytes);
    for (int i = 0; i < 2; i++) {
        free(squares[i]);
        free(bad[i]);
    }
    free(sum);
    free(out);
    free(device_out);
}

static void gradients_have_the_hosts_bits(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 15, 16, 17, 4096, 4097, 65536, 65537, 140001};
    for (int dtype = SL_F32; dtype <= SL_F16; dtype++)
        for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
            gradient_one(&sims[SL_BF16], (enum sl_dtype)dtype, counts[i], false);
            gradient_one(&sims[SL_BF16], (enum sl_dtype)dtype, counts[i], true);
        }
}

/* ---- the optimizer ---- */

enum { GRAD, MASTER, LOW, WEIGHT, EXP_AVG, EXP_AVG_SQ, SCALE, SCALE_SQ, ARRAYS };

struct optim_case {
    struct sl_optim_args args;
    size_t bytes[ARRAYS];
    unsigned char *host[ARRAYS], *device[ARRAYS]; /* device: `shift` bytes into an allocation */
    size_t shift;
};

static struct sl_optim_args with_arrays(const struct optim_case *c, unsigned char *const *arrays)
{
    struct sl_optim_args a = c->args;
    bool has_m = sl_optim_has_exp_avg(&a.hyper), has_v = sl_optim_has_exp_avg_sq(&a.hyper);
    a.grad = arrays[GRAD];
    a.master = a.master_kind == SL_MASTER_F32 ? (float *)(void *)arrays[MASTER] : NULL;
    a.low = a.master_kind == SL_MASTER_SPLIT ? (uint16_t *)(void *)arrays[LOW] : NULL;
    a.weight = arrays[WEIGHT];
    a.exp_avg = has_m ? arrays[EXP_AVG] : NULL;
    a.exp_avg_sq = has_v ? arrays[EXP_AVG_SQ] : NULL;
    a.exp_avg_scale = (float *)(void *)arrays[SCALE];
    a.exp_avg_sq_scale = (float *)(void *)arrays[SCALE_SQ];
    return a;
}

/* Plausible contents: what the array's reader can meet. */
static void optim_fill(struct sim *sim, struct optim_case *c)
{
    const struct sl_optim_args *a = &c->args;
    size_t count = a->count, moment = sl_moment_bytes(a->moment_kind);
    size_t blocks = (count + SL_OPTIM_Q8_BLOCK - 1) / SL_OPTIM_Q8_BLOCK;
    const size_t bytes[ARRAYS] = {count * sl_dtype_bytes(a->grad_dtype),
                                  count * 4,
                                  count * 2,
                                  count * 2,
                                  count * moment,
                                  count * moment,
                                  blocks * 4,
                                  blocks * 4};
    for (int i = 0; i < ARRAYS; i++) {
        c->bytes[i] = bytes[i];
        c->host[i] = sim_host_alloc(bytes[i]);
        for (size_t j = 0; j < bytes[i]; j++)
            c->host[i][j] = (unsigned char)test_random_u64(&sim->random);
    }
    for (size_t i = 0; i < count; i++) {
        float master = test_random_float(&sim->random);
        sl_dtype_store(c->host[GRAD], a->grad_dtype, i, gradient_value(&sim->random, 6e4f));
        ((float *)(void *)c->host[MASTER])[i] = master;
        ((uint16_t *)(void *)c->host[WEIGHT])[i] = sl_bf16_from_master(master);
        ((uint16_t *)(void *)c->host[LOW])[i] = (uint16_t)sl_bits_from_f32(master);
        if (a->moment_kind == SL_MOMENT_Q8)
            continue;
        enum sl_dtype dtype = a->moment_kind == SL_MOMENT_F32 ? SL_F32 : SL_BF16;
        sl_dtype_store(c->host[EXP_AVG], dtype, i, test_random_float(&sim->random));
        sl_dtype_store(c->host[EXP_AVG_SQ], dtype, i, fabsf(test_random_float(&sim->random)));
    }
    for (size_t i = 0; i < blocks; i++) { /* scales are powers of two */
        ((float *)(void *)c->host[SCALE])[i] = ldexpf(1, -(int)test_random_below(&sim->random, 20));
        ((float *)(void *)c->host[SCALE_SQ])[i] = i % 3 ? ldexpf(1, -(int)(i % 9)) : 0.0f;
    }
}

static void optim_one(struct sim *sim, struct optim_case *c)
{
    static const char *const names[ARRAYS] = {"grad",    "master",     "low",   "weight",
                                              "exp_avg", "exp_avg_sq", "scale", "scale_sq"};
    void *allocations[ARRAYS];
    optim_fill(sim, c);
    for (int i = 0; i < ARRAYS; i++) {
        unsigned char *shifted = sim_host_alloc(c->bytes[i] + c->shift);
        memset(shifted, 0, c->bytes[i] + c->shift);
        memcpy(shifted + c->shift, c->host[i], c->bytes[i]);
        allocations[i] = sim_upload(sim, shifted, c->bytes[i] + c->shift);
        c->device[i] = (unsigned char *)allocations[i] + c->shift;
        free(shifted);
    }
    for (int step = 0; step < 2; step++) {
        c->args.hyper.step = 5 + (uint64_t)step;
        struct sl_optim_args host = with_arrays(c, c->host), device = with_arrays(c, c->device);
        SIM_OK(sim->host->ops->optim(sim->host, &host));
        SIM_OK(sim->cuda->ops->optim(sim->cuda, &device));
    }
    for (int i = 0; i < ARRAYS; i++) {
        unsigned char *got = sim_host_alloc(c->bytes[i]);
        sim_download(sim, got, c->device[i], c->bytes[i]);
        for (size_t j = 0; j < c->bytes[i]; j++)
            if (got[j] != c->host[i][j])
                fail_msg("optimizer %d, master %d, moments %d, count %zu, shift %zu: byte %zu of "
                         "%s is %02x, the host's %02x",
                         (int)c->args.hyper.kind, (int)c->args.master_kind,
                         (int)c->args.moment_kind, c->args.count, c->shift, j, names[i], got[j],
                         c->host[i][j]);
        free(got);
        free(c->host[i]);
        sim->cuda->ops->memory_free(sim->cuda, allocations[i], c->bytes[i] + c->shift);
    }
}

static void optimizers_have_the_hosts_bits(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 5, 255, 256, 1027};
    struct sim *sim = &sims[SL_BF16];
    for (int kind = SL_OPTIM_ADAMW; kind <= SL_OPTIM_SGD; kind++)
        for (int master = SL_MASTER_F32; master <= SL_MASTER_NONE; master++)
            for (int moment = SL_MOMENT_F32; moment <= SL_MOMENT_Q8; moment++)
                for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
                    uint64_t bits = test_random_u64(&sim->random);
                    struct optim_case c = {
                        .args = {.hyper = {.kind = (enum sl_optim_kind)kind,
                                           .lr = 1e-3f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .eps = 1e-8f,
                                           .weight_decay = bits & 1 ? 0.1f : 0.0f,
                                           .momentum = bits & 2 ? 0.9f : 0.0f,
                                           .nesterov = (bits & 4) != 0,
                                           .bias_correction = (bits & 8) != 0,
                                           .seed = bits},
                                 .master_kind = (enum sl_master_kind)master,
                                 .moment_kind = (enum sl_moment_kind)moment,
                                 .tensor = bits >> 32,
                                 .element_first = (bits >> 20 & 0xfff) * SL_OPTIM_Q8_BLOCK,
                                 .count = counts[i],
                                 .grad_dtype = (enum sl_dtype)(bits >> 8 & 1   ? SL_BF16
                                                               : bits >> 9 & 1 ? SL_F16
                                                                               : SL_F32),
                                 .grad_scale = 0.37f,
                                 .weight_dtype =
                                     master == SL_MASTER_F32 && bits >> 10 & 1 ? SL_F16 : SL_BF16},
                        .shift = bits >> 11 & 1 ? 4 : 0};
                    optim_one(sim, &c);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_host),
        cmocka_unit_test(wide_logits_go_in_slices),
        cmocka_unit_test(gradients_have_the_hosts_bits),
        cmocka_unit_test(optimizers_have_the_hosts_bits),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
