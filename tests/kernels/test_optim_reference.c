// SPDX-License-Identifier: Apache-2.0
/* The scalar step against fp64, the split master against a plain one, and the contract's edges. */
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/optim.h"
#include "kernels/cpu/optim_terms.h"
#include "kernels/cpu/variants.h"

#define COUNT 256

static struct sl_optim_hyper hyper_of(enum sl_optim_kind kind)
{
    return (struct sl_optim_hyper){.kind = kind,
                                   .lr = 1e-3f,
                                   .beta1 = 0.9f,
                                   .beta2 = kind == SL_OPTIM_LION ? 0.99f : 0.999f,
                                   .eps = 1e-8f,
                                   .weight_decay = 0.01f,
                                   .momentum = 0.9f,
                                   .bias_correction = true};
}

/* ---- fp64 ---- */

struct reference {
    double p[COUNT], m[COUNT], v[COUNT];
};

static void reference_step(struct reference *ref, const struct sl_optim_hyper *h, const float *grad)
{
    double b1 = h->beta1, b2 = h->beta2, lr = h->lr, wd = h->weight_decay, mu = h->momentum;
    double rest1 = h->bias_correction ? 1 - pow(b1, (double)h->step) : 1;
    double rest2 = h->bias_correction ? 1 - pow(b2, (double)h->step) : 1;
    for (size_t i = 0; i < COUNT; i++) {
        double g = grad[i], *p = &ref->p[i], *m = &ref->m[i], *v = &ref->v[i], c;
        switch (h->kind) {
        case SL_OPTIM_ADAMW:
        case SL_OPTIM_ADAM:
            if (h->kind == SL_OPTIM_ADAM)
                g += wd * *p;
            *m = b1 * *m + (1 - b1) * g;
            *v = b2 * *v + (1 - b2) * g * g;
            if (h->kind == SL_OPTIM_ADAMW)
                *p -= lr * wd * *p;
            *p -= lr / rest1 * *m / (sqrt(*v) / sqrt(rest2) + h->eps);
            break;
        case SL_OPTIM_LION:
            c = b1 * *m + (1 - b1) * g;
            *p = *p * (1 - lr * wd) - lr * ((c > 0) - (c < 0));
            *m = b2 * *m + (1 - b2) * g;
            break;
        case SL_OPTIM_ADAGRAD:
            g += wd * *p;
            *v += g * g;
            *p -= lr * g / (sqrt(*v) + h->eps);
            break;
        case SL_OPTIM_SGD:
            g += wd * *p;
            *m = mu * *m + g;
            *p -= lr * (h->nesterov ? g + mu * *m : *m);
            break;
        }
    }
}

struct arrays {
    float master[COUNT], grad[COUNT], m[COUNT], v[COUNT];
    uint16_t weight[COUNT], low[COUNT];
};

static struct sl_optim_args args_of(struct arrays *a, const struct sl_optim_hyper *hyper)
{
    return (struct sl_optim_args){.hyper = *hyper,
                                  .count = COUNT,
                                  .grad = a->grad,
                                  .grad_dtype = SL_F32,
                                  .grad_scale = 1,
                                  .master = a->master,
                                  .weight_dtype = SL_BF16,
                                  .exp_avg = a->m,
                                  .exp_avg_sq = a->v};
}

/* |difference| / |reference| in the Euclidean norm. */
static double relative_error(const float *x, const double *reference)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < COUNT; i++) {
        difference += (x[i] - reference[i]) * (x[i] - reference[i]);
        size += reference[i] * reference[i];
    }
    return sqrt(difference / size);
}

static void load_reference(struct reference *ref, const struct arrays *a)
{
    for (size_t i = 0; i < COUNT; i++) {
        ref->p[i] = a->master[i];
        ref->m[i] = a->m[i];
        ref->v[i] = a->v[i];
    }
}

/* Every element of x within 1e-6 of the reference; `scale` is what its terms are made of, where
 * they may cancel. */
static void assert_close(const float *x, const double *reference, const double *scale)
{
    for (size_t i = 0; i < COUNT; i++)
        assert_true(fabs(x[i] - reference[i]) <= 1e-6 * (fabs(reference[i]) + fabs(scale[i])));
}

