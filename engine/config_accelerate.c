// SPDX-License-Identifier: Apache-2.0
/* Accelerate's keys, translated to DeepSpeed's before anything is resolved. */
#include "engine/config_values.h"

#include <string.h>

#define D "deepspeed_config."
#define Z "zero_optimization."

static bool differs(const struct sl_value *a, const struct sl_value *b)
{
    const char *x = a->text ? a->text : "", *y = b->text ? b->text : "";
    return a->number != b->number || a->boolean != b->boolean || strcmp(x, y) != 0;
}

/* A key of the YAML that says the same as one of the JSON: fills it where it is absent or auto,
 * and must agree where it is there. */
static void translate(struct sl_config_context *context, const char *from_path, const char *to_path)
{
    const struct sl_value *from = sl_value_accelerate(context, from_path);
    struct sl_value *to = sl_value(context, to_path);
    if (from->state == SL_VALUE_ABSENT ||
        (to->state != SL_VALUE_ABSENT && from->state == SL_VALUE_AUTO))
        return;
    if (sl_value_given(to)) {
        if (to->from == SL_CONFIG_FROM_FILE && differs(from, to))
            sl_config_problem(context,
                              "%s (%s) and %s (%s) contradict each other; take the first "
                              "out of the YAML",
                              from_path, from->source, to_path, to->source);
        return;
    }
    const struct sl_key *key = to->key;
    *to = *from;
    to->key = key;
    to->given_as = NULL;
}

static void translate_precision(struct sl_config_context *context)
{
    const struct sl_value *mixed = sl_value_accelerate(context, "mixed_precision");
    struct sl_value *own = sl_value(context, "train.precision");
    if (!sl_value_given(mixed) || sl_value_given(own))
        return;
    if (strcmp(mixed->text, "fp8") == 0) {
        sl_config_problem(context, "%s: mixed_precision fp8 is not here; write bf16",
                          mixed->source);
        return;
    }
    const struct sl_key *key = own->key;
    *own = *mixed;
    own->key = key;
    if (strcmp(mixed->text, "no") == 0)
        own->text = "fp32";
}

static void check_type(struct sl_config_context *context)
{
    const struct sl_value *type = sl_value_accelerate(context, "distributed_type");
    bool known = !sl_value_given(type) || strcmp(type->text, "DEEPSPEED") == 0 ||
                 strcmp(type->text, "NO") == 0;
    if (known)
        return;
    sl_config_problem(context,
                      "%s: distributed_type %s is not read, only DEEPSPEED; for the same "
                      "effect set distributed_type: DEEPSPEED and under deepspeed_config "
                      "zero_stage: 3, offload_param_device: cpu, offload_optimizer_device: cpu",
                      type->source, type->text);
    static const char *const blocks[] = {"fsdp_config", "megatron_lm_config"};
    for (int i = 0; i < 2; i++) {
        struct sl_value *block = sl_value_accelerate(context, blocks[i]);
        if (!sl_value_given(block))
            continue;
        block->answered = true; /* one refusal is enough */
        block->effect = SL_CONFIG_NO_EFFECT;
        block->note = strdup("see distributed_type");
    }
}

void sl_resolve_accelerate(struct sl_config_context *context)
{
    static const char *const pairs[][2] = {
        {D "zero_stage", Z "stage"},
        {D "offload_optimizer_device", Z "offload_optimizer.device"},
        {D "offload_param_device", Z "offload_param.device"},
        {D "offload_optimizer_nvme_path", Z "offload_optimizer.nvme_path"},
        {D "offload_param_nvme_path", Z "offload_param.nvme_path"},
        {D "gradient_accumulation_steps", "gradient_accumulation_steps"},
        {D "gradient_clipping", "gradient_clipping"},
        {D "zero3_save_16bit_model", Z "stage3_gather_16bit_weights_on_model_save"},
    };
    check_type(context);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        translate(context, pairs[i][0], pairs[i][1]);
    translate_precision(context);
    bool block = sl_node_get(context->yaml.root, "deepspeed_config") != NULL;
    bool file = sl_value_given(sl_value_accelerate(context, D "deepspeed_config_file"));
    if (!block || file)
        return;
    context->zero_block = true;
    struct sl_value *stage = sl_value(context, Z "stage");
    if (stage->state == SL_VALUE_ABSENT) {
        stage->state = SL_VALUE_GIVEN;
        stage->number = 2;
        stage->from = SL_CONFIG_FROM_DEFAULT;
        stage->source = "Accelerate's default";
    }
}
