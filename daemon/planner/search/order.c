/* In which order a candidate's numbers go along the model. See search/mixed.h. Called by search/mixed.c; owns
 * its table of states.
 *
 * A beam: item by item in the model's order, every state kept so far is continued with each home of which the
 * item's group has some left. A state is judged by the time that the step cannot be below from there on: its
 * own so far, and the floors of what is left. The simulation's link is here one rate and its ring one number.
 */
#include "daemon/planner/search/mixed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/cost/larger.h"

#define NOBODY UINT32_MAX

struct state {
    double seconds, fill; /* bytes in the ring */
    double rest[SPACE_FLOORS];
    double judged;
    uint64_t numbers; /* a hash of `left`: states with the same and the same worker are alternatives */
    struct counts left;
    enum plan_processor worker;
    uint32_t note;
};

/* How a state came to be, for reading the order back. */
struct note {
    uint32_t before;
    enum plan_home home;
};

struct order {
    struct state states[2][ORDER_WIDTH], *now, *next;
    uint64_t next_numbers[ORDER_WIDTH]; /* by what `next` is looked through: the worker's added */
    double next_judged[ORDER_WIDTH];
    uint32_t worst; /* the first of `next` that is judged worst */
    uint32_t count, next_count;
    struct note *note; /* [items * ORDER_WIDTH * SPACE_HOMES] */
    uint32_t notes;
    /* of the candidate */
    double ring, rate, rate_beside, slice;
};

int order_open(struct order **order, uint32_t items, struct helm_err *err)
{
    *order = calloc(1, sizeof **order);
    if (*order) (*order)->note = malloc((size_t)items * ORDER_WIDTH * SPACE_HOMES * sizeof(struct note));
    if (*order && (*order)->note) return 0;
    order_close(*order);
    *order = NULL;
    return helm_fail(err, HELM_E_NOMEM, "no memory to order %u items", items);
}

void order_close(struct order *order)
{
    if (order) free(order->note);
    free(order);
}

static void set_rates(struct order *o, const struct mixing *m, const struct candidate *c)
{
    const struct space *s = m->s;
    double bytes = 0, link = 0, beside = 0;
    for (uint32_t i = 0; i < s->items; i++) {
        if (!c->counts.n[m->group_of[i]][PLAN_HOME_STREAM]) continue;
        bytes += (double)s->item[i].crossing;
        link += s->item[i].link;
        for (uint32_t n = 0; n < s->item[i].count; n++)
            beside += s->table->unit[s->item[i].first + n].link_beside;
    }
    o->ring = (double)c->ring;
    o->rate = link > 0 ? bytes / link : 0;
    o->rate_beside = beside > 0 ? bytes / beside : 0;
    o->slice = s->table->slice;
}

/* The floors from here on, those of the link with what the ring has more or less than at the begin. */
static double judge(const struct order *o, const struct space *s, const struct state *t)
{
    double refill = o->rate > 0 ? (o->ring - t->fill) / o->rate : 0;
    double least = t->rest[0];
    least = larger(least, t->rest[1] + s->overlap * refill);
    return t->seconds + larger(least, t->rest[2] + refill);
}

static void pass(const struct order *o, struct state *t, double seconds, double rate)
{
    t->fill = smaller(o->ring, t->fill + seconds * rate);
    t->seconds += seconds;
}

static void compute(const struct order *o, const struct space *s, const struct space_item *item,
                    enum plan_home home, struct state *t)
{
    enum plan_processor worker = plan_home_processor(home);
    if (worker != t->worker) pass(o, t, s->hand_over, o->rate);
    t->worker = worker;
    if (home == PLAN_HOME_GPU) {
        pass(o, t, item->seconds[home], o->rate);
    } else if (home == PLAN_HOME_CPU) {
        double beside = 0, alone = item->seconds[home], active;
        for (uint32_t n = 0; n < item->count; n++) beside += s->table->unit[item->first + n].cpu_beside;
        active = o->rate_beside > 0 ? smaller(beside, (o->ring - t->fill) / o->rate_beside) : 0;
        t->fill += active * o->rate_beside;
        t->seconds += beside > 0 ? active + (1 - active / beside) * alone : alone;
    } else {
        double bytes = (double)item->crossing, own = item->seconds[home], late = 0;
        if (t->fill < bytes && o->rate > 0) late = (bytes - t->fill) / o->rate + smaller(o->slice, own);
        double seconds = larger(own, late);
        t->fill = smaller(o->ring, larger(0, t->fill + seconds * o->rate - bytes));
        t->seconds += seconds;
    }
}

