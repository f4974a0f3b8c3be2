// SPDX-License-Identifier: Apache-2.0
/* Matrix products: three kinds, three weight types, strides, bias, accumulation, against fp64; the
 * same bits for any thread count, tile and address of the operands. */
#include "tests/kernels/host_common.h"

#include "kernels/host/matmul.h"

struct problem {
    size_t rows, inputs, outputs, x_stride, y_stride;
    enum sl_dtype dtype;
    bool accumulate, biased;
    float *x, *y, *weight_f32, *bias_f32, *dweight, *dbias;
    void *weight, *bias;
};

static struct problem problem_make(size_t rows, size_t inputs, size_t outputs, enum sl_dtype dtype,
                                   bool variation)
{
    struct problem p = {.rows = rows,
                        .inputs = inputs,
                        .outputs = outputs,
                        .x_stride = inputs + (variation ? 5 : 0),
                        .y_stride = outputs + (variation ? 3 : 0),
                        .dtype = dtype,
                        .accumulate = variation,
                        .biased = variation};
    p.x = random_array(rows * p.x_stride);
    p.y = random_array(rows * p.y_stride);
    p.weight_f32 = random_array(inputs * outputs);
    p.bias_f32 = random_array(outputs);
    p.weight = weight_array(p.weight_f32, inputs * outputs, dtype, p.weight_f32);
    p.bias = weight_array(p.bias_f32, outputs, dtype, p.bias_f32);
    p.dweight = random_array(inputs * outputs);
    p.dbias = random_array(outputs);
    return p;
}

static void problem_free(struct problem *p)
{
    float *arrays[] = {p->x, p->y, p->weight_f32, p->bias_f32, p->dweight, p->dbias};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(p->weight);
    free(p->bias);
}

/* Runs one kind on copies; returns the result array (y, x or dweight) and dbias where wanted. */
static float *run(struct sl_device *device, const struct problem *p, enum sl_matmul_kind kind,
                  float **dbias)
{
    float *x = copy_array(p->x, p->rows * p->x_stride);
    float *y = copy_array(p->y, p->rows * p->y_stride);
    float *dweight = copy_array(p->dweight, p->inputs * p->outputs);
    float *bias_sum = copy_array(p->dbias, p->outputs);
    struct sl_matmul_args args = {.kind = kind,
                                  .rows = p->rows,
                                  .inputs = p->inputs,
                                  .outputs = p->outputs,
                                  .x_stride = p->x_stride == p->inputs ? 0 : p->x_stride,
                                  .y_stride = p->y_stride == p->outputs ? 0 : p->y_stride,
                                  .x = x,
                                  .y = y,
                                  .accumulate = p->accumulate,
                                  .weight = {p->weight, p->dtype},
                                  .bias = {p->biased ? p->bias : NULL, p->dtype},
                                  .dweight = dweight,
                                  .dbias = bias_sum};
    assert_int_equal(device->ops->matmul(device, &args), 0);
    float *keep = kind == SL_MATMUL_FORWARD ? y : kind == SL_MATMUL_BACKWARD_INPUT ? x : dweight;
    if (dbias)
        *dbias = bias_sum;
    else
        free(bias_sum);
    if (keep != x)
        free(x);
    if (keep != y)
        free(y);
    if (keep != dweight)
        free(dweight);
    return keep;
}

static double reference(const struct problem *p, enum sl_matmul_kind kind, size_t i, size_t j)
{
    double sum = 0;
    if (kind == SL_MATMUL_FORWARD) {
        sum = (p->biased ? (double)p->bias_f32[j] : 0) +
              (p->accumulate ? (double)p->y[i * p->y_stride + j] : 0);
        for (size_t k = 0; k < p->inputs; k++)
            sum += (double)p->x[i * p->x_stride + k] * (double)p->weight_f32[j * p->inputs + k];
    } else if (kind == SL_MATMUL_BACKWARD_INPUT) {
        sum = p->accumulate ? (double)p->x[i * p->x_stride + j] : 0;
        for (size_t k = 0; k < p->outputs; k++)
            sum += (double)p->y[i * p->y_stride + k] * (double)p->weight_f32[k * p->inputs + j];
    } else {
        sum = (double)p->dweight[i * p->inputs + j];
        for (size_t k = 0; k < p->rows; k++)
            sum += (double)p->y[k * p->y_stride + i] * (double)p->x[k * p->x_stride + j];
    }
    return sum;
}

