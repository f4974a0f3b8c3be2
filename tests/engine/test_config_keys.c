// SPDX-License-Identifier: Apache-2.0
/* The table of keys is consistent with itself and with docs/config.md. SLUICE_WRITE_DOCS=1 writes
 * the document instead of comparing it. */
#include "tests/engine/config_support.h"

#include "engine/config_keys.h"

static void every_key_stands_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sl_key_count(); i++) {
        const struct sl_key *key = sl_key_at(i);
        size_t index = 0;
        const struct sl_key *found =
            sl_key_find(key->path, (key->flags & SL_KEY_ACCELERATE) != 0, &index);
        if (found != key || index != i)
            fail_msg("%s stands twice", key->path);
    }
    assert_null(sl_key_at(sl_key_count()));
}

static void every_key_is_answered(void **state)
{
    (void)state;
    for (size_t i = 0; i < sl_key_count(); i++) {
        const struct sl_key *key = sl_key_at(i);
        size_t index;
        if (!key->note || !*key->note || !key->initial)
            fail_msg("%s: no note or default", key->path);
        if (key->renamed) {
            const struct sl_key *target = sl_key_find(key->renamed, false, &index);
            if (!target || target->renamed)
                fail_msg("%s: renamed to %s, which is no key", key->path, key->renamed);
        }
        if (key->type == SL_KEY_CHOICE && !key->choices)
            fail_msg("%s: a choice of nothing", key->path);
        if (key->max && key->max < key->min)
            fail_msg("%s: an empty range", key->path);
    }
}

/* Each key may be given by itself: at least its own check must be about itself. */
static void every_default_that_is_a_number_is_allowed(void **state)
{
    (void)state;
    static struct loaded loaded;
    size_t tried = 0;
    for (size_t i = 0; i < sl_key_count(); i++) {
        const struct sl_key *key = sl_key_at(i);
        char *end = NULL, set[256];
        (void)strtod(key->initial, &end);
        if (!*key->initial || *end || (key->flags & SL_KEY_ACCELERATE) ||
            key->effect == SL_CONFIG_UNSUPPORTED)
            continue;
        snprintf(set, sizeof(set), "%s=%s", key->path, key->initial);
        LOAD(&loaded, NULL, set);
        for (size_t p = 0; p < loaded.report.problems.count; p++)
            if (strstr(loaded.report.problems.line[p], "is meant"))
                fail_msg("the default itself is refused: %s", loaded.report.problems.line[p]);
        loaded_finish(&loaded);
        tried++;
    }
    assert_true(tried > 60);
}

static void document_is_the_table(void **state)
{
    (void)state;
    const char *fixtures = getenv("SLUICE_TEST_FIXTURES");
    char path[600];
    snprintf(path, sizeof(path), "%s/../../docs/config.md", fixtures ? fixtures : "tests/fixtures");
    char *expected = sl_config_document();
    assert_non_null(expected);
    if (getenv("SLUICE_WRITE_DOCS")) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(expected, file);
        fclose(file);
    }
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t bytes = strlen(expected);
    char *written = calloc(1, bytes + 2);
    size_t got = fread(written, 1, bytes + 1, file);
    fclose(file);
    if (got != bytes || memcmp(written, expected, bytes) != 0)
        fail_msg("docs/config.md is not what the table says; run this test with "
                 "SLUICE_WRITE_DOCS=1");
    free(written);
    free(expected);
}

static void neighbours_are_found(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        {"zero_optimization.stage3_param_persitence_threshold",
         "zero_optimization.stage3_param_persistence_threshold"},
        {"zero_optimisation", "zero_optimization"},
        {"zero_optimization.offload_optimiser", "zero_optimization.offload_optimizer"},
        {"optimizer.params.wieght_decay", "optimizer.params.weight_decay"},
        {"gradient_acumulation_steps", "gradient_accumulation_steps"},
        {"fp61.enabled", NULL},
        {"bf16.enable", "bf16.enabled"},
        {"trian.steps", NULL},
        {"train.setps", "train.steps"},
        {"nvme_path", "zero_optimization.offload_param.nvme_path"},
        {"qqqqqqqq", NULL},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char nearest[SL_KEY_PATH_BYTES] = "";
        bool near = sl_key_nearest(table[i][0], false, nearest);
        if (table[i][1] && (!near || strcmp(nearest, table[i][1]) != 0))
            fail_msg("%s: \"%s\", not %s", table[i][0], nearest, table[i][1]);
        if (!table[i][1] && near && strstr(nearest, table[i][0]))
            fail_msg("%s: %s", table[i][0], nearest);
    }
}

static void the_last_words_of_a_key_find_it(void **state)
{
    (void)state;
    char nearest[SL_KEY_PATH_BYTES] = "";
    assert_true(sl_key_ending_with("batch_size", false, nearest));
    assert_string_equal(nearest, "train_batch_size");
    assert_false(sl_key_ending_with("atch_size", false, nearest)); /* whole words */
    assert_false(sl_key_ending_with("lr", false, nearest));
    assert_false(sl_key_ending_with("train_batch_size", false, nearest)); /* that is a key */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_stands_once),
        cmocka_unit_test(every_key_is_answered),
        cmocka_unit_test(every_default_that_is_a_number_is_allowed),
        cmocka_unit_test(document_is_the_table),
        cmocka_unit_test(neighbours_are_found),
        cmocka_unit_test(the_last_words_of_a_key_find_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
