// SPDX-License-Identifier: Apache-2.0
/* Every kernel once, on zeros in scratch: CUDA loads the code of a kernel at its first launch, and
 * that takes device memory, which must be taken before the plan is sealed. It is also the first
 * proof that the module has code for this GPU. */
#include <string.h>

#include "kernels/cpu/optim_terms.h"
#include "offload/device_cuda_state.h"

/* Kernels put their partial sums at the start of scratch; operands lie in its second half. */
#define WARM_BYTES ((size_t)1 << 20)
#define WARM_ROWS 2u

struct warm {
    const struct sl_cuda_context *context;
    char *memory;       /* operands, all of them in one place: their values do not matter */
    const int32_t *ids; /* zeros that nothing writes: indices must stay inside their tables */
};

static cudaError_t warm_norm(const struct warm *w, size_t width)
{
    struct sl_weight weight = {w->memory, w->context->type};
    float *sums = (float *)(void *)w->memory;
    struct sl_norm_args forward = {.kind = SL_NORM_LAYER,
                                   .rows = WARM_ROWS,
                                   .width = width,
                                   .row_group = 1,
                                   .row_stride = width,
                                   .eps = 1,
                                   .x = w->memory,
                                   .weight = weight,
                                   .bias = weight,
                                   .out = w->memory};
    struct sl_norm_backward_args backward = {.kind = SL_NORM_LAYER,
                                             .rows = WARM_ROWS,
                                             .width = width,
                                             .row_group = 1,
                                             .row_stride = width,
                                             .eps = 1,
                                             .x = w->memory,
                                             .weight = weight,
                                             .dout = w->memory,
                                             .dx = w->memory,
                                             .dweight = sums,
                                             .dbias = sums};
    cudaError_t error = sl_cuda_norm(w->context, &forward);
    return error ? error : sl_cuda_norm_backward(w->context, &backward);
}

static cudaError_t warm_matmul(const struct warm *w, enum sl_matmul_kind kind, bool y_f32)
{
    struct sl_weight weight = {w->memory, w->context->type}, bias = weight;
    if (y_f32)
        bias.dtype = SL_BF16; /* another type than the result's: the separate kernel */
    struct sl_matmul_args args = {.kind = kind,
                                  .rows = 64,
                                  .inputs = 64,
                                  .outputs = 64,
                                  .x = w->memory,
                                  .y = w->memory,
                                  .y_f32 = y_f32,
                                  .weight = weight,
                                  .bias = bias,
                                  .dweight = (float *)(void *)w->memory,
                                  .dbias = (float *)(void *)w->memory};
    return sl_cuda_matmul(w->context, &args);
}

static cudaError_t warm_attention(const struct warm *w, size_t head_size)
{
    struct sl_attention_backward_args args = {.forward = {.batch_count = 1,
                                                          .sequence_length = WARM_ROWS,
                                                          .heads = 1,
                                                          .kv_heads = 1,
                                                          .head_size = head_size,
                                                          .scale = 1,
                                                          .qkv = w->memory,
                                                          .out = w->memory,
                                                          .lse = (float *)(void *)w->memory},
                                              .dout = w->memory,
                                              .dqkv = w->memory,
                                              .delta = (float *)(void *)w->memory};
    cudaError_t error = sl_cuda_attention(w->context, &args.forward);
    return error ? error : sl_cuda_attention_backward(w->context, &args);
}

/* One query of one key head, four, eight; keys enough for two parts, so that the merge runs too. */
static cudaError_t warm_cached(const struct warm *w)
{
    cudaError_t error = cudaSuccess;
    for (size_t heads = 1; heads <= 8 && !error; heads = heads == 1 ? 4 : 2 * heads) {
        struct sl_attention_cached_args args = {.rows = 1,
                                                .position_first = 255,
                                                .heads = heads,
                                                .kv_heads = 1,
                                                .head_size = 64,
                                                .scale = 1,
                                                .qkv = w->memory,
                                                .keys = w->memory,
                                                .values = w->memory,
                                                .out = w->memory};
        error = sl_cuda_attention_cached(w->context, &args);
    }
    return error;
}

