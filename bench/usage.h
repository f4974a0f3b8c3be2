// SPDX-License-Identifier: Apache-2.0
#ifndef SLUICE_BENCH_USAGE_H
#define SLUICE_BENCH_USAGE_H

#include <stdio.h>
#include <string.h>

/* Arguments that a program does not take: say which it takes, and return its exit code; --help
 * among them is a question, not a mistake. */
static inline int bench_usage(int argc, char **argv, const char *text)
{
    int asked = 0;
    for (int i = 1; i < argc; i++)
        asked |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
    fputs(text, asked ? stdout : stderr);
    return asked ? 0 : 2;
}

#endif
