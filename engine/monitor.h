// SPDX-License-Identifier: Apache-2.0
/* Figures of a run for other tools: DeepSpeed's csv_monitor and tensorboard blocks.
 *
 *     csv          PATH/JOB/Train_Samples_lr.csv: "step,lr", then a line per figure
 *     tensorboard  PATH/JOB/events.out.tfevents.TIME.HOST.PID: records that TensorBoard reads
 *
 * PATH is the block's output_path, or OUT/csv_monitor and OUT/tensorboard where it has none.
 */
#ifndef SLUICE_ENGINE_MONITOR_H
#define SLUICE_ENGINE_MONITOR_H

#include <stdint.h>

#include "base/error.h"
#include "engine/config.h"

struct sl_monitor;

/* Open what the configuration asks for; *out is NULL where that is nothing.
 *
 * Owner    the caller, until sl_monitor_destroy
 * Errors   -errno with the path: folders that cannot be made, files that cannot be opened */
int sl_monitor_create(struct sl_monitor **out, const struct sl_config *config,
                      const char *out_folder, struct sl_error *error);
void sl_monitor_destroy(struct sl_monitor *monitor); /* NULL allowed */

/* Record one figure. `tag` as DeepSpeed names them: "Train/Samples/train_loss".
 *
 * Units    step counts from 1
 * Threads  one at a time
 * Errors   -errno of the write, with the path; -ENOSPC for more than 64 tags. NULL monitor: 0
 * Durability  in the file (not on the disk) when the call returns */
int sl_monitor_write(struct sl_monitor *monitor, const char *tag, double value, uint64_t step,
                     struct sl_error *error);

#endif
