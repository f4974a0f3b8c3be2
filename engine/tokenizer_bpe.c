// SPDX-License-Identifier: Apache-2.0
/* Byte-pair encoding of one word.
 *
 * The rule: of all adjacent pairs that have a merge, the one with the lowest rank, and of equal
 * ones the leftmost, is merged, until none is left. Three ways to the same ids:
 *
 *     a cache          most words of a text have been seen; one 64-byte line holds word and ids
 *     short words      an array of ranks, searched for its least: quadratic, but in registers and
 * L1 long words       a heap of candidates over a linked list, n log n: texts without a
 *                      pre-tokenizer are a single word of megabytes
 *
 * A candidate in the heap may be stale when it comes up: it counts only while the two symbols at
 * its place are still those it was made for. (Equal text at an equal place has equal halves here,
 * because merging only ever joins; so this test and the library's own, on the merged id, agree.)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

#define SHORT_SYMBOLS 48u

static inline uint32_t word_hash(const char *word, size_t bytes)
{
    uint64_t a = 0, b = 0, c = 0;
    memcpy(&a, word, bytes < 8 ? bytes : 8);
    if (bytes > 8)
        memcpy(&b, word + bytes - 8, 8);
    if (bytes > 16)
        memcpy(&c, word + 8, 8);
    uint64_t hash = (a + bytes) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 29) ^ b) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 31) ^ c) * 0x94d049bb133111ebu;
    return (uint32_t)(hash >> 40) & (CACHE_SLOTS - 1);
}

static int emit(struct sl_encoder *encoder, const uint32_t *ids, size_t count)
{
    if (!tokenizer_ids_reserve(encoder->out, count))
        return -ENOMEM;
    memcpy(encoder->out->data + encoder->out->count, ids, count * sizeof(*ids));
    encoder->out->count += count;
    return 0;
}

static size_t merge_short(const struct pair_table *merges, uint32_t *ids, size_t count)
{
    uint32_t ranks[SHORT_SYMBOLS], joined[SHORT_SYMBOLS];
    for (size_t i = 0; i + 1 < count; i++) {
        const struct pair_slot *slot = pair_table_get(merges, ids[i], ids[i + 1]);
        ranks[i] = slot ? slot->rank : NO_ID;
        joined[i] = slot ? slot->id : NO_ID;
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == NO_ID)
            break;
        ids[best] = joined[best];
        count--;
        for (size_t i = best + 1; i < count; i++)
            ids[i] = ids[i + 1];
        for (size_t i = best + 1; i + 1 < count; i++) {
            ranks[i] = ranks[i + 1];
            joined[i] = joined[i + 1];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < count; i++) {
            const struct pair_slot *slot = pair_table_get(merges, ids[i], ids[i + 1]);
            ranks[i] = slot ? slot->rank : NO_ID;
            joined[i] = slot ? slot->id : NO_ID;
        }
    }
    return count;
}

static inline bool before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static int heap_push(struct sl_encoder *encoder, size_t *count, struct bpe_candidate candidate)
{
    if (*count == encoder->heap_capacity) {
        size_t capacity = encoder->heap_capacity ? encoder->heap_capacity * 2 : 256;
        void *grown = realloc(encoder->heap, capacity * sizeof(*encoder->heap));
        if (!grown)
            return -ENOMEM;
        encoder->heap = grown;
        encoder->heap_capacity = capacity;
    }
    struct bpe_candidate *heap = encoder->heap;
    size_t at = (*count)++;
    for (; at > 0 && before(&candidate, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = candidate;
    return 0;
}

static struct bpe_candidate heap_pop(struct bpe_candidate *heap, size_t *count)
{
    struct bpe_candidate top = heap[0], last = heap[--*count];
    size_t at = 0;
    for (size_t child = 1; child < *count; child = 2 * at + 1) {
        if (child + 1 < *count && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static int push_pair(struct sl_encoder *encoder, size_t *count, int32_t at)
{
    const struct bpe_symbol *chain = encoder->chain;
    if (at < 0 || chain[at].next < 0)
        return 0;
    uint32_t left = chain[at].id, right = chain[chain[at].next].id;
    const struct pair_slot *slot = pair_table_get(&encoder->tokenizer->merges, left, right);
    if (!slot)
        return 0;
    return heap_push(encoder, count, (struct bpe_candidate){slot->rank, left, right, at});
}

static int make_chain(struct sl_encoder *encoder, const uint32_t *ids, size_t count)
{
    if (count > INT32_MAX)
        return -EOVERFLOW;
    if (count > encoder->chain_capacity) {
        void *grown = realloc(encoder->chain, count * sizeof(*encoder->chain));
        if (!grown)
            return -ENOMEM;
        encoder->chain = grown;
        encoder->chain_capacity = count;
    }
    for (size_t i = 0; i < count; i++)
        encoder->chain[i] =
            (struct bpe_symbol){ids[i], (int32_t)i - 1, i + 1 < count ? (int32_t)i + 1 : -1};
    return 0;
}

static int merge_long(struct sl_encoder *encoder, uint32_t *ids, size_t *count)
{
    int code = make_chain(encoder, ids, *count);
    size_t candidates = 0;
    for (size_t i = 0; i + 1 < *count && !code; i++)
        code = push_pair(encoder, &candidates, (int32_t)i);
    struct bpe_symbol *chain = encoder->chain;
    while (candidates && !code) {
        struct bpe_candidate top = heap_pop(encoder->heap, &candidates);
        struct bpe_symbol *left = &chain[top.at];
        if (left->id != top.left || left->next < 0 || chain[left->next].id != top.right)
            continue;
        struct bpe_symbol *right = &chain[left->next];
        left->id = pair_table_get(&encoder->tokenizer->merges, top.left, top.right)->id;
        right->id = NO_ID;
        left->next = right->next;
        if (left->next >= 0)
            chain[left->next].previous = top.at;
        code = push_pair(encoder, &candidates, left->previous);
        if (!code)
            code = push_pair(encoder, &candidates, top.at);
    }
    if (code)
        return code;
    size_t kept = 0;
    for (int32_t at = 0; at >= 0; at = chain[at].next)
        ids[kept++] = chain[at].id;
    *count = kept;
    return 0;
}

/* One character that has no entry: its bytes, or an unknown. Follows the library's order exactly,
 * an unknown that waits included. */
