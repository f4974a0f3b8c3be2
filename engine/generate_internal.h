// SPDX-License-Identifier: Apache-2.0
/* Between engine/generate.c and generate_chat.c. */
#ifndef SLUICE_ENGINE_GENERATE_INTERNAL_H
#define SLUICE_ENGINE_GENERATE_INTERNAL_H

#include "engine/generate.h"
#include "engine/session.h"

struct generator {
    const struct sl_generate_options *o;
    struct sl_session session;
    struct sl_engine engine;
    struct sl_ids ids; /* the text so far */
    size_t cached;     /* of them, how many have keys and values in the cache */
    int32_t *rows;     /* ids, targets, positions, first: a run of the prompt's each */
    struct candidate {
        float probability;
        uint32_t id;
    } * candidates;
    uint64_t random;
    struct sl_generate_result *result;
};

/* What ends an answer besides an end-of-text token: a token, or a text where it is none. */
struct generator_end {
    int32_t id;       /* -1: none */
    const char *text; /* "": none */
};

/* Plan, start and load, with a cache for `positions` tokens. */
int generator_start(struct generator *g, uint64_t positions, struct sl_error *error);

/* Run what of the ids is not cached yet, then sample, until an end. `answer` (may be NULL) receives
 * what was given to the user. */
int generator_answer(struct generator *g, const struct generator_end *end, struct sl_text *answer,
                     struct sl_error *error);

/* The conversation: from options to its last answer. */
int generator_chat(struct generator *g, struct sl_error *error);

#endif
