// SPDX-License-Identifier: Apache-2.0
/* The plan: a training step as data.
 *
 * A plan is a flat array of operations in program order, in segments (prologue, step, flush,
 * evaluation). An operation names the lane that does it and the slots that it reads and writes. A
 * slot is a byte range in a tier. Dependencies are never written by hand: sl_plan_seal() places the
 * slots, derives every read-after-write, write-after-read and write-after-write from the byte
 * ranges, and turns them into one number per lane that an operation waits for.
 *
 *     builder (engine/step_plan.c)  ->  sl_plan_seal  ->  plan_check, executor, simulator, trace
 *
 * Program order is the order of the sequential program that means the same. Each lane runs its
 * operations in program order; lanes run side by side. An operation is started once, for every
 * lane, the counter of finished operations has reached `wait`. Counters are of finished prefixes:
 * on the NVMe lanes, where several operations are in flight, an operation that finishes early
 * counts when all before it have finished.
 *
 * Across segments: segment instances run one after the other and at most two are in flight; before
 * an operation of instance n starts, instance n - 2 has finished everywhere, and of instance n - 1
 * it waits for what `wait_previous` says, which depends on which segment that was.
 *
 * Lifetimes: a transient slot lives from the first to the last operation that touches it in its
 * segment, and shares bytes with slots that do not live at the same time in program order. A
 * persistent slot lives always. The prefetch distance is therefore how much earlier in program
 * order a fetch stands than its use: more distance, more slots alive, more memory, more overlap.
 */
#ifndef SLUICE_OFFLOAD_PLAN_H
#define SLUICE_OFFLOAD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum sl_lane {
    SL_LANE_COMPUTE,    /* the device's compute queue */
    SL_LANE_H2D,        /* host to device */
    SL_LANE_D2H,        /* device to host */
    SL_LANE_CPU,        /* optimizer workers */
    SL_LANE_CONTROL,    /* inputs and decisions, on the host: never behind an update */
    SL_LANE_NVME_READ,  /* several operations in flight */
    SL_LANE_NVME_WRITE, /* likewise */
    SL_LANE_NET,        /* collectives */
    SL_LANE_COUNT
};

enum sl_tier { SL_TIER_DEVICE, SL_TIER_HOST, SL_TIER_NVME, SL_TIER_COUNT };

/* Some operations are done only where a flag says so when their turn comes: a slot's first u64, not
 * zero. Their memory and their place in the lane are theirs either way; waits take them as done.
 *
 * A slot may hold two versions of its contents, of half its bytes each. Which one an operation
 * touches is op->version exclusive-or the version that the segment instance was submitted with:
 * so one plan can read the old and write the new, and the next instance has them swapped. Waits
 * take the two as one.
 */

/* What a slot holds: the lines of the memory report. */
enum sl_state {
    SL_STATE_WEIGHTS,
    SL_STATE_GRADIENTS,
    SL_STATE_OPTIMIZER,
    SL_STATE_ACTIVATIONS, /* layer boundaries kept for the backward pass */
    SL_STATE_WORKSPACE,   /* inside a layer, logits, accumulators */
    SL_STATE_BUFFERS,     /* staging on the way between tiers */
    SL_STATE_CONTROL,     /* inputs, norms, losses, the step's decision */
    SL_STATE_COUNT
};

enum sl_op_kind {
    SL_OP_INPUT,         /* control: token ids, targets, positions into their slots */
    SL_OP_UPLOAD,        /* h2d */
    SL_OP_DOWNLOAD,      /* d2h */
    SL_OP_FETCH,         /* nvme_read: extent to memory */
    SL_OP_EVICT,         /* nvme_write: memory to extent */
    SL_OP_EMBED,         /* compute */
    SL_OP_FORWARD,       /* compute: one layer or a tile of its matrices, one micro-batch */
    SL_OP_HEAD,          /* compute: final norm, logits, loss and their backward, one tile */
    SL_OP_HEAD_NORM,     /* compute: final norm alone, where the head is tiled */
    SL_OP_HEAD_STATS,    /* compute: online softmax over one tile */
    SL_OP_HEAD_BACKWARD, /* compute: one tile */
    SL_OP_HEAD_NORM_BACKWARD,
    SL_OP_LOSS,           /* compute: losses only (evaluation) */
    SL_OP_GENERATE,       /* compute: one layer or tile, new tokens against the cache */
    SL_OP_LOGITS,         /* compute: one tile of the last token's logits */
    SL_OP_RECOMPUTE,      /* compute: a tile's forward again; of whole layers inside BACKWARD */
    SL_OP_BACKWARD,       /* compute: one layer or tile, one micro-batch */
    SL_OP_EMBED_BACKWARD, /* compute */
    SL_OP_GRADIENT,       /* compute: round the f32 sum, norm and finiteness in the same pass */
    SL_OP_PREDICT,        /* control: what the step will decide, for updates before it */
    SL_OP_DECIDE,         /* control: global norm, clip factor, overflow: apply or skip */
    SL_OP_UPDATE,         /* cpu, or compute for state on the device: one sub-group */
    SL_OP_COLLECTIVE,     /* net */
    SL_OP_KIND_COUNT
};

