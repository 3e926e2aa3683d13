/* Summaries of sets of states: which tokens a set allows whatever lies below it on the stack. See engine.h.
 *
 * Made once, when a place with the set is first met. Where the characters of a class of tokens (slices.h)
 * lead on alike, the class is allowed up to a number of characters without a look at its tokens. The others
 * are walked: tokens of a class where some of its characters go on and some do not, and the bytes after plain
 * characters at a token's head. */
#include <stdlib.h>

#include "client/text/grammar/engine.h"

#define SUMMARY_BYTES_MAX ((size_t)32 << 20) /* of one grammar's; then all are made anew */
#define EXITS_MAX         256  /* of one summary; the small ones of more are made into one trie */
#define REST_TOKENS_MAX   256  /* below such a small one */
#define WALK_PLACES       4096 /* from which on a walk begins with fresh ones */

static int no_memory(struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOMEM, "no memory for the tokens that a grammar allows");
}

static void summary_free(struct summary *s)
{
    if (!s) return;
    free(s->bits);
    free(s->list);
    free(s->part);
    trie_free(&s->rest);
    free(s);
}

void summaries_drop(struct helm_grammar *g)
{
    for (uint32_t i = 0; g->states.item && i < g->states.count; i++) {
        summary_free(g->states.item[i].summary);
        g->states.item[i].summary = NULL;
    }
    states_drop(&g->states, g->summary_bytes);
    g->summary_bytes = 0;
}

/* Few tokens are kept as ids, which take fewer bytes than bits. */
static int keep_tokens(const struct helm_vocabulary *v, uint32_t *bits, struct summary *s,
                       struct helm_err *err)
{
    uint32_t count = 0, n = 0;
    for (uint32_t w = 0; w < v->words && count < v->words; w++)
        for (uint32_t rest = bits[w]; rest; rest &= rest - 1) count++;
    s->count = count;
    s->bytes += sizeof *s + (count < v->words ? count : v->words) * sizeof *bits;
    if (count >= v->words) {
        s->bits = bits;
        return 0;
    }
    s->list = malloc((count ? count : 1) * sizeof *s->list);
    if (!s->list) {
        free(bits);
        return no_memory(err);
    }
    for (uint32_t w = 0; w < v->words; w++)
        for (uint32_t rest = bits[w]; rest; rest &= rest - 1)
            s->list[n++] = 32 * w + (uint32_t)__builtin_ctz(rest);
    free(bits);
    return 0;
}

/* ---- the way on after the rule ---- */

static bool is_small(const struct walk_exit *e)
{
    uint32_t first;
    return e->depth > 0 && trie_tokens_below(e->trie, e->node, &first) <= REST_TOKENS_MAX;
}

/* The small exits' tokens after them as one trie: there may be one after each letter of each word. */
static int merge_small(struct helm_grammar *g, struct summary *s, struct helm_err *err)
{
    const struct helm_vocabulary *v = g->vocabulary;
    uint32_t entries = 0, n = 0, first;
    for (uint32_t i = 0; i < g->exits.count; i++)
        if (is_small(&g->exits.item[i]))
            entries += trie_tokens_below(g->exits.item[i].trie, g->exits.item[i].node, &first);
    struct trie_entry *entry = malloc((entries ? entries : 1) * sizeof *entry);
    if (!entry) return no_memory(err);
    for (uint32_t i = 0; i < g->exits.count; i++) {
        const struct walk_exit *e = &g->exits.item[i];
        if (!is_small(e)) continue;
        const uint32_t count = trie_tokens_below(e->trie, e->node, &first);
        for (uint32_t t = first; t < first + count; t++) {
            const uint32_t id = e->trie->token[t], at = v->offset[id] + e->depth;
            entry[n++] = (struct trie_entry){v->bytes + at, v->offset[id + 1] - at, id};
        }
    }
    qsort(entry, n, sizeof *entry, trie_entry_order);
    const int rc = trie_build(entry, n, &s->rest, err);
    free(entry);
    s->bytes += s->rest.count * sizeof *s->rest.node + n * sizeof(uint32_t);
    return rc;
}

static int keep_exits(struct helm_grammar *g, struct summary *s, struct helm_err *err)
{
    const bool merged = g->exits.count > EXITS_MAX;
    if (g->exits.count == 0) return 0;
    s->part = malloc(g->exits.count * sizeof *s->part);
    if (!s->part) return no_memory(err);
    for (uint32_t i = 0; i < g->exits.count; i++)
        if (!merged || !is_small(&g->exits.item[i])) s->part[s->part_count++] = g->exits.item[i];
    s->bytes += g->exits.count * sizeof *s->part;
    return merged ? merge_small(g, s, err) : 0;
}

/* ---- slices ---- */

/* Where the characters of a class lead from a place, one after the other. */
struct reach {
    uint32_t most;                   /* characters that are allowed; SLICE_CHARS: any number */
    uint32_t place[SLICE_CHARS + 1]; /* after n, if `one` */
    bool even;                       /* all of the class or none go on, up to `most` */
    bool one, same;                  /* there is one place after n; it is the same one after any n */
};

