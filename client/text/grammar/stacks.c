/* Stacks and places. See stacks.h. */
#include "client/text/grammar/stacks.h"
#include "common/base/grow.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOMEM, "no memory for a place in a grammar");
}

/* Counts what is held. Called after something grew, and at the end. */
static int count_bytes(struct stacks *s, struct helm_err *err)
{
    const size_t bytes = s->node_space * sizeof *s->node + s->place_space * sizeof *s->place +
                         ((size_t)s->node_table_size + s->place_table_size + s->list_space + s->mark_space +
                          s->kept_space + (size_t)s->words.count * WORDS_CHUNK) *
                             sizeof(uint32_t);
    if (!s->states || !s->states->held || bytes == s->counted) return 0;
    const size_t more = bytes - s->counted; /* wraps where it is less */
    s->counted = bytes;
    if (atomic_fetch_add(s->states->held, more) + more <= GRAMMAR_BYTES_MAX) return 0;
    return helm_fail(err, HELM_E_BUSY, "the grammars in use hold more than %zu MiB together",
                     GRAMMAR_BYTES_MAX >> 20);
}

int stacks_open(struct states *states, struct stacks *s, struct helm_err *err)
{
    *s = (struct stacks){.states = states, .node_table_size = 256, .place_table_size = 256};
    s->node_table = calloc(s->node_table_size, sizeof *s->node_table);
    s->place_table = calloc(s->place_table_size, sizeof *s->place_table);
    if (!s->node_table || !s->place_table) return no_memory(err);
    if (!GROW(s->node, 0, s->node_space) || !GROW(s->place, 0, s->place_space)) return no_memory(err);
    s->node[STACKS_BOTTOM] = (struct stack_node){0};
    s->place[STACKS_NOWHERE] = (struct stack_place){0};
    s->node_count = s->place_count = 1;
    return 0;
}

void stacks_close(struct stacks *s)
{
    if (s->states && s->states->held) atomic_fetch_sub(s->states->held, s->counted);
    words_free(&s->words);
    free(s->node);
    free(s->place);
    free(s->node_table);
    free(s->place_table);
    free(s->list);
    free(s->mark);
    free(s->kept);
    *s = (struct stacks){0};
}

/* ---- nodes ---- */

