// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/dataset.h"

#define T 16u
#define ROWS_MAX 8u

static struct sl_tokenizer *tokenizer;
static char directory[] = "/tmp/sluice-dataset-XXXXXX";
static char path_a[64], path_b[64];
static int32_t ids[ROWS_MAX * T], targets[ROWS_MAX * T], positions[ROWS_MAX * T],
    first[ROWS_MAX * T];
static struct sl_dataset_batch batch = {ids, targets, positions, first, 0};

static void write_file(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    (void)state;
    struct sl_error error = {0};
    if (!mkdtemp(directory))
        return -1;
    snprintf(path_a, sizeof(path_a), "%s/a.txt", directory);
    snprintf(path_b, sizeof(path_b), "%s/b.txt", directory);
    return sl_tokenizer_open(&tokenizer, NULL, &error);
}

static int tear_down(void **state)
{
    (void)state;
    sl_tokenizer_close(tokenizer);
    unlink(path_a);
    unlink(path_b);
    return rmdir(directory);
}

static struct sl_dataset *open_files(const char *const *files, size_t count, double validation,
                                     uint64_t seed, bool in_order)
{
    struct sl_dataset_options options = {
        .files = files,
        .file_count = count,
        .tokenizer = tokenizer,
        .sequence_length = T,
        .validation_fraction = validation,
        .seed = seed,
        .in_order = in_order,
    };
    struct sl_dataset *dataset;
    struct sl_error error = {0};
    if (sl_dataset_open(&dataset, &options, &error))
        fail_msg("%s", error.message);
    return dataset;
}

static void a_text_is_cut_into_windows(void **state)
{
    (void)state;
    char text[5 * T + 3];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i % 26);
    write_file(path_a, text, sizeof(text));
    const char *files[] = {path_a};
    struct sl_dataset *dataset = open_files(files, 1, 0, 1, true);
    assert_int_equal(sl_dataset_tokens(dataset), sizeof(text) + 1);
    assert_int_equal(sl_dataset_sequences(dataset), 5);
    assert_int_equal(sl_dataset_eval_sequences(dataset), 0);
    assert_int_equal(sl_dataset_id_limit(dataset), 257);
    struct sl_dataset_state place = {0};
    sl_dataset_next(dataset, &place, 5, &batch);
    assert_int_equal(batch.trained_tokens, 5 * T);
    for (size_t i = 0; i < 5 * T; i++) {
        assert_int_equal(ids[i], text[i]);
        assert_int_equal(targets[i], text[i + 1]);
        assert_int_equal(positions[i], i % T);
        assert_int_equal(first[i], 0);
    }
    assert_int_equal(place.epoch, 0);
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_int_equal(place.epoch, 1);
    assert_int_equal(place.index, 1);
    assert_int_equal(ids[0], text[0]);
    assert_true(sl_dataset_memory_bytes(dataset) >= 2 * sizeof(text));
    sl_dataset_close(dataset);
}

static void documents_do_not_see_each_other(void **state)
{
    (void)state;
    const char *text = "abc<|endoftext|>defgh";
    write_file(path_a, text, strlen(text));
    char longer[40];
    memset(longer, 'x', sizeof(longer));
    write_file(path_b, longer, sizeof(longer));
    const char *files[] = {path_a, path_b};
    struct sl_dataset *dataset = open_files(files, 2, 0, 1, true);
    struct sl_dataset_state place = {0};
    sl_dataset_next(dataset, &place, 1, &batch);
    /*                         a  b  c  E   d  e  f  g  h  E   x ... */
    const int32_t start[T] = {0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 10, 10, 10, 10, 10, 10};
    const int32_t next[T] = {'b', 'c', 256, -1,  'e', 'f', 'g', 'h',
                             256, -1,  'x', 'x', 'x', 'x', 'x', 'x'};
    for (int i = 0; i < (int)T; i++) {
        assert_int_equal(first[i], start[i]);
        assert_int_equal(positions[i], i - start[i]);
        assert_int_equal(targets[i], next[i]);
    }
    assert_int_equal(batch.trained_tokens, T - 2);
    sl_dataset_next(dataset, &place, 1, &batch);
    assert_int_equal(first[T - 1], 0);
    assert_int_equal(positions[T - 1], T - 1);
    sl_dataset_close(dataset);
}

/* Sequences are told apart by their first id here: sequence k starts with byte k. */
static struct sl_dataset *open_numbered(size_t sequences, double validation, uint64_t seed)
{
    char *text = calloc(sequences, T);
    for (size_t i = 0; i < sequences; i++)
        text[i * T] = (char)i;
    write_file(path_a, text, sequences * T);
    free(text);
    const char *files[] = {path_a};
    return open_files(files, 1, validation, seed, false);
}

