// SPDX-License-Identifier: Apache-2.0
/* From files to token stores.
 *
 * .bin files are mapped as they are. Everything else goes once through the tokenisation pipeline
 * into one store, which is kept in the cache directory under a name that is a hash of everything
 * that decides its content: files (size, time, inode), tokenizer, template and masking. Change any
 * of them and another store is made.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "engine/dataset_internal.h"
#include "engine/tokenize_internal.h"

#define CACHE_VERSION 2u

static int cache_key(uint64_t *key, const struct sl_dataset_options *options,
                     const struct sl_chat *chat, struct sl_error *error)
{
    uint64_t hash = sl_tokenizer_fingerprint(options->tokenizer) + CACHE_VERSION;
    uint64_t choices[] = {chat->format, chat->dated, chat->think_block, chat->tight,
                          options->train_on_prompt};
    hash = XXH3_64bits_withSeed(choices, sizeof(choices), hash);
    hash = XXH3_64bits_withSeed(chat->system, strlen(chat->system), hash);
    for (size_t i = 0; i < options->file_count; i++) {
        struct stat status;
        if (stat(options->files[i], &status))
            return sl_error_set(error, SL_DOMAIN_INPUT, errno ? -errno : -EIO, "%s: %s",
                                options->files[i], strerror(errno));
        uint64_t facts[6] = {(uint64_t)status.st_size,         (uint64_t)status.st_mtim.tv_sec,
                             (uint64_t)status.st_mtim.tv_nsec, (uint64_t)status.st_ino,
                             (uint64_t)status.st_dev,          tokenize_is_json(options->files[i])};
        hash = XXH3_64bits_withSeed(facts, sizeof(facts), hash);
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

static int read_texts(struct token_store *store, const struct sl_dataset_options *options,
                      struct sl_error *error)
{
    struct tokenize_source source = {
        .files = options->files,
        .file_count = options->file_count,
        .tokenizer = options->tokenizer,
        .train_on_prompt = options->train_on_prompt,
        .workers = options->workers,
        .log = options->log,
        .progress = options->progress,
        .progress_user = options->progress_user,
    };
    uint64_t key = 0;
    int code = tokenize_choose_chat(&source, options->chat_template, error);
    if (!code)
        code = cache_key(&key, options, &source.chat, error);
    if (code)
        return code;
    if (!options->cache_directory)
        return make_store(store, &source, NULL, key, error);
    char *path = NULL;
    if (asprintf(&path, "%s/tokens-%016llx.sluice", options->cache_directory,
                 (unsigned long long)key) < 0)
        return sl_error_set(error, SL_DOMAIN_MEMORY, -ENOMEM, "no memory for a path");
    struct sl_error miss = {0};
    if (store_open(store, path, key, &miss) != 0) {
        if (miss.code != -ENOENT)
            sl_log_write(options->log, SL_LOG_WARNING, "%s (made again)", miss.message);
        code = make_store(store, &source, path, key, error);
    } else {
        sl_log_write(options->log, SL_LOG_INFO, "%s: %llu tokens, already tokenised", path,
                     (unsigned long long)store->token_count);
    }
    free(path);
    return code;
}

int dataset_read(struct sl_dataset *dataset, const struct sl_dataset_options *options,
                 struct sl_error *error)
{
    size_t bins = 0;
    for (size_t i = 0; i < options->file_count; i++)
        bins += tokenize_is_bin(options->files[i]);
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
