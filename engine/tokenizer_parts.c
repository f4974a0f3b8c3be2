// SPDX-License-Identifier: Apache-2.0
/* tokenizer.json: normalizer, pre-tokenizer, decoder and post-processor.
 *
 * Each part is a tagged object, possibly a Sequence of such. What is known becomes an entry of a
 * short flat list in the tokenizer; what is not known is refused by its path and type, because a
 * part that is passed over changes ids without a word.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"

static const char mark_text[] = "\xe2\x96\x81"; /* U+2581 */

struct parts {
    struct sl_tokenizer *tokenizer;
    const char *name;
    struct sl_error *error;
    bool byte_level_decoder, strip_seen;
};

static const char *type_of(json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "(no type)";
}

static int unsupported(const struct parts *parts, const char *where, const char *what)
{
    return sl_error_set(parts->error, SL_DOMAIN_INPUT, -ENOTSUP, "%s: %s \"%s\" is not supported",
                        parts->name, where, what);
}

static int no_memory(const struct parts *parts)
{
    return sl_error_set(parts->error, SL_DOMAIN_MEMORY, -ENOMEM, "%s: no memory for it",
                        parts->name);
}

/* Call `one` on the part, or on each of a Sequence. */
typedef int (*part_fn)(struct parts *parts, json_t *part);
static int each_part(struct parts *parts, json_t *part, const char *list_key, part_fn one)
{
    if (!part || json_is_null(part))
        return 0;
    if (strcmp(type_of(part), "Sequence") != 0)
        return one(parts, part);
    json_t *list = json_object_get(part, list_key), *entry;
    size_t index;
    json_array_foreach(list, index, entry)
    {
        int code = strcmp(type_of(entry), "Sequence") == 0
                       ? unsupported(parts, list_key, "Sequence in a Sequence")
                       : one(parts, entry);
        if (code)
            return code;
    }
    return 0;
}

static int copy_string(struct parts *parts, json_t *string, char **out, size_t *bytes)
{
    if (!json_is_string(string) || json_string_length(string) != strlen(json_string_value(string)))
        return sl_error_set(parts->error, SL_DOMAIN_INPUT, -EINVAL,
                            "%s: a pattern or content is missing or no plain string", parts->name);
    *out = strdup(json_string_value(string));
    *bytes = json_string_length(string);
    return *out ? 0 : no_memory(parts);
}

static int add_normalizer(struct parts *parts, json_t *part)
{
    struct sl_tokenizer *tokenizer = parts->tokenizer;
    const char *type = type_of(part);
    if (tokenizer->normalizer_count == TOKENIZER_NORMALIZERS_MAX)
        return unsupported(parts, "normalizer", "Sequence of more than 4");
    struct normalizer *normalizer = &tokenizer->normalizers[tokenizer->normalizer_count];
    if (strcmp(type, "NFC") == 0) {
        normalizer->kind = NORMALIZER_NFC;
        tokenizer->normalizer_count++;
        return 0;
    }
    if (strcmp(type, "Prepend") == 0) {
        normalizer->kind = NORMALIZER_PREPEND;
        tokenizer->normalizer_count++;
        return copy_string(parts, json_object_get(part, "prepend"), &normalizer->content,
                           &normalizer->content_bytes);
    }
    if (strcmp(type, "Replace") != 0)
        return unsupported(parts, "normalizer", type);
    json_t *pattern = json_object_get(json_object_get(part, "pattern"), "String");
    if (!pattern)
        return unsupported(parts, "normalizer Replace with", "Regex");
    normalizer->kind = NORMALIZER_REPLACE;
    tokenizer->normalizer_count++;
    int code = copy_string(parts, pattern, &normalizer->pattern, &normalizer->pattern_bytes);
    if (!code)
        code = copy_string(parts, json_object_get(part, "content"), &normalizer->content,
                           &normalizer->content_bytes);
    if (!code && normalizer->pattern_bytes == 0)
        code = unsupported(parts, "normalizer Replace of", "");
    return code;
}

static struct step *add_step(struct parts *parts, enum step_kind kind)
{
    struct sl_tokenizer *tokenizer = parts->tokenizer;
    if (tokenizer->step_count == TOKENIZER_STEPS_MAX) {
        unsupported(parts, "pre_tokenizer", "Sequence of more than 8 steps");
        return NULL;
    }
    struct step *step = &tokenizer->steps[tokenizer->step_count++];
    *step = (struct step){.kind = kind};
    return step;
}

static int add_byte_level(struct parts *parts, json_t *part)
{
    parts->tokenizer->byte_level = true;
    if (json_is_true(json_object_get(part, "add_prefix_space")) &&
        !add_step(parts, STEP_PREFIX_SPACE))
        return -ENOTSUP;
    json_t *use_regex = json_object_get(part, "use_regex");
    if (!json_is_false(use_regex) && !add_step(parts, STEP_GPT2))
        return -ENOTSUP;
    return 0;
}

