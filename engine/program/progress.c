// SPDX-License-Identifier: Apache-2.0
#include "engine/program/progress.h"

#include <stdio.h>
#include <string.h>

static void format_time(double seconds, char text[24])
{
    unsigned long s = seconds > 0 ? (unsigned long)seconds : 0;
    if (s >= 3600)
        snprintf(text, 24, "%luh%02lum", s / 3600 % 100000, s / 60 % 60);
    else
        snprintf(text, 24, "%lum%02lus", s / 60, s % 60);
}

/* Milliseconds that each lane was busy, lanes without work left out. */
static void format_lanes(const struct sl_progress *p, char *text, size_t bytes)
{
    static const char *const names[SL_LANES] = {"compute", "h2d", "d2h", "cpu",
                                                "ctl",     "rd",  "wr",  "net"};
    size_t used = 0;
    text[0] = 0;
    for (int lane = 0; lane < SL_LANES && used < bytes; lane++) {
        if (p->busy_seconds[lane] <= 0)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s %.0f", used ? " " : "",
                                 names[lane], 1e3 * p->busy_seconds[lane]);
    }
}

void progress_show(void *user, const struct sl_progress *p)
{
    struct progress_line *line = user;
    char eta[24], lanes[160];
    if (!line->terminal && !p->due && !p->skipped && !p->evaluated && !p->saved)
        return;
    if (p->step == 0) {
        printf("held-out loss %.4f nats per token before the first step\n", p->eval_loss);
        fflush(stdout);
        return;
    }
    format_time(p->eta_seconds, eta);
    format_lanes(p, lanes, sizeof(lanes));
    if (line->terminal)
        printf("\r\033[K");
    printf("step %llu/%llu | loss %.4f | norm %.3f | lr %.2e | %.0f tok/s | ms %s | eta %s%s",
           (unsigned long long)p->step, (unsigned long long)p->steps, p->loss, p->norm, p->lr,
           p->tokens_per_second, lanes, eta, p->skipped ? " | skipped" : "");
    line->open = line->terminal;
    if (!line->terminal)
        printf("\n");
    if (p->evaluated) {
        progress_end(line);
        printf("held-out loss %.4f nats per token\n", p->eval_loss);
    }
    if (p->saved) {
        progress_end(line);
        printf("saved %s\n", p->saved);
    }
    fflush(stdout);
}

void progress_end(struct progress_line *line)
{
    if (line->open)
        printf("\n");
    line->open = false;
}
