// SPDX-License-Identifier: Apache-2.0
/* sl_generate as people call it: the same text from the same seed wherever the weights lie, and
 * weights computed with in the type in which the folder holds them. */
#include "tests/test.h"

#include <string.h>
#include <unistd.h>

#include "engine/generate.h"
#include "engine/sluice.h"

static char root[] = "/tmp/sluice-generate-text-XXXXXX";
static char model[SL_RESULT_PATH_BYTES];
static char nvme_path[64];

struct answer {
    char text[1024];
    size_t pieces;
    size_t pieces_max; /* stop after so many; 0: never */
};

static int collect(void *user, const char *text, size_t bytes)
{
    struct answer *a = user;
    assert_true(strlen(a->text) + bytes < sizeof(a->text));
    strncat(a->text, text, bytes);
    return ++a->pieces == a->pieces_max;
}

static struct answer run(struct sl_generate_options o, const char *const *sets, size_t set_count)
{
    struct answer answer = {.pieces_max = (size_t)(o.user ? 3 : 0)};
    struct sl_error error = {0};
    o.model = model;
    o.prompt = "In the beginning";
    o.prompt_bytes = strlen(o.prompt);
    o.max_tokens = 60;
    o.device = "host";
    o.sets = sets;
    o.set_count = set_count;
    o.text = collect;
    o.user = &answer;
    if (sl_generate(&o, NULL, &error))
        fail_msg("%s", error.message);
    return answer;
}

/* A text that is the same from memory and from NVMe, and for the same seed only. */
static void seed_decides_and_placement_does_not(void **state)
{
    (void)state;
    const char *memory[] = {"threads=2"};
    const char *nvme[] = {"threads=1", "placement.weights=nvme", nvme_path};
    static const struct sl_generate_options kinds[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 1, .top_p = 0.7, .seed = 1},
        {.temperature = 1, .top_p = 1, .seed = 2},
    };
    struct answer first[4];
    for (int i = 0; i < 4; i++) {
        first[i] = run(kinds[i], memory, 1);
        assert_true(strlen(first[i].text) > 10);
        assert_string_equal(run(kinds[i], memory, 1).text, first[i].text);
        assert_string_equal(run(kinds[i], nvme, 3).text, first[i].text);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(first[k].text, first[i].text);
    }
}

/* The smallest top-p leaves the most probable token alone, whatever the temperature. */
static void least_top_p_is_greedy(void **state)
{
    (void)state;
    struct sl_generate_options narrow = {.temperature = 2, .top_p = 1e-6, .seed = 9};
    struct sl_generate_options greedy = {.temperature = 0, .top_p = 1};
    assert_string_equal(run(narrow, NULL, 0).text, run(greedy, NULL, 0).text);
}

static void text_streams_and_stops(void **state)
{
    (void)state;
    struct sl_generate_options o = {.temperature = 0, .top_p = 1, .user = model};
    struct answer cut = run(o, NULL, 0);
    o.user = NULL;
    struct answer whole = run(o, NULL, 0);
    assert_int_equal(cut.pieces, 3);
    assert_true(whole.pieces > 10);
    assert_int_equal(strncmp(whole.text, cut.text, strlen(cut.text)), 0);
    assert_true(strlen(cut.text) < strlen(whole.text));
}

static size_t logits(const char *set, char *bytes, size_t capacity)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/logits.safetensors", root);
    struct sl_generate_options o = {.temperature = 0, .top_p = 1, .logits_path = path};
    run(o, &set, set ? 1 : 0);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t count = fread(bytes, 1, capacity, file);
    fclose(file);
    unlink(path);
    return count;
}

static void weights_keep_the_type_of_the_folder(void **state)
{
    (void)state;
    static char as_is[1 << 17], fp32[1 << 17], bf16[1 << 17];
    size_t bytes = logits(NULL, as_is, sizeof(as_is));
    assert_true(bytes > 16 * 256 * 4 && bytes < sizeof(as_is));
    assert_int_equal(logits("train.precision=fp32", fp32, sizeof(fp32)), bytes);
    assert_int_equal(logits("train.precision=bf16", bf16, sizeof(bf16)), bytes);
    assert_memory_equal(as_is, fp32, bytes);
    assert_memory_not_equal(as_is, bf16, bytes);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(root))
        return -1;
    char data[64], out[64];
    snprintf(data, sizeof(data), "%s/data.txt", root);
    snprintf(out, sizeof(out), "%s/run", root);
    snprintf(nvme_path, sizeof(nvme_path), "nvme.path=%s", root);
    FILE *file = fopen(data, "we");
    if (!file)
        return -1;
    for (int i = 0; i < 40; i++)
        fprintf(file, "In the beginning was line %d, and the line was good.\n", i);
    fclose(file);
    const char *files[] = {data};
    const char *sets[] = {"train.sequence_length=64", "train.learning_rate=5e-3",
                          "train.precision=fp32", "train.steps=30", "threads=2"};
    struct sl_train_options options = {.run = {.model = "tiny",
                                               .data = files,
                                               .data_count = 1,
                                               .sets = sets,
                                               .set_count = 5,
                                               .device = "host"},
                                       .out = out};
    struct sl_train_result result;
    struct sl_error error = {0};
    if (sl_train(&options, &result, &error))
        fail_msg("%s", error.message);
    snprintf(model, sizeof(model), "%s", result.checkpoint);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_decides_and_placement_does_not),
        cmocka_unit_test(least_top_p_is_greedy),
        cmocka_unit_test(text_streams_and_stops),
        cmocka_unit_test(weights_keep_the_type_of_the_folder),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
