// SPDX-License-Identifier: Apache-2.0
/* Names to devices. "auto" is the first GPU where there is one, else the host device, and one line
 * of the log says why. */
#include "offload/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "offload/device_cuda.h"
#include "offload/device_host.h"

/* The N of "cuda:N" (0 without one), or -1. */
static long cuda_index(const char *name)
{
    if (strcmp(name, "cuda") == 0)
        return 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    char *end;
    long index = strtol(name + 5, &end, 10);
    return *end == 0 && index < 1024 ? index : -1;
}

int sl_device_create(struct sl_device **out, const struct sl_device_options *options,
                     struct sl_error *error)
{
    const char *name = options->name ? options->name : "auto";
    *out = NULL;
    if (strcmp(name, "host") == 0)
        return sl_device_host_create(out, options, false, error);
    if (strcmp(name, "host:discrete") == 0)
        return sl_device_host_create(out, options, true, error);
    if (strcmp(name, "auto") == 0) {
        struct sl_error cause = {0};
        if (sl_device_cuda_open(out, options, 0, &cause) == 0)
            return 0;
        sl_log_write(options->log, SL_LOG_INFO, "device: the host device is used: %s",
                     cause.message);
        return sl_device_host_create(out, options, false, error);
    }
    if (cuda_index(name) >= 0)
        return sl_device_cuda_open(out, options, (unsigned)cuda_index(name), error);
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "device \"%s\" is unknown; give auto, host, host:discrete, cuda or cuda:N",
                        name);
}

void sl_device_destroy(struct sl_device *device)
{
    if (device)
        device->ops->destroy(device);
}
