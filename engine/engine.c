// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/placement.h"
#include "engine/process_memory.h"
#include "engine/simulate_report.h"
#include "engine/state.h"
#include "kernels/cpu/isa.h"
#include "offload/cgroup.h"
#include "offload/topology.h"

/* Left to the rest of the machine where the user gives no budget. */
#define HOST_SHARE 0.9
/* Code pages, stacks of the lanes and buffers of the log and the checkpoint that become resident
 * only while training: 3.0 to 3.4 MiB for models from 2 M to 124 M parameters (x86-64, measured).
 */
#define RUNNING_BYTES (3200u << 10)

static int open_machine(struct sl_engine *engine, struct sl_error *error)
{
    const struct sl_engine_options *o = &engine->options;
    const char *name = o->device ? o->device : "auto";
    bool moves = o->swap.path_count > 0 || (strcmp(name, "host") != 0 && strcmp(name, "auto") != 0);
    struct sl_workers_options workers = {
        .thread_count = o->thread_count, .cores_reserved = moves, .log = o->log};
    int result = sl_cpu_isa_select(error);
    if (result)
        return result;
    result = sl_workers_create(&engine->workers, &workers, error);
    if (result)
        return result;
    struct sl_device_options device = {
        .name = name,
        .precision = o->step.precision,
        .workers = engine->workers,
        .link_bytes_per_second = o->link_bytes_per_second,
        .log = o->log,
    };
    return sl_device_create(&engine->device, &device, error);
}

static int default_budgets(struct sl_engine *engine, struct sl_error *error)
{
    uint64_t *budget = engine->options.budget_bytes;
    const struct sl_swap_options *swap = &engine->options.swap;
    if (engine->device->properties.unified)
        sl_placement_unified_budget(budget, engine->options.log);
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        engine->budget_given[tier] = budget[tier] != 0;
    struct sl_topology *topology = malloc(sizeof(*topology));
    if (!topology)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory while planning");
    int result = sl_topology_read(topology, NULL, error);
    if (!result && !budget[SL_TIER_HOST])
        budget[SL_TIER_HOST] = (uint64_t)(HOST_SHARE * (double)topology->memory_available_bytes);
    free(topology);
    if (!budget[SL_TIER_DEVICE])
        budget[SL_TIER_DEVICE] = engine->device->properties.memory_bytes;
    if (!budget[SL_TIER_NVME])
        budget[SL_TIER_NVME] = sl_swap_paths_free_bytes(swap->paths, swap->path_count);
    return result;
}

/* The staging that loading and saving need must lie inside the arena: behind the persistent slots,
 * where transient slots are while training. */
static void find_stage(struct sl_engine *engine)
{
    sl_state_stage_bytes(&engine->sp, engine->stage_bytes);
    struct sl_plan *plan = &engine->sp.plan;
    uint64_t needed =
        plan->persistent_bytes[SL_TIER_HOST] + engine->stage_bytes[0] + engine->stage_bytes[1];
    plan->tier_bytes[SL_TIER_HOST] = sl_max_u64(plan->tier_bytes[SL_TIER_HOST], needed);
}

static int place_plan(struct sl_engine *engine, const struct sl_step_options *step,
                      struct sl_error *error)
{
    sl_step_plan_finish(&engine->sp);
    int result = sl_step_plan_place(&engine->sp, step, error);
    if (result)
        return result;
    find_stage(engine);
    engine->options.swap.bytes_total = engine->sp.plan.tier_bytes[SL_TIER_NVME];
    return 0;
}

static void totals(const struct sl_engine *engine, uint64_t total[SL_TIER_COUNT])
{
    struct sl_memory_line lines[SL_MEMORY_LINES_MAX];
    sl_engine_memory(engine, lines, total);
}

/* The first tier that a plan is over, or SL_TIER_COUNT. */
static int tier_over(const struct sl_engine *engine, const uint64_t total[SL_TIER_COUNT])
{
    int tier = 0;
    while (tier < SL_TIER_COUNT && (engine->options.budget_bytes[tier] == 0 ||
                                    total[tier] <= engine->options.budget_bytes[tier]))
        tier++;
    return tier;
}

