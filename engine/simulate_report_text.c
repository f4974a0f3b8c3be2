// SPDX-License-Identifier: Apache-2.0
/* The report for people and for programs; both show the same figures. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/size.h"
#include "engine/simulate_report.h"

static void write_memory(FILE *out, const struct sl_report *r)
{
    char text[SL_TIER_COUNT][SL_SIZE_TEXT_BYTES];
    fprintf(out, "memory             %14s %14s %14s\n", "device", "host", "nvme");
    for (int state = 0; state < SL_STATE_COUNT; state++) {
        uint64_t any = 0;
        for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
            any |= r->memory.bytes[tier][state];
            sl_size_format(r->memory.bytes[tier][state], text[tier]);
        }
        if (any)
            fprintf(out, "  %-16s %14s %14s %14s\n", sl_state_name((enum sl_state)state), text[0],
                    text[1], text[2]);
    }
    static const char *const names[] = {"arenas", "outside", "budget"};
    const uint64_t *const rows[] = {r->plan_bytes, r->extra_bytes, r->budget_bytes};
    for (int i = 0; i < 3; i++) {
        for (int tier = 0; tier < SL_TIER_COUNT; tier++)
            sl_size_format(rows[i][tier], text[tier]);
        fprintf(out, "  %-16s %14s %14s %14s\n", names[i], text[0], text[1], text[2]);
    }
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        uint64_t needed = r->plan_bytes[tier] + r->extra_bytes[tier];
        if (needed > r->budget_bytes[tier])
            fprintf(out, "  %s: %s more than there is\n", sl_tier_name((enum sl_tier)tier),
                    sl_size_format(needed - r->budget_bytes[tier], text[0]));
    }
    fprintf(out, "fits               %s\n\n", r->fits ? "yes" : "no");
}

/* The lanes that a lane waited for longest, where that is a tenth of its waiting or more. */
static void write_blockers(FILE *out, const double blocked[SL_LANE_COUNT], double wait_seconds)
{
    bool named[SL_LANE_COUNT] = {false};
    for (;;) {
        int most = -1;
        for (int lane = 0; lane < SL_LANE_COUNT; lane++)
            if (!named[lane] && blocked[lane] >= 0.1 * wait_seconds && blocked[lane] > 0 &&
                (most < 0 || blocked[lane] > blocked[most]))
                most = lane;
        if (most < 0)
            return;
        named[most] = true;
        fprintf(out, "  %s %.4f", sl_lane_name((enum sl_lane)most), blocked[most]);
    }
}

static void write_lanes(FILE *out, const struct sl_report *r)
{
    fprintf(out, "lane            ops        bytes     busy s    alone s     idle s  of it for\n");
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        char bytes[SL_SIZE_TEXT_BYTES];
        if (!r->traffic.ops[lane])
            continue;
        fprintf(out, "  %-10s %6u %12s %10.4f %10.4f %10.4f", sl_lane_name((enum sl_lane)lane),
                r->traffic.ops[lane], sl_size_format(r->traffic.bytes[lane], bytes),
                r->simulation.busy_seconds[lane], r->simulation.solo_seconds[lane],
                r->simulation.wait_seconds[lane]);
        write_blockers(out, r->simulation.blocked_seconds[lane], r->simulation.wait_seconds[lane]);
        fprintf(out, "\n");
    }
    fprintf(out, "used              ");
    const char *separator = "";
    for (int i = 0; i < SL_RESOURCE_COUNT; i++)
        if (r->simulation.used_share[i] > 0.005) {
            fprintf(out, "%s %s %.0f %%", separator, sl_resource_name((enum sl_resource)i),
                    100 * r->simulation.used_share[i]);
            separator = ",";
        }
    fprintf(out, "\n\n");
}

char *sl_report_text(const struct sl_report *r)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fprintf(out, "hardware           %s, %u rank%s\n", r->hardware, r->ranks,
            r->ranks == 1 ? "" : "s");
    fprintf(out, "model              %.3f B parameters\n", (double)r->parameters * 1e-9);
    fprintf(out, "step               %zu micro-batches of %zu x %zu: %llu tokens\n\n",
            r->micro_batches, r->batch, r->sequence, (unsigned long long)r->tokens_per_step);
    write_memory(out, r);
    sl_report_write_speed(out, r);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