#define SL_PLAN_NONE UINT32_MAX
#define SL_PLAN_ALIGNMENT 4096u /* of slots: O_DIRECT, pages */
#define SL_PLAN_SEGMENTS_MAX 8
#define SL_SLOT_NAME_BYTES 48

struct sl_access {
    uint32_t slot;
    bool write; /* a read-modify-write is two accesses: read, then write */
};

struct sl_op {
    enum sl_op_kind kind;
    enum sl_lane lane;
    /* Labels, and what the engine needs to do the work; -1: none. */
    int32_t unit, piece, micro_batch, part;
    uint32_t access_first, access_count; /* in plan->accesses */
    uint64_t bytes; /* moved over the lane's link or drive; cpu and compute: DRAM or device memory
                       traffic */
    double flops;
    uint64_t product_bytes; /* compute: weights that matrix products take in, once per product */
    double rate_share;  /* simulator only: share of the machine's rate that it reaches; 0: all */
    uint32_t predicate; /* slot of the flag; SL_PLAN_NONE: done always */
    bool expected;      /* is it done where things go as they mostly do? Reports and simulator */
    bool speculative;   /* reads a gradient that a later operation commits */
    uint8_t version;    /* of a slot with two: reads this one; an UPDATE writes the other */
    /* Filled by sl_plan_seal. wait: finished operations of this instance's segment, per lane.
     * wait_previous: likewise of the instance before, one row per possible segment before. */
    uint32_t lane_index; /* position in its lane in its segment */
    uint32_t wait[SL_LANE_COUNT];
    uint32_t wait_previous[SL_PLAN_SEGMENTS_MAX][SL_LANE_COUNT];
};

struct sl_slot {
    char name[SL_SLOT_NAME_BYTES];
    enum sl_tier tier;
    enum sl_state state;
    uint64_t bytes;
    uint32_t parent; /* a view: the slot that it is part of; else SL_PLAN_NONE */
    uint64_t parent_offset;
    bool persistent;
    bool consume_once; /* a gradient: read by exactly one UPDATE after each write */
    bool versioned;    /* two versions of bytes / 2 each */
    /* Filled by sl_plan_place: */
    uint64_t offset;            /* in the arena or swap space of its tier */
    uint32_t segment;           /* of a transient slot; SL_PLAN_NONE when persistent */
    uint32_t first_op, last_op; /* life in program order */
    uint32_t held_op;           /* its bytes are used by no other slot before this one is over */
};

struct sl_segment {
    char name[24];
    uint32_t op_first, op_count;
    uint32_t lane_count[SL_LANE_COUNT]; /* operations per lane */
    bool follows[SL_PLAN_SEGMENTS_MAX]; /* may run right after segment i */
};

struct sl_plan {
    struct sl_op *ops;
    uint32_t op_count, op_capacity;
    struct sl_access *accesses;
    uint32_t access_count, access_capacity;
    struct sl_slot *slots;
    uint32_t slot_count, slot_capacity;
    struct sl_segment segments[SL_PLAN_SEGMENTS_MAX];
    uint32_t segment_count;
    bool unified; /* SL_TIER_DEVICE is host memory: device slots are placed in the host arena */
    bool placed, sealed;
    bool out_of_memory; /* sticky while building; reported by sl_plan_place */
    /* Filled by sl_plan_place: bytes of the arenas and of the swap space. */
    uint64_t tier_bytes[SL_TIER_COUNT];
    uint64_t persistent_bytes[SL_TIER_COUNT];
};

const char *sl_lane_name(enum sl_lane lane);
const char *sl_tier_name(enum sl_tier tier);
const char *sl_state_name(enum sl_state state);
const char *sl_op_kind_name(enum sl_op_kind kind);

/* Start and end. The plan owns its arrays. Memory: grows while building, nothing after the seal. */
void sl_plan_init(struct sl_plan *plan, bool unified);
void sl_plan_finish(struct sl_plan *plan);

