// SPDX-License-Identifier: Apache-2.0
/* Reading config.json of transformers 4 and 5.
 *
 * The file says what the weights mean; a key that is misread gives a model that loads, trains, and
 * is wrong. So every key that changes the computation is either used or, where it asks for
 * something that the transformer does not do, refused by name; keys that do not change it
 * (use_cache and the like) are not looked at. Absent keys take the default that transformers gives
 * the class, except for the sizes, which only Gemma 3's files leave out.
 *
 * The look-ups remember the first failure and then return their fallback, so that filling a model
 * is a list of assignments with one check at its end.
 */
#include "engine/model_config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model_family.h"

#define CONFIG_BYTES_MAX (4 << 20)
#define POSITIONS_MAX (1u << 28)

/* What a class of transformers assumes for keys that its file leaves out. 0: the key is needed, or
 * for kv_heads and head_size: derived. */
static const struct {
    uint32_t vocabulary, hidden, ffn, layers, heads, kv_heads, head_size, positions, window;
    float eps;
    double theta, local_theta, query_scale_of, attention_softcap, final_softcap, dropout;
    bool tied;
} defaults[] = {
    [SL_FAMILY_GPT2] = {.positions = 1024, .eps = 1e-5f, .tied = true, .dropout = 0.1},
    [SL_FAMILY_LLAMA] = {.positions = 2048, .eps = 1e-6f, .theta = 1e4},
    [SL_FAMILY_MISTRAL] =
        {.kv_heads = 8, .positions = 131072, .window = 4096, .eps = 1e-6f, .theta = 1e4},
    [SL_FAMILY_QWEN2] =
        {.kv_heads = 32, .positions = 32768, .window = 4096, .eps = 1e-6f, .theta = 1e4},
    [SL_FAMILY_QWEN3] = {.kv_heads = 32,
                         .head_size = 128,
                         .positions = 32768,
                         .window = 4096,
                         .eps = 1e-6f,
                         .theta = 1e4},
    [SL_FAMILY_GEMMA] = {.kv_heads = 16,
                         .head_size = 256,
                         .positions = 8192,
                         .eps = 1e-6f,
                         .theta = 1e4,
                         .tied = true},
    [SL_FAMILY_GEMMA2] = {.kv_heads = 4,
                          .head_size = 256,
                          .positions = 8192,
                          .window = 4096,
                          .eps = 1e-6f,
                          .theta = 1e4,
                          .tied = true,
                          .query_scale_of = 256,
                          .attention_softcap = 50,
                          .final_softcap = 30},
    [SL_FAMILY_GEMMA3] = {.vocabulary = 262208,
                          .hidden = 2304,
                          .ffn = 9216,
                          .layers = 26,
                          .heads = 8,
                          .kv_heads = 4,
                          .head_size = 256,
                          .positions = 131072,
                          .window = 4096,
                          .eps = 1e-6f,
                          .theta = 1e6,
                          .local_theta = 1e4,
                          .tied = true,
                          .query_scale_of = 256},
    [SL_FAMILY_PHI3] = {.positions = 4096, .eps = 1e-5f, .theta = 1e4},
};

int sl_model_config_refuse(struct sl_model_config *config, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (config->rc == 0)
        config->rc =
            sl_error_set(config->error, SL_DOMAIN_INPUT, -EINVAL, "%s: %s", config->path, text);
    return config->rc;
}

json_t *sl_model_config_get(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

double sl_model_config_number(struct sl_model_config *config, const json_t *object,
                              const char *where, const char *key, double fallback, double low,
                              double high)
{
    json_t *value = sl_model_config_get(object, key);
    if (!value || config->rc)
        return fallback;
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite(number)) {
        sl_model_config_refuse(config, "%s%s: must be a number", where, key);
        return fallback;
    }
    if (number < low || number > high) {
        sl_model_config_refuse(config, "%s%s %g: must be between %g and %g", where, key, number,
                               low, high);
        return fallback;
    }
    return number;
}

