// SPDX-License-Identifier: Apache-2.0
/* What the tokenizer's own files share; nobody else includes it.
 *
 *     tokenizer.c         front, decoding            tokenizer_bytes.c   the built-in byte
 * tokenizer tokenizer_json.c    tokenizer.json             tokenizer_parts.c   its normalizer,
 * pre-tokenizer ... tokenizer_encode.c  text -> segments           tokenizer_added.c   added tokens
 * in a text tokenizer_split.c   segments -> words          tokenizer_regex.c   words by PCRE2
 *     tokenizer_bpe.c     words -> ids               tokenizer_table.c   the hash tables
 */
#ifndef SLUICE_ENGINE_TOKENIZER_INTERNAL_H
#define SLUICE_ENGINE_TOKENIZER_INTERNAL_H

#include "engine/tokenizer.h"
#include "engine/tokenizer_unicode.h"

#define TOKENIZER_EOS_MAX 16
#define TOKENIZER_STEPS_MAX 8
#define TOKENIZER_NORMALIZERS_MAX 4
#define TOKENIZER_TEMPLATE_MAX 8
#define BYTES_END_OF_TEXT 256u
#define NO_ID UINT32_MAX

enum piece_flags {
    PIECE_KNOWN = 1,
    PIECE_ADDED = 2,
    PIECE_SPECIAL = 4,
    PIECE_BYTE = 8, /* <0xNN>: decodes as one byte of a run */
};

/* What an id decodes to: pool[offset, offset + bytes). */
struct piece {
    uint32_t offset, bytes;
    uint8_t flags;
};

/* --- Hash tables: open addressing, a power of two of slots, at most half full --- */

struct string_table { /* bytes -> id */
    struct string_slot {
        uint64_t offset;
        uint32_t bytes, id, tag; /* tag: the hash's top bits; id NO_ID: empty */
    } * slots;
    uint64_t mask;
    char *pool;
    uint64_t pool_bytes, pool_capacity;
};
bool string_table_make(struct string_table *table, uint64_t count, uint64_t pool_capacity);
void string_table_finish(struct string_table *table);
bool string_table_put(struct string_table *table, const char *text, size_t bytes, uint32_t id);
uint32_t string_table_get(const struct string_table *table, const char *text, size_t bytes);

struct pair_table { /* (left id, right id) -> rank, merged id */
    struct pair_slot {
        uint32_t left, right, rank, id; /* rank NO_ID: empty */
    } * slots;
    uint64_t mask;
};
bool pair_table_make(struct pair_table *table, uint64_t count);
void pair_table_finish(struct pair_table *table);
void pair_table_put(struct pair_table *table, struct pair_slot slot); /* the last one wins */

static inline const struct pair_slot *pair_table_get(const struct pair_table *table, uint32_t left,
                                                     uint32_t right)
{
    uint64_t hash = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    for (uint64_t at = (hash >> 32) & table->mask;; at = (at + 1) & table->mask) {
        const struct pair_slot *slot = &table->slots[at];
        if (slot->rank == NO_ID)
            return NULL;
        if (slot->left == left && slot->right == right)
            return slot;
    }
}

/* --- Added tokens --- */

struct added_token {
    char *content; /* owned; as matched: normalized where the token asks for it */
    size_t bytes;
    uint32_t id;
    bool single_word, left_strip, right_strip, normalized, special;
};

/* A set of added tokens that is looked for together. The trie's edges are a hash table. */
struct added_set {
    const struct added_token **tokens; /* [count], borrowed */
    size_t count;
    struct trie_edge {
        uint32_t node, next; /* next 0: empty */
        uint8_t byte;
    } * edges;
    uint64_t mask;
    uint32_t *token_at; /* [node_count] token index + 1, or 0 */
    uint32_t node_count;
    bool first[256];
    int only_first; /* the one first byte, or -1 */
};
int added_set_make(struct added_set *set, const struct added_token *tokens, size_t count,
                   bool normalized);
void added_set_finish(struct added_set *set);

/* A match in text, or false. Leftmost longest; `from` is where to look, `floor` where text that is
 * still free begins (left_strip goes no further). */
struct added_match {
    size_t start, end; /* spaces that the token swallows included */
    size_t resume;     /* where the next search begins */
    uint32_t id;
    const struct added_token *token;
};
bool added_set_find(const struct added_set *set, const char *text, size_t bytes, size_t from,
                    size_t floor, bool plain, struct added_match *match);

