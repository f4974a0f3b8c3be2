// SPDX-License-Identifier: Apache-2.0
/* The stand-alone optimizer: the kernels' bits wherever the state is, resumed or not; what is
 * refused; what a drive's errors do. */
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/optimizer_internal.h"
#include "nvme/faults.h"

#define PARAMS 5
#define STEPS 6

static const uint64_t counts[PARAMS] = {1, 300, 65536, 350001, 70000};
static char directory[64];

struct setup {
    enum sl_optimizer_algorithm algorithm;
    enum sl_optimizer_state state;
    enum sl_optimizer_master master;
    enum sl_dtype dtype; /* of parameters 1 and up; 0 is f32 */
    /* What may not change bits. */
    bool nvme;
    uint64_t host_bytes_max, sub_group_elements;
    uint32_t buffers, threads;
    const struct sl_swap_faults *faults;
};

struct world {
    struct sl_optimizer *optimizer;
    void *weights[PARAMS], *gradients[PARAMS];
    struct test_random random;
};

static struct sl_optimizer_group group_of(bool second)
{
    return (struct sl_optimizer_group){.lr = second ? 3e-3 : 1e-2,
                                       .beta1 = 0.9,
                                       .beta2 = 0.99,
                                       .eps = 1e-8,
                                       .weight_decay = second ? 0 : 0.1,
                                       .momentum = 0.9,
                                       .bias_correction = true};
}

static enum sl_dtype dtype_of(const struct setup *setup, int i)
{
    return i == 0 ? SL_F32 : setup->dtype;
}

static void make_optimizer(struct world *w, const struct setup *s)
{
    const char *paths[] = {directory};
    struct sl_error error = {0};
    struct sl_optimizer_options options = {.algorithm = s->algorithm,
                                           .state = s->state,
                                           .master = s->master,
                                           .placement =
                                               s->nvme ? SL_OPTIMIZER_NVME : SL_OPTIMIZER_HOST,
                                           .paths = paths,
                                           .path_count = s->nvme,
                                           .host_bytes_max = s->host_bytes_max,
                                           .sub_group_elements = s->sub_group_elements,
                                           .buffers = s->buffers,
                                           .threads = s->threads,
                                           .unpinned = true,
                                           .seed = 7};
    assert_int_equal(sl_optimizer_create(&w->optimizer, &options, &error), 0);
    for (int g = 0; g < 2; g++) {
        struct sl_optimizer_group group = group_of(g);
        uint32_t index;
        assert_int_equal(sl_optimizer_group_add(w->optimizer, &group, &index, &error), 0);
    }
    for (int i = 0; i < PARAMS; i++) {
        char name[8];
        uint32_t index;
        snprintf(name, sizeof(name), "w%d", i);
        struct sl_optimizer_param param = {name, counts[i], dtype_of(s, i), (uint32_t)(i & 1)};
        assert_int_equal(sl_optimizer_add(w->optimizer, &param, &index, &error), 0);
        assert_int_equal(index, i);
    }
    if (s->faults) {
        w->optimizer->swap_options.backend = SL_SWAP_FAULTY;
        w->optimizer->swap_options.faults = s->faults;
    }
    struct sl_optimizer_plan plan;
    if (sl_optimizer_seal(w->optimizer, &plan, &error))
        fail_msg("%s", error.message);
    assert_int_equal(plan.host_bytes, plan.state_host_bytes + plan.buffer_bytes + plan.sums_bytes +
                                          plan.table_bytes);
    assert_true(!s->nvme || plan.state_nvme_bytes > 0);
    assert_true(!s->host_bytes_max || plan.state_host_bytes > 0);
    assert_true(!s->host_bytes_max || plan.host_bytes <= s->host_bytes_max);
}

