/* Shared by the tokenizer's files; no part of libhelm's interface.
 *
 * tokenizer.c          open, close, encode, queries: the order in which the parts below run
 * tokenizer/json.c     finds vocab and merges in tokenizer.json and reads their strings and numbers
 * tokenizer/load.c     tokenizer.json as a whole; tokenizer/parse.c: its components, as the structs below
 * tokenizer/gguf.c     the same from a GGUF file's key/values; tokenizer/gguf_kinds.c: the kinds it names
 * tokenizer/config.c   tokenizer_config.json: roles, chat templates
 * tokenizer/vocab.c    spelling <-> id, pair -> merge: the hash tables
 * tokenizer/added.c    added tokens: looking one up, and cutting text at them
 * tokenizer/marks.c    which bytes of a rendered chat may be control tokens
 * tokenizer/finder.c   finding many spellings in text, in linear time
 * tokenizer/normalize.c, tokenizer/pretokenize.c, tokenizer/bpe.c, tokenizer/decode.c: the four steps
 * tokenizer/regex.c    Oniguruma's syntax to PCRE2's; tokenizer/pattern.c: matching within a budget
 * tokenizer/text.c     UTF-8, character classes, growing buffers
 *
 * struct helm_tokenizer owns all of it; every struct here has the function that frees it beside it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/printable.h"

#define TOK_JSON_BYTES_MAX   (64u * 1024u * 1024u) /* tokenizer.json */
#define TOK_CONFIG_BYTES_MAX (16u * 1024u * 1024u) /* tokenizer_config.json, chat_template.jinja */
#define TOK_STAGES_MAX       64      /* normalizers, pre-tokenizers or decoders, sequences flattened */
#define TOK_NESTING_MAX      8       /* a Sequence in a Sequence ... */
#define TOK_PATTERN_MAX      65536   /* bytes of one regular expression or literal */
#define TOK_ADDED_MAX        1048576 /* added tokens */
#define TOK_ADDED_LENGTH_MAX 1024    /* bytes of one added token */
#define TOK_TEMPLATE_MAX     1024    /* ids and sequences in a post-processor's template */
#define TOK_PROBES_MAX       1024    /* steps in a hash table before the file is called hostile */
#define TOK_BUFFER_LIMIT     (1024u * 1024u * 1024u)

/* ---- tokenizer/text.c ---- */

struct tok_buffer {
    char *data;
    size_t length;
    size_t capacity;
    size_t limit; /* 0: TOK_BUFFER_LIMIT */
    int failed;   /* HELM_E_LIMIT or HELM_E_NOMEM: since then nothing was added */
};

void tok_buffer_free(struct tok_buffer *buffer);
/* Whether there is room for `more` bytes and a NUL. */
bool tok_buffer_reserve(struct tok_buffer *buffer, size_t more);
void tok_buffer_append(struct tok_buffer *buffer, const char *bytes, size_t length);
void tok_buffer_append_char(struct tok_buffer *buffer, uint32_t codepoint);
/* Whether all that was added is there: asked once, before the text is used. */
HELM_MUST_CHECK int tok_buffer_check(const struct tok_buffer *buffer, struct helm_err *err);

struct tok_ids {
    uint32_t *data;
    size_t count;
    size_t capacity;
};
HELM_MUST_CHECK int tok_ids_reserve(struct tok_ids *ids, size_t more, struct helm_err *err);
HELM_MUST_CHECK int tok_ids_push(struct tok_ids *ids, uint32_t id, struct helm_err *err);

/* Appends with U+FFFD for what is not UTF-8. Unless `final`, an unfinished last character is left. Returns
 * how many bytes were taken. */
size_t tok_utf8_append_lossy(struct tok_buffer *out, const char *bytes, size_t length, bool final);

bool tok_char_is_space(uint32_t codepoint);   /* White_Space */
bool tok_char_is_numeric(uint32_t codepoint); /* Nd, Nl, No */
bool tok_char_is_punctuation(uint32_t codepoint);
bool tok_char_is_word(uint32_t codepoint); /* \w */
bool tok_char_is_mark(uint32_t codepoint);

/* The byte-level alphabet: the character that stands for a byte, and the byte (or -1) that a character stands
 * for. */
uint32_t tok_bytelevel_char(uint8_t byte);
int tok_bytelevel_byte(uint32_t codepoint);

