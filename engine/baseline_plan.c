// SPDX-License-Identifier: Apache-2.0
/* The baselines, written down from their papers and documentation.
 *
 * A plan knows dependencies through bytes only, so "blocks" is said with bytes too: an operation
 * that must wait for another reads a slot that the other writes, whether or not it would. A buffer
 * of which there is one makes its users take turns.
 *
 * Rates that the programs do not reach (a one-pass update, page-locked copies) are put in as
 * rate_share of an operation, never as more bytes: the figures of traffic stay true.
 */
#include "engine/baseline_plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/transformer.h"

#define WEIGHT_BYTES 2u
#define STATE_BYTES 12u       /* fp32 master and two moments */
#define STATE_NVME_BYTES 16u  /* on NVMe with the fp32 gradient */
#define UPDATE_BYTES 30.0     /* fp32 gradient 4, state read and written 24, weight 2 */
#define NORM_BYTES 12.0       /* a pass for the norm, another to unscale and clip: fp32 */
#define GRADIENT_BUFFERS 2u   /* reduce buckets */

struct unit {
    uint64_t elements;
    uint32_t device, host, extent; /* weights: where they stay, and on the way */
    uint32_t gradient;             /* host, summed */
    uint32_t checkpoint;           /* host or device: the unit's input */
};

struct baseline {
    const struct sl_baseline_options *o;
    struct sl_plan *plan;
    struct unit *units;
    uint32_t unit_count; /* embedding, layers, head */
    uint32_t gradient_buffer[GRADIENT_BUFFERS], checkpoint_buffer;
    uint32_t gradient_sum[GRADIENT_BUFFERS]; /* device: sums, up from the host for one addend */
    uint32_t live;             /* weights that are not fetched ahead take turns in it */
    uint32_t control, blocked; /* what the next computation must wait for */
    uint64_t x_bytes;
    size_t rows;
};

static uint32_t op(struct baseline *b, enum sl_op_kind kind, enum sl_lane lane, uint32_t unit,
                   uint64_t bytes, double flops, double rate_share)
{
    return sl_plan_op(b->plan, (struct sl_op_desc){.kind = kind,
                                                   .lane = lane,
                                                   .unit = (int32_t)unit,
                                                   .piece = -1,
                                                   .micro_batch = -1,
                                                   .part = -1,
                                                   .bytes = bytes,
                                                   .flops = flops,
                                                   .rate_share = rate_share});
}

static void copy(struct baseline *b, enum sl_op_kind kind, enum sl_lane lane, uint32_t unit,
                 uint32_t from, uint32_t to, double rate_share)
{
    uint64_t bytes = b->plan->out_of_memory ? 0 : b->plan->slots[to].bytes;
    op(b, kind, lane, unit, bytes, 0, rate_share);
    sl_plan_reads(b->plan, from);
    sl_plan_writes(b->plan, to);
}

static double share(double reached, double rate)
{
    return reached > 0 && rate > 0 ? fmin(1, reached / rate) : 0;
}

/* Bytes that the kernels of a layer's forward pass stream: what each writes is read once. */
static double layer_bytes(const struct baseline *b)
{
    const struct sl_model *m = b->o->model;
    double heads = (double)m->heads * m->head_size, kv = (double)m->kv_heads * m->head_size;
    double width = 2 * heads + 2 * kv + 6.0 * m->hidden + (m->gated ? 3.0 : 2.0) * m->ffn;
    double bytes = 2 * 2 * (double)b->rows * width;
    /* Scores, softmax and its dropout mask, 2 + 2 + 1 bytes, written and read. */
    if (!b->o->fused_attention)
        bytes += 2 * 5.0 * (double)b->rows * m->heads * (double)b->o->sequence;
    return bytes;
}

static double layer_flops(const struct baseline *b)
{
    const struct sl_model *m = b->o->model;
    double flops = sl_layer_work(m, b->o->batch, b->o->sequence, false).flops;
    if (!b->o->fused_attention) /* the upper half of the scores too */
        flops += 2.0 * (double)b->rows * m->heads * m->head_size * ((double)b->o->sequence - 1);
    return flops;
}

static uint32_t slot(struct baseline *b, enum sl_tier tier, enum sl_state state, uint64_t bytes,
                     bool persistent, const char *name, uint32_t unit)
{
    return sl_plan_slot(b->plan, tier, state, bytes, persistent, "%s %u", name, unit);
}

