// SPDX-License-Identifier: Apache-2.0
/* The stand-alone optimizer: options, parameters, the layout of the state, memory.
 *
 * Problem   A model that trains elsewhere (PyTorch) has gradients and weights in its own memory. It
 *           wants the engine's update and the engine's room for state, not the engine's step.
 * Choice    The state is cut in units and sub-groups (optimizer_internal.h) of a layout of its own:
 *           the step's plan describes a model's pieces, which there are none of here. Workers,
 *           arena, swap space and kernels are the engine's.
 * Rejected  A made-up model around the parameters, so that the executor would run the update: its
 *           shapes, weights and gradients would be a second copy of the caller's.
 * Invariant Everything is taken in seal; a step takes nothing.
 */
#include "engine/optimizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/optimizer_internal.h"

_Static_assert((int)SL_OPTIMIZER_ADAMW == (int)SL_OPTIM_ADAMW, "algorithms");
_Static_assert((int)SL_OPTIMIZER_SGD == (int)SL_OPTIM_SGD, "algorithms");
_Static_assert((int)SL_OPTIMIZER_STATE_Q8 == (int)SL_MOMENT_Q8, "moments");
_Static_assert((int)SL_OPTIMIZER_MASTER_NONE == (int)SL_MASTER_NONE, "masters");

#define SUB_GROUP_ELEMENTS ((uint64_t)4 << 20)
#define SUB_GROUP_ELEMENTS_MAX ((uint64_t)1 << 31)
#define BUFFERS 4u
#define ELEMENTS_MAX ((uint64_t)1 << 48) /* sizes stay far from 2^64 below it */

static int invalid(struct sl_error *error, const char *option, long long value, const char *limit)
{
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "optimizer option %s is %lld: %s", option,
                        value, limit);
}

static int check_options(const struct sl_optimizer_options *o, struct sl_error *error)
{
    if ((unsigned)o->algorithm > SL_OPTIMIZER_SGD)
        return invalid(error, "algorithm", o->algorithm, "0 (AdamW) to 4 (SGD)");
    if ((unsigned)o->state > SL_OPTIMIZER_STATE_Q8)
        return invalid(error, "state", o->state, "0 (f32), 1 (bf16) or 2 (q8)");
    if ((unsigned)o->master > SL_OPTIMIZER_MASTER_NONE)
        return invalid(error, "master", o->master, "0 (plain), 1 (split) or 2 (none)");
    if ((unsigned)o->placement > SL_OPTIMIZER_NVME)
        return invalid(error, "placement", o->placement, "0 (host) or 1 (NVMe)");
    if (o->placement == SL_OPTIMIZER_NVME && o->path_count == 0)
        return invalid(error, "path_count", 0, "placement on NVMe needs a directory on a drive");
    if (o->placement == SL_OPTIMIZER_HOST && o->path_count != 0)
        return invalid(error, "path_count", (long long)o->path_count,
                       "0 with placement on the host, or choose placement on NVMe");
    if (o->path_count > SL_SWAP_PATHS_MAX)
        return invalid(error, "path_count", (long long)o->path_count, "at most 16");
    if (o->buffers == 1 || o->buffers > OPTIMIZER_SLOTS_MAX)
        return invalid(error, "buffers", o->buffers, "2 to 64, or 0 for 4");
    if (o->sub_group_elements > SUB_GROUP_ELEMENTS_MAX)
        return invalid(error, "sub_group_elements", (long long)o->sub_group_elements,
                       "at most 2147483648, or 0 for 4194304");
    return 0;
}

