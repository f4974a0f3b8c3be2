// SPDX-License-Identifier: Apache-2.0
/* The rules between keys: batch, precision, contradictions, placement, and their messages. */
#include "tests/engine/config_support.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

static struct loaded loaded;

static void expect_refused(const char *suffix, const char *text, const char *part)
{
    load_text(&loaded, suffix, text);
    if (loaded.result != -EINVAL || !strstr(loaded.error.message, part))
        fail_msg("%s: result %d, \"%s\"", text, loaded.result, loaded.error.message);
    loaded_finish(&loaded);
}

static void expect_accepted(const char *suffix, const char *text)
{
    load_text(&loaded, suffix, text);
    if (loaded.result)
        fail_msg("%s: %s", text, loaded.error.message);
}

/* --- batch --- */

enum form { FORM_ABSENT, FORM_AUTO, FORM_GIVEN, FORM_COUNT };

/* An independent statement of the rule: 0 where the combination is refused. */
static bool triangle(const int number[3], int out[3])
{
    int batch = number[0], micro = number[1], accumulation = number[2];
    if (batch && micro && accumulation && batch != micro * accumulation)
        return false;
    if (batch && !micro && !accumulation)
        accumulation = 1;
    if (batch && !micro)
        micro = batch / accumulation;
    if (!micro)
        micro = 1;
    if (!accumulation)
        accumulation = batch ? batch / micro : 1;
    out[0] = micro * accumulation;
    out[1] = micro;
    out[2] = accumulation;
    return !batch || out[0] == batch;
}

static void try_batch(const enum form form[3], const int value[3], const int own[3])
{
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps"};
    static const char *const own_keys[] = {"train.batch", "train.micro_batch",
                                           "train.accumulation"};
    char words[6][64];
    const char *sets[6];
    size_t count = 0;
    int number[3], out[3];
    bool contradiction = false;
    for (int i = 0; i < 3; i++) {
        number[i] = form[i] == FORM_GIVEN ? value[i] : own[i];
        contradiction |= form[i] == FORM_GIVEN && own[i] && own[i] != value[i];
        if (form[i] == FORM_AUTO)
            snprintf(words[count], sizeof(words[0]), "%s=auto", keys[i]);
        else if (form[i] == FORM_GIVEN)
            snprintf(words[count], sizeof(words[0]), "%s=%d", keys[i], value[i]);
        count += form[i] != FORM_ABSENT;
        if (own[i])
            snprintf(words[count++], sizeof(words[0]), "%s=%d", own_keys[i], own[i]);
    }
    for (size_t i = 0; i < count; i++)
        sets[i] = words[i];
    bool alone = form[2] == FORM_GIVEN && form[0] == FORM_ABSENT && form[1] == FORM_ABSENT &&
                 !own[0] && !own[1];
    bool good = triangle(number, out) && !contradiction && !alone;
    load_with(&loaded, NULL, sets, count, 0, false);
    if ((loaded.result == 0) != good)
        fail_msg("forms %d %d %d, values %d %d %d, own %d %d %d: %s", form[0], form[1], form[2],
                 value[0], value[1], value[2], own[0], own[1], own[2], loaded.error.message);
    if (good) {
        assert_int_equal(loaded.config.train_batch, out[0]);
        assert_int_equal(loaded.config.micro_batch, out[1]);
        assert_int_equal(loaded.config.accumulation, out[2]);
    }
    loaded_finish(&loaded);
}

static void batch_triangle_over_all_combinations(void **state)
{
    (void)state;
    static const int values[][3] = {{24, 3, 8}, {24, 5, 8}, {24, 3, 7}, {7, 7, 1}, {1, 1, 1}};
    static const int owns[][3] = {{0, 0, 0},  {0, 3, 0},  {0, 0, 8},
                                  {24, 0, 0}, {24, 3, 8}, {0, 2, 2}};
    for (int code = 0; code < FORM_COUNT * FORM_COUNT * FORM_COUNT; code++)
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++)
            for (size_t o = 0; o < sizeof(owns) / sizeof(owns[0]); o++) {
                enum form form[3] = {(enum form)(code % 3), (enum form)(code / 3 % 3),
                                     (enum form)(code / 9)};
                try_batch(form, values[v], owns[o]);
            }
}

