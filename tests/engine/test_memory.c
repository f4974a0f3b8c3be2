// SPDX-License-Identifier: Apache-2.0
/* The memory that the plan prints is the memory of the run: a process of its own, so that its peak
 * is the run's. */
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/sluice.h"

static char root[64];

static void train(const char *optimizer, struct sl_train_result *result)
{
    char text[128], nvme[128], out[128];
    snprintf(text, sizeof(text), "%s/text", root);
    snprintf(nvme, sizeof(nvme), "nvme.path=%s", root);
    snprintf(out, sizeof(out), "%s/out-%s", root, strrchr(optimizer, '=') + 1);
    const char *const files[] = {text};
    const char *const sets[] = {"train.steps=8",
                                "train.micro_batch=2",
                                "train.accumulation=2",
                                "train.sequence_length=64",
                                "threads=2",
                                nvme,
                                "placement.activations=host",
                                optimizer};
    struct sl_train_options options = {
        .run = {.model = "bible-10m",
                .data = files,
                .data_count = 1,
                .sets = sets,
                .set_count = sizeof(sets) / sizeof(sets[0]),
                .device = "host"},
        .out = out,
    };
    /* In a process of its own: peak and growth are of one run. */
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct sl_error error = {0};
        int code = sl_train(&options, result, &error);
        if (code)
            fprintf(stderr, "%s\n", error.message);
        ssize_t sent = write(ends[1], result, sizeof(*result));
        _exit(code || sent != (ssize_t)sizeof(*result));
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], result, sizeof(*result)), sizeof(*result));
    close(ends[0]);
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("  %s: %.2f MiB at its peak, %.2f MiB planned, %.2f MiB gained after step 2\n",
           optimizer, (double)result->peak_bytes / (1 << 20),
           (double)result->planned_bytes / (1 << 20), (double)result->growth_bytes / (1 << 20));
}

static void assert_peak(const struct sl_train_result *result)
{
    double ratio = (double)result->peak_bytes / (double)result->planned_bytes;
    if (!(ratio > 0.95 && ratio < 1.05))
        fail_msg("the peak is %.3f of the plan", ratio);
}

static void peak_is_the_plan(void **state)
{
    (void)state;
    struct sl_train_result result;
    train("placement.optimizer=host", &result);
    assert_peak(&result);
    /* What is left are code pages of the checkpoint's writer, touched at the end. */
    assert_true(result.growth_bytes < (2u << 20));
}

static void nothing_grows_with_nvme(void **state)
{
    (void)state;
    struct sl_train_result result;
    train("placement.optimizer=nvme", &result);
    assert_true(result.growth_bytes < (2u << 20));
    assert_true(result.lane_bytes[4] > 0 && result.lane_bytes[5] > 0);
}

static int setup(void **state)
{
    (void)state;
    char path[128];
    snprintf(root, sizeof(root), "/tmp/sluice-memory-XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof(path), "%s/text", root);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    for (int i = 0; i < 4000; i++)
        fprintf(file, "and the light was over the water, line %d.\n", i);
    fclose(file);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    return system(command);
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    puts("skipped: a sanitizer's own memory is not in the plan");
    return 77;
#endif
    const struct CMUnitTest tests[] = {cmocka_unit_test(peak_is_the_plan),
                                       cmocka_unit_test(nothing_grows_with_nvme)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
