/* Added tokens: a hash table for looking one up by its spelling, and cutting a text at them.
 *
 * Matching is leftmost, then longest, never overlapping; a match that single_word refuses is passed over
 * whole. lstrip and rstrip widen a match over the white space beside it. Called by tokenizer/load.c (to
 * fill) and tokenizer.c (to cut); struct tok_added owns its table and its finders. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>

#define WINDOW 65536u /* bytes that are searched at once */

void tok_added_free(struct tok_added *added)
{
    free(added->tokens);
    free(added->slots);
    tok_finder_free(&added->raw);
    tok_finder_free(&added->normalized);
    *added = (struct tok_added){0};
}

int tok_added_reserve(struct tok_added *added, size_t count, struct helm_err *err)
{
    added->slot_bits = 4;
    while (((size_t)1 << added->slot_bits) < 2 * count) added->slot_bits++;
    size_t slots = (size_t)1 << added->slot_bits;
    added->tokens = calloc(count + 1, sizeof *added->tokens);
    added->slots = malloc(slots * sizeof *added->slots);
    if (!added->tokens || !added->slots)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %zu added tokens", count);
    for (size_t i = 0; i < slots; i++) added->slots[i].id = HELM_TOKENIZER_NO_ID;
    return 0;
}

int tok_added_insert(struct tok_added *added, const struct tok_vocab *vocab, uint32_t id,
                     struct helm_err *err)
{
    const struct tok_entry *entry = &vocab->entries[id];
    uint32_t tag;
    unsigned probes;
    struct tok_vocab_slot *slot =
        tok_slot_of(added->slots, added->slot_bits, vocab, vocab->bytes.data + entry->offset, entry->length,
                    &tag, &probes);
    if (probes > TOK_PROBES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "more than %d tokens with one hash", TOK_PROBES_MAX);
    *slot = (struct tok_vocab_slot){tag, id};
    return 0;
}

uint32_t tok_added_find(const struct tok_added *added, const struct tok_vocab *vocab, const char *text,
                        size_t length)
{
    uint32_t tag;
    unsigned probes;
    if (!added->slots) return HELM_TOKENIZER_NO_ID;
    return tok_slot_of(added->slots, added->slot_bits, vocab, text, length, &tag, &probes)->id;
}

static bool word_before(const char *text, size_t at)
{
    uint32_t codepoint;
    if (at == 0) return false;
    utf8_get_before(text, at, &codepoint);
    return tok_char_is_word(codepoint);
}

static bool word_after(const char *text, size_t at, size_t length)
{
    uint32_t codepoint;
    if (at == length) return false;
    utf8_get(text + at, &codepoint);
    return tok_char_is_word(codepoint);
}

/* Where a text is being cut. */
struct cutting {
    const struct tok_added *added;
    const char *text;
    size_t length;
    bool first;
    size_t done;                 /* text[0..done) is in pieces */
    size_t blank_from, blank_to; /* white space that the last rstrip took */
    const struct tok_marks *marks;
    struct tok_pieces *pieces;
};

/* A token was found at text[start..stop). */
static int cut_at(struct cutting *cut, const struct tok_added_token *token, size_t start, size_t stop,
                  struct helm_err *err)
{
    const char *text = cut->text;
    uint32_t codepoint;
    if (token->single_word && (word_before(text, start) || word_after(text, stop, cut->length))) return 0;
    while (token->lstrip && start > cut->done) {
        size_t step = utf8_get_before(text, start, &codepoint);
        if (!tok_char_is_space(codepoint)) break;
        start -= step;
    }
    if (token->rstrip) {
        size_t from = stop;
        /* of a run of white space, tokens in it look at the rest only once */
        if (stop >= cut->blank_from && stop < cut->blank_to) stop = cut->blank_to;
        while (stop < cut->length) {
            size_t step = utf8_get(text + stop, &codepoint);
            if (!tok_char_is_space(codepoint)) break;
            stop += step;
        }
        cut->blank_from = from;
        cut->blank_to = stop;
    }
    if (cut->done < start) {
        int rc = tok_pieces_push(cut->pieces, cut->done, start, HELM_TOKENIZER_NO_ID,
                                 cut->first && cut->done == 0, err);
        if (rc) return rc;
    }
    /* A token made of spaces that an earlier rstrip took still counts, as in Hugging Face's matcher. */
    cut->done = stop;
    return tok_pieces_push(cut->pieces, start < stop ? start : stop, stop, token->id, false, err);
}

static int cut_all(struct cutting *cut, const struct tok_finder *finder, struct helm_err *err)
{
    /* not less than the longest spelling, so that looking that far beyond each window does not add up */
    size_t window = finder->longest > WINDOW ? finder->longest : WINDOW;
    if (window > cut->length) window = cut->length;
    uint32_t *states = malloc((window + 1) * sizeof *states);
    if (!states) return helm_fail(err, HELM_E_NOMEM, "no memory for searching %zu bytes", window);
    int rc = 0;
    for (size_t at = 0; !rc && at < cut->length;) {
        size_t from = at, to = cut->length - at > window ? at + window : cut->length;
        tok_finder_run(finder, cut->text, cut->length, from, to, states);
        while (!rc && at < to) {
            const struct tok_finder_state *state = &finder->states[states[at - from]];
            size_t start = at;
            at += state->length ? state->length : 1;
            if (!state->length) continue;
            if (cut->marks && !tok_marks_allow(cut->marks, cut->added, state->value, start, at))
                at = start + 1; /* it is text; the template's own token may begin inside it */
            else
                rc = cut_at(cut, &cut->added->tokens[state->value], start, at, err);
        }
    }
    free(states);
    return rc;
}

int tok_added_split(const struct tok_added *added, const struct tok_finder *finder,
                    const struct tok_marks *marks, struct tok_slice text, bool first,
                    struct tok_pieces *pieces, struct helm_err *err)
{
    struct cutting cut = {.added = added,
                          .text = text.text,
                          .length = text.length,
                          .first = first,
                          .pieces = pieces,
                          .marks = marks};
    int rc = finder->state_count ? cut_all(&cut, finder, err) : 0;
    if (rc || cut.done >= text.length) return rc;
    return tok_pieces_push(pieces, cut.done, text.length, HELM_TOKENIZER_NO_ID, first && cut.done == 0, err);
}
