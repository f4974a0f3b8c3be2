// SPDX-License-Identifier: Apache-2.0
/* The traffic of a training step without the step: a few large transfers in flight, each replaced
 * when it ends, walking the region in order as the plan walks its extents.
 */
#include "nvme/load.h"

#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/size.h"

struct slot {
    struct sl_swap_request request;
    sem_t *news;
    atomic_bool ended;
    int result;
};

/* Where the next request of a direction lies. */
struct walk {
    uint64_t first, bytes, next;
};

const char *sl_load_name(enum sl_load_kind kind)
{
    return kind == SL_LOAD_READ ? "read" : kind == SL_LOAD_WRITE ? "write" : "mixed";
}

static void slot_done(struct sl_swap_request *request, int result)
{
    struct slot *slot = request->user;
    sem_t *news = slot->news;
    slot->result = result;
    atomic_store(&slot->ended, true);
    sem_post(news);
}

static bool submit_next(const struct sl_load *load, struct walk *walk, struct slot *slot,
                        bool around)
{
    if (walk->next == walk->bytes && !around)
        return false;
    if (walk->next + load->request_bytes > walk->bytes)
        walk->next = 0;
    slot->request.offset_bytes = walk->first + walk->next;
    slot->request.bytes = load->request_bytes;
    walk->next += load->request_bytes;
    sl_swap_submit(load->swap, &slot->request);
    return true;
}

int sl_load_run(const struct sl_load *load, struct sl_load_result *result, struct sl_error *error)
{
    assert(load->requests && load->requests <= SL_LOAD_REQUESTS_MAX && load->requests % 2 == 0);
    const bool mixed = load->kind == SL_LOAD_MIXED, around = load->duration_ns != 0;
    uint64_t usable = load->region_bytes / load->request_bytes / 2 * 2 * load->request_bytes;
    assert(usable >= load->requests * load->request_bytes);
    struct walk walks[2] = {{0, usable, 0}, {0, usable, 0}};
    if (mixed) {
        walks[0].bytes = walks[1].bytes = usable / 2;
        walks[1].first = usable / 2;
    }
    sem_t news;
    sem_init(&news, 0, 0);
    struct slot slots[SL_LOAD_REQUESTS_MAX] = {0};
    const double cpu_before = sl_clock_process_seconds();
    const uint64_t start_ns = sl_clock_ns();
    unsigned busy = 0;
    for (unsigned i = 0; i < load->requests; i++) {
        bool write = mixed ? i % 2 : load->kind == SL_LOAD_WRITE;
        slots[i].news = &news;
        slots[i].request =
            (struct sl_swap_request){.write = write,
                                     .buffer = (char *)load->memory + i * load->request_bytes,
                                     .done = slot_done,
                                     .user = &slots[i]};
        busy += submit_next(load, &walks[write], &slots[i], around);
    }
    *result = (struct sl_load_result){0};
    int code = 0;
    while (busy) {
        if (sem_wait(&news) < 0)
            continue;
        bool go_on = !code && (!around || sl_clock_ns() - start_ns < load->duration_ns);
        for (unsigned i = 0; i < load->requests; i++) {
            struct slot *slot = &slots[i];
            if (!atomic_exchange(&slot->ended, false))
                continue;
            busy--;
            code = code ? code : slot->result;
            result->bytes += slot->result ? 0 : slot->request.bytes;
            if (go_on && !code)
                busy += submit_next(load, &walks[slot->request.write], slot, around);
        }
    }
    result->seconds = (double)(sl_clock_ns() - start_ns) * 1e-9;
    result->bytes_per_second = (double)result->bytes / result->seconds;
    if (result->bytes)
        result->cpu_seconds_per_gb =
            (sl_clock_process_seconds() - cpu_before) / ((double)result->bytes * 1e-9);
    sem_destroy(&news);
    if (code && error)
        sl_swap_error(load->swap, error);
    return code;
}
