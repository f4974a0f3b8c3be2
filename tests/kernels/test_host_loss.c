// SPDX-License-Identifier: Apache-2.0
/* Cross-entropy over vocabulary tiles: loss against fp64, gradient against finite differences,
 * ignored rows, soft-capping, extreme logits, any tiling and any thread count. */
#include "tests/kernels/host_common.h"

struct problem {
    size_t rows, vocabulary;
    float softcap, scale;
    int32_t *targets;
    float *logits;
    double *logits64;
};

static struct problem problem_make(size_t rows, size_t vocabulary, float softcap, float spread)
{
    struct problem p = {rows, vocabulary, softcap, 0.37f};
    p.logits = random_array(rows * vocabulary);
    p.targets = malloc(rows * sizeof *p.targets);
    for (size_t i = 0; i < rows * vocabulary; i++)
        p.logits[i] *= spread;
    for (size_t i = 0; i < rows; i++)
        p.targets[i] = i % 5 == 3 ? -100 : (int32_t)random_below(vocabulary);
    p.logits64 = widen_array(p.logits, rows * vocabulary);
    return p;
}

static void problem_free(struct problem *p)
{
    free(p->targets);
    free(p->logits);
    free(p->logits64);
}

static double reference_row(const struct problem *p, size_t row)
{
    const double *x = p->logits64 + row * p->vocabulary;
    double sum = 0, target = 0, top = -INFINITY;
    if (p->targets[row] < 0)
        return 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < p->vocabulary; i++) {
            double v = p->softcap > 0 ? (double)p->softcap * tanh(x[i] / (double)p->softcap) : x[i];
            if (pass == 0)
                top = fmax(top, v);
            else
                sum += exp(v - top);
            if ((size_t)p->targets[row] == i)
                target = v;
        }
    return log(sum) + top - target;
}

static double reference_loss(const void *context)
{
    const struct problem *p = context;
    double loss = 0;
    for (size_t row = 0; row < p->rows; row++)
        loss += reference_row(p, row);
    return loss * (double)p->scale;
}

struct result {
    float *loss, *gradient, *row_max, *row_sum, *target_logit;
};

/* Statistics over tiles, then the gradient tile by tile: either from the capped logits of the
 * first pass, or from logits computed again. */
static struct result run(struct sl_device *device, const struct problem *p, size_t tile, bool again)
{
    struct result r = {random_array(p->rows), random_array(p->rows * p->vocabulary),
                       random_array(p->rows), random_array(p->rows), random_array(p->rows)};
    float *buffer = random_array(p->rows * tile);
    struct sl_cross_entropy_args args = {.rows = p->rows,
                                         .logits = buffer,
                                         .softcap = p->softcap,
                                         .scale = p->scale,
                                         .targets = p->targets,
                                         .row_max = r.row_max,
                                         .row_sum = r.row_sum,
                                         .target_logit = r.target_logit,
                                         .loss = r.loss};
    for (int pass = 0; pass < 2; pass++) {
        for (size_t first = 0; first < p->vocabulary; first += tile) {
            args.width = p->vocabulary - first < tile ? p->vocabulary - first : tile;
            args.column_first = first;
            args.reset = first == 0;
            for (size_t row = 0; row < p->rows; row++)
                memcpy(buffer + row * args.width, p->logits + row * p->vocabulary + first,
                       args.width * sizeof *buffer);
            args.kind = SL_CE_STATS;
            if (pass == 1) {
                if (!again && p->softcap > 0) /* what the first pass left: capped values */
                    for (size_t i = 0; i < p->rows * args.width; i++) {
                        double cap = (double)p->softcap;
                        buffer[i] = (float)(cap * tanh((double)buffer[i] / cap));
                    }
                args.kind = SL_CE_BACKWARD;
                args.softcapped = !again && p->softcap > 0;
            }
            assert_int_equal(device->ops->cross_entropy(device, &args), 0);
            for (size_t row = 0; pass == 1 && row < p->rows; row++)
                memcpy(r.gradient + row * p->vocabulary + first, buffer + row * args.width,
                       args.width * sizeof *buffer);
        }
        args.kind = SL_CE_LOSS;
        assert_int_equal(device->ops->cross_entropy(device, &args), 0);
    }
    free(buffer);
    return r;
}

