// SPDX-License-Identifier: Apache-2.0
/* Discrete events over a plan.
 *
 * Problem   A prediction of the step on a machine that is not here, good enough to choose a
 *           schedule by. Adding up bytes over bandwidths misses what decides: who waits for whom,
 *           and that lanes that look separate share DRAM, cores, the link and the drive.
 * Choice    The executor's rules with time in place of work. An operation in work first passes its
 *           latency, then progresses at a rate. Rates are max-min fair: all operations in work are
 *           raised together, as shares of the speed that each would have alone, until a resource
 *           is used up; those that use it stay there, the others go on. They change only when an
 *           operation starts or ends, so the clock jumps from one such moment to the next.
 * Compute   A layer is products and streaming kernels one after the other, so alone it takes
 *           flops / rate + bytes / bandwidth, not the larger of the two.
 *           On the cores every product also takes in its weights (widening, packing), which is
 *           what makes products of few rows slow.
 * NVMe      Bytes pass DRAM twice: the transfer, and the checksum that follows or precedes it,
 *           for which cores are drawn on.
 * Rejected  Queueing formulas (no waits between lanes), and packet-level models of link and drive
 *           (inputs that nobody can state).
 */
#include "offload/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/trace.h"

#define INSTANCES_IN_FLIGHT 2
#define NVME_IN_FLIGHT 16 /* as in the executor */
#define RUNNING_MAX (SL_LANE_COUNT + 2 * NVME_IN_FLIGHT)

struct running {
    const struct sl_op *op;
    uint32_t instance;
    uint64_t position; /* absolute, in its lane */
    double start_seconds, latency_seconds;
    double left;      /* share of the work that is left */
    double solo_rate; /* shares per second alone */
    double rate;
    double demand[SL_RESOURCE_COUNT]; /* units of the whole operation */
};

struct lane {
    uint32_t instance, index; /* next to start */
    uint64_t counter;         /* finished prefix, absolute */
    uint32_t in_flight;
    uint32_t blocker; /* lane that its next operation waits for; SL_LANE_COUNT: none */
    bool finished[NVME_IN_FLIGHT];
};

struct simulate {
    const struct sl_simulation_options *options;
    const struct sl_plan *plan;
    double capacity[SL_RESOURCE_COUNT]; /* per second; infinity: no limit */
    uint32_t *lane_ops;
    uint32_t lane_first[SL_PLAN_SEGMENTS_MAX][SL_LANE_COUNT];
    uint64_t (*base)[SL_LANE_COUNT]; /* per instance */
    double *end_seconds;             /* per instance */
    uint32_t finished_instances;     /* prefix */
    struct lane lanes[SL_LANE_COUNT];
    struct running running[RUNNING_MAX];
    uint32_t running_count;
    double now_seconds, measure_from_seconds;
    double busy_seconds[SL_LANE_COUNT], used[SL_RESOURCE_COUNT];
    double blocked_seconds[SL_LANE_COUNT][SL_LANE_COUNT];
};

const char *sl_resource_name(enum sl_resource resource)
{
    static const char *const names[SL_RESOURCE_COUNT] = {
        "device flops", "device memory", "link up",    "link down", "link", "cores",
        "dram",         "nvme read",     "nvme write", "nvme",      "net"};
    return (unsigned)resource < SL_RESOURCE_COUNT ? names[resource] : "?";
}

struct sl_hardware sl_hardware_share(const struct sl_hardware *hardware, uint32_t ranks)
{
    struct sl_hardware share = *hardware;
    double in_host = fmin(ranks > 0 ? ranks : 1, fmax(1, hardware->ranks_per_host));
    double link = hardware->link_host_bytes_per_second / in_host;
    if (link > 0) {
        share.link_up_bytes_per_second = fmin(share.link_up_bytes_per_second, link);
        share.link_down_bytes_per_second = fmin(share.link_down_bytes_per_second, link);
    }
    share.host_memory_bytes /= in_host;
    share.host_bytes_per_second /= in_host;
    share.host_cores /= in_host;
    share.nvme_bytes /= in_host;
    share.nvme_read_bytes_per_second /= in_host;
    share.nvme_write_bytes_per_second /= in_host;
    share.nvme_mixed_bytes_per_second /= in_host;
    return share;
}

/* A drive or link that does both directions at once at `both` bytes per second, half of it each
 * way, does so many seconds' worth of either direction alone in a second: between 1 (turns) and 2.
 */
