// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice plan --model DIR|PRESET [--data FILE...] [--config FILE] [--set key=value]...\n"
    "                   [--device NAME] [--hardware PROFILE|FILE] [--json]\n"
    "\n"
    "Builds and checks the plan of a run and prints the memory of every tier, the bytes of every\n"
    "lane, and what a step is predicted to take. Takes no memory and writes nothing. Exit code 2:\n"
    "the run does not fit.\n"
    "\n"
    "  --hardware   FILE: this machine, as `sluice doctor --measure FILE` wrote it (without the\n"
    "               option: what `sluice doctor --measure auto` saved); PROFILE: another machine\n"
    "               (v100-dgx2, a100-80, h100-pcie, h200, rtx4090, gh200), as sluice simulate\n";

/* A named profile is a machine elsewhere; a file is this one. */
static bool is_elsewhere(const char *hardware)
{
    size_t length = hardware ? strlen(hardware) : 0;
    return length && !strchr(hardware, '/') &&
           (length <= 5 || strcmp(hardware + length - 5, ".json") != 0);
}

int command_plan(int argc, char **argv)
{
    struct run_options o;
    int code = parse_run_options(argc, argv, usage, &o);
    if (code >= 0)
        return code;
    if (!o.model) {
        if (argc > 1)
            fprintf(stderr, "sluice: plan needs --model DIR|PRESET\n");
        return refuse_usage(argc, argv, usage);
    }
    if (is_elsewhere(o.hardware))
        return command_simulate(argc, argv);
    struct sl_run_options options = library_options(&o);
    struct sl_error error = {0};
    char *text;
    if (sl_plan_run(&options, o.json, &text, &error))
        return report_error(&error);
    fputs(text, stdout);
    free(text);
    return EXIT_DONE;
}
