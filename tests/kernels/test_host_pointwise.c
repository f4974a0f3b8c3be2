// SPDX-License-Identifier: Apache-2.0
/* Activations, rotary positions, addition and embedding: against fp64 and finite differences, in
 * place, over tiles, and with equal bits for any thread count. */
#include "tests/kernels/host_common.h"

/* ---- activations ---- */

struct act_problem {
    enum sl_act_kind kind;
    bool gated;
    size_t rows, width, in_width;
    float *in, *dout;
    double *in64;
};

static double activate64(enum sl_act_kind kind, double x)
{
    if (kind == SL_ACT_SILU)
        return x / (1 + exp(-x));
    if (kind == SL_ACT_GELU_TANH)
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return 0.5 * x * erfc(-x / sqrt(2));
}

static double act_reference(const struct act_problem *p, size_t row, size_t i)
{
    const double *in = p->in64 + row * p->in_width;
    return activate64(p->kind, in[i]) * (p->gated ? in[p->width + i] : 1);
}

static double act_loss(const void *context)
{
    const struct act_problem *p = context;
    double loss = 0;
    for (size_t row = 0; row < p->rows; row++)
        for (size_t i = 0; i < p->width; i++)
            loss += act_reference(p, row, i) * (double)p->dout[row * p->width + i];
    return loss;
}

static void act_run(struct sl_device *device, const struct act_problem *p, float *out, float *din,
                    bool in_place)
{
    if (in_place)
        memcpy(din, p->in, p->rows * p->in_width * sizeof *din);
    struct sl_act_args args = {.kind = p->kind,
                               .gated = p->gated,
                               .rows = p->rows,
                               .width = p->width,
                               .in = in_place ? din : p->in,
                               .out = out,
                               .dout = p->dout,
                               .din = din};
    assert_int_equal(device->ops->act(device, &args), 0);
    assert_int_equal(device->ops->act_backward(device, &args), 0);
}

static void act_check(enum sl_act_kind kind, bool gated, size_t rows, size_t width, bool fp64)
{
    struct act_problem p = {kind, gated, rows, width, gated ? 2 * width : width};
    size_t in_count = rows * p.in_width, count = rows * width;
    p.in = random_array(in_count);
    for (size_t i = 0; i < in_count; i++)
        p.in[i] *= 6;
    p.dout = random_array(count);
    p.in64 = widen_array(p.in, in_count);
    float *out = random_array(count), *din = random_array(in_count);
    act_run(rigs[0].device, &p, out, din, false);
    if (fp64) {
        /* a handful of roundings on values up to 36 */
        double *want = malloc(count * sizeof *want);
        for (size_t i = 0; i < count; i++)
            want[i] = act_reference(&p, i / width, i % width);
        check_close("act", out, want, count, 8 * 0x1p-24);
        double *slope = finite_difference(act_loss, &p, p.in64, in_count);
        check_close("act gradient", din, slope, in_count, 16 * 0x1p-24 + 1e-9);
        free(want);
        free(slope);
    }
    float *out2 = random_array(count), *din2 = random_array(in_count);
    for (size_t t = 0; t < THREAD_COUNTS; t++) {
        act_run(rigs[t].device, &p, out2, din2, t % 2);
        check_same_bits("act", out, out2, count);
        check_same_bits("act gradient", din, din2, in_count);
    }
    free(p.in);
    free(p.dout);
    free(p.in64);
    free(out);
    free(din);
    free(out2);
    free(din2);
}

static void activations_match_fp64(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 15, 16, 17, 40};
    for (int kind = SL_ACT_SILU; kind <= SL_ACT_GELU; kind++)
        for (int gated = 0; gated < 2; gated++) {
            for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
                act_check((enum sl_act_kind)kind, gated, 3, widths[i], true);
            act_check((enum sl_act_kind)kind, gated, 300, 300, false);
        }
}