/* Free where it is auto by either key, and neither a number nor the other two say what it is. */
static void an_auto_micro_batch_is_free_where_nothing_fixes_it(void **state)
{
    (void)state;
    static const struct {
        const char *sets[3];
        bool free, total;
        uint64_t micro; /* where it cannot be chosen */
    } cases[] = {
        {{"train.micro_batch=auto"}, true, false, 1},
        {{"train_micro_batch_size_per_gpu=auto"}, true, false, 1},
        {{"train.micro_batch=auto", "train.batch=24"}, true, true, 24},
        {{"train_micro_batch_size_per_gpu=auto", "train_batch_size=24"}, true, true, 24},
        {{"train.micro_batch=auto", "train.accumulation=4"}, true, false, 1},
        {{"train.micro_batch=auto", "train_micro_batch_size_per_gpu=3"}, false, false, 3},
        {{"train.micro_batch=3", "train_micro_batch_size_per_gpu=auto"}, false, false, 3},
        {{"train.micro_batch=auto", "train.batch=24", "train.accumulation=4"}, false, true, 6},
        {{"train_batch_size=24"}, false, true, 24},
        {{"train.seed=1"}, false, false, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = 0;
        while (count < 3 && cases[i].sets[count])
            count++;
        load_with(&loaded, NULL, cases[i].sets, count, 0, false);
        if (loaded.result || loaded.config.micro_batch_auto != cases[i].free ||
            loaded.config.train_batch_given != cases[i].total ||
            loaded.config.micro_batch != cases[i].micro)
            fail_msg("case %zu: %s", i, loaded.error.message);
        loaded_finish(&loaded);
    }
}

/* --- precision --- */

static void precision_over_all_combinations(void **state)
{
    (void)state;
    static const char *const forms[] = {NULL, "false", "true", "auto"};
    static const char *const owns[] = {NULL, "bf16", "fp16", "fp32"};
    static const enum sl_dtype types[] = {SL_F32, SL_BF16, SL_F16, SL_F32};
    for (int code = 0; code < 64; code++) {
        int fp16 = code % 4, bf16 = code / 4 % 4, own = code / 16;
        char text[160], set[40];
        snprintf(text, sizeof(text), "{%s%s%s %s%s%s}", fp16 ? "\"fp16\":{\"enabled\":" : "",
                 fp16 == 3 ? "\"auto\""
                 : fp16    ? forms[fp16]
                           : "",
                 fp16 ? "}," : "", bf16 ? "\"bf16\":{\"enabled\":" : "",
                 bf16 == 3 ? "\"auto\""
                 : bf16    ? forms[bf16]
                           : "",
                 bf16 ? "}" : "");
        const char *path = temporary_file(".json", text, strlen(text));
        snprintf(set, sizeof(set), "train.precision=%s", own ? owns[own] : "");
        const char *sets[] = {set};
        load_with(&loaded, path, sets, own ? 1 : 0, 0, false);
        unlink(path);

        enum sl_dtype wanted = types[own];
        bool refused =
            (fp16 == 2 && bf16 == 2) ||
            (own && ((fp16 == 2 && wanted != SL_F16) || (bf16 == 2 && wanted != SL_BF16) ||
                     (fp16 == 1 && wanted == SL_F16) || (bf16 == 1 && wanted == SL_BF16)));
        enum sl_dtype expected = fp16 == 2   ? SL_F16
                                 : bf16 == 2 ? SL_BF16
                                 : own       ? wanted
                                 : bf16 == 3 ? SL_BF16
                                 : fp16 == 3 ? SL_F16
                                             : SL_F32;
        if ((loaded.result != 0) != refused || (!refused && loaded.config.precision != expected))
            fail_msg("%s %s: precision %s, %s", text, set, sl_dtype_name(loaded.config.precision),
                     loaded.error.message);
        bool said =
            own || fp16 == 2 || bf16 == 2 || lines_contain(&loaded.report.notes, "precision: ");
        assert_true(said);
        loaded_finish(&loaded);
    }
    LOAD(&loaded, NULL);
    assert_int_equal(loaded.config.precision, SL_BF16);
    assert_true(lines_contain(&loaded.report.notes, "the default without a --config"));
    loaded_finish(&loaded);
}

/* --- contradictions --- */

static void contradictions_are_listed_all_at_once(void **state)
{
    (void)state;
    static const char text[] =
        "{\"gradient_clipping\": 0.5, \"gradient_acumulation_steps\": 2,\n"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4, \"betas\": [0.9, 0.95],\n"
        "   \"weight_decay\": 0.1}},\n"
        " \"zero_optimization\": {\"stage\": \"two\"}, \"amp\": {\"enabled\": true}}";
    const char *path = temporary_file(".json", text, strlen(text));
    LOAD(&loaded, path, "train.learning_rate=2e-4", "train.max_grad_norm=1",
         "train.adam_beta2=0.99", "train.weight_decay=0");
    unlink(path);
    static const char *const parts[] = {
        ":1: gradient_acumulation_steps is not a key; did you mean gradient_accumulation_steps?",
        ":4: zero_optimization.stage \"two\": a whole number from 0 to 3 is meant",
        "optimizer.params.lr 0.0001 (",
        "train.learning_rate 0.0002 (--set)",
        "gradient_clipping 0.5 (",
        "optimizer.params.betas[1] 0.95 (",
        "optimizer.params.weight_decay 0.1 (",
        ":4: amp {...} is not supported",
    };
    assert_int_equal(loaded.result, -EINVAL);
    assert_int_equal(loaded.report.problems.count, 7);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (!lines_contain(&loaded.report.problems, parts[i]))
            fail_msg("not listed: %s", parts[i]);
    assert_non_null(strstr(loaded.error.message, "gradient_acumulation_steps"));
    loaded_finish(&loaded);
}

static void wrong_types_say_what_is_meant(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        {"{\"train_batch_size\": \"big\"}", "train_batch_size \"big\": a whole number"},
        {"{\"train_batch_size\": 2.5}", "train_batch_size 2.5: a whole number"},
        {"{\"train_batch_size\": -1}", "train_batch_size -1: a whole number from 1"},
        {"{\"train_batch_size\": 0}", "train_batch_size 0: a whole number from 1"},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, "
         "\"gradient_accumulation_steps\": 2}",
         "on 4 GPUs, and one GPU runs: write gradient_accumulation_steps 8"},
        {"{\"fp16\": true}", "fp16 true: an object is meant"},
        {"{\"fp16\": {\"enabled\": 1}}", "fp16.enabled 1: true or false is meant"},
        {"{\"fp16\": {\"enabled\": {}}}", "fp16.enabled an object: true or false is meant"},
        {"{\"zero_optimization\": {\"stage\": 4}}", "stage 4: a whole number from 0 to 3"},
        {"{\"zero_optimization\": [1]}", "zero_optimization a list: an object is meant"},
        {"{\"optimizer\": {\"type\": \"Lamb\"}}", "use AdamW"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", "two numbers"},
        {"{\"optimizer\": {\"params\": {\"amsgrad\": true}}}", "no AMSGrad either"},
        {"{\"scheduler\": {\"type\": \"Cosine\"}}", "one of WarmupLR|"},
        {"{\"scheduler\": {\"params\": {\"warmup_num_steps\": 3}}}", "without scheduler.type"},
        {"{\"scheduler\": {\"type\": \"WarmupDecayLR\"}}", "total_num_steps is required"},
        {"{\"scheduler\": {\"type\": \"OneCycle\"}}", "cycle_max_lr is required"},
        {"{\"aio\": {\"block_size\": 5000}}", "write 8192"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}}",
         "zero_optimization.offload_param.nvme_path is not given"},
        {"{\"sluice\": {\"placement\": {\"weights\": {\"nvme\": 1}}}}", "nvme.path is not given"},
        {"{\"sluice\": {\"train\": {\"setps\": 1}}}", "did you mean train.steps?"},
        {"{\"zero_optimization\": {\"stage\": 3, \"max_live_parameters\": 1, "
         "\"stage3_max_live_parameters\": 2}}",
         "are one key and have different values"},
        {"{\"data_types\": {\"grad_accum_dtype\": \"int8\"}}", "one of fp32|fp16|bf16"},
        {"{\"sluice\": {\"schedule\": {\"delayed_update\": true, \"speculate\": 0.5}}}",
         "take one of the two out"},
        {"{\"bf16\": {\"enabled\": true}, \"sluice\": {\"optimizer\": {\"master\": \"x\"}}}",
         "one of f32|split"},
        {"{\"sluice\": {\"optimizer\": {\"master\": \"split\"}}}", "is for bf16 training"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        expect_refused(".json", table[i][0], table[i][1]);
}