/* May use k + 1 be fetched before use k is done? */
static bool may_prefetch(const struct baseline *b, uint32_t u, uint32_t next)
{
    uint64_t limit = b->o->max_live_parameters;
    return !limit || b->units[u].elements + b->units[next].elements <= limit;
}

static int make_homes(struct baseline *b)
{
    const struct sl_baseline_options *o = b->o;
    bool offload = o->kind == SL_BASELINE_ZERO_OFFLOAD;
    b->unit_count = o->model->unit_count;
    b->units = calloc(b->unit_count, sizeof(*b->units));
    if (!b->units)
        return -ENOMEM;
    uint64_t largest = 0;
    for (uint32_t u = 0; u < b->unit_count; u++) {
        struct unit *unit = &b->units[u];
        unit->elements = sl_align_up(o->model->unit_elements[u], SL_PLAN_ALIGNMENT);
        uint64_t bytes = unit->elements * WEIGHT_BYTES;
        largest = sl_max_u64(largest, bytes);
        unit->device = unit->host = unit->extent = SL_PLAN_NONE;
        if (offload)
            unit->device = slot(b, SL_TIER_DEVICE, SL_STATE_WEIGHTS, bytes, true, "weights", u);
        else if (o->weights == SL_TIER_NVME)
            unit->extent = slot(b, SL_TIER_NVME, SL_STATE_WEIGHTS, bytes, true, "weights", u);
        if (unit->extent == SL_PLAN_NONE)
            unit->host = slot(b, SL_TIER_HOST, SL_STATE_WEIGHTS, bytes, true, "host weights", u);
        unit->gradient = slot(b, SL_TIER_HOST, SL_STATE_GRADIENTS, bytes, true, "gradient", u);
        unit->checkpoint =
            slot(b, o->activations, SL_STATE_ACTIVATIONS, b->x_bytes, true, "checkpoint", u);
    }
    for (uint32_t i = 0; i < GRADIENT_BUFFERS; i++)
        b->gradient_buffer[i] =
            slot(b, SL_TIER_DEVICE, SL_STATE_GRADIENTS, largest, true, "bucket", i);
    bool any_blocked = false;
    for (uint32_t u = 0; u + 1 < b->unit_count; u++)
        any_blocked = any_blocked || !may_prefetch(b, u, u + 1);
    b->live = SL_PLAN_NONE;
    if (!offload && any_blocked)
        b->live = slot(b, SL_TIER_DEVICE, SL_STATE_WEIGHTS, largest, true, "live", 0);
    for (uint32_t i = 0; i < GRADIENT_BUFFERS && o->micro_batches > 1; i++)
        b->gradient_sum[i] =
            slot(b, SL_TIER_DEVICE, SL_STATE_GRADIENTS, largest, true, "gradient sum", i);
    b->checkpoint_buffer =
        slot(b, SL_TIER_DEVICE, SL_STATE_ACTIVATIONS, b->x_bytes, true, "checkpoint buffer", 0);
    b->control = slot(b, SL_TIER_HOST, SL_STATE_CONTROL, 4096, true, "control", 0);
    b->blocked = SL_PLAN_NONE;
    return 0;
}

/* The unit's weights on the device. */
static uint32_t weights(struct baseline *b, uint32_t u, bool ahead)
{
    struct unit *unit = &b->units[u];
    if (unit->device != SL_PLAN_NONE)
        return unit->device;
    uint64_t bytes = unit->elements * WEIGHT_BYTES;
    uint32_t host = unit->host;
    if (host == SL_PLAN_NONE) {
        host = slot(b, SL_TIER_HOST, SL_STATE_BUFFERS, bytes, false, "fetched", u);
        copy(b, SL_OP_FETCH, SL_LANE_NVME_READ, u, unit->extent, host, b->o->costs.nvme_share);
    }
    uint32_t device = ahead ? slot(b, SL_TIER_DEVICE, SL_STATE_WEIGHTS, bytes, false, "gathered", u)
                            : sl_plan_view(b->plan, b->live, 0, bytes);
    copy(b, SL_OP_UPLOAD, SL_LANE_H2D, u, host, device, 0);
    return device;
}

/* What lives inside one operation: a recomputed layer's activations, or logits in 16 bits with
 * their softmax and gradient in 32. */
static void workspace(struct baseline *b, double bytes, uint32_t u)
{
    sl_plan_writes(b->plan, slot(b, SL_TIER_DEVICE, SL_STATE_WORKSPACE, (uint64_t)bytes, false,
                                 "workspace", u));
}

