// SPDX-License-Identifier: Apache-2.0
/* 8-bit moments: the codes by themselves, and what they do to a training run. */
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/vector_scalar.h"

#include "kernels/cpu/isa.h"
#include "kernels/cpu/optim.h"
#include "kernels/cpu/optim_q8.h"

static float decode(uint32_t code, float scale, bool is_signed)
{
    float x[16];
    uint8_t codes[16];
    memset(codes, (int)code, sizeof(codes));
    v_store(x, is_signed ? q8_decode_signed(vi_load_s8(codes), v_set1(scale))
                         : q8_decode_unsigned(vi_load_u8(codes), v_set1(scale)));
    return x[0];
}

/* As the first element of a pair, whose exp_avg takes the upper 20 random bits and whose exp_avg_sq
 * takes the lower. */
static uint32_t encode(float x, float scale, uint32_t random, bool is_signed)
{
    uint8_t code[32];
    vf value = v_set1(x);
    struct q8_dither dither = q8_dither_of(vi_set1(random));
    if (is_signed) {
        vi magnitude = q8_encode_signed(value, v_set1(Q8_ENCODE_SIGNED / scale), dither.high);
        vi_store_s8(code, magnitude, magnitude, value, value);
    } else {
        vi unsigned_code = q8_encode_unsigned(value, v_set1(1 / scale), dither.low);
        vi_store_u8(code, unsigned_code, unsigned_code);
    }
    return code[0];
}

static const float scales[] = {0x1p-126f, 0x1p-60f, 0x1p-10f, 1.0f, 0x1p30f, 0x1p127f};

static void values_on_a_code_stay_on_it(void **state)
{
    (void)state;
    static const uint32_t randoms[] = {0, 0xffffffffu, 0x8000ffffu, 0x12345678u, 0xffff0000u};
    for (size_t s = 1; s < 6; s++) /* below 2^-111 the smallest codes are subnormal: rounded */
        for (uint32_t code = 0; code < 256; code++)
            for (size_t r = 0; r < 5; r++) {
                float m = decode(code, scales[s], true), v = decode(code, scales[s], false);
                uint32_t kept = code == 0x80 ? 0 : code; /* the other zero */
                /* The highest codes of 2^127 times the scale are infinite on purpose. */
                if (isfinite(m))
                    assert_int_equal(encode(m, scales[s], randoms[r], true), kept);
                if (isfinite(v))
                    assert_int_equal(encode(v, scales[s], randoms[r], false), code);
            }
}

static void codes_ascend_and_zero_is_zero(void **state)
{
    (void)state;
    assert_true(decode(0, 1, true) == 0 && decode(0x80, 1, true) == 0);
    assert_true(decode(0, 1, false) > 0);
    assert_true(decode(17, 0, true) == 0 && decode(17, 0, false) == 0);
    for (uint32_t code = 1; code < 256; code++)
        assert_true(decode(code, 1, false) > decode(code - 1, 1, false));
    for (uint32_t code = 1; code < 128; code++) {
        assert_true(decode(code, 1, true) > decode(code - 1, 1, true));
        assert_true(decode(code | 0x80u, 1, true) == -decode(code, 1, true));
    }
}

/* The block's largest value rounds to a code, up or down, and no scale is larger than needed. */
static void scales_fit(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(0x5eed0020);
    for (int i = 0; i < 100000; i++) {
        float x = ldexpf(1 + fabsf(test_random_float(&random)),
                         (int)test_random_below(&random, 230) - 115);
        for (int is_signed = 0; is_signed < 2; is_signed++) {
            float scale = q8_scale(sl_bits_from_f32(x));
            double top = decode(is_signed ? 0x7f : 0xff, scale, is_signed);
            double step = 0.125;
            assert_true(x <= top * (1 + 1e-4) && x >= scale * (1 - step));
            double low = decode(encode(x, scale, 0, is_signed), scale, is_signed);
            double high = decode(encode(x, scale, 0xffffffffu, is_signed), scale, is_signed);
            assert_true(low <= x * (1 + 1e-4) && high >= x * (1 - 1e-4));
            assert_true(high - low <= 1.01 * step * scale);
        }
    }
    assert_true(q8_scale(0) == 0 && q8_scale(1) == 0x1p-126f);
    assert_true(q8_scale(0x7f7fffffu) == 0x1p127f);
}

