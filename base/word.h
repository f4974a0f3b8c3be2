// SPDX-License-Identifier: Apache-2.0
/* Misspelt words: names of keys, options, commands, presets. */
#ifndef SLUICE_BASE_WORD_H
#define SLUICE_BASE_WORD_H

#include <stddef.h>

#define SL_WORD_BYTES 72

/* Edits (insert, delete, change, swap of neighbours) from a to b; limit + 1 where it is more, or
 * where one of them has SL_WORD_BYTES or more. */
size_t sl_word_distance(const char *a, const char *b, size_t limit);

/* Edits that still look like a misspelling of this word: one in four letters and one more, at most
 * four. */
size_t sl_word_edits_max(const char *word);

/* The nearest to `word` of `count` words, the first of equals, or NULL where none is within
 * sl_word_edits_max. */
const char *sl_word_nearest(const char *word, const char *const *words, size_t count);

#endif
