// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

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
    struct sl_session_options options = session_options(&o);
    struct sl_session session;
    struct sl_error error = {0};
    if (sl_session_open(&session, &options, &error))
        return report_error(&error);
    struct sl_engine engine;
    if (sl_engine_plan(&engine, &session.engine, &error)) {
        sl_session_close(&session);
        return report_error(&error);
    }
    if (o.json)
        print_plan_json(&engine, &session);
    else
        print_plan(&engine, &session);
    sl_engine_finish(&engine);
    sl_session_close(&session);
    return EXIT_DONE;
}