int sl_optimizer_create(struct sl_optimizer **out, const struct sl_optimizer_options *options,
                        struct sl_error *error)
{
    *out = NULL;
    int result = check_options(options, error);
    if (result)
        return result;
    struct sl_optimizer *optimizer = calloc(1, sizeof(*optimizer));
    if (!optimizer)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for an optimizer");
    pthread_mutex_init(&optimizer->lock, NULL);
    pthread_cond_init(&optimizer->changed, NULL);
    struct sl_optimizer_options *o = &optimizer->options;
    *o = *options;
    o->buffers = o->buffers ? o->buffers : BUFFERS;
    o->sub_group_elements = sl_align_up(
        o->sub_group_elements ? o->sub_group_elements : SUB_GROUP_ELEMENTS, OPTIMIZER_UNIT);
    optimizer->paths = calloc(o->path_count + 1, sizeof(char *));
    bool copied = optimizer->paths != NULL;
    for (size_t i = 0; copied && i < o->path_count; i++)
        copied = (optimizer->paths[i] = strdup(options->paths[i])) != NULL;
    if (!copied) {
        o->path_count = optimizer->paths ? o->path_count : 0;
        sl_optimizer_destroy(optimizer);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for an optimizer");
    }
    o->paths = (const char *const *)optimizer->paths;
    *out = optimizer;
    return 0;
}

static void forget_layout(struct sl_optimizer *optimizer)
{
    free(optimizer->units);
    free(optimizer->sub_groups);
    optimizer->units = NULL;
    optimizer->sub_groups = NULL;
    optimizer->laid_out = false;
}

void sl_optimizer_destroy(struct sl_optimizer *optimizer)
{
    if (!optimizer)
        return;
    sl_swap_destroy(optimizer->swap);
    sl_workers_destroy(optimizer->workers);
    sl_arena_destroy(&optimizer->arena);
    forget_layout(optimizer);
    free(optimizer->squares);
    free(optimizer->nonfinite);
    free(optimizer->active);
    for (size_t i = 0; i < optimizer->param_count; i++)
        free(optimizer->params[i].name);
    free(optimizer->params);
    free(optimizer->groups);
    for (size_t i = 0; i < optimizer->options.path_count; i++)
        free(optimizer->paths[i]);
    free(optimizer->paths);
    pthread_cond_destroy(&optimizer->changed);
    pthread_mutex_destroy(&optimizer->lock);
    free(optimizer);
}

static int refuse_sealed(const struct sl_optimizer *optimizer, const char *what,
                         struct sl_error *error)
{
    if (!optimizer->sealed)
        return 0;
    return sl_error_set(error, SL_DOMAIN_INPUT, -EBUSY,
                        "%s after seal: all memory has been taken; make another optimizer", what);
}

/* Room for one more entry of an array that doubles. */
static bool make_room(void **array, size_t count, size_t *room, size_t bytes)
{
    if (count < *room)
        return true;
    size_t more = *room ? *room * 2 : 16;
    void *grown = realloc(*array, more * bytes);
    if (!grown)
        return false;
    *array = grown;
    *room = more;
    return true;
}

struct sl_optim_hyper optimizer_hyper(const struct sl_optimizer *optimizer, uint32_t group)
{
    const struct sl_optimizer_group *g = &optimizer->groups[group];
    return (struct sl_optim_hyper){.kind = (enum sl_optim_kind)optimizer->options.algorithm,
                                   .lr = (float)g->lr,
                                   .beta1 = (float)g->beta1,
                                   .beta2 = (float)g->beta2,
                                   .eps = (float)g->eps,
                                   .weight_decay = (float)g->weight_decay,
                                   .momentum = (float)g->momentum,
                                   .nesterov = g->nesterov,
                                   .bias_correction = g->bias_correction,
                                   .step = 1,
                                   .seed = optimizer->options.seed};
}

/* Put a checked group at `index`, which is there. */
static int set_group(struct sl_optimizer *optimizer, uint32_t index,
                     const struct sl_optimizer_group *group, struct sl_error *error)
{
    struct sl_optimizer_group old = optimizer->groups[index];
    optimizer->groups[index] = *group;
    struct sl_optim_hyper hyper = optimizer_hyper(optimizer, index);
    int result = sl_optim_check(&hyper, error);
    if (result) {
        sl_error_prefix(error, "parameter group %u", index);
        optimizer->groups[index] = old;
    }
    return result;
}