static void make_world(struct world *w, const struct setup *s)
{
    w->random.state = 11;
    for (int i = 0; i < PARAMS; i++) {
        w->weights[i] = malloc(counts[i] * 4);
        w->gradients[i] = malloc(counts[i] * 4);
        for (uint64_t k = 0; k < counts[i]; k++)
            sl_dtype_store(w->weights[i], dtype_of(s, i), k, test_random_float(&w->random));
    }
    make_optimizer(w, s);
}

static void free_world(struct world *w)
{
    sl_optimizer_destroy(w->optimizer);
    for (int i = 0; i < PARAMS; i++) {
        free(w->weights[i]);
        free(w->gradients[i]);
    }
}

/* New gradients, then a step; parameter 3 has none in odd steps. */
static int step_world(struct world *w, const struct setup *s, int number,
                      struct sl_optimizer_result *result, struct sl_error *error)
{
    const void *gradients[PARAMS];
    enum sl_dtype dtypes[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        dtypes[i] = i == 2 ? SL_F32 : dtype_of(s, i); /* not all in the weights' type */
        for (uint64_t k = 0; k < counts[i]; k++)
            sl_dtype_store(w->gradients[i], dtypes[i], k, test_random_float(&w->random));
        gradients[i] = i == 3 && number % 2 ? NULL : w->gradients[i];
    }
    struct sl_optimizer_step step = {gradients, dtypes, w->weights, .clip_norm = 100,
                                     .grad_scale = 0.5};
    return sl_optimizer_step(w->optimizer, &step, result, error);
}

static void run_steps(struct world *w, const struct setup *s, int first, int last)
{
    for (int i = first; i < last; i++) {
        struct sl_optimizer_result result;
        struct sl_error error = {0};
        if (step_world(w, s, i, &result, &error))
            fail_msg("%s", error.message);
        assert_false(result.skipped);
        assert_true(result.clipped);
        assert_true(result.norm_clipped <= 100);
        assert_true(!s->nvme || (result.bytes_read > 0 && result.bytes_written > 0));
    }
}

static void expect_equal(struct world *a, struct world *b, const struct setup *s)
{
    for (int i = 0; i < PARAMS; i++) {
        struct sl_error error = {0};
        assert_memory_equal(a->weights[i], b->weights[i],
                            counts[i] * sl_dtype_bytes(dtype_of(s, i)));
        for (int k = 0; k < SL_OPTIMIZER_ARRAYS; k++) {
            enum sl_optimizer_array array = (enum sl_optimizer_array)k;
            uint64_t count;
            uint32_t bytes;
            assert_int_equal(
                sl_optimizer_array_shape(a->optimizer, (uint32_t)i, array, &count, &bytes, &error),
                0);
            if (!count)
                continue;
            char *x = malloc(count * bytes), *y = malloc(count * bytes);
            assert_int_equal(sl_optimizer_array_read(a->optimizer, (uint32_t)i, array, x, &error),
                             0);
            assert_int_equal(sl_optimizer_array_read(b->optimizer, (uint32_t)i, array, y, &error),
                             0);
            assert_memory_equal(x, y, count * bytes);
            free(x);
            free(y);
        }
        uint64_t updates[2];
        bool set[2];
        sl_optimizer_updates_get(a->optimizer, (uint32_t)i, &updates[0], &set[0], &error);
        sl_optimizer_updates_get(b->optimizer, (uint32_t)i, &updates[1], &set[1], &error);
        assert_int_equal(updates[0], updates[1]);
        assert_int_equal(set[0], set[1]);
    }
}

