// SPDX-License-Identifier: Apache-2.0
/* The plan of a run under a virtual clock, on hardware that need not be here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/baseline_plan.h"
#include "engine/hardware.h"
#include "engine/placement.h"
#include "engine/program/program.h"
#include "engine/session.h"
#include "engine/setting_text.h"
#include "engine/simulate_report.h"
#include "offload/trace.h"

#define TRACE_EVENTS 1000000u

static const char usage[] =
    "usage: sluice simulate --model DIR|PRESET --hardware PROFILE [--ranks N]\n"
    "                       [--schedule layer-major|batch-major|zero-infinity|zero-offload]\n"
    "                       [--config FILE] [--set key=value]... [--trace FILE] [--json]\n"
    "\n"
    "  --hardware   a profile of hardware/ (v100-dgx2, a100-80, h100-pcie, h200, rtx4090, gh200) "
    "or a\n"
    "               file, such as `sluice doctor --measure FILE` writes\n"
    "  --schedule   zero-infinity and zero-offload are those systems' schedules, to compare with\n";

struct own_options {
    const char *hardware, *schedule;
    unsigned long ranks;
};

/* Take this command's options out of argv; the rest are those of every run. */
static int take_own(int argc, char **argv, struct own_options *own)
{
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        const char **target = NULL, *ranks = NULL;
        if (strcmp(argv[i], "--hardware") == 0)
            target = &own->hardware;
        else if (strcmp(argv[i], "--schedule") == 0)
            target = &own->schedule;
        else if (strcmp(argv[i], "--ranks") == 0)
            target = &ranks;
        if (!target) {
            argv[kept++] = argv[i];
            continue;
        }
        if (i + 1 == argc) {
            fprintf(stderr, "sluice: %s needs a value\n", argv[i]);
            return -1;
        }
        *target = argv[++i];
        if (ranks) {
            char *end;
            own->ranks = strtoul(ranks, &end, 10);
            if (*end || own->ranks == 0 || own->ranks > 65536) {
                fprintf(stderr, "sluice: --ranks %s: a whole number from 1 to 65536 is meant\n",
                        ranks);
                return -1;
            }
        }
    }
    return kept;
}

static int run_baseline(const struct sl_session *session, const struct sl_hardware *hardware,
                        enum sl_baseline kind, const struct run_options *o, struct sl_error *error)
{
    const struct sl_step_options *step = &session->engine.step;
    struct sl_hardware share = *hardware;
    struct sl_baseline_options options = {
        .kind = kind,
        .model = &session->model,
        .hardware = &share,
        .batch = step->batch,
        .sequence = step->sequence,
        .micro_batches = step->micro_batches,
        .weights = step->placement.fraction[SL_PLACED_WEIGHTS][SL_TIER_NVME] > 0 ? SL_TIER_NVME
                                                                                 : SL_TIER_HOST,
        .optimizer = step->placement.fraction[SL_PLACED_OPTIMIZER][SL_TIER_NVME] > 0 ? SL_TIER_NVME
                                                                                     : SL_TIER_HOST,
        .activations = step->placement.fraction[SL_PLACED_ACTIVATIONS][SL_TIER_DEVICE] > 0
                           ? SL_TIER_DEVICE
                           : SL_TIER_HOST,
        .fused_attention = true,
        .sub_group_elements = 100000000,
    };
    struct sl_plan plan;
    int result = sl_baseline_plan_build(&plan, &options, error);
    if (result)
        return result;
    uint32_t segments[4] = {0};
    struct sl_trace *trace = NULL;
    if (o->trace)
        result = sl_trace_create(&trace, TRACE_EVENTS, error);
    struct sl_simulation_options run = {.plan = &plan,
                                        .hardware = &share,
                                        .segments = segments,
                                        .segment_count = 4,
                                        .measured = 2,
                                        .trace = trace};
    struct sl_simulation simulation;
    if (!result)
        result = sl_simulate(&simulation, &run, error);
    double tokens = (double)(step->batch * step->sequence * step->micro_batches);
    if (!result && o->json)
        printf("{\"schedule\": \"%s\", \"hardware\": \"%s\", \"seconds_per_step\": %.9g, "
               "\"tokens_per_second\": %.9g, \"bound_seconds\": %.9g}\n",
               kind == SL_BASELINE_ZERO_OFFLOAD ? "zero-offload" : "zero-infinity", share.name,
               simulation.step_seconds, tokens / simulation.step_seconds, simulation.bound_seconds);
    else if (!result)
        printf("%s on %s: %.3f s per step, %.0f tokens/s; no schedule of the same operations takes "
               "less than %.3f s\n",
               kind == SL_BASELINE_ZERO_OFFLOAD ? "zero-offload" : "zero-infinity", share.name,
               simulation.step_seconds, tokens / simulation.step_seconds, simulation.bound_seconds);
    if (!result && trace)
        result = sl_trace_write(trace, &plan, o->trace, error);
    sl_trace_destroy(trace);
    sl_plan_finish(&plan);
    return result;
}

/* Memory that a CUDA context and its libraries hold beside the plan. */
static uint64_t context_bytes(const struct sl_hardware *hardware)
{
    return hardware->device_is_host ? 0 : 1500000000;
}

