// SPDX-License-Identifier: Apache-2.0
#include "offload/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/size.h"

#define HUGE_PAGE_BYTES (2u << 20)
#define TOUCH_BYTES (16u << 20) /* one task's share of the first touch */

struct touch {
    struct sl_arena *arena;
};

static void touch_part(void *arg, size_t task, size_t worker)
{
    (void)worker;
    struct sl_arena *arena = ((struct touch *)arg)->arena;
    uint64_t first = (uint64_t)task * TOUCH_BYTES;
    uint64_t bytes = sl_min_u64(TOUCH_BYTES, arena->bytes - first);
    memset(arena->base + first, 0, bytes);
}

int sl_arena_create(struct sl_arena *arena, uint64_t bytes, struct sl_workers *workers,
                    struct sl_error *error)
{
    *arena = (struct sl_arena){0};
    if (bytes == 0)
        return 0;
    /* Small arenas stay on small pages: the rounding would be a large part of them. */
    uint64_t alignment = bytes >= 8 * HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : (uint64_t)getpagesize();
    uint64_t mapping_bytes = bytes + (alignment > 4096 ? alignment : 0);
    void *mapping = mmap(NULL, mapping_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        char text[SL_SIZE_TEXT_BYTES];
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM,
                            "%s of host memory could not be mapped: %s; lower memory.host or "
                            "offload more to NVMe",
                            sl_size_format(bytes, text), strerror(errno));
    }
    arena->mapping = mapping;
    arena->mapping_bytes = mapping_bytes;
    arena->base = (unsigned char *)sl_align_up((uint64_t)(uintptr_t)mapping, alignment);
    arena->bytes = bytes;
    if (alignment == HUGE_PAGE_BYTES) /* the tail below one huge page stays on small pages */
        madvise(arena->base, bytes & ~(uint64_t)(HUGE_PAGE_BYTES - 1), MADV_HUGEPAGE);
    struct touch touch = {arena};
    size_t tasks = sl_div_up(bytes, TOUCH_BYTES);
    if (workers)
        sl_workers_run(workers, tasks, touch_part, &touch);
    else
        for (size_t i = 0; i < tasks; i++)
            touch_part(&touch, i, 0);
    return 0;
}

void sl_arena_destroy(struct sl_arena *arena)
{
    if (arena->mapping)
        munmap(arena->mapping, arena->mapping_bytes);
    *arena = (struct sl_arena){0};
}
