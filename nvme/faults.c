// SPDX-License-Identifier: Apache-2.0
/* A backend that misbehaves on purpose, around one that does not.
 *
 * Each operation draws its fault when it is queued, from one seeded generator, so that a seed and
 * an order of operations give the same faults. What the fault changes (length, buffer, place) is
 * changed in the sl_io while the inner backend has it and put back before it is returned: the loop
 * above sees exactly what it would see of a bad device. A short read also overwrites the bytes that
 * it claims not to have read, so that nobody can use them unnoticed.
 *
 * Invariant: an operation is with the inner backend, or in `held` with the time it comes back.
 */
#include "nvme/faults.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/size.h"
#include "nvme/io_backend.h"

#define NEVER UINT64_MAX

/* What happens to one operation. */
struct mishap {
    struct sl_io inner; /* what the inner backend is given; first: it leads back here */
    struct sl_io *io;
    enum sl_fault fault; /* SL_FAULT_COUNT: none */
    char *bounce;        /* changed data of a write */
    uint32_t claimed;    /* a short operation reports so many bytes */
    uint64_t delay_ns, not_before_ns, due_ns;
    struct mishap *next;
};

struct faulty {
    struct sl_io_backend base;
    struct sl_io_backend *inner;
    const struct sl_swap_faults *plan;
    uint64_t random, operations, injected, bytes_written;
    uint64_t file_bytes[SL_SWAP_PATHS_MAX];
    uint64_t free_ns[2]; /* when the slow device has done all reads, all writes, so far */
    struct mishap *held;
};

static struct faulty *faulty_of(struct sl_io_backend *backend)
{
    return (struct faulty *)backend;
}

const char *sl_fault_name(enum sl_fault fault)
{
    static const char *const names[SL_FAULT_COUNT] = {
        "short",     "EINTR",      "EAGAIN",      "EIO",  "ENOSPC",
        "flip read", "flip write", "misdirected", "lost", "stall"};
    return fault < SL_FAULT_COUNT ? names[fault] : "none";
}

