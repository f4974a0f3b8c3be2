// SPDX-License-Identifier: Apache-2.0
/* Writing config.json.
 *
 * A reader that knows only one generation of the rotary keys silently takes its default base for
 * the other, so both forms are written and say the same. Every key whose default differs between
 * readers is written even where it holds the default. Numbers that the model keeps in f32 are
 * written as the shortest decimal that reads back as the same f32: 1e-05, not 9.99999974e-06.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_config.h"
#include "engine/model_family.h"
#include "nvme/file.h"

static json_t *short_number(float value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return json_real(strtod(text, NULL));
}

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key,
                        value); /* a failure shows as a missing key: checked at the end */
}

static void set_count(json_t *object, const char *key, uint32_t value)
{
    set(object, key, json_integer(value));
}

static void set_id(json_t *object, const char *key, int32_t id)
{
    set(object, key, id < 0 ? json_null() : json_integer(id));
}

static json_t *factor_list(const double *factors, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list, json_real(factors[i]));
    return list;
}

/* The keys of one rope besides theta; what = "default" gives only the type. */
static json_t *rope_object(const struct sl_model *m, const struct sl_rope *rope)
{
    static const char *const names[] = {"default", "default", "linear",  "dynamic",
                                        "yarn",    "llama3",  "longrope"};
    json_t *object = json_object();
    set(object, "rope_type", json_string(names[rope->kind]));
    if (rope->kind == SL_ROPE_DEFAULT || rope->kind == SL_ROPE_NONE)
        return object;
    set(object, "factor", json_real(rope->factor));
    if (rope->kind == SL_ROPE_LLAMA3) {
        set(object, "low_freq_factor", json_real(rope->low_freq_factor));
        set(object, "high_freq_factor", json_real(rope->high_freq_factor));
    }
    if (rope->kind == SL_ROPE_YARN) {
        set(object, "beta_fast", json_real(rope->beta_fast));
        set(object, "beta_slow", json_real(rope->beta_slow));
    }
    if (rope->kind == SL_ROPE_LONGROPE) {
        set(object, "short_factor", factor_list(rope->short_factor, m->rotary / 2));
        set(object, "long_factor", factor_list(rope->long_factor, m->rotary / 2));
    }
    if (rope->kind == SL_ROPE_YARN || rope->kind == SL_ROPE_LONGROPE)
        set(object, "attention_factor", json_real(rope->attention_factor));
    if (rope->kind != SL_ROPE_LINEAR && rope->kind != SL_ROPE_DYNAMIC)
        set_count(object, "original_max_position_embeddings", rope->original_positions);
    return object;
}

static json_t *rope_parameters(const struct sl_model *m, const struct sl_rope *rope)
{
    json_t *object = rope_object(m, rope);
    set(object, "rope_theta", json_real(rope->theta));
    if (m->rotary != m->head_size)
        set(object, "partial_rotary_factor", json_real((double)m->rotary / m->head_size));
    return object;
}

static void write_rope(const struct sl_model *m, json_t *root)
{
    bool local = m->family == SL_FAMILY_GEMMA3;
    bool plain = m->rope[0].kind == SL_ROPE_DEFAULT;
    set(root, "rope_theta", json_real(m->rope[0].theta));
    set(root, "rope_scaling", plain ? json_null() : rope_object(m, &m->rope[0]));
    if (m->rotary != m->head_size)
        set(root, "partial_rotary_factor", json_real((double)m->rotary / m->head_size));
    if (m->family == SL_FAMILY_PHI3)
        set_count(root, "original_max_position_embeddings",
                  plain ? m->positions_max : m->rope[0].original_positions);
    json_t *parameters = rope_parameters(m, &m->rope[0]);
    if (local) {
        json_t *nested = json_object();
        set(nested, "full_attention", parameters);
        set(nested, "sliding_attention", rope_parameters(m, &m->rope[1]));
        parameters = nested;
        set(root, "rope_local_base_freq", json_real(m->rope[1].theta));
    }
    set(root, "rope_parameters", parameters);
}

static const char *activation_name(const struct sl_model *m)
{
    if (m->act == SL_ACT_SILU)
        return "silu";
    if (m->act == SL_ACT_GELU)
        return "gelu";
    return m->family == SL_FAMILY_GPT2 ? "gelu_new" : "gelu_pytorch_tanh";
}

static void write_gpt2(const struct sl_model *m, json_t *root)
{
    set_count(root, "n_embd", m->hidden);
    set_count(root, "n_layer", m->layers);
    set_count(root, "n_head", m->heads);
    set_count(root, "n_positions", m->positions_max);
    set_count(root, "n_ctx", m->positions_max);
    set(root, "n_inner", m->ffn == 4 * m->hidden ? json_null() : json_integer(m->ffn));
    set(root, "activation_function", json_string(activation_name(m)));
    set(root, "layer_norm_epsilon", short_number(m->norm_eps));
    set(root, "resid_pdrop", short_number(m->dropout));
    set(root, "embd_pdrop", short_number(m->dropout));
    set(root, "attn_pdrop", short_number(m->dropout));
}

