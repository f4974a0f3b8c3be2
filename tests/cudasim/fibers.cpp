// SPDX-License-Identifier: Apache-2.0
/* A block of CUDA threads as fibers.
 *
 * Problem: kernels use barriers, shuffles and tensor-core fragments, so a thread of a block cannot
 * simply run to its end before the next one starts.
 * Choice: one stack per thread, switched by hand. Between two barriers the threads run one after
 * the other, in an order that the test chooses (forward, reverse, shuffled): a kernel that lacks a
 * barrier reads what is not written yet in at least one order, so equal bits in all orders is the
 * race check. Dynamic shared memory is a heap block of exactly the launch's size, filled with NaN
 * bits before each block: AddressSanitizer sees overruns, and uninitialised reads become NaN.
 * Rejected: one OS thread per CUDA thread (thousands of them; races would show by luck only).
 * Invariant: every lane of a warp, or thread of a block, arrives at the same site; anything else
 * stops the run with both sites, as does a barrier that cannot complete.
 */
#include "fibers.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define FIBER_STACK_BYTES (512u << 10)
#else
#define FIBER_STACK_BYTES (128u << 10)
#endif

namespace cudasim
{

thread_view *current;
thread_schedule schedule = {CUDASIM_THREADS_FORWARD, 1};

namespace
{

enum fiber_state { FIBER_READY, FIBER_AT_WARP, FIBER_AT_BLOCK, FIBER_DONE };

struct pending_copy {
    void *to;
    const void *from;
    unsigned bytes, source_bytes, group;
};

struct fiber {
    thread_view view;
    unsigned index;
    fiber_state state;
    const char *site;
    unsigned exchanges, votes;
    std::vector<pending_copy> copies;
    unsigned copy_group;
    unsigned char *stack;
    void *fake_stack;
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
};

struct alignas(64) slot {
    unsigned char bytes[64];
};

struct warp {
    unsigned arrived;
    slot slots[2][32];
};

fiber fibers[BLOCK_THREADS_MAX];
warp warps[BLOCK_THREADS_MAX / 32];
fiber *running;
unsigned thread_count, block_arrived, live;
int vote_any[2], vote_all[2];
const std::function<void()> *body;
bool stacks_made;

[[noreturn]] void stop(const char *what, const char *site, const char *other)
{
    std::fprintf(stderr, "cudasim: %s at %s%s%s\n", what, site ? site : "?",
                 other ? ", other threads at " : "", other ? other : "");
    std::abort();
}

#if defined(__x86_64__)
extern "C" void cudasim_switch(void **save, void *load);
asm(R"(
.text
.globl cudasim_switch
.hidden cudasim_switch
.type cudasim_switch,@function
cudasim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cudasim_switch,.-cudasim_switch
)");
void *scheduler_stack_pointer;
#else
ucontext_t scheduler_context;
#endif
[[maybe_unused]] void *scheduler_fake_stack;
[[maybe_unused]] const void *scheduler_bottom;
[[maybe_unused]] size_t scheduler_bytes;

void enter_fiber(fiber *f)
{
    running = f;
    current = &f->view;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, f->stack, FIBER_STACK_BYTES);
#endif
#if defined(__x86_64__)
    cudasim_switch(&scheduler_stack_pointer, f->stack_pointer);
#else
    swapcontext(&scheduler_context, &f->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

void leave_fiber(fiber *f)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&f->fake_stack, scheduler_bottom, scheduler_bytes);
#endif
#if defined(__x86_64__)
    cudasim_switch(&f->stack_pointer, scheduler_stack_pointer);
#else
    swapcontext(&f->context, &scheduler_context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_bottom, &scheduler_bytes);
#endif
}

/* A fiber lives for the whole process: it runs one CUDA thread after the other. */
void fiber_main()
{
    fiber *f = running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_bytes);
#endif
    for (;;) {
        (*body)();
        if (!f->copies.empty())
            stop("a thread ended with asynchronous copies that it never waited for", "its end",
                 nullptr);
        f->state = FIBER_DONE;
        live--;
        leave_fiber(f);
    }
}

