// SPDX-License-Identifier: Apache-2.0
#include "engine/generate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/checkpoint.h"
#include "engine/safetensors.h"
#include "engine/session.h"

#define PROMPT_ROWS 64u /* tokens of the prompt in one run of the plan */

struct generator {
    const struct sl_generate_options *o;
    struct sl_session session;
    struct sl_engine engine;
    struct sl_ids ids;
    int32_t *rows; /* ids, targets, positions, first: PROMPT_ROWS each */
    struct candidate {
        float probability;
        uint32_t id;
    } * candidates;
    uint64_t random;
};

static double uniform(struct generator *g)
{
    uint64_t z = (g->random += 0x9e3779b97f4a7c15u); /* SplitMix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Run tokens [first, first + count) of the text; logits of the last one are in the plan's slot. */
static int run_tokens(struct generator *g, size_t first, size_t count, struct sl_error *error)
{
    memset(g->rows, 0, 4 * PROMPT_ROWS * sizeof(int32_t));
    for (size_t i = 0; i < count; i++) {
        g->rows[i] = (int32_t)g->ids.data[first + i];
        g->rows[2 * PROMPT_ROWS + i] = (int32_t)(first + i);
    }
    struct sl_step_context context = {
        .ids = g->rows,
        .targets = g->rows + PROMPT_ROWS,
        .positions = g->rows + 2 * PROMPT_ROWS,
        .first = g->rows + 3 * PROMPT_ROWS,
        .rows = count,
        .position_first = first,
    };
    int result = sl_executor_submit(g->engine.executor, g->engine.sp.generate, &context);
    if (!result)
        result = sl_executor_wait(g->engine.executor, 0);
    if (result)
        sl_executor_error(g->engine.executor, error);
    return result;
}

static int more_probable(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->probability != y->probability)
        return x->probability > y->probability ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint32_t sample(struct generator *g)
{
    const float *logits = sl_executor_pointer(g->engine.executor, g->engine.sp.logits);
    uint32_t vocabulary = g->session.model.vocabulary;
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocabulary; i++)
        if (logits[i] > logits[best])
            best = i;
    if (g->o->temperature <= 0)
        return best;
    float cap = g->session.model.final_softcap;
    double total = 0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        double difference = (double)logits[i] - (double)logits[best];
        if (cap > 0)
            difference = (double)cap *
                         (tanh((double)(logits[i] / cap)) - tanh((double)(logits[best] / cap)));
        float probability = (float)exp(difference / g->o->temperature);
        g->candidates[i] = (struct candidate){probability, i};
        total += (double)probability;
    }
    if (g->o->top_p < 1) {
        qsort(g->candidates, vocabulary, sizeof(*g->candidates), more_probable);
        double kept = 0;
        uint32_t count = 0;
        while (count < vocabulary && kept < g->o->top_p * total)
            kept += (double)g->candidates[count++].probability;
        total = kept;
        vocabulary = count;
    }
    double point = uniform(g) * total;
    for (uint32_t i = 0; i < vocabulary; i++) {
        point -= (double)g->candidates[i].probability;
        if (point < 0)
            return g->candidates[i].id;
    }
    return g->candidates[vocabulary - 1].id;
}

static int encode_prompt(struct generator *g, struct sl_error *error)
{
    struct sl_encoder *encoder;
    int result = sl_encoder_create(&encoder, g->session.tokenizer, error);
    if (result)
        return result;
    result =
        sl_encode(encoder, g->o->prompt, g->o->prompt_bytes, SL_ENCODE_TEMPLATE, &g->ids, error);
    sl_encoder_destroy(encoder);
    if (!result && g->ids.count == 0)
        result = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                              "--prompt is empty: give at least one token to begin with");
    if (!result && g->ids.count >= g->session.model.positions_max)
        result = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                              "the prompt has %zu tokens; the model has positions for %u",
                              g->ids.count, g->session.model.positions_max);
    return result;
}

static int open_engine(struct generator *g, struct sl_error *error)
{
    static const char *const all[] = {"*"};
    struct sl_session *s = &g->session;
    if (!s->model_has_weights)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                            "--model %s: no weights there; give a folder with model.safetensors",
                            g->o->model);
    int result = sl_model_freeze(&s->model, all, 1, error);
    if (!result)
        result = encode_prompt(g, error);
    if (result)
        return result;
    struct sl_step_options *step = &s->engine.step;
    step->batch = step->micro_batches = step->group = 1;
    step->sequence = PROMPT_ROWS;
    step->generate_positions = sl_min_u64(g->ids.count + g->o->max_tokens, s->model.positions_max);
    result = sl_engine_plan(&g->engine, &s->engine, error);
    if (!result && !g->engine.device->ops->attention_cached)
        result =
            sl_error_set(error, SL_DOMAIN_DEVICE, -ENOTSUP, "%s cannot generate; use --device host",
                         g->engine.device->properties.name);
    if (!result)
        result = sl_engine_start(&g->engine, error);
    if (!result)
        result = sl_checkpoint_load_weights(&g->engine, s->model_path, error);
    g->rows = calloc(4 * PROMPT_ROWS, sizeof(int32_t));
    g->candidates = calloc(s->model.vocabulary, sizeof(*g->candidates));
    if (!result && (!g->rows || !g->candidates))
        result = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    return result;
}