/* Choose what is free. Where nothing fits, say which setting would. */
static int choose_setting(const struct sl_session *session, const struct sl_hardware *hardware,
                          uint32_t ranks, uint64_t budget[SL_TIER_COUNT],
                          struct sl_step_options *chosen, struct sl_batch_choice *batch,
                          struct sl_choice *choice, struct sl_error *error)
{
    struct sl_step_options wanted = *chosen;
    struct sl_fit_options fit = {.step = &wanted,
                                 .ranks = ranks,
                                 .extra_bytes = {[SL_TIER_DEVICE] = context_bytes(hardware)}};
    struct sl_choose_free free = session->engine.free;
    bool fits;
    struct sl_hardware share = sl_hardware_share(hardware, ranks);
    sl_report_budgets(&share, budget);
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        if (session->engine.budget_bytes[tier])
            budget[tier] = session->engine.budget_bytes[tier];
    memcpy(fit.budget_bytes, budget, sizeof(fit.budget_bytes));
    memcpy(fit.placement_free, session->engine.placement_free, sizeof(fit.placement_free));
    memcpy(free.placement, fit.placement_free, sizeof(free.placement));
    int result = 0;
    *batch = (struct sl_batch_choice){0};
    if (session->engine.batch.free)
        result = sl_report_choose_batch(&wanted, batch, &fit, &session->engine.batch, hardware,
                                        &free, error);
    if (!result)
        result = sl_report_choose(chosen, &fits, choice, &fit, hardware, &free, error);
    if (result || fits)
        return result;
    struct sl_step_options nearest;
    char change[256] = "";
    fit.batch_free = true;
    result = sl_report_fit(&nearest, &fits, change, &fit, error);
    if (!result)
        fprintf(stderr, "sluice: it does not fit; %s%s\n",
                fits ? "the nearest setting that does: "
                     : "no placement, no smaller micro-batch and no tiling would",
                fits ? change : "");
    return result;
}

static void write_report(const struct sl_report *report, const struct sl_step_options *step,
                         const struct sl_batch_choice *batch, const struct sl_choice *choice,
                         bool json)
{
    char *text = json ? sl_report_json(report) : sl_report_text(report);
    if (!json)
        sl_setting_write(stdout, step);
    if (text)
        fputs(text, stdout);
    if (!json) {
        sl_setting_write_batch(stdout, batch);
        sl_setting_write_choice(stdout, choice);
    }
    free(text);
}

static int run_own(const struct sl_session *session, const struct sl_hardware *hardware,
                   const struct own_options *own, const struct run_options *o, int *code,
                   struct sl_error *error)
{
    struct sl_step_options step = session->engine.step;
    step.unified = hardware->device_is_host;
    step.activation = hardware->device_is_host ? SL_F32 : step.precision;
    uint64_t budget[SL_TIER_COUNT];
    struct sl_batch_choice batch;
    struct sl_choice choice;
    int result = choose_setting(session, hardware, (uint32_t)own->ranks, budget, &step, &batch,
                                &choice, error);
    struct sl_step_plan sp = {0};
    if (!result)
        result = sl_step_plan_build(&sp, &step, error);
    struct sl_report_options options = {.hardware = hardware,
                                        .ranks = (uint32_t)own->ranks,
                                        .extra_bytes = {[SL_TIER_DEVICE] = context_bytes(hardware)},
                                        .trace_path = o->trace};
    memcpy(options.budget_bytes, budget, sizeof(budget));
    struct sl_report report;
    if (!result)
        result = sl_report_make(&report, &sp, &options, error);
    if (!result)
        write_report(&report, &step, &batch, &choice, o->json);
    *code = !result && report.fits ? EXIT_DONE : EXIT_WRONG_INPUT;
    sl_step_plan_finish(&sp);
    return result;
}

int command_simulate(int argc, char **argv)
{
    struct own_options own = {.ranks = 1};
    int kept = take_own(argc, argv, &own);
    struct run_options o;
    if (kept < 0)
        return refuse_usage(argc, argv, usage);
    int code = parse_run_options(kept, argv, usage, &o);
    if (code >= 0)
        return code;
    static const char *const schedules[] = {"layer-major", "batch-major", "zero-infinity",
                                            "zero-offload"};
    int schedule = own.schedule ? -1 : 0;
    for (int i = 0; i < 4 && own.schedule; i++)
        if (strcmp(own.schedule, schedules[i]) == 0)
            schedule = i;
    if (!o.model || !own.hardware) {
        if (argc > 1)
            fprintf(stderr, "sluice: simulate needs%s%s\n", o.model ? "" : " --model DIR|PRESET",
                    own.hardware ? "" : " --hardware PROFILE|FILE");
        return refuse_usage(argc, argv, usage);
    }
    if (schedule < 0) {
        fprintf(
            stderr,
            "sluice: --schedule %s: one of layer-major, batch-major, zero-infinity, zero-offload "
            "is meant\n",
            own.schedule);
        return EXIT_WRONG_INPUT;
    }
    struct sl_error error = {0};
    struct sl_hardware hardware;
    if (sl_hardware_load(&hardware, own.hardware, &error))
        return report_error(&error);
    struct sl_run_options options = library_options(&o);
    struct sl_session session;
    if (sl_session_open_elsewhere(&session, &options, &error))
        return report_error(&error);
    if (hardware.device_is_host)
        sl_placement_unified_budget(session.engine.budget_bytes, &program_log);
    if (own.schedule && schedule < 2) {
        session.engine.step.group = schedule ? 1 : session.engine.step.micro_batches;
        session.engine.batch.group = schedule ? 1 : 0;
        session.engine.free.order = false;
    }
    code = EXIT_DONE;
    int result = schedule < 2 ? run_own(&session, &hardware, &own, &o, &code, &error)
                              : run_baseline(&session, &hardware,
                                             schedule == 2 ? SL_BASELINE_ZERO_INFINITY
                                                           : SL_BASELINE_ZERO_OFFLOAD,
                                             &o, &error);
    sl_session_close(&session);
    return result ? report_error(&error) : code;
}