/* What DeepSpeed ignores is ignored, with a line; a misspelt key is refused even there. */
static void unknown_keys_of_loose_blocks_are_ignored(void **state)
{
    (void)state;
    expect_accepted(".json", "{\"min_lr\": 5e-7, \"distributed\": {\"init_method\": \"env://\"}, "
                             "\"activation_checkpointing\": {\"enabled\": false, \"colour\": 1}}");
    assert_false(loaded.config.activation_checkpointing);
    assert_int_equal(loaded.report.warnings.count, 3);
    loaded_finish(&loaded);
    expect_refused(".json", "{\"aio\": {\"blok_size\": 4096}}", "did you mean aio.block_size?");
    expect_refused(".json", "{\" zero_optimization\": {\"stage\": 2}}",
                   "did you mean zero_optimization?");
    expect_refused(".json", "{\"fp16\": {\"colour\": 1}}", "fp16.colour is not a key; take it out");
}

/* --- placement --- */

static void expect_fractions(enum sl_config_kind kind, double device, double host, double nvme)
{
    const struct sl_config_placement *placement = &loaded.config.placement[kind];
    assert_true(placement->given);
    assert_true(fabs(placement->fraction[SL_CONFIG_DEVICE] - device) < 1e-12);
    assert_true(fabs(placement->fraction[SL_CONFIG_HOST] - host) < 1e-12);
    assert_true(fabs(placement->fraction[SL_CONFIG_NVME] - nvme) < 1e-12);
}