int sl_optimizer_group_add(struct sl_optimizer *optimizer, const struct sl_optimizer_group *group,
                           uint32_t *index, struct sl_error *error)
{
    int result = refuse_sealed(optimizer, "a parameter group", error);
    if (result)
        return result;
    if (!make_room((void **)&optimizer->groups, optimizer->group_count, &optimizer->group_room,
                   sizeof(*group)))
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for a group");
    memset(&optimizer->groups[optimizer->group_count], 0, sizeof(*group));
    result = set_group(optimizer, (uint32_t)optimizer->group_count, group, error);
    if (!result)
        *index = (uint32_t)optimizer->group_count++;
    return result;
}

int sl_optimizer_group_set(struct sl_optimizer *optimizer, uint32_t index,
                           const struct sl_optimizer_group *group, struct sl_error *error)
{
    if (index >= optimizer->group_count)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "parameter group %u: there are %zu",
                            index, optimizer->group_count);
    bool had = optimizer->groups[index].momentum != 0, has = group->momentum != 0;
    if (optimizer->sealed && optimizer->options.algorithm == SL_OPTIMIZER_SGD && had != has)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "parameter group %u: momentum %g after seal with %g: zero or not "
                            "decides what is kept; make another optimizer",
                            index, group->momentum, optimizer->groups[index].momentum);
    if (!optimizer->sealed)
        forget_layout(optimizer);
    return set_group(optimizer, index, group, error);
}

int sl_optimizer_add(struct sl_optimizer *optimizer, const struct sl_optimizer_param *param,
                     uint32_t *index, struct sl_error *error)
{
    int result = refuse_sealed(optimizer, "a parameter", error);
    if (result)
        return result;
    const char *name = param->name ? param->name : "";
    if (name[0] == '\0')
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "parameter %zu has no name; give each one of its own",
                            optimizer->param_count);
    if ((unsigned)param->dtype > SL_F16)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "parameter \"%s\": dtype %d: 0 (f32), 1 (bf16) or 2 (f16)", name,
                            (int)param->dtype);
    if (param->count == 0 || param->count > ELEMENTS_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "parameter \"%s\": %llu elements: at least 1, at most 2^48", name,
                            (unsigned long long)param->count);
    if (param->group >= optimizer->group_count)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "parameter \"%s\": group %u, there are %zu", name, param->group,
                            optimizer->group_count);
    if (param->dtype == SL_F16 && optimizer->options.master != SL_OPTIMIZER_MASTER_PLAIN)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "parameter \"%s\" is f16: master split and none are of bf16; choose "
                            "master plain",
                            name);
    if (!make_room((void **)&optimizer->params, optimizer->param_count, &optimizer->param_room,
                   sizeof(struct optimizer_param)))
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for a parameter");
    struct optimizer_param *p = &optimizer->params[optimizer->param_count];
    *p = (struct optimizer_param){
        .name = strdup(name), .count = param->count, .dtype = param->dtype, .group = param->group};
    if (!p->name)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for a parameter");
    forget_layout(optimizer);
    *index = (uint32_t)optimizer->param_count++;
    return 0;
}

/* ---- layout ---- */

uint32_t optimizer_entry_bytes(const struct sl_optimizer *optimizer, enum sl_optimizer_array array)
{
    static const uint32_t moment[] = {4, 2, 1};
    switch (array) {
    case SL_OPTIMIZER_MASTER:
        return optimizer->options.master == SL_OPTIMIZER_MASTER_SPLIT ? 2 : 4;
    case SL_OPTIMIZER_EXP_AVG:
    case SL_OPTIMIZER_EXP_AVG_SQ:
        return moment[optimizer->options.state];
    default:
        return 4;
    }
}

