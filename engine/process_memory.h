// SPDX-License-Identifier: Apache-2.0
/* What the operating system says of this process's memory. */
#ifndef SLUICE_ENGINE_PROCESS_MEMORY_H
#define SLUICE_ENGINE_PROCESS_MEMORY_H

#include <stdint.h>

/* Resident bytes now, and the highest so far (VmRSS, VmHWM); 0 where /proc cannot be read. */
uint64_t sl_process_resident_bytes(void);
uint64_t sl_process_peak_bytes(void);

/* Resident bytes of the program, its libraries and heap before the engine made anything: measured
 * on the first call and the same afterwards. */
uint64_t sl_process_baseline_bytes(void);
/* The peak until that call: reading the data may have taken more than training will. */
uint64_t sl_process_baseline_peak_bytes(void);

#endif