static void offload_blocks_become_fractions(void **state)
{
    (void)state;
    expect_accepted(".json", "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
                             "{\"device\": \"cpu\", \"ratio\": 0.3}}}");
    expect_fractions(SL_CONFIG_OPTIMIZER, 0.7, 0.3, 0);
    expect_fractions(SL_CONFIG_GRADIENTS, 0.7, 0.3, 0);
    expect_fractions(SL_CONFIG_WEIGHTS, 1, 0, 0);
    loaded_finish(&loaded);

    /* below stage 3 DeepSpeed does not look at offload_param: said, not done */
    expect_accepted(".json", "{\"zero_optimization\": {\"stage\": 2, \"offload_param\": "
                             "{\"device\": \"cpu\"}}}");
    expect_fractions(SL_CONFIG_WEIGHTS, 1, 0, 0);
    assert_true(lines_contain(&loaded.report.warnings, "offload_param.device cpu has no effect"));
    loaded_finish(&loaded);

    expect_accepted(".json", "{\"zero_optimization\": {\"offload_param\": {\"device\": \"cpu\"}}}");
    expect_fractions(SL_CONFIG_WEIGHTS, 0, 1, 0);
    assert_true(lines_contain(&loaded.report.notes, "zero_optimization.stage: 3"));
    loaded_finish(&loaded);

    expect_accepted(".json", "{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}");
    expect_fractions(SL_CONFIG_ACTIVATIONS, 0, 1, 0);
    assert_false(loaded.config.placement[SL_CONFIG_WEIGHTS].given);
    loaded_finish(&loaded);
}

