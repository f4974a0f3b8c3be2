// SPDX-License-Identifier: Apache-2.0
/* The part of cmocka that the kernel tests use, for targets that it is not packaged for: these
 * tests are cross-compiled and run under an emulator. Same names, so the tests are the same files.
 */
#ifndef SLUICE_TESTS_CROSS_CMOCKA_H
#define SLUICE_TESTS_CROSS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*function)(void **state);
};

static jmp_buf cross_end; /* 1: skipped, 2: failed */

#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f                                                                                      \
    }
#define print_message(...) (printf(__VA_ARGS__), (void)fflush(stdout))
#define skip() longjmp(cross_end, 1)
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        longjmp(cross_end, 2);                                                                     \
    } while (0)
#define assert_true(c)                                                                             \
    do {                                                                                           \
        if (!(c))                                                                                  \
            fail_msg("not true: %s", #c);                                                          \
    } while (0)
#define assert_null(p) assert_true((p) == NULL)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)
#define assert_memory_not_equal(a, b, n) assert_true(memcmp(a, b, n) != 0)

static int cross_run(const struct CMUnitTest *tests, size_t count)
{
    static volatile int failed;
    for (volatile size_t i = 0; i < count; i++) {
        void *state = NULL;
        int end = setjmp(cross_end);
        if (end == 0)
            tests[i].function(&state);
        printf("[ %s ] %s\n", end == 2 ? "FAILED" : end == 1 ? "SKIPPED" : "OK", tests[i].name);
        failed += end == 2;
    }
    return failed;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    cross_run(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
