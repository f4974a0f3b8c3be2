// SPDX-License-Identifier: Apache-2.0
/* How a test steers the simulated CUDA device. The functions live in the simulated module; a test
 * that reaches the module through the program's own loader finds them with dlsym. */
#ifndef SLUICE_CUDASIM_H
#define SLUICE_CUDASIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* The order in which the threads of a block get their turn between two barriers. A kernel whose
 * result depends on it lacks a barrier. */
enum cudasim_thread_order {
    CUDASIM_THREADS_FORWARD,
    CUDASIM_THREADS_REVERSE,
    CUDASIM_THREADS_SHUFFLED
};

/* What happens on the other streams when one is waited for. */
enum cudasim_stream_order {
    CUDASIM_STREAMS_LAZY,    /* nothing but what the wait needs: a reader runs early */
    CUDASIM_STREAMS_EAGER,   /* all they can: a writer runs early */
    CUDASIM_STREAMS_SHUFFLED /* any interleaving, by seed */
};

enum cudasim_fault {
    CUDASIM_FAULT_MALLOC,        /* the n-th cudaMalloc fails */
    CUDASIM_FAULT_HOST_REGISTER, /* the n-th and all later cudaHostRegister fail */
    CUDASIM_FAULT_LAUNCH,        /* the n-th kernel launch is refused */
    CUDASIM_FAULT_LOST,          /* the device is lost at the n-th operation that it executes */
    CUDASIM_FAULT_COUNT
};

void cudasim_set_thread_order(enum cudasim_thread_order order, uint64_t seed);
void cudasim_set_stream_order(enum cudasim_stream_order order, uint64_t seed);

/* nth counts from 1; 0: never. */
void cudasim_fail(enum cudasim_fault fault, uint64_t nth);

/* Memory of the device; default 1 GiB. */
void cudasim_memory(uint64_t bytes);
uint64_t cudasim_memory_used(void);

/* Devices to be found (default 1), and the driver's version (default the runtime's; 0: no driver).
 */
void cudasim_devices(int count);
void cudasim_driver_version(int version);

/* Operations not yet executed on any stream: 0 after a clean end. */
uint64_t cudasim_pending(void);
uint64_t cudasim_launches(void);

/* Back to a whole, empty device: faults cleared, the loss forgotten, all queues dropped. */
void cudasim_reset(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
