// SPDX-License-Identifier: Apache-2.0
/* The families as data.
 *
 * A family is a row of names, a set of defaults, and a list of tensors. A tensor is {role, name,
 * two symbolic dimensions, the option it depends on}; `build` walks the list once per unit, skips
 * what the model's options switch off, and resolves the dimensions. No other file knows a tensor
 * name, and nothing outside this list differs between families in memory: the transformer asks by
 * role.
 *
 * Five families share one list (Llama's names), because their differences are options: biases, q
 * and k norms, window. Rejected: a list per family (nine near-copies), and names composed by code
 * (the list could then not be read beside a checkpoint).
 *
 * Invariant: entries are in memory order; entries of one role are adjacent and equal in columns, so
 * that they are the rows of one matrix.
 */
#include "engine/model_family.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum dim { ONE, V, P, C, QD, KD, QKVD, D, F, F2 };

/* Options that a tensor depends on. */
enum need {
    ALWAYS,
    QKV_BIAS,
    O_BIAS,
    MLP_BIAS,
    NORM_BIAS,
    QK_NORM,
    POST_NORMS,
    UNTIED,
    TABLE,
};

struct tensor {
    enum sl_role role;
    enum need need;
    enum dim rows, columns; /* rows ONE: a vector */
    const char *name;       /* of a layer tensor: after the layer prefix */
    bool transposed;
};

struct tensor_list {
    const char *layer_prefix; /* with one %u */
    const struct tensor *embedding, *layer, *final;
};

#define END                                                                                        \
    {                                                                                              \
        .name = NULL                                                                               \
    }

static const struct tensor llama_embedding[] = {
    {SL_ROLE_TOKEN_EMBEDDING, ALWAYS, V, C, "model.embed_tokens.weight"},
    END,
};

static const struct tensor llama_final[] = {
    {SL_ROLE_FINAL_NORM, ALWAYS, ONE, C, "model.norm.weight"},
    {SL_ROLE_HEAD, UNTIED, V, C, "lm_head.weight"},
    END,
};

static const struct tensor llama_layer[] = {
    {SL_ROLE_NORM1, ALWAYS, ONE, C, "input_layernorm.weight"},
    {SL_ROLE_QKV, ALWAYS, QD, C, "self_attn.q_proj.weight"},
    {SL_ROLE_QKV, ALWAYS, KD, C, "self_attn.k_proj.weight"},
    {SL_ROLE_QKV, ALWAYS, KD, C, "self_attn.v_proj.weight"},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, QD, "self_attn.q_proj.bias"},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, KD, "self_attn.k_proj.bias"},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, KD, "self_attn.v_proj.bias"},
    {SL_ROLE_Q_NORM, QK_NORM, ONE, D, "self_attn.q_norm.weight"},
    {SL_ROLE_K_NORM, QK_NORM, ONE, D, "self_attn.k_norm.weight"},
    {SL_ROLE_O, ALWAYS, C, QD, "self_attn.o_proj.weight"},
    {SL_ROLE_O_BIAS, O_BIAS, ONE, C, "self_attn.o_proj.bias"},
    {SL_ROLE_NORM2, ALWAYS, ONE, C, "post_attention_layernorm.weight"},
    {SL_ROLE_UP, ALWAYS, F, C, "mlp.gate_proj.weight"},
    {SL_ROLE_UP, ALWAYS, F, C, "mlp.up_proj.weight"},
    {SL_ROLE_UP_BIAS, MLP_BIAS, ONE, F, "mlp.gate_proj.bias"},
    {SL_ROLE_UP_BIAS, MLP_BIAS, ONE, F, "mlp.up_proj.bias"},
    {SL_ROLE_DOWN, ALWAYS, C, F, "mlp.down_proj.weight"},
    {SL_ROLE_DOWN_BIAS, MLP_BIAS, ONE, C, "mlp.down_proj.bias"},
    END,
};