/* ---- tokenizer/json.c ---- */

struct tok_slice {
    const char *text;
    size_t length;
};

/* Finds the values of model.vocab (an object) and model.merges (an array) and gives the file's text without
 * them (empty ones in their place) for the JSON parser: 99 % of the bytes need no tree. A slice has text NULL
 * if absent. */
HELM_MUST_CHECK int tok_json_cut(const char *text, size_t length, struct tok_buffer *rest,
                                 struct tok_slice *vocab, struct tok_slice *merges, struct helm_err *err);

struct tok_scan {
    const char *start;
    const char *at;
    const char *end;
    const char *what; /* names the value in errors */
};
/* Consumes `wanted` after white space; false (nothing consumed) if something else is there. */
bool tok_scan_take(struct tok_scan *scan, char wanted);
/* A string; its decoded bytes are appended to `out`, which the caller checks. */
HELM_MUST_CHECK int tok_scan_string(struct tok_scan *scan, struct tok_buffer *out, struct helm_err *err);
HELM_MUST_CHECK int tok_scan_id(struct tok_scan *scan, uint32_t *id, struct helm_err *err);
int tok_scan_fail(const struct tok_scan *scan, const char *expected, struct helm_err *err);

/* ---- tokenizer/vocab.c ---- */

enum tok_entry_flag { TOK_ENTRY_PRESENT = 1, TOK_ENTRY_SPECIAL = 2 };

struct tok_entry {
    uint32_t offset; /* into bytes; the spelling is NUL-terminated */
    uint32_t length : 29;
    uint32_t flags : 3; /* enum tok_entry_flag */
};

struct tok_vocab_slot {
    uint32_t tag; /* high bits of the hash */
    uint32_t id;  /* HELM_TOKENIZER_NO_ID: free */
};

struct tok_merge_slot {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    uint32_t rank;
    uint32_t id;
};

struct tok_vocab {
    struct tok_buffer bytes;
    struct tok_entry *entries; /* [id_end] */
    uint32_t id_end;
    uint32_t longest; /* bytes of the longest spelling of the model's own tokens */
    struct tok_vocab_slot *slots;
    unsigned slot_bits;
    struct tok_merge_slot *merges;
    unsigned merge_bits;
};

void tok_vocab_free(struct tok_vocab *vocab);
/* The model's own tokens. Room is made for ids below extra_id_end (added tokens). */
HELM_MUST_CHECK int tok_vocab_load(struct tok_vocab *vocab, const struct tok_slice *json,
                                   uint32_t extra_id_end, struct helm_err *err);
HELM_MUST_CHECK int tok_vocab_load_merges(struct tok_vocab *vocab, const struct tok_slice *json,
                                          struct helm_err *err);
/* The same from elsewhere: each token's text is appended to vocab->bytes and then named, from `offset` on;
 * then all are indexed. */
struct tok_listed {
    uint32_t id, offset, length;
};
struct tok_token_list {
    struct tok_listed *items;
    size_t count, capacity;
};
void tok_token_list_free(struct tok_token_list *list);
HELM_MUST_CHECK int tok_vocab_spell(struct tok_vocab *vocab, struct tok_token_list *list, uint32_t id,
                                    size_t offset, struct helm_err *err);
HELM_MUST_CHECK int tok_vocab_index(struct tok_vocab *vocab, const struct tok_token_list *list,
                                    uint32_t extra_id_end, struct helm_err *err);
/* Room for `count` merges; merges by their ids, or by their spelling, the first part of which is `split`
 * bytes. */
HELM_MUST_CHECK int tok_vocab_reserve_merges(struct tok_vocab *vocab, size_t count, struct helm_err *err);
HELM_MUST_CHECK int tok_vocab_add_merge(struct tok_vocab *vocab, uint32_t left, uint32_t right, uint32_t rank,
                                        uint32_t id, struct helm_err *err);
HELM_MUST_CHECK int tok_vocab_merge_spelled(struct tok_vocab *vocab, const struct tok_buffer *joined,
                                            size_t split, uint32_t rank, struct helm_err *err);
/* "a b" without its space, whose place is *split; false: it is no such text. */
bool tok_merge_cut(struct tok_buffer *joined, size_t *split);
/* Gives an id that the model lacks its spelling: for added tokens; the model never finds it. */
HELM_MUST_CHECK int tok_vocab_name_id(struct tok_vocab *vocab, uint32_t id, const char *text, size_t length,
                                      struct helm_err *err);
