// SPDX-License-Identifier: Apache-2.0
/* The public configurations, each with the answer that it is to get, and the rules behind them. */
#include "tests/engine/config_support.h"

#include <errno.h>

static const char *fixture(const char *name)
{
    static char path[512];
    const char *folder = getenv("SLUICE_TEST_FIXTURES");
    snprintf(path, sizeof(path), "%s/configs/%s", folder ? folder : "tests/fixtures", name);
    return path;
}

/* Placement as one letter per kind (weights, gradients, optimizer, activations): d, h, n, or a. */
struct expected {
    const char *file;
    int result;
    const char *error; /* part of the message */
    enum sl_dtype precision;
    uint64_t micro, accumulation;
    const char *placement;
    enum sl_schedule_kind schedule;
    const char *no_effect[16]; /* keys that must be answered so */
    const char *warning;       /* part of one */
};

#define ACCELERATE_KEYS                                                                            \
    "deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.zero3_init_flag",           \
        "downcast_bf16", "main_training_function", "rdzv_backend", "same_network", "tpu_env",      \
        "tpu_use_cluster", "tpu_use_sudo", "use_cpu", "debug"

static const struct expected table[] = {
    {"01-zero2-cpu-optimizer-all-auto.json",
     0,
     "",
     SL_BF16,
     1,
     1,
     "dhhd",
     SL_SCHEDULE_CONSTANT,
     {"zero_allow_untested_optimizer", "fp16.loss_scale", "fp16.loss_scale_window",
      "fp16.initial_scale_power", "fp16.hysteresis", "fp16.min_loss_scale",
      "zero_optimization.overlap_comm", "zero_optimization.allgather_bucket_size"},
     NULL},
    {"02-zero3-cpu-optimizer-and-params-auto.json",
     0,
     "",
     SL_BF16,
     1,
     1,
     "hhhd",
     SL_SCHEDULE_WARMUP_DECAY,
     {"zero_optimization.reduce_bucket_size"},
     NULL},
    {"03-zero3-nvme-infinity-misspelt-key.json",
     -EINVAL,
     "zero_optimization.stage3_param_persitence_threshold is not a key; did you mean "
     "zero_optimization.stage3_param_persistence_threshold?",
     SL_F16,
     4,
     1,
     "nhnd",
     SL_SCHEDULE_CONSTANT,
     {NULL},
     NULL},
    {"04-zero3-nvme-parameters-large-aio-blocks.json",
     0,
     "",
     SL_F32,
     1,
     1,
     "nhhd",
     SL_SCHEDULE_CONSTANT,
     {"aio.single_submit", "aio.use_gds"},
     NULL},
    {"05-zero3-deprecated-cpu-offload-keys.json",
     0,
     "",
     SL_F16,
     64,
     1,
     "hhhd",
     SL_SCHEDULE_CONSTANT,
     {"zero_allow_untested_optimizer"},
     "cpu_offload_params is an old name of"},
    {"06-oldest-form-zero-optimization-true.json",
     0,
     "",
     SL_F16,
     3,
     8,
     "dddd",
     SL_SCHEDULE_CONSTANT,
     {"allgather_size", "disable_allgather", "tensorboard.job_name"},
     NULL},
    {"07-onecycle-schedule-no-precision-block.json",
     0,
     "",
     SL_F32,
     32,
     16,
     "aaaa",
     SL_SCHEDULE_ONE_CYCLE,
     {"optimizer.params.lr"},
     NULL},
    {"08-zero2-negative-min-loss-scale-no-batch-size.json",
     -EINVAL,
     "fp16.min_loss_scale -1000 must be at least 1 when fp16.loss_scale is 0",
     SL_F16,
     1,
     1,
     "dhhd",
     SL_SCHEDULE_WARMUP,
     {NULL},
     "cpu_offload is an old name of"},
    {"09-zero3-zero-sized-limits-scale-power-32.json",
     0,
     "",
     SL_F16,
     1,
     1,
     "hhhd",
     SL_SCHEDULE_CONSTANT,
     {"fp16.auto_cast", "zero_optimization.stage3_max_reuse_distance"},
     "first loss scale is 4294967296"},
    {"10-zero3-short-key-names.json",
     0,
     "",
     SL_BF16,
     1,
     1,
     "hhhd",
     SL_SCHEDULE_CONSTANT,
     {"zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer"},
     NULL},
    {"11-hjson-trailing-comma.json",
     0,
     "",
     SL_F32,
     16,
     16,
     "aaaa",
     SL_SCHEDULE_CONSTANT,
     {NULL},
     NULL},
    {"12-accelerate-zero3-cpu-offload.yaml",
     0,
     "",
     SL_BF16,
     1,
     1,
     "hhhd",
     SL_SCHEDULE_CONSTANT,
     {ACCELERATE_KEYS, "compute_environment", "machine_rank", "num_machines", NULL},
     NULL},
    {"13-accelerate-points-to-deepspeed-json.yaml",
     0,
     "",
     SL_BF16,
     1,
     1,
     "hhhd",
     SL_SCHEDULE_WARMUP_DECAY,
     {ACCELERATE_KEYS, "num_processes", NULL},
     "num_processes 16"},
    {"14-accelerate-fsdp-cpu-offload.yaml",
     -EINVAL,
     "distributed_type FSDP is not read, only DEEPSPEED",
     SL_BF16,
     1,
     1,
     "aaaa",
     SL_SCHEDULE_CONSTANT,
     {NULL},
     NULL},
};

