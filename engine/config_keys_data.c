// SPDX-License-Identifier: Apache-2.0
/* Sluice's own keys about data (engine/dataset.h, docs/data.md). */
#include "engine/config_keys_rows.h"

static const struct sl_key data_keys[] = {
    HONORED("data.template", SL_KEY_CHOICE, "auto",
            "how conversations are written; auto: by the markers of the model's chat template",
            .flags = SL_KEY_OWN,
            .choices = "auto|plain|chatml|qwen|llama2|llama3|mistral|gemma|phi|alpaca"),
    HONORED("data.train_on_prompt", SL_KEY_BOOL, "false",
            "conversations: loss on every token; false: on answers alone", .flags = SL_KEY_OWN),
    HONORED("data.packing", SL_KEY_BOOL, "true",
            "several conversations in a sequence, which do not see each other; false: one in each",
            .flags = SL_KEY_OWN),
    HONORED("data.special_tokens", SL_KEY_CHOICE, "text",
            "special tokens that a message spells: text, so that it cannot forge a turn; or ids, "
            "as transformers makes them",
            .flags = SL_KEY_OWN, .choices = "text|ids"),
    HONORED("data.shuffle", SL_KEY_BOOL, "true",
            "a new order in each epoch, from train.seed; false: the order of the files",
            .flags = SL_KEY_OWN),
    HONORED("data.validation_fraction", SL_KEY_NUMBER, "0.02 with train.eval_interval, else 0",
            "share of the data that is held out for evaluation", .flags = SL_KEY_OWN, .min = 0,
            .max = 0.5),
    HONORED("data.cache", SL_KEY_BOOL, "true", "keep the token ids of texts for the next start",
            .flags = SL_KEY_OWN),
    HONORED("data.cache_path", SL_KEY_STRING, "cache, in the output folder",
            "folder of these files; several runs may share it", .flags = SL_KEY_OWN),
};

const struct sl_key_block sl_keys_data = {
    "Data", "Sluice's own keys: from files to sequences (docs/data.md).", data_keys,
    COUNT_OF(data_keys)};