static void check_kind(const struct problem *p, enum sl_matmul_kind kind)
{
    bool weight_gradient = kind == SL_MATMUL_BACKWARD_WEIGHT;
    size_t m = weight_gradient ? p->outputs : p->rows;
    size_t n = kind == SL_MATMUL_FORWARD ? p->outputs : p->inputs;
    size_t k = kind == SL_MATMUL_FORWARD ? p->inputs : weight_gradient ? p->rows : p->outputs;
    size_t stride = kind == SL_MATMUL_FORWARD ? p->y_stride : weight_gradient ? n : p->x_stride;
    float *dbias, *got = run(rigs[0].device, p, kind, &dbias);
    size_t step = m * n * k > 4000000 ? m * n * k / 4000000 : 1;
    double tolerance = sum_tolerance(k);
    for (size_t at = 0; at < m * n; at += step) {
        double want = reference(p, kind, at / n, at % n);
        check_close("product", got + at / n * stride + at % n, &want, 1, tolerance * 4);
    }
    const float *before = kind == SL_MATMUL_FORWARD ? p->y : p->x;
    for (size_t i = 0; !weight_gradient && i < m; i++) /* what lies between the rows is kept */
        check_same_bits("gap", got + i * stride + n, before + i * stride + n, stride - n);
    for (size_t j = 0; weight_gradient && j < p->outputs; j++) {
        double want = (double)p->dbias[j];
        for (size_t i = 0; i < p->rows; i++)
            want += (double)p->y[i * p->y_stride + j];
        check_close("dbias", dbias + j, &want, 1, tolerance * 4);
    }
    size_t count = weight_gradient ? m * n : m * stride;
    for (size_t t = 1; t < THREAD_COUNTS; t++) {
        float *other_dbias, *other = run(rigs[t].device, p, kind, &other_dbias);
        check_same_bits("product", got, other, count);
        check_same_bits("dbias", dbias, other_dbias, p->outputs);
        free(other);
        free(other_dbias);
    }
    free(got);
    free(dbias);
}

static void products_match_fp64_for_any_thread_count(void **state)
{
    (void)state;
    static const size_t shapes[][3] = {
        {1, 1, 1},       {1, 64, 48},     {3, 17, 5},     {64, 64, 64},    {100, 33, 259},
        {2, 2100, 70},   {65, 300, 1},    {1, 5, 1030},   {200, 192, 576}, {300, 70, 2050},
        {515, 260, 130}, {1030, 64, 128}, {4, 130, 1031}, {3, 1000, 250},  {5, 130, 1031}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = SL_F32; dtype <= SL_F16; dtype++) {
            struct problem p = problem_make(shapes[i][0], shapes[i][1], shapes[i][2],
                                            (enum sl_dtype)dtype, (i + (size_t)dtype) % 2);
            check_kind(&p, SL_MATMUL_FORWARD);
            check_kind(&p, SL_MATMUL_BACKWARD_INPUT);
            if (dtype == SL_F32)
                check_kind(&p, SL_MATMUL_BACKWARD_WEIGHT);
            problem_free(&p);
        }
}

static void no_rows_leave_everything_alone(void **state)
{
    (void)state;
    struct problem p = problem_make(4, 8, 8, SL_F32, false);
    float *dbias, *got;
    p.rows = 0;
    got = run(rigs[1].device, &p, SL_MATMUL_BACKWARD_WEIGHT, &dbias);
    check_same_bits("dweight", got, p.dweight, 64);
    check_same_bits("dbias", dbias, p.dbias, 8);
    free(got);
    free(dbias);
    problem_free(&p);
}

/* Two micro-batches summed one after the other give the bits of any other moment of doing so: the
 * second call depends on the accumulator's values only. */
static void accumulation_has_one_order(void **state)
{
    (void)state;
    struct problem p = problem_make(130, 96, 200, SL_F32, false);
    float *first = run(rigs[0].device, &p, SL_MATMUL_BACKWARD_WEIGHT, NULL);
    struct problem second = p;
    second.dweight = first;
    float *a = run(rigs[0].device, &second, SL_MATMUL_BACKWARD_WEIGHT, NULL);
    float *b = run(rigs[3].device, &second, SL_MATMUL_BACKWARD_WEIGHT, NULL);
    check_same_bits("dweight", a, b, 96 * 200);
    free(first);
    free(a);
    free(b);
    problem_free(&p);
}

