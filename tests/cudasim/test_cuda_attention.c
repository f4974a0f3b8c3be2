// SPDX-License-Identifier: Apache-2.0
/* Attention on the simulated device, both forms, against the definition in fp64.
 *
 * Tolerance, forward: the output is a mean of v (|v| <= 1) under weights that sum to 1. Rounding
 * the weights to the 16-bit type moves it by at most epsilon, the result's own rounding by epsilon
 * more; scores are f32 sums of D products, and their error (D 2^-24 of the largest sum) passes
 * through exp: 2^-14 covers it up to D = 256.
 * Backward: dv sums at most T weights times dout, dq and dk at most T terms ds times k or q. The
 * 16-bit rounding of p, of ds and of the stored out (through delta) are epsilon of each term, so
 * the error of a result is at most a few epsilon times the sum of its terms' magnitudes, which the
 * reference computes beside the sum itself.
 */
#include "tests/cudasim/sim.h"

struct shape {
    size_t batch, length, heads, kv_heads, head_size, window;
    float softcap;
    bool documents;
    enum sl_dtype type;
    bool plain; /* f32 and head sizes that are no multiple of 8 take the plain form: for messages */
};

/* ---- the definition, in fp64 ---- */

struct reference {
    double *out, *lse, *dqkv;
    double *size; /* of the terms that each element of dqkv sums */
};

static size_t qkv_width(const struct shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}

static size_t first_key(const struct shape *s, const int32_t *first, size_t row, size_t i)
{
    size_t begin = s->window && i + 1 > s->window ? i + 1 - s->window : 0;
    size_t document = first ? (size_t)first[row] : 0;
    return begin > document ? begin : document;
}

static double score(const struct shape *s, const float *q, const float *k, double scale,
                    double *slope)
{
    double sum = 0;
    for (size_t d = 0; d < s->head_size; d++)
        sum += (double)q[d] * (double)k[d];
    sum *= scale;
    *slope = 1;
    if (s->softcap == 0)
        return sum;
    double t = tanh(sum / (double)s->softcap);
    *slope = 1 - t * t;
    return (double)s->softcap * t;
}

/* One query of one head: out, lse, and its part of the gradients. */
static void reference_query(const struct shape *s, const struct reference *r, const float *qkv,
                            const float *dout, const int32_t *first, size_t b, size_t h, size_t i,
                            double scale)
{
    size_t width = qkv_width(s), D = s->head_size, T = s->length, row = b * T + i;
    size_t g = h / (s->heads / s->kv_heads), begin = first_key(s, first, row, i);
    size_t q_at = h * D, k_at = (s->heads + g) * D, v_at = (s->heads + s->kv_heads + g) * D;
    const float *q = qkv + row * width + q_at, *grad = dout + (row * s->heads + h) * D;
    double *out = r->out + (row * s->heads + h) * D;
    double *p = calloc(T, sizeof(*p)), *slope = calloc(T, sizeof(*slope)), sum = 0;
    assert_true(p && slope);
    for (size_t j = begin; j <= i; j++) {
        p[j] = score(s, q, qkv + (b * T + j) * width + k_at, scale, &slope[j]);
        sum += exp(p[j]);
    }
    r->lse[(b * s->heads + h) * T + i] = log(sum);
    double delta = 0;
    for (size_t d = 0; d < D; d++) {
        out[d] = 0;
        for (size_t j = begin; j <= i; j++)
            out[d] += exp(p[j]) / sum * (double)qkv[(b * T + j) * width + v_at + d];
        delta += out[d] * (double)grad[d];
    }
    for (size_t j = begin; j <= i; j++) {
        const float *k = qkv + (b * T + j) * width + k_at, *v = qkv + (b * T + j) * width + v_at;
        double weight = exp(p[j]) / sum, dp = 0, dp_size = 0;
        for (size_t d = 0; d < D; d++) {
            dp += (double)grad[d] * (double)v[d];
            dp_size += fabs((double)grad[d]) * (fabs((double)v[d]) + fabs(out[d]));
        }
        double ds = weight * (dp - delta) * slope[j] * scale;
        double ds_size = weight * dp_size * scale;
        for (size_t d = 0; d < D; d++) {
            size_t at_q = row * width + q_at + d, at_k = (b * T + j) * width + k_at + d;
            size_t at_v = (b * T + j) * width + v_at + d;
            r->dqkv[at_q] += ds * (double)k[d];
            r->size[at_q] += ds_size * fabs((double)k[d]);
            r->dqkv[at_k] += ds * (double)q[d];
            r->size[at_k] += ds_size * fabs((double)q[d]);
            r->dqkv[at_v] += weight * (double)grad[d];
            r->size[at_v] += weight * fabs((double)grad[d]);
        }
    }
    free(p);
    free(slope);
}

