// SPDX-License-Identifier: Apache-2.0
/* Each public configuration that is accepted trains three steps on a tiny model, with its state on
 * the tiers that it asks for: looked up in the plan's slots, not in the configuration. */
#include "tests/engine/config_support.h"

#include <math.h>

#include "engine/trainer.h"

struct expected {
    const char *file;
    const char *find, *replace; /* the one word that the file needs corrected */
    const char *placement;      /* weights, gradients, optimizer, activations: d, h, n */
    /* Of the three steps. fp16 starts at a scale of 65536 and may skip until it has found its own;
     * 2^32 is skipped throughout. */
    uint64_t skipped_min, skipped_max;
};

static const struct expected table[] = {
    {"01-zero2-cpu-optimizer-all-auto.json", NULL, NULL, "dhhd", 0, 0},
    {"02-zero3-cpu-optimizer-and-params-auto.json", NULL, NULL, "hhhd", 0, 0},
    {"03-zero3-nvme-infinity-misspelt-key.json", "persitence", "persistence", "nhnd", 0, 0},
    {"04-zero3-nvme-parameters-large-aio-blocks.json", NULL, NULL, "nhhd", 0, 0},
    {"05-zero3-deprecated-cpu-offload-keys.json", NULL, NULL, "hhhd", 0, 2},
    {"06-oldest-form-zero-optimization-true.json", NULL, NULL, "dddd", 0, 2},
    {"07-onecycle-schedule-no-precision-block.json", NULL, NULL, "dddd", 0, 0},
    {"08-zero2-negative-min-loss-scale-no-batch-size.json", "-1000", "1", "dhhd", 0, 2},
    {"09-zero3-zero-sized-limits-scale-power-32.json", NULL, NULL, "hhhd", 3, 3},
    {"10-zero3-short-key-names.json", NULL, NULL, "hhhd", 0, 0},
    {"11-hjson-trailing-comma.json", NULL, NULL, "dddd", 0, 0},
    {"12-accelerate-zero3-cpu-offload.yaml", NULL, NULL, "hhhd", 0, 0},
    {"13-accelerate-points-to-deepspeed-json.yaml", NULL, NULL, "hhhd", 0, 0},
};

static char folder[256];

static void replace(char *text, size_t capacity, const char *find, const char *with)
{
    for (char *at = text; (at = strstr(at, find)) != NULL; at += strlen(with)) {
        size_t tail = strlen(at + strlen(find)) + 1;
        assert_true((size_t)(at - text) + strlen(with) + tail <= capacity);
        memmove(at + strlen(with), at + strlen(find), tail);
        memcpy(at, with, strlen(with));
    }
}

/* A copy beside the others in the test's folder, corrected, with a real folder for NVMe. */
static void copy_config(const struct expected *e)
{
    static char text[8192];
    char path[800];
    const char *fixtures = getenv("SLUICE_TEST_FIXTURES");
    snprintf(path, sizeof(path), "%s/configs/%s", fixtures ? fixtures : "tests/fixtures", e->file);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    if (e->find)
        replace(text, sizeof(text), e->find, e->replace);
    replace(text, sizeof(text), "/path/to/nvme", folder);
    snprintf(path, sizeof(path), "%s/%s", folder, e->file);
    file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/sluice-configs-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder))
        return -1;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        copy_config(&table[i]);
    char path[400];
    snprintf(path, sizeof(path), "%s/data.txt", folder);
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < 3000; i++)
        fprintf(file, "line %d of a text that says little\n", i);
    return file ? fclose(file) : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[320];
    snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

struct watch {
    uint64_t steps, skipped;
};

/* The plan's own slots of a kind lie on one tier, the one that the configuration asks for. */
static void check_plan(const struct sl_run_options *run, const struct expected *e)
{
    static const enum sl_state kinds[] = {SL_STATE_WEIGHTS, SL_STATE_GRADIENTS, SL_STATE_OPTIMIZER,
                                          SL_STATE_ACTIVATIONS};
    struct sl_session session;
    struct sl_engine engine;
    struct sl_error error = {0};
    if (sl_session_open(&session, run, &error) || sl_engine_plan(&engine, &session.engine, &error))
        fail_msg("%s: %s", e->file, error.message);
    const struct sl_plan *plan = &engine.sp.plan;
    for (size_t k = 0; k < 4; k++) {
        enum sl_tier tier = e->placement[k] == 'd'   ? SL_TIER_DEVICE
                            : e->placement[k] == 'h' ? SL_TIER_HOST
                                                     : SL_TIER_NVME;
        uint64_t bytes[SL_TIER_COUNT] = {0};
        for (uint32_t s = 0; s < plan->slot_count; s++) {
            const struct sl_slot *slot = &plan->slots[s];
            /* state at home; what passes through is transient. Activations live for a step. */
            if (slot->state == kinds[k] && (slot->persistent || kinds[k] == SL_STATE_ACTIVATIONS))
                bytes[slot->tier] += slot->bytes;
        }
        for (int t = 0; t < SL_TIER_COUNT; t++)
            if ((bytes[t] > 0) != (t == (int)tier))
                fail_msg("%s: %s: device %llu, host %llu, nvme %llu bytes", e->file,
                         sl_config_kind_name((enum sl_config_kind)k), (unsigned long long)bytes[0],
                         (unsigned long long)bytes[1], (unsigned long long)bytes[2]);
    }
    sl_engine_finish(&engine);
    sl_session_close(&session);
}

