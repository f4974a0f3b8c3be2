// SPDX-License-Identifier: Apache-2.0
/* Packing of examples into sequences.
 *
 * An example is never cut in two and examples do not see each other, so a sequence is a bin and the
 * examples are what goes in: the longest first, each into the fullest bin that has room (best fit
 * decreasing, within 22 % of the optimum at worst and within 1 % on real lengths). Bins wait in
 * lists by the room they have left; a bit map over the lists finds the next that is not empty, 64
 * at a time, so that a million examples take a fraction of a second. Ties go by document number:
 * the packing depends on data and sequence length alone.
 *
 * Examples that have nothing to train on inside the sequence length are left out here, and counted:
 * they would cost their time and give no gradient.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dataset_internal.h"

#define NONE UINT32_MAX
#define SPLIT_SEED 0x73706c6974u /* the held-out part does not change with the run's seed */

struct packer {
    const struct token_store *store;
    uint32_t room_max;     /* T */
    const uint32_t *order; /* examples, longest first */
    uint64_t count;
    uint32_t *bin_of;   /* [count] */
    uint32_t *next_bin; /* [count] list of bins with equal room */
    uint32_t *heads;    /* [T + 1] */
    uint64_t *bits;     /* [T / 64 + 1] */
    uint64_t bin_count;
};

void packing_finish(struct packing *packing)
{
    free(packing->starts);
    free(packing->examples);
    *packing = (struct packing){0};
}

static bool has_target(const struct token_store *store, uint64_t document, uint32_t length)
{
    uint64_t start = store->documents[document];
    uint64_t slots = example_slots(store, document, length);
    if (!store->marked)
        return slots > 0;
    for (uint64_t i = 1; i <= slots; i++)
        if (!(store_raw(store, start + i) & STORE_UNTRAINED))
            return true;
    return false;
}

