// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/tokenizer.h"

static struct sl_tokenizer *tokenizer;
static struct sl_encoder *encoder;

static int open_bytes(void **state)
{
    (void)state;
    struct sl_error error = {0};
    return sl_tokenizer_open(&tokenizer, NULL, &error) ||
           sl_encoder_create(&encoder, tokenizer, &error);
}

static int close_bytes(void **state)
{
    (void)state;
    sl_encoder_destroy(encoder);
    sl_tokenizer_close(tokenizer);
    return 0;
}

static void bytes_keep_every_byte(void **state)
{
    (void)state;
    char text[256];
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    struct sl_ids ids = {0};
    struct sl_error error = {0};
    assert_int_equal(sl_encode(encoder, text, 256, SL_ENCODE_DEFAULT, &ids, &error), 0);
    assert_int_equal(ids.count, 256);
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(ids.data[i], i);
    assert_int_equal(sl_tokenizer_vocabulary(tokenizer), 257);
    assert_int_equal(sl_tokenizer_eos(tokenizer), 256);
    assert_int_equal(sl_tokenizer_bos(tokenizer), -1);
    assert_true(sl_tokenizer_is_special(tokenizer, 256));
    assert_int_equal(sl_tokenizer_id(tokenizer, "<|endoftext|>"), 256);
    assert_int_equal(sl_tokenizer_id(tokenizer, "no such entry"), -1);
    sl_ids_finish(&ids);
}

static void end_of_text_is_one_id_unless_plain(void **state)
{
    (void)state;
    const char *text = "a<|endoftext|><|endoftext|>b<|endoftex";
    struct sl_ids ids = {0};
    struct sl_error error = {0};
    assert_int_equal(sl_encode(encoder, text, strlen(text), 0, &ids, &error), 0);
    assert_int_equal(ids.count, 4 + 10);
    assert_int_equal(ids.data[1], 256);
    assert_int_equal(ids.data[2], 256);
    assert_int_equal(ids.data[3], 'b');
    ids.count = 0;
    assert_int_equal(sl_encode(encoder, text, strlen(text), SL_ENCODE_PLAIN, &ids, &error), 0);
    assert_int_equal(ids.count, strlen(text));
    sl_ids_finish(&ids);
}

/* Whatever the cut points, pieces give the ids of the whole. */
static void pieces_give_the_ids_of_the_whole(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(11);
    const char *text = "<|end<|endoftext|>x<|endoftext|<|endoftext|>yz<|endoftext|>";
    size_t bytes = strlen(text);
    struct sl_ids whole = {0}, parts = {0};
    struct sl_error error = {0};
    assert_int_equal(sl_encode(encoder, text, bytes, 0, &whole, &error), 0);
    for (int round = 0; round < 200; round++) {
        parts.count = 0;
        size_t from = 0, to = 0;
        while (from < bytes) {
            size_t consumed;
            to += (size_t)test_random_below(&random, 20);
            to = to > bytes ? bytes : to;
            assert_int_equal(sl_encode_piece(encoder, text + from, to - from, from == 0,
                                             to == bytes, &parts, &consumed, &error),
                             0);
            from += consumed;
        }
        assert_int_equal(parts.count, whole.count);
        assert_memory_equal(parts.data, whole.data, whole.count * sizeof(*whole.data));
    }
    sl_ids_finish(&whole);
    sl_ids_finish(&parts);
}

static void a_stream_gives_out_whole_characters_only(void **state)
{
    (void)state;
    const char *text = "\xe2\x82\xac!";
    struct sl_decoder decoder;
    struct sl_text out = {0};
    sl_decoder_begin(&decoder, tokenizer, true);
    size_t expected[] = {0, 0, 3, 4};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(sl_decoder_push(&decoder, (uint8_t)text[i], &out), 0);
        assert_int_equal(out.bytes, expected[i]);
    }
    assert_int_equal(sl_decoder_push(&decoder, 256, &out), 0);
    assert_int_equal(sl_decoder_push(&decoder, 9999, &out), 0);
    assert_int_equal(sl_decoder_end(&decoder, &out), 0);
    assert_int_equal(out.bytes, 4);
    assert_memory_equal(out.data, text, 4);
    sl_text_finish(&out);
}

static void broken_characters_become_replacements(void **state)
{
    (void)state;
    /* As Python: b"\xe2\x82A\xff\xf0\x9f\x98".decode(errors="replace") */
    const uint32_t ids[] = {0xe2, 0x82, 'A', 0xff, 0xf0, 0x9f, 0x98};
    const char *expected = "\xef\xbf\xbd"
                           "A\xef\xbf\xbd\xef\xbf\xbd";
    struct sl_text out = {0};
    assert_int_equal(sl_decode(tokenizer, ids, 7, false, &out), 0);
    assert_int_equal(out.bytes, strlen(expected));
    assert_memory_equal(out.data, expected, out.bytes);
    sl_text_finish(&out);
}

static void bytes_are_saved_as_tokenizer_json(void **state)
{
    (void)state;
    char directory[] = "/tmp/sluice-tokenizer-XXXXXX";
    assert_non_null(mkdtemp(directory));
    struct sl_error error = {0};
    assert_int_equal(sl_tokenizer_save(tokenizer, directory, &error), 0);
    char path[64];
    const char *names[] = {"tokenizer.json", "tokenizer_config.json"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        struct stat status;
        assert_int_equal(stat(path, &status), 0);
        assert_true(status.st_size > 100);
        unlink(path);
    }
    rmdir(directory);
    assert_int_not_equal(sl_tokenizer_save(tokenizer, directory, &error), 0);
    assert_non_null(strstr(error.message, directory));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_keep_every_byte),
        cmocka_unit_test(end_of_text_is_one_id_unless_plain),
        cmocka_unit_test(pieces_give_the_ids_of_the_whole),
        cmocka_unit_test(a_stream_gives_out_whole_characters_only),
        cmocka_unit_test(broken_characters_become_replacements),
        cmocka_unit_test(bytes_are_saved_as_tokenizer_json),
    };
    return cmocka_run_group_tests(tests, open_bytes, close_bytes);
}
