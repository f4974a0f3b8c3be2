// SPDX-License-Identifier: Apache-2.0
/* One writer per directory with large O_DIRECT writes, all for the same stretch of time. Writing is
 * measured, not reading: it is the slower direction of every drive, and a training step writes as
 * much as it reads. The first pass over fresh extents is part of it on every path alike.
 */
#include "nvme/path_rate.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define CHUNK_BYTES ((size_t)4 << 20)
#define SPAN_BYTES                                                                                 \
    ((off_t)64 << 20) /* rewritten in a circle: a small, always free piece of disk                 \
                       */
#define DURATION_NS ((uint64_t)250 * 1000000u)

struct writer {
    pthread_t thread;
    int fd;
    const void *data;
    double rate;
    int code;
};

static void *write_for_a_while(void *argument)
{
    struct writer *writer = argument;
    uint64_t start_ns = sl_clock_ns(), bytes = 0, spent_ns;
    off_t at = 0;
    do {
        ssize_t n = pwrite(writer->fd, writer->data, CHUNK_BYTES, at);
        if (n < 0 && errno == EINTR)
            n = 0;
        if (n < 0) {
            writer->code = -errno;
            return NULL;
        }
        bytes += (uint64_t)n;
        at = (at + (off_t)CHUNK_BYTES) % SPAN_BYTES;
        spent_ns = sl_clock_ns() - start_ns;
    } while (spent_ns < DURATION_NS || bytes < CHUNK_BYTES);
    writer->rate = (double)bytes / ((double)spent_ns * 1e-9);
    return NULL;
}

int sl_path_rates(struct sl_swap_file *files, size_t count, double *rates)
{
    struct writer writers[SL_SWAP_PATHS_MAX] = {0};
    void *data = aligned_alloc(SL_SWAP_ALIGNMENT, CHUNK_BYTES);
    int code = data ? 0 : -ENOMEM;
    size_t opened = 0, started = 0;
    if (data)
        memset(data, 0x5a, CHUNK_BYTES); /* not zeros: some devices do not store those */
    for (; !code && opened < count; opened++) {
        writers[opened].data = data;
        writers[opened].fd = openat(files[opened].directory_fd, ".",
                                    O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
        if (writers[opened].fd < 0) {
            code = -errno;
            break;
        }
    }
    for (; !code && started < count; started++) {
        code =
            -pthread_create(&writers[started].thread, NULL, write_for_a_while, &writers[started]);
        if (code)
            break;
    }
    for (size_t i = 0; i < started; i++) {
        pthread_join(writers[i].thread, NULL);
        code = code ? code : writers[i].code;
        rates[i] = writers[i].rate;
    }
    for (size_t i = 0; i < opened; i++)
        close(writers[i].fd);
    free(data);
    return code;
}
