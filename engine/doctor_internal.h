// SPDX-License-Identifier: Apache-2.0
/* Shared by engine/doctor*.c: adding rows. */
#ifndef SLUICE_ENGINE_DOCTOR_INTERNAL_H
#define SLUICE_ENGINE_DOCTOR_INTERNAL_H

#include "engine/doctor.h"

/* Add a row; text and remedy (NULL: none) are cut to their fields. */
void doctor_add(struct sl_doctor *doctor, const char *section, const char *name,
                enum sl_verdict verdict, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

void doctor_check_processor(struct sl_doctor *doctor, const struct sl_doctor_options *options);
void doctor_check_memory(struct sl_doctor *doctor, const struct sl_doctor_options *options);
void doctor_check_storage(struct sl_doctor *doctor, const struct sl_doctor_options *options);
void doctor_check_device(struct sl_doctor *doctor);

#endif
