/* Expressions to an automaton, after Thompson (1968). See nfa.h.
 *
 * Edges are collected in any order, sorted by their states at the end; nfa_check.c looks at the whole. */
#include "client/text/grammar/nfa.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "client/text/grammar/vocabulary.h"
#include "common/base/grow.h"

#define DEPTH_MAX 1000 /* of expressions */

struct raw_edge {
    uint32_t from;
    struct nfa_edge edge;
};

struct compiler {
    const struct exprs *x;
    struct raw_edge *edge;
    uint32_t edge_count, edge_space;
    uint32_t *twin;
    uint32_t states, state_space, horizon, depth;
    struct helm_err *err;
    int rc;
};

static uint32_t new_state(struct compiler *c)
{
    if (c->rc) return 0;
    if (c->x->stop && atomic_load_explicit(c->x->stop, memory_order_relaxed)) {
        c->rc = helm_fail(c->err, HELM_E_CANCELLED, "the grammar is not wanted any more");
        return 0;
    }
    if (c->states == NFA_STATES_MAX) {
        c->rc =
            helm_fail(c->err, HELM_E_LIMIT,
                      "the grammar needs more than %u states: its repetitions are too long or nest too deep",
                      NFA_STATES_MAX);
        return 0;
    }
    if (!GROW(c->twin, c->states, c->state_space)) {
        c->rc = helm_fail(c->err, HELM_E_NOMEM, "no memory for a grammar of more than %u states", c->states);
        return 0;
    }
    c->twin[c->states] = NFA_NO_TWIN;
    return c->states++;
}

static void add_edge(struct compiler *c, uint32_t from, struct nfa_edge edge)
{
    if (c->rc) return;
    if (c->edge_count == NFA_EDGES_MAX || !GROW(c->edge, c->edge_count, c->edge_space)) {
        c->rc = helm_fail(c->err, HELM_E_LIMIT, "the grammar needs more than %u edges", c->edge_count);
        return;
    }
    c->edge[c->edge_count++] = (struct raw_edge){from, edge};
}

static void add_empty(struct compiler *c, uint32_t from, uint32_t to)
{
    add_edge(c, from, (struct nfa_edge){.kind = NFA_EMPTY, .to = to});
}
static void add_bytes(struct compiler *c, uint32_t from, uint32_t low, uint32_t high, uint32_t to)
{
    add_edge(c, from,
             (struct nfa_edge){.kind = NFA_BYTES, .low = (uint8_t)low, .high = (uint8_t)high, .to = to});
}

/* ---- characters as bytes ---- */

/* States after which 1, 2 or 3 continuation bytes of any value lead to `to`; made when they are needed. */
struct tails {
    uint32_t to, state[4];
    bool made[4];
};

static uint32_t tail(struct compiler *c, struct tails *t, uint32_t left)
{
    if (left == 0) return t->to;
    if (!t->made[left]) {
        t->made[left] = true;
        t->state[left] = new_state(c);
        add_bytes(c, t->state[left], 0x80, 0xbf, tail(c, t, left - 1));
    }
    return t->state[left];
}

/* Characters [low, high] whose UTF-8 has 1 + left bytes, the first of them marked with `lead`. Ranges are cut
 * where their first bytes differ, so that whole blocks of continuation bytes are one edge (Pike, Thompson
 * 1993 have the encoding). */
static void add_block(struct compiler *c, struct tails *t, uint32_t from, uint32_t low, uint32_t high,
                      uint32_t left, uint32_t lead)
{
    const uint32_t shift = 6 * left, mask = (1u << shift) - 1;
    uint32_t first = low >> shift, last = high >> shift;
    if (left == 0) {
        add_bytes(c, from, lead | low, lead | high, t->to);
        return;
    }
    if (first == last) {
        if ((low & mask) == 0 && (high & mask) == mask) {
            add_bytes(c, from, lead | first, lead | first, tail(c, t, left));
            return;
        }
        const uint32_t next = new_state(c);
        add_bytes(c, from, lead | first, lead | first, next);
        add_block(c, t, next, low & mask, high & mask, left - 1, 0x80);
        return;
    }
    if (low & mask) {
        add_block(c, t, from, low, first << shift | mask, left, lead);
        first++;
    }
    if ((high & mask) != mask) {
        add_block(c, t, from, last << shift, high, left, lead);
        last--;
    }
    if (first <= last) add_bytes(c, from, lead | first, lead | last, tail(c, t, left));
}