/* --- Normalizers and pre-tokenizer steps --- */

enum normalizer_kind { NORMALIZER_NFC, NORMALIZER_PREPEND, NORMALIZER_REPLACE };
struct normalizer {
    enum normalizer_kind kind;
    char *pattern, *content; /* owned */
    size_t pattern_bytes, content_bytes;
};

enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
};
enum step_kind {
    STEP_GPT2,         /* the pattern of ByteLevel(use_regex) */
    STEP_LLAMA3,       /* the pattern of Llama 3 and Qwen; digits_max digits in a word */
    STEP_DIGITS,       /* Digits; individual or runs */
    STEP_REGEX,        /* Split with any other pattern */
    STEP_STRING,       /* Split at a string */
    STEP_PREFIX_SPACE, /* ByteLevel(add_prefix_space) */
    STEP_METASPACE,    /* space -> mark, and a mark in front */
};
enum prepend_scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };
struct pretoken_regex;
struct step {
    enum step_kind kind;
    unsigned digits_max;
    bool individual, invert;
    enum split_behavior behavior;
    enum prepend_scheme prepend;
    char *content; /* owned: the string, or the mark */
    size_t content_bytes;
    struct pretoken_regex *regex; /* owned */
};

/* Compile a pattern of the library (Oniguruma's syntax, \s and classes in its Unicode) for PCRE2.
 */
int regex_compile(struct pretoken_regex **out, const char *pattern, size_t bytes,
                  struct sl_error *error);
void regex_free(struct pretoken_regex *regex);
struct regex_state; /* per encoder */
int regex_state_create(struct regex_state **out);
void regex_state_free(struct regex_state *state);
/* The next match at or after `from`: 1 and [start, end), 0 for none, or a negative errno. */
int regex_next(const struct pretoken_regex *regex, struct regex_state *state, const char *text,
               size_t bytes, size_t from, size_t *start, size_t *end);

/* --- The tokenizer --- */

enum tokenizer_kind { TOKENIZER_BYTES, TOKENIZER_BPE };
enum first_strip {
    STRIP_NOTHING,
    STRIP_ONE_SPACE,   /* Strip(" ", 1, 0) after Fuse */
    STRIP_FIRST_MARKS, /* Metaspace: the first token loses its marks */
};

struct sl_tokenizer {
    enum tokenizer_kind kind;
    struct piece *pieces; /* [vocabulary] */
    uint32_t vocabulary;
    char *pool;
    size_t pool_bytes;
    int32_t bos;
    int32_t eos[TOKENIZER_EOS_MAX];
    size_t eos_count;
    uint64_t fingerprint;

    /* The rest: TOKENIZER_BPE. */
    char *directory;             /* where it came from */
    char *chat_template;         /* Jinja text, or NULL */
    bool chat_template_set;      /* not the folder's */
    struct string_table entries; /* vocabulary as matched: raw bytes where byte_level */
    struct pair_table merges;
    bool byte_level, byte_fallback, fuse_unknown, ignore_merges;
    bool words_at_mark; /* no merge joins X and the mark: words may be cut before a mark */
    bool cut_at_space, cut_at_newline;
    bool space_marks; /* decoding: marks become spaces */
    bool join_with_spaces;
    enum first_strip first_strip;
    uint32_t unknown_id; /* NO_ID: none */
    char *unknown_text;
    uint32_t byte_ids[256]; /* byte_level: of the byte; byte_fallback: of <0xNN>; NO_ID: none */
    uint32_t ascii_ids[128];
    struct added_token *added; /* [added_count] */
    size_t added_count;
    struct added_set raw_set, normalized_set;
    struct normalizer normalizers[TOKENIZER_NORMALIZERS_MAX];
    size_t normalizer_count;
    struct step steps[TOKENIZER_STEPS_MAX];
    size_t step_count;
    uint32_t template_before[TOKENIZER_TEMPLATE_MAX], template_after[TOKENIZER_TEMPLATE_MAX];
    size_t template_before_count, template_after_count;
};

/* --- The encoder: everything that changes --- */

/* A word and its ids in one cache line. Longer ones are not kept. */
#define CACHE_WORD_BYTES 26u
#define CACHE_IDS 9u
#define CACHE_SLOTS 65536u
struct cached_word {
    uint8_t bytes, count;
    char word[CACHE_WORD_BYTES];
    uint32_t ids[CACHE_IDS];
};
_Static_assert(sizeof(struct cached_word) == 64, "one cache line");

