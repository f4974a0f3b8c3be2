// SPDX-License-Identifier: Apache-2.0
/* Any bytes as a file of ids: the first byte is the end-of-text id (255: none), the rest the file,
 * read as .bin and as a store of the cache. It is refused by name, or its documents tile it and its
 * ids are below its limit. */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/dataset_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const struct token_store *store)
{
    assert(store->token_count > 0);
    for (uint64_t i = 0; i < store->token_count; i++)
        assert((store_raw(store, i) & STORE_ID_MASK) < store->id_limit);
    for (uint64_t at = 0; at < store->token_count;) {
        uint64_t end = store_document_end(store, at, store->token_count);
        assert(end > at && end <= store->token_count);
        at = end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        assert(fd >= 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    }
    if (size == 0)
        return 0;
    bool stored = ftruncate(fd, 0) == 0 && pwrite(fd, data + 1, size - 1, 0) == (ssize_t)(size - 1);
    assert(stored);
    for (int kind = 0; kind < 2; kind++) {
        struct token_store store;
        struct sl_error error = {0};
        int code = kind ? store_open(&store, path, 0, &error)
                        : store_open_bin(&store, path, data[0] == 255 ? -1 : data[0], &error);
        assert(code == error.code);
        if (code) {
            assert(strstr(error.message, path) && store.map == NULL);
            continue;
        }
        walk(&store);
        store_close(&store);
    }
    return 0;
}
