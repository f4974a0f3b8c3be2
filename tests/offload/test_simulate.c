// SPDX-License-Identifier: Apache-2.0
/* The simulator against arithmetic: single operations, overlap, shared resources, transfers in
 * flight, and over random plans the laws that hold for any schedule. */
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "offload/simulate.h"
#include "tests/offload/random_plan.h"

/* Round rates, so that seconds can be seen: 1 GB takes 1 s of link, 0.1 s of DRAM, ... GB is a
 * multiple of 4,096, so that slots of it are not rounded up. */
#define GB 1.024e9

static const struct sl_hardware machine = {
    .name = "round",
    .device_memory_bytes = 1e12,
    .device_flops_peak = 2e12,
    .device_flops_per_second = 1e12,
    .device_bytes_per_second = 1e11,
    .link_up_bytes_per_second = GB,
    .link_down_bytes_per_second = GB,
    .host_memory_bytes = 1e12,
    .host_bytes_per_second = 10 * GB,
    .host_cores = 4,
    .core_bytes_per_second = 2 * GB,
    .nvme_bytes = 1e12,
    .nvme_read_bytes_per_second = 2 * GB,
    .nvme_write_bytes_per_second = GB,
    .net_bytes_per_second = GB,
    .ranks_per_host = 1,
};

static void near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-6 * fabs(wanted) + 1e-9)
        fail_msg("%.9f, not %.9f", value, wanted);
}

static uint32_t slot(struct sl_plan *plan, enum sl_tier tier, bool persistent, uint64_t bytes)
{
    return sl_plan_slot(plan, tier, SL_STATE_BUFFERS, bytes, persistent, "slot");
}

static void copy(struct sl_plan *plan, enum sl_op_kind kind, enum sl_lane lane, uint32_t from,
                 uint32_t to)
{
    random_plan_copy(plan, kind, lane, 0, from, to);
}

static void compute(struct sl_plan *plan, double flops, uint64_t bytes, uint32_t reads)
{
    sl_plan_op(plan,
               (struct sl_op_desc){
                   .kind = SL_OP_FORWARD, .lane = SL_LANE_COMPUTE, .bytes = bytes, .flops = flops});
    sl_plan_reads(plan, reads);
}

static struct sl_simulation run(struct sl_plan *plan, const struct sl_hardware *hardware,
                                uint32_t count)
{
    struct sl_error error = {0};
    if (!plan->sealed) {
        sl_plan_follows(plan, 0, 0);
        if (sl_plan_seal(plan, &error))
            fail_msg("%s", error.message);
    }
    uint32_t segments[64] = {0};
    struct sl_simulation_options options = {.plan = plan,
                                            .hardware = hardware,
                                            .segments = segments,
                                            .segment_count = count,
                                            .measured = count > 2 ? count - 2 : 1};
    struct sl_simulation out;
    if (sl_simulate(&out, &options, &error))
        fail_msg("%s", error.message);
    return out;
}

static void one_operation_takes_its_time(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, false);
    uint32_t host = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    uint32_t device = slot(&plan, SL_TIER_DEVICE, true, (uint64_t)GB);
    sl_plan_segment_begin(&plan, "step");
    copy(&plan, SL_OP_UPLOAD, SL_LANE_H2D, host, device);
    compute(&plan, 2e12, 100000000000ull, device);
    sl_plan_segment_end(&plan);
    struct sl_hardware slow = machine;
    slow.link_op_seconds = 0.25;
    struct sl_simulation out = run(&plan, &slow, 1);
    near(out.total_seconds, 1 + 0.25 + 2 + 1); /* the copy; products, then streaming kernels */
    near(out.busy_seconds[SL_LANE_H2D], 1.25);
    near(out.wait_seconds[SL_LANE_H2D], 3);
    near(out.bound_seconds, 3);
    assert_int_equal(out.bound_lane, SL_LANE_COMPUTE);
    near(out.used_share[SL_RESOURCE_DRAM], 0.1 / 4.25);
    near(sl_simulate_op_seconds(&slow, &plan.ops[0]), 1.25);
    plan.ops[0].rate_share = 0.5;
    near(sl_simulate_op_seconds(&slow, &plan.ops[0]), 2.25);
    near(run(&plan, &slow, 1).used_share[SL_RESOURCE_DRAM], 0.1 / 5.25);
    sl_plan_finish(&plan);
}

