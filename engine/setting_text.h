// SPDX-License-Identifier: Apache-2.0
/* A setting of the plan, and how it was chosen, for people: what `sluice plan` and `sluice
 * simulate` both print.
 */
#ifndef SLUICE_ENGINE_SETTING_TEXT_H
#define SLUICE_ENGINE_SETTING_TEXT_H

#include <stdio.h>

#include "engine/choose.h"
#include "engine/choose_batch.h"
#include "engine/step_plan.h"

/* Where each kind of state lies, and in what order it moves. */
void sl_setting_write(FILE *out, const struct sl_step_options *step);

/* The micro-batch sizes that were tried; nothing where none was. */
void sl_setting_write_batch(FILE *out, const struct sl_batch_choice *choice);

/* The micro-batch sizes that were tried; nothing where none was. */
void sl_setting_write_batch(FILE *out, const struct sl_batch_choice *choice);

/* The candidates that were tried; nothing where there was only one. */
void sl_setting_write_choice(FILE *out, const struct sl_choice *choice);

#endif
