// SPDX-License-Identifier: Apache-2.0
/* Tokenizers from tokenizer.json against what the `tokenizers` library makes of the same texts
 * (tests/fixtures/make_tokenizers.py), and the ways such a file can be wrong. */
#include "tests/test.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "engine/tokenizer.h"
#include "engine/tokenizer_internal.h"

static const char *const kinds[] = {"gpt2",   "llama3",  "qwen",      "smollm", "regex",
                                    "llama2", "mistral", "metaspace", "gemma",  "added"};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct sl_tokenizer *open_kind(const char *kind)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tokenizers/%s", getenv("SLUICE_TEST_FIXTURES"), kind);
    struct sl_tokenizer *tokenizer;
    struct sl_error error = {0};
    if (sl_tokenizer_open(&tokenizer, path, &error))
        fail_msg("%s", error.message);
    return tokenizer;
}

static json_t *open_cases(const char *kind)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tokenizers/%s/cases.json", getenv("SLUICE_TEST_FIXTURES"),
             kind);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(cases);
    return cases;
}

static void expect_ids(const char *kind, size_t at, const char *what, json_t *expected,
                       const struct sl_ids *ids)
{
    size_t count = json_array_size(expected);
    for (size_t i = 0; i < ids->count || i < count; i++) {
        json_int_t want = json_integer_value(json_array_get(expected, i));
        if (i >= ids->count || i >= count || ids->data[i] != want)
            fail_msg("%s, case %zu, %s: id %zu of %zu is %lld, here %lld (of %zu)", kind, at, what,
                     i, count, i < count ? (long long)want : -1,
                     i < ids->count ? (long long)ids->data[i] : -1, ids->count);
    }
}

static void ids_are_those_of_the_library(void **state)
{
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        struct sl_tokenizer *tokenizer = open_kind(kinds[k]);
        struct sl_encoder *encoder;
        struct sl_error error = {0};
        assert_int_equal(sl_encoder_create(&encoder, tokenizer, &error), 0);
        json_t *cases = open_cases(kinds[k]), *entry;
        size_t at;
        struct sl_ids ids = {0};
        assert_true(json_array_size(cases) > 20);
        json_array_foreach(cases, at, entry)
        {
            json_t *text = json_object_get(entry, "text");
            for (int template = 0; template <2; template ++) {
                ids.count = 0;
                assert_int_equal(sl_encode(encoder, json_string_value(text),
                                           json_string_length(text),
                                           template ? SL_ENCODE_TEMPLATE : 0, &ids, &error),
                                 0);
                expect_ids(kinds[k], at, template ? "template" : "plain",
                           json_object_get(entry, template ? "template_ids" : "ids"), &ids);
            }
        }
        sl_ids_finish(&ids);
        json_decref(cases);
        sl_encoder_destroy(encoder);
        sl_tokenizer_close(tokenizer);
    }
}

static void text_comes_back_as_the_library_gives_it(void **state)
{
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        struct sl_tokenizer *tokenizer = open_kind(kinds[k]);
        json_t *cases = open_cases(kinds[k]), *entry;
        size_t at;
        json_array_foreach(cases, at, entry)
        {
            json_t *list = json_object_get(entry, "ids"), *id;
            for (int skip = 0; skip < 2; skip++) {
                struct sl_text out = {0};
                struct sl_decoder decoder;
                size_t i;
                sl_decoder_begin(&decoder, tokenizer, skip);
                json_array_foreach(list, i, id) assert_int_equal(
                    sl_decoder_push(&decoder, (uint32_t)json_integer_value(id), &out), 0);
                assert_int_equal(sl_decoder_end(&decoder, &out), 0);
                json_t *want = json_object_get(entry, skip ? "skipped" : "decoded");
                if (out.bytes != json_string_length(want) ||
                    (out.bytes && memcmp(out.data, json_string_value(want), out.bytes) != 0))
                    fail_msg("%s, case %zu, skip %d: \"%.*s\" instead of \"%s\"", kinds[k], at,
                             skip, (int)out.bytes, out.data, json_string_value(want));
                sl_text_finish(&out);
            }
        }
        json_decref(cases);
        sl_tokenizer_close(tokenizer);
    }
}