static const struct setup kinds[] = {
    {SL_OPTIMIZER_ADAMW, SL_OPTIMIZER_STATE_F32, SL_OPTIMIZER_MASTER_PLAIN, SL_F32},
    {SL_OPTIMIZER_ADAMW, SL_OPTIMIZER_STATE_F32, SL_OPTIMIZER_MASTER_PLAIN, SL_BF16},
    {SL_OPTIMIZER_ADAM, SL_OPTIMIZER_STATE_BF16, SL_OPTIMIZER_MASTER_PLAIN, SL_F16},
    {SL_OPTIMIZER_ADAMW, SL_OPTIMIZER_STATE_Q8, SL_OPTIMIZER_MASTER_SPLIT, SL_BF16},
    {SL_OPTIMIZER_LION, SL_OPTIMIZER_STATE_Q8, SL_OPTIMIZER_MASTER_NONE, SL_BF16},
    {SL_OPTIMIZER_ADAGRAD, SL_OPTIMIZER_STATE_F32, SL_OPTIMIZER_MASTER_SPLIT, SL_BF16},
    {SL_OPTIMIZER_SGD, SL_OPTIMIZER_STATE_BF16, SL_OPTIMIZER_MASTER_PLAIN, SL_BF16},
};
#define KINDS (sizeof(kinds) / sizeof(*kinds))

static void bits_do_not_depend_on_placement(void **state)
{
    (void)state;
    for (size_t k = 0; k < KINDS; k++) {
        struct world base;
        struct setup one = kinds[k];
        one.threads = 1;
        make_world(&base, &one);
        run_steps(&base, &one, 0, STEPS);
        for (int variant = 0; variant < 5; variant++) {
            struct setup other = kinds[k];
            other.nvme = variant > 0;
            other.threads = variant == 0 ? 3 : (uint32_t)variant;
            other.sub_group_elements = variant == 4 ? 200000 : 65536;
            other.buffers = (uint32_t[]){0, 2, 3, 2, 4}[variant];
            if (variant == 3) { /* some on the host: least that it takes, and one sub-group more */
                struct world probe;
                struct setup all = other;
                make_world(&probe, &all);
                struct sl_optimizer_plan plan;
                struct sl_error error = {0};
                sl_optimizer_plan(probe.optimizer, &plan, &error);
                other.host_bytes_max = plan.host_bytes + plan.sub_group_bytes;
                free_world(&probe);
            }
            struct world w;
            make_world(&w, &other);
            run_steps(&w, &other, 0, STEPS);
            expect_equal(&base, &w, &other);
            free_world(&w);
        }
        free_world(&base);
    }
}

/* The whole of parameter 4 in one call of the kernel, with clipping done by hand. */
static void a_step_is_the_kernels_step(void **state)
{
    (void)state;
    struct setup s = kinds[1];
    struct world w;
    make_world(&w, &s);
    uint64_t n = counts[4];
    uint16_t *weight = malloc(n * 2);
    float *master = malloc(n * 4), *m = calloc(n, 4), *v = calloc(n, 4);
    memcpy(weight, w.weights[4], n * 2);
    for (uint64_t i = 0; i < n; i++)
        master[i] = sl_f32_from_bf16(weight[i]);
    for (int i = 0; i < STEPS; i++) {
        struct sl_optimizer_result result;
        struct sl_error error = {0};
        assert_int_equal(step_world(&w, &s, i, &result, &error), 0);
        double squares = 0;
        for (int p = 0; p < PARAMS; p++)
            for (uint64_t k = 0; k < counts[p] && !(p == 3 && i % 2); k++) {
                double g = sl_dtype_load(w.gradients[p], p == 2 ? SL_F32 : dtype_of(&s, p), k);
                squares += g * g;
            }
        /* Another order of an fp64 sum over 290,000 terms. */
        assert_true(fabs(result.norm - 0.5 * sqrt(squares)) <= 1e-12 * result.norm);
        struct sl_optim_args args = {.hyper = optimizer_hyper(w.optimizer, 0),
                                     .master_kind = SL_MASTER_F32,
                                     .moment_kind = SL_MOMENT_F32,
                                     .tensor = 4,
                                     .count = n,
                                     .grad = w.gradients[4],
                                     .grad_dtype = SL_BF16,
                                     .grad_scale = (float)(0.5 / ((result.norm + 1e-6) / 100)),
                                     .master = master,
                                     .weight = weight,
                                     .weight_dtype = SL_BF16,
                                     .exp_avg = m,
                                     .exp_avg_sq = v};
        args.hyper.step = (uint64_t)i + 1;
        sl_optim_step(&args);
        assert_memory_equal(weight, w.weights[4], n * 2);
    }
    free(weight);
    free(master);
    free(m);
    free(v);
    free_world(&w);
}

