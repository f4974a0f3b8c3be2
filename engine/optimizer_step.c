// SPDX-License-Identifier: Apache-2.0
/* A step of the stand-alone optimizer: one pass that measures, one that updates.
 *
 *     measure  |u0|u1|...            all units, on the workers; sums are added in unit order
 *     read       g0  g1  g2 ...      the first sub-groups of NVMe are asked for before it
 *     update         |h0|h1|g0|g1|   sub-groups in order, those on the host first
 *     write                   g0 g1
 *
 * Sub-groups of NVMe go round the slots. The calling thread waits for reads alone: when a write
 * ends, its completion submits the read of the slot's next sub-group, from the I/O thread.
 *
 * Invariant A unit is done by one thread, and what it computes depends on its elements alone.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/optimizer_internal.h"
#include "kernels/cpu/gradient.h"

struct step_job {
    struct sl_optimizer *optimizer;
    const struct sl_optimizer_step *step;
    unsigned char *state; /* of the sub-group */
    uint64_t unit_first;
    float grad_scale;
};

static enum sl_dtype gradient_dtype(const struct step_job *job, uint32_t param)
{
    return job->step->gradient_dtypes ? job->step->gradient_dtypes[param]
                                      : job->optimizer->params[param].dtype;
}

static const void *gradient_of(const struct step_job *job, const struct optimizer_unit *unit)
{
    const char *gradient = job->step->gradients[unit->param];
    if (!gradient)
        return NULL;
    return gradient + unit->first * sl_dtype_bytes(gradient_dtype(job, unit->param));
}

static void measure_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct step_job *job = arg;
    struct sl_optimizer *optimizer = job->optimizer;
    const struct optimizer_unit *unit = &optimizer->units[task_index];
    const void *gradient = gradient_of(job, unit);
    (void)worker_index;
    optimizer->squares[task_index] = 0;
    optimizer->nonfinite[task_index] = 0;
    if (gradient)
        sl_gradient_measure_chunk(gradient, gradient_dtype(job, unit->param), unit->count,
                                  &optimizer->squares[task_index],
                                  &optimizer->nonfinite[task_index]);
}

/* The arrays of a unit as the kernel takes them. */
static struct sl_optim_args args_of(const struct step_job *job, const struct optimizer_unit *unit)
{
    const struct sl_optimizer *optimizer = job->optimizer;
    const struct optimizer_param *param = &optimizer->params[unit->param];
    struct optimizer_arrays arrays;
    optimizer_arrays_of(optimizer, param, unit->count, &arrays);
    void *at[SL_OPTIMIZER_ARRAYS];
    for (int a = 0; a < SL_OPTIMIZER_ARRAYS; a++)
        at[a] = arrays.bytes[a] ? job->state + unit->offset + arrays.offset[a] : NULL;
    char *weight =
        (char *)job->step->weights[unit->param] + unit->first * sl_dtype_bytes(param->dtype);
    struct sl_optim_args args = {
        .hyper = optimizer_hyper(optimizer, param->group),
        .master_kind = (enum sl_master_kind)optimizer->options.master,
        .moment_kind = (enum sl_moment_kind)optimizer->options.state,
        .tensor = unit->param,
        .element_first = unit->first,
        .count = unit->count,
        .grad = gradient_of(job, unit),
        .grad_dtype = gradient_dtype(job, unit->param),
        .grad_scale = job->grad_scale,
        .weight = weight,
        .weight_dtype = param->dtype,
        .exp_avg = at[SL_OPTIMIZER_EXP_AVG],
        .exp_avg_sq = at[SL_OPTIMIZER_EXP_AVG_SQ],
        .exp_avg_scale = at[SL_OPTIMIZER_EXP_AVG_SCALE],
        .exp_avg_sq_scale = at[SL_OPTIMIZER_EXP_AVG_SQ_SCALE],
    };
    args.hyper.step = param->updates + 1;
    if (job->step->lr > 0)
        args.hyper.lr = (float)job->step->lr;
    if (param->dtype == SL_F32) { /* the weight is the master */
        args.master_kind = SL_MASTER_F32;
        args.master = (float *)(void *)weight;
        args.weight = NULL;
    } else if (args.master_kind == SL_MASTER_F32) {
        args.master = at[SL_OPTIMIZER_MASTER];
    } else if (args.master_kind == SL_MASTER_SPLIT) {
        args.low = at[SL_OPTIMIZER_MASTER];
    }
    return args;
}

static void update_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct step_job *job = arg;
    const struct optimizer_unit *unit = &job->optimizer->units[job->unit_first + task_index];
    (void)worker_index;
    if (!job->step->gradients[unit->param])
        return;
    struct sl_optim_args args = args_of(job, unit);
    if (!job->optimizer->params[unit->param].master_set) {
        if (args.low)
            memset(args.low, 0, unit->count * sizeof(*args.low));
        else if (args.weight && args.master)
            sl_cast_to_f32(args.master, args.weight, args.weight_dtype, unit->count);
    }
    sl_optim_step(&args);
}

/* ---- slots ---- */

static void slot_done(struct sl_swap_request *request, int result);

