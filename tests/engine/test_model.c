// SPDX-License-Identifier: Apache-2.0
/* Presets, parameter lists, initial weights and rotary tables. */
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/model.h"

static struct sl_model preset(const char *name)
{
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_model_from_preset(&model, name, &error) != 0)
        fail_msg("%s: %s", name, error.message);
    return model;
}

/* The figures that the public checkpoints of these names have, element by element. */
static void known_models_have_their_known_size(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t elements;
    } known[] = {
        {"gpt2-124m", 124439808},   {"gpt2-355m", 354823168},    {"gpt2-774m", 774030080},
        {"gpt2-1.5b", 1557611200},  {"llama-1b", 1235814400},    {"llama-3b", 3212749824},
        {"llama-7b", 6738415616},   {"llama-8b", 8030261248},    {"llama-13b", 13015864320},
        {"llama-70b", 70553706496}, {"smollm2-135m", 134515008}, {"mistral-7b", 7241732096},
        {"qwen3-0.6b", 596049920},  {"qwen2.5-0.5b", 494032768}, {"gemma-2b", 2506172416},
        {"gemma2-2b", 2614341888},  {"gemma3-1b", 999885952},    {"phi3-mini", 3821079552},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct sl_model model = preset(known[i].name);
        if (model.param_elements != known[i].elements)
            fail_msg("%s: %llu elements, known %llu", known[i].name,
                     (unsigned long long)model.param_elements,
                     (unsigned long long)known[i].elements);
        sl_model_finish(&model);
    }
}

static void check_layout(const struct sl_model *model, const char *name)
{
    assert_int_equal(model->unit_count, model->layers + 2);
    assert_int_equal(model->unit_first_param[0], 0);
    assert_int_equal(model->unit_first_param[model->unit_count], model->param_count);
    uint64_t total = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        uint64_t end = 0;
        for (uint64_t i = model->unit_first_param[unit]; i < model->unit_first_param[unit + 1];
             i++) {
            const struct sl_param *p = &model->params[i];
            bool same_role = i > model->unit_first_param[unit] && p[-1].role == p->role;
            assert_int_equal(p->unit, unit);
            assert_true(p->offset >= end && p->offset - end < SL_PARAM_ALIGN_ELEMENTS);
            if (same_role)
                assert_int_equal(p->offset, end);
            else
                assert_int_equal(p->offset % SL_PARAM_ALIGN_ELEMENTS, 0);
            if (strlen(p->name) + 1 >= SL_PARAM_NAME_BYTES)
                fail_msg("%s: %s is cut off", name, p->name);
            end = p->offset + p->rows * p->columns;
            total += p->rows * p->columns;
        }
        assert_true(model->unit_elements[unit] >= end);
        assert_true(model->unit_elements[unit] - end < SL_PARAM_ALIGN_ELEMENTS);
    }
    assert_int_equal(total, model->param_elements);
}

static void every_preset_has_a_sound_layout(void **state)
{
    (void)state;
    size_t count = 0;
    for (const char *name; (name = sl_model_preset_name(count)) != NULL; count++) {
        struct sl_model model = preset(name);
        check_layout(&model, name);
        assert_true(model.heads % model.kv_heads == 0);
        assert_true(model.attention_scale > 0);
        sl_model_finish(&model);
    }
    assert_true(count > 30);
}

