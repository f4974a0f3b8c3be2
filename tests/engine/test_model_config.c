// SPDX-License-Identifier: Apache-2.0
/* config.json in both generations, what is refused, and rotary tables against transformers. */
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model_config.h"
#include "engine/safetensors.h"

static const char *const families[] = {"llama", "llama-untied", "gpt2",   "mistral", "qwen2",
                                       "qwen3", "gemma",        "gemma2", "gemma3",  "phi3"};

static void fixture_path(char *out, size_t size, const char *rest)
{
    snprintf(out, size, "%s/models/%s", getenv("SLUICE_TEST_FIXTURES"), rest);
}

static struct sl_model from_directory(const char *path)
{
    struct sl_model model;
    struct sl_error error = {0};
    if (sl_model_from_directory(&model, path, &error) != 0)
        fail_msg("%s", error.message);
    return model;
}

static struct sl_model from_fixture(const char *name)
{
    char path[512];
    fixture_path(path, sizeof path, name);
    return from_directory(path);
}

static int from_text(struct sl_model *model, const char *text, struct sl_error *error)
{
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    int rc = sl_model_from_config(model, root, "config.json", error);
    json_decref(root);
    return rc;
}

static void every_family_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct sl_model model = from_fixture(families[i]);
        assert_int_equal(model.vocabulary, 80);
        assert_int_equal(model.hidden, 32);
        assert_int_equal(model.eos_id, 2);
        sl_model_finish(&model);
    }
    struct sl_model m = from_fixture("gemma3");
    assert_int_equal(m.window[0], 7);
    assert_int_equal(m.window[2], 0);
    assert_int_equal(m.rope_index[1], 1);
    assert_int_equal(m.rope_index[2], 0);
    assert_int_equal(m.rope[0].kind, SL_ROPE_LINEAR);
    assert_true(m.rope[0].theta == 1e6 && m.rope[1].theta == 1e4);
    assert_true(fabs((double)m.attention_scale - pow(24, -0.5)) < 1e-7);
    sl_model_finish(&m);
    m = from_fixture("phi3");
    assert_int_equal(m.rotary, 4);
    assert_int_equal(m.rope[0].original_positions, 16);
    assert_int_equal(m.rope[0].kind, SL_ROPE_LONGROPE);
    sl_model_finish(&m);
    m = from_fixture("gpt2");
    assert_int_equal(m.ffn, 128);
    assert_true(m.tied && m.position_table && m.norm_bias);
    assert_true(m.dropout == 0.0f);
    sl_model_finish(&m);
    m = from_fixture("llama-untied");
    assert_true(m.qkv_bias && m.o_bias && m.mlp_bias && !m.tied);
    assert_int_equal(m.head_size, 16);
    sl_model_finish(&m);
}

/* Compares everything but the owned lists. */
static void check_equal(const struct sl_model *a, const struct sl_model *b, const char *name)
{
    struct sl_model x = *a, y = *b;
    x.params = y.params = NULL;
    x.unit_first_param = y.unit_first_param = NULL;
    x.unit_elements = y.unit_elements = NULL;
    if (fabsf(x.attention_scale - y.attention_scale) > 1e-6f * x.attention_scale)
        fail_msg("%s: attention scale %g became %g", name, (double)x.attention_scale,
                 (double)y.attention_scale);
    x.attention_scale = y.attention_scale;
    for (size_t k = 0; k < sizeof x; k++)
        if (((char *)&x)[k] != ((char *)&y)[k])
            fail_msg("%s: byte %zu of the description differs", name, k);
    assert_int_equal(a->param_count, b->param_count);
    for (size_t i = 0; i < a->param_count; i++)
        assert_string_equal(a->params[i].name, b->params[i].name);
}

static void what_is_written_reads_back_the_same(void **state)
{
    (void)state;
    char folder[] = "/tmp/sluice-config-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct sl_model model = from_fixture(families[i]);
        struct sl_error error = {0};
        if (sl_model_write_config(&model, SL_BF16, folder, &error) != 0)
            fail_msg("%s", error.message);
        struct sl_model again = from_directory(folder);
        check_equal(&model, &again, families[i]);
        sl_model_finish(&model);
        sl_model_finish(&again);
    }
    for (size_t i = 0; sl_model_preset_name(i); i++) {
        struct sl_model model, again;
        struct sl_error error = {0};
        assert_int_equal(sl_model_from_preset(&model, sl_model_preset_name(i), &error), 0);
        if (sl_model_write_config(&model, SL_BF16, folder, &error) != 0)
            fail_msg("%s", error.message);
        again = from_directory(folder);
        check_equal(&model, &again, sl_model_preset_name(i));
        sl_model_finish(&model);
        sl_model_finish(&again);
    }
    unlink(path);
    rmdir(folder);
}

#define LLAMA_SIZES                                                                                \
    "\"model_type\":\"llama\",\"vocab_size\":80,\"hidden_size\":32,\"intermediate_size\":48,"      \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4"

