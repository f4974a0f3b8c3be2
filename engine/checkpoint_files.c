// SPDX-License-Identifier: Apache-2.0
/* Checkpoint folders below a run's output: names, the newest, pruning, and the hash from the files.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "engine/checkpoint.h"
#include "engine/safetensors.h"
#include "engine/state_hash.h"
#include "engine/weights.h"

#define PREFIX "checkpoint-"
#define CHUNK SL_STATE_HASH_CHUNK

void sl_checkpoint_path(const char *out, uint64_t step, char path[SL_CHECKPOINT_PATH_BYTES])
{
    snprintf(path, SL_CHECKPOINT_PATH_BYTES, "%s/" PREFIX "%08llu", out, (unsigned long long)step);
}

/* The step in a checkpoint's name; -1 where it is not one. */
static long long step_of(const char *name)
{
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return -1;
    char *end;
    const char *digits = name + strlen(PREFIX);
    long long step = strtoll(digits, &end, 10);
    return end == digits || *end ? -1 : step;
}

int sl_checkpoint_latest(const char *out, char path[SL_CHECKPOINT_PATH_BYTES],
                         struct sl_error *error)
{
    DIR *folder = opendir(out);
    long long best = -1;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        long long step = step_of(entry->d_name);
        if (step > best)
            best = step;
    }
    if (folder)
        closedir(folder);
    if (best < 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                            "--resume: there is no checkpoint below %s; start without --resume",
                            out);
    sl_checkpoint_path(out, (uint64_t)best, path);
    return 0;
}

static int remove_folder(const char *path, struct sl_error *error)
{
    /* Renamed first, so that a half-removed checkpoint does not look like a whole one. */
    char hidden[SL_CHECKPOINT_PATH_BYTES + 16];
    snprintf(hidden, sizeof(hidden), "%s.removing", path);
    if (rename(path, hidden) != 0)
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", path, strerror(errno));
    sl_model_folder_abort(hidden);
    return 0;
}

int sl_checkpoint_prune(const char *out, uint64_t keep, const char *except, struct sl_error *error)
{
    int result = 0;
    while (keep && !result) {
        DIR *folder = opendir(out);
        uint64_t count = 0;
        long long oldest = -1;
        struct dirent *entry;
        while (folder && (entry = readdir(folder))) {
            long long step = step_of(entry->d_name);
            char path[SL_CHECKPOINT_PATH_BYTES];
            if (step < 0)
                continue;
            sl_checkpoint_path(out, (uint64_t)step, path);
            if (except && strcmp(path, except) == 0)
                continue;
            count++;
            if (oldest < 0 || step < oldest)
                oldest = step;
        }
        if (folder)
            closedir(folder);
        if (count <= keep)
            break;
        char path[SL_CHECKPOINT_PATH_BYTES];
        sl_checkpoint_path(out, (uint64_t)oldest, path);
        result = remove_folder(path, error);
    }
    return result;
}

/* The optimizer's files of one checkpoint, as far as they are there. */
struct files {
    struct sl_safetensors master, moment[2], scale[2];
    bool has_master, has_moment[2], has_scale[2];
};