void optimizer_arrays_of(const struct sl_optimizer *optimizer, const struct optimizer_param *param,
                         uint64_t count, struct optimizer_arrays *arrays)
{
    struct sl_optim_hyper hyper = optimizer_hyper(optimizer, param->group);
    bool q8 = optimizer->options.state == SL_OPTIMIZER_STATE_Q8;
    bool m = sl_optim_has_exp_avg(&hyper), v = sl_optim_has_exp_avg_sq(&hyper);
    bool master = param->dtype != SL_F32 && optimizer->options.master != SL_OPTIMIZER_MASTER_NONE;
    bool has[SL_OPTIMIZER_ARRAYS] = {master, m, v, m && q8, v && q8};
    uint64_t at = 0;
    for (int a = 0; a < SL_OPTIMIZER_ARRAYS; a++) {
        uint64_t entries =
            a >= SL_OPTIMIZER_EXP_AVG_SCALE ? sl_div_up(count, SL_OPTIM_Q8_BLOCK) : count;
        arrays->offset[a] = at;
        arrays->bytes[a] =
            has[a] ? entries * optimizer_entry_bytes(optimizer, (enum sl_optimizer_array)a) : 0;
        at += sl_align_up(arrays->bytes[a], 64);
    }
    arrays->total = at;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct sl_optimizer *optimizer, struct sl_error *error)
{
    const char **names = calloc(optimizer->param_count + 1, sizeof(*names));
    if (!names)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for names");
    for (size_t i = 0; i < optimizer->param_count; i++)
        names[i] = optimizer->params[i].name;
    qsort(names, optimizer->param_count, sizeof(*names), compare_names);
    int result = 0;
    for (size_t i = 1; i < optimizer->param_count && !result; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            result = sl_error_set(error, SL_DOMAIN_INPUT, -EEXIST,
                                  "two parameters are named \"%s\"; give each a name of its own",
                                  names[i]);
    free(names);
    return result;
}

/* Cut parameters in units and those in sub-groups; sizes, but no tiers. */
static int cut(struct sl_optimizer *optimizer, struct sl_error *error)
{
    uint64_t units = 0, elements = 0;
    for (size_t i = 0; i < optimizer->param_count; i++) {
        units += sl_div_up(optimizer->params[i].count, OPTIMIZER_UNIT);
        elements += optimizer->params[i].count;
    }
    if (elements > ELEMENTS_MAX)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%llu elements in all parameters: at most 2^48",
                            (unsigned long long)elements);
    optimizer->units = calloc(units, sizeof(*optimizer->units));
    optimizer->sub_groups = calloc(units, sizeof(*optimizer->sub_groups));
    if (!optimizer->units || !optimizer->sub_groups)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for %llu units",
                            (unsigned long long)units);
    optimizer->unit_count = optimizer->sub_group_count = 0;
    optimizer->plan.elements = elements;
    uint64_t filled = UINT64_MAX; /* elements of the current sub-group; none is open */
    for (size_t i = 0; i < optimizer->param_count; i++) {
        struct optimizer_param *param = &optimizer->params[i];
        param->unit_first = optimizer->unit_count;
        for (uint64_t first = 0; first < param->count; first += OPTIMIZER_UNIT) {
            uint64_t count = sl_min_u64(OPTIMIZER_UNIT, param->count - first);
            struct optimizer_arrays arrays;
            optimizer_arrays_of(optimizer, param, count, &arrays);
            if (filled > optimizer->options.sub_group_elements - count) {
                filled = 0;
                optimizer->sub_groups[optimizer->sub_group_count++].unit_first =
                    optimizer->unit_count;
            }
            struct optimizer_sub_group *group =
                &optimizer->sub_groups[optimizer->sub_group_count - 1];
            optimizer->units[optimizer->unit_count++] =
                (struct optimizer_unit){.param = (uint32_t)i,
                                        .count = (uint32_t)count,
                                        .first = first,
                                        .offset = group->bytes};
            group->unit_count++;
            group->bytes += arrays.total;
            filled += count;
        }
    }
    for (uint64_t g = 0; g < optimizer->sub_group_count; g++)
        optimizer->sub_groups[g].bytes =
            sl_align_up(optimizer->sub_groups[g].bytes, SL_SWAP_ALIGNMENT);
    return 0;
}

