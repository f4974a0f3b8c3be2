// SPDX-License-Identifier: Apache-2.0
/* Model folders: reading by ranges, transposition, conversion, accounting, writing, atomicity. */
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/safetensors.h"
#include "engine/weights.h"

static const char *const families[] = {"llama", "llama-untied", "gpt2",   "mistral", "qwen2",
                                       "qwen3", "gemma",        "gemma2", "gemma3",  "phi3"};

struct folder {
    char path[64];
};

static struct folder folder_make(void)
{
    struct folder folder = {"/tmp/sluice-weights-XXXXXX"};
    assert_non_null(mkdtemp(folder.path));
    return folder;
}

static void folder_remove(struct folder *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder->path);
    assert_int_equal(system(command), 0);
}

static void fixture(const char *family, char path[512], struct sl_model *model)
{
    struct sl_error error = {0};
    snprintf(path, 512, "%s/models/%s", getenv("SLUICE_TEST_FIXTURES"), family);
    if (sl_model_from_directory(model, path, &error) != 0)
        fail_msg("%s", error.message);
}

static struct sl_weights *open_weights(const char *path, const struct sl_model *model)
{
    struct sl_weights *weights;
    struct sl_error error = {0};
    if (sl_weights_open(&weights, path, model, &error) != 0)
        fail_msg("%s", error.message);
    return weights;
}

static void *read_param(struct sl_weights *weights, const struct sl_model *model, size_t i,
                        enum sl_dtype dtype)
{
    size_t count = model->params[i].rows * model->params[i].columns;
    void *data = malloc(count * sl_dtype_bytes(dtype));
    struct sl_error error = {0};
    assert_non_null(data);
    if (sl_weights_read(weights, i, 0, count, dtype, data, &error) != 0)
        fail_msg("%s", error.message);
    return data;
}

static void write_all(struct sl_weights *weights, const struct sl_model *model,
                      const char *directory, enum sl_dtype dtype, uint64_t shard_bytes)
{
    struct sl_weights_writer *writer;
    struct sl_error error = {0};
    struct sl_weights_writer_options options = {
        .directory = directory, .model = model, .dtype = dtype, .shard_bytes_max = shard_bytes};
    if (sl_weights_writer_create(&writer, &options, &error) != 0)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < model->param_count; i++) {
        size_t count = model->params[i].rows * model->params[i].columns;
        void *data = read_param(weights, model, i, dtype);
        if (sl_weights_writer_write(writer, i, 0, count, dtype, data, &error) != 0)
            fail_msg("%s", error.message);
        free(data);
    }
    if (sl_weights_writer_finish(writer, &error) != 0)
        fail_msg("%s", error.message);
}

static void check_same_tensors(const char *a_path, const char *b_path)
{
    struct sl_safetensors a, b;
    struct sl_error error = {0};
    if (sl_safetensors_open(&a, a_path, &error) || sl_safetensors_open(&b, b_path, &error))
        fail_msg("%s", error.message);
    assert_int_equal(a.count, b.count);
    assert_int_equal(b.data_offset % SL_SAFETENSORS_ALIGNMENT, 0);
    for (size_t i = 0; i < a.count; i++) {
        const struct sl_safetensor *x = &a.tensors[i], *y = &b.tensors[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->rank, y->rank);
        assert_memory_equal(x->shape, y->shape, sizeof x->shape);
        size_t bytes = x->end - x->begin;
        char *p = malloc(bytes), *q = malloc(bytes);
        assert_int_equal(sl_safetensors_read(&a, x, 0, bytes, p, &error), 0);
        assert_int_equal(sl_safetensors_read(&b, y, 0, bytes, q, &error), 0);
        assert_memory_equal(p, q, bytes);
        free(p);
        free(q);
    }
    sl_safetensors_close(&a);
    sl_safetensors_close(&b);
}

