// SPDX-License-Identifier: Apache-2.0
/* One rank's view of a plan, for the simulator: what N data-parallel devices with partitioned state
 * do, from the plan of one.
 *
 *     weights     each rank holds and uploads 1/N, then gathers the rest over the network
 *     gradients   are reduced and scattered over the network, 1/N goes down
 *     optimizer   1/N is read, updated and written
 *
 * State that lies on the device stays whole there (replicated, its gradients reduced on every
 * rank); activations and inputs are each rank's own.
 */
#ifndef SLUICE_OFFLOAD_SIMULATE_RANKS_H
#define SLUICE_OFFLOAD_SIMULATE_RANKS_H

#include <stdint.h>

#include "base/error.h"
#include "offload/plan.h"

/* Build and seal the plan of one of `ranks` ranks; the segments keep their numbers.
 *
 * Owner    the caller, until sl_plan_finish
 * Errors   -EINVAL: a unified plan, or no ranks; -ENOMEM */
int sl_plan_for_ranks(struct sl_plan *out, const struct sl_plan *plan, uint32_t ranks,
                      struct sl_error *error);

#endif
