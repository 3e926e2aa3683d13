/* The deterministic automaton, lazily. See states.h. */
#include "client/text/grammar/states.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOMEM, "no memory for a grammar's states");
}

int states_open(const struct nfa *nfa, struct states *s, struct helm_err *err)
{
    *s = (struct states){.nfa = nfa, .table_size = 256, .count = 1, .work_max = UINT64_MAX, .held = s->held};
    const int rc = states_hold(s, nfa_bytes(nfa) + 2 * nfa->states * sizeof *s->list, err);
    if (rc) return rc;
    s->item = calloc(STATES_MAX, sizeof *s->item); /* the kernel gives only the pages that are touched */
    s->table = calloc(s->table_size, sizeof *s->table);
    s->list = malloc(nfa->states * sizeof *s->list);
    s->mark = calloc(nfa->states, sizeof *s->mark);
    return s->item && s->table && s->list && s->mark ? 0 : no_memory(err);
}

int states_hold(struct states *s, size_t bytes, struct helm_err *err)
{
    if (!s->held) return 0;
    s->counted += bytes;
    if (atomic_fetch_add(s->held, bytes) + bytes <= GRAMMAR_BYTES_MAX) return 0;
    return helm_fail(err, HELM_E_BUSY, "the grammars in use hold more than %zu MiB together",
                     GRAMMAR_BYTES_MAX >> 20);
}

void states_drop(struct states *s, size_t bytes)
{
    if (!s->held) return;
    s->counted -= bytes;
    atomic_fetch_sub(s->held, bytes);
}

void states_close(struct states *s)
{
    states_drop(s, s->counted);
    for (uint32_t i = 0; s->item && i < s->count; i++) {
        free(s->item[i].member);
        free(s->item[i].call);
        free(s->item[i].to);
    }
    free(s->item);
    free(s->table);
    free(s->list);
    free(s->mark);
    *s = (struct states){0};
}

int states_charge(struct states *s, uint64_t steps, struct helm_err *err)
{
    s->work += steps;
    if (s->stop && atomic_load_explicit(s->stop, memory_order_relaxed))
        return helm_fail(err, HELM_E_CANCELLED, "the output is not wanted any more");
    if (s->work <= s->work_max) return 0;
    return helm_fail(
        err, HELM_E_LIMIT,
        "the grammar can be read in too many ways: what may come next takes more than %llu steps",
        (unsigned long long)s->work_max);
}

/* ---- interning ---- */

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t hash_of(const uint32_t *list, uint32_t count)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; i++) h = (h ^ list[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 29);
}

static int grow_table(struct states *s, struct helm_err *err)
{
    const uint32_t size = 4 * s->table_size;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return no_memory(err);
    for (uint32_t i = 1; i < s->count; i++) {
        uint32_t at = s->item[i].hash & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i;
    }
    free(s->table);
    s->table = table;
    s->table_size = size;
    return 0;
}

/* Fills in a set's description from its members. */
static void describe(const struct nfa *nfa, struct state *state)
{
    for (uint32_t i = 0; i < state->count; i++) {
        const uint32_t m = state->member[i];
        for (uint32_t e = nfa->first[m]; e < nfa->first[m + 1]; e++) {
            if (nfa->edge[e].kind != NFA_BYTES) continue;
            state->reads = true;
            for (uint32_t b = nfa->edge[e].low; b <= nfa->edge[e].high; b++)
                state->first[b >> 6] |= UINT64_C(1) << (b & 63);
        }
    }
}

