// SPDX-License-Identifier: Apache-2.0
#include "engine/config_keys.h"

#include <string.h>

#include "base/word.h"

static const struct sl_key_block *const blocks[] = {
    &sl_keys_train,     &sl_keys_data,      &sl_keys_engine,    &sl_keys_top,
    &sl_keys_optimizer, &sl_keys_scheduler, &sl_keys_precision, &sl_keys_zero,
    &sl_keys_offload,   &sl_keys_runtime,   &sl_keys_monitor,   &sl_keys_accelerate,
};
#define BLOCK_COUNT (sizeof(blocks) / sizeof(blocks[0]))

const struct sl_key_block *sl_key_block_at(size_t index)
{
    return index < BLOCK_COUNT ? blocks[index] : NULL;
}

size_t sl_key_count(void)
{
    size_t count = 0;
    for (size_t b = 0; b < BLOCK_COUNT; b++)
        count += blocks[b]->count;
    return count;
}

const struct sl_key *sl_key_at(size_t index)
{
    for (size_t b = 0; b < BLOCK_COUNT; b++) {
        if (index < blocks[b]->count)
            return &blocks[b]->keys[index];
        index -= blocks[b]->count;
    }
    return NULL;
}

static bool same_space(const struct sl_key *key, bool accelerate)
{
    return !(key->flags & SL_KEY_ACCELERATE) == !accelerate;
}

const struct sl_key *sl_key_find(const char *path, bool accelerate, size_t *index)
{
    size_t first = 0;
    for (size_t b = 0; b < BLOCK_COUNT; first += blocks[b]->count, b++)
        for (size_t k = 0; k < blocks[b]->count; k++) {
            const struct sl_key *key = &blocks[b]->keys[k];
            size_t c = 0; /* most paths differ early: no call per key */
            while (key->path[c] && key->path[c] == path[c])
                c++;
            if (key->path[c] == path[c] && same_space(key, accelerate)) {
                *index = first + k;
                return key;
            }
        }
    return NULL;
}

bool sl_key_is_block(const char *path, bool accelerate)
{
    size_t length = strlen(path);
    for (size_t i = 0, n = sl_key_count(); i < n; i++) {
        const struct sl_key *key = sl_key_at(i);
        if (same_space(key, accelerate) && strncmp(key->path, path, length) == 0 &&
            key->path[length] == '.')
            return true;
    }
    return false;
}

static const char *leaf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The component of `known` that stands where `path` has its last one, with the same parent. */
static bool sibling(const char *known, const char *path, char word[SL_WORD_BYTES])
{
    size_t parent = (size_t)(leaf(path) - path);
    if (strncmp(known, path, parent) != 0)
        return false;
    size_t length = strcspn(known + parent, ".");
    if (length >= SL_WORD_BYTES)
        return false;
    memcpy(word, known + parent, length);
    word[length] = 0;
    return true;
}

/* First a sibling within few edits, then the same word in another block. */
bool sl_key_nearest(const char *path, bool accelerate, char nearest[SL_KEY_PATH_BYTES])
{
    const char *word = leaf(path), *best = NULL;
    size_t parent = (size_t)(word - path), best_length = 0;
    size_t limit = sl_word_edits_max(word), best_edits = limit + 1;
    for (size_t i = 0, n = sl_key_count(); i < n; i++) {
        const struct sl_key *key = sl_key_at(i);
        char other[SL_WORD_BYTES];
        if (!same_space(key, accelerate) || !sibling(key->path, path, other))
            continue;
        size_t edits = sl_word_distance(word, other, limit);
        if (edits < best_edits) {
            best_edits = edits;
            best = key->path;
            best_length = parent + strlen(other);
        }
    }
    for (size_t i = 0, n = sl_key_count(); !best && i < n; i++) {
        const struct sl_key *key = sl_key_at(i);
        if (same_space(key, accelerate) && strcmp(leaf(key->path), word) == 0) {
            best = key->path;
            best_length = strlen(best);
        }
    }
    if (!best || best_length >= SL_KEY_PATH_BYTES)
        return false;
    memcpy(nearest, best, best_length);
    nearest[best_length] = 0;
    return true;
}

bool sl_key_ending_with(const char *word, bool accelerate, char nearest[SL_KEY_PATH_BYTES])
{
    size_t length = strlen(word);
    for (size_t i = 0, n = sl_key_count(); i < n && length >= 4; i++) {
        const struct sl_key *key = sl_key_at(i);
        size_t whole = strlen(key->path);
        if (!same_space(key, accelerate) || whole <= length || whole >= SL_KEY_PATH_BYTES ||
            key->path[whole - length - 1] != '_' || strcmp(key->path + whole - length, word) != 0)
            continue;
        memcpy(nearest, key->path, whole + 1);
        return true;
    }
    return false;
}

const char *sl_key_type_name(const struct sl_key *key)
{
    static const char *const names[] = {
        [SL_KEY_BOOL] = "true or false",    [SL_KEY_COUNT] = "a whole number",
        [SL_KEY_ELEMENTS] = "a count",      [SL_KEY_NUMBER] = "a number",
        [SL_KEY_STRING] = "a string",       [SL_KEY_CHOICE] = "one of",
        [SL_KEY_SIZE] = "a size in bytes",  [SL_KEY_PAIR] = "two numbers",
        [SL_KEY_WORDS] = "a list of names", [SL_KEY_BLOCK] = "a block",
    };
    return names[key->type];
}
