// SPDX-License-Identifier: Apache-2.0
/* The same update done by torch and DeepSpeed, through a Python that the user names. */
#ifndef SLUICE_BENCH_ADAM_PEERS_H
#define SLUICE_BENCH_ADAM_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct peers_options {
    const char *python;
    uint64_t count;
    size_t threads;
    unsigned rounds; /* at most 256 */
    bool json;
    double (*our_phase)(void *user); /* one pass, seconds */
    void *user;
};

/* Run adam_peers.py and print a line (or a JSON member) per peer. A round is three passes of the
 * peer, each after one of ours; the best of each counts, and the median of the rounds' ratios is
 * printed. -EIO where Python fails. */
int peers_report(const struct peers_options *options, struct sl_error *error);

#endif
