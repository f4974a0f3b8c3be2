// SPDX-License-Identifier: Apache-2.0
/* docs/config.md, written from the table of keys so that it cannot fall behind the code. */
#include "engine/config_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char intro[] =
    "# Configuration keys\n"
    "\n"
    "<!-- Written from the table of keys (engine/config_keys_*.c) by `sluice config --document`.\n"
    "     A test compares the two. -->\n"
    "\n"
    "`--config FILE` takes a DeepSpeed JSON (comments, trailing commas and unquoted keys are "
    "allowed, or base64 of it)\n"
    "or an Accelerate YAML. `--set key=value` overrides a key of the file, by its dotted name. "
    "Sluice's own keys may also\n"
    "stand in the JSON, in an object `\"sluice\"` that DeepSpeed ignores.\n"
    "\n"
    "- Every key is answered: **honored**, **no effect here** (and why), or **unsupported** "
    "(refused, with what to use\n"
    "  instead). `sluice config FILE` prints the answers.\n"
    "- A key that does not exist is refused with its nearest neighbour. Unknown keys at the top "
    "level, far from any known\n"
    "  one, and in the blocks where DeepSpeed ignores them silently, are ignored with a warning.\n"
    "- All problems are listed at once. A refused configuration leaves nothing created or "
    "written.\n"
    "- `\"auto\"` takes the value of Sluice's own key (`train.*`), or comes from the model, or is "
    "the default; it is allowed\n"
    "  for every number and boolean, and where the table says so. A given value\n"
    "  that disagrees with a given `train.*` key is refused. A micro-batch size that is `auto` and "
    "that nothing else gives is\n"
    "  chosen by simulation ([plan.md](plan.md)): Hugging Face's trainer would take it from its "
    "own "
    "argument, here `train.micro_batch`.\n"
    "- Whole numbers may be written `5e8`; `null` is as if the key were not there.\n"
    "- A file larger than 1 MiB, deeper than 64, or with more than 1,024 keys in an object is "
    "refused unread.\n";

static void cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void values_cell(FILE *out, const struct sl_key *key)
{
    if (key->type == SL_KEY_CHOICE) {
        cell(out, key->choices);
    } else if (key->type == SL_KEY_BLOCK) {
        fputs("a block", out);
    } else {
        fputs(sl_key_type_name(key), out);
        if (key->max > 0 && key->max < 1e7)
            fprintf(out, ", %g to %.10g", key->min, key->max);
        else if (key->min > 0)
            fprintf(out, ", from %g", key->min);
    }
    if (key->flags & SL_KEY_AUTO)
        fputs(", or auto", out);
}

static void key_row(FILE *out, const struct sl_key *key)
{
    fprintf(out, "| `%s` | ", key->path);
    if (key->renamed) {
        fprintf(out, "| | another name of `%s`: ", key->renamed);
        cell(out, key->note);
        fputs(" |\n", out);
        return;
    }
    values_cell(out, key);
    fputs(" | ", out);
    cell(out, key->initial);
    fputs(" | ", out);
    if (key->effect != SL_CONFIG_HONORED)
        fprintf(out, "**%s**: ", sl_config_effect_name(key->effect));
    cell(out, key->note);
    fputs(" |\n", out);
}

char *sl_config_document(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return NULL;
    fputs(intro, out);
    const struct sl_key_block *block;
    for (size_t b = 0; (block = sl_key_block_at(b)) != NULL; b++) {
        fprintf(out, "\n## %s\n\n", block->title);
        if (*block->intro)
            fprintf(out, "%s\n\n", block->intro);
        fputs("| key | values | default | here |\n| --- | --- | --- | --- |\n", out);
        for (size_t k = 0; k < block->count; k++)
            key_row(out, &block->keys[k]);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
