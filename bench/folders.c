// SPDX-License-Identifier: Apache-2.0
/* Loading and saving a model folder against plain sequential O_DIRECT on the same drive.
 *
 *     bench-folders DIR [--preset NAME] [--repeats N] [--json]
 *
 * DIR receives a scratch folder of the preset's weights in bf16 (qwen2.5-0.5b: 988 MB), removed at
 * the end. Load and limit are measured in turns on a file that is dropped from the page cache; the
 * best of the repeats counts, because a shared machine only ever slows a run down. Memory is the
 * peak resident size less what it was before the first load, less the destination.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/usage.h"
#include "engine/weights.h"

#define READ_BYTES ((size_t)16 << 20)

struct figures {
    double limit, load_bf16, load_f32, save; /* bytes of the file a second */
    long beside_kib;
};

static void die(const char *what, const struct sl_error *error)
{
    fprintf(stderr, "bench-folders: %s: %s\n", what, error ? error->message : strerror(errno));
    exit(1);
}

static double seconds(uint64_t since_ns)
{
    return (double)(sl_clock_ns() - since_ns) * 1e-9;
}

static void keep_best(double *best, double value)
{
    *best = value > *best ? value : *best;
}

static size_t elements(const struct sl_param *p)
{
    return (size_t)(p->rows * p->columns);
}

static void save(const struct sl_model *model, const char *folder, const void *data,
                 struct figures *out)
{
    struct sl_weights_writer *writer;
    struct sl_error error = {0};
    struct sl_weights_writer_options options = {
        .directory = folder, .model = model, .dtype = SL_BF16, .shard_bytes_max = UINT64_MAX};
    uint64_t start = sl_clock_ns();
    if (sl_weights_writer_create(&writer, &options, &error) != 0)
        die(folder, &error);
    for (size_t i = 0; i < model->param_count; i++)
        if (sl_weights_writer_write(writer, i, 0, elements(&model->params[i]), SL_BF16, data,
                                    &error) != 0)
            die(folder, &error);
    if (sl_weights_writer_finish(writer, &error) != 0)
        die(folder, &error);
    keep_best(&out->save, 2.0 * (double)model->param_elements / seconds(start));
}

static double load(const struct sl_model *model, const char *folder, enum sl_dtype dtype,
                   void *data)
{
    struct sl_weights *weights;
    struct sl_error error = {0};
    uint64_t start = sl_clock_ns();
    size_t *order = calloc(model->param_count, sizeof *order);
    if (!order || sl_weights_open(&weights, folder, model, &error) != 0)
        die(folder, &error);
    sl_weights_file_order(weights, order);
    for (size_t k = 0; k < model->param_count; k++)
        if (sl_weights_read(weights, order[k], 0, elements(&model->params[order[k]]), dtype, data,
                            &error) != 0)
            die(folder, &error);
    sl_weights_close(weights);
    free(order);
    return 2.0 * (double)model->param_elements / seconds(start);
}

/* The limit: the whole file in 16 MiB reads, one after the other. */
static double read_plain(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECT);
    char *buffer = aligned_alloc(4096, READ_BYTES);
    if (fd < 0 || !buffer)
        die(path, NULL);
    uint64_t start = sl_clock_ns();
    double bytes = 0;
    for (ssize_t n; (n = pread(fd, buffer, READ_BYTES, (off_t)bytes)) > 0;)
        bytes += (double)n;
    double rate = bytes / seconds(start);
    free(buffer);
    close(fd);
    return rate;
}

static void drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void measure(const struct sl_model *model, const char *folder, int repeats,
                    struct figures *out)
{
    char path[4200];
    size_t largest = 0;
    for (size_t i = 0; i < model->param_count; i++)
        if (elements(&model->params[i]) > largest)
            largest = elements(&model->params[i]);
    char *data = malloc(largest * 4);
    if (!data)
        die("memory", NULL);
    memset(data, 0x3c, largest * 4);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (int i = 0; i < repeats; i++) {
        unlink(path);
        save(model, folder, data, out);
    }
    long before = peak_kib();
    for (int i = 0; i < repeats; i++) {
        drop_cache(path);
        keep_best(&out->load_bf16, load(model, folder, SL_BF16, data));
        keep_best(&out->load_f32, load(model, folder, SL_F32, data));
        out->beside_kib = peak_kib() - before;
        keep_best(&out->limit, read_plain(path));
    }
    free(data);
    unlink(path);
}

int main(int argc, char **argv)
{
    const char *directory = NULL, *preset = "qwen2.5-0.5b";
    int repeats = 3;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--preset") == 0 && i + 1 < argc)
            preset = argv[++i];
        else if (strcmp(argv[i], "--repeats") == 0 && i + 1 < argc)
            repeats = atoi(argv[++i]);
        else
            directory = argv[i];
    }
    if (!directory || directory[0] == '-' || repeats < 1)
        return bench_usage(argc, argv,
                           "usage: bench-folders DIR [--preset NAME] [--repeats N] [--json]\n");
    struct sl_model model;
    struct sl_error error = {0};
    struct figures f = {0};
    char folder[4096];
    if (sl_model_from_preset(&model, preset, &error) != 0)
        die(preset, &error);
    snprintf(folder, sizeof folder, "%s/bench-folders-XXXXXX", directory);
    if (!mkdtemp(folder))
        die(folder, NULL);
    measure(&model, folder, repeats, &f);
    rmdir(folder);
    if (json)
        printf("{\"limit_read_gb_s\": %.3f, \"load_bf16_gb_s\": %.3f, \"load_f32_gb_s\": %.3f, "
               "\"save_gb_s\": %.3f, \"load_beside_mib\": %.1f}\n",
               f.limit * 1e-9, f.load_bf16 * 1e-9, f.load_f32 * 1e-9, f.save * 1e-9,
               (double)f.beside_kib / 1024);
    else
        printf("%s, %.0f MB, best of %d\n"
               "sequential O_DIRECT reads   %6.2f GB/s\n"
               "load as bf16, file order    %6.2f GB/s  %5.1f %%\n"
               "load as f32, file order     %6.2f GB/s  %5.1f %%\n"
               "save, fsync included        %6.2f GB/s\n"
               "memory of a load beside its destination  %.1f MiB\n",
               preset, 2e-6 * (double)model.param_elements, repeats, f.limit * 1e-9,
               f.load_bf16 * 1e-9, 100 * f.load_bf16 / f.limit, f.load_f32 * 1e-9,
               100 * f.load_f32 / f.limit, f.save * 1e-9, (double)f.beside_kib / 1024);
    sl_model_finish(&model);
    return 0;
}
