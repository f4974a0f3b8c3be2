// SPDX-License-Identifier: Apache-2.0
/* Model folders made from checkpoints, and the small files that travel with a model. */
#ifndef SLUICE_ENGINE_EXPORT_H
#define SLUICE_ENGINE_EXPORT_H

#include "base/error.h"

/* Copy a checkpoint without what only a resume needs, as folder `directory`, which must not exist.
 * Durability: whole or absent. Errors: -ENOENT, -EEXIST, -ENOSPC and what the disk says, by file.
 */
int sl_export(const char *checkpoint, const char *directory, struct sl_error *error);

/* Copy generation_config.json, chat_template.jinja and special_tokens_map.json, as far as they are
 * in `from` and not in `to`. from NULL: nothing. */
int sl_export_carry(const char *from, const char *to, struct sl_error *error);

#endif
