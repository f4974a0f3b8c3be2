// SPDX-License-Identifier: Apache-2.0
/* Every family against PyTorch: logits, loss, the gradient of each parameter, ten AdamW steps. The
 * fixtures are made by tests/fixtures/make_models.py; the path under test is the engine's own:
 * plan, executor, transformer, optimizer. */
#include "tests/test.h"

#include <math.h>
#include <string.h>

#include "engine/checkpoint.h"
#include "engine/engine.h"
#include "engine/safetensors.h"
#include "engine/state.h"

#define BATCH 2
#define SEQUENCE 24
#define ROWS (BATCH * SEQUENCE)
#define STEPS 10

static const struct sl_optim_hyper adamw = {.kind = SL_OPTIM_ADAMW,
                                            .lr = 1e-3f,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.95f,
                                            .eps = 1e-8f,
                                            .weight_decay = 0.1f,
                                            .bias_correction = true};

static void check(int result, const struct sl_error *error, const char *what)
{
    if (result)
        fail_msg("%s: %s", what, error->message);
}

static void decided(struct sl_step_context *context, struct sl_step_control *control)
{
    (void)context;
    control->hyper = adamw;
    control->loss_scale = 1;
}

struct family {
    char directory[512];
    struct sl_model model;
    struct sl_engine engine;
    struct sl_safetensors expected, steps;
    int32_t ids[ROWS], targets[ROWS], positions[ROWS], first[ROWS];
    struct sl_step_context context;
};

static void read_f32(const struct sl_safetensors *file, const char *name, uint64_t first,
                     size_t count, void *out)
{
    struct sl_error error = {0};
    const struct sl_safetensor *tensor = sl_safetensors_find(file, name);
    if (!tensor)
        fail_msg("%s has no tensor %s", file->path, name);
    check(sl_safetensors_read(file, tensor, first * 4, count * 4, out, &error), &error, name);
}

static void open_family(struct family *f, const char *name, uint64_t layer_bytes)
{
    struct sl_error error = {0};
    char path[600];
    memset(f, 0, sizeof(*f));
    snprintf(f->directory, sizeof(f->directory), "%s/models/%s", getenv("SLUICE_TEST_FIXTURES"),
             name);
    check(sl_model_from_directory(&f->model, f->directory, &error), &error, name);
    snprintf(path, sizeof(path), "%s/expected.safetensors", f->directory);
    check(sl_safetensors_open(&f->expected, path, &error), &error, name);
    snprintf(path, sizeof(path), "%s/steps.safetensors", f->directory);
    check(sl_safetensors_open(&f->steps, path, &error), &error, name);
    struct sl_engine_options o = {
        .step = {.model = &f->model,
                 .precision = SL_F32,
                 .batch = BATCH,
                 .sequence = SEQUENCE,
                 .micro_batches = 1,
                 .group = 1,
                 .recompute = true,
                 .sub_group_elements = 1 << 20,
                 .optimizer_buffers = 2,
                 .prefetch = 1,
                 .layer_bytes = layer_bytes,
                 .hyper = adamw},
        .device = "host",
        .thread_count = 2,
    };
    for (int kind = 0; kind < SL_PLACED_COUNT; kind++)
        o.step.placement.fraction[kind][SL_TIER_HOST] = 1;
    check(sl_engine_plan(&f->engine, &o, &error), &error, name);
    check(sl_engine_start(&f->engine, &error), &error, name);
    check(sl_checkpoint_load_weights(&f->engine, f->directory, &error), &error, name);
    sl_engine_control(&f->engine)->loss_scale = 1;
    f->context = (struct sl_step_context){.ids = f->ids,
                                          .targets = f->targets,
                                          .positions = f->positions,
                                          .first = f->first,
                                          .decided = decided};
}

static void close_family(struct family *f)
{
    sl_engine_finish(&f->engine);
    sl_safetensors_close(&f->expected);
    sl_safetensors_close(&f->steps);
    sl_model_finish(&f->model);
}

static void set_batch(struct family *f, const struct sl_safetensors *file, uint64_t batch)
{
    read_f32(file, "input_ids", batch * ROWS, ROWS, f->ids);
    f->context.trained_tokens = 0;
    for (int i = 0; i < ROWS; i++) {
        bool last = i % SEQUENCE == SEQUENCE - 1;
        f->targets[i] = last ? -1 : f->ids[i + 1];
        f->positions[i] = i % SEQUENCE;
        f->first[i] = 0;
        f->context.trained_tokens += !last;
    }
}

