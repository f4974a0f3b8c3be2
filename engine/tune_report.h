// SPDX-License-Identifier: Apache-2.0
/* What `sluice tune nvme DIR` says: the result of a tuning run for people, or as JSON.
 */
#ifndef SLUICE_ENGINE_TUNE_REPORT_H
#define SLUICE_ENGINE_TUNE_REPORT_H

#include "nvme/tune.h"

/* Settings, rates, a DeepSpeed `aio` block to paste, and what steps of 7B, 13B and 70B parameters
 * would cost. Owner: the caller frees the text. NULL where memory is out. */
char *sl_tune_report_text(const char *directory, const struct sl_tune_result *result);
char *sl_tune_report_json(const char *directory, const struct sl_tune_result *result);

#endif
