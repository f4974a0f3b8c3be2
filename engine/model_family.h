// SPDX-License-Identifier: Apache-2.0
/* What distinguishes the families, as data: defaults, tensor names and the names of their config.
 * Used by the preset table, the config reader and writer, and the folder reader. */
#ifndef SLUICE_ENGINE_MODEL_FAMILY_H
#define SLUICE_ENGINE_MODEL_FAMILY_H

#include "engine/model.h"

/* How some files name the same tensor: `from` at the front of our name is replaced by `to`. */
struct sl_family_renaming {
    const char *from, *to;
};

struct sl_family_info {
    const char *model_type;                 /* config.json's key of the same name */
    const char *architecture;               /* the class that transformers loads */
    const char *alias_type;                 /* another model_type that means the same, or NULL */
    struct sl_family_renaming renamings[4]; /* tried in this order; from NULL ends the list */
    /* Suffixes of buffers that old files carry and no model needs. NULL ends the list. */
    const char *ignored[4];
};

const struct sl_family_info *sl_family_info(enum sl_family family);

/* The family with this model_type, or -1. */
int sl_family_find(const char *model_type);

/* Set what every model of the family shares (norm, activation, biases, ...). Call before the
 * dimensions are filled in. */
void sl_family_defaults(struct sl_model *model, enum sl_family family);

/* Check the dimensions and make the parameter list. -EINVAL names the dimension. */
int sl_model_build(struct sl_model *model, struct sl_error *error);

#endif
