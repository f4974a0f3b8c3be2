// SPDX-License-Identifier: Apache-2.0
/* Tokenisation speed of one core, beside that of the `tokenizers` library in the same run.
 *
 *     tokenize --tokenizer DIR --file TEXT [--repeats N] [--python PATH] [--dump IDS] [--json]
 *     tokenize --tokenizer DIR --list FILE
 *
 * Best of N passes over the text in memory, opened tokenizer, warm cache after the first pass.
 * --python PATH has that interpreter time the library on the same text (encode of the whole text
 * and encode_batch_fast of its lines, RAYON off: one thread). --dump writes the ids as
 * little-endian u32, for the parity script.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/usage.h"
#include "engine/tokenizer.h"

struct arguments {
    const char *tokenizer, *file, *python, *dump, *list;
    unsigned repeats;
    bool json;
};

static const char library_script[] =
    "import os,sys,time\n"
    "os.environ['TOKENIZERS_PARALLELISM']='false'\n"
    "from tokenizers import Tokenizer\n"
    "p=sys.argv[1]\n"
    "t=Tokenizer.from_file(p if p.endswith('.json') else p+'/tokenizer.json')\n"
    "b=open(sys.argv[2],'rb').read(); s=b.decode('utf-8','replace'); best=1e9\n"
    "lines=s.splitlines(keepends=True)\n"
    "for i in range(int(sys.argv[3])):\n"
    "  a=time.perf_counter(); t.encode_batch_fast(lines,add_special_tokens=False)\n"
    "  best=min(best,time.perf_counter()-a)\n"
    "print(len(b)/best/1e6)\n";

static bool parse(int argc, char **argv, struct arguments *arguments)
{
    *arguments = (struct arguments){.repeats = 3};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0) {
            arguments->json = true;
            continue;
        }
        if (!value)
            return false;
        if (strcmp(argv[i], "--tokenizer") == 0)
            arguments->tokenizer = value;
        else if (strcmp(argv[i], "--file") == 0)
            arguments->file = value;
        else if (strcmp(argv[i], "--python") == 0)
            arguments->python = value;
        else if (strcmp(argv[i], "--dump") == 0)
            arguments->dump = value;
        else if (strcmp(argv[i], "--list") == 0)
            arguments->list = value;
        else if (strcmp(argv[i], "--repeats") == 0)
            arguments->repeats = (unsigned)strtoul(value, NULL, 10);
        else
            return false;
        i++;
    }
    return (arguments->file || arguments->list) && arguments->repeats > 0;
}

static char *read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        return NULL;
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*bytes + 1);
    if (text && fread(text, 1, *bytes, file) != *bytes) {
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

/* MB/s of the library, or a negative number where it did not answer. */
static double library_speed(const struct arguments *arguments)
{
    if (!arguments->python || !arguments->tokenizer)
        return -1;
    char script[] = "/tmp/sluice-bench-XXXXXX", *command = NULL, line[64] = "";
    int fd = mkstemp(script);
    if (fd < 0 || write(fd, library_script, sizeof(library_script) - 1) < 0)
        return -1;
    close(fd);
    double speed = -1;
    if (asprintf(&command, "'%s' %s '%s' '%s' %u", arguments->python, script, arguments->tokenizer,
                 arguments->file, arguments->repeats) > 0) {
        FILE *pipe = popen(command, "r");
        if (pipe && fgets(line, sizeof(line), pipe))
            speed = strtod(line, NULL);
        if (!pipe || pclose(pipe) != 0)
            speed = -1;
    }
    free(command);
    unlink(script);
    return speed;
}

static bool dump_ids(const char *path, const struct sl_ids *ids)
{
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(ids->data, 4, ids->count, file) == ids->count;
    return file && fclose(file) == 0 && good;
}

