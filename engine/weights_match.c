// SPDX-License-Identifier: Apache-2.0
/* Pairing the tensors of a folder with the parameters of a model.
 *
 * Files name the same tensor in several ways (with or without "transformer.", inside a
 * "language_model."). The family lists these renamings; the first one under which the token
 * embedding exists is used for all. Then every parameter must find its tensor, in its shape, in a
 * type that we read, and every tensor must have been found: a checkpoint that only nearly fits is a
 * misunderstanding, and training on it would be a silent one. All disagreements are collected into
 * one message, because a user who fixes them one by one starts a load for each.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_family.h"
#include "engine/weights_internal.h"

#define LISTED_MAX 4u

/* A list of names for the message: the first few, then how many more. */
struct listing {
    char text[300];
    size_t used;
    size_t count;
};

static void list_add(struct listing *list, const char *format, const char *name, const char *more)
{
    list->count++;
    if (list->count > LISTED_MAX || list->used >= sizeof list->text)
        return;
    const char *separator = list->count > 1 ? ", " : "";
    int n = snprintf(list->text + list->used, sizeof list->text - list->used, "%s", separator);
    list->used += (size_t)n;
    if (list->used < sizeof list->text)
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
                                       format, name, more);
}

static void list_print(const struct listing *list, const char *what, char *out, size_t size)
{
    if (list->count == 0)
        return;
    size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%zu %s (%s%s)", used ? "; " : "", list->count, what,
             list->text, list->count > LISTED_MAX ? ", ..." : "");
}

/* `name` with the renaming's `from` at its front replaced by `to`; false where it does not fit. */
static bool rename_param(const char *name, const struct sl_family_renaming *renaming, char *out,
                         size_t size)
{
    size_t from = strlen(renaming->from);
    bool applies = strncmp(name, renaming->from, from) == 0;
    int n = snprintf(out, size, "%s%s", applies ? renaming->to : "", name + (applies ? from : 0));
    return n >= 0 && (size_t)n < size;
}

static const struct sl_safetensor *find(const struct sl_weights *weights, const char *name,
                                        const struct sl_safetensors **file)
{
    for (size_t i = 0; i < weights->file_count; i++) {
        const struct sl_safetensor *tensor = sl_safetensors_find(&weights->files[i], name);
        if (tensor) {
            *file = &weights->files[i];
            return tensor;
        }
    }
    return NULL;
}

static const struct sl_family_renaming *choose_renaming(const struct sl_weights *weights)
{
    const struct sl_family_info *info = sl_family_info(weights->model->family);
    const struct sl_safetensors *file;
    char name[2 * SL_PARAM_NAME_BYTES];
    for (const struct sl_family_renaming *r = info->renamings; r->from; r++)
        if (rename_param(weights->model->params[0].name, r, name, sizeof name) &&
            find(weights, name, &file))
            return r;
    return &info->renamings[0];
}

static bool shape_fits(const struct sl_param *param, const struct sl_safetensor *tensor)
{
    if (param->vector)
        return tensor->rank == 1 && tensor->shape[0] == param->columns;
    uint64_t rows = param->transposed_in_file ? param->columns : param->rows;
    uint64_t columns = param->transposed_in_file ? param->rows : param->columns;
    return tensor->rank == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns;
}

static void describe_shapes(const struct sl_param *param, const struct sl_safetensor *tensor,
                            char *out, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; i < tensor->rank && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%" PRIu64, i ? "x" : "", tensor->shape[i]);
    if (used >= size)
        return;
    if (param->vector)
        snprintf(out + used, size - used, " instead of %" PRIu64, param->columns);
    else
        snprintf(out + used, size - used, " instead of %" PRIu64 "x%" PRIu64,
                 param->transposed_in_file ? param->columns : param->rows,
                 param->transposed_in_file ? param->rows : param->columns);
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n >= s && strcmp(name + n - s, suffix) == 0;
}

static bool may_be_extra(const struct sl_model *model, const char *name)
{
    const struct sl_family_info *info = sl_family_info(model->family);
    for (const char *const *suffix = info->ignored; *suffix; suffix++)
        if (has_suffix(name, *suffix))
            return true;
    return model->tied && has_suffix(name, "lm_head.weight");
}

