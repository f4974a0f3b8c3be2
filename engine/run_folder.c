// SPDX-License-Identifier: Apache-2.0
/* The lock lies on log.jsonl, not on the folder: nvme.path may be the same folder, and the swap
 * space locks that one itself. It dies with the process, so that a kill leaves nothing to remove.
 */
#include "engine/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint.h"

static int fail(struct sl_error *error, const struct sl_run_folder *folder, int code)
{
    return sl_error_set(error, SL_DOMAIN_INPUT, code,
                        "--out %s: %s; give a folder that this user may write to", folder->path,
                        strerror(-code));
}

static int lock(struct sl_run_folder *folder, const struct sl_log *log, struct sl_error *error)
{
    if (flock(folder->fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EBUSY,
                            "--out %s: another run writes to it; wait for its end or give another "
                            "folder",
                            folder->path);
    sl_log_write(log, SL_LOG_WARNING,
                 "--out %s: its file system has no locks (%s): see to it that no second run writes "
                 "there",
                 folder->path, strerror(errno));
    return 0;
}

static int refuse_checkpoints(const struct sl_run_folder *folder, struct sl_error *error)
{
    char path[SL_CHECKPOINT_PATH_BYTES];
    struct sl_error none = {0};
    if (sl_checkpoint_latest(folder->path, path, &none) != 0)
        return 0;
    return sl_error_set(error, SL_DOMAIN_INPUT, -EEXIST,
                        "--out: %s is there from another run; --resume goes on with that one, for "
                        "a new one give another folder or remove its checkpoints",
                        path);
}

int sl_run_folder_open(struct sl_run_folder *folder, const char *path, bool resume,
                       const struct sl_log *log, struct sl_error *error)
{
    char name[SL_CHECKPOINT_PATH_BYTES];
    *folder = (struct sl_run_folder){.path = path, .fd = -1};
    /* Room for what is put behind it: "/checkpoint-", twenty digits, a file's name. */
    if (strlen(path) + 64 > sizeof(name) || path[0] == 0)
        return fail(error, folder, path[0] ? -ENAMETOOLONG : -ENOENT);
    int result = resume ? sl_checkpoint_latest(path, name, error) : 0;
    if (result)
        return result;
    folder->made_folder = mkdir(path, 0777) == 0;
    if (!folder->made_folder && errno != EEXIST)
        return fail(error, folder, -errno);
    snprintf(name, sizeof(name), "%s/log.jsonl", path);
    folder->made_log = access(name, F_OK) != 0;
    folder->fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    result = folder->fd < 0 ? fail(error, folder, -errno) : 0;
    if (result)
        folder->made_log = false;
    if (!result)
        result = lock(folder, log, error);
    if (!result && faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0)
        result = fail(error, folder, -errno);
    if (!result && !resume)
        result = refuse_checkpoints(folder, error);
    if (result)
        sl_run_folder_close(folder);
    return result;
}

void sl_run_folder_close(struct sl_run_folder *folder)
{
    char name[SL_CHECKPOINT_PATH_BYTES];
    struct stat info;
    if (!folder->path)
        return;
    snprintf(name, sizeof(name), "%s/log.jsonl", folder->path);
    if (folder->made_log && fstat(folder->fd, &info) == 0 && info.st_size == 0)
        unlink(name);
    if (folder->made_folder)
        rmdir(folder->path); /* stays where something is in it */
    if (folder->fd >= 0)
        close(folder->fd);
    *folder = (struct sl_run_folder){.fd = -1};
}