static void an_epoch_visits_each_sequence_once(void **state)
{
    (void)state;
    for (size_t count = 1; count <= 200; count += count < 20 ? 1 : 45) {
        struct sl_dataset *dataset = open_numbered(count, 0, 7);
        struct sl_dataset_state place = {0};
        unsigned moved = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            bool seen[256] = {false};
            for (size_t i = 0; i < count; i++) {
                sl_dataset_next(dataset, &place, 1, &batch);
                assert_false(seen[ids[0]]);
                seen[ids[0]] = true;
                moved += (size_t)ids[0] != i;
            }
            assert_int_equal(place.index, count);
        }
        assert_true(count < 10 || moved > count);
        sl_dataset_close(dataset);
    }
}

static void a_stored_place_resumes_exactly(void **state)
{
    (void)state;
    struct sl_dataset *dataset = open_numbered(37, 0, 5);
    struct sl_dataset *other_seed = open_numbered(37, 0, 6);
    struct sl_dataset_state place = {0};
    unsigned differs = 0;
    for (int step = 0; step < 40; step++) {
        uint8_t stored[SL_DATASET_STATE_BYTES];
        sl_dataset_state_store(&place, stored);
        struct sl_dataset_state resumed, other = place;
        sl_dataset_state_load(&resumed, stored);
        sl_dataset_next(dataset, &place, 4, &batch);
        int32_t kept[4 * T];
        memcpy(kept, ids, sizeof(kept));
        for (int row = 0; row < 4; row++) { /* another batch size gives the same order */
            sl_dataset_next(dataset, &resumed, 1, &batch);
            assert_memory_equal(ids, kept + (size_t)row * T, T * sizeof(*ids));
        }
        assert_memory_equal(&place, &resumed, sizeof(place));
        sl_dataset_next(other_seed, &other, 4, &batch);
        differs += memcmp(ids, kept, sizeof(kept)) != 0;
    }
    assert_true(differs > 30);
    assert_true(sl_dataset_fingerprint(dataset) != sl_dataset_fingerprint(other_seed));
    sl_dataset_close(dataset);
    sl_dataset_close(other_seed);
}

static void held_out_sequences_are_never_trained_on(void **state)
{
    (void)state;
    struct sl_dataset *dataset = open_numbered(50, 0.1, 3);
    assert_int_equal(sl_dataset_sequences(dataset), 45);
    assert_int_equal(sl_dataset_eval_sequences(dataset), 5);
    struct sl_dataset_state place = {0};
    for (int i = 0; i < 90; i++) {
        sl_dataset_next(dataset, &place, 1, &batch);
        assert_true(ids[0] < 45);
    }
    assert_int_equal(sl_dataset_eval(dataset, 0, 4, &batch), 4);
    assert_int_equal(ids[3 * T], 48);
    assert_int_equal(sl_dataset_eval(dataset, 4, 4, &batch), 1);
    assert_int_equal(batch.trained_tokens, T);
    for (size_t i = T; i < 4 * T; i++)
        assert_int_equal(targets[i], -1);
    assert_int_equal(sl_dataset_eval(dataset, UINT64_MAX, 4, &batch), 0);
    sl_dataset_close(dataset);
}

static void the_cache_gives_the_same_data(void **state)
{
    (void)state;
    char cache[64];
    snprintf(cache, sizeof(cache), "%s/cache", directory);
    write_file(path_a, "some text, long enough for two sequences of sixteen", 50);
    const char *files[] = {path_a};
    struct sl_dataset_options options = {.files = files,
                                         .file_count = 1,
                                         .tokenizer = tokenizer,
                                         .cache_directory = cache,
                                         .sequence_length = T};
    uint64_t fingerprint[5];
    char command[128], found[128] = "";
    snprintf(command, sizeof(command), "ls %s", cache);
    for (int i = 0; i < 5; i++) {
        struct sl_dataset *dataset;
        struct sl_error error = {0};
        assert_int_equal(sl_dataset_open(&dataset, &options, &error), 0);
        fingerprint[i] = sl_dataset_fingerprint(dataset);
        assert_true(sl_dataset_memory_bytes(dataset) < 1024);
        sl_dataset_close(dataset);
        FILE *list = popen(command, "r");
        assert_non_null(fgets(found, sizeof(found), list));
        assert_null(fgets(command + 100, 8, list)); /* one file, no .partial */
        pclose(list);
        found[strcspn(found, "\n")] = 0;
        if (i == 1) { /* a damaged store is made again, not believed */
            char store[256];
            snprintf(store, sizeof(store), "%s/%s", cache, found);
            assert_int_equal(truncate(store, 4100), 0);
        }
        if (i == 2) { /* nor one with a wrong id */
            char store[256];
            snprintf(store, sizeof(store), "%s/%s", cache, found);
            FILE *file = fopen(store, "r+");
            assert_int_equal(fseek(file, 4098, SEEK_SET), 0);
            assert_int_equal(fputc('!', file), '!');
            assert_int_equal(fclose(file), 0);
        }
        if (i == 3) /* a copy with another time is the same text */
            write_file(path_a, "some text, long enough for two sequences of sixteen", 50);
    }
    for (int i = 1; i < 5; i++)
        assert_int_equal(fingerprint[0], fingerprint[i]);
    char store[256];
    snprintf(store, sizeof(store), "%s/%s", cache, found);
    unlink(store);
    rmdir(cache);
}