/* Two fp64 runs: one takes the fp32 state afresh before every step and must agree in every element;
 * the other runs free for 1,000 steps and must agree in the norm, where what differs is mostly the
 * random walk of the master's own rounding, once a step: up to half an ulp, 2^-24, whose root mean
 * square over 1,000 steps is at most sqrt(1000) 2^-24 / sqrt(3) = 1.09e-6, at the worst mantissa
 * only. */
static void follow_fp64(struct sl_optim_hyper hyper, struct test_random *random)
{
    static struct arrays a;
    static struct reference ref, fresh, before;
    memset(&a, 0, sizeof(a));
    for (size_t i = 0; i < COUNT; i++)
        a.master[i] = test_random_float(random);
    load_reference(&ref, &a);
    for (hyper.step = 1; hyper.step <= 1000; hyper.step++) {
        for (size_t i = 0; i < COUNT; i++)
            a.grad[i] = 0.01f * (test_random_float(random) + 0.3f * (float)sin((double)i));
        reference_step(&ref, &hyper, a.grad);
        load_reference(&fresh, &a);
        before = fresh;
        reference_step(&fresh, &hyper, a.grad);
        struct sl_optim_args args = args_of(&a, &hyper);
        sl_optim_step_with(sl_cpu_isa_kernels(SL_CPU_SCALAR), &args);
        assert_close(a.master, fresh.p, before.p);
        assert_close(a.m, fresh.m, before.m);
        assert_close(a.v, fresh.v, before.v);
    }
    double error = relative_error(a.master, ref.p);
    print_message("kind %d nesterov %d: relative error after 1,000 steps %.2e\n", hyper.kind,
                  hyper.nesterov, error);
    assert_true(error < 1e-6);
    if (sl_optim_has_exp_avg(&hyper))
        assert_true(relative_error(a.m, ref.m) < 1e-6);
    if (sl_optim_has_exp_avg_sq(&hyper))
        assert_true(relative_error(a.v, ref.v) < 1e-6);
}

static void scalar_follows_fp64_for_1000_steps(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(0x5eed0002);
    for (int kind = 0; kind <= SL_OPTIM_SGD; kind++)
        follow_fp64(hyper_of((enum sl_optim_kind)kind), &random);
    struct sl_optim_hyper nesterov = hyper_of(SL_OPTIM_SGD);
    nesterov.nesterov = true;
    follow_fp64(nesterov, &random);
    struct sl_optim_hyper uncorrected = hyper_of(SL_OPTIM_ADAMW);
    uncorrected.bias_correction = false;
    follow_fp64(uncorrected, &random);
}

/* ---- split master ---- */

static float stream_value(struct test_random *random, size_t element)
{
    uint64_t draw = test_random_u64(random);
    if (draw % 64 == 0)
        return sl_f32_from_bits((uint32_t)(draw >> 32) & 0x807fffffu); /* subnormal */
    if (element % 32 == 5 && draw % 4001 == 0)
        return draw & 1u << 20 ? INFINITY : -INFINITY;
    return ldexpf(test_random_float(random), -(int)((draw >> 8) % 30));
}