static double directions(double both, double one, double other)
{
    return both > 0 && one > 0 && other > 0 ? fmax(1, both / 2 / one + both / 2 / other) : INFINITY;
}

static void set_capacities(double capacity[SL_RESOURCE_COUNT], const struct sl_hardware *hardware)
{
    const struct sl_hardware *h = hardware;
    capacity[SL_RESOURCE_DEVICE_FLOPS] = h->device_flops_per_second;
    capacity[SL_RESOURCE_DEVICE_MEMORY] = h->device_bytes_per_second;
    capacity[SL_RESOURCE_LINK_UP] = h->link_up_bytes_per_second;
    capacity[SL_RESOURCE_LINK_DOWN] = h->link_down_bytes_per_second;
    capacity[SL_RESOURCE_LINK] = directions(
        h->link_both_bytes_per_second, h->link_up_bytes_per_second, h->link_down_bytes_per_second);
    capacity[SL_RESOURCE_CORES] = h->host_cores;
    capacity[SL_RESOURCE_DRAM] = h->host_bytes_per_second;
    capacity[SL_RESOURCE_NVME_READ] = h->nvme_read_bytes_per_second;
    capacity[SL_RESOURCE_NVME_WRITE] = h->nvme_write_bytes_per_second;
    capacity[SL_RESOURCE_NVME] =
        directions(h->nvme_mixed_bytes_per_second, h->nvme_read_bytes_per_second,
                   h->nvme_write_bytes_per_second);
    capacity[SL_RESOURCE_NET] = h->net_bytes_per_second;
}

/* Where no rate is stated it costs nothing. */
static double core_seconds(uint64_t bytes, double rate)
{
    return rate > 0 ? (double)bytes / rate : 0;
}

/* What the whole operation draws on each resource. */
static void set_demand(double demand[SL_RESOURCE_COUNT], const struct sl_hardware *hardware,
                       const struct sl_op *op)
{
    double bytes = (double)op->bytes;
    for (int r = 0; r < SL_RESOURCE_COUNT; r++)
        demand[r] = 0;
    if (!op->expected)
        return; /* passed over */
    switch (op->lane) {
    case SL_LANE_COMPUTE:
        if (hardware->device_is_host) {
            demand[SL_RESOURCE_CORES] =
                op->flops / hardware->core_flops_per_second +
                core_seconds(op->product_bytes, hardware->core_weight_bytes_per_second);
            demand[SL_RESOURCE_DRAM] = bytes;
        } else {
            demand[SL_RESOURCE_DEVICE_FLOPS] = op->flops;
            demand[SL_RESOURCE_DEVICE_MEMORY] = bytes;
        }
        break;
    case SL_LANE_H2D:
    case SL_LANE_D2H:
        demand[op->lane == SL_LANE_H2D ? SL_RESOURCE_LINK_UP : SL_RESOURCE_LINK_DOWN] = bytes;
        demand[SL_RESOURCE_LINK] =
            bytes / (op->lane == SL_LANE_H2D ? hardware->link_up_bytes_per_second
                                             : hardware->link_down_bytes_per_second);
        demand[SL_RESOURCE_DRAM] = hardware->device_is_host ? 2 * bytes : bytes;
        if (hardware->device_is_host) /* a thread copies */
            demand[SL_RESOURCE_CORES] = 2 * bytes / hardware->core_bytes_per_second;
        else
            demand[SL_RESOURCE_DEVICE_MEMORY] = bytes;
        break;
    case SL_LANE_CPU:
    case SL_LANE_CONTROL:
        demand[SL_RESOURCE_CORES] = bytes / hardware->core_bytes_per_second;
        demand[SL_RESOURCE_DRAM] = bytes;
        break;
    case SL_LANE_NVME_READ:
    case SL_LANE_NVME_WRITE:
        demand[op->lane == SL_LANE_NVME_READ ? SL_RESOURCE_NVME_READ : SL_RESOURCE_NVME_WRITE] =
            bytes;
        demand[SL_RESOURCE_NVME] =
            bytes / (op->lane == SL_LANE_NVME_READ ? hardware->nvme_read_bytes_per_second
                                                   : hardware->nvme_write_bytes_per_second);
        demand[SL_RESOURCE_CORES] = core_seconds(op->bytes, hardware->core_nvme_bytes_per_second);
        demand[SL_RESOURCE_DRAM] = 2 * bytes;
        break;
    case SL_LANE_NET:
        demand[SL_RESOURCE_NET] = bytes;
        break;
    case SL_LANE_COUNT:
        break;
    }
}

