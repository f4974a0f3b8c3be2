// SPDX-License-Identifier: Apache-2.0
/* Random operations over random extents agree with a model in memory, through every backend.
 * SLUICE_TEST_OPERATIONS sets how many (the full suite: 100,000 each). */
#include "tests/test.h"

#include "nvme/faults.h"
#include "tests/nvme/swap_model.h"

static uint64_t operations(void)
{
    const char *text = getenv("SLUICE_TEST_OPERATIONS");
    return text ? strtoull(text, NULL, 0) : 1500;
}

static void run(struct sl_swap_options options, uint64_t seed)
{
    struct test_random random = test_random_seed(seed);
    options.bytes_total = (uint64_t)8 << 20;
    if (!options.block_bytes)
        options.block_bytes = 32 << 10; /* requests have several blocks, whole and ragged */
    struct model model;
    model_init(&model, model_create_swap(options), options.bytes_total, random);
    model_run(&model, operations());
    assert_int_equal(model.first_error, 0);
    struct sl_swap_stats stats;
    sl_swap_stats(model.swap, &stats);
    assert_int_equal(stats.reads, model.reads + 1);
    assert_int_equal(stats.writes, model.writes);
    if (options.backend != SL_SWAP_AUTO)
        assert_int_equal(stats.backend, options.backend);
    sl_swap_destroy(model.swap);
    model_finish(&model);
}

static bool ring_allowed(void)
{
    const char *paths[] = {model_directory};
    struct sl_swap_options options = {
        .paths = paths, .path_count = 1, .bytes_total = 4096, .backend = SL_SWAP_URING};
    struct sl_swap *swap = NULL;
    struct sl_error error = {0};
    int code = sl_swap_create(&swap, &options, &error);
    if (code)
        print_message("no io_uring: %s\n", error.message);
    sl_swap_destroy(swap);
    return code == 0;
}

static void through_automatic(void **state)
{
    (void)state;
    run((struct sl_swap_options){.backend = SL_SWAP_AUTO}, 10);
}

static void through_io_uring(void **state)
{
    (void)state;
    if (!ring_allowed())
        skip();
    run((struct sl_swap_options){.backend = SL_SWAP_URING}, 11);
}

static void through_io_uring_with_a_submitting_kernel_thread(void **state)
{
    (void)state;
    if (!ring_allowed())
        skip();
    run((struct sl_swap_options){.backend = SL_SWAP_URING, .submit_poll = true}, 12);
}

/* Most test machines cannot be polled: then this is the fallback's test. */
static void through_io_uring_with_polling(void **state)
{
    (void)state;
    if (!ring_allowed())
        skip();
    run((struct sl_swap_options){.backend = SL_SWAP_URING, .poll = true}, 19);
}

static void through_threads(void **state)
{
    (void)state;
    run((struct sl_swap_options){.backend = SL_SWAP_THREADS, .thread_count = 4}, 13);
}

static void through_the_page_cache(void **state)
{
    (void)state;
    run((struct sl_swap_options){.direct_off = true}, 14);
}

static void with_threads_for_sums(void **state)
{
    (void)state;
    run((struct sl_swap_options){.hash_threads = 3}, 20);
}

static void with_a_depth_of_one(void **state)
{
    (void)state;
    run((struct sl_swap_options){.queue_depth = 1}, 15);
}

/* Two directories, stripes of unequal weight. */
static void over_two_paths(void **state)
{
    (void)state;
    char first[160], second[160];
    snprintf(first, sizeof(first), "%s/a", model_directory);
    snprintf(second, sizeof(second), "%s/b", model_directory);
    mkdir(first, 0700);
    mkdir(second, 0700);
    const char *paths[] = {first, second};
    const double weights[] = {2.5, 1};
    run((struct sl_swap_options){.paths = paths, .path_count = 2, .path_weights = weights}, 16);
    assert_int_equal(rmdir(first), 0);
    assert_int_equal(rmdir(second), 0);
}

static void run_faulty(enum sl_swap_backend inner, uint64_t seed)
{
    uint64_t injected[SL_FAULT_COUNT] = {0};
    const struct sl_swap_faults faults = {
        .seed = seed,
        .chance = {[SL_FAULT_SHORT] = 0.1, [SL_FAULT_EINTR] = 0.05, [SL_FAULT_EAGAIN] = 0.05},
        .delay_chance = 0.05,
        .delay_ns_max = 200000,
        .reorder = true,
        .inner = inner,
        .injected = injected};
    run((struct sl_swap_options){.backend = SL_SWAP_FAULTY, .faults = &faults}, seed);
    assert_true(injected[SL_FAULT_SHORT] && injected[SL_FAULT_EINTR] && injected[SL_FAULT_EAGAIN]);
}

static void through_a_device_that_needs_retries(void **state)
{
    (void)state;
    run_faulty(SL_SWAP_THREADS, 17);
}

static void through_a_ring_that_needs_retries(void **state)
{
    (void)state;
    if (!ring_allowed())
        skip();
    run_faulty(SL_SWAP_URING, 18);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, model_make_directory, model_remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(through_automatic),
        TEST(through_io_uring),
        TEST(through_io_uring_with_a_submitting_kernel_thread),
        TEST(through_io_uring_with_polling),
        TEST(through_threads),
        TEST(through_the_page_cache),
        TEST(with_threads_for_sums),
        TEST(with_a_depth_of_one),
        TEST(over_two_paths),
        TEST(through_a_device_that_needs_retries),
        TEST(through_a_ring_that_needs_retries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
