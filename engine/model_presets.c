// SPDX-License-Identifier: Apache-2.0
/* Named shapes, one line each, and the nearest name for a misspelt one.
 *
 * The byte-level ones ("tiny", "bible-*") are for tests and the demo. The public models carry the
 * sizes of their config.json. The zero-offload ones are the GPT-2-like shapes of arXiv:2101.06840,
 * table 3; the paper leaves the number of heads open, which the public DeepSpeed scripts of the
 * same hidden sizes give.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/word.h"
#include "engine/model_family.h"

#define TIED true
#define UNTIED false

struct shape {
    const char *name;
    enum sl_family family;
    uint32_t hidden, layers, heads, kv_heads, head_size, ffn, vocabulary, positions;
    bool tied;
    float eps;
    double theta;
    double rope_factor;    /* llama3 kind: 0 where the plain kind is used */
    uint32_t window;       /* 0: full */
    double query_scale_of; /* Gemma 2, 3: query_pre_attn_scalar */
};

#define GPT2(name, h, l, heads)                                                                    \
    {                                                                                              \
        name, SL_FAMILY_GPT2, h, l, heads, heads, (h) / (heads), 4 * (h), 50257, 1024, TIED, 1e-5f \
    }
#define BYTES(name, h, l, heads, kv, ffn)                                                          \
    {                                                                                              \
        name, SL_FAMILY_LLAMA, h, l, heads, kv, (h) / (heads), ffn, SL_BYTE_VOCABULARY, 4096,      \
            TIED, 1e-5f, 10000                                                                     \
    }
#define LLAMA2(name, h, l, heads, kv, ffn)                                                         \
    {                                                                                              \
        name, SL_FAMILY_LLAMA, h, l, heads, kv, (h) / (heads), ffn, 32000, 4096, UNTIED, 1e-5f,    \
            10000                                                                                  \
    }
#define LLAMA3(name, h, l, heads, d, ffn, tied, factor)                                            \
    {                                                                                              \
        name, SL_FAMILY_LLAMA, h, l, heads, 8, d, ffn, 128256, 131072, tied, 1e-5f, 500000, factor \
    }
#define SMOLLM2(name, h, l, heads, kv, ffn, theta)                                                 \
    {                                                                                              \
        name, SL_FAMILY_LLAMA, h, l, heads, kv, 64, ffn, 49152, 8192, TIED, 1e-5f, theta           \
    }
#define QWEN2(name, h, l, heads, kv, ffn, v, tied)                                                 \
    {                                                                                              \
        name, SL_FAMILY_QWEN2, h, l, heads, kv, (h) / (heads), ffn, v, 32768, tied, 1e-6f, 1e6     \
    }
#define QWEN3(name, h, l, heads, ffn, tied)                                                        \
    {                                                                                              \
        name, SL_FAMILY_QWEN3, h, l, heads, 8, 128, ffn, 151936, 40960, tied, 1e-6f, 1e6           \
    }

/* clang-format off */
static const struct shape shapes[] = {
    BYTES("tiny",        64,  4, 4, 2, 176),
    BYTES("bible-2m",   192,  4, 6, 3, 512),
    BYTES("bible-4m",   256,  5, 8, 4, 704),
    BYTES("bible-10m",  384,  6, 6, 2, 1024),
    BYTES("bible-deep", 256, 48, 8, 4, 704),

    GPT2("gpt2-124m",   768, 12, 12),
    GPT2("gpt2-355m",  1024, 24, 16),
    GPT2("gpt2-774m",  1280, 36, 20),
    GPT2("gpt2-1.5b",  1600, 48, 25),

    GPT2("zero-offload-1b",  2048, 20, 16),
    GPT2("zero-offload-2b",  2048, 40, 16),
    GPT2("zero-offload-4b",  2304, 64, 24),
    GPT2("zero-offload-6b",  3072, 53, 24),
    GPT2("zero-offload-8b",  3072, 72, 24),
    GPT2("zero-offload-10b", 4096, 50, 32),
    GPT2("zero-offload-11b", 4096, 55, 32),
    GPT2("zero-offload-12b", 4096, 60, 32),
    GPT2("zero-offload-13b", 4096, 65, 32),
    GPT2("zero-offload-20b", 8192, 25, 64),
    GPT2("zero-offload-40b", 8192, 50, 64),
    GPT2("zero-offload-60b", 8192, 75, 64),
    GPT2("zero-offload-70b", 9216, 69, 72),

    SMOLLM2("smollm2-135m",  576, 30,  9,  3, 1536, 100000),
    SMOLLM2("smollm2-360m",  960, 32, 15,  5, 2560, 100000),
    SMOLLM2("smollm2-1.7b", 2048, 24, 32, 32, 8192, 130000),

    LLAMA3("llama-1b",  2048, 16, 32,  64,  8192, TIED,   32),
    LLAMA3("llama-3b",  3072, 28, 24, 128,  8192, TIED,   32),
    LLAMA2("llama-7b",  4096, 32, 32, 32, 11008),
    LLAMA3("llama-8b",  4096, 32, 32, 128, 14336, UNTIED,  8),
    LLAMA2("llama-13b", 5120, 40, 40, 40, 13824),
    LLAMA3("llama-70b", 8192, 80, 64, 128, 28672, UNTIED,  8),

    {"mistral-7b", SL_FAMILY_MISTRAL, 4096, 32, 32, 8, 128, 14336, 32000, 32768, UNTIED, 1e-5f,
     10000, 0, 4096},

    QWEN2("qwen2.5-0.5b",  896, 24, 14, 2,  4864, 151936, TIED),
    QWEN2("qwen2.5-1.5b", 1536, 28, 12, 2,  8960, 151936, TIED),
    QWEN2("qwen2.5-7b",   3584, 28, 28, 4, 18944, 152064, UNTIED),
    QWEN2("qwen2.5-14b",  5120, 48, 40, 8, 13824, 152064, UNTIED),
    QWEN2("qwen2.5-32b",  5120, 64, 40, 8, 27648, 152064, UNTIED),
    QWEN3("qwen3-0.6b",   1024, 28, 16,  3072, TIED),
    QWEN3("qwen3-1.7b",   2048, 28, 16,  6144, TIED),
    QWEN3("qwen3-4b",     2560, 36, 32,  9728, TIED),
    QWEN3("qwen3-8b",     4096, 36, 32, 12288, UNTIED),
    QWEN3("qwen3-14b",    5120, 40, 40, 17408, UNTIED),
    QWEN3("qwen3-32b",    5120, 64, 64, 25600, UNTIED),

    {"gemma-2b",   SL_FAMILY_GEMMA,  2048, 18,  8,  1, 256, 16384, 256000, 8192, TIED, 1e-6f,
     10000},
    {"gemma-7b",   SL_FAMILY_GEMMA,  3072, 28, 16, 16, 256, 24576, 256000, 8192, TIED, 1e-6f,
     10000},
    {"gemma2-2b",  SL_FAMILY_GEMMA2, 2304, 26,  8,  4, 256,  9216, 256000, 8192, TIED, 1e-6f, 10000,
     0, 4096, 256},
    {"gemma2-9b",  SL_FAMILY_GEMMA2, 3584, 42, 16,  8, 256, 14336, 256000, 8192, TIED, 1e-6f, 10000,
     0, 4096, 256},
    {"gemma2-27b", SL_FAMILY_GEMMA2, 4608, 46, 32, 16, 128, 36864, 256000, 8192, TIED, 1e-6f, 10000,
     0, 4096, 144},
    {"gemma3-1b",  SL_FAMILY_GEMMA3, 1152, 26,  4,  1, 256,  6912, 262144, 32768, TIED, 1e-6f, 1e6,
     0, 512, 256},

    {"phi3-mini",  SL_FAMILY_PHI3, 3072, 32, 32, 32, 96, 8192, 32064, 4096, UNTIED, 1e-5f, 10000,
     0, 2047},
};
/* clang-format on */