static void count_step(void *user, const struct sl_progress *progress)
{
    struct watch *watch = user;
    watch->steps++;
    watch->skipped += progress->skipped;
    assert_true(isfinite(progress->loss));
}

static void accepted_configs_train_where_they_say(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char config[800], data[400], out[800];
        snprintf(config, sizeof(config), "%s/%s", folder, table[i].file);
        snprintf(data, sizeof(data), "%s/data.txt", folder);
        snprintf(out, sizeof(out), "%s/out-%zu", folder, i);
        const char *const files[] = {data};
        const char *const sets[] = {"train.steps=3", "train.sequence_length=8"};
        struct watch watch = {0};
        struct sl_train_options options = {
            .run = {.model = "tiny",
                    .config = config,
                    .sets = sets,
                    .set_count = 2,
                    .data = files,
                    .data_count = 1,
                    .device = "host:discrete"},
            .out = out,
            .progress = count_step,
            .user = &watch,
        };
        struct sl_error error = {0};
        check_plan(&options.run, &table[i]);
        if (sl_train(&options, NULL, &error))
            fail_msg("%s: %s", table[i].file, error.message);
        assert_int_equal(watch.steps, 3);
        if (watch.skipped < table[i].skipped_min || watch.skipped > table[i].skipped_max)
            fail_msg("%s: %llu steps skipped", table[i].file, (unsigned long long)watch.skipped);
    }
}

static size_t read_text(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing", path);
    size_t got = fread(text, 1, bytes - 1, file);
    text[got] = 0;
    fclose(file);
    return got;
}

/* The blocks that ask for files get them. */
static void monitors_and_profile_are_written(void **state)
{
    (void)state;
    char data[400], out[400], path[800], profile[600], text[4096];
    snprintf(data, sizeof(data), "%s/data.txt", folder);
    snprintf(out, sizeof(out), "%s/reports", folder);
    snprintf(profile, sizeof(profile), "flops_profiler.output_file=%s/profile.txt", folder);
    const char *const files[] = {data};
    const char *const sets[] = {"train.steps=3",
                                "train.sequence_length=8",
                                "csv_monitor.enabled=true",
                                "csv_monitor.job_name=job",
                                "flops_profiler.enabled=true",
                                "flops_profiler.profile_step=2",
                                profile};
    struct sl_train_options options = {
        .run = {.model = "tiny",
                .sets = sets,
                .set_count = sizeof(sets) / sizeof(sets[0]),
                .data = files,
                .data_count = 1,
                .device = "host"},
        .out = out,
    };
    struct sl_error error = {0};
    if (sl_train(&options, NULL, &error))
        fail_msg("%s", error.message);
    snprintf(path, sizeof(path), "%s/csv_monitor/job/Train_Samples_train_loss.csv", out);
    read_text(path, text, sizeof(text));
    unsigned long long step;
    double loss;
    assert_true(strncmp(text, "step,train_loss\n", 16) == 0);
    int lines = 0;
    for (const char *at = text + 16; *at; at = strchr(at, '\n') + 1, lines++) {
        assert_int_equal(sscanf(at, "%llu,%lf", &step, &loss), 2);
        assert_int_equal(step, lines + 1);
    }
    assert_int_equal(lines, 3);
    snprintf(path, sizeof(path), "%s/profile.txt", folder);
    read_text(path, text, sizeof(text));
    assert_non_null(strstr(text, "Flops profile of step 2: 1 x 8 tokens"));
    assert_non_null(strstr(text, "step latency"));
}

/* A refused configuration leaves nothing behind. */
static void refused_configs_create_nothing(void **state)
{
    (void)state;
    char out[400], data[400], path[800];
    const char *fixtures = getenv("SLUICE_TEST_FIXTURES");
    static const char *const refused[] = {"03-zero3-nvme-infinity-misspelt-key.json",
                                          "04-zero3-nvme-parameters-large-aio-blocks.json",
                                          "08-zero2-negative-min-loss-scale-no-batch-size.json",
                                          "14-accelerate-fsdp-cpu-offload.yaml"};
    snprintf(out, sizeof(out), "%s/nothing", folder);
    snprintf(data, sizeof(data), "%s/data.txt", folder);
    const char *const files[] = {data};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        snprintf(path, sizeof(path), "%s/configs/%s", fixtures ? fixtures : "tests/fixtures",
                 refused[i]);
        struct sl_train_options options = {
            .run =
                {.model = "tiny", .config = path, .data = files, .data_count = 1, .device = "host"},
            .out = out,
        };
        struct sl_error error = {0};
        assert_int_not_equal(sl_train(&options, NULL, &error), 0);
        assert_int_equal(error.domain, SL_DOMAIN_INPUT);
        assert_int_not_equal(access(out, F_OK), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_configs_train_where_they_say),
        cmocka_unit_test(monitors_and_profile_are_written),
        cmocka_unit_test(refused_configs_create_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