static uint32_t mix(uint64_t h)
{
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static uint32_t node_hash(uint32_t set, uint32_t parent)
{
    return mix((uint64_t)set << 32 | parent);
}

static int grow_nodes(struct stacks *s, struct helm_err *err)
{
    const uint32_t size = 2 * s->node_table_size;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return no_memory(err);
    for (uint32_t i = 1; i < s->node_count; i++) {
        uint32_t at = node_hash(s->node[i].set, s->node[i].parent) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i;
    }
    free(s->node_table);
    s->node_table = table;
    s->node_table_size = size;
    return 0;
}

int stacks_node(struct stacks *s, uint32_t set, uint32_t parent, uint32_t *node, struct helm_err *err)
{
    uint32_t at = node_hash(set, parent) & (s->node_table_size - 1);
    for (; s->node_table[at]; at = (at + 1) & (s->node_table_size - 1)) {
        const struct stack_node *known = &s->node[s->node_table[at]];
        if (known->set != set || known->parent != parent) continue;
        *node = s->node_table[at];
        return 0;
    }
    if (s->node_count == STACKS_NODES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the grammar can be read in too many ways: more than %u stacks",
                         STACKS_NODES_MAX);
    if (!GROW(s->node, s->node_count, s->node_space)) return no_memory(err);
    s->node[s->node_count] = (struct stack_node){set, parent, s->node[parent].depth + 1};
    s->node_table[at] = s->node_count;
    *node = s->node_count++;
    const int rc = 2 * s->node_count > s->node_table_size ? grow_nodes(s, err) : 0;
    return rc ? rc : count_bytes(s, err);
}

/* ---- places ---- */

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t place_hash(const uint32_t *node, uint32_t count, bool ends)
{
    uint64_t h = ends;
    for (uint32_t i = 0; i < count; i++) h = (h ^ node[i]) * 0x100000001b3u + 0x9e37u;
    return mix(h);
}

static int grow_places(struct stacks *s, struct helm_err *err)
{
    const uint32_t size = 2 * s->place_table_size;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return no_memory(err);
    for (uint32_t i = 1; i < s->place_count; i++) {
        uint32_t at = place_hash(s->place[i].node, s->place[i].count, s->place[i].ends) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i;
    }
    free(s->place_table);
    s->place_table = table;
    s->place_table_size = size;
    return 0;
}

/* The place of the first `count` of s->list. */
static int intern(struct stacks *s, uint32_t count, bool ends, uint32_t deepest, uint32_t *place,
                  struct helm_err *err)
{
    *place = STACKS_NOWHERE;
    if (count == 0 && !ends) return 0;
    if (count > STACKS_WAYS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the output can be read in more than %d ways at once",
                         STACKS_WAYS_MAX);
    if (count > 1) qsort(s->list, count, sizeof *s->list, by_number);
    uint32_t at = place_hash(s->list, count, ends) & (s->place_table_size - 1);
    for (; s->place_table[at]; at = (at + 1) & (s->place_table_size - 1)) {
        struct stack_place *known = &s->place[s->place_table[at]];
        if (known->count != count || known->ends != ends ||
            (count && memcmp(known->node, s->list, count * sizeof *s->list) != 0))
            continue;
        if (deepest > known->deepest) known->deepest = deepest;
        *place = s->place_table[at];
        return 0;
    }
    if (s->place_count == STACKS_PLACES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the output can go on in too many ways: more than %u places",
                         STACKS_PLACES_MAX);
    if (!GROW(s->place, s->place_count, s->place_space)) return no_memory(err);
    struct stack_place *p = &s->place[s->place_count];
    *p = (struct stack_place){.count = count, .ends = ends, .deepest = deepest};
    p->node = words_take(&s->words, count);
    if (!p->node) return no_memory(err);
    if (count) memcpy(p->node, s->list, count * sizeof *s->list);
    for (uint32_t i = 0; i < count; i++)
        for (int w = 0; w < 4; w++) p->first[w] |= s->states->item[s->node[p->node[i]].set].first[w];
    s->place_table[at] = s->place_count;
    *place = s->place_count++;
    const int rc = 2 * s->place_count > s->place_table_size ? grow_places(s, err) : 0;
    return rc ? rc : count_bytes(s, err);
}

/* ---- closures ---- */

/* The list being gathered in s->list. */
struct closure {
    uint32_t count, deepest;
    bool ends;
};

static void begin_list(struct stacks *s)
{
    if (++s->round == 0) { /* came round */
        memset(s->mark, 0, s->mark_space * sizeof *s->mark);
        s->round = 1;
    }
}

static int add(struct stacks *s, struct closure *c, uint32_t node, struct helm_err *err)
{
    if (node == STACKS_BOTTOM) {
        c->ends = true;
        return 0;
    }
    while (node >= s->mark_space) {
        const uint32_t before = s->mark_space;
        if (!GROW(s->mark, before, s->mark_space)) return no_memory(err);
        memset(s->mark + before, 0, (s->mark_space - before) * sizeof *s->mark);
    }
    if (s->mark[node] == s->round) return 0;
    s->mark[node] = s->round;
    if (!GROW(s->list, c->count, s->list_space)) return no_memory(err);
    s->list[c->count++] = node;
    if (s->node[node].depth > c->deepest) c->deepest = s->node[node].depth;
    return 0;
}

/* Nothing is left of a rule after this set but its end: what was called there need not come back to it. */
static bool only_ends(const struct state *state)
{
    return state->ends && !state->reads && state->called && state->call_count == 0;
}

/* Adds what `node` calls. */
static int add_calls(struct stacks *s, struct closure *c, uint32_t node, struct helm_err *err)
{
    const struct stack_node at = s->node[node];
    for (uint32_t i = 0; i < s->states->item[at.set].call_count; i++) {
        const struct state_call call = s->states->item[at.set].call[i];
        uint32_t parent = at.parent, called;
        int rc = states_fill_calls(s->states, call.after, err);
        if (rc) return rc;
        if (!only_ends(&s->states->item[call.after])) {
            if (at.depth + 1 > STACKS_DEPTH_MAX) {
                c->deepest = STACKS_DEPTH_MAX + 1;
                continue;
            }
            rc = stacks_node(s, call.after, at.parent, &parent, err);
        }
        if (!rc) rc = stacks_node(s, call.begin, parent, &called, err);
        if (!rc) rc = add(s, c, called, err);
        if (rc) return rc;
    }
    return 0;
}

/* s->list becomes the nodes that read a byte, of itself, of what it calls and of what goes on after it. */
static int close_list(struct stacks *s, struct closure *c, uint32_t *place, struct helm_err *err)
{
    uint32_t kept = 0;
    for (uint32_t done = 0; done < c->count; done++) {
        const uint32_t node = s->list[done], set = s->node[node].set;
        int rc = states_charge(s->states, 2, err);
        if (!rc) rc = states_fill_calls(s->states, set, err);
        if (!rc) rc = states_charge(s->states, 2 * (uint64_t)s->states->item[set].call_count, err);
        if (!rc && s->states->item[set].ends) rc = add(s, c, s->node[node].parent, err);
        if (!rc) rc = add_calls(s, c, node, err);
        if (rc) return rc;
    }
    for (uint32_t i = 0; i < c->count; i++)
        if (s->states->item[s->node[s->list[i]].set].reads) s->list[kept++] = s->list[i];
    return intern(s, kept, c->ends, c->deepest, place, err);
}

int stacks_place(struct stacks *s, const uint32_t *node, uint32_t count, uint32_t *place,
                 struct helm_err *err)
{
    struct closure c = {0};
    begin_list(s);
    for (uint32_t i = 0; i < count; i++) {
        const int rc = add(s, &c, node[i], err);
        if (rc) return rc;
    }
    return close_list(s, &c, place, err);
}

int stacks_alone(struct stacks *s, uint32_t node, uint32_t *place, struct helm_err *err)
{
    struct closure c = {0};
    begin_list(s);
    const int rc = add(s, &c, node, err);
    return rc ? rc : intern(s, c.count, c.ends, c.deepest, place, err);
}

int stacks_find_step(struct stacks *s, uint32_t place, uint8_t byte, uint32_t *to, struct helm_err *err)
{
    struct closure c = {0};
    uint8_t low = 0, high = 255; /* bytes that lead there, too */
    *to = STACKS_NOWHERE;
    if (!s->place[place].to) {
        if (!(s->place[place].to = words_take(&s->words, 256))) return no_memory(err);
        memset(s->place[place].to, 0, 256 * sizeof *s->place[place].to);
    }
    begin_list(s);
    for (uint32_t i = 0; i < s->place[place].count; i++) {
        const struct stack_node at = s->node[s->place[place].node[i]];
        uint32_t set, node;
        int rc = states_charge(s->states, s->states->item[at.set].count, err);
        if (!rc) rc = states_step(s->states, at.set, byte, &set, err);
        if (rc) return rc;
        states_run(&s->states->item[at.set], byte, &low, &high);
        if (set == STATES_NONE) continue;
        rc = stacks_node(s, set, at.parent, &node, err);
        if (!rc) rc = add(s, &c, node, err);
        if (rc) return rc;
    }
    const int rc = close_list(s, &c, to, err);
    for (uint32_t b = low; b <= high && rc == 0; b++) s->place[place].to[b] = *to + 1;
    return rc;
}

/* ---- forgetting ---- */

/* s->kept becomes the stacks of a place: sets from the top down, STATES_NONE below each. */
static int keep_stacks(struct stacks *s, const struct stack_place *p, struct helm_err *err)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        for (uint32_t node = p->node[i];; node = s->node[node].parent) {
            if (!GROW(s->kept, count, s->kept_space)) return no_memory(err);
            s->kept[count++] = node == STACKS_BOTTOM ? STATES_NONE : s->node[node].set;
            if (node == STACKS_BOTTOM) break;
        }
    }
    return 0;
}

