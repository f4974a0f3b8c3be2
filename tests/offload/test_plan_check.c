// SPDX-License-Identifier: Apache-2.0
/* The checker is itself checked: it accepts thousands of random plans, refuses each kind of fault
 * put into them, and on lowered waits agrees with an oracle that builds the whole graph of two
 * instances and looks at every pair of operations and bytes. */
#include "tests/test.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "tests/offload/random_plan.h"

static const uint64_t no_budget[SL_TIER_COUNT];

static int check(const struct sl_plan *plan, struct sl_error *error)
{
    *error = (struct sl_error){0};
    return sl_plan_check(plan, no_budget, error);
}

static void must_fail(const struct sl_plan *plan, const char *what)
{
    struct sl_error error;
    if (check(plan, &error) == 0)
        fail_msg("not caught: %s", what);
    assert_int_equal(error.code, -EINVAL);
    assert_true(strlen(error.message) > 10);
}

static void random_plans_pass(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(20261201);
    for (int i = 0; i < 3000; i++) {
        struct sl_plan plan;
        struct random_plan r;
        random_plan_build(&r, &plan, random_plan_options(&random));
        struct sl_error error;
        if (check(&plan, &error))
            fail_msg("plan %d: %s", i, error.message);
        sl_plan_finish(&plan);
    }
}

/* ---- the oracle ----------------------------------------------------------------------------- */