#define NEAREST_TRIES 3
#define NEAREST_MICRO_BATCHES 16 /* plans of more take too long to build for an answer */

static uint64_t nvme_given(const struct sl_engine_options *o)
{
    return o->swap.path_count ? o->budget_bytes[SL_TIER_NVME] : 0;
}

/* Look for a setting that fits: with the given places, or with all of them free. */
static bool nearest(struct sl_engine *engine, uint64_t nvme_budget, bool all_free, char text[512])
{
    const struct sl_engine_options *o = &engine->options;
    uint64_t total[SL_TIER_COUNT];
    struct sl_error ignored = {0};
    struct sl_fit_options fit = {
        .step = &o->step, .batch_free = true, .micro_batches_max = NEAREST_MICRO_BATCHES};
    memcpy(fit.budget_bytes, o->budget_bytes, sizeof(fit.budget_bytes));
    fit.budget_bytes[SL_TIER_NVME] = nvme_budget;
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        fit.placement_free[kind] = all_free || o->placement_free[kind];
        fit.placement_given[kind] = !o->placement_free[kind];
    }
    /* The lines beside the plan, checksums of what is on NVMe for one, depend on the plan a little:
     * what was found is built as a run builds it, and sought again with its lines. */
    for (int i = 0; i < NEAREST_TRIES; i++) {
        struct sl_step_options found;
        char change[256];
        bool fits;
        totals(engine, total);
        for (int tier = 0; tier < SL_TIER_COUNT; tier++)
            fit.extra_bytes[tier] = total[tier] - engine->sp.plan.tier_bytes[tier];
        if (sl_report_fit(&found, &fits, change, &fit, &ignored) || !fits ||
            place_plan(engine, &found, &ignored))
            return false;
        totals(engine, total);
        int over = tier_over(engine, total);
        if (over < SL_TIER_NVME || (over == SL_TIER_NVME && nvme_budget != UINT64_MAX))
            continue;
        char size[SL_SIZE_TEXT_BYTES], drive[80] = "";
        if (total[SL_TIER_NVME] > nvme_given(o))
            snprintf(drive, sizeof(drive), "nvme.path on a drive with %s free%s",
                     sl_size_format(total[SL_TIER_NVME], size), change[0] ? ", " : "");
        snprintf(text, 512, "%s%s", drive, change);
        return text[0] != 0;
    }
    return false;
}

static bool find_nearest(struct sl_engine *engine, char text[512])
{
    uint64_t nvme = nvme_given(&engine->options);
    if (nearest(engine, nvme, false, text) || nearest(engine, nvme, true, text))
        return true;
    return nearest(engine, UINT64_MAX, false, text) || nearest(engine, UINT64_MAX, true, text);
}

static int over_budget(struct sl_engine *engine, struct sl_error *error)
{
    static const char *const remedies[SL_TIER_COUNT] = {
        "raise memory.device, move more to host or NVMe (placement.*.host, placement.*.nvme), or "
        "set tiling.layer_bytes, which lets layers through in tiles",
        "raise memory.host, move more to NVMe (nvme.path, placement.*.nvme), or lower "
        "train.micro_batch, train.sequence_length, sub_group_size or buffer counts",
        "give nvme.path folders on drives with more room, raise memory.nvme, or keep more in host "
        "memory (placement.*.host)",
    };
    static const char *const sources[SL_TIER_COUNT] = {"allowed (what the device has)",
                                                       "allowed (nine tenths of what is free)",
                                                       "free on its paths"};
    uint64_t total[SL_TIER_COUNT];
    totals(engine, total);
    int tier = tier_over(engine, total);
    if (tier == SL_TIER_COUNT)
        return 0;
    uint64_t budget = engine->options.budget_bytes[tier];
    char need[SL_SIZE_TEXT_BYTES], have[SL_SIZE_TEXT_BYTES], smallest[80] = "", text[512];
    if (sl_batch_found_none(&engine->batch))
        snprintf(smallest, sizeof(smallest),
                 "train.micro_batch auto: not even %zu fits: ", engine->options.step.batch);
    bool found = engine->options.find_nearest && find_nearest(engine, text);
    return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "%smemory.%s: %s needed, %s %s; %s%s",
                        smallest, sl_tier_name((enum sl_tier)tier),
                        sl_size_format(total[tier], need), sl_size_format(budget, have),
                        engine->budget_given[tier] ? "allowed" : sources[tier],
                        found ? "what would fit: " : remedies[tier], found ? text : "");
}

