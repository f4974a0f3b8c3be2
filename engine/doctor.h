// SPDX-License-Identifier: Apache-2.0
/* The environment report: what this machine offers, what is missing, and what to do about it. The
 * library fills the rows and renders them; the program prints.
 */
#ifndef SLUICE_ENGINE_DOCTOR_H
#define SLUICE_ENGINE_DOCTOR_H

#include <stddef.h>

#include "base/error.h"

enum sl_verdict {
    SL_VERDICT_OKAY, /* there and fit */
    SL_VERDICT_NO,   /* not there; Sluice works without it */
    SL_VERDICT_FAIL, /* stands in the way of what was asked for */
};

struct sl_doctor_row {
    const char *section, *name;
    enum sl_verdict verdict;
    char text[192];   /* what was found */
    char remedy[224]; /* what to install or set; empty where nothing is to be done */
};

#define SL_DOCTOR_ROWS_MAX 48

struct sl_doctor {
    struct sl_doctor_row rows[SL_DOCTOR_ROWS_MAX];
    size_t count;
};

struct sl_doctor_options {
    const char *const *nvme_paths; /* directories for swap files, checked by writing to them */
    size_t nvme_path_count;
    const char *root; /* put before /proc and /sys, for tests; NULL: this machine */
};

/* Look at the machine. Writes and removes one small file per NVMe path. Opens the GPU, if any.
 *
 * Threads  one call at a time
 * Errors   none: what cannot be found out is a row that says so */
void sl_doctor_run(struct sl_doctor *out, const struct sl_doctor_options *options);

/* 0 where no row is FAIL, else the number of those. */
size_t sl_doctor_failures(const struct sl_doctor *doctor);

/* The report for people, or as JSON {"rows": [...], "failures": n}. Owner: the caller frees the
 * text. NULL where memory is out. */
char *sl_doctor_text(const struct sl_doctor *doctor);
char *sl_doctor_json(const struct sl_doctor *doctor);

const char *sl_verdict_name(enum sl_verdict verdict); /* "OKAY", "NO", "FAIL" */

#endif
