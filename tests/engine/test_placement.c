// SPDX-License-Identifier: Apache-2.0
/* One training run, many placements: the bits of weights, masters and moments are the same. */
#include "tests/test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/state.h"

#define STEPS 6
#define BATCH 2
#define SEQUENCE 32
#define MICRO_BATCHES 3
#define ROWS (BATCH * SEQUENCE)
#define CLIP 2.5

enum { D = SL_TIER_DEVICE, H = SL_TIER_HOST, N = SL_TIER_NVME };

struct variant {
    const char *name, *device;
    double weights[3], gradients[3], optimizer[3], activations[3];
    uint64_t sub_group;
    uint32_t buffers, prefetch;
    size_t group, threads;
    bool recompute, split;
    double speculate; /* always, so that a clipped or skipped step is a wrong guess */
};

#define ALL(tier)                                                                                  \
    {[tier] = 1}, {[tier] = 1}, {[tier] = 1},                                                      \
    {                                                                                              \
        [tier] = 1                                                                                 \
    }

static const struct variant variants[] = {
    {"all on the device", "host", ALL(D), 1 << 20, 2, 1, MICRO_BATCHES, 1, true, false},
    {"optimizer on the CPU",
     "host",
     {[D] = 1},
     {[H] = 1},
     {[H] = 1},
     {[D] = 1},
     100000,
     2,
     1,
     MICRO_BATCHES,
     2,
     true,
     true},
    {"optimizer on NVMe",
     "host",
     {[H] = 1},
     {[H] = 1},
     {[N] = 1},
     {[D] = 1},
     70000,
     3,
     2,
     MICRO_BATCHES,
     2,
     true,
     true},
    {"all on NVMe", "host", ALL(N), 0, 2, 1, MICRO_BATCHES, 2, true, true},
    {"all on NVMe, plain master, one buffer", "host", ALL(N), 200000, 1, 0, MICRO_BATCHES, 3, true,
     false},
    {"40/60, discrete",
     "host:discrete",
     {[H] = .4, [N] = .6},
     {[H] = .4, [N] = .6},
     {[H] = .4, [N] = .6},
     {[D] = .3, [H] = .3, [N] = .4},
     66000,
     4,
     3,
     MICRO_BATCHES,
     3,
     true,
     true},
    {"all on a discrete device", "host:discrete", ALL(D), 1 << 18, 2, 1, MICRO_BATCHES, 2, false,
     false},
    {"discrete, ZeRO-Offload",
     "host:discrete",
     {[D] = 1},
     {[H] = 1},
     {[H] = 1},
     {[D] = 1},
     1 << 17,
     2,
     1,
     MICRO_BATCHES,
     2,
     true,
     true},
    {"discrete, half the optimizer on the device",
     "host:discrete",
     {[H] = 1},
     {[H] = 1},
     {[D] = .5, [N] = .5},
     {[H] = 1},
     1 << 17,
     2,
     1,
     MICRO_BATCHES,
     2,
     true,
     true},
    {"batch-major",
     "host",
     {[H] = 1},
     {[H] = 1},
     {[N] = 1},
     {[H] = 1},
     70000,
     2,
     1,
     1,
     2,
     true,
     false},
    {"groups of two, all on NVMe", "host", ALL(N), 70000, 2, 1, 2, 1, false, true},
    {"batch-major, discrete, NVMe", "host:discrete", ALL(N), 70000, 2, 2, 1, 2, true, true},
    {"speculating, all in memory", "host", ALL(H), 100000, 2, 1, MICRO_BATCHES, 2, true, true, 1},
    {"speculating, all on NVMe", "host", ALL(N), 70000, 3, 1, MICRO_BATCHES, 2, true, true, 1},
    {"half speculating, 40/60, discrete",
     "host:discrete",
     {[H] = .4, [N] = .6},
     {[D] = .3, [H] = .3, [N] = .4},
     {[H] = .4, [N] = .6},
     {[D] = .3, [H] = .3, [N] = .4},
     66000,
     4,
     3,
     MICRO_BATCHES,
     3,
     true,
     true,
     .5},
    {"speculating, weights and half the optimizer on the device",
     "host:discrete",
     {[D] = 1},
     {[H] = 1},
     {[D] = .5, [H] = .3, [N] = .2},
     {[D] = 1},
     1 << 17,
     1,
     1,
     2,
     1,
     false,
     true,
     1},
    {"speculating, batch-major, discrete, NVMe", "host:discrete", ALL(N), 0, 1, 0, 1, 2, true,
     false, 1},
};

