// SPDX-License-Identifier: Apache-2.0
/* Gradient finish and optimizer step of the host device: kernels/cpu per chunk, on the pool. */
#include "base/size.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/optim.h"
#include "offload/device_host.h"

struct finish_job {
    const struct sl_gradient_finish_args *args;
};

static void finish_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct sl_gradient_finish_args *args = ((const struct finish_job *)arg)->args;
    size_t first = task_index * SL_GRADIENT_CHUNK;
    (void)worker_index;
    sl_gradient_finish_chunk(args->sum + first,
                             (char *)args->out + first * sl_dtype_bytes(args->dtype), args->dtype,
                             sl_min_u64(SL_GRADIENT_CHUNK, args->count - first),
                             &args->chunk_squares[task_index], &args->chunk_nonfinite[task_index]);
}

int host_gradient_finish(struct sl_device *device, const struct sl_gradient_finish_args *args)
{
    struct finish_job job = {args};
    host_run(host_of(device), sl_div_up(args->count, SL_GRADIENT_CHUNK), (double)args->count * 0.3,
             finish_task, &job);
    return 0;
}

/* Elements per task: a multiple of the quantization block; the cut changes no bits. */
#define OPTIM_ELEMENTS 65536u
_Static_assert(OPTIM_ELEMENTS % SL_OPTIM_Q8_BLOCK == 0, "whole quantization blocks");

static void *advance(const void *array, size_t elements, size_t bytes)
{
    return array ? (char *)(uintptr_t)array + elements * bytes : NULL;
}

static void optim_task(void *arg, size_t task_index, size_t worker_index)
{
    struct sl_optim_args a = *(const struct sl_optim_args *)arg;
    size_t first = task_index * OPTIM_ELEMENTS, blocks = first / SL_OPTIM_Q8_BLOCK;
    size_t moment_bytes = sl_moment_bytes(a.moment_kind);
    (void)worker_index;
    a.element_first += first;
    a.count = sl_min_u64(OPTIM_ELEMENTS, a.count - first);
    a.grad = advance(a.grad, first, sl_dtype_bytes(a.grad_dtype));
    a.master = advance(a.master, first, 4);
    a.low = advance(a.low, first, 2);
    a.weight = advance(a.weight, first, sl_dtype_bytes(a.weight_dtype));
    a.exp_avg = advance(a.exp_avg, first, moment_bytes);
    a.exp_avg_sq = advance(a.exp_avg_sq, first, moment_bytes);
    a.exp_avg_scale = advance(a.exp_avg_scale, blocks, 4);
    a.exp_avg_sq_scale = advance(a.exp_avg_sq_scale, blocks, 4);
    sl_optim_step(&a);
}

int host_optim(struct sl_device *device, const struct sl_optim_args *args)
{
    struct sl_optim_args copy = *args;
    host_run(host_of(device), sl_div_up(args->count, OPTIM_ELEMENTS), (double)args->count,
             optim_task, &copy);
    return 0;
}
