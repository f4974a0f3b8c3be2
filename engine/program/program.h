// SPDX-License-Identifier: Apache-2.0
/* The command line: one file per command, each a thin front to the library. */
#ifndef SLUICE_ENGINE_PROGRAM_PROGRAM_H
#define SLUICE_ENGINE_PROGRAM_PROGRAM_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/sluice.h"

enum { EXIT_DONE = 0, EXIT_RUN_FAILED = 1, EXIT_WRONG_INPUT = 2 };

#define SETS_MAX 256
#define DATA_MAX 256

/* What train, plan and simulate take. */
struct run_options {
    const char *model, *config, *out, *device, *trace, *hardware;
    const char *data[DATA_MAX];
    size_t data_count;
    const char *sets[SETS_MAX];
    size_t set_count;
    char set_text[4][64]; /* --steps, --seed as --set */
    size_t set_text_count;
    bool resume, json;
};

/* Is this argument -h or --help? */
static inline bool asks_help(const char *argument)
{
    return strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0;
}

/* The end of a message about arguments: where to read on, or all of it where none were given. Gives
 * EXIT_WRONG_INPUT. argv[0] is the command. */
int refuse_usage(int argc, char **argv, const char *usage);

/* What getopt_long refused with '?' or ':' (its string begins with ':'), and the nearest option. */
void report_option(int option, char **argv, const struct option *longs);

/* Parse; EXIT_DONE where --help was given, EXIT_WRONG_INPUT with a message, or -1 to go on. */
int parse_run_options(int argc, char **argv, const char *usage, struct run_options *options);

struct sl_run_options library_options(const struct run_options *options);

/* Lines of the library to standard error, warnings marked. */
extern const struct sl_log program_log;

/* Print "sluice: message" and give the exit code of its domain. */
int report_error(const struct sl_error *error);

int command_config(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_export(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_inspect(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_simulate(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_train(int argc, char **argv);
int command_tune(int argc, char **argv);

#endif