struct data {
    int32_t ids[MICRO_BATCHES * ROWS], targets[MICRO_BATCHES * ROWS];
    int32_t positions[MICRO_BATCHES * ROWS], first[MICRO_BATCHES * ROWS];
    uint64_t trained;
};

static void make_data(struct data *data, uint32_t vocabulary, uint64_t step)
{
    struct test_random random = {1000 + step};
    data->trained = 0;
    for (size_t row = 0; row < MICRO_BATCHES * BATCH; row++) {
        int32_t start = 0;
        for (int32_t t = 0; t < SEQUENCE; t++) {
            size_t i = row * SEQUENCE + (size_t)t;
            if (t == 20 && row % 2)
                start = t; /* a second document */
            data->ids[i] = (int32_t)test_random_below(&random, vocabulary);
            data->targets[i] = t % 7 == 6 ? -1 : (data->ids[i] * 5 + 3) % (int32_t)vocabulary;
            data->positions[i] = t - start;
            data->first[i] = start;
            data->trained += data->targets[i] >= 0;
        }
    }
}

struct run {
    const char *preset;
    enum sl_dtype precision;
    uint64_t tile_bytes;
    struct sl_optim_hyper hyper;
    enum sl_moment_kind moment_kind;
    const char *frozen;
    double loss_scale;
    bool overflow; /* a step with a loss scale that overflows, which is skipped */
    double clip;   /* some steps are clipped, some are not */
    bool delayed;  /* another run: each step has the weights from before the last update */
    bool no_master;
    uint64_t layer_bytes; /* tiles of layers: the bits of whole ones */
    const char *config;   /* instead of a preset */
};

static const struct run *running;

static void decided(struct sl_step_context *context, struct sl_step_control *control)
{
    intptr_t step = (intptr_t)context->user;
    control->hyper = running->hyper;
    control->hyper.lr *= (float)(1.0 / (double)(1 + step));
    /* An overflow: only step 2 has a scale that no gradient survives. */
    double scale_max = running->precision == SL_F16 ? 0x1p100 : HUGE_VAL;
    control->loss_scale = running->overflow && step == 1 ? scale_max : running->loss_scale;
}

static void predicted(struct sl_step_context *context, struct sl_optim_hyper *hyper)
{
    *hyper = running->hyper;
    hyper->lr *= (float)(1.0 / (double)(1 + (intptr_t)context->user));
}

static void check(int result, const struct sl_error *error, const char *what)
{
    if (result)
        fail_msg("%s: %s", what, error->message);
}

static void print_log(void *user, enum sl_log_level level, const char *message)
{
    (void)user;
    if (level == SL_LOG_WARNING)
        printf("  %s\n", message);
}

static void load_model(struct sl_model *model, const struct run *run, const char *directory)
{
    struct sl_error error = {0};
    if (!run->config) {
        check(sl_model_from_preset(model, run->preset, &error), &error, run->preset);
        return;
    }
    char path[256];
    snprintf(path, sizeof(path), "%s/config.json", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(run->config, file) >= 0);
    assert_int_equal(fclose(file), 0);
    check(sl_model_from_directory(model, directory, &error), &error, path);
    unlink(path);
}

/* Are layers cut where the run says so, in the wide model through each matrix? */
static void check_tiles(const struct sl_step_plan *sp, const struct run *run)
{
    bool parts = false, through[SL_ROLE_COUNT] = {0};
    for (uint32_t p = 0; p < sp->piece_count; p++) {
        parts |= sp->pieces[p].kind == SL_PIECE_MATRIX;
        through[sp->pieces[p].role] |= sp->pieces[p].row_first > 0;
    }
    assert_int_equal(parts, run->layer_bytes > 0);
    if (parts && run->config)
        assert_true(through[SL_ROLE_QKV] && through[SL_ROLE_O] && through[SL_ROLE_UP] &&
                    through[SL_ROLE_DOWN]);
}

