/* An automaton as a whole: what can never end is taken out, and rules that call themselves at once are
 * refused. Called by nfa.c. All of it takes time in proportion to the automaton. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/nfa.h"
#include "common/base/grow.h"

static int no_memory(struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOMEM, "no memory for a grammar");
}

/* ---- what can end ---- */

/* Edges the other way round: into each state, and calls of each rule. */
struct incoming {
    uint32_t *from;              /* [edges] the state of each edge */
    uint32_t *to_first, *to;     /* edges into state s: to[to_first[s] .. to_first[s + 1]) */
    uint32_t *call_first, *call; /* the same of calls of a rule */
    uint32_t *pending;           /* [states] */
};

static void incoming_free(struct incoming *in)
{
    free(in->from);
    free(in->to_first);
    free(in->to);
    free(in->call_first);
    free(in->call);
    free(in->pending);
}

static int incoming_make(const struct nfa *nfa, struct incoming *in, struct helm_err *err)
{
    const uint32_t edges = nfa->first[nfa->states];
    const size_t room = (size_t)edges + 1;
    in->from = malloc(room * sizeof *in->from);
    in->to = malloc(room * sizeof *in->to);
    in->call = malloc(room * sizeof *in->call);
    in->to_first = calloc((size_t)nfa->states + 2, sizeof *in->to_first);
    in->call_first = calloc((size_t)nfa->rules + 2, sizeof *in->call_first);
    in->pending = malloc(((size_t)nfa->states + 1) * sizeof *in->pending);
    if (!in->from || !in->to || !in->call || !in->to_first || !in->call_first || !in->pending)
        return no_memory(err);
    for (uint32_t s = 0; s < nfa->states; s++)
        for (uint32_t i = nfa->first[s]; i < nfa->first[s + 1]; i++) {
            in->from[i] = s;
            in->to_first[nfa->edge[i].to + 2]++;
            if (nfa->edge[i].kind == NFA_CALL) in->call_first[nfa->edge[i].rule + 2]++;
        }
    for (uint32_t s = 0; s < nfa->states; s++) in->to_first[s + 2] += in->to_first[s + 1];
    for (uint32_t r = 0; r < nfa->rules; r++) in->call_first[r + 2] += in->call_first[r + 1];
    for (uint32_t i = 0; i < edges; i++) {
        const struct nfa_edge *e = &nfa->edge[i];
        in->to[in->to_first[e->to + 1]++] = i;
        if (e->kind == NFA_CALL) in->call[in->call_first[e->rule + 1]++] = i;
    }
    return 0;
}

/* The state of edge i, if the edge leads to the end, and so it does. */
static void mark_from(const struct nfa *nfa, const struct incoming *in, uint32_t i, bool empty, bool *marked,
                      uint32_t *count)
{
    const struct nfa_edge *e = &nfa->edge[i];
    if (marked[in->from[i]] || !marked[e->to] || (empty && e->kind == NFA_BYTES)) return;
    if (e->kind == NFA_CALL && !marked[nfa->begin[e->rule]]) return;
    marked[in->from[i]] = true;
    in->pending[(*count)++] = in->from[i];
}

/* Marks states from which their rule's end can be reached; with `empty`, without reading a byte. rule_of: of
 * states that begin a rule, its number plus one. */
static void mark(const struct nfa *nfa, const struct incoming *in, const uint32_t *rule_of, bool empty,
                 bool *marked)
{
    uint32_t count = 0;
    memset(marked, 0, nfa->states);
    for (uint32_t r = 0; r < nfa->rules; r++) {
        marked[nfa->end[r]] = true;
        in->pending[count++] = nfa->end[r];
    }
    while (count) {
        const uint32_t s = in->pending[--count];
        for (uint32_t k = in->to_first[s]; k < in->to_first[s + 1]; k++)
            mark_from(nfa, in, in->to[k], empty, marked, &count);
        if (!rule_of[s]) continue;
        for (uint32_t k = in->call_first[rule_of[s] - 1]; k < in->call_first[rule_of[s]]; k++)
            mark_from(nfa, in, in->call[k], empty, marked, &count);
    }
}

/* Takes out edges to and calls of what can never end. */
static void prune(struct nfa *nfa, const bool *marked)
{
    uint32_t kept = 0, from = 0;
    for (uint32_t s = 0; s < nfa->states; s++) {
        const uint32_t end = nfa->first[s + 1];
        nfa->first[s] = kept;
        for (uint32_t i = from; i < end; i++) {
            const struct nfa_edge e = nfa->edge[i];
            if (marked[e.to] && (e.kind != NFA_CALL || marked[nfa->begin[e.rule]])) nfa->edge[kept++] = e;
        }
        from = end;
    }
    nfa->first[nfa->states] = kept;
}

