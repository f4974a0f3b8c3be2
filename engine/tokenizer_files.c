// SPDX-License-Identifier: Apache-2.0
/* The files beside tokenizer.json: which ids begin and end a text, and the chat template.
 *
 * The end of text may be named in three places that do not always agree. tokenizer_config.json
 * gives the one that training appends; generation_config.json and config.json may list more, at
 * which generation stops as well.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/tokenizer_internal.h"

#define NEIGHBOUR_BYTES_MAX (64u << 20)

int tokenizer_read_file(const char *path, uint64_t bytes_max, char **text, size_t *bytes,
                        struct sl_error *error)
{
    *text = NULL;
    *bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    int code = fd < 0 || fstat(fd, &status) ? -errno : 0;
    if (!code && S_ISDIR(status.st_mode))
        code = -EISDIR;
    if (!code && (uint64_t)status.st_size > bytes_max)
        code = -EFBIG;
    size_t size = code ? 0 : (size_t)status.st_size;
    if (!code && !(*text = malloc(size + 1)))
        code = -ENOMEM;
    while (!code && *bytes < size) {
        ssize_t got = read(fd, *text + *bytes, size - *bytes);
        if (got > 0)
            *bytes += (size_t)got;
        else if (got == 0)
            break;
        else if (errno != EINTR)
            code = -errno;
    }
    if (fd >= 0)
        close(fd);
    if (code) {
        free(*text);
        *text = NULL;
        return sl_error_set(error, code == -ENOMEM ? SL_DOMAIN_MEMORY : SL_DOMAIN_INPUT, code,
                            "%s: %s", path, strerror(-code));
    }
    (*text)[*bytes] = 0;
    return 0;
}

/* NULL with no error where the file is absent. */
static int load_object(const char *directory, const char *name, json_t **out,
                       struct sl_error *error)
{
    *out = NULL;
    char *path = NULL, *text = NULL;
    size_t bytes;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
    struct sl_error read_error = {0};
    int code = tokenizer_read_file(path, NEIGHBOUR_BYTES_MAX, &text, &bytes, &read_error);
    if (code == -ENOENT) {
        free(path);
        return 0;
    }
    if (code)
        sl_error_set(error, read_error.domain, code, "%s", read_error.message);
    json_error_t at;
    if (!code) {
        /* Numbers as reals: model_max_length is 10^30 in many folders. */
        *out = json_loadb(text, bytes,
                          JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &at);
        if (!json_is_object(*out)) {
            bool parsed = *out != NULL;
            json_decref(*out);
            *out = NULL;
            code = sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: line %d: %.200s", path,
                                parsed ? 1 : at.line, parsed ? "not an object" : at.text);
        }
    }
    free(text);
    free(path);
    return code;
}

static void add_eos(struct sl_tokenizer *tokenizer, json_int_t id)
{
    if (id < 0 || id >= tokenizer->vocabulary || sl_tokenizer_is_eos(tokenizer, (uint32_t)id) ||
        tokenizer->eos_count == TOKENIZER_EOS_MAX)
        return;
    tokenizer->eos[tokenizer->eos_count++] = (int32_t)id;
}

/* "eos_token": "</s>" or {"content": "</s>"}. */
static int32_t named_token(const struct sl_tokenizer *tokenizer, json_t *config, const char *key)
{
    json_t *value = json_object_get(config, key);
    const char *text = json_is_object(value) ? json_string_value(json_object_get(value, "content"))
                                             : json_string_value(value);
    return text ? sl_tokenizer_id(tokenizer, text) : -1;
}

static int take_chat_template(struct sl_tokenizer *tokenizer, json_t *config,
                              struct sl_error *error)
{
    json_t *template = json_object_get(config, "chat_template"), *entry;
    const char *text = json_string_value(template);
    size_t index;
    json_array_foreach(template, index, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (!text || (name && strcmp(name, "default") == 0))
            text = json_string_value(json_object_get(entry, "template"));
    }
    if (!text || tokenizer->chat_template)
        return 0;
    tokenizer->chat_template = strdup(text);
    return tokenizer->chat_template
               ? 0
               : sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a chat template");
}

