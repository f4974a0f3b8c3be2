// SPDX-License-Identifier: Apache-2.0
/* A device: memory, streams, events, copies, and the compute kernels of a transformer, as a table
 * of functions. The host device implements it with the worker pool and OpenBLAS; the CUDA module
 * implements it with streams and cuBLASLt. Everything above sees this table only.
 *
 * Shapes   N rows are tokens (batch_count * sequence_length of one micro-batch), C hidden size,
 *          H query heads, G key/value heads, D head size, F feed-forward size, V vocabulary.
 *          All arrays are row-major and dense unless a stride is given.
 * Types    Activations have the type `device->activation_dtype`: f32 on the host device; on CUDA
 *          the precision's 16-bit type (f32 in fp32 mode). Weights have the dtype given beside
 *          them. Logits, losses, log-sum-exp and weight-gradient accumulators are f32 everywhere.
 * Memory   Every pointer of a kernel is device memory (on a unified device: host memory), aligned
 *          to 64 bytes at the start of a tensor. Kernels allocate nothing.
 * Order    Kernels are queued on the compute stream, copies on the stream that is named. On the
 *          host device a kernel has finished when its function returns.
 * Errors   0 or a negative errno; the first failure is sticky and sl_device_error() describes it.
 * Exact    Same inputs, same bits, whatever the thread count (docs/numerics.md).
 */
#ifndef SLUICE_OFFLOAD_DEVICE_H
#define SLUICE_OFFLOAD_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/log.h"

struct sl_workers;

enum sl_device_kind { SL_DEVICE_HOST, SL_DEVICE_HOST_DISCRETE, SL_DEVICE_CUDA };
enum sl_stream { SL_STREAM_COMPUTE, SL_STREAM_H2D, SL_STREAM_D2H, SL_STREAM_COUNT };

/* A weight as it lies in memory. */
struct sl_weight {
    const void *data;
    enum sl_dtype dtype;
};

enum sl_norm_kind {
    SL_NORM_RMS,          /* x * rstd * w */
    SL_NORM_RMS_PLUS_ONE, /* x * rstd * (1 + w): Gemma */
    SL_NORM_LAYER,        /* (x - mean) * rstd * w + b */
};

/* out[rows, width] = norm(x[rows, width]). Rows may be strided (per-head q and k norms run over a
 * packed qkv buffer): row r is `row_group` consecutive width-long vectors at x + (r / row_group) *
 * row_stride + (r % row_group) * width. For plain rows row_group = 1 and row_stride = width. out
 * and x have the same layout and may be the same array. */
struct sl_norm_args {
    enum sl_norm_kind kind;
    size_t rows, width, row_group, row_stride;
    float eps;
    const void *x;
    struct sl_weight weight; /* [width] */
    struct sl_weight bias;   /* [width] or data NULL */
    void *out;
};

/* dx (+)= d norm / dx; dweight, dbias += (f32). Statistics are recomputed from x. dx and dout may
 * be the same array when accumulate_dx is false. dweight NULL: frozen. */
struct sl_norm_backward_args {
    enum sl_norm_kind kind;
    size_t rows, width, row_group, row_stride;
    float eps;
    const void *x;
    struct sl_weight weight;
    const void *dout;
    void *dx;
    bool accumulate_dx;
    float *dweight; /* [width] f32, added to */
    float *dbias;   /* [width] f32, added to, or NULL */
};

/* W is [outputs, inputs] always.
 *   FORWARD          y[rows, outputs] (+)= x[rows, inputs] W^T + bias
 *   BACKWARD_INPUT   dx[rows, inputs] (+)= dy[rows, outputs] W
 *   BACKWARD_WEIGHT  dW[outputs, inputs] f32 += dy^T x;  dbias[outputs] f32 += column sums of dy
 * x, y have row strides in elements (0: dense). y_f32: y (FORWARD) or dy (the others) is f32
 * whatever the activation type (logits). accumulate: add to y or dx instead of overwriting. */
enum sl_matmul_kind { SL_MATMUL_FORWARD, SL_MATMUL_BACKWARD_INPUT, SL_MATMUL_BACKWARD_WEIGHT };

struct sl_matmul_args {
    enum sl_matmul_kind kind;
    size_t rows, inputs, outputs;
    size_t x_stride, y_stride;
    void *x; /* x or dx */
    void *y; /* y or dy */
    bool y_f32;
    bool accumulate;
    struct sl_weight weight; /* FORWARD, BACKWARD_INPUT */
    struct sl_weight bias;   /* FORWARD: [outputs] or data NULL */
    float *dweight;          /* BACKWARD_WEIGHT; NULL: frozen */
    float *dbias;            /* BACKWARD_WEIGHT; NULL: none */
};

