// SPDX-License-Identifier: Apache-2.0
/* The same update done by torch and DeepSpeed, through a Python that the user names. */
#ifndef SLUICE_BENCH_ADAM_PEERS_H
#define SLUICE_BENCH_ADAM_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Run adam_peers.py, print a line (or a JSON member) per peer. `phase_seconds` is our whole phase,
 * 0 if not measured; its ratio to each peer's is printed. -EIO where Python fails. */
int peers_report(const char *python, uint64_t count, size_t threads, bool json,
                 double phase_seconds, struct sl_error *error);

#endif
