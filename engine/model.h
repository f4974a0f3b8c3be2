// SPDX-License-Identifier: Apache-2.0
/* A model as data: dimensions, per-layer options, and the list of its parameters. One transformer
 * (engine/transformer.c) runs every family from this description.
 *
 * Parameters lie in *units*: the pieces that are fetched, used, and updated together.
 *
 *     unit 0            token embedding (and learned positions)
 *     unit 1 .. L       one transformer layer each
 *     unit L + 1        final norm, and the head where it is not tied to the embedding
 *
 * Inside a unit the tensors lie one after the other in `params` order, so that q, k, v are the rows
 * of one fused matrix and gate, up of another:
 *
 *     layer unit:  [norm1 | q | k | v | qkv biases | o | o bias | q_norm | k_norm | norm2 | ...]
 *
 * The first tensor of each role starts at a multiple of SL_PARAM_ALIGN_ELEMENTS, which is 64 bytes
 * for every type; the parts of a fused role follow without a gap. Gaps exist only in models with
 * odd sizes; they belong to no parameter and stay zero.
 */
#ifndef SLUICE_ENGINE_MODEL_H
#define SLUICE_ENGINE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "offload/device.h"

#define SL_MODEL_LAYERS_MAX 1024
#define SL_PARAM_NAME_BYTES 96
#define SL_PARAM_ALIGN_ELEMENTS 32u

/* The byte-level presets: 256 bytes, the end of a text, and rows kept free so that the vocabulary
 * is a multiple of eight (engine/tokenizer_bytes.c has the ids). */
#define SL_BYTE_VOCABULARY 264u
#define SL_BYTE_EOS 256

enum sl_family {
    SL_FAMILY_GPT2,
    SL_FAMILY_LLAMA,
    SL_FAMILY_MISTRAL,
    SL_FAMILY_QWEN2,
    SL_FAMILY_QWEN3,
    SL_FAMILY_GEMMA,
    SL_FAMILY_GEMMA2,
    SL_FAMILY_GEMMA3,
    SL_FAMILY_PHI3,
};

/* What a parameter is to the transformer. Fused matrices are named by their first part. */
enum sl_role {
    SL_ROLE_TOKEN_EMBEDDING,    /* [V, C] */
    SL_ROLE_POSITION_EMBEDDING, /* [positions, C] */
    SL_ROLE_NORM1,              /* [C] before attention */
    SL_ROLE_NORM1_BIAS,
    SL_ROLE_QKV, /* [(H + 2G) D, C], possibly as three tensors q, k, v in a row */
    SL_ROLE_QKV_BIAS,
    SL_ROLE_Q_NORM, /* [D] */
    SL_ROLE_K_NORM,
    SL_ROLE_O, /* [C, H D] */
    SL_ROLE_O_BIAS,
    SL_ROLE_POST_NORM1, /* [C] after attention, before the residual: Gemma 2, 3 */
    SL_ROLE_NORM2,      /* [C] before the feed-forward */
    SL_ROLE_NORM2_BIAS,
    SL_ROLE_UP, /* gated: [2F, C] gate then up; plain: [F, C] */
    SL_ROLE_UP_BIAS,
    SL_ROLE_DOWN, /* [C, F] */
    SL_ROLE_DOWN_BIAS,
    SL_ROLE_POST_NORM2,
    SL_ROLE_FINAL_NORM,
    SL_ROLE_FINAL_NORM_BIAS,
    SL_ROLE_HEAD, /* [V, C] */
    SL_ROLE_COUNT
};

/* One tensor of the model as its files name it. */
struct sl_param {
    char name[SL_PARAM_NAME_BYTES]; /* as in safetensors: "model.layers.3.mlp.up_proj.weight" */
    enum sl_role role;
    uint32_t unit;
    uint64_t rows, columns;  /* vectors: rows = 1, columns = length */
    uint64_t offset;         /* first element inside the unit */
    bool vector;             /* rank 1 in the file */
    bool transposed_in_file; /* GPT-2's Conv1D: [inputs, outputs] */
    bool decay;              /* weight decay applies: matrices, not norms and biases */
    bool frozen;             /* not trained: no gradient, no optimizer state */
};

enum sl_rope_kind {
    SL_ROPE_NONE,
    SL_ROPE_DEFAULT,
    SL_ROPE_LINEAR,
    SL_ROPE_DYNAMIC,
    SL_ROPE_YARN,
    SL_ROPE_LLAMA3,
    SL_ROPE_LONGROPE,
};

