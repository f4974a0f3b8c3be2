// SPDX-License-Identifier: Apache-2.0
/* Added tokens in a text: the leftmost match, and of those that begin there the longest.
 *
 * Most text holds none, so what counts is how fast a position is ruled out: by its byte, and where
 * all tokens begin with the same byte (nearly always '<') by memchr. From a position that may
 * match, a trie is walked whose edges lie in one hash table: Gemma adds thousands of tokens, and a
 * node with 256 pointers each would be megabytes for nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

static uint64_t edge_at(const struct added_set *set, uint32_t node, uint8_t byte)
{
    uint64_t hash = ((uint64_t)node << 8 | byte) * 0x9e3779b97f4a7c15u;
    uint64_t at = (hash >> 32) & set->mask;
    while (set->edges[at].next && (set->edges[at].node != node || set->edges[at].byte != byte))
        at = (at + 1) & set->mask;
    return at;
}

static void add_to_trie(struct added_set *set, uint32_t index)
{
    const struct added_token *token = set->tokens[index];
    uint32_t node = 0;
    for (size_t i = 0; i < token->bytes; i++) {
        struct trie_edge *edge = &set->edges[edge_at(set, node, (uint8_t)token->content[i])];
        if (!edge->next)
            *edge = (struct trie_edge){node, set->node_count++, (uint8_t)token->content[i]};
        node = edge->next;
    }
    if (!set->token_at[node])
        set->token_at[node] = index + 1;
    uint8_t lead = (uint8_t)token->content[0];
    if (!set->first[lead])
        set->only_first = set->count == 0 ? lead : -1;
    set->first[lead] = true;
}

int added_set_make(struct added_set *set, const struct added_token *tokens, size_t count,
                   bool normalized)
{
    *set = (struct added_set){.node_count = 1};
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += tokens[i].bytes;
    uint64_t slots = 16;
    while (slots < bytes * 2)
        slots *= 2;
    set->mask = slots - 1;
    set->tokens = calloc(count + 1, sizeof(*set->tokens));
    set->edges = calloc(slots, sizeof(*set->edges));
    set->token_at = calloc(bytes + 1, sizeof(*set->token_at));
    if (!set->tokens || !set->edges || !set->token_at)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i].bytes == 0 || tokens[i].normalized != normalized)
            continue;
        set->tokens[set->count] = &tokens[i];
        add_to_trie(set, (uint32_t)set->count);
        set->count++;
    }
    return 0;
}

void added_set_finish(struct added_set *set)
{
    free(set->tokens);
    free(set->edges);
    free(set->token_at);
    *set = (struct added_set){0};
}

static const struct added_token *longest_at(const struct added_set *set, const char *text,
                                            size_t bytes)
{
    const struct added_token *found = NULL;
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        node = set->edges[edge_at(set, node, (uint8_t)text[i])].next;
        if (!node)
            break;
        if (set->token_at[node])
            found = set->tokens[set->token_at[node] - 1];
    }
    return found;
}

static const struct added_token *find_raw(const struct added_set *set, const char *text,
                                          size_t bytes, size_t *from)
{
    for (size_t at = *from; at < bytes; at++) {
        if (set->only_first >= 0) {
            const char *hit = memchr(text + at, set->only_first, bytes - at);
            if (!hit)
                return NULL;
            at = (size_t)(hit - text);
        } else {
            while (at < bytes && !set->first[(uint8_t)text[at]])
                at++;
            if (at == bytes)
                return NULL;
        }
        const struct added_token *token = longest_at(set, text + at, bytes - at);
        if (token) {
            *from = at;
            return token;
        }
    }
    return NULL;
}

/* The character that ends at `end`. */
static uint8_t class_before(const char *text, size_t end)
{
    size_t start = end - 1, length;
    while (start > 0 && ((uint8_t)text[start] & 0xc0) == 0x80)
        start--;
    return unicode_class(unicode_table(), utf8_code(text + start, &length));
}

static bool stands_alone(const char *text, size_t bytes, size_t start, size_t end)
{
    size_t length;
    if (start > 0 && (class_before(text, start) & CHARACTER_WORD))
        return false;
    return end == bytes ||
           !(unicode_class(unicode_table(), utf8_code(text + end, &length)) & CHARACTER_WORD);
}

static size_t strip_left(const char *text, size_t start, size_t floor)
{
    while (start > floor && (class_before(text, start) & CHARACTER_SPACE)) {
        do
            start--;
        while (start > floor && ((uint8_t)text[start] & 0xc0) == 0x80);
    }
    return start;
}

static size_t strip_right(const char *text, size_t bytes, size_t end)
{
    size_t length;
    while (end < bytes &&
           (unicode_class(unicode_table(), utf8_code(text + end, &length)) & CHARACTER_SPACE))
        end += length;
    return end;
}

bool added_set_find(const struct added_set *set, const char *text, size_t bytes, size_t from,
                    size_t floor, bool plain, struct added_match *match)
{
    if (set->count == 0)
        return false;
    const struct added_token *token;
    while ((token = find_raw(set, text, bytes, &from))) {
        size_t start = from, end = from + token->bytes;
        from = end;
        if (plain && token->special)
            continue;
        if (token->single_word && !stands_alone(text, bytes, start, end))
            continue;
        match->resume = end;
        match->id = token->id;
        match->token = token;
        match->start = token->left_strip ? strip_left(text, start, floor) : start;
        match->end = token->right_strip ? strip_right(text, bytes, end) : end;
        return true;
    }
    return false;
}
