// SPDX-License-Identifier: Apache-2.0
#include "engine/setting_text.h"

#include "base/size.h"

void sl_setting_write(FILE *out, const struct sl_step_options *step)
{
    fprintf(out, "placement   ");
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++) {
        fprintf(out, "%s%s", kind ? ", " : "", sl_placed_name((enum sl_placed)kind));
        for (int tier = 0; tier < SL_TIER_COUNT; tier++) {
            double fraction = step->placement.fraction[kind][tier];
            if (fraction > 0)
                fprintf(out, " %.0f %% %s", 100 * fraction, sl_tier_name((enum sl_tier)tier));
        }
    }
    fprintf(out, "\nschedule    ");
    if (step->group >= step->micro_batches)
        fprintf(out, "layer-major");
    else
        fprintf(out, "%zu micro-batches per pass", step->group);
    fprintf(out, ", %u ahead, %u buffers, %s", step->prefetch, step->optimizer_buffers,
            step->recompute ? "recomputing" : "keeping activations");
    if (step->delayed_update)
        fprintf(out, ", update delayed by a step\n");
    else if (step->speculate > 0)
        fprintf(out, ", %.0f %% of the update on a prediction\n", 100 * step->speculate);
    else
        fprintf(out, ", update in forward order\n");
}

/* The rest of a candidate's row: what it takes, and what became of it. */
static void end_row(FILE *out, const uint64_t bytes[SL_TIER_COUNT], bool taken, bool chosen)
{
    char text[SL_SIZE_TEXT_BYTES];
    for (int tier = 0; tier < SL_TIER_COUNT; tier++)
        fprintf(out, " %12s", bytes[tier] ? sl_size_format(bytes[tier], text) : "");
    fprintf(out, "%s\n", chosen ? "  chosen: the fastest that fits" : taken ? "  kept" : "");
}

static void end_table(FILE *out, bool cut_short)
{
    if (cut_short)
        fprintf(out, "  (the search ended here: plans of this size are costly to build)\n");
}

void sl_setting_write_batch(FILE *out, const struct sl_batch_choice *choice)
{
    if (!choice->row_count)
        return;
    fprintf(out,
            "\nmicro-batch (auto) x micro-batches            us per token       device         "
            "host         nvme\n");
    for (size_t i = 0; i < choice->row_count; i++) {
        const struct sl_batch_row *row = &choice->rows[i];
        char size[48], time[32] = "does not fit";
        snprintf(size, sizeof(size), "%zu x %zu", row->micro_batch, row->micro_batches);
        if (row->seconds_per_token > 0)
            snprintf(time, sizeof(time), "%.4f", 1e6 * row->seconds_per_token);
        fprintf(out, "  %-44s %12s", size, time);
        end_row(out, row->bytes, row->taken, i == choice->best);
    }
    end_table(out, choice->cut_short);
}

void sl_setting_write_choice(FILE *out, const struct sl_choice *choice)
{
    if (choice->row_count < 2)
        return;
    fprintf(out,
            "\ncandidate                                       s per step       device         "
            "host         nvme\n");
    for (size_t i = 0; i < choice->row_count; i++) {
        const struct sl_choice_row *row = &choice->rows[i];
        char seconds[32] = "does not fit";
        if (row->seconds > 0)
            snprintf(seconds, sizeof(seconds), "%.4f", row->seconds);
        fprintf(out, "  %-44s %12s", row->text, seconds);
        end_row(out, row->bytes, row->taken, i == choice->best);
    }
    end_table(out, choice->cut_short);
}
