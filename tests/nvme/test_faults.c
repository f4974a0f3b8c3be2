// SPDX-License-Identifier: Apache-2.0
/* Every fault of a device ends in the right error: never in wrong data, never in a hang. */
#include "tests/test.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "nvme/faults.h"
#include "tests/nvme/swap_model.h"

#define SPACE_BYTES ((uint64_t)1 << 20)
#define MS ((uint64_t)1000000)

static int rounds(void)
{
    const char *text = getenv("SLUICE_TEST_ROUNDS");
    return text ? atoi(text) : 8;
}

/* One fault of a kind somewhere in 200 operations: the run ends with `code`, the message names the
 * file and the offset, and later requests end with the same code. */
static void expect(enum sl_fault fault, int code)
{
    struct test_random random = test_random_seed(100 + fault);
    int hits = 0;
    for (int round = 0; round < rounds(); round++) {
        uint64_t injected[SL_FAULT_COUNT] = {0};
        struct sl_swap_faults faults = {.seed = test_random_u64(&random),
                                        .first_operation = test_random_below(&random, 100),
                                        .faults_max = 1,
                                        .inner = SL_SWAP_THREADS,
                                        .injected = injected};
        faults.chance[fault] = 0.2;
        struct model model;
        struct sl_swap *swap =
            model_create_swap((struct sl_swap_options){.bytes_total = SPACE_BYTES,
                                                       .block_bytes = 32 << 10,
                                                       .backend = SL_SWAP_FAULTY,
                                                       .thread_count = 3,
                                                       .hash_threads = round % 3,
                                                       .faults = &faults});
        model_init(&model, swap, SPACE_BYTES, test_random_seed(test_random_u64(&random)));
        model_run(&model, 200);
        struct sl_error error;
        sl_swap_error(swap, &error);
        if (model.first_error) {
            assert_int_equal(model.first_error, code);
            assert_int_equal(error.code, code);
            assert_non_null(strstr(error.message, model_directory));
            assert_non_null(strstr(error.message, "offset"));
            char *buffer = model_buffer(4096);
            assert_int_equal(sl_swap_transfer(swap, true, 0, buffer, 4096), code);
            free(buffer);
        }
        sl_swap_destroy(swap);
        assert_int_equal(model.first_error != 0, injected[fault]);
        hits += (int)injected[fault];
        model_finish(&model);
    }
    assert_in_range(hits, rounds() / 2, rounds());
}

static void eio_ends_the_run(void **state)
{
    (void)state;
    expect(SL_FAULT_EIO, -EIO);
}

static void enospc_ends_the_run(void **state)
{
    (void)state;
    expect(SL_FAULT_ENOSPC, -ENOSPC);
}

static void a_bit_flipped_on_reading_is_found(void **state)
{
    (void)state;
    expect(SL_FAULT_FLIP_READ, -EBADMSG);
}

/* A flipped, lost or misdirected write may be overwritten before anyone reads it; then nothing was
 * wrong. `model_run` has compared all that was read, so what is left is: an error, or all agrees.
 */
static void expect_found_or_overwritten(enum sl_fault fault)
{
    struct test_random random = test_random_seed(200 + fault);
    int found = 0, injected_total = 0;
    for (int round = 0; round < rounds(); round++) {
        uint64_t injected[SL_FAULT_COUNT] = {0};
        struct sl_swap_faults faults = {.seed = test_random_u64(&random),
                                        .first_operation = 90,
                                        .faults_max = 1,
                                        .inner = SL_SWAP_THREADS,
                                        .injected = injected};
        faults.chance[fault] = 0.2;
        struct sl_swap *swap =
            model_create_swap((struct sl_swap_options){.bytes_total = SPACE_BYTES,
                                                       .block_bytes = 32 << 10,
                                                       .backend = SL_SWAP_FAULTY,
                                                       .thread_count = 3,
                                                       .hash_threads = round % 3,
                                                       .faults = &faults});
        struct model model;
        model_init(&model, swap, SPACE_BYTES, test_random_seed(test_random_u64(&random)));
        model_run(&model, 80);
        assert_true(model.first_error == 0 || model.first_error == -EBADMSG);
        found += model.first_error != 0;
        sl_swap_destroy(swap);
        injected_total += (int)injected[fault];
        model_finish(&model);
    }
    /* The test has teeth: most rounds injected, and the fault survived until it was read. */
    assert_true(injected_total >= rounds() / 2);
    assert_true(found >= rounds() / 4);
}

static void a_bit_flipped_on_writing_is_found(void **state)
{
    (void)state;
    expect_found_or_overwritten(SL_FAULT_FLIP_WRITE);
}

static void a_misdirected_write_is_found(void **state)
{
    (void)state;
    expect_found_or_overwritten(SL_FAULT_MISDIRECTED);
}