/* Submit a transfer between the slot and a sub-group. The lock is held. */
static void slot_submit(struct optimizer_slot *slot, uint64_t active, bool write)
{
    struct sl_optimizer *optimizer = slot->optimizer;
    const struct optimizer_sub_group *group = &optimizer->sub_groups[optimizer->active[active]];
    slot->state = write ? SLOT_WRITING : SLOT_READING;
    slot->next = active + (write ? optimizer->options.buffers : 0);
    slot->request = (struct sl_swap_request){.write = write,
                                             .offset_bytes = group->offset,
                                             .bytes = group->bytes,
                                             .buffer = slot->buffer,
                                             .done = slot_done,
                                             .user = slot};
    sl_swap_submit(optimizer->swap, &slot->request);
}

/* From an I/O thread. */
static void slot_done(struct sl_swap_request *request, int result)
{
    struct optimizer_slot *slot = request->user;
    struct sl_optimizer *optimizer = slot->optimizer;
    pthread_mutex_lock(&optimizer->lock);
    if (result && !optimizer->failure.code)
        optimizer->failure.code = result; /* its message comes from the swap space, later */
    if (slot->state == SLOT_READING)
        slot->state = SLOT_READY;
    else if (slot->next < optimizer->active_count && !optimizer->failure.code)
        slot_submit(slot, slot->next, false);
    else
        slot->state = SLOT_IDLE;
    pthread_cond_signal(&optimizer->changed);
    pthread_mutex_unlock(&optimizer->lock);
}

/* List the sub-groups of NVMe that this step needs and ask for the first. */
static void start_reads(struct step_job *job)
{
    struct sl_optimizer *optimizer = job->optimizer;
    optimizer->active_count = 0;
    for (uint64_t g = 0; g < optimizer->sub_group_count; g++) {
        const struct optimizer_sub_group *group = &optimizer->sub_groups[g];
        bool needed = false;
        for (uint64_t u = 0; group->nvme && u < group->unit_count && !needed; u++)
            needed = job->step->gradients[optimizer->units[group->unit_first + u].param] != NULL;
        if (needed)
            optimizer->active[optimizer->active_count++] = g;
    }
    pthread_mutex_lock(&optimizer->lock);
    for (uint64_t i = 0; i < optimizer->options.buffers && i < optimizer->active_count; i++)
        slot_submit(&optimizer->slots[i], i, false);
    pthread_mutex_unlock(&optimizer->lock);
}

/* Wait for the read of the slot: its result. */
static int slot_wait(struct optimizer_slot *slot)
{
    struct sl_optimizer *optimizer = slot->optimizer;
    pthread_mutex_lock(&optimizer->lock);
    while (slot->state != SLOT_READY && !optimizer->failure.code)
        pthread_cond_wait(&optimizer->changed, &optimizer->lock);
    int code = optimizer->failure.code;
    pthread_mutex_unlock(&optimizer->lock);
    return code;
}

/* Wait until nothing is in flight. */
static void drain(struct sl_optimizer *optimizer)
{
    pthread_mutex_lock(&optimizer->lock);
    for (uint32_t i = 0; i < optimizer->options.buffers && optimizer->swap; i++) {
        struct optimizer_slot *slot = &optimizer->slots[i];
        while (slot->state == SLOT_READING || slot->state == SLOT_WRITING)
            pthread_cond_wait(&optimizer->changed, &optimizer->lock);
        slot->state = SLOT_IDLE;
    }
    pthread_mutex_unlock(&optimizer->lock);
}

int optimizer_fail(struct sl_optimizer *optimizer, int code, struct sl_error *error)
{
    struct sl_error cause = {0};
    sl_swap_error(optimizer->swap, &cause);
    if (!optimizer->failure.domain) {
        optimizer->failure = (struct sl_error){0};
        if (cause.code)
            sl_error_set(&optimizer->failure, cause.domain, cause.code,
                         "optimizer state on NVMe: %s; load the last saved state and weights into "
                         "a new optimizer",
                         cause.message);
        else
            sl_error_set(&optimizer->failure, SL_DOMAIN_IO, code,
                         "optimizer state on NVMe: %s; load the last saved state and weights into "
                         "a new optimizer",
                         strerror(-code));
    }
    return optimizer_usable(optimizer, error);
}

/* ---- the step ---- */

static void run_units(struct step_job *job, const struct optimizer_sub_group *group,
                      unsigned char *state)
{
    job->state = state;
    job->unit_first = group->unit_first;
    sl_workers_run(job->optimizer->workers, group->unit_count, update_task, job);
}

static int update(struct step_job *job, struct sl_optimizer_result *result)
{
    struct sl_optimizer *optimizer = job->optimizer;
    for (uint64_t g = 0; g < optimizer->sub_group_count; g++)
        if (!optimizer->sub_groups[g].nvme)
            run_units(job, &optimizer->sub_groups[g],
                      optimizer->arena.base + optimizer->sub_groups[g].offset);
    for (uint64_t i = 0; i < optimizer->active_count; i++) {
        struct optimizer_slot *slot = &optimizer->slots[i % optimizer->options.buffers];
        uint64_t before = sl_clock_ns();
        int code = slot_wait(slot);
        result->wait_seconds += 1e-9 * (double)(sl_clock_ns() - before);
        if (code)
            return code;
        run_units(job, &optimizer->sub_groups[optimizer->active[i]], slot->buffer);
        pthread_mutex_lock(&optimizer->lock);
        slot_submit(slot, i, true);
        pthread_mutex_unlock(&optimizer->lock);
    }
    return 0;
}