/* Far out an activation is the identity or nothing, and so is its derivative. */
static void activations_are_exact_far_out(void **state)
{
    (void)state;
    for (int kind = SL_ACT_SILU; kind <= SL_ACT_GELU; kind++) {
        float in[4] = {1e4f, -1e4f, 1e9f, -1e9f}, dout[4] = {1, 1, 1, 1}, out[4], din[4];
        struct sl_act_args args = {.kind = (enum sl_act_kind)kind,
                                   .rows = 1,
                                   .width = 4,
                                   .in = in,
                                   .out = out,
                                   .dout = dout,
                                   .din = din};
        assert_int_equal(rigs[0].device->ops->act(rigs[0].device, &args), 0);
        assert_int_equal(rigs[0].device->ops->act_backward(rigs[0].device, &args), 0);
        for (int i = 0; i < 4; i++) {
            assert_true(out[i] == (i % 2 ? 0 : in[i]));
            assert_true(din[i] == (i % 2 ? 0 : 1));
        }
    }
}

/* ---- rotary positions ---- */

static void rotary_positions_rotate_and_return(void **state)
{
    (void)state;
    static const size_t shapes[][4] = {/* rows, heads, head_size, rotary */
                                       {3, 1, 16, 16},
                                       {9, 5, 64, 64},
                                       {400, 6, 80, 32},
                                       {7, 2, 20, 12},
                                       {5, 3, 2, 2}};
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        size_t rows = shapes[n][0], heads = shapes[n][1], size = shapes[n][2];
        size_t rotary = shapes[n][3], half = rotary / 2, stride = (heads + 2) * size;
        float *x = random_array(rows * stride), *cosine = random_array(50 * half);
        float *sine = random_array(50 * half);
        int32_t *positions = malloc(rows * sizeof *positions);
        for (size_t i = 0; i < 50 * half; i++)
            sine[i] = sinf((float)i), cosine[i] = cosf((float)i);
        for (size_t i = 0; i < rows; i++)
            positions[i] = (int32_t)random_below(50);
        struct sl_rope_args args = {rows, heads,     size,   rotary, stride,
                                    NULL, positions, cosine, sine,   false};
        float *first = NULL;
        for (size_t t = 0; t < THREAD_COUNTS; t++) {
            float *y = copy_array(x, rows * stride);
            args.x = y;
            args.inverse = false;
            assert_int_equal(rigs[t].device->ops->rope(rigs[t].device, &args), 0);
            for (size_t i = 0; t == 0 && i < rows * stride; i++) {
                size_t row = i / stride, d = i % stride % size, head = i % stride / size;
                double want = (double)x[i];
                if (head < heads && d < rotary) {
                    size_t at = (size_t)positions[row] * half + d % half;
                    double a = (double)x[i - d + d % half], b = (double)x[i - d + d % half + half];
                    double c = (double)cosine[at], s = (double)sine[at];
                    want = d < half ? a * c - b * s : b * c + a * s;
                }
                check_close("rope", y + i, &want, 1, 4 * 0x1p-24);
            }
            first = first ? first : copy_array(y, rows * stride);
            check_same_bits("rope", first, y, rows * stride);
            args.inverse = true;
            assert_int_equal(rigs[t].device->ops->rope(rigs[t].device, &args), 0);
            double *want = widen_array(x, rows * stride);
            check_close("rope back", y, want, rows * stride, 8 * 0x1p-24);
            free(want);
            free(y);
        }
        free(first);
        free(x);
        free(cosine);
        free(sine);
        free(positions);
    }
}

/* ---- addition ---- */

static void additions_are_exact(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 15, 16, 17, 33, 50001};
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
        for (size_t t = 0; t < THREAD_COUNTS; t++) {
            size_t count = counts[n];
            float *a = random_array(count + 1), *b = random_array(count + 1);
            float *out = random_array(count + 1), end = out[count], b_end = b[count];
            struct sl_add_args args = {count, a, b, out};
            assert_int_equal(rigs[t].device->ops->add(rigs[t].device, &args), 0);
            for (size_t i = 0; i < count; i++)
                assert_true(out[i] == a[i] + b[i]);
            assert_true(out[count] == end);
            args.out = b;
            assert_int_equal(rigs[t].device->ops->add(rigs[t].device, &args), 0);
            check_same_bits("in place", out, b, count);
            assert_true(b[count] == b_end);
            free(a);
            free(b);
            free(out);
        }
}