static void load_and_save_gives_the_same_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        char path[512], a[600], b[600];
        struct sl_model model;
        struct folder folder = folder_make();
        fixture(families[i], path, &model);
        struct sl_weights *weights = open_weights(path, &model);
        write_all(weights, &model, folder.path, SL_F32, 0);
        snprintf(a, sizeof a, "%s/model.safetensors", path);
        snprintf(b, sizeof b, "%s/model.safetensors", folder.path);
        check_same_tensors(a, b);
        sl_weights_close(weights);
        sl_model_finish(&model);
        folder_remove(&folder);
    }
}

/* Ranges of every alignment give what the whole parameter gives, transposed ones included. */
static void ranges_are_parts_of_the_whole(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(11);
    static const char *const names[] = {"gpt2", "llama"};
    for (size_t f = 0; f < 2; f++) {
        char path[512];
        struct sl_model model;
        fixture(names[f], path, &model);
        struct sl_weights *weights = open_weights(path, &model);
        for (size_t i = 0; i < model.param_count; i++) {
            size_t count = model.params[i].rows * model.params[i].columns;
            float *whole = read_param(weights, &model, i, SL_F32);
            float *part = malloc(count * sizeof *part);
            for (int k = 0; k < 8; k++) {
                size_t first = test_random_below(&random, count);
                size_t n = test_random_below(&random, count - first) + 1;
                assert_int_equal(sl_weights_read(weights, i, first, n, SL_F32, part, NULL), 0);
                assert_memory_equal(part, whole + first, n * sizeof *part);
            }
            free(whole);
            free(part);
        }
        assert_int_equal(sl_weights_read(weights, 0, model.params[0].rows * model.params[0].columns,
                                         1, SL_F32, path, NULL),
                         -EINVAL);
        sl_weights_close(weights);
        sl_model_finish(&model);
    }
}

static void conv1d_matrices_are_transposed(void **state)
{
    (void)state;
    char path[512], file_path[600];
    struct sl_model model;
    struct sl_safetensors file;
    struct sl_error error = {0};
    fixture("gpt2", path, &model);
    struct sl_weights *weights = open_weights(path, &model);
    snprintf(file_path, sizeof file_path, "%s/model.safetensors", path);
    assert_int_equal(sl_safetensors_open(&file, file_path, &error), 0);
    const struct sl_param *up = sl_model_param(&model, 1, SL_ROLE_UP);
    const struct sl_safetensor *tensor = sl_safetensors_find(&file, up->name);
    assert_int_equal(tensor->shape[0], 32);
    assert_int_equal(up->rows, 128);
    float *ours = read_param(weights, &model, (size_t)(up - model.params), SL_F32);
    float theirs[32 * 128];
    assert_int_equal(sl_safetensors_read(&file, tensor, 0, sizeof theirs, theirs, &error), 0);
    for (size_t o = 0; o < 128; o++)
        for (size_t i = 0; i < 32; i++)
            assert_true(ours[o * 32 + i] == theirs[i * 128 + o]);
    free(ours);
    sl_safetensors_close(&file);
    sl_weights_close(weights);
    sl_model_finish(&model);
}