/* Sorts and looks up s->list[0 .. count). */
static int intern(struct states *s, uint32_t count, bool ends, uint32_t *set, struct helm_err *err)
{
    *set = STATES_NONE;
    if (count == 0) return 0;
    qsort(s->list, count, sizeof *s->list, by_number);
    const uint32_t hash = hash_of(s->list, count);
    uint32_t at = hash & (s->table_size - 1);
    for (; s->table[at]; at = (at + 1) & (s->table_size - 1)) {
        const struct state *known = &s->item[s->table[at]];
        if (known->hash != hash || known->count != count ||
            memcmp(known->member, s->list, count * sizeof *s->list) != 0)
            continue;
        *set = s->table[at];
        return 0;
    }
    if (s->count == STATES_MAX || s->members + count > STATES_MEMBERS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the grammar is at more than %u different states of %u parts",
                         s->count, s->members);
    const int rc = states_hold(s, sizeof *s->item + count * sizeof *s->list, err);
    if (rc) return rc;
    s->members += count;
    struct state *state = &s->item[s->count];
    *state = (struct state){.count = count,
                            .hash = hash,
                            .ends = ends,
                            .member = malloc(count * sizeof *state->member)};
    if (!state->member) return no_memory(err);
    memcpy(state->member, s->list, count * sizeof *s->list);
    describe(s->nfa, state);
    s->table[at] = s->count;
    *set = s->count++;
    return 2 * s->count > s->table_size ? grow_table(s, err) : 0;
}

/* ---- closures ---- */

static void begin_list(struct states *s)
{
    if (++s->round == 0) { /* came round */
        memset(s->mark, 0, s->nfa->states * sizeof *s->mark);
        s->round = 1;
    }
}

static void add(struct states *s, uint32_t member, uint32_t *count)
{
    if (s->mark[member] == s->round) return;
    s->mark[member] = s->round;
    s->list[(*count)++] = member;
}

static bool is_end(const struct nfa *nfa, uint32_t member)
{
    /* a rule's end is the state after its begin; the end of one rule is the begin of none */
    uint32_t low = 0, high = nfa->rules;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (nfa->end[mid] < member)
            low = mid + 1;
        else
            high = mid;
    }
    return low < nfa->rules && nfa->end[low] == member;
}

/* Closes the list over empty edges, and keeps what matters of it. */
static int close_list(struct states *s, uint32_t count, uint32_t *set, struct helm_err *err)
{
    const struct nfa *nfa = s->nfa;
    uint32_t kept = 0;
    bool ends = false;
    for (uint32_t done = 0; done < count; done++) {
        const uint32_t m = s->list[done];
        const int rc = states_charge(s, nfa->first[m + 1] - nfa->first[m] + 1, err);
        if (rc) return rc;
        for (uint32_t e = nfa->first[m]; e < nfa->first[m + 1]; e++)
            if (nfa->edge[e].kind == NFA_EMPTY) add(s, nfa->edge[e].to, &count);
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t m = s->list[i];
        const bool end = is_end(nfa, m);
        bool matters = end;
        ends = ends || end;
        for (uint32_t e = nfa->first[m]; e < nfa->first[m + 1] && !matters; e++)
            matters = nfa->edge[e].kind != NFA_EMPTY;
        if (matters) s->list[kept++] = m;
    }
    return intern(s, kept, ends, set, err);
}

int states_of(struct states *s, const uint32_t *member, uint32_t count, uint32_t *set, struct helm_err *err)
{
    uint32_t n = 0;
    begin_list(s);
    for (uint32_t i = 0; i < count; i++) add(s, member[i], &n);
    return close_list(s, n, set, err);
}

int states_step(struct states *s, uint32_t set, uint8_t byte, uint32_t *to, struct helm_err *err)
{
    struct state *state = &s->item[set];
    *to = STATES_NONE;
    if (!state_reads(state, byte)) return 0;
    if (!state->to) {
        const int rc = states_hold(s, 256 * sizeof *state->to, err);
        if (rc) return rc;
        if (!(state->to = calloc(256, sizeof *state->to))) return no_memory(err);
    }
    if (state->to[byte]) {
        *to = state->to[byte] - 1;
        return 0;
    }
    uint32_t count = 0, low = 0, high = 255; /* bytes that the same edges read */
    begin_list(s);
    for (uint32_t i = 0; i < state->count; i++) {
        const uint32_t m = state->member[i];
        for (uint32_t e = s->nfa->first[m]; e < s->nfa->first[m + 1]; e++) {
            const struct nfa_edge *edge = &s->nfa->edge[e];
            if (edge->kind != NFA_BYTES) continue;
            if (byte < edge->low) {
                if (edge->low <= high) high = edge->low - 1u;
            } else if (byte > edge->high) {
                if (edge->high >= low) low = edge->high + 1u;
            } else {
                if (edge->low > low) low = edge->low;
                if (edge->high < high) high = edge->high;
                add(s, edge->to, &count);
            }
        }
    }
    const int rc = close_list(s, count, to, err);
    for (uint32_t b = low; b <= high && rc == 0; b++) s->item[set].to[b] = *to + 1;
    return rc;
}

