// SPDX-License-Identifier: Apache-2.0
/* The simulator against the executor where the answer does not depend on this machine's speed: a
 * link so slow that it is the step. The throttle's rate is the profile's, so the predicted step
 * must be the real one, waits and overlaps included; and the arenas must have the plan's bytes. */
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/simulate_report.h"
#include "engine/state.h"

#define BATCH 2u
#define SEQUENCE 16u
#define MICRO_BATCHES 2u
#define STEPS 5u
#define WARM 2u
#define TRIES 12u
#define LINK 4000000u /* bytes per second, each direction */

static void check(int result, const struct sl_error *error)
{
    if (result)
        fail_msg("%s", error->message);
}

static void decided(struct sl_step_context *context, struct sl_step_control *control)
{
    (void)context;
    control->hyper = (struct sl_optim_hyper){
        .kind = SL_OPTIM_ADAMW, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    control->loss_scale = 1;
}

/* STEPS steps; seconds of one after the warm ones, in the mean. */
static double real_step(struct sl_engine *engine, struct sl_step_context contexts[STEPS])
{
    static int32_t ids[MICRO_BATCHES * BATCH * SEQUENCE],
        positions[MICRO_BATCHES * BATCH * SEQUENCE], first[MICRO_BATCHES * BATCH * SEQUENCE];
    struct sl_error error = {0};
    for (uint32_t i = 0; i < MICRO_BATCHES * BATCH * SEQUENCE; i++) {
        ids[i] = (int32_t)(i * 7 % 200);
        positions[i] = (int32_t)(i % SEQUENCE);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        contexts[i] = (struct sl_step_context){.ids = ids,
                                               .targets = ids,
                                               .positions = positions,
                                               .first = first,
                                               .trained_tokens = MICRO_BATCHES * BATCH * SEQUENCE,
                                               .decided = decided};
        check(sl_engine_step(engine, &contexts[i], &error), &error);
    }
    check(sl_engine_drain(engine, &error), &error);
    return (double)(contexts[STEPS - 1].finish_ns - contexts[WARM - 1].finish_ns) * 1e-9 /
           (STEPS - WARM);
}

static void the_predicted_step_is_the_real_one(void **state)
{
    (void)state;
    struct sl_error error = {0};
    struct sl_model model;
    check(sl_model_from_preset(&model, "tiny", &error), &error);
    for (uint32_t prefetch = 0; prefetch <= 2; prefetch += 2) {
        struct sl_engine_options options = {
            .step = {.model = &model,
                     .precision = SL_BF16,
                     .batch = BATCH,
                     .sequence = SEQUENCE,
                     .micro_batches = MICRO_BATCHES,
                     .group = prefetch ? MICRO_BATCHES : 1,
                     .recompute = true,
                     .prefetch = prefetch,
                     .hyper = {.kind = SL_OPTIM_ADAMW}},
            .device = "host:discrete",
            .thread_count = 2,
            .link_bytes_per_second = LINK,
        };
        for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
            options.step.placement.fraction[kind][SL_TIER_HOST] = 1;
        struct sl_engine engine;
        check(sl_engine_plan(&engine, &options, &error), &error);
        /* Everything but the link is as good as free. */
        struct sl_hardware hardware = {.name = "slow link",
                                       .device_is_host = true,
                                       .host_memory_bytes = 1e9,
                                       .host_bytes_per_second = 1e10,
                                       .host_cores = 2,
                                       .core_bytes_per_second = 1e10,
                                       .core_flops_per_second = 1e10,
                                       .link_up_bytes_per_second = LINK,
                                       .link_down_bytes_per_second = LINK,
                                       .ranks_per_host = 1};
        struct sl_report_options ask = {.hardware = &hardware};
        struct sl_report report;
        check(sl_report_make(&report, &engine.sp, &ask, &error), &error);
        check(sl_engine_start(&engine, &error), &error);
        assert_true(engine.host.bytes == report.plan_bytes[SL_TIER_HOST]);
        assert_true(engine.device_memory_bytes == report.plan_bytes[SL_TIER_DEVICE]);
        check(sl_state_initialize(&engine, 1, &error), &error);
        sl_engine_control(&engine)->loss_scale = 1;
        /* The throttle never lets a step be shorter; a busy machine makes some longer, a wait that
         * the simulator does not know makes all of them longer. */
        static struct sl_step_context contexts[TRIES][STEPS];
        double shortest = INFINITY;
        for (uint32_t i = 0; i < TRIES && shortest >= report.seconds_per_step * 1.15; i++) {
            double real = real_step(&engine, contexts[i]);
            assert_true(real > report.seconds_per_step * 0.97);
            shortest = fmin(shortest, real);
        }
        printf("prefetch %u: predicted %.3f s, real %.3f s\n", prefetch, report.seconds_per_step,
               shortest);
        assert_true(shortest < report.seconds_per_step * 1.15);
        sl_engine_finish(&engine);
    }
    sl_model_finish(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_predicted_step_is_the_real_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