static int try_setting(void *user, const struct sl_step_options *step,
                       uint64_t total[SL_TIER_COUNT], struct sl_step_plan **plan,
                       struct sl_error *error)
{
    struct sl_engine *engine = user;
    int result = place_plan(engine, step, error);
    *plan = &engine->sp;
    if (!result)
        totals(engine, total);
    return result;
}

/* A profile that does not speak of what the plan would use predicts nothing. */
static void check_hardware(struct sl_engine *engine)
{
    struct sl_engine_options *o = &engine->options;
    const struct sl_hardware *h = o->hardware;
    if (!h)
        return;
    const char *lack = NULL;
    if (h->device_is_host != (engine->device->properties.kind != SL_DEVICE_CUDA))
        lack = "is of another kind of device";
    else if (!o->step.unified && !(h->link_up_bytes_per_second > 0))
        lack = "has no rate for the link";
    else if (o->swap.path_count && !(h->nvme_read_bytes_per_second > 0))
        lack = "was measured without a drive: sluice doctor --measure auto FOLDER";
    if (!lack)
        return;
    sl_log_write(o->log, SL_LOG_WARNING,
                 "hardware profile \"%s\" %s; nothing is chosen or predicted by it", h->name, lack);
    o->hardware = NULL;
}

static struct sl_choose_options choose_options(struct sl_engine *engine)
{
    const struct sl_engine_options *o = &engine->options;
    struct sl_choose_options choose = {
        .step = o->step,
        .free = o->free,
        .nvme = o->swap.path_count > 0,
        .hardware = o->hardware,
        .attempt = try_setting,
        .user = engine,
    };
    memcpy(choose.free.placement, o->placement_free, sizeof(choose.free.placement));
    memcpy(choose.budget_bytes, o->budget_bytes, sizeof(choose.budget_bytes));
    return choose;
}

/* Where the micro-batch size is auto, before all that depends on it. */
static int choose_batch(struct sl_engine *engine, struct sl_error *error)
{
    struct sl_engine_options *o = &engine->options;
    if (!o->batch.free || o->step.generate_positions)
        return 0;
    struct sl_choose_options choose = choose_options(engine);
    int result = 0;
    if (o->hardware)
        result = sl_choose_batch(&o->step, &engine->batch, &o->batch, &choose, error);
    if (result || sl_batch_found_none(&engine->batch))
        return result; /* over_budget says what is missing */
    sl_log_write(o->log, SL_LOG_INFO, "micro-batch: %zu x %zu per step, %s", o->step.batch,
                 o->step.micro_batches,
                 o->hardware ? "chosen by simulation (train.micro_batch auto)"
                             : "though train.micro_batch is auto: there is no hardware profile to "
                               "choose by (sluice doctor --measure auto FOLDER)");
    return 0;
}

static int choose_setting(struct sl_engine *engine, struct sl_error *error)
{
    struct sl_choose_options choose = choose_options(engine);
    return sl_choose(&engine->options.step, &engine->choice, &choose, error);
}

static int no_path_for_nvme(struct sl_error *error)
{
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "the placement uses NVMe but no path is given: set nvme.path or "
                        "zero_optimization.offload_*.nvme_path to a folder on a fast disk");
}

