// SPDX-License-Identifier: Apache-2.0
/* Questions to a model description that is already built: look-up, freezing, FLOPs. */
#include "engine/model.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>

void sl_model_finish(struct sl_model *model)
{
    free(model->params);
    free(model->unit_first_param);
    free(model->unit_elements);
    model->params = NULL;
    model->unit_first_param = NULL;
    model->unit_elements = NULL;
    model->param_count = 0;
}

const struct sl_param *sl_model_param(const struct sl_model *model, uint32_t unit,
                                      enum sl_role role)
{
    if (unit >= model->unit_count)
        return NULL;
    for (uint64_t i = model->unit_first_param[unit]; i < model->unit_first_param[unit + 1]; i++)
        if (model->params[i].role == role)
            return &model->params[i];
    return NULL;
}

int sl_model_freeze(struct sl_model *model, const char *const *patterns, size_t count,
                    struct sl_error *error)
{
    for (size_t k = 0; k < count; k++) {
        size_t matches = 0;
        for (size_t i = 0; i < model->param_count; i++) {
            if (fnmatch(patterns[k], model->params[i].name, 0) != 0)
                continue;
            model->params[i].frozen = true;
            matches++;
        }
        if (matches == 0)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "freeze pattern \"%s\": matches none of the %zu parameters; a name "
                                "is for example \"%s\"",
                                patterns[k], model->param_count, model->params[0].name);
    }
    return 0;
}

int sl_model_check_training(const struct sl_model *model, struct sl_error *error)
{
    if (model->dropout > 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOTSUP,
                            "config.json asks for dropout %g: training without it would be another "
                            "run, and dropout is not supported; set the *dropout or *_pdrop keys "
                            "of the folder's config.json to 0 to train without",
                            (double)model->dropout);
    for (size_t i = 0; i < model->param_count; i++)
        if (!model->params[i].frozen)
            return 0;
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "train.frozen freezes all %zu parameters: there is nothing to train; give "
                        "narrower patterns",
                        model->param_count);
}

/* Keys that a query sees on average over a causal sequence, with a window or 0. */
static double average_keys(uint32_t sequence_length, uint32_t window)
{
    double t = sequence_length, w = window;
    if (window == 0 || window >= sequence_length)
        return (t + 1) / 2;
    return (w * (w + 1) / 2 + (t - w) * w) / t;
}

double sl_model_flops_per_token(const struct sl_model *model, uint32_t sequence_length)
{
    double table = (double)model->vocabulary * model->hidden;
    double matrices = (double)model->param_elements - table; /* the look-up multiplies nothing */
    if (model->tied)
        matrices += table; /* the same matrix is the head */
    if (model->position_table)
        matrices -= (double)model->positions_max * model->hidden;
    double keys = 0;
    for (uint32_t layer = 0; layer < model->layers; layer++)
        keys += average_keys(sequence_length, model->window[layer]);
    /* Scores and mixing: 2 multiply-adds per key and element of q; backward is twice forward. */
    double attention = 12.0 * keys * model->heads * model->head_size;
    return 6.0 * matrices + attention;
}