static double latency_of(const struct sl_hardware *hardware, const struct sl_op *op)
{
    if (!op->expected)
        return 0;
    switch (op->lane) {
    case SL_LANE_COMPUTE:
        return hardware->device_op_seconds;
    case SL_LANE_H2D:
    case SL_LANE_D2H:
        return hardware->link_op_seconds;
    case SL_LANE_CPU:
    case SL_LANE_CONTROL:
        return hardware->host_op_seconds;
    case SL_LANE_NVME_READ:
    case SL_LANE_NVME_WRITE:
        return hardware->nvme_op_seconds;
    case SL_LANE_NET:
        return hardware->net_op_seconds;
    case SL_LANE_COUNT:
        break;
    }
    return 0;
}

/* Seconds of work alone, latency left out. A rate_share below 1 makes it longer without drawing
 * more: a program that does not reach the machine's rate. */
static double solo_seconds(const double demand[SL_RESOURCE_COUNT],
                           const double capacity[SL_RESOURCE_COUNT], const struct sl_op *op)
{
    double longest = 0, sum = 0;
    for (int r = 0; r < SL_RESOURCE_COUNT; r++) {
        if (demand[r] <= 0)
            continue;
        longest = fmax(longest, demand[r] / capacity[r]);
        sum += demand[r] / capacity[r];
    }
    double share = op->rate_share > 0 && op->rate_share < 1 ? op->rate_share : 1;
    return (op->lane == SL_LANE_COMPUTE ? sum : longest) / share;
}

double sl_simulate_op_seconds(const struct sl_hardware *hardware, const struct sl_op *op)
{
    double capacity[SL_RESOURCE_COUNT], demand[SL_RESOURCE_COUNT];
    set_capacities(capacity, hardware);
    set_demand(demand, hardware, op);
    return latency_of(hardware, op) + solo_seconds(demand, capacity, op);
}

void sl_simulate_op_draw(const struct sl_hardware *hardware, const struct sl_op *op,
                         double seconds[SL_RESOURCE_COUNT])
{
    double capacity[SL_RESOURCE_COUNT];
    set_capacities(capacity, hardware);
    set_demand(seconds, hardware, op);
    for (int r = 0; r < SL_RESOURCE_COUNT; r++)
        seconds[r] = seconds[r] > 0 ? seconds[r] / capacity[r] : 0;
}

/* ---- the executor's rules ------------------------------------------------------------------- */

static const struct sl_segment *segment_of(const struct simulate *sim, uint32_t instance)
{
    return &sim->plan->segments[sim->options->segments[instance]];
}

/* A lane with operations of the instance left; SL_LANE_COUNT: it has finished. */
static uint32_t unfinished_lane(const struct simulate *sim, uint32_t instance)
{
    uint32_t lane = 0;
    while (lane < SL_LANE_COUNT &&
           sim->lanes[lane].counter >=
               sim->base[instance][lane] + segment_of(sim, instance)->lane_count[lane])
        lane++;
    return lane;
}

/* A lane that the operation has to wait for; SL_LANE_COUNT: it may start. */
static uint32_t blocker_of(const struct simulate *sim, const struct sl_op *op, uint32_t instance)
{
    if (instance >= INSTANCES_IN_FLIGHT &&
        sim->finished_instances + INSTANCES_IN_FLIGHT < instance + 1)
        return unfinished_lane(sim, sim->finished_instances);
    for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++) {
        uint64_t counter = sim->lanes[lane].counter;
        if (op->wait[lane] && counter < sim->base[instance][lane] + op->wait[lane])
            return lane;
        if (!instance)
            continue;
        uint32_t wait = op->wait_previous[sim->options->segments[instance - 1]][lane];
        if (wait && counter < sim->base[instance - 1][lane] + wait)
            return lane;
    }
    return SL_LANE_COUNT;
}

static bool lane_is_nvme(uint32_t lane)
{
    return lane == SL_LANE_NVME_READ || lane == SL_LANE_NVME_WRITE;
}

static bool lane_has_room(const struct lane *lane, uint32_t id, uint64_t position)
{
    return lane_is_nvme(id) ? position - lane->counter < NVME_IN_FLIGHT : lane->in_flight == 0;
}

