// SPDX-License-Identifier: Apache-2.0
/* Chat formats against Jinja templates (tests/fixtures/tokenizers/make_chat.py), and the marks. */
#include "tests/test.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "engine/chat.h"

static struct sl_tokenizer *open_kind(const char *kind)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tokenizers/%s", getenv("SLUICE_TEST_FIXTURES"), kind);
    struct sl_tokenizer *tokenizer;
    struct sl_error error = {0};
    if (sl_tokenizer_open(&tokenizer, kind ? path : NULL, &error))
        fail_msg("%s", error.message);
    return tokenizer;
}

static size_t read_messages(json_t *list, struct sl_chat_message *messages)
{
    size_t index;
    json_t *entry;
    json_array_foreach(list, index, entry)
    {
        const char *role = json_string_value(json_object_get(entry, "role"));
        json_t *content = json_object_get(entry, "content");
        messages[index] = (struct sl_chat_message){
            .role = role[0] == 's'   ? SL_CHAT_SYSTEM
                    : role[0] == 'u' ? SL_CHAT_USER
                                     : SL_CHAT_ASSISTANT,
            .text = json_string_value(content),
            .bytes = json_string_length(content),
        };
    }
    return json_array_size(list);
}

static void formats_write_what_the_templates_write(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof(path), "%s/tokenizers/chat.json", getenv("SLUICE_TEST_FIXTURES"));
    json_t *cases = json_load_file(path, 0, NULL), *entry;
    struct sl_tokenizer *tokenizer = open_kind("llama2"); /* <s> and </s> */
    assert_true(json_array_size(cases) > 50);
    size_t index;
    json_array_foreach(cases, index, entry)
    {
        struct sl_chat chat;
        struct sl_chat_message messages[8];
        struct sl_text text = {0};
        struct sl_error error = {0};
        const char *name = json_string_value(json_object_get(entry, "name"));
        const char *jinja = json_string_value(json_object_get(entry, "jinja"));
        json_t *want = json_object_get(entry, "rendered");
        assert_true(sl_chat_detect(&chat, jinja));
        assert_string_equal(sl_chat_format_name(chat.format),
                            json_string_value(json_object_get(entry, "format")));
        size_t count = read_messages(json_object_get(entry, "messages"), messages);
        assert_int_equal(sl_chat_render(&chat, tokenizer, messages, count,
                                        json_is_true(json_object_get(entry, "prompt")), &text, NULL,
                                        &error),
                         0);
        if (text.bytes != json_string_length(want) ||
            memcmp(text.data, json_string_value(want), text.bytes) != 0)
            fail_msg("%s: case %zu:\n%.*s\ninstead of\n%s", name, index, (int)text.bytes, text.data,
                     json_string_value(want));
        sl_text_finish(&text);
    }
    json_decref(cases);
    sl_tokenizer_close(tokenizer);
}

static const struct sl_chat_message turns[] = {
    {SL_CHAT_USER, "the question", 12},
    {SL_CHAT_ASSISTANT, "an answer", 9},
    {SL_CHAT_USER, "again", 5},
    {SL_CHAT_ASSISTANT, "no\n\n more", 9},
};

/* For every format and kind of tokenizer: the ids are those of the whole text, and the trained ones
 * decode to the answers with what ends them. */
static void marks_cover_the_answers_and_nothing_else(void **state)
{
    (void)state;
    const char *kinds[] = {"llama3", "qwen", "llama2", "gemma", "mistral"};
    for (int k = 0; k < 5; k++) {
        struct sl_tokenizer *tokenizer = open_kind(kinds[k]);
        struct sl_encoder *encoder;
        struct sl_error error = {0};
        assert_int_equal(sl_encoder_create(&encoder, tokenizer, &error), 0);
        for (int f = 0; f < SL_CHAT_FORMAT_COUNT; f++) {
            struct sl_chat chat;
            struct sl_text text = {0}, trained = {0}, answers = {0};
            struct sl_chat_spans spans = {0};
            struct sl_ids ids = {0}, whole = {0};
            assert_int_equal(
                sl_chat_from_name(&chat, sl_chat_format_name((enum sl_chat_format)f), &error), 0);
            assert_int_equal(
                sl_chat_render(&chat, tokenizer, turns, 4, false, &text, &spans, &error), 0);
            assert_int_equal(spans.count, 2);
            assert_int_equal(sl_chat_encode(encoder, &text, &spans, &ids, &trained, &error), 0);
            assert_int_equal(sl_encode(encoder, text.data, text.bytes, 0, &whole, &error), 0);
            assert_int_equal(ids.count, whole.count);
            assert_memory_equal(ids.data, whole.data, ids.count * sizeof(*ids.data));
            assert_int_equal(trained.bytes, ids.count);
            struct sl_decoder decoder;
            sl_decoder_begin(&decoder, tokenizer, false);
            decoder.started = true;
            for (size_t i = 0; i < ids.count; i++)
                if (trained.data[i])
                    sl_decoder_push(&decoder, ids.data[i], &answers);
            assert_true(answers.bytes > 0);
            assert_non_null(memmem(answers.data, answers.bytes, "an answer", 9));
            assert_non_null(memmem(answers.data, answers.bytes, "no\n\n more", 9));
            assert_null(memmem(answers.data, answers.bytes, "question", 8));
            assert_null(memmem(answers.data, answers.bytes, "again", 5));
            assert_null(memmem(answers.data, answers.bytes, "user", 4));
            sl_text_finish(&text);
            sl_text_finish(&trained);
            sl_text_finish(&answers);
            sl_chat_spans_finish(&spans);
            sl_ids_finish(&ids);
            sl_ids_finish(&whole);
        }
        sl_encoder_destroy(encoder);
        sl_tokenizer_close(tokenizer);
    }
}

static void unknown_templates_and_roles_are_refused(void **state)
{
    (void)state;
    struct sl_chat chat;
    struct sl_error error = {0};
    assert_false(sl_chat_detect(&chat, NULL));
    assert_false(sl_chat_detect(&chat, "{{ messages }}"));
    assert_int_equal(chat.format, SL_CHAT_PLAIN);
    assert_int_equal(sl_chat_from_name(&chat, "vicuna", &error), -EINVAL);
    assert_non_null(strstr(error.message, "llama3"));
    struct sl_tokenizer *tokenizer = open_kind("qwen");
    struct sl_text text = {0};
    struct sl_chat_message wrong[] = {turns[0], {SL_CHAT_SYSTEM, "late", 4}};
    error = (struct sl_error){0};
    assert_int_equal(sl_chat_render(&chat, tokenizer, wrong, 2, false, &text, NULL, &error),
                     -EINVAL);
    wrong[1].role = SL_CHAT_TOOL;
    error = (struct sl_error){0};
    assert_int_equal(sl_chat_from_name(&chat, "gemma", &error), 0);
    assert_int_equal(sl_chat_render(&chat, tokenizer, wrong, 2, false, &text, NULL, &error),
                     -EINVAL);
    assert_non_null(strstr(error.message, "tool"));
    assert_int_equal(sl_chat_render(&chat, tokenizer, NULL, 0, false, &text, NULL, NULL), -EINVAL);
    sl_text_finish(&text);
    sl_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_write_what_the_templates_write),
        cmocka_unit_test(marks_cover_the_answers_and_nothing_else),
        cmocka_unit_test(unknown_templates_and_roles_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
