// SPDX-License-Identifier: Apache-2.0
/* Any bytes as a file of records: the first byte chooses the template and the switches, the rest is
 * the file. It is refused, or becomes the same documents in one piece and in several, whose special
 * tokens are those of the template alone. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dataset_store.h"
#include "engine/tokenize_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Letters, and the frame of chatml. */
static const char small[] =
    "{\"added_tokens\": [{\"id\": 4, \"content\": \"<|im_start|>\", \"special\": true, "
    "\"normalized\": false, \"single_word\": false, \"lstrip\": false, \"rstrip\": false}, "
    "{\"id\": 5, \"content\": \"<|im_end|>\", \"special\": true, \"normalized\": false, "
    "\"single_word\": false, \"lstrip\": false, \"rstrip\": true}], "
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"a\": 1, "
    "\"b\": 2, \"ab\": 3}, \"merges\": [\"a b\"]}}";

static struct sl_tokenizer *bpe, *bytes_only;
static struct sl_encoder *encoders[2];

static void prepare(void)
{
    struct sl_error error = {0};
    bpe = calloc(1, sizeof(*bpe));
    assert(bpe);
    bpe->bos = -1;
    int code = tokenizer_parse_json(bpe, small, sizeof(small) - 1, "small", &error);
    if (!code)
        code = sl_tokenizer_open(&bytes_only, NULL, &error);
    if (!code)
        code = sl_encoder_create(&encoders[0], bpe, &error);
    if (!code)
        code = sl_encoder_create(&encoders[1], bytes_only, &error);
    assert(code == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    prepare();
    return 0;
}

static void finish(struct token_piece *piece)
{
    sl_ids_finish(&piece->ids);
    sl_ids_finish(&piece->ends);
    sl_chat_rendering_finish(&piece->render);
    sl_text_finish(&piece->marks);
}

static void check_piece(const struct tokenize_source *source, const struct token_piece *piece)
{
    uint32_t last = 0;
    assert(piece->ends.count <= piece->records);
    for (size_t i = 0; i < piece->ends.count; i++) {
        assert(piece->ends.data[i] >= last && piece->ends.data[i] <= piece->ids.count);
        last = piece->ends.data[i];
    }
    assert(last == piece->ids.count);
    for (size_t i = 0; i < piece->ids.count; i++)
        assert((piece->ids.data[i] & STORE_ID_MASK) < sl_tokenizer_vocabulary(source->tokenizer));
}

/* Encode text[0, bytes) piece by piece, each of at most `most` bytes or one record. */
static int encode_all(const struct tokenize_source *source, struct sl_encoder *encoder,
                      const char *text, size_t bytes, size_t most, struct token_piece *piece)
{
    struct sl_ids ids = {0}, ends = {0};
    size_t at = 0, end = most;
    while (at < bytes && !piece->error.code) {
        size_t cut;
        end = end < bytes ? end : bytes;
        if (records_cut(text + at, end - at, &cut, &piece->records))
            break;
        assert(cut <= end - at);
        if (cut == 0) {
            if (end == bytes)
                break; /* a record that does not end */
            end += most;
            continue;
        }
        piece->text = (char *)(uintptr_t)(text + at);
        piece->bytes = cut;
        piece->ids.count = piece->ends.count = 0;
        int code = records_encode(source, encoder, "f", piece);
        assert(code == piece->error.code);
        if (code)
            assert(strstr(piece->error.message, "f: record "));
        else
            check_piece(source, piece);
        size_t base = ids.count;
        assert(tokenizer_ids_reserve(&ids, piece->ids.count));
        assert(tokenizer_ids_reserve(&ends, piece->ends.count));
        for (size_t i = 0; i < piece->ids.count && !code; i++)
            ids.data[ids.count++] = piece->ids.data[i];
        for (size_t i = 0; i < piece->ends.count && !code; i++)
            ends.data[ends.count++] = (uint32_t)base + piece->ends.data[i];
        at += cut;
        end = at + most;
    }
    sl_ids_finish(&piece->ids);
    sl_ids_finish(&piece->ends);
    piece->ids = ids;
    piece->ends = ends;
    return at == bytes && !piece->error.code ? 0 : -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!bpe)
        prepare();
    if (size == 0)
        return 0;
    bool use_bytes = data[0] & 1;
    struct tokenize_source source = {.tokenizer = use_bytes ? bytes_only : bpe,
                                     .train_on_prompt = data[0] & 2,
                                     .allow_special = data[0] & 4};
    source.chat.format = (enum sl_chat_format)(data[0] / 8 % SL_CHAT_FORMAT_COUNT);
    /* Above the formats: their other versions. */
    source.chat.think_block = source.chat.tight = source.chat.dated = source.chat.open_space =
        source.chat.system_last = source.chat.answer_trim = data[0] / 8 >= SL_CHAT_FORMAT_COUNT;
    const char *text = (const char *)data + 1;
    struct token_piece whole = {0}, parts = {0};
    int code = encode_all(&source, encoders[use_bytes], text, size - 1, size, &whole);
    int again = encode_all(&source, encoders[use_bytes], text, size - 1, 16, &parts);
    if (code == 0) {
        assert(again == 0 && whole.ids.count == parts.ids.count);
        assert(!whole.ids.count || memcmp(whole.ids.data, parts.ids.data,
                                          whole.ids.count * sizeof(*whole.ids.data)) == 0);
        assert(whole.ends.count == parts.ends.count);
    }
    finish(&whole);
    finish(&parts);
    return 0;
}
