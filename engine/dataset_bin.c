// SPDX-License-Identifier: Apache-2.0
/* Token files of others, mapped as they are.
 *
 *     llm.c     256 i32: magic 20240520 (u16 ids, version 1) or 20240801 (u32 ids, version 7), the
 *               version, the number of ids; then the ids
 *     nanoGPT   u16 ids and nothing else
 *
 * Neither says where documents end, so that follows from the end-of-text id: llm.c writes it before
 * each document, nanoGPT behind each, and the file's first id tells which. A file is read once
 * when it is opened, for its largest id: an id beyond the model's vocabulary would index past the
 * embedding table.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/dataset_store.h"

#define LLMC_HEADER_BYTES 1024u
#define LLMC_MAGIC_U16 20240520u
#define LLMC_MAGIC_U32 20240801u
#define BLOCK_BYTES ((size_t)1 << 20)

/* Where ids begin, how wide they are and how many there are. */
static int read_header(struct token_store *store, const char *path, struct sl_error *error)
{
    uint32_t words[3] = {0};
    size_t header_bytes = 0;
    if (store->map_bytes >= LLMC_HEADER_BYTES)
        memcpy(words, store->map, sizeof(words));
    store->id_bytes = 2;
    if (words[0] == LLMC_MAGIC_U16 || words[0] == LLMC_MAGIC_U32) {
        uint32_t version = words[0] == LLMC_MAGIC_U16 ? 1 : 7;
        if (words[1] != version)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: llm.c file of version %u, only %u is known", path, words[1],
                                version);
        store->id_bytes = words[0] == LLMC_MAGIC_U16 ? 2 : 4;
        header_bytes = LLMC_HEADER_BYTES;
    }
    size_t bytes = store->map_bytes - header_bytes;
    store->token_count = bytes / store->id_bytes;
    store->ids = (const uint8_t *)store->map + header_bytes;
    if (bytes % store->id_bytes)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: %zu bytes are no whole number of %u-byte ids", path, bytes,
                            store->id_bytes);
    if (header_bytes && words[2] != store->token_count)
        return sl_error_set(
            error, SL_DOMAIN_INPUT, -EINVAL,
            "%s: the header promises %u ids, the file holds %llu; it is cut short or "
            "damaged",
            path, words[2], (unsigned long long)store->token_count);
    if (store->token_count == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: no ids in it", path);
    return 0;
}

static uint32_t largest_u16(const uint16_t *ids, size_t count)
{
    uint16_t largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = ids[i] > largest ? ids[i] : largest;
    return largest;
}

static uint32_t largest_u32(const uint32_t *ids, size_t count)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = ids[i] > largest ? ids[i] : largest;
    return largest;
}

static int scan(struct token_store *store, const char *path, struct sl_error *error)
{
    const uint8_t *at = store->ids;
    uint32_t largest = 0;
    uint64_t left = store->token_count * store->id_bytes, hash = store->id_bytes;
    madvise(store->map, store->map_bytes, MADV_SEQUENTIAL);
    while (left) {
        size_t bytes = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
        uint32_t block = store->id_bytes == 2 ? largest_u16((const uint16_t *)at, bytes / 2)
                                              : largest_u32((const uint32_t *)at, bytes / 4);
        largest = block > largest ? block : largest;
        hash = XXH3_64bits_withSeed(at, bytes, hash);
        store_release(store, at, bytes);
        at += bytes;
        left -= bytes;
    }
    madvise(store->map, store->map_bytes, MADV_NORMAL);
    store->fingerprint = hash;
    store->id_limit = largest + 1;
    if (largest >= STORE_UNTRAINED)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: id %u is no token id; is this a file of ids?", path, largest);
    return 0;
}

int store_open_bin(struct token_store *store, const char *path, int32_t eos, struct sl_error *error)
{
    *store = (struct token_store){.eos = eos};
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int code = fd < 0 || fstat(fd, &status) ? -errno : 0;
    if (!code && S_ISDIR(status.st_mode))
        code = -EISDIR;
    if (!code && status.st_size == 0)
        code = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: no ids in it", path);
    if (!code) {
        void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
        code = map == MAP_FAILED ? -errno : 0;
        store->map = map == MAP_FAILED ? NULL : map;
        store->map_bytes = store->map ? (size_t)status.st_size : 0;
    }
    if (fd >= 0)
        close(fd);
    if (code)
        return sl_error_set(error, SL_DOMAIN_INPUT, code, "%s: %s", path, strerror(-code));
    code = read_header(store, path, error);
    if (!code && store->token_count == 0)
        code = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: no ids in it", path);
    if (!code)
        code = scan(store, path, error);
    if (code) {
        store_close(store);
        return code;
    }
    store->eos_leads = eos >= 0 && store_raw(store, 0) == (uint32_t)eos;
    return 0;
}

uint64_t store_document_end(const struct token_store *store, uint64_t index, uint64_t limit)
{
    if (store->documents) {
        uint64_t end = store->documents[store_document_of(store, index) + 1];
        return end < limit ? end : limit;
    }
    for (uint64_t at = index; at < limit && store->eos >= 0; at++) {
        bool eos = store_raw(store, at) == (uint32_t)store->eos;
        if (eos && store->eos_leads && at > index)
            return at;
        if (eos && !store->eos_leads)
            return at + 1;
    }
    return limit;
}
