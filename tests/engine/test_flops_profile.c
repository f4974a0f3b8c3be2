// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "engine/flops_profile.h"

static const char *const presets[] = {"tiny", "gpt2-124m", "llama-1b", "gemma2-2b", "gemma3-1b"};

/* Children add up to their parent, and the levels to the model. */
static void the_tree_adds_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        struct sl_model model = {0};
        struct sl_flops_module *modules;
        size_t count;
        assert_int_equal(sl_model_from_preset(&model, presets[i], NULL), 0);
        assert_int_equal(sl_flops_modules(&model, 3, 50, &modules, &count), 0);
        for (size_t parent = 0; parent < count; parent++) {
            uint64_t params = 0;
            double macs = 0;
            size_t children = 0;
            for (size_t c = parent + 1; c < count && modules[c].depth > modules[parent].depth; c++)
                if (modules[c].depth == modules[parent].depth + 1) {
                    params += modules[c].count * modules[c].params;
                    macs += modules[c].count * modules[c].macs;
                    children++;
                }
            if (children == 0)
                continue;
            assert_int_equal(params, modules[parent].params);
            assert_true(fabs(macs - modules[parent].macs) <= 1e-12 * macs);
        }
        assert_int_equal(modules[0].params, model.param_elements);
        free(modules);
        sl_model_finish(&model);
    }
}

/* Another count of the same thing: 6 flops per parameter and token, and attention. */
static void agrees_with_flops_per_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        struct sl_model model = {0};
        struct sl_flops_module *modules;
        size_t count;
        assert_int_equal(sl_model_from_preset(&model, presets[i], NULL), 0);
        uint32_t sequence = 64;
        assert_int_equal(sl_flops_modules(&model, 2, sequence, &modules, &count), 0);
        double per_token = 6 * modules[0].macs / (2.0 * sequence);
        double expected = sl_model_flops_per_token(&model, sequence);
        /* they differ in biases and norms, and in whether a token sees itself: below 3 % here */
        if (fabs(per_token - expected) > 0.03 * expected)
            fail_msg("%s: %g and %g", presets[i], per_token, expected);
        free(modules);
        sl_model_finish(&model);
    }
}

static void text_obeys_depth_and_times(void **state)
{
    (void)state;
    struct sl_model model = {0};
    assert_int_equal(sl_model_from_preset(&model, "gpt2-124m", NULL), 0);
    struct sl_flops_options options = {.batch = 2,
                                       .sequence = 1024,
                                       .micro_batches = 4,
                                       .recompute = true,
                                       .module_depth = 1,
                                       .top_modules = 2,
                                       .detailed = true,
                                       .profile_step = 5,
                                       .forward_ns = 1000000000,
                                       .step_ns = 4000000000};
    char *text = sl_flops_profile_text(&model, &options);
    assert_non_null(text);
    assert_non_null(strstr(text, "step 5"));
    assert_non_null(strstr(text, "layers 0 to 11, each"));
    assert_non_null(strstr(text, "samples/second                                       2.00"));
    assert_non_null(strstr(text, "recomputed flops"));
    assert_null(strstr(text, "query, key, value"));
    assert_null(strstr(text, "backward latency"));
    free(text);
    options.module_depth = -1;
    text = sl_flops_profile_text(&model, &options);
    assert_non_null(strstr(text, "query, key, value"));
    free(text);
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tree_adds_up),
        cmocka_unit_test(agrees_with_flops_per_token),
        cmocka_unit_test(text_obeys_depth_and_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
