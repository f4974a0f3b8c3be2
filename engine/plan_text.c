// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/plan_text.h"
#include "engine/setting_text.h"
#include "engine/simulate_report.h"

static const char no_profile[] =
    "\nspeed       not predicted: sluice doctor --measure auto FOLDER measures this machine once\n"
    "            (then settings are chosen by simulation too), or give --hardware FILE\n";

static int predict(struct sl_report *report, const struct sl_engine *engine, struct sl_error *error)
{
    struct sl_report_options options = {.hardware = engine->options.hardware};
    return sl_report_make(report, &engine->sp, &options, error);
}

static void put_speed(FILE *out, const struct sl_engine *engine)
{
    struct sl_report report;
    struct sl_error error = {0};
    sl_setting_write_batch(out, &engine->batch);
    sl_setting_write_choice(out, &engine->choice);
    if (!engine->options.hardware) {
        fputs(no_profile, out);
    } else if (predict(&report, engine, &error)) {
        fprintf(out, "\nspeed       not predicted: %s\n", error.message);
    } else {
        fprintf(out, "\npredicted on %s\n", report.hardware);
        sl_report_write_speed(out, &report);
    }
}

static void put_text(FILE *out, const struct sl_engine *engine, const struct sl_session *session)
{
    for (size_t i = 0; i < session->report.notes.count; i++)
        fprintf(out, "%s\n", session->report.notes.line[i]);
    const struct sl_step_plan *sp = &engine->sp;
    const struct sl_step_options *o = &sp->options;
    struct sl_memory_line lines[SL_MEMORY_LINES_MAX];
    uint64_t total[SL_TIER_COUNT];
    size_t count = sl_engine_memory(engine, lines, total);
    char text[SL_SIZE_TEXT_BYTES];
    fprintf(out,
            "model       %.2f M parameters, %.2f M trained, %s; %zu x %zu tokens x %zu per step\n",
            1e-6 * (double)o->model->param_elements, 1e-6 * (double)sp->trained_elements,
            sl_dtype_name(o->precision), o->batch, o->sequence, o->micro_batches);
    fprintf(out, "device      %s%s\n", engine->device->properties.name,
            o->unified ? "; its memory is host memory, and counted there" : "");
    sl_setting_write(out, o);
    fprintf(out, "plan        %u operations, %u sub-groups\n", sp->plan.segments[sp->step].op_count,
            sp->group_count);
    fprintf(out, "\nmemory                                device         host         nvme\n");
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "  %-30s", lines[i].name);
        for (int tier = 0; tier < SL_TIER_COUNT; tier++)
            fprintf(out, " %12s",
                    lines[i].bytes[tier] ? sl_size_format(lines[i].bytes[tier], text) : "");
        fprintf(out, "\n");
    }
    fprintf(out, "  %-30s", "in all");
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        fprintf(out, " %12s", total[tier] ? sl_size_format(total[tier], text) : "");
    fprintf(out, "\n  %-30s", "allowed");
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        uint64_t budget = engine->options.budget_bytes[tier];
        fprintf(out, " %12s", budget ? sl_size_format(budget, text) : "");
    }
    fprintf(out, "\n\nper step             operations        bytes   bytes/parameter\n");
    struct sl_plan_traffic traffic;
    sl_plan_traffic(&sp->plan, sp->step, &traffic);
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        if (traffic.ops[lane])
            fprintf(out, "  %-18s %10u %12s %17.2f\n", sl_lane_name((enum sl_lane)lane),
                    traffic.ops[lane], sl_size_format(traffic.bytes[lane], text),
                    (double)traffic.bytes[lane] / (double)o->model->param_elements);
    put_speed(out, engine);
}

static void json_choice(FILE *out, const struct sl_choice *choice)
{
    fprintf(out, "  \"candidates\": [");
    for (size_t i = 0; i < choice->row_count; i++) {
        const struct sl_choice_row *row = &choice->rows[i];
        fprintf(out,
                "%s\n    {\"change\": \"%s\", \"seconds\": %.9g, \"device_bytes\": %llu, "
                "\"host_bytes\": %llu, \"nvme_bytes\": %llu, \"kept\": %s, \"chosen\": %s}",
                i ? "," : "", row->text, row->seconds, (unsigned long long)row->bytes[0],
                (unsigned long long)row->bytes[1], (unsigned long long)row->bytes[2],
                row->taken ? "true" : "false", i == choice->best ? "true" : "false");
    }
    fprintf(out, "],\n");
}