static int open_file(const char *directory, const char *name, struct sl_safetensors *file,
                     bool *open, struct sl_error *error)
{
    char path[SL_CHECKPOINT_PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/sluice-%s.safetensors", directory, name);
    if (access(path, F_OK) != 0)
        return 0;
    int result = sl_safetensors_open(file, path, error);
    *open = result == 0;
    return result;
}

static int hash_range(struct sl_state_hasher *hasher, const struct sl_safetensors *file,
                      const char *name, uint64_t first, uint64_t count, bool *there,
                      struct sl_error *error)
{
    const struct sl_safetensor *tensor = sl_safetensors_find(file, name);
    unsigned char buffer[CHUNK * 4];
    *there = tensor != NULL;
    if (!tensor)
        return 0;
    size_t element = sl_safetensors_type_bytes(tensor->type);
    uint64_t elements = (tensor->end - tensor->begin) / element;
    if (first >= elements || element > 4)
        return 0;
    count = sl_min_u64(count, elements - first);
    int result = sl_safetensors_read(file, tensor, first * element, count * element, buffer, error);
    if (!result)
        sl_state_hasher_bytes(hasher, buffer, count * element);
    return result;
}

static int hash_chunk(struct sl_state_hasher *hasher, struct sl_weights *weights,
                      const struct files *f, const struct sl_model *m, size_t param, uint64_t first,
                      uint64_t count, enum sl_dtype dtype, struct sl_error *error)
{
    unsigned char buffer[CHUNK * 4];
    const char *name = m->params[param].name;
    int result = sl_weights_read(weights, param, first, count, dtype, buffer, error);
    if (result)
        return result;
    sl_state_hasher_bytes(hasher, buffer, count * sl_dtype_bytes(dtype));
    bool trained = true;
    if (f->has_master)
        result = hash_range(hasher, &f->master, name, first, count, &trained, error);
    else if (f->has_moment[0] || f->has_moment[1])
        trained = sl_safetensors_find(&f->moment[f->has_moment[0] ? 0 : 1], name) != NULL;
    if (!f->has_master && trained && dtype == SL_F32) /* the weight is the master */
        sl_state_hasher_bytes(hasher, buffer, count * sl_dtype_bytes(dtype));
    for (int k = 0; k < 2 && !result && trained; k++) {
        bool there;
        if (f->has_moment[k])
            result = hash_range(hasher, &f->moment[k], name, first, count, &there, error);
        if (f->has_scale[k] && !result)
            result = hash_range(hasher, &f->scale[k], name, first / SL_OPTIM_Q8_BLOCK,
                                sl_div_up(count, SL_OPTIM_Q8_BLOCK), &there, error);
    }
    return result;
}

int sl_checkpoint_hash(const char *directory, uint64_t *hash, struct sl_error *error)
{
    struct sl_checkpoint checkpoint;
    struct sl_model model = {0};
    struct sl_weights *weights = NULL;
    struct sl_state_hasher *hasher = NULL;
    struct files f = {0};
    int result = sl_checkpoint_read(directory, &checkpoint, error);
    if (!result)
        result = sl_model_from_directory(&model, directory, error);
    if (!result)
        result = sl_weights_open(&weights, directory, &model, error);
    if (!result)
        result = open_file(directory, "master", &f.master, &f.has_master, error);
    static const char *const moments[] = {"exp_avg", "exp_avg_sq"};
    static const char *const scales[] = {"exp_avg_scale", "exp_avg_sq_scale"};
    for (int k = 0; k < 2 && !result; k++) {
        result = open_file(directory, moments[k], &f.moment[k], &f.has_moment[k], error);
        if (!result)
            result = open_file(directory, scales[k], &f.scale[k], &f.has_scale[k], error);
    }
    if (!result)
        result = sl_state_hasher_create(&hasher, error);
    for (size_t i = 0; i < model.param_count && !result; i++) {
        uint64_t elements = model.params[i].rows * model.params[i].columns;
        for (uint64_t at = 0; at < elements && !result; at += CHUNK)
            result = hash_chunk(hasher, weights, &f, &model, i, at,
                                sl_min_u64(CHUNK, elements - at), checkpoint.precision, error);
    }
    if (!result)
        *hash = sl_state_hasher_value(hasher);
    sl_state_hasher_destroy(hasher);
    if (f.has_master)
        sl_safetensors_close(&f.master);
    for (int k = 0; k < 2; k++) {
        if (f.has_moment[k])
            sl_safetensors_close(&f.moment[k]);
        if (f.has_scale[k])
            sl_safetensors_close(&f.scale[k]);
    }
    sl_weights_close(weights);
    sl_model_finish(&model);
    return result;
}
