// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

static void the_first_error_survives(void **state)
{
    (void)state;
    struct sl_error error = {0};
    assert_int_equal(sl_error_set(&error, SL_DOMAIN_IO, -EIO, "first %d", 1), -EIO);
    assert_int_equal(sl_error_set(&error, SL_DOMAIN_INPUT, -EINVAL, "second"), -EINVAL);
    assert_int_equal(error.code, -EIO);
    assert_string_equal(error.message, "first 1");
    sl_error_prefix(&error, "file %s", "x");
    assert_string_equal(error.message, "file x: first 1");
}

static void long_messages_are_cut_not_overrun(void **state)
{
    (void)state;
    static char text[4096];
    memset(text, 'a', sizeof(text) - 1);
    struct sl_error error = {0};
    sl_error_set(&error, SL_DOMAIN_IO, -EIO, "%s", text);
    sl_error_prefix(&error, "%s", "b");
    assert_int_equal(strlen(error.message), SL_ERROR_MESSAGE_BYTES - 1);
    assert_true(strncmp(error.message, "b: aaa", 6) == 0);
    assert_int_equal(sl_error_set(NULL, SL_DOMAIN_IO, -EIO, "no object"), -EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_error_survives),
        cmocka_unit_test(long_messages_are_cut_not_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
