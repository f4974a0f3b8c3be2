// SPDX-License-Identifier: Apache-2.0
/* fio reports rates, its job's processor time and percentiles as JSON. Only a handful of numbers is
 * wanted from it: they are found by walking the keys that lead to them.
 */
#include "bench/nvme_fio.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES_MAX ((size_t)256 << 10)

/* The end of the value that starts at `at`: nested objects and arrays are skipped whole. */
static const char *value_end(const char *at)
{
    int depth = 0;
    for (; *at; at++) {
        if (*at == '"')
            for (at++; *at && *at != '"'; at++)
                at += *at == '\\' && at[1];
        else if (*at == '{' || *at == '[')
            depth++;
        else if ((*at == '}' || *at == ']') && depth-- == 0)
            return at;
        else if (*at == ',' && depth == 0)
            return at;
        if (!*at)
            return at;
    }
    return at;
}

/* The value of `key` in the object that `object` points to, or NULL. */
static const char *member(const char *object, const char *key)
{
    const size_t length = strlen(key);
    if (!object || *object != '{')
        return NULL;
    for (const char *at = object + 1; *at && *at != '}';) {
        while (isspace((unsigned char)*at) || *at == ',')
            at++;
        if (*at != '"')
            return NULL;
        bool found = !strncmp(at + 1, key, length) && at[1 + length] == '"';
        at = strchr(at + 1, '"');
        at = at ? strchr(at, ':') : NULL;
        if (!at)
            return NULL;
        for (at++; isspace((unsigned char)*at);)
            at++;
        if (found)
            return at;
        at = value_end(at);
    }
    return NULL;
}

static double number(const char *object, const char *key)
{
    const char *value = member(object, key);
    return value ? strtod(value, NULL) : 0;
}

static const char *first_element(const char *array)
{
    if (!array || *array != '[')
        return NULL;
    for (array++; isspace((unsigned char)*array);)
        array++;
    return array;
}

static int read_job(const char *output, struct fio_result *result)
{
    const char *start = strchr(output, '{'); /* notes may come first */
    const char *job = first_element(member(start, "jobs"));
    if (!job || number(job, "error") != 0)
        return -EIO;
    static const char *const directions[] = {"read", "write"};
    *result = (struct fio_result){0};
    double runtime_ms = 0, bytes = 0;
    for (int d = 0; d < 2; d++) {
        const char *direction = member(job, directions[d]);
        const char *percentile = member(member(direction, "clat_ns"), "percentile");
        double ms = number(direction, "runtime");
        bytes += number(direction, "io_bytes");
        runtime_ms = ms > runtime_ms ? ms : runtime_ms;
        double p50 = number(percentile, "50.000000") * 1e-3;
        double p99 = number(percentile, "99.000000") * 1e-3;
        result->p50_us = p50 > result->p50_us ? p50 : result->p50_us;
        result->p99_us = p99 > result->p99_us ? p99 : result->p99_us;
    }
    if (runtime_ms <= 0 || bytes <= 0)
        return -EIO;
    double seconds = runtime_ms * 1e-3;
    double cpu = (number(job, "usr_cpu") + number(job, "sys_cpu")) * 0.01 * seconds;
    result->bytes_per_second = bytes / seconds;
    result->cpu_seconds_per_gb = cpu / (bytes * 1e-9);
    return 0;
}

static void exec_fio(const struct fio_job *job)
{
    static const char *const patterns[] = {"read", "write", "rw"};
    char file[96], size[48], block[48], depth[32], runtime[48], rw[32];
    snprintf(file, sizeof(file), "--filename=%s", job->path);
    snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)job->region_bytes);
    snprintf(block, sizeof(block), "--bs=%zu", job->block_bytes);
    snprintf(depth, sizeof(depth), "--iodepth=%zu", job->depth);
    snprintf(runtime, sizeof(runtime), "--runtime=%.0fms", job->seconds * 1000);
    snprintf(rw, sizeof(rw), "--rw=%s", patterns[job->kind]);
    const char *const fixed = job->registered ? "--fixedbufs=1" : "--fixedbufs=0";
    const char *const files = job->registered ? "--registerfiles=1" : "--registerfiles=0";
    /* Huge pages for its buffers, as the engine has: fewer segments per request. */
    setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1);
    /* The engine comes first: some options are its own. */
    execlp("fio", "fio", "--name=limit", "--ioengine=io_uring", file, size, block, depth, runtime,
           rw, fixed, files, "--direct=1", "--time_based=1", "--output-format=json",
           "--allow_file_create=0", "--invalidate=0", (char *)NULL);
    _exit(errno == ENOENT ? 127 : 126);
}

int fio_run(const struct fio_job *job, struct fio_result *result, struct sl_error *error)
{
    int out[2];
    if (pipe(out) < 0)
        return sl_error_set(error, SL_DOMAIN_IO, -errno, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 1);
        dup2(out[1], 2);
        close(out[0]);
        exec_fio(job);
    }
    close(out[1]);
    char *output = calloc(1, OUTPUT_BYTES_MAX);
    size_t length = 0;
    for (ssize_t n; output && length < OUTPUT_BYTES_MAX - 1; length += (size_t)n) {
        n = read(out[0], output + length, OUTPUT_BYTES_MAX - 1 - length);
        if (n <= 0)
            break;
    }
    close(out[0]);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        status = 1;
    int code = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        code = sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT, "fio is not installed");
    else if (!output || status || read_job(output, result) < 0)
        code = sl_error_set(error, SL_DOMAIN_IO, -EIO, "fio on %s failed: %.200s", job->path,
                            output ? output : "no memory");
    free(output);
    return code;
}