static void placement_text(const struct sl_config *config, char text[5])
{
    for (int kind = 0; kind < SL_CONFIG_KIND_COUNT; kind++) {
        const struct sl_config_placement *placement = &config->placement[kind];
        text[kind] = 'a';
        for (int tier = 0; placement->given && tier < SL_CONFIG_TIER_COUNT; tier++)
            if (placement->fraction[tier] == 1)
                text[kind] = "dhn"[tier];
    }
    text[4] = 0;
}

static void public_configs_get_their_answer(void **state)
{
    (void)state;
    static struct loaded loaded;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct expected *e = &table[i];
        char placement[5];
        LOAD(&loaded, fixture(e->file), "train.steps=3");
        print_lines(e->file, &loaded.report.warnings);
        assert_int_equal(loaded.result, e->result);
        if (!strstr(loaded.error.message, e->error) || (!*e->error && loaded.error.message[0]))
            fail_msg("%s: %s", e->file, loaded.error.message);
        placement_text(&loaded.config, placement);
        assert_string_equal(placement, e->placement);
        assert_int_equal(loaded.config.precision, e->precision);
        assert_int_equal(loaded.config.micro_batch, e->micro);
        assert_int_equal(loaded.config.accumulation, e->accumulation);
        assert_int_equal(loaded.config.train_batch, e->micro * e->accumulation);
        assert_int_equal(loaded.config.schedule.kind, e->schedule);
        for (int k = 0; k < 16 && e->no_effect[k]; k++) {
            const struct sl_config_row *row = sl_config_report_row(&loaded.report, e->no_effect[k]);
            if (!row || row->effect != SL_CONFIG_NO_EFFECT || !*row->note)
                fail_msg("%s: %s is not answered as having no effect", e->file, e->no_effect[k]);
        }
        if (e->warning && !lines_contain(&loaded.report.warnings, e->warning))
            fail_msg("%s: no warning holds \"%s\"", e->file, e->warning);
        loaded_finish(&loaded);
    }
}