static int by_pointer(const void *a, const void *b)
{
    const struct sl_safetensor *x = *(const struct sl_safetensor *const *)a;
    const struct sl_safetensor *y = *(const struct sl_safetensor *const *)b;
    return (x > y) - (x < y);
}

/* Tensors of the files that no parameter took. `taken` is sorted. */
static void list_extra(const struct sl_weights *weights, const struct sl_safetensor **taken,
                       size_t taken_count, struct listing *extra)
{
    for (size_t f = 0; f < weights->file_count; f++)
        for (size_t i = 0; i < weights->files[f].count; i++) {
            const struct sl_safetensor *tensor = &weights->files[f].tensors[i];
            if (!bsearch(&tensor, taken, taken_count, sizeof *taken, by_pointer) &&
                !may_be_extra(weights->model, tensor->name))
                list_add(extra, "%.80s%s", tensor->name, "");
        }
}

static int match(struct sl_weights *weights, const char *directory,
                 const struct sl_safetensor **taken, struct sl_error *error)
{
    const struct sl_model *model = weights->model;
    const struct sl_family_renaming *renaming = choose_renaming(weights);
    struct listing missing = {0}, extra = {0}, shape = {0}, type = {0};
    size_t taken_count = 0;
    for (size_t i = 0; i < model->param_count; i++) {
        const struct sl_param *param = &model->params[i];
        char name[2 * SL_PARAM_NAME_BYTES], shapes[80];
        const struct sl_safetensors *file = NULL;
        rename_param(param->name, renaming, name, sizeof name);
        const struct sl_safetensor *tensor = find(weights, name, &file);
        if (!tensor) {
            list_add(&missing, "%s%s", name, "");
            continue;
        }
        weights->sources[i] = (struct sl_weights_source){file, tensor};
        taken[taken_count++] = tensor;
        describe_shapes(param, tensor, shapes, sizeof shapes);
        if (!shape_fits(param, tensor))
            list_add(&shape, "%s: %s", name, shapes);
        if (tensor->type != SL_ST_F32 && tensor->type != SL_ST_BF16 && tensor->type != SL_ST_F16)
            list_add(&type, "%s: %s", name, sl_safetensors_type_name(tensor->type));
    }
    qsort(taken, taken_count, sizeof *taken, by_pointer);
    list_extra(weights, taken, taken_count, &extra);
    char text[SL_ERROR_MESSAGE_BYTES] = "";
    list_print(&missing, "missing", text, sizeof text);
    list_print(&extra, "not of this model", text, sizeof text);
    list_print(&shape, "of another shape", text, sizeof text);
    list_print(&type, "of a type other than F32, BF16, F16", text, sizeof text);
    if (text[0])
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: the tensors do not fit its config.json: %s", directory, text);
    return 0;
}

/* A tensor that two files hold could be read from either. */
static int check_distinct(const struct sl_weights *weights, struct sl_error *error)
{
    for (size_t f = 1; f < weights->file_count; f++)
        for (size_t i = 0; i < weights->files[f].count; i++)
            for (size_t before = 0; before < f; before++)
                if (sl_safetensors_find(&weights->files[before], weights->files[f].tensors[i].name))
                    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                        "tensor \"%.80s\" is both in %s and in %s",
                                        weights->files[f].tensors[i].name,
                                        weights->files[before].path, weights->files[f].path);
    return 0;
}

int sl_weights_open(struct sl_weights **out, const char *directory, const struct sl_model *model,
                    struct sl_error *error)
{
    struct sl_weights *weights = calloc(1, sizeof *weights);
    const struct sl_safetensor **taken = calloc(model->param_count, sizeof *taken);
    int rc = 0;
    *out = NULL;
    if (weights) {
        weights->model = model;
        pthread_mutex_init(&weights->stream_lock, NULL);
        weights->sources = calloc(model->param_count, sizeof *weights->sources);
    }
    if (!weights || !weights->sources || !taken)
        rc = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a list of tensors",
                          directory);
    if (!rc)
        rc = sl_weights_open_files(weights, directory, error);
    if (!rc)
        rc = check_distinct(weights, error);
    if (!rc)
        rc = match(weights, directory, taken, error);
    free(taken);
    if (rc)
        sl_weights_close(weights);
    else
        *out = weights;
    return rc;
}
