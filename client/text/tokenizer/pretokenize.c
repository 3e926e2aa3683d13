/* Pre-tokenizers: cut text into the words that the model sees.
 *
 * Each step turns a list of pieces into another, over the same text where it only cuts (Split, Digits, ...),
 * over a rewritten one where it changes characters (Metaspace, ByteLevel with a prefix space). Empty pieces
 * are dropped after every step, as in Hugging Face. Called by tokenizer.c, whose struct tok_words owns the
 * texts and lists. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

void tok_words_free(struct tok_words *words)
{
    tok_buffer_free(&words->text);
    tok_buffer_free(&words->spare_text);
    free(words->pieces.data);
    free(words->spare_pieces.data);
    *words = (struct tok_words){0};
}

/* One piece being cut: match by match, in order, covering it. */
struct cutter {
    struct tok_pieces *out;
    size_t own; /* out->count when this piece began */
    enum tok_split_behavior behavior;
    bool invert;
    bool previous_match;
    bool parent_first;
    size_t parent_start;
    struct helm_err *err;
};

static int cut_span(struct cutter *cut, size_t start, size_t end, bool match)
{
    match = match != cut->invert;
    bool extend = false;
    switch (cut->behavior) {
    case TOK_SPLIT_ISOLATED:
        break;
    case TOK_SPLIT_REMOVED:
        if (match) return 0;
        break;
    case TOK_SPLIT_CONTIGUOUS:
        extend = match == cut->previous_match;
        break;
    case TOK_SPLIT_MERGED_WITH_PREVIOUS:
        extend = match && !cut->previous_match;
        break;
    case TOK_SPLIT_MERGED_WITH_NEXT:
        extend = !match && cut->previous_match;
        break;
    }
    cut->previous_match = match;
    if (extend && cut->out->count > cut->own) {
        struct tok_piece *last = &cut->out->data[cut->out->count - 1];
        last->length = (uint32_t)(end - last->offset);
        return 0;
    }
    return tok_pieces_push(cut->out, start, end, HELM_TOKENIZER_NO_ID,
                           cut->parent_first && start == cut->parent_start, cut->err);
}

static int cut_by_pattern(struct cutter *cut, const struct tok_pretokenizer *step,
                          struct tok_matcher *matcher, const char *text, const struct tok_piece *piece)
{
    struct tok_search search = {.subject = {text + piece->offset, piece->length}};
    size_t done = 0, base = piece->offset;
    for (;; done = search.end) {
        int rc = tok_pattern_next(&step->pattern, matcher, &search, cut->err);
        if (rc) return rc;
        if (!search.found) break;
        if (done != search.start) rc = cut_span(cut, base + done, base + search.start, false);
        if (!rc) rc = cut_span(cut, base + search.start, base + search.end, true);
        if (rc) return rc;
    }
    return done == piece->length ? 0 : cut_span(cut, base + done, base + piece->length, false);
}

/* 0: not matched; equal values side by side are one match if `runs`. */
static int classify(enum tok_pretokenizer_kind kind, uint32_t codepoint)
{
    switch (kind) {
    case TOK_PRETOKENIZER_DIGITS:
        return tok_char_is_numeric(codepoint);
    case TOK_PRETOKENIZER_PUNCTUATION:
        return tok_char_is_punctuation(codepoint);
    case TOK_PRETOKENIZER_WHITESPACE_SPLIT:
        return tok_char_is_space(codepoint);
    case TOK_PRETOKENIZER_WHITESPACE:
        return tok_char_is_word(codepoint) ? 1 : tok_char_is_space(codepoint) ? 0 : 2;
    default:
        return 0;
    }
}

static int cut_by_class(struct cutter *cut, enum tok_pretokenizer_kind kind, const char *text,
                        const struct tok_piece *piece)
{
    bool runs = kind == TOK_PRETOKENIZER_WHITESPACE; /* words and runs of symbols are kept whole */
    size_t end = (size_t)piece->offset + piece->length, start = piece->offset;
    int run_group = -1;
    for (size_t at = start; at <= end;) {
        uint32_t codepoint;
        size_t step = at < end ? utf8_get(text + at, &codepoint) : 1;
        int group = at < end ? classify(kind, codepoint) : -1;
        bool joins = group == run_group && (group == 0 || runs);
        if (at > start && !joins) {
            int rc = cut_span(cut, start, at, run_group > 0);
            if (rc) return rc;
            start = at;
        }
        run_group = group;
        at += step;
    }
    return 0;
}

static void drop_empty(struct tok_pieces *pieces)
{
    size_t kept = 0;
    for (size_t i = 0; i < pieces->count; i++)
        if (pieces->data[i].length) pieces->data[kept++] = pieces->data[i];
    pieces->count = kept;
}

static void swap_pieces(struct tok_words *words)
{
    struct tok_pieces swap = words->pieces;
    words->pieces = words->spare_pieces;
    words->spare_pieces = swap;
}

static int run_cutting(const struct tok_pretokenizer *step, struct tok_matcher *matcher,
                       struct tok_words *words, struct helm_err *err)
{
    struct tok_pieces *out = &words->spare_pieces;
    out->count = 0;
    for (size_t i = 0; i < words->pieces.count; i++) {
        const struct tok_piece *piece = &words->pieces.data[i];
        struct cutter cut = {out,   out->count,   step->behavior, step->invert,
                             false, piece->first, piece->offset,  err};
        bool by_pattern = step->kind == TOK_PRETOKENIZER_SPLIT || step->kind == TOK_PRETOKENIZER_BYTE_LEVEL;
        int rc = by_pattern ? cut_by_pattern(&cut, step, matcher, words->source, piece)
                            : cut_by_class(&cut, step->kind, words->source, piece);
        if (rc) return rc;
    }
    drop_empty(out);
    swap_pieces(words);
    return 0;
}