static void json_batch(FILE *out, const struct sl_engine *engine)
{
    const struct sl_batch_choice *choice = &engine->batch;
    const struct sl_step_options *o = &engine->sp.options;
    fprintf(out,
            "  \"micro_batch\": %zu,\n  \"accumulation\": %zu,\n"
            "  \"micro_batch_candidates\": [",
            o->batch, o->micro_batches);
    for (size_t i = 0; i < choice->row_count; i++) {
        const struct sl_batch_row *row = &choice->rows[i];
        fprintf(out,
                "%s\n    {\"micro_batch\": %zu, \"accumulation\": %zu, "
                "\"seconds_per_token\": %.9g, \"device_bytes\": %llu, \"host_bytes\": %llu, "
                "\"nvme_bytes\": %llu, \"kept\": %s, \"chosen\": %s}",
                i ? "," : "", row->micro_batch, row->micro_batches, row->seconds_per_token,
                (unsigned long long)row->bytes[0], (unsigned long long)row->bytes[1],
                (unsigned long long)row->bytes[2], row->taken ? "true" : "false",
                i == choice->best ? "true" : "false");
    }
    fprintf(out, "],\n");
}

static void json_speed(FILE *out, const struct sl_engine *engine)
{
    struct sl_report report;
    struct sl_error error = {0};
    char *text = NULL;
    if (engine->options.hardware && !predict(&report, engine, &error))
        text = sl_report_json(&report);
    json_choice(out, &engine->choice);
    fprintf(out, "  \"prediction\": %s,\n", text ? text : "null");
    free(text);
}

static void json_tiers(FILE *out, const char *key, const uint64_t bytes[SL_TIER_COUNT])
{
    fprintf(out, "  \"%s\": {", key);
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        fprintf(out, "%s\"%s\": %llu", tier ? ", " : "", sl_tier_name((enum sl_tier)tier),
                (unsigned long long)bytes[tier]);
    fprintf(out, "},\n");
}

static void put_json(FILE *out, const struct sl_engine *engine, const struct sl_session *session)
{
    const struct sl_step_plan *sp = &engine->sp;
    struct sl_memory_line lines[SL_MEMORY_LINES_MAX];
    uint64_t total[SL_TIER_COUNT];
    size_t count = sl_engine_memory(engine, lines, total);
    (void)session;
    fprintf(out, "{\n  \"parameters\": %llu,\n  \"trained_parameters\": %llu,\n",
            (unsigned long long)sp->options.model->param_elements,
            (unsigned long long)sp->trained_elements);
    fprintf(out, "  \"placement\": {");
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        const double *f = sp->options.placement.fraction[kind];
        fprintf(out, "%s\"%s\": {\"device\": %g, \"host\": %g, \"nvme\": %g}", kind ? ", " : "",
                sl_placed_name((enum sl_placed)kind), f[0], f[1], f[2]);
    }
    fprintf(out, "},\n");
    json_batch(out, engine);
    json_speed(out, engine);
    json_tiers(out, "memory_bytes", total);
    json_tiers(out, "allowed_bytes", engine->options.budget_bytes);
    fprintf(out, "  \"memory_lines\": [\n");
    for (size_t i = 0; i < count; i++)
        fprintf(out,
                "    {\"name\": \"%s\", \"device_bytes\": %llu, \"host_bytes\": %llu, "
                "\"nvme_bytes\": %llu}%s\n",
                lines[i].name, (unsigned long long)lines[i].bytes[0],
                (unsigned long long)lines[i].bytes[1], (unsigned long long)lines[i].bytes[2],
                i + 1 < count ? "," : "");
    struct sl_plan_traffic traffic;
    sl_plan_traffic(&sp->plan, sp->step, &traffic);
    fprintf(out, "  ],\n  \"step_lanes\": {");
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        fprintf(out, "%s\n    \"%s\": {\"operations\": %u, \"bytes\": %llu, \"flops\": %.6g}",
                lane ? "," : "", sl_lane_name((enum sl_lane)lane), traffic.ops[lane],
                (unsigned long long)traffic.bytes[lane], traffic.flops[lane]);
    fprintf(out, "\n  }\n}\n");
}

typedef void (*put_plan)(FILE *out, const struct sl_engine *engine,
                         const struct sl_session *session);

static char *to_text(put_plan put, const struct sl_engine *engine, const struct sl_session *session)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    put(out, engine, session);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

char *sl_plan_text(const struct sl_engine *engine, const struct sl_session *session)
{
    return to_text(put_text, engine, session);
}

char *sl_plan_json(const struct sl_engine *engine, const struct sl_session *session)
{
    return to_text(put_json, engine, session);
}
