// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/checkpoint.h"
#include "engine/program/program.h"

static const char usage[] =
    "usage: sluice inspect CHECKPOINT [--hash]\n"
    "\n"
    "  --hash     read all of it and print the hash of the training state, nothing else;\n"
    "             exit code 1 where it is not the one that was saved\n";

int command_inspect(int argc, char **argv)
{
    const char *directory = NULL;
    bool hash = false;
    for (int i = 1; i < argc; i++) {
        if (asks_help(argv[i])) {
            fputs(usage, stdout);
            return EXIT_DONE;
        }
        if (strcmp(argv[i], "--hash") == 0) {
            hash = true;
        } else if (argv[i][0] == '-' || directory) {
            fprintf(stderr, "sluice: inspect takes one CHECKPOINT and --hash, not \"%s\"\n",
                    argv[i]);
            return refuse_usage(argc, argv, usage);
        } else {
            directory = argv[i];
        }
    }
    if (!directory) {
        if (argc > 1)
            fprintf(stderr, "sluice: inspect needs a CHECKPOINT\n");
        return refuse_usage(argc, argv, usage);
    }
    struct sl_checkpoint c;
    struct sl_error error = {0};
    if (sl_checkpoint_read(directory, &c, &error))
        return report_error(&error);
    if (hash) {
        uint64_t value, saved;
        int result = sl_checkpoint_verify(directory, &value, &saved, &error);
        if (result == 0 || result == -EBADMSG)
            printf("%016llx\n", (unsigned long long)value);
        return result ? report_error(&error) : EXIT_DONE;
    }
    printf("step          %llu, %llu of them applied\n", (unsigned long long)c.step,
           (unsigned long long)c.updates);
    printf("parameters    %llu in %s\n", (unsigned long long)c.param_elements,
           sl_dtype_name(c.precision));
    printf("batch         %llu sequences x %llu tokens x %llu micro-batches\n",
           (unsigned long long)c.micro_batch, (unsigned long long)c.sequence_length,
           (unsigned long long)c.accumulation);
    printf("data          epoch %llu, sequence %llu\n", (unsigned long long)c.data.epoch,
           (unsigned long long)c.data.index);
    printf("held-out loss %.4f, best %.4f\n", c.eval_loss, c.best_loss);
    printf("made on       %s\n", c.fingerprint);
    printf("state hash    %016llx\n", (unsigned long long)c.state_hash);
    return EXIT_DONE;
}