static void split_and_plain_masters_agree(void **state)
{
    (void)state;
    struct setup plain = kinds[1], split = kinds[1];
    struct world a, b;
    split.master = SL_OPTIMIZER_MASTER_SPLIT;
    make_world(&a, &plain);
    make_world(&b, &split);
    run_steps(&a, &plain, 0, STEPS);
    run_steps(&b, &split, 0, STEPS);
    for (int i = 0; i < PARAMS; i++)
        assert_memory_equal(a.weights[i], b.weights[i],
                            counts[i] * sl_dtype_bytes(dtype_of(&plain, i)));
    free_world(&a);
    free_world(&b);
}

static void a_resumed_run_has_the_same_bits(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof(path), "%s/state", directory);
    for (size_t k = 0; k < KINDS; k++) {
        struct setup s = kinds[k], other = kinds[k];
        struct sl_error error = {0};
        struct world a, b;
        make_world(&a, &s);
        make_world(&b, &s);
        run_steps(&a, &s, 0, STEPS);
        run_steps(&b, &s, 0, 3);
        assert_int_equal(sl_optimizer_save(b.optimizer, path, &error), 0);
        sl_optimizer_destroy(b.optimizer);
        other.nvme = true;
        other.sub_group_elements = 65536;
        make_optimizer(&b, &other);
        if (sl_optimizer_load(b.optimizer, path, &error))
            fail_msg("%s", error.message);
        run_steps(&b, &other, 3, STEPS);
        expect_equal(&a, &b, &s);
        free_world(&a);
        free_world(&b);
    }
    unlink(path);
}

static void a_damaged_file_changes_nothing(void **state)
{
    (void)state;
    struct setup s = kinds[1];
    struct sl_error error = {0};
    char path[128], partial[160];
    struct world a, b;
    snprintf(path, sizeof(path), "%s/state", directory);
    snprintf(partial, sizeof(partial), "%s.partial", path);
    make_world(&a, &s);
    make_world(&b, &s);
    run_steps(&a, &s, 0, 2);
    run_steps(&b, &s, 0, 2);
    assert_int_equal(sl_optimizer_save(a.optimizer, path, &error), 0);
    assert_int_not_equal(access(partial, F_OK), 0);
    int fd = open(path, O_RDWR);
    struct stat info;
    char byte;
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(pread(fd, &byte, 1, info.st_size / 2), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, info.st_size / 2), 1);
    close(fd);
    assert_int_equal(sl_optimizer_load(b.optimizer, path, &error), -EBADMSG);
    assert_non_null(strstr(error.message, "damaged"));
    expect_equal(&a, &b, &s);
    error = (struct sl_error){0};
    struct setup lion = s;
    lion.algorithm = SL_OPTIMIZER_LION;
    struct world c;
    make_world(&c, &lion);
    assert_int_equal(sl_optimizer_load(c.optimizer, path, &error), -EINVAL);
    assert_non_null(strstr(error.message, "algorithm"));
    error = (struct sl_error){0};
    assert_int_equal(sl_optimizer_save(a.optimizer, "/nonexistent/x", &error), -ENOENT);
    free_world(&a);
    free_world(&b);
    free_world(&c);
    unlink(path);
}

