// SPDX-License-Identifier: Apache-2.0
/* What the tokenizers ask of a character, as one byte per code point behind one look-up. */
#ifndef SLUICE_ENGINE_TOKENIZER_UNICODE_H
#define SLUICE_ENGINE_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

enum character_class {
    CHARACTER_LETTER = 1,       /* \p{L} */
    CHARACTER_NUMBER = 2,       /* \p{N} */
    CHARACTER_SPACE = 4,        /* White_Space */
    CHARACTER_NEWLINE = 8,      /* CR or LF */
    CHARACTER_UNSTABLE = 16,    /* NFC may change it, or compose it with what stands before */
    CHARACTER_DIGIT = 32,       /* \p{N} as the Digits pre-tokenizer has it (a newer Unicode) */
    CHARACTER_NEWER_MARK = 128, /* NFC leaves it alone, and what follows does not compose with it */
    CHARACTER_WORD = 64,        /* \w */
};

/* Blocks of 256 code points; equal blocks are stored once. */
struct unicode_table {
    uint8_t block_of[0x1100];
    uint8_t blocks[256][256];
};

/* The table, made on first use from any thread; never freed. Never NULL. */
const struct unicode_table *unicode_table(void);

static inline uint8_t unicode_class(const struct unicode_table *table, uint32_t code)
{
    return table->blocks[table->block_of[code >> 8]][code & 0xff];
}

/* Ranges that are letters or numbers for the reference library but not for an older Unicode; ends
 * with {0, 0}. */
struct unicode_range {
    uint32_t first, last;
};
extern const struct unicode_range unicode_newer_letters[];
extern const struct unicode_range unicode_newer_numbers[];

#endif
