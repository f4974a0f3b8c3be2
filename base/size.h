// SPDX-License-Identifier: Apache-2.0
/* Size arithmetic that cannot wrap silently, and the size units that people write.
 *
 * The checked forms are for the edge, where counts come from files and arguments. Past the edge a
 * size has been checked and plain arithmetic is used.
 */
#ifndef SLUICE_BASE_SIZE_H
#define SLUICE_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True and *out set when the result fits; false and *out untouched when it does not. */
static inline bool sl_size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t result;
    if (__builtin_add_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

static inline bool sl_size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t result;
    if (__builtin_mul_overflow(a, b, &result))
        return false;
    *out = result;
    return true;
}

/* Round up to a multiple of `alignment`, a power of two. The caller has checked for overflow. */
static inline uint64_t sl_align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

static inline uint64_t sl_div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}
static inline uint64_t sl_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t sl_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Parse "4GiB", "512M", "1.5GB", "4096": K M G T are decimal with B alone or nothing, binary with
 * iB. Returns 0, or -EINVAL, or -ERANGE where the value does not fit in 64 bits. */
int sl_size_parse(const char *text, uint64_t *bytes);

/* Write a size for people ("3.00 GiB", "812 B") into buffer; returns buffer. */
#define SL_SIZE_TEXT_BYTES 24
const char *sl_size_format(uint64_t bytes, char buffer[SL_SIZE_TEXT_BYTES]);

#endif