static void split_equals_plain(enum sl_cpu_isa isa, struct test_random *random)
{
    static struct arrays plain, split;
    memset(&plain, 0, sizeof(plain));
    for (size_t i = 0; i < COUNT; i++) {
        /* Weights around zero, subnormal ones and any bit pattern: signs change, all are kept. */
        uint32_t bits = (uint32_t)test_random_u64(random);
        plain.master[i] = i % 4 == 0   ? sl_f32_from_bits(bits)
                          : i % 4 == 1 ? sl_f32_from_bits(bits & 0x807fffffu)
                                       : 0.01f * test_random_float(random);
    }
    split = plain;
    for (size_t i = 0; i < COUNT; i++) {
        split.weight[i] = sl_bf16_from_master(split.master[i]);
        split.low[i] = (uint16_t)sl_bits_from_f32(split.master[i]);
    }
    struct sl_optim_hyper hyper = hyper_of(SL_OPTIM_ADAMW);
    for (hyper.step = 1; hyper.step <= 10000; hyper.step++) {
        for (size_t i = 0; i < COUNT; i++)
            plain.grad[i] = split.grad[i] = stream_value(random, i);
        struct sl_optim_args args = args_of(&plain, &hyper);
        args.weight = plain.weight;
        sl_optim_step_with(sl_cpu_isa_kernels(isa), &args);
        args = args_of(&split, &hyper);
        args.master_kind = SL_MASTER_SPLIT;
        args.master = NULL;
        args.weight = split.weight;
        args.low = split.low;
        sl_optim_step_with(sl_cpu_isa_kernels(isa), &args);
        assert_memory_equal(plain.weight, split.weight, sizeof(plain.weight));
        assert_memory_equal(plain.m, split.m, sizeof(plain.m));
        assert_memory_equal(plain.v, split.v, sizeof(plain.v));
        for (size_t i = 0; i < COUNT; i++) {
            float master = sl_master_from_split(split.weight[i], split.low[i]);
            if (sl_bits_from_f32(master) != sl_bits_from_f32(plain.master[i]))
                fail_msg("step %d element %zu: plain %08x, split %08x", (int)hyper.step, i,
                         sl_bits_from_f32(plain.master[i]), sl_bits_from_f32(master));
        }
    }
}

static void split_master_is_the_plain_master_for_10000_steps(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(0x5eed0003);
    split_equals_plain(sl_cpu_isa_active(), &random);
}

static void split_keeps_every_bit_pattern(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 251) {
        float master = sl_f32_from_bits((uint32_t)bits);
        uint32_t back =
            sl_bits_from_f32(sl_master_from_split(sl_bf16_from_master(master), (uint16_t)bits));
        if (back != (uint32_t)bits)
            fail_msg("%08x became %08x", (uint32_t)bits, back);
    }
}

/* ---- cuts, large indices, random counters ---- */

/* One run equals the same run cut anywhere, for what depends on the element's index too. */
static void cut_runs_have_the_same_bits(void **state)
{
    (void)state;
    struct test_random random = test_random_seed(0x5eed0004);
    static const uint64_t firsts[] = {0, 1000, (UINT64_C(1) << 32) - 100, UINT64_C(5) << 32};
    for (size_t f = 0; f < 4; f++) {
        static struct arrays whole, cut;
        memset(&whole, 0, sizeof(whole));
        for (size_t i = 0; i < COUNT; i++) {
            whole.grad[i] = test_random_float(&random);
            whole.weight[i] = sl_bf16_from_f32(test_random_float(&random));
        }
        cut = whole;
        struct sl_optim_hyper hyper = hyper_of(SL_OPTIM_ADAMW);
        hyper.step = 3;
        struct sl_optim_args args = args_of(&whole, &hyper);
        args.master_kind = SL_MASTER_NONE;
        args.weight = whole.weight;
        args.element_first = firsts[f];
        sl_optim_step(&args);
        for (size_t at = 0, count; at < COUNT; at += count) {
            count = 1 + test_random_below(&random, 60);
            count = count < COUNT - at ? count : COUNT - at;
            args.grad = cut.grad + at;
            args.weight = cut.weight + at;
            args.exp_avg = cut.m + at;
            args.exp_avg_sq = cut.v + at;
            args.element_first = firsts[f] + at;
            args.count = count;
            sl_optim_step(&args);
        }
        assert_memory_equal(&whole, &cut, sizeof(whole));
    }
}

