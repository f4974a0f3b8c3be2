// SPDX-License-Identifier: Apache-2.0
/* Every instruction set's variant of the host kernels gives the bits of the generic one. */
#include "tests/kernels/host_common.h"

#include "kernels/host/host.h"

static const char *const names[] = {"avx2", "avx512", "neon"};
#define ROWS 37u
#define WIDTH 83u

typedef void (*run_fn)(const struct sl_host_kernels *k, const float *in, float *out);

/* in: 8 * ROWS * WIDTH values, out: as many. */
#define SPAN (8u * ROWS * WIDTH)

static int32_t ids[ROWS];

static void run_norm(const struct sl_host_kernels *k, const float *in, float *out)
{
    for (int kind = 0; kind < 3; kind++) {
        struct sl_host_norm a = {.kind = (enum sl_host_norm_kind)kind,
                                 .width = WIDTH,
                                 .row_group = 1,
                                 .row_stride = WIDTH,
                                 .eps = 1e-6f,
                                 .x = in,
                                 .weight = {in + ROWS * WIDTH, SL_BF16},
                                 .bias = {in + ROWS * WIDTH + 500, SL_F16},
                                 .out = out + (size_t)kind * ROWS * WIDTH};
        k->norm(&a, 0, ROWS);
        a.dout = in + 2 * ROWS * WIDTH;
        a.dx = out + (size_t)(kind + 3) * ROWS * WIDTH;
        k->norm_backward(&a, 0, ROWS, out + (6 * ROWS + (size_t)kind) * WIDTH,
                         out + (6 * ROWS + 3 + (size_t)kind) * WIDTH);
    }
}

static void run_act(const struct sl_host_kernels *k, const float *in, float *out)
{
    for (int kind = 0; kind < 3; kind++) {
        struct sl_host_act a = {.kind = (enum sl_host_act_kind)kind,
                                .gated = kind != 1,
                                .width = WIDTH,
                                .in = in,
                                .out = out,
                                .dout = in + 4 * ROWS * WIDTH,
                                .din = out + ROWS * WIDTH};
        k->act(&a, 0, ROWS);
        k->act_backward(&a, 0, ROWS);
        out += 2 * ROWS * WIDTH;
    }
}

static void run_rope_add(const struct sl_host_kernels *k, const float *in, float *out)
{
    memcpy(out, in, ROWS * WIDTH * sizeof *out);
    struct sl_host_rope a = {.heads = 2,
                             .head_size = 40,
                             .rotary = 38,
                             .row_stride = WIDTH,
                             .x = out,
                             .positions = ids,
                             .cos = in + ROWS * WIDTH,
                             .sin = in + 2 * ROWS * WIDTH};
    k->rope(&a, 0, ROWS);
    k->add(in, in + 555, out + ROWS * WIDTH, ROWS * WIDTH - 3);
    k->bias_add(out + ROWS * WIDTH, ROWS, WIDTH, (struct sl_host_weight){in, SL_BF16}, 3, WIDTH);
    k->column_sum(out + 2 * ROWS * WIDTH, in, 4 * ROWS, WIDTH, WIDTH);
}

/* Both layouts of either operand, all weight types, ragged strips and panels, two chunks of k. */
static void run_gemm(const struct sl_host_kernels *k, const float *in, float *out)
{
    _Alignas(64) float scratch[SL_HOST_GEMM_SCRATCH_BYTES / sizeof(float)];
    enum { M = 9, N = 37, K = SL_HOST_GEMM_DEPTH + 21 };
    for (int kind = 0; kind < 12; kind++, out += M * N) {
        struct sl_host_gemm a = {.a_transposed = kind & 1,
                                 .b_transposed = kind & 2,
                                 .accumulate = kind % 5 == 0,
                                 .m = M,
                                 .n = N,
                                 .k = K,
                                 .alpha = 0.7f,
                                 .a = in,
                                 .a_stride = kind & 1 ? M : K,
                                 .b = {in, (enum sl_dtype)(kind / 4)},
                                 .b_first = 33,
                                 .b_stride = kind & 2 ? K : N,
                                 .c = out,
                                 .c_stride = N};
        k->gemm(&a, scratch);
    }
}

static void run_matvec(const struct sl_host_kernels *k, const float *in, float *out)
{
    for (int dtype = SL_F32; dtype <= SL_F16; dtype++) {
        struct sl_host_matvec a = {.rows = 3,
                                   .inputs = WIDTH,
                                   .outputs = ROWS,
                                   .first = 11,
                                   .x_stride = WIDTH + 2,
                                   .y_stride = ROWS + 1,
                                   .x = in,
                                   .weight = {in + 300, (enum sl_dtype)dtype},
                                   .y = out + dtype * 200,
                                   .accumulate = dtype == SL_F16};
        k->matvec(&a);
    }
}