static void forward(struct baseline *b, uint32_t u, uint32_t at, uint32_t *x)
{
    const struct sl_baseline_options *o = b->o;
    bool layer = u > 0 && u + 1 < b->unit_count, head = u + 1 == b->unit_count;
    double flops = layer ? layer_flops(b) : 0;
    if (head) /* logits and their backward pass; not recomputed */
        flops = 3 * 2.0 * (double)b->rows * o->model->vocabulary * o->model->hidden;
    if (layer && o->activations == SL_TIER_HOST) { /* before the layer runs */
        copy(b, SL_OP_DOWNLOAD, SL_LANE_D2H, u, *x, b->units[u].checkpoint,
             share(o->costs.checkpoint_bytes_per_second, o->hardware->link_down_bytes_per_second));
        b->blocked = b->units[u].checkpoint;
    }
    uint32_t out = slot(b, SL_TIER_DEVICE, SL_STATE_WORKSPACE, b->x_bytes, false, "x", u);
    op(b,
       head    ? SL_OP_HEAD
       : layer ? SL_OP_FORWARD
               : SL_OP_EMBED,
       SL_LANE_COMPUTE, u, layer ? (uint64_t)layer_bytes(b) : b->x_bytes, flops,
       o->costs.compute_share);
    sl_plan_reads(b->plan, at);
    sl_plan_reads(b->plan, *x);
    sl_plan_reads(b->plan, b->blocked);
    sl_plan_writes(b->plan, out);
    if (head)
        workspace(b, 10.0 * (double)b->rows * o->model->vocabulary, u);
    b->blocked = SL_PLAN_NONE;
    if (layer && o->activations == SL_TIER_DEVICE)
        sl_plan_writes(b->plan, b->units[u].checkpoint);
    *x = out;
}

/* Sums lie in host memory in 16 bits and are added to on the device: up, one more addend, down
 * (DeepSpeed 0.19.8, runtime/zero/stage3.py, partition_grads: "adding directly to cpu is very
 * slow"). Returns where the sum so far is on the device. */
static uint32_t gradient_up(struct baseline *b, uint32_t u)
{
    const struct sl_baseline_options *o = b->o;
    uint64_t bytes = b->units[u].elements * WEIGHT_BYTES;
    uint32_t sum = sl_plan_view(b->plan, b->gradient_sum[u % GRADIENT_BUFFERS], 0, bytes);
    copy(b, SL_OP_UPLOAD, SL_LANE_H2D, u, b->units[u].gradient, sum,
         share(o->costs.gradient_bytes_per_second, o->hardware->link_up_bytes_per_second));
    return sum;
}

/* `sum`: of the micro-batches before; SL_PLAN_NONE: this is the first. */
static void gradient_down(struct baseline *b, uint32_t u, uint32_t bucket, uint32_t sum)
{
    const struct sl_baseline_options *o = b->o;
    struct unit *unit = &b->units[u];
    uint64_t bytes = unit->elements * WEIGHT_BYTES;
    uint32_t from = sl_plan_view(b->plan, bucket, 0, bytes);
    if (sum != SL_PLAN_NONE) {
        op(b, SL_OP_GRADIENT, SL_LANE_COMPUTE, u, 3 * bytes, 0, 0);
        sl_plan_reads(b->plan, from);
        sl_plan_reads(b->plan, sum);
        sl_plan_writes(b->plan, sum);
        from = sum;
    }
    copy(b, SL_OP_DOWNLOAD, SL_LANE_D2H, u, from, unit->gradient,
         share(o->costs.gradient_bytes_per_second, o->hardware->link_down_bytes_per_second));
    if (o->blocking_gradients)
        b->blocked = unit->gradient;
}

/* A layer's checkpoint back from host memory, when the layer before has been recomputed. */
static void checkpoint_up(struct baseline *b, uint32_t u)
{
    const struct sl_baseline_options *o = b->o;
    if (u > 0 && u + 1 < b->unit_count && o->activations == SL_TIER_HOST)
        copy(b, SL_OP_UPLOAD, SL_LANE_H2D, u, b->units[u].checkpoint, b->checkpoint_buffer,
             share(o->costs.checkpoint_bytes_per_second, o->hardware->link_up_bytes_per_second));
}

