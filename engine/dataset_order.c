// SPDX-License-Identifier: Apache-2.0
/* Shuffling without a table.
 *
 * An epoch visits every sequence once in an order that looks random, and a resumed run must find
 * its place at once. A shuffled array costs 8 bytes a sequence, must be rebuilt at each epoch and
 * each resume, and its order depends on how far the generator has been drawn. Here the order is a
 * keyed permutation: a four-round Feistel network over the smallest even number of bits that holds
 * [0, count), walked until it lands inside (at most four steps on average). Place i of epoch e is
 * computed from (seed, e, i) alone.
 *
 * Invariant: for fixed count, seed and epoch, permutation_at is a bijection on [0, count).
 */
#include "engine/dataset_internal.h"

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct permutation permutation_make(uint64_t count, uint64_t seed, uint64_t epoch)
{
    unsigned half_bits = 1;
    while (half_bits < 32 && ((uint64_t)1 << (2 * half_bits)) < count)
        half_bits++;
    uint64_t key = mix(mix(seed + 0x9e3779b97f4a7c15u) + epoch + 0x9e3779b97f4a7c15u);
    return (struct permutation){.count = count, .key = key, .half_bits = half_bits};
}

uint64_t permutation_at(const struct permutation *permutation, uint64_t index)
{
    uint64_t mask = ((uint64_t)1 << permutation->half_bits) - 1;
    uint64_t value = index;
    do {
        uint64_t left = value >> permutation->half_bits, right = value & mask;
        for (uint64_t round = 1; round <= 4; round++) {
            uint64_t next = left ^ (mix(permutation->key + (round << 56) + right) & mask);
            left = right;
            right = next;
        }
        value = left << permutation->half_bits | right;
    } while (value >= permutation->count);
    return value;
}
