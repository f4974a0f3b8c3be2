// SPDX-License-Identifier: Apache-2.0
/* Sealing a plan: places for the slots, waits for the operations.
 *
 * Placement. Persistent slots come first, in the order in which they were made (extents on NVMe so
 * lie in the order of use). Transient slots are then placed from the largest to the smallest, each
 * at the lowest offset that is free during its life (plan_places.c): the classical greedy for
 * interval storage, within a few percent of the largest sum of live bytes for the few sizes that a
 * transformer has.
 * Exact colouring was rejected: no gain where buffers repeat.
 *
 * Dependencies. Arenas are cut into *atoms* at every slot's bounds, so each slot is a run of atoms
 * and two slots conflict exactly where they share atoms, be they views, aliases or neighbours in
 * time. One walk in program order keeps, per atom, the last write and the last read of each lane;
 * an operation waits for those that conflict with it. A wait is only the number of finished
 * operations per lane, since lanes run in program order: one number per lane says it all.
 *
 * The same walk, started from the state that another segment left behind, gives the waits across
 * instances.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "offload/plan.h"
#include "offload/plan_places.h"

struct atoms {
    uint64_t *bounds; /* sorted cut points */
    uint32_t count;   /* of cut points */
};

/* The last accesses of one atom: lane positions count from 1, 0 is "none". */
struct history {
    uint32_t written;
    uint8_t written_lane;
    uint32_t read[SL_LANE_COUNT];
};

struct seal {
    struct sl_plan *plan;
    struct atoms atoms[SL_TIER_COUNT];
    uint32_t atom_base[SL_TIER_COUNT]; /* atoms of all arenas in one numbering */
    uint32_t atom_count;
    uint32_t *first_atom, *last_atom;            /* per slot: [first, last) */
    struct history *after[SL_PLAN_SEGMENTS_MAX]; /* per segment: how it leaves the atoms */
};

static uint32_t root_of(const struct sl_plan *plan, uint32_t slot)
{
    uint32_t parent = plan->slots[slot].parent;
    return parent == SL_PLAN_NONE ? slot : parent;
}

static int find_lives(struct sl_plan *plan, struct sl_error *error)
{
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
            const struct sl_op *op = &plan->ops[i];
            for (uint32_t a = 0; a < op->access_count; a++) {
                struct sl_slot *slot =
                    &plan->slots[root_of(plan, plan->accesses[op->access_first + a].slot)];
                if (slot->persistent)
                    continue;
                if (slot->segment != SL_PLAN_NONE && slot->segment != s)
                    return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                                        "transient slot \"%s\" is used in segments %u and %u",
                                        slot->name, slot->segment, s);
                slot->segment = s;
                if (slot->first_op == SL_PLAN_NONE)
                    slot->first_op = i;
                slot->last_op = i;
            }
        }
    }
    return 0;
}

/* The end of each slot's hold on its bytes. What is downloaded is held until one more computation
 * and one more download have been emitted: otherwise the workspace of that computation, or an
 * upload beside it, would lie in the same bytes and wait for the link. */
static void find_holds(struct sl_plan *plan)
{
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        struct sl_slot *slot = &plan->slots[i];
        slot->held_op = slot->last_op;
        if (slot->persistent || slot->last_op == SL_PLAN_NONE || slot->tier != SL_TIER_DEVICE ||
            plan->ops[slot->last_op].lane != SL_LANE_D2H)
            continue;
        const struct sl_segment *segment = &plan->segments[slot->segment];
        uint32_t last = segment->op_first + segment->op_count - 1;
        bool computed = false, downloaded = false;
        while (slot->held_op < last && !(computed && downloaded)) {
            enum sl_lane lane = plan->ops[++slot->held_op].lane;
            computed |= lane == SL_LANE_COMPUTE;
            downloaded |= lane == SL_LANE_D2H;
        }
    }
}

static _Thread_local const struct sl_slot *sorting; /* qsort passes no context */

static int segment_then_larger(const void *a, const void *b)
{
    uint32_t ia = *(const uint32_t *)a, ib = *(const uint32_t *)b;
    if (sorting[ia].segment != sorting[ib].segment)
        return sorting[ia].segment < sorting[ib].segment ? -1 : 1;
    uint64_t ba = sorting[ia].bytes, bb = sorting[ib].bytes;
    if (ba != bb)
        return ba > bb ? -1 : 1;
    return ia < ib ? -1 : ia > ib;
}

