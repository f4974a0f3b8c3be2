// SPDX-License-Identifier: Apache-2.0
/* The simulated CUDA runtime: memory, streams, events, failures.
 *
 * Problem: on a machine without a GPU, code that forgets to wait for a copy still works when every
 * call is executed at once.
 * Choice: nothing runs when it is queued. Work runs when somebody waits for it, and then in the
 * order that hurts most: LAZY does only what the wait needs (whoever reads without waiting sees old
 * bytes), EAGER lets all other streams run ahead first (whoever overwrites without waiting destroys
 * bytes that are still needed), SHUFFLED draws an interleaving from a seed. Copies from or to
 * memory that is not registered behave as CUDA's pageable ones: done when the call returns.
 * Device memory comes from the heap, so AddressSanitizer guards it; new memory holds NaN bits.
 * Invariant: every entry point holds one lock; a lost device answers every call with the same
 * error.
 */
#include "fibers.h"

#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

using cudasim::enqueue_host;

struct event_state {
    uint64_t recorded = 0, completed = 0;
    CUstream_st *stream = nullptr;
    std::chrono::steady_clock::time_point time;
};

struct CUevent_st {
    std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

struct operation {
    const char *name;
    std::function<void()> work;                /* or empty */
    std::shared_ptr<event_state> record, wait; /* with `version` */
    uint64_t version = 0;
};

struct CUstream_st {
    std::deque<operation> queue;
};

namespace
{

std::recursive_mutex lock;
std::vector<CUstream_st *> streams;
std::map<uintptr_t, size_t> device_memory, host_memory;
std::map<const void *, int> shared_limits;
uint64_t memory_limit = (uint64_t)1 << 30, memory_used, launches;
uint64_t mallocs_left = UINT64_MAX;
int device_count = 1, driver = CUDART_VERSION;
uint64_t fault_left[CUDASIM_FAULT_COUNT];
cudasim_stream_order stream_order = CUDASIM_STREAMS_LAZY;
uint64_t stream_seed = 1;
cudaError_t sticky = cudaSuccess, last = cudaSuccess;

/* New memory holds NaN bits up to here; filling 80 MiB at every opening would dominate the tests.
 */
constexpr size_t POISON_BYTES = 2u << 20;

using guard = std::lock_guard<std::recursive_mutex>;

/* True once, at the n-th call after the fault was armed. */
bool strikes(cudasim_fault fault)
{
    return fault_left[fault] && --fault_left[fault] == 0;
}

cudaError_t result(cudaError_t error)
{
    if (sticky != cudaSuccess)
        error = sticky;
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last = error;
    return error;
}

const size_t *find_range(const std::map<uintptr_t, size_t> &ranges, const void *pointer,
                         size_t bytes)
{
    auto it = ranges.upper_bound(reinterpret_cast<uintptr_t>(pointer));
    if (it == ranges.begin())
        return nullptr;
    --it;
    uintptr_t offset = reinterpret_cast<uintptr_t>(pointer) - it->first;
    return offset <= it->second && bytes <= it->second - offset && (bytes || offset < it->second)
               ? &it->second
               : nullptr;
}

bool on_device(const void *pointer, size_t bytes)
{
    return find_range(device_memory, pointer, bytes) != nullptr;
}

bool pinned(const void *pointer, size_t bytes)
{
    return find_range(host_memory, pointer, bytes) != nullptr;
}

bool head_runs(CUstream_st *stream)
{
    if (stream->queue.empty())
        return false;
    operation &head = stream->queue.front();
    return !head.wait || head.wait->completed >= head.version;
}

void run_head(CUstream_st *stream)
{
    operation head = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (sticky == cudaSuccess && head.work) {
        if (strikes(CUDASIM_FAULT_LOST))
            sticky = cudaErrorLaunchFailure;
        else
            head.work();
    }
    if (head.record) {
        head.record->completed = std::max(head.record->completed, head.version);
        head.record->time = std::chrono::steady_clock::now();
    }
}

uint64_t random_next()
{
    stream_seed = stream_seed * 6364136223846793005u + 1442695040888963407u;
    return stream_seed >> 33;
}

/* Run the stream until `done`, and what its waits need. */
void run_until(CUstream_st *stream, const std::function<bool()> &done)
{
    while (!done() && !stream->queue.empty()) {
        operation &head = stream->queue.front();
        if (!head_runs(stream)) {
            std::shared_ptr<event_state> event = head.wait;
            uint64_t version = head.version;
            run_until(event->stream, [&] { return event->completed >= version; });
            if (event->completed < version)
                return; /* its stream is gone: a lost wait */
        }
        run_head(stream);
    }
}

void run_others(CUstream_st *target)
{
    for (bool progress = true; progress;) {
        progress = false;
        for (CUstream_st *stream : streams)
            while (stream != target && head_runs(stream)) {
                run_head(stream);
                progress = true;
            }
    }
}

void demand(CUstream_st *stream, const std::function<bool()> &done)
{
    if (stream_order == CUDASIM_STREAMS_EAGER)
        run_others(stream);
    if (stream_order == CUDASIM_STREAMS_SHUFFLED)
        while (!done()) {
            std::vector<CUstream_st *> ready;
            for (CUstream_st *candidate : streams)
                if (head_runs(candidate))
                    ready.push_back(candidate);
            if (ready.empty())
                break;
            run_head(ready[random_next() % ready.size()]);
        }
    run_until(stream, done);
}

cudaError_t push(cudaStream_t stream, operation op)
{
    if (!stream)
        return result(cudaErrorInvalidValue); /* the module uses streams of its own only */
    if (sticky == cudaSuccess)
        stream->queue.push_back(std::move(op));
    return result(cudaSuccess);
}

void synchronize(cudaStream_t stream)
{
    demand(stream, [stream] { return stream->queue.empty(); });
}

} // namespace

/* Whole programs are steered by the environment: SLUICE_CUDASIM_STREAMS=lazy|eager|SEED (shuffled),
 * SLUICE_CUDASIM_THREADS=forward|reverse|SEED,
 * SLUICE_CUDASIM_LOST=N (the device is lost at its N-th operation), SLUICE_CUDASIM_MEMORY=BYTES,
 * SLUICE_CUDASIM_MALLOCS=N (every cudaMalloc after the N-th fails). */
__attribute__((constructor)) static void read_environment()
{
    if (const char *order = std::getenv("SLUICE_CUDASIM_STREAMS")) {
        stream_seed = std::strtoull(order, nullptr, 10);
        stream_order = std::strcmp(order, "lazy") == 0    ? CUDASIM_STREAMS_LAZY
                       : std::strcmp(order, "eager") == 0 ? CUDASIM_STREAMS_EAGER
                                                          : CUDASIM_STREAMS_SHUFFLED;
    }
    if (const char *order = std::getenv("SLUICE_CUDASIM_THREADS"))
        cudasim::schedule = {std::strcmp(order, "forward") == 0   ? CUDASIM_THREADS_FORWARD
                             : std::strcmp(order, "reverse") == 0 ? CUDASIM_THREADS_REVERSE
                                                                  : CUDASIM_THREADS_SHUFFLED,
                             std::strtoull(order, nullptr, 10)};
    if (const char *lost = std::getenv("SLUICE_CUDASIM_LOST"))
        fault_left[CUDASIM_FAULT_LOST] = std::strtoull(lost, nullptr, 10);
    if (const char *memory = std::getenv("SLUICE_CUDASIM_MEMORY"))
        memory_limit = std::strtoull(memory, nullptr, 10);
    if (const char *mallocs = std::getenv("SLUICE_CUDASIM_MALLOCS"))
        mallocs_left = std::strtoull(mallocs, nullptr, 10);
}

cudaError_t cudasim::enqueue_host(cudaStream_t stream, const char *name, std::function<void()> work)
{
    guard hold(lock);
    operation op{};
    op.name = name;
    op.work = std::move(work);
    return push(stream, std::move(op));
}

void cudasim::launch_closure(const char *name, const void *function, dim3 grid, dim3 block,
                             size_t shared, cudaStream_t stream, std::function<void()> thread_body)
{
    guard hold(lock);
    launches++;
    size_t threads = (size_t)block.x * block.y * block.z;
    auto limit = shared_limits.find(function);
    size_t shared_max = limit == shared_limits.end() ? 48u << 10 : (size_t)limit->second;
    bool valid = threads >= 1 && threads <= BLOCK_THREADS_MAX && block.z <= 64 && grid.x >= 1 &&
                 grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 &&
                 grid.z <= 65535 && shared <= shared_max;
    if (!valid) {
        result(cudaErrorInvalidConfiguration);
        return;
    }
    if (strikes(CUDASIM_FAULT_LAUNCH)) {
        result(cudaErrorLaunchFailure);
        return;
    }
    enqueue_host(stream, name, [=] { run_grid(grid, block, shared, thread_body); });
}

cudaError_t cudasim_func_shared_limit(const void *function, int bytes)
{
    guard hold(lock);
    if (bytes < 0 || bytes > 99 << 10) /* the smallest limit of the targets: sm_89 */
        return result(cudaErrorInvalidValue);
    shared_limits[function] = bytes;
    return result(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    guard hold(lock);
    *count = 0;
    if (driver < CUDART_VERSION / 1000 * 1000)
        return result(cudaErrorInsufficientDriver);
    if (!device_count)
        return result(cudaErrorNoDevice);
    *count = device_count;
    return result(cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    guard hold(lock);
    return result(device >= 0 && device < device_count ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    guard hold(lock);
    if (device < 0 || device >= device_count)
        return result(cudaErrorInvalidDevice);
    *properties = {"simulated CUDA device", memory_limit, 8, 0, 4};
    return result(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    guard hold(lock);
    *total_bytes = memory_limit;
    *free_bytes = memory_limit - memory_used;
    return result(cudaSuccess);
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    guard hold(lock);
    *memory = nullptr;
    if (sticky != cudaSuccess)
        return result(sticky);
    if (strikes(CUDASIM_FAULT_MALLOC) || bytes > memory_limit - memory_used || !mallocs_left)
        return result(cudaErrorMemoryAllocation);
    mallocs_left--;
    if (!bytes)
        return result(cudaSuccess);
    void *made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!made)
        return result(cudaErrorMemoryAllocation);
    std::memset(made, 0xff, std::min<size_t>(bytes, POISON_BYTES));
    device_memory[reinterpret_cast<uintptr_t>(made)] = bytes;
    memory_used += bytes;
    *memory = made;
    return result(cudaSuccess);
}

cudaError_t cudaFree(void *memory)
{
    guard hold(lock);
    if (!memory)
        return result(cudaSuccess);
    for (CUstream_st *stream : streams) /* as CUDA does: free waits for the device */
        synchronize(stream);
    auto it = device_memory.find(reinterpret_cast<uintptr_t>(memory));
    if (it == device_memory.end())
        return result(cudaErrorInvalidValue);
    memory_used -= it->second;
    device_memory.erase(it);
    std::free(memory);
    return result(cudaSuccess);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    guard hold(lock);
    if (fault_left[CUDASIM_FAULT_HOST_REGISTER] == 1)
        return result(cudaErrorMemoryAllocation);
    if (fault_left[CUDASIM_FAULT_HOST_REGISTER])
        fault_left[CUDASIM_FAULT_HOST_REGISTER]--;
    if (!memory || !bytes)
        return result(cudaErrorInvalidValue);
    if (pinned(memory, 1))
        return result(cudaErrorHostMemoryAlreadyRegistered);
    host_memory[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return result(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *memory)
{
    guard hold(lock);
    for (CUstream_st *stream : streams)
        synchronize(stream);
    return result(host_memory.erase(reinterpret_cast<uintptr_t>(memory))
                      ? cudaSuccess
                      : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    guard hold(lock);
    void *same = const_cast<void *>(pointer);
    if (on_device(pointer, 1))
        *attributes = {cudaMemoryTypeDevice, 0, same, nullptr};
    else if (pinned(pointer, 1))
        *attributes = {cudaMemoryTypeHost, 0, same, same};
    else
        *attributes = {cudaMemoryTypeUnregistered, 0, nullptr, same};
    return result(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream)
{
    guard hold(lock);
    if (!bytes)
        return result(cudaSuccess);
    operation op{};
    op.name = "copy";
    op.work = [=] { std::memmove(to, from, bytes); };
    bool asynchronous = (on_device(to, bytes) || pinned(to, bytes)) &&
                        (on_device(from, bytes) || pinned(from, bytes));
    if (!asynchronous && !on_device(to, bytes) && !on_device(from, bytes))
        return result(cudaErrorInvalidValue); /* neither end lies wholly in one device allocation */
    cudaError_t error = push(stream, std::move(op));
    if (error == cudaSuccess && !asynchronous)
        synchronize(stream);
    return result(error);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    guard hold(lock);
    if (!bytes)
        return result(cudaSuccess);
    if (!on_device(memory, bytes) && !pinned(memory, bytes))
        return result(cudaErrorInvalidValue);
    operation op{};
    op.name = "memset";
    op.work = [=] { std::memset(memory, value, bytes); };
    return push(stream, std::move(op));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    guard hold(lock);
    if (sticky != cudaSuccess)
        return result(sticky);
    *stream = new CUstream_st;
    streams.push_back(*stream);
    return result(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    guard hold(lock);
    synchronize(stream);
    streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
    delete stream;
    return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    guard hold(lock);
    synchronize(stream);
    return result(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    guard hold(lock);
    if (!event->state->recorded)
        return result(cudaSuccess); /* as CUDA: an event never recorded is complete */
    operation op{};
    op.name = "wait";
    op.wait = event->state;
    op.version = event->state->recorded;
    return push(stream, std::move(op));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    guard hold(lock);
    if (sticky != cudaSuccess)
        return result(sticky);
    *event = new CUevent_st;
    return result(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    guard hold(lock);
    delete event;
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    guard hold(lock);
    operation op{};
    op.name = "record";
    op.record = event->state;
    op.version = ++event->state->recorded;
    event->state->stream = stream;
    return push(stream, std::move(op));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    guard hold(lock);
    event_state &state = *event->state;
    return result(state.completed >= state.recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    guard hold(lock);
    std::shared_ptr<event_state> state = event->state;
    uint64_t version = state->recorded;
    if (version)
        demand(state->stream, [=] { return state->completed >= version; });
    return result(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    guard hold(lock);
    std::chrono::duration<float, std::milli> span = end->state->time - start->state->time;
    *milliseconds = span.count();
    return result(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    guard hold(lock);
    for (CUstream_st *stream : streams)
        synchronize(stream);
    return result(cudaSuccess);
}

cudaError_t cudaGetLastError(void)
{
    guard hold(lock);
    cudaError_t error = last;
    last = cudaSuccess;
    return sticky != cudaSuccess ? sticky : error;
}

cudaError_t cudaPeekAtLastError(void)
{
    guard hold(lock);
    return sticky != cudaSuccess ? sticky : last;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    case cudaErrorInvalidConfiguration:
        return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
        return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    default:
        return "cudaError (simulated)";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

void cudasim_set_thread_order(enum cudasim_thread_order order, uint64_t seed)
{
    guard hold(lock);
    cudasim::schedule = {order, seed};
}

void cudasim_set_stream_order(enum cudasim_stream_order order, uint64_t seed)
{
    guard hold(lock);
    stream_order = order;
    stream_seed = seed;
}

void cudasim_fail(enum cudasim_fault fault, uint64_t nth)
{
    guard hold(lock);
    fault_left[fault] = nth;
}

void cudasim_memory(uint64_t bytes)
{
    guard hold(lock);
    memory_limit = bytes;
}

uint64_t cudasim_memory_used(void)
{
    guard hold(lock);
    return memory_used;
}

void cudasim_devices(int count)
{
    guard hold(lock);
    device_count = count;
}

void cudasim_driver_version(int version)
{
    guard hold(lock);
    driver = version;
}

uint64_t cudasim_pending(void)
{
    guard hold(lock);
    uint64_t count = 0;
    for (CUstream_st *stream : streams)
        count += stream->queue.size();
    return count;
}

uint64_t cudasim_launches(void)
{
    guard hold(lock);
    return launches;
}

void cudasim_reset(void)
{
    guard hold(lock);
    sticky = last = cudaSuccess;
    for (uint64_t &left : fault_left)
        left = 0;
    for (CUstream_st *stream : streams)
        stream->queue.clear();
    memory_limit = (uint64_t)1 << 30;
    device_count = 1;
    driver = CUDART_VERSION;
    stream_order = CUDASIM_STREAMS_LAZY;
    cudasim::schedule = {CUDASIM_THREADS_FORWARD, 1};
}