/* Written in bf16 and several files, in ranges, read back in both types. */
static void shards_conversion_and_ranges_agree(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(12);
    char path[512];
    struct sl_model model;
    struct folder folder = folder_make();
    struct sl_weights_writer *writer;
    struct sl_error error = {0};
    fixture("gpt2", path, &model);
    struct sl_weights *weights = open_weights(path, &model);
    struct sl_weights_writer_options options = {
        .directory = folder.path, .model = &model, .dtype = SL_BF16, .shard_bytes_max = 10000};
    assert_int_equal(sl_weights_writer_create(&writer, &options, &error), 0);
    for (size_t i = model.param_count; i-- > 0;) {
        size_t count = model.params[i].rows * model.params[i].columns;
        float *data = read_param(weights, &model, i, SL_F32);
        for (size_t at = 0, n; at < count; at += n) {
            n = test_random_below(&random, count - at) + 1;
            assert_int_equal(sl_weights_writer_write(writer, i, at, n, SL_F32, data + at, &error),
                             0);
        }
        free(data);
    }
    if (sl_weights_writer_finish(writer, &error) != 0)
        fail_msg("%s", error.message);
    struct sl_weights *halves = open_weights(folder.path, &model);
    for (size_t i = 0; i < model.param_count; i++) {
        size_t count = model.params[i].rows * model.params[i].columns;
        assert_int_equal(sl_weights_dtype(halves, i), SL_BF16);
        float *from = read_param(weights, &model, i, SL_F32);
        float *wide = read_param(halves, &model, i, SL_F32);
        uint16_t *bits = read_param(halves, &model, i, SL_BF16);
        uint16_t *f16 = read_param(halves, &model, i, SL_F16);
        for (size_t k = 0; k < count; k++) {
            assert_int_equal(bits[k], sl_bf16_from_f32(from[k]));
            assert_true(wide[k] == sl_f32_from_bf16(bits[k]));
            assert_int_equal(f16[k], sl_f16_from_f32(wide[k]));
        }
        free(from);
        free(wide);
        free(bits);
        free(f16);
    }
    sl_weights_close(halves);
    sl_weights_close(weights);
    sl_model_finish(&model);
    folder_remove(&folder);
}

/* Parameters of several chunks, at odd offsets in the file, read in jumps and in file order. */
static void long_reads_stream_and_give_the_same(void **state)
{
    (void)state;
    struct sl_model model;
    struct folder folder = folder_make();
    struct sl_weights_writer *writer;
    struct sl_weights *weights;
    struct sl_error error = {0};
    assert_int_equal(sl_model_from_preset(&model, "bible-10m", &error), 0);
    struct sl_weights_writer_options options = {
        .directory = folder.path, .model = &model, .dtype = SL_F32, .shard_bytes_max = 9000000};
    assert_int_equal(sl_weights_writer_create(&writer, &options, &error), 0);
    for (size_t i = 0; i < model.param_count; i++) {
        size_t count = model.params[i].rows * model.params[i].columns;
        float *data = malloc(count * sizeof *data);
        sl_model_initial(&model, &model.params[i], 5, 0, count, data);
        assert_int_equal(sl_weights_writer_write(writer, i, 0, count, SL_F32, data, &error), 0);
        free(data);
    }
    assert_int_equal(sl_weights_writer_finish(writer, &error), 0);
    size_t *order = calloc(model.param_count, sizeof *order), streamed = 0;
    weights = open_weights(folder.path, &model);
    sl_weights_file_order(weights, order);
    for (size_t k = 0; k < 3 * model.param_count; k++) {
        size_t i = k < model.param_count       ? order[k]
                   : k < 2 * model.param_count ? 2 * model.param_count - 1 - k
                                               : k - 2 * model.param_count;
        size_t count = model.params[i].rows * model.params[i].columns;
        float *expected = malloc(count * sizeof *expected);
        uint16_t *bits;
        sl_model_initial(&model, &model.params[i], 5, 0, count, expected);
        float *data = read_param(weights, &model, i, SL_F32);
        assert_memory_equal(data, expected, count * sizeof *data);
        bits = read_param(weights, &model, i, SL_BF16);
        for (size_t e = 0; e < count; e++)
            assert_true(bits[e] == sl_bf16_from_f32(expected[e]));
        streamed += count * sizeof *data >= 1u << 20;
        free(expected);
        free(data);
        free(bits);
    }
    assert_true(streamed > 0);
    free(order);
    sl_weights_close(weights);
    sl_model_finish(&model);
    folder_remove(&folder);
}