/* || a - b || / || b ||, and 0 / 0 = 0: attention without any use of a bias has zero gradients. */
static double relative(const float *a, const float *b, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* Element i of a parameter in the file's order. */
static float *file_order(const struct sl_param *param, const float *values)
{
    size_t rows = param->rows, columns = param->columns;
    float *out = malloc(rows * columns * sizeof(float));
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            out[param->transposed_in_file ? c * rows + r : r * columns + c] =
                values[r * columns + c];
    return out;
}

static void compare_param(const struct sl_safetensors *file, const char *prefix,
                          const struct sl_param *param, const float *values, double tolerance,
                          double *worst)
{
    char name[160];
    size_t count = param->rows * param->columns;
    snprintf(name, sizeof(name), "%s%s", prefix, param->name);
    float *expected = malloc(count * sizeof(float));
    read_f32(file, name, 0, count, expected);
    float *mine = file_order(param, values);
    double difference = relative(mine, expected, count);
    *worst = difference > *worst ? difference : *worst;
    if (!(difference <= tolerance))
        fail_msg("%s: relative difference %.3g, allowed %.3g", name, difference, tolerance);
    free(mine);
    free(expected);
}

/* The gradient of a parameter, put together from its runs. */
static float *gradient_of(const struct family *f, uint32_t param)
{
    const struct sl_step_plan *sp = &f->engine.sp;
    const struct sl_param *p = &f->model.params[param];
    float *out = calloc(p->rows * p->columns, sizeof(float));
    for (uint32_t i = 0; i < sp->piece_count; i++) {
        const struct sl_piece *piece = &sp->pieces[i];
        for (uint32_t r = piece->run_first; r < piece->run_first + piece->run_count; r++) {
            const struct sl_run *run = &sp->runs[r];
            const float *gradient = sl_executor_pointer(f->engine.executor, piece->gradient);
            if (run->param == param)
                memcpy(out + run->param_first, gradient + run->gradient_offset,
                       run->count * sizeof(float));
        }
    }
    return out;
}

static void compare_logits(struct family *f)
{
    struct sl_error error = {0};
    const struct sl_step_plan *sp = &f->engine.sp;
    double loss_sum;
    for (int i = SEQUENCE - 1; i < ROWS; i += SEQUENCE)
        f->targets[i] = 0; /* rows without a target are left out of the softmax and its cap */
    check(sl_engine_evaluate(&f->engine, &f->context, &loss_sum, &error), &error, "evaluate");
    const struct sl_segment *segment = &sp->plan.segments[sp->evaluate];
    const float *logits = NULL;
    for (uint32_t i = segment->op_first; i < segment->op_first + segment->op_count; i++)
        if (sp->plan.ops[i].kind == SL_OP_LOSS)
            logits = sl_executor_pointer(f->engine.executor, sp->args[i].logits);
    assert_non_null(logits);
    size_t count = (size_t)ROWS * f->model.vocabulary;
    float *expected = malloc(count * sizeof(float));
    read_f32(&f->expected, "logits", 0, count, expected);
    double difference = relative(logits, expected, count);
    printf("  logits %.2g", difference);
    /* f32 sums of a few hundred terms: some 1e-6; the bound is what the format asks for. */
    if (!(difference < 1e-5))
        fail_msg("logits: relative difference %.3g", difference);
    free(expected);
    set_batch(f, &f->expected, 0);
}

static void compare_gradients(struct family *f)
{
    struct sl_error error = {0};
    check(sl_engine_step(&f->engine, &f->context, &error), &error, "step");
    check(sl_engine_drain(&f->engine, &error), &error, "step");
    float loss;
    read_f32(&f->expected, "loss", 0, 1, &loss);
    assert_true(fabs(f->context.result.loss - loss) < 1e-5 * loss);
    double worst = 0, squares = 0;
    for (uint32_t i = 0; i < f->model.param_count; i++) {
        float *gradient = gradient_of(f, i);
        compare_param(&f->expected, "grad.", &f->model.params[i], gradient, 1e-4, &worst);
        for (size_t k = 0; k < f->model.params[i].rows * f->model.params[i].columns; k++)
            squares += (double)gradient[k] * gradient[k];
        free(gradient);
    }
    assert_true(fabs(f->context.result.norm - sqrt(squares)) < 1e-9 * sqrt(squares));
    printf("  gradients %.2g", worst);
}

struct collected {
    const struct family *f;
    float **values;
};

static int collect(void *user, const struct sl_state_span *span, struct sl_error *error)
{
    (void)error;
    struct collected *c = user;
    memcpy(c->values[span->param] + span->first, span->weight, span->count * sizeof(float));
    return 0;
}

/* A softmax compares scores, so that what every key has in common cancels: without RoPE the
 * gradient of the key bias is zero. What is computed for it is the machine's rounding, and Adam
 * makes steps of lr of that. These elements are held to the reach of such steps, then taken as
 * expected. */
static void settle_key_bias(const struct family *f, const struct sl_param *param, float *values)
{
    const char *suffix = "attn.c_attn.bias";
    size_t length = strlen(param->name), count = param->rows * param->columns;
    char name[160];
    if (length < strlen(suffix) || strcmp(param->name + length - strlen(suffix), suffix) != 0)
        return;
    snprintf(name, sizeof(name), "param.%s", param->name);
    float *expected = malloc(count * sizeof(float));
    read_f32(&f->steps, name, 0, count, expected);
    for (size_t i = count / 3; i < count / 3 * 2; i++) {
        assert_true(fabsf(values[i] - expected[i]) <= 2 * STEPS * adamw.lr);
        values[i] = expected[i];
    }
    free(expected);
}

static void compare_ten_steps(struct family *f)
{
    struct sl_error error = {0};
    check(sl_engine_flush(&f->engine, &error), &error, "flush");
    check(sl_checkpoint_load_weights(&f->engine, f->directory, &error), &error, "reload");
    *sl_engine_control(&f->engine) = (struct sl_step_control){.loss_scale = 1};
    for (uint64_t step = 0; step < STEPS; step++) {
        set_batch(f, &f->steps, step);
        check(sl_engine_step(&f->engine, &f->context, &error), &error, "step");
        check(sl_engine_flush(&f->engine, &error), &error, "step");
        float loss;
        read_f32(&f->steps, "losses", step, 1, &loss);
        assert_true(fabs(f->context.result.loss - loss) < 1e-4 * loss);
    }
    struct collected c = {f, calloc(f->model.param_count, sizeof(float *))};
    for (size_t i = 0; i < f->model.param_count; i++)
        c.values[i] = calloc(f->model.params[i].rows * f->model.params[i].columns, sizeof(float));
    check(sl_state_visit(&f->engine, SL_STATE_READ, collect, &c, &error), &error, "visit");
    double worst = 0;
    for (size_t i = 0; i < f->model.param_count; i++) {
        settle_key_bias(f, &f->model.params[i], c.values[i]);
        compare_param(&f->steps, "param.", &f->model.params[i], c.values[i], 1e-3, &worst);
        free(c.values[i]);
    }
    free(c.values);
    printf("  parameters after ten steps %.2g\n", worst);
}

/* Returns the hash of the state after all steps. */
static uint64_t train_family(const char *name, uint64_t layer_bytes)
{
    static struct family f;
    struct sl_error error = {0};
    uint64_t hash;
    open_family(&f, name, layer_bytes);
    set_batch(&f, &f.expected, 0);
    compare_logits(&f);
    compare_gradients(&f);
    compare_ten_steps(&f);
    check(sl_state_hash(&f.engine, &hash, &error), &error, name);
    close_family(&f);
    return hash;
}

/* Layers matrix by matrix: the same bits. */
static void family(const char *name)
{
    uint64_t whole = train_family(name, 0);
    assert_int_equal(train_family(name, 1), whole);
}

#define FAMILY(function, name)                                                                     \
    static void function(void **state)                                                             \
    {                                                                                              \
        (void)state;                                                                               \
        family(name);                                                                              \
    }
FAMILY(llama, "llama")
FAMILY(llama_untied, "llama-untied")
FAMILY(gpt2, "gpt2")
FAMILY(mistral, "mistral")
FAMILY(qwen2, "qwen2")
FAMILY(qwen3, "qwen3")
FAMILY(gemma, "gemma")
FAMILY(gemma2, "gemma2")
FAMILY(gemma3, "gemma3")
FAMILY(phi3, "phi3")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),   cmocka_unit_test(llama_untied), cmocka_unit_test(gpt2),
        cmocka_unit_test(mistral), cmocka_unit_test(qwen2),        cmocka_unit_test(qwen3),
        cmocka_unit_test(gemma),   cmocka_unit_test(gemma2),       cmocka_unit_test(gemma3),
        cmocka_unit_test(phi3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