/* The mean over the random bits is the value: within the grain of the upper 16 of the 20. */
static void rounding_is_unbiased(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(0x5eed0021);
    for (int i = 0; i < 40; i++) {
        float x = ldexpf(fabsf(test_random_float(&random)), -(int)test_random_below(&random, 14));
        for (int is_signed = 0; is_signed < 2; is_signed++) {
            double mean = 0;
            for (uint32_t r = 0; r < 65536; r++)
                mean +=
                    decode(encode(x, 1, is_signed ? r << 16 : r << 4, is_signed), 1, is_signed) /
                    65536;
            double floor = is_signed ? 0 : decode(0, 1, false);
            double expected = x > floor ? x : floor;
            assert_true(fabs(mean - expected) <= 4 * 0x1p-17 * (expected + 0x1p-15));
        }
    }
}

/* ---- training ---- */

#define PARAMS 512

struct run {
    float master[PARAMS], grad[PARAMS];
    unsigned char m[4 * PARAMS], v[4 * PARAMS];
    float m_scale[PARAMS / SL_OPTIM_Q8_BLOCK], v_scale[PARAMS / SL_OPTIM_Q8_BLOCK];
};

static void train_step(struct run *run, enum sl_moment_kind moment, uint64_t step, float lr)
{
    struct sl_optim_args args = {.hyper = {.kind = SL_OPTIM_ADAMW,
                                           .lr = lr,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.999f,
                                           .eps = 1e-8f,
                                           .bias_correction = true,
                                           .step = step,
                                           .seed = 11},
                                 .moment_kind = moment,
                                 .count = PARAMS,
                                 .grad = run->grad,
                                 .grad_scale = 1,
                                 .master = run->master,
                                 .exp_avg = run->m,
                                 .exp_avg_sq = run->v,
                                 .exp_avg_scale = run->m_scale,
                                 .exp_avg_sq_scale = run->v_scale};
    sl_optim_step(&args);
}

/* A quadratic of condition number 1e4 with noisy gradients; curvatures are mixed within blocks. */
static double train(enum sl_moment_kind moment, uint64_t seed)
{
    static struct run run;
    struct test_random random = {seed};
    memset(&run, 0, sizeof(run));
    double curvature[PARAMS];
    for (size_t i = 0; i < PARAMS; i++) {
        curvature[i] = pow(10, -4 * fabs(test_random_float(&random)));
        run.master[i] = test_random_float(&random);
    }
    for (uint64_t step = 1; step <= 3000; step++) {
        for (size_t i = 0; i < PARAMS; i++)
            run.grad[i] = (float)curvature[i] * (run.master[i] + 0.3f * test_random_float(&random));
        train_step(&run, moment, step, 2e-3f * (float)(3000 - step) / 3000);
    }
    double loss = 0;
    for (size_t i = 0; i < PARAMS; i++)
        loss += curvature[i] * run.master[i] * run.master[i] / 2;
    return loss;
}

static void training_reaches_the_loss_of_full_moments(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        double full = train(SL_MOMENT_F32, seed), half = train(SL_MOMENT_BF16, seed);
        double q8 = train(SL_MOMENT_Q8, seed);
        print_message("loss after 3,000 steps: f32 %.3e, bf16 %.3e, 8-bit %.3e\n", full, half, q8);
        assert_true(q8 < full * 1.1 && half < full * 1.1);
    }
}

/* A second moment near its stationary value moves by less than a code a step: it must follow. */
static void second_moments_follow_a_change_of_scale(void **state)
{
    (void)state;
    static struct run run;
    struct test_random random = test_random_seed(0x5eed0022);
    memset(&run, 0, sizeof(run));
    double mean[2] = {0, 0};
    for (uint64_t step = 1; step <= 12000; step++) {
        float size = step <= 6000 ? 1.0f : 0.25f;
        for (size_t i = 0; i < PARAMS; i++)
            run.grad[i] = size * test_random_float(&random);
        train_step(&run, SL_MOMENT_Q8, step, 0);
        for (size_t i = 0; step % 6000 == 0 && i < PARAMS; i++)
            mean[step / 6000 - 1] +=
                decode(run.v[i], run.v_scale[i / SL_OPTIM_Q8_BLOCK], false) / PARAMS;
    }
    /* The mean square of a uniform value is a third. */
    assert_true(fabs(mean[0] * 3 - 1) < 0.1);
    assert_true(fabs(mean[1] * 3 * 16 - 1) < 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_on_a_code_stay_on_it),
        cmocka_unit_test(codes_ascend_and_zero_is_zero),
        cmocka_unit_test(scales_fit),
        cmocka_unit_test(rounding_is_unbiased),
        cmocka_unit_test(training_reaches_the_loss_of_full_moments),
        cmocka_unit_test(second_moments_follow_a_change_of_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