static void take_ids(struct sl_tokenizer *tokenizer, json_t *config)
{
    json_t *eos = json_object_get(config, "eos_token_id"), *id;
    json_t *bos = json_object_get(config, "bos_token_id");
    size_t index;
    if (json_is_number(eos))
        add_eos(tokenizer, (json_int_t)json_number_value(eos));
    json_array_foreach(eos, index, id) add_eos(tokenizer, (json_int_t)json_number_value(id));
    if (tokenizer->bos < 0 && json_is_number(bos) && (json_int_t)json_number_value(bos) >= 0 &&
        (json_int_t)json_number_value(bos) < tokenizer->vocabulary)
        tokenizer->bos = (int32_t)(json_int_t)json_number_value(bos);
}

/* No file says it: the names that vocabularies commonly use. */
static void guess_eos(struct sl_tokenizer *tokenizer)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    for (size_t i = 0; i < 4 && tokenizer->eos_count == 0; i++) {
        int32_t id = sl_tokenizer_id(tokenizer, names[i]);
        if (id >= 0 && (tokenizer->pieces[id].flags & PIECE_ADDED))
            add_eos(tokenizer, id);
    }
}

int tokenizer_read_neighbours(struct sl_tokenizer *tokenizer, struct sl_error *error)
{
    json_t *config;
    int code = load_object(tokenizer->directory, "tokenizer_config.json", &config, error);
    if (!code && config) {
        add_eos(tokenizer, named_token(tokenizer, config, "eos_token"));
        tokenizer->bos = named_token(tokenizer, config, "bos_token");
        code = take_chat_template(tokenizer, config, error);
        json_decref(config);
    }
    const char *const names[] = {"generation_config.json", "config.json"};
    for (size_t i = 0; i < 2 && !code; i++) {
        code = load_object(tokenizer->directory, names[i], &config, error);
        if (!code && config)
            take_ids(tokenizer, config);
        json_decref(config);
    }
    guess_eos(tokenizer);
    char *path = NULL;
    if (code || asprintf(&path, "%s/chat_template.jinja", tokenizer->directory) < 0)
        return code;
    char *text;
    size_t bytes;
    struct sl_error absent = {0};
    if (tokenizer_read_file(path, NEIGHBOUR_BYTES_MAX, &text, &bytes, &absent) == 0) {
        free(tokenizer->chat_template);
        tokenizer->chat_template = text;
    }
    free(path);
    return 0;
}

int tokenizer_write_file(const char *directory, const char *name, const char *text, size_t bytes,
                         struct sl_error *error)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
    errno = 0;
    FILE *file = fopen(path, "we");
    int code = file ? 0 : -errno;
    /* Flushed first: errno is still that of the write that failed. */
    if (file && (fwrite(text, 1, bytes, file) != bytes || fflush(file)))
        code = errno ? -errno : -EIO;
    if (file && fclose(file) && !code)
        code = errno ? -errno : -EIO;
    if (code)
        sl_error_set(error, SL_DOMAIN_IO, code, "%s: %s", path, strerror(-code));
    free(path);
    return code;
}

static int copy_file(const char *from, const char *directory, const char *name,
                     struct sl_error *error)
{
    char *text;
    size_t bytes;
    int code = tokenizer_read_file(from, UINT32_MAX, &text, &bytes, error);
    if (code)
        return code;
    code = tokenizer_write_file(directory, name, text, bytes, error);
    free(text);
    return code;
}

int tokenizer_save_files(const struct sl_tokenizer *tokenizer, const char *directory,
                         struct sl_error *error)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "chat_template.jinja"};
    int code = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !code; i++) {
        char *from = NULL;
        if (asprintf(&from, "%s/%s", tokenizer->directory, names[i]) < 0)
            code = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
        else if (i == 0 || access(from, F_OK) == 0)
            code = copy_file(from, directory, names[i], error);
        free(from);
    }
    return code;
}

/* In the file that is looked at before tokenizer_config.json. */
int tokenizer_save_chat_template(const struct sl_tokenizer *tokenizer, const char *directory,
                                 struct sl_error *error)
{
    return tokenizer_write_file(directory, "chat_template.jinja", tokenizer->chat_template,
                                strlen(tokenizer->chat_template), error);
}
