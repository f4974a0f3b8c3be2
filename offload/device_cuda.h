// SPDX-License-Identifier: Apache-2.0
/* The CUDA device, and the module that holds it.
 *
 * libsluice-cuda.so is loaded at run time, so that the same program runs where there is no CUDA.
 * The module exports one object, sl_cuda_module; program and module must come from one build.
 */
#ifndef SLUICE_OFFLOAD_DEVICE_CUDA_H
#define SLUICE_OFFLOAD_DEVICE_CUDA_H

#include "offload/device.h"

/* Open GPU number `index` (as CUDA counts them).
 *
 * The module is sought in SLUICE_CUDA_MODULE (a file: nothing else is tried, and the look for the
 * driver is left to the module), beside the program or library, in the build tree's place beside
 * the program, and in the installed library directory.
 * Owner    the caller, until sl_device_destroy; options->log is borrowed until then
 * Threads  any; the module stays loaded for the life of the process
 * Errors   -ENODEV: no module, no driver, driver too old, no such GPU, or a GPU that the module has
 *          no code for; -ENOMEM: the GPU has no room for context, workspace and scratch. The
 *          message names cause and remedy */
int sl_device_cuda_open(struct sl_device **out, const struct sl_device_options *options,
                        unsigned index, struct sl_error *error);

/* What the module exports. The sizes stand for the layout of what both sides share. */
struct sl_cuda_module {
    size_t module_bytes, device_bytes, ops_bytes, options_bytes;
    int (*open)(struct sl_device **out, const struct sl_device_options *options, unsigned index,
                struct sl_error *error);
};
#define SL_CUDA_MODULE_FILE "libsluice-cuda.so"
#define SL_CUDA_MODULE_SYMBOL "sl_cuda_module"

#endif
