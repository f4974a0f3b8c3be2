// SPDX-License-Identifier: Apache-2.0
/* Every variant of the optimizer step against the scalar one, bit for bit; the name of the kernel
 * under test is printed if it crashes. The scalar one against fp64: test_optim_reference.c. */
#include "tests/test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/optim.h"
#include "kernels/cpu/variants.h"

#define ELEMENTS_MAX 1100
#define SCALES_MAX (ELEMENTS_MAX / SL_OPTIM_Q8_BLOCK + 1)

static char current[160];

static void on_crash(int signal_number)
{
    static const char text[] = "\ncrashed in: ";
    (void)!write(2, text, sizeof(text) - 1);
    (void)!write(2, current, strlen(current));
    (void)!write(2, "\n", 1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* One set of arrays, as bytes, so that runs can start unaligned. */
struct state {
    _Alignas(64) unsigned char grad[4 * ELEMENTS_MAX + 64], master[4 * ELEMENTS_MAX + 64];
    unsigned char low[2 * ELEMENTS_MAX + 64], weight[2 * ELEMENTS_MAX + 64];
    unsigned char exp_avg[4 * ELEMENTS_MAX + 64], exp_avg_sq[4 * ELEMENTS_MAX + 64];
    float exp_avg_scale[SCALES_MAX], exp_avg_sq_scale[SCALES_MAX];
};

static struct state start, expected, actual;

static const char *const kind_names[] = {"adamw", "adam", "lion", "adagrad", "sgd"};
static const char *const master_names[] = {"f32", "split", "none"};
static const char *const moment_names[] = {"f32", "bf16", "q8"};

/* Which values may come that are not finite: none, infinities, NaN too. */
static enum { FINITE, INFINITE, ANY } special;

static float random_value(struct test_random *random, float range)
{
    if (special != FINITE && test_random_below(random, 20) == 0) {
        if (special == ANY && test_random_below(random, 2))
            return NAN;
        return test_random_below(random, 2) ? INFINITY : -INFINITY;
    }
    int exponent;
    switch (test_random_below(random, 24)) {
    case 0:
        return 0.0f;
    case 1:
        return -0.0f;
    case 2: /* subnormal */
        return sl_f32_from_bits((uint32_t)test_random_u64(random) & 0x807fffffu);
    case 3:
        exponent = (int)test_random_below(random, 40) - 30;
        return ldexpf(test_random_float(random), exponent);
    default:
        return test_random_float(random) * range;
    }
}

static void fill(struct state *s, const struct sl_optim_args *args, struct test_random *random)
{
    for (size_t i = 0; i < ELEMENTS_MAX; i++) {
        float value = random_value(random, 1);
        memcpy(s->master + 4 * i, &value, 4);
        uint16_t low = (uint16_t)test_random_u64(random);
        memcpy(s->low + 2 * i, &low, 2);
        uint16_t weight = sl_bf16_from_f32(random_value(random, 1));
        memcpy(s->weight + 2 * i, &weight, 2);
        float grad = random_value(random, 100);
        uint16_t half =
            args->grad_dtype == SL_BF16 ? sl_bf16_from_f32(grad) : sl_f16_from_f32(grad);
        if (args->grad_dtype == SL_F32)
            memcpy(s->grad + 4 * i, &grad, 4);
        else
            memcpy(s->grad + 2 * i, &half, 2);
        float m = random_value(random, 1), v = fabsf(random_value(random, 1));
        if (args->moment_kind == SL_MOMENT_F32) {
            memcpy(s->exp_avg + 4 * i, &m, 4);
            memcpy(s->exp_avg_sq + 4 * i, &v, 4);
        } else if (args->moment_kind == SL_MOMENT_BF16) {
            uint16_t m16 = sl_bf16_from_f32(m), v16 = sl_bf16_from_f32(v);
            memcpy(s->exp_avg + 2 * i, &m16, 2);
            memcpy(s->exp_avg_sq + 2 * i, &v16, 2);
        } else {
            s->exp_avg[i] = (unsigned char)test_random_u64(random);
            s->exp_avg_sq[i] = (unsigned char)test_random_u64(random);
        }
    }
    for (size_t i = 0; i < SCALES_MAX; i++) {
        s->exp_avg_scale[i] = ldexpf(1, (int)test_random_below(random, 20) - 15);
        s->exp_avg_sq_scale[i] = ldexpf(1, (int)test_random_below(random, 20) - 15);
    }
}

/* The step on a state whose arrays begin `offset` elements in. */
static void step(const struct sl_cpu_kernels *kernels, struct sl_optim_args args, struct state *s,
                 size_t offset)
{
    size_t grad_bytes = sl_dtype_bytes(args.grad_dtype);
    size_t moment = sl_moment_bytes(args.moment_kind);
    bool weight = args.weight_dtype != SL_F32;
    args.grad = s->grad + offset * grad_bytes;
    args.master = args.master_kind == SL_MASTER_F32 ? (float *)(s->master + 4 * offset) : NULL;
    args.low = args.master_kind == SL_MASTER_SPLIT ? (uint16_t *)(s->low + 2 * offset) : NULL;
    args.weight = weight ? s->weight + 2 * offset : NULL;
    if (sl_optim_has_exp_avg(&args.hyper))
        args.exp_avg = s->exp_avg + offset * moment;
    if (sl_optim_has_exp_avg_sq(&args.hyper))
        args.exp_avg_sq = s->exp_avg_sq + offset * moment;
    args.exp_avg_scale = s->exp_avg_scale;
    args.exp_avg_sq_scale = s->exp_avg_sq_scale;
    sl_optim_step_with(kernels, &args);
}

static void compare(const void *a, const void *b, size_t bytes, const char *what)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            fail_msg("%s: %s differs at byte %zu: scalar %02x, here %02x", current, what, i, x[i],
                     y[i]);
}

/* Which NaN comes out of an operation is the processor's choice (x86 makes a negative one, ARM a
 * positive one): all NaN are made one before states are compared that may hold them. */
static void canonical_floats(unsigned char *data, enum sl_dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (isnan(sl_dtype_load(data, dtype, i)))
            sl_dtype_store(data, dtype, i, NAN);
}

static void canonical_state(struct state *s, const struct sl_optim_args *args, size_t offset)
{
    unsigned char *weight = s->weight + 2 * offset, *low = s->low + 2 * offset;
    for (size_t i = 0; args->master_kind == SL_MASTER_SPLIT && i < args->count; i++) {
        uint16_t w, l;
        memcpy(&w, weight + 2 * i, 2);
        memcpy(&l, low + 2 * i, 2);
        if (!isnan(sl_master_from_split(w, l)))
            continue;
        memset(weight + 2 * i, 0xff, 2);
        memset(low + 2 * i, 0, 2);
    }
    canonical_floats(s->master, SL_F32, ELEMENTS_MAX);
    if (args->weight_dtype != SL_F32)
        canonical_floats(s->weight, args->weight_dtype, ELEMENTS_MAX);
    if (args->moment_kind == SL_MOMENT_Q8)
        return;
    enum sl_dtype moment = args->moment_kind == SL_MOMENT_F32 ? SL_F32 : SL_BF16;
    canonical_floats(s->exp_avg, moment, ELEMENTS_MAX);
    canonical_floats(s->exp_avg_sq, moment, ELEMENTS_MAX);
}

static void compare_states(void)
{
    compare(expected.master, actual.master, sizeof(actual.master), "master");
    compare(expected.low, actual.low, sizeof(actual.low), "low");
    compare(expected.weight, actual.weight, sizeof(actual.weight), "weight");
    compare(expected.exp_avg, actual.exp_avg, sizeof(actual.exp_avg), "exp_avg");
    compare(expected.exp_avg_sq, actual.exp_avg_sq, sizeof(actual.exp_avg_sq), "exp_avg_sq");
    compare(expected.exp_avg_scale, actual.exp_avg_scale, sizeof(actual.exp_avg_scale), "scale");
    compare(expected.exp_avg_sq_scale, actual.exp_avg_sq_scale, sizeof(actual.exp_avg_sq_scale),
            "square scale");
}

/* FNV-1a by words over the states that the scalar kernel left; 0: not wanted. */
static uint64_t digest;

static void digest_state(const struct state *s)
{
    for (size_t i = 0; digest && i + 8 <= sizeof(*s); i += 8) {
        uint64_t word;
        memcpy(&word, (const unsigned char *)s + i, 8);
        digest = (digest ^ word) * UINT64_C(0x100000001b3);
    }
}

static const size_t counts[] = {0,  1,  2,   7,   8,   9,   15,  16,  17,   31,
                                32, 33, 100, 255, 256, 257, 271, 512, 1023, 1024};

static void check_variant(enum sl_cpu_isa isa, const struct sl_optim_args *form,
                          struct test_random *random)
{
    const struct sl_cpu_kernels *kernels = sl_cpu_isa_kernels(isa);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        struct sl_optim_args args = *form;
        args.count = counts[c];
        size_t offset = test_random_below(random, 3) ? 0 : test_random_below(random, 20);
        bool q8 = args.moment_kind == SL_MOMENT_Q8;
        args.element_first = test_random_below(random, 1u << 20) * (q8 ? SL_OPTIM_Q8_BLOCK : 1);
        args.hyper.weight_decay = test_random_below(random, 2) ? 0.1f : 0.0f;
        args.hyper.bias_correction = test_random_below(random, 4) != 0;
        args.hyper.step = 1 + test_random_below(random, 1000);
        snprintf(current, sizeof(current), "%s %s master %s moments %s grad %s weight %s count %zu",
                 sl_cpu_isa_name(isa), kind_names[args.hyper.kind], master_names[args.master_kind],
                 moment_names[args.moment_kind], sl_dtype_name(args.grad_dtype),
                 sl_dtype_name(args.weight_dtype), args.count);
        fill(&start, &args, random);
        expected = start;
        actual = start;
        step(sl_cpu_isa_kernels(SL_CPU_SCALAR), args, &expected, offset);
        digest_state(&expected);
        step(kernels, args, &actual, offset);
        if (special != FINITE) {
            canonical_state(&expected, &args, offset);
            canonical_state(&actual, &args, offset);
        }
        compare_states();
    }
}

