// SPDX-License-Identifier: Apache-2.0
/* Private to the transformer: the sizes of a layer and the places in its working memory. */
#ifndef SLUICE_ENGINE_TRANSFORMER_LAYOUT_H
#define SLUICE_ENGINE_TRANSFORMER_LAYOUT_H

#include "engine/transformer.h"

struct sl_layer_sizes {
    size_t n, c, f, up, q, att; /* rows; widths in elements */
    size_t element;             /* bytes of an activation */
};

struct sl_layer_sizes sl_layer_sizes_of(const struct sl_model *m, enum sl_dtype activation,
                                        size_t batch, size_t sequence);

/* What the backward pass needs; the last three only where the family has them. */
struct sl_layer_saved {
    unsigned char *qkv, *att, *mid, *up, *raw, *o, *down;
    float *lse;
};

struct sl_layer_scratch {
    unsigned char *n, *t;       /* [N, C] each */
    unsigned char *a, *da;      /* [N, F] each */
    unsigned char *dqkv, *datt; /* over a and da, which are dead by then */
    float *delta;
};

/* Lay them out from base on; return the end. base NULL: only the size. */
unsigned char *sl_layer_lay_saved(struct sl_layer_saved *s, const struct sl_model *m,
                                  struct sl_layer_sizes z, size_t batch, size_t sequence,
                                  unsigned char *base);
unsigned char *sl_layer_lay_scratch(struct sl_layer_scratch *s, const struct sl_model *m,
                                    struct sl_layer_sizes z, size_t batch, size_t sequence,
                                    unsigned char *base);

/* A run of one matrix's rows. */
struct sl_layer_part {
    enum sl_role role, bias;
    size_t inputs, outputs; /* of the whole matrix */
    size_t first, count;
    bool begins, ends;
};

/* All rows of a matrix. */
struct sl_layer_part sl_layer_matrix(const struct sl_layer_sizes *z, enum sl_role role);

#endif
