// SPDX-License-Identifier: Apache-2.0
/* What the readers of config.json share: typed look-ups whose errors name file, key and value. */
#ifndef SLUICE_ENGINE_MODEL_CONFIG_H
#define SLUICE_ENGINE_MODEL_CONFIG_H

#include <jansson.h>

#include "engine/model.h"

struct sl_model_config {
    const char *path; /* for messages */
    json_t *root;     /* the object that holds the text model's keys */
    struct sl_error *error;
    int rc; /* the first failure; look-ups after it return their fallback */
};

/* The value of `key` in `object`, or NULL where it is absent or null. */
json_t *sl_model_config_get(const json_t *object, const char *key);

/* Numbers, with a fallback where the key is absent. A value of another kind, not finite, or outside
 * [low, high] is an error. `where` is put before the key in messages ("rope_scaling."). */
double sl_model_config_number(struct sl_model_config *config, const json_t *object,
                              const char *where, const char *key, double fallback, double low,
                              double high);
uint32_t sl_model_config_count(struct sl_model_config *config, const json_t *object,
                               const char *key, uint32_t fallback, uint32_t high);
bool sl_model_config_flag(struct sl_model_config *config, const json_t *object, const char *key,
                          bool fallback);

int sl_model_config_refuse(struct sl_model_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fill rope[], rotary and rope_index from either form (model_config_rope.c). Needs the dimensions,
 * windows and positions_max. */
void sl_model_config_rope(struct sl_model_config *config, struct sl_model *model,
                          double default_theta, double default_local_theta);

/* The step of sl_model_from_directory that needs no file: takes the parsed root. */
int sl_model_from_config(struct sl_model *model, json_t *root, const char *path,
                         struct sl_error *error);

/* What sl_model_write_config writes; the caller's to json_decref. */
json_t *sl_model_config_object(const struct sl_model *model, enum sl_dtype dtype);

#endif
