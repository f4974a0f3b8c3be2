// SPDX-License-Identifier: Apache-2.0
/* What counting reaches on the same text: a table of the next token's frequency behind the last
 * two, backed off to one and none (Witten-Bell), made from the training sequences and tried on the
 * held-out ones. A model that does not beat it has learned nothing of length.
 *
 *     count_table --model M --data FILE... [--config FILE] [--set key=value]... [--seed S]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/usage.h"
#include "engine/session.h"

#define BATCH 16

struct table {
    uint32_t vocabulary;
    uint32_t *counts[3];          /* [V], [V][V], [V][V][V] */
    uint32_t *seen[3], *kinds[3]; /* per context: tokens, and distinct ones */
};

static int make_table(struct table *t, uint32_t vocabulary)
{
    t->vocabulary = vocabulary;
    size_t contexts = 1;
    for (int order = 0; order < 3; order++, contexts *= vocabulary) {
        t->counts[order] = calloc(contexts * vocabulary, sizeof(uint32_t));
        t->seen[order] = calloc(contexts, sizeof(uint32_t));
        t->kinds[order] = calloc(contexts, sizeof(uint32_t));
        if (!t->counts[order] || !t->seen[order] || !t->kinds[order])
            return -1;
    }
    return 0;
}

static size_t context_of(const struct table *t, const int32_t *ids, int32_t at, int order)
{
    size_t context = 0;
    for (int k = order; k > 0; k--)
        context = context * t->vocabulary + (size_t)ids[at - k + 1];
    return context;
}

static void count(struct table *t, const int32_t *ids, int32_t at, int32_t target)
{
    for (int order = 0; order < 3 && order <= at + 1; order++) {
        size_t context = context_of(t, ids, at, order);
        uint32_t *n = &t->counts[order][context * t->vocabulary + (size_t)target];
        t->kinds[order][context] += *n == 0;
        t->seen[order][context]++;
        (*n)++;
    }
}

static double probability(const struct table *t, const int32_t *ids, int32_t at, int32_t target)
{
    double p = 1.0 / t->vocabulary;
    for (int order = 0; order < 3 && order <= at + 1; order++) {
        size_t context = context_of(t, ids, at, order);
        double seen = t->seen[order][context], kinds = t->kinds[order][context];
        if (seen > 0)
            p = (t->counts[order][context * t->vocabulary + (size_t)target] + kinds * p) /
                (seen + kinds);
    }
    return p;
}

static int parse(int argc, char **argv, struct sl_run_options *o, const char **sets,
                 const char **files, char *seed, size_t seed_bytes)
{
    o->sets = sets;
    o->data = files;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--model") == 0 && more) {
            o->model = argv[++i];
        } else if (strcmp(argv[i], "--config") == 0 && more) {
            o->config = argv[++i];
        } else if (strcmp(argv[i], "--set") == 0 && more) {
            sets[o->set_count++] = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0 && more) {
            snprintf(seed, seed_bytes, "train.seed=%s", argv[++i]);
            sets[o->set_count++] = seed;
        } else if (strcmp(argv[i], "--data") == 0) {
            while (i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0)
                files[o->data_count++] = argv[++i];
        } else {
            return -1;
        }
    }
    return o->model && o->data_count ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct sl_run_options o = {0};
    const char **sets = calloc((size_t)argc + 1, sizeof(*sets));
    const char **files = calloc((size_t)argc + 1, sizeof(*files));
    char seed[64];
    if (!sets || !files || parse(argc, argv, &o, sets, files, seed, sizeof(seed)))
        return bench_usage(argc, argv,
                           "usage: count_table --model M --data FILE... [--config FILE] "
                           "[--set key=value]... [--seed S]\n");
    struct sl_session session;
    struct sl_error error = {0};
    if (sl_session_open(&session, &o, &error)) {
        fprintf(stderr, "count_table: %s\n", error.message);
        return 2;
    }
    uint32_t length = sl_dataset_sequence_length(session.dataset);
    struct table table = {0};
    int32_t *rows = calloc(4 * (size_t)BATCH * length, sizeof(int32_t));
    uint32_t vocabulary = sl_dataset_id_limit(session.dataset);
    if (!rows || vocabulary > 512 || make_table(&table, vocabulary)) {
        fprintf(stderr, "count_table: made for vocabularies up to 512\n");
        return 2;
    }
    size_t stride = (size_t)BATCH * length;
    struct sl_dataset_batch batch = {rows, rows + stride, rows + 2 * stride, rows + 3 * stride, 0};
    struct sl_dataset_state state = {0};
    uint64_t sequences = sl_dataset_sequences(session.dataset);
    for (uint64_t i = 0; i + BATCH <= sequences; i += BATCH) {
        sl_dataset_next(session.dataset, &state, BATCH, &batch);
        for (size_t k = 0; k < stride; k++)
            if (batch.targets[k] >= 0)
                count(&table, batch.ids + k - k % length, (int32_t)(k % length), batch.targets[k]);
    }
    double sum = 0;
    uint64_t tokens = 0, held_out = sl_dataset_eval_sequences(session.dataset);
    for (uint64_t i = 0; i < held_out; i += BATCH) {
        sl_dataset_eval(session.dataset, i, BATCH, &batch);
        for (size_t k = 0; k < stride; k++)
            if (batch.targets[k] >= 0) {
                sum -= log(probability(&table, batch.ids + k - k % length, (int32_t)(k % length),
                                       batch.targets[k]));
                tokens++;
            }
    }
    printf("a table of counts behind two bytes: %.4f nats per byte\n", sum / (double)tokens);
    sl_session_close(&session);
    return 0;
}
