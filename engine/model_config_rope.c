// SPDX-License-Identifier: Apache-2.0
/* The rotary part of config.json, in both of its forms.
 *
 *     transformers 4     "rope_theta": T, "rope_scaling": {"rope_type" or "type", "factor", ...},
 *                        Gemma 3 also "rope_local_base_freq", Phi 3 "partial_rotary_factor"
 *     transformers 5     "rope_parameters": {"rope_type", "rope_theta", "factor", ...}, or the same
 *                        once per kind of layer: {"full_attention": {...}, "sliding_attention":
 * ...}
 *
 * A file may hold both forms; where they disagree transformers 5 takes rope_scaling, and so do we,
 * key by key: rope_scaling, then rope_parameters, then the top level, then the class's default.
 */
#include <math.h>
#include <string.h>

#include "engine/model_config.h"

static const struct {
    const char *name;
    enum sl_rope_kind kind;
} kinds[] = {
    {"default", SL_ROPE_DEFAULT}, {"linear", SL_ROPE_LINEAR}, {"dynamic", SL_ROPE_DYNAMIC},
    {"yarn", SL_ROPE_YARN},       {"llama3", SL_ROPE_LLAMA3}, {"longrope", SL_ROPE_LONGROPE},
    {"su", SL_ROPE_LONGROPE},
};

/* The objects that a key of one rope is looked for in, first to last. */
struct source {
    const json_t *objects[3];
    const char *where;
};

static json_t *look(const struct source *source, const char *key)
{
    for (size_t i = 0; i < 3; i++) {
        json_t *value = sl_model_config_get(source->objects[i], key);
        if (value)
            return value;
    }
    return NULL;
}

static double number(struct sl_model_config *c, const struct source *source, const char *key,
                     double fallback, double low, double high)
{
    for (size_t i = 0; i < 3; i++)
        if (sl_model_config_get(source->objects[i], key))
            return sl_model_config_number(c, source->objects[i], source->where, key, fallback, low,
                                          high);
    return fallback;
}

static double needed(struct sl_model_config *c, const struct source *source, const char *key,
                     double low, double high)
{
    if (!look(source, key))
        sl_model_config_refuse(c, "%s%s: is missing", source->where, key);
    return number(c, source, key, 1, low, high);
}

static enum sl_rope_kind read_kind(struct sl_model_config *c, const struct source *source,
                                   enum sl_family family)
{
    json_t *value = NULL; /* rope_type before its alias, within one object */
    for (size_t i = 0; i < 2 && !value; i++) {
        value = sl_model_config_get(source->objects[i], "rope_type");
        if (!value)
            value = sl_model_config_get(source->objects[i], "type");
    }
    if (!value)
        return SL_ROPE_DEFAULT;
    const char *name = json_string_value(value);
    if (name && family == SL_FAMILY_PHI3 && strcmp(name, "yarn") == 0)
        return SL_ROPE_LONGROPE; /* early Phi 3 files call it so */
    for (size_t i = 0; name && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].kind;
    sl_model_config_refuse(
        c,
        "%srope_type \"%.40s\": not supported; default, linear, dynamic, yarn, llama3 "
        "and longrope are",
        source->where, name ? name : "(not a string)");
    return SL_ROPE_DEFAULT;
}