/* A run across element 2^32 takes the next segment's key there. */
static void counters_go_on_past_2_to_the_32(void **state)
{
    (void)state;
    static struct arrays a, b;
    const uint64_t boundary = UINT64_C(1) << 32;
    struct sl_optim_hyper hyper = hyper_of(SL_OPTIM_SGD);
    hyper.momentum = hyper.weight_decay = 0;
    hyper.step = 1;
    for (size_t i = 0; i < COUNT; i++) {
        a.grad[i] = 1;
        a.weight[i] = 0x3f80; /* 1: 1 - lr lies between two bf16 values */
    }
    b = a;
    struct sl_optim_args args = args_of(&a, &hyper);
    args.master_kind = SL_MASTER_NONE;
    args.weight = a.weight;
    args.element_first = boundary - COUNT / 2;
    sl_optim_step(&args);
    args.weight = b.weight;
    args.grad = b.grad;
    args.element_first = boundary * 2 - COUNT / 2;
    sl_optim_step(&args);
    assert_memory_not_equal(a.weight, b.weight, sizeof(a.weight));
    uint64_t key = sl_optim_random_key(hyper.seed, hyper.step, 0, boundary);
    uint32_t keys[2] = {(uint32_t)(key >> 32), (uint32_t)key};
    for (uint32_t i = 0; i < COUNT / 2; i++) {
        uint32_t bits = sl_bits_from_f32(1 - hyper.lr);
        uint32_t random = sl_optim_random(keys, i) & 0xffffu;
        assert_int_equal(a.weight[COUNT / 2 + i], (bits + random) >> 16);
    }
}

static struct sl_optim_args parts[8];
static size_t part_count;

static void keep_part(const struct sl_optim_args *args, const struct sl_optim_terms *terms)
{
    (void)terms;
    assert_true(part_count < 8);
    parts[part_count++] = *args;
}

/* A run of 2^33 + 300 elements, of which nothing is touched: where its parts begin in every array.
 */
static void runs_longer_than_2_to_the_32_are_cut(void **state)
{
    (void)state;
    const struct sl_cpu_kernels keeper = {.optim_step = keep_part};
    const uint64_t segment = UINT64_C(1) << 32, first = 3 * segment - 512;
    const uintptr_t base = UINT64_C(1) << 44;
    struct sl_optim_args args = {.hyper = hyper_of(SL_OPTIM_ADAMW),
                                 .moment_kind = SL_MOMENT_Q8,
                                 .element_first = first,
                                 .count = 2 * segment + 300,
                                 .grad = (const void *)base,
                                 .grad_dtype = SL_BF16,
                                 .master = (float *)base,
                                 .weight = (void *)base,
                                 .weight_dtype = SL_F16,
                                 .exp_avg = (void *)base,
                                 .exp_avg_sq = (void *)base,
                                 .exp_avg_scale = (float *)base,
                                 .exp_avg_sq_scale = (float *)base};
    args.hyper.step = 1;
    part_count = 0;
    sl_optim_step_with(&keeper, &args);
    static const uint64_t begins[] = {0, 512, (UINT64_C(1) << 32) + 512, (UINT64_C(1) << 33) + 300};
    assert_int_equal(part_count, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct sl_optim_args *part = &parts[i];
        assert_true(part->element_first == first + begins[i]);
        assert_true(part->count == begins[i + 1] - begins[i]);
        assert_true((uintptr_t)part->grad == base + 2 * begins[i]);
        assert_true((uintptr_t)part->master == base + 4 * begins[i]);
        assert_true((uintptr_t)part->weight == base + 2 * begins[i]);
        assert_true((uintptr_t)part->exp_avg == base + begins[i]);
        assert_true((uintptr_t)part->exp_avg_sq == base + begins[i]);
        assert_true((uintptr_t)part->exp_avg_scale == base + begins[i] / 256 * 4);
        assert_true((uintptr_t)part->exp_avg_sq_scale == base + begins[i] / 256 * 4);
    }
}

static void random_bits_are_uniform_and_independent(void **state)
{
    (void)state;
    enum { DRAWS = 1 << 20 };
    double ones[32] = {0}, pairs[32] = {0}, steps[32] = {0};
    uint32_t keys[2][2];
    for (uint64_t step = 1; step <= 2; step++) {
        uint64_t key = sl_optim_random_key(9, step, 4, 0);
        keys[step - 1][0] = (uint32_t)key;
        keys[step - 1][1] = (uint32_t)(key >> 32);
    }
    uint32_t before = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t x = sl_optim_random(keys[0], i), next = sl_optim_random(keys[1], i);
        for (int bit = 0; bit < 32; bit++) {
            ones[bit] += x >> bit & 1;
            pairs[bit] += (x ^ before) >> bit & 1;
            steps[bit] += (x ^ next) >> bit & 1;
        }
        before = x;
    }
    /* Half of the draws, within 5 standard deviations of a binomial. */
    double limit = 5 * sqrt(DRAWS) / 2;
    for (int bit = 0; bit < 32; bit++) {
        assert_true(fabs(ones[bit] - DRAWS / 2) < limit);
        assert_true(fabs(pairs[bit] - DRAWS / 2) < limit);
        assert_true(fabs(steps[bit] - DRAWS / 2) < limit);
    }
}

