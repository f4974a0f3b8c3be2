// SPDX-License-Identifier: Apache-2.0
/* From a rendered conversation to ids with marks.
 *
 * Ids must be those of the whole text, because that is what the model will see when it is used; but
 * where an answer begins is known in bytes, and ids do not tell theirs. The border is found by
 * encoding the text up to it: ids that both encodings share belong before the border, the first
 * that differs reaches over it or lies behind. That would be quadratic in the number of turns, so
 * the text is first broken before special tokens, where the library breaks it too; then a prefix is
 * never longer than a turn.
 */
#include <errno.h>
#include <string.h>

#include "engine/chat.h"
#include "engine/tokenizer_internal.h"

struct marking {
    struct sl_encoder *encoder;
    const struct sl_chat_spans *answers;
    struct sl_ids *ids;
    struct sl_text *trained;
    struct sl_ids prefix; /* scratch */
    struct sl_error *error;
};

static int encode_part(struct marking *marking, const char *text, size_t bytes, bool start,
                       struct sl_ids *ids)
{
    return sl_encode(marking->encoder, text, bytes, start ? 0 : SL_ENCODE_INSIDE, ids,
                     marking->error);
}

/* How many ids of the block lie before byte `border` of it. */
static int ids_before(struct marking *marking, const char *block, size_t border, size_t bytes,
                      bool start, size_t first_id, size_t *count)
{
    size_t total = marking->ids->count - first_id;
    *count = border == 0 ? 0 : total;
    if (border == 0 || border == bytes)
        return 0;
    marking->prefix.count = 0;
    int code = encode_part(marking, block, border, start, &marking->prefix);
    const uint32_t *whole = marking->ids->data + first_id;
    size_t same = 0;
    while (same < total && same < marking->prefix.count &&
           marking->prefix.data[same] == whole[same])
        same++;
    *count = same;
    return code;
}

static int mark_block(struct marking *marking, const char *text, size_t from, size_t end,
                      size_t first_id)
{
    size_t count = marking->ids->count - first_id;
    if (!tokenizer_text_reserve(marking->trained, count))
        return sl_error_set(marking->error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for marks");
    char *marks = marking->trained->data + marking->trained->bytes;
    memset(marks, 0, count);
    marking->trained->bytes += count;
    for (size_t i = 0; i < marking->answers->count; i++) {
        struct sl_chat_span span = marking->answers->data[i];
        if (span.end <= from || span.start >= end)
            continue;
        size_t low = span.start > from ? span.start - from : 0;
        size_t high = (span.end < end ? span.end : end) - from, first, last;
        int code = ids_before(marking, text + from, low, end - from, from == 0, first_id, &first);
        if (!code)
            code = ids_before(marking, text + from, high, end - from, from == 0, first_id, &last);
        if (code)
            return code;
        if (last > first)
            memset(marks + first, 1, last - first);
    }
    return 0;
}

int sl_chat_encode(struct sl_encoder *encoder, const struct sl_text *text,
                   const struct sl_chat_spans *answers, struct sl_ids *ids, struct sl_text *trained,
                   struct sl_error *error)
{
    struct marking marking = {encoder, answers, ids, trained, {0}, error};
    int code = 0;
    for (size_t from = 0, end; from < text->bytes && !code; from = end) {
        end = tokenizer_next_break(encoder->tokenizer, text->data, text->bytes, from + 1);
        size_t first_id = ids->count;
        code = encode_part(&marking, text->data + from, end - from, from == 0, ids);
        if (!code && trained)
            code = mark_block(&marking, text->data, from, end, first_id);
    }
    sl_ids_finish(&marking.prefix);
    return code;
}
