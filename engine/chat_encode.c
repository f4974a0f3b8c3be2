// SPDX-License-Identifier: Apache-2.0
/* From a rendered conversation to ids with marks.
 *
 * Ids must be those of the whole text, because that is what the model will see when it is used; but
 * where an answer begins is known in bytes, and ids do not tell theirs. The border is found by
 * encoding the text up to it: ids that both encodings share belong before the border, the first
 * that differs reaches over it or lies behind. That would be quadratic in the number of turns, so
 * the text is first broken before special tokens, where the library breaks it too; then a prefix is
 * never longer than a turn.
 *
 *     <|im_start|>user\n ... |<|im_end|>\n|<|im_start|>assistant\n ... |<|im_end|>\n
 *
 * The exception is a message that spells such a token itself. It is a block of its own in which no
 * added token is looked for; looking for it in the whole and passing over it was rejected, because
 * normalizers move bytes, and then a place in the text is no longer a place in the message.
 */
#include <errno.h>
#include <string.h>

#include "engine/chat_internal.h"
#include "engine/tokenizer_internal.h"

struct block {
    size_t from, end; /* in the rendered text */
    unsigned flags;
    size_t first_id;
};

struct marking {
    const struct sl_chat *chat;
    struct sl_encoder *encoder;
    const struct sl_chat_rendering *rendering;
    bool allow_special;
    struct sl_ids *ids;
    struct sl_text *trained;
    struct sl_ids prefix; /* scratch */
    struct sl_error *error;
};

static int encode_part(struct marking *marking, const struct block *block, size_t bytes,
                       struct sl_ids *ids)
{
    return sl_encode(marking->encoder, marking->rendering->text.data + block->from, bytes,
                     block->flags, ids, marking->error);
}

/* How many ids of the block lie before byte `border` of it. */
static int ids_before(struct marking *marking, const struct block *block, size_t border,
                      size_t *count)
{
    size_t total = marking->ids->count - block->first_id;
    *count = border == 0 ? 0 : total;
    if (border == 0 || border == block->end - block->from)
        return 0;
    marking->prefix.count = 0;
    int code = encode_part(marking, block, border, &marking->prefix);
    const uint32_t *whole = marking->ids->data + block->first_id;
    size_t same = 0;
    while (same < total && same < marking->prefix.count &&
           marking->prefix.data[same] == whole[same])
        same++;
    *count = same;
    return code;
}

static int mark_block(struct marking *marking, const struct block *block)
{
    const struct sl_chat_spans *answers = &marking->rendering->answers;
    size_t count = marking->ids->count - block->first_id;
    if (!tokenizer_text_reserve(marking->trained, count))
        return sl_error_set(marking->error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for marks");
    char *marks = marking->trained->data + marking->trained->bytes;
    memset(marks, 0, count);
    marking->trained->bytes += count;
    for (size_t i = 0; i < answers->count; i++) {
        struct sl_chat_span span = answers->data[i];
        if (span.end <= block->from || span.start >= block->end)
            continue;
        size_t low = span.start > block->from ? span.start - block->from : 0;
        size_t high = (span.end < block->end ? span.end : block->end) - block->from, first, last;
        int code = ids_before(marking, block, low, &first);
        if (!code)
            code = ids_before(marking, block, high, &last);
        if (code)
            return code;
        if (last > first)
            memset(marks + first, 1, last - first);
    }
    return 0;
}

static bool holds_frame(const struct marking *marking, const struct added_set *set,
                        const char *text, size_t bytes)
{
    struct added_match match = {0};
    while (added_set_find(set, text, bytes, match.resume, 0, false, &match))
        if (match.token->special ||
            chat_frame_has(marking->chat, match.token->content, match.token->bytes))
            return true;
    return false;
}

/* Does the message spell a token that messages must not hold? */
static bool forges(const struct marking *marking, struct sl_chat_span span)
{
    const struct sl_tokenizer *tokenizer = marking->encoder->tokenizer;
    const char *text = marking->rendering->text.data + span.start;
    size_t bytes = span.end - span.start;
    if (tokenizer->kind == TOKENIZER_BYTES)
        return memmem(text, bytes, "<|endoftext|>", 13) != NULL;
    if (holds_frame(marking, &tokenizer->raw_set, text, bytes))
        return true;
    if (tokenizer->normalized_set.count == 0)
        return false;
    marking->encoder->continued = true;
    return normalize(marking->encoder, &text, &bytes) != 0 ||
           holds_frame(marking, &tokenizer->normalized_set, text, bytes);
}

/* The message that has to be a block of its own and begins at `from` or behind it; *index goes on
 * through the messages. */
static struct sl_chat_span next_forging(const struct marking *marking, size_t from, size_t *index)
{
    const struct sl_chat_spans *contents = &marking->rendering->contents;
    size_t bytes = marking->rendering->text.bytes;
    for (; !marking->allow_special && *index < contents->count; ++*index)
        if (contents->data[*index].start >= from && forges(marking, contents->data[*index]))
            return contents->data[*index];
    return (struct sl_chat_span){bytes, bytes};
}

static int encode_block(struct marking *marking, struct block *block)
{
    block->first_id = marking->ids->count;
    int code = encode_part(marking, block, block->end - block->from, marking->ids);
    return !code && marking->trained ? mark_block(marking, block) : code;
}

int sl_chat_encode(const struct sl_chat *chat, struct sl_encoder *encoder,
                   const struct sl_chat_rendering *rendering, bool allow_special,
                   struct sl_ids *ids, struct sl_text *trained, struct sl_error *error)
{
    struct marking marking = {.chat = chat,
                              .encoder = encoder,
                              .rendering = rendering,
                              .allow_special = allow_special,
                              .ids = ids,
                              .trained = trained,
                              .error = error};
    const struct sl_text *text = &rendering->text;
    size_t message = 0;
    struct sl_chat_span forging = next_forging(&marking, 0, &message);
    struct block block = {0};
    int code = 0;
    while (block.from < text->bytes && !code) {
        if (block.from == forging.start) {
            block.flags = SL_ENCODE_NO_ADDED | (block.from ? SL_ENCODE_CONTINUED : 0);
            block.end = forging.end;
            code = encode_block(&marking, &block);
            forging = next_forging(&marking, forging.end, &message);
            block.flags = SL_ENCODE_CONTINUED;
        } else {
            block.end =
                tokenizer_next_break(encoder->tokenizer, text->data, forging.start, block.from + 1);
            code = encode_block(&marking, &block);
            block.flags = SL_ENCODE_INSIDE;
        }
        block.from = block.end;
    }
    sl_ids_finish(&marking.prefix);
    return code;
}