struct bpe_symbol {
    uint32_t id;
    int32_t previous, next; /* -1: none; a merged-away symbol has id NO_ID */
};
struct bpe_candidate {
    uint32_t rank, left, right;
    int32_t at;
};

struct sl_encoder {
    const struct sl_tokenizer *tokenizer;
    const struct unicode_table *classes;
    struct cached_word *cache; /* [CACHE_SLOTS] */
    struct sl_text clean;      /* the text with broken bytes replaced */
    struct sl_text normal[2];  /* a segment through the normalizers */
    struct sl_text step_text[TOKENIZER_STEPS_MAX];
    struct sl_ids step_spans[TOKENIZER_STEPS_MAX];
    struct sl_ids symbols; /* of the word at work */
    struct bpe_symbol *chain;
    struct bpe_candidate *heap;
    size_t chain_capacity, heap_capacity;
    struct regex_state *regex;
    struct sl_ids *out;
    bool at_start;  /* the piece at work begins the text */
    bool continued; /* it continues a segment: nothing is put in front */
};

/* All return 0 or a negative errno. */
int bpe_word(struct sl_encoder *encoder, const char *word, size_t bytes);
int split_words(struct sl_encoder *encoder, size_t step, const char *text, size_t bytes);
int encode_text(struct sl_encoder *encoder, const char *text, size_t bytes, unsigned flags,
                bool first);
int normalize(struct sl_encoder *encoder, const char **text, size_t *bytes);

/* Length of a prefix of text that may be encoded alone; 0 where no cut is found. */
size_t tokenizer_cut(const struct sl_tokenizer *tokenizer, const char *text, size_t bytes);

/* The first place at or after `from` before which a text may be broken because a special token
 * begins there (only of the raw set, and only such as leave what stands before alone); else bytes.
 */
size_t tokenizer_next_break(const struct sl_tokenizer *tokenizer, const char *text, size_t bytes,
                            size_t from);

/* Room for `more` further elements; false where memory or the size type ends. */
bool tokenizer_ids_reserve(struct sl_ids *ids, size_t more);
bool tokenizer_text_reserve(struct sl_text *text, size_t more);
int tokenizer_text_append(struct sl_text *text, const char *bytes, size_t count);

int tokenizer_open_bytes(struct sl_tokenizer *tokenizer, struct sl_error *error);
int tokenizer_open_json(struct sl_tokenizer *tokenizer, const char *path, struct sl_error *error);
/* From text in memory; for the fuzzer. `name` stands for the file in messages. */
int tokenizer_parse_json(struct sl_tokenizer *tokenizer, const char *text, size_t bytes,
                         const char *name, struct sl_error *error);
/* The parts around the model. `root` is a json_t object; typed void so that only readers see
 * jansson. */
int tokenizer_parse_parts(struct sl_tokenizer *tokenizer, const void *root, const char *name,
                          struct sl_error *error);
int tokenizer_parse_template(struct sl_tokenizer *tokenizer, const void *root, const char *name,
                             struct sl_error *error);
int tokenizer_write_file(const char *directory, const char *name, const char *text, size_t bytes,
                         struct sl_error *error);
int tokenizer_save_chat_template(const struct sl_tokenizer *tokenizer, const char *directory,
                                 struct sl_error *error);
/* tokenizer_config.json, generation_config.json, config.json, chat_template.jinja beside it. */
int tokenizer_read_neighbours(struct sl_tokenizer *tokenizer, struct sl_error *error);
int tokenizer_save_files(const struct sl_tokenizer *tokenizer, const char *directory,
                         struct sl_error *error);
/* A whole file, NUL behind it; at most bytes_max. Owner: the caller. */
int tokenizer_read_file(const char *path, uint64_t bytes_max, char **text, size_t *bytes,
                        struct sl_error *error);
/* Undo the byte-level alphabet in place of a copy: false where a character is not in it. */
bool byte_level_decode(const char *text, size_t bytes, char *out, size_t *out_bytes);

int tokenizer_save_bytes(const struct sl_tokenizer *tokenizer, const char *directory,
                         struct sl_error *error);
int tokenizer_encode_bytes(const char *text, size_t bytes, unsigned flags, bool last,
                           struct sl_ids *ids, size_t *consumed);

#endif