static void read_factors(struct sl_model_config *c, const struct source *source, const char *key,
                         uint32_t count, double *out)
{
    json_t *list = look(source, key);
    if (json_array_size(list) != count) {
        sl_model_config_refuse(c, "%s%s: must be a list of %u numbers", source->where, key, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        json_t *value = json_array_get(list, i);
        out[i] = json_number_value(value);
        if (!json_is_number(value) || !(out[i] > 0) || !isfinite(out[i])) {
            sl_model_config_refuse(c, "%s%s[%u]: must be a positive number", source->where, key, i);
            return;
        }
    }
}

static void read_yarn(struct sl_model_config *c, const struct source *source, struct sl_rope *rope)
{
    rope->beta_fast = number(c, source, "beta_fast", 32, 1e-3, 1e6);
    rope->beta_slow = number(c, source, "beta_slow", 1, 1e-3, 1e6);
    double scale = number(c, source, "mscale", 0, 0, 1e6);
    double scale_all = number(c, source, "mscale_all_dim", 0, 0, 1e6);
    double l = rope->factor > 1 ? 0.1 * log(rope->factor) : 0;
    double standard = scale > 0 && scale_all > 0 ? (scale * l + 1) / (scale_all * l + 1) : l + 1;
    rope->attention_factor = number(c, source, "attention_factor", standard, 1e-3, 1e3);
    json_t *truncate = look(source, "truncate");
    if (truncate && !json_is_true(truncate))
        sl_model_config_refuse(c, "%struncate: only true is supported", source->where);
}

static void read_longrope(struct sl_model_config *c, const struct source *source,
                          const struct sl_model *m, struct sl_rope *rope)
{
    double ratio = (double)m->positions_max / rope->original_positions;
    rope->factor = number(c, source, "factor", ratio, 1e-3, 1e6);
    double standard = rope->factor <= 1 || rope->original_positions <= 1
                          ? 1
                          : sqrt(1 + log(rope->factor) / log(rope->original_positions));
    rope->attention_factor = number(c, source, "attention_factor", standard, 1e-3, 1e3);
    if (m->rotary / 2 > sizeof rope->short_factor / sizeof rope->short_factor[0]) {
        sl_model_config_refuse(c, "%slong_factor: at most 256 pairs are supported", source->where);
        return;
    }
    read_factors(c, source, "short_factor", m->rotary / 2, rope->short_factor);
    read_factors(c, source, "long_factor", m->rotary / 2, rope->long_factor);
}

/* Phi 3 keeps it at the top level, where it goes before the one inside. */
static uint32_t original_positions(struct sl_model_config *c, const struct source *source,
                                   const struct sl_model *m)
{
    const char *key = "original_max_position_embeddings";
    if (sl_model_config_get(c->root, key))
        return sl_model_config_count(c, c->root, key, 1, 1u << 28);
    return (uint32_t)number(c, source, key, m->positions_max, 1, 1u << 28);
}

static void read_one(struct sl_model_config *c, const struct source *source,
                     const struct sl_model *m, double theta, struct sl_rope *rope)
{
    *rope = (struct sl_rope){.factor = 1, .attention_factor = 1};
    rope->kind = read_kind(c, source, m->family);
    rope->theta = number(c, source, "rope_theta", theta, 1.0001, 1e15);
    if (rope->kind == SL_ROPE_DYNAMIC)
        rope->original_positions = m->positions_max;
    else if (rope->kind != SL_ROPE_DEFAULT && rope->kind != SL_ROPE_LINEAR)
        rope->original_positions = original_positions(c, source, m);
    if (rope->kind == SL_ROPE_LINEAR || rope->kind == SL_ROPE_DYNAMIC ||
        rope->kind == SL_ROPE_LLAMA3)
        rope->factor = needed(c, source, "factor", 1e-3, 1e6);
    if (rope->kind == SL_ROPE_YARN)
        rope->factor = number(c, source, "factor",
                              (double)m->positions_max / rope->original_positions, 1e-3, 1e6);
    if (rope->kind == SL_ROPE_LLAMA3) {
        rope->low_freq_factor = needed(c, source, "low_freq_factor", 1e-6, 1e6);
        rope->high_freq_factor = needed(c, source, "high_freq_factor", 1e-6, 1e6);
        if (!c->rc && rope->high_freq_factor <= rope->low_freq_factor)
            sl_model_config_refuse(c, "%shigh_freq_factor %g: must be over low_freq_factor %g",
                                   source->where, rope->high_freq_factor, rope->low_freq_factor);
    }
    if (rope->kind == SL_ROPE_YARN)
        read_yarn(c, source, rope);
    if (rope->kind == SL_ROPE_LONGROPE)
        read_longrope(c, source, m, rope);
    if (rope->kind == SL_ROPE_DYNAMIC && m->rotary <= 2)
        sl_model_config_refuse(c, "%srope_type dynamic: needs more than one rotated pair",
                               source->where);
}

void sl_model_config_rope(struct sl_model_config *config, struct sl_model *model,
                          double default_theta, double default_local_theta)
{
    const json_t *scaling = sl_model_config_get(config->root, "rope_scaling");
    const json_t *parameters = sl_model_config_get(config->root, "rope_parameters");
    const json_t *full = sl_model_config_get(parameters, "full_attention");
    const json_t *sliding = sl_model_config_get(parameters, "sliding_attention");
    if (sliding && model->family != SL_FAMILY_GEMMA3 && !json_equal(full, sliding))
        sl_model_config_refuse(config,
                               "rope_parameters.sliding_attention: must equal full_attention in "
                               "this family");
    struct source global = {{scaling,
                             full              ? full
                             : full || sliding ? NULL
                                               : parameters,
                             config->root},
                            scaling ? "rope_scaling." : "rope_parameters."};
    double share = number(config, &global, "partial_rotary_factor", 1, 1e-3, 1);
    model->rotary = (uint32_t)(model->head_size * share);
    if (!config->rc && (model->rotary < 2 || model->rotary % 2 != 0)) {
        sl_model_config_refuse(config,
                               "partial_rotary_factor %g: rotates %u elements of a head of %u; "
                               "must be an even number",
                               share, model->rotary, model->head_size);
        return;
    }
    read_one(config, &global, model, default_theta, &model->rope[0]);
    model->rope[1] = model->rope[0];
    if (default_local_theta > 0) { /* Gemma 3: the scaling belongs to the global layers */
        struct source local = {{NULL, sliding, NULL}, "rope_parameters.sliding_attention."};
        double theta = sl_model_config_number(config, config->root, "", "rope_local_base_freq",
                                              default_local_theta, 1.0001, 1e15);
        read_one(config, &local, model, theta, &model->rope[1]);
    }
}
