// SPDX-License-Identifier: Apache-2.0
/* What the bytes hold.
 *
 * Stamps    Each write stamps its atoms with its root slot, and a read must find its own. At the
 *           start of an instance persistent atoms carry their slots' stamps (they are initialised
 *           before the first segment) and transient ones none: what an earlier instance left is
 *           never relied on. That no segment leaves a persistent atom with another stamp makes this
 *           the same start for every instance of every sequence, by induction.
 * Results   What is written into a transient slot of weights, gradients, optimizer state or staging
 *           must be read before it is overwritten or dies, or an operation is missing (a write-back
 *           left out leaves everything else in order). Workspace may be scratch.
 * Gradients A consume_once atom is *pending* from a write to the one UPDATE that reads it, or the
 *           one fetch or download that takes it there. Writing
 *           over a pending one loses a gradient, unless the writer reads it too (accumulation);
 *           reading one that is not pending applies it twice. A speculative read leaves it pending:
 *           a later operation commits it. Which atoms are pending at a start of
 *           a segment depends on what ran before, so every sequence is followed: a state is (last
 *           segment, pending atoms), reached states are kept and each is expanded once.
 *           Sequences begin with segment 0, or with one that follows nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan_check_internal.h"

#define STATES_MAX 256u /* distinct pending sets; a plan has a handful */

static int check_read_stamps(const struct check *check, const uint32_t *stamp, uint32_t op,
                             struct sl_access access)
{
    const struct sl_plan *plan = check->plan;
    const struct check_slot *slot = &check->slots[access.slot];
    for (uint32_t atom = slot->atom_first; atom < slot->atom_end; atom++) {
        if (stamp[atom] == slot->root)
            continue;
        if (stamp[atom] == SL_PLAN_NONE)
            return check_fail(check, op, "reads slot \"%s\" before it was written",
                              plan->slots[access.slot].name);
        return check_fail(check, op, "reads slot \"%s\" where \"%s\" has overwritten it",
                          plan->slots[access.slot].name, plan->slots[stamp[atom]].name);
    }
    return 0;
}

static int walk_stamps(const struct check *check, uint32_t s, uint32_t *stamp)
{
    const struct sl_plan *plan = check->plan;
    const struct sl_segment *segment = &plan->segments[s];
    for (uint32_t i = 0; i < check->atom_count; i++)
        stamp[i] = SL_PLAN_NONE;
    for (uint32_t i = 0; i < plan->slot_count; i++)
        for (uint32_t a = check->slots[i].atom_first; a < check->slots[i].atom_end; a++)
            if (plan->slots[i].persistent)
                stamp[a] = check->slots[i].root;
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        const struct sl_access *accesses = &plan->accesses[op->access_first];
        for (uint32_t a = 0; a < op->access_count; a++) {
            int result = accesses[a].write ? 0 : check_read_stamps(check, stamp, i, accesses[a]);
            if (result)
                return result;
        }
        for (uint32_t a = 0; a < op->access_count; a++) {
            const struct check_slot *slot = &check->slots[accesses[a].slot];
            for (uint32_t n = slot->atom_first; accesses[a].write && n < slot->atom_end; n++)
                stamp[n] = slot->root;
        }
    }
    for (uint32_t i = 0; i < plan->slot_count; i++)
        for (uint32_t a = check->slots[i].atom_first; a < check->slots[i].atom_end; a++)
            if (plan->slots[i].persistent && stamp[a] != check->slots[i].root)
                return check_fail(check, SL_PLAN_NONE,
                                  "segment %s overwrites persistent slot \"%s\"", segment->name,
                                  plan->slots[i].name);
    return 0;
}

/* ---- results -------------------------------------------------------------------------------- */

static bool must_be_read(const struct sl_slot *root)
{
    return !root->persistent &&
           (root->state == SL_STATE_WEIGHTS || root->state == SL_STATE_GRADIENTS ||
            root->state == SL_STATE_OPTIMIZER || root->state == SL_STATE_BUFFERS);
}

