/* The longest of many spellings at every place of a text, in time that grows with the text alone.
 *
 * Aho and Corasick's automaton over the spellings read backwards, run over the text backwards: the state at a
 * place says which is the longest spelling that begins there, whatever the text and the spellings are like.
 * (A trie walked from each place, and the automaton run forwards too, may look at as many bytes as the
 * longest spelling has and then begin again at the next place.) States are built level by level from the
 * sorted spellings, so that a state's successors are contiguous, in order of their bytes. Called by
 * tokenizer/load.c (to add and build) and tokenizer/added.c (to search); struct tok_finder owns its arrays.
 */
#include "client/text/tokenizer/internal.h"
#include "common/base/grow.h"

#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (2u * TOK_JSON_BYTES_MAX) /* of all spellings; normalizing may have made them longer */

struct tok_finder_key {
    uint32_t offset; /* into bytes */
    uint32_t length;
    uint32_t value;
};

static void drop_keys(struct tok_finder *finder)
{
    free(finder->keys);
    tok_buffer_free(&finder->bytes);
    finder->keys = NULL;
    finder->key_count = finder->key_capacity = 0;
}

void tok_finder_free(struct tok_finder *finder)
{
    drop_keys(finder);
    free(finder->states);
    *finder = (struct tok_finder){0};
}

int tok_finder_add(struct tok_finder *finder, const char *text, size_t length, uint32_t value,
                   struct helm_err *err)
{
    if (!GROW(finder->keys, finder->key_count, finder->key_capacity))
        return helm_fail(err, HELM_E_NOMEM, "no memory for %u spellings", finder->key_count + 1);
    finder->bytes.limit = BYTES_MAX;
    if (!tok_buffer_reserve(&finder->bytes, length)) return tok_buffer_check(&finder->bytes, err);
    char *to = finder->bytes.data + finder->bytes.length;
    for (size_t i = 0; i < length; i++) to[i] = text[length - 1 - i];
    finder->keys[finder->key_count++] =
        (struct tok_finder_key){(uint32_t)finder->bytes.length, (uint32_t)length, value};
    finder->bytes.length += length;
    return 0;
}

/* By spelling, then by value. */
static int compare_keys(const void *left, const void *right, void *bytes)
{
    const struct tok_finder_key *a = left, *b = right;
    const char *data = bytes;
    uint32_t shorter = a->length < b->length ? a->length : b->length;
    int order = memcmp(data + a->offset, data + b->offset, shorter);
    if (order) return order;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return a->value < b->value ? -1 : a->value > b->value;
}

/* The state that a byte leads to from this one, or 0. */
static uint32_t successor(const struct tok_finder *finder, uint32_t state, uint8_t byte)
{
    if (state == 0) return finder->root[byte];
    const struct tok_finder_state *at = &finder->states[state];
    uint32_t low = at->first, count = at->count;
    while (count) {
        uint32_t half = count / 2, middle = low + half;
        if (finder->states[middle].byte == byte) return middle;
        if (finder->states[middle].byte < byte) {
            low = middle + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return 0;
}

static uint32_t advance(const struct tok_finder *finder, uint32_t state, uint8_t byte)
{
    uint32_t next = successor(finder, state, byte);
    while (!next && state) {
        state = finder->states[state].fallback;
        next = successor(finder, state, byte);
    }
    return next;
}

static int add_state(struct tok_finder *finder, uint32_t parent, uint8_t byte, struct helm_err *err)
{
    if (!GROW(finder->states, finder->state_count, finder->state_capacity))
        return helm_fail(err, HELM_E_NOMEM, "no memory for %u states", finder->state_count + 1);
    uint32_t state = finder->state_count++;
    /* its own successors, and those of what it falls back to, are of earlier levels: they are all there */
    uint32_t fallback = parent ? advance(finder, finder->states[parent].fallback, byte) : 0;
    finder->states[state] = (struct tok_finder_state){
        .fallback = fallback,
        .value = state ? finder->states[fallback].value : HELM_TOKENIZER_NO_ID,
        .length = state ? finder->states[fallback].length : 0,
        .byte = byte,
    };
    if (!state) return 0;
    if (finder->states[parent].count++ == 0) finder->states[parent].first = state;
    if (!parent) finder->root[byte] = state;
    return 0;
}

/* One level more: every spelling in `live` that is longer than `depth` moves from its state at[i] on by a
 * byte, those that end there leave. Returns how many are left. */
static int build_level(struct tok_finder *finder, uint32_t depth, uint32_t *live, uint32_t *live_count,
                       uint32_t *at, struct helm_err *err)
{
    uint32_t kept = 0, parent = HELM_TOKENIZER_NO_ID;
    for (uint32_t i = 0; i < *live_count; i++) {
        const struct tok_finder_key *key = &finder->keys[live[i]];
        uint8_t byte = (uint8_t)finder->bytes.data[key->offset + depth];
        if (at[live[i]] != parent || finder->states[finder->state_count - 1].byte != byte) {
            parent = at[live[i]];
            int rc = add_state(finder, parent, byte, err);
            if (rc) return rc;
        }
        uint32_t state = finder->state_count - 1;
        at[live[i]] = state;
        if (key->length > depth + 1) {
            live[kept++] = live[i];
        } else if (finder->states[state].length != key->length) { /* of two alike the first counts */
            finder->states[state].value = key->value;
            finder->states[state].length = key->length;
        }
    }
    *live_count = kept;
    return 0;
}

int tok_finder_build(struct tok_finder *finder, struct helm_err *err)
{
    uint32_t count = finder->key_count, depth = 0;
    if (!count) return 0;
    uint32_t *live = calloc(count, sizeof *live), *at = calloc(count, sizeof *at);
    int rc = live && at ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for %u spellings", count);
    if (!rc) {
        qsort_r(finder->keys, count, sizeof *finder->keys, compare_keys, finder->bytes.data);
        for (uint32_t i = 0; i < count; i++) live[i] = i;
        rc = add_state(finder, 0, 0, err);
    }
    for (; !rc && count; depth++) rc = build_level(finder, depth, live, &count, at, err);
    finder->longest = depth;
    free(live);
    free(at);
    drop_keys(finder);
    return rc;
}

void tok_finder_run(const struct tok_finder *finder, const char *text, size_t length, size_t from, size_t to,
                    uint32_t *states)
{
    uint32_t state = 0;
    /* no spelling that begins before `to` reaches further, so neither does what a state depends on */
    size_t end = length - to > finder->longest ? to + finder->longest : length;
    for (size_t i = end; i > to;) state = advance(finder, state, (uint8_t)text[--i]);
    for (size_t i = to; i > from;) {
        state = advance(finder, state, (uint8_t)text[--i]);
        states[i - from] = state;
    }
}
