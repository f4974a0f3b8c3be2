// SPDX-License-Identifier: Apache-2.0
/* cuBLASLt on the simulated device: shapes, types and alignments are checked as strictly as the
 * real one does, the product is queued on the stream, and OpenBLAS computes it in f32. */
#include <cblas.h>
#include <cublasLt.h>

#include <vector>

#include "fibers.h"

extern "C" {
#include "base/dtype.h"
}

struct cublasLtContext {
    int unused;
};
struct cudasim_matmul_desc {
    cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
    int32_t bias_type = -1; /* -1: that of d */
};
struct cudasim_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
};
struct cudasim_preference {
    uint64_t workspace = 0;
    uint32_t alignment[3] = {256, 256, 256}; /* of a, b, and c and d */
};

namespace
{

sl_dtype dtype_of(int type)
{
    return type == CUDA_R_32F ? SL_F32 : type == CUDA_R_16BF ? SL_BF16 : SL_F16;
}

std::vector<float> read_matrix(const void *data, const cudasim_layout &layout)
{
    std::vector<float> out(layout.rows * layout.columns);
    for (uint64_t j = 0; j < layout.columns; j++)
        for (uint64_t i = 0; i < layout.rows; i++)
            out[j * layout.rows + i] =
                sl_dtype_load(data, dtype_of(layout.type), j * (size_t)layout.leading + i);
    return out;
}

struct call {
    cudasim_matmul_desc desc;
    cudasim_layout a, b, d;
    const void *a_data, *b_data;
    void *d_data;
    float alpha, beta;
};

void run(const call &c)
{
    bool at = c.desc.op_a == CUBLAS_OP_T, bt = c.desc.op_b == CUBLAS_OP_T;
    int m = (int)c.d.rows, n = (int)c.d.columns, k = (int)(at ? c.a.rows : c.a.columns);
    std::vector<float> a = read_matrix(c.a_data, c.a), b = read_matrix(c.b_data, c.b);
    std::vector<float> d(c.d.rows * c.d.columns);
    if (c.beta != 0)
        d = read_matrix(c.d_data, c.d);
    cblas_sgemm(CblasColMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, m, n,
                k, c.alpha, a.data(), (int)c.a.rows, b.data(), (int)c.b.rows, c.beta, d.data(), m);
    int bias_type = c.desc.bias_type < 0 ? (int)c.d.type : c.desc.bias_type;
    for (uint64_t j = 0; j < c.d.columns; j++)
        for (uint64_t i = 0; i < c.d.rows; i++) {
            float value = d[j * c.d.rows + i];
            if (c.desc.epilogue == CUBLASLT_EPILOGUE_BIAS)
                value += sl_dtype_load(c.desc.bias, dtype_of(bias_type), i);
            sl_dtype_store(c.d_data, dtype_of(c.d.type), j * (size_t)c.d.leading + i, value);
        }
}

bool shapes_agree(const cudasim_matmul_desc &desc, const cudasim_layout &a, const cudasim_layout &b,
                  const cudasim_layout &d)
{
    bool at = desc.op_a == CUBLAS_OP_T, bt = desc.op_b == CUBLAS_OP_T;
    uint64_t m = at ? a.columns : a.rows, k = at ? a.rows : a.columns;
    uint64_t k2 = bt ? b.columns : b.rows, n = bt ? b.rows : b.columns;
    return m == d.rows && n == d.columns && k == k2 && a.leading >= (int64_t)a.rows &&
           b.leading >= (int64_t)b.rows && d.leading >= (int64_t)d.rows && a.type == b.type &&
           (d.type == CUDA_R_32F || d.type == a.type);
}

bool misaligned(const void *data, const cudasim_layout &layout, uint64_t alignment)
{
    uint64_t leading_bytes = (uint64_t)layout.leading * sl_dtype_bytes(dtype_of(layout.type));
    return (reinterpret_cast<uintptr_t>(data) | leading_bytes) % alignment != 0;
}

template <class Value> bool take(Value *to, const void *value, size_t bytes)
{
    if (bytes != sizeof *to)
        return false;
    std::memcpy(to, value, bytes);
    return true;
}

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType scale_type)
{
    if (compute != CUBLAS_COMPUTE_32F || scale_type != CUDA_R_32F)
        return CUBLAS_STATUS_INVALID_VALUE;
    *desc = new cudasim_matmul_desc();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    bool taken = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? take(&desc->op_a, value, bytes)
                 : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? take(&desc->op_b, value, bytes)
                 : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? take(&desc->epilogue, value, bytes)
                 : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER
                     ? take(&desc->bias, value, bytes)
                     : take(&desc->bias_type, value, bytes);
    return taken ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading)
{
    *layout = new cudasim_layout{type, rows, columns, leading};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new cudasim_preference();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    uint32_t word;
    bool taken = true;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        taken = take(&preference->workspace, value, bytes);
    else if ((taken = take(&word, value, bytes)) &&
             attribute != CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
        unsigned operand = attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES   ? 0
                           : attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? 1
                                                                                     : 2;
        preference->alignment[operand] = std::min(preference->alignment[operand], word);
    }
    return taken ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    *found = 0;
    if (wanted < 1 || !shapes_agree(*desc, *a, *b, *d))
        return CUBLAS_STATUS_INVALID_VALUE;
    results[0] = {};
    for (int operand = 0; operand < 3; operand++) /* what this algorithm relies on */
        results[0].algo.data[operand] = preference->alignment[operand];
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    if (!shapes_agree(*desc, *a_layout, *b_layout, *d_layout) || c != d ||
        misaligned(a, *a_layout, algo->data[0]) || misaligned(b, *b_layout, algo->data[1]) ||
        misaligned(d, *d_layout, algo->data[2]) || (workspace_bytes && !workspace) ||
        (desc->epilogue == CUBLASLT_EPILOGUE_BIAS && !desc->bias))
        return CUBLAS_STATUS_INVALID_VALUE;
    call queued = {*desc, *a_layout, *b_layout, *d_layout, a, b, d, 0, 0};
    std::memcpy(&queued.alpha, alpha, sizeof(float));
    std::memcpy(&queued.beta, beta, sizeof(float));
    return cudasim::enqueue_host(stream, "cublasLtMatmul", [queued] { run(queued); }) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