static void write_windows(const struct sl_model *m, json_t *root)
{
    uint32_t window = 0, full_layers = 0;
    json_t *types = json_array();
    for (uint32_t layer = 0; layer < m->layers; layer++) {
        if (m->window[layer])
            window = m->window[layer];
        else
            full_layers++;
        json_array_append_new(
            types, json_string(m->window[layer] ? "sliding_attention" : "full_attention"));
    }
    set(root, "sliding_window", window ? json_integer(window) : json_null());
    bool by_layer = m->family == SL_FAMILY_QWEN2 || m->family == SL_FAMILY_QWEN3 ||
                    m->family == SL_FAMILY_GEMMA2 || m->family == SL_FAMILY_GEMMA3;
    if (m->family == SL_FAMILY_QWEN2 || m->family == SL_FAMILY_QWEN3) {
        set(root, "use_sliding_window", json_boolean(window > 0));
        set_count(root, "max_window_layers", full_layers); /* full layers come first there */
    }
    if (by_layer)
        set(root, "layer_types", types);
    else
        json_decref(types);
}

static void write_gemma(const struct sl_model *m, json_t *root)
{
    set(root, "hidden_activation", json_string(activation_name(m)));
    if (m->family == SL_FAMILY_GEMMA)
        return;
    double scale_of = 1 / ((double)m->attention_scale * (double)m->attention_scale);
    bool whole = fabs(scale_of - round(scale_of)) < 1e-4 * scale_of; /* f32 kept 7 digits of it */
    set(root, "query_pre_attn_scalar",
        whole ? json_integer((json_int_t)round(scale_of)) : json_real(scale_of));
    set(root, "attn_logit_softcapping",
        m->attention_softcap > 0 ? short_number(m->attention_softcap) : json_null());
    set(root, "final_logit_softcapping",
        m->final_softcap > 0 ? short_number(m->final_softcap) : json_null());
}

static void write_llama_like(const struct sl_model *m, json_t *root)
{
    set_count(root, "hidden_size", m->hidden);
    set_count(root, "num_hidden_layers", m->layers);
    set_count(root, "num_attention_heads", m->heads);
    set_count(root, "num_key_value_heads", m->kv_heads);
    set_count(root, "head_dim", m->head_size);
    set_count(root, "intermediate_size", m->ffn);
    set_count(root, "max_position_embeddings", m->positions_max);
    set(root, "hidden_act", json_string(activation_name(m)));
    set(root, "rms_norm_eps", short_number(m->norm_eps));
    set(root, "attention_dropout", short_number(m->dropout));
    if (m->family != SL_FAMILY_QWEN2 && m->family != SL_FAMILY_MISTRAL &&
        m->family != SL_FAMILY_PHI3)
        set(root, "attention_bias", json_boolean(m->qkv_bias));
    if (m->family == SL_FAMILY_LLAMA)
        set(root, "mlp_bias", json_boolean(m->mlp_bias));
    if (m->family != SL_FAMILY_LLAMA && m->family != SL_FAMILY_GEMMA)
        write_windows(m, root);
    if (m->norm == SL_NORM_RMS_PLUS_ONE)
        write_gemma(m, root);
    write_rope(m, root);
}

json_t *sl_model_config_object(const struct sl_model *m, enum sl_dtype dtype)
{
    static const char *const type_names[] = {
        [SL_F32] = "float32", [SL_BF16] = "bfloat16", [SL_F16] = "float16"};
    const struct sl_family_info *info = sl_family_info(m->family);
    json_t *root = json_object();
    set(root, "architectures", json_pack("[s]", info->architecture));
    set(root, "model_type", json_string(info->model_type));
    set(root, "dtype", json_string(type_names[dtype]));
    set(root, "torch_dtype", json_string(type_names[dtype]));
    set_count(root, "vocab_size", m->vocabulary);
    set(root, "tie_word_embeddings", json_boolean(m->tied));
    set(root, "initializer_range", json_real(0.02));
    set(root, "use_cache", json_true());
    set_id(root, "bos_token_id", m->bos_id);
    set_id(root, "eos_token_id", m->eos_id);
    set(root, "pad_token_id", json_null());
    if (m->family == SL_FAMILY_GPT2)
        write_gpt2(m, root);
    else
        write_llama_like(m, root);
    return root;
}

static int write_text(const char *path, const char *text, struct sl_error *error)
{
    struct sl_file_writer *writer = NULL;
    void *buffer = aligned_alloc(SL_FILE_ALIGNMENT, SL_FILE_BUFFER_BYTES_MIN);
    if (!buffer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory to write it", path);
    struct sl_file_writer_options options = {
        .path = path, .buffer = buffer, .buffer_bytes = SL_FILE_BUFFER_BYTES_MIN};
    int rc = sl_file_writer_open(&writer, &options, error);
    if (!rc)
        rc = sl_file_writer_append(writer, text, strlen(text), error);
    if (!rc)
        rc = sl_file_writer_append(writer, "\n", 1, error);
    if (rc)
        sl_file_writer_abort(writer);
    else
        rc = sl_file_writer_commit(writer, error);
    free(buffer);
    return rc;
}

int sl_model_write_config(const struct sl_model *model, enum sl_dtype dtype, const char *directory,
                          struct sl_error *error)
{
    json_t *root = sl_model_config_object(model, dtype);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS), *path = NULL;
    int rc = -ENOMEM;
    if (text && asprintf(&path, "%s/config.json", directory) >= 0)
        rc = write_text(path, text, error);
    else
        sl_error_set(error, SL_DOMAIN_MEMORY, rc, "%s: no memory to write config.json", directory);
    json_decref(root);
    free(text);
    free(path);
    return rc;
}
