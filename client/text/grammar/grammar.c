/* Grammars and matchers: opening, closing, going on. See grammar.h and engine.h. */
#include "client/text/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/engine.h"
#include "client/text/grammar/gbnf.h"
#include "client/text/grammar/regex.h"
#include "client/text/grammar/schema.h"

#define PREPARE_US     150000 /* for summaries when a grammar is opened */
#define MATCHER_PLACES 512    /* from which on a matcher forgets those after it */
#define MATCHER_NODES  16384

/* Finds out what a fresh matcher says, so that the first mask of each output costs no more than a copy. */
static int first_mask(struct helm_grammar *g, struct helm_err *err)
{
    struct helm_matcher *m;
    g->first = calloc(g->vocabulary->words, sizeof *g->first);
    int rc =
        g->first ? helm_matcher_open(g, &m, err) : helm_fail(err, HELM_E_NOMEM, "no memory for a grammar");
    if (rc) return rc;
    states_allow(&g->states, grammar_steps(g));
    rc = matcher_enter(m, err);
    if (!rc) rc = mask_fill(m, g->first, err);
    if (!rc) g->first_ends = m->stacks.place[m->place].ends;
    helm_matcher_close(m);
    return rc;
}

int grammar_open_exprs(const struct helm_vocabulary *vocabulary, const struct exprs *exprs, uint32_t root,
                       struct helm_grammar **out, struct helm_err *err)
{
    *out = NULL;
    if (exprs->failed) return helm_fail(err, exprs->failed, "%s", exprs->err.text);
    struct helm_grammar *g = calloc(1, sizeof *g);
    if (!g) return helm_fail(err, HELM_E_NOMEM, "no memory for a grammar");
    g->vocabulary = vocabulary;
    pthread_mutex_init(&g->lock, NULL);
    g->level = malloc(((size_t)vocabulary->longest + 2) * sizeof *g->level);
    int rc = g->level ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a grammar");
    if (!rc) rc = nfa_compile(exprs, root, vocabulary->longest, &g->nfa, err);
    g->states.held = vocabulary->held;
    if (!rc) rc = states_open(&g->nfa, &g->states, err);
    g->states.stop = exprs->stop;
    states_allow(&g->states, grammar_steps(g));
    if (!rc) rc = stacks_open(&g->states, &g->walk, err);
    if (!rc) rc = states_of(&g->states, &g->nfa.begin[g->nfa.root], 1, &g->begin, err);
    if (!rc) rc = mask_prepare(g, PREPARE_US, err);
    if (!rc) rc = first_mask(g, err);
    g->states.stop = NULL;
    if (rc) {
        helm_grammar_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int grammar_read(struct exprs *exprs, enum helm_grammar_kind kind, const char *text, size_t length,
                 uint32_t *root, struct helm_err *err)
{
    if (kind == HELM_GRAMMAR_JSON_OBJECT) length = 0;
    if (length > HELM_GRAMMAR_TEXT_LIMIT)
        return helm_fail(err, HELM_E_LIMIT, "a grammar of %zu bytes exceeds the limit of %zu", length,
                         HELM_GRAMMAR_TEXT_LIMIT);
    switch (kind) {
    case HELM_GRAMMAR_JSON_OBJECT:
        *root = json_any(exprs, ANY_OBJECT);
        break;
    case HELM_GRAMMAR_JSON_SCHEMA:
        return schema_parse(exprs, text, length, root, err);
    case HELM_GRAMMAR_REGEX:
        *root = regex_parse(exprs, text, length, REGEX_WHOLE);
        break;
    case HELM_GRAMMAR_GBNF:
        *root = gbnf_parse(exprs, text, length);
        break;
    default:
        return helm_fail(err, HELM_E_USAGE, "there is no grammar of kind %d", (int)kind);
    }
    return exprs->failed ? helm_fail(err, exprs->failed, "%s", exprs->err.text) : 0;
}

int helm_grammar_open(const struct helm_vocabulary *vocabulary, enum helm_grammar_kind kind, const char *text,
                      size_t length, struct helm_grammar **out, struct helm_err *err)
{
    struct exprs exprs = {0};
    uint32_t root = 0;
    *out = NULL;
    int rc = grammar_read(&exprs, kind, text, length, &root, err);
    if (!rc) rc = grammar_open_exprs(vocabulary, &exprs, root, out, err);
    exprs_free(&exprs);
    return rc;
}

void helm_grammar_close(struct helm_grammar *g)
{
    if (!g) return;
    summaries_drop(g);
    stacks_close(&g->walk);
    states_close(&g->states);
    nfa_free(&g->nfa);
    pthread_mutex_destroy(&g->lock);
    free(g->level);
    free(g->first);
    free(g->exits.item);
    free(g);
}

/* ---- matchers ---- */

int helm_matcher_open(struct helm_grammar *g, struct helm_matcher **out, struct helm_err *err)
{
    struct helm_matcher *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return helm_fail(err, HELM_E_NOMEM, "no memory for a place in a grammar");
    m->grammar = g;
    m->level = malloc(((size_t)g->vocabulary->longest + 2) * sizeof *m->level);
    if (!m->level) {
        helm_matcher_close(m);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a place in a grammar");
    }
    *out = m;
    return 0;
}

int matcher_enter(struct helm_matcher *m, struct helm_err *err)
{
    uint32_t node;
    if (m->entered) return 0;
    stacks_close(&m->stacks); /* of an attempt that failed */
    int rc = stacks_open(&m->grammar->states, &m->stacks, err);
    if (!rc) rc = stacks_node(&m->stacks, m->grammar->begin, STACKS_BOTTOM, &node, err);
    if (!rc) rc = stacks_place(&m->stacks, &node, 1, &m->place, err);
    m->entered = rc == 0;
    return rc;
}

void helm_matcher_close(struct helm_matcher *m)
{
    if (!m) return;
    stacks_close(&m->stacks);
    free(m->level);
    free(m);
}

/* HELM_E_BUSY: a quick call will not wait. */
static int lock_step(struct helm_matcher *m, struct helm_err *err)
{
    struct helm_grammar *g = m->grammar;
    if (m->quick && pthread_mutex_trylock(&g->lock) != 0)
        return helm_fail(err, HELM_E_BUSY, "the grammar is at work for another output");
    if (!m->quick) pthread_mutex_lock(&g->lock);
    return 0;
}

/* Makes room for a step. The lock is held. */
static int begin_step(struct helm_matcher *m, struct helm_err *err)
{
    struct helm_grammar *g = m->grammar;
    states_allow(&g->states, m->quick ? m->quick : grammar_steps(g));
    g->states.stop = &m->stop;
    int rc = matcher_enter(m, err);
    if (!rc && (m->stacks.place_count >= MATCHER_PLACES || m->stacks.node_count >= MATCHER_NODES))
        rc = stacks_forget(&m->stacks, &m->place, err);
    return rc;
}

/* Gives the lock back. */
static int end_step(struct helm_matcher *m, int rc, struct helm_err *err)
{
    struct helm_grammar *g = m->grammar;
    const bool more = m->quick && g->states.work > g->states.work_max;
    g->states.stop = NULL;
    pthread_mutex_unlock(&g->lock);
    return rc == HELM_E_LIMIT && more ? helm_fail(err, HELM_E_BUSY, "the grammar takes longer") : rc;
}

int helm_matcher_mask(struct helm_matcher *m, uint32_t *bits, struct helm_err *err)
{
    const struct helm_vocabulary *v = m->grammar->vocabulary;
    uint32_t any = 0;
    memset(bits, 0, v->words * sizeof *bits);
    if (m->ended) return helm_fail(err, HELM_E_STATE, "the output has ended");
    if (m->entered) {
        int rc = lock_step(m, err);
        if (rc) return rc;
        rc = begin_step(m, err);
        if (!rc) rc = mask_fill(m, bits, err);
        rc = end_step(m, rc, err);
        if (rc) return rc;
    } else {
        memcpy(bits, m->grammar->first, v->words * sizeof *bits);
    }
    for (uint32_t i = 0; i < v->end_count && helm_matcher_may_end(m); i++)
        bits[v->end[i] >> 5] |= 1u << (v->end[i] & 31);
    for (uint32_t w = 0; w < v->words; w++) any |= bits[w];
    return any ? 0
               : helm_fail(err, HELM_E_UNSUPPORTED,
                           "the grammar goes on with something that no token of this model spells");
}

int helm_matcher_take(struct helm_matcher *m, uint32_t token, struct helm_err *err)
{
    const struct helm_vocabulary *v = m->grammar->vocabulary;
    if (m->ended) return helm_fail(err, HELM_E_STATE, "the output has ended");
    if (token < v->vocab && vocabulary_is_end(v, token)) {
        if (!helm_matcher_may_end(m))
            return helm_fail(err, HELM_E_FORMAT, "the grammar does not end before token %u", token);
        m->ended = true;
        return 0;
    }
    if (token >= v->vocab || v->offset[token] == v->offset[token + 1])
        return helm_fail(err, HELM_E_FORMAT, "token %u is no text", token);
    int rc = lock_step(m, err);
    if (rc) return rc;
    rc = begin_step(m, err);
    uint32_t place = m->place;
    for (uint32_t at = v->offset[token]; at < v->offset[token + 1] && !rc && place; at++)
        rc = stacks_step(&m->stacks, place, v->bytes[at], &place, err);
    rc = end_step(m, rc, err);
    if (rc) return rc;
    if (place == STACKS_NOWHERE)
        return helm_fail(err, HELM_E_FORMAT, "the grammar does not allow token %u here", token);
    m->place = place;
    return 0;
}

bool helm_matcher_may_end(const struct helm_matcher *m)
{
    return m->entered ? m->stacks.place[m->place].ends : m->grammar->first_ends;
}

bool helm_matcher_has_ended(const struct helm_matcher *m)
{
    return m->ended;
}
