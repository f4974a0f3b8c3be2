// SPDX-License-Identifier: Apache-2.0
/* The stand-alone optimizer's state, array by array, wherever it lies. */
#include <errno.h>
#include <string.h>

#include "base/size.h"
#include "engine/optimizer_internal.h"

/* Read or write a whole sub-group through the first slot. */
static int move(struct sl_optimizer *optimizer, const struct optimizer_sub_group *group, bool write,
                struct sl_error *error)
{
    int code = sl_swap_transfer(optimizer->swap, write, group->offset, optimizer->slots[0].buffer,
                                group->bytes);
    return code ? optimizer_fail(optimizer, code, error) : 0;
}

int optimizer_visit(struct sl_optimizer *optimizer, uint64_t first, uint64_t count, bool write,
                    optimizer_visitor visitor, void *user, struct sl_error *error)
{
    int result = 0;
    for (uint64_t g = 0; g < optimizer->sub_group_count && !result; g++) {
        const struct optimizer_sub_group *group = &optimizer->sub_groups[g];
        uint64_t from = sl_max_u64(first, group->unit_first);
        uint64_t to = sl_min_u64(first + count, group->unit_first + group->unit_count);
        if (from >= to)
            continue;
        unsigned char *state = optimizer->arena.base + group->offset;
        if (group->nvme) {
            state = optimizer->slots[0].buffer;
            result = move(optimizer, group, false, error);
        }
        for (uint64_t u = from; u < to && !result; u++)
            result = visitor(user, &optimizer->units[u], state + optimizer->units[u].offset, error);
        if (group->nvme && write && !result)
            result = move(optimizer, group, true, error);
    }
    return result;
}

struct copy {
    const struct sl_optimizer *optimizer;
    enum sl_optimizer_array array;
    char *out;
    const char *in;
};

static int copy_unit(void *user, const struct optimizer_unit *unit, unsigned char *state,
                     struct sl_error *error)
{
    const struct copy *copy = user;
    const struct sl_optimizer *optimizer = copy->optimizer;
    struct optimizer_arrays arrays;
    (void)error;
    optimizer_arrays_of(optimizer, &optimizer->params[unit->param], unit->count, &arrays);
    uint64_t entry =
        copy->array >= SL_OPTIMIZER_EXP_AVG_SCALE ? unit->first / SL_OPTIM_Q8_BLOCK : unit->first;
    uint64_t at = entry * optimizer_entry_bytes(optimizer, copy->array);
    unsigned char *place = state + arrays.offset[copy->array];
    if (copy->out)
        memcpy(copy->out + at, place, arrays.bytes[copy->array]);
    else
        memcpy(place, copy->in + at, arrays.bytes[copy->array]);
    return 0;
}

int sl_optimizer_array_shape(const struct sl_optimizer *optimizer, uint32_t index,
                             enum sl_optimizer_array array, uint64_t *count, uint32_t *entry_bytes,
                             struct sl_error *error)
{
    int result = optimizer_param_check(optimizer, index, error);
    if (result)
        return result;
    if ((unsigned)array >= SL_OPTIMIZER_ARRAYS)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "optimizer array %d: 0 to %d",
                            (int)array, SL_OPTIMIZER_ARRAYS - 1);
    struct optimizer_arrays arrays;
    optimizer_arrays_of(optimizer, &optimizer->params[index], optimizer->params[index].count,
                        &arrays);
    *entry_bytes = optimizer_entry_bytes(optimizer, array);
    *count = arrays.bytes[array] / *entry_bytes;
    return 0;
}

static int copy_array(struct sl_optimizer *optimizer, uint32_t index, struct copy *copy,
                      struct sl_error *error)
{
    uint64_t count;
    uint32_t bytes;
    int result = optimizer_usable(optimizer, error);
    if (!result)
        result = sl_optimizer_array_shape(optimizer, index, copy->array, &count, &bytes, error);
    if (result)
        return result;
    const struct optimizer_param *param = &optimizer->params[index];
    if (count == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                            "parameter \"%s\" has no optimizer array %d with these options",
                            param->name, (int)copy->array);
    return optimizer_visit(optimizer, param->unit_first, sl_div_up(param->count, OPTIMIZER_UNIT),
                           copy->in != NULL, copy_unit, copy, error);
}

int sl_optimizer_array_read(struct sl_optimizer *optimizer, uint32_t index,
                            enum sl_optimizer_array array, void *data, struct sl_error *error)
{
    struct copy copy = {.optimizer = optimizer, .array = array, .out = data};
    return copy_array(optimizer, index, &copy, error);
}

int sl_optimizer_array_write(struct sl_optimizer *optimizer, uint32_t index,
                             enum sl_optimizer_array array, const void *data,
                             struct sl_error *error)
{
    struct copy copy = {.optimizer = optimizer, .array = array, .in = data};
    int result = copy_array(optimizer, index, &copy, error);
    if (!result && array == SL_OPTIMIZER_MASTER)
        optimizer->params[index].master_set = true;
    return result;
}

int sl_optimizer_updates_get(const struct sl_optimizer *optimizer, uint32_t index,
                             uint64_t *updates, bool *master_set, struct sl_error *error)
{
    int result = optimizer_param_check(optimizer, index, error);
    if (result)
        return result;
    *updates = optimizer->params[index].updates;
    *master_set = optimizer->params[index].master_set;
    return 0;
}

int sl_optimizer_updates_set(struct sl_optimizer *optimizer, uint32_t index, uint64_t updates,
                             struct sl_error *error)
{
    int result = optimizer_param_check(optimizer, index, error);
    if (!result)
        optimizer->params[index].updates = updates;
    return result;
}
