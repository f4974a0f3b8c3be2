// SPDX-License-Identifier: Apache-2.0
/* Attention to a cache on the simulated device, against the definition in fp64; the cache's new
 * rows bit by bit; and a sequence fed in pieces against the host device.
 *
 * Tolerance: the output is a mean of v (|v| <= 1) under weights that sum to 1. The weights stay
 * f32; scores are f32 sums of D products and their error (D 2^-24 of the largest sum) passes
 * through exp: 2^-14 covers it up to D = 256. The result's own rounding to the type is epsilon.
 */
#include "tests/cudasim/sim.h"

struct shape {
    size_t rows, position_first, heads, kv_heads, head_size, window;
    float softcap;
    enum sl_dtype type;
};

static struct sim sims[3];

static double score(const struct shape *s, const float *q, const float *k, double scale)
{
    double sum = 0;
    for (size_t d = 0; d < s->head_size; d++)
        sum += (double)q[d] * (double)k[d];
    sum *= scale;
    return s->softcap == 0 ? sum : (double)s->softcap * tanh(sum / (double)s->softcap);
}

/* One head of one row; keys and values already hold the new rows. */
static void reference(const struct shape *s, const float *q, const float *keys, const float *values,
                      size_t row, size_t head, double scale, double *out)
{
    size_t D = s->head_size, width = s->kv_heads * D, end = s->position_first + row + 1;
    size_t begin = s->window && end > s->window ? end - s->window : 0;
    size_t at = head / (s->heads / s->kv_heads) * D;
    double sum = 0;
    for (size_t d = 0; d < D; d++)
        out[d] = 0;
    for (size_t j = begin; j < end; j++) {
        double weight = exp(score(s, q, keys + j * width + at, scale));
        sum += weight;
        for (size_t d = 0; d < D; d++)
            out[d] += weight * (double)values[j * width + at + d];
    }
    for (size_t d = 0; d < D; d++)
        out[d] /= sum;
}

static void expect_output(struct sim *sim, const struct shape *s, const struct tensor *qkv,
                          const float *keys, const float *values, const struct tensor *out)
{
    size_t D = s->head_size, stride = (s->heads + 2 * s->kv_heads) * D;
    double scale = (double)(1.0f / sqrtf((float)D)), want[256];
    float *got = tensor_fetch(sim, out);
    for (size_t row = 0; row < s->rows; row++)
        for (size_t head = 0; head < s->heads; head++) {
            reference(s, qkv->host + row * stride + head * D, keys, values, row, head, scale, want);
            for (size_t d = 0; d < D; d++) {
                double value = (double)got[(row * s->heads + head) * D + d];
                double allowed = sim_epsilon(s->type) + 0x1p-14;
                if (!(fabs(value - want[d]) <= allowed))
                    fail_msg("row %zu head %zu [%zu], %zu rows at %zu, H %zu G %zu D %zu window "
                             "%zu cap %g %s: %.9g, want %.9g, allowed %.3g",
                             row, head, d, s->rows, s->position_first, s->heads, s->kv_heads, D,
                             s->window, (double)s->softcap, sl_dtype_name(s->type), value, want[d],
                             allowed);
            }
        }
    free(got);
}

/* The rows before stay as they were, the new ones are qkv's: in the host's copy too. */
static void expect_cache(struct sim *sim, const struct shape *s, struct tensor *cache,
                         const struct tensor *qkv, size_t part)
{
    size_t width = s->kv_heads * s->head_size;
    size_t stride = s->heads * s->head_size + 2 * width;
    for (size_t row = 0; row < s->rows; row++)
        memcpy(cache->host + (s->position_first + row) * width,
               qkv->host + row * stride + s->heads * s->head_size + part * width,
               width * sizeof(float));
    tensor_expect_bits(sim, part ? "values" : "keys", cache);
}

static uint64_t run_device(struct sim *sim, const struct sl_attention_cached_args *args,
                           struct tensor *out)
{
    SIM_OK(sim->cuda->ops->attention_cached(sim->cuda, args));
    return tensor_hash(sim, out);
}

