// SPDX-License-Identifier: Apache-2.0
/* Names to devices. The CUDA module is found here and nowhere else. */
#include "offload/device.h"

#include <errno.h>
#include <string.h>

#include "offload/device_host.h"

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
        sl_log_write(options->log, SL_LOG_INFO,
                     "device: the host device is used (this build has no CUDA module)");
        return sl_device_host_create(out, options, false, error);
    }
    if (strcmp(name, "cuda") == 0 || strncmp(name, "cuda:", 5) == 0)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "device \"%s\": this build has no CUDA module; use --device host",
                            name);
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "device \"%s\" is unknown; give auto, host, host:discrete, cuda or cuda:N",
                        name);
}

void sl_device_destroy(struct sl_device *device)
{
    if (device)
        device->ops->destroy(device);
}