uint32_t sl_model_config_count(struct sl_model_config *config, const json_t *object,
                               const char *key, uint32_t fallback, uint32_t high)
{
    json_t *value = sl_model_config_get(object, key);
    if (config->rc)
        return fallback;
    if (!value && fallback == 0)
        sl_model_config_refuse(config, "%s: is missing", key);
    if (!value)
        return fallback;
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || number > high) {
        sl_model_config_refuse(config, "%s: must be a whole number between 1 and %u", key, high);
        return fallback;
    }
    return (uint32_t)number;
}

bool sl_model_config_flag(struct sl_model_config *config, const json_t *object, const char *key,
                          bool fallback)
{
    json_t *value = sl_model_config_get(object, key);
    if (!value || config->rc)
        return fallback;
    if (!json_is_boolean(value))
        sl_model_config_refuse(config, "%s: must be true or false", key);
    return json_is_true(value);
}

/* Parts that make a checkpoint something else than one of the families. */
static void refuse_parts(struct sl_model_config *c, const json_t *root)
{
    static const struct {
        const char *key, *what;
    } parts[] = {
        {"vision_config", "vision parts are not supported; save the text model alone"},
        {"vision_tower", "vision parts are not supported; save the text model alone"},
        {"audio_config", "audio parts are not supported; save the text model alone"},
        {"quantization_config", "quantized weights are not supported; take the 16-bit checkpoint"},
        {"num_local_experts", "mixtures of experts are not supported"},
        {"num_experts", "mixtures of experts are not supported"},
        {"n_routed_experts", "mixtures of experts are not supported"},
        {"peft_type", "LoRA adapters are not supported; merge it into its base model first"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        json_t *value = sl_model_config_get(root, parts[i].key);
        bool zero = json_is_integer(value) && json_integer_value(value) == 0;
        if (value && !zero)
            sl_model_config_refuse(c, "%s: %s", parts[i].key, parts[i].what);
    }
}

/* Options that change the computation in a way that the transformer does not have. */
static void refuse_options(struct sl_model_config *c)
{
    static const struct {
        const char *key;
        bool usual;
    } options[] = {
        {"scale_attn_weights", true},   {"scale_attn_by_inverse_layer_idx", false},
        {"add_cross_attention", false}, {"use_bidirectional_attention", false},
        {"is_encoder_decoder", false},  {"alibi", false},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (sl_model_config_flag(c, c->root, options[i].key, options[i].usual) != options[i].usual)
            sl_model_config_refuse(c, "%s: only %s is supported", options[i].key,
                                   options[i].usual ? "true" : "false");
}

static int find_family(struct sl_model_config *c, const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type)
        return sl_model_config_refuse(c, "model_type: is missing");
    int family = sl_family_find(type);
    if (family >= 0)
        return family;
    if (strstr(type, "moe") || strcmp(type, "mixtral") == 0 || strncmp(type, "deepseek", 8) == 0)
        return sl_model_config_refuse(
            c, "model_type \"%.60s\": mixtures of experts are not supported", type);
    if (strstr(type, "vl") || strstr(type, "llava") || strcmp(type, "mllama") == 0)
        return sl_model_config_refuse(c, "model_type \"%.60s\": vision parts are not supported",
                                      type);
    return sl_model_config_refuse(
        c,
        "model_type \"%.60s\": not supported; the families are gpt2, llama, "
        "mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, phi3",
        type);
}

static void read_activation(struct sl_model_config *c, struct sl_model *m)
{
    static const struct {
        const char *name;
        enum sl_act_kind kind;
    } names[] = {
        {"silu", SL_ACT_SILU},           {"swish", SL_ACT_SILU},
        {"gelu_new", SL_ACT_GELU_TANH},  {"gelu_pytorch_tanh", SL_ACT_GELU_TANH},
        {"gelu_fast", SL_ACT_GELU_TANH}, {"gelu", SL_ACT_GELU},
    };
    const char *key = m->family == SL_FAMILY_GPT2 ? "activation_function" : "hidden_act";
    json_t *value = sl_model_config_get(c->root, "hidden_activation");
    if (value)
        key = "hidden_activation";
    else
        value = sl_model_config_get(c->root, key);
    const char *name = json_string_value(value);
    if (!value)
        return;
    /* Gemma 1's first files say "gelu" and mean the tanh form, in which it was trained. */
    if (name && m->family == SL_FAMILY_GEMMA && strcmp(name, "gelu") == 0)
        return;
    for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0) {
            m->act = names[i].kind;
            return;
        }
    }
    sl_model_config_refuse(
        c, "%s \"%.40s\": not supported; silu, gelu_new, gelu_pytorch_tanh and gelu are", key,
        name ? name : "(not a string)");
}

