// SPDX-License-Identifier: Apache-2.0
/* The CUDA device's compute operations: each enters the device, queues its kernels, and notes its
 * name for error messages (and as an NVTX range where the toolkit's header was found). */
#include "kernels/cpu/optim_terms.h"
#include "offload/device_cuda_state.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define RANGE_BEGIN(name) nvtxRangePushA(name)
#define RANGE_END() nvtxRangePop()
#endif
#endif
#ifndef RANGE_BEGIN
#define RANGE_BEGIN(name) ((void)0)
#define RANGE_END() ((void)0)
#endif

void cuda_range_begin(struct sl_device *device, const char *name)
{
    (void)device, (void)name;
    RANGE_BEGIN(name);
}

void cuda_range_end(struct sl_device *device)
{
    (void)device;
    RANGE_END();
}

#define DEFINE_OPERATION(name, args_type)                                                          \
    int cuda_##name(struct sl_device *device, const struct args_type *args)                        \
    {                                                                                              \
        struct cuda_device *cuda = cuda_of(device);                                                \
        int code = cuda_enter(cuda);                                                               \
        if (code)                                                                                  \
            return code;                                                                           \
        RANGE_BEGIN(#name);                                                                        \
        cudaError_t error = sl_cuda_##name(&cuda->context, args);                                  \
        RANGE_END();                                                                               \
        return cuda_done(cuda, SL_STREAM_COMPUTE, error, #name);                                   \
    }

DEFINE_OPERATION(norm, sl_norm_args)
DEFINE_OPERATION(norm_backward, sl_norm_backward_args)
DEFINE_OPERATION(matmul, sl_matmul_args)
DEFINE_OPERATION(rope, sl_rope_args)
DEFINE_OPERATION(attention, sl_attention_args)
DEFINE_OPERATION(attention_backward, sl_attention_backward_args)
DEFINE_OPERATION(attention_cached, sl_attention_cached_args)
DEFINE_OPERATION(act, sl_act_args)
DEFINE_OPERATION(act_backward, sl_act_args)
DEFINE_OPERATION(add, sl_add_args)
DEFINE_OPERATION(embedding, sl_embedding_args)
DEFINE_OPERATION(embedding_backward, sl_embedding_args)
DEFINE_OPERATION(cross_entropy, sl_cross_entropy_args)
DEFINE_OPERATION(gradient_finish, sl_gradient_finish_args)

int cuda_optim(struct sl_device *device, const struct sl_optim_args *args)
{
    struct cuda_device *cuda = cuda_of(device);
    int code = cuda_enter(cuda);
    if (code)
        return code;
    struct sl_optim_terms terms = sl_optim_terms_make(args);
    RANGE_BEGIN("optim");
    cudaError_t error = sl_cuda_optim(&cuda->context, args, &terms);
    RANGE_END();
    return cuda_done(cuda, SL_STREAM_COMPUTE, error, "optim");
}
