// SPDX-License-Identifier: Apache-2.0
/* One CSV file for each tag, as DeepSpeed's csv_monitor names and fills them. A resumed run appends
 * and writes no second header. */
#include "engine/monitor_writers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAGS_MAX 64
#define TAG_BYTES 128

struct column {
    char tag[TAG_BYTES];
    FILE *file;
};

struct sl_csv_monitor {
    char *folder;
    struct column columns[TAGS_MAX];
    size_t count;
};

int sl_csv_monitor_create(struct sl_csv_monitor **out, const char *folder, struct sl_error *error)
{
    int result = sl_make_folders(folder, error);
    if (result)
        return result;
    struct sl_csv_monitor *csv = calloc(1, sizeof(*csv));
    char *copy = strdup(folder);
    if (!csv || !copy) {
        free(csv);
        free(copy);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the CSV monitor");
    }
    csv->folder = copy;
    *out = csv;
    return 0;
}

static int open_column(struct sl_csv_monitor *csv, const char *tag, struct column **out,
                       struct sl_error *error)
{
    if (csv->count == TAGS_MAX || strlen(tag) >= TAG_BYTES)
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -ENOSPC,
                            "csv_monitor: more than %d figures, or a name over %d bytes: %.40s",
                            TAGS_MAX, TAG_BYTES - 1, tag);
    struct column *column = &csv->columns[csv->count];
    char path[8192], name[TAG_BYTES];
    strcpy(column->tag, tag);
    strcpy(name, tag);
    for (char *c = name; *c; c++)
        if (*c == '/' || *c == ' ')
            *c = '_';
    snprintf(path, sizeof(path), "%s/%s.csv", csv->folder, name);
    column->file = fopen(path, "ae");
    if (!column->file)
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "cannot write %s: %s", path,
                            strerror(errno));
    fseek(column->file, 0, SEEK_END);
    const char *slash = strrchr(tag, '/');
    if (ftell(column->file) == 0)
        fprintf(column->file, "step,%s\n", slash ? slash + 1 : tag);
    csv->count++;
    *out = column;
    return 0;
}

int sl_csv_monitor_write(struct sl_csv_monitor *csv, const char *tag, double value, uint64_t step,
                         struct sl_error *error)
{
    struct column *column = NULL;
    for (size_t i = 0; i < csv->count && !column; i++)
        if (strcmp(csv->columns[i].tag, tag) == 0)
            column = &csv->columns[i];
    if (!column) {
        int result = open_column(csv, tag, &column, error);
        if (result)
            return result;
    }
    if (fprintf(column->file, "%llu,%.17g\n", (unsigned long long)step, value) < 0 ||
        fflush(column->file) != 0)
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "cannot write %s of %s: %s", tag,
                            csv->folder, strerror(errno));
    return 0;
}

void sl_csv_monitor_destroy(struct sl_csv_monitor *csv)
{
    if (!csv)
        return;
    for (size_t i = 0; i < csv->count; i++)
        fclose(csv->columns[i].file);
    free(csv->folder);
    free(csv);
}