int sl_engine_plan(struct sl_engine *engine, const struct sl_engine_options *options,
                   struct sl_error *error)
{
    *engine = (struct sl_engine){.options = *options};
    int result = open_machine(engine, error);
    sl_process_baseline_bytes(); /* with device and libraries warm */
    if (!result)
        result = default_budgets(engine, error);
    if (!result) {
        struct sl_step_options *step = &engine->options.step;
        step->activation = engine->device->activation_dtype;
        step->unified = engine->device->properties.unified;
        check_hardware(engine);
        result = choose_batch(engine, error);
    }
    if (!result)
        result = choose_setting(engine, error);
    if (!result)
        result = place_plan(engine, &engine->options.step, error);
    if (!result)
        result = sl_plan_seal(&engine->sp.plan, error);
    if (!result) {
        uint64_t unlimited[SL_TIER_COUNT] = {0};
        result = sl_plan_check(&engine->sp.plan, unlimited, error);
    }
    if (!result && engine->options.swap.bytes_total && engine->options.swap.path_count == 0)
        result = no_path_for_nvme(error);
    if (!result)
        result = over_budget(engine, error);
    if (result)
        sl_engine_finish(engine);
    return result;
}

static int make_arenas(struct sl_engine *engine, struct sl_error *error)
{
    const struct sl_plan *plan = &engine->sp.plan;
    struct sl_device *device = engine->device;
    int result =
        sl_arena_create(&engine->host, plan->tier_bytes[SL_TIER_HOST], engine->workers, error);
    if (result)
        return result;
    if (!device->properties.unified && engine->host.bytes) {
        int registered = device->ops->host_register(device, engine->host.base, engine->host.bytes);
        engine->host_registered = registered == 0;
        if (registered && registered != -ENOTSUP)
            sl_log_write(
                engine->options.log, SL_LOG_WARNING,
                "host memory could not be page-locked (%s): copies to the device are slower",
                strerror(-registered));
    }
    engine->device_memory_bytes = plan->tier_bytes[SL_TIER_DEVICE];
    if (engine->device_memory_bytes == 0)
        return 0;
    result = device->ops->memory_alloc(device, engine->device_memory_bytes, &engine->device_memory);
    if (!result)
        result = device->ops->zero(device, SL_STREAM_COMPUTE, engine->device_memory,
                                   engine->device_memory_bytes);
    if (!result)
        result = device->ops->stream_synchronize(device, SL_STREAM_COMPUTE);
    char text[SL_SIZE_TEXT_BYTES];
    if (result)
        sl_error_set(error, SL_DOMAIN_DEVICE, result, "%s of device memory: %s",
                     sl_size_format(engine->device_memory_bytes, text),
                     device->error.code ? device->error.message : strerror(-result));
    return result;
}

static void fill_rope(struct sl_engine *engine)
{
    const struct sl_step_plan *sp = &engine->sp;
    const struct sl_model *m = sp->options.model;
    struct sl_device *device = engine->device;
    size_t count = sl_step_positions(&sp->options) * (m->rotary / 2);
    float *table = malloc(2 * count * sizeof(float) + 1);
    for (uint32_t i = 0; i < 2 && table; i++) {
        if (sp->rope[i][0] == SL_PLAN_NONE)
            continue;
        sl_model_rope_table(m, i, (uint32_t)sl_step_positions(&sp->options), table, table + count);
        for (int k = 0; k < 2; k++)
            device->ops->copy(device, SL_STREAM_H2D,
                              sl_executor_pointer(engine->executor, sp->rope[i][k]),
                              table + (size_t)k * count, count * sizeof(float));
        device->ops->stream_synchronize(device, SL_STREAM_H2D);
    }
    free(table);
}

int sl_engine_check_room(const struct sl_engine *engine, struct sl_error *error)
{
    uint64_t total[SL_TIER_COUNT], in_machine, free_now;
    totals(engine, total);
    sl_meminfo_read(&in_machine, &free_now, NULL);
    struct sl_cgroup_limits limits;
    sl_cgroup_read(&limits, NULL);
    bool group = limits.memory_available_bytes < free_now;
    if (group)
        free_now = limits.memory_available_bytes;
    uint64_t resident = sl_process_resident_bytes();
    uint64_t more = total[SL_TIER_HOST] > resident ? total[SL_TIER_HOST] - resident : 0;
    if (in_machine == 0 || more <= free_now)
        return 0;
    char need[SL_SIZE_TEXT_BYTES], have[SL_SIZE_TEXT_BYTES];
    return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                        "memory.host: the run takes %s but %s has %s free; end other programs, "
                        "lower memory.host, or move more to NVMe (nvme.path, placement.*.nvme)",
                        sl_size_format(total[SL_TIER_HOST], need),
                        group ? "this control group" : "this machine",
                        sl_size_format(free_now, have));
}

