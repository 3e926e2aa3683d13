/* Which tokens may come next. See engine.h.
 *
 * Trying 150,000 tokens at every place would take milliseconds. Most of the answer does not depend on the stack: a token
 * that is read within the rule at its top, and what that calls, is allowed whatever lies below (Dong et al. 2024, XGrammar,
 * section 3.1, call them context-independent). So each set of states has a summary, made once: the tokens that it allows
 * by itself, and the places in the trie where its rule may have ended inside a token. What of those tokens is left goes on
 * behind the rule: a small trie of their rests, walked with the stack that is there. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/engine.h"
#include "common/base/units.h"

#define SUMMARY_BYTES_MAX ((size_t)32 << 20) /* of one grammar's; then all are made anew */
#define REST_NODES_MAX    256  /* of the trie below an exit: larger ones are walked where they are */
#define WALK_PLACES       4096 /* from which on a walk begins with fresh ones */

struct exit_part {
    uint32_t from, to; /* nodes of the vocabulary's trie */
};
struct summary {
    uint32_t *bits; /* [words], or NULL: the ids of `list` */
    uint32_t *list, count;
    struct trie rest; /* of tokens that leave the rule: what is behind its end */
    struct exit_part *part;
    uint32_t part_count;
    uint32_t pushes; /* how much deeper than itself the stack gets */
    size_t bytes;
};

static int no_memory(struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOMEM, "no memory for the tokens that a grammar allows");
}

static void set_bit(uint32_t *bits, uint32_t id)
{
    bits[id >> 5] |= 1u << (id & 31);
}

/* ---- walks ---- */

struct walk {
    const struct trie *trie;
    struct stacks *stacks;
    struct walk_level *level;
    uint32_t *bits;
    struct helm_grammar *exits; /* whose list takes nodes at which the bottom was reached; NULL: nobody's */
    uint32_t deepest;
};

static int note_exit(struct helm_grammar *g, uint32_t node, uint32_t depth, struct helm_err *err)
{
    if (g->exit_count + 2 > g->exit_space) {
        const uint32_t space = g->exit_space ? 2 * g->exit_space : 1024;
        void *grown = realloc(g->exit, space * sizeof *g->exit);
        if (!grown) return no_memory(err);
        g->exit = grown;
        g->exit_space = space;
    }
    g->exit[g->exit_count++] = node;
    g->exit[g->exit_count++] = depth;
    return 0;
}

/* Nodes [from, to) of the trie, whose parent is at `place`. */
static int walk(struct walk *w, uint32_t from, uint32_t to, uint32_t place, struct helm_err *err)
{
    const struct trie_node *node = w->trie->node;
    struct walk_level *level = w->level;
    level->end = to;
    level->place = place;
    for (uint32_t i = from; i < to;) {
        uint32_t next;
        while (i >= level->end) level--;
        const int rc = stacks_step(w->stacks, level->place, node[i].byte, &next, err);
        if (rc) return rc;
        if (next == STACKS_NOWHERE) {
            i = node[i].next;
            continue;
        }
        for (uint32_t t = 0; t < node[i].count; t++) set_bit(w->bits, w->trie->token[node[i].first + t]);
        const struct stack_place *p = &w->stacks->place[next];
        if (p->deepest > w->deepest) w->deepest = p->deepest;
        if (w->exits && p->ends) {
            const int noted = note_exit(w->exits, i, (uint32_t)(level - w->level) + 1, err);
            if (noted) return noted;
        }
        if (!p->count) {
            i = node[i].next;
            continue;
        }
        *++level = (struct walk_level){node[i].next, next};
        i++;
    }
    return 0;
}

/* ---- summaries ---- */

static void summary_free(struct summary *s)
{
    if (!s) return;
    free(s->bits);
    free(s->list);
    free(s->part);
    trie_free(&s->rest);
    free(s);
}

void mask_drop_summaries(struct helm_grammar *g)
{
    for (uint32_t i = 0; g->states.item && i < g->states.count; i++) {
        summary_free(g->states.item[i].summary);
        g->states.item[i].summary = NULL;
    }
    g->summary_bytes = 0;
}

