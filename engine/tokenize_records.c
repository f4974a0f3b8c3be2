// SPDX-License-Identifier: Apache-2.0
/* Records of JSON and JSON Lines files.
 *
 * A file is a row of objects, whether a JSON array holds them or a line each: brackets, commas and
 * white space between objects are passed over, so one reader does both, a piece at a time, and a
 * file of any size needs the memory of a piece. Each record says by its keys what it is:
 *
 *     {"text"}                                             a document
 *     {"messages": [{"role", "content"}]}                  OpenAI
 *     {"conversations": [{"from", "value"}], "system"}     ShareGPT
 *     {"instruction", "input", "output", "system", "history"}   Alpaca
 *     {"prompt", "completion"}                             a question and its answer, no frame
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/dataset_store.h"
#include "engine/tokenize_internal.h"

#define MESSAGES_MAX 4096u

static bool is_between(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ',' || c == '[' || c == ']';
}

/* Behind the object that begins at `at`; 0 where it does not end in time. */
static size_t object_end(const char *text, size_t bytes, size_t at)
{
    size_t depth = 0;
    for (bool string = false; at < bytes; at++) {
        char c = text[at];
        if (string) {
            if (c == '\\')
                at++;
            else if (c == '"')
                string = false;
        } else if (c == '"') {
            string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return at + 1;
        }
    }
    return 0;
}

int records_cut(const char *text, size_t bytes, size_t *cut, uint64_t *records)
{
    *cut = 0;
    *records = 0;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        *cut = 3;
    for (size_t at = *cut; at < bytes;) {
        if (is_between(text[at])) {
            at++;
            continue;
        }
        if (text[at] != '{')
            return -EINVAL;
        at = object_end(text, bytes, at);
        if (!at)
            return 0;
        *cut = at;
        ++*records;
    }
    *cut = bytes;
    return 0;
}

/* One record at work. */
struct record {
    const struct tokenize_source *source;
    struct sl_encoder *encoder;
    struct token_piece *piece;
    json_t *object;
    struct sl_chat_message messages[MESSAGES_MAX];
    char *owned[MESSAGES_MAX]; /* texts that had to be joined */
    size_t count, owned_count;
    struct sl_error *error;
};

static int refuse(struct record *record, const char *what)
{
    return sl_error_set(record->error, SL_DOMAIN_INPUT, -EINVAL, "%s", what);
}

static int add_message(struct record *record, enum sl_chat_role role, const char *text,
                       size_t bytes)
{
    if (record->count == MESSAGES_MAX)
        return refuse(record, "over 4096 messages");
    record->messages[record->count++] =
        (struct sl_chat_message){.role = role, .text = text, .bytes = bytes};
    return 0;
}

/* A message of two texts with something between them. */
static int add_joined(struct record *record, enum sl_chat_role role, const char *before,
                      json_t *first, const char *between, json_t *second)
{
    struct sl_text joined = {0};
    int code = tokenizer_text_append(&joined, before, strlen(before));
    if (!code)
        code = tokenizer_text_append(&joined, json_string_value(first), json_string_length(first));
    if (!code)
        code = tokenizer_text_append(&joined, between, strlen(between));
    if (!code)
        code =
            tokenizer_text_append(&joined, json_string_value(second), json_string_length(second));
    if (code || record->owned_count == MESSAGES_MAX) {
        sl_text_finish(&joined);
        return code ? code : refuse(record, "over 4096 messages");
    }
    record->owned[record->owned_count++] = joined.data;
    return add_message(record, role, joined.data ? joined.data : "", joined.bytes);
}

static int add_string(struct record *record, enum sl_chat_role role, json_t *text, const char *key)
{
    if (!json_is_string(text))
        return sl_error_set(record->error, SL_DOMAIN_INPUT, -EINVAL, "\"%s\" is no string", key);
    return add_message(record, role, json_string_value(text), json_string_length(text));
}

static int role_of(struct record *record, json_t *name, enum sl_chat_role *role)
{
    static const struct {
        const char *name;
        enum sl_chat_role role;
    } roles[] = {
        {"system", SL_CHAT_SYSTEM},       {"developer", SL_CHAT_SYSTEM},
        {"user", SL_CHAT_USER},           {"human", SL_CHAT_USER},
        {"assistant", SL_CHAT_ASSISTANT}, {"gpt", SL_CHAT_ASSISTANT},
        {"model", SL_CHAT_ASSISTANT},     {"bot", SL_CHAT_ASSISTANT},
        {"chatgpt", SL_CHAT_ASSISTANT},   {"tool", SL_CHAT_TOOL},
        {"observation", SL_CHAT_TOOL},
    };
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof(roles) / sizeof(roles[0]); i++)
        if (strcasecmp(text, roles[i].name) == 0) {
            *role = roles[i].role;
            return 0;
        }
    return sl_error_set(record->error, SL_DOMAIN_INPUT, -EINVAL,
                        "message %zu: role \"%.32s\" is not known", record->count + 1,
                        text ? text : "(none)");
}

