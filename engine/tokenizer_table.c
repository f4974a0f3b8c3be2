// SPDX-License-Identifier: Apache-2.0
/* The two hash tables of a BPE tokenizer, both filled once and then only read.
 *
 * Looking up a pair is what BPE does most, so a pair's slot is 16 bytes, four to a cache line, and
 * its hash one multiplication. Strings keep 32 bits of their hash in the slot: a miss costs no look
 * at the pool. Rejected: perfect hashing (a second or more at each start for 500,000 merges).
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/tokenizer_internal.h"

static uint64_t slot_count(uint64_t count)
{
    uint64_t slots = 16;
    while (slots < count * 2)
        slots *= 2;
    return slots;
}

bool string_table_make(struct string_table *table, uint64_t count, uint64_t pool_capacity)
{
    uint64_t slots = slot_count(count);
    *table = (struct string_table){.mask = slots - 1, .pool_capacity = pool_capacity};
    table->slots = malloc(slots * sizeof(*table->slots));
    table->pool = malloc(pool_capacity + 1);
    if (!table->slots || !table->pool)
        return false;
    for (uint64_t i = 0; i < slots; i++)
        table->slots[i].id = NO_ID;
    return true;
}

void string_table_finish(struct string_table *table)
{
    free(table->slots);
    free(table->pool);
    *table = (struct string_table){0};
}

static struct string_slot *find(const struct string_table *table, const char *text, size_t bytes,
                                uint32_t *tag)
{
    uint64_t hash = XXH3_64bits(text, bytes);
    *tag = (uint32_t)(hash >> 32);
    for (uint64_t at = hash & table->mask;; at = (at + 1) & table->mask) {
        struct string_slot *slot = &table->slots[at];
        if (slot->id == NO_ID)
            return slot;
        if (slot->tag == *tag && slot->bytes == bytes &&
            memcmp(table->pool + slot->offset, text, bytes) == 0)
            return slot;
    }
}

/* False where the string is there already, or the pool that was asked for is full. */
bool string_table_put(struct string_table *table, const char *text, size_t bytes, uint32_t id)
{
    uint32_t tag;
    struct string_slot *slot = find(table, text, bytes, &tag);
    if (slot->id != NO_ID || bytes > table->pool_capacity - table->pool_bytes)
        return false;
    *slot = (struct string_slot){table->pool_bytes, (uint32_t)bytes, id, tag};
    memcpy(table->pool + table->pool_bytes, text, bytes);
    table->pool_bytes += bytes;
    return true;
}

uint32_t string_table_get(const struct string_table *table, const char *text, size_t bytes)
{
    uint32_t tag;
    return table->slots ? find(table, text, bytes, &tag)->id : NO_ID;
}

bool pair_table_make(struct pair_table *table, uint64_t count)
{
    uint64_t slots = slot_count(count);
    *table = (struct pair_table){.mask = slots - 1};
    table->slots = malloc(slots * sizeof(*table->slots));
    if (!table->slots)
        return false;
    for (uint64_t i = 0; i < slots; i++)
        table->slots[i].rank = NO_ID;
    return true;
}

void pair_table_finish(struct pair_table *table)
{
    free(table->slots);
    *table = (struct pair_table){0};
}

void pair_table_put(struct pair_table *table, struct pair_slot slot)
{
    struct pair_slot *there =
        (struct pair_slot *)(uintptr_t)pair_table_get(table, slot.left, slot.right);
    if (!there) {
        uint64_t hash = ((uint64_t)slot.left << 32 | slot.right) * 0x9e3779b97f4a7c15u;
        uint64_t at = (hash >> 32) & table->mask;
        while (table->slots[at].rank != NO_ID)
            at = (at + 1) & table->mask;
        there = &table->slots[at];
    }
    *there = slot;
}