/* The model's own token spelled so, or HELM_TOKENIZER_NO_ID. */
uint32_t tok_vocab_find(const struct tok_vocab *vocab, const char *text, size_t length);
/* NULL if there is none. */
const struct tok_merge_slot *tok_vocab_find_merge(const struct tok_vocab *vocab, uint32_t left,
                                                  uint32_t right);
uint64_t tok_hash(const char *text, size_t length);
/* In a table of spellings that the vocabulary has, 1 << slot_bits slots of which one at least is free: the
 * slot of this spelling, or the free one where it belongs. *probes: slots passed over. */
struct tok_vocab_slot *tok_slot_of(struct tok_vocab_slot *slots, unsigned slot_bits,
                                   const struct tok_vocab *vocab, const char *text, size_t length,
                                   uint32_t *tag, unsigned *probes);

/* ---- tokenizer/finder.c ---- */

struct tok_finder_key; /* a spelling, until the states are built */

struct tok_finder_state {
    uint32_t first;    /* its successors, in order of their bytes */
    uint32_t fallback; /* where to look for a successor that this one lacks */
    uint32_t value;    /* of the longest spelling that begins here, or HELM_TOKENIZER_NO_ID */
    uint32_t length;   /* that spelling's bytes */
    uint16_t count;
    uint8_t byte;
};

/* Add all, build once, then search. */
struct tok_finder {
    struct tok_finder_key *keys;
    uint32_t key_count;
    uint32_t key_capacity;
    struct tok_buffer bytes; /* the keys' */
    struct tok_finder_state *states;
    uint32_t state_count; /* 0: there is nothing to find */
    uint32_t state_capacity;
    uint32_t longest; /* bytes of the longest spelling */
    uint32_t root[256];
};

void tok_finder_free(struct tok_finder *finder);
HELM_MUST_CHECK int tok_finder_add(struct tok_finder *finder, const char *text, size_t length, uint32_t value,
                                   struct helm_err *err);
/* If a spelling occurs twice, the lower value counts. */
HELM_MUST_CHECK int tok_finder_build(struct tok_finder *finder, struct helm_err *err);
/* For each place in text[from..to) the state that says what begins there, to states[0..to - from). Looks at
 * to - from + longest bytes. */
void tok_finder_run(const struct tok_finder *finder, const char *text, size_t length, size_t from, size_t to,
                    uint32_t *states);

/* ---- tokenizer/added.c ---- */

struct tok_added_token {
    uint32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
    bool normalized;
    bool special;
};

struct tok_added {
    struct tok_added_token *tokens;
    uint32_t count;
    struct tok_vocab_slot *slots; /* every one, by its spelling */
    unsigned slot_bits;
    struct tok_finder raw;        /* those found before normalizing */
    struct tok_finder normalized; /* those found after it, by their normalized spelling */
};

struct tok_marks;

struct tok_piece {
    uint32_t offset;
    uint32_t length;
    uint32_t id; /* HELM_TOKENIZER_NO_ID: text; else this token */
    bool first;  /* begins where the whole text begins */
};

struct tok_pieces {
    struct tok_piece *data;
    size_t count;
    size_t capacity;
};
HELM_MUST_CHECK int tok_pieces_push(struct tok_pieces *pieces, size_t start, size_t end, uint32_t id,
                                    bool first, struct helm_err *err);

void tok_added_free(struct tok_added *added);
/* Room for `count` tokens. */
HELM_MUST_CHECK int tok_added_reserve(struct tok_added *added, size_t count, struct helm_err *err);
/* Lets tok_added_find find this id by the spelling that it has in the vocabulary. */
HELM_MUST_CHECK int tok_added_insert(struct tok_added *added, const struct tok_vocab *vocab, uint32_t id,
                                     struct helm_err *err);
/* The id of the added token spelled exactly so, or HELM_TOKENIZER_NO_ID. */
uint32_t tok_added_find(const struct tok_added *added, const struct tok_vocab *vocab, const char *text,
                        size_t length);
/* Cuts text into pieces at the finder's tokens; `first` says that text begins where the whole text begins.
 * With `marks` (NULL: none) control tokens are found only where the text is the template's own. */