static int put_id(struct generator *g, uint32_t id, struct sl_error *error)
{
    uint32_t *grown = g->ids.data;
    if (g->ids.count == g->ids.capacity) {
        grown = realloc(g->ids.data, 2 * g->ids.capacity * sizeof(*grown));
        if (!grown)
            return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
        g->ids.data = grown;
        g->ids.capacity *= 2;
    }
    g->ids.data[g->ids.count++] = id;
    return 0;
}

static int give_text(struct generator *g, struct sl_text *text)
{
    int stop = text->bytes ? g->o->text(g->o->user, text->data, text->bytes) : 0;
    text->bytes = 0;
    return stop;
}

static int write_all(int fd, const void *data, size_t bytes, uint64_t offset)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t done = pwrite(fd, (const char *)data + at, bytes - at, (off_t)(offset + at));
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += (size_t)done;
    }
    return 0;
}

/* The prompt, one token at a time, and the logits (capped, as the model's are) of each position. */
static int dump_logits(struct generator *g, struct sl_error *error)
{
    size_t tokens = g->ids.count, vocabulary = g->session.model.vocabulary;
    char ids_name[] = "input_ids", logits_name[] = "logits";
    struct sl_safetensor tensors[] = {
        {.name = ids_name, .type = SL_ST_I32, .rank = 1, .shape = {tokens}},
        {.name = logits_name, .type = SL_ST_F32, .rank = 2, .shape = {tokens, vocabulary}},
    };
    int fd = -1;
    uint64_t data;
    float *row = calloc(vocabulary, sizeof(float));
    int result = row ? sl_safetensors_create(g->o->logits_path, tensors, 2, &fd, &data, error)
                     : sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    uint64_t ids_at = 0, logits_at = 0;
    for (int i = 0; i < 2 && !result; i++)
        *(tensors[i].type == SL_ST_I32 ? &ids_at : &logits_at) = data + tensors[i].begin;
    for (size_t t = 0; t < tokens && !result; t++) {
        result = run_tokens(g, t, 1, error);
        const float *logits = sl_executor_pointer(g->engine.executor, g->engine.sp.logits);
        float cap = g->session.model.final_softcap;
        for (size_t i = 0; i < vocabulary; i++)
            row[i] = cap > 0 ? cap * tanhf(logits[i] / cap) : logits[i];
        int code = result ? 0
                          : write_all(fd, row, vocabulary * sizeof(float),
                                      logits_at + t * vocabulary * sizeof(float));
        if (!result && !code)
            code = write_all(fd, &g->ids.data[t], sizeof(uint32_t), ids_at + t * sizeof(uint32_t));
        if (code)
            result = sl_error_set(error, SL_DOMAIN_IO, code, "%s: %s", g->o->logits_path,
                                  strerror(-code));
    }
    if (fd >= 0)
        close(fd);
    free(row);
    return result;
}

static int generate(struct generator *g, struct sl_generate_result *r, struct sl_error *error)
{
    uint64_t start_ns = sl_clock_ns();
    int result = g->o->logits_path ? dump_logits(g, error) : 0;
    r->prompt_tokens = g->ids.count;
    for (size_t at = 0; at < g->ids.count && !result; at += PROMPT_ROWS)
        result = run_tokens(g, at, sl_min_u64(PROMPT_ROWS, g->ids.count - at), error);
    uint64_t prompt_ns = sl_clock_ns();
    r->prompt_seconds = (double)(prompt_ns - start_ns) * 1e-9;
    struct sl_decoder decoder;
    struct sl_text text = {0};
    sl_decoder_begin(&decoder, g->session.tokenizer, true);
    /* The decoder has seen the prompt, so that the first new piece keeps its leading space. */
    for (size_t i = 0; i < g->ids.count && !result; i++)
        result = sl_decoder_push(&decoder, g->ids.data[i], &text);
    text.bytes = 0;
    int stop = 0;
    for (uint32_t n = 0; n < g->o->max_tokens && !result && !stop; n++) {
        uint32_t id = sample(g);
        if (sl_tokenizer_is_eos(g->session.tokenizer, id) ||
            g->ids.count >= g->engine.sp.options.generate_positions)
            break;
        result = put_id(g, id, error);
        if (!result)
            result = sl_decoder_push(&decoder, id, &text);
        r->new_tokens++;
        stop = result ? 0 : give_text(g, &text);
        if (!result && !stop && n + 1 < g->o->max_tokens)
            result = run_tokens(g, g->ids.count - 1, 1, error);
    }
    if (!result)
        result = sl_decoder_end(&decoder, &text);
    if (!result)
        give_text(g, &text);
    sl_text_finish(&text);
    r->new_seconds = (double)(sl_clock_ns() - prompt_ns) * 1e-9;
    return result;
}

int sl_generate(const struct sl_generate_options *options, struct sl_generate_result *result_out,
                struct sl_error *error)
{
    struct sl_generate_result ignored = {0};
    struct sl_generate_result *r = result_out ? result_out : &ignored;
    struct generator *g = calloc(1, sizeof(*g));
    if (!g)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "out of memory");
    *r = (struct sl_generate_result){0};
    g->o = options;
    g->random = options->seed;
    struct sl_run_options run = {
        .model = options->model,
        .sets = options->sets,
        .set_count = options->set_count,
        .device = options->device,
        .log = options->log,
    };
    int result = sl_session_open(&g->session, &run, error);
    if (!result)
        result = open_engine(g, error);
    if (!result)
        result = generate(g, r, error);
    sl_engine_finish(&g->engine);
    sl_session_close(&g->session);
    sl_ids_finish(&g->ids);
    free(g->rows);
    free(g->candidates);
    free(g);
    return result;
}