/* Two buffers: the copy of the next step runs beside the computation of this one. */
static void the_host_device_and_the_drive_draw_on_cores(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, true);
    uint32_t extent = slot(&plan, SL_TIER_NVME, true, (uint64_t)GB);
    uint32_t read = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    uint32_t weights = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    sl_plan_segment_begin(&plan, "step");
    copy(&plan, SL_OP_FETCH, SL_LANE_NVME_READ, extent, read);
    sl_plan_op(&plan, (struct sl_op_desc){.kind = SL_OP_FORWARD,
                                          .lane = SL_LANE_COMPUTE,
                                          .flops = 2e12,
                                          .product_bytes = (uint64_t)(2 * GB)});
    sl_plan_reads(&plan, weights);
    sl_plan_segment_end(&plan);
    struct sl_hardware host = machine;
    host.device_is_host = true;
    host.core_flops_per_second = 1e12;
    near(run(&plan, &host, 1).total_seconds, 0.5); /* four cores, the read of 0.5 s beside them */
    host.core_weight_bytes_per_second = GB;
    near(run(&plan, &host, 1).total_seconds, 1); /* another 2 s of a core */
    /* The read takes one second of a core. Both are held to the same share of their speed, 4 of 6
     * cores, until it has ended after 0.75 s; the products then have half of their second left. */
    host.core_nvme_bytes_per_second = GB;
    struct sl_simulation out = run(&plan, &host, 1);
    near(out.busy_seconds[SL_LANE_NVME_READ], 0.75);
    near(out.total_seconds, 1.25);
    near(out.used_share[SL_RESOURCE_CORES], 1);
    sl_plan_finish(&plan);
}

static void lanes_overlap_in_the_steady_state(void **state)
{
    (void)state;
    for (int buffers = 1; buffers <= 2; buffers++) {
        struct sl_plan plan;
        sl_plan_init(&plan, false);
        uint32_t host = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
        uint32_t device[2];
        for (int i = 0; i < buffers; i++)
            device[i] = slot(&plan, SL_TIER_DEVICE, true, (uint64_t)GB);
        sl_plan_segment_begin(&plan, "step");
        for (int i = 0; i < 2; i++) {
            copy(&plan, SL_OP_UPLOAD, SL_LANE_H2D, host, device[i % buffers]);
            compute(&plan, 1.5e12, 0, device[i % buffers]);
        }
        sl_plan_segment_end(&plan);
        struct sl_simulation out = run(&plan, &machine, 12);
        near(out.step_seconds, buffers == 1 ? 5 : 3);
        near(out.bound_seconds, 3);
        sl_plan_finish(&plan);
    }
}

/* The device waits for the link, which waits for the drive: the drive holds the device up. */
static void waiting_is_laid_at_the_end_of_the_chain(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, false);
    uint32_t extent = slot(&plan, SL_TIER_NVME, true, (uint64_t)(4 * GB));
    uint32_t host = slot(&plan, SL_TIER_HOST, true, (uint64_t)(4 * GB));
    uint32_t device = slot(&plan, SL_TIER_DEVICE, true, (uint64_t)(4 * GB));
    sl_plan_segment_begin(&plan, "step");
    copy(&plan, SL_OP_FETCH, SL_LANE_NVME_READ, extent, host);
    copy(&plan, SL_OP_UPLOAD, SL_LANE_H2D, host, device);
    compute(&plan, 1e12, 0, device);
    sl_plan_segment_end(&plan);
    struct sl_simulation out = run(&plan, &machine, 1);
    near(out.total_seconds, 2 + 4 + 1);
    near(out.blocked_seconds[SL_LANE_COMPUTE][SL_LANE_NVME_READ], 2);
    near(out.blocked_seconds[SL_LANE_COMPUTE][SL_LANE_H2D], 4);
    near(out.blocked_seconds[SL_LANE_H2D][SL_LANE_NVME_READ], 2);
    near(out.blocked_seconds[SL_LANE_H2D][SL_LANE_COMPUTE], 0); /* it has nothing left to do */
    near(out.wait_seconds[SL_LANE_H2D], 3);
    sl_plan_finish(&plan);
}

/* A computation after a download does not lie in the bytes that are being downloaded; one later
 * than that may. */
static void a_download_holds_nothing_up(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, false);
    uint32_t host = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    sl_plan_segment_begin(&plan, "step");
    for (int i = 0; i < 3; i++) {
        uint32_t made = slot(&plan, SL_TIER_DEVICE, false, (uint64_t)GB);
        compute(&plan, 2e12, 0, SL_PLAN_NONE);
        sl_plan_writes(&plan, made);
        copy(&plan, SL_OP_DOWNLOAD, SL_LANE_D2H, made, host);
    }
    sl_plan_segment_end(&plan);
    struct sl_simulation out = run(&plan, &machine, 1);
    near(out.total_seconds, 3 * 2 + 1);
    assert_int_equal(plan.tier_bytes[SL_TIER_DEVICE], 2 * (uint64_t)GB);
    sl_plan_finish(&plan);
}