static bool overlap(const struct sl_plan *plan, uint32_t a, uint32_t b)
{
    const struct sl_slot *x = &plan->slots[a], *y = &plan->slots[b];
    return sl_plan_arena(plan, x->tier) == sl_plan_arena(plan, y->tier) &&
           x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

static bool conflict(const struct sl_plan *plan, const struct sl_op *a, const struct sl_op *b)
{
    for (uint32_t i = 0; i < a->access_count; i++)
        for (uint32_t j = 0; j < b->access_count; j++) {
            struct sl_access x = plan->accesses[a->access_first + i];
            struct sl_access y = plan->accesses[b->access_first + j];
            if ((x.write || y.write) && overlap(plan, x.slot, y.slot))
                return true;
        }
    return false;
}

static bool oracle_pair(const struct sl_plan *plan, uint32_t previous, uint32_t current)
{
    const struct sl_segment *p = &plan->segments[previous], *c = &plan->segments[current];
    uint32_t count = p->op_count + c->op_count;
    uint8_t *before = calloc((size_t)count * count, 1); /* [y][x]: x has finished when y starts */
    const struct sl_op **op = calloc(count, sizeof(*op));
    for (uint32_t i = 0; i < count; i++)
        op[i] = &plan->ops[i < p->op_count ? p->op_first + i : c->op_first + i - p->op_count];
    bool good = true;
    for (uint32_t y = 0; y < count && good; y++) {
        bool second = y >= p->op_count;
        bool serial = op[y]->lane != SL_LANE_NVME_READ && op[y]->lane != SL_LANE_NVME_WRITE;
        for (uint32_t x = 0; x < y; x++) {
            bool x_second = x >= p->op_count;
            uint32_t wait = second == x_second ? op[y]->wait[op[x]->lane]
                                               : op[y]->wait_previous[previous][op[x]->lane];
            if (op[x]->lane_index >= wait && !(serial && op[x]->lane == op[y]->lane))
                continue;
            before[(size_t)y * count + x] = 1;
            for (uint32_t z = 0; z < x; z++)
                before[(size_t)y * count + z] |= before[(size_t)x * count + z];
        }
        for (uint32_t x = 0; x < y && good; x++)
            good = before[(size_t)y * count + x] || !conflict(plan, op[x], op[y]);
    }
    free(before);
    free(op);
    return good;
}

static bool oracle(const struct sl_plan *plan)
{
    for (uint32_t s = 0; s < plan->segment_count; s++)
        for (uint32_t p = 0; p < plan->segment_count; p++)
            if (plan->segments[s].follows[p] && !oracle_pair(plan, p, s))
                return false;
    return true;
}

static void lowered_waits_are_judged_like_the_oracle(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(7);
    uint32_t caught = 0, harmless = 0;
    for (int i = 0; i < 250; i++) {
        struct sl_plan plan;
        struct random_plan r;
        struct random_options o = random_plan_options(&random);
        o.units = 1 + o.units % 3;
        random_plan_build(&r, &plan, o);
        assert_true(oracle(&plan));
        for (int n = 0; n < 60; n++) {
            struct sl_op *op = &plan.ops[test_random_below(&random, plan.op_count)];
            uint32_t lane = (uint32_t)test_random_below(&random, SL_LANE_COUNT);
            uint32_t row = (uint32_t)test_random_below(&random, plan.segment_count + 2);
            uint32_t *wait =
                row < plan.segment_count ? &op->wait_previous[row][lane] : &op->wait[lane];
            if (!*wait)
                continue;
            uint32_t kept = *wait;
            *wait = (uint32_t)test_random_below(&random, kept);
            struct sl_error error;
            bool good = oracle(&plan);
            if ((check(&plan, &error) == 0) != good)
                fail_msg("plan %d: oracle says %s, checker %s", i, good ? "good" : "bad",
                         error.code ? error.message : "nothing");
            if (good)
                harmless++;
            else
                caught++;
            *wait = kept;
        }
        sl_plan_finish(&plan);
    }
    printf("%u caught, %u harmless by transitivity\n", caught, harmless);
    assert_true(caught > 200);
}

/* ---- mutations ------------------------------------------------------------------------------ */

static void move_slot(struct sl_plan *plan, uint32_t root, uint64_t offset)
{
    for (uint32_t i = 0; i < plan->slot_count; i++)
        if (i == root || plan->slots[i].parent == root)
            plan->slots[i].offset = offset + (i == root ? 0 : plan->slots[i].parent_offset);
}

static bool is_root(const struct sl_plan *plan, uint32_t slot)
{
    return plan->slots[slot].parent == SL_PLAN_NONE && plan->slots[slot].bytes > 0 &&
           (plan->slots[slot].persistent || plan->slots[slot].first_op != SL_PLAN_NONE);
}

static bool live_together(const struct sl_slot *a, const struct sl_slot *b)
{
    if (a->persistent || b->persistent)
        return true;
    return a->segment == b->segment && a->first_op <= b->last_op && b->first_op <= a->last_op;
}

/* Put a slot on the bytes of one that lives at the same time. */
static void moved_slot(struct sl_plan *plan, struct test_random *random)
{
    for (;;) {
        uint32_t a = (uint32_t)test_random_below(random, plan->slot_count);
        uint32_t b = (uint32_t)test_random_below(random, plan->slot_count);
        if (a == b || !is_root(plan, a) || !is_root(plan, b) ||
            sl_plan_arena(plan, plan->slots[a].tier) != sl_plan_arena(plan, plan->slots[b].tier) ||
            !live_together(&plan->slots[a], &plan->slots[b]))
            continue;
        uint64_t kept = plan->slots[a].offset;
        move_slot(plan, a, plan->slots[b].offset);
        must_fail(plan, "moved slot");
        move_slot(plan, a, kept);
        return;
    }
}

/* Make an operation do nothing. */
static void dropped_op(struct sl_plan *plan, struct test_random *random)
{
    struct sl_op *op;
    do
        op = &plan->ops[test_random_below(random, plan->op_count)];
    while (op->kind == SL_OP_DECIDE || /* evaluation's last outputs, and persistent control */
           (op->kind == SL_OP_HEAD) || op->kind == SL_OP_BACKWARD);
    struct sl_op kept = *op;
    op->kind = SL_OP_COLLECTIVE;
    op->access_count = 0;
    must_fail(plan, sl_op_kind_name(kept.kind));
    *op = kept;
}

/* Read a slot of the same tier that is only written later. */
static void swapped_slot(struct sl_plan *plan, struct test_random *random)
{
    for (int tries = 0; tries < 10000; tries++) {
        uint32_t i = (uint32_t)test_random_below(random, plan->op_count);
        struct sl_op *op = &plan->ops[i];
        if (!op->access_count)
            continue;
        struct sl_access *access =
            &plan->accesses[op->access_first + test_random_below(random, op->access_count)];
        uint32_t other = (uint32_t)test_random_below(random, plan->slot_count);
        const struct sl_slot *slot = &plan->slots[other];
        if (access->write || !is_root(plan, other) || slot->persistent || slot->first_op <= i ||
            slot->tier != plan->slots[access->slot].tier)
            continue;
        struct sl_access kept = *access;
        access->slot = other;
        must_fail(plan, "swapped slot");
        *access = kept;
        return;
    }
}

static void swapped_offsets(struct sl_plan *plan, struct test_random *random)
{
    for (int tries = 0; tries < 10000; tries++) {
        uint32_t a = (uint32_t)test_random_below(random, plan->slot_count);
        uint32_t b = (uint32_t)test_random_below(random, plan->slot_count);
        if (!is_root(plan, a) || !is_root(plan, b) || plan->slots[a].tier != plan->slots[b].tier ||
            plan->slots[a].persistent == plan->slots[b].persistent)
            continue;
        /* A persistent slot on bytes that transient ones share: somebody is hit, unless the
         * transient slot was alone there. */
        uint64_t offset_a = plan->slots[a].offset, offset_b = plan->slots[b].offset;
        bool alone = true;
        uint32_t persistent = plan->slots[a].persistent ? a : b;
        uint64_t to = persistent == a ? offset_b : offset_a;
        for (uint32_t i = 0; i < plan->slot_count; i++)
            alone = alone && (i == a || i == b || !is_root(plan, i) ||
                              sl_plan_arena(plan, plan->slots[i].tier) !=
                                  sl_plan_arena(plan, plan->slots[a].tier) ||
                              plan->slots[i].offset >= to + plan->slots[persistent].bytes ||
                              plan->slots[i].offset + plan->slots[i].bytes <= to);
        if (alone)
            continue;
        move_slot(plan, a, offset_b);
        move_slot(plan, b, offset_a);
        must_fail(plan, "swapped offsets");
        move_slot(plan, a, offset_a);
        move_slot(plan, b, offset_b);
        return;
    }
}

/* An update that uses the gradient of another part, or of the same one twice. */
static void double_consumption(struct sl_plan *plan, struct test_random *random)
{
    uint32_t found[2] = {SL_PLAN_NONE, SL_PLAN_NONE};
    uint32_t start = (uint32_t)test_random_below(random, plan->op_count);
    for (uint32_t n = 0; n < plan->op_count && found[1] == SL_PLAN_NONE; n++) {
        struct sl_op *op = &plan->ops[(start + n) % plan->op_count];
        for (uint32_t a = 0; op->kind == SL_OP_UPDATE && a < op->access_count; a++) {
            uint32_t access = op->access_first + a;
            const struct sl_slot *slot = &plan->slots[plan->accesses[access].slot];
            if (!slot->consume_once)
                continue;
            if (found[0] == SL_PLAN_NONE)
                found[0] = access;
            else if (slot->offset != plan->slots[plan->accesses[found[0]].slot].offset)
                found[1] = access;
        }
    }
    if (found[1] == SL_PLAN_NONE)
        return;
    uint32_t kept = plan->accesses[found[1]].slot;
    plan->accesses[found[1]].slot = plan->accesses[found[0]].slot;
    must_fail(plan, "double consumption");
    plan->accesses[found[1]].slot = kept;
}

static void short_budget(struct sl_plan *plan)
{
    for (uint32_t tier = 0; tier < SL_TIER_COUNT; tier++) {
        if (!plan->tier_bytes[tier])
            continue;
        uint64_t budget[SL_TIER_COUNT] = {0};
        struct sl_error error = {0};
        budget[tier] = plan->tier_bytes[tier];
        assert_int_equal(sl_plan_check(plan, budget, &error), 0);
        budget[tier]--;
        assert_int_equal(sl_plan_check(plan, budget, &error), -EINVAL);
        assert_non_null(strstr(error.message, sl_tier_name((enum sl_tier)tier)));
        uint64_t kept = plan->tier_bytes[tier]; /* an arena smaller than what lies in it */
        plan->tier_bytes[tier] -= SL_PLAN_ALIGNMENT;
        must_fail(plan, "short arena");
        plan->tier_bytes[tier] = kept;
    }
}

static void wrong_numbers(struct sl_plan *plan, struct test_random *random)
{
    struct sl_op *op = &plan->ops[test_random_below(random, plan->op_count)];
    struct sl_op kept = *op;
    op->wait[op->lane] = op->lane_index + 1; /* itself */
    must_fail(plan, "a wait for itself");
    *op = kept;
    op->lane_index++;
    must_fail(plan, "lane position");
    *op = kept;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        op = &plan->ops[i];
        if (op->kind != SL_OP_UPLOAD && op->kind != SL_OP_FETCH)
            continue;
        op->bytes--;
        must_fail(plan, "size of a copy");
        op->bytes++;
        break;
    }
}

