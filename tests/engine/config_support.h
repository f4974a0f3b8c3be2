// SPDX-License-Identifier: Apache-2.0
/* Loading a configuration inside a test, with everything about it at hand. */
#ifndef SLUICE_TESTS_CONFIG_SUPPORT_H
#define SLUICE_TESTS_CONFIG_SUPPORT_H

#include "tests/test.h"

#include <string.h>
#include <unistd.h>

#include "engine/config_report.h"

struct loaded {
    struct sl_config config;
    struct sl_config_report report;
    struct sl_error error;
    int result;
};

static inline void loaded_finish(struct loaded *loaded)
{
    sl_config_report_finish(&loaded->report);
}

static inline void load_with(struct loaded *loaded, const char *path, const char *const *sets,
                             size_t count, uint64_t hidden, bool check_paths)
{
    memset(loaded, 0, sizeof(*loaded));
    struct sl_config_inputs inputs = {.path = path,
                                      .sets = sets,
                                      .set_count = count,
                                      .model.hidden = hidden,
                                      .check_paths = check_paths};
    loaded->result = sl_config_load(&loaded->config, &inputs, &loaded->report, &loaded->error);
}

/* A list of "key=value" words after the path. */
#define LOAD(loaded, path, ...)                                                                    \
    do {                                                                                           \
        const char *const load_sets[] = {__VA_ARGS__ __VA_OPT__(, ) NULL};                         \
        load_with((loaded), (path), load_sets, sizeof(load_sets) / sizeof(load_sets[0]) - 1, 0,    \
                  false);                                                                          \
    } while (0)

/* A file of this test's own, with this text. */
static inline const char *temporary_file(const char *suffix, const char *text, size_t bytes)
{
    static char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof(path), "%s/sluice-config-%d%s", folder ? folder : "/tmp", (int)getpid(),
             suffix);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline void load_text(struct loaded *loaded, const char *suffix, const char *text)
{
    const char *path = temporary_file(suffix, text, strlen(text));
    LOAD(loaded, path);
    unlink(path);
}

static inline bool lines_contain(const struct sl_config_lines *lines, const char *text)
{
    for (size_t i = 0; i < lines->count; i++)
        if (strstr(lines->line[i], text))
            return true;
    return false;
}

static inline void print_lines(const char *title, const struct sl_config_lines *lines)
{
    for (size_t i = 0; i < lines->count; i++)
        printf("%s: %s\n", title, lines->line[i]);
}

#endif
