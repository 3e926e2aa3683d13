/* Added tokens: a trie of their spellings, and cutting a text at them.
 *
 * Matching is leftmost, then longest, never overlapping; a match that single_word refuses is passed over
 * whole. lstrip and rstrip widen a match over the white space beside it. Called by tokenizer_load.c (to
 * fill) and tokenizer.c (to cut); struct tok_added owns its tries. */
#include "client/tokenizer_internal.h"

#include <stdlib.h>

static void trie_free(struct tok_trie *trie)
{
    free(trie->nodes);
    *trie = (struct tok_trie){0};
}

void tok_added_free(struct tok_added *added)
{
    free(added->tokens);
    trie_free(&added->spelled);
    trie_free(&added->raw);
    trie_free(&added->normalized);
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

uint32_t tok_trie_longest(const struct tok_trie *trie, const char *text, size_t length, size_t *matched)
{
    uint32_t value = HELM_TOKENIZER_NO_ID;
    uint32_t node = length ? trie->root[(uint8_t)text[0]] : 0;
    for (size_t i = 1; node; i++) {
        if (trie->nodes[node].value != HELM_TOKENIZER_NO_ID) {
            value = trie->nodes[node].value;
            *matched = i;
        }
        if (i == length) break;
        uint8_t byte = (uint8_t)text[i];
        node = trie->nodes[node].child;
        while (node && trie->nodes[node].byte != byte) node = trie->nodes[node].sibling;
    }
    return value;
}

uint32_t tok_added_find(const struct tok_added *added, const char *text, size_t length)
{
    size_t matched = 0;
    uint32_t index = tok_trie_longest(&added->spelled, text, length, &matched);
    return index != HELM_TOKENIZER_NO_ID && matched == length ? added->tokens[index].id
                                                              : HELM_TOKENIZER_NO_ID;
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

int tok_added_split(const struct tok_added *added, const struct tok_trie *trie, const char *text,
                    size_t length, bool first, struct tok_pieces *pieces, struct helm_err *err)
{
    size_t done = 0; /* text[0..done) is in pieces */
    int rc;
    for (size_t at = 0; trie->count && at < length;) {
        size_t matched = 0;
        uint32_t index = tok_trie_longest(trie, text + at, length - at, &matched);
        if (index == HELM_TOKENIZER_NO_ID) {
            at++;
            continue;
        }
        const struct tok_added_token *token = &added->tokens[index];
        size_t start = at, stop = at + matched;
        at = stop;
        if (token->single_word && (word_before(text, start) || word_after(text, stop, length))) continue;
        uint32_t codepoint;
        while (token->lstrip && start > done) {
            size_t step = tok_utf8_get_before(text, start, &codepoint);
            if (!tok_char_is_space(codepoint)) break;
            start -= step;
        }
        while (token->rstrip && stop < length) {
            size_t step = tok_utf8_get(text + stop, &codepoint);
            if (!tok_char_is_space(codepoint)) break;
            stop += step;
        }
        if (done < start) {
            rc = tok_pieces_push(pieces, done, start, HELM_TOKENIZER_NO_ID, first && done == 0, err);
            if (rc) return rc;
        }
        /* A token made of spaces that an earlier rstrip took still counts, as in Hugging Face's matcher. */
        rc = tok_pieces_push(pieces, start < stop ? start : stop, stop, token->id, false, err);
        if (rc) return rc;
        done = stop;
    }
    if (done >= length) return 0;
    return tok_pieces_push(pieces, done, length, HELM_TOKENIZER_NO_ID, first && done == 0, err);
}
