// SPDX-License-Identifier: Apache-2.0
/* Sums of fixed units, so that any aligned read can be checked whatever wrote the range.
 *
 * The table is an anonymous mapping, zero until touched. Each entry is stored XORed with the sum of
 * a unit of zeros: an entry that nobody wrote thus says "zeros", which is what a freshly allocated
 * file reads as, and creating a swap space of a terabyte touches no table memory. Rejected: sums of
 * whole I/O blocks (a read that starts inside one could not be checked), sums beside the data on
 * the device (a lost or misdirected write takes its sum along and still agrees).
 */
#include "nvme/block_sums.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef SL_XXH3_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "base/size.h"

uint64_t sl_block_sum(const void *data, size_t bytes)
{
#ifdef SL_XXH3_DISPATCH
    return XXH3_64bits_dispatch(data, bytes);
#else
    return XXH3_64bits(data, bytes);
#endif
}

uint64_t sl_block_sums_table_bytes(uint64_t bytes_total, size_t unit_bytes)
{
    return sl_div_up(bytes_total, unit_bytes) * sizeof(uint64_t);
}

int sl_block_sums_init(struct sl_block_sums *sums, uint64_t bytes_total, size_t unit_bytes)
{
    void *zeros = calloc(1, unit_bytes);
    if (!zeros)
        return -ENOMEM;
    *sums =
        (struct sl_block_sums){.zero_sum = sl_block_sum(zeros, unit_bytes),
                               .unit_bytes = unit_bytes,
                               .table_bytes = sl_block_sums_table_bytes(bytes_total, unit_bytes)};
    free(zeros);
    void *table = mmap(NULL, sums->table_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED)
        return -ENOMEM;
    sums->sums = table;
    return 0;
}

void sl_block_sums_finish(struct sl_block_sums *sums)
{
    if (sums->sums)
        munmap(sums->sums, sums->table_bytes);
    sums->sums = NULL;
}

void sl_block_sums_set(struct sl_block_sums *sums, uint64_t offset_bytes, const void *data,
                       uint64_t bytes)
{
    const size_t unit = sums->unit_bytes;
    assert(offset_bytes % unit == 0 && bytes % unit == 0);
    uint64_t *entry = sums->sums + offset_bytes / unit;
    for (uint64_t at = 0; at < bytes; at += unit)
        *entry++ = sl_block_sum((const char *)data + at, unit) ^ sums->zero_sum;
}

int sl_block_sums_check(const struct sl_block_sums *sums, uint64_t offset_bytes, const void *data,
                        uint64_t bytes, struct sl_block_mismatch *mismatch)
{
    const size_t unit = sums->unit_bytes;
    assert(offset_bytes % unit == 0 && bytes % unit == 0);
    const uint64_t *entry = sums->sums + offset_bytes / unit;
    for (uint64_t at = 0; at < bytes; at += unit, entry++) {
        uint64_t read = sl_block_sum((const char *)data + at, unit);
        uint64_t written = *entry ^ sums->zero_sum;
        if (read != written) {
            *mismatch = (struct sl_block_mismatch){offset_bytes + at, written, read};
            return -EBADMSG;
        }
    }
    return 0;
}