static struct reference reference_make(const struct shape *s, const float *qkv, const float *dout,
                                       const int32_t *first, double scale)
{
    size_t rows = s->batch * s->length;
    struct reference r = {calloc(rows * s->heads * s->head_size, sizeof(double)),
                          calloc(rows * s->heads, sizeof(double)),
                          calloc(rows * qkv_width(s), sizeof(double)),
                          calloc(rows * qkv_width(s), sizeof(double))};
    assert_true(r.out && r.lse && r.dqkv && r.size);
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->length; i++)
                reference_query(s, &r, qkv, dout, first, b, h, i, scale);
    return r;
}

static void reference_free(struct reference *r)
{
    free(r->out);
    free(r->lse);
    free(r->dqkv);
    free(r->size);
}

/* ---- comparison ---- */

/* |got - want| <= factor * size[i] + absolute, and never NaN. */
static void expect_near(struct sim *sim, const char *what, const struct shape *s,
                        const struct tensor *t, const double *want, const double *size,
                        double factor, double absolute)
{
    float *got = tensor_fetch(sim, t);
    for (size_t i = 0; i < t->count; i++) {
        double allowed = absolute + factor * (size ? size[i] : 1);
        if (!(fabs((double)got[i] - want[i]) <= allowed))
            fail_msg("%s[%zu], T %zu H %zu G %zu D %zu window %zu cap %g %s %s: %.9g, want %.9g, "
                     "difference %.3g, allowed %.3g",
                     what, i, s->length, s->heads, s->kv_heads, s->head_size, s->window,
                     (double)s->softcap, sl_dtype_name(s->type), s->plain ? "plain" : "flash",
                     (double)got[i], want[i], fabs((double)got[i] - want[i]), allowed);
    }
    free(got);
}

/* Documents of random lengths: first[n] is the index where the row's document starts. */
static int32_t *make_documents(struct sim *sim, const struct shape *s)
{
    int32_t *first = calloc(s->batch * s->length, sizeof(*first));
    assert_non_null(first);
    for (size_t b = 0; b < s->batch; b++)
        for (size_t i = 0, start = 0; i < s->length; i++) {
            if (i && test_random_below(&sim->random, 40) == 0)
                start = i;
            first[b * s->length + i] = (int32_t)start;
        }
    return first;
}

static uint64_t run_device(struct sim *sim, const struct sl_attention_backward_args *args,
                           struct tensor *out, struct tensor *lse, struct tensor *dqkv)
{
    SIM_OK(sim->cuda->ops->attention(sim->cuda, &args->forward));
    SIM_OK(sim->cuda->ops->attention_backward(sim->cuda, args));
    return tensor_hash(sim, out) ^ tensor_hash(sim, lse) * 3 ^ tensor_hash(sim, dqkv) * 5;
}

