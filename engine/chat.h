// SPDX-License-Identifier: Apache-2.0
/* Chat templates: from messages to the text a model was tuned on, and to ids that know which of
 * them are answers.
 *
 * A model's real template is a Jinja program. Sluice runs none: it knows the formats by name and
 * chooses by strings that only occur in one of them. Ids are those of the rendered text as a whole,
 * as `transformers` gives them; which tokens are answers is found by encoding up to each border.
 */
#ifndef SLUICE_ENGINE_CHAT_H
#define SLUICE_ENGINE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/tokenizer.h"

enum sl_chat_format {
    SL_CHAT_PLAIN,  /* texts one below the other, end of text behind an answer */
    SL_CHAT_CHATML, /* <|im_start|>role ... <|im_end|> */
    SL_CHAT_QWEN,   /* chatml with a default system message (2.5) or a think block (3) */
    SL_CHAT_LLAMA2,
    SL_CHAT_LLAMA3,
    SL_CHAT_MISTRAL,
    SL_CHAT_GEMMA,
    SL_CHAT_PHI,
    SL_CHAT_ALPACA,
    SL_CHAT_FORMAT_COUNT
};

#define SL_CHAT_SYSTEM_BYTES 512

struct sl_chat {
    enum sl_chat_format format;
    char system[SL_CHAT_SYSTEM_BYTES]; /* used where a conversation has none; may be empty */
    bool dated;       /* llama3: 3.1's system header with knowledge and today's date */
    bool think_block; /* qwen: 3's thoughts, an empty block in their place before the last answer */
    bool tight;       /* phi: 4's, without line feeds */
    /* mistral: " [INST] question [/INST] answer", what of its spaces is there */
    bool lead_space, open_space, close_space, answer_space, answer_trim;
    bool system_last; /* mistral: the system message stands in the last question */
};

enum sl_chat_role { SL_CHAT_SYSTEM, SL_CHAT_USER, SL_CHAT_ASSISTANT, SL_CHAT_TOOL };

struct sl_chat_message {
    enum sl_chat_role role;
    const char *text; /* borrowed */
    size_t bytes;
    bool untrained; /* an answer that is context only */
};

/* Choose by name ("chatml", "qwen", "llama2", ...). -EINVAL lists the names. */
int sl_chat_from_name(struct sl_chat *chat, const char *name, struct sl_error *error);
const char *sl_chat_format_name(enum sl_chat_format format);

/* Choose by the markers in a Jinja text. False where none fits (or jinja is NULL): *chat is then
 * plain, and the caller warns loudly. */
bool sl_chat_detect(struct sl_chat *chat, const char *jinja);

/* The Jinja text that writes what sl_chat_from_name's format of that name writes. */
const char *sl_chat_jinja(enum sl_chat_format format);

/* Choose for a tokenizer: by `name` where given (with the particulars of the tokenizer's own
 * template where that is of the same format), else by that template. *guessed: no marker fitted. */
int sl_chat_choose(struct sl_chat *chat, const struct sl_tokenizer *tokenizer, const char *name,
                   bool *guessed, struct sl_error *error);

/* Half-open byte ranges of a rendered text. */
struct sl_chat_spans {
    struct sl_chat_span {
        size_t start, end;
    } * data;
    size_t count, capacity;
};

/* A rendered conversation: its text, where its answers lie, each with the token that ends it, and
 * where messages stand in their frames. From zero; finish frees. */
struct sl_chat_rendering {
    struct sl_text text;
    struct sl_chat_spans answers, contents;
};
void sl_chat_rendering_clear(struct sl_chat_rendering *rendering); /* keeps its memory */
void sl_chat_rendering_finish(struct sl_chat_rendering *rendering);

/* Append the conversation. `prompt`: end with what an answer of the assistant begins with.
 *
 * Errors   -EINVAL for a role that the format has no place for, -ENOMEM */
int sl_chat_render(const struct sl_chat *chat, const struct sl_tokenizer *tokenizer,
                   const struct sl_chat_message *messages, size_t count, bool prompt,
                   struct sl_chat_rendering *rendering, struct sl_error *error);

/* The token that ends an answer, as text ("<|im_end|>"): what generation stops at. "" where it is
 * the end of text. */
const char *sl_chat_end(const struct sl_chat *chat);

/* False where an answer's end is no token of the tokenizer, so that frames are plain text. */
bool sl_chat_has_tokens(const struct sl_chat *chat, const struct sl_tokenizer *tokenizer);

/* Append the ids of a rendering to `ids` and, for each, 1 or 0 to `trained` (NULL allowed): 1
 * where any of the token's text lies in an answer.
 *
 * A message that spells a special token or one of the format's frame would write a turn that was
 * never taken. Such a message is encoded by itself, without added tokens, so that its text stays
 * text; `allow_special` leaves that out, as transformers does. Other conversations are encoded as a
 * whole. Frames that are plain text ([INST] of Llama 2, ### of Alpaca) are no tokens: there a
 * message can imitate them. */
int sl_chat_encode(const struct sl_chat *chat, struct sl_encoder *encoder,
                   const struct sl_chat_rendering *rendering, bool allow_special,
                   struct sl_ids *ids, struct sl_text *trained, struct sl_error *error);

#endif
