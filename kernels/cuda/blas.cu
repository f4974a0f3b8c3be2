// SPDX-License-Identifier: Apache-2.0
/* Matrix products by cuBLASLt: the only file that knows it.
 *
 * cuBLASLt's matrices are column-major, ours row-major: a row-major [r, c] at row stride s is a
 * column-major [c, r] with leading dimension s. So every product computes the transpose:
 *
 *     FORWARD          y^T [outputs, rows]    = (W^T)^T  x^T       A = W  transposed, B = x
 *     BACKWARD_INPUT   dx^T [inputs, rows]    = W^T      dy^T      A = W,             B = dy
 *     BACKWARD_WEIGHT  dW^T [inputs, outputs] = x^T     (dy^T)^T   A = x,             B = dy
 * transposed
 *
 * Operands are 16-bit (f32 in fp32 mode), sums f32. f32 gradients of the logits are rounded to the
 * 16-bit type in scratch first, in slices of rows when they do not fit.
 * Exactness: one algorithm per shape, the first that cuBLASLt's heuristic gives for shape, types,
 * alignment and workspace; never timed, no reduction below f32. Chosen algorithms are kept in a
 * table of fixed size, so that the steady state allocates nothing.
 */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/number.cuh"

#include <cublasLt.h>

#include <cstring>
#include <new>

constexpr unsigned CACHE_ENTRIES = 1024; /* a model has some 20 shapes, times the last slices */

/* One product as cuBLASLt sees it: d[m, n] = op(a) op(b) + beta c (+ bias), column-major. */
struct sl_cuda_product {
    uint64_t m, n, k;
    int64_t lda, ldb, ldd;
    uint32_t a_transposed, b_transposed;
    uint32_t operand_type, result_type; /* cudaDataType */
    uint32_t has_bias, bias_type;
    /* Of each operand's pointer and leading dimension, in bytes, 16 at most: logits of an odd
     * vocabulary must not cost the 16-byte loads of the other two. */
    uint32_t a_alignment, b_alignment, d_alignment, unused;
};

struct sl_cuda_choice {
    struct sl_cuda_product key;
    bool used;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

struct sl_cuda_blas {
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    struct sl_cuda_choice choices[CACHE_ENTRIES];
};

namespace
{

cudaError_t from_status(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return cudaSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED:
        return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return cudaErrorNotSupported;
    case CUBLAS_STATUS_INVALID_VALUE:
        return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return cudaErrorInitializationError;
    default:
        return cudaErrorLaunchFailure;
    }
}

cudaDataType data_type(enum sl_dtype dtype)
{
    return dtype == SL_F32 ? CUDA_R_32F : dtype == SL_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

void forget(struct sl_cuda_choice *c)
{
    if (c->operation)
        cublasLtMatmulDescDestroy(c->operation);
    if (c->a)
        cublasLtMatrixLayoutDestroy(c->a);
    if (c->b)
        cublasLtMatrixLayoutDestroy(c->b);
    if (c->d)
        cublasLtMatrixLayoutDestroy(c->d);
    *c = sl_cuda_choice{};
}

cublasStatus_t describe(const struct sl_cuda_blas *blas, struct sl_cuda_choice *c,
                        const struct sl_cuda_product &p)
{
    cublasOperation_t op_a = p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType operand = static_cast<cudaDataType>(p.operand_type);
    cudaDataType result = static_cast<cudaDataType>(p.result_type);
    cublasStatus_t status = cublasLtMatmulDescCreate(&c->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    auto set = [&](cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
        if (!status)
            status = cublasLtMatmulDescSetAttribute(c->operation, attribute, value, bytes);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (p.has_bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        int32_t bias_type = (int32_t)p.bias_type;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
        /* The heuristic wants to see a bias; the real one is named at each call. */
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &blas->workspace, sizeof blas->workspace);
    }
    if (!status)
        status = cublasLtMatrixLayoutCreate(&c->a, operand, p.a_transposed ? p.k : p.m,
                                            p.a_transposed ? p.m : p.k, p.lda);
    if (!status)
        status = cublasLtMatrixLayoutCreate(&c->b, operand, p.b_transposed ? p.n : p.k,
                                            p.b_transposed ? p.k : p.n, p.ldb);
    if (!status)
        status = cublasLtMatrixLayoutCreate(&c->d, result, p.m, p.n, p.ldd);
    return status;
}

cublasStatus_t choose(struct sl_cuda_blas *blas, struct sl_cuda_choice *c,
                      const struct sl_cuda_product &p)
{
    cublasLtMatmulPreference_t preference = nullptr;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status)
        return status;
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                   size_t bytes) {
        if (!status)
            status = cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes);
    };
    uint64_t workspace = blas->workspace_bytes;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p.a_alignment, sizeof p.a_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p.b_alignment, sizeof p.b_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p.d_alignment, sizeof p.d_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p.d_alignment, sizeof p.d_alignment);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    if (!status)
        status = cublasLtMatmulAlgoGetHeuristic(blas->handle, c->operation, c->a, c->b, c->d, c->d,
                                                preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!status && (count < 1 || found.state != CUBLAS_STATUS_SUCCESS))
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!status)
        c->algorithm = found.algo;
    return status;
}

