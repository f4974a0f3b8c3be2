// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/doctor.h"
#include "engine/hardware_measure.h"
#include "engine/monitor_writers.h"
#include "engine/program/program.h"
#include "nvme/swap.h"

static const char usage[] =
    "usage: sluice doctor [--json] [--measure FILE [--device NAME]] [PATH...]\n"
    "\n"
    "Looks at the machine: processor, memory, io_uring, CUDA, libraries, and the folders PATH for\n"
    "swap files. Exit code 1 where something stands in the way.\n"
    "\n"
    "  --measure FILE   measure this machine, with swap files in PATH, and write a profile for\n"
    "                   --hardware FILE of plan, train and simulate. Takes some seconds; let\n"
    "                   nothing else run. auto: where plan and train look for it by themselves,\n"
    "                   $XDG_CACHE_HOME/sluice/hardware.json or ~/.cache/sluice/hardware.json\n";

/* The place of the saved profile, its folder made. */
static int saved_path(char *path, size_t bytes, struct sl_error *error)
{
    int result = sl_hardware_saved_path(path, bytes);
    if (result)
        return sl_error_set(error, SL_DOMAIN_INPUT, result,
                            "--measure auto: neither XDG_CACHE_HOME nor HOME says where to save; "
                            "give a file");
    char *slash = strrchr(path, '/');
    *slash = 0;
    result = sl_make_folders(path, error);
    *slash = '/';
    return result;
}

static int measure(const char *file, const char *device_name, const struct sl_doctor_options *paths)
{
    struct sl_error error = {0};
    char saved[4096];
    if (strcmp(file, "auto") == 0) {
        if (saved_path(saved, sizeof(saved), &error))
            return report_error(&error);
        file = saved;
    }
    struct sl_workers *workers = NULL;
    struct sl_device *device = NULL;
    struct sl_measured *measured = calloc(1, sizeof(*measured));
    struct sl_workers_options pool = {.log = &program_log};
    if (!measured)
        return EXIT_RUN_FAILED;
    int result = sl_workers_create(&workers, &pool, &error);
    struct sl_device_options named = {.name = device_name ? device_name : "auto",
                                      .precision = SL_BF16,
                                      .workers = workers,
                                      .log = &program_log};
    if (!result)
        result = sl_device_create(&device, &named, &error);
    struct sl_measure_options options = {.workers = workers,
                                         .device = device,
                                         .nvme_paths = paths->nvme_paths,
                                         .nvme_path_count = paths->nvme_path_count,
                                         .log = &program_log};
    if (!result)
        result = sl_hardware_measure(measured, &options, &error);
    if (!result)
        result = sl_measured_write(measured, file, &error);
    if (!result)
        printf("written: %s\n", file);
    sl_device_destroy(device);
    sl_workers_destroy(workers);
    free(measured);
    return result ? report_error(&error) : EXIT_DONE;
}

int command_doctor(int argc, char **argv)
{
    struct sl_doctor_options options = {0};
    const char *paths[SL_SWAP_PATHS_MAX];
    const char *file = NULL, *device = NULL;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (asks_help(argv[i])) {
            fputs(usage, stdout);
            return EXIT_DONE;
        }
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--measure") == 0 && i + 1 < argc) {
            file = argv[++i];
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = argv[++i];
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "sluice: doctor has no option %s\n", argv[i]);
            return refuse_usage(argc, argv, usage);
        } else if (options.nvme_path_count == SL_SWAP_PATHS_MAX) {
            fprintf(stderr, "sluice: more than %d paths\n", SL_SWAP_PATHS_MAX);
            return EXIT_WRONG_INPUT;
        } else {
            paths[options.nvme_path_count++] = argv[i];
        }
    }
    options.nvme_paths = paths;
    if (file)
        return measure(file, device, &options);
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
