// SPDX-License-Identifier: Apache-2.0
/* The swap space: one range of bytes on one or more NVMe paths, allocated in full at creation, gone
 * after any end of the process, read and written asynchronously with every completion checked.
 *
 * Files are striped, opened with O_DIRECT where the file system allows it, mode 0600, and unlinked
 * as soon as they are open. Blocks carry XXH3 sums in memory that every read verifies.
 */
#ifndef SLUICE_NVME_SWAP_H
#define SLUICE_NVME_SWAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

#define SL_SWAP_ALIGNMENT 4096u /* offsets, sizes and buffers are multiples of this */
#define SL_SWAP_PATHS_MAX 16
#define SL_SWAP_DEPTH_MAX 16384u /* I/Os in flight */

enum sl_swap_backend { SL_SWAP_AUTO, SL_SWAP_URING, SL_SWAP_THREADS, SL_SWAP_FAULTY };

struct sl_swap_faults; /* nvme/faults.h: seeded faults for tests */

struct sl_swap_options {
    const char *const *paths; /* directories */
    size_t path_count;
    uint64_t bytes_total; /* multiple of SL_SWAP_ALIGNMENT */
    size_t block_bytes;  /* size of one I/O, rounded up to a multiple of the alignment; 0: chosen */
    size_t queue_depth;  /* I/Os in flight at most; 0: chosen */
    size_t thread_count; /* threads backend; 0: chosen */
    enum sl_swap_backend backend;
    bool checksums_off;
    uint64_t stall_ns; /* watchdog: an I/O older than this fails the swap; 0: 60 s */
    const struct sl_swap_faults *faults; /* for SL_SWAP_FAULTY; borrowed until destroy */
    const struct sl_log *log;            /* borrowed until destroy */
    /* Bytes under one sum (a power of two): offsets and sizes of requests become multiples of it.
     * 0: SL_SWAP_ALIGNMENT, which costs 8 B of memory per 4 KiB of swap. */
    size_t sum_unit_bytes;
    /* Threads that make and check sums beside the I/O thread; 0: chosen (none for one path, which
     * one thread can keep up with; one per path for several). */
    size_t hash_threads;
    /* [path_count] relative bandwidths; NULL: measured where there are several paths and at least
     * 1 GiB, equal otherwise. */
    const double *path_weights;
    /* Write everything once at creation. The first write to a fresh extent costs the file system up
     * to half of its rate (docs/nvme.md); a run that fills its swap space with initial state has
     * paid that already. */
    bool prewrite;
    bool direct_off;  /* use the page cache (dropped behind) */
    bool poll;        /* io_uring polls the device for completions */
    bool submit_poll; /* a kernel thread submits; costs a core */
};

struct sl_swap;

/* Owned by the caller and lent from submit until `done` has been called: neither the request nor
 * the buffer may be freed, reused or read before. */
struct sl_swap_request {
    bool write;
    uint64_t offset_bytes; /* multiple of SL_SWAP_ALIGNMENT */
    uint64_t bytes;        /* likewise */
    void *buffer;          /* likewise aligned */
    /* Called once, from an I/O thread, with 0 or a negative errno; must not block. The bytes are
     * in the buffer (read, checked) or on the device (write) by then. */
    void (*done)(struct sl_swap_request *request, int result);
    void *user;
    uint64_t deadline_ns; /* sl_clock_ns() after which it ends with -ETIME; 0: none */
    /* private to nvme/ */
    struct sl_swap_request *next;
    uint64_t submitted_ns;
    uint64_t bytes_issued;
    uint32_t blocks_left; /* issued, not finished */
    int result;
    bool cancelled; /* atomic */
};

struct sl_swap_stats {
    uint64_t bytes_read, bytes_written; /* completed */
    uint64_t reads, writes, retries;
    enum sl_swap_backend backend; /* the one in use */
    bool direct;                  /* O_DIRECT in use on every path */
    size_t block_bytes, queue_depth;
};

/* Create the files. Errors name path, bytes needed and free, and the remedy: -ENOENT, -EACCES,
 * -ENOSPC, -EBUSY (another run holds the directory's lock), -EINVAL. Nothing is left behind. */
int sl_swap_create(struct sl_swap **out, const struct sl_swap_options *options,
                   struct sl_error *error);
/* Waits for what is in flight; NULL allowed. No other call may be running. Operations that the
 * watchdog gave up get stall_ns more; what the kernel still holds then is not released. */
void sl_swap_destroy(struct sl_swap *swap);

/* Register an arena so that its buffers need no mapping per I/O. A failure to register (memlock
 * limit) is logged once and is not an error. Call before the first submit. */
int sl_swap_register(struct sl_swap *swap, void *memory, uint64_t bytes);

/* Queue a request. Reads and writes of overlapping ranges must be ordered by the caller (wait for
 * `done`). Threads: any, several at once. Errors are given to `done` only; a range that is
 * unaligned or outside fails the swap space like any other. */
void sl_swap_submit(struct sl_swap *swap, struct sl_swap_request *request);

/* Ask for a submitted request back: its `done` comes with -ECANCELED once nothing of it is in
 * flight, or with its result if it was faster. After a cancelled or overdue write the range must be
 * written again before it is read. Call it only before `done` has been called. Threads: any. */
void sl_swap_cancel(struct sl_swap *swap, struct sl_swap_request *request);

/* Submit one request and wait for it. */
int sl_swap_transfer(struct sl_swap *swap, bool write, uint64_t offset_bytes, void *buffer,
                     uint64_t bytes);

/* The first failure, with file, offset and cause: code 0 where there was none. */
void sl_swap_error(struct sl_swap *swap, struct sl_error *error);

void sl_swap_stats(struct sl_swap *swap, struct sl_swap_stats *stats);

/* Latency of single blocks, from being sent to coming back, below which `fraction` of them lies
 * since the last reset; within 7 %, 0 where there was none. Threads: any. */
uint64_t sl_swap_latency_ns(struct sl_swap *swap, bool write, double fraction);
void sl_swap_latency_reset(struct sl_swap *swap);

/* Go on with other block and queue sizes (0: chosen) on the same file, contents kept. One path
 * only; nothing may be submitted meanwhile, and memory must be registered again. After an error
 * only destroy is allowed. */
int sl_swap_retune(struct sl_swap *swap, size_t block_bytes, size_t queue_depth,
                   struct sl_error *error);

/* The descriptor of a file, so that another program can be measured on the same one (through
 * /proc/PID/fd). Owner: the swap space. */
int sl_swap_fd(const struct sl_swap *swap, size_t path_index);

/* Does this directory lie in memory (tmpfs, ramfs)? Swapping there moves bytes from memory to
 * memory.
 */
bool sl_swap_path_is_memory(const char *path);

/* What the file systems of these directories have free, each counted once; 0: none could say. */
uint64_t sl_swap_paths_free_bytes(const char *const *paths, size_t count);

/* Memory that the engine holds for this many bytes of swap (sums, rings, bounce buffers): a line of
 * the plan. */
uint64_t sl_swap_memory_bytes(const struct sl_swap_options *options);

#endif