/* A long random text of what matters, so that there are places to cut. */
static size_t random_text(struct test_random *random, char *text, size_t capacity)
{
    static const char *const parts[] = {"word",         " the",
                                        " and",         " of",
                                        "\n",           "\n\n",
                                        "  ",           " ",
                                        ". ",           "'s",
                                        " 1234",        "caf\xc3\xa9",
                                        " a",           "\t",
                                        "\r\n",         "<s>",
                                        "<think>",      "B",
                                        " sea",         "e\xcc\x81",
                                        "\xe4\xbd\xa0", "<|endoftext|>",
                                        "\n\n\n",       "word",
                                        " light",       "\nhouse"};
    size_t used = 0;
    while (used + 16 < capacity) {
        const char *part = parts[test_random_below(random, sizeof(parts) / sizeof(parts[0]))];
        memcpy(text + used, part, strlen(part));
        used += strlen(part);
    }
    return used;
}

static void pieces_give_the_ids_of_the_whole(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(21);
    static char text[20000];
    for (size_t k = 0; k < KINDS; k++) {
        struct sl_tokenizer *tokenizer = open_kind(kinds[k]);
        struct sl_encoder *encoder;
        struct sl_error error = {0};
        assert_int_equal(sl_encoder_create(&encoder, tokenizer, &error), 0);
        struct sl_ids whole = {0}, parts = {0};
        unsigned cuts = 0;
        for (int round = 0; round < 10; round++) {
            size_t bytes = random_text(&random, text, sizeof(text)), from = 0, to = 0;
            whole.count = parts.count = 0;
            assert_int_equal(sl_encode(encoder, text, bytes, 0, &whole, &error), 0);
            while (from < bytes) {
                size_t consumed;
                to += (size_t)test_random_below(&random, 600);
                to = to > bytes ? bytes : to;
                assert_int_equal(sl_encode_piece(encoder, text + from, to - from, from == 0,
                                                 to == bytes, &parts, &consumed, &error),
                                 0);
                from += consumed;
                cuts += consumed > 0;
            }
            assert_int_equal(parts.count, whole.count);
            assert_memory_equal(parts.data, whole.data, whole.count * sizeof(*whole.data));
        }
        if (strcmp(kinds[k], "regex") != 0 && strcmp(kinds[k], "added") != 0)
            assert_true(cuts > 100); /* text is really cut */
        sl_ids_finish(&whole);
        sl_ids_finish(&parts);
        sl_encoder_destroy(encoder);
        sl_tokenizer_close(tokenizer);
    }
}

static void broken_text_counts_as_replacement_characters(void **state)
{
    (void)state;
    struct sl_tokenizer *tokenizer = open_kind("qwen");
    struct sl_encoder *encoder;
    struct sl_error error = {0};
    assert_int_equal(sl_encoder_create(&encoder, tokenizer, &error), 0);
    struct sl_ids broken = {0}, clean = {0};
    const char *text = "a\xff\xe2\x82z\xf0\x9f\x98 \xed\xa0\x80\xc0";
    const char *same = "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd"
                       "\xef\xbf\xbd\xef\xbf\xbd";
    assert_int_equal(sl_encode(encoder, text, strlen(text), 0, &broken, &error), 0);
    assert_int_equal(sl_encode(encoder, same, strlen(same), 0, &clean, &error), 0);
    assert_int_equal(broken.count, clean.count);
    assert_memory_equal(broken.data, clean.data, clean.count * sizeof(*clean.data));
    sl_ids_finish(&broken);
    sl_ids_finish(&clean);
    sl_encoder_destroy(encoder);
    sl_tokenizer_close(tokenizer);
}

