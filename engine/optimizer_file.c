// SPDX-License-Identifier: Apache-2.0
/* The stand-alone optimizer's state as one safetensors file, whole or absent.
 *
 * Per parameter a tensor for each array, "exp_avg.NAME", and "updates.NAME"; "sluice.optimizer" is
 * what the file was made with and the hash of it all. The layout is a function of the parameters
 * alone, so a file may be loaded on another placement, thread count or sub-group size.
 *
 * Choice    A load reads the file twice: the hash first, then the state. So a damaged file is
 *           refused before anything has changed, without memory for a second state.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/size.h"
#include "engine/optimizer_internal.h"
#include "engine/safetensors.h"
#include "engine/weights_output.h"
#include "nvme/file.h"

#define HEAD "sluice.optimizer"
enum { HEAD_VERSION, HEAD_ALGORITHM, HEAD_STATE, HEAD_MASTER, HEAD_PARAMS, HEAD_HASH, HEAD_WORDS };
enum { PARAM_UPDATES, PARAM_MASTER_SET, PARAM_INDEX, PARAM_DTYPE, PARAM_WORDS };
#define VERSION 1u
#define TENSORS_PER_PARAM (SL_OPTIMIZER_ARRAYS + 1)

static const char *array_name(const struct sl_optimizer *optimizer, int array)
{
    static const char *const names[SL_OPTIMIZER_ARRAYS] = {"master", "exp_avg", "exp_avg_sq",
                                                           "exp_avg_scale", "exp_avg_sq_scale"};
    bool split = optimizer->options.master == SL_OPTIMIZER_MASTER_SPLIT;
    return array == SL_OPTIMIZER_MASTER && split ? "master_low" : names[array];
}

static enum sl_safetensors_type array_type(const struct sl_optimizer *optimizer, int array)
{
    uint32_t bytes = optimizer_entry_bytes(optimizer, (enum sl_optimizer_array)array);
    if (bytes == 4)
        return SL_ST_F32;
    if (bytes == 1)
        return SL_ST_U8;
    return array == SL_OPTIMIZER_MASTER ? SL_ST_U16 : SL_ST_BF16;
}

/* "PREFIX.NAME", to be freed. */
static char *join(const char *prefix, const char *name)
{
    char *text = NULL;
    return asprintf(&text, "%s.%s", prefix, name) < 0 ? NULL : text;
}

static void param_words(const struct sl_optimizer *optimizer, uint32_t index,
                        uint64_t words[PARAM_WORDS])
{
    const struct optimizer_param *param = &optimizer->params[index];
    words[PARAM_UPDATES] = param->updates;
    words[PARAM_MASTER_SET] = param->master_set;
    words[PARAM_INDEX] = index;
    words[PARAM_DTYPE] = (uint64_t)param->dtype;
}

/* ---- save ---- */

struct save {
    struct sl_optimizer *optimizer;
    struct sl_weights_output *output;
    uint64_t (*offset)[TENSORS_PER_PARAM]; /* per parameter, of each array and of its words */
    uint64_t head_offset;
    XXH3_state_t *hash;
};

static int save_unit(void *user, const struct optimizer_unit *unit, unsigned char *state,
                     struct sl_error *error)
{
    struct save *s = user;
    struct sl_optimizer *optimizer = s->optimizer;
    struct optimizer_arrays arrays;
    int result = 0;
    optimizer_arrays_of(optimizer, &optimizer->params[unit->param], unit->count, &arrays);
    if (unit->first == 0) {
        uint64_t words[PARAM_WORDS];
        param_words(optimizer, unit->param, words);
        XXH3_64bits_update(s->hash, words, sizeof(words));
        result = sl_weights_output_write(s->output, 0, s->offset[unit->param][SL_OPTIMIZER_ARRAYS],
                                         words, sizeof(words), error);
    }
    for (int a = 0; a < SL_OPTIMIZER_ARRAYS && !result; a++) {
        if (!arrays.bytes[a])
            continue;
        uint64_t entry =
            a >= SL_OPTIMIZER_EXP_AVG_SCALE ? unit->first / SL_OPTIM_Q8_BLOCK : unit->first;
        uint64_t at = s->offset[unit->param][a] +
                      entry * optimizer_entry_bytes(optimizer, (enum sl_optimizer_array)a);
        XXH3_64bits_update(s->hash, state + arrays.offset[a], arrays.bytes[a]);
        result = sl_weights_output_write(s->output, 0, at, state + arrays.offset[a],
                                         arrays.bytes[a], error);
    }
    return result;
}

