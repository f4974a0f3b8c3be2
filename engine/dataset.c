// SPDX-License-Identifier: Apache-2.0
/* From a token store to batches.
 *
 * Sequence k of a stream of n ids is ids [k T, k T + T + 1): neighbours share one id, the target of
 * the one and the first input of the other. The held-out part is the stream's tail, cut once and
 * never shuffled in, because windows taken from all over a text would share their documents with
 * the training part.
 *
 *     | training sequences 0 .. N-1                 | held out N .. N+M-1 | rest < T |
 *
 * Files that are mapped as they are stay apart: each is a stream of its own, and their sequences
 * are numbered through. Conversations are no stream but examples, and packed (dataset_pack.c).
 *
 * A batch row is filled by walking the documents that lie in its window; what a row holds depends
 * on its number alone, so any thread may fill any row in any order.
 */
#include "engine/dataset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/size.h"
#include "engine/dataset_internal.h"

#define SEQUENCE_LENGTH_MAX (1u << 24)

static int check_options(const struct sl_dataset_options *options, struct sl_error *error)
{
    if (options->file_count == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "no data files; name at least one");
    if (options->sequence_length == 0 || options->sequence_length > SEQUENCE_LENGTH_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "sequence_length %u: give 1 to %u",
                            options->sequence_length, SEQUENCE_LENGTH_MAX);
    double fraction = options->validation_fraction;
    if (!(fraction >= 0 && fraction <= 0.5))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "validation_fraction %g: give 0 to 0.5", fraction);
    return 0;
}

static int too_short(const struct sl_dataset *dataset, const struct sl_dataset_options *options,
                     struct sl_error *error)
{
    uint64_t tokens = sl_dataset_tokens(dataset), length = dataset->sequence_length;
    bool holds_out = options->validation_fraction > 0;
    uint64_t parts = 1u + holds_out;
    return sl_error_set(
        error, SL_DOMAIN_INPUT, -EINVAL,
        "%s%s: %llu tokens, but %s of sequence_length %llu need %llu; give more text%s or lower "
        "sequence_length to at most %llu",
        options->files[0], options->file_count > 1 ? " and others" : "", (unsigned long long)tokens,
        holds_out ? "a training and a held-out sequence" : "one sequence",
        (unsigned long long)length, (unsigned long long)(parts * length + 1),
        holds_out ? ", set validation_fraction to 0," : "",
        (unsigned long long)(tokens > parts ? (tokens - 1) / parts : 1));
}

/* Cut the streams and hold out the tail. */
static int split(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                 struct sl_error *error)
{
    uint64_t length = dataset->sequence_length, total = 0;
    dataset->first_sequence = calloc(dataset->store_count + 1, sizeof(*dataset->first_sequence));
    if (!dataset->first_sequence)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a dataset");
    for (size_t i = 0; i < dataset->store_count; i++) {
        uint64_t tokens = dataset->stores[i].token_count;
        total += tokens ? (tokens - 1) / length : 0;
        dataset->first_sequence[i + 1] = total;
    }
    bool holds_out = options->validation_fraction > 0;
    if (total < 1u + holds_out)
        return too_short(dataset, options, error);
    if (holds_out) {
        double wanted = (double)total * options->validation_fraction + 0.5;
        dataset->eval_count = sl_min_u64(sl_max_u64((uint64_t)wanted, 1), total - 1);
    }
    dataset->train_count = total - dataset->eval_count;
    return 0;
}

int sl_dataset_open(struct sl_dataset **out, const struct sl_dataset_options *options,
                    struct sl_error *error)
{
    *out = NULL;
    int code = check_options(options, error);
    if (code)
        return code;
    struct sl_dataset *dataset = calloc(1, sizeof(*dataset));
    if (!dataset)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a dataset");
    dataset->sequence_length = options->sequence_length;
    dataset->seed = options->seed;
    dataset->in_order = options->in_order;
    dataset->unpacked = options->no_packing;
    code = dataset_read(dataset, options, error);
    if (!code) {
        dataset->samples = dataset->stores->samples;
        code = dataset->samples ? dataset_pack(dataset, options, error)
                                : split(dataset, options, error);
    }
    if (code) {
        sl_dataset_close(dataset);
        return code;
    }
    for (size_t i = 0; i < dataset->store_count; i++)
        store_release(&dataset->stores[i], dataset->stores[i].map, dataset->stores[i].map_bytes);
    *out = dataset;
    return 0;
}