/* An update that alone takes all of DRAM slows an upload, and the other way round. */
static void shared_dram_is_shared_fairly(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, false);
    uint32_t host = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    uint32_t device = slot(&plan, SL_TIER_DEVICE, true, (uint64_t)GB);
    uint32_t master = slot(&plan, SL_TIER_HOST, true, 4096);
    sl_plan_segment_begin(&plan, "step");
    copy(&plan, SL_OP_UPLOAD, SL_LANE_H2D, host, device);
    random_plan_op(&plan, SL_OP_UPDATE, SL_LANE_CPU, 0, (uint64_t)(10 * GB));
    sl_plan_writes(&plan, master);
    sl_plan_segment_end(&plan);
    struct sl_hardware hardware = machine;
    hardware.core_bytes_per_second = 10 * GB;
    hardware.link_up_bytes_per_second = 10 * GB; /* both want all of DRAM: half each */
    struct sl_simulation out = run(&plan, &hardware, 1);
    near(out.busy_seconds[SL_LANE_H2D], 0.2);
    near(out.total_seconds, 1.1);
    assert_true(out.bound_is_resource);
    assert_int_equal(out.bound_resource, SL_RESOURCE_DRAM);
    near(out.bound_seconds, 1.1);
    near(out.used_share[SL_RESOURCE_DRAM], 1);
    sl_plan_finish(&plan);

    /* Cores, not DRAM, limit the update: 4 x 2 GB/s of 10; the upload then has its 1 GB/s. */
    sl_plan_init(&plan, false);
    host = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    device = slot(&plan, SL_TIER_DEVICE, true, (uint64_t)GB);
    sl_plan_segment_begin(&plan, "step");
    copy(&plan, SL_OP_UPLOAD, SL_LANE_H2D, host, device);
    random_plan_op(&plan, SL_OP_UPDATE, SL_LANE_CPU, 0, (uint64_t)(16 * GB));
    sl_plan_segment_end(&plan);
    out = run(&plan, &machine, 1);
    near(out.busy_seconds[SL_LANE_H2D], 1);
    near(out.busy_seconds[SL_LANE_CPU], 2);
    near(out.used_share[SL_RESOURCE_CORES], 1);
    sl_plan_finish(&plan);
}

/* Latencies of transfers in flight overlap; bytes share the drive. */
static void transfers_are_in_flight_together(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, false);
    sl_plan_segment_begin(&plan, "step");
    uint32_t memory[8];
    for (int i = 0; i < 8; i++) {
        uint32_t extent = slot(&plan, SL_TIER_NVME, true, (uint64_t)GB);
        memory[i] = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
        copy(&plan, SL_OP_FETCH, SL_LANE_NVME_READ, extent, memory[i]);
    }
    sl_plan_segment_end(&plan);
    struct sl_hardware hardware = machine;
    hardware.nvme_op_seconds = 0.5;
    struct sl_simulation out = run(&plan, &hardware, 1);
    near(out.total_seconds, 0.5 + 4);
    sl_plan_finish(&plan);
}

static void reads_and_writes_share_a_mixed_limit(void **state)
{
    (void)state;
    struct sl_plan plan;
    sl_plan_init(&plan, false);
    uint32_t a = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    uint32_t b = slot(&plan, SL_TIER_HOST, true, (uint64_t)GB);
    uint32_t x = slot(&plan, SL_TIER_NVME, true, (uint64_t)GB);
    uint32_t y = slot(&plan, SL_TIER_NVME, true, (uint64_t)GB);
    sl_plan_segment_begin(&plan, "step");
    copy(&plan, SL_OP_FETCH, SL_LANE_NVME_READ, x, a);
    copy(&plan, SL_OP_EVICT, SL_LANE_NVME_WRITE, b, y);
    sl_plan_segment_end(&plan);
    near(run(&plan, &machine, 1).total_seconds, 1);
    struct sl_hardware hardware = machine;
    hardware.nvme_mixed_bytes_per_second = 4.0 / 3 * GB;
    /* That is taking turns: 0.5 s of read and 1 s of write. */
    near(run(&plan, &hardware, 1).total_seconds, 1.5);
    hardware.nvme_mixed_bytes_per_second = 1.6 * GB;
    /* 1.2 s worth in a second: both at 0.6 of their speed for 0.5 / 0.6 s, the write alone after */
    near(run(&plan, &hardware, 1).total_seconds, 0.5 / 0.6 + 0.5);
    sl_plan_finish(&plan);
}

