// SPDX-License-Identifier: Apache-2.0
/* The sums of a swap space: one 64-bit XXH3 per unit, in memory, set by writes, checked by reads.
 *
 * A unit that was never written holds the sum of zeros, which is what its file holds.
 */
#ifndef SLUICE_NVME_BLOCK_SUMS_H
#define SLUICE_NVME_BLOCK_SUMS_H

#include <stddef.h>
#include <stdint.h>

struct sl_block_sums {
    uint64_t *sums; /* [units], each XORed with zero_sum; NULL: sums are off */
    uint64_t zero_sum;
    size_t unit_bytes;
    uint64_t table_bytes;
};

struct sl_block_mismatch {
    uint64_t offset_bytes; /* of the unit, in the swap space */
    uint64_t written, read;
};

/* 0 or -ENOMEM. Memory is touched only where units are written. */
int sl_block_sums_init(struct sl_block_sums *sums, uint64_t bytes_total, size_t unit_bytes);
void sl_block_sums_finish(struct sl_block_sums *sums);
uint64_t sl_block_sums_table_bytes(uint64_t bytes_total, size_t unit_bytes);

/* Offsets and bytes are multiples of unit_bytes. Threads: any, on disjoint ranges. */
void sl_block_sums_set(struct sl_block_sums *sums, uint64_t offset_bytes, const void *data,
                       uint64_t bytes);
/* 0, or -EBADMSG with the first unit that differs. */
int sl_block_sums_check(const struct sl_block_sums *sums, uint64_t offset_bytes, const void *data,
                        uint64_t bytes, struct sl_block_mismatch *mismatch);

uint64_t sl_block_sum(const void *data, size_t bytes);

#endif