static void ends_of_text_come_from_the_neighbours(void **state)
{
    (void)state;
    struct sl_tokenizer *tokenizer = open_kind("llama3");
    assert_int_equal(sl_tokenizer_eos(tokenizer), sl_tokenizer_id(tokenizer, "<|eot_id|>"));
    assert_int_equal(sl_tokenizer_bos(tokenizer), sl_tokenizer_id(tokenizer, "<|begin_of_text|>"));
    assert_true(sl_tokenizer_is_special(tokenizer, (uint32_t)sl_tokenizer_bos(tokenizer)));
    assert_int_equal(sl_tokenizer_id(tokenizer, "\xc4\xa0the"), /* as the file spells it */
                     sl_tokenizer_id(tokenizer, "\xc4\xa0the"));
    assert_true(sl_tokenizer_id(tokenizer, "\xc4\xa0the") >= 0);
    assert_int_equal(sl_tokenizer_id(tokenizer, "no such thing"), -1);
    assert_true(sl_tokenizer_memory_bytes(tokenizer) > 10000);
    sl_tokenizer_close(tokenizer);
}

static void files_are_carried_over(void **state)
{
    (void)state;
    char directory[] = "/tmp/sluice-tokenizer-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    struct sl_tokenizer *tokenizer = open_kind("gemma"), *again;
    struct sl_error error = {0};
    assert_int_equal(sl_tokenizer_save(tokenizer, directory, &error), 0);
    assert_int_equal(sl_tokenizer_open(&again, directory, &error), 0);
    assert_int_equal(sl_tokenizer_fingerprint(tokenizer), sl_tokenizer_fingerprint(again));
    assert_int_equal(sl_tokenizer_eos(tokenizer), sl_tokenizer_eos(again));
    sl_tokenizer_close(again);
    sl_tokenizer_close(tokenizer);
    const char *names[] = {"tokenizer.json", "tokenizer_config.json"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(directory), 0);
}

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define DECODER "\"decoder\":{\"type\":\"Fuse\"},"

static void expect_refusal(const char *json, const char *words)
{
    struct sl_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    struct sl_error error = {0};
    int code = tokenizer_parse_json(tokenizer, json, strlen(json), "x/tokenizer.json", &error);
    assert_int_not_equal(code, 0);
    if (!strstr(error.message, words) || !strstr(error.message, "x/tokenizer.json"))
        fail_msg("\"%s\" does not say \"%s\"", error.message, words);
    sl_tokenizer_close(tokenizer);
}

static void what_is_not_supported_is_named(void **state)
{
    (void)state;
    expect_refusal("{", "line 1");
    expect_refusal("[]", "not a JSON object");
    expect_refusal("{}", "\"model\" is missing");
    expect_refusal("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"Unigram\"");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "the id of \"a\"");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", "the id of \"a\"");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "twice");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate");
    expect_refusal("{\"model\":{\"vocab\":{},\"merges\":[]}}", "vocabulary is empty");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "merges[0]");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a  a\"]}}", "merges[0]");
    expect_refusal("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout");
    expect_refusal("{\"normalizer\":{\"type\":\"Lowercase\"}," DECODER MODEL "}",
                   "normalizer \"Lowercase\"");
    expect_refusal("{\"pre_tokenizer\":{\"type\":\"Whitespace\"}," DECODER MODEL "}",
                   "pre_tokenizer \"Whitespace\"");
    expect_refusal("{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}", "decoder \"WordPiece\"");
    expect_refusal("{\"post_processor\":{\"type\":\"BertProcessing\"}," DECODER MODEL "}",
                   "post_processor \"BertProcessing\"");
    expect_refusal("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
                   "\"behavior\":\"Isolated\",\"invert\":false}," DECODER MODEL "}",
                   "pattern \"(\"");
    struct sl_tokenizer *tokenizer;
    struct sl_error error = {0};
    assert_int_equal(sl_tokenizer_open(&tokenizer, "/nowhere/at/all", &error), -ENOENT);
    assert_non_null(strstr(error.message, "/nowhere/at/all"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(text_comes_back_as_the_library_gives_it),
        cmocka_unit_test(pieces_give_the_ids_of_the_whole),
        cmocka_unit_test(broken_text_counts_as_replacement_characters),
        cmocka_unit_test(ends_of_text_come_from_the_neighbours),
        cmocka_unit_test(files_are_carried_over),
        cmocka_unit_test(what_is_not_supported_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