/* Gemma 2 and 3: a norm before and after each half; "post_attention" is the one after. */
static const struct tensor gemma2_layer[] = {
    {SL_ROLE_NORM1, ALWAYS, ONE, C, "input_layernorm.weight"},
    {SL_ROLE_QKV, ALWAYS, QD, C, "self_attn.q_proj.weight"},
    {SL_ROLE_QKV, ALWAYS, KD, C, "self_attn.k_proj.weight"},
    {SL_ROLE_QKV, ALWAYS, KD, C, "self_attn.v_proj.weight"},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, QD, "self_attn.q_proj.bias"},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, KD, "self_attn.k_proj.bias"},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, KD, "self_attn.v_proj.bias"},
    {SL_ROLE_Q_NORM, QK_NORM, ONE, D, "self_attn.q_norm.weight"},
    {SL_ROLE_K_NORM, QK_NORM, ONE, D, "self_attn.k_norm.weight"},
    {SL_ROLE_O, ALWAYS, C, QD, "self_attn.o_proj.weight"},
    {SL_ROLE_O_BIAS, O_BIAS, ONE, C, "self_attn.o_proj.bias"},
    {SL_ROLE_POST_NORM1, POST_NORMS, ONE, C, "post_attention_layernorm.weight"},
    {SL_ROLE_NORM2, ALWAYS, ONE, C, "pre_feedforward_layernorm.weight"},
    {SL_ROLE_UP, ALWAYS, F, C, "mlp.gate_proj.weight"},
    {SL_ROLE_UP, ALWAYS, F, C, "mlp.up_proj.weight"},
    {SL_ROLE_DOWN, ALWAYS, C, F, "mlp.down_proj.weight"},
    {SL_ROLE_POST_NORM2, POST_NORMS, ONE, C, "post_feedforward_layernorm.weight"},
    END,
};

/* Phi 3: the fused matrices are fused in the file too. */
static const struct tensor phi3_layer[] = {
    {SL_ROLE_NORM1, ALWAYS, ONE, C, "input_layernorm.weight"},
    {SL_ROLE_QKV, ALWAYS, QKVD, C, "self_attn.qkv_proj.weight"},
    {SL_ROLE_O, ALWAYS, C, QD, "self_attn.o_proj.weight"},
    {SL_ROLE_NORM2, ALWAYS, ONE, C, "post_attention_layernorm.weight"},
    {SL_ROLE_UP, ALWAYS, F2, C, "mlp.gate_up_proj.weight"},
    {SL_ROLE_DOWN, ALWAYS, C, F, "mlp.down_proj.weight"},
    END,
};

static const struct tensor gpt2_embedding[] = {
    {SL_ROLE_TOKEN_EMBEDDING, ALWAYS, V, C, "transformer.wte.weight"},
    {SL_ROLE_POSITION_EMBEDDING, TABLE, P, C, "transformer.wpe.weight"},
    END,
};

static const struct tensor gpt2_layer[] = {
    {SL_ROLE_NORM1, ALWAYS, ONE, C, "ln_1.weight"},
    {SL_ROLE_NORM1_BIAS, NORM_BIAS, ONE, C, "ln_1.bias"},
    {SL_ROLE_QKV, ALWAYS, QKVD, C, "attn.c_attn.weight", true},
    {SL_ROLE_QKV_BIAS, QKV_BIAS, ONE, QKVD, "attn.c_attn.bias"},
    {SL_ROLE_O, ALWAYS, C, QD, "attn.c_proj.weight", true},
    {SL_ROLE_O_BIAS, O_BIAS, ONE, C, "attn.c_proj.bias"},
    {SL_ROLE_NORM2, ALWAYS, ONE, C, "ln_2.weight"},
    {SL_ROLE_NORM2_BIAS, NORM_BIAS, ONE, C, "ln_2.bias"},
    {SL_ROLE_UP, ALWAYS, F, C, "mlp.c_fc.weight", true},
    {SL_ROLE_UP_BIAS, MLP_BIAS, ONE, F, "mlp.c_fc.bias"},
    {SL_ROLE_DOWN, ALWAYS, C, F, "mlp.c_proj.weight", true},
    {SL_ROLE_DOWN_BIAS, MLP_BIAS, ONE, C, "mlp.c_proj.bias"},
    END,
};

static const struct tensor gpt2_final[] = {
    {SL_ROLE_FINAL_NORM, ALWAYS, ONE, C, "transformer.ln_f.weight"},
    {SL_ROLE_FINAL_NORM_BIAS, NORM_BIAS, ONE, C, "transformer.ln_f.bias"},
    {SL_ROLE_HEAD, UNTIED, V, C, "lm_head.weight"},
    END,
};

#define LLAMA_PREFIX "model.layers.%u."

static const struct tensor_list llama_list = {LLAMA_PREFIX, llama_embedding, llama_layer,
                                              llama_final};
static const struct tensor_list gemma2_list = {LLAMA_PREFIX, llama_embedding, gemma2_layer,
                                               llama_final};
static const struct tensor_list phi3_list = {LLAMA_PREFIX, llama_embedding, phi3_layer,
                                             llama_final};
static const struct tensor_list gpt2_list = {"transformer.h.%u.", gpt2_embedding, gpt2_layer,
                                             gpt2_final};

/* clang-format off */
#define LLAMA_NAMES {{"", ""}, {"model.", ""}, {NULL, NULL}}, {".rotary_emb.inv_freq", NULL}

