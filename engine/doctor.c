// SPDX-License-Identifier: Apache-2.0
#include "engine/doctor.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "doctor-libraries.h" /* made by engine/meson.build */
#include "engine/doctor_internal.h"

const char *sl_verdict_name(enum sl_verdict verdict)
{
    static const char *const names[] = {"OKAY", "NO", "FAIL"};
    return (unsigned)verdict < 3 ? names[verdict] : "?";
}

void doctor_add(struct sl_doctor *doctor, const char *section, const char *name,
                enum sl_verdict verdict, const char *remedy, const char *format, ...)
{
    if (doctor->count == SL_DOCTOR_ROWS_MAX)
        return;
    struct sl_doctor_row *row = &doctor->rows[doctor->count++];
    *row = (struct sl_doctor_row){.section = section, .name = name, .verdict = verdict};
    va_list args;
    va_start(args, format);
    vsnprintf(row->text, sizeof(row->text), format, args);
    va_end(args);
    if (remedy)
        snprintf(row->remedy, sizeof(row->remedy), "%s", remedy);
}

static void check_libraries(struct sl_doctor *doctor)
{
    static const struct {
        const char *name, *version, *use, *package;
    } libraries[] = {
        {"liburing", SL_BUILD_LIBURING, "NVMe transfers", "liburing-dev"},
        {"hwloc", SL_BUILD_HWLOC, "cores and NUMA nodes", "libhwloc-dev"},
        {"jansson", SL_BUILD_JANSSON, "JSON", "libjansson-dev"},
        {"libyaml", SL_BUILD_YAML, "YAML", "libyaml-dev"},
        {"xxHash", SL_BUILD_XXHASH, "checksums", "libxxhash-dev"},
        {"PCRE2", SL_BUILD_PCRE2, "tokenizers", "libpcre2-dev"},
        {"utf8proc", SL_BUILD_UTF8PROC, "tokenizers", "libutf8proc-dev"},
        {"jemalloc", SL_BUILD_JEMALLOC, "heap of the program", "libjemalloc-dev"},
    };
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        bool found = libraries[i].version[0] != 0;
        char remedy[128];
        snprintf(remedy, sizeof(remedy), "install %s and build again", libraries[i].package);
        doctor_add(doctor, "libraries", libraries[i].name, found ? SL_VERDICT_OKAY : SL_VERDICT_NO,
                   found ? NULL : remedy, "%s: %s",
                   found ? libraries[i].version : "not in this build", libraries[i].use);
    }
}

void sl_doctor_run(struct sl_doctor *out, const struct sl_doctor_options *options)
{
    static const struct sl_doctor_options none = {0};
    memset(out, 0, sizeof(*out));
    options = options ? options : &none;
    doctor_check_processor(out, options);
    doctor_check_memory(out, options);
    doctor_check_storage(out, options);
    doctor_check_device(out);
    check_libraries(out);
}

size_t sl_doctor_failures(const struct sl_doctor *doctor)
{
    size_t failures = 0;
    for (size_t i = 0; i < doctor->count; i++)
        failures += doctor->rows[i].verdict == SL_VERDICT_FAIL;
    return failures;
}

char *sl_doctor_text(const struct sl_doctor *doctor)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fprintf(out, "Sluice %s environment report\n", SL_BUILD_VERSION);
    const char *section = "";
    for (size_t i = 0; i < doctor->count; i++) {
        const struct sl_doctor_row *row = &doctor->rows[i];
        if (strcmp(section, row->section) != 0)
            fprintf(out, "\n%s\n", row->section);
        section = row->section;
        int dots = 22 - (int)strlen(row->name);
        char verdict[8];
        snprintf(verdict, sizeof(verdict), "[%s]", sl_verdict_name(row->verdict));
        fprintf(out, "  %s %.*s %-6s %s\n", row->name, dots > 0 ? dots : 0,
                "......................", verdict, row->text);
        if (row->remedy[0])
            fprintf(out, "  %*s-> %s\n", 31, "", row->remedy);
    }
    size_t failures = sl_doctor_failures(doctor);
    if (failures)
        fprintf(out, "\n%zu [FAIL]: see the lines marked ->\n", failures);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

char *sl_doctor_json(const struct sl_doctor *doctor)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < doctor->count; i++) {
        const struct sl_doctor_row *row = &doctor->rows[i];
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:s, s:s, s:s}", "section", row->section,
                                        "name", row->name, "verdict", sl_verdict_name(row->verdict),
                                        "text", row->text, "remedy", row->remedy));
    }
    json_t *root = json_pack("{s:s, s:o, s:I}", "version", SL_BUILD_VERSION, "rows", rows,
                             "failures", (json_int_t)sl_doctor_failures(doctor));
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}