/* Of few tokens the ids take less. */
static int keep_tokens(const struct helm_vocabulary *v, uint32_t *bits, struct summary *s,
                       struct helm_err *err)
{
    uint32_t count = 0, n = 0;
    for (uint32_t w = 0; w < v->words; w++) count += (uint32_t)__builtin_popcount(bits[w]);
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

/* Tokens below node `i` of the vocabulary's trie. */
static struct exit_part tokens_below(const struct trie *trie, uint32_t i)
{
    const struct trie_node *n = &trie->node[i];
    return (struct exit_part){n->first + n->count,
                              n->next < trie->count ? trie->node[n->next].first : trie->tokens};
}

/* The rests of tokens behind the exits that were noted. */
static int keep_rests(struct helm_grammar *g, struct summary *s, struct helm_err *err)
{
    const struct helm_vocabulary *v = g->vocabulary;
    const struct trie *trie = &v->trie;
    uint32_t entries = 0, parts = 0, n = 0;
    for (uint32_t e = 0; e < g->exit_count; e += 2) {
        const uint32_t node = g->exit[e];
        if (trie->node[node].next - node - 1 > REST_NODES_MAX) {
            parts++;
        } else {
            const struct exit_part below = tokens_below(trie, node);
            entries += below.to - below.from;
        }
    }
    struct trie_entry *entry = malloc((entries ? entries : 1) * sizeof *entry);
    s->part = malloc((parts ? parts : 1) * sizeof *s->part);
    int rc = entry && s->part ? 0 : no_memory(err);
    for (uint32_t e = 0; e < g->exit_count && !rc; e += 2) {
        const uint32_t node = g->exit[e], depth = g->exit[e + 1];
        if (trie->node[node].next - node - 1 > REST_NODES_MAX) {
            s->part[s->part_count++] = (struct exit_part){node + 1, trie->node[node].next};
            continue;
        }
        const struct exit_part below = tokens_below(trie, node);
        for (uint32_t t = below.from; t < below.to; t++) {
            const uint32_t id = trie->token[t], at = v->offset[id] + depth;
            entry[n++] = (struct trie_entry){v->bytes + at, v->offset[id + 1] - at, id};
        }
    }
    if (!rc) {
        qsort(entry, n, sizeof *entry, trie_entry_order);
        rc = trie_build(entry, n, &s->rest, err);
    }
    free(entry);
    s->bytes += parts * sizeof *s->part + s->rest.count * sizeof *s->rest.node + n * sizeof(uint32_t);
    return rc;
}

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
    struct walk w = {.trie = &v->trie, .stacks = &g->walk, .level = g->level, .bits = bits, .exits = g};
    g->exit_count = 0;
    if (!rc) rc = walk(&w, 0, v->trie.count, place, err);
    if (!rc) {
        s->pushes = w.deepest ? w.deepest - 1 : 0;
        rc = keep_tokens(v, bits, s, err);
        bits = NULL;
    }
    if (!rc) rc = keep_rests(g, s, err);
    free(bits);
    if (rc) {
        summary_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static int summary_of(struct helm_grammar *g, uint32_t set, const struct summary **out, struct helm_err *err)
{
    uint32_t twin;
    int rc = states_twin(&g->states, set, &twin, err);
    if (rc) return rc;
    *out = g->states.item[twin].summary;
    if (*out) return 0;
    if (g->summary_bytes > SUMMARY_BYTES_MAX) mask_drop_summaries(g);
    struct summary *made;
    rc = make_summary(g, twin, &made, err);
    if (rc) return rc;
    g->states.item[twin].summary = made;
    g->summary_bytes += made->bytes;
    *out = made;
    return 0;
}

int mask_prepare(struct helm_grammar *g, uint64_t budget_us, struct helm_err *err)
{
    const uint64_t until = units_now_us() + budget_us;
    const struct summary *ignored;
    int rc = 0;
    /* walks and calls find further sets, which come after these */
    for (uint32_t i = 1; i < g->states.count && !rc && units_now_us() < until; i++) {
        rc = states_fill_calls(&g->states, i, err);
        if (!rc && g->states.item[i].reads) rc = summary_of(g, i, &ignored, err);
    }
    return rc;
}

/* ---- masks ---- */

static void add_tokens(const struct helm_vocabulary *v, const struct summary *s, uint32_t *bits)
{
    for (uint32_t i = 0; !s->bits && i < s->count; i++) set_bit(bits, s->list[i]);
    for (uint32_t w = 0; s->bits && w < v->words; w++) bits[w] |= s->bits[w];
}

int mask_fill_slowly(struct helm_matcher *m, uint32_t *bits, struct helm_err *err)
{
    const struct trie *trie = &m->grammar->vocabulary->trie;
    struct walk w = {.trie = trie, .stacks = &m->stacks, .level = m->level, .bits = bits};
    return walk(&w, 0, trie->count, m->place, err);
}

/* What one way of reading allows. *deep: its stack may become too deep, which summaries do not know. */
static int add_way(struct helm_matcher *m, uint32_t node, uint32_t *bits, bool *deep, struct helm_err *err)
{
    struct helm_grammar *g = m->grammar;
    const struct stack_node at = m->stacks.node[node];
    const struct summary *s;
    uint32_t behind;
    int rc = summary_of(g, at.set, &s, err);
    if (rc) return rc;
    *deep = at.depth + s->pushes > STACKS_DEPTH_MAX;
    if (*deep) return 0;
    add_tokens(g->vocabulary, s, bits);
    if (at.parent == STACKS_BOTTOM || (!s->rest.count && !s->part_count)) return 0;
    rc = stacks_place(&m->stacks, &at.parent, 1, &behind, err);
    struct walk w = {.trie = &s->rest, .stacks = &m->stacks, .level = m->level, .bits = bits};
    if (!rc) rc = walk(&w, 0, s->rest.count, behind, err);
    w.trie = &g->vocabulary->trie;
    for (uint32_t i = 0; i < s->part_count && !rc; i++)
        rc = walk(&w, s->part[i].from, s->part[i].to, behind, err);
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
