// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/doctor.h"

static const struct sl_doctor_row *find(const struct sl_doctor *doctor, const char *name,
                                        const char *text)
{
    for (size_t i = 0; i < doctor->count; i++)
        if (!strcmp(doctor->rows[i].name, name) && strstr(doctor->rows[i].text, text))
            return &doctor->rows[i];
    fail_msg("no row %s with \"%s\"", name, text);
    return NULL;
}

static void this_machine_is_described(void **state)
{
    (void)state;
    struct sl_doctor doctor;
    char directory[] = "/tmp/sluice-test-doctor.XXXXXX";
    assert_non_null(mkdtemp(directory));
    const char *paths[] = {directory, "/nonexistent/swap"};
    struct sl_doctor_options options = {.nvme_paths = paths, .nvme_path_count = 2};
    sl_doctor_run(&doctor, &options);
    assert_true(doctor.count > 10 && doctor.count < SL_DOCTOR_ROWS_MAX);
    assert_true(find(&doctor, "NVMe path", directory)->verdict != SL_VERDICT_FAIL);
    const struct sl_doctor_row *missing = find(&doctor, "NVMe path", "/nonexistent/swap");
    assert_int_equal(missing->verdict, SL_VERDICT_FAIL);
    assert_true(missing->remedy[0] != 0);
    assert_int_equal(find(&doctor, "host", "")->verdict, SL_VERDICT_OKAY);
    assert_int_equal(sl_doctor_failures(&doctor), 1);
    find(&doctor, "cores", "NUMA node");
    /* Nothing was left behind. */
    assert_int_equal(rmdir(directory), 0);
    /* What is missing comes with what to do. */
    for (size_t i = 0; i < doctor.count; i++)
        if (doctor.rows[i].verdict == SL_VERDICT_FAIL)
            assert_true(doctor.rows[i].remedy[0] != 0);
}

static void both_renderings_say_the_same(void **state)
{
    (void)state;
    struct sl_doctor doctor;
    sl_doctor_run(&doctor, NULL);
    snprintf(doctor.rows[0].text, sizeof(doctor.rows[0].text), "a \"quoted\" text");
    doctor.rows[1].verdict = SL_VERDICT_FAIL;
    char *text = sl_doctor_text(&doctor), *json = sl_doctor_json(&doctor);
    assert_non_null(text);
    json_error_t error;
    json_t *root = json_loads(json, 0, &error);
    if (!root)
        fail_msg("%s", error.text);
    json_t *rows = json_object_get(root, "rows");
    assert_int_equal(json_array_size(rows), doctor.count);
    assert_int_equal(json_integer_value(json_object_get(root, "failures")), 1);
    for (size_t i = 0; i < doctor.count; i++) {
        json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "text")), doctor.rows[i].text);
        assert_non_null(strstr(text, doctor.rows[i].text));
        assert_non_null(strstr(text, doctor.rows[i].remedy));
    }
    assert_non_null(strstr(text, "[OKAY]"));
    assert_non_null(strstr(text, "[FAIL]"));
    json_decref(root);
    free(text);
    free(json);
}

/* A machine in a container: 2 GiB of 16, half a core's time, huge pages off. */
static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_container_is_seen_as_it_is(void **state)
{
    (void)state;
    char root[] = "/tmp/sluice-test-root.XXXXXX";
    assert_non_null(mkdtemp(root));
    write_file(root, "/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
    write_file(root, "/proc/self/cgroup", "0::/\n");
    write_file(root, "/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    write_file(root, "/sys/fs/cgroup/memory.max", "2147483648\n");
    write_file(root, "/sys/fs/cgroup/memory.current", "0\n");
    write_file(root, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
    write_file(root, "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    struct sl_doctor doctor;
    struct sl_doctor_options options = {.root = root};
    sl_doctor_run(&doctor, &options);
    find(&doctor, "cgroup limit", "2.00 GiB");
    find(&doctor, "cpu quota", "0.50 cores");
    assert_int_equal(find(&doctor, "huge pages", "never")->verdict, SL_VERDICT_NO);
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_machine_is_described),
        cmocka_unit_test(both_renderings_say_the_same),
        cmocka_unit_test(a_container_is_seen_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