static int check_step(const struct sl_optimizer *optimizer, const struct sl_optimizer_step *step,
                      struct sl_error *error)
{
    int result = optimizer_usable(optimizer, error);
    if (result)
        return result;
    if (!step->gradients || !step->weights)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "step: the array of gradients or of weights is NULL");
    if (!(step->clip_norm >= 0) || !isfinite(step->clip_norm))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "step: clip_norm %g: finite and at least 0 (0: no limit)",
                            step->clip_norm);
    if (!((float)step->grad_scale > 0) || !isfinite((float)step->grad_scale))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "step: grad_scale %g: finite and above 0 (1 / loss scale)",
                            step->grad_scale);
    if (!(step->lr >= 0) || !isfinite((float)step->lr))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "step: lr %g: finite and above 0, or 0 for each group's own", step->lr);
    for (size_t i = 0; i < optimizer->param_count; i++) {
        const char *name = optimizer->params[i].name;
        if (!step->gradients[i])
            continue;
        if (!step->weights[i])
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "step: parameter \"%s\" has a gradient and no weights", name);
        if (step->gradient_dtypes && (unsigned)step->gradient_dtypes[i] > SL_F16)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "step: gradient of \"%s\" has dtype %d: 0 (f32), 1 (bf16) or 2 "
                                "(f16)",
                                name, (int)step->gradient_dtypes[i]);
    }
    return 0;
}

/* Add up what was measured, in unit order, and decide. */
static void decide(struct step_job *job, struct sl_optimizer_result *result)
{
    const struct sl_optimizer *optimizer = job->optimizer;
    const struct sl_optimizer_step *step = job->step;
    double squares = 0;
    for (uint64_t u = 0; u < optimizer->unit_count; u++) {
        squares += optimizer->squares[u];
        if (optimizer->nonfinite[u] && result->nonfinite_param < 0)
            result->nonfinite_param = optimizer->units[u].param;
        result->nonfinite += optimizer->nonfinite[u];
    }
    result->norm = sqrt(squares) * step->grad_scale;
    double shrink = step->clip_norm > 0 ? fmax(1.0, (result->norm + 1e-6) / step->clip_norm) : 1.0;
    result->clipped = shrink > 1;
    result->norm_clipped = result->norm / shrink;
    result->skipped = result->nonfinite != 0;
    job->grad_scale = (float)(step->grad_scale / shrink);
}

int sl_optimizer_step(struct sl_optimizer *optimizer, const struct sl_optimizer_step *step,
                      struct sl_optimizer_result *result, struct sl_error *error)
{
    struct sl_optimizer_result unused;
    struct sl_optimizer_result *r = result ? result : &unused;
    *r = (struct sl_optimizer_result){.nonfinite_param = -1};
    int code = check_step(optimizer, step, error);
    if (code)
        return code;
    struct step_job job = {.optimizer = optimizer, .step = step};
    struct sl_swap_stats before = {0}, after = {0};
    if (optimizer->swap) {
        sl_swap_stats(optimizer->swap, &before);
        start_reads(&job);
    }
    uint64_t start_ns = sl_clock_ns();
    sl_workers_run(optimizer->workers, optimizer->unit_count, measure_task, &job);
    decide(&job, r);
    uint64_t measured_ns = sl_clock_ns();
    r->norm_seconds = 1e-9 * (double)(measured_ns - start_ns);
    if (!r->skipped)
        code = update(&job, r);
    if (optimizer->swap) {
        uint64_t wait_ns = sl_clock_ns();
        drain(optimizer);
        r->wait_seconds += 1e-9 * (double)(sl_clock_ns() - wait_ns);
        sl_swap_stats(optimizer->swap, &after);
        r->bytes_read = after.bytes_read - before.bytes_read;
        r->bytes_written = after.bytes_written - before.bytes_written;
        if (!code)
            code = optimizer->failure.code;
    }
    r->update_seconds = 1e-9 * (double)(sl_clock_ns() - measured_ns);
    if (code)
        return optimizer_fail(optimizer, code, error);
    for (size_t i = 0; i < optimizer->param_count && !r->skipped; i++)
        if (step->gradients[i]) {
            optimizer->params[i].updates++;
            optimizer->params[i].master_set = optimizer->params[i].dtype != SL_F32 &&
                                              optimizer->options.master != SL_OPTIMIZER_MASTER_NONE;
        }
    return 0;
}

int sl_optimizer_weights_changed(struct sl_optimizer *optimizer, uint32_t index,
                                 struct sl_error *error)
{
    int result = optimizer_param_check(optimizer, index, error);
    if (!result)
        optimizer->params[index].master_set = false;
    return result;
}