void states_run(const struct state *state, uint8_t byte, uint8_t *low, uint8_t *high)
{
    const bool reads = state_reads(state, byte);
    uint32_t from = byte, to = byte;
    while (from > *low && state_reads(state, (uint8_t)(from - 1)) == reads &&
           (!reads || state->to[from - 1] == state->to[byte]))
        from--;
    while (to < *high && state_reads(state, (uint8_t)(to + 1)) == reads &&
           (!reads || state->to[to + 1] == state->to[byte]))
        to++;
    *low = (uint8_t)from;
    *high = (uint8_t)to;
}

/* ---- calls ---- */

static int by_rule(const void *a, const void *b)
{
    const struct nfa_edge *x = a, *y = b;
    return x->rule < y->rule ? -1 : x->rule > y->rule;
}

int states_fill_calls(struct states *s, uint32_t set, struct helm_err *err)
{
    const struct nfa *nfa = s->nfa;
    uint32_t count = 0, n = 0, calls = 0;
    int rc = 0;
    if (s->item[set].called) return 0;
    for (uint32_t i = 0; i < s->item[set].count; i++) {
        const uint32_t m = s->item[set].member[i];
        for (uint32_t e = nfa->first[m]; e < nfa->first[m + 1]; e++) count += nfa->edge[e].kind == NFA_CALL;
    }
    rc = states_hold(s, count * sizeof(struct state_call), err);
    if (rc) return rc;
    struct nfa_edge *edge = malloc((count ? count : 1) * sizeof *edge);
    struct state_call *call = malloc((count ? count : 1) * sizeof *call);
    uint32_t *targets = malloc((count ? count : 1) * sizeof *targets);
    if (!edge || !call || !targets) rc = no_memory(err);
    for (uint32_t i = 0; i < s->item[set].count && !rc; i++) {
        const uint32_t m = s->item[set].member[i];
        for (uint32_t e = nfa->first[m]; e < nfa->first[m + 1]; e++)
            if (nfa->edge[e].kind == NFA_CALL) edge[n++] = nfa->edge[e];
    }
    if (n && !rc) qsort(edge, n, sizeof *edge, by_rule);
    for (uint32_t i = 0, end; i < n && !rc; i = end) { /* one set follows the calls of a rule */
        for (end = i; end < n && edge[end].rule == edge[i].rule; end++) targets[end - i] = edge[end].to;
        rc = states_of(s, targets, end - i, &call[calls].after, err);
        if (!rc) rc = states_of(s, &nfa->begin[edge[i].rule], 1, &call[calls].begin, err);
        calls++;
    }
    free(edge);
    free(targets);
    if (rc) {
        free(call);
        return rc;
    }
    s->item[set].call = call;
    s->item[set].call_count = calls;
    s->item[set].called = true;
    return 0;
}

int states_twin(struct states *s, uint32_t set, uint32_t *twin, struct helm_err *err)
{
    const struct state *state = &s->item[set];
    bool some = false;
    uint32_t count = 0;
    *twin = set;
    for (uint32_t i = 0; i < state->count; i++) some = some || s->nfa->twin[state->member[i]] != NFA_NO_TWIN;
    if (!some) return 0;
    begin_list(s);
    for (uint32_t i = 0; i < state->count; i++) {
        const uint32_t m = state->member[i], other = s->nfa->twin[m];
        add(s, other == NFA_NO_TWIN ? m : other, &count);
    }
    return close_list(s, count, twin, err);
}