#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

const char *sl_model_preset_name(size_t index)
{
    return index < SHAPE_COUNT ? shapes[index].name : NULL;
}

static int unknown_preset(const char *name, struct sl_error *error)
{
    const char *names[SHAPE_COUNT];
    for (size_t i = 0; i < SHAPE_COUNT; i++)
        names[i] = shapes[i].name;
    struct stat info;
    const char *nearest = strchr(name, '/') ? NULL : sl_word_nearest(name, names, SHAPE_COUNT);
    if (stat(name, &info) == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOTDIR,
                            "model \"%s\" is a file; give the folder that holds config.json and "
                            "the weights",
                            name);
    if (nearest)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                            "model \"%s\": neither a folder with config.json nor a preset; did you "
                            "mean %s?",
                            name, nearest);
    return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                        "model \"%s\": neither a folder with config.json nor a preset; nothing is "
                        "downloaded here: give a folder that holds a Hugging Face model, or a "
                        "preset (tiny, gpt2-124m, llama-1b, ...: docs/models.md)",
                        name);
}

/* Which layers slide, per family; the rest are full. */
static void fill_windows(struct sl_model *model, const struct shape *shape)
{
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        bool local = model->family == SL_FAMILY_GEMMA2   ? layer % 2 == 0
                     : model->family == SL_FAMILY_GEMMA3 ? (layer + 1) % 6 != 0
                                                         : true;
        model->window[layer] = local ? shape->window : 0;
        model->rope_index[layer] = model->family == SL_FAMILY_GEMMA3 && local;
    }
}

static void fill_shape(struct sl_model *model, const struct shape *shape)
{
    sl_family_defaults(model, shape->family);
    model->hidden = shape->hidden;
    model->layers = shape->layers;
    model->heads = shape->heads;
    model->kv_heads = shape->kv_heads;
    model->head_size = shape->head_size;
    model->ffn = shape->ffn;
    model->vocabulary = shape->vocabulary;
    model->positions_max = shape->positions;
    model->tied = shape->tied;
    model->norm_eps = shape->eps;
    if (shape->theta > 0)
        model->rope[0].theta = shape->theta;
    if (shape->family != SL_FAMILY_GEMMA3) /* whose local layers keep 10,000 */
        model->rope[1] = model->rope[0];
    if (shape->rope_factor > 0) {
        model->rope[0].kind = SL_ROPE_LLAMA3;
        model->rope[0].factor = shape->rope_factor;
        model->rope[0].low_freq_factor = 1;
        model->rope[0].high_freq_factor = 4;
        model->rope[0].original_positions = 8192;
        model->rope[1] = model->rope[0];
    }
    if (model->norm == SL_NORM_RMS_PLUS_ONE)
        model->embedding_scale = sqrtf((float)shape->hidden);
    if (shape->query_scale_of > 0)
        model->attention_scale = (float)pow(shape->query_scale_of, -0.5);
    if (shape->family == SL_FAMILY_GEMMA2) {
        model->attention_softcap = 50.0f;
        model->final_softcap = 30.0f;
    }
    if (shape->vocabulary == SL_BYTE_VOCABULARY)
        model->eos_id = SL_BYTE_EOS;
    fill_windows(model, shape);
}

int sl_model_from_preset(struct sl_model *model, const char *name, struct sl_error *error)
{
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        if (strcmp(shapes[i].name, name) != 0)
            continue;
        fill_shape(model, &shapes[i]);
        return sl_model_build(model, error);
    }
    memset(model, 0, sizeof *model);
    return unknown_preset(name, error);
}