static const struct {
    struct sl_family_info info;
    const struct tensor_list *list;
} families[] = {
    [SL_FAMILY_GPT2] = {{"gpt2", "GPT2LMHeadModel", NULL,
                         {{"", ""}, {"transformer.", ""}, {NULL, NULL}},
                         {".attn.bias", ".attn.masked_bias", NULL}}, &gpt2_list},
    [SL_FAMILY_LLAMA] = {{"llama", "LlamaForCausalLM", NULL, LLAMA_NAMES}, &llama_list},
    [SL_FAMILY_MISTRAL] = {{"mistral", "MistralForCausalLM", NULL, LLAMA_NAMES}, &llama_list},
    [SL_FAMILY_QWEN2] = {{"qwen2", "Qwen2ForCausalLM", NULL, LLAMA_NAMES}, &llama_list},
    [SL_FAMILY_QWEN3] = {{"qwen3", "Qwen3ForCausalLM", NULL, LLAMA_NAMES}, &llama_list},
    [SL_FAMILY_GEMMA] = {{"gemma", "GemmaForCausalLM", NULL, LLAMA_NAMES}, &llama_list},
    [SL_FAMILY_GEMMA2] = {{"gemma2", "Gemma2ForCausalLM", NULL, LLAMA_NAMES}, &gemma2_list},
    [SL_FAMILY_GEMMA3] = {{"gemma3_text", "Gemma3ForCausalLM", "gemma3",
                           {{"", ""}, {"", "language_model."},
                            {"model.", "model.language_model."}, {NULL, NULL}},
                           {".rotary_emb.inv_freq", NULL}}, &gemma2_list},
    [SL_FAMILY_PHI3] = {{"phi3", "Phi3ForCausalLM", NULL, LLAMA_NAMES}, &phi3_list},
};
/* clang-format on */

#define FAMILY_COUNT (sizeof families / sizeof families[0])

const struct sl_family_info *sl_family_info(enum sl_family family)
{
    return &families[family].info;
}

int sl_family_find(const char *model_type)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        const struct sl_family_info *info = &families[i].info;
        if (strcmp(info->model_type, model_type) == 0 ||
            (info->alias_type && strcmp(info->alias_type, model_type) == 0))
            return (int)i;
    }
    return -1;
}

void sl_family_defaults(struct sl_model *model, enum sl_family family)
{
    bool gpt2 = family == SL_FAMILY_GPT2;
    bool gemma =
        family == SL_FAMILY_GEMMA || family == SL_FAMILY_GEMMA2 || family == SL_FAMILY_GEMMA3;
    *model = (struct sl_model){
        .family = family,
        .norm = gpt2    ? SL_NORM_LAYER
                : gemma ? SL_NORM_RMS_PLUS_ONE
                        : SL_NORM_RMS,
        .norm_eps = 1e-5f,
        .act = gpt2 || gemma ? SL_ACT_GELU_TANH : SL_ACT_SILU,
        .gated = !gpt2,
        .tied = gpt2 || gemma,
        .position_table = gpt2,
        .qkv_bias = gpt2 || family == SL_FAMILY_QWEN2,
        .o_bias = gpt2,
        .mlp_bias = gpt2,
        .norm_bias = gpt2,
        .qk_norm = family == SL_FAMILY_QWEN3 || family == SL_FAMILY_GEMMA3,
        .post_norms = family == SL_FAMILY_GEMMA2 || family == SL_FAMILY_GEMMA3,
        .embedding_scale = 1.0f,
        .bos_id = -1,
        .eos_id = -1,
    };
    for (int i = 0; i < 2; i++)
        model->rope[i] = (struct sl_rope){
            .kind = gpt2 ? SL_ROPE_NONE : SL_ROPE_DEFAULT,
            .theta = 10000.0,
            .factor = 1.0,
            .attention_factor = 1.0,
        };
}

static uint64_t dim_size(const struct sl_model *m, enum dim dim)
{
    uint64_t q = (uint64_t)m->heads * m->head_size;
    uint64_t kv = (uint64_t)m->kv_heads * m->head_size;
    switch (dim) {
    case ONE:
        return 1;
    case V:
        return m->vocabulary;
    case P:
        return m->positions_max;
    case C:
        return m->hidden;
    case QD:
        return q;
    case KD:
        return kv;
    case QKVD:
        return q + 2 * kv;
    case D:
        return m->head_size;
    case F:
        return m->ffn;
    case F2:
        return 2 * (uint64_t)m->ffn;
    }
    return 0;
}

