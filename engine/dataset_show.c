// SPDX-License-Identifier: Apache-2.0
/* One sequence for people to read before a run: what is trained on, and what is only context.
 *
 *     document 1
 *       context | <|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n
 *       trained | It is 4.<|im_end|>
 *
 * Wrong masks and doubled special tokens are the commonest silent faults of fine-tuning, and are
 * seen here at a glance.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dataset_internal.h"
#include "engine/tokenizer_internal.h"

struct showing {
    const struct sl_tokenizer *tokenizer;
    struct sl_text *out;
    size_t bytes_max;   /* of out */
    struct sl_text run; /* decoded, not written yet */
    struct sl_decoder decoder;
    bool trained, open;
};

static int flush_run(struct showing *showing)
{
    if (!showing->open)
        return 0;
    int code = sl_decoder_end(&showing->decoder, &showing->run);
    if (!code)
        code = tokenizer_text_append(showing->out,
                                     showing->trained ? "  trained | " : "  context | ", 12);
    for (size_t i = 0; i < showing->run.bytes && !code; i++) {
        char c = showing->run.data[i], hex[8];
        if (c == '\n')
            code = tokenizer_text_append(showing->out, "\\n", 2);
        else if (c == '\t')
            code = tokenizer_text_append(showing->out, "\\t", 2);
        else if ((c >= 0 && c < 32) || c == 127)
            code = tokenizer_text_append(showing->out, hex,
                                         (size_t)snprintf(hex, sizeof(hex), "\\x%02x", c));
        else
            code = tokenizer_text_append(showing->out, &c, 1);
    }
    showing->run.bytes = 0;
    showing->open = false;
    return code ? code : tokenizer_text_append(showing->out, "\n", 1);
}

static int show_token(struct showing *showing, uint32_t id, bool trained)
{
    int code = showing->open && showing->trained != trained ? flush_run(showing) : 0;
    if (!showing->open) {
        sl_decoder_begin(&showing->decoder, showing->tokenizer, false);
        showing->decoder.started = true;
        showing->open = true;
        showing->trained = trained;
    }
    return code ? code : sl_decoder_push(&showing->decoder, id, &showing->run);
}

static int start_document(struct showing *showing, unsigned number)
{
    char line[40];
    int code = flush_run(showing);
    int bytes = snprintf(line, sizeof(line), "document %u\n", number);
    return code ? code : tokenizer_text_append(showing->out, line, (size_t)bytes);
}

/* The row's tokens: its inputs, and behind each document's last input its target. */
static int show_row(struct showing *showing, const struct sl_dataset_batch *row, uint32_t length)
{
    unsigned documents = 0;
    int code = 0;
    while (length && row->ids[length - 1] == 0 && row->targets[length - 1] < 0)
        length--; /* what packing left empty */
    for (uint32_t i = 0; i < length && !code; i++) {
        bool begins = row->positions[i] == 0;
        bool ends = i + 1 == length || row->positions[i + 1] == 0;
        if (begins)
            code = start_document(showing, ++documents);
        bool trained = !begins && row->targets[i - 1] >= 0;
        if (!code)
            code = show_token(showing, (uint32_t)row->ids[i], trained);
        if (!code && ends && row->targets[i] >= 0)
            code = show_token(showing, (uint32_t)row->targets[i], true);
        if (showing->out->bytes + showing->run.bytes > showing->bytes_max) {
            code = code ? code : flush_run(showing);
            return code ? code : tokenizer_text_append(showing->out, "  ...\n", 6);
        }
    }
    return code ? code : flush_run(showing);
}

int sl_dataset_show(const struct sl_dataset *dataset, const struct sl_tokenizer *tokenizer,
                    uint64_t index, size_t bytes_max, struct sl_text *text)
{
    uint32_t length = dataset->sequence_length;
    int32_t *row = malloc((size_t)length * 4 * sizeof(*row));
    if (!row)
        return -ENOMEM;
    struct sl_dataset_batch batch = {row, row + length, row + 2 * (size_t)length,
                                     row + 3 * (size_t)length, 0};
    struct sl_dataset_state state = {.index = index % dataset->train_count};
    sl_dataset_next(dataset, &state, 1, &batch);
    struct showing showing = {
        .tokenizer = tokenizer, .out = text, .bytes_max = text->bytes + bytes_max};
    int code = show_row(&showing, &batch, length);
    sl_text_finish(&showing.run);
    free(row);
    return code;
}