static void both_generations_of_rope_keys_mean_the_same(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "{" LLAMA_SIZES ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
        "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}}",
        "{" LLAMA_SIZES ",\"rope_theta\":500000.0,\"rope_scaling\":{\"type\":\"llama3\","
        "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}}",
        "{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,"
        "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}}",
    };
    struct sl_model first, other;
    struct sl_error error = {0};
    assert_int_equal(from_text(&first, forms[0], &error), 0);
    assert_int_equal(first.rope[0].kind, SL_ROPE_LLAMA3);
    assert_true(first.rope[0].theta == 500000.0);
    for (size_t i = 1; i < sizeof forms / sizeof forms[0]; i++) {
        assert_int_equal(from_text(&other, forms[i], &error), 0);
        check_equal(&first, &other, forms[i]);
        sl_model_finish(&other);
    }
    sl_model_finish(&first);
}

/* A 4B Gemma 3 as its publisher writes it: nested, most keys left out; here without the vision
 * part. */
static void gemma3_text_config_takes_its_class_defaults(void **state)
{
    (void)state;
    struct sl_model m;
    struct sl_error error = {0};
    int rc = from_text(&m,
                       "{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":2560,"
                       "\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
                       "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,"
                       "\"rope_type\":\"linear\"},\"sliding_window\":1024}}",
                       &error);
    if (rc)
        fail_msg("%s", error.message);
    assert_int_equal(m.param_elements, 3880263168); /* 3,880,099,328 of its 262,144 rows + 64 */
    assert_int_equal(m.window[0], 1024);
    assert_int_equal(m.window[5], 0);
    assert_int_equal(m.rope[0].kind, SL_ROPE_LINEAR);
    assert_int_equal(m.rope[1].kind, SL_ROPE_DEFAULT);
    assert_true(m.rope[0].theta == 1e6 && m.rope[1].theta == 1e4 && m.rope[0].factor == 8);
    sl_model_finish(&m);
}

static void qwen2_slides_only_where_it_is_told(void **state)
{
    (void)state;
    const char *sizes = "\"model_type\":\"qwen2\",\"vocab_size\":80,\"hidden_size\":32,"
                        "\"intermediate_size\":48,\"num_hidden_layers\":4,"
                        "\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                        "\"sliding_window\":9,\"max_window_layers\":3";
    char text[512];
    struct sl_model m;
    struct sl_error error = {0};
    snprintf(text, sizeof text, "{%s,\"use_sliding_window\":false}", sizes);
    assert_int_equal(from_text(&m, text, &error), 0);
    assert_int_equal(m.window[3], 0);
    assert_true(m.qkv_bias && !m.o_bias);
    sl_model_finish(&m);
    snprintf(text, sizeof text, "{%s,\"use_sliding_window\":true}", sizes);
    assert_int_equal(from_text(&m, text, &error), 0);
    assert_int_equal(m.window[2], 0);
    assert_int_equal(m.window[3], 9);
    sl_model_finish(&m);
}

static void gpt2_has_dropout_unless_it_is_told_not_to(void **state)
{
    (void)state;
    struct sl_model m;
    struct sl_error error = {0};
    assert_int_equal(from_text(&m,
                               "{\"model_type\":\"gpt2\",\"vocab_size\":80,\"n_embd\":32,"
                               "\"n_layer\":2,\"n_head\":4}",
                               &error),
                     0);
    assert_true(m.dropout == 0.1f);
    assert_int_equal(sl_model_check_training(&m, &error), -ENOTSUP);
    sl_model_finish(&m);
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"[]", "object"},
        {"{}", "model_type"},
        {"{\"model_type\":\"mixtral\"}", "mixtures of experts"},
        {"{\"model_type\":\"qwen3_moe\"}", "mixtures of experts"},
        {"{\"model_type\":\"qwen2_vl\"}", "vision"},
        {"{\"model_type\":\"bert\"}", "bert"},
        {"{\"peft_type\":\"LORA\"}", "LoRA"},
        {"{" LLAMA_SIZES ",\"num_local_experts\":8}", "num_local_experts"},
        {"{\"model_type\":\"gemma3\",\"vision_config\":{}}", "vision_config"},
        {"{" LLAMA_SIZES ",\"quantization_config\":{\"bits\":4}}", "quantization_config"},
        {"{" LLAMA_SIZES ",\"hidden_act\":\"relu\"}", "relu"},
        {"{" LLAMA_SIZES ",\"hidden_act\":7}", "hidden_act"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"rope_type\":\"spiral\"}}", "spiral"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"rope_type\":\"linear\"}}", "rope_scaling.factor"},
        {"{" LLAMA_SIZES ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"8\"}}",
         "rope_scaling.factor"},
        {"{" LLAMA_SIZES ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"short_factor\":[1],"
         "\"long_factor\":[1]}}",
         "short_factor"},
        {"{" LLAMA_SIZES ",\"num_key_value_heads\":3}", "multiple"},
        {"{" LLAMA_SIZES ",\"num_key_value_heads\":0}", "num_key_value_heads"},
        {"{" LLAMA_SIZES ",\"rms_norm_eps\":\"small\"}", "rms_norm_eps"},
        {"{" LLAMA_SIZES ",\"head_dim\":100000}", "head_dim"},
        {"{" LLAMA_SIZES ",\"max_position_embeddings\":1e3}", "max_position_embeddings"},
        {"{" LLAMA_SIZES ",\"tie_word_embeddings\":1}", "tie_word_embeddings"},
        {"{" LLAMA_SIZES ",\"eos_token_id\":\"</s>\"}", "eos_token_id"},
        {"{\"model_type\":\"llama\",\"vocab_size\":80}", "hidden_size"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":80,\"n_embd\":32,\"n_layer\":2,\"n_head\":4,"
         "\"scale_attn_by_inverse_layer_idx\":true}",
         "scale_attn_by_inverse_layer_idx"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":80,\"n_embd\":33,\"n_layer\":2,\"n_head\":4}",
         "multiple"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":80,\"n_embd\":32,\"n_layer\":9999999,"
         "\"n_head\":4}",
         "n_layer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_model m;
        struct sl_error error = {0};
        int rc = from_text(&m, cases[i].text, &error);
        if (rc >= 0 || !strstr(error.message, cases[i].message) || error.domain != SL_DOMAIN_INPUT)
            fail_msg("%s: rc %d, \"%s\" lacks \"%s\"", cases[i].text, rc, error.message,
                     cases[i].message);
    }
}

