// SPDX-License-Identifier: Apache-2.0
/* The CUDA kernels behind the device table: one function per entry, each in the .cu of its name.
 *
 * Memory   every pointer of the arguments is device memory, except where offload/device.h says
 *          host-visible
 * Ordering work is queued on context->stream and returns at once; scratch is used in that order
 * Threads  one at a time per context
 * Errors   cudaSuccess, the launch's error, or cudaErrorInvalidValue for a broken contract
 * Exact    no floating-point atomics: same inputs, same bits
 */
#ifndef SLUICE_KERNELS_CUDA_KERNELS_H
#define SLUICE_KERNELS_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cpu/optim.h"
#include "kernels/ops.h"

struct sl_cuda_blas;
struct sl_optim_terms; /* kernels/cpu/optim_terms.h */

/* What every launch needs. Owner: the device. */
struct sl_cuda_context {
    cudaStream_t stream;
    enum sl_dtype type; /* of activations */
    void *scratch;      /* [scratch_bytes] device memory: partial sums, casts; 256-byte aligned */
    size_t scratch_bytes;
    struct sl_cuda_blas *blas;
};

/* Scratch that the kernels ask for: partial sums of column reductions and the 16-bit form of f32
 * operands of matrix products, in slices when larger. A numeric key: it fixes the slices. */
#define SL_CUDA_SCRATCH_BYTES ((size_t)64 << 20)

cudaError_t sl_cuda_norm(const struct sl_cuda_context *context, const struct sl_norm_args *args);
cudaError_t sl_cuda_norm_backward(const struct sl_cuda_context *context,
                                  const struct sl_norm_backward_args *args);
cudaError_t sl_cuda_matmul(const struct sl_cuda_context *context,
                           const struct sl_matmul_args *args);
cudaError_t sl_cuda_rope(const struct sl_cuda_context *context, const struct sl_rope_args *args);
cudaError_t sl_cuda_attention(const struct sl_cuda_context *context,
                              const struct sl_attention_args *args);
cudaError_t sl_cuda_attention_backward(const struct sl_cuda_context *context,
                                       const struct sl_attention_backward_args *args);
cudaError_t sl_cuda_attention_cached(const struct sl_cuda_context *context,
                                     const struct sl_attention_cached_args *args);
cudaError_t sl_cuda_act(const struct sl_cuda_context *context, const struct sl_act_args *args);
cudaError_t sl_cuda_act_backward(const struct sl_cuda_context *context,
                                 const struct sl_act_args *args);
cudaError_t sl_cuda_add(const struct sl_cuda_context *context, const struct sl_add_args *args);
cudaError_t sl_cuda_embedding(const struct sl_cuda_context *context,
                              const struct sl_embedding_args *args);
cudaError_t sl_cuda_embedding_backward(const struct sl_cuda_context *context,
                                       const struct sl_embedding_args *args);
cudaError_t sl_cuda_cross_entropy(const struct sl_cuda_context *context,
                                  const struct sl_cross_entropy_args *args);
cudaError_t sl_cuda_gradient_finish(const struct sl_cuda_context *context,
                                    const struct sl_gradient_finish_args *args);
/* terms: sl_optim_terms_make(args), the factors that the CPU variants use too. */
cudaError_t sl_cuda_optim(const struct sl_cuda_context *context, const struct sl_optim_args *args,
                          const struct sl_optim_terms *terms);

/* The two forms of attention, for the tests: plain takes every shape (head_size <= 256) and type,
 * flash needs 16-bit activations, a positive scale and head_size % 8 == 0. sl_cuda_attention
 * chooses. */
bool sl_cuda_attention_flash_takes(const struct sl_cuda_context *context,
                                   const struct sl_attention_args *args);
cudaError_t sl_cuda_attention_plain(const struct sl_cuda_context *context,
                                    const struct sl_attention_args *args);
cudaError_t sl_cuda_attention_plain_backward(const struct sl_cuda_context *context,
                                             const struct sl_attention_backward_args *args);
cudaError_t sl_cuda_attention_flash(const struct sl_cuda_context *context,
                                    const struct sl_attention_args *args);
cudaError_t sl_cuda_attention_flash_backward(const struct sl_cuda_context *context,
                                             const struct sl_attention_backward_args *args);

/* delta[b, h, t] = sum over the head of out * dout: the backward pass's first step, both forms. */
cudaError_t sl_cuda_attention_delta(const struct sl_cuda_context *context,
                                    const struct sl_attention_backward_args *args);

/* out[c] += sum over rows of x[rows, width] (column sums; x at row stride `stride`, of `dtype`). */
cudaError_t sl_cuda_column_sums(const struct sl_cuda_context *context, float *out, const void *x,
                                enum sl_dtype dtype, size_t rows, size_t width, size_t stride);

/* out[c] += sum over parts of partial[p * part_stride + c], parts in a fixed order. */
cudaError_t sl_cuda_partials_add(const struct sl_cuda_context *context, float *out,
                                 const float *partial, size_t parts, size_t width,
                                 size_t part_stride);

/* y[rows, width] += bias[width]; y of `dtype`. */
cudaError_t sl_cuda_bias_add(const struct sl_cuda_context *context, void *y, enum sl_dtype dtype,
                             size_t rows, size_t width, size_t stride,
                             const struct sl_weight *bias);

/* out = the context's 16-bit type of x[rows, width] f32, each with its row stride. */
cudaError_t sl_cuda_cast(const struct sl_cuda_context *context, void *out, const float *x,
                         size_t rows, size_t width, size_t stride, size_t out_stride);

/* cuBLASLt's handle, workspace and the algorithms chosen so far (kernels/cuda/blas.cu).
 *
 * Owner    the caller until destroy; the workspace is device memory of at least the bytes asked
 *          for by sl_cuda_blas_workspace_bytes
 * Errors   cudaErrorInitializationError where cuBLASLt does not start, cudaErrorMemoryAllocation */
size_t sl_cuda_blas_workspace_bytes(int compute_major);
cudaError_t sl_cuda_blas_create(struct sl_cuda_blas **out, void *workspace, size_t workspace_bytes);
void sl_cuda_blas_destroy(struct sl_cuda_blas *blas); /* NULL allowed */

#ifdef __cplusplus
}
#endif

#endif
