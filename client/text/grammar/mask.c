/* Which tokens may come next. See engine.h.
 *
 * Trying 150,000 tokens at every place would take milliseconds. Most of the answer does not depend on the
 * stack: a token that is read within the rule at its top, and what that calls, is allowed whatever lies below
 * (Dong et al. 2024, XGrammar, section 3.1, call them context-independent). So each set of states has a
 * summary, made once: the tokens that it allows by itself, and the places in the trie where its rule may have
 * ended inside a token. The rests of those tokens go on after the rule: a small trie of them, walked with the
 * stack that is there. */
#include <string.h>

#include "client/text/grammar/engine.h"
#include "common/base/units.h"

#define PREPARE_SETS 8192 /* from which on turns of repetitions are not looked for */

/* The set after a turn of a long repetition whose summary is another turn's: no walk finds it. */
static int find_turn(struct helm_grammar *g, uint32_t set, struct helm_err *err)
{
    uint32_t twin, next;
    int rc = states_twin(&g->states, set, &twin, err);
    if (rc || twin == set || g->states.count > PREPARE_SETS) return rc;
    for (uint32_t byte = 0; byte < 256; byte++)
        if (slice_has_byte(SLICE_PLAIN, (uint8_t)byte) && state_reads(&g->states.item[set], (uint8_t)byte))
            return states_step(&g->states, set, (uint8_t)byte, &next, err);
    return 0;
}

int mask_prepare(struct helm_grammar *g, uint64_t budget_us, struct helm_err *err)
{
    const uint64_t until = units_now_us() + budget_us;
    const struct summary *ignored;
    int rc = 0;
    /* walks and calls find further sets, which come after these */
    for (uint32_t i = 1; i < g->states.count && !rc && units_now_us() < until; i++) {
        states_allow(&g->states, grammar_steps(g));
        rc = states_fill_calls(&g->states, i, err);
        if (!rc && g->states.item[i].reads) rc = summary_of(g, i, &ignored, err);
        if (!rc) rc = find_turn(g, i, err);
    }
    return rc;
}

static void add_tokens(const struct helm_vocabulary *v, const struct summary *s, uint32_t *bits)
{
    for (uint32_t i = 0; !s->bits && i < s->count; i++) walk_set_bit(bits, s->list[i]);
    for (uint32_t w = 0; s->bits && w < v->words; w++) bits[w] |= s->bits[w];
}

int mask_fill_slowly(struct helm_matcher *m, uint32_t *bits, struct helm_err *err)
{
    struct walk w = {.stacks = &m->stacks, .level = m->level, .bits = bits};
    const int rc = matcher_enter(m, err);
    return rc ? rc : walk_all(&w, &m->grammar->vocabulary->trie, m->place, err);
}

/* Adds the tokens that one way of reading allows. *deep: its stack may become too deep, which summaries do
 * not know. */
static int add_way(struct helm_matcher *m, uint32_t node, uint32_t *bits, bool *deep, struct helm_err *err)
{
    struct helm_grammar *g = m->grammar;
    const struct stack_node at = m->stacks.node[node];
    const struct summary *s;
    uint32_t place;
    int rc = summary_of(g, at.set, &s, err);
    if (rc) return rc;
    *deep = at.depth + s->pushes > STACKS_DEPTH_MAX;
    if (*deep) return 0;
    add_tokens(g->vocabulary, s, bits);
    if (at.parent == STACKS_BOTTOM || (!s->rest.count && !s->part_count)) return 0;
    rc = stacks_place(&m->stacks, &at.parent, 1, &place, err);
    struct walk w = {.stacks = &m->stacks, .level = m->level, .bits = bits};
    if (!rc) rc = walk_all(&w, &s->rest, place, err);
    for (uint32_t i = 0; i < s->part_count && !rc; i++) {
        w.trie = s->part[i].trie;
        rc = walk(&w, w.trie->node[s->part[i].node].children, place, err);
    }
    return rc;
}

int mask_fill(struct helm_matcher *m, uint32_t *bits, struct helm_err *err)
{
    bool deep = false;
    for (uint32_t i = 0; i < m->stacks.place[m->place].count && !deep; i++) {
        const int rc = add_way(m, m->stacks.place[m->place].node[i], bits, &deep, err);
        if (rc) return rc;
    }
    if (!deep) return 0;
    memset(bits, 0, m->grammar->vocabulary->words * sizeof *bits);
    return mask_fill_slowly(m, bits, err);
}