static int32_t read_id(struct sl_model_config *c, const char *key)
{
    json_t *value = sl_model_config_get(c->root, key);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (!value)
        return -1;
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < -1 || id > INT32_MAX)
        sl_model_config_refuse(c, "%s: must be a token id or a list of them", key);
    return (int32_t)id;
}

static void read_dropout(struct sl_model_config *c, struct sl_model *m)
{
    static const char *const keys[] = {"attention_dropout", "hidden_dropout", "resid_pdrop",
                                       "embd_pdrop", "attn_pdrop"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        bool pdrop = i >= 2;
        double fallback = pdrop ? defaults[m->family].dropout : 0;
        double value = sl_model_config_number(c, c->root, "", keys[i], fallback, 0, 1);
        if ((float)value > m->dropout)
            m->dropout = (float)value;
    }
}

static void read_gpt2(struct sl_model_config *c, struct sl_model *m)
{
    m->hidden = sl_model_config_count(c, c->root, "n_embd", 0, 1u << 20);
    m->layers = sl_model_config_count(c, c->root, "n_layer", 0, SL_MODEL_LAYERS_MAX);
    m->heads = m->kv_heads = sl_model_config_count(c, c->root, "n_head", 0, 1u << 14);
    m->positions_max = sl_model_config_count(c, c->root, "n_positions", 1024, POSITIONS_MAX);
    m->ffn = sl_model_config_count(c, c->root, "n_inner", c->rc ? 1 : 4 * m->hidden, 1u << 22);
    m->norm_eps = (float)sl_model_config_number(c, c->root, "", "layer_norm_epsilon", (double)1e-5f,
                                                1e-12, 1);
}

static void read_llama_like(struct sl_model_config *c, struct sl_model *m)
{
    enum sl_family f = m->family;
    m->hidden = sl_model_config_count(c, c->root, "hidden_size", defaults[f].hidden, 1u << 20);
    m->layers = sl_model_config_count(c, c->root, "num_hidden_layers", defaults[f].layers,
                                      SL_MODEL_LAYERS_MAX);
    m->heads =
        sl_model_config_count(c, c->root, "num_attention_heads", defaults[f].heads, 1u << 14);
    m->ffn = sl_model_config_count(c, c->root, "intermediate_size", defaults[f].ffn, 1u << 22);
    bool kv_null = json_is_null(json_object_get(c->root, "num_key_value_heads"));
    m->kv_heads = sl_model_config_count(
        c, c->root, "num_key_value_heads",
        defaults[f].kv_heads && !kv_null ? defaults[f].kv_heads : m->heads, 1u << 14);
    m->positions_max = sl_model_config_count(c, c->root, "max_position_embeddings",
                                             defaults[f].positions, POSITIONS_MAX);
    m->norm_eps = (float)sl_model_config_number(c, c->root, "", "rms_norm_eps",
                                                (double)defaults[f].eps, 1e-12, 1);
    if (f == SL_FAMILY_LLAMA || f == SL_FAMILY_QWEN3 || m->norm == SL_NORM_RMS_PLUS_ONE) {
        bool bias = sl_model_config_flag(c, c->root, "attention_bias", false);
        m->qkv_bias = m->o_bias = bias;
    }
    if (f == SL_FAMILY_LLAMA)
        m->mlp_bias = sl_model_config_flag(c, c->root, "mlp_bias", false);
}

