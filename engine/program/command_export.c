// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/export.h"
#include "engine/program/program.h"

static const char usage[] = "usage: sluice export CHECKPOINT DIR\n"
                            "\n"
                            "Writes the checkpoint's model as a folder for other programs: "
                            "weights, configuration, tokenizer.\n";

int command_export(int argc, char **argv)
{
    if (argc == 2 && asks_help(argv[1])) {
        fputs(usage, stdout);
        return EXIT_DONE;
    }
    if (argc != 3 || argv[1][0] == '-' || argv[2][0] == '-') {
        if (argc > 1)
            fprintf(stderr, "sluice: export takes a checkpoint and a new folder\n");
        return refuse_usage(argc, argv, usage);
    }
    struct sl_error error = {0};
    if (sl_export(argv[1], argv[2], &error))
        return report_error(&error);
    printf("%s\n", argv[2]);
    return EXIT_DONE;
}
