// SPDX-License-Identifier: Apache-2.0
/* Rendering of conversations.
 *
 * Each format is a function that writes a message with its frame; what they share (default system
 * message, system folded into the first question, the spans of answers) is here once. An answer's
 * span ends with the token that the model has to produce to stop, because a model that never learns
 * it never stops.
 */
#include "engine/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat_internal.h"
#include "engine/tokenizer_internal.h"

static const char *const format_names[SL_CHAT_FORMAT_COUNT] = {
    [SL_CHAT_PLAIN] = "plain",   [SL_CHAT_CHATML] = "chatml", [SL_CHAT_QWEN] = "qwen",
    [SL_CHAT_LLAMA2] = "llama2", [SL_CHAT_LLAMA3] = "llama3", [SL_CHAT_MISTRAL] = "mistral",
    [SL_CHAT_GEMMA] = "gemma",   [SL_CHAT_PHI] = "phi",       [SL_CHAT_ALPACA] = "alpaca",
};

struct writer {
    const struct sl_chat *chat;
    const struct sl_tokenizer *tokenizer;
    struct sl_text *text;
    struct sl_chat_rendering *out;
    const struct sl_chat_message *messages;
    size_t count;
    bool untrained; /* the message at work */
    int code;
};

static void put(struct writer *writer, const char *bytes, size_t count)
{
    if (!writer->code)
        writer->code = tokenizer_text_append(writer->text, bytes, count);
}

static void put_text(struct writer *writer, const char *text)
{
    put(writer, text, strlen(text));
}

static void put_token(struct writer *writer, int32_t id)
{
    size_t bytes;
    if (id < 0)
        return;
    const char *piece = sl_tokenizer_piece(writer->tokenizer, (uint32_t)id, &bytes);
    put(writer, piece, bytes);
}

static void end_span(struct writer *writer, struct sl_chat_spans *spans, size_t start)
{
    if (writer->code || start == writer->text->bytes)
        return;
    if (spans->count == spans->capacity) {
        size_t capacity = spans->capacity ? spans->capacity * 2 : 8;
        void *grown = realloc(spans->data, capacity * sizeof(*spans->data));
        if (!grown) {
            writer->code = -ENOMEM;
            return;
        }
        spans->data = grown;
        spans->capacity = capacity;
    }
    spans->data[spans->count++] = (struct sl_chat_span){start, writer->text->bytes};
}

/* What people or models wrote, as opposed to the frame around it. */
static void put_content(struct writer *writer, const char *text, size_t bytes)
{
    size_t start = writer->text->bytes;
    put(writer, text, bytes);
    end_span(writer, &writer->out->contents, start);
}

/* Python's strip(), what the templates' trim does; without `left` its rstrip(). */
static void put_stripped(struct writer *writer, const struct sl_chat_message *message, bool left)
{
    const char *text = message->text;
    size_t bytes = message->bytes;
    while (bytes && (text[bytes - 1] == ' ' || (text[bytes - 1] >= 9 && text[bytes - 1] <= 13)))
        bytes--;
    while (left && bytes && (*text == ' ' || (*text >= 9 && *text <= 13))) {
        text++;
        bytes--;
    }
    put_content(writer, text, bytes);
}

static void put_trimmed(struct writer *writer, const struct sl_chat_message *message)
{
    put_stripped(writer, message, true);
}

static void put_message(struct writer *writer, const struct sl_chat_message *message)
{
    put_content(writer, message->text, message->bytes);
}

/* An answer begins here, and end_answer closes it. */
static size_t begin_answer(struct writer *writer, const struct sl_chat_message *message)
{
    writer->untrained = message->untrained;
    return writer->text->bytes;
}

static void end_answer(struct writer *writer, size_t start)
{
    if (!writer->untrained)
        end_span(writer, &writer->out->answers, start);
}

void sl_chat_rendering_clear(struct sl_chat_rendering *rendering)
{
    rendering->text.bytes = rendering->answers.count = rendering->contents.count = 0;
}

void sl_chat_rendering_finish(struct sl_chat_rendering *rendering)
{
    sl_text_finish(&rendering->text);
    free(rendering->answers.data);
    free(rendering->contents.data);
    *rendering = (struct sl_chat_rendering){0};
}

static const struct sl_chat_message *system_of(const struct writer *writer)
{
    return writer->count && writer->messages[0].role == SL_CHAT_SYSTEM ? writer->messages : NULL;
}

static const char *role_name(enum sl_chat_role role)
{
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    return names[role];
}

static void put_default_system(struct writer *writer, const char *before, const char *after)
{
    if (system_of(writer) || !writer->chat->system[0])
        return;
    put_text(writer, before);
    put_text(writer, writer->chat->system);
    put_text(writer, after);
}