static void backward(struct baseline *b, uint32_t u, uint32_t at, uint32_t *dx, bool first)
{
    const struct sl_baseline_options *o = b->o;
    bool layer = u > 0 && u + 1 < b->unit_count;
    uint32_t bucket = b->gradient_buffer[u % GRADIENT_BUFFERS];
    uint32_t x = SL_PLAN_NONE;
    if (layer)
        x = o->activations == SL_TIER_HOST ? b->checkpoint_buffer : b->units[u].checkpoint;
    uint32_t sum = first ? SL_PLAN_NONE : gradient_up(b, u); /* beside the computation */
    uint32_t out = slot(b, SL_TIER_DEVICE, SL_STATE_WORKSPACE, b->x_bytes, false, "dx", u);
    op(b, layer ? SL_OP_BACKWARD : SL_OP_EMBED_BACKWARD, SL_LANE_COMPUTE, u,
       layer ? (uint64_t)(3 * layer_bytes(b)) : b->x_bytes, layer ? 3 * layer_flops(b) : 0,
       o->costs.compute_share);
    sl_plan_reads(b->plan, at);
    sl_plan_reads(b->plan, x);
    sl_plan_reads(b->plan, *dx);
    sl_plan_reads(b->plan, b->blocked);
    sl_plan_writes(b->plan, bucket);
    sl_plan_writes(b->plan, out);
    if (layer)
        workspace(b, layer_bytes(b) / 2, u);
    b->blocked = SL_PLAN_NONE;
    *dx = out;
    gradient_down(b, u, bucket, sum);
}

static void update_part(struct baseline *b, uint32_t u, uint64_t first, uint64_t count,
                        uint32_t buffer, uint32_t extent)
{
    const struct sl_baseline_options *o = b->o;
    const struct sl_hardware *h = o->hardware;
    struct unit *unit = &b->units[u];
    struct sl_plan *plan = b->plan;
    double rate = fmin(h->host_bytes_per_second, h->host_cores * h->core_bytes_per_second);
    double update_share = share(o->costs.update_params_per_second * UPDATE_BYTES, rate);
    if (extent != SL_PLAN_NONE)
        copy(b, SL_OP_FETCH, SL_LANE_NVME_READ, u, extent, buffer, o->costs.nvme_share);
    uint32_t target = SL_PLAN_NONE;
    uint64_t offset = first * WEIGHT_BYTES, bytes = count * WEIGHT_BYTES;
    if (unit->host != SL_PLAN_NONE)
        target = sl_plan_view(plan, unit->host, offset, bytes);
    else
        target = slot(b, SL_TIER_HOST, SL_STATE_BUFFERS, bytes, false, "updated", u);
    op(b, SL_OP_UPDATE, SL_LANE_CPU, u, (uint64_t)(UPDATE_BYTES * (double)count), 0, update_share);
    sl_plan_reads(plan, b->control);
    sl_plan_reads(plan, sl_plan_view(plan, unit->gradient, offset, bytes));
    sl_plan_reads(plan, buffer);
    sl_plan_writes(plan, buffer);
    sl_plan_writes(plan, target);
    if (extent != SL_PLAN_NONE)
        copy(b, SL_OP_EVICT, SL_LANE_NVME_WRITE, u, buffer, extent, o->costs.nvme_share);
    if (unit->device != SL_PLAN_NONE)
        copy(b, SL_OP_UPLOAD, SL_LANE_H2D, u, target,
             sl_plan_view(plan, unit->device, offset, bytes), 0);
    if (unit->extent != SL_PLAN_NONE)
        copy(b, SL_OP_EVICT, SL_LANE_NVME_WRITE, u, target,
             sl_plan_view(plan, unit->extent, offset, bytes), o->costs.nvme_share);
}