/* List the tensors, create the file, and note where each belongs. */
static int create_file(struct save *s, const char *path, int *fd, struct sl_error *error)
{
    struct sl_optimizer *optimizer = s->optimizer;
    size_t count = 0, room = optimizer->param_count * TENSORS_PER_PARAM + 1;
    struct sl_safetensor *tensors = calloc(room, sizeof(*tensors));
    /* Where the offset belongs rides in the last, unused, dimension. */
    bool named = tensors != NULL;
    if (named)
        tensors[count++] = (struct sl_safetensor){
            .name = strdup(HEAD), .type = SL_ST_U64, .rank = 1, .shape = {HEAD_WORDS}};
    for (size_t i = 0; i < optimizer->param_count && named; i++) {
        const struct optimizer_param *param = &optimizer->params[i];
        struct optimizer_arrays arrays;
        optimizer_arrays_of(optimizer, param, param->count, &arrays);
        for (int a = 0; a < TENSORS_PER_PARAM && named; a++) {
            bool words = a == SL_OPTIMIZER_ARRAYS;
            if (!words && !arrays.bytes[a])
                continue;
            struct sl_safetensor *t = &tensors[count++];
            t->name = join(words ? "updates" : array_name(optimizer, a), param->name);
            t->type = words ? SL_ST_U64 : array_type(optimizer, a);
            t->rank = 1;
            t->shape[0] = words ? PARAM_WORDS
                                : arrays.bytes[a] /
                                      optimizer_entry_bytes(optimizer, (enum sl_optimizer_array)a);
            t->shape[SL_SAFETENSORS_RANK_MAX - 1] = i * TENSORS_PER_PARAM + (unsigned)a + 1;
            named = t->name != NULL;
        }
    }
    uint64_t data = 0;
    int result = named ? sl_safetensors_create(path, tensors, count, fd, &data, error)
                       : sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for names");
    for (size_t k = 0; k < count; k++) {
        uint64_t place = tensors[k].shape[SL_SAFETENSORS_RANK_MAX - 1];
        if (place)
            (&s->offset[0][0])[place - 1] = data + tensors[k].begin;
        else
            s->head_offset = data + tensors[k].begin;
        free(tensors[k].name);
    }
    free(tensors);
    return result;
}

static int save_file(struct save *s, const char *path, struct sl_error *error)
{
    struct sl_optimizer *optimizer = s->optimizer;
    int fd = -1;
    s->hash = XXH3_createState();
    s->offset = calloc(optimizer->param_count, sizeof(*s->offset));
    if (!s->hash || !s->offset)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory to save");
    XXH3_64bits_reset(s->hash);
    int result = sl_weights_output_create(&s->output, 1, error);
    if (!result)
        result = create_file(s, path, &fd, error);
    if (result)
        return result;
    sl_weights_output_add(s->output, 0, fd, path);
    result = optimizer_visit(optimizer, 0, optimizer->unit_count, false, save_unit, s, error);
    uint64_t head[HEAD_WORDS] = {VERSION, optimizer->options.algorithm, optimizer->options.state,
                                 optimizer->options.master, optimizer->param_count};
    if (!result) {
        XXH3_64bits_update(s->hash, head, HEAD_HASH * sizeof(*head));
        head[HEAD_HASH] = XXH3_64bits_digest(s->hash);
        result = sl_weights_output_write(s->output, 0, s->head_offset, head, sizeof(head), error);
    }
    if (!result)
        result = sl_weights_output_sync(s->output, error);
    return result;
}

int sl_optimizer_save(struct sl_optimizer *optimizer, const char *path, struct sl_error *error)
{
    int result = optimizer_usable(optimizer, error);
    if (result)
        return result;
    char *partial = join(path, "partial");
    if (!partial)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory to save");
    unlink(partial); /* of a run that was killed */
    struct save s = {.optimizer = optimizer};
    result = save_file(&s, partial, error);
    sl_weights_output_destroy(s.output);
    XXH3_freeState(s.hash);
    free(s.offset);
    if (!result && rename(partial, path) != 0)
        result = sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", path, strerror(errno));
    if (result)
        unlink(partial);
    else
        result = sl_file_sync_parent(path, error);
    free(partial);
    return result;
}

/* ---- load ---- */

