// SPDX-License-Identifier: Apache-2.0
/* Norms against fp64 and finite differences, packed and plain rows, and the order of their sums. */
#include "tests/kernels/host_common.h"

struct problem {
    enum sl_norm_kind kind;
    size_t rows, width, group, stride;
    enum sl_dtype dtype;
    bool accumulate;
    size_t count; /* elements of x with its gaps */
    float *x, *dout, *dx, *weight_f32, *bias_f32, *dweight, *dbias;
    void *weight, *bias;
    double *x64, *weight64, *bias64;
};

static struct problem problem_make(enum sl_norm_kind kind, size_t rows, size_t width, size_t group,
                                   size_t gap, enum sl_dtype dtype, bool accumulate)
{
    struct problem p = {kind, rows, width, group, group * width + gap, dtype, accumulate};
    p.count = (rows + group - 1) / group * p.stride;
    p.x = random_array(p.count);
    p.dout = random_array(p.count);
    p.dx = random_array(p.count);
    p.weight_f32 = random_array(width);
    p.bias_f32 = random_array(width);
    p.weight = weight_array(p.weight_f32, width, dtype, p.weight_f32);
    p.bias = weight_array(p.bias_f32, width, dtype, p.bias_f32);
    p.dweight = random_array(width);
    p.dbias = random_array(width);
    p.x64 = widen_array(p.x, p.count);
    p.weight64 = widen_array(p.weight_f32, width);
    p.bias64 = widen_array(p.bias_f32, width);
    return p;
}

