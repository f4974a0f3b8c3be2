// SPDX-License-Identifier: Apache-2.0
/* Writing and reading the training state as safetensors, one span at a time, so that a save or a
 * load of any size takes no memory beyond the arena's staging and a buffer on the stack.
 *
 * The hash of the state is made in the same visit that writes it, from what lies in memory; a load
 * hashes what it has put there. What the disk lost between the two shows as a difference.
 */
#include "engine/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "engine/export.h"
#include "engine/safetensors.h"
#include "engine/state.h"
#include "engine/state_hash.h"
#include "engine/weights.h"

#define CHUNK SL_STATE_HASH_CHUNK

/* The optimizer's files, each one tensor per trained parameter. */
enum state_file { MASTER, EXP_AVG, EXP_AVG_SQ, EXP_AVG_SCALE, EXP_AVG_SQ_SCALE, STATE_FILES };
static const char *const state_names[STATE_FILES] = {"master", "exp_avg", "exp_avg_sq",
                                                     "exp_avg_scale", "exp_avg_sq_scale"};

static bool has_file(const struct sl_step_options *o, enum state_file file)
{
    bool moments[2] = {sl_optim_has_exp_avg(&o->hyper), sl_optim_has_exp_avg_sq(&o->hyper)};
    switch (file) {
    case MASTER:
        return o->precision != SL_F32 && o->master_kind != SL_MASTER_NONE;
    case EXP_AVG:
    case EXP_AVG_SQ:
        return moments[file - EXP_AVG];
    default:
        return moments[file - EXP_AVG_SCALE] && o->moment_kind == SL_MOMENT_Q8;
    }
}

static size_t element_bytes(const struct sl_step_options *o, enum state_file file)
{
    if (file == MASTER || file >= EXP_AVG_SCALE)
        return 4;
    return sl_moment_bytes(o->moment_kind);
}

static enum sl_safetensors_type element_type(const struct sl_step_options *o, enum state_file file)
{
    size_t bytes = element_bytes(o, file);
    return bytes == 4 ? SL_ST_F32 : bytes == 2 ? SL_ST_BF16 : SL_ST_U8;
}

static uint64_t param_count(const struct sl_param *param)
{
    return param->rows * param->columns;
}

struct save {
    struct sl_engine *engine;
    struct sl_weights_writer *weights;
    int fd[STATE_FILES];
    uint64_t *offset[STATE_FILES]; /* per parameter: byte in the file */
    struct sl_state_hasher *hasher;
};

static void state_path(const char *directory, enum state_file file,
                       char path[SL_CHECKPOINT_PATH_BYTES])
{
    snprintf(path, SL_CHECKPOINT_PATH_BYTES, "%s/sluice-%s.safetensors", directory,
             state_names[file]);
}

static int create_state_file(struct save *s, const char *directory, enum state_file file,
                             struct sl_error *error)
{
    const struct sl_model *m = s->engine->sp.options.model;
    struct sl_safetensor *tensors = calloc(m->param_count + 1, sizeof(*tensors));
    s->offset[file] = calloc(m->param_count + 1, sizeof(uint64_t));
    if (!tensors || !s->offset[file]) {
        free(tensors);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for a checkpoint");
    }
    size_t count = 0;
    for (size_t i = 0; i < m->param_count; i++) {
        const struct sl_param *param = &m->params[i];
        if (param->frozen)
            continue;
        struct sl_safetensor *t = &tensors[count++];
        t->name = (char *)(uintptr_t)param->name;
        t->type = element_type(&s->engine->sp.options, file);
        t->rank = param->vector ? 1 : 2;
        t->shape[0] = param->vector ? param->columns : param->rows;
        t->shape[1] = param->columns;
        if (file >= EXP_AVG_SCALE) {
            t->rank = 1;
            t->shape[0] = sl_div_up(param_count(param), SL_OPTIM_Q8_BLOCK);
        }
    }
    char path[SL_CHECKPOINT_PATH_BYTES];
    state_path(directory, file, path);
    uint64_t data = 0;
    int result = sl_safetensors_create(path, tensors, count, &s->fd[file], &data, error);
    for (size_t k = 0; k < count && !result; k++)
        for (size_t i = 0; i < m->param_count; i++)
            if (m->params[i].name == tensors[k].name)
                s->offset[file][i] = data + tensors[k].begin;
    free(tensors);
    return result;
}

static int write_at(int fd, const void *data, uint64_t bytes, uint64_t offset, const char *what,
                    struct sl_error *error)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(fd, from, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            int code = written < 0 ? -errno : -EIO;
            return sl_error_set(error, SL_DOMAIN_IO, code,
                                "checkpoint file sluice-%s.safetensors at byte %llu: %s", what,
                                (unsigned long long)offset, strerror(-code));
        }
        from += written;
        offset += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return 0;
}