static void start_op(struct simulate *sim, uint32_t id, const struct sl_op *op, uint64_t position)
{
    struct lane *lane = &sim->lanes[id];
    struct running *run = &sim->running[sim->running_count++];
    *run = (struct running){.op = op,
                            .instance = lane->instance,
                            .position = position,
                            .start_seconds = sim->now_seconds,
                            .latency_seconds = latency_of(sim->options->hardware, op),
                            .left = 1};
    set_demand(run->demand, sim->options->hardware, op);
    double seconds = solo_seconds(run->demand, sim->capacity, op);
    run->solo_rate = seconds > 0 ? 1 / seconds : INFINITY;
    lane->in_flight++;
    lane->index++;
}

/* Start what may start; passes over instances in which a lane has nothing to do. */
static void start_ops(struct simulate *sim)
{
    for (uint32_t id = 0; id < SL_LANE_COUNT; id++) {
        struct lane *lane = &sim->lanes[id];
        lane->blocker = SL_LANE_COUNT;
        while (lane->instance < sim->options->segment_count) {
            if (lane->index >= segment_of(sim, lane->instance)->lane_count[id]) {
                lane->instance++;
                lane->index = 0;
                continue;
            }
            uint32_t s = sim->options->segments[lane->instance];
            const struct sl_op *op =
                &sim->plan->ops[sim->lane_ops[sim->lane_first[s][id] + lane->index]];
            uint64_t position = sim->base[lane->instance][id] + lane->index;
            if (!lane_has_room(lane, id, position))
                break;
            lane->blocker = blocker_of(sim, op, lane->instance);
            if (lane->blocker < SL_LANE_COUNT)
                break;
            start_op(sim, id, op, position);
        }
    }
}

static void note_instances(struct simulate *sim)
{
    while (sim->finished_instances < sim->options->segment_count) {
        uint32_t n = sim->finished_instances;
        if (unfinished_lane(sim, n) < SL_LANE_COUNT)
            return;
        sim->end_seconds[n] = sim->now_seconds;
        sim->finished_instances++;
        if (n + 1 + sim->options->measured == sim->options->segment_count)
            sim->measure_from_seconds = sim->now_seconds;
    }
}

static void finish_op(struct simulate *sim, uint32_t index)
{
    struct running *run = &sim->running[index];
    struct lane *lane = &sim->lanes[run->op->lane];
    if (sim->options->trace)
        sl_trace_add(sim->options->trace, run->op, run->instance,
                     (uint64_t)llround(run->start_seconds * 1e9),
                     (uint64_t)llround(sim->now_seconds * 1e9));
    if (sim->options->op_end_seconds)
        sim->options->op_end_seconds[run->op - sim->plan->ops] = sim->now_seconds;
    lane->in_flight--;
    lane->finished[run->position % NVME_IN_FLIGHT] = true;
    while (lane->finished[lane->counter % NVME_IN_FLIGHT]) {
        lane->finished[lane->counter % NVME_IN_FLIGHT] = false;
        lane->counter++;
    }
    *run = sim->running[--sim->running_count];
}

/* ---- rates ---------------------------------------------------------------------------------- */

/* Progressive filling. `share` of its solo speed is common to all that are not yet held back. */
static void set_rates(struct simulate *sim)
{
    double room[SL_RESOURCE_COUNT];
    bool fixed[RUNNING_MAX];
    uint32_t open = 0;
    memcpy(room, sim->capacity, sizeof(room));
    for (uint32_t i = 0; i < sim->running_count; i++) {
        fixed[i] = sim->running[i].latency_seconds > 0 || isinf(sim->running[i].solo_rate);
        sim->running[i].rate = fixed[i] ? 0 : sim->running[i].solo_rate;
        open += !fixed[i];
    }
    while (open) {
        double wanted[SL_RESOURCE_COUNT] = {0}, share = 1;
        for (uint32_t i = 0; i < sim->running_count; i++)
            for (int r = 0; r < SL_RESOURCE_COUNT && !fixed[i]; r++)
                wanted[r] += sim->running[i].demand[r] * sim->running[i].solo_rate;
        int tightest = -1;
        for (int r = 0; r < SL_RESOURCE_COUNT; r++)
            if (wanted[r] * share > room[r]) {
                share = room[r] / wanted[r];
                tightest = r;
            }
        for (uint32_t i = 0; i < sim->running_count; i++) {
            struct running *run = &sim->running[i];
            if (fixed[i] || (tightest >= 0 && run->demand[tightest] <= 0))
                continue;
            run->rate = run->solo_rate * share;
            fixed[i] = true;
            open--;
            for (int r = 0; r < SL_RESOURCE_COUNT; r++)
                room[r] = fmax(0, room[r] - run->demand[r] * run->rate);
        }
    }
}

