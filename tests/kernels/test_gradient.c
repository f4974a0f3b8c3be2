// SPDX-License-Identifier: Apache-2.0
/* Gradient passes: every variant against scalar, scalar against its written order, bit for bit. */
#include "tests/test.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/gradient.h"
#include "kernels/cpu/isa.h"
#include "offload/device.h"

#define COUNT_MAX SL_GRADIENT_CHUNK
#define MARGIN 64

static const size_t counts[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 1000, 4097};
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

static char current[96];
static float input[COUNT_MAX + MARGIN];
static float expected[COUNT_MAX + MARGIN], actual[COUNT_MAX + MARGIN];

static void on_crash(int signal_number)
{
    (void)!write(2, "\ncrashed in: ", 13);
    (void)!write(2, current, strlen(current));
    (void)!write(2, "\n", 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* Every class of value: zeros, subnormals, NaN with payloads, infinities, ties of both halves. */
static float any_value(struct test_random *random)
{
    uint64_t draw = test_random_u64(random);
    uint32_t bits = (uint32_t)(draw >> 32);
    switch (draw % 16) {
    case 0:
        return sl_f32_from_bits(bits); /* anything */
    case 1:
        return sl_f32_from_bits(bits & 0x807fffffu);
    case 2:
        return sl_f32_from_bits((bits & 0xffff0000u) | 0x8000u); /* bf16 tie */
    case 3:
        return sl_f32_from_bits((bits & 0xbfffe000u) | 0x1000u); /* fp16 tie */
    case 4:
        return ldexpf(test_random_float(random), -(int)(bits % 30)); /* fp16 subnormals too */
    case 5:
        return bits & 1 ? 65504.0f : 65519.996f; /* the edge of fp16 */
    case 6:
        return bits & 1 ? INFINITY : -INFINITY;
    default:
        return test_random_float(random) * 100;
    }
}

static void fill(struct test_random *random, bool finite)
{
    for (size_t i = 0; i < COUNT_MAX + MARGIN; i++) {
        do
            input[i] = any_value(random);
        while (finite && !isfinite(input[i]));
    }
}

/* The order of the additions, as gradient.h states it, element by element. */
static double written_order(const void *x, enum sl_dtype dtype, size_t count)
{
    double lanes[16] = {0};
    for (size_t i = 0; i < count; i++) {
        double value = sl_dtype_load(x, dtype, i);
        lanes[i % 16] = fma(value, value, lanes[i % 16]);
    }
    for (int half = 8; half; half /= 2)
        for (int lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    return lanes[0];
}

static bool same_f64(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

static void scalar_follows_the_written_order(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(0x5eed0010);
    for (int finite = 0; finite < 2; finite++)
        for (int dtype = SL_F32; dtype <= SL_F16; dtype++)
            for (size_t c = 0; c < COUNTS; c++) {
                fill(&random, finite);
                double squares;
                uint64_t nonfinite, expected_nonfinite = 0;
                memset(actual, 0xee, sizeof(actual));
                sl_cpu_isa_kernels(SL_CPU_SCALAR)
                    ->gradient_finish_chunk(input, actual, (enum sl_dtype)dtype, counts[c],
                                            &squares, &nonfinite);
                memset(expected, 0xee, sizeof(expected));
                for (size_t i = 0; i < counts[c]; i++) {
                    sl_dtype_store(expected, (enum sl_dtype)dtype, i, input[i]);
                    expected_nonfinite +=
                        !isfinite(sl_dtype_load(expected, (enum sl_dtype)dtype, i));
                }
                assert_memory_equal(expected, actual, sizeof(actual));
                assert_true(nonfinite == expected_nonfinite);
                assert_true(
                    same_f64(squares, written_order(expected, (enum sl_dtype)dtype, counts[c])));
            }
}

static void check_finish(const struct sl_cpu_kernels *scalar, const struct sl_cpu_kernels *kernels,
                         enum sl_dtype dtype, size_t count, size_t offset, bool in_place)
{
    double squares[3];
    uint64_t nonfinite[3];
    memcpy(expected, input, sizeof(input));
    memcpy(actual, input, sizeof(input));
    const float *from = in_place ? expected : input;
    scalar->gradient_finish_chunk(from + offset, expected + offset, dtype, count, &squares[0],
                                  &nonfinite[0]);
    from = in_place ? actual : input;
    kernels->gradient_finish_chunk(from + offset, actual + offset, dtype, count, &squares[1],
                                   &nonfinite[1]);
    kernels->gradient_measure_chunk(actual + offset, dtype, count, &squares[2], &nonfinite[2]);
    assert_memory_equal(expected, actual, sizeof(actual));
    for (int i = 1; i < 3; i++) {
        assert_true(nonfinite[0] == nonfinite[i]);
        assert_true(same_f64(squares[0], squares[i]));
    }
}

/* NaN sums keep some payload: which one, where both terms are NaN, is not part of the contract. */
static void canonical_nan(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (isnan(x[i]))
            x[i] = NAN;
}

static void check_accumulate(const struct sl_cpu_kernels *scalar,
                             const struct sl_cpu_kernels *kernels, enum sl_dtype dtype,
                             size_t count, size_t offset)
{
    static float x[COUNT_MAX + MARGIN];
    sl_cast_from_f32(x, dtype, input, COUNT_MAX);
    for (size_t i = 0; i < COUNT_MAX + MARGIN; i++)
        expected[i] = actual[i] = input[COUNT_MAX + MARGIN - 1 - i];
    scalar->gradient_accumulate(expected + offset, x, dtype, count);
    kernels->gradient_accumulate(actual + offset, x, dtype, count);
    canonical_nan(expected, COUNT_MAX + MARGIN);
    canonical_nan(actual, COUNT_MAX + MARGIN);
    assert_memory_equal(expected, actual, sizeof(actual));
}

static void check_casts(const struct sl_cpu_kernels *kernels, enum sl_dtype dtype, size_t count,
                        size_t offset)
{
    memset(expected, 0xee, sizeof(expected));
    memset(actual, 0xee, sizeof(actual));
    for (size_t i = 0; i < count; i++)
        sl_dtype_store(expected, dtype, i, input[offset + i]);
    kernels->cast_from_f32(actual, dtype, input + offset, count);
    assert_memory_equal(expected, actual, sizeof(actual));
    /* Any bits of the input are values of a 16-bit type, NaN with payloads among them. */
    memset(expected, 0xee, sizeof(expected));
    memset(actual, 0xee, sizeof(actual));
    for (size_t i = 0; i < count; i++) {
        float value = sl_dtype_load(input, dtype, offset + i);
        memcpy(&expected[i], &value, 4);
    }
    kernels->cast_to_f32(actual, (const char *)input + offset * sl_dtype_bytes(dtype), dtype,
                         count);
    assert_memory_equal(expected, actual, sizeof(actual));
}

static void check_isa(enum sl_cpu_isa isa)
{
    const char *missing = sl_cpu_isa_missing(isa);
    if (missing) {
        print_message("SKIP %s: this processor lacks %s\n", sl_cpu_isa_name(isa), missing);
        skip();
    }
    struct test_random random = test_random_seed(0x5eed0011);
    const struct sl_cpu_kernels *scalar = sl_cpu_isa_kernels(SL_CPU_SCALAR);
    const struct sl_cpu_kernels *kernels = sl_cpu_isa_kernels(isa);
    for (int dtype = SL_F32; dtype <= SL_F16; dtype++)
        for (size_t c = 0; c <= COUNTS; c++) {
            size_t count = c < COUNTS ? counts[c] : COUNT_MAX;
            size_t offset = test_random_below(&random, MARGIN);
            fill(&random, c % 2);
            snprintf(current, sizeof(current), "%s gradient passes %s count %zu",
                     sl_cpu_isa_name(isa), sl_dtype_name((enum sl_dtype)dtype), count);
            check_finish(scalar, kernels, (enum sl_dtype)dtype, count, offset, false);
            if (dtype == SL_F32)
                check_finish(scalar, kernels, SL_F32, count, offset, true);
            check_accumulate(scalar, kernels, (enum sl_dtype)dtype, count, offset);
            check_casts(kernels, (enum sl_dtype)dtype, count, offset);
        }
}

static void scalar_equals_the_one_element_forms(void **state)
{
    (void)state;
    check_isa(SL_CPU_SCALAR);
}

static void neon_equals_scalar(void **state)
{
    (void)state;
    check_isa(SL_CPU_NEON);
}

static void avx2_equals_scalar(void **state)
{
    (void)state;
    check_isa(SL_CPU_AVX2);
}

static void avx512_equals_scalar(void **state)
{
    (void)state;
    check_isa(SL_CPU_AVX512);
}

/* All 65,536 halves to f32, and every f32 around every half: next below, at, above, and the ties.
 */
static void every_half_is_exact_in_every_variant(void **state)
{
    (void)state;
    static uint16_t halves[65536];
    static float around[65536];
    static uint16_t rounded[65536];
    for (uint32_t i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    for (int isa = 0; isa < SL_CPU_ISA_COUNT; isa++) {
        const struct sl_cpu_kernels *kernels = sl_cpu_isa_kernels((enum sl_cpu_isa)isa);
        if (!kernels)
            continue;
        for (int dtype = SL_BF16; dtype <= SL_F16; dtype++) {
            static float wide[65536];
            kernels->cast_to_f32(wide, halves, (enum sl_dtype)dtype, 65536);
            uint32_t tie = dtype == SL_BF16 ? 0x8000u : 0x1000u;
            static const int32_t steps[] = {-1, 0, 1};
            for (int s = 0; s < 6; s++) {
                for (uint32_t i = 0; i < 65536; i++) {
                    float one = sl_dtype_load(halves, (enum sl_dtype)dtype, i);
                    assert_int_equal(sl_bits_from_f32(one), sl_bits_from_f32(wide[i]));
                    uint32_t bits = sl_bits_from_f32(one) + (uint32_t)steps[s % 3];
                    around[i] = sl_f32_from_bits(bits + (s < 3 ? 0 : tie));
                }
                kernels->cast_from_f32(rounded, (enum sl_dtype)dtype, around, 65536);
                for (uint32_t i = 0; i < 65536; i++) {
                    uint16_t one;
                    sl_dtype_store(&one, (enum sl_dtype)dtype, 0, around[i]);
                    assert_int_equal(one, rounded[i]);
                }
            }
        }
    }
}

int main(void)
{
    signal(SIGSEGV, on_crash);
    signal(SIGILL, on_crash);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_follows_the_written_order),
        cmocka_unit_test(scalar_equals_the_one_element_forms),
        cmocka_unit_test(neon_equals_scalar),
        cmocka_unit_test(avx2_equals_scalar),
        cmocka_unit_test(avx512_equals_scalar),
        cmocka_unit_test(every_half_is_exact_in_every_variant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
