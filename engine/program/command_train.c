// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/program/program.h"
#include "engine/program/progress.h"

static const char usage[] =
    "usage: sluice train --model DIR|PRESET --data FILE... --out DIR [--config FILE]\n"
    "                    [--steps N] [--seed S] [--set key=value]... [--resume]\n"
    "                    [--device NAME] [--hardware FILE] [--trace FILE]\n"
    "\n"
    "  --model    a folder with config.json (and weights), or a named shape: tiny, gpt2-124m, ...\n"
    "             (docs/models.md)\n"
    "  --data     text, JSONL or token files (docs/data.md)\n"
    "  --out      checkpoints, log.jsonl and the cache of token ids\n"
    "  --config   DeepSpeed JSON or Accelerate YAML; sluice config FILE says what becomes of it\n"
    "  --steps, --seed   as --set train.steps=N, --set train.seed=S; without steps: one epoch\n"
    "  --set      one key, over the file: train.learning_rate=3e-4, placement.optimizer=nvme, ...\n"
    "             (sluice config --document and docs/config.md list all of them)\n"
    "  --device   auto, host, host:discrete, cuda, cuda:N\n"
    "  --hardware profile of this machine to choose settings by (sluice doctor --measure); they\n"
    "             change no bit\n"
    "  --resume   go on from the last checkpoint in --out\n"
    "  --trace    write the lanes' operations for Perfetto\n"
    "\n"
    "Ctrl-C finishes the step and saves; a second one stops at once. A closed terminal or pipe\n"
    "does what Ctrl-C does.\n";

enum { LANE_COMPUTE = 0, LANE_CPU = 3 }; /* their bytes are memory traffic, not moves */

static volatile sig_atomic_t stop;

/* The terminal or the reader of a pipe is gone: save and end, and write no more about it. */
static void on_hangup(int number)
{
    (void)number;
    stop = 1;
}

/* One press may arrive twice: `timeout -s INT` and some supervisors signal the process and then its
 * group. Nobody reads the message below and decides in this time.
 */
#define SAME_PRESS_NS 500000000u

static void on_interrupt(int number)
{
    static volatile uint64_t first_ns; /* SIGINT and SIGTERM exclude each other: sa_mask */
    uint64_t now_ns = sl_clock_ns();
    if (first_ns) {
        if (now_ns - first_ns < SAME_PRESS_NS)
            return;
        /* the second: as if nothing had been caught */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    first_ns = now_ns;
    stop = 1;
    static const char text[] =
        "\nfinishing the step and saving; Ctrl-C again stops at once and loses it\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)ignored;
}

static void show_plan(void *user, const char *text)
{
    (void)user;
    printf("%s\n", text);
    fflush(stdout);
}

static void show_example(void *user, const char *text)
{
    (void)user;
    printf("the first sequence:\n%s\n", text);
    fflush(stdout);
}

static void print_result(const struct sl_train_result *r)
{
    char peak[SL_SIZE_TEXT_BYTES], planned[SL_SIZE_TEXT_BYTES], bytes[SL_SIZE_TEXT_BYTES];
    printf("host memory: %s at its peak, %s planned\n", sl_size_format(r->peak_bytes, peak),
           sl_size_format(r->planned_bytes, planned));
    const char *before = "moved: ";
    for (int lane = 0; lane < SL_LANES; lane++) {
        if (!r->lane_bytes[lane] || lane == LANE_COMPUTE || lane == LANE_CPU)
            continue;
        printf("%s%s %s", before, sl_lane_text(lane), sl_size_format(r->lane_bytes[lane], bytes));
        before = ", ";
    }
    if (before[0] == ',')
        printf("\n");
    printf("checkpoint: %s\n", r->checkpoint);
}

int command_train(int argc, char **argv)
{
    struct run_options o;
    int code = parse_run_options(argc, argv, usage, &o);
    if (code >= 0)
        return code;
    if (!o.model || !o.out || o.data_count == 0) {
        if (argc > 1)
            fprintf(stderr, "sluice: train needs%s%s%s\n", o.model ? "" : " --model DIR|PRESET",
                    o.data_count ? "" : " --data FILE", o.out ? "" : " --out DIR");
        return refuse_usage(argc, argv, usage);
    }
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup = {.sa_handler = on_hangup, .sa_flags = SA_RESTART}, before;
    sigaction(SIGPIPE, &hangup, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &hangup, NULL);
    struct progress_line line = {.terminal = isatty(STDOUT_FILENO)};
    struct sl_train_options options = {
        .run = library_options(&o),
        .out = o.out,
        .resume = o.resume,
        .trace = o.trace,
        .progress = progress_show,
        .planned = show_plan,
        .example = show_example,
        .user = &line,
        .stop = &stop,
    };
    struct sl_train_result result = {0};
    struct sl_error error = {0};
    int failed = sl_train(&options, &result, &error);
    progress_end(&line);
    if (failed)
        return report_error(&error);
    print_result(&result);
    if (result.stopped) {
        printf("stopped after step %llu; to go on: the same command with --resume\n",
               (unsigned long long)result.step);
        return EXIT_RUN_FAILED;
    }
    return EXIT_DONE;
}
