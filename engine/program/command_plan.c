// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice plan --model DIR|PRESET [--data FILE...] [--config FILE] [--set key=value]...\n"
    "                   [--device NAME] [--json]\n"
    "\n"
    "Builds and checks the plan of a run and prints the memory of every tier and the bytes of "
    "every\n"
    "lane. Takes no memory and writes nothing. Exit code 2: the run does not fit.\n";

int command_plan(int argc, char **argv)
{
    struct run_options o;
    int code = parse_run_options(argc, argv, usage, &o);
    if (code >= 0)
        return code;
    if (!o.model) {
        fprintf(stderr, "sluice: plan needs --model\n%s", usage);
        return EXIT_WRONG_INPUT;
    }
    struct sl_run_options options = library_options(&o);
    struct sl_error error = {0};
    char *text;
    if (sl_plan_run(&options, o.json, &text, &error))
        return report_error(&error);
    fputs(text, stdout);
    free(text);
    return EXIT_DONE;
}
