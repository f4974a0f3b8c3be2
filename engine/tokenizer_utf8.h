// SPDX-License-Identifier: Apache-2.0
/* UTF-8, one character at a time, with the replacement rule that Unicode recommends and that
 * Python and Rust follow: one U+FFFD for each maximal part of a broken sequence. */
#ifndef SLUICE_ENGINE_TOKENIZER_UTF8_H
#define SLUICE_ENGINE_TOKENIZER_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum utf8_kind {
    UTF8_VALID,
    UTF8_BROKEN,     /* *length bytes can never become a character */
    UTF8_UNFINISHED, /* all bytes to the end may still become one */
};

/* Look at the start of text[0, bytes), bytes > 0. *length >= 1 is how much the answer covers. */
static inline enum utf8_kind utf8_next(const char *text, size_t bytes, size_t *length)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t lead = p[0];
    *length = 1;
    if (lead < 0x80)
        return UTF8_VALID;
    if (lead < 0xc2 || lead > 0xf4)
        return UTF8_BROKEN;
    size_t wanted = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    /* The second byte is narrower after some leads: no overlong forms, surrogates, > U+10FFFF. */
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (; *length < wanted; ++*length) {
        if (*length == bytes)
            return UTF8_UNFINISHED;
        uint8_t next = p[*length];
        if (next < low || next > high)
            return UTF8_BROKEN;
        low = 0x80;
        high = 0xbf;
    }
    return UTF8_VALID;
}

/* The code point of a valid character at p; *length is its size. */
static inline uint32_t utf8_code(const char *text, size_t *length)
{
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80) {
        *length = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *length = 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *length = 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3fu);
    }
    *length = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
           (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3fu);
}

/* Where the first byte is that is not UTF-8 (or does not end in time); `bytes` where all is well.
 */
static inline size_t utf8_valid_prefix(const char *text, size_t bytes)
{
    size_t at = 0, length;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= 8) {
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        if (utf8_next(text + at, bytes - at, &length) != UTF8_VALID)
            return at;
        at += length;
    }
    return bytes;
}

#endif