/* The stack at `chain` as nodes. *sets: how many sets it has. */
static int add_stack(struct stacks *s, struct closure *c, const uint32_t *chain, uint32_t *sets,
                     struct helm_err *err)
{
    uint32_t node = STACKS_BOTTOM;
    *sets = 0;
    while (chain[*sets] != STATES_NONE) ++*sets;
    for (uint32_t left = *sets; left > 0; left--) {
        const int rc = stacks_node(s, chain[left - 1], node, &node, err);
        if (rc) return rc;
    }
    return add(s, c, node, err);
}

int stacks_forget(struct stacks *s, uint32_t *place, struct helm_err *err)
{
    const struct stack_place p = s->place[*place];
    struct closure c = {.ends = p.ends, .deepest = p.deepest};
    const uint32_t *chain;
    uint32_t sets;
    int rc = keep_stacks(s, &p, err);
    *place = STACKS_NOWHERE;
    if (rc) return rc;
    s->node_count = s->place_count = 1;
    memset(s->node_table, 0, s->node_table_size * sizeof *s->node_table);
    memset(s->place_table, 0, s->place_table_size * sizeof *s->place_table);
    words_reset(&s->words);
    begin_list(s);
    chain = s->kept;
    for (uint32_t i = 0; i < p.count && !rc; i++, chain += sets + 1) rc = add_stack(s, &c, chain, &sets, err);
    return rc ? rc : intern(s, c.count, c.ends, c.deepest, place, err);
}
