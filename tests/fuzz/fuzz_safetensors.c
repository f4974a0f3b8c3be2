// SPDX-License-Identifier: Apache-2.0
/* Any bytes as a safetensors file: opened or refused, and what is opened can be read. */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_file(const struct sl_safetensors *file, uint64_t file_bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct sl_safetensor *tensor = &file->tensors[i];
        assert(tensor->begin <= tensor->end);
        assert(file->data_offset + tensor->end <= file_bytes);
        assert(sl_safetensors_find(file, tensor->name) == tensor);
        sum += tensor->end - tensor->begin;
        char byte;
        if (tensor->end > tensor->begin)
            assert(sl_safetensors_read(file, tensor, tensor->end - tensor->begin - 1, 1, &byte,
                                       NULL) == 0);
        assert(sl_safetensors_read(file, tensor, tensor->end - tensor->begin, 1, &byte, NULL) < 0);
    }
    assert(file->data_offset + sum == file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        assert(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    bool stored = ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size;
    assert(stored);
    struct sl_safetensors file;
    struct sl_error error = {0};
    int rc = sl_safetensors_open(&file, path, &error);
    if (rc == 0) {
        check_file(&file, size);
        sl_safetensors_close(&file);
    } else {
        assert(error.code == rc && strstr(error.message, path));
        assert(file.tensors == NULL && file.names == NULL);
    }
    return 0;
}