static void laws_hold_for_random_plans(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(17);
    for (int i = 0; i < 300; i++) {
        struct sl_plan plan;
        struct random_plan r;
        random_plan_build(&r, &plan, random_plan_options(&random));
        uint32_t segments[] = {0, 0, 0, 0, 0};
        if (r.o.forward_order)
            segments[1] = segments[2] = segments[3] = segments[4] = 1;
        struct sl_hardware hardware = machine;
        hardware.link_op_seconds = 1e-6 * (double)test_random_below(&random, 50);
        hardware.nvme_op_seconds = 1e-6 * (double)test_random_below(&random, 50);
        hardware.device_is_host = r.o.unified;
        hardware.core_flops_per_second = 1e11;
        for (uint32_t measured = 1; measured <= 5; measured += 4) {
            struct sl_simulation_options options = {.plan = &plan,
                                                    .hardware = &hardware,
                                                    .segments = segments,
                                                    .segment_count = 5,
                                                    .measured = measured};
            struct sl_simulation out, again;
            struct sl_error error = {0};
            if (sl_simulate(&out, &options, &error))
                fail_msg("plan %d: %s", i, error.message);
            assert_int_equal(sl_simulate(&again, &options, &error), 0);
            assert_memory_equal(&out, &again, sizeof(out));
            for (int r2 = 0; r2 < SL_RESOURCE_COUNT; r2++)
                assert_true(out.used_share[r2] >= 0 && out.used_share[r2] <= 1 + 1e-9);
            for (int lane = 0; lane < SL_LANE_COUNT; lane++)
                assert_true(out.busy_seconds[lane] <= out.step_seconds * (1 + 1e-9));
            if (measured < 5)
                continue;
            /* From start to end nothing is hidden: bound <= time, and every byte was counted. */
            assert_true(out.step_seconds >= out.bound_seconds * (1 - 1e-9));
            assert_true(out.total_seconds <=
                        5 * (out.solo_seconds[0] + out.solo_seconds[1] + out.solo_seconds[2] +
                             out.solo_seconds[3] + out.solo_seconds[4] + out.solo_seconds[5]) +
                            (double)plan.op_count * 5 * 5e-5);
            double up = 0;
            for (uint32_t n = 0; n < 5; n++) {
                struct sl_plan_traffic traffic;
                sl_plan_traffic(&plan, segments[n], &traffic);
                up += (double)traffic.bytes[SL_LANE_H2D];
            }
            near(out.used_share[SL_RESOURCE_LINK_UP] * out.total_seconds * GB, up);
        }
        sl_plan_finish(&plan);
    }
}

static void errors_name_the_cause(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(1);
    struct random_options o = random_plan_options(&random);
    o.optimizer_nvme[0] = true;
    o.forward_order = true;
    struct sl_plan plan;
    struct random_plan r;
    random_plan_build(&r, &plan, o);
    struct sl_hardware hardware = machine;
    uint32_t segments[] = {0, 1};
    struct sl_simulation_options options = {.plan = &plan,
                                            .hardware = &hardware,
                                            .segments = segments,
                                            .segment_count = 2,
                                            .measured = 1};
    struct sl_simulation out;
    struct sl_error error = {0};
    hardware.nvme_write_bytes_per_second = 0;
    assert_int_equal(sl_simulate(&out, &options, &error), -EINVAL);
    assert_non_null(strstr(error.message, "nvme write"));
    hardware = machine;
    error = (struct sl_error){0};
    segments[1] = 3; /* evaluation with an update pending */
    assert_int_equal(sl_simulate(&out, &options, &error), -EINVAL);
    segments[1] = 1;
    for (uint32_t i = 0; i < plan.op_count; i++)
        plan.ops[i].wait[plan.ops[i].lane] = plan.ops[i].lane_index + 1;
    error = (struct sl_error){0};
    assert_int_equal(sl_simulate(&out, &options, &error), -EDEADLK);
    sl_plan_finish(&plan);
}

static void ranks_divide_the_host(void **state)
{
    (void)state;
    struct sl_hardware host = machine;
    host.ranks_per_host = 16;
    host.link_up_bytes_per_second = 12 * GB;
    host.link_down_bytes_per_second = 12 * GB;
    host.link_host_bytes_per_second = 64 * GB;
    struct sl_hardware share = sl_hardware_share(&host, 64);
    near(share.link_up_bytes_per_second, 4 * GB);
    near(share.host_cores, 0.25);
    near(share.device_flops_per_second, 1e12);
    share = sl_hardware_share(&host, 1);
    near(share.link_up_bytes_per_second, 12 * GB);
    near(share.host_bytes_per_second, 10 * GB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_operation_takes_its_time),
        cmocka_unit_test(the_host_device_and_the_drive_draw_on_cores),
        cmocka_unit_test(lanes_overlap_in_the_steady_state),
        cmocka_unit_test(waiting_is_laid_at_the_end_of_the_chain),
        cmocka_unit_test(a_download_holds_nothing_up),
        cmocka_unit_test(shared_dram_is_shared_fairly),
        cmocka_unit_test(transfers_are_in_flight_together),
        cmocka_unit_test(reads_and_writes_share_a_mixed_limit),
        cmocka_unit_test(laws_hold_for_random_plans),
        cmocka_unit_test(errors_name_the_cause),
        cmocka_unit_test(ranks_divide_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
