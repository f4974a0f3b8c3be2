// SPDX-License-Identifier: Apache-2.0
/* Attention against fp64, its gradient against finite differences of that, masks of all kinds, and
 * bits that do not depend on the thread count. */
#include "tests/kernels/host_common.h"

struct shape {
    size_t batch, length, heads, kv_heads, size, window;
    float softcap;
    bool documents;
};

struct problem {
    struct shape s;
    float scale;
    float *qkv, *dout;
    int32_t *first;
    double *qkv64;
};

static size_t row_width(const struct shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->size;
}

static struct problem problem_make(struct shape s)
{
    struct problem p = {.s = s, .scale = 1 / sqrtf((float)s.size)};
    size_t rows = s.batch * s.length;
    p.qkv = random_array(rows * row_width(&s));
    p.dout = random_array(rows * s.heads * s.size);
    p.qkv64 = widen_array(p.qkv, rows * row_width(&s));
    if (s.documents) {
        p.first = malloc(rows * sizeof(int32_t));
        for (size_t b = 0; b < s.batch; b++) {
            int32_t first = 0;
            for (size_t i = 0; i < s.length; i++) {
                if (i > 0 && random_below(9) == 0)
                    first = (int32_t)i;
                p.first[b * s.length + i] = first;
            }
        }
    }
    return p;
}

static void problem_free(struct problem *p)
{
    free(p->qkv);
    free(p->dout);
    free(p->first);
    free(p->qkv64);
}

static void reference_row(const struct problem *p, size_t b, size_t h, size_t i, double *out,
                          double *lse)
{
    const struct shape *s = &p->s;
    size_t width = row_width(s), g = h / (s->heads / s->kv_heads), n = b * s->length + i;
    size_t start = s->window && i + 1 > s->window ? i + 1 - s->window : 0;
    if (p->first && (size_t)p->first[n] > start)
        start = (size_t)p->first[n];
    const double *q = p->qkv64 + n * width + h * s->size;
    double sum = 0, scores[2048];
    memset(out, 0, s->size * sizeof *out);
    for (size_t j = start; j <= i; j++) {
        const double *k = p->qkv64 + (b * s->length + j) * width + (s->heads + g) * s->size;
        double score = 0;
        for (size_t d = 0; d < s->size; d++)
            score += q[d] * k[d];
        score *= (double)p->scale;
        if (s->softcap > 0)
            score = (double)s->softcap * tanh(score / (double)s->softcap);
        scores[j] = exp(score);
        sum += scores[j];
    }
    for (size_t j = start; j <= i; j++) {
        const double *v =
            p->qkv64 + (b * s->length + j) * width + (s->heads + s->kv_heads + g) * s->size;
        for (size_t d = 0; d < s->size; d++)
            out[d] += scores[j] / sum * v[d];
    }
    if (lse)
        *lse = log(sum);
}

static double reference_loss(const void *context)
{
    const struct problem *p = context;
    const struct shape *s = &p->s;
    double loss = 0, out[256];
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->length; i++) {
                reference_row(p, b, h, i, out, NULL);
                const float *dout = p->dout + ((b * s->length + i) * s->heads + h) * s->size;
                for (size_t d = 0; d < s->size; d++)
                    loss += out[d] * (double)dout[d];
            }
    return loss;
}

struct result {
    float *out, *lse, *dqkv, *delta;
};

static struct result run(struct sl_device *device, const struct problem *p)
{
    const struct shape *s = &p->s;
    size_t rows = s->batch * s->length;
    struct result r = {random_array(rows * s->heads * s->size), random_array(rows * s->heads),
                       random_array(rows * row_width(s)), random_array(rows * s->heads)};
    struct sl_attention_backward_args args = {.forward = {.batch_count = s->batch,
                                                          .sequence_length = s->length,
                                                          .heads = s->heads,
                                                          .kv_heads = s->kv_heads,
                                                          .head_size = s->size,
                                                          .scale = p->scale,
                                                          .softcap = s->softcap,
                                                          .window = s->window,
                                                          .first = p->first,
                                                          .qkv = p->qkv,
                                                          .out = r.out,
                                                          .lse = r.lse},
                                              .dout = p->dout,
                                              .dqkv = r.dqkv,
                                              .delta = r.delta};
    assert_int_equal(device->ops->attention(device, &args.forward), 0);
    assert_int_equal(device->ops->attention_backward(device, &args), 0);
    return r;
}

static void result_free(struct result *r)
{
    free(r->out);
    free(r->lse);
    free(r->dqkv);
    free(r->delta);
}

/* A row's error: a dot of `size` products, exp of it, and a weighted mean of up to `length` values;
 * exp carries the score's absolute error over, scores are below 4 here. */