static void an_incomplete_parameter_is_refused(void **state)
{
    (void)state;
    char path[512];
    struct sl_model model;
    struct folder folder = folder_make();
    struct sl_weights_writer *writer;
    struct sl_error error = {0};
    float zeros[32] = {0};
    fixture("llama", path, &model);
    struct sl_weights_writer_options options = {
        .directory = folder.path, .model = &model, .dtype = SL_F32};
    assert_int_equal(sl_weights_writer_create(&writer, &options, &error), 0);
    assert_int_equal(sl_weights_writer_write(writer, 0, 0, 32, SL_F32, zeros, &error), 0);
    assert_int_equal(sl_weights_writer_finish(writer, &error), -EINVAL);
    assert_non_null(strstr(error.message, "embed_tokens"));
    error = (struct sl_error){0};
    assert_int_equal(sl_weights_writer_create(&writer, &options, &error), -EEXIST);
    sl_model_finish(&model);
    folder_remove(&folder);
}

static void all_disagreements_are_listed(void **state)
{
    (void)state;
    char path[512];
    struct sl_model model, wide;
    struct sl_weights *weights;
    struct sl_error error = {0};
    fixture("llama", path, &model);
    sl_model_finish(&model);
    fixture("llama-untied", path, &model);
    wide = model;
    snprintf(path, sizeof path, "%s/models/llama", getenv("SLUICE_TEST_FIXTURES"));
    assert_int_equal(sl_weights_open(&weights, path, &wide, &error), -EINVAL);
    assert_null(weights);
    assert_non_null(strstr(error.message, "missing"));
    assert_non_null(strstr(error.message, "q_proj.bias"));
    assert_non_null(strstr(error.message, "not of this model"));
    assert_non_null(strstr(error.message, "model.layers.2."));
    assert_non_null(strstr(error.message, "of another shape"));
    assert_non_null(strstr(error.message, "32x32 instead of 64x32"));
    sl_model_finish(&model);
}

static void other_formats_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *file, *message;
    } cases[] = {{"adapter_model.safetensors", "LoRA"}, {"pytorch_model.bin", "pickle"}};
    char path[512];
    struct sl_model model;
    fixture("llama", path, &model);
    for (size_t i = 0; i < 2; i++) {
        struct folder folder = folder_make();
        struct sl_weights *weights;
        struct sl_error error = {0};
        assert_int_equal(sl_weights_open(&weights, folder.path, &model, &error), -ENOENT);
        snprintf(path, sizeof path, "%s/%s", folder.path, cases[i].file);
        fclose(fopen(path, "w"));
        error = (struct sl_error){0};
        assert_int_equal(sl_weights_open(&weights, folder.path, &model, &error), -ENOENT);
        assert_non_null(strstr(error.message, cases[i].message));
        folder_remove(&folder);
    }
    sl_model_finish(&model);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[SL_MODEL_FOLDER_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void an_index_that_leaves_the_folder_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "../model.safetensors"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "/etc/passwd"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "weight_map"},
        {"{\"weight_map\":{\"a\":\"model.bin\"}}", "model.bin"},
        {"{\"weight_map\":{\"a\":7}}", "not a string"},
        {"{\"weight_map\":{}}", "0 files"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{\"a\":\"b.safetensors\"}}", "b.safetensors"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", "duplicate"},
        {"{\"weight_map\"", "index.json:1:"},
    };
    char path[512];
    struct sl_model model;
    fixture("llama", path, &model);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct folder folder = folder_make();
        struct sl_weights *weights;
        struct sl_error error = {0};
        write_file(folder.path, "model.safetensors.index.json", cases[i].text);
        int rc = sl_weights_open(&weights, folder.path, &model, &error);
        if (rc >= 0 || !strstr(error.message, cases[i].message))
            fail_msg("%s: rc %d, \"%s\" lacks \"%s\"", cases[i].text, rc, error.message,
                     cases[i].message);
        folder_remove(&folder);
    }
    sl_model_finish(&model);
}

