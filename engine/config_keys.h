// SPDX-License-Identifier: Apache-2.0
/* The table of every key that a configuration may hold, and what this engine does with it.
 *
 * One table, in blocks (config_keys_*.c). From it come reading and type checks, the answers of
 * `sluice config`, the nearest neighbour of a misspelt key, and docs/config.md: a key added here is
 * known everywhere.
 */
#ifndef SLUICE_ENGINE_CONFIG_KEYS_H
#define SLUICE_ENGINE_CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/config_report.h"

enum sl_key_type {
    SL_KEY_BOOL,
    SL_KEY_COUNT,    /* whole, from min; 5e8 is whole */
    SL_KEY_ELEMENTS, /* the same, fractions cut off: 15099494.4 */
    SL_KEY_NUMBER,
    SL_KEY_STRING,
    SL_KEY_CHOICE, /* one of `choices`, case ignored */
    SL_KEY_SIZE,   /* bytes: 24GiB, 512MB, 4096 */
    SL_KEY_PAIR,   /* [number, number] */
    SL_KEY_WORDS,  /* a string with commas, or a list of strings */
    SL_KEY_BLOCK,  /* a whole object (or anything) that is answered for as one */
};

#define SL_KEY_AUTO 1u       /* "auto" is allowed */
#define SL_KEY_ACCELERATE 2u /* stands in an Accelerate YAML, not in the JSON */
#define SL_KEY_OWN 4u        /* sluice's own; with --set, or in the file under "sluice" */
#define SL_KEY_SUPPLIES 16u  /* gives its value to other keys, whose rows show it */
#define SL_KEY_WARN 8u /* worth a line at the start: no effect and not harmless, or an old name */

struct sl_key {
    const char *path; /* dotted */
    enum sl_key_type type;
    unsigned flags;
    double min, max;     /* of numbers; both 0: min 0 for counts, none otherwise */
    const char *choices; /* "none|cpu|nvme" */
    const char *initial; /* the default, as docs show it; "" none */
    enum sl_config_effect effect;
    const char *note;     /* what it does here, why it has no effect, what to use instead */
    const char *harmless; /* UNSUPPORTED, WARN: the value that asks for nothing; NULL: none */
    const char *renamed;  /* another name of this canonical key */
};

struct sl_key_block {
    const char *title, *intro;
    const struct sl_key *keys;
    size_t count;
};

extern const struct sl_key_block sl_keys_train, sl_keys_data, sl_keys_engine, sl_keys_top,
    sl_keys_optimizer, sl_keys_scheduler, sl_keys_precision, sl_keys_zero, sl_keys_offload,
    sl_keys_runtime, sl_keys_monitor, sl_keys_accelerate;

const struct sl_key_block *sl_key_block_at(size_t index); /* NULL past the last */
size_t sl_key_count(void);
const struct sl_key *sl_key_at(size_t index);

/* The key with this path, its index in *index; NULL: none. `accelerate` chooses the namespace. */
const struct sl_key *sl_key_find(const char *path, bool accelerate, size_t *index);

/* True where `path` is an object that keys lie in ("zero_optimization"). */
bool sl_key_is_block(const char *path, bool accelerate);

/* The known path that a user most likely meant; false: none is near. */
#define SL_KEY_PATH_BYTES 160
bool sl_key_nearest(const char *path, bool accelerate, char nearest[SL_KEY_PATH_BYTES]);

/* The first known path whose last words are these: batch_size -> train_batch_size. */
bool sl_key_ending_with(const char *word, bool accelerate, char nearest[SL_KEY_PATH_BYTES]);

const char *sl_key_type_name(const struct sl_key *key);

#endif