/* ---- embedding ---- */

struct embedding_problem {
    size_t rows, width, vocabulary;
    enum sl_dtype dtype;
    int32_t *ids;
    float *table_f32, *out, *dout, *dtable;
    void *table;
};

static void embedding_run(struct sl_device *device, const struct embedding_problem *p, bool add,
                          size_t tile_rows, float *out, float *dtable)
{
    for (size_t first = 0; first < p->vocabulary; first += tile_rows) {
        size_t count = p->vocabulary - first < tile_rows ? p->vocabulary - first : tile_rows;
        struct sl_embedding_args args = {
            .rows = p->rows,
            .width = p->width,
            .row_first = first,
            .row_count = count,
            .ids = p->ids,
            .scale = 1.75f,
            .add = add,
            .table = {(const char *)p->table + first * p->width * sl_dtype_bytes(p->dtype),
                      p->dtype},
            .out = out,
            .dout = p->dout,
            .dtable = dtable + first * p->width};
        assert_int_equal(device->ops->embedding(device, &args), 0);
        assert_int_equal(device->ops->embedding_backward(device, &args), 0);
    }
}

static void embedding_check(size_t rows, size_t width, size_t vocabulary, enum sl_dtype dtype,
                            bool add)
{
    struct embedding_problem p = {rows, width, vocabulary, dtype};
    p.ids = malloc(rows * sizeof *p.ids);
    for (size_t i = 0; i < rows; i++)
        p.ids[i] = (int32_t)random_below(vocabulary);
    p.table_f32 = random_array(vocabulary * width);
    p.table = weight_array(p.table_f32, vocabulary * width, dtype, p.table_f32);
    p.out = random_array(rows * width);
    p.dout = random_array(rows * width);
    p.dtable = random_array(vocabulary * width);
    double *want = widen_array(p.dtable, vocabulary * width);
    float *out = copy_array(p.out, rows * width),
          *dtable = copy_array(p.dtable, vocabulary * width);
    embedding_run(rigs[0].device, &p, add, vocabulary, out, dtable);
    for (size_t i = 0; i < rows * width; i++) {
        float w = p.table_f32[(size_t)p.ids[i / width] * width + i % width] * 1.75f;
        assert_true(out[i] == (add ? p.out[i] + w : w));
        want[(size_t)p.ids[i / width] * width + i % width] += 1.75 * (double)p.dout[i];
    }
    check_close("dtable", dtable, want, vocabulary * width, sum_tolerance(rows / vocabulary + 8));
    for (size_t t = 1; t < THREAD_COUNTS; t++) { /* other threads, and the table in tiles */
        float *out2 = copy_array(p.out, rows * width);
        float *dtable2 = copy_array(p.dtable, vocabulary * width);
        embedding_run(rigs[t].device, &p, add, t == 1 ? vocabulary : vocabulary / t + 1, out2,
                      dtable2);
        check_same_bits("embedding", out, out2, rows * width);
        check_same_bits("dtable", dtable, dtable2, vocabulary * width);
        free(out2);
        free(dtable2);
    }
    void *arrays[] = {p.ids, p.table_f32, p.table, p.out, p.dout, p.dtable, want, out, dtable};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

static void embeddings_gather_and_scatter(void **state)
{
    (void)state;
    embedding_check(1, 1, 1, SL_F32, false);
    embedding_check(40, 33, 7, SL_BF16, false);
    embedding_check(40, 16, 100, SL_F16, true);
    embedding_check(700, 200, 256, SL_BF16, false);
    embedding_check(700, 70, 3, SL_F32, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_match_fp64),
        cmocka_unit_test(activations_are_exact_far_out),
        cmocka_unit_test(rotary_positions_rotate_and_return),
        cmocka_unit_test(additions_are_exact),
        cmocka_unit_test(embeddings_gather_and_scatter),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