static void own_shares_win_and_sum_to_one(void **state)
{
    (void)state;
    LOAD(&loaded, NULL, "zero_optimization.stage=2",
         "zero_optimization.offload_optimizer.device=cpu", "placement.optimizer.host=0.6",
         "placement.optimizer.nvme=0.3", "placement.weights=host", "nvme.path=/a,/b");
    assert_int_equal(loaded.result, 0);
    expect_fractions(SL_CONFIG_OPTIMIZER, 0.1, 0.6, 0.3);
    expect_fractions(SL_CONFIG_WEIGHTS, 0, 1, 0);
    assert_int_equal(loaded.config.nvme.path_count, 2);
    assert_string_equal(loaded.config.nvme.paths[1], "/b");
    loaded_finish(&loaded);
    LOAD(&loaded, NULL, "placement.optimizer=device", "placement.weights=host");
    assert_int_equal(loaded.result, 0);
    assert_true(lines_contain(&loaded.report.warnings, "100% of the optimizer state"));
    loaded_finish(&loaded);
    LOAD(&loaded, NULL, "placement.optimizer.host=0.6", "placement.optimizer.device=0.3");
    assert_int_equal(loaded.result, -EINVAL);
    assert_non_null(strstr(loaded.error.message, "sum to 0.9"));
    loaded_finish(&loaded);
    LOAD(&loaded, NULL, "zero_optimization.stage=3", "zero_optimization.offload_param.device=cpu",
         "placement.weights=auto");
    assert_int_equal(loaded.result, 0);
    assert_false(loaded.config.placement[SL_CONFIG_WEIGHTS].given);
    loaded_finish(&loaded);
}

static void missing_folders_are_named_and_not_made(void **state)
{
    (void)state;
    const char *sets[] = {"zero_optimization.stage=3",
                          "zero_optimization.offload_param.device=nvme",
                          "zero_optimization.offload_param.nvme_path=/path/to/nvme"};
    load_with(&loaded, NULL, sets, 3, 0, true);
    assert_int_equal(loaded.result, -EINVAL);
    assert_non_null(strstr(loaded.error.message, "zero_optimization.offload_param.nvme_path "
                                                 "\"/path/to/nvme\": No such file or directory"));
    loaded_finish(&loaded);
    struct stat status;
    assert_int_not_equal(stat("/path", &status), 0);
}

static void sets_override_the_file(void **state)
{
    (void)state;
    static const char text[] = "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, "
                               "\"offload_param\": {\"device\": \"cpu\"}}}";
    const char *path = temporary_file(".json", text, strlen(text));
    LOAD(&loaded, path, "train_batch_size=6", "train_batch_size=16",
         "zero_optimization.offload_param.device=none", "memory.device=12GiB",
         "optimizer.params.betas=0.8,0.9", "train.frozen=*.bias, model.embed*", "sluice=1");
    unlink(path);
    assert_int_equal(loaded.result, -EINVAL); /* "sluice=1" alone */
    assert_int_equal(loaded.report.problems.count, 1);
    assert_int_equal(loaded.config.train_batch, 16);
    expect_fractions(SL_CONFIG_WEIGHTS, 1, 0, 0);
    assert_int_equal(loaded.config.memory_bytes[SL_CONFIG_DEVICE], 12ull << 30);
    assert_true(loaded.config.optimizer.beta1 == 0.8f);
    assert_int_equal(loaded.config.frozen_count, 2);
    assert_string_equal(loaded.config.frozen[1], "model.embed*");
    loaded_finish(&loaded);
    static const char *const bad[] = {"train.steps", "=3", "train.steps=", "train.steps=three", ""};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        LOAD(&loaded, NULL, bad[i]);
        assert_int_equal(loaded.result, -EINVAL);
        loaded_finish(&loaded);
    }
}

/* --- schedules and the run's length --- */

static void the_run_s_length_reaches_the_schedule(void **state)
{
    (void)state;
    LOAD(&loaded, NULL, "train.lr_scheduler_type=cosine", "train.warmup_ratio=0.1",
         "train.epochs=2");
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.schedule.total_steps, 0);
    sl_config_set_steps(&loaded.config, 500);
    assert_int_equal(loaded.config.steps, 500);
    assert_int_equal(loaded.config.schedule.total_steps, 500);
    assert_int_equal(loaded.config.schedule.warmup_steps, 50);
    loaded_finish(&loaded);
    LOAD(&loaded, NULL, "scheduler.type=WarmupDecayLR", "scheduler.params.total_num_steps=1000",
         "scheduler.params.warmup_num_steps=10", "train.steps=3");
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.schedule.total_steps, 1000);
    assert_true(loaded.config.schedule.warmup_max_lr == 1e-3);
    assert_true(lines_contain(&loaded.report.warnings,
                              "scheduler.params.total_num_steps 1000 (--set) and train.steps 3"));
    loaded_finish(&loaded);
}

