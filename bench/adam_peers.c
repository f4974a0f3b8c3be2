// SPDX-License-Identifier: Apache-2.0
#include "bench/adam_peers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PEERS_MAX 16

/* Start `python adam_peers.py COUNT THREADS` with its standard output in a pipe. */
static FILE *start_python(const char *python, uint64_t count, size_t threads, pid_t *child)
{
    int ends[2];
    char count_text[24], threads_text[24];
    snprintf(count_text, sizeof(count_text), "%llu", (unsigned long long)count);
    snprintf(threads_text, sizeof(threads_text), "%zu", threads);
    if (pipe(ends) < 0)
        return NULL;
    *child = fork();
    if (*child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execlp(python, python, BENCH_PEERS_SCRIPT, count_text, threads_text, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    if (*child > 0)
        return fdopen(ends[0], "r");
    close(ends[0]);
    return NULL;
}

static void print_peer(const char *name, double seconds, uint64_t count, bool json,
                       double phase_seconds, bool first)
{
    double rate = (double)count * 1e-9 / seconds;
    if (json) {
        printf("%s\n    {\"peer\": \"%s\", \"gparam_per_s\": %.4f, \"our_phase_ratio\": %.3f}",
               first ? "" : ",", name, rate, phase_seconds > 0 ? seconds / phase_seconds : 0);
        return;
    }
    if (first)
        printf("\n%-36s %10s %22s\n", "peer", "Gparam/s", "our whole phase is x");
    printf("%-36s %10.3f %22.2f\n", name, rate, phase_seconds > 0 ? seconds / phase_seconds : 0);
}

int peers_report(const char *python, uint64_t count, size_t threads, bool json,
                 double phase_seconds, struct sl_error *error)
{
    pid_t child = -1;
    fflush(stdout);
    FILE *from = start_python(python, count, threads, &child);
    if (!from)
        return sl_error_set(error, SL_DOMAIN_IO, -EIO, "--python %s: %s", python, strerror(errno));
    char line[512], name[64];
    double seconds;
    bool first = true;
    if (json)
        printf(",\n  \"peers\": [");
    while (fgets(line, sizeof(line), from)) {
        /* Libraries print to standard output as they like: our lines are marked. */
        if (sscanf(line, "peer\t%63[^\t]\t%lf", name, &seconds) != 2 || !(seconds > 0))
            continue;
        print_peer(name, seconds, count, json, phase_seconds, first);
        first = false;
    }
    if (json)
        printf("\n  ]");
    fclose(from);
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return sl_error_set(error, SL_DOMAIN_IO, -EIO,
                            "--python %s: failed (status %d); it needs torch, and deepspeed for "
                            "its rows",
                            python, status);
    return 0;
}