static int add_unknown(struct sl_encoder *encoder, const char *text, size_t length, bool *waiting)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    struct sl_ids *symbols = &encoder->symbols;
    if (tokenizer->byte_fallback) {
        bool all = true;
        for (size_t i = 0; i < length; i++)
            all = all && tokenizer->byte_ids[(uint8_t)text[i]] != NO_ID;
        for (size_t i = 0; all && i < length; i++)
            symbols->data[symbols->count++] = tokenizer->byte_ids[(uint8_t)text[i]];
        if (all)
            return 0;
    }
    if (!tokenizer->unknown_text)
        return 0; /* the library drops the character */
    if (tokenizer->unknown_id == NO_ID)
        return -EINVAL;
    if (*waiting && !tokenizer->fuse_unknown)
        symbols->data[symbols->count++] = tokenizer->unknown_id;
    *waiting = true;
    return 0;
}

static int characters_to_symbols(struct sl_encoder *encoder, const char *word, size_t bytes)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    struct sl_ids *symbols = &encoder->symbols;
    bool waiting = false;
    for (size_t at = 0, length; at < bytes; at += length) {
        uint32_t code = utf8_code(word + at, &length);
        uint32_t id = code < 128 ? tokenizer->ascii_ids[code]
                                 : string_table_get(&tokenizer->entries, word + at, length);
        if (id != NO_ID) {
            if (waiting)
                symbols->data[symbols->count++] = tokenizer->unknown_id;
            waiting = false;
            symbols->data[symbols->count++] = id;
            continue;
        }
        int error = add_unknown(encoder, word + at, length, &waiting);
        if (error)
            return error;
    }
    if (waiting)
        symbols->data[symbols->count++] = tokenizer->unknown_id;
    return 0;
}

static int bytes_to_symbols(struct sl_encoder *encoder, const char *word, size_t bytes)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    struct sl_ids *symbols = &encoder->symbols;
    bool waiting = false;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t id = tokenizer->byte_ids[(uint8_t)word[i]];
        if (id != NO_ID) {
            if (waiting)
                symbols->data[symbols->count++] = tokenizer->unknown_id;
            waiting = false;
            symbols->data[symbols->count++] = id;
        } else if (tokenizer->unknown_text) {
            if (tokenizer->unknown_id == NO_ID)
                return -EINVAL;
            if (waiting && !tokenizer->fuse_unknown)
                symbols->data[symbols->count++] = tokenizer->unknown_id;
            waiting = true;
        }
    }
    if (waiting)
        symbols->data[symbols->count++] = tokenizer->unknown_id;
    return 0;
}

static int word_to_symbols(struct sl_encoder *encoder, const char *word, size_t bytes)
{
    const struct sl_tokenizer *tokenizer = encoder->tokenizer;
    struct sl_ids *symbols = &encoder->symbols;
    symbols->count = 0;
    if (!tokenizer_ids_reserve(symbols, bytes + 1))
        return -ENOMEM;
    if (tokenizer->ignore_merges) {
        uint32_t id = string_table_get(&tokenizer->entries, word, bytes);
        if (id != NO_ID) {
            symbols->data[symbols->count++] = id;
            return 0;
        }
    }
    int code = tokenizer->byte_level ? bytes_to_symbols(encoder, word, bytes)
                                     : characters_to_symbols(encoder, word, bytes);
    if (code)
        return code;
    if (symbols->count <= SHORT_SYMBOLS)
        symbols->count = merge_short(&tokenizer->merges, symbols->data, symbols->count);
    else
        code = merge_long(encoder, symbols->data, &symbols->count);
    return code;
}

int bpe_word(struct sl_encoder *encoder, const char *word, size_t bytes)
{
    if (bytes == 0)
        return 0;
    struct cached_word *line = NULL;
    if (bytes <= CACHE_WORD_BYTES) {
        line = &encoder->cache[word_hash(word, bytes)];
        if (line->bytes == bytes && memcmp(line->word, word, bytes) == 0)
            return emit(encoder, line->ids, line->count);
    }
    int code = word_to_symbols(encoder, word, bytes);
    if (code)
        return code;
    const struct sl_ids *symbols = &encoder->symbols;
    if (line && symbols->count <= CACHE_IDS) {
        line->bytes = (uint8_t)bytes;
        line->count = (uint8_t)symbols->count;
        memcpy(line->word, word, bytes);
        memcpy(line->ids, symbols->data, symbols->count * sizeof(*symbols->data));
    }
    return emit(encoder, symbols->data, symbols->count);
}