/* Qwen 3: an answer's thoughts are written where no question follows, else left out; the last
 * answer has a block for them though it be empty. */
static void put_thoughtful(struct writer *writer, const struct sl_chat_message *message, bool last,
                           bool asked)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *text = message->text, *end = message->text + message->bytes, *at = text;
    const char *thought = text, *thought_end = text, *hit;
    while ((hit = memmem(at, (size_t)(end - at), close, sizeof(close) - 1))) {
        thought_end = at == text ? hit : thought_end; /* up to the first, ... */
        at = text = hit + sizeof(close) - 1;          /* ... and from behind the last */
    }
    while ((hit = memmem(thought, (size_t)(thought_end - thought), open, sizeof(open) - 1)))
        thought = hit + sizeof(open) - 1;
    bool thinks = text != message->text;
    while (thought < thought_end && *thought == '\n')
        thought++;
    while (thought < thought_end && thought_end[-1] == '\n')
        thought_end--;
    bool block = !asked && (last || thought < thought_end);
    while ((thinks || block) && text < end && *text == '\n')
        text++;
    if (block) {
        put_text(writer, "<think>\n");
        put_content(writer, thought, (size_t)(thought_end - thought));
        put_text(writer, "\n</think>\n\n");
    }
    put_content(writer, text, (size_t)(end - text));
}

/* Qwen: what tools answer stands in a message of the user, neighbours in the same one. */
static void put_tool_response(struct writer *writer, size_t i)
{
    if (i == 0 || writer->messages[i - 1].role != SL_CHAT_TOOL)
        put_text(writer, "<|im_start|>user");
    put_text(writer, "\n<tool_response>\n");
    put_message(writer, &writer->messages[i]);
    put_text(writer, "\n</tool_response>");
    if (i + 1 == writer->count || writer->messages[i + 1].role != SL_CHAT_TOOL)
        put_text(writer, "<|im_end|>\n");
}

static void render_chatml(struct writer *writer, bool prompt)
{
    size_t last_question = writer->count - 1;
    for (size_t i = 0; i < writer->count; i++)
        if (writer->messages[i].role == SL_CHAT_USER)
            last_question = i;
    put_default_system(writer, "<|im_start|>system\n", "<|im_end|>\n");
    for (size_t i = 0; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        bool answer = message->role == SL_CHAT_ASSISTANT;
        if (message->role == SL_CHAT_TOOL && writer->chat->format == SL_CHAT_QWEN) {
            put_tool_response(writer, i);
            continue;
        }
        put_text(writer, "<|im_start|>");
        put_text(writer, role_name(message->role));
        put_text(writer, "\n");
        size_t start = begin_answer(writer, message);
        if (answer && writer->chat->think_block)
            put_thoughtful(writer, message, i + 1 == writer->count, i <= last_question);
        else
            put_message(writer, message);
        put_text(writer, "<|im_end|>");
        if (answer)
            end_answer(writer, start);
        put_text(writer, "\n");
    }
    if (prompt)
        put_text(writer, "<|im_start|>assistant\n");
}