/* Seconds until the next operation ends its latency or its work. */
static double next_event(const struct simulate *sim)
{
    double next = INFINITY;
    for (uint32_t i = 0; i < sim->running_count; i++) {
        const struct running *run = &sim->running[i];
        double seconds = run->latency_seconds > 0 ? run->latency_seconds
                         : isinf(run->solo_rate)  ? 0
                                                  : run->left / run->rate;
        next = fmin(next, seconds);
    }
    return next;
}

/* A lane that waits for one that waits itself is held up by the lane at the end of the chain. */
static void note_blocked(struct simulate *sim, double seconds)
{
    for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++) {
        uint32_t root = lane;
        for (int i = 0; i < SL_LANE_COUNT && root < SL_LANE_COUNT && !sim->lanes[root].in_flight;
             i++)
            root = sim->lanes[root].blocker;
        if (root != lane && root < SL_LANE_COUNT)
            sim->blocked_seconds[lane][root] += seconds;
    }
}

static void advance(struct simulate *sim, double seconds)
{
    bool busy[SL_LANE_COUNT] = {false};
    bool measured = sim->finished_instances + sim->options->measured >= sim->options->segment_count;
    sim->now_seconds += seconds;
    if (measured)
        note_blocked(sim, seconds);
    for (uint32_t i = 0; i < sim->running_count; i++) {
        struct running *run = &sim->running[i];
        busy[run->op->lane] = true;
        if (run->latency_seconds > 0) {
            run->latency_seconds -= seconds;
            if (run->latency_seconds < 1e-12)
                run->latency_seconds = 0;
            continue;
        }
        run->left -= run->rate * seconds;
        for (int r = 0; r < SL_RESOURCE_COUNT && measured; r++)
            sim->used[r] += run->demand[r] * run->rate * seconds;
    }
    for (int lane = 0; lane < SL_LANE_COUNT && measured; lane++)
        if (busy[lane])
            sim->busy_seconds[lane] += seconds;
    for (uint32_t i = sim->running_count; i-- > 0;) {
        const struct running *run = &sim->running[i];
        if (run->latency_seconds <= 0 && (run->left < 1e-9 || isinf(run->solo_rate)))
            finish_op(sim, i);
    }
}

/* ---- set-up and results --------------------------------------------------------------------- */

static int check_inputs(const struct sl_simulation_options *options, struct sl_error *error)
{
    const struct sl_plan *plan = options->plan;
    if (!plan->sealed || !options->segment_count || !options->measured ||
        options->measured > options->segment_count)
        return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                            "simulation of %u instances, %u measured, of a plan that is%s sealed",
                            options->segment_count, options->measured, plan->sealed ? "" : " not");
    double capacity[SL_RESOURCE_COUNT], demand[SL_RESOURCE_COUNT];
    set_capacities(capacity, options->hardware);
    for (uint32_t n = 0; n < options->segment_count; n++) {
        uint32_t s = options->segments[n];
        if (s >= plan->segment_count || (n && !plan->segments[s].follows[options->segments[n - 1]]))
            return sl_error_set(error, SL_DOMAIN_INTERNAL, -EINVAL,
                                "simulation: instance %u may not follow the one before it", n);
        const struct sl_segment *segment = &plan->segments[s];
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
            set_demand(demand, options->hardware, &plan->ops[i]);
            for (int r = 0; r < SL_RESOURCE_COUNT; r++)
                if (isnan(demand[r]) || isinf(demand[r]) || (demand[r] > 0 && !(capacity[r] > 0)))
                    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                        "hardware profile \"%s\": no rate for \"%s\", which the "
                                        "plan uses (%s)",
                                        options->hardware->name,
                                        sl_resource_name((enum sl_resource)r),
                                        sl_op_kind_name(plan->ops[i].kind));
        }
    }
    return 0;
}

static int set_up(struct simulate *sim)
{
    const struct sl_plan *plan = sim->plan;
    uint32_t count = sim->options->segment_count, used = 0;
    sim->lane_ops = calloc((size_t)plan->op_count + 1, sizeof(*sim->lane_ops));
    sim->base = calloc(count, sizeof(*sim->base));
    sim->end_seconds = calloc(count, sizeof(*sim->end_seconds));
    if (!sim->lane_ops || !sim->base || !sim->end_seconds)
        return -ENOMEM;
    for (uint32_t s = 0; s < plan->segment_count; s++) {
        const struct sl_segment *segment = &plan->segments[s];
        for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
            sim->lane_first[s][lane] = used;
            used += segment->lane_count[lane];
        }
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
            const struct sl_op *op = &plan->ops[i];
            sim->lane_ops[sim->lane_first[s][op->lane] + op->lane_index] = i;
        }
    }
    for (uint32_t n = 1; n < count; n++)
        for (int lane = 0; lane < SL_LANE_COUNT; lane++)
            sim->base[n][lane] = sim->base[n - 1][lane] + segment_of(sim, n - 1)->lane_count[lane];
    return 0;
}