static uint64_t train(const struct run *run, const struct variant *v, const char *directory,
                      double *last_loss)
{
    struct sl_error error = {0};
    struct sl_model model;
    load_model(&model, run, directory);
    if (run->frozen)
        check(sl_model_freeze(&model, &run->frozen, 1, &error), &error, "freeze");
    static const struct sl_log log = {print_log, NULL};
    struct sl_engine_options o = {
        .step = {.model = &model,
                 .precision = run->precision,
                 .batch = BATCH,
                 .sequence = SEQUENCE,
                 .micro_batches = MICRO_BATCHES,
                 .group = v->group,
                 .recompute = v->recompute,
                 .sub_group_elements = v->sub_group,
                 .optimizer_buffers = v->buffers,
                 .prefetch = v->prefetch,
                 .tile_bytes = run->tile_bytes,
                 .layer_bytes = run->layer_bytes,
                 .hyper = run->hyper,
                 .moment_kind = run->moment_kind,
                 .master_kind = run->no_master ? SL_MASTER_NONE
                                : v->split     ? SL_MASTER_SPLIT
                                               : SL_MASTER_F32,
                 .speculate = run->delayed ? 0 : v->speculate,
                 .delayed_update = run->delayed,
                 .speculate_always = true},
        .device = v->device,
        .thread_count = v->threads,
        .swap = {.paths = &directory, .path_count = 1},
        .log = &log,
    };
    memcpy(o.step.placement.fraction[SL_PLACED_WEIGHTS], v->weights, sizeof(v->weights));
    memcpy(o.step.placement.fraction[SL_PLACED_GRADIENTS], v->gradients, sizeof(v->gradients));
    memcpy(o.step.placement.fraction[SL_PLACED_OPTIMIZER], v->optimizer, sizeof(v->optimizer));
    memcpy(o.step.placement.fraction[SL_PLACED_ACTIVATIONS], v->activations,
           sizeof(v->activations));
    struct sl_engine engine;
    check(sl_engine_plan(&engine, &o, &error), &error, v->name);
    check_tiles(&engine.sp, run);
    check(sl_engine_start(&engine, &error), &error, v->name);
    check(sl_state_initialize(&engine, 7, &error), &error, v->name);
    running = run;
    sl_engine_control(&engine)->loss_scale = run->loss_scale;
    static struct data data[STEPS];
    static struct sl_step_context contexts[STEPS];
    for (int step = 0; step < STEPS; step++) {
        make_data(&data[step], model.vocabulary, (uint64_t)step);
        contexts[step] = (struct sl_step_context){
            .ids = data[step].ids,
            .targets = data[step].targets,
            .positions = data[step].positions,
            .first = data[step].first,
            .trained_tokens = data[step].trained,
            .clip = running->clip,
            .decided = decided,
            .predicted = predicted,
            .user = (void *)(intptr_t)step,
        };
        check(sl_engine_step(&engine, &contexts[step], &error), &error, v->name);
        if (step == 3) /* an evaluation in the middle changes nothing */
        {
            double loss;
            check(sl_engine_flush(&engine, &error), &error, v->name);
            struct sl_step_context eval = contexts[0];
            check(sl_engine_evaluate(&engine, &eval, &loss, &error), &error, v->name);
        }
    }
    check(sl_engine_flush(&engine, &error), &error, v->name);
    *last_loss = contexts[STEPS - 1].result.loss;
    assert_true(contexts[2].result.apply == !run->overflow);
    if (run->overflow)
        assert_true(contexts[2].result.nonfinite > 0);
    unsigned fared[4] = {0};
    for (int step = 0; step < STEPS; step++)
        fared[contexts[step].result.speculation]++;
    /* Both ways are walked, or the test shows nothing; without a master nothing could be undone. */
    if (v->speculate > 0 && !run->delayed && !run->no_master)
        assert_true(fared[SL_SPECULATION_RIGHT] > 0 && fared[SL_SPECULATION_WRONG] > 0);
    else
        assert_int_equal(fared[SL_SPECULATION_NONE], STEPS);
    uint64_t hash;
    check(sl_state_hash(&engine, &hash, &error), &error, v->name);
    sl_engine_finish(&engine);
    sl_model_finish(&model);
    return hash;
}