static void render_llama3(struct writer *writer, bool prompt)
{
    const struct sl_chat_message *system = system_of(writer);
    put_token(writer, sl_tokenizer_bos(writer->tokenizer));
    if (writer->chat->dated) {
        put_text(writer, "<|start_header_id|>system<|end_header_id|>\n\n"
                         "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
        if (system)
            put_trimmed(writer, system);
        put_text(writer, "<|eot_id|>");
    }
    for (size_t i = writer->chat->dated && system; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        put_text(writer, "<|start_header_id|>");
        put_text(writer, role_name(message->role));
        put_text(writer, "<|end_header_id|>\n\n");
        size_t start = begin_answer(writer, message);
        put_trimmed(writer, message);
        put_text(writer, "<|eot_id|>");
        if (message->role == SL_CHAT_ASSISTANT)
            end_answer(writer, start);
    }
    if (prompt)
        put_text(writer, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

static void render_llama2(struct writer *writer, bool prompt)
{
    const struct sl_chat_message *system = system_of(writer);
    (void)prompt; /* [/INST] ends the question and begins the answer */
    for (size_t i = system != NULL; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        size_t start = begin_answer(writer, message);
        if (message->role == SL_CHAT_ASSISTANT) {
            put_text(writer, " ");
            put_trimmed(writer, message);
            put_text(writer, " ");
            put_token(writer, sl_tokenizer_eos(writer->tokenizer));
            end_answer(writer, start);
            continue;
        }
        put_token(writer, sl_tokenizer_bos(writer->tokenizer));
        put_text(writer, "[INST] ");
        if (system && i == 1) {
            put_text(writer, "<<SYS>>\n");
            put_message(writer, system);
            put_text(writer, "\n<</SYS>>\n\n");
        }
        put_stripped(writer, message, !(system && i == 1)); /* the template strips what it joined */
        put_text(writer, " [/INST]");
    }
}

static void render_mistral(struct writer *writer, bool prompt)
{
    const struct sl_chat *chat = writer->chat;
    const struct sl_chat_message *system = system_of(writer);
    size_t system_at = chat->system_last ? writer->count - 1 : 1;
    (void)prompt;
    put_token(writer, sl_tokenizer_bos(writer->tokenizer));
    for (size_t i = system != NULL; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        size_t start = begin_answer(writer, message);
        if (message->role == SL_CHAT_ASSISTANT) {
            put_text(writer, chat->answer_space ? " " : "");
            if (chat->answer_trim)
                put_trimmed(writer, message);
            else
                put_message(writer, message);
            put_token(writer, sl_tokenizer_eos(writer->tokenizer));
            end_answer(writer, start);
            continue;
        }
        put_text(writer, chat->lead_space ? " [INST]" : "[INST]");
        put_text(writer, chat->open_space ? " " : "");
        if (system && i == system_at) {
            put_message(writer, system);
            put_text(writer, "\n\n");
        }
        put_message(writer, message);
        put_text(writer, chat->close_space ? " [/INST]" : "[/INST]");
    }
}

static void render_gemma(struct writer *writer, bool prompt)
{
    const struct sl_chat_message *system = system_of(writer);
    put_token(writer, sl_tokenizer_bos(writer->tokenizer));
    for (size_t i = system != NULL; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        bool answer = message->role == SL_CHAT_ASSISTANT;
        put_text(writer, answer ? "<start_of_turn>model\n" : "<start_of_turn>user\n");
        size_t start = begin_answer(writer, message);
        if (system && i == 1) {
            put_message(writer, system);
            put_text(writer, "\n\n");
        }
        put_trimmed(writer, message);
        put_text(writer, "<end_of_turn>");
        if (answer)
            end_answer(writer, start);
        put_text(writer, "\n");
    }
    if (prompt)
        put_text(writer, "<start_of_turn>model\n");
}

static void render_phi(struct writer *writer, bool prompt)
{
    const char *line = writer->chat->tight ? "" : "\n";
    for (size_t i = 0; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        put_text(writer, "<|");
        put_text(writer, role_name(message->role));
        put_text(writer, "|>");
        put_text(writer, line);
        size_t start = begin_answer(writer, message);
        put_message(writer, message);
        put_text(writer, "<|end|>");
        if (message->role == SL_CHAT_ASSISTANT)
            end_answer(writer, start);
        put_text(writer, line);
    }
    if (prompt) {
        put_text(writer, "<|assistant|>");
        put_text(writer, line);
    } else
        put_token(writer, sl_tokenizer_eos(writer->tokenizer));
}

static void render_alpaca(struct writer *writer, bool prompt)
{
    static const char input_mark[] = "\n\n### Input:\n";
    const struct sl_chat_message *system = system_of(writer);
    for (size_t i = system != NULL; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        if (message->role == SL_CHAT_ASSISTANT) {
            size_t start = begin_answer(writer, message);
            put_message(writer, message);
            put_token(writer, sl_tokenizer_eos(writer->tokenizer));
            end_answer(writer, start);
            put_text(writer, i + 1 < writer->count ? "\n\n" : "");
            continue;
        }
        bool input = memmem(message->text, message->bytes, input_mark, sizeof(input_mark) - 1);
        if (i == (system != NULL) && system)
            put_message(writer, system);
        else if (i == 0)
            put_text(writer,
                     input ? "Below is an instruction that describes a task, paired with an input "
                             "that provides further context. Write a response that appropriately "
                             "completes the request."
                           : "Below is an instruction that describes a task. Write a response that "
                             "appropriately completes the request.");
        put_text(writer, i == (system != NULL) ? "\n\n### Instruction:\n" : "### Instruction:\n");
        put_message(writer, message);
        put_text(writer, "\n\n### Response:\n");
    }
    (void)prompt;
}

static void render_plain(struct writer *writer, bool prompt)
{
    (void)prompt;
    for (size_t i = 0; i < writer->count; i++) {
        const struct sl_chat_message *message = &writer->messages[i];
        size_t start = begin_answer(writer, message);
        put_message(writer, message);
        if (message->role == SL_CHAT_ASSISTANT) {
            put_token(writer, sl_tokenizer_eos(writer->tokenizer));
            end_answer(writer, start);
        }
        if (message->role != SL_CHAT_ASSISTANT || i + 1 < writer->count)
            put_text(writer, "\n");
    }
}

static const struct format {
    void (*render)(struct writer *writer, bool prompt);
    bool tool;         /* has a place for tool messages */
    const char *end;   /* the text of the token that ends an answer; "": end of text */
    const char *frame; /* texts of the tokens around messages */
} formats[SL_CHAT_FORMAT_COUNT] = {
    [SL_CHAT_PLAIN] = {render_plain, true, "", ""},
    [SL_CHAT_CHATML] = {render_chatml, true, "<|im_end|>", "<|im_start|> <|im_end|>"},
    [SL_CHAT_QWEN] = {render_chatml, true, "<|im_end|>", "<|im_start|> <|im_end|>"},
    [SL_CHAT_LLAMA2] = {render_llama2, false, "", "[INST] [/INST] <<SYS>> <</SYS>>"},
    [SL_CHAT_LLAMA3] = {render_llama3, false, "<|eot_id|>",
                        "<|start_header_id|> <|end_header_id|> <|eot_id|>"},
    [SL_CHAT_MISTRAL] = {render_mistral, false, "", "[INST] [/INST]"},
    [SL_CHAT_GEMMA] = {render_gemma, false, "<end_of_turn>", "<start_of_turn> <end_of_turn>"},
    [SL_CHAT_PHI] = {render_phi, false, "<|end|>", "<|system|> <|user|> <|assistant|> <|end|>"},
    [SL_CHAT_ALPACA] = {render_alpaca, false, "", ""},
};

/* A system message first or nowhere, tools only where they have a place. */
static int check_roles(const struct sl_chat *chat, const struct sl_chat_message *messages,
                       size_t count, struct sl_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (messages[i].role == SL_CHAT_SYSTEM && i > 0)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "message %zu is of the system: only the first may be", i + 1);
        if (messages[i].role == SL_CHAT_TOOL && !formats[chat->format].tool)
            return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                                "message %zu is of a tool: template %s has no place for it", i + 1,
                                format_names[chat->format]);
    }
    if (count == 0 || (count == 1 && messages[0].role == SL_CHAT_SYSTEM))
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "a conversation without messages");
    return 0;
}

