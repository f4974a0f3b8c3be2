// SPDX-License-Identifier: Apache-2.0
/* Datasets from records and from .bin files: every form of record, masks, packing, and what is
 * refused. */
#include "tests/test.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "engine/dataset.h"

#define T 64u
#define ROWS_MAX 8u

static struct sl_tokenizer *bytes_tokenizer, *qwen;
static char directory[] = "/tmp/sluice-records-XXXXXX";
static char path[64];
static int32_t ids[ROWS_MAX * T], targets[ROWS_MAX * T], positions[ROWS_MAX * T],
    first[ROWS_MAX * T];
static struct sl_dataset_batch batch = {ids, targets, positions, first, 0};
static char logged[4096];

static void write_log(void *user, enum sl_log_level level, const char *message)
{
    (void)user;
    (void)level;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof(logged) - used, "%s\n", message);
}
static const struct sl_log log_sink = {write_log, NULL};

static void put_file(const char *name, const void *data, size_t bytes)
{
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    struct sl_error error = {0};
    char folder[512];
    snprintf(folder, sizeof(folder), "%s/tokenizers/qwen", getenv("SLUICE_TEST_FIXTURES"));
    return !mkdtemp(directory) || sl_tokenizer_open(&bytes_tokenizer, NULL, &error) ||
           sl_tokenizer_open(&qwen, folder, &error);
}

static int tear_down(void **state)
{
    (void)state;
    sl_tokenizer_close(bytes_tokenizer);
    sl_tokenizer_close(qwen);
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    return system(command);
}

static int try_open(struct sl_dataset **dataset, struct sl_dataset_options options,
                    struct sl_error *error)
{
    const char *files[] = {path};
    options.files = options.files ? options.files : files;
    options.file_count = options.file_count ? options.file_count : 1;
    options.sequence_length = options.sequence_length ? options.sequence_length : T;
    options.log = &log_sink;
    logged[0] = 0;
    *error = (struct sl_error){0};
    return sl_dataset_open(dataset, &options, error);
}

static struct sl_dataset *open_records(const char *name, const char *text,
                                       struct sl_dataset_options options)
{
    struct sl_dataset *dataset;
    struct sl_error error;
    put_file(name, text, strlen(text));
    if (!options.tokenizer)
        options.tokenizer = bytes_tokenizer;
    if (try_open(&dataset, options, &error))
        fail_msg("%s", error.message);
    return dataset;
}

/* The trained targets of row 0 as text; <|endoftext|> becomes '$'. */
static const char *trained_text(void)
{
    static char text[T + 1];
    size_t used = 0;
    for (size_t i = 0; i < T; i++)
        if (targets[i] >= 0)
            text[used++] = targets[i] == 256 ? '$' : (char)targets[i];
    text[used] = 0;
    return text;
}