HELM_MUST_CHECK int tok_added_split(const struct tok_added *added, const struct tok_finder *finder,
                                    const struct tok_marks *marks, struct tok_slice text, bool first,
                                    struct tok_pieces *pieces, struct helm_err *err);

/* ---- tokenizer/regex.c, tokenizer/pattern.c ---- */

/* Appends the PCRE2 form of an Oniguruma (default syntax, UTF-8) pattern. */
HELM_MUST_CHECK int tok_regex_translate(const char *pattern, size_t length, struct tok_buffer *out,
                                        struct helm_err *err);

struct tok_pattern {
    struct tok_buffer literal; /* used if code is NULL; never empty then */
    void *code;                /* pcre2_code */
};

/* One encode's or one detokenizer's state for matching: PCRE2's scratch memory and what is left of its time.
 */
struct tok_matcher {
    void *match_data;
    void *context;
    void *jit_stack;
    size_t text_length;    /* of all that this call will match; 0: the first subject's */
    size_t subject_length; /* that the match limit is set for */
    uint32_t calls;
    uint64_t budget_ns;   /* of the thread's CPU time, for the call */
    uint64_t deadline_ns; /* 0: not started */
};

/* Where a search stands in one subject; to begin, zero but for that. */
struct tok_search {
    struct tok_slice subject;
    size_t at;
    size_t last_end;
    bool matched;
    bool found; /* whether tok_pattern_next found one, and where */
    size_t start, end;
};

HELM_MUST_CHECK int tok_pattern_open(struct tok_pattern *pattern, const char *text, size_t length, bool regex,
                                     struct helm_err *err);
void tok_pattern_free(struct tok_pattern *pattern);
HELM_MUST_CHECK int tok_pattern_next(const struct tok_pattern *pattern, struct tok_matcher *matcher,
                                     struct tok_search *search, struct helm_err *err);
/* Appends the text with `content` in place of each match. *dropped_start is set if the text's beginning has
 * no successor. */
HELM_MUST_CHECK int tok_pattern_replace(const struct tok_pattern *pattern, const struct tok_buffer *content,
                                        struct tok_matcher *matcher, struct tok_slice text,
                                        struct tok_buffer *out, bool *dropped_start, struct helm_err *err);
void tok_matcher_free(struct tok_matcher *matcher);

/* ---- tokenizer/normalize.c ---- */

enum tok_normalizer_kind {
    TOK_NORMALIZER_NFC,
    TOK_NORMALIZER_NFD,
    TOK_NORMALIZER_NFKC,
    TOK_NORMALIZER_NFKD,
    TOK_NORMALIZER_PREPEND,
    TOK_NORMALIZER_REPLACE,
    TOK_NORMALIZER_LOWERCASE,
    TOK_NORMALIZER_STRIP_ACCENTS,
    TOK_NORMALIZER_STRIP,
};

struct tok_normalizer {
    enum tok_normalizer_kind kind;
    struct tok_buffer content; /* Prepend, Replace */
    struct tok_pattern pattern;
    bool strip_left;
    bool strip_right;
};

/* Runs the tokenizer's normalizers over text. The result is out->data unless there are none. *dropped_start:
 * the text's first character has no successor in the result. */
HELM_MUST_CHECK int tok_normalize(const struct helm_tokenizer *tokenizer, struct tok_slice text,
                                  struct tok_matcher *matcher, struct tok_buffer *out, bool *dropped_start,
                                  struct helm_err *err);
/* Normalizes text that does not begin a text: nothing is put before it. */
HELM_MUST_CHECK int tok_normalize_inside(const struct helm_tokenizer *tokenizer, struct tok_slice text,
                                         struct tok_matcher *matcher, struct tok_buffer *out,
                                         struct helm_err *err);

/* ---- tokenizer/marks.c ---- */

/* Which bytes of a text a chat template wrote itself. */
struct tok_marks {
    const unsigned char *own; /* a bit for each byte, from bit `from` on; NULL: none */
    size_t from;
    const struct tok_vocab *vocab;
    struct tok_slice chat_template; /* its text; borrowed */
    unsigned char
        *known; /* for each added token: 1 a control token, 2 a word, 0 not yet asked; of one call */
};
/* Whether the token, found at text[start..stop), counts there. */
bool tok_marks_allow(const struct tok_marks *marks, const struct tok_added *added, uint32_t index,
                     size_t start, size_t stop);
