// SPDX-License-Identifier: Apache-2.0
/* Reading is strict: an unknown key, a value without a source, or a number that cannot be a rate is
 * an error that names it. A prediction is only as good as its inputs, so none may slip in.
 */
#include "engine/hardware.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#define FIELD(name)                                                                                \
    {                                                                                              \
#name, offsetof(struct sl_hardware, name)                                                  \
    }

static const struct {
    const char *key;
    size_t offset;
} fields[] = {
    FIELD(device_memory_bytes),
    FIELD(device_flops_peak),
    FIELD(device_flops_per_second),
    FIELD(device_bytes_per_second),
    FIELD(device_op_seconds),
    FIELD(link_up_bytes_per_second),
    FIELD(link_down_bytes_per_second),
    FIELD(link_both_bytes_per_second),
    FIELD(link_host_bytes_per_second),
    FIELD(link_op_seconds),
    FIELD(host_memory_bytes),
    FIELD(host_bytes_per_second),
    FIELD(host_cores),
    FIELD(core_bytes_per_second),
    FIELD(core_flops_per_second),
    FIELD(core_weight_bytes_per_second),
    FIELD(core_nvme_bytes_per_second),
    FIELD(host_op_seconds),
    FIELD(nvme_bytes),
    FIELD(nvme_read_bytes_per_second),
    FIELD(nvme_write_bytes_per_second),
    FIELD(nvme_mixed_bytes_per_second),
    FIELD(nvme_op_seconds),
    FIELD(net_bytes_per_second),
    FIELD(net_op_seconds),
    FIELD(ranks_per_host),
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))
_Static_assert(FIELD_COUNT <= SL_HARDWARE_FIELDS_MAX, "raise SL_HARDWARE_FIELDS_MAX");

static const struct {
    const char *name, *text;
} builtin[] = {
    {
        "v100-dgx2",
#include "hardware-v100-dgx2.inc"
    },
    {
        "a100-80",
#include "hardware-a100-80.inc"
    },
    {
        "h100-pcie",
#include "hardware-h100-pcie.inc"
    },
    {
        "h200",
#include "hardware-h200.inc"
    },
    {
        "rtx4090",
#include "hardware-rtx4090.inc"
    },
    {
        "gh200",
#include "hardware-gh200.inc"
    },
};
#define BUILTIN_COUNT (sizeof(builtin) / sizeof(builtin[0]))

const char *sl_hardware_builtin(size_t index, const char **text)
{
    if (index >= BUILTIN_COUNT)
        return NULL;
    if (text)
        *text = builtin[index].text;
    return builtin[index].name;
}

const char *sl_hardware_field(struct sl_hardware *hardware, size_t index, double **value)
{
    if (index >= FIELD_COUNT)
        return NULL;
    *value = (double *)((char *)hardware + fields[index].offset);
    return fields[index].key;
}

static int read_text(char *out, size_t bytes, const json_t *value, const char *key,
                     const char *where, struct sl_error *error)
{
    const char *text = json_string_value(value);
    if (!text || !*text || strlen(text) >= bytes)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "hardware profile %s: \"%s\" must be a text of 1 to %zu bytes", where,
                            key, bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

static int read_number(double *out, const json_t *leaf, const char *key, const char *where,
                       struct sl_error *error)
{
    const json_t *value = json_object_get(leaf, "value");
    const char *source = json_string_value(json_object_get(leaf, "source"));
    if (!json_is_object(leaf) || json_object_size(leaf) != 2 || !json_is_number(value) || !source ||
        !*source)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "hardware profile %s: \"%s\" must be {\"value\": number, \"source\": "
                            "\"where it comes from\"}",
                            where, key);
    double number = json_number_value(value);
    if (!isfinite(number) || number < 0)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "hardware profile %s: \"%s\" is %g, and cannot be below 0", where, key,
                            number);
    *out = number;
    return 0;
}

/* What every simulation needs; the rest is asked for by the plans that use it. */
static int check_required(const struct sl_hardware *h, const char *where, struct sl_error *error)
{
    const struct {
        const char *key;
        double value;
    } required[] = {
        {"host_memory_bytes", h->host_memory_bytes},
        {"host_bytes_per_second", h->host_bytes_per_second},
        {"host_cores", h->host_cores},
        {"core_bytes_per_second", h->core_bytes_per_second},
        {h->device_is_host ? "core_flops_per_second" : "device_flops_per_second",
         h->device_is_host ? h->core_flops_per_second : h->device_flops_per_second},
        {"device_bytes_per_second", h->device_is_host ? 1 : h->device_bytes_per_second},
        {"device_memory_bytes", h->device_is_host ? 1 : h->device_memory_bytes},
        {"link_up_bytes_per_second", h->device_is_host ? 1 : h->link_up_bytes_per_second},
        {"link_down_bytes_per_second", h->device_is_host ? 1 : h->link_down_bytes_per_second},
    };
    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++)
        if (!(required[i].value > 0))
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "hardware profile %s: \"%s\" is missing or 0", where,
                                required[i].key);
    return 0;
}