static void a_lost_write_is_found(void **state)
{
    (void)state;
    expect_found_or_overwritten(SL_FAULT_LOST);
}

/* Each single bit of a written unit, flipped on its way to the device, is found on reading. */
static void every_flipped_bit_is_found(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(300);
    char *buffer = model_buffer(4096);
    model_fill(&random, buffer, 4096);
    for (int round = 0; round < rounds(); round++) {
        struct sl_swap_faults faults = {.seed = test_random_u64(&random),
                                        .chance = {[SL_FAULT_FLIP_WRITE] = 1},
                                        .inner = SL_SWAP_THREADS};
        struct sl_swap *swap = model_create_swap((struct sl_swap_options){
            .bytes_total = 4096, .backend = SL_SWAP_FAULTY, .thread_count = 1, .faults = &faults});
        assert_int_equal(sl_swap_transfer(swap, true, 0, buffer, 4096), 0);
        assert_int_equal(sl_swap_transfer(swap, false, 0, buffer, 4096), -EBADMSG);
        struct sl_error error;
        sl_swap_error(swap, &error);
        assert_int_equal(error.domain, SL_DOMAIN_DATA);
        assert_non_null(strstr(error.message, "sum"));
        sl_swap_destroy(swap);
        model_fill(&random, buffer, 4096);
    }
    free(buffer);
}

static void a_full_disk_ends_the_run(void **state)
{
    (void)state;
    const struct sl_swap_faults faults = {
        .seed = 1, .quota_bytes = 600 << 10, .inner = SL_SWAP_THREADS};
    struct sl_swap *swap = model_create_swap((struct sl_swap_options){.bytes_total = SPACE_BYTES,
                                                                      .block_bytes = 64 << 10,
                                                                      .backend = SL_SWAP_FAULTY,
                                                                      .faults = &faults});
    char *buffer = model_buffer(SPACE_BYTES);
    memset(buffer, 7, SPACE_BYTES);
    assert_int_equal(sl_swap_transfer(swap, true, 0, buffer, 512 << 10), 0);
    assert_int_equal(sl_swap_transfer(swap, true, 512 << 10, buffer, 512 << 10), -ENOSPC);
    struct sl_error error;
    sl_swap_error(swap, &error);
    assert_non_null(strstr(error.message, "No space left"));
    sl_swap_destroy(swap);
    free(buffer);
}

#define STALL_NS (100 * MS)   /* a device may be silent for so long */
#define STOPPED_NS (300 * MS) /* longer */

static struct sl_swap *stalling_swap(struct sl_swap_faults *faults, uint64_t release_ns)
{
    *faults = (struct sl_swap_faults){.seed = 5,
                                      .chance = {[SL_FAULT_STALL] = 1},
                                      .first_operation = 1,
                                      .faults_max = 1,
                                      .stall_release_ns = release_ns,
                                      .inner = SL_SWAP_THREADS};
    return model_create_swap((struct sl_swap_options){.bytes_total = SPACE_BYTES,
                                                      .backend = SL_SWAP_FAULTY,
                                                      .thread_count = 2,
                                                      .stall_ns = STALL_NS,
                                                      .faults = faults});
}

static void a_silent_device_is_reported_with_age_and_offset(void **state)
{
    (void)state;
    struct sl_swap_faults faults;
    struct sl_swap *swap = stalling_swap(&faults, 400 * MS);
    char *buffer = model_buffer(SPACE_BYTES);
    memset(buffer, 1, SPACE_BYTES);
    assert_int_equal(sl_swap_transfer(swap, true, 0, buffer, 8192), 0);
    uint64_t start_ns = sl_clock_ns();
    assert_int_equal(sl_swap_transfer(swap, true, 65536, buffer, 8192), -ETIMEDOUT);
    assert_true(sl_clock_ns() - start_ns >= STALL_NS);
    assert_true(sl_clock_ns() - start_ns < 5000 * MS);
    struct sl_error error;
    sl_swap_error(swap, &error);
    assert_non_null(strstr(error.message, "offset 65536"));
    assert_non_null(strstr(error.message, " s;"));
    sl_swap_destroy(swap); /* the operation comes back meanwhile */
    free(buffer);
}

static void ignore_log(void *user, enum sl_log_level level, const char *message)
{
    (void)level;
    if (strstr(message, "never came back"))
        *(int *)user += 1;
}

