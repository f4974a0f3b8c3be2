// SPDX-License-Identifier: Apache-2.0
/* Which format a Jinja template writes, by the strings in it.
 *
 * Markers are tried from the most to the least particular: several families write [INST] and
 * several
 * <|im_start|>. A default system message stands in the template as a literal between its frame; it
 * is taken from there, so that a tuned model keeps the one it was tuned with.
 */
#include <string.h>

#include "engine/chat.h"

static bool has(const char *jinja, const char *marker)
{
    return strstr(jinja, marker) != NULL;
}

/* The literal behind `frame`, up to the token that ends the turn. Jinja writes a line feed as \n
 * inside quotes or as itself; what is computed (quotes, braces) is no literal. */
static void take_default_system(struct sl_chat *chat, const char *jinja)
{
    static const char frame[] = "<|im_start|>system";
    for (const char *at = strstr(jinja, frame); at; at = strstr(at + 1, frame)) {
        const char *text = at + sizeof(frame) - 1;
        if (strncmp(text, "\\n", 2) == 0)
            text += 2;
        else if (*text == '\n')
            text += 1;
        else
            continue;
        const char *end = strstr(text, "<|im_end|>");
        size_t bytes = end ? (size_t)(end - text) : 0;
        if (bytes == 0 || bytes >= SL_CHAT_SYSTEM_BYTES || memchr(text, '\'', bytes) ||
            memchr(text, '"', bytes) || memchr(text, '{', bytes) || memchr(text, '\\', bytes))
            continue;
        memcpy(chat->system, text, bytes);
        chat->system[bytes] = 0;
        return;
    }
}

/* The spaces of the versions differ, and tokens with them. */
static void take_mistral_spaces(struct sl_chat *chat, const char *jinja)
{
    chat->lead_space = has(jinja, " [INST]");
    chat->open_space = has(jinja, "[INST] ");
    chat->close_space = has(jinja, " [/INST]");
    chat->system_last = has(jinja, "loop.last and system_message");
    chat->answer_space = has(jinja, "' ' + message") || has(jinja, "\" \" + message");
    const char *answer = NULL, *end = NULL;
    for (const char *at = strstr(jinja, "assistant"); at; at = strstr(at + 1, "assistant"))
        if (at[9] == '\'' || at[9] == '"') /* the last place that names the role */
            answer = at;
    if (answer)
        end = strstr(answer, "eos_token");
    const char *trim = answer ? strstr(answer, "trim") : NULL;
    chat->answer_trim = trim && end && trim < end;
}

bool sl_chat_detect(struct sl_chat *chat, const char *jinja)
{
    memset(chat, 0, sizeof(*chat));
    if (!jinja)
        return false;
    if (has(jinja, "<|start_header_id|>")) {
        chat->format = SL_CHAT_LLAMA3;
        chat->dated = has(jinja, "Cutting Knowledge Date");
    } else if (has(jinja, "<start_of_turn>")) {
        chat->format = SL_CHAT_GEMMA;
    } else if (has(jinja, "<|im_start|>")) {
        take_default_system(chat, jinja);
        chat->think_block = has(jinja, "enable_thinking") || has(jinja, "<think>");
        bool qwen = chat->think_block || has(jinja, "You are Qwen") || has(jinja, "Qwen");
        chat->format = qwen ? SL_CHAT_QWEN : SL_CHAT_CHATML;
    } else if (has(jinja, "<<SYS>>")) {
        chat->format = SL_CHAT_LLAMA2;
    } else if (has(jinja, "[INST]")) {
        chat->format = SL_CHAT_MISTRAL;
        take_mistral_spaces(chat, jinja);
    } else if (has(jinja, "<|end|>") && (has(jinja, "<|user|>") || has(jinja, "<|assistant|>"))) {
        chat->format = SL_CHAT_PHI;
        chat->tight = !has(jinja, "<|user|>");
    } else if (has(jinja, "### Instruction:") || has(jinja, "### Response:")) {
        chat->format = SL_CHAT_ALPACA;
    } else {
        return has(jinja, "{# a message a line #}"); /* ours (chat_jinja.c) */
    }
    return true;
}

int sl_chat_choose(struct sl_chat *chat, const struct sl_tokenizer *tokenizer, const char *name,
                   bool *guessed, struct sl_error *error)
{
    struct sl_chat own;
    bool known = sl_chat_detect(&own, sl_tokenizer_chat_template(tokenizer));
    *chat = own;
    *guessed = !name && !known;
    if (!name || (known && strcmp(sl_chat_format_name(own.format), name) == 0))
        return 0;
    return sl_chat_from_name(chat, name, error);
}