static void bounds_limit_what_is_fetched_ahead(void **state)
{
    (void)state;
    LOAD(&loaded, NULL, "schedule.prefetch_layers=8");
    assert_int_equal(sl_config_prefetch_layers(&loaded.config, 1000000), 8);
    loaded_finish(&loaded);
    static const struct {
        const char *set;
        uint32_t layers; /* of 1e6 elements */
    } table[] = {
        {"zero_optimization.stage3_prefetch_bucket_size=3.5e6", 3},
        {"zero_optimization.stage3_prefetch_bucket_size=0", 1},
        {"zero_optimization.stage3_max_live_parameters=5e6", 4},
        {"zero_optimization.stage3_max_live_parameters=0", 1},
        {"zero_optimization.offload_param.buffer_size=6e5", 2},
        {"zero_optimization.stage3_prefetch_bucket_size=1e9", 8},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        LOAD(&loaded, NULL, "zero_optimization.stage=3", "schedule.prefetch_layers=8",
             table[i].set);
        assert_int_equal(loaded.result, 0);
        assert_int_equal(sl_config_prefetch_layers(&loaded.config, 1000000), table[i].layers);
        loaded_finish(&loaded);
    }
    LOAD(&loaded, NULL);
    assert_int_equal(sl_config_prefetch_layers(&loaded.config, 0), 1);
    loaded_finish(&loaded);
}

static void schedules_must_agree_with_the_arguments(void **state)
{
    (void)state;
    static const char text[] =
        "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 100, "
        "\"warmup_num_steps\": 10, \"warmup_max_lr\": 1e-3}}}";
    const char *path = temporary_file(".json", text, strlen(text));
    LOAD(&loaded, path, "train.steps=50", "train.warmup_steps=5", "train.learning_rate=2e-3");
    assert_int_equal(loaded.result, -EINVAL);
    assert_int_equal(loaded.report.problems.count, 3);
    loaded_finish(&loaded);
    LOAD(&loaded, path, "train.steps=50", "scheduler.params.total_num_steps=auto");
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.schedule.total_steps, 50);
    loaded_finish(&loaded);
    LOAD(&loaded, path); /* the run's length comes from the data */
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.schedule.total_steps, 100);
    loaded_finish(&loaded);
    unlink(path);
}

/* --- Accelerate --- */

static void accelerate_keys_are_translated(void **state)
{
    (void)state;
    expect_accepted(".yaml", "distributed_type: DEEPSPEED\nmixed_precision: fp16\n"
                             "deepspeed_config:\n  gradient_accumulation_steps: 4\n"
                             "  gradient_clipping: 0.25\n  offload_optimizer_device: cpu\n");
    assert_int_equal(loaded.config.precision, SL_F16);
    assert_int_equal(loaded.config.accumulation, 4);
    assert_true(loaded.config.clip_norm == 0.25);
    expect_fractions(SL_CONFIG_OPTIMIZER, 0, 1, 0); /* zero_stage is 2 by default */
    loaded_finish(&loaded);
    load_text(&loaded, ".yaml", "deepspeed_config:\n  deepspeed_config_file: nowhere.json\n");
    assert_int_equal(loaded.result, -ENOENT);
    assert_non_null(strstr(loaded.error.message,
                           "deepspeed_config.deepspeed_config_file \"nowhere.json\" is missing; "
                           "tried nowhere.json and "));
    loaded_finish(&loaded);
    expect_accepted(".yaml", "distributed_type: DEEPSPEED\nmixed_precision: no\ndowncast_bf16: no\n"
                             "gpu_ids: 0\nmain_process_port: '29500'\ndeepspeed_config:\n"
                             "  zero_stage: '3'\n  zero3_init_flag: 'false'\n"
                             "  offload_param_device: none\n");
    assert_int_equal(loaded.config.precision, SL_F32);
    expect_fractions(SL_CONFIG_WEIGHTS, 1, 0, 0);
    loaded_finish(&loaded);
    expect_refused(".yaml", "deepspeed_config:\n  zero_stage: 'two'\n",
                   "zero_stage \"two\": a whole number");
    expect_refused(".yaml", "distributed_type: MEGATRON_LM\nmegatron_lm_config: {a: 1}\n",
                   "distributed_type MEGATRON_LM is not read, only DEEPSPEED");
    expect_refused(".yaml", "deepspeed_config:\n  zero_stgae: 3\n",
                   "did you mean deepspeed_config.zero_stage?");
    expect_refused(".yaml", "mixed_precision: fp8\n", "write bf16");
}