static int set_prepend(struct parts *parts, json_t *part, enum prepend_scheme *scheme)
{
    const char *text = json_string_value(json_object_get(part, "prepend_scheme"));
    *scheme = PREPEND_ALWAYS;
    if (!text)
        *scheme = json_is_false(json_object_get(part, "add_prefix_space")) ? PREPEND_NEVER
                                                                           : PREPEND_ALWAYS;
    else if (strcmp(text, "first") == 0)
        *scheme = PREPEND_FIRST;
    else if (strcmp(text, "never") == 0)
        *scheme = PREPEND_NEVER;
    else if (strcmp(text, "always") != 0)
        return unsupported(parts, "Metaspace prepend_scheme", text);
    const char *mark = json_string_value(json_object_get(part, "replacement"));
    if (!mark || strcmp(mark, mark_text) != 0)
        return unsupported(parts, "Metaspace replacement", mark ? mark : "(none)");
    return 0;
}

static int add_metaspace(struct parts *parts, json_t *part)
{
    if (parts->tokenizer->step_count)
        return unsupported(parts, "pre_tokenizer", "Metaspace behind other steps");
    struct step *step = add_step(parts, STEP_METASPACE);
    int code = step ? set_prepend(parts, part, &step->prepend) : -ENOTSUP;
    if (!code)
        code = copy_string(parts, json_object_get(part, "replacement"), &step->content,
                           &step->content_bytes);
    if (code || json_is_false(json_object_get(part, "split")))
        return code;
    step = add_step(parts, STEP_STRING);
    if (!step)
        return -ENOTSUP;
    step->behavior = SPLIT_MERGED_WITH_NEXT;
    return copy_string(parts, json_object_get(part, "replacement"), &step->content,
                       &step->content_bytes);
}

static int set_behavior(struct parts *parts, json_t *part, struct step *step)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *text = json_string_value(json_object_get(part, "behavior"));
    step->invert = json_is_true(json_object_get(part, "invert"));
    for (int i = 0; text && i < 5; i++)
        if (strcmp(text, names[i]) == 0) {
            step->behavior = (enum split_behavior)i;
            return 0;
        }
    return unsupported(parts, "pre_tokenizer Split behavior", text ? text : "(none)");
}

#define LLAMA3_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
#define LLAMA3_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct known_pattern {
    const char *pattern;
    enum step_kind kind;
    unsigned digits_max;
} known_patterns[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     STEP_GPT2, 0},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", STEP_GPT2,
     0},
    {LLAMA3_HEAD "{1,3}" LLAMA3_TAIL, STEP_LLAMA3, 3},
    {LLAMA3_HEAD LLAMA3_TAIL, STEP_LLAMA3, 1},
};

static int add_split(struct parts *parts, json_t *part)
{
    json_t *pattern = json_object_get(part, "pattern");
    json_t *string = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    struct step *step = add_step(parts, string ? STEP_STRING : STEP_REGEX);
    int code = step ? set_behavior(parts, part, step) : -ENOTSUP;
    if (code)
        return code;
    if (string) {
        code = copy_string(parts, string, &step->content, &step->content_bytes);
        if (!code && step->content_bytes == 0)
            code = unsupported(parts, "pre_tokenizer Split at", "");
        return code;
    }
    const char *text = json_string_value(regex);
    if (!text)
        return unsupported(parts, "pre_tokenizer Split pattern", "neither String nor Regex");
    for (size_t i = 0; i < sizeof(known_patterns) / sizeof(known_patterns[0]); i++)
        if (strcmp(text, known_patterns[i].pattern) == 0 && step->behavior == SPLIT_ISOLATED) {
            step->kind = known_patterns[i].kind;
            step->digits_max = known_patterns[i].digits_max;
            return 0;
        }
    code = regex_compile(&step->regex, text, json_string_length(regex), parts->error);
    if (code)
        sl_error_prefix(parts->error, "%s: pre_tokenizer Split", parts->name);
    return code;
}

static int add_pre_tokenizer(struct parts *parts, json_t *part)
{
    const char *type = type_of(part);
    if (parts->tokenizer->byte_level)
        return unsupported(parts, "pre_tokenizer behind ByteLevel", type);
    if (strcmp(type, "ByteLevel") == 0)
        return add_byte_level(parts, part);
    if (strcmp(type, "Metaspace") == 0)
        return add_metaspace(parts, part);
    if (strcmp(type, "Split") == 0)
        return add_split(parts, part);
    if (strcmp(type, "Digits") == 0) {
        struct step *step = add_step(parts, STEP_DIGITS);
        if (step)
            step->individual = json_is_true(json_object_get(part, "individual_digits"));
        return step ? 0 : -ENOTSUP;
    }
    return unsupported(parts, "pre_tokenizer", type);
}

