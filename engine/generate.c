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
#include "engine/generate_internal.h"
#include "engine/safetensors.h"

#define PROMPT_ROWS 64u /* tokens of the prompt in one run of the plan */

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
    int result = sl_executor_submit(g->engine.executor, g->engine.sp.generate, 0, &context);
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

int generator_start(struct generator *g, uint64_t positions, struct sl_error *error)
{
    static const char *const all[] = {"*"};
    struct sl_session *s = &g->session;
    if (!s->model_has_weights)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOENT,
                            "--model %s: no weights there; give a folder with model.safetensors",
                            g->o->model);
    int result = sl_model_freeze(&s->model, all, 1, error);
    if (result)
        return result;
    struct sl_step_options *step = &s->engine.step;
    step->batch = step->micro_batches = step->group = 1;
    step->sequence = PROMPT_ROWS;
    step->generate_positions = positions;
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

static int append_byte(struct sl_text *text, char byte)
{
    if (text->bytes == text->capacity) {
        size_t capacity = text->capacity ? 2 * text->capacity : 256;
        char *grown = realloc(text->data, capacity);
        if (!grown)
            return -ENOMEM;
        text->data = grown;
        text->capacity = capacity;
    }
    text->data[text->bytes++] = byte;
    return 0;
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

/* How much of the text may be shown: all but what may be the beginning of the end. *ended: the end
 * is there, and what stands before it may be shown. */
static size_t shown_bytes(const struct sl_text *text, const char *end, bool *ended)
{
    size_t length = strlen(end);
    const char *hit = length && text->bytes ? memmem(text->data, text->bytes, end, length) : NULL;
    *ended = hit != NULL;
    if (hit)
        return (size_t)(hit - text->data);
    for (size_t held = length < text->bytes ? length : text->bytes; length && held > 0; held--)
        if (memcmp(text->data + text->bytes - held, end, held) == 0)
            return text->bytes - held;
    return text->bytes;
}

/* Hand out what is certain; true where the answer is over. */
static bool give_text(struct generator *g, struct sl_text *text, const char *end,
                      struct sl_text *answer, int *code)
{
    bool ended;
    size_t bytes = shown_bytes(text, end, &ended);
    bool stop = bytes && g->o->text(g->o->user, text->data, bytes) != 0;
    for (size_t i = 0; answer && i < bytes && !*code; i++)
        *code = append_byte(answer, text->data[i]);
    if (bytes)
        memmove(text->data, text->data + bytes, text->bytes - bytes);
    text->bytes -= bytes;
    return stop || ended;
}

static int run_uncached(struct generator *g, struct sl_error *error)
{
    uint64_t start_ns = sl_clock_ns();
    int result = 0;
    g->result->prompt_tokens += g->ids.count - g->cached;
    for (; g->cached < g->ids.count && !result;) {
        size_t count = (size_t)sl_min_u64(PROMPT_ROWS, g->ids.count - g->cached);
        result = run_tokens(g, g->cached, count, error);
        g->cached += count;
    }
    g->result->prompt_seconds += (double)(sl_clock_ns() - start_ns) * 1e-9;
    return result;
}

static bool ends(const struct generator *g, uint32_t id, const struct generator_end *end)
{
    return sl_tokenizer_is_eos(g->session.tokenizer, id) || (int64_t)id == end->id;
}

int generator_answer(struct generator *g, const struct generator_end *end, struct sl_text *answer,
                     struct sl_error *error)
{
    int result = run_uncached(g, error);
    uint64_t start_ns = sl_clock_ns();
    struct sl_decoder decoder;
    struct sl_text text = {0};
    sl_decoder_begin(&decoder, g->session.tokenizer, true);
    /* The decoder has seen the prompt, so that the first new piece keeps its leading space. */
    for (size_t i = 0; i < g->ids.count && !result; i++)
        result = sl_decoder_push(&decoder, g->ids.data[i], &text);
    text.bytes = 0;
    bool stop = false;
    for (uint32_t n = 0; n < g->o->max_tokens && !result && !stop; n++) {
        uint32_t id = sample(g);
        if (ends(g, id, end) || g->ids.count >= g->engine.sp.options.generate_positions)
            break;
        result = put_id(g, id, error);
        if (!result)
            result = sl_decoder_push(&decoder, id, &text);
        g->result->new_tokens++;
        stop = result || give_text(g, &text, end->text, answer, &result);
        if (!result && !stop && n + 1 < g->o->max_tokens)
            result = run_tokens(g, g->cached++, 1, error);
    }
    if (!result && !stop)
        result = sl_decoder_end(&decoder, &text);
    if (!result && !stop)
        give_text(g, &text, "", answer, &result);
    sl_text_finish(&text);
    g->result->new_seconds += (double)(sl_clock_ns() - start_ns) * 1e-9;
    return result == -ENOMEM ? sl_error_set(error, SL_DOMAIN_MEMORY, result, "out of memory")
                             : result;
}

static int generate(struct generator *g, struct sl_error *error)
{
    static const struct generator_end none = {-1, ""};
    int result = encode_prompt(g, error);
    if (!result)
        result = generator_start(
            g, sl_min_u64(g->ids.count + g->o->max_tokens, g->session.model.positions_max), error);
    if (!result && g->o->logits_path)
        result = dump_logits(g, error);
    return result ? result : generator_answer(g, &none, NULL, error);
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
    g->result = r;
    struct sl_run_options run = {
        .model = options->model,
        .sets = options->sets,
        .set_count = options->set_count,
        .device = options->device,
        .log = options->log,
    };
    int result = sl_session_open_weights(&g->session, &run, error);
    if (!result)
        result = options->chat ? generator_chat(g, error) : generate(g, error);
    sl_engine_finish(&g->engine);
    sl_session_close(&g->session);
    sl_ids_finish(&g->ids);
    free(g->rows);
    free(g->candidates);
    free(g);
    return result;
}
