// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_avx512.h"
/* The vector header comes first: the bodies are written in its operations. */
#include "kernels/cpu/gradient_body.h"
#include "kernels/cpu/optim_body.h"
#include "kernels/cpu/variants.h"

const struct sl_cpu_kernels sl_cpu_kernels_avx512 = {
    .optim_step = optim_step,
    .gradient_finish_chunk = gradient_finish_chunk,
    .gradient_measure_chunk = gradient_measure_chunk,
    .gradient_accumulate = gradient_accumulate,
    .cast_to_f32 = cast_to_f32,
    .cast_from_f32 = cast_from_f32,
};