/* Place transient slots, in order, behind `base`; *peak is the arena's bytes. Slots of different
 * segments never live at the same time, so each segment is placed by itself. */
static int place_transient(struct sl_plan *plan, const uint32_t *order, struct sl_place *places,
                           uint32_t count, uint64_t base, uint64_t *peak)
{
    *peak = base;
    for (uint32_t i = 0, beside; i < count; i += beside) {
        const struct sl_segment *segment = &plan->segments[plan->slots[order[i]].segment];
        for (beside = 0; i + beside < count; beside++) {
            const struct sl_slot *slot = &plan->slots[order[i + beside]];
            if (slot->segment != plan->slots[order[i]].segment)
                break;
            places[beside] =
                (struct sl_place){.first = slot->first_op - segment->op_first,
                                  .last = slot->held_op - segment->op_first,
                                  .bytes = sl_align_up(slot->bytes, SL_PLAN_ALIGNMENT)};
        }
        int result = sl_places_find(places, beside, segment->op_count);
        if (result)
            return result;
        for (uint32_t k = 0; k < beside; k++) {
            plan->slots[order[i + k]].offset = base + places[k].offset;
            *peak = sl_max_u64(*peak, base + places[k].offset + places[k].bytes);
        }
    }
    return 0;
}

static int place_slots(struct sl_plan *plan, struct sl_error *error)
{
    uint32_t *order = malloc((plan->slot_count + 1) * sizeof(*order));
    struct sl_place *places = malloc((plan->slot_count + 1) * sizeof(*places));
    int result = 0;
    if (!order || !places) {
        result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory while planning");
        goto done;
    }
    for (enum sl_tier tier = 0; tier < SL_TIER_COUNT; tier++) {
        uint64_t used = 0;
        uint32_t count = 0;
        for (uint32_t i = 0; i < plan->slot_count; i++) {
            struct sl_slot *slot = &plan->slots[i];
            if (sl_plan_arena(plan, slot->tier) != tier || slot->parent != SL_PLAN_NONE)
                continue;
            if (slot->bytes > UINT64_MAX / 4 || used > UINT64_MAX / 4) {
                result =
                    sl_error_set(error, SL_DOMAIN_INPUT, -EOVERFLOW,
                                 "the plan needs more than 2^62 bytes of %s", sl_tier_name(tier));
                goto done;
            }
            if (slot->persistent) {
                slot->offset = used;
                used += sl_align_up(slot->bytes, SL_PLAN_ALIGNMENT);
            } else if (slot->first_op != SL_PLAN_NONE) {
                order[count++] = i;
            }
        }
        plan->persistent_bytes[tier] = used;
        sorting = plan->slots;
        qsort(order, count, sizeof(*order), segment_then_larger);
        result = place_transient(plan, order, places, count, used, &plan->tier_bytes[tier]);
        if (result) {
            sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory while planning");
            goto done;
        }
    }
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        struct sl_slot *slot = &plan->slots[i];
        if (slot->parent == SL_PLAN_NONE)
            continue;
        const struct sl_slot *root = &plan->slots[slot->parent];
        slot->offset = root->offset + slot->parent_offset;
        slot->segment = root->segment;
        slot->first_op = root->first_op;
        slot->last_op = root->last_op;
    }
