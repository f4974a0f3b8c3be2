// SPDX-License-Identifier: Apache-2.0
/* Machines that are not here: hwloc exports and control group trees, replayed. */
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/cgroup.h"
#include "offload/topology.h"

static struct sl_topology topology;

/* ---- files of a machine, in a folder of its own ---- */

static char root[256];

static void make_root(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof(root), "%s/sluice-topology-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(root));
}

static void put_file(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_root(void)
{
    char command[300];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static const char meminfo[] = "MemTotal:       33554432 kB\nMemFree:         1000000 kB\n"
                              "MemAvailable:   16777216 kB\n";

static const struct sl_topology *replay(const char *name, const char *affinity)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/topology/%s.xml", getenv("SLUICE_TEST_FIXTURES"), name);
    struct sl_topology_source source = {.xml_path = path, .root = root, .affinity = affinity};
    struct sl_error error = {0};
    if (sl_topology_read(&topology, &source, &error) < 0)
        fail_msg("%s", error.message);
    return &topology;
}

/* ---- cores and nodes ---- */

static void one_thread_per_core_of_two_nodes(void **state)
{
    (void)state;
    make_root();
    const struct sl_topology *t = replay("two-nodes-smt", NULL);
    assert_int_equal(t->core_count, 8);
    assert_int_equal(t->thread_count, 16);
    assert_int_equal(t->node_count, 2);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(t->cores[i].cpu, 2 * i);
        assert_int_equal(t->cores[i].node, i / 4);
    }
    for (int node = 0; node < 2; node++) {
        assert_int_equal(t->nodes[node].core_count, 4);
        assert_true(t->nodes[node].memory_bytes == UINT64_C(32) << 30);
    }
    /* Without /proc/meminfo the nodes' memory counts. */
    assert_true(t->memory_total_bytes == UINT64_C(64) << 30);
    assert_true(t->memory_limit_bytes == UINT64_C(64) << 30);
    remove_root();
}

static void affinity_is_respected(void **state)
{
    (void)state;
    make_root();
    const struct sl_topology *t = replay("two-nodes-smt", "3,9-11");
    assert_int_equal(t->core_count, 3);
    assert_int_equal(t->thread_count, 4);
    assert_int_equal(t->cores[0].cpu, 3); /* the second thread of its core: the allowed one */
    assert_int_equal(t->cores[1].cpu, 9);
    assert_int_equal(t->cores[2].cpu, 10);
    assert_int_equal(t->nodes[0].core_count, 1);
    assert_int_equal(t->nodes[1].core_count, 2);
    remove_root();
}

static void fast_cores_come_first(void **state)
{
    (void)state;
    make_root();
    const struct sl_topology *t = replay("hybrid", NULL);
    assert_int_equal(t->core_count, 6);
    assert_int_equal(t->cores[0].cpu, 0);
    assert_true(t->cores[0].efficiency > t->cores[5].efficiency);
    for (size_t i = 1; i < t->core_count; i++)
        assert_true(t->cores[i - 1].efficiency >= t->cores[i].efficiency);
    remove_root();
}

static void a_machine_without_cores_has_its_threads(void **state)
{
    (void)state;
    make_root();
    assert_int_equal(replay("threads-only", NULL)->core_count, 4);
    assert_int_equal(replay("virtual-2-cores", NULL)->core_count, 2);
    assert_int_equal(topology.node_count, 1);
    remove_root();
}

static void bad_sources_are_named(void **state)
{
    (void)state;
    struct sl_topology_source source = {.xml_path = "/nonexistent/machine.xml"};
    struct sl_error error = {0};
    assert_true(sl_topology_read(&topology, &source, &error) < 0);
    assert_non_null(strstr(error.message, "/nonexistent/machine.xml"));
    char path[512];
    snprintf(path, sizeof(path), "%s/topology/hybrid.xml", getenv("SLUICE_TEST_FIXTURES"));
    source = (struct sl_topology_source){.xml_path = path, .affinity = "500-501"};
    error = (struct sl_error){0};
    assert_int_equal(sl_topology_read(&topology, &source, &error), -EINVAL);
    assert_non_null(strstr(error.message, "affinity"));
}