struct sl_rope {
    enum sl_rope_kind kind;
    double theta, factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow;
    double attention_factor; /* multiplies cos and sin; 1 by default */
    uint32_t original_positions;
    double short_factor[256], long_factor[256]; /* longrope: rotary / 2 entries */
};

struct sl_model {
    enum sl_family family;
    uint32_t hidden, layers, heads, kv_heads, head_size, ffn, vocabulary, positions_max;
    enum sl_norm_kind norm;
    float norm_eps;
    enum sl_act_kind act;
    bool gated;
    bool tied;           /* the head is the token embedding */
    bool position_table; /* learned positions */
    bool qkv_bias, o_bias, mlp_bias, norm_bias, qk_norm, post_norms;
    float
        embedding_scale; /* 1, or Gemma's sqrt(hidden); rounded to the weights' type by its user */
    float attention_scale;                  /* usually head_size ^ -0.5 */
    float attention_softcap, final_softcap; /* 0: none */
    uint32_t rotary;                        /* rotated elements of a head */
    struct sl_rope rope[2]; /* [0] global layers, [1] local (sliding) layers where they differ */
    uint32_t window[SL_MODEL_LAYERS_MAX];    /* 0: full */
    uint8_t rope_index[SL_MODEL_LAYERS_MAX]; /* which of rope[] a layer uses */
    int32_t bos_id, eos_id;                  /* -1: none */
    float dropout; /* the largest of the config: sl_model_check_training */

    struct sl_param *params; /* owned, in unit and offset order */
    size_t param_count;
    uint32_t unit_count;        /* layers + 2 */
    uint64_t *unit_first_param; /* [unit_count + 1] index into params */
    uint64_t *unit_elements;    /* [unit_count] gaps included, a multiple of the alignment */
    uint64_t param_elements;    /* of the whole model */
};

/* Fill `model` from a preset name ("tiny", "gpt2-124m", "llama-1b", ...). -ENOENT names the nearest
 * presets. Owner: the caller, until sl_model_finish. */
int sl_model_from_preset(struct sl_model *model, const char *name, struct sl_error *error);

/* The name of preset `index`, or NULL past the last one. */
const char *sl_model_preset_name(size_t index);

/* Fill `model` from DIR/config.json (transformers 4 and 5). Errors name file and field. */
int sl_model_from_directory(struct sl_model *model, const char *directory, struct sl_error *error);

/* Write DIR/config.json that both transformers generations read the same way. */
int sl_model_write_config(const struct sl_model *model, enum sl_dtype dtype, const char *directory,
                          struct sl_error *error);

void sl_model_finish(struct sl_model *model); /* frees the parameter list; zeroed struct allowed */

/* The parameter with this role in this unit (the first of a fused group), or NULL. */
const struct sl_param *sl_model_param(const struct sl_model *model, uint32_t unit,
                                      enum sl_role role);

/* Mark parameters whose name matches one of the shell patterns (fnmatch) as frozen. A pattern that
 * matches nothing is -EINVAL and named. Fused parts (q, k, v) may differ. */
int sl_model_freeze(struct sl_model *model, const char *const *patterns, size_t count,
                    struct sl_error *error);

/* Refuse what the transformer cannot train: dropout > 0 (-ENOTSUP, SL_DOMAIN_INPUT). Forward passes
 * for evaluation and generation do not need it. The trainer calls this once; a user who wants to
 * train such a checkpoint without dropout sets model->dropout = 0 by key, never silently. */
int sl_model_check_training(const struct sl_model *model, struct sl_error *error);

/* Initial value of elements [first, first + count) of a parameter, a function of (seed, name,
 * element) alone: normal(0, 0.02), residual projections scaled by 1/sqrt(2 layers), ones for norm
 * weights (zeros for the 1 + w kind), zeros for biases. */
void sl_model_initial(const struct sl_model *model, const struct sl_param *param, uint64_t seed,
                      uint64_t first, size_t count, float *out);

/* cos and sin tables of rope[which] for positions [0, count): [count, rotary / 2] f32 each. */
void sl_model_rope_table(const struct sl_model *model, uint32_t which, uint32_t count, float *cos,
                         float *sin);

/* Model FLOPs of one trained token: 6 N (embedding look-up excluded, head included) and attention,
 * never recomputation. sequence_length gives the causal average. */
double sl_model_flops_per_token(const struct sl_model *model, uint32_t sequence_length);

#endif