static uint64_t draw(struct faulty *faulty)
{
    uint64_t z = (faulty->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double draw_unit(struct faulty *faulty)
{
    return (double)(draw(faulty) >> 11) * 0x1p-53;
}

static bool applies(enum sl_fault fault, const struct sl_io *io)
{
    switch (fault) {
    case SL_FAULT_FLIP_READ:
        return !io->write;
    case SL_FAULT_FLIP_WRITE:
    case SL_FAULT_MISDIRECTED:
    case SL_FAULT_LOST:
    case SL_FAULT_ENOSPC:
        return io->write;
    default:
        return true;
    }
}

static enum sl_fault draw_fault(struct faulty *faulty, const struct sl_io *io)
{
    const struct sl_swap_faults *plan = faulty->plan;
    double at = draw_unit(faulty);
    if (plan->quota_bytes && io->write && faulty->bytes_written + io->bytes > plan->quota_bytes)
        return SL_FAULT_ENOSPC;
    if (faulty->operations++ < plan->first_operation ||
        (plan->faults_max && faulty->injected >= plan->faults_max))
        return SL_FAULT_COUNT;
    for (enum sl_fault fault = 0; fault < SL_FAULT_COUNT; fault++) {
        at -= plan->chance[fault];
        if (at < 0)
            return applies(fault, io) ? fault : SL_FAULT_COUNT;
    }
    return SL_FAULT_COUNT;
}

static void hold(struct faulty *faulty, struct mishap *mishap, uint64_t due_ns)
{
    mishap->due_ns = due_ns;
    mishap->next = faulty->held;
    faulty->held = mishap;
}

/* A write whose data was changed by one bit. */
static void flip_write(struct faulty *faulty, struct mishap *mishap)
{
    struct sl_io *inner = &mishap->inner;
    mishap->bounce = aligned_alloc(SL_SWAP_ALIGNMENT, inner->bytes);
    if (!mishap->bounce)
        abort(); /* test code */
    memcpy(mishap->bounce, inner->buffer, inner->bytes);
    uint64_t bit = draw(faulty) % ((uint64_t)(inner->bytes - inner->bytes_done) * 8);
    mishap->bounce[inner->bytes_done + bit / 8] ^= (char)(1 << bit % 8);
    inner->buffer = mishap->bounce;
}

/* A write at another place of its file: never its own, so that the fault is one. */
static void misdirect(struct faulty *faulty, struct sl_io *inner)
{
    uint64_t places = (faulty->file_bytes[inner->file] - inner->bytes) / SL_SWAP_ALIGNMENT + 1;
    if (places < 2)
        return;
    uint64_t own = inner->file_offset / SL_SWAP_ALIGNMENT;
    inner->file_offset = (own + 1 + draw(faulty) % (places - 1)) % places * SL_SWAP_ALIGNMENT;
}

static void shorten(struct faulty *faulty, struct mishap *mishap)
{
    struct sl_io *inner = &mishap->inner;
    uint32_t left = inner->bytes - inner->bytes_done, units = left / SL_SWAP_ALIGNMENT;
    mishap->claimed = 1 + (uint32_t)(draw(faulty) % (left - 1)); /* anywhere inside */
    if (units > 1 && draw(faulty) % 2) {                         /* or on a boundary, and true */
        mishap->claimed = SL_SWAP_ALIGNMENT * (1 + (uint32_t)(draw(faulty) % (units - 1)));
        inner->bytes = inner->bytes_done + mishap->claimed;
    }
}

/* A slow device does one operation of a direction after the other. */
static void slow_down(struct faulty *faulty, struct mishap *mishap, uint64_t now_ns)
{
    const struct sl_io *io = mishap->io;
    uint64_t rate = io->write ? faulty->plan->write_bytes_per_second
                              : faulty->plan->read_bytes_per_second;
    if (rate == 0)
        return;
    uint64_t *free_ns = &faulty->free_ns[io->write];
    double seconds = (double)(io->bytes - io->bytes_done) / (double)rate;
    *free_ns = sl_max_u64(*free_ns, now_ns) + (uint64_t)(seconds * 1e9);
    mishap->not_before_ns = *free_ns;
}

static void faulty_queue(struct sl_io_backend *backend, struct sl_io *io)
{
    struct faulty *faulty = faulty_of(backend);
    const struct sl_swap_faults *plan = faulty->plan;
    struct mishap *mishap = calloc(1, sizeof(*mishap));
    if (!mishap)
        abort(); /* test code */
    *mishap = (struct mishap){.inner = *io, .io = io, .fault = draw_fault(faulty, io)};
    io->backend_data = mishap;
    if (draw_unit(faulty) < plan->delay_chance)
        mishap->delay_ns = draw(faulty) % (plan->delay_ns_max + 1);
    if (mishap->fault < SL_FAULT_COUNT) {
        faulty->injected++;
        if (plan->injected)
            plan->injected[mishap->fault]++;
    }
    if (io->write)
        faulty->bytes_written += io->bytes - io->bytes_done;
    static const int codes[SL_FAULT_COUNT] = {[SL_FAULT_EINTR] = -EINTR,
                                              [SL_FAULT_EAGAIN] = -EAGAIN,
                                              [SL_FAULT_EIO] = -EIO,
                                              [SL_FAULT_ENOSPC] = -ENOSPC};
    const uint64_t now_ns = sl_clock_ns();
    slow_down(faulty, mishap, now_ns);
    switch (mishap->fault) {
    case SL_FAULT_EINTR:
    case SL_FAULT_EAGAIN:
    case SL_FAULT_EIO:
    case SL_FAULT_ENOSPC:
        mishap->inner.result = codes[mishap->fault];
        hold(faulty, mishap, now_ns + mishap->delay_ns);
        return;
    case SL_FAULT_LOST:
        mishap->inner.result = io->bytes - io->bytes_done;
        hold(faulty, mishap, now_ns + mishap->delay_ns);
        return;
    case SL_FAULT_STALL:
        mishap->inner.result = -EIO;
        hold(faulty, mishap, plan->stall_release_ns ? now_ns + plan->stall_release_ns : NEVER);
        return;
    case SL_FAULT_SHORT:
        shorten(faulty, mishap);
        break;
    case SL_FAULT_FLIP_WRITE:
        flip_write(faulty, mishap);
        break;
    case SL_FAULT_MISDIRECTED:
        misdirect(faulty, &mishap->inner);
        break;
    default:
        break;
    }
    faulty->inner->ops->queue(faulty->inner, &mishap->inner);
}

/* The inner backend is done: falsify result and data. */
static void falsify(struct faulty *faulty, struct mishap *mishap)
{
    struct sl_io *inner = &mishap->inner;
    const struct sl_io *io = mishap->io;
    if (inner->result <= 0)
        return;
    if (mishap->fault == SL_FAULT_SHORT && inner->result > mishap->claimed)
        inner->result = mishap->claimed;
    if (mishap->fault == SL_FAULT_SHORT && !io->write) {
        uint32_t from = io->bytes_done + (uint32_t)inner->result;
        memset(io->buffer + from, 0xa5, io->bytes - from);
    }
    if (mishap->fault == SL_FAULT_FLIP_READ) {
        uint64_t bit = draw(faulty) % ((uint64_t)inner->result * 8);
        io->buffer[io->bytes_done + bit / 8] ^= (char)(1 << bit % 8);
    }
}

static void take_from_inner(struct faulty *faulty, size_t max, uint64_t timeout_ns)
{
    struct sl_io *batch[64];
    max = sl_min_u64(max, sizeof(batch) / sizeof(batch[0]));
    size_t count = faulty->inner->ops->reap(faulty->inner, batch, max, timeout_ns);
    for (size_t i = 0; i < count; i++) {
        struct mishap *mishap = (struct mishap *)batch[i];
        falsify(faulty, mishap);
        uint64_t due_ns = sl_clock_ns() + mishap->delay_ns;
        hold(faulty, mishap, sl_max_u64(due_ns, mishap->not_before_ns));
    }
}

static uint64_t earliest_due(const struct faulty *faulty)
{
    uint64_t due_ns = NEVER;
    for (const struct mishap *mishap = faulty->held; mishap; mishap = mishap->next)
        due_ns = sl_min_u64(due_ns, mishap->due_ns);
    return due_ns;
}

/* Give back what is due: all, or with reorder one of them at random. */
static size_t deliver(struct faulty *faulty, struct sl_io **finished, size_t max)
{
    const uint64_t now_ns = sl_clock_ns();
    size_t count = 0, due = 0, index = 0;
    for (const struct mishap *mishap = faulty->held; mishap; mishap = mishap->next)
        due += mishap->due_ns <= now_ns;
    size_t chosen = due && faulty->plan->reorder ? draw(faulty) % due : SIZE_MAX;
    for (struct mishap **link = &faulty->held; *link && count < max;) {
        struct mishap *mishap = *link;
        bool is_due = mishap->due_ns <= now_ns;
        if (!is_due || (chosen != SIZE_MAX && index++ != chosen)) {
            link = &mishap->next;
            continue;
        }
        *link = mishap->next;
        mishap->io->result = mishap->inner.result;
        mishap->io->backend_data = NULL;
        finished[count++] = mishap->io;
        free(mishap->bounce);
        free(mishap);
    }
    return count;
}

static size_t faulty_reap(struct sl_io_backend *backend, struct sl_io **finished, size_t max,
                          uint64_t timeout_ns)
{
    struct faulty *faulty = faulty_of(backend);
    const uint64_t now_ns = sl_clock_ns(), due_ns = earliest_due(faulty);
    if (due_ns != NEVER)
        timeout_ns = sl_min_u64(timeout_ns, due_ns > now_ns ? due_ns - now_ns : 0);
    take_from_inner(faulty, max, timeout_ns);
    return deliver(faulty, finished, max);
}

static void faulty_flush(struct sl_io_backend *backend)
{
    struct faulty *faulty = faulty_of(backend);
    faulty->inner->ops->flush(faulty->inner);
}

static void faulty_wake(struct sl_io_backend *backend)
{
    struct faulty *faulty = faulty_of(backend);
    faulty->inner->ops->wake(faulty->inner);
}

/* What is held back does not listen. */
static void faulty_cancel(struct sl_io_backend *backend, struct sl_io *io)
{
    struct faulty *faulty = faulty_of(backend);
    struct mishap *mishap = io->backend_data;
    for (const struct mishap *held = faulty->held; held; held = held->next)
        if (held == mishap)
            return;
    if (mishap)
        faulty->inner->ops->cancel(faulty->inner, &mishap->inner);
}

static int faulty_register(struct sl_io_backend *backend, void *memory, uint64_t bytes)
{
    struct faulty *faulty = faulty_of(backend);
    return faulty->inner->ops->register_memory
               ? faulty->inner->ops->register_memory(faulty->inner, memory, bytes)
               : 0;
}

static void faulty_destroy(struct sl_io_backend *backend)
{
    struct faulty *faulty = faulty_of(backend);
    faulty->inner->ops->destroy(faulty->inner);
    free(faulty);
}

int sl_io_faults_create(struct sl_io_backend **out, const struct sl_io_setup *setup)
{
    static const struct sl_io_ops ops = {
        .queue = faulty_queue,
        .flush = faulty_flush,
        .reap = faulty_reap,
        .wake = faulty_wake,
        .cancel = faulty_cancel,
        .register_memory = faulty_register,
        .destroy = faulty_destroy,
    };
    struct faulty *faulty = calloc(1, sizeof(*faulty));
    if (!faulty)
        return -ENOMEM;
    *faulty =
        (struct faulty){.base.ops = &ops, .plan = setup->faults, .random = setup->faults->seed};
    for (size_t i = 0; i < setup->fd_count; i++) {
        struct stat info;
        if (fstat(setup->fds[i], &info) == 0)
            faulty->file_bytes[i] = (uint64_t)info.st_size;
    }
    int code = setup->faults->inner == SL_SWAP_URING ? sl_io_ring_create(&faulty->inner, setup)
                                                     : sl_io_threads_create(&faulty->inner, setup);
    if (code) {
        free(faulty);
        return code;
    }
    *out = &faulty->base;
    return 0;
}