static struct sl_swap_options swap_options(const struct sl_optimizer *optimizer, uint64_t bytes)
{
    struct sl_swap_options options = optimizer->swap_options;
    options.paths = optimizer->options.paths;
    options.path_count = optimizer->options.path_count;
    options.bytes_total = bytes;
    options.log = optimizer->options.log;
    return options;
}

/* Give each sub-group its tier and place, within the limit; the first ones stay on the host. */
static int place(struct sl_optimizer *optimizer, struct sl_error *error)
{
    struct sl_optimizer_plan *plan = &optimizer->plan;
    const struct sl_optimizer_options *o = &optimizer->options;
    uint64_t state = 0, largest = 0;
    for (uint64_t g = 0; g < optimizer->sub_group_count; g++) {
        state += optimizer->sub_groups[g].bytes;
        largest = sl_max_u64(largest, optimizer->sub_groups[g].bytes);
    }
    uint64_t tables = optimizer->unit_count * (sizeof(struct optimizer_unit) + 16) +
                      optimizer->sub_group_count * (sizeof(struct optimizer_sub_group) + 8) +
                      optimizer->param_count * sizeof(struct optimizer_param) + sizeof(*optimizer);
    bool host = o->placement == SL_OPTIMIZER_HOST || state == 0 ||
                (o->host_bytes_max && tables + state <= o->host_bytes_max);
    struct sl_swap_options swap = swap_options(optimizer, state);
    uint64_t buffers = host ? 0 : o->buffers * largest;
    uint64_t base = tables + buffers + (host ? 0 : sl_swap_memory_bytes(&swap));
    uint64_t least = base + (host ? state : 0);
    if (o->host_bytes_max && least > o->host_bytes_max) {
        char need[SL_SIZE_TEXT_BYTES], limit[SL_SIZE_TEXT_BYTES];
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "host memory of at most %s: %s needed; %s",
                            sl_size_format(o->host_bytes_max, limit), sl_size_format(least, need),
                            host ? "place the state on NVMe, or raise the limit"
                                 : "fewer buffers, smaller sub-groups, or a higher limit");
    }
    *plan = (struct sl_optimizer_plan){.param_count = optimizer->param_count,
                                       .elements = plan->elements,
                                       .buffer_bytes = buffers,
                                       .table_bytes = tables,
                                       .sub_groups = optimizer->sub_group_count,
                                       .sub_group_bytes = largest,
                                       .buffers = host ? 0 : o->buffers};
    uint64_t room = host ? state : o->host_bytes_max ? o->host_bytes_max - base : 0;
    for (uint64_t g = 0; g < optimizer->sub_group_count; g++) {
        struct optimizer_sub_group *group = &optimizer->sub_groups[g];
        group->nvme =
            group->bytes && (plan->sub_groups_nvme || plan->state_host_bytes + group->bytes > room);
        uint64_t *bytes = group->nvme ? &plan->state_nvme_bytes : &plan->state_host_bytes;
        group->offset = *bytes;
        *bytes += group->bytes;
        plan->sub_groups_nvme += group->nvme;
    }
    swap.bytes_total = plan->state_nvme_bytes;
    plan->sums_bytes = plan->state_nvme_bytes ? sl_swap_memory_bytes(&swap) : 0;
    plan->host_bytes =
        plan->state_host_bytes + plan->buffer_bytes + plan->sums_bytes + plan->table_bytes;
    plan->step_read_bytes = plan->step_write_bytes = plan->state_nvme_bytes;
    return 0;
}