#define LARGE_BYTES (16u << 20)
#define RESIDENT_MAX (4u << 20)

/* Resident pages of files: heap that a sanitizer keeps does not count. */
static uint64_t resident_file_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    char line[256];
    unsigned long long kib = 0;
    bool found = false;
    while (!found && fgets(line, sizeof(line), file))
        found = sscanf(line, "RssFile: %llu kB", &kib) == 1;
    assert_int_equal(fclose(file), 0);
    assert_true(found);
    return (uint64_t)kib << 10;
}

/* Open, read all sequences and return by how much these pages have grown at most. */
static uint64_t growth(const struct sl_dataset_options *options)
{
    struct sl_dataset *dataset;
    struct sl_dataset_state state = {0};
    struct sl_error error = {0};
    uint64_t before = resident_file_bytes();
    if (sl_dataset_open(&dataset, options, &error))
        fail_msg("%s", error.message);
    uint64_t most = resident_file_bytes();
    for (uint64_t i = 0; i < sl_dataset_sequences(dataset); i++) {
        sl_dataset_next(dataset, &state, 1, &batch);
        if (i % 1000 == 0 && resident_file_bytes() > most)
            most = resident_file_bytes();
    }
    sl_dataset_close(dataset);
    return most > before ? most - before : 0;
}

/* A corpus in a file is the kernel's cache, not memory of the run, however much of it was read. */
static void a_mapped_corpus_is_not_memory(void **state)
{
    (void)state;
    char bin[64], cache[64], command[160];
    snprintf(bin, sizeof(bin), "%s/large.bin", directory);
    snprintf(cache, sizeof(cache), "%s/cache", directory);
    char *text = malloc(LARGE_BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < LARGE_BYTES; i++)
        text[i] = (char)(i % 2 ? 0 : 'a' + i / 2 % 26);
    write_file(bin, text, LARGE_BYTES); /* 16-bit ids */
    for (size_t i = 0; i < LARGE_BYTES; i++)
        text[i] = (char)('a' + i % 26);
    write_file(path_a, text, LARGE_BYTES / 2);
    free(text);
    static int32_t rows[4][1024];
    batch = (struct sl_dataset_batch){rows[0], rows[1], rows[2], rows[3], 0};
    const char *files[] = {bin};
    struct sl_dataset_options options = {
        .files = files, .file_count = 1, .tokenizer = tokenizer, .sequence_length = 1024};
    assert_true(growth(&options) < RESIDENT_MAX);
    files[0] = path_a;
    options.cache_directory = cache;
    growth(&options); /* makes the cache */
    assert_true(growth(&options) < RESIDENT_MAX);
    batch = (struct sl_dataset_batch){ids, targets, positions, first, 0};
    snprintf(command, sizeof(command), "rm -r %s %s", bin, cache);
    assert_int_equal(system(command), 0);
}

static void expect_error(const char *const *files, size_t count, double validation, int code,
                         const char *words)
{
    struct sl_dataset_options options = {.files = files,
                                         .file_count = count,
                                         .tokenizer = tokenizer,
                                         .sequence_length = T,
                                         .validation_fraction = validation};
    struct sl_dataset *dataset = (void *)1;
    struct sl_error error = {0};
    assert_int_equal(sl_dataset_open(&dataset, &options, &error), code);
    assert_null(dataset);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" does not say \"%s\"", error.message, words);
}

static void errors_name_the_file_and_the_remedy(void **state)
{
    (void)state;
    const char *files[] = {path_a, path_b};
    write_file(path_a, "", 0);
    expect_error(files, 1, 0, -EINVAL, "a.txt: no text");
    write_file(path_a, "0123456789", 10);
    expect_error(files, 1, 0, -EINVAL, "lower sequence_length to at most 10");
    write_file(path_a, "0123456789012345678", 19);
    expect_error(files, 1, 0.1, -EINVAL, "set validation_fraction to 0");
    expect_error(files, 1, 0.7, -EINVAL, "validation_fraction 0.7");
    unlink(path_b);
    expect_error(files, 2, 0, -ENOENT, "b.txt: No such file");
    expect_error(files, 0, 0, -EINVAL, "no data files");
    const char *folder[] = {directory};
    expect_error(folder, 1, 0, -EISDIR, "a folder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_cut_into_windows),
        cmocka_unit_test(documents_do_not_see_each_other),
        cmocka_unit_test(an_epoch_visits_each_sequence_once),
        cmocka_unit_test(a_stored_place_resumes_exactly),
        cmocka_unit_test(held_out_sequences_are_never_trained_on),
        cmocka_unit_test(the_cache_gives_the_same_data),
        cmocka_unit_test(a_mapped_corpus_is_not_memory),
        cmocka_unit_test(errors_name_the_file_and_the_remedy),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