/* Content as a list of parts: the texts one behind the other. */
static int add_parts(struct record *record, enum sl_chat_role role, json_t *parts)
{
    struct sl_text joined = {0};
    size_t index;
    json_t *part;
    int code = 0;
    json_array_foreach(parts, index, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
            code =
                sl_error_set(record->error, SL_DOMAIN_INPUT, -ENOTSUP,
                             "message %zu: content of type \"%.32s\" is not supported, only text",
                             record->count + 1, type ? type : "(none)");
            break;
        }
        code = tokenizer_text_append(&joined, json_string_value(text), json_string_length(text));
        if (code)
            break;
    }
    if (!code && record->owned_count < MESSAGES_MAX) {
        record->owned[record->owned_count++] = joined.data;
        return add_message(record, role, joined.data ? joined.data : "", joined.bytes);
    }
    sl_text_finish(&joined);
    return code;
}

static bool has_text(json_t *value)
{
    return json_is_string(value) && json_string_length(value) > 0;
}

/* Keys that would change what is said, and cannot be left out in silence. */
static int refuse_unknown(struct record *record, json_t *object)
{
    static const char *const keys[] = {"tools",  "tool_calls", "functions", "function_call",
                                       "images", "audios",     "videos"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *value = json_object_get(object, keys[i]);
        bool empty = !value || json_is_null(value) ||
                     (json_is_array(value) && json_array_size(value) == 0) ||
                     (json_is_string(value) && json_string_length(value) == 0);
        if (!empty)
            return sl_error_set(record->error, SL_DOMAIN_INPUT, -ENOTSUP,
                                "\"%s\" is not supported: write calls of tools into the text, or "
                                "leave the record out",
                                keys[i]);
    }
    return 0;
}

static int read_turn(struct record *record, json_t *turn, const char *who, const char *what)
{
    enum sl_chat_role role = SL_CHAT_USER;
    json_t *content = json_object_get(turn, what), *weight = json_object_get(turn, "weight");
    json_t *thoughts = json_object_get(turn, "reasoning_content");
    int code = role_of(record, json_object_get(turn, who), &role);
    if (!code)
        code = refuse_unknown(record, turn);
    if (code)
        return code;
    if (weight && !json_is_number(weight))
        return refuse(record, "\"weight\" is no number");
    if (has_text(thoughts) && !record->source->chat.think_block)
        return sl_error_set(record->error, SL_DOMAIN_INPUT, -ENOTSUP,
                            "message %zu: template %s has no place for reasoning_content",
                            record->count + 1, sl_chat_format_name(record->source->chat.format));
    if (has_text(thoughts) && json_is_string(content))
        code = add_joined(record, role, "<think>\n", thoughts, "\n</think>\n\n", content);
    else if (json_is_array(content))
        code = add_parts(record, role, content);
    else
        code = add_string(record, role, content, what);
    if (!code && weight)
        record->messages[record->count - 1].untrained = json_number_value(weight) == 0;
    return code;
}

static int read_turns(struct record *record, json_t *turns, const char *who, const char *what)
{
    size_t index;
    json_t *turn;
    if (!json_is_array(turns))
        return refuse(record, "the conversation is no array");
    int code = refuse_unknown(record, record->object);
    json_array_foreach(turns, index, turn)
    {
        code = code ? code : read_turn(record, turn, who, what);
    }
    return code;
}

static int read_alpaca(struct record *record)
{
    json_t *object = record->object, *pair;
    json_t *system = json_object_get(object, "system"), *input = json_object_get(object, "input");
    json_t *instruction = json_object_get(object, "instruction");
    size_t index;
    int code = has_text(system) ? add_string(record, SL_CHAT_SYSTEM, system, "system") : 0;
    json_array_foreach(json_object_get(object, "history"), index, pair)
    {
        if (!code)
            code = add_string(record, SL_CHAT_USER, json_array_get(pair, 0), "history");
        if (!code)
            code = add_string(record, SL_CHAT_ASSISTANT, json_array_get(pair, 1), "history");
    }
    if (code)
        return code;
    if (!json_is_string(instruction))
        return refuse(record, "\"instruction\" is no string");
    if (has_text(input)) {
        const char *between =
            record->source->chat.format == SL_CHAT_ALPACA ? "\n\n### Input:\n" : "\n";
        code = add_joined(record, SL_CHAT_USER, "", instruction, between, input);
    } else {
        code = add_string(record, SL_CHAT_USER, instruction, "instruction");
    }
    return code
               ? code
               : add_string(record, SL_CHAT_ASSISTANT, json_object_get(object, "output"), "output");
}

/* Close the document in the piece. */
static int end_document(struct token_piece *piece)
{
    if (!tokenizer_ids_reserve(&piece->ends, 1))
        return -ENOMEM;
    piece->ends.data[piece->ends.count++] = (uint32_t)piece->ids.count;
    return 0;
}

