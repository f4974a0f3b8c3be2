// SPDX-License-Identifier: Apache-2.0
/* Short spellings for the rows of the key table; included by config_keys_*.c alone. */
#ifndef SLUICE_ENGINE_CONFIG_KEYS_ROWS_H
#define SLUICE_ENGINE_CONFIG_KEYS_ROWS_H

#include "engine/config_keys.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* A row of each effect: path, type, default, note; more fields by name after them. */
#define HONORED(p, t, d, n, ...)                                                                   \
    {                                                                                              \
        .path = (p), .type = (t), .initial = (d), .effect = SL_CONFIG_HONORED, .note = (n),        \
        __VA_ARGS__                                                                                \
    }
#define NO_EFFECT(p, t, d, n, ...)                                                                 \
    {                                                                                              \
        .path = (p), .type = (t), .initial = (d), .effect = SL_CONFIG_NO_EFFECT, .note = (n),      \
        __VA_ARGS__                                                                                \
    }
#define UNSUPPORTED(p, t, d, n, ...)                                                               \
    {                                                                                              \
        .path = (p), .type = (t), .initial = (d), .effect = SL_CONFIG_UNSUPPORTED, .note = (n),    \
        __VA_ARGS__                                                                                \
    }
#define RENAMED(p, to, n)                                                                          \
    {                                                                                              \
        .path = (p), .renamed = (to), .initial = "", .effect = SL_CONFIG_HONORED, .note = (n)      \
    }

#define DEPRECATED(p, to, n)                                                                       \
    {                                                                                              \
        .path = (p), .renamed = (to), .initial = "", .effect = SL_CONFIG_HONORED, .note = (n),     \
        .flags = SL_KEY_WARN                                                                       \
    }

#define ONE_GPU "steers traffic between GPUs; there is one"

#endif