static void read_head_size(struct sl_model_config *c, struct sl_model *m)
{
    bool keyed = m->family != SL_FAMILY_GPT2; /* whose class does not know the key */
    bool given = keyed && sl_model_config_get(c->root, "head_dim") != NULL;
    uint32_t fallback = defaults[m->family].head_size;
    if (!given && fallback == 0) {
        if (!c->rc && m->hidden % m->heads != 0)
            sl_model_config_refuse(c, "hidden size %u: must be a multiple of the %u heads",
                                   m->hidden, m->heads);
        fallback = c->rc ? 1 : m->hidden / m->heads;
    }
    m->head_size = given ? sl_model_config_count(c, c->root, "head_dim", 1, 512) : fallback;
}

static void read_gemma(struct sl_model_config *c, struct sl_model *m)
{
    enum sl_family f = m->family;
    m->embedding_scale = sqrtf((float)m->hidden);
    if (f == SL_FAMILY_GEMMA)
        return;
    double scale_of = sl_model_config_number(c, c->root, "", "query_pre_attn_scalar",
                                             defaults[f].query_scale_of, 1e-3, 1e9);
    m->attention_scale = (float)pow(scale_of, -0.5);
    bool none = json_is_null(json_object_get(c->root, "attn_logit_softcapping"));
    m->attention_softcap =
        (float)sl_model_config_number(c, c->root, "", "attn_logit_softcapping",
                                      none ? 0 : defaults[f].attention_softcap, 1e-3, 1e6);
    none = json_is_null(json_object_get(c->root, "final_logit_softcapping"));
    m->final_softcap = (float)sl_model_config_number(
        c, c->root, "", "final_logit_softcapping", none ? 0 : defaults[f].final_softcap, 1e-3, 1e6);
}

/* layer_types where it is given, else the family's rule. */
static bool layer_slides(struct sl_model_config *c, const struct sl_model *m, uint32_t layer)
{
    json_t *types = sl_model_config_get(c->root, "layer_types");
    if (types && m->family != SL_FAMILY_MISTRAL && m->family != SL_FAMILY_LLAMA &&
        m->family != SL_FAMILY_PHI3) {
        const char *type = json_string_value(json_array_get(types, layer));
        if (type && strcmp(type, "sliding_attention") == 0)
            return true;
        if (!type || strcmp(type, "full_attention") != 0)
            sl_model_config_refuse(
                c, "layer_types[%u]: must be full_attention or sliding_attention", layer);
        return false;
    }
    if (m->family == SL_FAMILY_GEMMA2)
        return layer % 2 == 0;
    if (m->family == SL_FAMILY_GEMMA3)
        return (layer + 1) % sl_model_config_count(c, c->root, "sliding_window_pattern", 6, 1024) !=
               0;
    if (m->family == SL_FAMILY_QWEN2 || m->family == SL_FAMILY_QWEN3) {
        double full = sl_model_config_number(c, c->root, "", "max_window_layers", 28, 0, 1e6);
        return layer >= full;
    }
    return true;
}

static void read_windows(struct sl_model_config *c, struct sl_model *m)
{
    if (m->family == SL_FAMILY_GPT2 || m->family == SL_FAMILY_LLAMA || m->family == SL_FAMILY_GEMMA)
        return;
    bool off = json_is_null(json_object_get(c->root, "sliding_window"));
    bool qwen = m->family == SL_FAMILY_QWEN2 || m->family == SL_FAMILY_QWEN3;
    if (qwen && !sl_model_config_flag(c, c->root, "use_sliding_window", false))
        off = true;
    if (!sl_model_config_get(c->root, "sliding_window") && defaults[m->family].window == 0)
        off = true;
    uint32_t window = off ? 0
                          : sl_model_config_count(c, c->root, "sliding_window",
                                                  defaults[m->family].window, POSITIONS_MAX);
    for (uint32_t layer = 0; layer < m->layers && !c->rc; layer++) {
        bool slides = layer_slides(c, m, layer);
        m->window[layer] = slides ? window : 0;
        m->rope_index[layer] = m->family == SL_FAMILY_GEMMA3 && slides;
    }
}