/* The marks of a text, which `marks` has, as those of `normalized`, which was made of it. *own is malloc'd.
 * Where normalizing joined what the template wrote with other text, nothing counts as its own. */
HELM_MUST_CHECK int tok_marks_normalize(const struct helm_tokenizer *tokenizer, const struct tok_marks *marks,
                                        struct tok_slice text, const struct tok_buffer *normalized,
                                        struct tok_matcher *matcher, unsigned char **own,
                                        struct helm_err *err);
/* helm_tokenizer_encode with PARSE_ADDED, for a text of which bit i of `own` says that byte i is the
 * template's own: control tokens are found there alone. These are the special tokens, those that begin with
 * "<|" or its full-width form, and those that the template spells; others are words of the vocabulary and
 * found everywhere. */
HELM_MUST_CHECK int tok_encode_marked(const struct helm_tokenizer *tokenizer, struct tok_slice text,
                                      const unsigned char *own, struct tok_slice chat_template,
                                      uint32_t **ids, size_t *count, struct helm_err *err);

/* ---- tokenizer/pretokenize.c ---- */

enum tok_split_behavior {
    TOK_SPLIT_ISOLATED,
    TOK_SPLIT_REMOVED,
    TOK_SPLIT_MERGED_WITH_PREVIOUS,
    TOK_SPLIT_MERGED_WITH_NEXT,
    TOK_SPLIT_CONTIGUOUS,
};

enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER };

enum tok_pretokenizer_kind {
    TOK_PRETOKENIZER_BYTE_LEVEL,
    TOK_PRETOKENIZER_SPLIT,
    TOK_PRETOKENIZER_METASPACE,
    TOK_PRETOKENIZER_DIGITS,
    TOK_PRETOKENIZER_WHITESPACE,
    TOK_PRETOKENIZER_WHITESPACE_SPLIT,
    TOK_PRETOKENIZER_PUNCTUATION,
};

struct tok_pretokenizer {
    enum tok_pretokenizer_kind kind;
    enum tok_split_behavior behavior;
    struct tok_pattern pattern; /* Split, ByteLevel with use_regex */
    bool invert;
    bool add_prefix_space;
    bool use_regex;
    bool last_byte_level; /* ByteLevel, and nothing follows: the model reads the bytes themselves */
    bool split;           /* Metaspace */
    enum tok_prepend prepend;
    char replacement[5];
    size_t replacement_length;
};

/* Text and its cuts, and the spares that rewriting steps swap with. */
struct tok_words {
    const char *source; /* that pieces point into: the text that was given, or text.data */
    struct tok_buffer text;
    struct tok_pieces pieces;
    struct tok_buffer spare_text;
    struct tok_pieces spare_pieces;
};
void tok_words_free(struct tok_words *words);

/* Cuts text into words. */
HELM_MUST_CHECK int tok_pretokenize(const struct helm_tokenizer *tokenizer, struct tok_slice text, bool first,
                                    struct tok_matcher *matcher, struct tok_words *words,
                                    struct helm_err *err);

/* ---- tokenizer/bpe.c ---- */

struct tok_bpe {
    bool byte_level; /* words are raw bytes, each standing for its character of the byte-level alphabet */
    bool byte_fallback;
    bool fuse_unk;
    bool ignore_merges;
    bool has_unk;
    uint32_t unk_id;            /* HELM_TOKENIZER_NO_ID: named but not in the vocabulary */
    uint32_t byte_ids[256];     /* byte_level: the byte's own token */
    uint32_t fallback_ids[256]; /* "<0x00>" ... */
    bool cuts;                  /* words may be cut before U+2581 as `joined` says */
    /* A bit for each character (modulo 65536) that some token has just before U+2581 */
    uint64_t joined[1024];
    uint32_t ascii_ids[128]; /* the tokens of single ASCII characters */
};

struct tok_bpe_work; /* scratch memory and word cache of one encode */
/* `plain`: a word that spells a special token is still cut up. Ids are appended to `ids`. */
HELM_MUST_CHECK int tok_bpe_work_open(const struct helm_tokenizer *tokenizer, bool plain, struct tok_ids *ids,
                                      struct tok_bpe_work **out, struct helm_err *err);
void tok_bpe_work_free(struct tok_bpe_work *work);

