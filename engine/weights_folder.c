// SPDX-License-Identifier: Apache-2.0
/* A model folder that appears whole or not at all.
 *
 * Files are written into a hidden sibling and the sibling is renamed: the rename is the commit. A
 * crash leaves the sibling, which the next attempt with the same target empties; it is recognized
 * by its name, and only plain files are ever removed from it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/weights.h"

static int fail(struct sl_error *error, int rc, const char *path, const char *what)
{
    return sl_error_set(error, SL_DOMAIN_IO, rc, "%s: %s: %s", path, what, strerror(-rc));
}

/* "a/b/" -> parent "a", name "b"; "b" -> ".", "b". */
static int split(const char *directory, char parent[SL_MODEL_FOLDER_PATH_BYTES],
                 char name[SL_MODEL_FOLDER_PATH_BYTES])
{
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/')
        length--;
    size_t slash = length;
    while (slash > 0 && directory[slash - 1] != '/')
        slash--;
    if (length == 0 || length - slash > 200 || slash == length || slash > 3800)
        return -EINVAL;
    memcpy(name, directory + slash, length - slash);
    name[length - slash] = '\0';
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return -EINVAL;
    size_t parent_length = slash > 1 ? slash - 1 : slash;
    memcpy(parent, slash ? directory : ".", slash ? parent_length : 1);
    parent[slash ? parent_length : 1] = '\0';
    return 0;
}

/* Call `each` for every entry of a folder but "." and "..". The first failure ends it. */
static int for_entries(const char *path, int (*each)(int folder, const char *name))
{
    DIR *folder = opendir(path);
    if (!folder)
        return -errno;
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(folder)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = each(dirfd(folder), entry->d_name);
    closedir(folder);
    return rc;
}

static int refuse_entry(int folder, const char *name)
{
    (void)folder;
    (void)name;
    return -ENOTEMPTY;
}

static int remove_entry(int folder, const char *name)
{
    return unlinkat(folder, name, 0) == 0 ? 0 : -errno;
}

static int sync_entry(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

static int sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

int sl_model_folder_begin(const char *directory, char temporary[SL_MODEL_FOLDER_PATH_BYTES],
                          struct sl_error *error)
{
    char parent[SL_MODEL_FOLDER_PATH_BYTES], name[SL_MODEL_FOLDER_PATH_BYTES];
    temporary[0] = '\0';
    int rc = split(directory, parent, name);
    if (rc)
        return sl_error_set(error, SL_DOMAIN_INPUT, rc, "\"%.200s\": not the name of a new folder",
                            directory);
    rc = for_entries(directory, refuse_entry);
    if (rc == -ENOTEMPTY || rc == -ENOTDIR)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EEXIST,
                            "%s: exists and is not an empty folder; give another name", directory);
    if (rc && rc != -ENOENT)
        return fail(error, rc, directory, "cannot look into it");
    int length = snprintf(temporary, SL_MODEL_FOLDER_PATH_BYTES, "%s/.%s.partial", parent, name);
    if (length >= SL_MODEL_FOLDER_PATH_BYTES)
        return fail(error, -ENAMETOOLONG, directory, "cannot name a folder beside it");
    if (mkdir(temporary, 0755) == 0)
        return 0;
    rc = -errno;
    if (rc == -EEXIST)
        rc = for_entries(temporary, remove_entry);
    return rc ? fail(error, rc, temporary, "cannot make it an empty folder") : 0;
}

int sl_model_folder_commit(const char *temporary, const char *directory, struct sl_error *error)
{
    char parent[SL_MODEL_FOLDER_PATH_BYTES], name[SL_MODEL_FOLDER_PATH_BYTES];
    int rc = split(directory, parent, name);
    if (!rc)
        rc = for_entries(temporary, sync_entry);
    if (!rc)
        rc = sync_folder(temporary);
    if (rc)
        return fail(error, rc, temporary, "cannot make it durable");
    if (rename(temporary, directory) != 0) /* replaces an empty folder */
        return fail(error, -errno, directory, "cannot rename the finished folder to it");
    rc = sync_folder(parent);
    return rc ? fail(error, rc, parent, "fsync") : 0;
}

void sl_model_folder_abort(const char *temporary)
{
    if (for_entries(temporary, remove_entry) == 0)
        rmdir(temporary);
}