/* In a child, because what the device holds for good is never released. */
static void destroy_ends_although_the_device_is_silent(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        struct sl_swap_faults faults = {
            .seed = 5, .chance = {[SL_FAULT_STALL] = 1}, .inner = SL_SWAP_THREADS};
        int lines = 0;
        struct sl_log log = {ignore_log, &lines};
        struct sl_swap *swap =
            model_create_swap((struct sl_swap_options){.bytes_total = SPACE_BYTES,
                                                       .backend = SL_SWAP_FAULTY,
                                                       .thread_count = 2,
                                                       .stall_ns = 50 * MS,
                                                       .faults = &faults,
                                                       .log = &log});
        void *buffer = model_buffer(4096);
        int code = sl_swap_transfer(swap, false, 0, buffer, 4096);
        sl_swap_destroy(swap);
        _exit(code == -ETIMEDOUT && lines == 1 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct waited {
    struct sl_swap_request request;
    sem_t ended;
    int result;
};

static void waited_done(struct sl_swap_request *request, int result)
{
    struct waited *waited = request->user;
    waited->result = result;
    sem_post(&waited->ended);
}

static void submit(struct sl_swap *swap, struct waited *waited, char *buffer, uint64_t offset,
                   uint64_t deadline_ns)
{
    waited->request = (struct sl_swap_request){.offset_bytes = offset,
                                               .bytes = 128 << 10,
                                               .buffer = buffer,
                                               .deadline_ns = deadline_ns,
                                               .done = waited_done,
                                               .user = waited};
    sem_init(&waited->ended, 0, 0);
    sl_swap_submit(swap, &waited->request);
}

static struct sl_swap *slow_swap(struct sl_swap_faults *faults)
{
    *faults = (struct sl_swap_faults){
        .seed = 9, .delay_chance = 1, .delay_ns_max = 60 * MS, .inner = SL_SWAP_THREADS};
    return model_create_swap((struct sl_swap_options){.bytes_total = SPACE_BYTES,
                                                      .block_bytes = 4096,
                                                      .queue_depth = 2,
                                                      .backend = SL_SWAP_FAULTY,
                                                      .faults = faults});
}

/* A late or cancelled request ends alone: the swap space goes on. */
static void deadlines_and_cancellation_end_one_request(void **state)
{
    (void)state;
    struct sl_swap_faults faults;
    struct sl_swap *swap = slow_swap(&faults);
    char *buffer = model_buffer(SPACE_BYTES);
    static struct waited late, cancelled, other;
    submit(swap, &late, buffer, 0, sl_clock_ns() + 50 * MS);
    submit(swap, &cancelled, buffer + (256 << 10), 0, 0);
    sl_swap_cancel(swap, &cancelled.request);
    sem_wait(&cancelled.ended);
    assert_int_equal(cancelled.result, -ECANCELED);
    sem_wait(&late.ended);
    assert_int_equal(late.result, -ETIME);
    submit(swap, &other, buffer, 8192, sl_clock_ns() + 60000 * MS);
    sem_wait(&other.ended);
    assert_int_equal(other.result, 0);
    struct sl_error error;
    sl_swap_error(swap, &error);
    assert_int_equal(error.code, 0);
    sl_swap_destroy(swap);
    free(buffer);
}

/* A process that was stopped for longer than a device may be silent (Ctrl-Z, a debugger) gives the
 * device its time again and hears what it had to say: here an error of its own. In a child, which
 * stops itself as soon as the operation is out. */
static void a_stopped_process_does_not_blame_the_device(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        struct sl_swap_faults faults;
        uint64_t injected[SL_FAULT_COUNT] = {0};
        struct sl_swap *swap = stalling_swap(&faults, STOPPED_NS + STALL_NS / 2);
        faults.injected = injected;
        char *buffer = model_buffer(SPACE_BYTES);
        struct waited first, stalled;
        submit(swap, &first, buffer, 0, 0);
        sem_wait(&first.ended);
        submit(swap, &stalled, buffer, 0, 0);
        while (!*(volatile uint64_t *)&injected[SL_FAULT_STALL])
            sched_yield();
        raise(SIGSTOP);
        sem_wait(&stalled.ended);
        sl_swap_destroy(swap);
        _exit(first.result == 0 && stalled.result == -EIO ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    struct timespec stopped = {.tv_nsec = STOPPED_NS};
    nanosleep(&stopped, NULL);
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, model_make_directory, model_remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(destroy_ends_although_the_device_is_silent),
        TEST(eio_ends_the_run),
        TEST(enospc_ends_the_run),
        TEST(a_bit_flipped_on_reading_is_found),
        TEST(a_bit_flipped_on_writing_is_found),
        TEST(a_misdirected_write_is_found),
        TEST(a_lost_write_is_found),
        TEST(every_flipped_bit_is_found),
        TEST(a_full_disk_ends_the_run),
        TEST(a_silent_device_is_reported_with_age_and_offset),
        TEST(a_stopped_process_does_not_blame_the_device),
        TEST(deadlines_and_cancellation_end_one_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
