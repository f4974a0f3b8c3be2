// SPDX-License-Identifier: Apache-2.0
/* `sluice tokenize`: files whole, in parallel, stopped and resumed. */
#include "tests/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/tokenize.h"
#include "offload/workers.h"

#define TEXT_BYTES ((size_t)5 << 20)

static struct sl_tokenizer *tokenizer;
static struct sl_workers *workers;
static char directory[] = "/tmp/sluice-tokenize-XXXXXX";
static char text_path[64], json_path[64], out_path[64];
static char *text;
static struct sl_ids expected;

static void put_file(const char *path, const char *data, size_t bytes)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(41);
    struct sl_error error = {0};
    char folder[512];
    snprintf(folder, sizeof(folder), "%s/tokenizers/qwen", getenv("SLUICE_TEST_FIXTURES"));
    struct sl_workers_options options = {.thread_count = 3, .unpinned = true};
    if (!mkdtemp(directory) || sl_tokenizer_open(&tokenizer, folder, &error) ||
        sl_workers_create(&workers, &options, &error))
        return -1;
    snprintf(text_path, sizeof(text_path), "%s/a.txt", directory);
    snprintf(json_path, sizeof(json_path), "%s/b.jsonl", directory);
    snprintf(out_path, sizeof(out_path), "%s/out.bin", directory);
    static const char *const words[] = {"the", " sea", " house", "\n",       " 12",
                                        "  ",  " and", ".",      "\xc3\xa9", " light"};
    text = malloc(TEXT_BYTES + 16);
    size_t used = 0;
    while (used < TEXT_BYTES) {
        const char *word = words[test_random_below(&random, 10)];
        memcpy(text + used, word, strlen(word));
        used += strlen(word);
    }
    put_file(text_path, text, used);
    struct sl_encoder *encoder;
    if (sl_encoder_create(&encoder, tokenizer, &error) ||
        sl_encode(encoder, text, used, 0, &expected, &error))
        return -1;
    sl_encoder_destroy(encoder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", directory);
    free(text);
    sl_ids_finish(&expected);
    sl_workers_destroy(workers);
    sl_tokenizer_close(tokenizer);
    return system(command);
}

/* The ids of a .bin as u16, without its header. */
static uint16_t *read_ids(size_t header_bytes, size_t *count)
{
    FILE *file = fopen(out_path, "r");
    assert_non_null(file);
    struct stat status;
    assert_int_equal(fstat(fileno(file), &status), 0);
    *count = ((size_t)status.st_size - header_bytes) / 2;
    uint16_t *ids = malloc(*count * 2 + 2);
    assert_int_equal(fseek(file, (long)header_bytes, SEEK_SET), 0);
    assert_int_equal(fread(ids, 2, *count, file), *count);
    fclose(file);
    return ids;
}

static void expect_text(const uint16_t *ids, size_t count)
{
    assert_int_equal(count, expected.count + 1);
    for (size_t i = 0; i < expected.count; i++)
        if (ids[i] != expected.data[i])
            fail_msg("id %zu is %u, not %u", i, ids[i], expected.data[i]);
    assert_int_equal(ids[expected.count], sl_tokenizer_eos(tokenizer));
}

static void threads_give_the_ids_of_the_whole(void **state)
{
    (void)state;
    const char *files[] = {text_path};
    for (int threads = 0; threads < 2; threads++) {
        struct sl_tokenize_options options = {.files = files,
                                              .file_count = 1,
                                              .tokenizer = tokenizer,
                                              .output = out_path,
                                              .format = SL_BIN_NANOGPT,
                                              .workers = threads ? workers : NULL};
        struct sl_tokenize_result result;
        struct sl_error error = {0};
        assert_int_equal(sl_tokenize(&options, &result, &error), 0);
        size_t count;
        uint16_t *ids = read_ids(0, &count);
        expect_text(ids, count);
        assert_int_equal(result.tokens, count);
        free(ids);
        assert_true(sl_tokenize_memory_bytes(&options) > (6u << 20));
    }
}

static int stop_countdown;
static bool stop_later(void *user, uint64_t done, uint64_t total, uint64_t tokens)
{
    (void)user;
    assert_true(done <= total);
    assert_true(tokens > 0);
    return --stop_countdown > 0;
}

