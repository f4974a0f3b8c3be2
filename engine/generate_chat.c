// SPDX-License-Identifier: Apache-2.0
/* A conversation with a model.
 *
 * Each turn renders the whole conversation by the model's template, as `transformers` does, and
 * encodes it as a whole. What of it the cache holds already is found by comparing ids: the longest
 * common prefix with the text so far. So a template that rewrites what came before (Qwen 3 drops
 * old thoughts) needs no rule of its own, it only reuses less.
 *
 *     cached   system | question | answer
 *     ids      system | question | answer | <end> question <begin>      run from the first that
 *     prefix   ^~~~~~~~~~~~~~~~~~~~~~~~~~~^                             differs
 *
 * Keys and values lie by position, so running over old ones replaces them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/chat.h"
#include "engine/generate_internal.h"

struct conversation {
    struct generator *g;
    struct sl_chat chat;
    struct sl_encoder *encoder;
    struct sl_chat_message *messages; /* texts are owned */
    size_t count, capacity;
    struct sl_chat_rendering rendering;
    struct sl_ids ids;
    struct generator_end end;
    struct sl_error *error;
};

static int no_memory(struct conversation *c)
{
    return sl_error_set(c->error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a conversation");
}

static int add_message(struct conversation *c, enum sl_chat_role role, const char *text,
                       size_t bytes)
{
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 16;
        void *grown = realloc(c->messages, capacity * sizeof(*c->messages));
        if (!grown)
            return no_memory(c);
        c->messages = grown;
        c->capacity = capacity;
    }
    char *copy = malloc(bytes + 1);
    if (!copy)
        return no_memory(c);
    memcpy(copy, text, bytes);
    c->messages[c->count++] = (struct sl_chat_message){.role = role, .text = copy, .bytes = bytes};
    return 0;
}

static void drop_message(struct conversation *c, size_t index)
{
    free((void *)(uintptr_t)c->messages[index].text);
    c->count--;
    memmove(c->messages + index, c->messages + index + 1,
            (c->count - index) * sizeof(*c->messages));
}

static int encode(struct conversation *c)
{
    sl_chat_rendering_clear(&c->rendering);
    c->ids.count = 0;
    int code = sl_chat_render(&c->chat, c->g->session.tokenizer, c->messages, c->count, true,
                              &c->rendering, c->error);
    return code ? code
                : sl_chat_encode(&c->chat, c->encoder, &c->rendering, false, &c->ids, NULL,
                                 c->error);
}

/* Encode, without the oldest question and answer where both that and an answer find no room. */
static int encode_within(struct conversation *c, uint64_t positions)
{
    uint64_t room = sl_min_u64(c->g->o->max_tokens, positions / 4);
    size_t dropped = 0, first = c->count && c->messages[0].role == SL_CHAT_SYSTEM;
    int code = encode(c);
    while (!code && c->ids.count + room > positions && c->count > first + 2) {
        drop_message(c, first);
        drop_message(c, first);
        dropped += 2;
        code = encode(c);
    }
    if (dropped)
        sl_log_write(c->g->o->log, SL_LOG_WARNING,
                     "the context of %llu tokens is full: the oldest %zu messages are left out "
                     "from here on (--context makes room)",
                     (unsigned long long)positions, dropped);
    if (!code && c->ids.count >= positions)
        code = sl_error_set(c->error, SL_DOMAIN_INPUT, -EINVAL,
                            "the message makes %zu tokens with its frame; there is room for %llu "
                            "(--context)",
                            c->ids.count, (unsigned long long)positions);
    return code;
}

/* Let the generator's text be the conversation, and keep what of the cache is its beginning. */
static int reuse(struct conversation *c)
{
    struct generator *g = c->g;
    size_t same = 0, most = sl_min_u64(g->cached, c->ids.count - 1); /* the last one is run */
    while (same < most && g->ids.data[same] == c->ids.data[same])
        same++;
    if (g->ids.capacity < c->ids.count) {
        uint32_t *grown = realloc(g->ids.data, c->ids.count * sizeof(*grown));
        if (!grown)
            return no_memory(c);
        g->ids.data = grown;
        g->ids.capacity = c->ids.count;
    }
    memcpy(g->ids.data, c->ids.data, c->ids.count * sizeof(*c->ids.data));
    g->ids.count = c->ids.count;
    g->cached = same;
    g->result->reused_tokens += same;
    return 0;
}

static int answer(struct conversation *c)
{
    struct sl_text text = {0};
    int code = generator_answer(c->g, &c->end, &text, c->error);
    if (!code)
        code = add_message(c, SL_CHAT_ASSISTANT, text.data ? text.data : "", text.bytes);
    sl_text_finish(&text);
    return code;
}

static int talk(struct conversation *c, uint64_t positions)
{
    const struct sl_generate_options *o = c->g->o;
    const char *text = o->prompt;
    size_t bytes = o->prompt_bytes;
    bool given = text != NULL;
    int code = o->system ? add_message(c, SL_CHAT_SYSTEM, o->system, strlen(o->system)) : 0;
    while (!code) {
        if (!given && !(o->message && o->message(o->user, &text, &bytes)))
            break;
        given = false;
        code = add_message(c, SL_CHAT_USER, text, bytes);
        if (!code)
            code = encode_within(c, positions);
        if (!code)
            code = reuse(c);
        if (!code)
            code = answer(c);
    }
    return code;
}

static int open_conversation(struct conversation *c)
{
    const struct sl_tokenizer *tokenizer = c->g->session.tokenizer;
    bool guessed;
    int code = sl_chat_choose(&c->chat, tokenizer, c->g->o->chat_template, &guessed, c->error);
    if (code)
        return code;
    if (guessed)
        sl_log_write(c->g->o->log, SL_LOG_WARNING,
                     "no known marker in the model's chat template: messages are written one below "
                     "the other (template plain); name one with --chat-template");
    const char *end = sl_chat_end(&c->chat);
    bool token = sl_chat_has_tokens(&c->chat, tokenizer);
    c->end = token ? (struct generator_end){*end ? sl_tokenizer_id(tokenizer, end) : -1, ""}
                   : (struct generator_end){-1, end};
    return sl_encoder_create(&c->encoder, tokenizer, c->error);
}

int generator_chat(struct generator *g, struct sl_error *error)
{
    struct conversation c = {.g = g, .error = error};
    uint64_t context = g->o->context_tokens ? g->o->context_tokens : SL_CHAT_CONTEXT;
    uint64_t positions = sl_min_u64(context, g->session.model.positions_max);
    int code = open_conversation(&c);
    if (!code)
        code = generator_start(g, positions, error);
    if (!code)
        code = talk(&c, positions);
    while (c.count)
        drop_message(&c, c.count - 1);
    free(c.messages);
    sl_chat_rendering_finish(&c.rendering);
    sl_ids_finish(&c.ids);
    sl_encoder_destroy(c.encoder);
    return code;
}
