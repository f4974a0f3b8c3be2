// SPDX-License-Identifier: Apache-2.0
/* What the engine takes of a machine, on machines that hwloc makes up. */
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "offload/topology.h"

/* Workers of an engine that computes on `device`; threads 0: as many as it chooses. */
static size_t workers_of(const char *device, const char *nvme_path, size_t threads)
{
    struct sl_error error = {0};
    struct sl_model model;
    struct sl_engine engine;
    if (sl_model_from_preset(&model, "tiny", &error))
        fail_msg("%s", error.message);
    struct sl_engine_options options = {
        .step = {.model = &model,
                 .precision = SL_BF16,
                 .batch = 1,
                 .sequence = 8,
                 .micro_batches = 1,
                 .group = 1,
                 .hyper = {.kind = SL_OPTIM_ADAMW}},
        .device = device,
        .thread_count = threads,
        .swap = {.paths = &nvme_path, .path_count = nvme_path != NULL},
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        options.step.placement.fraction[kind][SL_TIER_HOST] = 1;
    if (sl_engine_plan(&engine, &options, &error))
        fail_msg("%s", error.message);
    size_t count = sl_workers_thread_count(engine.workers);
    sl_engine_finish(&engine);
    sl_model_finish(&model);
    return count;
}

static void a_core_is_left_where_data_moves(void **state)
{
    (void)state;
    struct sl_topology topology;
    setenv("HWLOC_SYNTHETIC", "core:8 pu:1", 1);
    assert_int_equal(sl_topology_read(&topology, NULL, NULL), 0);
    assert_int_equal(topology.core_count, 8);
    bool limited = topology.cpu_quota > 0 && topology.cpu_quota < 8;
    size_t all = limited ? (size_t)fmax(1, topology.cpu_quota + 0.5) : 8;
    size_t rest = limited ? all : 7; /* of fewer cores none can be spared */
    assert_int_equal(workers_of("host", NULL, 0), all);
    assert_int_equal(workers_of("host", "/tmp", 0), rest);
    assert_int_equal(workers_of("host:discrete", NULL, 0), rest);
    assert_int_equal(workers_of("host:discrete", "/tmp", 3), 3);
    setenv("HWLOC_SYNTHETIC", "core:4 pu:1", 1);
    assert_int_equal(workers_of("host:discrete", "/tmp", 0), all < 4 ? all : 4);
    unsetenv("HWLOC_SYNTHETIC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_is_left_where_data_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
