// SPDX-License-Identifier: Apache-2.0
/* sluice.json: every field once, in one table that both directions use. 64-bit values that JSON
 * numbers cannot hold in other readers are strings of hexadecimal digits. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint.h"

#define FORMAT "sluice-checkpoint"
#define VERSION 3

enum field_type { COUNT, HEX, NUMBER, CHOICE, TEXT };

struct field {
    const char *key;
    enum field_type type;
    size_t offset;
    const char *choices; /* "a|b|c" in the order of the enum */
};

#define FIELD(key, type, member)                                                                   \
    {                                                                                              \
        key, type, offsetof(struct sl_checkpoint, member), NULL                                    \
    }
#define ENUM(key, member, choices)                                                                 \
    {                                                                                              \
        key, CHOICE, offsetof(struct sl_checkpoint, member), choices                               \
    }

static const struct field fields[] = {
    FIELD("step", COUNT, step),
    FIELD("updates", COUNT, updates),
    FIELD("seed", HEX, seed),
    FIELD("data_epoch", COUNT, data.epoch),
    FIELD("data_index", COUNT, data.index),
    FIELD("data_fingerprint", HEX, data_fingerprint),
    ENUM("precision", precision, "f32|bf16|f16"),
    ENUM("optimizer", optimizer, "adamw|adam|lion|adagrad|sgd"),
    ENUM("moments", moments, "f32|bf16|q8"),
    ENUM("master", master, "f32|split|none"),
    FIELD("micro_batch", COUNT, micro_batch),
    FIELD("accumulation", COUNT, accumulation),
    FIELD("sequence_length", COUNT, sequence_length),
    FIELD("tile_bytes", COUNT, tile_bytes),
    FIELD("layer_bytes", COUNT, layer_bytes),
    FIELD("delayed_update", COUNT, delayed_update),
    FIELD("param_elements", COUNT, param_elements),
    FIELD("eval_loss", NUMBER, eval_loss),
    FIELD("best_loss", NUMBER, best_loss),
    FIELD("fingerprint", TEXT, fingerprint),
    FIELD("state_hash", HEX, state_hash),
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))
_Static_assert(sizeof(struct sl_checkpoint) == 448,
               "a field was added: also to the table above and to docs/checkpoint.md");

static json_t *choice_name(const char *choices, int value)
{
    for (; value > 0 && choices; value--) {
        choices = strchr(choices, '|');
        choices += choices != NULL;
    }
    return choices ? json_stringn(choices, strcspn(choices, "|")) : NULL;
}

static int choice_value(const char *choices, const char *name)
{
    size_t length = strlen(name);
    for (int value = 0; choices; value++) {
        if (strcspn(choices, "|") == length && strncmp(choices, name, length) == 0)
            return value;
        choices = strchr(choices, '|');
        choices += choices != NULL;
    }
    return -1;
}

static json_t *value_of(const struct field *field, const struct sl_checkpoint *checkpoint)
{
    const char *at = (const char *)checkpoint + field->offset;
    char hex[20];
    switch (field->type) {
    case COUNT:
        return json_integer((json_int_t) * (const uint64_t *)(const void *)at);
    case HEX:
        snprintf(hex, sizeof(hex), "%016" PRIx64, *(const uint64_t *)(const void *)at);
        return json_string(hex);
    case NUMBER: {
        double number = *(const double *)(const void *)at;
        return isfinite(number) ? json_real(number) : json_null();
    }
    case CHOICE:
        return choice_name(field->choices, *(const int *)(const void *)at);
    case TEXT:
        return json_string(at);
    }
    return NULL;
}

int sl_checkpoint_manifest_write(const char *directory, const struct sl_checkpoint *checkpoint,
                                 struct sl_error *error)
{
    char path[SL_CHECKPOINT_PATH_BYTES + 16], scaler[2 * SL_LOSS_SCALER_STATE_BYTES + 1];
    for (size_t i = 0; i < SL_LOSS_SCALER_STATE_BYTES; i++)
        snprintf(scaler + 2 * i, 3, "%02x", checkpoint->scaler[i]);
    json_t *root = json_pack("{s:s, s:i}", "format", FORMAT, "version", VERSION);
    for (size_t i = 0; i < FIELD_COUNT && root; i++)
        json_object_set_new(root, fields[i].key, value_of(&fields[i], checkpoint));
    if (root)
        json_object_set_new(root, "loss_scaler", json_string(scaler));
    snprintf(path, sizeof(path), "%s/sluice.json", directory);
    int result = 0;
    errno = 0;
    if (!root || json_dump_file(root, path, JSON_INDENT(2)) != 0) {
        result = errno ? -errno : -EIO;
        sl_error_set(error, SL_DOMAIN_IO, result, "%s: %s", path, strerror(-result));
    }
    json_decref(root);
    return result;
}

