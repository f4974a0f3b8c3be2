// SPDX-License-Identifier: Apache-2.0
/* What every unit test includes first: cmocka with the headers it wants, and seeded randomness. */
#ifndef SLUICE_TESTS_TEST_H
#define SLUICE_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* SplitMix64: small, and the same everywhere. The seed comes from SLUICE_TEST_SEED or `fallback`,
 * and is printed so that a failure can be repeated. */
struct test_random {
    uint64_t state;
};

static inline struct test_random test_random_seed(uint64_t fallback)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : fallback;
    printf("seed %llu\n", (unsigned long long)seed);
    return (struct test_random){seed};
}

static inline uint64_t test_random_u64(struct test_random *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t test_random_below(struct test_random *random, uint64_t limit)
{
    return test_random_u64(random) % limit;
}

/* Uniform in [-1, 1). */
static inline float test_random_float(struct test_random *random)
{
    return (float)((double)(test_random_u64(random) >> 11) * 0x1p-52 - 1.0);
}

#endif