static void an_index_that_lies_about_a_file_is_refused(void **state)
{
    (void)state;
    char path[512];
    struct sl_model model;
    struct folder folder = folder_make();
    struct sl_weights *weights;
    struct sl_error error = {0};
    fixture("llama", path, &model);
    weights = open_weights(path, &model);
    write_all(weights, &model, folder.path, SL_F32, 100000);
    sl_weights_close(weights);
    struct sl_weights *again = open_weights(folder.path, &model);
    sl_weights_close(again);
    write_file(folder.path, "model.safetensors.index.json",
               "{\"weight_map\":{\"model.embed_tokens.weight\":"
               "\"model-00002-of-00002.safetensors\"}}");
    assert_int_equal(sl_weights_open(&weights, folder.path, &model, &error), -EINVAL);
    assert_non_null(strstr(error.message, "model.embed_tokens.weight"));
    sl_model_finish(&model);
    folder_remove(&folder);
}

static void a_cut_off_or_missing_shard_is_named(void **state)
{
    (void)state;
    char path[512];
    struct sl_model model;
    struct folder folder = folder_make();
    struct sl_weights *weights;
    struct sl_error error = {0};
    struct stat info;
    fixture("llama", path, &model);
    weights = open_weights(path, &model);
    write_all(weights, &model, folder.path, SL_F32, 100000);
    sl_weights_close(weights);
    snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", folder.path);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_int_equal(sl_weights_open(&weights, folder.path, &model, &error), -EINVAL);
    assert_non_null(strstr(error.message, path));
    assert_non_null(strstr(error.message, "cut off"));
    assert_int_equal(unlink(path), 0);
    error = (struct sl_error){0};
    assert_int_equal(sl_weights_open(&weights, folder.path, &model, &error), -ENOENT);
    assert_non_null(strstr(error.message, path));
    sl_model_finish(&model);
    folder_remove(&folder);
}

static void a_folder_appears_whole_or_not_at_all(void **state)
{
    (void)state;
    struct folder folder = folder_make();
    char target[128], temporary[SL_MODEL_FOLDER_PATH_BYTES], file[SL_MODEL_FOLDER_PATH_BYTES + 16];
    struct sl_error error = {0};
    snprintf(target, sizeof target, "%s/model/", folder.path);
    assert_int_equal(sl_model_folder_begin(target, temporary, &error), 0);
    write_file(temporary, "a", "1");
    assert_int_equal(access(target, F_OK), -1);
    /* the run dies here; the next one starts afresh */
    assert_int_equal(sl_model_folder_begin(target, temporary, &error), 0);
    snprintf(file, sizeof file, "%s/a", temporary);
    assert_int_equal(access(file, F_OK), -1);
    write_file(temporary, "b", "2");
    assert_int_equal(sl_model_folder_commit(temporary, target, &error), 0);
    snprintf(file, sizeof file, "%s/b", target);
    assert_int_equal(access(file, F_OK), 0);
    assert_int_equal(access(temporary, F_OK), -1);
    assert_int_equal(sl_model_folder_begin(target, temporary, &error), -EEXIST);
    assert_non_null(strstr(error.message, target));
    error = (struct sl_error){0};
    assert_int_equal(sl_model_folder_begin("/", temporary, &error), -EINVAL);
    assert_int_equal(sl_model_folder_begin("..", temporary, NULL), -EINVAL);
    snprintf(target, sizeof target, "%s/second", folder.path);
    assert_int_equal(sl_model_folder_begin(target, temporary, NULL), 0);
    write_file(temporary, "c", "3");
    sl_model_folder_abort(temporary);
    assert_int_equal(access(temporary, F_OK), -1);
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_and_save_gives_the_same_bytes),
        cmocka_unit_test(ranges_are_parts_of_the_whole),
        cmocka_unit_test(conv1d_matrices_are_transposed),
        cmocka_unit_test(shards_conversion_and_ranges_agree),
        cmocka_unit_test(long_reads_stream_and_give_the_same),
        cmocka_unit_test(an_incomplete_parameter_is_refused),
        cmocka_unit_test(all_disagreements_are_listed),
        cmocka_unit_test(other_formats_are_named),
        cmocka_unit_test(an_index_that_leaves_the_folder_is_refused),
        cmocka_unit_test(an_index_that_lies_about_a_file_is_refused),
        cmocka_unit_test(a_cut_off_or_missing_shard_is_named),
        cmocka_unit_test(a_folder_appears_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
