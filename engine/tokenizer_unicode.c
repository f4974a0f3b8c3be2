// SPDX-License-Identifier: Apache-2.0
/* Character classes of the reference library.
 *
 * utf8proc and PCRE2 of a stable distribution lag the Unicode version that the `tokenizers` library
 * is built with (16, and 17 for Rust's own char::is_numeric), and equal ids need equal classes. The
 * classes are utf8proc's plus the ranges below: the letters and numbers that Unicode 15.1 to 17
 * added. A newer utf8proc already has them, and adding them again changes nothing. The parity
 * script tests every code point.
 */
#include "engine/tokenizer_unicode.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

const struct unicode_range unicode_newer_letters[] = {
    {0x1c89, 0x1c8a},
    {0xa7cb, 0xa7cd},
    {0xa7da, 0xa7dc},
    {0x105c0, 0x105f3},
    {0x10d4a, 0x10d65},
    {0x10d6f, 0x10d85},
    {0x10ec2, 0x10ec4},
    {0x11380, 0x11389},
    {0x1138b, 0x1138b},
    {0x1138e, 0x1138e},
    {0x11390, 0x113b5},
    {0x113b7, 0x113b7},
    {0x113d1, 0x113d1},
    {0x113d3, 0x113d3},
    {0x11bc0, 0x11be0},
    {0x13460, 0x143fa},
    {0x16100, 0x1611d},
    {0x16d40, 0x16d6c},
    {0x18cff, 0x18cff},
    {0x1e5d0, 0x1e5ed},
    {0x1e5f0, 0x1e5f0},
    {0x2ebf0, 0x2ee5d},
    {0, 0},
};

const struct unicode_range unicode_newer_numbers[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139},
    {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa}, {0, 0},
};

/* Unicode 17. */
static const struct unicode_range newer_digits[] = {
    {0x11de0, 0x11de9},
    {0x16ff4, 0x16ff6},
    {0, 0},
};

/* Combining, or second in a composition, since a Unicode after 9. */
static const struct unicode_range newer_marks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},
    {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},
    {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
    {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0, 0},
};

/* Symbols that are Alphabetic, and so \w: circled and squared Latin letters. */
static const struct unicode_range other_alphabetic[] = {
    {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}, {0, 0},
};

static bool in_ranges(const struct unicode_range *ranges, uint32_t code)
{
    for (; ranges->last; ranges++)
        if (code >= ranges->first && code <= ranges->last)
            return true;
    return false;
}

static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* Not a starter, second half of a composition, or changed by NFC on its own. */
static bool is_unstable(uint32_t code, const utf8proc_property_t *property)
{
    if (property->combining_class)
        return true;
    if (property->comb_index != UINT16_MAX && property->comb_index >= 0x8000)
        return true;
    if ((code >= 0x1161 && code <= 0x1175) || (code >= 0x11a8 && code <= 0x11c2))
        return true; /* Hangul vowels and finals compose by rule, not by table */
    if (property->decomp_seqindex == UINT16_MAX || property->decomp_type)
        return false;
    utf8proc_int32_t codes[8];
    utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)code, codes, 8,
                                                     UTF8PROC_COMPOSE | UTF8PROC_STABLE, NULL);
    count = count < 0 || count > 8
                ? 0
                : utf8proc_normalize_utf32(codes, count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return count != 1 || codes[0] != (utf8proc_int32_t)code;
}

static uint8_t classify(uint32_t code)
{
    if (code >= 0xd800 && code <= 0xdfff)
        return 0;
    const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)code);
    int category = property->category;
    uint8_t class = 0;
    bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    bool number = category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
    letter = letter || in_ranges(unicode_newer_letters, code);
    number = number || in_ranges(unicode_newer_numbers, code);
    bool mark = category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
    if (letter)
        class |= CHARACTER_LETTER;
    if (number)
        class |= CHARACTER_NUMBER;
    if (number || in_ranges(newer_digits, code))
        class |= CHARACTER_DIGIT;
    if (is_space(code))
        class |= CHARACTER_SPACE;
    if (code == '\n' || code == '\r')
        class |= CHARACTER_NEWLINE;
    if (in_ranges(newer_marks, code))
        class |= CHARACTER_NEWER_MARK;
    else if (is_unstable(code, property))
        class |= CHARACTER_UNSTABLE;
    if (letter || mark || category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
        category == UTF8PROC_CATEGORY_PC || code == 0x200c || code == 0x200d ||
        in_ranges(other_alphabetic, code))
        class |= CHARACTER_WORD;
    return class;
}

static struct unicode_table table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    unsigned count = 0;
    for (unsigned block = 0; block < 0x1100; block++) {
        uint8_t classes[256];
        for (unsigned i = 0; i < 256; i++)
            classes[i] = classify(block << 8 | i);
        unsigned same = 0;
        while (same < count && memcmp(table.blocks[same], classes, 256) != 0)
            same++;
        if (same == count && count < 256)
            memcpy(table.blocks[count++], classes, 256);
        table.block_of[block] = (uint8_t)(same < 256 ? same : 0);
    }
}

const struct unicode_table *unicode_table(void)
{
    pthread_once(&once, make_table);
    return &table;
}