int sl_optimizer_plan(struct sl_optimizer *optimizer, struct sl_optimizer_plan *plan,
                      struct sl_error *error)
{
    if (optimizer->param_count == 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "the optimizer has no parameters; add some");
    int result = 0;
    if (!optimizer->laid_out) {
        forget_layout(optimizer);
        result = check_names(optimizer, error);
        if (!result)
            result = cut(optimizer, error);
        if (!result)
            result = place(optimizer, error);
        optimizer->laid_out = !result;
    }
    if (!result && plan)
        *plan = optimizer->plan;
    return result;
}

/* ---- memory ---- */

static int take_memory(struct sl_optimizer *optimizer, struct sl_error *error)
{
    const struct sl_optimizer_options *o = &optimizer->options;
    struct sl_optimizer_plan *plan = &optimizer->plan;
    struct sl_workers_options workers = {.thread_count = o->threads,
                                         .cores_reserved = o->path_count > 0,
                                         .unpinned = o->unpinned,
                                         .log = o->log};
    int result = sl_workers_create(&optimizer->workers, &workers, error);
    if (result)
        return result;
    plan->threads = (uint32_t)sl_workers_thread_count(optimizer->workers);
    optimizer->squares = calloc(optimizer->unit_count, sizeof(double));
    optimizer->nonfinite = calloc(optimizer->unit_count, sizeof(uint64_t));
    optimizer->active = calloc(optimizer->sub_group_count, sizeof(uint64_t));
    if (!optimizer->squares || !optimizer->nonfinite || !optimizer->active)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for the step's sums");
    result = sl_arena_create(&optimizer->arena, plan->state_host_bytes + plan->buffer_bytes,
                             optimizer->workers, error);
    if (result || plan->state_nvme_bytes == 0)
        return result;
    struct sl_swap_options swap = swap_options(optimizer, plan->state_nvme_bytes);
    result = sl_swap_create(&optimizer->swap, &swap, error);
    if (result)
        return result;
    for (uint32_t i = 0; i < plan->buffers; i++) {
        struct optimizer_slot *slot = &optimizer->slots[i];
        slot->optimizer = optimizer;
        slot->buffer = optimizer->arena.base + plan->state_host_bytes + i * plan->sub_group_bytes;
    }
    sl_swap_register(optimizer->swap, optimizer->arena.base + plan->state_host_bytes,
                     plan->buffer_bytes);
    return 0;
}

int sl_optimizer_seal(struct sl_optimizer *optimizer, struct sl_optimizer_plan *plan,
                      struct sl_error *error)
{
    int result = refuse_sealed(optimizer, "seal", error);
    if (!result)
        result = sl_optimizer_plan(optimizer, NULL, error);
    if (!result)
        result = take_memory(optimizer, error);
    if (result)
        return result;
    optimizer->sealed = true;
    if (plan)
        *plan = optimizer->plan;
    return 0;
}

/* ---- checks that the other files share ---- */

int optimizer_usable(const struct sl_optimizer *optimizer, struct sl_error *error)
{
    if (!optimizer->sealed)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "the optimizer has no memory yet: call sl_optimizer_seal first");
    if (optimizer->failure.code)
        return sl_error_set(error, optimizer->failure.domain, optimizer->failure.code, "%s",
                            optimizer->failure.message);
    return 0;
}

int optimizer_param_check(const struct sl_optimizer *optimizer, uint32_t index,
                          struct sl_error *error)
{
    if (index < optimizer->param_count)
        return 0;
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "parameter %u: there are %zu", index,
                        optimizer->param_count);
}

size_t sl_optimizer_struct_bytes(int which)
{
    static const size_t bytes[] = {sizeof(struct sl_optimizer_options),
                                   sizeof(struct sl_optimizer_group),
                                   sizeof(struct sl_optimizer_param),
                                   sizeof(struct sl_optimizer_plan),
                                   sizeof(struct sl_optimizer_step),
                                   sizeof(struct sl_optimizer_result),
                                   sizeof(struct sl_error)};
    return which >= 0 && (size_t)which < sizeof(bytes) / sizeof(*bytes) ? bytes[which] : 0;
}
