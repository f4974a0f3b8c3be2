// SPDX-License-Identifier: Apache-2.0
#include "tests/test.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "offload/trace.h"
#include "tests/offload/random_plan.h"

struct fixture {
    struct sl_plan plan;
    struct sl_trace *trace;
    char path[64];
};

static void open_fixture(struct fixture *f, uint32_t capacity)
{
    struct test_random random = test_random_seed(1);
    struct random_plan r;
    struct random_options o = random_plan_options(&random);
    o.optimizer_nvme[0] = true;
    random_plan_build(&r, &f->plan, o);
    struct sl_error error = {0};
    assert_int_equal(sl_trace_create(&f->trace, capacity, &error), 0);
    snprintf(f->path, sizeof(f->path), "/tmp/sluice-test-trace.XXXXXX");
    int file = mkstemp(f->path);
    assert_true(file >= 0);
    close(file);
}

static json_t *write_and_parse(struct fixture *f)
{
    struct sl_error error = {0};
    assert_int_equal(sl_trace_write(f->trace, &f->plan, f->path, &error), 0);
    json_error_t where;
    json_t *root = json_load_file(f->path, 0, &where);
    if (!root)
        fail_msg("line %d: %s", where.line, where.text);
    unlink(f->path);
    return root;
}

static void close_fixture(struct fixture *f)
{
    sl_trace_destroy(f->trace);
    sl_plan_finish(&f->plan);
}

static void every_operation_is_a_slice_on_its_lane(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 100000);
    snprintf(f.plan.segments[0].name, sizeof(f.plan.segments[0].name), "a \"b\"\\\n\x01");
    for (uint32_t i = 0; i < f.plan.op_count; i++)
        sl_trace_add(f.trace, &f.plan.ops[i], 3, 5000000 + 1000 * i, 5000000 + 1000 * i + 1500);
    json_t *root = write_and_parse(&f);
    json_t *events = json_object_get(root, "traceEvents");
    uint32_t slices = 0, names = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        const char *phase = json_string_value(json_object_get(event, "ph"));
        if (!strcmp(phase, "M"))
            names += !strcmp(json_string_value(json_object_get(event, "name")), "thread_name");
        if (strcmp(phase, "X") != 0)
            continue;
        json_t *args = json_object_get(event, "args");
        uint32_t index = (uint32_t)json_integer_value(json_object_get(args, "op"));
        assert_true(index < f.plan.op_count);
        if (index == 0)
            assert_string_equal(json_string_value(json_object_get(event, "cat")),
                                f.plan.segments[0].name);
        assert_true(json_number_value(json_object_get(event, "ts")) == index);
        assert_true(json_number_value(json_object_get(event, "dur")) == 1.5);
        assert_int_equal(json_integer_value(json_object_get(args, "instance")), 3);
        assert_true((uint64_t)json_integer_value(json_object_get(args, "bytes")) ==
                    f.plan.ops[index].bytes);
        slices++;
    }
    assert_int_equal(slices, f.plan.op_count);
    assert_true(names > 1);
    json_decref(root);
    close_fixture(&f);
}

/* Slices of a track may not overlap, or a viewer nests them wrongly. */
static void slices_of_a_track_do_not_overlap(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 1000);
    struct test_random random = test_random_seed(2);
    const struct sl_op *op = NULL;
    for (uint32_t i = 0; i < f.plan.op_count; i++)
        if (f.plan.ops[i].lane == SL_LANE_NVME_READ)
            op = &f.plan.ops[i];
    assert_non_null(op);
    for (uint64_t i = 0; i < 200; i++)
        sl_trace_add(f.trace, op, 0, i * 1000, i * 1000 + test_random_below(&random, 9000));
    json_t *root = write_and_parse(&f);
    json_t *events = json_object_get(root, "traceEvents");
    double end[1024] = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0)
            continue;
        json_int_t track = json_integer_value(json_object_get(event, "tid"));
        double start = json_number_value(json_object_get(event, "ts"));
        assert_true(track > 0 && track < 1024);
        assert_true(start >= end[track] - 1e-9);
        end[track] = start + json_number_value(json_object_get(event, "dur"));
    }
    json_decref(root);
    close_fixture(&f);
}

static void events_past_the_capacity_are_counted(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2);
    for (uint64_t i = 0; i < 5; i++)
        sl_trace_add(f.trace, &f.plan.ops[0], i, i * 10, i * 10 + 5);
    json_t *root = write_and_parse(&f);
    json_t *other = json_object_get(root, "otherData");
    assert_int_equal(json_integer_value(json_object_get(other, "events")), 2);
    assert_int_equal(json_integer_value(json_object_get(other, "dropped")), 3);
    json_decref(root);
    close_fixture(&f);
}

static void a_path_that_cannot_be_written_is_named(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 2);
    unlink(f.path);
    struct sl_error error = {0};
    assert_int_equal(sl_trace_write(f.trace, &f.plan, "/nonexistent/trace.json", &error), -ENOENT);
    assert_non_null(strstr(error.message, "/nonexistent/trace.json"));
    if (access("/dev/full", W_OK) == 0) {
        error = (struct sl_error){0};
        assert_true(sl_trace_write(f.trace, &f.plan, "/dev/full", &error) < 0);
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_a_slice_on_its_lane),
        cmocka_unit_test(slices_of_a_track_do_not_overlap),
        cmocka_unit_test(events_past_the_capacity_are_counted),
        cmocka_unit_test(a_path_that_cannot_be_written_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
