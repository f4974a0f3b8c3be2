// SPDX-License-Identifier: Apache-2.0
/* The token store: what tokenisation leaves behind, as one file that is mapped.
 *
 *     0                  4096                         documents_offset
 *     | header (padded)  | ids, u16 or u32, LE        | u64 start of each document, then the end |
 *
 * 32-bit ids carry two marks in their top bits; 16-bit ids cannot, and stores that need marks are
 * 32 bits wide. The file is written under another name and renamed when it is whole and synced, so
 * a store that is found is complete.
 */
#ifndef SLUICE_ENGINE_DATASET_STORE_H
#define SLUICE_ENGINE_DATASET_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define STORE_UNTRAINED 0x80000000u /* the id is context only: it is never a target */
#define STORE_ID_MASK 0x7fffffffu

struct token_store {
    const void *ids;
    const uint64_t *documents; /* [document_count + 1]; NULL: documents end at eos ids */
    uint64_t token_count, document_count;
    uint64_t fingerprint; /* of ids, marks and documents */
    uint32_t id_bytes;    /* 2 or 4 */
    uint32_t id_limit;
    bool marked;
    bool samples;   /* documents are examples: never cut, packed whole */
    bool eos_leads; /* without documents: an eos id begins one, else it ends one */
    int32_t eos;    /* without documents; -1: all is one document */
    bool anonymous; /* lies in memory, not in a file */
    void *map;
    size_t map_bytes;
};

struct store_writer;

/* Begin a store. `path` NULL: in memory. Otherwise path.partial is written until the finish.
 * id_bytes: 2, or 4 where ids pass 65,535 or marks are needed. */
int store_writer_open(struct store_writer **out, const char *path, uint32_t id_bytes, uint64_t key,
                      struct sl_error *error);

/* Append ids, with marks in 4-byte stores. */
int store_writer_append(struct store_writer *writer, const uint32_t *ids, size_t count,
                        struct sl_error *error);

/* The document ends here. Nothing happens where it holds no token. */
int store_writer_end_document(struct store_writer *writer, struct sl_error *error);

void store_writer_set_samples(struct store_writer *writer);
uint64_t store_writer_token_count(const struct store_writer *writer);

/* Durability: a store with a path is synced and renamed into place on success. */
int store_writer_finish(struct store_writer *writer, struct token_store *store,
                        struct sl_error *error);
void store_writer_destroy(
    struct store_writer *writer); /* removes an unfinished file; NULL allowed */

/* Map a finished store. -ENOENT where it is absent or made with another key; -EINVAL where the file
 * is not a store or does not hold what its header says: it is read once, for its hash. */
int store_open(struct token_store *store, const char *path, uint64_t key, struct sl_error *error);
void store_close(struct token_store *store);

/* Pages that were read at [from, from + bytes) of the map leave the process again: of a file they
 * stay in the kernel's cache, so that a corpus that is larger than memory is not memory of the run.
 */
void store_release(const struct token_store *store, const void *from, uint64_t bytes);

static inline uint32_t store_raw(const struct token_store *store, uint64_t index)
{
    return store->id_bytes == 2 ? ((const uint16_t *)store->ids)[index]
                                : ((const uint32_t *)store->ids)[index];
}

/* Map an llm.c or nanoGPT .bin as it is, and read it once for its largest id and its hash. `eos` is
 * the id that separates documents, or -1. */
int store_open_bin(struct token_store *store, const char *path, int32_t eos,
                   struct sl_error *error);

static inline const void *store_at(const struct token_store *store, uint64_t index)
{
    return (const uint8_t *)store->ids + index * store->id_bytes;
}

/* End of the document that holds token `index`, looking no further than `limit`. */
uint64_t store_document_end(const struct token_store *store, uint64_t index, uint64_t limit);

/* Index of the document that holds token `index`. */
uint64_t store_document_of(const struct token_store *store, uint64_t index);

#endif