static bool read_field(const struct field *field, const json_t *value,
                       struct sl_checkpoint *checkpoint)
{
    char *at = (char *)checkpoint + field->offset;
    int choice;
    char *end;
    switch (field->type) {
    case COUNT:
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return false;
        *(uint64_t *)(void *)at = (uint64_t)json_integer_value(value);
        return true;
    case HEX:
        if (!json_is_string(value) || json_string_length(value) != 16)
            return false;
        *(uint64_t *)(void *)at = strtoull(json_string_value(value), &end, 16);
        return *end == 0;
    case NUMBER:
        if (!json_is_number(value) && !json_is_null(value))
            return false;
        *(double *)(void *)at = json_is_null(value) ? NAN : json_number_value(value);
        return true;
    case CHOICE:
        choice =
            json_is_string(value) ? choice_value(field->choices, json_string_value(value)) : -1;
        *(int *)(void *)at = choice;
        return choice >= 0;
    case TEXT:
        if (!json_is_string(value) || json_string_length(value) >= SL_FINGERPRINT_BYTES)
            return false;
        memcpy(at, json_string_value(value), json_string_length(value) + 1);
        return true;
    }
    return false;
}

static bool read_scaler(const json_t *root, struct sl_checkpoint *checkpoint)
{
    const char *hex = json_string_value(json_object_get(root, "loss_scaler"));
    if (!hex || strlen(hex) != 2 * SL_LOSS_SCALER_STATE_BYTES)
        return false;
    for (size_t i = 0; i < SL_LOSS_SCALER_STATE_BYTES; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return false;
        checkpoint->scaler[i] = (uint8_t)byte;
    }
    return true;
}

/* The first version with a field. Runs before it had the first of the choices, 0. */
static json_int_t since_version(const char *key)
{
    if (strcmp(key, "layer_bytes") == 0)
        return 3;
    return strcmp(key, "delayed_update") == 0 || strcmp(key, "master") == 0 ? 2 : 1;
}

int sl_checkpoint_read(const char *directory, struct sl_checkpoint *checkpoint,
                       struct sl_error *error)
{
    char path[SL_CHECKPOINT_PATH_BYTES + 16];
    snprintf(path, sizeof(path), "%s/sluice.json", directory);
    json_error_t where;
    errno = 0;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (!root) {
        if (errno == ENOENT || errno == ENOTDIR)
            return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                                "%s: not a checkpoint, there is no sluice.json; give a folder "
                                "checkpoint-NNNNNNNN of a run's --out",
                                directory);
        return sl_error_set(error, SL_DOMAIN_DATA, -EINVAL, "%s:%d: %s; not a checkpoint", path,
                            where.line, where.text);
    }
    *checkpoint = (struct sl_checkpoint){0};
    const char *format = json_string_value(json_object_get(root, "format"));
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    int result = 0;
    if (!format || strcmp(format, FORMAT) != 0 || version < 1 || version > VERSION)
        result = sl_error_set(error, SL_DOMAIN_DATA, -EINVAL,
                              "%s: format \"%s\" version %d; this program reads \"" FORMAT
                              "\" versions 1 to %d",
                              path, format ? format : "", (int)version, VERSION);
    for (size_t i = 0; i < FIELD_COUNT && !result; i++)
        if (!read_field(&fields[i], json_object_get(root, fields[i].key), checkpoint) &&
            version >= since_version(fields[i].key))
            result =
                sl_error_set(error, SL_DOMAIN_DATA, -EINVAL,
                             "%s: field \"%s\" is missing or not understood", path, fields[i].key);
    if (!result && !read_scaler(root, checkpoint))
        result = sl_error_set(error, SL_DOMAIN_DATA, -EINVAL,
                              "%s: field \"loss_scaler\" is missing or not understood", path);
    json_decref(root);
    return result;
}