static void cached_one(const struct shape *s)
{
    struct sim *sim = &sims[s->type];
    size_t D = s->head_size, width = s->kv_heads * D;
    size_t capacity = s->position_first + s->rows + 3; /* rows behind the end: left alone */
    struct tensor qkv =
        tensor_random(sim, s->type, s->rows * (s->heads + 2 * s->kv_heads) * D, 1, 0);
    struct tensor keys = tensor_random(sim, s->type, capacity * width, 1, 0);
    struct tensor values = tensor_random(sim, s->type, capacity * width, 1, 0);
    struct tensor out = tensor_empty(sim, s->type, s->rows * s->heads * D);
    struct sl_attention_cached_args args = {.rows = s->rows,
                                            .position_first = s->position_first,
                                            .heads = s->heads,
                                            .kv_heads = s->kv_heads,
                                            .head_size = D,
                                            .scale = 1.0f / sqrtf((float)D),
                                            .softcap = s->softcap,
                                            .window = s->window,
                                            .qkv = qkv.device,
                                            .keys = keys.device,
                                            .values = values.device,
                                            .out = out.device};
    uint64_t hash = run_device(sim, &args, &out);
    for (int order = CUDASIM_THREADS_REVERSE; order <= CUDASIM_THREADS_SHUFFLED; order++) {
        SIM_CALL(cudasim_set_thread_order, (enum cudasim_thread_order)order, 7);
        assert_int_equal(run_device(sim, &args, &out), hash);
    }
    SIM_CALL(cudasim_set_thread_order, CUDASIM_THREADS_FORWARD, 1);
    expect_cache(sim, s, &keys, &qkv, 0);
    expect_cache(sim, s, &values, &qkv, 1);
    expect_output(sim, s, &qkv, keys.host, values.host, &out);
    struct tensor *all[] = {&qkv, &keys, &values, &out};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        tensor_free(sim, all[i]);
}

static int open_all(void **state)
{
    (void)state;
    for (int type = SL_F32; type <= SL_F16; type++)
        sim_open(&sims[type], (enum sl_dtype)type);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int type = SL_F32; type <= SL_F16; type++) {
        sl_device_destroy(sims[type].cuda);
        sl_device_destroy(sims[type].host);
        sl_workers_destroy(sims[type].workers);
    }
    assert_int_equal(SIM_CALL(cudasim_memory_used), 0);
    return 0;
}

/* rows, first position, heads, key heads, head size, window, softcap, type */
static const struct shape shapes[] = {
    {1, 0, 1, 1, 64, 0, 0, SL_BF16},      /* the first token */
    {1, 300, 1, 1, 64, 0, 0, SL_BF16},    /* one query, three parts */
    {1, 513, 8, 2, 128, 0, 0, SL_BF16},   /* grouped: four queries a key */
    {1, 400, 16, 2, 256, 0, 30, SL_BF16}, /* eight, the largest head, capped */
    {1, 700, 3, 1, 96, 200, 0, SL_F16},   /* a window that cuts whole parts away */
    {5, 130, 6, 2, 64, 40, 0, SL_F16},    /* rows whose windows begin apart */
    {17, 0, 4, 4, 80, 0, 0, SL_BF16},     /* a prompt */
    {3, 140, 2, 1, 7, 0, 0, SL_BF16},     /* no 16-byte pieces */
    {2, 150, 4, 2, 64, 0, 0, SL_F32},     /* fp32 mode */
    {1, 260, 2, 1, 256, 100, 20, SL_F32}, {9, 33, 2, 2, 20, 0, 0, SL_F32},
};

static void cached_matches_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        cached_one(&shapes[i]);
}

/* 24 tokens in uneven pieces on both devices: outputs of all and the caches agree. */
static void pieces_match_the_host(void **state)
{
    (void)state;
    enum { TOKENS = 24, H = 4, G = 2, D = 64 };
    struct sim *sim = &sims[SL_F32];
    static const size_t pieces[] = {7, 1, 15, 1};
    size_t row = (H + 2 * G) * D, at = 0;
    struct tensor qkv = tensor_random(sim, SL_F32, TOKENS * row, 1, 0);
    struct tensor keys = tensor_empty(sim, SL_F32, TOKENS * G * D);
    struct tensor values = tensor_empty(sim, SL_F32, TOKENS * G * D);
    struct tensor out = tensor_empty(sim, SL_F32, (size_t)TOKENS * H * D);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); at += pieces[i], i++) {
        struct sl_attention_cached_args args = {.rows = pieces[i],
                                                .position_first = at,
                                                .heads = H,
                                                .kv_heads = G,
                                                .head_size = D,
                                                .scale = 0.125f,
                                                .window = 11,
                                                .qkv = (float *)qkv.device + at * row,
                                                .keys = keys.device,
                                                .values = values.device,
                                                .out = (float *)out.device + at * H * D};
        SIM_OK(sim->cuda->ops->attention_cached(sim->cuda, &args));
        args.qkv = qkv.host + at * row;
        args.keys = keys.host;
        args.values = values.host;
        args.out = out.host + at * H * D;
        SIM_OK(sim->host->ops->attention_cached(sim->host, &args));
    }
    assert_int_equal(at, TOKENS);
    tensor_expect(sim, "out", &out, 0x1p-14, 0);
    tensor_expect_bits(sim, "keys", &keys);
    tensor_expect_bits(sim, "values", &values);
    struct tensor *all[] = {&qkv, &keys, &values, &out};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        tensor_free(sim, all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cached_matches_fp64),
                                       cmocka_unit_test(pieces_match_the_host)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
