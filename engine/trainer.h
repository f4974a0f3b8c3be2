// SPDX-License-Identifier: Apache-2.0
/* Training: the main road from a session to checkpoints. sl_train() is declared in engine/sluice.h;
 * here is what the library's own parts share with it. */
#ifndef SLUICE_ENGINE_TRAINER_H
#define SLUICE_ENGINE_TRAINER_H

#include "engine/checkpoint.h"
#include "engine/session.h"
#include "engine/sluice.h"

_Static_assert((int)SL_LANES == (int)SL_LANE_COUNT, "the public lanes are the plan's");
_Static_assert(SL_RESULT_PATH_BYTES == SL_CHECKPOINT_PATH_BYTES, "a result holds any checkpoint");

#endif