/* The smallest room of at least `slots` that a bin has, or NONE. */
static uint32_t find_room(const struct packer *packer, uint32_t slots)
{
    for (uint32_t word = slots / 64; word <= packer->room_max / 64; word++) {
        uint64_t bits = packer->bits[word];
        if (word == slots / 64)
            bits &= ~(uint64_t)0 << (slots % 64);
        if (bits)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return NONE;
}

static void list_bin(struct packer *packer, uint32_t bin, uint32_t room)
{
    packer->next_bin[bin] = packer->heads[room];
    packer->heads[room] = bin;
    packer->bits[room / 64] |= (uint64_t)1 << (room % 64);
}

static uint32_t take_bin(struct packer *packer, uint32_t room)
{
    uint32_t bin = packer->heads[room];
    packer->heads[room] = packer->next_bin[bin];
    if (packer->heads[room] == NONE)
        packer->bits[room / 64] &= ~((uint64_t)1 << (room % 64));
    return bin;
}

static void place_all(struct packer *packer, bool one_each)
{
    for (uint64_t i = 0; i < packer->count; i++) {
        uint32_t slots = (uint32_t)example_slots(packer->store, packer->order[i], packer->room_max);
        uint32_t room = one_each ? NONE : find_room(packer, slots);
        uint32_t bin = room == NONE ? (uint32_t)packer->bin_count++ : take_bin(packer, room);
        uint32_t left = (room == NONE ? packer->room_max : room) - slots;
        packer->bin_of[i] = bin;
        if (left)
            list_bin(packer, bin, left);
    }
}

/* Group by bin: count, sum up, drop in. */
static int group(const struct packer *packer, struct packing *packing)
{
    packing->sequence_count = packer->bin_count;
    packing->example_count = packer->count;
    packing->starts = calloc(packer->bin_count + 2, sizeof(*packing->starts));
    packing->examples = malloc((packer->count + 1) * sizeof(*packing->examples));
    if (!packing->starts || !packing->examples)
        return -ENOMEM;
    for (uint64_t i = 0; i < packer->count; i++)
        packing->starts[packer->bin_of[i] + 2]++;
    for (uint64_t bin = 2; bin <= packer->bin_count; bin++)
        packing->starts[bin] += packing->starts[bin - 1];
    for (uint64_t i = 0; i < packer->count; i++)
        packing->examples[packing->starts[packer->bin_of[i] + 1]++] = packer->order[i];
    return 0;
}

static int pack(struct packing *packing, const struct token_store *store, uint32_t length,
                const uint32_t *order, uint64_t count, bool one_each)
{
    struct packer packer = {.store = store, .room_max = length, .order = order, .count = count};
    packer.bin_of = malloc((count + 1) * sizeof(*packer.bin_of));
    packer.next_bin = malloc((count + 1) * sizeof(*packer.next_bin));
    packer.heads = malloc((length + 1) * sizeof(*packer.heads));
    packer.bits = calloc(length / 64 + 1, sizeof(*packer.bits));
    int code = -ENOMEM;
    if (packer.bin_of && packer.next_bin && packer.heads && packer.bits) {
        memset(packer.heads, 0xff, (length + 1) * sizeof(*packer.heads));
        place_all(&packer, one_each);
        code = group(&packer, packing);
    }
    free(packer.bin_of);
    free(packer.next_bin);
    free(packer.heads);
    free(packer.bits);
    return code;
}

static int longer_first(const void *a, const void *b, void *arg)
{
    const struct token_store *store = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint64_t p = store->documents[x + 1] - store->documents[x];
    uint64_t q = store->documents[y + 1] - store->documents[y];
    return p != q ? (p < q) - (p > q) : (x > y) - (x < y);
}

/* Examples that can be trained on, with how many could not, and how many are cut. */
static uint64_t select_examples(const struct token_store *store, uint32_t length, uint32_t *order,
                                uint64_t *left_out, uint64_t *cut)
{
    uint64_t count = 0;
    *left_out = *cut = 0;
    for (uint64_t document = 0; document < store->document_count; document++) {
        if (!has_target(store, document, length)) {
            ++*left_out;
            continue;
        }
        uint64_t tokens = store->documents[document + 1] - store->documents[document];
        *cut += tokens - 1 > length;
        order[count++] = (uint32_t)document;
    }
    return count;
}

static int split_and_pack(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                          uint32_t *order, uint64_t count, struct sl_error *error)
{
    const struct token_store *store = dataset->stores;
    uint64_t held = 0;
    if (options->validation_fraction > 0) {
        held = (uint64_t)((double)count * options->validation_fraction + 0.5);
        held = held ? held : 1;
        if (held >= count)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: %llu example%s can be trained on, too few to hold out one; "
                                "give more or set validation_fraction to 0",
                                options->files[0], (unsigned long long)count,
                                count == 1 ? "" : "s");
    }
    uint32_t *shuffled = malloc((count + 1) * sizeof(*shuffled));
    if (!shuffled)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to pack examples");
    struct permutation permutation = permutation_make(count, SPLIT_SEED, 0);
    for (uint64_t i = 0; i < count; i++)
        shuffled[i] = order[permutation_at(&permutation, i)];
    qsort_r(shuffled, held, sizeof(*shuffled), longer_first, (void *)(uintptr_t)store);
    qsort_r(shuffled + held, count - held, sizeof(*shuffled), longer_first,
            (void *)(uintptr_t)store);
    uint32_t length = dataset->sequence_length;
    int code = pack(&dataset->eval, store, length, shuffled, held, options->no_packing);
    if (!code)
        code = pack(&dataset->train, store, length, shuffled + held, count - held,
                    options->no_packing);
    free(shuffled);
    if (code)
        return sl_error_set(error, SL_DOMAIN_MEMORY, code, "no memory to pack examples");
    dataset->train_count = dataset->train.sequence_count;
    dataset->eval_count = dataset->eval.sequence_count;
    return 0;
}

int dataset_pack(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                 struct sl_error *error)
{
    const struct token_store *store = dataset->stores;
    uint64_t left_out, cut;
    if (store->document_count >= NONE)
        return sl_error_set(error, SL_DOMAIN_INPUT, -E2BIG, "%s: over %u examples",
                            options->files[0], NONE - 1);
    uint32_t *order = malloc((store->document_count + 1) * sizeof(*order));
    if (!order)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to pack examples");
    uint64_t count = select_examples(store, dataset->sequence_length, order, &left_out, &cut);
    if (left_out)
        sl_log_write(options->log, SL_LOG_WARNING,
                     "%llu of %llu examples have no token to train on within sequence_length %u "
                     "and are left out",
                     (unsigned long long)left_out, (unsigned long long)store->document_count,
                     dataset->sequence_length);
    if (cut)
        sl_log_write(options->log, SL_LOG_WARNING,
                     "%llu of %llu examples are longer than sequence_length %u; their end is cut "
                     "off",
                     (unsigned long long)cut, (unsigned long long)store->document_count,
                     dataset->sequence_length);
    int code = count ? split_and_pack(dataset, options, order, count, error)
                     : sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                    "%s: none of %llu examples has a token to train on within "
                                    "sequence_length %u; is an answer there, is it long enough?",
                                    options->files[0], (unsigned long long)store->document_count,
                                    dataset->sequence_length);
    free(order);
    return code;
}