uint64_t hash(const struct sl_cuda_product &p)
{
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&p);
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof p; i++)
        h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}

/* The choice for p, made at its first use. A full neighbourhood gives up its first entry: the
 * choice is the same when it is made again. */
cublasStatus_t find(struct sl_cuda_blas *blas, const struct sl_cuda_product &p,
                    struct sl_cuda_choice **out)
{
    uint64_t home = hash(p);
    struct sl_cuda_choice *c = nullptr;
    for (unsigned probe = 0; probe < 16; probe++) {
        struct sl_cuda_choice *at = &blas->choices[(home + probe) % CACHE_ENTRIES];
        if (at->used && memcmp(&at->key, &p, sizeof p) == 0) {
            *out = at;
            return CUBLAS_STATUS_SUCCESS;
        }
        if (!at->used) {
            c = at;
            break;
        }
    }
    if (!c)
        c = &blas->choices[home % CACHE_ENTRIES];
    forget(c);
    cublasStatus_t status = describe(blas, c, p);
    if (!status)
        status = choose(blas, c, p);
    if (status) {
        forget(c);
        return status;
    }
    c->key = p;
    c->used = true;
    *out = c;
    return status;
}

uint32_t alignment_of(const void *pointer, uint64_t leading_bytes)
{
    uint64_t bits = reinterpret_cast<uintptr_t>(pointer) | leading_bytes;
    return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
}

cudaError_t multiply(const struct sl_cuda_context *context, struct sl_cuda_product p, const void *a,
                     const void *b, void *d, const void *bias, bool accumulate)
{
    if (!p.m || !p.n || !p.k)
        return cudaSuccess;
    uint64_t operand_bytes = p.operand_type == CUDA_R_32F ? 4 : 2;
    uint64_t result_bytes = p.result_type == CUDA_R_32F ? 4 : 2;
    p.a_alignment = alignment_of(a, (uint64_t)p.lda * operand_bytes);
    p.b_alignment = alignment_of(b, (uint64_t)p.ldb * operand_bytes);
    p.d_alignment = alignment_of(d, (uint64_t)p.ldd * result_bytes);
    struct sl_cuda_choice *c = nullptr;
    cublasStatus_t status = find(context->blas, p, &c);
    if (!status && bias)
        status = cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &bias, sizeof bias);
    float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    if (!status)
        status = cublasLtMatmul(context->blas->handle, c->operation, &alpha, a, c->a, b, c->b,
                                &beta, d, c->d, d, c->d, &c->algorithm, context->blas->workspace,
                                context->blas->workspace_bytes, context->stream);
    return from_status(status);
}

size_t or_dense(size_t stride, size_t width)
{
    return stride ? stride : width;
}

cudaError_t forward(const struct sl_cuda_context *context, const struct sl_matmul_args *args)
{
    enum sl_dtype result = args->y_f32 ? SL_F32 : context->type;
    size_t y_stride = or_dense(args->y_stride, args->outputs);
    bool fused = args->bias.data && args->bias.dtype == result;
    struct sl_cuda_product p = {};
    p.m = args->outputs;
    p.n = args->rows;
    p.k = args->inputs;
    p.a_transposed = 1;
    p.lda = (int64_t)args->inputs;
    p.ldb = (int64_t)or_dense(args->x_stride, args->inputs);
    p.ldd = (int64_t)y_stride;
    p.operand_type = data_type(context->type);
    p.result_type = data_type(result);
    p.has_bias = fused;
    p.bias_type = fused ? data_type(args->bias.dtype) : 0;
    cudaError_t error = multiply(context, p, args->weight.data, args->x, args->y,
                                 fused ? args->bias.data : nullptr, args->accumulate);
    if (!error && args->bias.data && !fused)
        error = sl_cuda_bias_add(context, args->y, result, args->rows, args->outputs, y_stride,
                                 &args->bias);
    return error;
}

/* Row stride of a gradient that is rounded into scratch: rows start on 16 bytes there. */
size_t cast_stride(const struct sl_matmul_args *args)
{
    return (args->outputs + 7) / 8 * 8;
}

