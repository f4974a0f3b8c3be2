// SPDX-License-Identifier: Apache-2.0
/* From files to token stores.
 *
 * .bin files are mapped as they are. Everything else goes once through the tokenisation pipeline
 * into one store, which is kept in the cache directory under a name that is a hash of everything
 * that decides its content: the files' bytes, tokenizer, template and masking. Change any of them
 * and another store is made. Hashing reads the files at every start, which is a hundredth of the
 * work of tokenising them; times and inodes instead were rejected, because a copied or restored
 * file has new ones, and an edited one may have the old.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/dataset_internal.h"
#include "engine/tokenize_internal.h"

#define CACHE_VERSION 3u
#define BLOCK_BYTES ((size_t)1 << 20)

static int hash_bytes(const char *path, int fd, XXH3_state_t *state, void *block,
                      struct sl_error *error)
{
    for (;;) {
        ssize_t got = read(fd, block, BLOCK_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_error_set(error, SL_DOMAIN_IO, -errno, "%s: %s", path, strerror(errno));
        if (got == 0)
            return 0;
        XXH3_64bits_update(state, block, (size_t)got);
    }
}

static int hash_file(const char *path, uint64_t seed, uint64_t *hash, struct sl_error *error)
{
    XXH3_state_t *state = XXH3_createState();
    void *block = malloc(BLOCK_BYTES);
    int code = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        code = sl_error_set(error, SL_DOMAIN_INPUT, -errno, "%s: %s", path, strerror(errno));
    else if (!state || !block)
        code = sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory to read %s", path);
    if (!code) {
        XXH3_64bits_reset_withSeed(state, seed);
        code = hash_bytes(path, fd, state, block, error);
        *hash = XXH3_64bits_digest(state);
    }
    if (fd >= 0)
        close(fd);
    free(block);
    XXH3_freeState(state);
    return code;
}

static int cache_key(uint64_t *key, const struct sl_dataset_options *options,
                     const struct sl_chat *chat, struct sl_error *error)
{
    uint64_t hash = sl_tokenizer_fingerprint(options->tokenizer) + CACHE_VERSION;
    uint64_t choices[] = {options->train_on_prompt, options->allow_special};
    hash = XXH3_64bits_withSeed(choices, sizeof(choices), hash);
    hash = XXH3_64bits_withSeed(chat, sizeof(*chat), hash); /* chosen in zeroed memory */
    for (size_t i = 0; i < options->file_count; i++) {
        hash += tokenize_is_json(options->files[i]);
        int code = hash_file(options->files[i], hash, &hash, error);
        if (code)
            return code;
    }
    *key = hash;
    return 0;
}

static int put_ids(void *user, const uint32_t *ids, size_t count, struct sl_error *error)
{
    return store_writer_append(user, ids, count, error);
}

static int end_document(void *user, struct sl_error *error)
{
    return store_writer_end_document(user, error);
}

static int make_store(struct token_store *store, struct tokenize_source *source, const char *path,
                      uint64_t key, struct sl_error *error)
{
    struct store_writer *writer;
    bool json = false;
    for (size_t i = 0; i < source->file_count; i++)
        json |= tokenize_is_json(source->files[i]);
    bool marks = json && !source->train_on_prompt;
    bool narrow = sl_tokenizer_vocabulary(source->tokenizer) <= 65536 && !marks;
    int code = store_writer_open(&writer, path, narrow ? 2 : 4, key, error);
    if (code)
        return code;
    struct token_sink sink = {.user = writer, .put = put_ids, .end_document = end_document};
    struct tokenize_position position = {0};
    code = tokenize_run(source, &sink, &position, error);
    if (!code && source->samples)
        store_writer_set_samples(writer);
    if (!code)
        code = store_writer_finish(writer, store, error);
    store_writer_destroy(writer);
    return code;
}