static bool needed(const struct sl_model *m, enum need need)
{
    switch (need) {
    case ALWAYS:
        return true;
    case QKV_BIAS:
        return m->qkv_bias;
    case O_BIAS:
        return m->o_bias;
    case MLP_BIAS:
        return m->mlp_bias;
    case NORM_BIAS:
        return m->norm_bias;
    case QK_NORM:
        return m->qk_norm;
    case POST_NORMS:
        return m->post_norms;
    case UNTIED:
        return !m->tied;
    case TABLE:
        return m->position_table;
    }
    return false;
}

static const struct tensor *unit_tensors(const struct sl_model *m, uint32_t unit)
{
    const struct tensor_list *list = families[m->family].list;
    return unit == 0 ? list->embedding : unit <= m->layers ? list->layer : list->final;
}

static void add_param(struct sl_model *m, const struct tensor *t, uint32_t unit, uint64_t *elements)
{
    struct sl_param *p = &m->params[m->param_count];
    char prefix[32] = "";
    if (unit > 0 && unit <= m->layers)
        snprintf(prefix, sizeof prefix, families[m->family].list->layer_prefix, unit - 1);
    *p = (struct sl_param){
        .role = t->role,
        .unit = unit,
        .rows = dim_size(m, t->rows),
        .columns = dim_size(m, t->columns),
        .vector = t->rows == ONE,
        .transposed_in_file = t->transposed,
        .decay = t->rows != ONE,
    };
    snprintf(p->name, sizeof p->name, "%s%s", prefix, t->name);
    bool first_of_role = m->param_count == m->unit_first_param[unit] ||
                         m->params[m->param_count - 1].role != t->role;
    if (first_of_role)
        *elements = sl_align_up(*elements, SL_PARAM_ALIGN_ELEMENTS);
    p->offset = *elements;
    *elements += p->rows * p->columns;
    m->param_elements += p->rows * p->columns;
    m->param_count++;
}

/* Limits keep every product of two dimensions below 2^62 and every figure in a real model's range,
 * so that past this check plain arithmetic is safe. */
static int check_dim(const char *name, uint64_t value, uint64_t limit, struct sl_error *error)
{
    if (value >= 1 && value <= limit)
        return 0;
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "model %s %llu: must be between 1 and %llu", name,
                        (unsigned long long)value, (unsigned long long)limit);
}

static int check_dims(const struct sl_model *m, struct sl_error *error)
{
    const struct {
        const char *name;
        uint64_t value, limit;
    } dims[] = {
        {"layers", m->layers, SL_MODEL_LAYERS_MAX},
        {"hidden size", m->hidden, 1u << 20},
        {"heads", m->heads, 1u << 14},
        {"key/value heads", m->kv_heads, 1u << 14},
        {"head size", m->head_size, 512},
        {"feed-forward size", m->ffn, 1u << 22},
        {"vocabulary", m->vocabulary, 1u << 24},
        {"positions", m->positions_max, 1u << 28},
    };
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        int rc = check_dim(dims[i].name, dims[i].value, dims[i].limit, error);
        if (rc)
            return rc;
    }
    if (m->heads % m->kv_heads != 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "model heads %u: must be a multiple of key/value heads %u", m->heads,
                            m->kv_heads);
    if (m->rotary > m->head_size || m->rotary % 2 != 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "model rotary size %u: must be even and at most the head size %u",
                            m->rotary, m->head_size);
    return 0;
}

int sl_model_build(struct sl_model *model, struct sl_error *error)
{
    if (model->rotary == 0 && model->rope[0].kind != SL_ROPE_NONE)
        model->rotary = model->head_size;
    if (model->attention_scale == 0 && model->head_size > 0)
        model->attention_scale = (float)(1.0 / __builtin_sqrt((double)model->head_size));
    int rc = check_dims(model, error);
    if (rc)
        return rc;

    model->unit_count = model->layers + 2;
    size_t count = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        for (const struct tensor *t = unit_tensors(model, unit); t->name; t++)
            count += needed(model, t->need);
    model->params = calloc(count, sizeof *model->params);
    model->unit_first_param = calloc(model->unit_count + 1, sizeof *model->unit_first_param);
    model->unit_elements = calloc(model->unit_count, sizeof *model->unit_elements);
    if (!model->params || !model->unit_first_param || !model->unit_elements) {
        sl_model_finish(model);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "no memory for a list of %zu parameters", count);
    }
    model->param_count = 0;
    model->param_elements = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        uint64_t elements = 0;
        model->unit_first_param[unit] = model->param_count;
        for (const struct tensor *t = unit_tensors(model, unit); t->name; t++)
            if (needed(model, t->need))
                add_param(model, t, unit, &elements);
        model->unit_elements[unit] = sl_align_up(elements, SL_PARAM_ALIGN_ELEMENTS);
    }
    model->unit_first_param[model->unit_count] = model->param_count;
    return 0;
}