/* Every legal combination of kind, master, moments, gradient and weight type. */
static void for_each_form(enum sl_cpu_isa isa, struct test_random *random)
{
    struct sl_optim_args args = {
        .hyper = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .seed = 7},
        .tensor = 3,
        .grad_scale = 0.37f};
    for (int kind = 0; kind <= SL_OPTIM_SGD; kind++)
        for (int form = 0; form < 5 * 3 * 3; form++) {
            static const enum sl_master_kind masters[] = {
                SL_MASTER_F32, SL_MASTER_F32, SL_MASTER_F32, SL_MASTER_SPLIT, SL_MASTER_NONE};
            static const enum sl_dtype weights[] = {SL_F32, SL_BF16, SL_F16, SL_BF16, SL_BF16};
            args.hyper.kind = (enum sl_optim_kind)kind;
            args.hyper.momentum = form % 2 ? 0.9f : 0.0f;
            args.hyper.nesterov = form % 4 == 1;
            args.master_kind = masters[form % 5];
            args.weight_dtype = weights[form % 5]; /* F32 stands for no weight */
            args.moment_kind = (enum sl_moment_kind)(form / 5 % 3);
            if (special == ANY && args.moment_kind == SL_MOMENT_Q8)
                continue; /* the sign of a NaN moment has no place in a byte */
            args.grad_dtype = (enum sl_dtype)(form / 15);
            check_variant(isa, &args, random);
        }
}