static int encode_document(struct record *record, json_t *text)
{
    struct token_piece *piece = record->piece;
    int32_t eos = sl_tokenizer_eos(record->source->tokenizer);
    if (!json_is_string(text))
        return refuse(record, "\"text\" is no string");
    int code = sl_encode(record->encoder, json_string_value(text), json_string_length(text), 0,
                         &piece->ids, record->error);
    if (code)
        return code;
    if (eos >= 0) {
        if (!tokenizer_ids_reserve(&piece->ids, 1))
            return -ENOMEM;
        piece->ids.data[piece->ids.count++] = (uint32_t)eos;
    }
    return end_document(piece);
}

/* Ids of a rendered text; what is not an answer gets its mark. */
static int encode_rendered(struct record *record, bool allow_special)
{
    struct token_piece *piece = record->piece;
    size_t first = piece->ids.count;
    piece->marks.bytes = 0;
    int code = sl_chat_encode(&record->source->chat, record->encoder, &piece->render, allow_special,
                              &piece->ids, &piece->marks, record->error);
    for (size_t i = first; i < piece->ids.count && !code; i++)
        if (!record->source->train_on_prompt && !piece->marks.data[i - first])
            piece->ids.data[i] |= STORE_UNTRAINED;
    piece->samples = true;
    return code ? code : end_document(piece);
}

static int encode_conversation(struct record *record)
{
    struct token_piece *piece = record->piece;
    sl_chat_rendering_clear(&piece->render);
    int code = sl_chat_render(&record->source->chat, record->source->tokenizer, record->messages,
                              record->count, false, &piece->render, record->error);
    return code ? code : encode_rendered(record, record->source->allow_special);
}

/* A frame, if any, is the writer's own: special tokens in both texts are ids. */
static int encode_completion(struct record *record)
{
    struct token_piece *piece = record->piece;
    json_t *prompt = json_object_get(record->object, "prompt");
    json_t *completion = json_object_get(record->object, "completion");
    if (!json_is_string(prompt) || !json_is_string(completion))
        return refuse(record, "\"prompt\" and \"completion\" are not both strings");
    struct sl_chat_message messages[] = {{.role = SL_CHAT_ASSISTANT,
                                          .text = json_string_value(completion),
                                          .bytes = json_string_length(completion)}};
    struct sl_chat plain = {.format = SL_CHAT_PLAIN};
    sl_chat_rendering_clear(&piece->render);
    int code = tokenizer_text_append(&piece->render.text, json_string_value(prompt),
                                     json_string_length(prompt));
    if (!code)
        code = sl_chat_render(&plain, record->source->tokenizer, messages, 1, false, &piece->render,
                              record->error);
    return code ? code : encode_rendered(record, true);
}

static int encode_record(struct record *record)
{
    json_t *object = record->object, *text = json_object_get(object, "text");
    record->count = 0;
    int code;
    if (text && !json_object_get(object, "messages"))
        return encode_document(record, text);
    if (record->source->text_only)
        return refuse(record, "a conversation: .bin files have no mask for what is not trained; "
                              "give the JSON file to training itself, or set train_on_prompt");
    if (json_object_get(object, "messages"))
        code = read_turns(record, json_object_get(object, "messages"), "role", "content");
    else if (json_object_get(object, "conversations")) {
        json_t *system = json_object_get(object, "system");
        code = has_text(system) ? add_string(record, SL_CHAT_SYSTEM, system, "system") : 0;
        if (!code)
            code = read_turns(record, json_object_get(object, "conversations"), "from", "value");
    } else if (json_object_get(object, "instruction"))
        code = read_alpaca(record);
    else if (json_object_get(object, "prompt"))
        return encode_completion(record);
    else
        return refuse(record, "none of the keys text, messages, conversations, instruction or "
                              "prompt is there");
    return code ? code : encode_conversation(record);
}

int records_encode(const struct tokenize_source *source, struct sl_encoder *encoder,
                   const char *path, struct token_piece *piece)
{
    struct record *record = calloc(1, sizeof(*record));
    if (!record)
        return sl_error_set(&piece->error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory", path);
    record->source = source;
    record->encoder = encoder;
    record->piece = piece;
    record->error = &piece->error;
    uint64_t number = piece->first_record;
    int code = 0;
    size_t at = piece->bytes >= 3 && memcmp(piece->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (!code) {
        while (at < piece->bytes && is_between(piece->text[at]))
            at++;
        if (at == piece->bytes)
            break;
        json_error_t where;
        number++;
        record->object = json_loadb(piece->text + at, piece->bytes - at,
                                    JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &where);
        if (!record->object) {
            code = sl_error_set(&piece->error, SL_DOMAIN_INPUT, -EINVAL,
                                "line %d, column %d of it: %.160s", where.line, where.column,
                                where.text);
        } else {
            code = encode_record(record);
            at += (size_t)where.position;
        }
        for (size_t i = 0; i < record->owned_count; i++)
            free(record->owned[i]);
        record->owned_count = 0;
        json_decref(record->object);
    }
    if (code == -ENOMEM)
        sl_error_set(&piece->error, SL_DOMAIN_MEMORY, code, "no memory for it");
    if (code)
        sl_error_prefix(&piece->error, "%s: record %llu", path, (unsigned long long)number);
    free(record);
    return code;
}