static void attention_one(struct sim *sims, const struct shape *s)
{
    struct sim *sim = &sims[s->type];
    size_t rows = s->batch * s->length, out_count = rows * s->heads * s->head_size;
    float scale = 1.0f / sqrtf((float)s->head_size);
    struct tensor qkv = tensor_random(sim, s->type, rows * qkv_width(s), 1, 0);
    struct tensor dout = tensor_random(sim, s->type, out_count, 1, 0);
    struct tensor out = tensor_empty(sim, s->type, out_count);
    struct tensor dqkv = tensor_empty(sim, s->type, rows * qkv_width(s));
    struct tensor lse = tensor_empty(sim, SL_F32, rows * s->heads);
    struct tensor delta = tensor_empty(sim, SL_F32, rows * s->heads);
    int32_t *first = s->documents ? make_documents(sim, s) : NULL;
    int32_t *first_device = first ? sim_upload(sim, first, rows * sizeof(*first)) : NULL;
    struct sl_attention_backward_args args = {.forward = {.batch_count = s->batch,
                                                          .sequence_length = s->length,
                                                          .heads = s->heads,
                                                          .kv_heads = s->kv_heads,
                                                          .head_size = s->head_size,
                                                          .scale = scale,
                                                          .softcap = s->softcap,
                                                          .window = s->window,
                                                          .first = first_device,
                                                          .qkv = qkv.device,
                                                          .out = out.device,
                                                          .lse = lse.device},
                                              .dout = dout.device,
                                              .dqkv = dqkv.device,
                                              .delta = delta.device};
    uint64_t hash = run_device(sim, &args, &out, &lse, &dqkv);
    for (int order = CUDASIM_THREADS_REVERSE; order <= CUDASIM_THREADS_SHUFFLED; order++) {
        SIM_CALL(cudasim_set_thread_order, (enum cudasim_thread_order)order, 7);
        assert_int_equal(run_device(sim, &args, &out, &lse, &dqkv), hash);
    }
    SIM_CALL(cudasim_set_thread_order, CUDASIM_THREADS_FORWARD, 1);

    struct reference want = reference_make(s, qkv.host, dout.host, first, (double)scale);
    double epsilon = sim_epsilon(s->type);
    expect_near(sim, "out", s, &out, want.out, NULL, 2 * epsilon, 0x1p-14);
    expect_near(sim, "lse", s, &lse, want.lse, NULL, 0x1p-14, 0);
    expect_near(sim, "dqkv", s, &dqkv, want.dqkv, want.size, 4 * epsilon, 0x1p-14);
    reference_free(&want);
    struct tensor *all[] = {&qkv, &dout, &out, &dqkv, &lse, &delta};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        tensor_free(sim, all[i]);
    if (first)
        sim->cuda->ops->memory_free(sim->cuda, first_device, rows * sizeof(*first));
    free(first);
}

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

/* batch, length, heads, kv heads, head size, window, softcap, documents, type, plain. The program
 * of the full suite has more and longer ones. */
static const struct shape shapes[] = {
#ifndef TEST_FULL
    {1, 1, 1, 1, 64, 0, 0, false, SL_BF16, false},
    {1, 65, 2, 1, 64, 0, 0, false, SL_BF16, false},
    {2, 70, 2, 2, 40, 0, 0, true, SL_F16, false},
    {1, 100, 2, 1, 128, 33, 20, false, SL_F16, false},
    {1, 40, 2, 1, 256, 0, 0, false, SL_BF16, false},
    {1, 45, 2, 1, 20, 9, 0, true, SL_BF16, true},
    {1, 70, 4, 2, 48, 0, 30, true, SL_F32, true},
    {1, 33, 1, 1, 256, 0, 0, false, SL_F32, true},
#else
    {1, 129, 4, 2, 64, 0, 0, true, SL_BF16, false},
    {2, 128, 3, 1, 64, 50, 0, true, SL_F16, false},
    {1, 193, 2, 1, 96, 0, 0, false, SL_BF16, false},
    {1, 200, 2, 2, 128, 0, 50, true, SL_BF16, false},
    {1, 130, 8, 2, 128, 64, 0, false, SL_F16, false},
    {1, 97, 2, 1, 192, 0, 0, true, SL_F16, false},
    {1, 131, 2, 1, 256, 40, 30, true, SL_BF16, false},
    {1, 300, 1, 1, 80, 100, 0, true, SL_BF16, false},
    {2, 150, 4, 1, 128, 0, 0, true, SL_F32, true},
    {1, 65, 3, 3, 7, 0, 0, false, SL_BF16, true},
#endif
};

static void attention_matches_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        attention_one(sims, &shapes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_matches_fp64)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
