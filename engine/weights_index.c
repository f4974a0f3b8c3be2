// SPDX-License-Identifier: Apache-2.0
/* Which files a model folder consists of.
 *
 * The index is a file of strangers: its names are taken only where they are plain file names of
 * the same folder, its size and the number of files are limited, and every entry is compared with
 * what the files really hold.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/weights_internal.h"

#define INDEX_BYTES_MAX (64u << 20)
#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

static char *join(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static bool exists(const char *directory, const char *name)
{
    char *path = join(directory, name);
    bool found = path && access(path, F_OK) == 0;
    free(path);
    return found;
}

static int no_weights(const char *directory, struct sl_error *error)
{
    static const struct {
        const char *file, *meaning;
    } known[] = {
        {"adapter_model.safetensors", "a LoRA adapter: merge it into its base model first"},
        {"adapter_model.bin", "a LoRA adapter: merge it into its base model first"},
        {"pytorch_model.bin", "a pickle: save it again with safe_serialization=True"},
        {"pytorch_model.bin.index.json", "pickles: save it again with safe_serialization=True"},
        {"tf_model.h5", "a TensorFlow file: save it again as safetensors"},
        {"consolidated.safetensors", "the publisher's own layout: take the transformers layout"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (exists(directory, known[i].file))
            return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT, "%s: has %s, %s", directory,
                                known[i].file, known[i].meaning);
    return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                        "%s: has neither " SINGLE_NAME " nor " INDEX_NAME, directory);
}

static json_t *load_index(const char *path, struct sl_error *error)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > INDEX_BYTES_MAX) {
        sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: not a regular file of at most 64 MiB",
                     path);
        return NULL;
    }
    json_error_t problem;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s:%d:%d: %s", path, problem.line,
                     problem.column, problem.text);
    return root;
}

static bool plain_name(const char *name)
{
    size_t n = strlen(name), suffix = strlen(".safetensors");
    return n > suffix && n < 256 && !strchr(name, '/') && name[0] != '.' &&
           strcmp(name + n - suffix, ".safetensors") == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the map, in order, borrowed from it. */
static int shard_names(json_t *map, const char *path, const char ***out, size_t *count,
                       struct sl_error *error)
{
    const char *key;
    json_t *value;
    size_t entries = json_object_size(map), n = 0;
    const char **names = calloc(entries + 1, sizeof *names);
    if (!names)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for its names", path);
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (!name || !plain_name(name)) {
            free(names);
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: weight_map \"%.80s\": \"%.80s\" is no plain file name that "
                                "ends in .safetensors",
                                path, key, name ? name : "(not a string)");
        }
        names[n++] = name;
    }
    qsort(names, n, sizeof *names, compare_names);
    *count = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[*count - 1]) != 0)
            names[(*count)++] = names[i];
    *out = names;
    if (*count >= 1 && *count <= SL_WEIGHTS_SHARDS_MAX)
        return 0;
    free(names);
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "%s: weight_map names %zu files: must be between 1 and %u", path, *count,
                        SL_WEIGHTS_SHARDS_MAX);
}

static int open_list(struct sl_weights *weights, const char *directory, const char **names,
                     size_t count, struct sl_error *error)
{
    weights->files = calloc(count, sizeof *weights->files);
    if (!weights->files)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for %zu files",
                            directory, count);
    for (size_t i = 0; i < count; i++) {
        char *path = join(directory, names[i]);
        if (!path)
            return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a path",
                                directory);
        int rc = sl_safetensors_open(&weights->files[i], path, error);
        free(path);
        if (rc)
            return rc;
        weights->file_count++;
    }
    return 0;
}

/* Every entry of the map is in the file it says. */
static int check_map(const struct sl_weights *weights, json_t *map, const char *path,
                     struct sl_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        bool found = false;
        for (size_t i = 0; i < weights->file_count && !found; i++) {
            const char *base = strrchr(weights->files[i].path, '/') + 1;
            found = strcmp(base, name) == 0 && sl_safetensors_find(&weights->files[i], key);
        }
        if (!found)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "%s: weight_map \"%.80s\": is not in %.80s", path, key, name);
    }
    return 0;
}

static int open_index(struct sl_weights *weights, const char *directory, struct sl_error *error)
{
    char *path = join(directory, INDEX_NAME);
    if (!path)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for a path",
                            directory);
    const char **names = NULL;
    size_t count = 0;
    json_t *root = load_index(path, error);
    json_t *map = json_object_get(root, "weight_map");
    int rc = root ? 0 : -EINVAL;
    if (!rc && !json_is_object(map))
        rc = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: has no object weight_map", path);
    if (!rc)
        rc = shard_names(map, path, &names, &count, error);
    if (!rc) {
        rc = open_list(weights, directory, names, count, error);
        free(names);
    }
    if (!rc)
        rc = check_map(weights, map, path, error);
    json_decref(root);
    free(path);
    return rc;
}

int sl_weights_open_files(struct sl_weights *weights, const char *directory, struct sl_error *error)
{
    const char *single = SINGLE_NAME;
    if (exists(directory, SINGLE_NAME))
        return open_list(weights, directory, &single, 1, error);
    if (exists(directory, INDEX_NAME))
        return open_index(weights, directory, error);
    return no_weights(directory, error);
}
