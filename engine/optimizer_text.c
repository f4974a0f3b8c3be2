// SPDX-License-Identifier: Apache-2.0
/* The stand-alone optimizer's plan for people. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "engine/optimizer_internal.h"

static void line(FILE *out, const char *name, uint64_t bytes)
{
    char text[SL_SIZE_TEXT_BYTES];
    fprintf(out, "  %-28s %12s\n", name, sl_size_format(bytes, text));
}

int sl_optimizer_plan_text(struct sl_optimizer *optimizer, char **text, struct sl_error *error)
{
    static const char *const algorithms[] = {"AdamW", "Adam", "Lion", "Adagrad", "SGD"};
    static const char *const states[] = {"f32", "bf16", "q8"};
    static const char *const masters[] = {"plain", "split", "none"};
    struct sl_optimizer_plan plan;
    *text = NULL;
    int result = sl_optimizer_plan(optimizer, &plan, error);
    if (result)
        return result;
    size_t bytes = 0;
    const struct sl_optimizer_options *o = &optimizer->options;
    FILE *out = open_memstream(text, &bytes);
    if (!out)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for the plan");
    fprintf(out, "%s, state %s, master %s: %llu parameters, %llu elements\n",
            algorithms[o->algorithm], states[o->state], masters[o->master],
            (unsigned long long)plan.param_count, (unsigned long long)plan.elements);
    line(out, "state, host", plan.state_host_bytes);
    line(out, "buffers of sub-groups", plan.buffer_bytes);
    line(out, "checksums and rings", plan.sums_bytes);
    line(out, "tables", plan.table_bytes);
    line(out, "host memory in all", plan.host_bytes);
    line(out, "state, NVMe", plan.state_nvme_bytes);
    line(out, "read a step", plan.step_read_bytes);
    line(out, "written a step", plan.step_write_bytes);
    fprintf(out, "  %llu sub-groups, %llu on NVMe, %u buffers", (unsigned long long)plan.sub_groups,
            (unsigned long long)plan.sub_groups_nvme, plan.buffers);
    if (plan.threads)
        fprintf(out, ", %u threads", plan.threads);
    fputc('\n', out);
    if (fclose(out) != 0) {
        free(*text);
        *text = NULL;
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory for the plan");
    }
    return 0;
}

void sl_optimizer_text_free(char *text)
{
    free(text);
}