static int read_key(struct sl_hardware *out, const char *key, const json_t *value,
                    const char *where, struct sl_error *error)
{
    if (!strcmp(key, "name"))
        return read_text(out->name, sizeof(out->name), value, key, where, error);
    if (!strcmp(key, "description"))
        return read_text(out->description, sizeof(out->description), value, key, where, error);
    if (!strcmp(key, "device_is_host")) {
        out->device_is_host = json_is_true(value);
        return json_is_boolean(value)
                   ? 0
                   : sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                  "hardware profile %s: \"%s\" must be true or false", where, key);
    }
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (!strcmp(key, fields[i].key))
            return read_number((double *)((char *)out + fields[i].offset), value, key, where,
                               error);
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "hardware profile %s: unknown key \"%s\"",
                        where, key);
}

int sl_hardware_parse(struct sl_hardware *out, const char *text, size_t bytes, const char *where,
                      struct sl_error *error)
{
    *out = (struct sl_hardware){0};
    json_error_t place;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &place);
    if (!json_is_object(root)) {
        int result =
            sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "hardware profile %s: line %d: %s", where,
                         root ? 1 : place.line, root ? "not an object" : place.text);
        json_decref(root);
        return result;
    }
    int result = 0;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        result = read_key(out, key, value, where, error);
        if (result)
            break;
    }
    json_decref(root);
    if (!result && !out->name[0])
        result = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                              "hardware profile %s: \"name\" is missing", where);
    if (!result && out->ranks_per_host < 1)
        out->ranks_per_host = 1;
    return result ? result : check_required(out, where, error);
}

static int load_file(struct sl_hardware *out, const char *path, struct sl_error *error)
{
    char text[65536];
    FILE *file = fopen(path, "re");
    if (!file) {
        int code = errno;
        return sl_error_set(error, SL_DOMAIN_INPUT, -code,
                            "hardware profile \"%s\": %s; sluice doctor --measure FILE writes one",
                            path, strerror(code));
    }
    size_t bytes = fread(text, 1, sizeof(text), file);
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed || bytes == sizeof(text))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "hardware profile \"%s\": not readable, or larger than %zu bytes", path,
                            sizeof(text) - 1);
    return sl_hardware_parse(out, text, bytes, path, error);
}

int sl_hardware_load(struct sl_hardware *out, const char *name_or_path, struct sl_error *error)
{
    size_t length = strlen(name_or_path);
    if (strchr(name_or_path, '/') || (length > 5 && !strcmp(name_or_path + length - 5, ".json")))
        return load_file(out, name_or_path, error);
    char names[256] = "";
    for (size_t i = 0; i < BUILTIN_COUNT; i++) {
        if (!strcmp(builtin[i].name, name_or_path))
            return sl_hardware_parse(out, builtin[i].text, strlen(builtin[i].text), builtin[i].name,
                                     error);
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "", builtin[i].name);
    }
    return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                        "hardware profile \"%s\" is none of %s; a file is named by a path with "
                        "\"/\" or ending in .json",
                        name_or_path, names);
}

int sl_hardware_saved_path(char *path, size_t bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = -1;
    if (cache && *cache)
        length = snprintf(path, bytes, "%s/sluice/hardware.json", cache);
    else if (home && *home)
        length = snprintf(path, bytes, "%s/.cache/sluice/hardware.json", home);
    return length < 0 ? -ENOENT : (size_t)length < bytes ? 0 : -ENAMETOOLONG;
}

int sl_hardware_load_saved(struct sl_hardware *out, struct sl_error *error)
{
    char path[4096];
    int result = sl_hardware_saved_path(path, sizeof(path));
    if (!result && access(path, F_OK) != 0)
        result = -ENOENT;
    return result ? result : load_file(out, path, error);
}

int sl_hardware_write(const struct sl_hardware *hardware, const char *const *source,
                      const char *path, struct sl_error *error)
{
    json_t *root = json_pack("{s:s, s:s}", "name", hardware->name, "description",
                             hardware->description[0] ? hardware->description : hardware->name);
    int result = root ? 0 : -ENOMEM;
    if (root && hardware->device_is_host)
        result = json_object_set_new(root, "device_is_host", json_true());
    for (size_t i = 0; i < FIELD_COUNT && !result; i++) {
        double value = *(const double *)((const char *)hardware + fields[i].offset);
        if (value > 0)
            result = json_object_set_new(root, fields[i].key,
                                         json_pack("{s:f, s:s}", "value", value, "source",
                                                   source && source[i] ? source[i] : "not stated"));
    }
    if (result) {
        json_decref(root);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "hardware profile: no memory, or a text that is not UTF-8");
    }
    errno = 0;
    if (json_dump_file(root, path, JSON_INDENT(2) | JSON_REAL_PRECISION(15))) {
        int code = errno ? errno : EIO;
        result = sl_error_set(error, SL_DOMAIN_IO, -code, "hardware profile \"%s\": %s", path,
                              strerror(code));
    }
    json_decref(root);
    return result;
}
