// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>

#include "base/size.h"

static void overflow_is_reported(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_false(sl_size_add(UINT64_MAX, 1, &out));
    assert_false(sl_size_mul(UINT64_MAX / 2, 3, &out));
    assert_int_equal(out, 7);
    assert_true(sl_size_mul(UINT64_MAX / 3, 3, &out));
    assert_true(out == UINT64_MAX);
}

static void sizes_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"4GiB", 4ull << 30},
                {"512M", 512000000},
                {"1.5GB", 1500000000},
                {"3 KiB", 3072},
                {"1Mib", 1 << 20},
                {"2T", 2000000000000}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        uint64_t bytes = 1;
        assert_int_equal(sl_size_parse(good[i].text, &bytes), 0);
        assert_true(bytes == good[i].bytes);
    }
    static const char *const bad[] = {"", "-1", "x", "4Q", "4GiBx", "inf", "nan", "GiB"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes;
        assert_int_equal(sl_size_parse(bad[i], &bytes), -EINVAL);
    }
    uint64_t bytes;
    assert_int_equal(sl_size_parse("1e30", &bytes), -ERANGE);
}

static void sizes_format(void **state)
{
    (void)state;
    char buffer[SL_SIZE_TEXT_BYTES];
    assert_string_equal(sl_size_format(812, buffer), "812 B");
    assert_string_equal(sl_size_format(3ull << 30, buffer), "3.00 GiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflow_is_reported),
        cmocka_unit_test(sizes_parse),
        cmocka_unit_test(sizes_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
