// SPDX-License-Identifier: Apache-2.0
/* Hardware profiles: the rates of a machine with the source of each, as JSON (hardware/).
 *
 *     { "name": "h200", "description": "...",
 *       "link_up_bytes_per_second": {"value": 55e9, "source": "..."}, ... }
 *
 * The keys are the fields of struct sl_hardware (offload/simulate.h). Profiles in hardware/ are
 * part of the library; others are read from files, such as those that `sluice doctor --measure`
 * writes.
 */
#ifndef SLUICE_ENGINE_HARDWARE_H
#define SLUICE_ENGINE_HARDWARE_H

#include <stddef.h>

#include "base/error.h"
#include "offload/simulate.h"

/* Read a profile: a built-in name, or a path (anything with a '/' or ending in ".json").
 * Errors: -ENOENT lists the built-in names; -EINVAL names file and key. */
int sl_hardware_load(struct sl_hardware *out, const char *name_or_path, struct sl_error *error);

/* Where `sluice doctor --measure auto` saves this machine's profile, and planning looks for it:
 * $XDG_CACHE_HOME/sluice/hardware.json, or ~/.cache/sluice/hardware.json. -ENOENT: neither
 * variable is set. */
int sl_hardware_saved_path(char *path, size_t bytes);

/* The saved profile: 0, -ENOENT where there is none, or the errors of sl_hardware_load. */
int sl_hardware_load_saved(struct sl_hardware *out, struct sl_error *error);

/* Read a profile from text. `where` names it in errors. */
int sl_hardware_parse(struct sl_hardware *out, const char *text, size_t bytes, const char *where,
                      struct sl_error *error);

/* The built-in profiles in their order: name and JSON text; NULL past the last. */
const char *sl_hardware_builtin(size_t index, const char **text);

/* Write a profile. source[i] says where field i comes from, in the order of sl_hardware_field;
 * fields with value 0 are left out. */
int sl_hardware_write(const struct sl_hardware *hardware, const char *const *source,
                      const char *path, struct sl_error *error);

/* The numeric fields: key, or NULL past the last; *value points into `hardware`. */
const char *sl_hardware_field(struct sl_hardware *hardware, size_t index, double **value);
#define SL_HARDWARE_FIELDS_MAX 32

#endif