/* Fills the tables from the vocabulary. */
void tok_bpe_prepare(struct tok_bpe *bpe, const struct tok_vocab *vocab);
/* Appends the ids of the words. */
HELM_MUST_CHECK int tok_bpe_encode(struct tok_bpe_work *work, const struct tok_words *words,
                                   struct helm_err *err);

/* ---- tokenizer/decode.c ---- */

enum tok_decoder_kind {
    TOK_DECODER_BYTE_LEVEL,
    TOK_DECODER_BYTE_FALLBACK,
    TOK_DECODER_FUSE,
    TOK_DECODER_REPLACE,
    TOK_DECODER_STRIP,
    TOK_DECODER_METASPACE,
    TOK_DECODER_JOIN, /* no decoder at all: tokens with spaces between */
};

struct tok_decoder {
    enum tok_decoder_kind kind;
    struct tok_pattern pattern; /* Replace */
    struct tok_buffer content;  /* Replace */
    uint32_t strip_char;
    uint32_t strip_start;
    uint32_t strip_stop;
    uint32_t replacement; /* Metaspace */
    bool drop_first;      /* Metaspace: the first token's replacement characters vanish */
};

/* ---- tokenizer/config.c ---- */

struct tok_named {
    char *name;
    char *text;
};

struct tok_config {
    struct tok_named *roles; /* "bos_token" ... */
    size_t role_count;
    struct tok_named *templates;
    size_t template_count;
    bool add_bos;
    bool add_eos;
};

HELM_MUST_CHECK int tok_config_parse(struct tok_config *config, const char *text, size_t length,
                                     struct helm_err *err);
HELM_MUST_CHECK int tok_config_add_role(struct tok_config *config, const char *role, const char *text,
                                        struct helm_err *err);
/* Replaces the template of that name. */
HELM_MUST_CHECK int tok_config_set_template(struct tok_config *config, const char *name, const char *text,
                                            struct helm_err *err);
const char *tok_config_find(const struct tok_named *list, size_t count, const char *name);
void tok_config_free(struct tok_config *config);

/* ---- the whole ---- */

struct helm_tokenizer {
    struct tok_vocab vocab;
    struct tok_bpe bpe;
    struct tok_added added;
    struct tok_normalizer *normalizers;
    size_t normalizer_count;
    struct tok_pretokenizer *pretokenizers;
    size_t pretokenizer_count;
    struct tok_decoder *decoders;
    size_t decoder_count;
    uint32_t *template_ids; /* the post-processor: HELM_TOKENIZER_NO_ID stands for the text's ids */
    size_t template_count;
    struct tok_config config;
};

/* tokenizer/parse.c: one component each; `item` may be null or absent. */
HELM_MUST_CHECK int tok_parse_normalizer(struct helm_tokenizer *tokenizer, const json_t *item,
                                         struct helm_err *err);
HELM_MUST_CHECK int tok_parse_pretokenizer(struct helm_tokenizer *tokenizer, const json_t *item,
                                           struct helm_err *err);
HELM_MUST_CHECK int tok_parse_decoder(struct helm_tokenizer *tokenizer, const json_t *item,
                                      struct helm_err *err);
HELM_MUST_CHECK int tok_parse_processor(struct helm_tokenizer *tokenizer, const json_t *item,
                                        struct helm_err *err);

/* tokenizer/load.c: added tokens, once vocabulary and normalizers are there; ids are below the vocabulary's
 * id_end. */
struct tok_added_spec {
    const char *text;
    size_t length;
    struct tok_added_token token;
};
HELM_MUST_CHECK int tok_install_added(struct helm_tokenizer *tokenizer, const struct tok_added_spec *specs,
                                      size_t count, struct helm_err *err);
/* tokenizer/gguf.c: a tokenizer, or only its roles and chat templates, from a file's key/values. */
struct gguf;
HELM_MUST_CHECK int tok_open_gguf(const struct gguf *header, struct helm_tokenizer **out,
                                  struct helm_err *err);
HELM_MUST_CHECK int tok_config_read_gguf(struct tok_config *config, const struct gguf *header,
                                         struct helm_err *err);

/* tokenizer/load.c: fills everything but config from tokenizer.json's text. */
HELM_MUST_CHECK int tok_load(struct helm_tokenizer *tokenizer, const char *text, size_t length,
                             struct helm_err *err);
