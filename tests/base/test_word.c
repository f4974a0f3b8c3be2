// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <string.h>

#include "base/word.h"

static void edits_are_counted(void **state)
{
    (void)state;
    assert_int_equal(sl_word_distance("", "", 4), 0);
    assert_int_equal(sl_word_distance("plan", "plan", 4), 0);
    assert_int_equal(sl_word_distance("plan", "pla", 4), 1);
    assert_int_equal(sl_word_distance("plan", "plain", 4), 1);
    assert_int_equal(sl_word_distance("plan", "clan", 4), 1);
    assert_int_equal(sl_word_distance("trian", "train", 4), 1); /* neighbours swapped: one edit */
    assert_int_equal(sl_word_distance("modle", "model", 4), 1);
    assert_int_equal(sl_word_distance("abc", "xyz", 4), 3);
    assert_int_equal(sl_word_distance("", "abc", 4), 3);
}

static void what_is_far_is_one_over_the_limit(void **state)
{
    (void)state;
    char longer[SL_WORD_BYTES + 1];
    memset(longer, 'a', SL_WORD_BYTES);
    longer[SL_WORD_BYTES] = 0;
    assert_int_equal(sl_word_distance("abcdef", "uvwxyz", 2), 3);
    assert_int_equal(sl_word_distance("a", "abcdef", 2), 3);
    assert_int_equal(sl_word_distance(longer, longer, 4), 5);
    longer[SL_WORD_BYTES - 1] = 0;
    assert_int_equal(sl_word_distance(longer, longer, 4), 0);
}

static void the_nearest_word_is_named_or_none(void **state)
{
    (void)state;
    const char *const words[] = {"train", "plan", "simulate", "plans"};
    assert_string_equal(sl_word_nearest("trian", words, 4), "train");
    assert_string_equal(sl_word_nearest("simulat", words, 4), "simulate");
    assert_string_equal(sl_word_nearest("plant", words, 4), "plan"); /* the first of equals */
    assert_null(sl_word_nearest("finetune", words, 4));
    assert_null(sl_word_nearest("plan", words, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edits_are_counted),
        cmocka_unit_test(what_is_far_is_one_over_the_limit),
        cmocka_unit_test(the_nearest_word_is_named_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