/* Under a sanitizer, which makes a run ten times as long, one goes through all placements and the
 * others through some: they meet the same threads, and memory is laid out alike. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PLACEMENT_STRIDE 4u
#else
#define PLACEMENT_STRIDE 1u
#endif

static uint64_t placements_agree(const struct run *run, size_t stride)
{
    char directory[] = "/tmp/sluice-placement-XXXXXX";
    assert_non_null(mkdtemp(directory));
    uint64_t expected = 0;
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i += stride) {
        double loss;
        uint64_t hash = train(run, &variants[i], directory, &loss);
        printf("  %016llx  loss %.6f  %s\n", (unsigned long long)hash, loss, variants[i].name);
        assert_true(isfinite(loss));
        if (i == 0)
            expected = hash;
        else if (hash != expected)
            fail_msg("%s: hash %016llx instead of %016llx", variants[i].name,
                     (unsigned long long)hash, (unsigned long long)expected);
    }
    rmdir(directory);
    return expected;
}

static uint64_t all_placements_agree(const struct run *run)
{
    return placements_agree(run, PLACEMENT_STRIDE);
}

static const struct sl_optim_hyper adamw = {.kind = SL_OPTIM_ADAMW,
                                            .lr = 1e-2f,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.95f,
                                            .eps = 1e-8f,
                                            .weight_decay = 0.1f,
                                            .bias_correction = true};

static void bf16_untied(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_BF16, 0, adamw, SL_MOMENT_F32, NULL, 1, false, CLIP, false};
    placements_agree(&run, 1);
}

static void delayed_update(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_BF16, 0, adamw, SL_MOMENT_F32, NULL, 1, false, CLIP, true};
    uint64_t hash = all_placements_agree(&run);
    char directory[] = "/tmp/sluice-placement-XXXXXX";
    assert_non_null(mkdtemp(directory));
    double loss;
    run.delayed = false;
    assert_int_not_equal(hash, train(&run, &variants[0], directory, &loss));
    rmdir(directory);
}

static void bf16_tiled_head(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_BF16, 4096, adamw, SL_MOMENT_F32, NULL, 1, false, CLIP, false};
    all_placements_agree(&run);
}

static void fp16_with_an_overflow(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_F16, 0, adamw, SL_MOMENT_F32, NULL, 1024, true, CLIP, false};
    all_placements_agree(&run);
}

static void fp32(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_F32, 0, adamw, SL_MOMENT_F32, NULL, 1, false, CLIP, false};
    all_placements_agree(&run);
}

static void frozen_tensors(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_BF16, 0, adamw, SL_MOMENT_F32, "*k_proj*", 1, false, CLIP, false};
    all_placements_agree(&run);
}

static void eight_bit_moments(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_BF16, 0, adamw, SL_MOMENT_Q8, NULL, 1, false, CLIP, false};
    all_placements_agree(&run);
}

/* Weights alone, rounded stochastically: the counters are of the element, not of the placement. */
static void no_master(void **state)
{
    (void)state;
    struct run run = {"tiny", SL_BF16, 0,     adamw, SL_MOMENT_BF16, "*k_proj*", 1,
                      false,  CLIP,    false, true};
    all_placements_agree(&run);
    run.hyper.kind = SL_OPTIM_SGD; /* and no state at all, with a step that is skipped */
    run.overflow = true;
    all_placements_agree(&run);
}

/* Matrix by matrix: nothing in the tiny model is large enough for tiles of rows. */
static void layers_in_parts(void **state)
{
    (void)state;
    char directory[] = "/tmp/sluice-placement-XXXXXX";
    assert_non_null(mkdtemp(directory));
    struct run runs[] = {
        {"tiny", SL_BF16, 4096, adamw, SL_MOMENT_Q8, "*k_proj*", 1, false, CLIP, false},
        {"tiny", SL_F16, 0, adamw, SL_MOMENT_F32, NULL, 1024, true, CLIP, false},
        {"tiny", SL_F32, 0, adamw, SL_MOMENT_F32, NULL, 1, false, CLIP, true},
    };
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        double loss;
        uint64_t whole = train(&runs[i], &variants[0], directory, &loss);
        runs[i].layer_bytes = 4096;
        assert_int_equal(all_placements_agree(&runs[i]), whole);
    }
    rmdir(directory);
}

/* Wide enough for tiles of rows in all four matrices, through q, k and v, gate and up, and in the
 * tied table; with biases. */
static const char wide[] =
    "{\"model_type\": \"llama\", \"hidden_size\": 768, \"intermediate_size\": 1536,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4,"
    " \"head_dim\": 128, \"attention_bias\": true, \"mlp_bias\": true, \"vocab_size\": 600,"
    " \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true}";

static void layers_in_tiles(void **state)
{
    (void)state;
    char directory[] = "/tmp/sluice-placement-XXXXXX";
    assert_non_null(mkdtemp(directory));
    struct run run = {.config = wide,
                      .precision = SL_BF16,
                      .tile_bytes = 1 << 19,
                      .hyper = adamw,
                      .frozen = "*0.self_attn.v_proj.weight",
                      .loss_scale = 1,
                      .clip = 7};
    double loss;
    uint64_t whole = train(&run, &variants[0], directory, &loss);
    run.layer_bytes = 1 << 20;
    /* The parts above went through all placements; this model takes seconds for each. */
    assert_int_equal(placements_agree(&run, 4), whole);
    rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_untied),           cmocka_unit_test(bf16_tiled_head),
        cmocka_unit_test(fp16_with_an_overflow), cmocka_unit_test(fp32),
        cmocka_unit_test(frozen_tensors),        cmocka_unit_test(eight_bit_moments),
        cmocka_unit_test(delayed_update),        cmocka_unit_test(no_master),
        cmocka_unit_test(layers_in_parts),       cmocka_unit_test(layers_in_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