static void this_machine_can_be_read(void **state)
{
    (void)state;
    struct sl_error error = {0};
    if (sl_topology_read(&topology, NULL, &error) < 0)
        fail_msg("%s", error.message);
    assert_true(topology.core_count >= 1 && topology.node_count >= 1);
    assert_true(topology.memory_total_bytes > 0);
    assert_true(topology.memory_limit_bytes <= topology.memory_total_bytes);
    assert_true(topology.memory_available_bytes <= topology.memory_total_bytes);
    print_message("%zu cores, %zu nodes, quota %.2f, %.1f GiB of %.1f available\n",
                  topology.core_count, topology.node_count, topology.cpu_quota,
                  (double)topology.memory_available_bytes * 0x1p-30,
                  (double)topology.memory_limit_bytes * 0x1p-30);
}

/* ---- control groups ---- */

static void version_2_takes_the_tightest_of_the_parents(void **state)
{
    (void)state;
    make_root();
    put_file("/proc/meminfo", meminfo);
    put_file("/proc/self/cgroup", "0::/pod/job\n");
    put_file("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
    put_file("/sys/fs/cgroup/pod/memory.max", "8589934592\n");
    put_file("/sys/fs/cgroup/pod/memory.current", "4294967296\n");
    put_file("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 1073741824\nx 3\n");
    put_file("/sys/fs/cgroup/pod/job/cpu.max", "max 100000\n");
    put_file("/sys/fs/cgroup/pod/job/memory.max", "max\n");
    const struct sl_topology *t = replay("two-nodes-smt", NULL);
    assert_true(t->cpu_quota == 2.5);
    assert_true(t->memory_total_bytes == UINT64_C(32) << 30);
    assert_true(t->memory_limit_bytes == UINT64_C(8) << 30);
    /* 8 GiB less 4 in use, of which 1 is page cache that can go. */
    assert_true(t->memory_available_bytes == UINT64_C(5) << 30);

    put_file("/sys/fs/cgroup/pod/job/memory.high", "2147483648\n");
    put_file("/sys/fs/cgroup/pod/job/cpu.max", "50000 100000\n");
    t = replay("two-nodes-smt", NULL);
    assert_true(t->cpu_quota == 0.5);
    assert_true(t->memory_limit_bytes == UINT64_C(2) << 30);
    remove_root();
}

/* In a container the path of /proc is the host's, and the mount is the group itself. */
static void a_namespace_hides_the_path(void **state)
{
    (void)state;
    make_root();
    put_file("/proc/self/cgroup", "0::/kubepods/burst/abc\n");
    put_file("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    put_file("/sys/fs/cgroup/memory.max", "1073741824\n");
    struct sl_cgroup_limits limits;
    sl_cgroup_read(&limits, root);
    assert_true(limits.cpu_quota == 4);
    assert_true(limits.memory_limit_bytes == UINT64_C(1) << 30);
    remove_root();
}

static void version_1_has_a_tree_per_controller(void **state)
{
    (void)state;
    make_root();
    put_file("/proc/self/cgroup",
             "12:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n");
    put_file("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "150000\n");
    put_file("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "50000\n");
    put_file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put_file("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "3221225472\n");
    put_file("/sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "1073741824\n");
    put_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    struct sl_cgroup_limits limits;
    sl_cgroup_read(&limits, root);
    assert_true(limits.cpu_quota == 3);
    assert_true(limits.memory_limit_bytes == UINT64_C(3) << 30);
    assert_true(limits.memory_available_bytes == UINT64_C(2) << 30);
    remove_root();
}

static void nothing_readable_does_not_limit(void **state)
{
    (void)state;
    make_root();
    struct sl_cgroup_limits limits;
    sl_cgroup_read(&limits, root);
    assert_true(limits.cpu_quota == 0 && limits.memory_limit_bytes == UINT64_MAX);
    put_file("/proc/self/cgroup", "nonsense\n0:\n::::\n0::/a\n");
    put_file("/sys/fs/cgroup/a/cpu.max", "");
    put_file("/sys/fs/cgroup/a/memory.max", "twelve\n");
    sl_cgroup_read(&limits, root);
    assert_true(limits.cpu_quota == 0 && limits.memory_limit_bytes == UINT64_MAX);
    remove_root();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_per_core_of_two_nodes),
        cmocka_unit_test(affinity_is_respected),
        cmocka_unit_test(fast_cores_come_first),
        cmocka_unit_test(a_machine_without_cores_has_its_threads),
        cmocka_unit_test(bad_sources_are_named),
        cmocka_unit_test(this_machine_can_be_read),
        cmocka_unit_test(version_2_takes_the_tightest_of_the_parents),
        cmocka_unit_test(a_namespace_hides_the_path),
        cmocka_unit_test(version_1_has_a_tree_per_controller),
        cmocka_unit_test(nothing_readable_does_not_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
