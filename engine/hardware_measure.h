// SPDX-License-Identifier: Apache-2.0
/* Measures this machine and fills a hardware profile: what `sluice doctor --measure` does. */
#ifndef SLUICE_ENGINE_HARDWARE_MEASURE_H
#define SLUICE_ENGINE_HARDWARE_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/hardware.h"
#include "offload/device.h"
#include "offload/workers.h"

struct sl_measure_options {
    const char *name;              /* of the profile; NULL: "this-machine" */
    struct sl_workers *workers;    /* borrowed */
    struct sl_device *device;      /* borrowed; its link is measured where it is not unified */
    const char *const *nvme_paths; /* striped as training would; none: no drive in the profile */
    size_t nvme_path_count;
    uint64_t nvme_bytes;  /* of the file that is written and read; 0: 1 GiB */
    uint64_t array_bytes; /* of the memory figures, several are made; 0: 256 MiB */
    double seconds;       /* per figure, at least; 0: 0.5 */
    const struct sl_log *log;
};

struct sl_measured {
    struct sl_hardware hardware;
    char source[SL_HARDWARE_FIELDS_MAX][160]; /* how each field was measured */
};

/* Measure. Takes some seconds, needs the machine to be quiet, and about 1.5 GiB with the defaults.
 *
 * Threads  one call at a time; uses the workers
 * Errors   -ENOMEM; what the device or the swap reports */
int sl_hardware_measure(struct sl_measured *out, const struct sl_measure_options *options,
                        struct sl_error *error);

/* Write it as a profile (engine/hardware.h). */
int sl_measured_write(const struct sl_measured *measured, const char *path, struct sl_error *error);

#endif