/* Rotate q and k in place in the packed buffer, halves split (rotate_half). cos, sin: f32
 * [sequence positions, rotary / 2], indexed by positions[n]. inverse: rotate back (backward). */
struct sl_rope_args {
    size_t rows, heads, head_size, rotary; /* heads: consecutive heads to rotate from x on */
    size_t row_stride;
    void *x;
    const int32_t *positions; /* [rows], device memory */
    const float *cos, *sin;   /* device memory */
    bool inverse;
};

/* Causal grouped-query attention over a packed buffer: row n of qkv is q [H, D], k [G, D], v [G,
 * D]. Query at in-sequence index i sees keys j with max(first[n], i - window + 1) <= j <= i. No [T,
 * T] matrix is kept. */
struct sl_attention_args {
    size_t batch_count, sequence_length, heads, kv_heads, head_size;
    float scale;
    float softcap;        /* 0: none; else softcap * tanh(score / softcap) */
    size_t window;        /* 0: full causal */
    const int32_t *first; /* [rows] first visible in-sequence index (documents), or NULL */
    const void *qkv;      /* [rows, (H + 2G) D] */
    void *out;            /* [rows, H D] */
    float *lse;           /* [batch, H, T] f32, natural log */
};

struct sl_attention_backward_args {
    struct sl_attention_args forward; /* out and lse as forward left them */
    const void *dout;                 /* [rows, H D] */
    void *dqkv;                       /* [rows, (H + 2G) D], overwritten */
    float *delta;                     /* [batch, H, T] f32 scratch */
};

enum sl_act_kind { SL_ACT_SILU, SL_ACT_GELU_TANH, SL_ACT_GELU };

/* gated: in is [rows, 2F] with gate first, out = act(gate) * up. Plain: in is [rows, F]. */
struct sl_act_args {
    enum sl_act_kind kind;
    bool gated;
    size_t rows, width; /* width = F */
    const void *in;
    void *out;        /* forward: [rows, F] */
    const void *dout; /* backward: [rows, F] */
    void *din;        /* backward: shape of in; may be the array `in` */
};

/* out[n] = a[n] + b[n]; out may be a or b. */
struct sl_add_args {
    size_t count;
    const void *a, *b;
    void *out;
};

/* One tile of the embedding table: rows [row_first, row_first + row_count) of the vocabulary.
 * Forward writes out[n] = table[ids[n]] * scale (rounded to the activation type) for the tokens of
 * the tile and leaves other rows alone; `add` adds instead (learned positions, ids = positions).
 * Backward adds dout[n] * scale to the f32 accumulator, tokens in ascending order. */
struct sl_embedding_args {
    size_t rows, width, row_first, row_count;
    const int32_t *ids; /* [rows], device memory */
    float scale;
    bool add;
    struct sl_weight table; /* the tile: [row_count, width] */
    void *out;              /* forward: [rows, width] */
    const void *dout;       /* backward */
    float *dtable;          /* backward: the tile's accumulator */
};

/* Cross-entropy over vocabulary tiles with an online softmax.
 *   STATS     logits [rows, width] of columns [column_first, ...): updates per row running max,
 *             running sum of exp(logit - max), and the target's logit; `reset` starts a row afresh.
 *             softcap is applied to the logits in place first.
 *   BACKWARD  logits -> dlogits in place: (exp(logit - max) / sum - onehot) * scale, times the
 *             softcap's derivative; 0 for rows whose target is negative (ignored).
 *   LOSS      loss[n] = log(sum) + max - target_logit, 0 where ignored. */
enum sl_cross_entropy_kind { SL_CE_STATS, SL_CE_BACKWARD, SL_CE_LOSS };

struct sl_cross_entropy_args {
    enum sl_cross_entropy_kind kind;
    size_t rows, width, column_first;
    float *logits;   /* [rows, width] f32 */
    bool softcapped; /* BACKWARD: logits already hold capped values */
    bool reset;
    float softcap;                           /* 0: none */
    float scale;                             /* BACKWARD: loss scale / trained tokens of the step */
    const int32_t *targets;                  /* [rows]; negative: ignored */
    float *row_max, *row_sum, *target_logit; /* [rows] f32 each */
    float *loss;                             /* [rows] f32 */
};

/* One rounding of a finished f32 gradient to the gradient's type, with the sum of squares of the
 * rounded values in fp64 per SL_GRADIENT_CHUNK elements of the tensor, and the number of values
 * that are not finite. The order of the additions inside a chunk is fixed: docs/numerics.md. */
#define SL_GRADIENT_CHUNK 65536u