/* The folder and those above it; *kept is the length of what was there before. */
static int make_folders(const char *directory, size_t *kept, struct sl_error *error)
{
    char *path = strdup(directory);
    *kept = 0;
    if (!path)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
    int code = 0;
    for (char *at = path + 1; !code; at++) {
        char end = *at;
        if (end != '/' && end != 0)
            continue;
        *at = 0;
        int failed = mkdir(path, 0777) ? errno : 0;
        if (failed == EEXIST)
            *kept = (size_t)(at - path);
        else if (failed)
            code = sl_error_set(error, SL_DOMAIN_INPUT, -failed,
                                "%s, for the token ids of texts: %s; set data.cache_path to "
                                "another folder, or data.cache=false",
                                path, strerror(failed));
        *at = end;
        if (end == 0)
            break;
    }
    free(path);
    return code;
}

/* What make_folders made, where it stayed empty. */
static void remove_folders(const char *directory, size_t kept)
{
    char *path = strdup(directory);
    while (path && strlen(path) > kept && (rmdir(path) == 0 || errno == ENOENT)) {
        char *slash = strrchr(path, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    free(path);
}

static bool holds_others(const char *directory)
{
    DIR *folder = opendir(directory);
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = strncmp(entry->d_name, "tokens-", 7) == 0 && strstr(entry->d_name, ".sluice") &&
                !strstr(entry->d_name, ".partial");
    if (folder)
        closedir(folder);
    return found;
}

static int read_texts(struct token_store *store, const struct sl_dataset_options *options,
                      struct sl_error *error)
{
    struct tokenize_source source = {
        .files = options->files,
        .file_count = options->file_count,
        .tokenizer = options->tokenizer,
        .train_on_prompt = options->train_on_prompt,
        .allow_special = options->allow_special,
        .workers = options->workers,
        .log = options->log,
        .progress = options->progress,
        .progress_user = options->progress_user,
    };
    uint64_t key = 0;
    size_t kept = 0;
    int code = sl_chat_choose(&source.chat, source.tokenizer, options->chat_template,
                              &source.chat_guessed, error);
    if (!code && !options->cache_directory)
        return make_store(store, &source, NULL, key, error);
    if (!code)
        code = cache_key(&key, options, &source.chat, error);
    if (!code)
        code = make_folders(options->cache_directory, &kept, error);
    if (code)
        return code;
    char *path = NULL;
    if (asprintf(&path, "%s/tokens-%016llx.sluice", options->cache_directory,
                 (unsigned long long)key) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
    struct sl_error miss = {0};
    if (store_open(store, path, key, &miss) != 0) {
        if (miss.code != -ENOENT)
            sl_log_write(options->log, SL_LOG_WARNING, "%s (made again)", miss.message);
        else if (holds_others(options->cache_directory))
            sl_log_write(options->log, SL_LOG_INFO,
                         "%s: the token ids kept there are of other texts, another tokenizer or "
                         "other data.* keys; made anew beside them",
                         options->cache_directory);
        code = make_store(store, &source, path, key, error);
    } else {
        sl_log_write(options->log, SL_LOG_INFO, "%s: %llu tokens, already tokenised", path,
                     (unsigned long long)store->token_count);
    }
    free(path);
    if (code)
        remove_folders(options->cache_directory, kept);
    return code;
}

int dataset_read(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                 struct sl_error *error)
{
    size_t bins = 0;
    for (size_t i = 0; i < options->file_count; i++) {
        uint64_t bytes;
        int code = tokenize_check_file(options->files[i], &bytes, error);
        if (code)
            return code;
        bins += tokenize_is_bin(options->files[i]);
    }
    if (bins && bins < options->file_count)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL,
                            "%zu of %zu files are .bin: give either .bin files or texts, not both",
                            bins, options->file_count);
    if (!bins && !options->tokenizer)
        return sl_error_set(error, SL_DOMAIN_INPUT, -EINVAL, "%s: text needs a tokenizer",
                            options->files[0]);
    size_t count = bins ? bins : 1;
    dataset->stores = calloc(count, sizeof(*dataset->stores));
    if (!dataset->stores)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a dataset");
    dataset->store_count = count;
    if (!bins)
        return read_texts(dataset->stores, options, error);
    int32_t eos = options->tokenizer ? sl_tokenizer_eos(options->tokenizer) : -1;
    int code = 0;
    for (size_t i = 0; i < bins && !code; i++)
        code = store_open_bin(&dataset->stores[i], options->files[i], eos, error);
    return code;
}
