// SPDX-License-Identifier: Apache-2.0
#include "base/word.h"

#include <string.h>

size_t sl_word_distance(const char *a, const char *b, size_t limit)
{
    size_t m = strlen(a), n = strlen(b);
    if (m >= SL_WORD_BYTES || n >= SL_WORD_BYTES || (m > n ? m - n : n - m) > limit)
        return limit + 1;
    size_t rows[3][SL_WORD_BYTES + 1];
    for (size_t j = 0; j <= n; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two[j - 2] + 1 < best)
                best = two[j - 2] + 1;
            row[j] = best;
        }
    }
    size_t edits = rows[m % 3][n];
    return edits > limit ? limit + 1 : edits;
}

size_t sl_word_edits_max(const char *word)
{
    size_t edits = strlen(word) / 4 + 1;
    return edits < 4 ? edits : 4;
}

const char *sl_word_nearest(const char *word, const char *const *words, size_t count)
{
    size_t limit = sl_word_edits_max(word), best = limit + 1;
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t edits = sl_word_distance(word, words[i], limit);
        if (edits < best) {
            best = edits;
            nearest = words[i];
        }
    }
    return nearest;
}
