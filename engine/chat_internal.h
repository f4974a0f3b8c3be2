// SPDX-License-Identifier: Apache-2.0
/* Between engine/chat*.c. */
#ifndef SLUICE_ENGINE_CHAT_INTERNAL_H
#define SLUICE_ENGINE_CHAT_INTERNAL_H

#include "engine/chat.h"

/* True where `token` is one of those that the format puts around messages. */
bool chat_frame_has(const struct sl_chat *chat, const char *token, size_t bytes);

#endif