done:
    free(order);
    free(places);
    return result;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t atom_at(const struct atoms *atoms, uint64_t offset)
{
    uint32_t low = 0, high = atoms->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (atoms->bounds[middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool placed_somewhere(const struct sl_slot *slot)
{
    return slot->bytes > 0 && (slot->persistent || slot->first_op != SL_PLAN_NONE);
}

static int cut_atoms(struct seal *seal)
{
    const struct sl_plan *plan = seal->plan;
    seal->first_atom = calloc(plan->slot_count + 1, sizeof(uint32_t));
    seal->last_atom = calloc(plan->slot_count + 1, sizeof(uint32_t));
    if (!seal->first_atom || !seal->last_atom)
        return -ENOMEM;
    for (enum sl_tier tier = 0; tier < SL_TIER_COUNT; tier++) {
        struct atoms *atoms = &seal->atoms[tier];
        atoms->bounds = malloc((2 * (size_t)plan->slot_count + 2) * sizeof(uint64_t));
        if (!atoms->bounds)
            return -ENOMEM;
        uint32_t count = 0;
        for (uint32_t i = 0; i < plan->slot_count; i++) {
            const struct sl_slot *slot = &plan->slots[i];
            if (sl_plan_arena(plan, slot->tier) != tier || !placed_somewhere(slot))
                continue;
            atoms->bounds[count++] = slot->offset;
            atoms->bounds[count++] = slot->offset + slot->bytes;
        }
        qsort(atoms->bounds, count, sizeof(uint64_t), compare_u64);
        for (uint32_t i = 0; i < count; i++)
            if (atoms->count == 0 || atoms->bounds[i] != atoms->bounds[atoms->count - 1])
                atoms->bounds[atoms->count++] = atoms->bounds[i];
        seal->atom_base[tier] = seal->atom_count;
        seal->atom_count += atoms->count;
    }
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        const struct sl_slot *slot = &plan->slots[i];
        if (!placed_somewhere(slot))
            continue;
        enum sl_tier tier = sl_plan_arena(plan, slot->tier);
        const struct atoms *atoms = &seal->atoms[tier];
        seal->first_atom[i] = seal->atom_base[tier] + atom_at(atoms, slot->offset);
        seal->last_atom[i] = seal->atom_base[tier] + atom_at(atoms, slot->offset + slot->bytes);
    }
    return 0;
}

static void raise_to(uint32_t *wait, uint32_t value)
{
    if (*wait < value)
        *wait = value;
}

/* What one access must wait for, given the history of its atoms. */
static void wait_for(const struct history *history, uint32_t first, uint32_t last, bool write,
                     uint32_t wait[SL_LANE_COUNT])
{
    for (uint32_t a = first; a < last; a++) {
        const struct history *h = &history[a];
        if (h->written)
            raise_to(&wait[h->written_lane], h->written);
        if (write)
            for (int lane = 0; lane < SL_LANE_COUNT; lane++)
                raise_to(&wait[lane], h->read[lane]);
    }
}

static void note_access(struct history *history, uint32_t first, uint32_t last, bool write,
                        enum sl_lane lane, uint32_t position)
{
    for (uint32_t a = first; a < last; a++) {
        if (write) {
            history[a] = (struct history){.written = position, .written_lane = (uint8_t)lane};
        } else {
            raise_to(&history[a].read[lane], position);
        }
    }
}

/* One walk over a segment. `own` starts empty and ends as the segment leaves it. `before`, where
 * given, is how the previous segment left the atoms; what this segment overwrites is cleared. */
static void walk(struct seal *seal, uint32_t s, struct history *own, struct history *before,
                 uint32_t previous)
{
    struct sl_plan *plan = seal->plan;
    const struct sl_segment *segment = &plan->segments[s];
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        struct sl_op *op = &plan->ops[i];
        const struct sl_access *accesses = &plan->accesses[op->access_first];
        for (uint32_t a = 0; a < op->access_count; a++) {
            uint32_t first = seal->first_atom[accesses[a].slot];
            uint32_t last = seal->last_atom[accesses[a].slot];
            if (before)
                wait_for(before, first, last, accesses[a].write, op->wait_previous[previous]);
            else
                wait_for(own, first, last, accesses[a].write, op->wait);
        }
        for (int write = 0; write < 2; write++)
            for (uint32_t a = 0; a < op->access_count; a++) {
                if (accesses[a].write != (bool)write)
                    continue;
                uint32_t first = seal->first_atom[accesses[a].slot];
                uint32_t last = seal->last_atom[accesses[a].slot];
                if (!before)
                    note_access(own, first, last, write, op->lane, op->lane_index + 1);
                else if (write)
                    memset(&before[first], 0, (last - first) * sizeof(*before));
            }
    }
}

static int derive_waits(struct seal *seal)
{
    struct sl_plan *plan = seal->plan;
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        struct sl_segment *segment = &plan->segments[s];
        memset(segment->lane_count, 0, sizeof(segment->lane_count));
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++)
            plan->ops[i].lane_index = segment->lane_count[plan->ops[i].lane]++;
        seal->after[s] = calloc(seal->atom_count + 1, sizeof(struct history));
        if (!seal->after[s])
            return -ENOMEM;
        walk(seal, s, seal->after[s], NULL, 0);
    }
    struct history *before = malloc((seal->atom_count + 1) * sizeof(*before));
    if (!before)
        return -ENOMEM;
    for (uint32_t s = 0; s < plan->segment_count; s++)
        for (uint32_t p = 0; p < plan->segment_count; p++) {
            if (!plan->segments[s].follows[p])
                continue;
            memcpy(before, seal->after[p], (seal->atom_count + 1) * sizeof(*before));
            walk(seal, s, NULL, before, p);
        }
    free(before);
    return 0;
}

