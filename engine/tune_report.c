// SPDX-License-Identifier: Apache-2.0
#include "engine/tune_report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"

#define GB 1e-9

/* The block of a DeepSpeed configuration. One submitting thread is what the engine has; the other
 * keys are DeepSpeed's names for what is always so here. */
static json_t *aio_block(const struct sl_tune_result *result)
{
    return json_pack("{s:I, s:I, s:i, s:b, s:b, s:b}", "block_size",
                     (json_int_t)result->block_bytes, "queue_depth",
                     (json_int_t)result->queue_depth, "intra_op_parallelism", 1, "single_submit", 0,
                     "overlap_events", 1, "use_gds", 0);
}

static void print_aio(FILE *out, const struct sl_tune_result *result)
{
    json_t *block = json_pack("{s:o}", "aio", aio_block(result));
    char *text = block ? json_dumps(block, JSON_INDENT(4)) : NULL;
    /* Without the outer braces: it is to be pasted into an object. */
    for (char *line = text; line && *line;) {
        char *end = line;
        while (*end && *end != '\n')
            end++;
        if (line[0] != '{' && line[0] != '}')
            fprintf(out, "%.*s\n", (int)(end - line), line);
        line = *end ? end + 1 : end;
    }
    free(text);
    json_decref(block);
}

char *sl_tune_report_text(const char *directory, const struct sl_tune_result *result)
{
    char *text = NULL, size[SL_SIZE_TEXT_BYTES];
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fprintf(out, "%s: %s%s%s, a file of %s, %.0f s\n\n", directory,
            result->backend == SL_SWAP_URING ? "io_uring" : "threads",
            result->direct ? ", O_DIRECT" : ", page cache (no O_DIRECT here)",
            result->registered ? ", registered buffers" : ", buffers not registered (ulimit -l)",
            sl_size_format(result->file_bytes, size), result->seconds);
    fprintf(out,
            "blocks of %s, %zu in flight (the fewest bytes in flight within 3 %% of the best)\n",
            sl_size_format(result->block_bytes, size), result->queue_depth);
    fprintf(out, "  read                %8.2f GB/s\n", result->read_bytes_per_second * GB);
    fprintf(out, "  write               %8.2f GB/s\n", result->write_bytes_per_second * GB);
    fprintf(out, "  read and write      %8.2f GB/s together\n",
            result->mixed_bytes_per_second * GB);
    fprintf(out, "  the same, sustained %8.2f GB/s over %.0f s, %.3f CPU s per GB with checksums\n",
            result->sustained_bytes_per_second * GB, result->sustained_seconds,
            result->cpu_seconds_per_gb);
    fprintf(out,
            "  latency of a block  %8.0f us read, %.0f us written (median); %.0f, %.0f (99 %%)\n",
            result->read_p50_us, result->write_p50_us, result->read_p99_us, result->write_p99_us);
    fprintf(out, "  fresh extents       %8.2f of the rate of writing them again\n\n",
            result->first_touch_ratio);
    fprintf(out, "for a DeepSpeed configuration:\n");
    print_aio(out, result);
    fprintf(out,
            "\noptimizer state on this device (12 B per parameter read and 12 B written a step):\n"
            "  model   least s/step   TB written/step   TB written/day, back to back\n");
    for (size_t i = 0; i < SL_TUNE_STEPS; i++)
        fprintf(out, "  %-5s %14.1f %17.3f %17.0f\n", result->steps[i].name,
                result->steps[i].seconds, result->steps[i].written_tb_per_step,
                result->steps[i].written_tb_per_day);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static json_t *points_array(const struct sl_tune_result *result)
{
    json_t *points = json_array();
    for (size_t i = 0; i < result->point_count; i++)
        json_array_append_new(
            points,
            json_pack("{s:I, s:I, s:f}", "block_bytes", (json_int_t)result->points[i].block_bytes,
                      "queue_depth", (json_int_t)result->points[i].queue_depth,
                      "mixed_bytes_per_second", result->points[i].mixed_bytes_per_second));
    return points;
}

static json_t *steps_array(const struct sl_tune_result *result)
{
    json_t *steps = json_array();
    for (size_t i = 0; i < SL_TUNE_STEPS; i++)
        json_array_append_new(steps,
                              json_pack("{s:s, s:f, s:f, s:f, s:f}", "model", result->steps[i].name,
                                        "parameters", result->steps[i].parameters, "seconds",
                                        result->steps[i].seconds, "written_tb_per_step",
                                        result->steps[i].written_tb_per_step, "written_tb_per_day",
                                        result->steps[i].written_tb_per_day));
    return steps;
}

char *sl_tune_report_json(const char *directory, const struct sl_tune_result *result)
{
    json_t *root =
        json_pack("{s:s, s:s, s:b, s:b, s:I, s:f, s:I, s:I}", "directory", directory, "backend",
                  result->backend == SL_SWAP_URING ? "io_uring" : "threads", "direct",
                  result->direct, "registered_buffers", result->registered, "file_bytes",
                  (json_int_t)result->file_bytes, "seconds", result->seconds, "block_bytes",
                  (json_int_t)result->block_bytes, "queue_depth", (json_int_t)result->queue_depth);
    const struct {
        const char *key;
        double value;
    } figures[] = {{"read_bytes_per_second", result->read_bytes_per_second},
                   {"write_bytes_per_second", result->write_bytes_per_second},
                   {"mixed_bytes_per_second", result->mixed_bytes_per_second},
                   {"sustained_bytes_per_second", result->sustained_bytes_per_second},
                   {"sustained_seconds", result->sustained_seconds},
                   {"first_touch_rate_ratio", result->first_touch_ratio},
                   {"cpu_seconds_per_gb", result->cpu_seconds_per_gb},
                   {"read_p50_us", result->read_p50_us},
                   {"read_p99_us", result->read_p99_us},
                   {"write_p50_us", result->write_p50_us},
                   {"write_p99_us", result->write_p99_us}};
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        json_object_set_new(root, figures[i].key, json_real(figures[i].value));
    json_object_set_new(root, "aio", aio_block(result));
    json_object_set_new(root, "points", points_array(result));
    json_object_set_new(root, "steps", steps_array(result));
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(root);
    return text;
}
