// SPDX-License-Identifier: Apache-2.0
/* The two readers: what is read, what is refused and where, and that nothing hostile costs much. */
#include "tests/engine/config_support.h"

#include <errno.h>
#include <sys/resource.h>
#include <time.h>

#include "engine/config_tree.h"

struct faulty {
    const char *text, *error;
};

static void faults_are_named_with_their_place(void **state)
{
    (void)state;
    static const struct faulty table[] = {
        {"", ":1:1: a configuration is one object"},
        {"[]", ":1:1: a configuration is one object"},
        {"{", ":1:1: this { is never closed"},
        {"{\n \"a\": [1, 2\n", ":2:7: this [ is never closed"},
        {"{\"a\" 1}", ":1:6: a colon is expected after the key \"a\""},
        {"{\"a\":}", ":1:6: a value is expected here, not '}'"},
        {"{\"a\":", ":1:6: the file ends here"},
        {"{\"a\": 1 \"b\": 2}", ":1:9: a comma or } is expected here"},
        {"{\"a\": 1,\n\"b\": 2,\n \"a\": 3}", ":3:2: duplicate key \"a\", first given at line 1, "
                                              "column 7"},
        {"{\"x\": {\"steps\": 1, \"steps\": 1}}", "duplicate key \"steps\""},
        {"{\"a\": tru}", ":1:7: tru is neither a number nor true, false or null"},
        {"{\"a\": NaN}", "NaN is neither"},
        {"{\"a\": Infinity}", "Infinity is neither"},
        {"{\"a\": 1e999}", "1e999 is neither"},
        {"{\"a\": 0x10}", "0x10 is neither"},
        {"{\"a\": \"open\n}", ":1:7: this string is never closed on its line"},
        {"{\"a\": \"\\q\"}", "unknown escape"},
        {"{\"a\": \"\\u12\"}", "four hexadecimal digits"},
        {"{\"a\": \"\\ud800\"}", "half of a surrogate pair"},
        {"{\"a\": \"\\u0000\"}", "a NUL character"},
        {"{\"a\": \"\xff\"}", "not UTF-8 text at byte 7"},
        {"{\"a\": \"\xc0\xaf\"}", "not UTF-8 text"},
        {"{} {}", "text after the closing }"},
        {"{ /* open", ":1:3: this comment is never closed"},
        {"{,}", ":1:2: a key is expected here, not ','"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct sl_tree tree = {0};
        struct sl_error error = {0};
        int result = sl_tree_from_json(&tree, "f", table[i].text, strlen(table[i].text), &error);
        if (result != -EINVAL || !strstr(error.message, table[i].error))
            fail_msg("%s: result %d, %s", table[i].text, result, error.message);
        sl_tree_finish(&tree);
    }
}

static void hjson_forms_are_read(void **state)
{
    (void)state;
    static const char text[] =
        "\xef\xbb\xbf# hash\n"
        "{ // line\n"
        "  \"train_batch_size\" /* here */ : 64,\n"
        "  gradient_clipping: 5e-1\n"
        "  'steps_per_print': 2,\r\n"
        "  \"optimizer\": {\"type\": \"\\u0041dam\\u0057\", \"params\": "
        "{\"betas\": [0.8, 0.9,],},},\n"
        "  \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e8, "
        "\"allgather_bucket_size\": 15099494.4, \"offload_param\": null},\n"
        "}\n";
    static struct loaded loaded;
    load_text(&loaded, ".json", text);
    print_lines("problem", &loaded.report.problems);
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.train_batch, 64);
    assert_true(loaded.config.clip_norm == 0.5);
    assert_int_equal(loaded.config.print_steps, 2);
    assert_true(loaded.config.optimizer.beta1 == 0.8f);
    assert_string_equal(
        sl_config_report_row(&loaded.report, "zero_optimization.allgather_bucket_size")->value,
        "15099494");
    loaded_finish(&loaded);
}

static void base64_is_a_configuration(void **state)
{
    (void)state;
    static struct loaded loaded;
    /* {"train_batch_size": 7, "bf16": {"enabled": true}} */
    LOAD(&loaded, "eyJ0cmFpbl9iYXRjaF9zaXplIjogNywgImJmMTYiOiB7ImVuYWJsZWQiOiB0cnVlfX0=");
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.train_batch, 7);
    assert_int_equal(loaded.config.precision, SL_BF16);
    loaded_finish(&loaded);
    LOAD(&loaded, "bm90IGpzb24=");
    assert_int_equal(loaded.result, -ENOENT);
    loaded_finish(&loaded);
}