void sl_dataset_close(struct sl_dataset *dataset)
{
    if (!dataset)
        return;
    for (size_t i = 0; i < dataset->store_count; i++)
        store_close(&dataset->stores[i]);
    packing_finish(&dataset->train);
    packing_finish(&dataset->eval);
    free(dataset->stores);
    free(dataset->first_sequence);
    free(dataset);
}

struct row {
    int32_t *ids, *targets, *positions, *first;
};

static struct row batch_row(const struct sl_dataset_batch *batch, size_t index, uint32_t length)
{
    size_t at = index * length;
    return (struct row){batch->ids + at, batch->targets + at, batch->positions + at,
                        batch->first + at};
}

/* Ids [from, end) belong to one document and go to row positions [at, at + end - from). The last
 * one has a target only where the document goes on. */
static uint64_t fill_document(const struct token_store *store, struct row row, uint32_t at,
                              uint64_t from, uint64_t end, bool continues)
{
    uint64_t trained = 0;
    uint32_t count = (uint32_t)(end - from);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = store_raw(store, from + i);
        bool has_next = i + 1 < count || continues;
        uint32_t next = has_next ? store_raw(store, from + i + 1) : STORE_UNTRAINED;
        bool target = !(store->id_bytes == 4 && (next & STORE_UNTRAINED)) && has_next;
        row.ids[at + i] = (int32_t)(id & STORE_ID_MASK);
        row.targets[at + i] = target ? (int32_t)next : -1;
        row.positions[at + i] = (int32_t)i;
        row.first[at + i] = (int32_t)at;
        trained += target;
    }
    return trained;
}

static void fill_nothing(struct row row, uint32_t from, uint32_t length)
{
    for (uint32_t i = from; i < length; i++) {
        row.ids[i] = 0;
        row.targets[i] = -1;
        row.positions[i] = (int32_t)(i - from);
        row.first[i] = (int32_t)from;
    }
}

static uint64_t fill_stream_row(const struct sl_dataset *dataset, struct row row, uint64_t sequence)
{
    size_t index = 0;
    while (dataset->first_sequence[index + 1] <= sequence)
        index++;
    const struct token_store *store = &dataset->stores[index];
    uint64_t length = dataset->sequence_length, trained = 0;
    uint64_t begin = (sequence - dataset->first_sequence[index]) * length, end = begin + length;
    for (uint64_t at = begin; at < end;) {
        uint64_t stop = store_document_end(store, at, end + 1); /* one more: does it go on? */
        uint64_t last = sl_min_u64(stop, end);
        trained += fill_document(store, row, (uint32_t)(at - begin), at, last, stop > end);
        at = last;
    }
    store_release(store, store_at(store, begin), (length + 1) * store->id_bytes);
    if (store->documents) /* a search leaves pages behind all over */
        store_release(store, store->documents, (store->document_count + 1) * 8);
    return trained;
}

static uint64_t fill_packed_row(const struct sl_dataset *dataset, struct row row,
                                const struct packing *packing, uint64_t sequence)
{
    const struct token_store *store = dataset->stores;
    uint64_t trained = 0;
    uint32_t at = 0;
    for (uint64_t i = packing->starts[sequence]; i < packing->starts[sequence + 1]; i++) {
        uint64_t document = packing->examples[i], from = store->documents[document];
        uint64_t slots = example_slots(store, document, dataset->sequence_length);
        trained += fill_document(store, row, at, from, from + slots, true);
        store_release(store, store_at(store, from), (slots + 1) * store->id_bytes);
        store_release(store, &store->documents[document], 2 * sizeof(*store->documents));
        at += (uint32_t)slots;
    }
    fill_nothing(row, at, dataset->sequence_length);
    return trained;
}

static uint64_t fill_row(const struct sl_dataset *dataset, struct row row, bool eval,
                         uint64_t sequence)
{
    if (dataset->samples)
        return fill_packed_row(dataset, row, eval ? &dataset->eval : &dataset->train, sequence);
    return fill_stream_row(dataset, row, sequence + (eval ? dataset->train_count : 0));
}