static void compile_set(struct compiler *c, const struct expr *e, uint32_t from, uint32_t to)
{
    /* surrogates are no characters */
    static const struct {
        uint32_t low, high, left, lead;
    } lengths[] = {{0, 0x7f, 0, 0},
                   {0x80, 0x7ff, 1, 0xc0},
                   {0x800, 0xd7ff, 2, 0xe0},
                   {0xe000, 0xffff, 2, 0xe0},
                   {0x10000, EXPR_CHAR_MAX, 3, 0xf0}};
    struct tails tails = {.to = to};
    for (uint32_t i = 0; i < e->count && !c->rc; i++) {
        const struct expr_range *r = &c->x->ranges[e->first + i];
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            const uint32_t low = r->low > lengths[k].low ? r->low : lengths[k].low,
                           high = r->high < lengths[k].high ? r->high : lengths[k].high;
            if (low <= high) add_block(c, &tails, from, low, high, lengths[k].left, lengths[k].lead);
        }
    }
}

/* ---- expressions ---- */

static void compile(struct compiler *c, uint32_t at, uint32_t from, uint32_t to);

/* The turns of a repetition that behave alike for `horizon` bytes: all of those far from its least and its
 * most. Each turn has its states at the same places, so a state's twin lies as far into the first such
 * turn. */
static void pair_turns(struct compiler *c, const struct expr *e, uint32_t first, uint32_t turn_states,
                       uint32_t turns)
{
    const uint64_t horizon = (uint64_t)c->horizon + 1;
    for (uint32_t i = 1; i < turns && !c->rc; i++) {
        uint32_t twin;
        if (i + 1 + horizon < e->min)
            twin = 0;
        else if (i > e->min && i + 1 + horizon < turns && e->max != EXPR_UNBOUNDED)
            twin = e->min;
        else
            continue;
        for (uint32_t s = 0; s < turn_states; s++)
            if (c->twin[first + i * turn_states + s] == NFA_NO_TWIN)
                c->twin[first + i * turn_states + s] = first + twin * turn_states + s;
    }
}

static void compile_repeat(struct compiler *c, const struct expr *e, uint32_t from, uint32_t to)
{
    const uint32_t turns = e->max == EXPR_UNBOUNDED ? e->min : e->max;
    uint32_t at = new_state(c), first = c->states, turn_states = 0;
    bool alike = true;
    add_empty(c, from, at);
    for (uint32_t i = 0; i < turns && !c->rc; i++) {
        const uint32_t begin = c->states, next = new_state(c);
        if (i >= e->min) add_empty(c, at, to);
        compile(c, e->child, at, next);
        if (i == 0) turn_states = c->states - begin;
        alike = alike && c->states - begin == turn_states;
        at = next;
    }
    if (alike) pair_turns(c, e, first, turn_states, turns);
    if (e->max == EXPR_UNBOUNDED) {
        const uint32_t loop = new_state(c);
        add_empty(c, at, loop);
        compile(c, e->child, loop, loop);
        at = loop;
    }
    add_empty(c, at, to);
}

static void compile_token(struct compiler *c, uint32_t id, uint32_t from, uint32_t to)
{
    const uint32_t a = new_state(c), b = new_state(c), d = new_state(c);
    add_bytes(c, from, VOCABULARY_SPECIAL, VOCABULARY_SPECIAL, a);
    add_bytes(c, a, id >> 16 & 255, id >> 16 & 255, b);
    add_bytes(c, b, id >> 8 & 255, id >> 8 & 255, d);
    add_bytes(c, d, id & 255, id & 255, to);
}

