// SPDX-License-Identifier: Apache-2.0
/* Finding and loading the CUDA module.
 *
 * Problem   One installed program for machines with and without CUDA, and a message that says what
 *           is missing where it is not there.
 * Choice    dlopen at the first use. The driver is looked for first: it is one small library, and
 *           without it loading the module (which brings cuBLASLt, 500 MB) would be for nothing.
 * Rejected  Linking CUDA (the program would not start elsewhere); weak symbols (the same, less
 *           visibly). Unloading: CUDA's libraries leave threads and handlers behind.
 */
#include "offload/device_cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SL_CUDA_MODULE_DIR
#define SL_CUDA_MODULE_DIR ""
#endif

static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;
static const struct sl_cuda_module *loaded;

/* Cut the file name off a path; "" where there is no directory. */
static void keep_directory(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
    else
        path[0] = 0;
}

static bool try_open(void **handle, char *path, size_t bytes, const char *directory,
                     const char *below)
{
    if (directory[0] == 0)
        return false;
    int length = snprintf(path, bytes, "%s%s/%s", directory, below, SL_CUDA_MODULE_FILE);
    if (length < 0 || (size_t)length >= bytes || access(path, R_OK) != 0)
        return false;
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return true; /* found; whether it loads is the caller's question */
}

/* Open the first module found. `path` is the file that was tried, or "" where there is none. */
static void *open_module(char *path, size_t bytes)
{
    void *handle = NULL;
    const char *named = getenv("SLUICE_CUDA_MODULE");
    if (named && named[0]) {
        snprintf(path, bytes, "%s", named);
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    }
    char program[PATH_MAX] = "", library[PATH_MAX] = "";
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) > 0)
        keep_directory(program);
    Dl_info info;
    if (dladdr(&load_mutex, &info) && info.dli_fname) {
        snprintf(library, sizeof(library), "%s", info.dli_fname);
        keep_directory(library);
    }
    if (try_open(&handle, path, bytes, program, "") ||
        try_open(&handle, path, bytes, library, "") ||
        try_open(&handle, path, bytes, program, "/../kernels/cuda") ||
        try_open(&handle, path, bytes, program, "/../../kernels/cuda") ||
        try_open(&handle, path, bytes, SL_CUDA_MODULE_DIR, ""))
        return handle;
    path[0] = 0;
    return NULL;
}

static int check_driver(struct sl_error *error)
{
    const char *named = getenv("SLUICE_CUDA_MODULE");
    if (named && named[0])
        return 0;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver)
        return 0; /* stays open: the module needs it next */
    return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                        "no NVIDIA driver on this machine (%s); install one or use --device host",
                        dlerror());
}

static int load(struct sl_error *error)
{
    if (check_driver(error))
        return -ENODEV;
    char path[2 * PATH_MAX] = "";
    void *handle = open_module(path, sizeof(path));
    if (!handle && path[0] == 0)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "%s is neither beside the program nor in \"%s\": this build has no "
                            "CUDA module (build with -Dcuda=enabled, or name one in "
                            "SLUICE_CUDA_MODULE)",
                            SL_CUDA_MODULE_FILE, SL_CUDA_MODULE_DIR);
    if (!handle)
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "the CUDA module could not be loaded: %s; put the CUDA libraries on "
                            "LD_LIBRARY_PATH or use --device host",
                            dlerror());
    const struct sl_cuda_module *module = dlsym(handle, SL_CUDA_MODULE_SYMBOL);
    if (!module || module->module_bytes != sizeof(*module) ||
        module->device_bytes != sizeof(struct sl_device) ||
        module->ops_bytes != sizeof(struct sl_device_ops) ||
        module->options_bytes != sizeof(struct sl_device_options)) {
        dlclose(handle);
        return sl_error_set(error, SL_DOMAIN_DEVICE, -ENODEV,
                            "the CUDA module %s comes from another build of Sluice; install the "
                            "program and its module together",
                            path);
    }
    loaded = module;
    return 0;
}

int sl_device_cuda_open(struct sl_device **out, const struct sl_device_options *options,
                        unsigned index, struct sl_error *error)
{
    *out = NULL;
    pthread_mutex_lock(&load_mutex);
    int code = loaded ? 0 : load(error);
    pthread_mutex_unlock(&load_mutex);
    return code ? code : loaded->open(out, options, index, error);
}