static void every_form_of_record_trains_its_answers(void **state)
{
    (void)state;
    const struct {
        const char *name, *text, *trained;
    } cases[] = {
        {"a.jsonl",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
         "{\"role\":\"assistant\",\"content\":\"yo\"}]}\n",
         "yo$"},
        {"a.json",
         "[\n {\"conversations\": [{\"from\":\"human\",\"value\":\"a\"},"
         "{\"from\":\"gpt\",\"value\":\"b\"}], \"system\":\"s\"}\n]",
         "b$"},
        {"a.json", "[{\"instruction\":\"do\",\"input\":\"this\",\"output\":\"done\"}]", "done$"},
        {"a.json", "[{\"instruction\":\"do\",\"output\":\"x\",\"history\":[[\"q\",\"r\"]]}]",
         "r$x$"},
        {"a.jsonl", "{\"prompt\":\"1+1=\",\"completion\":\"2\"}", "2$"},
        {"a.jsonl",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
         "\"text\":\"p\"}]},{\"role\":\"assistant\",\"content\":\"q\"}]}",
         "q$"},
        {"a.jsonl",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"content\":\"b\",\"weight\":0},{\"role\":\"user\",\"content\":\"c\"},"
         "{\"role\":\"assistant\",\"content\":\"d\",\"weight\":1,\"tool_calls\":[]}]}",
         "d$"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sl_dataset *dataset = open_records(
            cases[i].name, cases[i].text, (struct sl_dataset_options){.chat_template = "plain"});
        struct sl_dataset_state place = {0};
        assert_int_equal(sl_dataset_sequences(dataset), 1);
        sl_dataset_next(dataset, &place, 1, &batch);
        assert_string_equal(trained_text(), cases[i].trained);
        assert_int_equal(batch.trained_tokens, strlen(cases[i].trained));
        sl_dataset_close(dataset);
    }
}

/* A NUL is text, wherever it stands. */
static void nothing_is_cut_at_a_nul(void **state)
{
    (void)state;
    struct sl_dataset *dataset = open_records(
        "a.jsonl", "{\"instruction\":\"a\\u0000b\",\"input\":\"c\",\"output\":\"d\\u0000e\"}",
        (struct sl_dataset_options){.chat_template = "plain", .train_on_prompt = true});
    struct sl_dataset_state place = {0};
    static const int32_t expected[] = {'a', 0, 'b', '\n', 'c', '\n', 'd', 0, 'e'};
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_memory_equal(ids, expected, sizeof(expected));
    sl_dataset_close(dataset);
}

static void prompts_are_trained_on_request(void **state)
{
    (void)state;
    struct sl_dataset *dataset = open_records(
        "a.jsonl", "{\"prompt\":\"1+1=\",\"completion\":\"2\"}",
        (struct sl_dataset_options){.chat_template = "plain", .train_on_prompt = true});
    struct sl_dataset_state place = {0};
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_string_equal(trained_text(), "+1=2$"); /* the first token is nobody's target */
    sl_dataset_close(dataset);
}

static void text_records_are_documents_of_a_stream(void **state)
{
    (void)state;
    struct sl_dataset *dataset =
        open_records("a.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"de\"}\n", //
                     (struct sl_dataset_options){.sequence_length = 6, .in_order = true});
    struct sl_dataset_state place = {0};
    sl_dataset_next(dataset, &place, 1, &batch);
    const int32_t next[] = {'b', 'c', 256, -1, 'e', 256};
    const int32_t begin[] = {0, 0, 0, 0, 4, 4};
    assert_memory_equal(targets, next, sizeof(next));
    assert_memory_equal(first, begin, sizeof(begin));
    sl_dataset_close(dataset);
}

/* Packing: every example exactly once an epoch, whole, apart from the others. */
static void examples_are_packed_whole(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(31);
    static char text[40000];
    size_t used = 0, expected = 0;
    for (int i = 0; i < 200; i++) {
        size_t length = 1 + test_random_below(&random, 40);
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "{\"prompt\":\"%03d\",\"completion\":\"%.*s\"}\n", i, (int)length,
                                 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        expected += length + 1;
    }
    for (int no_packing = 0; no_packing < 2; no_packing++) {
        struct sl_dataset *dataset = open_records(
            "a.jsonl", text, (struct sl_dataset_options){.no_packing = no_packing, .seed = 3});
        uint64_t sequences = sl_dataset_sequences(dataset), trained = 0;
        bool seen[200] = {false};
        struct sl_dataset_state place = {0};
        if (no_packing)
            assert_int_equal(sequences, 200);
        else
            assert_true(sequences < 80); /* 200 examples of 24 on average: 75 at the least */
        for (uint64_t k = 0; k < sequences; k++) {
            sl_dataset_next(dataset, &place, 1, &batch);
            trained += batch.trained_tokens;
            for (size_t i = 0; i < T; i++) {
                assert_int_equal(positions[i], (int32_t)i - first[i]);
                if (positions[i] == 0 && ids[i] != 0) {
                    int number = (ids[i] - '0') * 100 + (ids[i + 1] - '0') * 10 + ids[i + 2] - '0';
                    assert_false(seen[number]);
                    seen[number] = true;
                    assert_int_equal(targets[i], -1);
                    assert_int_equal(targets[i + 2], 'x');
                }
                if (ids[i] == 0)
                    assert_int_equal(targets[i], -1);
            }
        }
        for (int i = 0; i < 200; i++)
            assert_true(seen[i]);
        assert_int_equal(trained, expected);
        sl_dataset_close(dataset);
    }
}

static void held_out_examples_stay_held_out(void **state)
{
    (void)state;
    static char text[8000];
    size_t used = 0;
    for (int i = 0; i < 100; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "{\"prompt\":\"%02d\",\"completion\":\"y\"}\n", i);
    bool held[2][100] = {{false}};
    for (int seed = 0; seed < 2; seed++) {
        struct sl_dataset *dataset = open_records(
            "a.jsonl", text,
            (struct sl_dataset_options){
                .no_packing = true, .validation_fraction = 0.1, .seed = (uint64_t)seed});
        assert_int_equal(sl_dataset_sequences(dataset), 90);
        assert_int_equal(sl_dataset_eval_sequences(dataset), 10);
        for (uint64_t k = 0; k < 10; k++) {
            assert_int_equal(sl_dataset_eval(dataset, k, 1, &batch), 1);
            held[seed][(ids[0] - '0') * 10 + ids[1] - '0'] = true;
        }
        struct sl_dataset_state place = {0};
        for (uint64_t k = 0; k < 90; k++) {
            sl_dataset_next(dataset, &place, 1, &batch);
            assert_false(held[seed][(ids[0] - '0') * 10 + ids[1] - '0']);
        }
        sl_dataset_close(dataset);
    }
    assert_memory_equal(held[0], held[1], sizeof(held[0])); /* not a matter of the run's seed */
}

static void examples_without_a_target_are_left_out_and_said(void **state)
{
    (void)state;
    static const char text[] =
        "{\"prompt\":\"0123456789\",\"completion\":\"y\"}\n"
        "{\"prompt\":\"012345678901234567890123456789\",\"completion\":\"y\"}\n"
        "{\"prompt\":\"01234567890123\",\"completion\":\"yyyyyyyyyyyyyyyyyyy\"}\n";
    struct sl_dataset *dataset = open_records(
        "a.jsonl", text, (struct sl_dataset_options){.sequence_length = 20, .no_packing = true});
    assert_int_equal(sl_dataset_sequences(dataset), 2);
    assert_non_null(strstr(logged, "1 of 3 examples have no token to train on"));
    assert_non_null(strstr(logged, "1 of 3 examples are longer"));
    sl_dataset_close(dataset);
    struct sl_dataset_options options = {.tokenizer = bytes_tokenizer, .sequence_length = 5};
    struct sl_error error;
    assert_int_equal(try_open(&dataset, options, &error), -EINVAL);
    assert_non_null(strstr(error.message, "none of 3 examples"));
}

static void an_example_is_shown_with_its_mask(void **state)
{
    (void)state;
    struct sl_dataset *dataset =
        open_records("a.jsonl",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"},"
                     "{\"role\":\"assistant\",\"content\":\"good day\"}]}",
                     (struct sl_dataset_options){.tokenizer = qwen, .chat_template = "chatml"});
    struct sl_text text = {0};
    assert_int_equal(sl_dataset_show(dataset, qwen, 0, 4000, &text), 0);
    const char *expected = "document 1\n"
                           "  context | <|im_start|>user\\nhello<|im_end|>\\n"
                           "<|im_start|>assistant\\n\n"
                           "  trained | good day<|im_end|>\n"
                           "  context | \\n\n";
    assert_int_equal(text.bytes, strlen(expected) - strlen("  context | \\n\n"));
    assert_memory_equal(text.data, expected, text.bytes);
    sl_text_finish(&text);
    sl_dataset_close(dataset);
}

static void the_template_is_chosen_or_warned_of(void **state)
{
    (void)state;
    struct sl_dataset *dataset =
        open_records("a.jsonl",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                     "{\"role\":\"assistant\",\"content\":\"b\"}]}",
                     (struct sl_dataset_options){0});
    assert_non_null(strstr(logged, "template plain"));
    sl_dataset_close(dataset);
}

static void bin_files_are_mapped(void **state)
{
    (void)state;
    uint16_t nano[100];
    for (int i = 0; i < 100; i++)
        nano[i] = i % 10 == 9 ? 256 : (uint16_t)i;
    put_file("n.bin", nano, sizeof(nano));
    struct sl_dataset *dataset;
    struct sl_error error;
    struct sl_dataset_options options = {
        .tokenizer = bytes_tokenizer, .sequence_length = 16, .in_order = true};
    assert_int_equal(try_open(&dataset, options, &error), 0);
    assert_int_equal(sl_dataset_sequences(dataset), 6);
    assert_int_equal(sl_dataset_id_limit(dataset), 257);
    assert_true(sl_dataset_memory_bytes(dataset) < 1024);
    struct sl_dataset_state place = {0};
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_int_equal(targets[9], -1); /* the eos ends a document */
    assert_int_equal(first[10], 10);
    assert_int_equal(targets[10], 11);
    sl_dataset_close(dataset);

    struct {
        uint32_t header[256];
        uint32_t ids[40];
    } llmc = {{20240801, 7, 40}, {0}};
    for (uint32_t i = 0; i < 40; i++)
        llmc.ids[i] = i % 10 == 0 ? 256 : 70000 + i;
    put_file("l.bin", &llmc, sizeof(llmc));
    assert_int_equal(try_open(&dataset, options, &error), 0);
    assert_int_equal(sl_dataset_id_limit(dataset), 70040);
    place = (struct sl_dataset_state){0};
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_int_equal(targets[0], 70001); /* the eos begins a document */
    assert_int_equal(targets[9], -1);
    assert_int_equal(first[11], 10);
    sl_dataset_close(dataset);

    char other[64];
    snprintf(other, sizeof(other), "%s/n.bin", directory);
    const char *both[] = {path, other};
    options.files = both;
    options.file_count = 2;
    assert_int_equal(try_open(&dataset, options, &error), 0);
    assert_int_equal(sl_dataset_sequences(dataset), 2 + 6);
    place = (struct sl_dataset_state){.index = 2};
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_int_equal(ids[1], 1);
    sl_dataset_close(dataset);

    llmc.header[2] = 41;
    put_file("l.bin", &llmc, sizeof(llmc));
    options.files = NULL;
    options.file_count = 0;
    assert_int_equal(try_open(&dataset, options, &error), -EINVAL);
    assert_non_null(strstr(error.message, "promises 41 ids"));
    llmc.header[2] = 40;
    llmc.header[1] = 9;
    put_file("l.bin", &llmc, sizeof(llmc));
    assert_int_equal(try_open(&dataset, options, &error), -EINVAL);
    put_file("odd.bin", "abc", 3);
    assert_int_equal(try_open(&dataset, options, &error), -EINVAL);
    put_file("empty.bin", "", 0);
    assert_int_equal(try_open(&dataset, options, &error), -EINVAL);
}

static void errors_name_file_and_record(void **state)
{
    (void)state;
    const struct {
        const char *text, *words;
    } cases[] = {
        {"{\"text\":\"a\"}\n{\"text\":3}\n", "record 2: \"text\" is no string"},
        {"{\"text\":\"a\"}\n{\"texts\":\"b\"}\n", "record 2: none of the keys"},
        {"{\"text\":\"a\"}\nhello\n", "record 2 is no whole JSON object"},
        {"{\"text\":\"a\"}\n{\"text\":\"b\"", "record 2 is no whole JSON object"},
        {"{\"text\":\"a\"}\n{\"text\" \"b\"}", "record 2: line 1, column"},
        {"[]", "no text in it"},
        {"{\"messages\":[]}", "record 1: a conversation without messages"},
        {"{\"messages\":[{\"role\":\"narrator\",\"content\":\"x\"}]}", "role \"narrator\""},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "content of type \"image_url\""},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{}]}]}",
         "\"tool_calls\" is not supported"},
        {"{\"tools\":[{}],\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}",
         "\"tools\" is not supported"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":"
         "\"b\"}]}",
         "template plain has no place for reasoning_content"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"weight\":\"b\"}]}",
         "\"weight\" is no number"},
        {"{\"instruction\":\"x\"}", "record 1: \"output\" is no string"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sl_dataset *dataset;
        struct sl_error error;
        struct sl_dataset_options options = {.tokenizer = bytes_tokenizer,
                                             .chat_template = "plain"};
        put_file("bad.jsonl", cases[i].text, strlen(cases[i].text));
        assert_int_not_equal(try_open(&dataset, options, &error), 0);
        if (!strstr(error.message, cases[i].words) || !strstr(error.message, "bad.jsonl"))
            fail_msg("\"%s\" does not say \"%s\"", error.message, cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_record_trains_its_answers),
        cmocka_unit_test(nothing_is_cut_at_a_nul),
        cmocka_unit_test(prompts_are_trained_on_request),
        cmocka_unit_test(text_records_are_documents_of_a_stream),
        cmocka_unit_test(examples_are_packed_whole),
        cmocka_unit_test(held_out_examples_stay_held_out),
        cmocka_unit_test(examples_without_a_target_are_left_out_and_said),
        cmocka_unit_test(an_example_is_shown_with_its_mask),
        cmocka_unit_test(the_template_is_chosen_or_warned_of),
        cmocka_unit_test(bin_files_are_mapped),
        cmocka_unit_test(errors_name_file_and_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