static cudaError_t warm_elementwise(const struct warm *w)
{
    const float *table = (const float *)(const void *)w->memory;
    struct sl_rope_args rope = {.rows = WARM_ROWS,
                                .heads = 1,
                                .head_size = 64,
                                .rotary = 64,
                                .row_stride = 64,
                                .x = w->memory,
                                .positions = w->ids,
                                .cos = table,
                                .sin = table};
    struct sl_act_args act = {.gated = true,
                              .rows = WARM_ROWS,
                              .width = 64,
                              .in = w->memory,
                              .out = w->memory,
                              .dout = w->memory,
                              .din = w->memory};
    struct sl_add_args add = {.count = 64, .a = w->memory, .b = w->memory, .out = w->memory};
    cudaError_t error = sl_cuda_rope(w->context, &rope);
    if (!error)
        error = sl_cuda_act(w->context, &act);
    if (!error)
        error = sl_cuda_act_backward(w->context, &act);
    return error ? error : sl_cuda_add(w->context, &add);
}

static cudaError_t warm_ends(const struct warm *w)
{
    float *floats = (float *)(void *)w->memory;
    struct sl_embedding_args embedding = {.rows = WARM_ROWS,
                                          .width = 64,
                                          .row_count = 1,
                                          .ids = w->ids,
                                          .scale = 1,
                                          .table = {w->memory, w->context->type},
                                          .out = w->memory,
                                          .dout = w->memory,
                                          .dtable = floats};
    struct sl_cross_entropy_args loss = {.rows = WARM_ROWS,
                                         .width = 64,
                                         .logits = floats,
                                         .reset = true,
                                         .scale = 1,
                                         .targets = w->ids,
                                         .row_max = floats,
                                         .row_sum = floats,
                                         .target_logit = floats,
                                         .loss = floats};
    cudaError_t error = sl_cuda_embedding(w->context, &embedding);
    if (!error)
        error = sl_cuda_embedding_backward(w->context, &embedding);
    for (int kind = SL_CE_STATS; kind <= SL_CE_LOSS && !error; kind++) {
        loss.kind = (enum sl_cross_entropy_kind)kind;
        error = sl_cuda_cross_entropy(w->context, &loss);
    }
    return error;
}

/* The gradient's results go to scratch too: both arrays are device memory here. */
static cudaError_t warm_update(const struct warm *w)
{
    float *floats = (float *)(void *)w->memory;
    struct sl_gradient_finish_args finish = {.count = 64,
                                             .sum = floats,
                                             .out = floats,
                                             .dtype = SL_BF16,
                                             .chunk_squares = (double *)(void *)w->memory,
                                             .chunk_nonfinite = (uint64_t *)(void *)w->memory};
    struct sl_optim_args optim = {
        .hyper = {.kind = SL_OPTIM_ADAMW, .beta1 = 0.5f, .beta2 = 0.5f, .eps = 1, .step = 1},
        .count = 64,
        .grad = floats,
        .grad_dtype = SL_F32,
        .grad_scale = 1,
        .master = floats,
        .exp_avg = floats,
        .exp_avg_sq = floats,
        .exp_avg_scale = floats,
        .exp_avg_sq_scale = floats};
    struct sl_optim_terms terms = sl_optim_terms_make(&optim);
    cudaError_t error = sl_cuda_gradient_finish(w->context, &finish);
    if (!error)
        error = sl_cuda_optim(w->context, &optim, &terms);
    optim.moment_kind = SL_MOMENT_Q8;
    return error ? error : sl_cuda_optim(w->context, &optim, &terms);
}

cudaError_t cuda_warm(const struct sl_cuda_context *context)
{
    static const size_t head_sizes[] = {63, 64, 128, 256}; /* 63: the plain form */
    char *memory = (char *)context->scratch + context->scratch_bytes / 2;
    struct warm w = {context, memory, (const int32_t *)(const void *)(memory + WARM_BYTES)};
    cudaError_t error = cudaMemsetAsync(memory, 0, 2 * WARM_BYTES, context->stream);
    if (!error)
        error = warm_norm(&w, 64);
    if (!error)
        error = warm_norm(&w, 2048);
    for (int kind = SL_MATMUL_FORWARD; kind <= SL_MATMUL_BACKWARD_WEIGHT && !error; kind++) {
        error = warm_matmul(&w, (enum sl_matmul_kind)kind, false);
        if (!error)
            error = warm_matmul(&w, (enum sl_matmul_kind)kind, true);
    }
    for (size_t i = 0; i < sizeof(head_sizes) / sizeof(head_sizes[0]) && !error; i++)
        error = warm_attention(&w, head_sizes[i]);
    if (!error)
        error = warm_cached(&w);
    if (!error)
        error = warm_elementwise(&w);
    if (!error)
        error = warm_ends(&w);
    if (!error)
        error = warm_update(&w);
    return error ? error : cudaStreamSynchronize(context->stream);
}