static int write_state(struct save *s, enum state_file file, const struct sl_state_span *span,
                       uint64_t first, uint64_t count, const void *data, struct sl_error *error)
{
    if (s->fd[file] < 0 || !data)
        return 0;
    size_t bytes = element_bytes(&s->engine->sp.options, file);
    return write_at(s->fd[file], data, count * bytes, s->offset[file][span->param] + first * bytes,
                    state_names[file], error);
}

static int save_span(void *user, const struct sl_state_span *span, struct sl_error *error)
{
    struct save *s = user;
    const struct sl_step_plan *sp = &s->engine->sp;
    sl_state_hasher_add(s->hasher, sp, span);
    int result = sl_weights_writer_write(s->weights, span->param, span->first, span->count,
                                         sp->options.precision, span->weight, error);
    if (result || !span->trained)
        return result;
    float values[CHUNK];
    for (uint64_t at = 0; at < span->count && s->fd[MASTER] >= 0 && !result; at += CHUNK) {
        uint64_t count = sl_min_u64(CHUNK, span->count - at);
        sl_state_master_load(sp, span, at, count, values);
        result = write_state(s, MASTER, span, span->first + at, count, values, error);
    }
    uint64_t block = span->first / SL_OPTIM_Q8_BLOCK;
    uint64_t blocks = sl_div_up(span->count, SL_OPTIM_Q8_BLOCK);
    if (!result)
        result = write_state(s, EXP_AVG, span, span->first, span->count, span->exp_avg, error);
    if (!result)
        result =
            write_state(s, EXP_AVG_SQ, span, span->first, span->count, span->exp_avg_sq, error);
    if (!result)
        result = write_state(s, EXP_AVG_SCALE, span, block, blocks, span->exp_avg_scale, error);
    if (!result)
        result =
            write_state(s, EXP_AVG_SQ_SCALE, span, block, blocks, span->exp_avg_sq_scale, error);
    return result;
}

void sl_checkpoint_fingerprint(const struct sl_engine *engine, char text[SL_FINGERPRINT_BYTES])
{
    const struct sl_device_properties *p = &engine->device->properties;
    snprintf(text, SL_FINGERPRINT_BYTES, "%s", p->kind == SL_DEVICE_CUDA ? p->name : "host");
}

static int save_files(struct save *s, const char *directory, const struct sl_tokenizer *tokenizer,
                      struct sl_checkpoint *checkpoint, struct sl_error *error)
{
    const struct sl_step_options *o = &s->engine->sp.options;
    struct sl_weights_writer_options writer = {
        .directory = directory, .model = o->model, .dtype = o->precision};
    int result = sl_model_write_config(o->model, o->precision, directory, error);
    if (!result && tokenizer)
        result = sl_tokenizer_save(tokenizer, directory, error);
    if (!result)
        result = sl_weights_writer_create(&s->weights, &writer, error);
    for (int file = 0; file < STATE_FILES && !result; file++)
        if (has_file(o, (enum state_file)file))
            result = create_state_file(s, directory, (enum state_file)file, error);
    if (!result)
        result = sl_state_hasher_create(&s->hasher, error);
    if (!result)
        result = sl_state_visit(s->engine, SL_STATE_READ, save_span, s, error);
    if (!result) {
        struct sl_weights_writer *weights = s->weights;
        s->weights = NULL;
        result = sl_weights_writer_finish(weights, error);
        checkpoint->state_hash = sl_state_hasher_value(s->hasher);
    }
    for (int file = 0; file < STATE_FILES && !result; file++)
        if (s->fd[file] >= 0 && fsync(s->fd[file]) != 0)
            result = sl_error_set(error, SL_DOMAIN_IO, -errno,
                                  "checkpoint file sluice-%s.safetensors: %s", state_names[file],
                                  strerror(errno));
    if (!result)
        result = sl_checkpoint_manifest_write(directory, checkpoint, error);
    return result;
}

int sl_checkpoint_save(struct sl_engine *engine, const char *directory, const char *origin,
                       const struct sl_tokenizer *tokenizer, struct sl_checkpoint *checkpoint,
                       struct sl_error *error)
{
    char temporary[SL_MODEL_FOLDER_PATH_BYTES];
    int result = sl_model_folder_begin(directory, temporary, error);
    if (result)
        return result;
    struct save s = {.engine = engine, .fd = {-1, -1, -1, -1, -1}};
    result = save_files(&s, temporary, tokenizer, checkpoint, error);
    if (!result)
        result = sl_export_carry(origin, temporary, error);
    sl_weights_writer_abort(s.weights);
    sl_state_hasher_destroy(s.hasher);
    for (int file = 0; file < STATE_FILES; file++) {
        if (s.fd[file] >= 0)
            close(s.fd[file]);
        free(s.offset[file]);
    }
    if (!result)
        result = sl_model_folder_commit(temporary, directory, error);
    if (result)
        sl_model_folder_abort(temporary);
    return result;
}

