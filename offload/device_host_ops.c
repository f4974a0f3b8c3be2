// SPDX-License-Identifier: Apache-2.0
/* The host device's compute kernels: each cuts its problem into tasks and runs them on the pool.
 *
 * Where a row's result does not depend on other rows, and in matrix products, the cut is free;
 * where it matters (weight gradients of norms, attention) it is a function of the shape alone.
 * Small problems run in the caller. Costs are rough nanoseconds of one core and decide nothing
 * else.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>

#include "base/size.h"
#include "kernels/host/matmul.h"
#include "offload/device_host.h"

/* Elements a task of a row-wise kernel should have: some 10 to 20 microseconds. */
#define TASK_ELEMENTS 16384u

/* The enums of device.h and of kernels/host are the same numbers. */
_Static_assert((int)SL_NORM_LAYER == (int)SL_HOST_NORM_LAYER, "norm kinds");
_Static_assert((int)SL_NORM_RMS_PLUS_ONE == (int)SL_HOST_NORM_RMS_PLUS_ONE, "norm kinds");
_Static_assert((int)SL_ACT_GELU == (int)SL_HOST_ACT_GELU, "activation kinds");
_Static_assert((int)SL_ACT_GELU_TANH == (int)SL_HOST_ACT_GELU_TANH, "activation kinds");
_Static_assert((int)SL_MATMUL_BACKWARD_WEIGHT == (int)SL_HOST_MATMUL_BACKWARD_WEIGHT, "products");
_Static_assert((int)SL_MATMUL_BACKWARD_INPUT == (int)SL_HOST_MATMUL_BACKWARD_INPUT, "products");
_Static_assert(SL_MATMUL_DEPTH == SL_HOST_GEMM_DEPTH, "products");

static struct sl_host_weight weight_of(struct sl_weight w)
{
    return (struct sl_host_weight){w.data, w.dtype};
}

/* A run of rows (or columns, or elements) per task. */
struct row_job {
    struct host_device *host;
    const void *args;
    size_t rows, rows_per_task;
};

static struct row_job row_job(struct host_device *host, const void *args, size_t rows, size_t width)
{
    size_t per_task = width < TASK_ELEMENTS ? TASK_ELEMENTS / (width ? width : 1) : 1;
    return (struct row_job){host, args, rows, per_task};
}

static void row_run(struct row_job *job, size_t width, double ns_per_element, sl_task_fn task)
{
    host_run(job->host, sl_div_up(job->rows, job->rows_per_task),
             (double)job->rows * (double)width * ns_per_element, task, job);
}

/* name_task: calls kernels->name(args, first row, row count) for its run. */
#define ROW_TASK(name)                                                                             \
    static void name##_task(void *arg, size_t task_index, size_t worker_index)                     \
    {                                                                                              \
        const struct row_job *job = arg;                                                           \
        size_t first = task_index * job->rows_per_task;                                            \
        (void)worker_index;                                                                        \
        job->host->kernels->name(job->args, first,                                                 \
                                 sl_min_u64(job->rows_per_task, job->rows - first));               \
    }

ROW_TASK(norm)
ROW_TASK(rope)
ROW_TASK(act)
ROW_TASK(act_backward)
ROW_TASK(embedding)
ROW_TASK(embedding_backward)
ROW_TASK(cross_entropy_stats)
ROW_TASK(cross_entropy_backward)
ROW_TASK(cross_entropy_loss)

int host_norm(struct sl_device *device, const struct sl_norm_args *args)
{
    struct sl_host_norm a = {.kind = (enum sl_host_norm_kind)args->kind,
                             .width = args->width,
                             .row_group = args->row_group,
                             .row_stride = args->row_stride,
                             .eps = args->eps,
                             .x = args->x,
                             .weight = weight_of(args->weight),
                             .bias = weight_of(args->bias),
                             .out = args->out};
    struct row_job job = row_job(host_of(device), &a, args->rows, args->width);
    row_run(&job, args->width, 0.2, norm_task);
    return 0;
}

struct norm_backward_job {
    struct host_device *host;
    const struct sl_norm_backward_args *args;
    struct sl_host_norm kernel;
    size_t block_rows, block_count;
};

#define COMBINE_COLUMNS 512u

static float *norm_partial(const struct norm_backward_job *job, size_t block, bool bias)
{
    return job->host->partials + (2 * block + bias) * job->args->width;
}

