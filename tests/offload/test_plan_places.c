// SPDX-License-Identifier: Apache-2.0
/* Every place is that of the plain search, which looks at all that was placed before. */
#include "tests/test.h"

#include <string.h>

#include "offload/plan_places.h"

#define PLACES_MAX 400

static int by_offset(const void *a, const void *b)
{
    uint64_t x = ((const struct sl_place *)a)->offset, y = ((const struct sl_place *)b)->offset;
    return x < y ? -1 : x > y;
}

/* The lowest offset beside those of `placed` (sorted by offset) that live at the same time. */
static uint64_t lowest_fit(const struct sl_place *placed, uint32_t count,
                           const struct sl_place *place)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct sl_place *other = &placed[i];
        uint64_t end = other->offset + other->bytes;
        if (end <= offset || other->last < place->first || other->first > place->last)
            continue;
        if (other->offset >= offset + place->bytes)
            break;
        offset = end;
    }
    return offset;
}

static void compare(struct sl_place *places, uint32_t count, uint32_t times, int round)
{
    struct sl_place placed[PLACES_MAX];
    assert_int_equal(sl_places_find(places, count, times), 0);
    for (uint32_t i = 0; i < count; i++) {
        placed[i] = places[i];
        placed[i].offset = lowest_fit(placed, i, &places[i]);
        if (placed[i].offset != places[i].offset)
            fail_msg("round %d, place %u of %u: %llu, not %llu", round, i, count,
                     (unsigned long long)places[i].offset, (unsigned long long)placed[i].offset);
        qsort(placed, i + 1, sizeof(*placed), by_offset);
    }
}

static int larger_first(const void *a, const void *b)
{
    uint64_t x = ((const struct sl_place *)a)->bytes, y = ((const struct sl_place *)b)->bytes;
    return x > y ? -1 : x < y;
}

/* Lives of all lengths, few sizes or many, in order of size as a plan places them, or in none. */
static void random_lives_lie_where_the_plain_search_puts_them(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(20261203);
    struct sl_place places[PLACES_MAX];
    for (int round = 0; round < 3000; round++) {
        uint32_t count = (uint32_t)test_random_below(&random, round % 10 ? 60 : PLACES_MAX);
        uint32_t times = 1 + (uint32_t)test_random_below(&random, 300);
        uint64_t sizes = 1 + test_random_below(&random, round % 2 ? 4 : 100);
        uint64_t longest = 1 + test_random_below(&random, times);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t first = (uint32_t)test_random_below(&random, times);
            uint64_t length = test_random_below(&random, i % 3 ? longest : 1 + longest / 8);
            places[i] = (struct sl_place){
                .first = first,
                .last = first + (uint32_t)test_random_below(&random, length + 1),
                .bytes = 4096 * test_random_below(&random, sizes + 1),
                .offset = 1,
            };
            if (places[i].last >= times)
                places[i].last = times - 1;
        }
        if (round % 4)
            qsort(places, count, sizeof(*places), larger_first);
        compare(places, count, times, round);
    }
}

static void nothing_and_one(void **state)
{
    (void)state;
    struct sl_place one = {.bytes = 4096, .offset = 7};
    assert_int_equal(sl_places_find(&one, 0, 0), 0);
    assert_int_equal(sl_places_find(&one, 1, 1), 0);
    assert_int_equal(one.offset, 0);
}

/* A pass down and up again: 64 thousand activations, each with a buffer of its own life beside it,
 * lie wall to wall. Whoever looked at all placed ones would look 8 thousand million times. */
static void passes_of_many_micro_batches_lie_wall_to_wall(void **state)
{
    (void)state;
    enum { COUNT = 1 << 16 };
    struct sl_place *places = calloc(2 * COUNT, sizeof(*places));
    assert_non_null(places);
    for (uint32_t i = 0; i < COUNT; i++) {
        places[i] = (struct sl_place){.first = i, .last = 2 * COUNT - 1 - i, .bytes = 8192};
        places[COUNT + i] = (struct sl_place){.first = i, .last = i + 1, .bytes = 4096};
    }
    assert_int_equal(sl_places_find(places, 2 * COUNT, 2 * COUNT), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(places[i].offset, (uint64_t)i * 8192);
        /* Beside activations 0 to i + 1, the two that the buffer meets. */
        uint64_t met = i + 1 < COUNT ? i + 2 : COUNT;
        assert_int_equal(places[COUNT + i].offset, 8192 * met + (i + 1 < COUNT ? 0 : 4096));
    }
    free(places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lives_lie_where_the_plain_search_puts_them),
        cmocka_unit_test(nothing_and_one),
        cmocka_unit_test(passes_of_many_micro_batches_lie_wall_to_wall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