static int lost_result(const struct check *check, uint32_t writer, uint32_t slot)
{
    return check_fail(check, writer, "what it writes into slot \"%s\" is never read",
                      check->plan->slots[slot].name);
}

/* unread[atom]: op + 1 of a write that nobody has read yet. */
static int walk_results(const struct check *check, uint32_t s, uint32_t *unread)
{
    const struct sl_plan *plan = check->plan;
    const struct sl_segment *segment = &plan->segments[s];
    memset(unread, 0, (size_t)check->atom_count * sizeof(*unread));
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        for (int write = 0; write < 2; write++)
            for (uint32_t a = 0; a < op->access_count; a++) {
                struct sl_access access = plan->accesses[op->access_first + a];
                const struct check_slot *slot = &check->slots[access.slot];
                if (access.write != (write != 0))
                    continue;
                bool kept = must_be_read(&plan->slots[slot->root]);
                for (uint32_t n = slot->atom_first; n < slot->atom_end; n++) {
                    if (write && unread[n] && unread[n] != i + 1)
                        return check_fail(check, unread[n] - 1,
                                          "what it writes is overwritten (slot \"%s\") before it "
                                          "was read",
                                          plan->slots[access.slot].name);
                    unread[n] = write && kept ? i + 1 : 0;
                }
            }
    }
    for (uint32_t i = 0; i < plan->slot_count; i++) {
        const struct check_slot *slot = &check->slots[i];
        for (uint32_t n = slot->atom_first; slot->root == i && n < slot->atom_end; n++)
            if (unread[n] && check->slots[slot->root].segment == s &&
                unread[n] - 1 >= check->slots[slot->root].life_first &&
                unread[n] - 1 <= check->slots[slot->root].life_last)
                return lost_result(check, unread[n] - 1, i);
    }
    return 0;
}

/* ---- gradients ------------------------------------------------------------------------------ */

struct gradient_state {
    uint32_t segment; /* that has just run */
    uint8_t *pending; /* per atom */
};

struct gradients {
    const struct check *check;
    struct gradient_state states[STATES_MAX];
    uint32_t state_count;
};

static bool op_reads_atoms_of(const struct check *check, const struct sl_op *op, uint32_t slot)
{
    for (uint32_t a = 0; a < op->access_count; a++) {
        struct sl_access access = check->plan->accesses[op->access_first + a];
        if (!access.write &&
            check->slots[access.slot].atom_first <= check->slots[slot].atom_first &&
            check->slots[access.slot].atom_end >= check->slots[slot].atom_end)
            return true;
    }
    return false;
}

/* An update uses a gradient where it lies, or a fetch or download takes it to its update. */
static bool takes_gradient(const struct sl_op *op)
{
    return op->kind == SL_OP_UPDATE || op->kind == SL_OP_FETCH || op->kind == SL_OP_DOWNLOAD;
}

static int gradient_access(const struct check *check, uint32_t i, struct sl_access access,
                           uint8_t *pending)
{
    const struct sl_plan *plan = check->plan;
    const struct sl_op *op = &plan->ops[i];
    const struct check_slot *slot = &check->slots[access.slot];
    if (!plan->slots[slot->root].consume_once || (!access.write && !takes_gradient(op)))
        return 0;
    bool adds = access.write && op_reads_atoms_of(check, op, access.slot);
    for (uint32_t n = slot->atom_first; n < slot->atom_end; n++) {
        if (access.write && pending[n] && !adds)
            return check_fail(check, i, "overwrites gradient \"%s\" before an update has used it",
                              plan->slots[access.slot].name);
        if (adds && !pending[n])
            return check_fail(check, i, "adds to gradient \"%s\", which an update has used already",
                              plan->slots[access.slot].name);
        if (!access.write && !pending[n])
            return check_fail(check, i, "uses gradient \"%s\" a second time",
                              plan->slots[access.slot].name);
        if (access.write || !op->speculative)
            pending[n] = access.write;
    }
    return 0;
}

