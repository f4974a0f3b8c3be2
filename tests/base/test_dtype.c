// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <math.h>

#include "base/dtype.h"

/* Every half value goes to f32 and back unchanged; the compiler's own _Float16 is the reference. */
static void f16_agrees_with_the_compiler(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits;
        _Float16 reference;
        memcpy(&reference, &half, 2);
        float value = sl_f32_from_f16(half);
        if (isnan((float)reference)) {
            assert_true(isnan(value));
            continue;
        }
        assert_true(sl_bits_from_f32(value) == sl_bits_from_f32((float)reference));
        assert_int_equal(sl_f16_from_f32(value), half);
    }
    struct test_random random = test_random_seed(1);
    for (int i = 0; i < 2000000; i++) {
        float value = sl_f32_from_bits((uint32_t)test_random_u64(&random));
        if (i & 1) /* half of them near the range of half */
            value = ldexpf(test_random_float(&random), (int)test_random_below(&random, 44) - 26);
        if (isnan(value))
            continue;
        _Float16 reference = (_Float16)value;
        uint16_t expected;
        memcpy(&expected, &reference, 2);
        assert_int_equal(sl_f16_from_f32(value), expected);
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(sl_bf16_from_f32(sl_f32_from_bits(0x3f808000)), 0x3f80);
    assert_int_equal(sl_bf16_from_f32(sl_f32_from_bits(0x3f818000)), 0x3f82);
    assert_int_equal(sl_bf16_from_f32(sl_f32_from_bits(0x3f808001)), 0x3f81);
    assert_int_equal(sl_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(sl_bf16_from_f32(sl_f32_from_bits(0x7f7fffff)), 0x7f80);
    assert_true(isnan(sl_f32_from_bf16(sl_bf16_from_f32(sl_f32_from_bits(0x7f800001)))));
}

static void split_master_is_lossless(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(2);
    for (int i = 0; i < 4000000; i++) {
        uint32_t bits = (uint32_t)test_random_u64(&random);
        uint16_t weight = sl_bf16_from_master(sl_f32_from_bits(bits));
        float back = sl_master_from_split(weight, (uint16_t)(bits & 0xffff));
        assert_true(sl_bits_from_f32(back) == bits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_agrees_with_the_compiler),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(split_master_is_lossless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
