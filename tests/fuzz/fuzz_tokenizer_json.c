// SPDX-License-Identifier: Apache-2.0
/* Any bytes as tokenizer.json: refused, or a tokenizer that encodes and decodes. Behind a NUL byte
 * stands the text to encode, else a fixed one. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* The table of Unicode is made once: not within the time of an input. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    unicode_table();
    return 0;
}

static const char sample[] = "The quick  brown\tfox's 1234567 jumps!\r\n\n caf\xc3\xa9 "
                             "e\xcc\x81 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 \xff\xc3 "
                             "<s></s><|im_start|>user<|endoftext|> the end";

/* What an id may be, and what comes back from it. */
static void check_ids(const struct sl_tokenizer *tokenizer, const struct sl_ids *ids)
{
    struct sl_text text = {0};
    for (size_t i = 0; i < ids->count; i++)
        assert(ids->data[i] < sl_tokenizer_vocabulary(tokenizer));
    assert(sl_decode(tokenizer, ids->data, ids->count, false, &text) == 0);
    text.bytes = 0;
    assert(sl_decode(tokenizer, ids->data, ids->count, true, &text) == 0);
    sl_text_finish(&text);
}

/* A text that is cut where the tokenizer says gives the ids of the whole. */
static void check_pieces(struct sl_encoder *encoder, const char *text, size_t bytes,
                         const struct sl_ids *whole)
{
    struct sl_ids ids = {0};
    struct sl_error error = {0};
    size_t at = 0;
    for (size_t end = bytes / 3; end <= bytes; end += bytes / 3 + 1) {
        size_t consumed;
        if (sl_encode_piece(encoder, text + at, end - at, at == 0, false, &ids, &consumed, &error))
            break;
        at += consumed;
    }
    size_t consumed;
    if (!error.code && sl_encode_piece(encoder, text + at, bytes - at, at == 0, true, &ids,
                                       &consumed, &error) == 0) {
        assert(ids.count == whole->count);
        assert(memcmp(ids.data, whole->data, ids.count * sizeof(*ids.data)) == 0 || !ids.count);
    }
    sl_ids_finish(&ids);
}

static void use(const struct sl_tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct sl_encoder *encoder;
    struct sl_ids ids = {0};
    struct sl_error error = {0};
    if (sl_encoder_create(&encoder, tokenizer, &error))
        return;
    if (sl_encode(encoder, text, bytes, 0, &ids, &error) == 0) {
        check_ids(tokenizer, &ids);
        if (bytes)
            check_pieces(encoder, text, bytes, &ids);
    } else {
        assert(error.code && error.message[0] && ids.count == 0);
    }
    ids.count = 0;
    error = (struct sl_error){0};
    if (sl_encode(encoder, text, bytes, SL_ENCODE_PLAIN | SL_ENCODE_TEMPLATE, &ids, &error) == 0)
        check_ids(tokenizer, &ids);
    sl_ids_finish(&ids);
    sl_encoder_destroy(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t json_bytes = end ? (size_t)(end - data) : size;
    struct sl_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    struct sl_error error = {0};
    assert(tokenizer);
    tokenizer->bos = -1;
    int code = tokenizer_parse_json(tokenizer, (const char *)data, json_bytes, "t.json", &error);
    assert(code == error.code);
    if (code)
        assert(strstr(error.message, "t.json"));
    else if (end)
        use(tokenizer, (const char *)end + 1, size - json_bytes - 1);
    else
        use(tokenizer, sample, sizeof(sample) - 1);
    sl_tokenizer_close(tokenizer);
    return 0;
}