static void a_gradient_that_is_not_finite_is_named(void **state)
{
    (void)state;
    for (int nvme = 0; nvme < 2; nvme++) {
        struct setup s = kinds[1], host = kinds[1];
        s.nvme = nvme;
        struct world a, b;
        make_world(&a, &s);
        make_world(&b, &host);
        run_steps(&a, &s, 0, 2);
        run_steps(&b, &host, 0, 2);
        const void *gradients[PARAMS] = {a.gradients[0], NULL, NULL, NULL, a.gradients[4]};
        ((uint16_t *)a.gradients[4])[66000] = 0x7f80; /* infinity */
        ((uint16_t *)a.gradients[4])[66001] = 0x7fc0; /* NaN */
        struct sl_optimizer_step step = {gradients, NULL, a.weights, .grad_scale = 1};
        struct sl_optimizer_result result;
        struct sl_error error = {0};
        assert_int_equal(sl_optimizer_step(a.optimizer, &step, &result, &error), 0);
        assert_true(result.skipped);
        assert_int_equal(result.nonfinite, 2);
        assert_int_equal(result.nonfinite_param, 4);
        expect_equal(&a, &b, &host);
        run_steps(&a, &s, 2, 4); /* and it goes on */
        run_steps(&b, &host, 2, 4);
        expect_equal(&a, &b, &host);
        free_world(&a);
        free_world(&b);
    }
}

static void expect_fault(enum sl_fault fault, uint64_t first, int code)
{
    struct sl_swap_faults faults = {
        .seed = 5, .first_operation = first, .inner = SL_SWAP_THREADS, .faults_max = 1};
    faults.chance[fault] = 1;
    struct setup s = kinds[1];
    s.nvme = true;
    s.sub_group_elements = 65536;
    s.buffers = 2;
    s.faults = &faults;
    struct world w;
    make_world(&w, &s);
    struct sl_error error = {0}, again = {0};
    int result = 0;
    for (int i = 0; i < 8 && !result; i++)
        result = step_world(&w, &s, i, NULL, &error);
    assert_int_equal(result, code);
    assert_non_null(strstr(error.message, directory));
    assert_int_equal(step_world(&w, &s, 0, NULL, &again), code);
    assert_string_equal(error.message, again.message);
    float x[300];
    again = (struct sl_error){0};
    assert_int_equal(sl_optimizer_array_read(w.optimizer, 1, SL_OPTIMIZER_EXP_AVG, x, &again),
                     code);
    assert_int_equal(sl_optimizer_save(w.optimizer, "/nonexistent/x", &again), code);
    free_world(&w);
}

static void errors_of_the_drive_end_the_optimizer(void **state)
{
    (void)state;
    for (uint64_t first = 0; first < 24; first += 3) {
        expect_fault(SL_FAULT_EIO, first, -EIO);
        expect_fault(SL_FAULT_FLIP_WRITE, first, -EBADMSG);
    }
}