static double forward_tolerance(const struct shape *s)
{
    return 4 * sum_tolerance(s->size) + sum_tolerance(s->length);
}

static void check_forward(const struct problem *p, const struct result *r)
{
    const struct shape *s = &p->s;
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->length; i++) {
                double out[256], lse;
                reference_row(p, b, h, i, out, &lse);
                size_t n = b * s->length + i;
                check_close("out", r->out + (n * s->heads + h) * s->size, out, s->size,
                            forward_tolerance(s));
                check_close("lse", r->lse + (b * s->heads + h) * s->length + i, &lse, 1,
                            forward_tolerance(s));
            }
}

static void check_shape(struct shape s, bool gradient)
{
    struct problem p = problem_make(s);
    struct result r[THREAD_COUNTS];
    size_t rows = s.batch * s.length;
    for (size_t t = 0; t < THREAD_COUNTS; t++)
        r[t] = run(rigs[t].device, &p);
    check_forward(&p, &r[0]);
    if (gradient) {
        double *want = finite_difference(reference_loss, &p, p.qkv64, rows * row_width(&s));
        check_close("dqkv", r[0].dqkv, want, rows * row_width(&s), 8 * forward_tolerance(&s));
        free(want);
    }
    for (size_t t = 1; t < THREAD_COUNTS; t++) {
        check_same_bits("out", r[0].out, r[t].out, rows * s.heads * s.size);
        check_same_bits("lse", r[0].lse, r[t].lse, rows * s.heads);
        check_same_bits("dqkv", r[0].dqkv, r[t].dqkv, rows * row_width(&s));
    }
    for (size_t t = 0; t < THREAD_COUNTS; t++)
        result_free(&r[t]);
    problem_free(&p);
}

static void gradient_matches_finite_differences(void **state)
{
    (void)state;
    check_shape((struct shape){1, 1, 1, 1, 16, 0, 0, false}, true);
    check_shape((struct shape){2, 5, 2, 1, 16, 0, 0, false}, true);
    check_shape((struct shape){1, 37, 4, 2, 16, 0, 0, false}, true);
    check_shape((struct shape){1, 70, 1, 1, 8, 0, 0, false}, true); /* two query blocks */
    check_shape((struct shape){1, 40, 2, 2, 20, 7, 0, false}, true);
    check_shape((struct shape){2, 33, 3, 1, 16, 0, 0, true}, true);
    check_shape((struct shape){1, 33, 2, 1, 16, 0, 1.5f, false}, true);
    check_shape((struct shape){1, 67, 2, 1, 12, 19, 2.0f, true}, true);
}

static void long_sequences_and_head_sizes(void **state)
{
    (void)state;
    check_shape((struct shape){1, 600, 2, 1, 64, 0, 0, false}, false); /* two key chunks */
    check_shape((struct shape){1, 650, 1, 1, 32, 100, 0, true}, false);
    check_shape((struct shape){1, 1100, 1, 1, 16, 530, 30.0f, false}, false);
    check_shape((struct shape){2, 129, 2, 2, 256, 0, 0, false}, false);
    check_shape((struct shape){1, 65, 4, 4, 96, 0, 0, false}, false);
    check_shape((struct shape){1, 64, 2, 1, 128, 1, 0, false}, false);
}

/* What a sequence computes does not depend on the batch that it is in. */
static void batch_does_not_change_a_sequence(void **state)
{
    (void)state;
    struct shape s = {3, 90, 4, 2, 32, 0, 0, false};
    struct problem p = problem_make(s);
    struct result all = run(rigs[1].device, &p);
    struct problem one = p;
    size_t qkv = s.length * row_width(&s), out = s.length * s.heads * s.size;
    one.s.batch = 1;
    one.qkv += 2 * qkv;
    one.dout += 2 * out;
    struct result last = run(rigs[1].device, &one);
    check_same_bits("out", all.out + 2 * out, last.out, out);
    check_same_bits("dqkv", all.dqkv + 2 * qkv, last.dqkv, qkv);
    result_free(&all);
    result_free(&last);
    problem_free(&p);
}

static void large_scores_stay_finite(void **state)
{
    (void)state;
    struct problem p = problem_make((struct shape){1, 20, 1, 1, 16, 0, 0, false});
    p.scale = 1000;
    struct result r = run(rigs[0].device, &p);
    for (size_t i = 0; i < 20 * 16; i++)
        assert_true(isfinite(r.out[i]));
    for (size_t i = 0; i < 20 * 48; i++)
        assert_true(isfinite(r.dqkv[i]));
    result_free(&r);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_matches_finite_differences),
        cmocka_unit_test(long_sequences_and_head_sizes),
        cmocka_unit_test(batch_does_not_change_a_sequence),
        cmocka_unit_test(large_scores_stay_finite),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