static void yaml_faults_are_named(void **state)
{
    (void)state;
    static const struct faulty table[] = {
        {"a: 1\na: 2\n", ":2:1: duplicate key \"a\""},
        {"a: &x 1\nb: *x\n", ":2:4: an alias"},
        {"a: [1, 2\n", "not YAML"},
        {"- 1\n", "a mapping of keys"},
        {"", "a mapping of keys"},
        {"a: 1\n---\nb: 2\n", "a second document"},
        {"{a: 1}: 2\n", "a key must be a plain word"},
        {"a: \"\\0\"\n", "a NUL character"},
        {"a: \xff\n", "not UTF-8"},
        {"a:\n\t- 1\n", "not YAML"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct sl_tree tree = {0};
        struct sl_error error = {0};
        int result = sl_tree_from_yaml(&tree, "f", table[i].text, strlen(table[i].text), &error);
        if (result != -EINVAL || !strstr(error.message, table[i].error))
            fail_msg("%s: result %d, %s", table[i].text, result, error.message);
        sl_tree_finish(&tree);
    }
}

static void yaml_words_are_read_as_pyyaml_does(void **state)
{
    (void)state;
    static const char text[] = "a: yes\nb: 'no'\nc: 1.5\nd: ~\ne: NO\nf: 1e8\ng: text\nh:\n";
    static const enum sl_node_kind kinds[] = {SL_NODE_BOOL,   SL_NODE_STRING, SL_NODE_NUMBER,
                                              SL_NODE_NULL,   SL_NODE_BOOL,   SL_NODE_NUMBER,
                                              SL_NODE_STRING, SL_NODE_NULL};
    struct sl_tree tree = {0};
    assert_int_equal(sl_tree_from_yaml(&tree, "f", text, sizeof(text) - 1, NULL), 0);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char name[2] = {(char)('a' + i), 0};
        assert_int_equal(sl_node_get(tree.root, name)->kind, kinds[i]);
    }
    sl_tree_finish(&tree);
}

/* --- hostile sizes --- */

static char *repeat(const char *head, const char *unit, size_t count, const char *tail)
{
    size_t length = strlen(unit), used = strlen(head);
    char *text = malloc(used + length * count + strlen(tail) + 1);
    strcpy(text, head);
    for (size_t i = 0; i < count; i++, used += length)
        memcpy(text + used, unit, length + 1);
    strcpy(text + used, tail);
    return text;
}

static char *many_keys(size_t count)
{
    char *text = malloc(count * 20 + 16);
    size_t used = (size_t)sprintf(text, "{");
    for (size_t i = 0; i < count; i++)
        used += (size_t)sprintf(text + used, "\"k%zu\":1,", i);
    strcpy(text + used, "}");
    return text;
}

static void refused_cheaply(const char *suffix, char *text, const char *expected)
{
    static struct loaded loaded;
    const char *path = temporary_file(suffix, text, strlen(text));
    free(text);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    clock_t start = clock();
    LOAD(&loaded, path);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    getrusage(RUSAGE_SELF, &after);
    unlink(path);
    if (!loaded.result || !strstr(loaded.error.message, expected))
        fail_msg("result %d, %s", loaded.result, loaded.error.message);
    assert_true(seconds < 2);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10); /* KiB */
    loaded_finish(&loaded);
}

static void hostile_files_cost_little(void **state)
{
    (void)state;
    static const char *const suffixes[] = {".json", ".yaml"};
    for (int i = 0; i < 2; i++) {
        refused_cheaply(suffixes[i], repeat("{\"a\": ", "[", 100000, ""), "nested deeper than 64");
        refused_cheaply(suffixes[i], many_keys(1000000), "larger than 1048576 bytes");
        refused_cheaply(suffixes[i], many_keys(40000), "more than 1024 keys");
        refused_cheaply(suffixes[i], repeat("{\"a\": [", "1,", 200000, "]}"),
                        "more than 16384 values");
        refused_cheaply(suffixes[i], repeat("{\"a\": \"", "x", 100u << 20, "\"}"),
                        "larger than 1048576 bytes");
    }
    refused_cheaply(".json", repeat("", "{\"a\":", 100000, ""), "nested deeper than 64");
    refused_cheaply(".json", repeat("{", "\"", 500000, ""), "");
    refused_cheaply(".yaml", repeat("a: ", "- ", 100000, ""), "");
    refused_cheaply(".yaml", repeat("", "? ", 100000, ""), "");
}

static void unreadable_files_are_named(void **state)
{
    (void)state;
    static struct loaded loaded;
    LOAD(&loaded, "/nonexistent/ds.json");
    assert_int_equal(loaded.result, -ENOENT);
    assert_non_null(strstr(loaded.error.message, "/nonexistent/ds.json"));
    loaded_finish(&loaded);
    LOAD(&loaded, "/");
    assert_int_equal(loaded.result, -EISDIR);
    loaded_finish(&loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_named_with_their_place),
        cmocka_unit_test(hjson_forms_are_read),
        cmocka_unit_test(base64_is_a_configuration),
        cmocka_unit_test(yaml_faults_are_named),
        cmocka_unit_test(yaml_words_are_read_as_pyyaml_does),
        cmocka_unit_test(hostile_files_cost_little),
        cmocka_unit_test(unreadable_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