static void result_free(struct result *r)
{
    free(r->loss);
    free(r->gradient);
    free(r->row_max);
    free(r->row_sum);
    free(r->target_logit);
}

static void check(size_t rows, size_t vocabulary, float softcap, float spread)
{
    struct problem p = problem_make(rows, vocabulary, softcap, spread);
    size_t tiles[] = {vocabulary, (vocabulary + 1) / 2, 16, 7};
    double *want = malloc(rows * sizeof *want), tolerance = sum_tolerance(vocabulary);
    double *gradient = finite_difference(reference_loss, &p, p.logits64, rows * vocabulary);
    for (size_t row = 0; row < rows; row++)
        want[row] = reference_row(&p, row);
    for (size_t i = 0; i < 4; i++) {
        size_t tile = tiles[i] < vocabulary ? tiles[i] : vocabulary;
        for (int again = 0; again < 2; again++) {
            struct result a = run(rigs[0].device, &p, tile, again);
            check_close("loss", a.loss, want, rows, tolerance);
            /* exp carries the logits' last place (spread * 2^-24) over */
            check_close("gradient", a.gradient, gradient, rows * vocabulary,
                        tolerance + (double)spread * 0x1p-22 + 1e-9);
            for (size_t row = 0; row < rows; row++)
                for (size_t c = 0; p.targets[row] < 0 && c < vocabulary; c++)
                    assert_true(a.gradient[row * vocabulary + c] == 0);
            for (size_t t = 1; t < THREAD_COUNTS; t++) {
                struct result b = run(rigs[t].device, &p, tile, again);
                check_same_bits("loss", a.loss, b.loss, rows);
                check_same_bits("gradient", a.gradient, b.gradient, rows * vocabulary);
                result_free(&b);
            }
            result_free(&a);
        }
    }
    free(want);
    free(gradient);
    problem_free(&p);
}

static void loss_and_gradient_match_fp64(void **state)
{
    (void)state;
    check(1, 1, 0, 1);
    check(6, 5, 0, 3);
    check(9, 16, 0, 3);
    check(7, 61, 0, 8);
    check(7, 61, 5, 8);
    check(11, 40, 30, 60);
}

static void extreme_logits_stay_finite(void **state)
{
    (void)state;
    struct problem p = problem_make(9, 300, 0, 1e4f);
    struct result r = run(rigs[1].device, &p, 128, true);
    for (size_t i = 0; i < 9; i++) {
        assert_true(isfinite(r.loss[i]));
        double want = reference_row(&p, i);
        check_close("loss", r.loss + i, &want, 1, 8 * 0x1p-24);
    }
    for (size_t i = 0; i < 9 * 300; i++)
        assert_true(isfinite(r.gradient[i]));
    result_free(&r);
    problem_free(&p);
}

/* A NaN or an infinite logit makes the loss of its row, and of no other, not finite. */
static void a_bad_logit_is_seen(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < 2; i++) {
        struct problem p = problem_make(3, 50, 0, 2);
        p.logits[50 + 20] = bad[i];
        struct result r = run(rigs[0].device, &p, 16, true);
        assert_true(isfinite(r.loss[0]) && isfinite(r.loss[2]));
        assert_false(isfinite(r.loss[1]));
        result_free(&r);
        problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient_match_fp64),
        cmocka_unit_test(extreme_logits_stay_finite),
        cmocka_unit_test(a_bad_logit_is_seen),
    };
    return cmocka_run_group_tests(tests, rigs_open, rigs_close);
}