/* Building never fails: memory failure is remembered and reported by sl_plan_place. A slot's bytes
 * are rounded up to SL_PLAN_ALIGNMENT, so that it can move to NVMe and back as it is. */
uint32_t sl_plan_slot(struct sl_plan *plan, enum sl_tier tier, enum sl_state state, uint64_t bytes,
                      bool persistent, const char *name_format, ...)
    __attribute__((format(printf, 6, 7)));
uint32_t sl_plan_view(struct sl_plan *plan, uint32_t parent, uint64_t offset, uint64_t bytes);
uint32_t sl_plan_segment_begin(struct sl_plan *plan, const char *name);
void sl_plan_segment_end(struct sl_plan *plan);
/* Say that `segment` may run right after `previous`. */
void sl_plan_follows(struct sl_plan *plan, uint32_t segment, uint32_t previous);

struct sl_op_desc {
    enum sl_op_kind kind;
    enum sl_lane lane;
    int32_t unit, piece, micro_batch, part;
    uint64_t bytes;
    double flops;
    uint64_t product_bytes;
    double rate_share;
};
/* Append an operation; add its slots right after. Returns its index. */
uint32_t sl_plan_op(struct sl_plan *plan, struct sl_op_desc desc);
void sl_plan_reads(struct sl_plan *plan, uint32_t slot);  /* SL_PLAN_NONE: ignored */
void sl_plan_writes(struct sl_plan *plan, uint32_t slot); /* likewise */

/* The last operation is done only where the flag in `slot` is set; it reads the slot. */
void sl_plan_predicate(struct sl_plan *plan, uint32_t slot, bool expected);
/* Give a persistent slot, not used yet, a second version of the same size. */
void sl_plan_two_versions(struct sl_plan *plan, uint32_t slot);

/* Place the slots: the sizes are fixed then. Deterministic.
 * Errors: -ENOMEM, -EOVERFLOW, -EINVAL (a transient slot used in two segments: our own bug). */
int sl_plan_place(struct sl_plan *plan, struct sl_error *error);

/* Derive the dependencies, of a plan that is placed first where it is not. Deterministic.
 * Errors: -ENOMEM, those of sl_plan_place. */
int sl_plan_seal(struct sl_plan *plan, struct sl_error *error);

/* The arena that a slot is placed in: HOST for device slots of a unified plan. */
static inline enum sl_tier sl_plan_arena(const struct sl_plan *plan, enum sl_tier tier)
{
    return plan->unified && tier == SL_TIER_DEVICE ? SL_TIER_HOST : tier;
}

/* Bytes of what an operation touches of a slot: of one version, where it has two. */
static inline uint64_t sl_slot_bytes(const struct sl_slot *slot)
{
    return slot->versioned ? slot->bytes / 2 : slot->bytes;
}

/* The n-th slot that an operation reads or writes (in the order they were added). */
uint32_t sl_plan_op_slot(const struct sl_plan *plan, const struct sl_op *op, bool write,
                         uint32_t n);

/* Highest simultaneous bytes per tier and state, for the memory report: persistent and transient
 * bytes as they are at the moment when the tier's total of live bytes is highest.
 * Errors: -ENOMEM, with all of *memory zero. */
struct sl_plan_memory {
    uint64_t bytes[SL_TIER_COUNT][SL_STATE_COUNT];
};
int sl_plan_memory(const struct sl_plan *plan, struct sl_plan_memory *memory);

/* Sum of op->bytes, flops and counts per lane in one segment, of the operations that are expected
 * to be done. */
struct sl_plan_traffic {
    uint64_t bytes[SL_LANE_COUNT];
    double flops[SL_LANE_COUNT];
    uint32_t ops[SL_LANE_COUNT];
};
void sl_plan_traffic(const struct sl_plan *plan, uint32_t segment, struct sl_plan_traffic *traffic);

/* offload/plan_check.c: prove a sealed plan, over every sequence of segments that `follows` allows:
 * no slot read before it was written (by itself, not by another slot in the same bytes), no two
 * live slots overlap, no arena over its budget (0: no limit), every conflict ordered by waits,
 * every gradient consumed once, no wait that points forward (no deadlock). Returns 0 or -EINVAL
 * with the first violation (operation, slot, lane). */
int sl_plan_check(const struct sl_plan *plan, const uint64_t budget_bytes[SL_TIER_COUNT],
                  struct sl_error *error);

#endif
