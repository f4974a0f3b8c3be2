// SPDX-License-Identifier: Apache-2.0
/* Text from a model folder: the forward pass as a plan, with a cache of keys and values, weights on
 * any tier. */
#ifndef SLUICE_ENGINE_GENERATE_H
#define SLUICE_ENGINE_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

struct sl_generate_options {
    const char *model;  /* folder with weights; a checkpoint is one */
    const char *prompt; /* UTF-8; chat: the first message, or NULL */
    size_t prompt_bytes;
    uint32_t max_tokens; /* new ones at most */
    double temperature;  /* 0: the most probable token */
    double top_p;        /* 1: all; else the smallest set of tokens with this probability */
    uint64_t seed;
    const char *device;      /* NULL: auto */
    const char *const *sets; /* placement.weights, train.precision, memory.*, ... */
    size_t set_count;
    /* Chat: the prompt and what `message` gives are turns of a conversation. */
    bool chat;
    const char *chat_template; /* NULL: by the model's own */
    const char *system;        /* NULL: the template's default, if any */
    uint32_t context_tokens;   /* room for the conversation; 0: SL_CHAT_CONTEXT */
    /* The user's next message, borrowed until the next call; false: the end. NULL: no more. */
    bool (*message)(void *user, const char **text, size_t *bytes);
    /* Text as it comes, whole characters, not terminated. Nonzero stops; in a chat, this answer. */
    int (*text)(void *user, const char *text, size_t bytes);
    void *user;
    const char *logits_path; /* write input_ids and the logits of every prompt position; or NULL */
    const struct sl_log *log;
};

#define SL_CHAT_CONTEXT 4096u /* or the model's positions, if fewer */

struct sl_generate_result {
    uint64_t prompt_tokens, new_tokens;
    uint64_t reused_tokens; /* of earlier turns, found in the cache */
    double prompt_seconds, new_seconds;
};

/* Ends at max_tokens, at an end-of-text token (chat: or the token that ends an answer), or at the
 * model's last position. The same options give the same text, wherever the weights lie. A
 * conversation that outgrows its context loses its oldest turns, which is logged. `result` may be
 * NULL. Errors: input, memory, I/O. */
int sl_generate(const struct sl_generate_options *options, struct sl_generate_result *result,
                struct sl_error *error);

#endif