/* docs/models.md has a row for every preset, with its parameters. */
static void the_handbook_lists_every_preset(void **state)
{
    (void)state;
    static char text[1 << 16];
    char path[512], row[64], total[32];
    snprintf(path, sizeof path, "%s/../../docs/models.md", getenv("SLUICE_TEST_FIXTURES"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    for (size_t i = 0; sl_model_preset_name(i); i++) {
        struct sl_model model = preset(sl_model_preset_name(i));
        double count = (double)model.param_elements;
        snprintf(row, sizeof row, "\n| %s | %u |", sl_model_preset_name(i), model.hidden);
        snprintf(total, sizeof total, "| %.2f %s |", count / (count < 1e9 ? 1e6 : 1e9),
                 count < 1e9 ? "M" : "B");
        const char *at = strstr(text, row), *end = at ? strchr(at + 1, '\n') : NULL;
        const char *figure = at ? strstr(at, total) : NULL;
        if (!figure || figure > end)
            fail_msg("docs/models.md: no row \"%s ... %s\"", row + 1, total);
        sl_model_finish(&model);
    }
}

/* The published totals of arXiv:2101.06840's shapes, within the 0.5 % of their rounding. */
static void zero_offload_shapes_match_the_paper(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double billions;
    } known[] = {
        {"zero-offload-1b", 1.11},   {"zero-offload-2b", 2.12},   {"zero-offload-4b", 4.20},
        {"zero-offload-6b", 6.16},   {"zero-offload-8b", 8.31},   {"zero-offload-10b", 10.28},
        {"zero-offload-11b", 11.29}, {"zero-offload-12b", 12.29}, {"zero-offload-13b", 13.30},
        {"zero-offload-20b", 20.6},  {"zero-offload-40b", 40.7},  {"zero-offload-60b", 60.8},
        {"zero-offload-70b", 70.8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct sl_model model = preset(known[i].name);
        double billions = (double)model.param_elements / 1e9;
        if (fabs(billions / known[i].billions - 1) > 0.005)
            fail_msg("%s: %.3f billion, paper %.2f", known[i].name, billions, known[i].billions);
        sl_model_finish(&model);
    }
}

static void unknown_preset_names_the_nearest(void **state)
{
    (void)state;
    struct sl_model model;
    struct sl_error error = {0};
    assert_int_equal(sl_model_from_preset(&model, "gpt2-125m", &error), -ENOENT);
    assert_non_null(strstr(error.message, "gpt2-124m"));
    assert_int_equal(error.domain, SL_DOMAIN_INPUT);
    sl_model_finish(&model);
}

static void roles_find_the_first_of_a_fused_group(void **state)
{
    (void)state;
    struct sl_model model = preset("tiny");
    const struct sl_param *q = sl_model_param(&model, 2, SL_ROLE_QKV);
    assert_string_equal(q->name, "model.layers.1.self_attn.q_proj.weight");
    assert_string_equal(q[2].name, "model.layers.1.self_attn.v_proj.weight");
    assert_null(sl_model_param(&model, model.layers + 1, SL_ROLE_HEAD));
    assert_null(sl_model_param(&model, 2, SL_ROLE_QKV_BIAS));
    assert_null(sl_model_param(&model, 1000, SL_ROLE_QKV));
    sl_model_finish(&model);
}

static void freezing_marks_matches_and_refuses_patterns_without_any(void **state)
{
    (void)state;
    struct sl_model model = preset("tiny");
    const char *good[] = {"model.layers.0.*", "*.k_proj.weight"};
    assert_int_equal(sl_model_freeze(&model, good, 2, NULL), 0);
    assert_true(sl_model_param(&model, 1, SL_ROLE_DOWN)->frozen);
    const struct sl_param *q = sl_model_param(&model, 2, SL_ROLE_QKV);
    assert_false(q[0].frozen);
    assert_true(q[1].frozen);
    const char *bad[] = {"model.layer.0.*"};
    struct sl_error error = {0};
    assert_int_equal(sl_model_freeze(&model, bad, 1, &error), -EINVAL);
    assert_non_null(strstr(error.message, "model.layer.0.*"));
    sl_model_finish(&model);
}

static void initial_values_do_not_depend_on_the_pieces(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    struct sl_model model = preset("bible-2m");
    const struct sl_param *up = sl_model_param(&model, 1, SL_ROLE_UP);
    static float whole[COUNT], pieces[COUNT], other[COUNT];
    sl_model_initial(&model, up, 7, 1000, COUNT, whole);
    for (size_t at = 0, size = 1; at < COUNT; at += size, size = size * 3 % 17 + 1) {
        if (size > COUNT - at)
            size = COUNT - at;
        sl_model_initial(&model, up, 7, 1000 + at, size, pieces + at);
    }
    assert_memory_equal(whole, pieces, sizeof whole);
    sl_model_initial(&model, up, 8, 1000, COUNT, other);
    assert_memory_not_equal(whole, other, sizeof whole);
    sl_model_initial(&model, up + 1, 7, 1000, COUNT, other);
    assert_memory_not_equal(whole, other, sizeof whole);
    sl_model_finish(&model);
}

/* Moments of n draws lie within five standard errors: of the mean s / sqrt(n), of the variance
 * s^2 sqrt(2 / n), of the fourth moment s^4 sqrt(96 / n). */
static void initial_values_are_normal(void **state)
{
    (void)state;
    enum { COUNT = 200000 };
    struct sl_model model = preset("llama-1b");
    static float x[COUNT];
    static const struct {
        enum sl_role role;
        double deviation;
    } cases[] = {{SL_ROLE_UP, 0.02}, {SL_ROLE_DOWN, 0.02 / 5.656854249492381}};
    for (size_t c = 0; c < 2; c++) {
        sl_model_initial(&model, sl_model_param(&model, 1, cases[c].role), 1, 0, COUNT, x);
        double mean = 0, second = 0, fourth = 0;
        for (size_t i = 0; i < COUNT; i++) {
            double z = (double)x[i] / cases[c].deviation;
            mean += z / COUNT;
            second += z * z / COUNT;
            fourth += z * z * z * z / COUNT;
        }
        assert_true(fabs(mean) < 5 / sqrt(COUNT));
        assert_true(fabs(second - 1) < 5 * sqrt(2.0 / COUNT));
        assert_true(fabs(fourth - 3) < 5 * sqrt(96.0 / COUNT));
    }
    float norm[4], bias[4];
    sl_model_initial(&model, sl_model_param(&model, 1, SL_ROLE_NORM1), 1, 0, 4, norm);
    assert_true(norm[0] == 1.0f && norm[3] == 1.0f);
    sl_model_finish(&model);
    model = preset("gpt2-124m");
    sl_model_initial(&model, sl_model_param(&model, 1, SL_ROLE_QKV_BIAS), 1, 0, 4, bias);
    assert_true(bias[0] == 0.0f && bias[3] == 0.0f);
    sl_model_finish(&model);
}

/* 6 N and the causal attention of a model small enough to count by hand. */
static void flops_count_the_head_once_and_the_look_up_never(void **state)
{
    (void)state;
    struct sl_model model = preset("tiny");
    double layer = 64.0 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 176 + 2 * 64;
    double matrices = 4 * layer + 64 + 264 * 64;
    double attention = 12.0 * 4 * 64 * (128 + 1) / 2;
    assert_true(fabs(sl_model_flops_per_token(&model, 128) - (6 * matrices + attention)) < 1);
    sl_model_finish(&model);
    model = preset("mistral-7b");
    double full = sl_model_flops_per_token(&model, 4096);
    double windowed = sl_model_flops_per_token(&model, 8192);
    double keys = (4096.0 * 4097 / 2 + 4096.0 * 4096) / 8192 - 4097.0 / 2;
    assert_true(fabs(windowed - full - 12.0 * 32 * 4096 * keys) < 1e3);
    sl_model_finish(&model);
}

static void dropout_is_refused_for_training(void **state)
{
    (void)state;
    struct sl_model model = preset("gpt2-124m");
    struct sl_error error = {0};
    assert_int_equal(sl_model_check_training(&model, &error), 0);
    model.dropout = 0.1f;
    assert_int_equal(sl_model_check_training(&model, &error), -ENOTSUP);
    assert_non_null(strstr(error.message, "0.1"));
    sl_model_finish(&model);
}

static void rope_rotates_by_position_times_frequency(void **state)
{
    (void)state;
    struct sl_model model = preset("tiny"); /* head 16: pair 4 turns by 0.01 rad a position */
    float c[101 * 8], s[101 * 8];
    sl_model_rope_table(&model, 0, 101, c, s);
    assert_true(c[0] == 1.0f && s[0] == 0.0f);
    assert_true(fabs((double)c[8 * 1 + 0] - cos(1.0)) < 1e-7);
    /* 100 positions of a frequency with 2^-24 relative error: 1e-7, and one rounding */
    assert_true(fabs((double)s[8 * 100 + 4] - sin(1.0)) < 2e-7);
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_models_have_their_known_size),
        cmocka_unit_test(every_preset_has_a_sound_layout),
        cmocka_unit_test(the_handbook_lists_every_preset),
        cmocka_unit_test(zero_offload_shapes_match_the_paper),
        cmocka_unit_test(unknown_preset_names_the_nearest),
        cmocka_unit_test(roles_find_the_first_of_a_fused_group),
        cmocka_unit_test(freezing_marks_matches_and_refuses_patterns_without_any),
        cmocka_unit_test(initial_values_do_not_depend_on_the_pieces),
        cmocka_unit_test(initial_values_are_normal),
        cmocka_unit_test(flops_count_the_head_once_and_the_look_up_never),
        cmocka_unit_test(dropout_is_refused_for_training),
        cmocka_unit_test(rope_rotates_by_position_times_frequency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
