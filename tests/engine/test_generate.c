// SPDX-License-Identifier: Apache-2.0
/* Generation with a cache against PyTorch's full forward pass: a sequence that is fed in uneven
 * runs gives the logits of its last token, for every family, from every tier. */
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/safetensors.h"

#define SEQUENCE 24
#define ROWS 16

static void check(int result, const struct sl_error *error, const char *what)
{
    if (result)
        fail_msg("%s: %s", what, error->message);
}

static void open_engine(struct sl_engine *engine, struct sl_model *model, const char *directory,
                        const char *device, enum sl_tier tier, const char *swap,
                        uint64_t layer_bytes)
{
    static const char *const all[] = {"*"};
    struct sl_error error = {0};
    check(sl_model_from_directory(model, directory, &error), &error, directory);
    check(sl_model_freeze(model, all, 1, &error), &error, directory);
    struct sl_engine_options o = {
        .step = {.model = model,
                 .precision = SL_F32,
                 .batch = 1,
                 .sequence = ROWS,
                 .micro_batches = 1,
                 .group = 1,
                 .recompute = true,
                 .prefetch = 1,
                 .generate_positions = SEQUENCE,
                 .layer_bytes = layer_bytes,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .device = device,
        .thread_count = 2,
        .swap = {.paths = &swap, .path_count = 1},
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        o.step.placement.fraction[kind][tier] = 1;
    check(sl_engine_plan(engine, &o, &error), &error, directory);
    check(sl_engine_start(engine, &error), &error, directory);
    check(sl_checkpoint_load_weights(engine, directory, &error), &error, directory);
}

static void feed(struct sl_engine *engine, const int32_t *ids, size_t first, size_t count)
{
    static int32_t rows[4 * ROWS];
    struct sl_error error = {0};
    memset(rows, 0, sizeof(rows));
    for (size_t i = 0; i < count; i++) {
        rows[i] = ids[first + i];
        rows[2 * ROWS + i] = (int32_t)(first + i);
    }
    struct sl_step_context context = {.ids = rows,
                                      .targets = rows + ROWS,
                                      .positions = rows + 2 * ROWS,
                                      .first = rows + 3 * ROWS,
                                      .rows = count,
                                      .position_first = first};
    check(sl_executor_submit(engine->executor, engine->sp.generate, 0, &context), &error, "submit");
    check(sl_engine_drain(engine, &error), &error, "generate");
}

static void family(const char *name, const char *device, enum sl_tier tier, uint64_t layer_bytes)
{
    char directory[600], path[700], swap[] = "/tmp/sluice-generate-XXXXXX";
    assert_non_null(mkdtemp(swap));
    struct sl_error error = {0};
    struct sl_model model;
    struct sl_engine engine;
    struct sl_safetensors expected;
    snprintf(directory, sizeof(directory), "%s/models/%s", getenv("SLUICE_TEST_FIXTURES"), name);
    snprintf(path, sizeof(path), "%s/expected.safetensors", directory);
    check(sl_safetensors_open(&expected, path, &error), &error, path);
    open_engine(&engine, &model, directory, device, tier, swap, layer_bytes);
    int32_t ids[SEQUENCE];
    const struct sl_safetensor *input = sl_safetensors_find(&expected, "input_ids");
    check(sl_safetensors_read(&expected, input, 0, sizeof(ids), ids, &error), &error, "ids");
    static const size_t runs[] = {1, 7, 15, 1};
    size_t at = 0;
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); at += runs[i], i++)
        feed(&engine, ids, at, runs[i]);
    assert_int_equal(at, SEQUENCE);
    size_t vocabulary = model.vocabulary;
    float *logits = calloc(vocabulary, sizeof(float));
    const struct sl_safetensor *tensor = sl_safetensors_find(&expected, "logits");
    check(sl_safetensors_read(&expected, tensor, (SEQUENCE - 1) * vocabulary * sizeof(float),
                              vocabulary * sizeof(float), logits, &error),
          &error, "logits");
    const float *mine = sl_executor_pointer(engine.executor, engine.sp.logits);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < vocabulary; i++) {
        double value = (double)mine[i];
        if (model.final_softcap > 0) /* the plan's logits are uncapped; sampling caps them */
            value = (double)model.final_softcap * tanh(value / (double)model.final_softcap);
        difference += (value - (double)logits[i]) * (value - (double)logits[i]);
        norm += (double)logits[i] * (double)logits[i];
    }
    difference = sqrt(difference / norm);
    printf("  %-14s %-14s logits %.2g\n", name, device, difference);
    if (!(difference < 1e-5))
        fail_msg("%s: relative difference %.3g", name, difference);
    free(logits);
    sl_engine_finish(&engine);
    sl_safetensors_close(&expected);
    sl_model_finish(&model);
    rmdir(swap);
}

#ifndef TEST_DEVICE

static const char *const names[] = {"llama", "llama-untied", "gpt2",   "mistral", "qwen2",
                                    "qwen3", "gemma",        "gemma2", "gemma3",  "phi3"};

static void every_family(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        family(names[i], "host", SL_TIER_HOST, 0);
}

static void every_family_in_parts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        family(names[i], i % 2 ? "host" : "host:discrete", i % 3 ? SL_TIER_HOST : SL_TIER_NVME, 1);
}

static void every_tier(void **state)
{
    (void)state;
    family("llama", "host", SL_TIER_NVME, 0);
    family("gemma3", "host:discrete", SL_TIER_NVME, 0);
    family("gpt2", "host:discrete", SL_TIER_HOST, 0);
    family("qwen3", "host:discrete", SL_TIER_DEVICE, 0);
}

#else

/* The same on another device (tests/cudasim): what attention has of kinds, and each tier. */
static void on_the_device(void **state)
{
    (void)state;
    family("llama", TEST_DEVICE, SL_TIER_DEVICE, 0);
    family("gpt2", TEST_DEVICE, SL_TIER_HOST, 0);
    family("qwen3", TEST_DEVICE, SL_TIER_HOST, 0);
    family("gemma2", TEST_DEVICE, SL_TIER_HOST, 1);
    family("gemma3", TEST_DEVICE, SL_TIER_NVME, 0);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef TEST_DEVICE
        cmocka_unit_test(every_family),
        cmocka_unit_test(every_family_in_parts),
        cmocka_unit_test(every_tier),
#else
        cmocka_unit_test(on_the_device),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