static int add_decoder_replace(struct parts *parts, json_t *part)
{
    const char *from =
        json_string_value(json_object_get(json_object_get(part, "pattern"), "String"));
    const char *to = json_string_value(json_object_get(part, "content"));
    if (!from || !to || strcmp(from, mark_text) != 0 || strcmp(to, " ") != 0)
        return unsupported(parts, "decoder Replace of", from ? from : "a Regex");
    parts->tokenizer->space_marks = true;
    return 0;
}

static int add_decoder_strip(struct parts *parts, json_t *part)
{
    const char *content = json_string_value(json_object_get(part, "content"));
    json_int_t start = json_integer_value(json_object_get(part, "start"));
    json_int_t stop = json_integer_value(json_object_get(part, "stop"));
    if (!content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
        return unsupported(parts, "decoder Strip of", content ? content : "(none)");
    if (start)
        parts->tokenizer->first_strip = STRIP_ONE_SPACE;
    return 0;
}

static int add_decoder(struct parts *parts, json_t *part)
{
    const char *type = type_of(part);
    if (strcmp(type, "ByteLevel") == 0) {
        parts->byte_level_decoder = true;
        return 0;
    }
    if (strcmp(type, "Metaspace") == 0) {
        enum prepend_scheme scheme;
        int code = set_prepend(parts, part, &scheme);
        parts->tokenizer->space_marks = true;
        if (scheme != PREPEND_NEVER)
            parts->tokenizer->first_strip = STRIP_FIRST_MARKS;
        return code;
    }
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0)
        return 0; /* what both do is how the decoder works */
    if (strcmp(type, "Replace") == 0)
        return add_decoder_replace(parts, part);
    if (strcmp(type, "Strip") == 0)
        return add_decoder_strip(parts, part);
    return unsupported(parts, "decoder", type);
}

int tokenizer_parse_parts(struct sl_tokenizer *tokenizer, const void *root, const char *name,
                          struct sl_error *error)
{
    struct parts parts = {.tokenizer = tokenizer, .name = name, .error = error};
    json_t *object = (json_t *)(uintptr_t)root, *decoder = json_object_get(object, "decoder");
    int code =
        each_part(&parts, json_object_get(object, "normalizer"), "normalizers", add_normalizer);
    if (!code)
        code = each_part(&parts, json_object_get(object, "pre_tokenizer"), "pretokenizers",
                         add_pre_tokenizer);
    if (!code)
        code = each_part(&parts, decoder, "decoders", add_decoder);
    if (code)
        return code;
    tokenizer->join_with_spaces = !decoder || json_is_null(decoder);
    if (tokenizer->byte_level != parts.byte_level_decoder && !tokenizer->join_with_spaces)
        return sl_error_set(error, SL_DOMAIN_INPUT, -ENOTSUP,
                            "%s: ByteLevel must be both pre_tokenizer and decoder, or neither",
                            name);
    return 0;
}

static int add_template_ids(struct parts *parts, json_t *ids, uint32_t *out, size_t *count)
{
    size_t index;
    json_t *id;
    json_array_foreach(ids, index, id)
    {
        if (*count == TOKENIZER_TEMPLATE_MAX)
            return unsupported(parts, "post_processor", "TemplateProcessing with over 8 tokens");
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= parts->tokenizer->vocabulary)
            return unsupported(parts, "post_processor", "TemplateProcessing with an unknown id");
        out[(*count)++] = (uint32_t)json_integer_value(id);
    }
    return 0;
}

static int add_template(struct parts *parts, json_t *part)
{
    struct sl_tokenizer *tokenizer = parts->tokenizer;
    json_t *single = json_object_get(part, "single"), *entry;
    json_t *special = json_object_get(part, "special_tokens");
    bool behind = false;
    size_t index;
    json_array_foreach(single, index, entry)
    {
        if (json_object_get(entry, "Sequence")) {
            behind = true;
            continue;
        }
        const char *id =
            json_string_value(json_object_get(json_object_get(entry, "SpecialToken"), "id"));
        json_t *ids = id ? json_object_get(json_object_get(special, id), "ids") : NULL;
        if (!ids)
            return unsupported(parts, "post_processor", "TemplateProcessing with an odd piece");
        int code = behind ? add_template_ids(parts, ids, tokenizer->template_after,
                                             &tokenizer->template_after_count)
                          : add_template_ids(parts, ids, tokenizer->template_before,
                                             &tokenizer->template_before_count);
        if (code)
            return code;
    }
    return 0;
}

static int add_post_processor(struct parts *parts, json_t *part)
{
    const char *type = type_of(part);
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* changes offsets, not ids */
    if (strcmp(type, "TemplateProcessing") == 0)
        return add_template(parts, part);
    return unsupported(parts, "post_processor", type);
}

int tokenizer_parse_template(struct sl_tokenizer *tokenizer, const void *root, const char *name,
                             struct sl_error *error)
{
    struct parts parts = {.tokenizer = tokenizer, .name = name, .error = error};
    json_t *object = (json_t *)(uintptr_t)root;
    return each_part(&parts, json_object_get(object, "post_processor"), "processors",
                     add_post_processor);
}
