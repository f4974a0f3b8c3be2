// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/doctor.h"
#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice doctor [--json] [PATH...]\n"
    "\n"
    "Looks at the machine: processor, memory, io_uring, CUDA, libraries, and the folders PATH for\n"
    "swap files. Exit code 1 where something stands in the way.\n";

int command_doctor(int argc, char **argv)
{
    struct sl_doctor_options options = {0};
    const char *paths[SL_SWAP_PATHS_MAX];
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return EXIT_DONE;
        }
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (argv[i][0] == '-' || options.nvme_path_count == SL_SWAP_PATHS_MAX) {
            fprintf(stderr, "sluice: \"%s\" is not an option\n%s", argv[i], usage);
            return EXIT_WRONG_INPUT;
        } else {
            paths[options.nvme_path_count++] = argv[i];
        }
    }
    options.nvme_paths = paths;
    struct sl_doctor *doctor = calloc(1, sizeof(*doctor));
    if (!doctor)
        return EXIT_RUN_FAILED;
    sl_doctor_run(doctor, &options);
    char *text = json ? sl_doctor_json(doctor) : sl_doctor_text(doctor);
    if (text)
        fputs(text, stdout);
    int code = text && sl_doctor_failures(doctor) == 0 ? EXIT_DONE : EXIT_RUN_FAILED;
    free(text);
    free(doctor);
    return code;
}
