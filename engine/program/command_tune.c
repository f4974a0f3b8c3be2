// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/program.h"
#include "engine/tune_report.h"

static const char usage[] = "usage: sluice tune nvme DIR [--json]\n"
                            "\n"
                            "Measures the disk that holds DIR for up to a minute and prints the "
                            "settings to use, a DeepSpeed\n"
                            "aio block, and what steps of 7B, 13B and 70B models cost on it.\n";

int command_tune(int argc, char **argv)
{
    const char *directory = NULL;
    bool json = false;
    if (argc > 1 && asks_help(argv[1])) {
        fputs(usage, stdout);
        return EXIT_DONE;
    }
    bool good = argc > 2 && strcmp(argv[1], "nvme") == 0;
    for (int i = 2; i < argc && good; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (argv[i][0] == '-' || directory)
            good = false;
        else
            directory = argv[i];
    }
    if (!good || !directory) {
        if (argc > 1)
            fprintf(stderr, "sluice: tune takes \"nvme\" and one DIR on the drive\n");
        return refuse_usage(argc, argv, usage);
    }
    struct sl_tune_options options = {.directory = directory, .log = &program_log};
    struct sl_tune_result result;
    struct sl_error error = {0};
    if (sl_tune_nvme(&options, &result, &error))
        return report_error(&error);
    char *text =
        json ? sl_tune_report_json(directory, &result) : sl_tune_report_text(directory, &result);
    if (text)
        fputs(text, stdout);
    free(text);
    return text ? EXIT_DONE : EXIT_RUN_FAILED;
}