/* The leading bits of both dithers of 8-bit moments: uniform, and in every two pairs of a block
 * independent. */
static void random_bits_of_a_block_are_independent(void **state)
{
    (void)state;
    enum { DRAWS = 1 << 20, CELLS = 256 };
    uint64_t key = sl_optim_random_key(9, 1, 4, 0);
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    static const int shifts[] = {28, 16};
    for (uint32_t distance = 1; distance < 8; distance++)
        for (int s = 0; s < 2; s++) {
            double cells[CELLS] = {0}, chi_squared = 0;
            for (uint32_t i = 0; i < 2 * DRAWS; i++) {
                uint32_t element = i / 16 * 32 + i % 16, other = element ^ 32 * distance;
                if (other < element)
                    continue; /* drawn from the other side */
                uint32_t x = sl_optim_random_q8(keys, element) >> shifts[s] & 15;
                uint32_t y = sl_optim_random_q8(keys, other) >> shifts[s] & 15;
                cells[16 * x + y]++;
            }
            for (int i = 0; i < CELLS; i++)
                chi_squared += pow(cells[i] - DRAWS / CELLS, 2) / (DRAWS / CELLS);
            /* Five standard deviations over the mean of 255 degrees of freedom. */
            assert_true(chi_squared < 255 + 5 * sqrt(2 * 255.0));
        }
}

/* Stochastic rounding loses no update on average: 1,000 steps of 1/100 of a bf16 ulp. */
static void stochastic_rounding_is_unbiased(void **state)
{
    (void)state;
    static struct arrays a;
    struct sl_optim_hyper hyper = hyper_of(SL_OPTIM_SGD);
    hyper.momentum = hyper.weight_decay = 0;
    hyper.lr = 0x1p-7f / 100;
    for (size_t i = 0; i < COUNT; i++) {
        a.grad[i] = -1;
        a.weight[i] = 0x3f80;
    }
    for (hyper.step = 1; hyper.step <= 1000; hyper.step++) {
        struct sl_optim_args args = args_of(&a, &hyper);
        args.master_kind = SL_MASTER_NONE;
        args.weight = a.weight;
        sl_optim_step(&args);
    }
    double mean = 0;
    for (size_t i = 0; i < COUNT; i++)
        mean += sl_f32_from_bf16(a.weight[i]) / COUNT;
    double moved = (mean - 1) / 0x1p-7; /* 10 expected; deviation sqrt(1000 / 100) / sqrt(COUNT) */
    assert_true(fabs(moved - 10) < 5 * sqrt(10.0 / COUNT));
}

static void bias_correction_depends_on_the_step_alone(void **state)
{
    (void)state;
    for (uint64_t step = 1; step < 100000; step = step * 3 + 1) {
        double exact = pow((double)0.999f, (double)step);
        /* An error of half an ulp in a square doubles with every further square: step ulps. */
        double error = fabs(sl_optim_power((double)0.999f, step) - exact);
        assert_true(error <= 0x1p-52 * (double)step * exact);
    }
    assert_true(sl_optim_power(0.9, 0) == 1);
    assert_true(sl_optim_power(0.9, UINT64_MAX) == 0);
}

/* ---- contract ---- */

static void refuses(struct sl_optim_hyper hyper, const char *name)
{
    struct sl_error error = {0};
    assert_int_equal(sl_optim_check(&hyper, &error), -EINVAL);
    if (!strstr(error.message, name))
        fail_msg("\"%s\" does not name %s", error.message, name);
}