static void a_missing_or_broken_file_is_named(void **state)
{
    (void)state;
    char folder[] = "/tmp/sluice-config-XXXXXX", path[64], adapter[64];
    struct sl_model m;
    struct sl_error error = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(adapter, sizeof adapter, "%s/adapter_config.json", folder);
    assert_int_equal(sl_model_from_directory(&m, folder, &error), -ENOENT);
    assert_non_null(strstr(error.message, path));
    fclose(fopen(adapter, "w"));
    error = (struct sl_error){0};
    assert_int_equal(sl_model_from_directory(&m, folder, &error), -ENOENT);
    assert_non_null(strstr(error.message, "LoRA"));
    FILE *file = fopen(path, "w");
    fputs("{\"model_type\": \"llama\",\n  \"model_type\": \"gpt2\"}", file);
    fclose(file);
    error = (struct sl_error){0};
    assert_int_equal(sl_model_from_directory(&m, folder, &error), -EINVAL);
    assert_non_null(strstr(error.message, "config.json:2:"));
    unlink(path);
    unlink(adapter);
    rmdir(folder);
}

/* cos and sin are rounded to f32 from an angle that is the same f32 product; only frequencies of
 * the blended kinds, which PyTorch computes in f32 and we in fp64, may differ in the last bit: 48
 * positions times 2^-23 relative, on angles up to 48 rad. */
static void rope_tables_equal_those_of_transformers(void **state)
{
    (void)state;
    static const char *const kinds[] = {"default", "linear", "dynamic",
                                        "yarn",    "llama3", "longrope"};
    enum { POSITIONS = 48, HALF = 8, COUNT = POSITIONS * HALF };
    struct sl_safetensors file;
    struct sl_error error = {0};
    char path[512];
    fixture_path(path, sizeof path, "rope/tables.safetensors");
    assert_int_equal(sl_safetensors_open(&file, path, &error), 0);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        float table[2][COUNT], expected[COUNT];
        char name[64];
        snprintf(name, sizeof name, "rope/%s", kinds[k]);
        struct sl_model m = from_fixture(name);
        assert_int_equal(m.rotary, 2 * HALF);
        sl_model_rope_table(&m, 0, POSITIONS, table[0], table[1]);
        for (int which = 0; which < 2; which++) {
            snprintf(name, sizeof name, "%s.%s", kinds[k], which ? "sin" : "cos");
            const struct sl_safetensor *tensor = sl_safetensors_find(&file, name);
            assert_non_null(tensor);
            assert_int_equal(
                sl_safetensors_read(&file, tensor, 0, sizeof expected, expected, &error), 0);
            for (size_t i = 0; i < COUNT; i++)
                if (fabs((double)(table[which][i] - expected[i])) > 48 * 0x1p-22)
                    fail_msg("%s position %zu pair %zu: %.9g, transformers %.9g", name, i / HALF,
                             i % HALF, (double)table[which][i], (double)expected[i]);
        }
        sl_model_finish(&m);
    }
    sl_safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_is_read),
        cmocka_unit_test(what_is_written_reads_back_the_same),
        cmocka_unit_test(both_generations_of_rope_keys_mean_the_same),
        cmocka_unit_test(gemma3_text_config_takes_its_class_defaults),
        cmocka_unit_test(qwen2_slides_only_where_it_is_told),
        cmocka_unit_test(gpt2_has_dropout_unless_it_is_told_not_to),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(a_missing_or_broken_file_is_named),
        cmocka_unit_test(rope_tables_equal_those_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