static void yaml_and_its_json_must_agree(void **state)
{
    (void)state;
    char text[400];
    const char *fixtures = getenv("SLUICE_TEST_FIXTURES");
    snprintf(text, sizeof(text),
             "mixed_precision: fp16\ndeepspeed_config:\n  zero_stage: 2\n"
             "  deepspeed_config_file: %s/configs/10-zero3-short-key-names.json\n",
             fixtures ? fixtures : "tests/fixtures");
    load_text(&loaded, ".yaml", text);
    assert_int_equal(loaded.result, -EINVAL);
    assert_true(lines_contain(&loaded.report.problems, "deepspeed_config.zero_stage ("));
    assert_true(lines_contain(&loaded.report.problems, "bf16.enabled true ("));
    assert_int_equal(loaded.report.problems.count, 2);
    loaded_finish(&loaded);
}

/* --- reports --- */

static void reports_hold_every_answer(void **state)
{
    (void)state;
    expect_accepted(".json", "{\"fp16\": {\"enabled\": true}, \"wandb\": {\"enabled\": true}, "
                             "\"zero_optimization\": {\"stage\": 1, \"cpu_offload\": true}}");
    char *text = sl_config_report_text(&loaded.report, &loaded.config);
    assert_non_null(text);
    assert_true(strncmp(text, "Warnings\n", 9) == 0);
    assert_non_null(strstr(text, "wandb"));
    assert_non_null(strstr(text, "optimizer      100% host"));
    free(text);
    char *json = sl_config_report_json(&loaded.report, &loaded.config);
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    double host = json_real_value(json_object_get(
        json_object_get(json_object_get(json_object_get(root, "resolved"), "placement"),
                        "optimizer"),
        "host"));
    assert_true(host == 1);
    assert_true(json_is_true(json_object_get(root, "accepted")));
    assert_int_equal(json_array_size(json_object_get(root, "keys")), loaded.report.row_count);
    json_decref(root);
    free(json);
    loaded_finish(&loaded);
}

/* Keys that are all well: nothing to say at the start of training. */
static void no_noise_where_all_is_well(void **state)
{
    (void)state;
    expect_accepted(".json",
                    "{\"bf16\": {\"enabled\": true}, \"train_micro_batch_size_per_gpu\": 2, "
                    "\"wandb\": {\"enabled\": false}, \"amp\": {\"enabled\": false}, "
                    "\"aio\": {\"use_gds\": false}, \"optimizer\": {\"type\": \"AdamW\", "
                    "\"params\": {\"amsgrad\": false}}, \"zero_optimization\": {\"stage\": 3, "
                    "\"overlap_comm\": true, \"zero_quantized_weights\": false}}");
    assert_int_equal(loaded.report.warnings.count, 0);
    loaded_finish(&loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_triangle_over_all_combinations),
        cmocka_unit_test(an_auto_micro_batch_is_free_where_nothing_fixes_it),
        cmocka_unit_test(precision_over_all_combinations),
        cmocka_unit_test(contradictions_are_listed_all_at_once),
        cmocka_unit_test(wrong_types_say_what_is_meant),
        cmocka_unit_test(unknown_keys_of_loose_blocks_are_ignored),
        cmocka_unit_test(offload_blocks_become_fractions),
        cmocka_unit_test(own_shares_win_and_sum_to_one),
        cmocka_unit_test(missing_folders_are_named_and_not_made),
        cmocka_unit_test(sets_override_the_file),
        cmocka_unit_test(the_run_s_length_reaches_the_schedule),
        cmocka_unit_test(schedules_must_agree_with_the_arguments),
        cmocka_unit_test(bounds_limit_what_is_fetched_ahead),
        cmocka_unit_test(accelerate_keys_are_translated),
        cmocka_unit_test(yaml_and_its_json_must_agree),
        cmocka_unit_test(reports_hold_every_answer),
        cmocka_unit_test(no_noise_where_all_is_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
