// SPDX-License-Identifier: Apache-2.0
/* exp, tanh, sigmoid and erf of the host kernels against libm in fp64. What is compiled here is the
 * generic variant; test_host_variants shows that the others give the same bits. */
#include "tests/kernels/host_common.h"

#include "kernels/host/vecmath.h"

static double ulp_of(double value)
{
    int exponent;
    frexp(value, &exponent);
    return ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

typedef vf (*vector_fn)(vf x);
typedef double (*scalar_fn)(double x);

static vf call_exp(vf x)
{
    return vexp(x);
}
static vf call_tanh(vf x)
{
    return vtanh(x);
}
static vf call_sigmoid(vf x)
{
    return vsigmoid(x);
}
static vf call_erf(vf x)
{
    return verf(x);
}
static double sigmoid64(double x)
{
    return 1 / (1 + exp(-x));
}

/* Largest error in units of the last place of the f32 result over [low, high]. */
static double worst_ulp(vector_fn f, scalar_fn want, double low, double high)
{
    double worst = 0;
    for (int i = 0; i < 20000; i++) {
        float x[16], y[16];
        for (int l = 0; l < 16; l++)
            x[l] = (float)(low + (high - low) * ((double)random_value() + 1) / 2);
        vstore(y, f(vload(x)));
        for (int l = 0; l < 16; l++) {
            double exact = want((double)x[l]);
            double error = fabs((double)y[l] - exact) / ulp_of(exact);
            worst = fmax(worst, error);
        }
    }
    return worst;
}

static void check_ulp(const char *name, vector_fn f, scalar_fn want, double low, double high,
                      double limit)
{
    double worst = worst_ulp(f, want, low, high);
    if (!(worst <= limit))
        fail_msg("%s on [%g, %g]: %.2f ulp, limit %.1f", name, low, high, worst, limit);
}

/* exp: one rounding of the polynomial's last step, one of adding 1, the argument's reduction. */
static void functions_are_within_their_ulps(void **state)
{
    (void)state;
    check_ulp("exp", call_exp, exp, -87, 88.7, 2);
    check_ulp("exp", call_exp, exp, -0.01, 0.01, 2);
    check_ulp("exp subnormal", call_exp, exp, -103, -87, 2);
    check_ulp("tanh", call_tanh, tanh, -1e-3, 1e-3, 4);
    check_ulp("tanh", call_tanh, tanh, -1, 1, 4);
    check_ulp("tanh", call_tanh, tanh, -12, 12, 4);
    check_ulp("sigmoid", call_sigmoid, sigmoid64, -80, 80, 4);
    check_ulp("erf", call_erf, erf, -1, 1, 4);
    check_ulp("erf", call_erf, erf, -6, 6, 4);
}

static float one(vector_fn f, float x)
{
    float y[16];
    vstore(y, f(vset(x)));
    for (int l = 1; l < 16; l++)
        assert_memory_equal(y, y + l, sizeof *y);
    return y[0];
}

static void edges_are_exact(void **state)
{
    (void)state;
    assert_true(one(call_exp, 0) == 1);
    assert_true(one(call_exp, -INFINITY) == 0);
    assert_true(one(call_exp, -1000) == 0);
    assert_true(one(call_exp, INFINITY) == INFINITY);
    assert_true(one(call_exp, 100) == INFINITY);
    assert_true(isnan(one(call_exp, NAN)));
    assert_true(one(call_tanh, INFINITY) == 1 && one(call_tanh, -INFINITY) == -1);
    assert_true(one(call_tanh, 0) == 0 && signbit(one(call_tanh, -0.0f)));
    assert_true(isnan(one(call_tanh, NAN)));
    assert_true(one(call_sigmoid, INFINITY) == 1 && one(call_sigmoid, -INFINITY) == 0);
    assert_true(isnan(one(call_sigmoid, NAN)));
    assert_true(one(call_erf, INFINITY) == 1 && one(call_erf, -INFINITY) == -1);
    assert_true(isnan(one(call_erf, NAN)));
}

static void lanes_past_the_end_are_left_alone(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 16; n++) {
        float from[16], to[17];
        for (int l = 0; l < 16; l++)
            from[l] = random_value();
        for (int l = 0; l < 17; l++)
            to[l] = 7;
        vstore_n(to, vload_n(from, n), n);
        for (size_t l = 0; l < 17; l++)
            assert_true(to[l] == (l < n ? from[l] : 7));
        float picked[16];
        vstore(picked, vselect(vfirst(n), vset(1), vset(2)));
        for (size_t l = 0; l < 16; l++)
            assert_true(picked[l] == (l < n ? 1.0f : 2.0f));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_within_their_ulps),
        cmocka_unit_test(edges_are_exact),
        cmocka_unit_test(lanes_past_the_end_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