static void compile(struct compiler *c, uint32_t at, uint32_t from, uint32_t to)
{
    const struct expr *e = &c->x->nodes[at];
    if (c->rc) return;
    if (++c->depth > DEPTH_MAX) {
        c->rc = helm_fail(c->err, HELM_E_LIMIT, "the grammar's expressions nest deeper than %d", DEPTH_MAX);
        return;
    }
    switch (e->kind) {
    case EXPR_SET:
        compile_set(c, e, from, to);
        break;
    case EXPR_SEQ:
        if (e->child == EXPR_NONE) add_empty(c, from, to);
        for (uint32_t child = e->child; child != EXPR_NONE && !c->rc; child = c->x->nodes[child].next) {
            const uint32_t next = c->x->nodes[child].next == EXPR_NONE ? to : new_state(c);
            compile(c, child, from, next);
            from = next;
        }
        break;
    case EXPR_ALT:
        for (uint32_t child = e->child; child != EXPR_NONE && !c->rc; child = c->x->nodes[child].next)
            compile(c, child, from, to);
        break;
    case EXPR_REPEAT:
        compile_repeat(c, e, from, to);
        break;
    case EXPR_RULE:
        add_edge(c, from, (struct nfa_edge){.kind = NFA_CALL, .rule = e->first, .to = to});
        break;
    case EXPR_BYTE:
        add_bytes(c, from, e->min, e->max, to);
        break;
    case EXPR_TOKEN:
        compile_token(c, e->first, from, to);
        break;
    }
    c->depth--;
}

/* ---- the whole ---- */

/* Edges of each state together. */
static int sort_edges(const struct compiler *c, struct nfa *nfa, struct helm_err *err)
{
    nfa->states = c->states;
    nfa->first = calloc((size_t)c->states + 2, sizeof *nfa->first);
    nfa->edge = malloc((c->edge_count ? c->edge_count : 1) * sizeof *nfa->edge);
    if (!nfa->first || !nfa->edge)
        return helm_fail(err, HELM_E_NOMEM, "no memory for a grammar of %u states", c->states);
    for (uint32_t i = 0; i < c->edge_count; i++) nfa->first[c->edge[i].from + 2]++;
    for (uint32_t s = 0; s < c->states; s++) nfa->first[s + 2] += nfa->first[s + 1];
    for (uint32_t i = 0; i < c->edge_count; i++)
        nfa->edge[nfa->first[c->edge[i].from + 1]++] = c->edge[i].edge;
    return 0;
}

int nfa_compile(const struct exprs *x, uint32_t root, uint32_t horizon, struct nfa *nfa, struct helm_err *err)
{
    struct compiler c = {.x = x, .horizon = horizon, .err = err};
    *nfa = (struct nfa){.rules = x->rule_count + 1, .root = x->rule_count};
    nfa->begin = malloc(nfa->rules * sizeof *nfa->begin);
    nfa->end = malloc(nfa->rules * sizeof *nfa->end);
    if (!nfa->begin || !nfa->end) c.rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u rules", nfa->rules);
    for (uint32_t r = 0; r < nfa->rules && !c.rc; r++) {
        nfa->begin[r] = new_state(&c);
        nfa->end[r] = new_state(&c);
        const uint32_t body = r == nfa->root ? root : x->rules[r];
        if (body == EXPR_NONE)
            c.rc = helm_fail(err, HELM_E_INTERNAL, "rule %u of the grammar was not defined", r);
        else
            compile(&c, body, nfa->begin[r], nfa->end[r]);
    }
    int rc = c.rc ? c.rc : sort_edges(&c, nfa, err);
    if (!rc) rc = nfa_check(nfa, err);
    nfa->twin = c.twin;
    free(c.edge);
    if (rc) nfa_free(nfa);
    return rc;
}

size_t nfa_bytes(const struct nfa *nfa)
{
    return nfa->first[nfa->states] * sizeof *nfa->edge +
           ((size_t)nfa->states + 1) * (sizeof *nfa->first + sizeof *nfa->twin) +
           nfa->rules * (sizeof *nfa->begin + sizeof *nfa->end);
}

void nfa_free(struct nfa *nfa)
{
    free(nfa->edge);
    free(nfa->first);
    free(nfa->twin);
    free(nfa->begin);
    free(nfa->end);
    *nfa = (struct nfa){0};
}
