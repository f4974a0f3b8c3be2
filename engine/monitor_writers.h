// SPDX-License-Identifier: Apache-2.0
/* The two writers behind engine/monitor.h. */
#ifndef SLUICE_ENGINE_MONITOR_WRITERS_H
#define SLUICE_ENGINE_MONITOR_WRITERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct sl_csv_monitor;
struct sl_event_file;

/* Each makes `folder` and its parents. */
int sl_csv_monitor_create(struct sl_csv_monitor **out, const char *folder, struct sl_error *error);
int sl_csv_monitor_write(struct sl_csv_monitor *csv, const char *tag, double value, uint64_t step,
                         struct sl_error *error);
void sl_csv_monitor_destroy(struct sl_csv_monitor *csv);

int sl_event_file_create(struct sl_event_file **out, const char *folder, struct sl_error *error);
int sl_event_file_scalar(struct sl_event_file *events, const char *tag, float value, uint64_t step,
                         struct sl_error *error);
void sl_event_file_destroy(struct sl_event_file *events);

/* CRC-32C (Castagnoli) of `bytes` bytes, and TensorFlow's masking of it. */
uint32_t sl_crc32c(const void *data, size_t bytes);
uint32_t sl_crc32c_masked(const void *data, size_t bytes);

int sl_make_folders(const char *path, struct sl_error *error);

#endif
