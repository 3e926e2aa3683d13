/* Added tokens: a trie of their spellings for looking one up, and cutting a text at them.
 *
 * Matching is leftmost, then longest, never overlapping; a match that single_word refuses is passed over
 * whole. lstrip and rstrip widen a match over the white space beside it. Called by tokenizer_load.c (to
 * fill) and tokenizer.c (to cut); struct tok_added owns its trie and its finders. */
#include "client/tokenizer_internal.h"

#include <stdlib.h>

#define WINDOW 65536u /* bytes that are searched at once */

static void trie_free(struct tok_trie *trie)
{
    free(trie->nodes);
    *trie = (struct tok_trie){0};
}

void tok_added_free(struct tok_added *added)
{
    free(added->tokens);
    trie_free(&added->spelled);
    tok_finder_free(&added->raw);
    tok_finder_free(&added->normalized);
    *added = (struct tok_added){0};
}

static int trie_new_node(struct tok_trie *trie, uint8_t byte, uint32_t *index, struct helm_err *err)
{
    if (trie->count == trie->capacity) {
        uint32_t capacity = trie->capacity ? trie->capacity * 2 : 256;
        struct tok_trie_node *nodes = realloc(trie->nodes, capacity * sizeof *nodes);
        if (!nodes) return helm_fail(err, HELM_E_NOMEM, "no memory for %u trie nodes", capacity);
        trie->nodes = nodes;
        trie->capacity = capacity;
        if (trie->count == 0) trie->nodes[trie->count++] = (struct tok_trie_node){0};
    }
    *index = trie->count++;
    trie->nodes[*index] = (struct tok_trie_node){0, 0, HELM_TOKENIZER_NO_ID, byte};
    return 0;
}

int tok_trie_insert(struct tok_trie *trie, const char *text, size_t length, uint32_t value,
                    struct helm_err *err)
{
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i];
        uint32_t next = i == 0 ? trie->root[byte] : trie->nodes[node].child;
        while (i > 0 && next && trie->nodes[next].byte != byte) next = trie->nodes[next].sibling;
        if (!next) {
            int rc = trie_new_node(trie, byte, &next, err);
            if (rc) return rc;
            if (i == 0) {
                trie->root[byte] = next;
            } else {
                trie->nodes[next].sibling = trie->nodes[node].child;
                trie->nodes[node].child = next;
            }
        }
        node = next;
    }
    if (node) trie->nodes[node].value = value;
    return 0;
}

uint32_t tok_added_find(const struct tok_added *added, const char *text, size_t length)
{
    const struct tok_trie *trie = &added->spelled;
    uint32_t node = length ? trie->root[(uint8_t)text[0]] : 0;
    for (size_t i = 1; node && i < length; i++) {
        node = trie->nodes[node].child;
        while (node && trie->nodes[node].byte != (uint8_t)text[i]) node = trie->nodes[node].sibling;
    }
    if (!node || trie->nodes[node].value == HELM_TOKENIZER_NO_ID) return HELM_TOKENIZER_NO_ID;
    return added->tokens[trie->nodes[node].value].id;
}

static bool word_before(const char *text, size_t at)
{
    uint32_t codepoint;
    if (at == 0) return false;
    tok_utf8_get_before(text, at, &codepoint);
    return tok_char_is_word(codepoint);
}

static bool word_after(const char *text, size_t at, size_t length)
{
    uint32_t codepoint;
    if (at == length) return false;
    tok_utf8_get(text + at, &codepoint);
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
        size_t step = tok_utf8_get_before(text, start, &codepoint);
        if (!tok_char_is_space(codepoint)) break;
        start -= step;
    }
    if (token->rstrip) {
        size_t from = stop;
        /* of a run of white space, tokens in it look at the rest only once */
        if (stop >= cut->blank_from && stop < cut->blank_to) stop = cut->blank_to;
        while (stop < cut->length) {
            size_t step = tok_utf8_get(text + stop, &codepoint);
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
            if (state->length) rc = cut_at(cut, &cut->added->tokens[state->value], start, at, err);
        }
    }
    free(states);
    return rc;
}

int tok_added_split(const struct tok_added *added, const struct tok_finder *finder, const char *text,
                    size_t length, bool first, struct tok_pieces *pieces, struct helm_err *err)
{
    struct cutting cut = {.added = added, .text = text, .length = length, .first = first, .pieces = pieces};
    int rc = finder->state_count ? cut_all(&cut, finder, err) : 0;
    if (rc || cut.done >= length) return rc;
    return tok_pieces_push(pieces, cut.done, length, HELM_TOKENIZER_NO_ID, first && cut.done == 0, err);
}