void make_stacks()
{
    size_t bytes = (size_t)FIBER_STACK_BYTES * BLOCK_THREADS_MAX;
    void *all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        stop("no memory for the stacks", "start", nullptr);
    for (unsigned i = 0; i < BLOCK_THREADS_MAX; i++) {
        fiber *f = &fibers[i];
        f->index = i;
        f->stack = static_cast<unsigned char *>(all) + (size_t)i * FIBER_STACK_BYTES;
#if defined(__x86_64__)
        /* The first switch pops six registers and returns into fiber_main, whose stack must be 8
         * off a 16-byte boundary, as after a call. */
        void **top = reinterpret_cast<void **>(f->stack + FIBER_STACK_BYTES);
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(fiber_main);
        top -= 6;
        std::memset(top, 0, 6 * sizeof *top);
        f->stack_pointer = top;
#else
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack;
        f->context.uc_stack.ss_size = FIBER_STACK_BYTES;
        f->context.uc_link = nullptr;
        makecontext(&f->context, fiber_main, 0);
#endif
    }
    stacks_made = true;
}

uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void wait_here(fiber_state state)
{
    fiber *f = running;
    f->state = state;
    leave_fiber(f);
}

} // namespace

unsigned lane()
{
    return running->index & 31u;
}

void block_barrier(const char *site)
{
    fiber *f = running;
    f->site = site;
    if (live != thread_count)
        stop("__syncthreads after some threads ended", site, nullptr);
    if (++block_arrived < thread_count) {
        wait_here(FIBER_AT_BLOCK);
        return;
    }
    block_arrived = 0;
    for (unsigned i = 0; i < thread_count; i++) {
        fiber *other = &fibers[i];
        if (other == f)
            continue;
        if (other->state != FIBER_AT_BLOCK || other->site != site)
            stop("threads of a block at different barriers", site, other->site);
        other->state = FIBER_READY;
    }
}

int block_vote(const char *site, int predicate, bool any)
{
    /* Two sets of flags, used in turn; the set of the next vote is cleared while all threads are
     * known to be past the previous one. */
    unsigned parity = running->votes++ & 1u;
    vote_any[parity] |= predicate != 0;
    vote_all[parity] &= predicate != 0;
    block_barrier(site);
    int result = any ? vote_any[parity] : vote_all[parity];
    block_barrier(site);
    vote_any[parity] = 0;
    vote_all[parity] = 1;
    return result;
}

const unsigned char *warp_exchange(const char *site, const void *mine, size_t bytes)
{
    fiber *f = running;
    unsigned first = f->index & ~31u;
    warp *w = &warps[f->index / 32];
    slot *slots = w->slots[f->exchanges++ & 1u];
    if (thread_count % 32)
        stop("a warp operation in a block that is not whole warps", site, nullptr);
    std::memcpy(slots[f->index & 31u].bytes, mine, bytes);
    f->site = site;
    if (++w->arrived < 32) {
        wait_here(FIBER_AT_WARP);
        return slots[0].bytes;
    }
    w->arrived = 0;
    for (unsigned i = first; i < first + 32; i++) {
        fiber *other = &fibers[i];
        if (other == f)
            continue;
        if (other->state != FIBER_AT_WARP || other->site != site)
            stop("lanes of a warp at different operations", site, other->site);
        other->state = FIBER_READY;
    }
    return slots[0].bytes;
}

static void copy_now(const pending_copy &copy)
{
    if (copy.source_bytes)
        std::memcpy(copy.to, copy.from, copy.source_bytes);
    std::memset(static_cast<unsigned char *>(copy.to) + copy.source_bytes, 0,
                copy.bytes - copy.source_bytes);
}