static void run_embedding(const struct sl_host_kernels *k, const float *in, float *out)
{
    struct sl_host_embedding a = {.rows = ROWS,
                                  .width = WIDTH,
                                  .row_first = 5,
                                  .row_count = ROWS - 5,
                                  .ids = ids,
                                  .scale = 1.3f,
                                  .table = {in, SL_BF16},
                                  .out = out,
                                  .dout = in + ROWS * WIDTH,
                                  .dtable = out + ROWS * WIDTH};
    k->embedding(&a, 0, ROWS);
    a.add = true;
    k->embedding(&a, 3, ROWS - 3);
    k->embedding_backward(&a, 0, WIDTH);
}

static void run_cross_entropy(const struct sl_host_kernels *k, const float *in, float *out)
{
    float *stats = out + 2 * ROWS * WIDTH;
    memcpy(out, in, ROWS * WIDTH * sizeof *out);
    struct sl_host_cross_entropy a = {.width = WIDTH,
                                      .logits = out,
                                      .reset = true,
                                      .softcap = 0.7f,
                                      .scale = 0.3f,
                                      .targets = ids,
                                      .row_max = stats,
                                      .row_sum = stats + ROWS,
                                      .target_logit = stats + 2 * ROWS,
                                      .loss = stats + 3 * ROWS};
    k->cross_entropy_stats(&a, 0, ROWS);
    k->cross_entropy_loss(&a, 0, ROWS);
    memcpy(out + ROWS * WIDTH, out, ROWS * WIDTH * sizeof *out);
    a.softcapped = true;
    k->cross_entropy_backward(&a, 0, ROWS);
}

static void run_attention(const struct sl_host_kernels *k, const float *in, float *out)
{
    _Alignas(64) float scratch[SL_HOST_ATTENTION_SCRATCH_BYTES / sizeof(float)];
    size_t row = 4 * 18, q = 35 * 2 * 18; /* 2 heads, 1 key/value head, size 18 */
    struct sl_host_attention a = {.sequence_length = 35,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .head_size = 18,
                                  .scale = 0.5f,
                                  .softcap = 0.9f,
                                  .window = 21,
                                  .qkv = in,
                                  .out = out,
                                  .lse = out + q,
                                  .dout = in + 35 * row,
                                  .dqkv = out + q + 70,
                                  .delta = out + q + 70 + 35 * row};
    k->attention(&a, 0, 0, 0, scratch);
    k->attention(&a, 0, 1, 0, scratch);
    k->attention_backward(&a, 0, 0, scratch);
}

static void check(const char *what, run_fn run)
{
    const struct sl_host_kernels *generic = sl_host_kernels_find("generic");
    float *in = random_array(SPAN), *want = calloc(SPAN, sizeof *want);
    float *got = calloc(SPAN, sizeof *got);
    for (size_t i = 0; i < SPAN; i++) /* as 16-bit weights, too, the values are ordinary */
        in[i] = sl_f32_from_bits((sl_bits_from_f32(in[i]) & 0xffff0000u) | 0x3c00u |
                                 (uint32_t)random_below(512));
    run(generic, in, want);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct sl_host_kernels *k = sl_host_kernels_find(names[i]);
        if (!k)
            continue;
        memset(got, 0, SPAN * sizeof *got);
        run(k, in, got);
        check_same_bits(what, got, want, SPAN);
    }
    free(in);
    free(want);
    free(got);
}

static void variants_give_equal_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        ids[i] = i % 9 == 8 ? -1 : (int32_t)random_below(ROWS);
    check("embedding", run_embedding);
    check("cross-entropy", run_cross_entropy);
    for (size_t i = 0; i < ROWS; i++)
        ids[i] = (int32_t)(i * 2);
    check("norm", run_norm);
    check("act", run_act);
    check("rope, sums", run_rope_add);
    check("products", run_gemm);
    check("products of few rows", run_matvec);
    check("attention", run_attention);
}

static void the_best_variant_is_chosen(void **state)
{
    (void)state;
    const char *best = sl_host_kernels()->isa;
    assert_non_null(sl_host_kernels_find("generic"));
    assert_null(sl_host_kernels_find("vax"));
    if (sl_host_kernels_find("avx512"))
        assert_string_equal(best, "avx512");
    else if (sl_host_kernels_find("avx2"))
        assert_string_equal(best, "avx2");
    print_message("host kernels: %s\n", best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_give_equal_bits),
        cmocka_unit_test(the_best_variant_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