int sl_plan_place(struct sl_plan *plan, struct sl_error *error)
{
    if (plan->out_of_memory)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory while planning");
    int result = find_lives(plan, error);
    if (result)
        return result;
    find_holds(plan);
    result = place_slots(plan, error);
    plan->placed = result == 0;
    return result;
}

int sl_plan_seal(struct sl_plan *plan, struct sl_error *error)
{
    int result = plan->placed ? 0 : sl_plan_place(plan, error);
    if (result)
        return result;
    struct seal seal = {.plan = plan};
    result = cut_atoms(&seal);
    if (!result)
        result = derive_waits(&seal);
    if (result)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory while planning");
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        free(seal.atoms[tier].bounds);
    free(seal.first_atom);
    free(seal.last_atom);
    for (uint32_t s = 0; s < plan->segment_count; s++)
        free(seal.after[s]);
    plan->sealed = result == 0;
    return result;
}

/* Bytes that come to life at an operation, or that ended before it. */
struct life {
    uint32_t op;
    enum sl_state state;
    bool start;
    uint64_t bytes;
};

static int compare_lives(const void *a, const void *b)
{
    const struct life *x = a, *y = b;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    return (int)x->start - (int)y->start; /* what ended makes room first */
}

static size_t list_lives(const struct sl_plan *plan, enum sl_tier tier, struct life *lives)
{
    size_t count = 0;
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        const struct sl_slot *slot = &plan->slots[i];
        if (slot->persistent || slot->parent != SL_PLAN_NONE || slot->first_op == SL_PLAN_NONE ||
            sl_plan_arena(plan, slot->tier) != tier)
            continue;
        uint64_t bytes = sl_align_up(slot->bytes, SL_PLAN_ALIGNMENT);
        lives[count++] = (struct life){slot->first_op, slot->state, true, bytes};
        lives[count++] = (struct life){slot->last_op + 1, slot->state, false, bytes};
    }
    qsort(lives, count, sizeof(*lives), compare_lives);
    return count;
}

int sl_plan_memory(const struct sl_plan *plan, struct sl_plan_memory *memory)
{
    *memory = (struct sl_plan_memory){0};
    struct life *lives = malloc((2 * (size_t)plan->slot_count + 1) * sizeof(*lives));
    if (!lives)
        return -ENOMEM;
    for (enum sl_tier tier = 0; tier < SL_TIER_COUNT; tier++) {
        uint64_t live[SL_STATE_COUNT] = {0}, best[SL_STATE_COUNT] = {0}, total = 0, best_total = 0;
        size_t count = list_lives(plan, tier, lives);
        for (size_t i = 0; i < count; i++) {
            uint64_t change = lives[i].start ? lives[i].bytes : -lives[i].bytes;
            live[lives[i].state] += change;
            total += change;
            if (total > best_total) {
                best_total = total;
                memcpy(best, live, sizeof(best));
            }
        }
        for (uint32_t i = 0; i < plan->slot_count; i++) {
            const struct sl_slot *slot = &plan->slots[i];
            if (slot->persistent && slot->parent == SL_PLAN_NONE &&
                sl_plan_arena(plan, slot->tier) == tier)
                best[slot->state] += sl_align_up(slot->bytes, SL_PLAN_ALIGNMENT);
        }
        memcpy(memory->bytes[tier], best, sizeof(best));
    }
    free(lives);
    return 0;
}
