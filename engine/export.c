// SPDX-License-Identifier: Apache-2.0
#include "engine/export.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint.h"
#include "engine/weights.h"

static int failed(const char *path, struct sl_error *error)
{
    int code = errno ? -errno : -EIO;
    return sl_error_set(error, SL_DOMAIN_IO, code, "%s: %s", path, strerror(-code));
}

/* In the kernel where it can (a copy of a large shard need not pass through this process). */
static int copy_bytes(int from, int to, uint64_t bytes)
{
    while (bytes > 0) {
        size_t step = bytes < (1u << 30) ? (size_t)bytes : 1u << 30;
        ssize_t done = copy_file_range(from, NULL, to, NULL, step, 0);
        if (done < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS)) {
            char buffer[65536];
            done = read(from, buffer, step < sizeof(buffer) ? step : sizeof(buffer));
            for (ssize_t at = 0; done > 0 && at < done;) {
                ssize_t written = write(to, buffer + at, (size_t)(done - at));
                if (written <= 0)
                    return -1;
                at += written;
            }
        }
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        bytes -= (uint64_t)done;
    }
    return 0;
}

static int copy_file(const char *from, const char *to, struct sl_error *error)
{
    struct stat info;
    errno = 0;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &info) != 0) {
        int result = failed(from, error);
        if (in >= 0)
            close(in);
        return result;
    }
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int result = out < 0 ? failed(to, error) : 0;
    if (!result && copy_bytes(in, out, (uint64_t)info.st_size) != 0)
        result = failed(to, error);
    if (!result && fsync(out) != 0)
        result = failed(to, error);
    close(in);
    if (out >= 0 && close(out) != 0 && !result)
        result = failed(to, error);
    return result;
}

int sl_export_carry(const char *from, const char *to, struct sl_error *error)
{
    static const char *const names[] = {"generation_config.json", "chat_template.jinja",
                                        "special_tokens_map.json"};
    int result = 0;
    for (size_t i = 0; from && i < sizeof(names) / sizeof(names[0]) && !result; i++) {
        char source[SL_CHECKPOINT_PATH_BYTES + 32], target[SL_CHECKPOINT_PATH_BYTES + 32];
        snprintf(source, sizeof(source), "%s/%s", from, names[i]);
        snprintf(target, sizeof(target), "%s/%s", to, names[i]);
        if (access(source, F_OK) == 0 && access(target, F_OK) != 0)
            result = copy_file(source, target, error);
    }
    return result;
}

static int copy_folder(const char *from, const char *to, struct sl_error *error)
{
    DIR *folder = opendir(from);
    if (!folder)
        return failed(from, error);
    int result = 0;
    struct dirent *entry;
    while (!result && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || strncmp(entry->d_name, "sluice", 6) == 0)
            continue;
        char source[SL_CHECKPOINT_PATH_BYTES + 256], target[SL_CHECKPOINT_PATH_BYTES + 256];
        snprintf(source, sizeof(source), "%s/%s", from, entry->d_name);
        snprintf(target, sizeof(target), "%s/%s", to, entry->d_name);
        result = copy_file(source, target, error);
    }
    closedir(folder);
    return result;
}

int sl_export(const char *checkpoint, const char *directory, struct sl_error *error)
{
    struct sl_checkpoint manifest;
    char temporary[SL_MODEL_FOLDER_PATH_BYTES];
    int result = sl_checkpoint_read(checkpoint, &manifest, error);
    if (!result)
        result = sl_model_folder_begin(directory, temporary, error);
    if (result)
        return result;
    result = copy_folder(checkpoint, temporary, error);
    if (!result)
        result = sl_model_folder_commit(temporary, directory, error);
    if (result)
        sl_model_folder_abort(temporary);
    return result;
}