int sl_engine_start(struct sl_engine *engine, struct sl_error *error)
{
    /* Arenas are mapped without a reservation: what the machine lacks would be the OOM killer's. */
    int result = sl_engine_check_room(engine, error);
    if (!result && engine->options.swap.bytes_total) {
        engine->options.swap.log = engine->options.log;
        result = sl_swap_create(&engine->swap, &engine->options.swap, error);
    }
    if (!result)
        result = make_arenas(engine, error);
    if (!result && engine->device->ops->memory_seal)
        engine->device->ops->memory_seal(engine->device);
    if (!result && engine->swap && engine->host.bytes)
        sl_swap_register(engine->swap, engine->host.base, engine->host.bytes);
    if (!result && engine->options.trace_events)
        result = sl_trace_create(&engine->trace, engine->options.trace_events, error);
    engine->runner = (struct sl_step_runner){
        .sp = &engine->sp, .device = engine->device, .workers = engine->workers};
    struct sl_executor_options executor = {
        .plan = &engine->sp.plan,
        .device = engine->device,
        .swap = engine->swap,
        .arena = {[SL_TIER_DEVICE] = engine->device_memory, [SL_TIER_HOST] = engine->host.base},
        .runner = sl_step_run_op,
        .user = &engine->runner,
        .trace = engine->trace,
    };
    if (!result)
        result = sl_executor_create(&engine->executor, &executor, error);
    if (result) {
        sl_engine_finish(engine);
        return result;
    }
    engine->runner.executor = engine->executor;
    fill_rope(engine);
    return 0;
}

void sl_engine_finish(struct sl_engine *engine)
{
    sl_executor_destroy(engine->executor);
    sl_trace_destroy(engine->trace);
    if (engine->device && engine->device_memory)
        engine->device->ops->memory_free(engine->device, engine->device_memory,
                                         engine->device_memory_bytes);
    if (engine->host_registered)
        engine->device->ops->host_unregister(engine->device, engine->host.base, engine->host.bytes);
    sl_swap_destroy(engine->swap);
    sl_arena_destroy(&engine->host);
    sl_step_plan_finish(&engine->sp);
    sl_device_destroy(engine->device);
    sl_workers_destroy(engine->workers);
    *engine = (struct sl_engine){0};
}

static void add_line(struct sl_memory_line *lines, size_t *count, enum sl_tier tier, uint64_t bytes,
                     const char *name)
{
    if (bytes == 0 || *count == SL_MEMORY_LINES_MAX)
        return;
    struct sl_memory_line *line = &lines[(*count)++];
    *line = (struct sl_memory_line){0};
    snprintf(line->name, sizeof(line->name), "%s", name);
    line->bytes[tier] = bytes;
}

static uint64_t plan_bytes(const struct sl_step_plan *sp)
{
    return sp->plan.op_capacity * sizeof(struct sl_op) +
           sp->plan.access_capacity * sizeof(struct sl_access) +
           sp->plan.slot_capacity * sizeof(struct sl_slot) +
           sp->args_capacity * sizeof(struct sl_step_args);
}