/* A block of the result, computed alone from shifted copies of the operands, has the bits that it
 * has in the whole: tiles and addresses decide nothing. Every kind, more than one chunk of k and
 * more columns than are packed at a time. */
static void blocks_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    enum { M = 61, N = 700, K = 900, SHIFTS = 40 };
    const struct sl_host_kernels *kernels = sl_host_kernels();
    float *scratch = aligned_alloc(64, SL_HOST_GEMM_SCRATCH_BYTES);
    float *a = random_array(M * K), *b = random_array(N * K), *c = random_array(M * N);
    for (int kind = 0; kind < 4; kind++) {
        struct sl_host_gemm whole = {.a_transposed = kind & 1,
                                     .b_transposed = kind & 2,
                                     .accumulate = kind == 1,
                                     .m = M,
                                     .n = N,
                                     .k = K,
                                     .alpha = 0.3f,
                                     .a = a,
                                     .b = {b, SL_F32},
                                     .a_stride = kind & 1 ? M : K,
                                     .b_stride = kind & 2 ? K : N,
                                     .c_stride = N};
        float *want = copy_array(c, M * N);
        whole.c = want;
        kernels->gemm(&whole, scratch);
        for (size_t shift = 0; shift < SHIFTS; shift++) {
            float *a_moved = random_array(M * K + SHIFTS), *got = copy_array(c, M * N);
            memcpy(a_moved + shift, a, M * K * sizeof *a);
            struct sl_host_gemm part = whole;
            size_t row = random_below(M), column = random_below(N);
            part.m = 1 + random_below(M - row);
            part.n = 1 + random_below(N - column);
            part.a = a_moved + shift + row * (kind & 1 ? 1 : K);
            part.b_first = column * (kind & 2 ? K : 1);
            part.c = got + row * N + column;
            kernels->gemm(&part, scratch);
            for (size_t i = 0; i < M; i++)
                for (size_t j = 0; j < N; j++) {
                    bool inside =
                        i >= row && i < row + part.m && j >= column && j < column + part.n;
                    check_same_bits("block", got + i * N + j, (inside ? want : c) + i * N + j, 1);
                }
            free(a_moved);
            free(got);
        }
        free(want);
    }
    free(scratch);
    free(a);
    free(b);
    free(c);
}

/* Tiles cover the result exactly once, whole panels but for the last. */
static void tiles_cover_the_result(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct sl_host_matmul a = {.kind = (enum sl_host_matmul_kind)(round % 3),
                                   .rows = 1 + random_below(5000),
                                   .inputs = 1 + random_below(9000),
                                   .outputs = 1 + random_below(140000),
                                   .weight = {NULL, (enum sl_dtype)random_below(3)}};
        struct sl_host_tiling t;
        sl_host_matmul_tiling(&a, 1 + random_below(64), &t);
        assert_true(t.m_tile > 0 && t.n_tile > 0 && t.n_tile % 32 == 0);
        assert_true((t.m_count - 1) * t.m_tile < t.m && t.m <= t.m_count * t.m_tile);
        assert_true((t.n_count - 1) * t.n_tile < t.n && t.n <= t.n_count * t.n_tile);
    }
}

/* Small products are not cut, large ones give every thread work. */
static void tiles_suit_the_threads(void **state)
{
    (void)state;
    struct sl_host_matmul a = {
        .kind = SL_HOST_MATMUL_FORWARD, .rows = 16, .inputs = 64, .outputs = 64};
    struct sl_host_tiling t;
    sl_host_matmul_tiling(&a, 64, &t);
    assert_int_equal(sl_host_matmul_task_count(&t), 1);
    a.rows = a.inputs = a.outputs = 4096;
    for (size_t threads = 2; threads <= 64; threads *= 2) {
        sl_host_matmul_tiling(&a, threads, &t);
        assert_true(sl_host_matmul_task_count(&t) >= 2 * threads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_fp64_for_any_thread_count),
        cmocka_unit_test(no_rows_leave_everything_alone),
        cmocka_unit_test(accumulation_has_one_order),
        cmocka_unit_test(blocks_have_the_bits_of_the_whole),
        cmocka_unit_test(tiles_cover_the_result),
        cmocka_unit_test(tiles_suit_the_threads),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
