// SPDX-License-Identifier: Apache-2.0
/* TensorBoard event files, written by hand.
 *
 * Problem   TensorBoard reads TFRecords of protocol buffers; the libraries that write them are
 *           larger than this engine.
 * Choice    the three messages that a scalar needs, encoded here:
 *
 *     record   u64 length | u32 masked crc32c(length) | payload | u32 masked crc32c(payload)
 *     Event    1: wall_time f64, 2: step varint, 3: file_version, 5: Summary
 *     Summary  1: Value { 1: tag, 2: simple_value f32 }
 *
 * Invariant a record is written with one write, so a reader never sees half a header.
 * Source    TensorFlow's core/lib/io/record_writer.h and core/util/event.proto (formats)
 */
#include "engine/monitor_writers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TAG_BYTES_MAX 256u
#define RECORD_BYTES_MAX (TAG_BYTES_MAX + 128u)

struct sl_event_file {
    int fd;
    char *path;
};

uint32_t sl_crc32c(const void *data, size_t bytes)
{
    const uint8_t *byte = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= byte[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

uint32_t sl_crc32c_masked(const void *data, size_t bytes)
{
    uint32_t crc = sl_crc32c(data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* --- encoding --- */

struct bytes {
    uint8_t data[RECORD_BYTES_MAX];
    size_t count;
};

static void put_fixed(struct bytes *out, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++)
        out->data[out->count++] = (uint8_t)(value >> (8 * i));
}

static void put_varint(struct bytes *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        out->data[out->count++] = (uint8_t)(value | 0x80);
    out->data[out->count++] = (uint8_t)value;
}

enum wire { WIRE_VARINT, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_key(struct bytes *out, unsigned field, enum wire wire)
{
    put_varint(out, (uint64_t)field << 3 | (unsigned)wire);
}

static void put_bytes(struct bytes *out, unsigned field, const void *data, size_t count)
{
    put_key(out, field, WIRE_BYTES);
    put_varint(out, count);
    memcpy(out->data + out->count, data, count);
    out->count += count;
}

static void put_time(struct bytes *event)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof(bits));
    put_key(event, 1, WIRE_64);
    put_fixed(event, bits, 8);
}

static int write_record(struct sl_event_file *events, const struct bytes *payload,
                        struct sl_error *error)
{
    struct bytes record = {.count = 0};
    put_fixed(&record, payload->count, 8);
    put_fixed(&record, sl_crc32c_masked(record.data, 8), 4);
    memcpy(record.data + record.count, payload->data, payload->count);
    record.count += payload->count;
    put_fixed(&record, sl_crc32c_masked(payload->data, payload->count), 4);
    for (size_t done = 0; done < record.count;) {
        ssize_t wrote = write(events->fd, record.data + done, record.count - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return sl_error_set(error, SL_DOMAIN_IO, -errno, "cannot write %s: %s", events->path,
                                strerror(errno));
        done += (size_t)wrote;
    }
    return 0;
}

int sl_event_file_create(struct sl_event_file **out, const char *folder, struct sl_error *error)
{
    int result = sl_make_folders(folder, error);
    if (result)
        return result;
    char host[65] = "host";
    (void)gethostname(host, sizeof(host) - 1);
    struct sl_event_file *events = calloc(1, sizeof(*events));
    size_t bytes = strlen(folder) + 160;
    char *path = malloc(bytes);
    if (!events || !path) {
        free(events);
        free(path);
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for the event file");
    }
    snprintf(path, bytes, "%s/events.out.tfevents.%010lld.%s.%ld.0", folder, (long long)time(NULL),
             host, (long)getpid());
    *events = (struct sl_event_file){
        .path = path, .fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
    if (events->fd < 0) {
        result =
            sl_error_set(error, SL_DOMAIN_IO, -errno, "cannot write %s: %s", path, strerror(errno));
    } else {
        struct bytes event = {.count = 0};
        static const char version[] = "brain.Event:2";
        put_time(&event);
        put_bytes(&event, 3, version, sizeof(version) - 1);
        result = write_record(events, &event, error);
    }
    if (result)
        sl_event_file_destroy(events);
    else
        *out = events;
    return result;
}

int sl_event_file_scalar(struct sl_event_file *events, const char *tag, float value, uint64_t step,
                         struct sl_error *error)
{
    size_t length = strlen(tag);
    if (length > TAG_BYTES_MAX)
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL, "tag over %u bytes: %.40s",
                            TAG_BYTES_MAX, tag);
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    struct bytes scalar = {.count = 0}, summary = {.count = 0}, event = {.count = 0};
    put_bytes(&scalar, 1, tag, length);
    put_key(&scalar, 2, WIRE_32);
    put_fixed(&scalar, bits, 4);
    put_bytes(&summary, 1, scalar.data, scalar.count);
    put_time(&event);
    put_key(&event, 2, WIRE_VARINT);
    put_varint(&event, step);
    put_bytes(&event, 5, summary.data, summary.count);
    return write_record(events, &event, error);
}

void sl_event_file_destroy(struct sl_event_file *events)
{
    if (!events)
        return;
    if (events->fd >= 0)
        close(events->fd);
    free(events->path);
    free(events);
}