int sl_chat_render(const struct sl_chat *chat, const struct sl_tokenizer *tokenizer,
                   const struct sl_chat_message *messages, size_t count, bool prompt,
                   struct sl_chat_rendering *rendering, struct sl_error *error)
{
    int code = check_roles(chat, messages, count, error);
    if (code)
        return code;
    struct writer writer = {.chat = chat,
                            .tokenizer = tokenizer,
                            .text = &rendering->text,
                            .out = rendering,
                            .messages = messages,
                            .count = count};
    formats[chat->format].render(&writer, prompt);
    return writer.code
               ? sl_error_set(error, SL_DOMAIN_MEMORY, writer.code, "no memory for a conversation")
               : 0;
}

const char *sl_chat_end(const struct sl_chat *chat)
{
    return formats[chat->format].end;
}

bool sl_chat_has_tokens(const struct sl_chat *chat, const struct sl_tokenizer *tokenizer)
{
    const char *end = formats[chat->format].end;
    return !*end || sl_tokenizer_id(tokenizer, end) >= 0;
}

bool chat_frame_has(const struct sl_chat *chat, const char *token, size_t bytes)
{
    const char *frame = formats[chat->format].frame;
    return memmem(frame, strlen(frame), token, bytes) != NULL;
}

const char *sl_chat_format_name(enum sl_chat_format format)
{
    return (unsigned)format < SL_CHAT_FORMAT_COUNT ? format_names[format] : "unknown";
}

int sl_chat_from_name(struct sl_chat *chat, const char *name, struct sl_error *error)
{
    memset(chat, 0, sizeof(*chat));
    for (int i = 0; i < SL_CHAT_FORMAT_COUNT; i++)
        if (strcmp(name, format_names[i]) == 0) {
            chat->format = (enum sl_chat_format)i;
            /* Mistral's are 0.3's; other versions are told by a model's own template. */
            chat->open_space = chat->answer_space = chat->answer_trim = chat->system_last =
                chat->format == SL_CHAT_MISTRAL;
            if (chat->format == SL_CHAT_QWEN)
                strcpy(chat->system, "You are Qwen, created by Alibaba Cloud. You are a helpful "
                                     "assistant.");
            return 0;
        }
    return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                        "template \"%s\" is not known; known are plain, chatml, qwen, llama2, "
                        "llama3, mistral, gemma, phi, alpaca",
                        name);
}