static int walk_gradients(const struct check *check, uint32_t s, uint8_t *pending)
{
    const struct sl_plan *plan = check->plan;
    const struct sl_segment *segment = &plan->segments[s];
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
        const struct sl_op *op = &plan->ops[i];
        for (int write = 0; write < 2; write++)
            for (uint32_t a = 0; a < op->access_count; a++) {
                struct sl_access access = plan->accesses[op->access_first + a];
                int result =
                    access.write == (write != 0) ? gradient_access(check, i, access, pending) : 0;
                if (result)
                    return result;
            }
        /* A transient gradient dies with its last operation. */
        for (uint32_t a = 0; a < op->access_count; a++) {
            uint32_t root = check->slots[plan->accesses[op->access_first + a].slot].root;
            const struct check_slot *slot = &check->slots[root];
            if (!plan->slots[root].consume_once || plan->slots[root].persistent ||
                slot->life_last != i)
                continue;
            for (uint32_t n = slot->atom_first; n < slot->atom_end; n++)
                if (pending[n])
                    return check_fail(check, i, "gradient \"%s\" is never used by an update",
                                      plan->slots[root].name);
        }
    }
    return 0;
}

/* Run segment `s` from the pending atoms of `from` (NULL: none) and keep the state if it is new. */
static int expand(struct gradients *gradients, const uint8_t *from, uint32_t s)
{
    const struct check *check = gradients->check;
    size_t atoms = (size_t)check->atom_count + 1;
    uint8_t *pending = calloc(atoms, 1);
    if (!pending)
        return -ENOMEM;
    if (from)
        memcpy(pending, from, atoms);
    int result = walk_gradients(check, s, pending);
    bool known = false;
    for (uint32_t i = 0; i < gradients->state_count && !known; i++)
        known = gradients->states[i].segment == s &&
                !memcmp(gradients->states[i].pending, pending, atoms);
    if (!result && !known && gradients->state_count == STATES_MAX)
        result =
            check_fail(check, SL_PLAN_NONE, "more than %u states of pending gradients", STATES_MAX);
    if (result || known)
        free(pending);
    else
        gradients->states[gradients->state_count++] = (struct gradient_state){s, pending};
    return result;
}

static int check_gradients(const struct check *check)
{
    const struct sl_plan *plan = check->plan;
    bool any = false;
    for (uint32_t i = 0; i < plan->slot_count; i++)
        any = any || plan->slots[i].consume_once;
    if (!any)
        return 0;
    struct gradients *gradients = calloc(1, sizeof(*gradients));
    if (!gradients)
        return -ENOMEM;
    gradients->check = check;
    int result = 0;
    for (uint32_t s = 0; s < plan->segment_count && !result; s++) {
        bool follows = false;
        for (uint32_t p = 0; p < plan->segment_count; p++)
            follows = follows || plan->segments[s].follows[p];
        if (s == 0 || !follows)
            result = expand(gradients, NULL, s);
    }
    for (uint32_t i = 0; i < gradients->state_count && !result; i++)
        for (uint32_t s = 0; s < plan->segment_count && !result; s++)
            if (plan->segments[s].follows[gradients->states[i].segment])
                result = expand(gradients, gradients->states[i].pending, s);
    for (uint32_t i = 0; i < gradients->state_count; i++)
        free(gradients->states[i].pending);
    free(gradients);
    return result;
}

int check_flow(const struct check *check)
{
    uint32_t *marks = calloc((size_t)check->atom_count + 1, sizeof(*marks));
    if (!marks)
        return -ENOMEM;
    int result = 0;
    for (uint32_t s = 0; s < check->plan->segment_count && !result; s++)
        result = walk_stamps(check, s, marks);
    for (uint32_t s = 0; s < check->plan->segment_count && !result; s++)
        result = walk_results(check, s, marks);
    free(marks);
    return result ? result : check_gradients(check);
}