struct load {
    struct sl_optimizer *optimizer;
    struct sl_safetensors file;
    const struct sl_safetensor *(*tensor)[TENSORS_PER_PARAM];
    uint64_t (*words)[PARAM_WORDS];
};

static int mismatch(const struct load *l, const char *what, uint64_t in_file, uint64_t here,
                    struct sl_error *error)
{
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "%s: made with %s %llu, this optimizer has %llu; use the same options and "
                        "parameters",
                        l->file.path, what, (unsigned long long)in_file, (unsigned long long)here);
}

/* Find a tensor that must be there with this type and number of entries. */
static int find(const struct load *l, char *name, enum sl_safetensors_type type, uint64_t entries,
                const struct sl_safetensor **tensor, struct sl_error *error)
{
    int result = 0;
    *tensor = name ? sl_safetensors_find(&l->file, name) : NULL;
    if (!name)
        result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for names");
    else if (!*tensor || (*tensor)->type != type ||
             (*tensor)->end - (*tensor)->begin != entries * sl_safetensors_type_bytes(type))
        result = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                              "%s: tensor \"%s\" is missing or has another type or size than this "
                              "optimizer's; use the same options and parameters",
                              l->file.path, name);
    return result;
}

static int find_param(struct load *l, uint32_t i, struct sl_error *error)
{
    const struct sl_optimizer *optimizer = l->optimizer;
    const struct optimizer_param *param = &optimizer->params[i];
    struct optimizer_arrays arrays;
    int result = 0;
    optimizer_arrays_of(optimizer, param, param->count, &arrays);
    for (int a = 0; a < TENSORS_PER_PARAM && !result; a++) {
        bool words = a == SL_OPTIMIZER_ARRAYS;
        if (!words && !arrays.bytes[a])
            continue;
        char *name = join(words ? "updates" : array_name(optimizer, a), param->name);
        enum sl_safetensors_type type = words ? SL_ST_U64 : array_type(optimizer, a);
        uint64_t entries = words ? PARAM_WORDS : arrays.bytes[a] / sl_safetensors_type_bytes(type);
        result = find(l, name, type, entries, &l->tensor[i][a], error);
        free(name);
    }
    if (!result)
        result = sl_safetensors_read(&l->file, l->tensor[i][SL_OPTIMIZER_ARRAYS], 0,
                                     sizeof(l->words[i]), l->words[i], error);
    if (!result && l->words[i][PARAM_INDEX] != i)
        result = mismatch(l, "this parameter at place", l->words[i][PARAM_INDEX], i, error);
    if (!result && l->words[i][PARAM_DTYPE] != (uint64_t)param->dtype)
        result = mismatch(l, "dtype", l->words[i][PARAM_DTYPE], (uint64_t)param->dtype, error);
    if (result)
        sl_error_prefix(error, "parameter \"%s\"", param->name);
    return result;
}

static int read_array(const struct load *l, const struct optimizer_unit *unit, int array,
                      uint64_t bytes, void *out, struct sl_error *error)
{
    uint64_t entry =
        array >= SL_OPTIMIZER_EXP_AVG_SCALE ? unit->first / SL_OPTIM_Q8_BLOCK : unit->first;
    uint64_t first = entry * optimizer_entry_bytes(l->optimizer, (enum sl_optimizer_array)array);
    return sl_safetensors_read(&l->file, l->tensor[unit->param][array], first, bytes, out, error);
}

static int load_unit(void *user, const struct optimizer_unit *unit, unsigned char *state,
                     struct sl_error *error)
{
    struct load *l = user;
    struct optimizer_arrays arrays;
    int result = 0;
    optimizer_arrays_of(l->optimizer, &l->optimizer->params[unit->param], unit->count, &arrays);
    for (int a = 0; a < SL_OPTIMIZER_ARRAYS && !result; a++)
        if (arrays.bytes[a])
            result = read_array(l, unit, a, arrays.bytes[a], state + arrays.offset[a], error);
    return result;
}

