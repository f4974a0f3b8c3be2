// SPDX-License-Identifier: Apache-2.0
/* The host kernels' sources are compiled once per instruction set: HOST(norm) is norm_avx512 in one
 * library and norm_avx2 in the next. */
#ifndef SLUICE_KERNELS_HOST_VARIANT_H
#define SLUICE_KERNELS_HOST_VARIANT_H

#include "kernels/host/host.h"

#define HOST_PASTE2(name, isa) sl_host_##name##_##isa
#define HOST_PASTE(name, isa) HOST_PASTE2(name, isa)
#define HOST(name) HOST_PASTE(name, SL_HOST_ISA)
#define HOST_TEXT2(isa) #isa
#define HOST_TEXT(isa) HOST_TEXT2(isa)

void HOST(norm)(const struct sl_host_norm *a, size_t first, size_t count);
void HOST(norm_backward)(const struct sl_host_norm *a, size_t first, size_t count,
                         float *dweight_part, float *dbias_part);
void HOST(rope)(const struct sl_host_rope *a, size_t first, size_t count);
void HOST(attention)(const struct sl_host_attention *a, size_t batch, size_t head, size_t block,
                     float *scratch);
void HOST(attention_backward)(const struct sl_host_attention *a, size_t batch, size_t kv_head,
                              float *scratch);
void HOST(attention_cached)(const struct sl_host_attention_cached *a, size_t row, size_t head);
void HOST(act)(const struct sl_host_act *a, size_t first, size_t count);
void HOST(act_backward)(const struct sl_host_act *a, size_t first, size_t count);
void HOST(embedding)(const struct sl_host_embedding *a, size_t first, size_t count);
void HOST(embedding_backward)(const struct sl_host_embedding *a, size_t first, size_t count);
void HOST(cross_entropy_stats)(const struct sl_host_cross_entropy *a, size_t first, size_t count);
void HOST(cross_entropy_backward)(const struct sl_host_cross_entropy *a, size_t first,
                                  size_t count);
void HOST(cross_entropy_loss)(const struct sl_host_cross_entropy *a, size_t first, size_t count);
void HOST(add)(const float *a, const float *b, float *out, size_t count);
void HOST(bias_add)(float *out, size_t rows, size_t stride, struct sl_host_weight bias,
                    size_t bias_first, size_t width);
void HOST(column_sum)(float *sum, const float *x, size_t rows, size_t stride, size_t width);
void HOST(matvec)(const struct sl_host_matvec *a);
void HOST(gemm)(const struct sl_host_gemm *a, float *scratch);

extern const struct sl_host_kernels HOST(table);

#endif
