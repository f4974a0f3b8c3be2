// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/word.h"
#include "engine/program/program.h"

static const struct {
    const char *name, *text;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"train", "train or fine-tune a model", command_train},
    {"plan", "what a run needs and moves, before it starts", command_plan},
    {"simulate", "the same plan on other hardware, under a virtual clock", command_simulate},
    {"config", "what becomes of each key of a configuration", command_config},
    {"tokenize", "text and records to a file of token ids", command_tokenize},
    {"generate", "text from a model, its weights on any tier", command_generate},
    {"export", "a model folder from a checkpoint", command_export},
    {"inspect", "what a checkpoint holds, and its hash", command_inspect},
    {"doctor", "what this machine offers", command_doctor},
    {"tune", "measure a disk and print its settings", command_tune},
};

static void print_help(FILE *file)
{
    fprintf(file, "usage: sluice COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(
        file,
        "\nsluice COMMAND --help describes the options of a command; exit codes: 0 done, 1 the run "
        "failed,\n2 the input is wrong or does not fit.\n");
}

/* A descriptor 0 to 2 that is closed would be given to the next file opened, a checkpoint say, and
 * every message printed into it. */
static void fill_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* `ulimit -v` counts reserved addresses, a multiple of the memory in use: less than this ended in a
 * crash instead of a message. */
#define ADDRESS_SPACE_MIN ((rlim_t)2 << 30)

static int check_address_space(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= ADDRESS_SPACE_MIN)
        return 0;
    fprintf(stderr,
            "sluice: the address space is limited to %llu KiB (ulimit -v), at least %llu are "
            "needed; set ulimit -v unlimited and bound the memory with memory.host\n",
            (unsigned long long)limit.rlim_cur >> 10, (unsigned long long)ADDRESS_SPACE_MIN >> 10);
    return -ENOMEM;
}

/* What was printed has arrived, or the exit code says that it has not. */
static int flush_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "sluice: standard output: %s\n", errno ? strerror(errno) : "write error");
    return code == EXIT_DONE ? EXIT_RUN_FAILED : code;
}

static int unknown_command(const char *name)
{
    const char *names[sizeof(commands) / sizeof(commands[0])];
    size_t count = sizeof(names) / sizeof(names[0]);
    for (size_t i = 0; i < count; i++)
        names[i] = commands[i].name;
    const char *nearest = sl_word_nearest(name, names, count);
    fprintf(stderr, "sluice: \"%s\" is not a command", name);
    if (nearest)
        fprintf(stderr, "; did you mean %s?\n", nearest);
    else
        fprintf(stderr, "; sluice --help lists them\n");
    return EXIT_WRONG_INPUT;
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    signal(SIGXFSZ, SIG_IGN); /* a file over `ulimit -f` is an error with a name, not a kill */
    if (argc < 2) {
        print_help(stderr);
        return EXIT_WRONG_INPUT;
    }
    if (asks_help(argv[1]) || (strcmp(argv[1], "help") == 0 && argc == 2)) {
        print_help(stdout);
        return flush_output(EXIT_DONE);
    }
    char *help[] = {argv[0], argc > 2 ? argv[2] : NULL, (char[]){"--help"}, NULL};
    if (strcmp(argv[1], "help") == 0) { /* help COMMAND is COMMAND --help */
        argv = help;
        argc = 3;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", SLUICE_VERSION);
        return flush_output(EXIT_DONE);
    }
    if (check_address_space())
        return EXIT_WRONG_INPUT;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return flush_output(commands[i].run(argc - 1, argv + 1));
    return unknown_command(argv[1]);
}