static void fill(struct sl_model_config *c, struct sl_model *m, enum sl_family family)
{
    sl_family_defaults(m, family);
    m->vocabulary =
        sl_model_config_count(c, c->root, "vocab_size", defaults[family].vocabulary, 1u << 24);
    if (family == SL_FAMILY_GPT2)
        read_gpt2(c, m);
    else
        read_llama_like(c, m);
    read_head_size(c, m);
    m->tied = sl_model_config_flag(c, c->root, "tie_word_embeddings", defaults[family].tied);
    m->bos_id = read_id(c, "bos_token_id");
    m->eos_id = read_id(c, "eos_token_id");
    read_activation(c, m);
    read_dropout(c, m);
    if (m->norm == SL_NORM_RMS_PLUS_ONE)
        read_gemma(c, m);
    read_windows(c, m);
    if (!c->rc && family != SL_FAMILY_GPT2)
        sl_model_config_rope(c, m, defaults[family].theta, defaults[family].local_theta);
}

int sl_model_from_config(struct sl_model *model, json_t *root, const char *path,
                         struct sl_error *error)
{
    struct sl_model_config c = {.path = path, .root = root, .error = error};
    memset(model, 0, sizeof *model);
    if (!json_is_object(root))
        return sl_model_config_refuse(&c, "must be an object");
    refuse_parts(&c, root);
    json_t *text = sl_model_config_get(root, "text_config");
    int family = c.rc ? c.rc : find_family(&c, root);
    if (family >= 0 && json_is_object(text)) {
        c.root = text;
        refuse_parts(&c, text);
    }
    if (family < 0)
        return family;
    refuse_options(&c);
    fill(&c, model, (enum sl_family)family);
    if (!c.rc && c.root == text && sl_model_config_get(root, "tie_word_embeddings"))
        model->tied = sl_model_config_flag(&c, root, "tie_word_embeddings", model->tied);
    if (!c.rc) {
        c.rc = sl_model_build(model, error);
        if (c.rc && error)
            sl_error_prefix(error, "%s", path);
    }
    if (c.rc)
        memset(model, 0, sizeof *model);
    return c.rc;
}

int sl_model_from_directory(struct sl_model *model, const char *directory, struct sl_error *error)
{
    char *path = NULL, *adapter = NULL;
    struct stat info;
    json_error_t problem;
    memset(model, 0, sizeof *model);
    if (asprintf(&path, "%s/config.json", directory) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a path",
                            directory);
    int rc = 0;
    if (stat(path, &info) != 0) {
        rc = -errno;
        bool lora = asprintf(&adapter, "%s/adapter_config.json", directory) >= 0 &&
                    access(adapter, F_OK) == 0;
        sl_error_set(error, SL_DOMAIN_INPUT, rc, "%s: %s%s", path, strerror(-rc),
                     lora ? "; the folder is a LoRA adapter, which is not supported: merge it into "
                            "its base model first"
                          : "; give a folder that holds a Hugging Face model: config.json, the "
                            "weights and tokenizer.json");
        free(adapter);
    } else if (!S_ISREG(info.st_mode) || info.st_size > CONFIG_BYTES_MAX) {
        rc = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                          "%s: not a regular file of at most 4 MiB", path);
    }
    json_t *root = rc ? NULL : json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!rc && !root)
        rc = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s:%d:%d: %s", path, problem.line,
                          problem.column, problem.text);
    if (!rc)
        rc = sl_model_from_config(model, root, path, error);
    json_decref(root);
    free(path);
    return rc;
}
