// SPDX-License-Identifier: Apache-2.0
/* What the writer and the reader of whole files share. */
#ifndef SLUICE_NVME_FILE_INTERNAL_H
#define SLUICE_NVME_FILE_INTERNAL_H

#include <stdbool.h>

/* open() with O_DIRECT where wanted and possible, without where not; *direct says which. A
 * descriptor or a negative errno. */
int sl_file_open_direct(const char *path, int flags, unsigned mode, bool direct_off, bool *direct);

#endif
