// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config.h"
#include "engine/config_report.h"
#include "engine/model.h"
#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice config FILE [--model DIR|PRESET] [--set key=value]... [--json]\n"
    "       sluice config --document\n"
    "\n"
    "Prints the resolved configuration: each key with its source and what it does here, warnings\n"
    "first. --document prints the table of all keys (docs/config.md).\n";

static int print_document(void)
{
    char *text = sl_config_document();
    if (!text)
        return EXIT_RUN_FAILED;
    fputs(text, stdout);
    free(text);
    return EXIT_DONE;
}

int command_config(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--document") == 0)
        return print_document();
    /* FILE stands first, so that the other options are those of every run. */
    const char *file = NULL;
    if (argc > 1 && argv[1][0] != '-') {
        file = argv[1];
        argv++;
        argc--;
    }
    struct run_options o;
    int code = parse_run_options(argc, argv, usage, &o);
    if (code >= 0)
        return code;
    if (!file && o.set_count == 0) {
        if (argc > 1)
            fprintf(stderr, "sluice: config needs a FILE, as its first argument, or --set\n");
        return refuse_usage(argc, argv, usage);
    }
    struct sl_error error = {0};
    struct sl_config_inputs inputs = {.path = file, .sets = o.sets, .set_count = o.set_count};
    if (o.model) {
        struct sl_model model = {0};
        char path[SL_CONFIG_PATH_BYTES];
        snprintf(path, sizeof(path), "%s/config.json", o.model);
        FILE *there = fopen(path, "re");
        int result = there ? sl_model_from_directory(&model, o.model, &error)
                           : sl_model_from_preset(&model, o.model, &error);
        if (there)
            fclose(there);
        if (result)
            return report_error(&error);
        inputs.model = (struct sl_config_model_facts){model.hidden, model.layers,
                                                      model.param_elements, model.positions_max};
        sl_model_finish(&model);
    }
    struct sl_config config;
    struct sl_config_report report = {0};
    int result = sl_config_load(&config, &inputs, &report, &error);
    if (result && report.problems.count == 0) { /* nothing could be read */
        sl_config_report_finish(&report);
        return report_error(&error);
    }
    char *text =
        o.json ? sl_config_report_json(&report, &config) : sl_config_report_text(&report, &config);
    if (text)
        fputs(text, stdout);
    free(text);
    sl_config_report_finish(&report);
    if (!text)
        return EXIT_RUN_FAILED;
    return result ? EXIT_WRONG_INPUT : EXIT_DONE;
}