/* Appends what becomes of one piece. */
typedef void rewrite_fn(const struct tok_pretokenizer *step, const char *from, const struct tok_piece *piece,
                        struct tok_buffer *out);

static void rewrite_metaspace(const struct tok_pretokenizer *step, const char *from,
                              const struct tok_piece *piece, struct tok_buffer *out)
{
    bool has = from[0] == ' ' || (piece->length >= step->replacement_length &&
                                  memcmp(from, step->replacement, step->replacement_length) == 0);
    bool wants = step->prepend == TOK_PREPEND_ALWAYS || (step->prepend == TOK_PREPEND_FIRST && piece->first);
    if (wants && !has) tok_buffer_append(out, step->replacement, step->replacement_length);
    for (size_t at = 0; at < piece->length;) {
        const char *space = memchr(from + at, ' ', piece->length - at);
        size_t run = space ? (size_t)(space - from) - at : piece->length - at;
        tok_buffer_append(out, from + at, run);
        if (space) tok_buffer_append(out, step->replacement, step->replacement_length);
        at += run + (space != NULL);
    }
}

static void rewrite_prefix_space(const struct tok_pretokenizer *step, const char *from,
                                 const struct tok_piece *piece, struct tok_buffer *out)
{
    (void)step;
    if (from[0] != ' ') tok_buffer_append(out, " ", 1);
    tok_buffer_append(out, from, piece->length);
}

static void rewrite_byte_alphabet(const struct tok_pretokenizer *step, const char *from,
                                  const struct tok_piece *piece, struct tok_buffer *out)
{
    (void)step;
    for (size_t k = 0; k < piece->length; k++)
        tok_buffer_append_char(out, tok_bytelevel_char((uint8_t)from[k]));
}

/* Rewrites every piece; the new text is the source from then on. */
static int run_rewriting(const struct tok_pretokenizer *step, rewrite_fn *rewrite, struct tok_words *words,
                         struct helm_err *err)
{
    struct tok_buffer *text = &words->spare_text, swap;
    words->spare_pieces.count = 0;
    for (size_t i = 0; i < words->pieces.count; i++) {
        const struct tok_piece *piece = &words->pieces.data[i];
        size_t start = text->length;
        rewrite(step, words->source + piece->offset, piece, text);
        int rc = tok_pieces_push(&words->spare_pieces, start, text->length, HELM_TOKENIZER_NO_ID,
                                 piece->first, err);
        if (rc) return rc;
    }
    int rc = tok_buffer_check(text, err);
    if (rc) return rc;
    swap = words->text;
    words->text = words->spare_text;
    words->spare_text = swap;
    words->spare_text.length = 0;
    words->source = words->text.data;
    swap_pieces(words);
    return 0;
}

/* Metaspace with split: every replacement character begins a word. */
static int split_at_replacement(const struct tok_pretokenizer *step, struct tok_words *words,
                                struct helm_err *err)
{
    const char *text = words->source;
    struct tok_pieces *out = &words->spare_pieces;
    size_t width = step->replacement_length;
    out->count = 0;
    for (size_t i = 0; i < words->pieces.count; i++) {
        const struct tok_piece *piece = &words->pieces.data[i];
        size_t start = piece->offset, end = start + piece->length;
        bool first = piece->first;
        while (start < end) {
            bool begins = end - start >= width && memcmp(text + start, step->replacement, width) == 0;
            size_t from = begins ? start + width : start;
            const char *hit = memmem(text + from, end - from, step->replacement, width);
            size_t stop = hit ? (size_t)(hit - text) : end;
            int rc = tok_pieces_push(out, start, stop, HELM_TOKENIZER_NO_ID, first, err);
            if (rc) return rc;
            first = false;
            start = stop;
        }
    }
    swap_pieces(words);
    return 0;
}

static int run_one(const struct tok_pretokenizer *step, struct tok_matcher *matcher, struct tok_words *words,
                   struct helm_err *err)
{
    int rc = 0;
    switch (step->kind) {
    case TOK_PRETOKENIZER_METASPACE:
        rc = run_rewriting(step, rewrite_metaspace, words, err);
        return rc || !step->split ? rc : split_at_replacement(step, words, err);
    case TOK_PRETOKENIZER_BYTE_LEVEL:
        if (step->add_prefix_space) rc = run_rewriting(step, rewrite_prefix_space, words, err);
        if (!rc && step->use_regex) rc = run_cutting(step, matcher, words, err);
        return rc || step->last_byte_level ? rc : run_rewriting(step, rewrite_byte_alphabet, words, err);
    default:
        return run_cutting(step, matcher, words, err);
    }
}

int tok_pretokenize(const struct helm_tokenizer *tokenizer, struct tok_slice text, bool first,
                    struct tok_matcher *matcher, struct tok_words *words, struct helm_err *err)
{
    words->pieces.count = 0;
    words->text.length = 0;
    words->spare_text.length = 0;
    words->text.limit = HELM_TOKENIZER_TEXT_LIMIT;
    words->spare_text.limit = HELM_TOKENIZER_TEXT_LIMIT;
    words->source = text.text;
    if (text.length == 0) return 0;
    int rc = tok_pieces_push(&words->pieces, 0, text.length, HELM_TOKENIZER_NO_ID, first, err);
    for (size_t i = 0; i < tokenizer->pretokenizer_count && !rc; i++)
        rc = run_one(&tokenizer->pretokenizers[i], matcher, words, err);
    return rc;
}
