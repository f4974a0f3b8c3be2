// SPDX-License-Identifier: Apache-2.0
#include "engine/process_memory.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static uint64_t status_bytes(const char *key)
{
    FILE *file = fopen("/proc/self/status", "re");
    if (!file)
        return 0;
    char line[256];
    unsigned long long kib = 0;
    size_t length = strlen(key);
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, key, length) == 0 && sscanf(line + length, ": %llu kB", &kib) == 1)
            break;
    fclose(file);
    return (uint64_t)kib << 10;
}

uint64_t sl_process_resident_bytes(void)
{
    return status_bytes("VmRSS");
}

uint64_t sl_process_peak_bytes(void)
{
    return status_bytes("VmHWM");
}

static uint64_t baseline_bytes, baseline_peak_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void measure_baseline(void)
{
    baseline_bytes = sl_process_resident_bytes();
    baseline_peak_bytes = sl_process_peak_bytes();
}

uint64_t sl_process_baseline_bytes(void)
{
    pthread_once(&once, measure_baseline);
    return baseline_bytes;
}

uint64_t sl_process_baseline_peak_bytes(void)
{
    pthread_once(&once, measure_baseline);
    return baseline_peak_bytes;
}
