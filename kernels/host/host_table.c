// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/variant.h"

const struct sl_host_kernels HOST(table) = {
    .isa = HOST_TEXT(SL_HOST_ISA),
    .norm = HOST(norm),
    .norm_backward = HOST(norm_backward),
    .rope = HOST(rope),
    .attention = HOST(attention),
    .attention_backward = HOST(attention_backward),
    .attention_cached = HOST(attention_cached),
    .act = HOST(act),
    .act_backward = HOST(act_backward),
    .embedding = HOST(embedding),
    .embedding_backward = HOST(embedding_backward),
    .cross_entropy_stats = HOST(cross_entropy_stats),
    .cross_entropy_backward = HOST(cross_entropy_backward),
    .cross_entropy_loss = HOST(cross_entropy_loss),
    .add = HOST(add),
    .bias_add = HOST(bias_add),
    .column_sum = HOST(column_sum),
    .matvec = HOST(matvec),
    .gemm = HOST(gemm),
};