static void hidden_size_resolves_auto(void **state)
{
    (void)state;
    static struct loaded loaded;
    const char *sets[] = {"train.steps=70", "train.learning_rate=3e-4"};
    load_with(&loaded, fixture(table[1].file), sets, 2, 1001, false);
    assert_int_equal(loaded.result, 0);
    assert_int_equal(loaded.config.prefetch_elements_max, 901800); /* floor(0.9 * 1001^2) */
    assert_string_equal(
        sl_config_report_row(&loaded.report, "zero_optimization.stage3_param_persistence_threshold")
            ->value,
        "10010");
    assert_string_equal(
        sl_config_report_row(&loaded.report, "zero_optimization.reduce_bucket_size")->value,
        "1002001");
    assert_int_equal(loaded.config.schedule.total_steps, 70);
    assert_true(loaded.config.schedule.warmup_max_lr == 3e-4);
    loaded_finish(&loaded);
}

/* Single answers that the table above has no column for. */
static void single_keys_have_their_value(void **state)
{
    (void)state;
    static const struct {
        size_t file; /* from 1 */
        const char *key, *value, *source;
    } rows[] = {
        {1, "gradient_clipping", "1", "auto, "},
        {1, "fp16.enabled", "false", "auto, "},
        {1, "bf16.enabled", "true", "auto, "},
        {2, "scheduler.params.total_num_steps", "3", "auto, "},
        {2, "scheduler.params.warmup_max_lr", "0.001", "auto, "},
        {3, "aio.intra_op_parallelism", "2", " as aio.thread_count"},
        {3, "zero_optimization.offload_param.max_in_cpu", "1", ":26"},
        {3, "zero_optimization.offload_optimizer.pipeline_read", "false", ":19"},
        {4, "zero_optimization.offload_param.buffer_size", "100000000", "auto, "},
        {4, "zero_optimization.stage3_max_live_parameters", "1000000000", "auto, "},
        {5, "zero_optimization.offload_optimizer.device", "cpu",
         " as zero_optimization.cpu_offload"},
        {5, "zero_optimization.offload_param.pin_memory", "true", "cpu_offload_use_pin_memory"},
        {6, "zero_optimization.stage", "1", ":6"},
        {6, "optimizer.params.bias_correction", "false", ":18"},
        {6, "gradient_accumulation_steps", "8", "default"},
        {7, "scheduler.params.cycle_max_mom", "0.9", "default"},
        {7, "scheduler.params.decay_step_size", "1000", ":26"},
        {9, "zero_optimization.sub_group_size", "0", ":14"},
        {9, "gradient_clipping", "1", "default"},
        {9, "optimizer.params.weight_decay", "0", ":40"},
        {10, "zero_optimization.stage3_max_live_parameters", "0", " as "},
        {12, "zero_optimization.stage", "3", ".yaml:9"},
        {13, "steps_per_print", "5", ".json:45"},
    };
    static struct loaded loaded;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        LOAD(&loaded, fixture(table[rows[i].file - 1].file), "train.steps=3");
        const struct sl_config_row *row = sl_config_report_row(&loaded.report, rows[i].key);
        if (!row || strcmp(row->value, rows[i].value) != 0 || !strstr(row->source, rows[i].source))
            fail_msg("%s: %s is %s from %s", table[rows[i].file - 1].file, rows[i].key,
                     row ? row->value : "absent", row ? row->source : "");
        loaded_finish(&loaded);
    }
    LOAD(&loaded, fixture(table[6].file));
    assert_true(loaded.config.schedule.cycle_momentum);
    assert_true(sl_schedule_lr(&loaded.config.schedule, 999) == 0.015); /* the peak */
    loaded_finish(&loaded);
    LOAD(&loaded, fixture(table[8].file));
    assert_true(loaded.config.scaler.initial == 4294967296.0);
    assert_int_equal(loaded.config.sub_group_elements_max, 1);
    loaded_finish(&loaded);
    LOAD(&loaded, fixture(table[5].file));
    assert_false(loaded.config.optimizer.bias_correction);
    loaded_finish(&loaded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(public_configs_get_their_answer),
        cmocka_unit_test(single_keys_have_their_value),
        cmocka_unit_test(hidden_size_resolves_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