static void a_stopped_run_goes_on(void **state)
{
    (void)state;
    const char *files[] = {text_path};
    struct sl_tokenize_options options = {.files = files,
                                          .file_count = 1,
                                          .tokenizer = tokenizer,
                                          .output = out_path,
                                          .format = SL_BIN_LLMC,
                                          .progress = stop_later};
    struct sl_tokenize_result result;
    unsigned stops = 0;
    uint64_t before = 0;
    int code = -ECANCELED;
    unlink(out_path);
    while (code == -ECANCELED) {
        struct sl_error error = {0};
        stop_countdown = 1;
        code = sl_tokenize(&options, &result, &error);
        assert_int_equal(result.tokens_resumed, before);
        assert_true(result.tokens > before || code == 0);
        before = result.tokens;
        stops += code == -ECANCELED;
        if (code == -ECANCELED)
            assert_int_not_equal(access(out_path, F_OK), 0);
    }
    assert_int_equal(code, 0);
    assert_true(stops >= 2);
    size_t count;
    uint16_t *ids = read_ids(1024, &count);
    assert_int_equal(ids[0], sl_tokenizer_eos(tokenizer)); /* llm.c begins with it */
    expect_text(ids + 1, count - 1);
    free(ids);
    char leftover[80];
    snprintf(leftover, sizeof(leftover), "%s.state", out_path);
    assert_int_not_equal(access(leftover, F_OK), 0);
}

static bool die_later(void *user, uint64_t done, uint64_t total, uint64_t tokens)
{
    (void)user;
    (void)done;
    (void)total;
    (void)tokens;
    if (--stop_countdown == 0)
        raise(SIGKILL);
    return true;
}

/* Killed in the midst of its second batch: what the state counts is kept, what was written beyond
 * it is not. */
static void a_killed_run_goes_on(void **state)
{
    (void)state;
    const char *files[] = {text_path};
    struct sl_tokenize_options options = {.files = files,
                                          .file_count = 1,
                                          .tokenizer = tokenizer,
                                          .output = out_path,
                                          .format = SL_BIN_LLMC,
                                          .sync_bytes = 1,
                                          .progress = die_later};
    struct sl_tokenize_result result;
    struct sl_error error = {0};
    unlink(out_path);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        stop_countdown = 2;
        sl_tokenize(&options, &result, &error);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_not_equal(access(out_path, F_OK), 0);
    options.progress = NULL;
    assert_int_equal(sl_tokenize(&options, &result, &error), 0);
    assert_true(result.tokens_resumed > 0 && result.bytes_resumed > 0);
    assert_true(result.tokens_resumed < result.tokens);
    size_t count;
    uint16_t *ids = read_ids(1024, &count);
    expect_text(ids + 1, count - 1);
    free(ids);
}

static void a_state_of_other_input_does_not_count(void **state)
{
    (void)state;
    const char *files[] = {text_path, text_path};
    struct sl_tokenize_options options = {.files = files,
                                          .file_count = 1,
                                          .tokenizer = tokenizer,
                                          .output = out_path,
                                          .format = SL_BIN_NANOGPT,
                                          .progress = stop_later};
    struct sl_tokenize_result result;
    struct sl_error error = {0};
    stop_countdown = 1;
    assert_int_equal(sl_tokenize(&options, &result, &error), -ECANCELED);
    options.progress = NULL;
    options.file_count = 2;
    error = (struct sl_error){0};
    assert_int_equal(sl_tokenize(&options, &result, &error), 0);
    assert_int_equal(result.tokens_resumed, 0);
    assert_int_equal(result.tokens, 2 * (expected.count + 1));
}

static void records_become_documents(void **state)
{
    (void)state;
    const char *records = "{\"text\": \"the sea\"}\n\n{\"text\": \"house\"}\n";
    put_file(json_path, records, strlen(records));
    const char *files[] = {json_path};
    struct sl_tokenize_options options = {.files = files,
                                          .file_count = 1,
                                          .tokenizer = tokenizer,
                                          .output = out_path,
                                          .format = SL_BIN_NANOGPT};
    struct sl_tokenize_result result;
    struct sl_error error = {0};
    assert_int_equal(sl_tokenize(&options, &result, &error), 0);
    size_t count, ends = 0;
    uint16_t *ids = read_ids(0, &count);
    for (size_t i = 0; i < count; i++)
        ends += ids[i] == sl_tokenizer_eos(tokenizer);
    assert_int_equal(ends, 2);
    assert_int_equal(ids[count - 1], sl_tokenizer_eos(tokenizer));
    free(ids);
    const char *chat = "{\"prompt\": \"a\", \"completion\": \"b\"}";
    put_file(json_path, chat, strlen(chat));
    assert_int_equal(sl_tokenize(&options, &result, &error), -EINVAL);
    assert_non_null(strstr(error.message, "no mask"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_give_the_ids_of_the_whole),
        cmocka_unit_test(a_stopped_run_goes_on),
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(a_state_of_other_input_does_not_count),
        cmocka_unit_test(records_become_documents),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