static void report(const struct arguments *arguments, double speed, double first, double library,
                   double open_seconds, size_t bytes, size_t count)
{
    if (arguments->json) {
        printf(
            "{\"text_bytes\": %zu, \"ids\": %zu, \"open_s\": %.4f, \"first_pass_mb_per_s\": %.2f, "
            "\"mb_per_s\": %.2f",
            bytes, count, open_seconds, first, speed);
        if (library > 0)
            printf(", \"library_mb_per_s\": %.2f", library);
        printf("}\n");
        return;
    }
    printf("%-28s %12zu B -> %zu ids (%.2f B/id)\n", "text", bytes, count,
           (double)bytes / (double)count);
    printf("%-28s %12.3f s\n", "open", open_seconds);
    printf("%-28s %12.1f MB/s\n", "first pass, cold cache", first);
    printf("%-28s %12.1f MB/s\n", "best pass, one core", speed);
    if (library > 0)
        printf("%-28s %12.1f MB/s (%.1fx)\n", "tokenizers, one thread", library, speed / library);
}

static int measure(const struct arguments *arguments, const char *text, size_t bytes,
                   struct sl_encoder *encoder, double open_seconds, struct sl_error *error)
{
    struct sl_ids ids = {0};
    double best = 0, first = 0;
    int code = 0;
    for (unsigned i = 0; i < arguments->repeats && !code; i++) {
        ids.count = 0;
        uint64_t begin = sl_clock_ns();
        code = sl_encode(encoder, text, bytes, SL_ENCODE_DEFAULT, &ids, error);
        double speed = (double)bytes * 1e3 / (double)(sl_clock_ns() - begin);
        first = i ? first : speed;
        best = speed > best ? speed : best;
    }
    if (!code && arguments->dump && !dump_ids(arguments->dump, &ids))
        code = sl_error_set(error, SL_DOMAIN_IO, -EIO, "%s: cannot write", arguments->dump);
    if (!code)
        report(arguments, best, first, library_speed(arguments), open_seconds, bytes, ids.count);
    sl_ids_finish(&ids);
    return code;
}

static int dump_one(struct sl_encoder *encoder, const char *path, struct sl_ids *ids,
                    struct sl_error *error)
{
    size_t bytes = 0;
    char out[4096 + 8], *text = read_whole(path, &bytes);
    if (!text)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EIO, "%s: cannot read", path);
    ids->count = 0;
    int code = sl_encode(encoder, text, bytes, SL_ENCODE_DEFAULT, ids, error);
    snprintf(out, sizeof(out), "%s.ids", path);
    if (!code && !dump_ids(out, ids))
        code = sl_error_set(error, SL_DOMAIN_IO, -EIO, "%s: cannot write", out);
    free(text);
    return code;
}

static int dump_list(const char *list, struct sl_encoder *encoder, struct sl_error *error)
{
    char line[4096];
    struct sl_ids ids = {0};
    FILE *file = fopen(list, "r");
    int code = file ? 0 : sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: cannot read", list);
    while (!code && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        code = dump_one(encoder, line, &ids, error);
    }
    if (file)
        fclose(file);
    sl_ids_finish(&ids);
    return code;
}

static int bench_file(const struct arguments *arguments, struct sl_encoder *encoder,
                      double open_seconds, struct sl_error *error)
{
    size_t bytes = 0;
    char *text = read_whole(arguments->file, &bytes);
    if (!text)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EIO, "%s: cannot read", arguments->file);
    int code = measure(arguments, text, bytes, encoder, open_seconds, error);
    free(text);
    return code;
}

int main(int argc, char **argv)
{
    struct arguments arguments;
    if (!parse(argc, argv, &arguments))
        return bench_usage(argc, argv,
                           "usage: bench-tokenize [--tokenizer DIR] --file TEXT [--repeats N] "
                           "[--python PATH] [--dump IDS] [--json]\n"
                           "       bench-tokenize [--tokenizer DIR] --list FILE\n");
    struct sl_tokenizer *tokenizer = NULL;
    struct sl_encoder *encoder = NULL;
    struct sl_error error = {0};
    uint64_t begin = sl_clock_ns();
    int code = sl_tokenizer_open(&tokenizer, arguments.tokenizer, &error);
    double open_seconds = (double)(sl_clock_ns() - begin) * 1e-9;
    if (!code)
        code = sl_encoder_create(&encoder, tokenizer, &error);
    if (!code)
        code = arguments.list ? dump_list(arguments.list, encoder, &error)
                              : bench_file(&arguments, encoder, open_seconds, &error);
    if (code)
        fprintf(stderr, "%s\n", error.message);
    sl_encoder_destroy(encoder);
    sl_tokenizer_close(tokenizer);
    return code ? 1 : 0;
}