static void faults_are_caught(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(11);
    for (int i = 0; i < 300; i++) {
        struct sl_plan plan;
        struct random_plan r;
        random_plan_build(&r, &plan, random_plan_options(&random));
        moved_slot(&plan, &random);
        dropped_op(&plan, &random);
        swapped_slot(&plan, &random);
        swapped_offsets(&plan, &random);
        double_consumption(&plan, &random);
        short_budget(&plan);
        wrong_numbers(&plan, &random);
        struct sl_error error;
        if (check(&plan, &error))
            fail_msg("not put back: %s", error.message);
        sl_plan_finish(&plan);
    }
}

/* A sequence in which a gradient would be used twice although each pair of segments is ordered. */
static void sequences_of_segments_are_followed(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(3);
    struct random_options o = random_plan_options(&random);
    o.forward_order = true;
    struct sl_plan plan;
    struct random_plan r;
    random_plan_build(&r, &plan, o);
    struct sl_error error;
    assert_int_equal(check(&plan, &error), 0);
    plan.segments[1].follows[3] = true; /* first, flush, evaluate, step: nothing is pending */
    memset(plan.ops[0].wait_previous, 0, sizeof(plan.ops[0].wait_previous));
    for (uint32_t i = 0; i < plan.op_count; i++)
        memcpy(plan.ops[i].wait_previous[3], plan.segments[3].lane_count,
               sizeof(plan.ops[i].wait_previous[3]));
    must_fail(&plan, "step after evaluation");
    sl_plan_finish(&plan);
}

static void a_large_plan_is_checked_quickly(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(5);
    struct random_options o = random_plan_options(&random);
    o.units = RANDOM_UNITS_MAX;
    o.micro_batches = 8;
    o.parts = 600;
    o.forward_order = true;
    o.unified = false;
    for (uint32_t u = 0; u < o.units; u++) {
        o.optimizer_nvme[u] = true;
        o.unit_bytes[u] = 4096 * o.parts;
    }
    struct sl_plan plan;
    struct random_plan r;
    random_plan_build(&r, &plan, o);
    uint64_t start_ns = sl_clock_ns();
    struct sl_error error;
    int result = check(&plan, &error);
    printf("%u operations, %u slots: %.1f ms\n", plan.op_count, plan.slot_count,
           (double)(sl_clock_ns() - start_ns) * 1e-6);
    if (result)
        fail_msg("%s", error.message);
    assert_true(plan.op_count > 40000);
    sl_plan_finish(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_pass),
        cmocka_unit_test(lowered_waits_are_judged_like_the_oracle),
        cmocka_unit_test(faults_are_caught),
        cmocka_unit_test(sequences_of_segments_are_followed),
        cmocka_unit_test(a_large_plan_is_checked_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
