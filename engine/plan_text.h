// SPDX-License-Identifier: Apache-2.0
/* A planned run for people and programs: memory per tier, traffic per lane, placement. */
#ifndef SLUICE_ENGINE_PLAN_TEXT_H
#define SLUICE_ENGINE_PLAN_TEXT_H

#include "engine/engine.h"
#include "engine/session.h"

/* Owner: the caller frees. NULL: out of memory. */
char *sl_plan_text(const struct sl_engine *engine, const struct sl_session *session);
char *sl_plan_json(const struct sl_engine *engine, const struct sl_session *session);

#endif
