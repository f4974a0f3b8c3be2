// SPDX-License-Identifier: Apache-2.0
/* How fast the directories of a swap space are when all of them are written at once. */
#ifndef SLUICE_NVME_PATH_RATE_H
#define SLUICE_NVME_PATH_RATE_H

#include <stddef.h>

#include "nvme/swap_files.h"

/* Write to a nameless file in every directory at the same time for a quarter of a second, so that
 * directories on one device share what it has.
 *
 * files    opened and locked directories; borrowed
 * rates    [count] bytes per second, each above 0
 * Errors   a negative errno: the caller then stripes equally
 */
int sl_path_rates(struct sl_swap_file *files, size_t count, double *rates);

#endif
