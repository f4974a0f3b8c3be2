// SPDX-License-Identifier: Apache-2.0
#include "bench/adam_peers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/nvme_ratio.h"

#define ROUNDS_MAX 256
#define ROUND_PASSES 3

/* A Python that measures when it is asked to: adam_peers.py. */
struct child {
    pid_t pid;
    FILE *to, *from;
};

static int start_python(struct child *child, const struct peers_options *options)
{
    int in[2], out[2];
    char count_text[24], threads_text[24];
    snprintf(count_text, sizeof(count_text), "%llu", (unsigned long long)options->count);
    snprintf(threads_text, sizeof(threads_text), "%zu", options->threads);
    signal(SIGPIPE, SIG_IGN); /* a Python that has ended is seen in its status */
    if (pipe(in) < 0)
        return -errno;
    if (pipe(out) < 0) {
        close(in[0]);
        close(in[1]);
        return -errno;
    }
    child->pid = fork();
    if (child->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[0]);
        close(in[1]);
        close(out[0]);
        close(out[1]);
        execlp(options->python, options->python, BENCH_PEERS_SCRIPT, count_text, threads_text,
               (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    child->to = fdopen(in[1], "w");
    child->from = fdopen(out[0], "r");
    return child->pid > 0 && child->to && child->from ? 0 : -EIO;
}

/* The next line that begins with `key` and a tab: libraries print to standard output as they like.
 * The rest of it goes to value. False at the end. */
static bool next_value(struct child *child, const char *key, char *value, size_t size)
{
    char line[512];
    size_t length = strlen(key);
    while (fgets(line, sizeof(line), child->from)) {
        if (strncmp(line, key, length) != 0 || line[length] != '\t')
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(value, size, "%.*s", (int)size - 1, line + length + 1);
        return true;
    }
    return false;
}

static void ask(struct child *child, const char *what)
{
    fprintf(child->to, "%s\n", what);
    fflush(child->to);
}

static void keep_min(double *best, double seconds)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
}

/* False where the child ended. */
static bool measure_peer(struct child *child, const struct peers_options *options, double *ours,
                         double *theirs)
{
    for (unsigned round = 0; round < options->rounds; round++)
        for (int pass = 0; pass < ROUND_PASSES; pass++) {
            char text[64];
            double seconds;
            keep_min(&ours[round], options->our_phase(options->user));
            ask(child, "pass");
            if (!next_value(child, "seconds", text, sizeof(text)) ||
                sscanf(text, "%lf", &seconds) != 1 || !(seconds > 0))
                return false;
            keep_min(&theirs[round], seconds);
        }
    ask(child, "next");
    return true;
}

static void print_peer(const struct peers_options *options, const char *name, const double *ours,
                       const double *theirs, bool first)
{
    double rate = (double)options->count * 1e-9 / median_of(theirs, options->rounds);
    struct ratio ratio = ratio_of_pairs(theirs, ours, options->rounds);
    if (options->json) {
        printf("%s\n    {\"peer\": \"%s\", \"gparam_per_s\": %.4f, \"our_phase_ratio\": %.3f, "
               "\"our_phase_ratio_low\": %.3f, \"our_phase_ratio_high\": %.3f}",
               first ? "" : ",", name, rate, ratio.median, ratio.low, ratio.high);
        return;
    }
    if (first)
        printf("\n%-36s %10s %22s\n", "peer", "Gparam/s", "our whole phase is x");
    printf("%-36s %10.3f %22.2f\n", name, rate, ratio.median);
    fflush(stdout);
}

int peers_report(const struct peers_options *options, struct sl_error *error)
{
    struct child child = {.pid = -1};
    fflush(stdout);
    int rc = start_python(&child, options);
    if (rc < 0)
        return sl_error_set(error, SL_DOMAIN_IO, rc, "--python %s: %s", options->python,
                            strerror(-rc));
    char name[64];
    bool alive = true, first = true;
    if (options->json)
        printf(",\n  \"peers\": [");
    while (alive && next_value(&child, "peer", name, sizeof(name))) {
        double ours[ROUNDS_MAX] = {0}, theirs[ROUNDS_MAX] = {0};
        alive = measure_peer(&child, options, ours, theirs);
        if (alive)
            print_peer(options, name, ours, theirs, first);
        first = false;
    }
    if (options->json)
        printf("\n  ]");
    fclose(child.to);
    fclose(child.from);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (!alive || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return sl_error_set(error, SL_DOMAIN_IO, -EIO,
                            "--python %s: failed (status %d); it needs torch, and deepspeed for "
                            "its rows",
                            options->python, status);
    return 0;
}