static void problem_free(struct problem *p)
{
    void *arrays[] = {p->x,     p->dout,   p->dx,   p->weight_f32, p->bias_f32, p->dweight,
                      p->dbias, p->weight, p->bias, p->x64,        p->weight64, p->bias64};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static size_t offset(const struct problem *p, size_t row)
{
    return row / p->group * p->stride + row % p->group * p->width;
}

#define EPS 1e-5

static void reference_row(const struct problem *p, size_t row, double *out)
{
    const double *x = p->x64 + offset(p, row);
    double mean = 0, square = 0;
    bool layer = p->kind == SL_NORM_LAYER;
    for (size_t i = 0; layer && i < p->width; i++)
        mean += x[i] / (double)p->width;
    for (size_t i = 0; i < p->width; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)p->width;
    double rstd = 1 / sqrt(square + (double)(float)EPS);
    for (size_t i = 0; i < p->width; i++) {
        double w = p->weight64[i] + (p->kind == SL_NORM_RMS_PLUS_ONE ? 1 : 0);
        out[i] = (x[i] - mean) * rstd * w + (layer ? p->bias64[i] : 0);
    }
}

static double reference_loss(const void *context)
{
    const struct problem *p = context;
    double out[300], loss = 0;
    for (size_t row = 0; row < p->rows; row++) {
        reference_row(p, row, out);
        for (size_t i = 0; i < p->width; i++)
            loss += out[i] * (double)p->dout[offset(p, row) + i];
    }
    return loss;
}

struct result {
    float *out, *dx, *dweight, *dbias;
};

static struct result run(struct sl_device *device, const struct problem *p, bool in_place)
{
    struct result r = {copy_array(p->x, p->count), copy_array(in_place ? p->dout : p->dx, p->count),
                       copy_array(p->dweight, p->width), copy_array(p->dbias, p->width)};
    bool layer = p->kind == SL_NORM_LAYER;
    struct sl_norm_args forward = {.kind = p->kind,
                                   .rows = p->rows,
                                   .width = p->width,
                                   .row_group = p->group,
                                   .row_stride = p->stride,
                                   .eps = (float)EPS,
                                   .x = in_place ? r.out : p->x,
                                   .weight = {p->weight, p->dtype},
                                   .bias = {layer ? p->bias : NULL, p->dtype},
                                   .out = r.out};
    struct sl_norm_backward_args backward = {.kind = p->kind,
                                             .rows = p->rows,
                                             .width = p->width,
                                             .row_group = p->group,
                                             .row_stride = p->stride,
                                             .eps = (float)EPS,
                                             .x = p->x,
                                             .weight = {p->weight, p->dtype},
                                             .dout = in_place ? r.dx : p->dout,
                                             .dx = r.dx,
                                             .accumulate_dx = p->accumulate && !in_place,
                                             .dweight = r.dweight,
                                             .dbias = layer ? r.dbias : NULL};
    assert_int_equal(device->ops->norm(device, &forward), 0);
    assert_int_equal(device->ops->norm_backward(device, &backward), 0);
    return r;
}

static void result_free(struct result *r)
{
    free(r->out);
    free(r->dx);
    free(r->dweight);
    free(r->dbias);
}

static void check_against_fp64(struct problem *p, const struct result *r)
{
    double tolerance = 4 * sum_tolerance(p->width), out[300];
    for (size_t row = 0; row < p->rows; row++) {
        reference_row(p, row, out);
        check_close("out", r->out + offset(p, row), out, p->width, tolerance);
    }
    double *dx = finite_difference(reference_loss, p, p->x64, p->count);
    for (size_t i = 0; p->accumulate && i < p->count; i++)
        dx[i] += (double)p->dx[i];
    for (size_t row = 0; row < p->rows; row++)
        check_close("dx", r->dx + offset(p, row), dx + offset(p, row), p->width, 4 * tolerance);
    double *dweight = finite_difference(reference_loss, p, p->weight64, p->width);
    double *dbias = finite_difference(reference_loss, p, p->bias64, p->width);
    for (size_t i = 0; i < p->width; i++) {
        dweight[i] += (double)p->dweight[i];
        dbias[i] += (double)p->dbias[i];
    }
    check_close("dweight", r->dweight, dweight, p->width, tolerance + sum_tolerance(p->rows));
    check_close("dbias", r->dbias, dbias, p->width, tolerance + sum_tolerance(p->rows));
    free(dx);
    free(dweight);
    free(dbias);
}

static void check_problem(struct problem p, bool against_fp64)
{
    struct result r[THREAD_COUNTS];
    for (size_t t = 0; t < THREAD_COUNTS; t++)
        r[t] = run(rigs[t].device, &p, false);
    if (against_fp64)
        check_against_fp64(&p, &r[0]);
    for (size_t t = 1; t < THREAD_COUNTS; t++) {
        check_same_bits("out", r[0].out, r[t].out, p.count);
        check_same_bits("dx", r[0].dx, r[t].dx, p.count);
        check_same_bits("dweight", r[0].dweight, r[t].dweight, p.width);
        check_same_bits("dbias", r[0].dbias, r[t].dbias, p.width);
    }
    if (!p.accumulate) {
        struct result same = run(rigs[1].device, &p, true);
        check_same_bits("out in place", r[0].out, same.out, p.count);
        check_same_bits("dweight in place", r[0].dweight, same.dweight, p.width);
        for (size_t row = 0; row < p.rows; row++)
            check_same_bits("dx in place", r[0].dx + offset(&p, row), same.dx + offset(&p, row),
                            p.width);
        result_free(&same);
    }
    for (size_t t = 0; t < THREAD_COUNTS; t++)
        result_free(&r[t]);
    problem_free(&p);
}

static void norms_match_fp64(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 5, 16, 31, 48, 67};
    for (int kind = SL_NORM_RMS; kind <= SL_NORM_LAYER; kind++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            enum sl_norm_kind k = (enum sl_norm_kind)kind;
            check_problem(problem_make(k, 7, widths[i], 1, 0, (enum sl_dtype)(i % 3), i % 2), true);
            check_problem(problem_make(k, 12, widths[i], 3, 9, SL_BF16, false), true);
        }
}

static void weight_sums_have_one_order(void **state)
{
    (void)state;
    for (int kind = SL_NORM_RMS; kind <= SL_NORM_LAYER; kind++) {
        enum sl_norm_kind k = (enum sl_norm_kind)kind;
        check_problem(problem_make(k, 1500, 200, 1, 0, SL_BF16, false), false);
        check_problem(problem_make(k, 2500, 64, 5, 128, SL_F32, false), false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_match_fp64),
        cmocka_unit_test(weight_sums_have_one_order),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