static void bad_input_is_refused(void **state)
{
    (void)state;
    struct sl_optimizer *optimizer;
    struct sl_error error = {0};
    struct sl_optimizer_options bad[] = {{.algorithm = 9}, {.state = 3},
                                         {.master = 3},    {.placement = SL_OPTIMIZER_NVME},
                                         {.buffers = 1},   {.sub_group_elements = UINT64_MAX}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        error = (struct sl_error){0};
        assert_int_equal(sl_optimizer_create(&optimizer, &bad[i], &error), -EINVAL);
        assert_null(optimizer);
        assert_int_equal(error.domain, SL_DOMAIN_INPUT);
    }
    struct sl_optimizer_options options = {.master = SL_OPTIMIZER_MASTER_SPLIT,
                                           .host_bytes_max = 1000};
    error = (struct sl_error){0};
    assert_int_equal(sl_optimizer_create(&optimizer, &options, &error), 0);
    struct sl_optimizer_group group = group_of(false);
    uint32_t index = 0;
    group.beta2 = 1;
    assert_int_equal(sl_optimizer_group_add(optimizer, &group, &index, &error), -EINVAL);
    assert_non_null(strstr(error.message, "betas[1]"));
    error = (struct sl_error){0};
    assert_int_equal(sl_optimizer_seal(optimizer, NULL, &error), -EINVAL); /* no parameters */
    error = (struct sl_error){0};
    group = group_of(false);
    assert_int_equal(sl_optimizer_group_add(optimizer, &group, &index, &error), 0);
    struct sl_optimizer_param params[] = {{"a", 0, SL_F32, 0},
                                          {"", 5, SL_F32, 0},
                                          {"a", 5, SL_F16, 0},
                                          {"a", 5, SL_F32, 1},
                                          {"a", UINT64_MAX, SL_F32, 0}};
    for (size_t i = 0; i < sizeof(params) / sizeof(*params); i++) {
        error = (struct sl_error){0};
        assert_int_equal(sl_optimizer_add(optimizer, &params[i], &index, &error), -EINVAL);
    }
    struct sl_optimizer_param good = {"a", 500, SL_F32, 0};
    error = (struct sl_error){0};
    assert_int_equal(sl_optimizer_add(optimizer, &good, &index, &error), 0);
    assert_int_equal(sl_optimizer_seal(optimizer, NULL, &error), -ENOMEM);
    assert_non_null(strstr(error.message, "NVMe"));
    error = (struct sl_error){0};
    assert_int_equal(sl_optimizer_add(optimizer, &good, &index, &error), 0);
    assert_int_equal(sl_optimizer_plan(optimizer, NULL, &error), -EEXIST);
    sl_optimizer_destroy(optimizer);

    struct setup s = kinds[1];
    struct world w;
    make_world(&w, &s);
    const void *gradients[PARAMS] = {w.gradients[0]};
    void *none[PARAMS] = {0};
    memset(w.gradients[0], 0, 4);
    struct sl_optimizer_step steps[] = {{gradients, NULL, none, 0, 1, 0},
                                        {gradients, NULL, w.weights, -1, 1, 0},
                                        {gradients, NULL, w.weights, 0, 0, 0},
                                        {gradients, NULL, w.weights, 0, 1, NAN},
                                        {NULL, NULL, w.weights, 0, 1, 0}};
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        error = (struct sl_error){0};
        assert_int_equal(sl_optimizer_step(w.optimizer, &steps[i], NULL, &error), -EINVAL);
    }
    error = (struct sl_error){0};
    assert_int_equal(sl_optimizer_add(w.optimizer, &good, &index, &error), -EBUSY);
    free_world(&w);
}

/* A weight that the caller set is taken over; without the call the old master would return. */
static void changed_weights_are_taken(void **state)
{
    (void)state;
    for (int split = 0; split < 2; split++) {
        struct setup s = kinds[1];
        s.master = split ? SL_OPTIMIZER_MASTER_SPLIT : SL_OPTIMIZER_MASTER_PLAIN;
        struct world w;
        struct sl_error error = {0};
        make_world(&w, &s);
        run_steps(&w, &s, 0, 2);
        uint16_t *weight = w.weights[1];
        for (int i = 0; i < 300; i++)
            weight[i] = sl_bf16_from_f32(64.0f);
        assert_int_equal(sl_optimizer_weights_changed(w.optimizer, 1, &error), 0);
        run_steps(&w, &s, 2, 3);
        for (int i = 0; i < 300; i++)
            assert_true(fabsf(sl_f32_from_bf16(weight[i]) - 64.0f) < 1);
        free_world(&w);
    }
}

static int make_directory(void **state)
{
    (void)state;
    snprintf(directory, sizeof(directory), "/tmp/sluice-optimizer-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_the_kernels_step),
        cmocka_unit_test(bits_do_not_depend_on_placement),
        cmocka_unit_test(split_and_plain_masters_agree),
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(a_damaged_file_changes_nothing),
        cmocka_unit_test(a_gradient_that_is_not_finite_is_named),
        cmocka_unit_test(errors_of_the_drive_end_the_optimizer),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(changed_weights_are_taken),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