static void norm_backward_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct norm_backward_job *job = arg;
    const struct sl_norm_backward_args *args = job->args;
    size_t first = task_index * job->block_rows;
    (void)worker_index;
    job->host->kernels->norm_backward(&job->kernel, first,
                                      sl_min_u64(job->block_rows, args->rows - first),
                                      args->dweight ? norm_partial(job, task_index, false) : NULL,
                                      args->dbias ? norm_partial(job, task_index, true) : NULL);
}

/* Adds the blocks' sums in order, and then the total to the gradient, for some columns. */
static void norm_combine_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct norm_backward_job *job = arg;
    size_t first = task_index * COMBINE_COLUMNS;
    size_t count = sl_min_u64(COMBINE_COLUMNS, job->args->width - first);
    (void)worker_index;
    for (int bias = 0; bias < 2; bias++) {
        float *sum = bias ? job->args->dbias : job->args->dweight;
        if (!sum)
            continue;
        float *total = norm_partial(job, 0, bias) + first;
        for (size_t block = 1; block < job->block_count; block++)
            job->host->kernels->add(total, norm_partial(job, block, bias) + first, total, count);
        job->host->kernels->add(sum + first, total, sum + first, count);
    }
}

int host_norm_backward(struct sl_device *device, const struct sl_norm_backward_args *args)
{
    struct host_device *host = host_of(device);
    size_t blocks_max = NORM_PARTIAL_BYTES / (2 * sizeof(float)) / (args->width ? args->width : 1);
    if (blocks_max == 0)
        return sl_error_set(&device->error, SL_DOMAIN_INPUT, -EINVAL,
                            "norm backward: width %zu, at most %zu", args->width,
                            NORM_PARTIAL_BYTES / (2 * sizeof(float)));
    blocks_max = sl_min_u64(blocks_max, NORM_BLOCKS_MAX);
    struct norm_backward_job job = {.host = host, .args = args};
    job.kernel = (struct sl_host_norm){.kind = (enum sl_host_norm_kind)args->kind,
                                       .width = args->width,
                                       .row_group = args->row_group,
                                       .row_stride = args->row_stride,
                                       .eps = args->eps,
                                       .x = args->x,
                                       .weight = weight_of(args->weight),
                                       .dout = args->dout,
                                       .dx = args->dx,
                                       .accumulate = args->accumulate_dx};
    job.block_rows = sl_max_u64(16, sl_div_up(args->rows, blocks_max));
    job.block_count = sl_div_up(args->rows, job.block_rows);
    if (job.block_count == 0)
        return 0;
    double elements = (double)args->rows * (double)args->width;
    host_run(host, job.block_count, elements * 0.5, norm_backward_task, &job);
    if (args->dweight || args->dbias)
        host_run(host, sl_div_up(args->width, COMBINE_COLUMNS),
                 (double)job.block_count * (double)args->width * 0.1, norm_combine_task, &job);
    return 0;
}

struct matmul_job {
    struct host_device *host;
    struct sl_host_matmul kernel;
    struct sl_host_tiling tiling;
};

static void matmul_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct matmul_job *job = arg;
    sl_host_matmul_tile(job->host->kernels, &job->kernel, &job->tiling, task_index,
                        host_scratch(job->host, worker_index));
}

int host_matmul(struct sl_device *device, const struct sl_matmul_args *args)
{
    struct matmul_job job = {.host = host_of(device)};
    job.kernel = (struct sl_host_matmul){
        .kind = (enum sl_host_matmul_kind)args->kind,
        .rows = args->rows,
        .inputs = args->inputs,
        .outputs = args->outputs,
        .x_stride = args->x_stride ? args->x_stride : args->inputs,
        .y_stride = args->y_stride ? args->y_stride : args->outputs,
        .x = args->x,
        .y = args->y,
        .accumulate = args->accumulate,
        .weight = weight_of(args->weight),
        .bias = weight_of(args->bias),
        .dweight = args->dweight,
        .dbias = args->dbias,
    };
    if (args->rows > INT_MAX || job.kernel.x_stride > INT_MAX || job.kernel.y_stride > INT_MAX)
        return sl_error_set(&device->error, SL_DOMAIN_INPUT, -EINVAL,
                            "matrix product [%zu, %zu] x [%zu]: a dimension is over %d", args->rows,
                            args->inputs, args->outputs, INT_MAX);
    if (args->rows == 0 ||
        (args->kind == SL_MATMUL_BACKWARD_WEIGHT && !args->dweight && !args->dbias))
        return 0;
    sl_host_matmul_tiling(&job.kernel, sl_workers_thread_count(job.host->workers), &job.tiling);
    double flops = 2.0 * (double)args->rows * (double)args->inputs * (double)args->outputs;
    double ns = job.tiling.few_rows ? flops / 8 : flops / 50;
    host_run(job.host, sl_host_matmul_task_count(&job.tiling), ns, matmul_task, &job);
    return 0;
}