void sl_dataset_next(const struct sl_dataset *dataset, struct sl_dataset_state *state,
                     size_t batch_count, struct sl_dataset_batch *batch)
{
    batch->trained_tokens = 0;
    struct permutation order = {0};
    for (size_t i = 0; i < batch_count; i++) {
        if (state->index >= dataset->train_count) {
            state->epoch++;
            state->index = 0;
            order.count = 0;
        }
        if (order.count == 0)
            order = permutation_make(dataset->train_count, dataset->seed, state->epoch);
        uint64_t sequence = dataset->in_order ? state->index : permutation_at(&order, state->index);
        struct row row = batch_row(batch, i, dataset->sequence_length);
        batch->trained_tokens += fill_row(dataset, row, false, sequence);
        state->index++;
    }
}

size_t sl_dataset_eval(const struct sl_dataset *dataset, uint64_t index, size_t batch_count,
                       struct sl_dataset_batch *batch)
{
    size_t filled = 0;
    batch->trained_tokens = 0;
    for (size_t i = 0; i < batch_count; i++) {
        struct row row = batch_row(batch, i, dataset->sequence_length);
        if (index >= dataset->eval_count || i >= dataset->eval_count - index) {
            fill_nothing(row, 0, dataset->sequence_length);
            continue;
        }
        batch->trained_tokens += fill_row(dataset, row, true, index + i);
        filled++;
    }
    return filled;
}

bool sl_dataset_has_examples(const struct sl_dataset *dataset)
{
    return dataset->samples;
}

uint64_t sl_dataset_sequences(const struct sl_dataset *dataset)
{
    return dataset->train_count;
}

uint64_t sl_dataset_eval_sequences(const struct sl_dataset *dataset)
{
    return dataset->eval_count;
}

uint64_t sl_dataset_tokens(const struct sl_dataset *dataset)
{
    uint64_t tokens = 0;
    for (size_t i = 0; i < dataset->store_count; i++)
        tokens += dataset->stores[i].token_count;
    return tokens;
}

uint32_t sl_dataset_sequence_length(const struct sl_dataset *dataset)
{
    return dataset->sequence_length;
}

uint32_t sl_dataset_id_limit(const struct sl_dataset *dataset)
{
    uint32_t limit = 0;
    for (size_t i = 0; i < dataset->store_count; i++)
        if (dataset->stores[i].id_limit > limit)
            limit = dataset->stores[i].id_limit;
    return limit;
}

uint64_t sl_dataset_fingerprint(const struct sl_dataset *dataset)
{
    uint64_t facts[] = {dataset->sequence_length, dataset->train_count,
                        dataset->eval_count,      dataset->seed,
                        dataset->in_order,        dataset->samples | dataset->unpacked << 1};
    uint64_t hash = XXH3_64bits(facts, sizeof(facts));
    for (size_t i = 0; i < dataset->store_count; i++) {
        uint64_t of_store[] = {dataset->stores[i].fingerprint, dataset->stores[i].token_count};
        hash = XXH3_64bits_withSeed(of_store, sizeof(of_store), hash);
    }
    return hash;
}

uint64_t sl_dataset_memory_bytes(const struct sl_dataset *dataset)
{
    uint64_t bytes = sizeof(*dataset) + dataset->store_count * sizeof(*dataset->stores);
    for (size_t i = 0; i < dataset->store_count; i++)
        bytes += dataset->stores[i].anonymous ? dataset->stores[i].map_bytes : 0;
    const struct packing *packings[] = {&dataset->train, &dataset->eval};
    for (size_t i = 0; i < 2 && dataset->samples; i++)
        bytes += (packings[i]->sequence_count + 2) * sizeof(*packings[i]->starts) +
                 (packings[i]->example_count + 1) * sizeof(*packings[i]->examples);
    return bytes;
}

static void store_u64(uint8_t *bytes, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t load_u64(const uint8_t *bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

void sl_dataset_state_store(const struct sl_dataset_state *state,
                            uint8_t bytes[SL_DATASET_STATE_BYTES])
{
    store_u64(bytes, state->epoch);
    store_u64(bytes + 8, state->index);
}

void sl_dataset_state_load(struct sl_dataset_state *state,
                           const uint8_t bytes[SL_DATASET_STATE_BYTES])
{
    state->epoch = load_u64(bytes);
    state->index = load_u64(bytes + 8);
}