/* Rows [first, first + rows) of dy as the operand type; f32 is rounded into scratch. */
cudaError_t gradient_operand(const struct sl_cuda_context *context,
                             const struct sl_matmul_args *args, size_t first, size_t rows,
                             const void **operand, size_t *stride)
{
    size_t y_stride = or_dense(args->y_stride, args->outputs);
    if (!args->y_f32 || context->type == SL_F32) {
        size_t bytes = context->type == SL_F32 ? 4 : 2;
        *operand = static_cast<const char *>(args->y) + first * y_stride * bytes;
        *stride = y_stride;
        return cudaSuccess;
    }
    *operand = context->scratch;
    *stride = cast_stride(args);
    return sl_cuda_cast(context, context->scratch,
                        static_cast<const float *>(args->y) + first * y_stride, rows, args->outputs,
                        y_stride, *stride);
}

/* Rows that fit scratch at once when dy must be rounded. */
size_t slice_rows(const struct sl_cuda_context *context, const struct sl_matmul_args *args)
{
    if (!args->y_f32 || context->type == SL_F32)
        return args->rows;
    size_t fit = context->scratch_bytes / (cast_stride(args) * 2);
    return fit >= 64 ? fit / 64 * 64 : fit;
}

cudaError_t backward_slice(const struct sl_cuda_context *context, const struct sl_matmul_args *args,
                           size_t first, size_t rows)
{
    const void *dy = nullptr;
    size_t dy_stride = 0, x_stride = or_dense(args->x_stride, args->inputs);
    cudaError_t error = gradient_operand(context, args, first, rows, &dy, &dy_stride);
    if (error)
        return error;
    size_t bytes = context->type == SL_F32 ? 4 : 2;
    char *x = static_cast<char *>(args->x) + first * x_stride * bytes;
    struct sl_cuda_product p = {};
    p.m = args->inputs;
    p.operand_type = data_type(context->type);
    p.ldb = (int64_t)dy_stride;
    if (args->kind == SL_MATMUL_BACKWARD_INPUT) {
        p.n = rows;
        p.k = args->outputs;
        p.lda = (int64_t)args->inputs;
        p.ldd = (int64_t)x_stride;
        p.result_type = p.operand_type;
        return multiply(context, p, args->weight.data, dy, x, nullptr, args->accumulate);
    }
    p.n = args->outputs;
    p.k = rows;
    p.b_transposed = 1;
    p.lda = (int64_t)x_stride;
    p.ldd = (int64_t)args->inputs;
    p.result_type = CUDA_R_32F;
    return multiply(context, p, x, dy, args->dweight, nullptr, true);
}

} // namespace

size_t sl_cuda_blas_workspace_bytes(int compute_major)
{
    /* NVIDIA's advice: 32 MiB from Hopper on, 4 MiB before; twice that costs little. */
    return compute_major >= 9 ? (size_t)64 << 20 : (size_t)16 << 20;
}

cudaError_t sl_cuda_blas_create(struct sl_cuda_blas **out, void *workspace, size_t workspace_bytes)
{
    *out = nullptr;
    struct sl_cuda_blas *blas = new (std::nothrow) sl_cuda_blas();
    if (!blas)
        return cudaErrorMemoryAllocation;
    cublasStatus_t status = cublasLtCreate(&blas->handle);
    if (status) {
        delete blas;
        return from_status(status);
    }
    blas->workspace = workspace;
    blas->workspace_bytes = workspace_bytes;
    *out = blas;
    return cudaSuccess;
}

void sl_cuda_blas_destroy(struct sl_cuda_blas *blas)
{
    if (!blas)
        return;
    for (struct sl_cuda_choice &c : blas->choices)
        forget(&c);
    cublasLtDestroy(blas->handle);
    delete blas;
}

cudaError_t sl_cuda_matmul(const struct sl_cuda_context *context, const struct sl_matmul_args *args)
{
    bool uses_weight = args->kind != SL_MATMUL_BACKWARD_WEIGHT;
    if (uses_weight && args->weight.dtype != context->type)
        return cudaErrorInvalidValue;
    if (args->kind == SL_MATMUL_FORWARD)
        return forward(context, args);
    size_t slice = slice_rows(context, args);
    if (!slice && args->rows)
        return cudaErrorInvalidValue;
    cudaError_t error = cudaSuccess;
    if (uses_weight || args->dweight)
        for (size_t first = 0; first < args->rows && !error; first += slice)
            error = backward_slice(context, args, first,
                                   args->rows - first < slice ? args->rows - first : slice);
    if (!error && !uses_weight && args->dbias)
        error =
            sl_cuda_column_sums(context, args->dbias, args->y, args->y_f32 ? SL_F32 : context->type,
                                args->rows, args->outputs, or_dense(args->y_stride, args->outputs));
    return error;
}