int host_rope(struct sl_device *device, const struct sl_rope_args *args)
{
    struct sl_host_rope a = {.heads = args->heads,
                             .head_size = args->head_size,
                             .rotary = args->rotary,
                             .row_stride = args->row_stride,
                             .x = args->x,
                             .positions = args->positions,
                             .cos = args->cos,
                             .sin = args->sin,
                             .inverse = args->inverse};
    size_t width = args->heads * args->rotary;
    struct row_job job = row_job(host_of(device), &a, args->rows, width);
    row_run(&job, width, 0.2, rope_task);
    return 0;
}

struct attention_job {
    struct host_device *host;
    struct sl_host_attention kernel;
    size_t batch_count, block_count;
};

static struct attention_job attention_job(struct sl_device *device,
                                          const struct sl_attention_args *args)
{
    struct attention_job job = {.host = host_of(device), .batch_count = args->batch_count};
    job.block_count = sl_div_up(args->sequence_length, SL_HOST_ATTENTION_QUERIES);
    job.kernel = (struct sl_host_attention){.sequence_length = args->sequence_length,
                                            .heads = args->heads,
                                            .kv_heads = args->kv_heads,
                                            .head_size = args->head_size,
                                            .scale = args->scale,
                                            .softcap = args->softcap,
                                            .window = args->window,
                                            .first = args->first,
                                            .qkv = args->qkv,
                                            .out = args->out,
                                            .lse = args->lse};
    assert(args->heads % args->kv_heads == 0);
    return job;
}

static double attention_ns(const struct sl_attention_args *args)
{
    double keys = (double)args->sequence_length / 2;
    return (double)(args->batch_count * args->sequence_length * args->heads) * keys *
           (4.0 * (double)args->head_size / 60 + 1);
}

/* The last blocks have the most keys: they go first, so that the tail is short. */
static void attention_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct attention_job *job = arg;
    size_t pairs = job->batch_count * job->kernel.heads, pair = task_index % pairs;
    job->host->kernels->attention(&job->kernel, pair / job->kernel.heads, pair % job->kernel.heads,
                                  job->block_count - 1 - task_index / pairs,
                                  host_scratch(job->host, worker_index));
}

int host_attention(struct sl_device *device, const struct sl_attention_args *args)
{
    struct attention_job job = attention_job(device, args);
    host_run(job.host, args->batch_count * args->heads * job.block_count, attention_ns(args),
             attention_task, &job);
    return 0;
}

static void attention_backward_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct attention_job *job = arg;
    job->host->kernels->attention_backward(&job->kernel, task_index / job->kernel.kv_heads,
                                           task_index % job->kernel.kv_heads,
                                           host_scratch(job->host, worker_index));
}

int host_attention_backward(struct sl_device *device, const struct sl_attention_backward_args *args)
{
    struct attention_job job = attention_job(device, &args->forward);
    job.kernel.dout = args->dout;
    job.kernel.dqkv = args->dqkv;
    job.kernel.delta = args->delta;
    host_run(job.host, args->forward.batch_count * args->forward.kv_heads,
             2.5 * attention_ns(&args->forward), attention_backward_task, &job);
    return 0;
}

struct cached_job {
    struct host_device *host;
    struct sl_host_attention_cached kernel;
};

static void cached_task(void *arg, size_t task_index, size_t worker_index)
{
    (void)worker_index;
    const struct cached_job *job = arg;
    job->host->kernels->attention_cached(&job->kernel, task_index / job->kernel.heads,
                                         task_index % job->kernel.heads);
}