void sl_report_write_speed(FILE *out, const struct sl_report *r)
{
    write_lanes(out, r);
    fprintf(out, "seconds per step   %.4f\n", r->seconds_per_step);
    fprintf(out, "tokens per second  %.0f\n", r->tokens_per_second);
    fprintf(out, "TFLOPS per device  %.*f (model FLOPs, no recomputation), MFU %.1f %%\n",
            r->tflops < 10 ? 4 : 1, r->tflops, 100 * r->mfu);
    fprintf(out,
            "bottleneck         %s: no schedule takes less than %.4f s; this one reaches "
            "%.1f %%\n",
            r->bottleneck, r->simulation.bound_seconds, 100 * r->bound_share);
    if (isinf(r->hide_tokens))
        fprintf(out, "hidden             at no number of tokens per step\n");
    else
        fprintf(out, "hidden             from %.0f tokens per step and rank on\n", r->hide_tokens);
    if (r->written_tb_per_day > 0)
        fprintf(out, "written to NVMe    %.1f TB per day\n", r->written_tb_per_day);
}

static json_t *memory_json(const struct sl_report *r)
{
    json_t *memory = json_object();
    for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
        json_t *states = json_object();
        for (int state = 0; state < SL_STATE_COUNT; state++)
            if (r->memory.bytes[tier][state])
                json_object_set_new(states, sl_state_name((enum sl_state)state),
                                    json_integer((json_int_t)r->memory.bytes[tier][state]));
        json_object_set_new(memory, sl_tier_name((enum sl_tier)tier),
                            json_pack("{s:I, s:I, s:I, s:o}", "arena_bytes",
                                      (json_int_t)r->plan_bytes[tier], "outside_bytes",
                                      (json_int_t)r->extra_bytes[tier], "budget_bytes",
                                      (json_int_t)r->budget_bytes[tier], "peak_bytes", states));
    }
    return memory;
}

static json_t *blockers_json(const double blocked[SL_LANE_COUNT])
{
    json_t *blockers = json_object();
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        if (blocked[lane] > 0)
            json_object_set_new(blockers, sl_lane_name((enum sl_lane)lane),
                                json_real(blocked[lane]));
    return blockers;
}

static json_t *lanes_json(const struct sl_report *r)
{
    json_t *lanes = json_object();
    for (int lane = 0; lane < SL_LANE_COUNT; lane++)
        if (r->traffic.ops[lane])
            json_object_set_new(lanes, sl_lane_name((enum sl_lane)lane),
                                json_pack("{s:I, s:I, s:f, s:f, s:f, s:o}", "ops",
                                          (json_int_t)r->traffic.ops[lane], "bytes",
                                          (json_int_t)r->traffic.bytes[lane], "busy_seconds",
                                          r->simulation.busy_seconds[lane], "alone_seconds",
                                          r->simulation.solo_seconds[lane], "idle_seconds",
                                          r->simulation.wait_seconds[lane], "idle_for_seconds",
                                          blockers_json(r->simulation.blocked_seconds[lane])));
    return lanes;
}

char *sl_report_json(const struct sl_report *r)
{
    json_t *used = json_object();
    for (int i = 0; i < SL_RESOURCE_COUNT; i++)
        json_object_set_new(used, sl_resource_name((enum sl_resource)i),
                            json_real(r->simulation.used_share[i]));
    json_t *root =
        json_pack("{s:s, s:I, s:I, s:I, s:b, s:o, s:o, s:o}", "hardware", r->hardware, "ranks",
                  (json_int_t)r->ranks, "parameters", (json_int_t)r->parameters, "tokens_per_step",
                  (json_int_t)r->tokens_per_step, "fits", (int)r->fits, "memory", memory_json(r),
                  "lanes", lanes_json(r), "used_share", used);
    if (!root)
        return NULL;
    const struct {
        const char *key;
        double value;
    } figures[] = {
        {"seconds_per_step", r->seconds_per_step},
        {"tokens_per_second", r->tokens_per_second},
        {"model_flops_per_token", r->flops_per_token},
        {"tflops_per_device", r->tflops},
        {"mfu", r->mfu},
        {"bound_seconds", r->simulation.bound_seconds},
        {"bound_share", r->bound_share},
        {"nvme_written_tb_per_day", r->written_tb_per_day},
    };
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        json_object_set_new(root, figures[i].key, json_real(figures[i].value));
    json_object_set_new(root, "hide_tokens",
                        isinf(r->hide_tokens) ? json_null() : json_real(r->hide_tokens));
    json_object_set_new(root, "bottleneck", json_string(r->bottleneck));
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(root);
    return text;
}