/* ---- what calls itself ---- */

/* From each rule to those that it may call before it has read a byte. */
struct arrows {
    uint32_t *first, *to;
    uint32_t count, space;
};

static int arrows_add(struct arrows *a, uint32_t to, struct helm_err *err)
{
    if (!GROW(a->to, a->count, a->space)) return no_memory(err);
    a->to[a->count++] = to;
    return 0;
}

/* seen: [states], all false before and after; pending: [states]. */
static int arrows_of(const struct nfa *nfa, const bool *empty, uint32_t rule, bool *seen, uint32_t *pending,
                     struct arrows *a, struct helm_err *err)
{
    uint32_t count = 0;
    int rc = 0;
    pending[count++] = nfa->begin[rule];
    seen[nfa->begin[rule]] = true;
    for (uint32_t done = 0; done < count; done++) {
        const uint32_t s = pending[done];
        for (uint32_t i = nfa->first[s]; i < nfa->first[s + 1] && !rc; i++) {
            const struct nfa_edge *e = &nfa->edge[i];
            const bool on = e->kind == NFA_EMPTY || (e->kind == NFA_CALL && empty[nfa->begin[e->rule]]);
            if (on && !seen[e->to]) {
                seen[e->to] = true;
                pending[count++] = e->to;
            }
            if (e->kind == NFA_CALL) rc = arrows_add(a, e->rule, err);
        }
    }
    for (uint32_t i = 0; i < count; i++) seen[pending[i]] = false;
    return rc;
}

/* path, next: [rules]; a walk in depth with its own stack, since rules may be many. */
static bool has_circle(const struct arrows *a, uint32_t rules, uint8_t *colour, uint32_t *path,
                       uint32_t *next)
{
    enum { NEW, OPEN, CLOSED };
    for (uint32_t r = 0; r < rules; r++) {
        uint32_t depth = 0;
        if (colour[r] != NEW) continue;
        path[depth] = r;
        next[depth++] = a->first[r];
        colour[r] = OPEN;
        while (depth) {
            const uint32_t at = path[depth - 1];
            if (next[depth - 1] == a->first[at + 1]) {
                colour[at] = CLOSED;
                depth--;
                continue;
            }
            const uint32_t to = a->to[next[depth - 1]++];
            if (colour[to] == OPEN) return true;
            if (colour[to] == CLOSED) continue;
            colour[to] = OPEN;
            path[depth] = to;
            next[depth++] = a->first[to];
        }
    }
    return false;
}

static int refuse_left_recursion(const struct nfa *nfa, const bool *empty, uint32_t *pending,
                                 struct helm_err *err)
{
    struct arrows a = {.first = calloc((size_t)nfa->rules + 1, sizeof *a.first)};
    bool *seen = calloc(nfa->states, sizeof *seen);
    uint8_t *colour = calloc(nfa->rules, sizeof *colour);
    uint32_t *path = malloc(nfa->rules * sizeof *path), *next = malloc(nfa->rules * sizeof *next);
    int rc = a.first && seen && colour && path && next ? 0 : no_memory(err);
    for (uint32_t r = 0; r < nfa->rules && !rc; r++) {
        a.first[r] = a.count;
        rc = arrows_of(nfa, empty, r, seen, pending, &a, err);
    }
    if (!rc) {
        a.first[nfa->rules] = a.count;
        if (has_circle(&a, nfa->rules, colour, path, next))
            rc = helm_fail(
                err, HELM_E_UNSUPPORTED,
                "the grammar has a rule that calls itself before it has read anything (left recursion)");
    }
    free(a.first);
    free(a.to);
    free(seen);
    free(colour);
    free(path);
    free(next);
    return rc;
}

int nfa_check(struct nfa *nfa, struct helm_err *err)
{
    struct incoming in = {0};
    bool *marked = malloc(nfa->states);
    uint32_t *rule_of = calloc(nfa->states, sizeof *rule_of);
    int rc = marked && rule_of ? incoming_make(nfa, &in, err) : no_memory(err);
    if (!rc) {
        for (uint32_t r = 0; r < nfa->rules; r++) rule_of[nfa->begin[r]] = r + 1;
        mark(nfa, &in, rule_of, true, marked);
        rc = refuse_left_recursion(nfa, marked, in.pending, err);
    }
    if (!rc) {
        mark(nfa, &in, rule_of, false, marked);
        if (!marked[nfa->begin[nfa->root]])
            rc = helm_fail(err, HELM_E_FORMAT, "nothing fits the grammar: no text of it ever ends");
        else
            prune(nfa, marked);
    }
    incoming_free(&in);
    free(marked);
    free(rule_of);
    return rc;
}