static void bad_hyper_parameters_are_named(void **state)
{
    (void)state;
    for (int kind = 0; kind <= SL_OPTIM_SGD; kind++) {
        struct sl_optim_hyper good = hyper_of((enum sl_optim_kind)kind);
        good.step = 1;
        assert_int_equal(sl_optim_check(&good, NULL), 0);
        static const float bad_lr[] = {-1e-9f, NAN, INFINITY};
        for (size_t i = 0; i < 3; i++) {
            struct sl_optim_hyper bad = good;
            bad.lr = bad_lr[i];
            refuses(bad, "lr");
            bad = good;
            bad.weight_decay = bad_lr[i];
            refuses(bad, "weight_decay");
        }
    }
    static const float bad_beta[] = {1.0f, -0.1f, NAN, 2.0f};
    struct sl_optim_hyper bad = hyper_of(SL_OPTIM_ADAMW);
    refuses(bad, "step");
    for (size_t i = 0; i < 4; i++) {
        bad = hyper_of(i % 2 ? SL_OPTIM_LION : SL_OPTIM_ADAM);
        bad.beta1 = bad_beta[i];
        refuses(bad, "betas[0]");
        bad = hyper_of(i % 2 ? SL_OPTIM_LION : SL_OPTIM_ADAM);
        bad.beta2 = bad_beta[i];
        refuses(bad, "betas[1]");
        bad = hyper_of(SL_OPTIM_SGD);
        bad.momentum = bad_beta[i];
        refuses(bad, "momentum");
    }
    static const float bad_eps[] = {0, -1e-8f, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        bad = hyper_of(i % 2 ? SL_OPTIM_ADAGRAD : SL_OPTIM_ADAMW);
        bad.eps = bad_eps[i];
        refuses(bad, "eps");
    }
    bad = hyper_of(SL_OPTIM_SGD);
    bad.momentum = 0;
    bad.nesterov = true;
    refuses(bad, "nesterov");
}

static void forced_instruction_sets_are_checked(void **state)
{
    (void)state;
    struct sl_error error = {0};
    setenv("SLUICE_ISA", "scalar", 1);
    assert_int_equal(sl_cpu_isa_select(&error), 0);
    assert_int_equal(sl_cpu_isa_active(), SL_CPU_SCALAR);
    setenv("SLUICE_ISA", "mmx", 1);
    assert_int_equal(sl_cpu_isa_select(&error), -EINVAL);
    assert_non_null(strstr(error.message, "\"mmx\""));
    bool lacked = false;
    for (int isa = 0; isa < SL_CPU_ISA_COUNT; isa++) {
        error = (struct sl_error){0};
        setenv("SLUICE_ISA", sl_cpu_isa_name((enum sl_cpu_isa)isa), 1);
        const char *missing = sl_cpu_isa_missing((enum sl_cpu_isa)isa);
        assert_int_equal(sl_cpu_isa_select(&error), missing ? -EINVAL : 0);
        if (missing) {
            assert_non_null(strstr(error.message, missing));
            assert_null(sl_cpu_isa_kernels((enum sl_cpu_isa)isa));
            lacked = true;
        }
    }
    assert_true(lacked); /* no processor has both NEON and AVX2 */
    unsetenv("SLUICE_ISA");
    assert_int_equal(sl_cpu_isa_select(NULL), 0);
}

static void zero_elements_touch_nothing(void **state)
{
    (void)state;
    struct sl_optim_args args = {.hyper = hyper_of(SL_OPTIM_ADAMW)};
    sl_optim_step(&args); /* every pointer is NULL */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_follows_fp64_for_1000_steps),
        cmocka_unit_test(split_master_is_the_plain_master_for_10000_steps),
        cmocka_unit_test(split_keeps_every_bit_pattern),
        cmocka_unit_test(cut_runs_have_the_same_bits),
        cmocka_unit_test(counters_go_on_past_2_to_the_32),
        cmocka_unit_test(random_bits_are_uniform_and_independent),
        cmocka_unit_test(random_bits_of_a_block_are_independent),
        cmocka_unit_test(runs_longer_than_2_to_the_32_are_cut),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(bias_correction_depends_on_the_step_alone),
        cmocka_unit_test(bad_hyper_parameters_are_named),
        cmocka_unit_test(forced_instruction_sets_are_checked),
        cmocka_unit_test(zero_elements_touch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