int host_attention_cached(struct sl_device *device, const struct sl_attention_cached_args *args)
{
    size_t width = args->kv_heads * args->head_size;
    size_t row_width = (args->heads + 2 * args->kv_heads) * args->head_size;
    const float *k = (const float *)args->qkv + args->heads * args->head_size;
    for (size_t row = 0; row < args->rows; row++) {
        size_t to = (args->position_first + row) * width;
        memcpy((float *)args->keys + to, k + row * row_width, width * sizeof(float));
        memcpy((float *)args->values + to, k + row * row_width + width, width * sizeof(float));
    }
    struct cached_job job = {.host = host_of(device),
                             .kernel = {.heads = args->heads,
                                        .kv_heads = args->kv_heads,
                                        .head_size = args->head_size,
                                        .position_first = args->position_first,
                                        .window = args->window,
                                        .scale = args->scale,
                                        .softcap = args->softcap,
                                        .qkv = args->qkv,
                                        .keys = args->keys,
                                        .values = args->values,
                                        .out = args->out}};
    double keys = (double)(args->position_first + args->rows);
    double cost_ns =
        (double)(args->rows * args->heads) * keys * (0.3 * (double)args->head_size + 10);
    host_run(job.host, args->rows * args->heads, cost_ns, cached_task, &job);
    return 0;
}

static struct sl_host_act act_of(const struct sl_act_args *args)
{
    return (struct sl_host_act){.kind = (enum sl_host_act_kind)args->kind,
                                .gated = args->gated,
                                .width = args->width,
                                .in = args->in,
                                .out = args->out,
                                .dout = args->dout,
                                .din = args->din};
}

int host_act(struct sl_device *device, const struct sl_act_args *args)
{
    struct sl_host_act a = act_of(args);
    struct row_job job = row_job(host_of(device), &a, args->rows, args->width);
    row_run(&job, args->width, 0.7, act_task);
    return 0;
}

int host_act_backward(struct sl_device *device, const struct sl_act_args *args)
{
    struct sl_host_act a = act_of(args);
    struct row_job job = row_job(host_of(device), &a, args->rows, args->width);
    row_run(&job, args->width, 1.0, act_backward_task);
    return 0;
}

static void add_task(void *arg, size_t task_index, size_t worker_index)
{
    const struct row_job *job = arg;
    const struct sl_add_args *args = job->args;
    size_t first = task_index * job->rows_per_task;
    (void)worker_index;
    job->host->kernels->add((const float *)args->a + first, (const float *)args->b + first,
                            (float *)args->out + first,
                            sl_min_u64(job->rows_per_task, job->rows - first));
}

int host_add(struct sl_device *device, const struct sl_add_args *args)
{
    struct row_job job = row_job(host_of(device), args, args->count, 1);
    row_run(&job, 1, 0.15, add_task);
    return 0;
}

static struct sl_host_embedding embedding_of(const struct sl_embedding_args *args)
{
    return (struct sl_host_embedding){.rows = args->rows,
                                      .width = args->width,
                                      .row_first = args->row_first,
                                      .row_count = args->row_count,
                                      .ids = args->ids,
                                      .scale = args->scale,
                                      .add = args->add,
                                      .table = weight_of(args->table),
                                      .out = args->out,
                                      .dout = args->dout,
                                      .dtable = args->dtable};
}

int host_embedding(struct sl_device *device, const struct sl_embedding_args *args)
{
    struct sl_host_embedding a = embedding_of(args);
    struct row_job job = row_job(host_of(device), &a, args->rows, args->width);
    row_run(&job, args->width, 0.2, embedding_task);
    return 0;
}

#define EMBEDDING_COLUMNS 64u

int host_embedding_backward(struct sl_device *device, const struct sl_embedding_args *args)
{
    struct sl_host_embedding a = embedding_of(args);
    struct row_job job = {host_of(device), &a, args->width, EMBEDDING_COLUMNS};
    row_run(&job, args->rows, 0.2, embedding_backward_task);
    return 0;
}

int host_cross_entropy(struct sl_device *device, const struct sl_cross_entropy_args *args)
{
    struct sl_host_cross_entropy a = {.width = args->width,
                                      .column_first = args->column_first,
                                      .logits = args->logits,
                                      .softcapped = args->softcapped,
                                      .reset = args->reset,
                                      .softcap = args->softcap,
                                      .scale = args->scale,
                                      .targets = args->targets,
                                      .row_max = args->row_max,
                                      .row_sum = args->row_sum,
                                      .target_logit = args->target_logit,
                                      .loss = args->loss};
    size_t width = args->kind == SL_CE_LOSS ? 64 : args->width;
    struct row_job job = row_job(host_of(device), &a, args->rows, width);
    row_run(&job, width, 0.5,
            args->kind == SL_CE_STATS      ? cross_entropy_stats_task
            : args->kind == SL_CE_BACKWARD ? cross_entropy_backward_task
                                           : cross_entropy_loss_task);
    return 0;
}
