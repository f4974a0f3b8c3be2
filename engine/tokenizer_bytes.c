// SPDX-License-Identifier: Apache-2.0
/* The tokenizer that needs no file: an id per byte, and <|endoftext|>.
 *
 * It makes a demo possible on a machine that has nothing but text, and its folder still loads in
 * `transformers`: in the terms of tokenizer.json it is a byte-level BPE with no merges, whose 256
 * entries are the visible stand-ins that byte-level BPE gives to bytes, here in byte order, so that
 * the id is the byte. Unlike BPE tokenizers it keeps bytes that are not UTF-8.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"

static const char end_of_text[] = "<|endoftext|>";
#define END_OF_TEXT_BYTES (sizeof(end_of_text) - 1)

int tokenizer_open_bytes(struct sl_tokenizer *tokenizer, struct sl_error *error)
{
    tokenizer->kind = TOKENIZER_BYTES;
    tokenizer->vocabulary = BYTES_END_OF_TEXT + 1;
    tokenizer->pool_bytes = 256 + END_OF_TEXT_BYTES;
    tokenizer->pieces = calloc(tokenizer->vocabulary, sizeof(*tokenizer->pieces));
    tokenizer->pool = malloc(tokenizer->pool_bytes);
    if (!tokenizer->pieces || !tokenizer->pool)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the byte tokenizer");
    for (unsigned byte = 0; byte < 256; byte++) {
        tokenizer->pool[byte] = (char)byte;
        tokenizer->pieces[byte] = (struct piece){byte, 1, PIECE_KNOWN};
    }
    memcpy(tokenizer->pool + 256, end_of_text, END_OF_TEXT_BYTES);
    tokenizer->pieces[BYTES_END_OF_TEXT] =
        (struct piece){256, END_OF_TEXT_BYTES, PIECE_KNOWN | PIECE_ADDED | PIECE_SPECIAL};
    tokenizer->bos = -1;
    tokenizer->eos[0] = (int32_t)BYTES_END_OF_TEXT;
    tokenizer->eos_count = 1;
    tokenizer->fingerprint = 0x736c5f6279746573u; /* "sl_bytes": the mapping never changes */
    return 0;
}

int tokenizer_encode_bytes(const char *text, size_t bytes, unsigned flags, bool last,
                           struct sl_ids *ids, size_t *consumed)
{
    *consumed = 0;
    if (!tokenizer_ids_reserve(ids, bytes))
        return -ENOMEM;
    size_t at = 0;
    while (at < bytes) {
        const char *mark = NULL;
        if (!(flags & (SL_ENCODE_PLAIN | SL_ENCODE_NO_ADDED)))
            mark = memmem(text + at, bytes - at, end_of_text, END_OF_TEXT_BYTES);
        /* A marker may begin in the last bytes of a piece that continues. */
        size_t held = last || bytes - at < END_OF_TEXT_BYTES ? 0 : END_OF_TEXT_BYTES - 1;
        if (!last && bytes - at < END_OF_TEXT_BYTES)
            break;
        size_t end = mark ? (size_t)(mark - text) : bytes - held;
        for (; at < end; at++)
            ids->data[ids->count++] = (uint8_t)text[at];
        if (!mark)
            break;
        ids->data[ids->count++] = BYTES_END_OF_TEXT;
        at += END_OF_TEXT_BYTES;
    }
    *consumed = at;
    return 0;
}

/* The stand-ins: printable Latin-1 as itself, the rest in order from U+0100 on. */
static unsigned stand_in(unsigned byte)
{
    unsigned next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return visible ? b : next;
        next += !visible;
    }
    return 0;
}

static void write_vocabulary(FILE *file)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned code = stand_in(byte);
        fprintf(file, "      \"");
        if (code == '"' || code == '\\')
            fprintf(file, "\\%c", code);
        else if (code < 0x80)
            fprintf(file, "%c", code);
        else
            fprintf(file, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 0x3f));
        fprintf(file, "\": %u%s\n", byte, byte == 255 ? "" : ",");
    }
}

static void write_tokenizer(FILE *file)
{
    fprintf(file,
            "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
            "  \"added_tokens\": [\n    {\n      \"id\": %u,\n      \"content\": \"%s\",\n"
            "      \"single_word\": false,\n      \"lstrip\": false,\n      \"rstrip\": false,\n"
            "      \"normalized\": false,\n      \"special\": true\n    }\n  ],\n"
            "  \"normalizer\": null,\n"
            "  \"pre_tokenizer\": {\n    \"type\": \"ByteLevel\",\n"
            "    \"add_prefix_space\": false,\n    \"trim_offsets\": true,\n"
            "    \"use_regex\": false\n  },\n"
            "  \"post_processor\": null,\n"
            "  \"decoder\": {\n    \"type\": \"ByteLevel\",\n    \"add_prefix_space\": true,\n"
            "    \"trim_offsets\": true,\n    \"use_regex\": true\n  },\n"
            "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
            "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
            "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
            "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {\n",
            BYTES_END_OF_TEXT, end_of_text);
    write_vocabulary(file);
    fprintf(file, "    },\n    \"merges\": []\n  }\n}\n");
}

static void write_config(FILE *file)
{
    fprintf(file,
            "{\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": \"%s\",\n"
            "  \"model_max_length\": 1000000000000000019884624838656,\n"
            "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
            end_of_text);
}

static int write_file(const char *directory, const char *name, void (*write_content)(FILE *),
                      struct sl_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file)
        write_content(file);
    int code = !file || fclose(file)
                   ? sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for %s", name)
                   : tokenizer_write_file(directory, name, text, bytes, error);
    free(text);
    return code;
}

int tokenizer_save_bytes(const struct sl_tokenizer *tokenizer, const char *directory,
                         struct sl_error *error)
{
    (void)tokenizer;
    int code = write_file(directory, "tokenizer.json", write_tokenizer, error);
    return code ? code : write_file(directory, "tokenizer_config.json", write_config, error);
}
