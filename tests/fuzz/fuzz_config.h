// SPDX-License-Identifier: Apache-2.0
/* Shared by the two configuration fuzzers: bytes through a reader, then everything after it. */
#ifndef SLUICE_TESTS_FUZZ_CONFIG_H
#define SLUICE_TESTS_FUZZ_CONFIG_H

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/config_report.h"

/* What every accepted configuration promises to the engine. */
static void check_promises(const struct sl_config *config)
{
    assert(config->micro_batch >= 1 && config->accumulation >= 1);
    assert(config->train_batch == config->micro_batch * config->accumulation);
    for (int kind = 0; kind < SL_CONFIG_KIND_COUNT; kind++) {
        const double *fraction = config->placement[kind].fraction;
        double sum = fraction[0] + fraction[1] + fraction[2];
        assert(!config->placement[kind].given || fabs(sum - 1) < 1e-6);
        assert(fraction[0] >= 0 && fraction[1] >= 0 && fraction[2] >= 0);
    }
    assert(config->scaler.initial >= config->scaler.min && config->scaler.hysteresis >= 1);
    assert(config->optimizer.beta1 >= 0 && config->optimizer.beta1 <= 1);
    static const uint64_t steps[] = {0, 1, 999, 1u << 20};
    for (int i = 0; i < 4; i++)
        assert(isfinite(sl_schedule_lr(&config->schedule, steps[i])));
}

static int fuzz_config(const uint8_t *data, size_t size, const char *suffix)
{
    static struct sl_config config;
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        snprintf(path, sizeof(path), "/tmp/sluice-fuzz-%d%s", (int)getpid(), suffix);
        FILE *file = fopen(path, "w+b");
        assert(file);
        fd = fileno(file);
    }
    assert(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    const char *sets[] = {"train.steps=3"};
    struct sl_config_inputs inputs = {
        .path = path, .sets = sets, .set_count = 1, .model.hidden = 64};
    struct sl_config_report report = {0};
    struct sl_error error = {0};
    int result = sl_config_load(&config, &inputs, &report, &error);
    assert((result == 0) == (error.code == 0));
    if (!result)
        check_promises(&config);
    char *text = sl_config_report_text(&report, &config);
    char *json = sl_config_report_json(&report, &config);
    assert(text && json);
    free(text);
    free(json);
    sl_config_report_finish(&report);
    return 0;
}

#endif