struct sl_gradient_finish_args {
    size_t count;     /* elements of the tensor (or chunk-aligned part of it) */
    const float *sum; /* [count] */
    void *out;        /* [count] of dtype; may be `sum` where dtype is f32 */
    enum sl_dtype dtype;
    double *chunk_squares;     /* [div_up(count, SL_GRADIENT_CHUNK)], host-visible, overwritten */
    uint64_t *chunk_nonfinite; /* likewise: values that are not finite */
};

struct sl_optim_args; /* kernels/cpu/optim.h */

/* Sizes that the device itself needs beside the plan's slots (context, workspaces, packing
 * scratch): a line of the plan each. */
struct sl_device_fixed {
    char name[48];
    uint64_t bytes_device, bytes_host;
};
#define SL_DEVICE_FIXED_MAX 8

struct sl_device_properties {
    char name[128];
    enum sl_device_kind kind;
    bool unified;          /* device memory is host memory: uploads are aliases */
    uint64_t memory_bytes; /* 0: the host's */
    struct sl_device_fixed fixed[SL_DEVICE_FIXED_MAX];
    size_t fixed_count;
};

struct sl_event; /* opaque, one per use, reusable */

struct sl_device;

struct sl_device_ops {
    void (*destroy)(struct sl_device *device);

    int (*memory_alloc)(struct sl_device *device, uint64_t bytes, void **out);
    void (*memory_free)(struct sl_device *device, void *memory, uint64_t bytes);
    /* Page-lock host memory for fast copies, undone by host_unregister. -ENOTSUP: not needed. */
    int (*host_register)(struct sl_device *device, void *memory, uint64_t bytes);
    void (*host_unregister)(struct sl_device *device, void *memory, uint64_t bytes);

    /* Copies in either direction and within the device; the stream tells which. Asynchronous. */
    int (*copy)(struct sl_device *device, enum sl_stream stream, void *to, const void *from,
                uint64_t bytes);
    int (*zero)(struct sl_device *device, enum sl_stream stream, void *memory, uint64_t bytes);

    int (*event_create)(struct sl_device *device, struct sl_event **out);
    void (*event_destroy)(struct sl_device *device, struct sl_event *event);
    int (*event_record)(struct sl_device *device, enum sl_stream stream, struct sl_event *event);
    int (*event_wait)(struct sl_device *device, enum sl_stream stream, struct sl_event *event);
    int (*event_synchronize)(struct sl_device *device, struct sl_event *event);
    int (*stream_synchronize)(struct sl_device *device, enum sl_stream stream);

    int (*norm)(struct sl_device *device, const struct sl_norm_args *args);
    int (*norm_backward)(struct sl_device *device, const struct sl_norm_backward_args *args);
    int (*matmul)(struct sl_device *device, const struct sl_matmul_args *args);
    int (*rope)(struct sl_device *device, const struct sl_rope_args *args);
    int (*attention)(struct sl_device *device, const struct sl_attention_args *args);
    int (*attention_backward)(struct sl_device *device,
                              const struct sl_attention_backward_args *args);
    int (*act)(struct sl_device *device, const struct sl_act_args *args);
    int (*act_backward)(struct sl_device *device, const struct sl_act_args *args);
    int (*add)(struct sl_device *device, const struct sl_add_args *args);
    int (*embedding)(struct sl_device *device, const struct sl_embedding_args *args);
    int (*embedding_backward)(struct sl_device *device, const struct sl_embedding_args *args);
    int (*cross_entropy)(struct sl_device *device, const struct sl_cross_entropy_args *args);
    int (*gradient_finish)(struct sl_device *device, const struct sl_gradient_finish_args *args);
    int (*optim)(struct sl_device *device, const struct sl_optim_args *args);
};

struct sl_device {
    const struct sl_device_ops *ops;
    struct sl_device_properties properties;
    enum sl_dtype activation_dtype;
    struct sl_error error; /* first failure, sticky; read after the failing call returned */
};

struct sl_device_options {
    const char *name;               /* "auto", "host", "host:discrete", "cuda", "cuda:N" */
    enum sl_dtype precision;        /* SL_F32, SL_BF16 or SL_F16 */
    struct sl_workers *workers;     /* borrowed until destroy */
    uint64_t link_bytes_per_second; /* host:discrete: throttle of each copy direction; 0: none */
    const struct sl_log *log;       /* borrowed until destroy */
};

/* Open a device. Owner: the caller, until sl_device_destroy. Errors: -EINVAL (unknown name),
 * -ENODEV with the cause (no driver, no device), -ENOMEM. "auto" without a GPU logs one line and
 * gives the host device. */
int sl_device_create(struct sl_device **out, const struct sl_device_options *options,
                     struct sl_error *error);
void sl_device_destroy(struct sl_device *device); /* NULL allowed */

#endif