static void check_isa(enum sl_cpu_isa isa)
{
    const char *missing = sl_cpu_isa_missing(isa);
    if (missing) {
        print_message("SKIP %s: this processor lacks %s\n", sl_cpu_isa_name(isa), missing);
        skip();
    }
    struct test_random random = test_random_seed(0x5eed0001);
    special = FINITE;
    for_each_form(isa, &random);
    special = INFINITE;
    for_each_form(isa, &random);
    special = ANY;
    for_each_form(isa, &random);
}

static void neon_equals_scalar(void **state)
{
    (void)state;
    check_isa(SL_CPU_NEON);
}

static void avx2_equals_scalar(void **state)
{
    (void)state;
    check_isa(SL_CPU_AVX2);
}

static void avx512_equals_scalar(void **state)
{
    (void)state;
    check_isa(SL_CPU_AVX512);
}

/* The same figure on every architecture: a run may move between processors. */
static void bits_are_the_same_on_every_processor(void **state)
{
    (void)state;
    struct test_random random = {0x5eed0005};
    special = FINITE;
    digest = UINT64_C(0xcbf29ce484222325);
    for_each_form(SL_CPU_SCALAR, &random);
    print_message("digest %016llx\n", (unsigned long long)digest);
    assert_true(digest == UINT64_C(0x47e2adebd536f2dd));
    digest = 0;
}

int main(void)
{
    signal(SIGSEGV, on_crash);
    signal(SIGILL, on_crash);
    signal(SIGFPE, on_crash);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_the_same_on_every_processor),
        cmocka_unit_test(neon_equals_scalar),
        cmocka_unit_test(avx2_equals_scalar),
        cmocka_unit_test(avx512_equals_scalar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