size_t sl_engine_memory(const struct sl_engine *engine,
                        struct sl_memory_line lines[SL_MEMORY_LINES_MAX],
                        uint64_t total[SL_TIER_COUNT])
{
    const struct sl_plan *plan = &engine->sp.plan;
    struct sl_plan_memory memory;
    (void)sl_plan_memory(plan, &memory); /* where it fails, all is "between slots" */
    size_t count = 0;
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        uint64_t sum = 0;
        for (int state = 0; state < SL_STATE_COUNT; state++) {
            add_line(lines, &count, (enum sl_tier)tier, memory.bytes[tier][state],
                     sl_state_name((enum sl_state)state));
            sum += memory.bytes[tier][state];
        }
        if (plan->tier_bytes[tier] > sum)
            add_line(lines, &count, (enum sl_tier)tier, plan->tier_bytes[tier] - sum,
                     "between slots");
    }
    const struct sl_device_properties *p = &engine->device->properties;
    uint64_t fixed_host = 0;
    for (size_t i = 0; i < p->fixed_count; i++) {
        fixed_host += p->fixed[i].bytes_host;
        add_line(lines, &count, SL_TIER_HOST, p->fixed[i].bytes_host, p->fixed[i].name);
        add_line(lines, &count, SL_TIER_DEVICE, p->fixed[i].bytes_device, p->fixed[i].name);
    }
    if (plan->tier_bytes[SL_TIER_NVME])
        add_line(lines, &count, SL_TIER_HOST, sl_swap_memory_bytes(&engine->options.swap),
                 "swap sums and rings");
    /* What was resident when the device was open holds the device's own lines. */
    uint64_t resident = sl_process_baseline_bytes();
    add_line(lines, &count, SL_TIER_HOST, resident > fixed_host ? resident - fixed_host : 0,
             "program, libraries and data");
    add_line(lines, &count, SL_TIER_HOST, plan_bytes(&engine->sp), "the plan itself");
    add_line(lines, &count, SL_TIER_HOST, RUNNING_BYTES, "code and stacks of the run");
    memset(total, 0, SL_TIER_COUNT * sizeof(*total));
    for (size_t i = 0; i < count; i++)
        for (int tier = 0; tier < SL_TIER_COUNT; tier++)
            total[tier] += lines[i].bytes[tier];
    /* A small run's peak may lie behind it: what reading the data took and has given back. */
    uint64_t read_peak = sl_process_baseline_peak_bytes();
    if (read_peak > total[SL_TIER_HOST]) {
        add_line(lines, &count, SL_TIER_HOST, read_peak - total[SL_TIER_HOST],
                 "more while the data was read");
        total[SL_TIER_HOST] = read_peak;
    }
    return count;
}

static int failure(struct sl_engine *engine, int result, struct sl_error *error)
{
    if (result && error && error->code == 0)
        sl_executor_error(engine->executor, error);
    return result;
}

int sl_engine_step(struct sl_engine *engine, struct sl_step_context *context,
                   struct sl_error *error)
{
    uint32_t segment = engine->pending ? engine->sp.step : engine->sp.prologue;
    context->version = engine->version;
    int result = sl_executor_submit(engine->executor, segment, engine->version, context);
    if (!result)
        engine->pending = true;
    if (!result && engine->sp.prediction != SL_PLAN_NONE)
        engine->version ^= 1; /* done now, or again where the prediction was wrong */
    return failure(engine, result, error);
}

int sl_engine_drain(struct sl_engine *engine, struct sl_error *error)
{
    return failure(engine, sl_executor_wait(engine->executor, 0), error);
}

struct sl_step_control *sl_engine_control(struct sl_engine *engine)
{
    return sl_executor_pointer(engine->executor, engine->sp.control);
}

int sl_engine_flush(struct sl_engine *engine, struct sl_error *error)
{
    int result = 0;
    struct sl_step_context context = {.version = engine->version};
    if (engine->pending)
        result = sl_executor_submit(engine->executor, engine->sp.flush, engine->version, &context);
    if (!result)
        result = sl_executor_wait(engine->executor, 0);
    if (result)
        return failure(engine, result, error);
    struct sl_step_control *control = sl_engine_control(engine);
    control->updates += control->pending && control->apply;
    control->pending = false;
    engine->pending = false;
    return 0;
}

int sl_engine_evaluate(struct sl_engine *engine, struct sl_step_context *context, double *loss_sum,
                       struct sl_error *error)
{
    int result =
        sl_executor_submit(engine->executor, engine->sp.evaluate, engine->version, context);
    if (!result)
        result = sl_executor_wait(engine->executor, 0);
    *loss_sum = 0;
    for (uint32_t i = 0; i < engine->sp.options.micro_batches && !result; i++)
        *loss_sum += sl_step_loss_sum(&engine->runner, i);
    return failure(engine, result, error);
}