/* A copy may land at any moment from its issue to its wait: the first in forward order (whoever
 * still reads the target sees it change), the last in reverse order (whoever reads without waiting
 * sees the old bytes), either in shuffled order. */
void copy_async_issue(void *to, const void *from, unsigned bytes, unsigned source_bytes)
{
    fiber *f = running;
    pending_copy copy = {to, from, bytes, source_bytes, f->copy_group};
    bool early = schedule.order == CUDASIM_THREADS_FORWARD ||
                 (schedule.order == CUDASIM_THREADS_SHUFFLED && next_random(&schedule.seed) & 1);
    if (early)
        copy_now(copy);
    else
        f->copies.push_back(copy);
}

void copy_async_commit()
{
    running->copy_group++;
}

void copy_async_wait(unsigned groups_left)
{
    fiber *f = running;
    size_t kept = 0;
    for (size_t i = 0; i < f->copies.size(); i++) {
        pending_copy copy = f->copies[i];
        if (copy.group + groups_left >= f->copy_group) {
            f->copies[kept++] = copy;
            continue;
        }
        copy_now(copy);
    }
    f->copies.resize(kept);
}

[[noreturn]] static void stop_at_deadlock()
{
    const char *site = nullptr, *other = nullptr;
    for (unsigned i = 0; i < thread_count; i++) {
        if (fibers[i].state == FIBER_DONE)
            other = "their end";
        else if (!site)
            site = fibers[i].site;
        else if (fibers[i].site != site)
            other = fibers[i].site;
    }
    stop("a barrier that cannot complete", site, other);
}

/* Give each of these threads that can run one turn. */
static bool run_turn(const unsigned *order, unsigned count)
{
    bool progress = false;
    for (unsigned i = 0; i < count; i++)
        if (fibers[order[i]].state == FIBER_READY) {
            enter_fiber(&fibers[order[i]]);
            progress = true;
        }
    return progress;
}

/* Forward and reverse: each warp runs as far as it can before the next one gets a turn, so that one
 * is always a whole barrier ahead. Shuffled: all threads take single turns in random order. */
static void run_block_threads()
{
    std::vector<unsigned> order(thread_count);
    for (unsigned i = 0; i < thread_count; i++)
        order[i] = schedule.order == CUDASIM_THREADS_REVERSE ? thread_count - 1 - i : i;
    while (live > 0) {
        bool progress = false;
        if (schedule.order == CUDASIM_THREADS_SHUFFLED) {
            for (unsigned i = thread_count; i > 1; i--)
                std::swap(order[i - 1], order[next_random(&schedule.seed) % i]);
            progress = run_turn(order.data(), thread_count);
        } else {
            for (unsigned first = 0; first < thread_count; first += 32)
                while (run_turn(&order[first], std::min(32u, thread_count - first)))
                    progress = true;
        }
        if (!progress)
            stop_at_deadlock();
    }
}

void run_grid(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread_body)
{
    if (!stacks_made)
        make_stacks();
    body = &thread_body;
    thread_count = block.x * block.y * block.z;
    vote_any[0] = vote_any[1] = 0;
    vote_all[0] = vote_all[1] = 1;
    unsigned char *memory =
        shared ? static_cast<unsigned char *>(std::aligned_alloc(128, (shared + 127) / 128 * 128))
               : nullptr;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t b = 0; b < blocks; b++) {
        if (shared)
            std::memset(memory, 0xff, shared);
        live = thread_count;
        for (unsigned i = 0; i < thread_count; i++) {
            fiber *f = &fibers[i];
            f->view = {{i % block.x, i / block.x % block.y, i / (block.x * block.y)},
                       {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                        (unsigned)(b / ((uint64_t)grid.x * grid.y))},
                       block,
                       grid,
                       memory};
            f->state = FIBER_READY;
            f->exchanges = f->votes = f->copy_group = 0;
            f->site = nullptr;
        }
        run_block_threads();
    }
    std::free(memory);
}

} // namespace cudasim