struct load {
    struct sl_engine *engine;
    struct sl_safetensors file[STATE_FILES];
    bool open[STATE_FILES];
    struct sl_weights *weights; /* masters from weights: no master file */
};

static int read_state(struct load *l, enum state_file file, const struct sl_state_span *span,
                      uint64_t first, uint64_t count, void *out, struct sl_error *error)
{
    if (!l->open[file] || !out)
        return 0;
    const struct sl_step_options *o = &l->engine->sp.options;
    size_t bytes = element_bytes(o, file);
    const struct sl_param *param = &o->model->params[span->param];
    const struct sl_safetensor *tensor = sl_safetensors_find(&l->file[file], param->name);
    if (!tensor || tensor->type != element_type(o, file) ||
        (first + count) * bytes > tensor->end - tensor->begin)
        return sl_error_set(error, SL_DOMAIN_DATA, -EBADMSG,
                            "%s: tensor \"%s\" is missing or has another type or shape",
                            l->file[file].path, param->name);
    return sl_safetensors_read(&l->file[file], tensor, first * bytes, count * bytes, out, error);
}

static int load_span(void *user, const struct sl_state_span *span, struct sl_error *error)
{
    struct load *l = user;
    const struct sl_step_plan *sp = &l->engine->sp;
    float values[CHUNK];
    int result = 0;
    for (uint64_t at = 0; at < span->count && !result; at += CHUNK) {
        uint64_t count = sl_min_u64(CHUNK, span->count - at);
        if (span->trained && l->open[MASTER])
            result = read_state(l, MASTER, span, span->first + at, count, values, error);
        else
            result = sl_weights_read(l->weights, span->param, span->first + at, count, SL_F32,
                                     values, error);
        if (!result)
            sl_state_master_store(sp, span, at, count, values);
    }
    uint64_t block = span->first / SL_OPTIM_Q8_BLOCK;
    uint64_t blocks = sl_div_up(span->count, SL_OPTIM_Q8_BLOCK);
    if (!result)
        result = read_state(l, EXP_AVG, span, span->first, span->count, span->exp_avg, error);
    if (!result)
        result = read_state(l, EXP_AVG_SQ, span, span->first, span->count, span->exp_avg_sq, error);
    if (!result)
        result = read_state(l, EXP_AVG_SCALE, span, block, blocks, span->exp_avg_scale, error);
    if (!result)
        result =
            read_state(l, EXP_AVG_SQ_SCALE, span, block, blocks, span->exp_avg_sq_scale, error);
    return result;
}

static int load_files(struct sl_engine *engine, const char *directory, bool state,
                      struct sl_error *error)
{
    const struct sl_step_options *o = &engine->sp.options;
    struct load l = {.engine = engine};
    int result = sl_weights_open(&l.weights, directory, o->model, error);
    for (int file = 0; file < STATE_FILES && !result && state; file++) {
        if (!has_file(o, (enum state_file)file))
            continue;
        char path[SL_CHECKPOINT_PATH_BYTES];
        state_path(directory, (enum state_file)file, path);
        result = sl_safetensors_open(&l.file[file], path, error);
        l.open[file] = result == 0;
    }
    if (!result)
        result = sl_state_visit(engine, SL_STATE_FILL, load_span, &l, error);
    for (int file = 0; file < STATE_FILES; file++)
        if (l.open[file])
            sl_safetensors_close(&l.file[file]);
    sl_weights_close(l.weights);
    return result;
}

int sl_checkpoint_load_weights(struct sl_engine *engine, const char *directory,
                               struct sl_error *error)
{
    return load_files(engine, directory, false, error);
}

int sl_checkpoint_load(struct sl_engine *engine, const char *directory,
                       const struct sl_checkpoint *checkpoint, struct sl_error *error)
{
    uint64_t hash = 0;
    int result = load_files(engine, directory, true, error);
    if (!result)
        result = sl_state_hash(engine, &hash, error);
    if (!result && hash != checkpoint->state_hash)
        result = sl_error_set(
            error, SL_DOMAIN_DATA, -EBADMSG,
            "%s: the state read back has hash %016llx, the manifest says %016llx: "
            "the files were changed or damaged; resume from another checkpoint",
            directory, (unsigned long long)hash, (unsigned long long)checkpoint->state_hash);
    if (result)
        return result;
    struct sl_step_control *control = sl_engine_control(engine);
    *control = (struct sl_step_control){.updates = checkpoint->updates};
    return 0;
}