/* The bound of the measured instances: each serial lane takes the sum of its operations, and each
 * resource the sum of what is drawn on it. Latencies of operations in flight side by side do not
 * add up, so NVMe lanes are bound by their resource only. */
static void set_bound(const struct simulate *sim, struct sl_simulation *out)
{
    double drawn[SL_RESOURCE_COUNT] = {0}, demand[SL_RESOURCE_COUNT];
    uint32_t count = sim->options->segment_count, measured = sim->options->measured;
    for (uint32_t n = count - measured; n < count; n++) {
        const struct sl_segment *segment = segment_of(sim, n);
        for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++) {
            const struct sl_op *op = &sim->plan->ops[i];
            set_demand(demand, sim->options->hardware, op);
            double seconds = solo_seconds(demand, sim->capacity, op);
            if (!lane_is_nvme(op->lane))
                seconds += latency_of(sim->options->hardware, op);
            out->solo_seconds[op->lane] += seconds / measured;
            for (int r = 0; r < SL_RESOURCE_COUNT; r++)
                drawn[r] += demand[r] / measured;
        }
    }
    for (uint32_t lane = 0; lane < SL_LANE_COUNT; lane++)
        if (out->solo_seconds[lane] > out->bound_seconds) {
            out->bound_seconds = out->solo_seconds[lane];
            out->bound_lane = (enum sl_lane)lane;
        }
    for (uint32_t r = 0; r < SL_RESOURCE_COUNT; r++)
        if (drawn[r] > 0 && drawn[r] / sim->capacity[r] > out->bound_seconds * (1 + 1e-9)) {
            out->bound_seconds = drawn[r] / sim->capacity[r];
            out->bound_resource = (enum sl_resource)r;
            out->bound_is_resource = true;
        }
}

static void set_results(const struct simulate *sim, struct sl_simulation *out)
{
    *out = (struct sl_simulation){0};
    double measured = sim->options->measured;
    double window = sim->now_seconds - sim->measure_from_seconds;
    out->total_seconds = sim->now_seconds;
    out->step_seconds = window / measured;
    for (int lane = 0; lane < SL_LANE_COUNT; lane++) {
        out->busy_seconds[lane] = sim->busy_seconds[lane] / measured;
        out->wait_seconds[lane] = out->step_seconds - out->busy_seconds[lane];
        for (int other = 0; other < SL_LANE_COUNT; other++)
            out->blocked_seconds[lane][other] = sim->blocked_seconds[lane][other] / measured;
    }
    for (int r = 0; r < SL_RESOURCE_COUNT; r++)
        if (sim->capacity[r] > 0 && !isinf(sim->capacity[r]) && window > 0)
            out->used_share[r] = sim->used[r] / (sim->capacity[r] * window);
    set_bound(sim, out);
}

static int run(struct simulate *sim, struct sl_error *error)
{
    note_instances(sim); /* empty segments */
    while (sim->finished_instances < sim->options->segment_count) {
        start_ops(sim);
        if (!sim->running_count)
            return sl_error_set(error, SL_DOMAIN_INTERNAL, -EDEADLK,
                                "simulation: nothing can start after %.6f s, in instance %u",
                                sim->now_seconds, sim->finished_instances);
        set_rates(sim);
        advance(sim, next_event(sim));
        note_instances(sim);
    }
    return 0;
}

int sl_simulate(struct sl_simulation *out, const struct sl_simulation_options *options,
                struct sl_error *error)
{
    int result = check_inputs(options, error);
    if (result)
        return result;
    struct simulate *sim = calloc(1, sizeof(*sim));
    if (!sim)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "simulation: out of memory");
    sim->options = options;
    sim->plan = options->plan;
    set_capacities(sim->capacity, options->hardware);
    result = set_up(sim);
    if (result)
        sl_error_set(error, SL_DOMAIN_MEMORY, result, "simulation: out of memory");
    else
        result = run(sim, error);
    if (!result)
        set_results(sim, out);
    free(sim->lane_ops);
    free(sim->base);
    free(sim->end_seconds);
    free(sim);
    return result;
}