static void find_worst(struct order *o)
{
    o->worst = 0;
    for (uint32_t i = 1; i < o->next_count; i++)
        if (o->next_judged[i] > o->next_judged[o->worst]) o->worst = i;
}

/* Where a state so judged is kept: of the best ORDER_WIDTH, and of those with the same numbers left one.
 * NOBODY: it is not. */
static uint32_t keep(struct order *o, uint64_t numbers, double judged)
{
    uint32_t at = 0;
    while (at < o->next_count && o->next_numbers[at] != numbers) at++;
    if (at == ORDER_WIDTH) at = o->worst;
    if (at < o->next_count && o->next_judged[at] <= judged) return NOBODY;
    o->next_numbers[at] = numbers;
    o->next_judged[at] = judged;
    if (at == o->next_count) {
        o->next_count++;
        if (judged > o->next_judged[o->worst]) o->worst = at;
    } else if (at == o->worst) {
        find_worst(o);
    }
    return at;
}

static void continue_with(struct mixing *m, uint32_t item, const struct state *from)
{
    struct order *o = m->order;
    const struct space *s = m->s;
    uint32_t g = m->group_of[item];
    for (int h = 0; h < SPACE_HOMES; h++) {
        if (from->left.n[g][h] == 0) continue;
        struct state t = *from;
        compute(o, s, &s->item[item], (enum plan_home)h, &t);
        for (int k = 0; k < SPACE_FLOORS; k++) t.rest[k] -= m->group[g].at[h].floor[k];
        t.judged = judge(o, s, &t);
        t.numbers -= space_mark(g, (uint32_t)h);
        t.note = o->notes;
        o->note[o->notes++] = (struct note){.before = from->note, .home = (enum plan_home)h};
        const uint32_t at = keep(o, t.numbers + (uint64_t)t.worker, t.judged);
        if (at == NOBODY) continue;
        o->next[at] = t;
        o->next[at].left.n[g][h]--;
    }
}

void order_find(struct mixing *m, const struct candidate *c)
{
    struct order *o = m->order;
    const struct space *s = m->s;
    set_rates(o, m, c);
    o->now = o->states[0];
    o->next = o->states[1];
    struct state *first = &o->now[0];
    o->notes = 0;
    o->count = 1;
    *first = (struct state){.fill = o->ring, .left = c->counts, .worker = c->ends->embed, .note = NOBODY};
    memcpy(first->rest, c->ends->floor, sizeof first->rest);
    for (uint32_t g = 0; g < m->groups; g++)
        for (int h = 0; h < SPACE_HOMES; h++)
            for (int k = 0; k < SPACE_FLOORS; k++)
                first->rest[k] += c->counts.n[g][h] * m->group[g].at[h].floor[k];
    for (uint32_t g = 0; g < m->groups; g++)
        for (int h = 0; h < SPACE_HOMES; h++)
            first->numbers += (uint64_t)c->counts.n[g][h] * space_mark(g, (uint32_t)h);
    for (uint32_t i = 0; i < s->items; i++) {
        o->next_count = o->worst = 0;
        for (uint32_t j = 0; j < o->count; j++) continue_with(m, i, &o->now[j]);
        struct state *const done = o->now;
        o->now = o->next;
        o->next = done;
        o->count = o->next_count;
    }
    uint32_t best = 0;
    for (uint32_t j = 1; j < o->count; j++)
        if (o->now[j].judged < o->now[best].judged) best = j;
    uint32_t note = o->now[best].note;
    for (uint32_t i = s->items; i-- > 0; note = o->note[note].before)
        space_put(s, m->home, i, o->note[note].home);
}
