// SPDX-License-Identifier: Apache-2.0
/* bench/tflops: its count of FLOPs against the closed form, its program on a tiny model. */
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bench/tflops_run.h"

/* gpt2-124m: 12 layers of 12 * 768^2 matrix elements and a head of 50257 * 768, 6 FLOPs per element
 * and token; attention has 2 products of 768 per key that a token sees, forward, twice that
 * backward, 2 FLOPs each: 12 * 768 * (T + 1) / 2 per token and layer. */
static void counts_the_closed_form(void **state)
{
    (void)state;
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_model_from_preset(&model, "gpt2-124m", &error))
        fail_msg("%s", error.message);
    struct sl_step_options o = {.model = &model, .batch = 2, .sequence = 1024, .micro_batches = 3};
    double tokens = 2.0 * 1024 * 3, layer = 12.0 * 768 * 768, head = 50257.0 * 768;
    double scores = 12.0 * 768 * 1025 / 2;
    double expected = tokens * (12 * (6 * layer + scores) + 6 * head);
    double counted, done;
    assert_int_equal(tflops_count(&o, false, &counted, &done), 0);
    assert_true(fabs(counted / expected - 1) < 1e-12);
    assert_true(done == counted); /* nothing done twice */
    o.recompute = true;           /* a layer's forward pass again, but for its last product */
    double again = tokens * 12 * (2 * (layer - 4.0 * 768 * 768) + scores / 3);
    assert_int_equal(tflops_count(&o, false, &counted, &done), 0);
    assert_true(fabs(counted / expected - 1) < 1e-12);
    assert_true(fabs(done / (expected + again) - 1) < 1e-12);
    assert_int_equal(tflops_count(&o, true, &counted, &done), 0);
    assert_true(fabs(done / (expected + again + tokens * 2 * head) - 1) < 1e-12);
    sl_model_finish(&model);
}

/* Output of the program; fails unless it ends with `status`. */
static char *output_of(const char *arguments, int status)
{
    static char text[65536];
    char command[4096];
    const char *program = getenv("SLUICE_BENCH_TFLOPS");
    assert_non_null(program);
    snprintf(command, sizeof(command), "'%s' %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    text[fread(text, 1, sizeof(text) - 1, pipe)] = 0;
    int result = pclose(pipe);
    if (!WIFEXITED(result) || WEXITSTATUS(result) != status)
        fail_msg("%s: ended with %d\n%s", command, result, text);
    return text;
}

static double number(const char *text, const char *name)
{
    char key[64];
    snprintf(key, sizeof(key), "\"%s\": ", name);
    const char *at = strstr(text, key);
    if (!at)
        fail_msg("no %s in %s", name, text);
    return strtod(at + strlen(key), NULL);
}

#define TINY                                                                                       \
    "--model tiny --set train.micro_batch=2 --set train.sequence_length=32 --set threads=2 "       \
    "--device host --steps 3 --warm 1 "

static void json_agrees_with_itself(void **state)
{
    (void)state;
    const char *text = output_of(TINY "--json", 0);
    assert_int_equal(text[0], '[');
    double seconds = number(text, "step_seconds"), flops = number(text, "model_flops_per_step");
    assert_true(seconds > 0 && flops > 0);
    assert_true(number(text, "hardware_flops_per_step") > flops); /* recomputation is the default */
    double tera = number(text, "model_tflops"), ceiling = number(text, "ceiling_tflops");
    assert_true(fabs(tera / (flops / seconds * 1e-12) - 1) < 1e-6);
    assert_true(fabs(number(text, "mfu") / (tera / ceiling) - 1) < 1e-6);
    assert_true(fabs(number(text, "tokens_per_second") * seconds / 64 - 1) < 1e-6);
    assert_true(number(text, "loss") > 0);
    const char *compute = strstr(text, "\"compute\"");
    assert_non_null(compute);
    double busy = number(compute, "busy_seconds");
    assert_true(busy > 0);
    assert_true(number(text, "host") > 0);
    assert_true(number(text, "threads") == 2);
}

static void two_models_are_two_lines(void **state)
{
    (void)state;
    const char *text = output_of(TINY "--model tiny --csv", 0);
    size_t lines = 0;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, 3);
}

static void wrong_use_is_named(void **state)
{
    (void)state;
    assert_non_null(strstr(output_of("--steps 0", 2), "--steps 0: a number from 1 to 1000"));
    assert_non_null(strstr(output_of("--model nosuch", 2), "nosuch"));
    assert_non_null(strstr(output_of("gpt2", 2), "\"gpt2\" is not an option"));
    assert_non_null(strstr(output_of("--model tiny --set no.key=1", 2), "no.key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_the_closed_form),
        cmocka_unit_test(json_agrees_with_itself),
        cmocka_unit_test(two_models_are_two_lines),
        cmocka_unit_test(wrong_use_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
