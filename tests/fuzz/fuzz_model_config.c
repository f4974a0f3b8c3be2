// SPDX-License-Identifier: Apache-2.0
/* Any JSON as config.json: a model or a refusal; and a model, written and read again, is the same
 * model. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "engine/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_layout(const struct sl_model *model)
{
    uint64_t total = 0;
    assert(model->unit_count == model->layers + 2);
    for (size_t i = 0; i < model->param_count; i++) {
        const struct sl_param *p = &model->params[i];
        assert(p->offset + p->rows * p->columns <= model->unit_elements[p->unit]);
        assert(memchr(p->name, 0, sizeof p->name));
        total += p->rows * p->columns;
    }
    assert(total == model->param_elements);
}

static void check_again(const struct sl_model *model)
{
    struct sl_model again;
    struct sl_error error = {0};
    json_t *written = sl_model_config_object(model, SL_BF16);
    int rc = sl_model_from_config(&again, written, "written", &error);
    assert(rc == 0);
    assert(again.family == model->family && again.param_elements == model->param_elements);
    assert(again.norm_eps == model->norm_eps && again.dropout == model->dropout);
    assert(memcmp(again.rope, model->rope, sizeof model->rope) == 0);
    assert(memcmp(again.window, model->window, sizeof model->window) == 0);
    sl_model_finish(&again);
    json_decref(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (!root)
        return 0;
    struct sl_model model;
    struct sl_error error = {0};
    int rc = sl_model_from_config(&model, root, "config.json", &error);
    json_decref(root);
    if (rc) {
        assert(error.code == rc && strstr(error.message, "config.json"));
        return 0;
    }
    check_layout(&model);
    check_again(&model);
    static float cosines[8 * 256], sines[8 * 256];
    if (model.rotary)
        sl_model_rope_table(&model, 0, 8, cosines, sines);
    sl_model_finish(&model);
    return 0;
}