static void update(struct baseline *b)
{
    const struct sl_baseline_options *o = b->o;
    bool nvme = o->optimizer == SL_TIER_NVME;
    uint64_t elements = 0;
    for (uint32_t u = 0; u < b->unit_count; u++)
        elements += b->units[u].elements;
    op(b, SL_OP_DECIDE, SL_LANE_CPU, 0, (uint64_t)(NORM_BYTES * (double)elements), 0, 0);
    for (uint32_t u = 0; u < b->unit_count; u++)
        sl_plan_reads(b->plan, b->units[u].gradient);
    sl_plan_writes(b->plan, b->control);
    uint64_t limit =
        sl_align_up(o->sub_group_elements ? o->sub_group_elements : 100000000, SL_PLAN_ALIGNMENT);
    uint32_t shared = SL_PLAN_NONE; /* one buffer: reading, updating and writing take turns */
    if (nvme)
        shared = slot(b, SL_TIER_HOST, SL_STATE_BUFFERS, limit * STATE_NVME_BYTES, true,
                      "swap buffer", 0);
    for (uint32_t u = 0; u < b->unit_count; u++)
        for (uint64_t first = 0; first < b->units[u].elements; first += limit) {
            uint64_t count = sl_min_u64(limit, b->units[u].elements - first);
            uint64_t bytes = count * (nvme ? STATE_NVME_BYTES : STATE_BYTES);
            uint32_t extent =
                nvme ? slot(b, SL_TIER_NVME, SL_STATE_OPTIMIZER, bytes, true, "state", u)
                     : SL_PLAN_NONE;
            uint32_t buffer =
                nvme ? sl_plan_view(b->plan, shared, 0, bytes)
                     : slot(b, SL_TIER_HOST, SL_STATE_OPTIMIZER, bytes, true, "state", u);
            update_part(b, u, first, count, buffer, extent);
        }
    /* The step returns when everything is done. */
    op(b, SL_OP_DECIDE, SL_LANE_CPU, 0, 0, 0, 0);
    for (uint32_t u = 0; u < b->unit_count; u++) {
        const struct unit *unit = &b->units[u];
        uint32_t home = unit->device != SL_PLAN_NONE   ? unit->device
                        : unit->extent != SL_PLAN_NONE ? unit->extent
                                                       : unit->host;
        sl_plan_reads(b->plan, home);
        sl_plan_writes(b->plan, home);
    }
}

/* All units forward, then back; the head is computed, and its gradient leaves, at the turn. */
static void passes(struct baseline *b, bool first)
{
    uint32_t head = b->unit_count - 1, uses = 2 * b->unit_count - 1;
    uint32_t at = weights(b, 0, true), x = SL_PLAN_NONE;
    for (uint32_t k = 0; k < uses; k++) {
        uint32_t u = k <= head ? k : 2 * head - k;
        uint32_t next = k < head ? k + 1 : 2 * head - k - 1;
        uint32_t fetched = SL_PLAN_NONE;
        if (k > head) /* before the weights that are fetched ahead, which would delay it */
            checkpoint_up(b, u);
        bool ahead = k + 1 < uses && may_prefetch(b, u, next);
        if (ahead)
            fetched = weights(b, next, true);
        if (k <= head)
            forward(b, u, at, &x);
        if (k >= head)
            backward(b, u, at, &x, first);
        if (k + 1 < uses && !ahead)
            fetched = weights(b, next, false);
        at = fetched;
    }
}

int sl_baseline_plan_build(struct sl_plan *plan, const struct sl_baseline_options *options,
                           struct sl_error *error)
{
    sl_plan_init(plan, false);
    if (!options->batch || !options->sequence || !options->micro_batches ||
        options->hardware->device_is_host)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "a baseline schedule needs a batch and a device of its own, profile "
                            "\"%s\"",
                            options->hardware->name);
    struct baseline b = {.o = options,
                         .plan = plan,
                         .rows = options->batch * options->sequence,
                         .x_bytes = (uint64_t)options->batch * options->sequence *
                                    options->model->hidden * WEIGHT_BYTES};
    sl_plan_segment_begin(plan, "step");
    int result = make_homes(&b);
    if (!result) {
        for (size_t m = 0; m < options->micro_batches; m++)
            passes(&b, m == 0);
        update(&b);
    }
    sl_plan_segment_end(plan);
    sl_plan_follows(plan, 0, 0);
    free(b.units);
    if (result)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory while planning");
    else
        result = sl_plan_seal(plan, error);
    if (result)
        sl_plan_finish(plan);
    return result;
}

struct sl_baseline_phases sl_baseline_plan_phases(const struct sl_plan *plan)
{
    struct sl_baseline_phases phases = {SL_PLAN_NONE, SL_PLAN_NONE, SL_PLAN_NONE, SL_PLAN_NONE};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        enum sl_op_kind kind = plan->ops[i].kind;
        if (kind == SL_OP_HEAD)
            phases.forward_last = i;
        else if (kind == SL_OP_EMBED_BACKWARD)
            phases.backward_last = i;
        else if (kind == SL_OP_DECIDE && phases.norm_last == SL_PLAN_NONE)
            phases.norm_last = i;
        else if (kind == SL_OP_DECIDE)
            phases.update_last = i;
    }
    return phases;
}