static bool same_places(const struct walk_leads *a, const struct walk_leads *b)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < a->count; i++)
        for (uint32_t k = 0; k < b->count; k++) found += a->place[i] == b->place[k];
    return a->count == b->count && found == a->count;
}

static int find_reach(struct walk *w, enum slice_class class, uint32_t place, struct reach *r,
                      struct helm_err *err)
{
    struct walk_leads at = {.place = {place}, .count = 1};
    *r = (struct reach){.even = true, .one = true, .same = true};
    for (uint32_t n = 1; n <= SLICE_CHARS; n++) {
        struct walk_leads next = {0};
        for (uint32_t i = 0; i < at.count; i++) {
            const int rc = walk_lead(w, at.place[i], class, &next, err);
            if (rc) return rc;
        }
        if (next.uneven) {
            r->even = false;
            return 0;
        }
        if (next.dead) return 0;
        r->most = n;
        r->place[n] = next.place[0];
        r->one = r->one && next.count == 1;
        r->same = r->same && r->place[n] == r->place[1];
        if (n > 1 && same_places(&at, &next)) { /* and so on */
            for (; n < SLICE_CHARS; n++) r->place[n + 1] = r->place[n];
            r->most = SLICE_CHARS;
            return 0;
        }
        at = next;
    }
    return 0;
}

/* Walks the bytes after heads of the class. */
static int walk_tails(struct walk *w, const struct slice *slice, const struct reach *r, struct helm_err *err)
{
    int rc = 0;
    w->tails = true;
    if (r->same && r->most == SLICE_CHARS)
        rc = walk_all(w, &slice->tail[0], r->place[1], err);
    else
        for (uint32_t n = 1; n <= r->most && !rc; n++) rc = walk_all(w, &slice->tail[n], r->place[n], err);
    w->tails = false;
    return rc;
}

/* Whether all of `inner` is in `outer`. */
static bool lies_in(const struct slices *slices, unsigned inner, unsigned outer)
{
    while (inner != outer && inner != SLICE_CLASSES) inner = slices->slice[inner].parent;
    return inner == outer;
}

static int walk_slices(const struct helm_vocabulary *v, struct walk *w, uint32_t place, struct helm_err *err)
{
    const struct slices *slices = &v->slices;
    bool done[SLICE_CLASSES] = {false};
    int rc = walk_all(w, &slices->rest, place, err);
    for (unsigned class = 0; class < SLICE_CLASSES && !rc; class ++) {
        const struct slice *slice = &slices->slice[class];
        struct reach r;
        if (done[class]) continue;
        rc = find_reach(w, class, place, &r, err);
        if (rc) break;
        if (!r.even) { /* narrower ones come next */
            rc = walk_all(w, &slice->own, place, err);
            if (!rc) rc = walk_all(w, &slice->begun, place, err);
            continue;
        }
        slice_add_tokens(slice, r.most, v->words, w->bits);
        if (r.one) rc = walk_tails(w, slice, &r, err);
        for (unsigned inner = class; inner < SLICE_CLASSES && !rc; inner++) {
            if (!lies_in(slices, inner, class)) continue;
            done[inner] = true;
            if (!r.one) rc = walk_all(w, &slices->slice[inner].begun, place, err);
        }
    }
    return rc;
}

/* ---- the whole ---- */

static int make_summary(struct helm_grammar *g, uint32_t set, struct summary **out, struct helm_err *err)
{
    const struct helm_vocabulary *v = g->vocabulary;
    struct summary *s = calloc(1, sizeof *s);
    uint32_t *bits = calloc(v->words, sizeof *bits), node, place = STACKS_NOWHERE;
    int rc = s && bits ? 0 : no_memory(err);
    if (!rc && (g->walk.place_count > WALK_PLACES || g->walk.node_count > 4 * WALK_PLACES))
        rc = stacks_forget(&g->walk, &place, err);
    if (!rc) rc = stacks_node(&g->walk, set, STACKS_BOTTOM, &node, err);
    if (!rc) rc = stacks_alone(&g->walk, node, &place, err);
    struct walk w = {.stacks = &g->walk, .level = g->level, .bits = bits, .exits = &g->exits};
    g->exits.count = 0;
    if (!rc) rc = walk_slices(v, &w, place, err);
    if (!rc) {
        s->pushes = w.deepest ? w.deepest - 1 : 0;
        rc = keep_tokens(v, bits, s, err);
        bits = NULL;
    }
    if (!rc) rc = keep_exits(g, s, err);
    free(bits);
    if (rc) {
        summary_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

int summary_of(struct helm_grammar *g, uint32_t set, const struct summary **out, struct helm_err *err)
{
    uint32_t twin;
    int rc = states_twin(&g->states, set, &twin, err);
    if (rc) return rc;
    *out = g->states.item[twin].summary;
    if (*out) return 0;
    if (g->summary_bytes > SUMMARY_BYTES_MAX) summaries_drop(g);
    struct summary *made;
    rc = make_summary(g, twin, &made, err);
    if (rc) return rc;
    g->states.item[twin].summary = made;
    g->summary_bytes += made->bytes;
    *out = made;
    return states_hold(&g->states, made->bytes, err);
}