/* Hash the file in the order of a save. */
static int check_hash(struct load *l, const uint64_t head[HEAD_WORDS], struct sl_error *error)
{
    const struct sl_optimizer *optimizer = l->optimizer;
    XXH3_state_t *hash = XXH3_createState();
    void *buffer = malloc((size_t)OPTIMIZER_UNIT * 4);
    int result = 0;
    if (!hash || !buffer)
        result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory to load");
    else
        XXH3_64bits_reset(hash);
    for (uint64_t u = 0; u < optimizer->unit_count && !result; u++) {
        const struct optimizer_unit *unit = &optimizer->units[u];
        struct optimizer_arrays arrays;
        optimizer_arrays_of(optimizer, &optimizer->params[unit->param], unit->count, &arrays);
        if (unit->first == 0)
            XXH3_64bits_update(hash, l->words[unit->param], sizeof(l->words[0]));
        for (int a = 0; a < SL_OPTIMIZER_ARRAYS && !result; a++) {
            if (!arrays.bytes[a])
                continue;
            result = read_array(l, unit, a, arrays.bytes[a], buffer, error);
            XXH3_64bits_update(hash, buffer, arrays.bytes[a]);
        }
    }
    if (!result) {
        XXH3_64bits_update(hash, head, HEAD_HASH * sizeof(*head));
        uint64_t value = XXH3_64bits_digest(hash);
        if (value != head[HEAD_HASH])
            result = sl_error_set(error, SL_DOMAIN_DATA, -EBADMSG,
                                  "%s: saved as %016llx, the file now holds %016llx: changed or "
                                  "damaged; nothing was loaded",
                                  l->file.path, (unsigned long long)head[HEAD_HASH],
                                  (unsigned long long)value);
    }
    free(buffer);
    XXH3_freeState(hash);
    return result;
}

static int check_file(struct load *l, struct sl_error *error)
{
    const struct sl_optimizer *optimizer = l->optimizer;
    const struct sl_safetensor *tensor = sl_safetensors_find(&l->file, HEAD);
    uint64_t head[HEAD_WORDS];
    if (!tensor || tensor->type != SL_ST_U64 || tensor->end - tensor->begin != sizeof(head))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: not the state of an optimizer (no \"" HEAD "\")", l->file.path);
    int result = sl_safetensors_read(&l->file, tensor, 0, sizeof(head), head, error);
    if (result)
        return result;
    const struct sl_optimizer_options *o = &optimizer->options;
    if (head[HEAD_VERSION] != VERSION)
        return mismatch(l, "version", head[HEAD_VERSION], VERSION, error);
    if (head[HEAD_ALGORITHM] != (uint64_t)o->algorithm)
        return mismatch(l, "algorithm", head[HEAD_ALGORITHM], (uint64_t)o->algorithm, error);
    if (head[HEAD_STATE] != (uint64_t)o->state)
        return mismatch(l, "state", head[HEAD_STATE], (uint64_t)o->state, error);
    if (head[HEAD_MASTER] != (uint64_t)o->master)
        return mismatch(l, "master", head[HEAD_MASTER], (uint64_t)o->master, error);
    if (head[HEAD_PARAMS] != optimizer->param_count)
        return mismatch(l, "parameters:", head[HEAD_PARAMS], optimizer->param_count, error);
    for (uint32_t i = 0; i < optimizer->param_count && !result; i++)
        result = find_param(l, i, error);
    return result ? result : check_hash(l, head, error);
}

int sl_optimizer_load(struct sl_optimizer *optimizer, const char *path, struct sl_error *error)
{
    int result = optimizer_usable(optimizer, error);
    if (result)
        return result;
    struct load l = {.optimizer = optimizer};
    result = sl_safetensors_open(&l.file, path, error);
    if (result)
        return result;
    l.tensor = calloc(optimizer->param_count, sizeof(*l.tensor));
    l.words = calloc(optimizer->param_count, sizeof(*l.words));
    if (!l.tensor || !l.words)
        result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory to load");
    if (!result)
        result = check_file(&l, error);
    if (!result) {
        result = optimizer_visit(optimizer, 0, optimizer->unit_count, true, load_unit, &l, error);
        /* What was read a moment ago could not be read again: half of the state is the old one. */
        if (result && !optimizer->failure.code)
            sl_error_set(
                &optimizer->failure, SL_DOMAIN_IO, result,
                "optimizer state: a load of \"%s\" broke off; load it into a new optimizer", path);
    }
    for (size_t i = 0; i < optimizer->param_count && !result; i++) {
        optimizer->params[i].updates = l.words[i][PARAM_UPDATES];
        optimizer->params[i].master_set = l.words[i][PARAM_MASTER_SET] != 0;
    }
    free(l.tensor);
    free(l.words);
    sl_safetensors_close(&l.file);
    return result;
}
