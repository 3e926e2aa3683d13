/* How many of which items go where, by estimate. See search_mixed.h. Called by search_mixed.c; owns nothing.
 *
 * The floors of search_bound.c are sums, so a plan's time can be estimated from the numbers of items of each
 * group at each home. From several beginnings, for every place of the ends and several sizes of ring, numbers
 * change as long as the estimate falls. */
#include "daemon/planner/search_mixed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXCESS_COST 1e-6 /* seconds a byte over a limit: more than any placement gains */

/* ---- groups ---- */

static bool alike(double a, double b, double tolerance)
{
    return a == b || fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

static bool items_alike(const struct space_item *a, const struct space_item *b, double tolerance)
{
    bool same = a->allowed == b->allowed && a->count == b->count &&
                alike((double)a->bytes, (double)b->bytes, tolerance);
    for (int h = 0; h < SPACE_HOMES && same; h++)
        same = !(a->allowed & 1u << h) || alike(a->seconds[h], b->seconds[h], tolerance);
    return same;
}

static bool group_items(struct mixing *m, double tolerance)
{
    const struct space *s = m->s;
    uint32_t first[GROUPS_MAX];
    m->groups = 0;
    for (uint32_t i = 0; i < s->items; i++) {
        uint32_t g = 0;
        while (g < m->groups && !items_alike(&s->item[first[g]], &s->item[i], tolerance)) g++;
        if (g == GROUPS_MAX) return false;
        if (g == m->groups) first[m->groups++] = i;
        m->group_of[i] = g;
    }
    return true;
}

bool counts_group(struct mixing *m)
{
    static const double tolerances[] = {0, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 1};
    bool grouped = false;
    for (size_t t = 0; t < sizeof tolerances / sizeof *tolerances && !grouped; t++)
        grouped = group_items(m, tolerances[t]);
    if (!grouped) return false; /* more than GROUPS_MAX sets of allowed homes */
    memset(m->group, 0, sizeof m->group);
    for (uint32_t i = 0; i < m->s->items; i++) {
        const struct space_item *item = &m->s->item[i];
        struct group *g = &m->group[m->group_of[i]];
        g->members++;
        g->allowed = item->allowed;
        g->bytes += (double)item->bytes;
        for (int h = 0; h < SPACE_HOMES; h++) {
            if (item->vram[h] > g->vram[h]) g->vram[h] = item->vram[h];
            if (item->host[h] > g->host[h]) g->host[h] = item->host[h];
        }
    }
    for (uint32_t g = 0; g < m->groups; g++) m->group[g].bytes /= m->group[g].members;
    return true;
}

/* The items' floors for this ring, in the groups' mean. */
static void group_floors(struct mixing *m, uint64_t ring)
{
    bound_floors(m->s, ring);
    for (uint32_t g = 0; g < m->groups; g++) memset(m->group[g].floor, 0, sizeof m->group[g].floor);
    for (uint32_t i = 0; i < m->s->items; i++) {
        struct group *g = &m->group[m->group_of[i]];
        for (int h = 0; h < SPACE_HOMES; h++)
            for (int k = 0; k < SPACE_FLOORS; k++) g->floor[h][k] += m->s->item[i].floor[h][k] / g->members;
    }
}

/* ---- how many ---- */

/* A plan's seconds by its numbers, memory over its limits priced prohibitively. */
static double estimate(const struct mixing *m, const struct counts *c, const struct space_ends *ends,
                       uint64_t ring)
{
    const struct space *s = m->s;
    double floor[SPACE_FLOORS], streamed = 0, most = 0, over = 0, visits = 0;
    uint64_t vram = 0, host = 0;
    unsigned uses = 0;
    memcpy(floor, ends->floor, sizeof floor);
    for (uint32_t g = 0; g < m->groups; g++) {
        const struct group *group = &m->group[g];
        for (int h = 0; h < SPACE_HOMES; h++) {
            double n = c->n[g][h];
            if (c->n[g][h] == 0) continue;
            uses |= 1u << h;
            for (int k = 0; k < SPACE_FLOORS; k++) floor[k] += n * group->floor[h][k];
            vram += (uint64_t)c->n[g][h] * group->vram[h];
            host += (uint64_t)c->n[g][h] * group->host[h];
        }
        streamed += c->n[g][PLAN_HOME_STREAM] * group->bytes;
    }
    uint64_t least = space_ring_least(s, uses, ends);
    if (!(uses & 1u << PLAN_HOME_STREAM) || ring < least) ring = least;
    struct search_bytes once = space_bytes_once(s, uses, ends, ring);
    vram += once.vram;
    host += once.host;
    if (s->memory && vram > s->memory->vram_limit) over += (double)(vram - s->memory->vram_limit);
    if (s->memory && host > s->memory->host_limit) over += (double)(host - s->memory->host_limit);
    /* The GPU is visited whenever the ring is full, and once for what is at home there. */
    if (uses & 1u << PLAN_HOME_CPU) {
        if (uses & 1u << PLAN_HOME_GPU) visits = 1;
        if (uses & 1u << PLAN_HOME_STREAM) visits = fmax(1, streamed / (double)ring);
    }
    floor[0] += 2 * visits * s->hand_over;
    floor[1] += 2 * visits * s->hand_over * (1 - s->overlap);
    for (int k = 0; k < SPACE_FLOORS; k++) most = fmax(most, floor[k]);
    return most + over * EXCESS_COST;
}

struct move {
    uint32_t g;
    int from, to;
};

static bool shift(struct counts *c, const struct move *move, int32_t by)
{
    if (c->n[move->g][move->from] < by) return false;
    c->n[move->g][move->from] -= by;
    c->n[move->g][move->to] += by;
    return true;
}

/* False for a number that is no move. */
static bool decode_move(const struct mixing *m, uint32_t number, struct move *move)
{
    move->g = number / (SPACE_HOMES * SPACE_HOMES);
    move->from = (int)(number / SPACE_HOMES % SPACE_HOMES);
    move->to = (int)(number % SPACE_HOMES);
    return move->from != move->to && (m->group[move->g].allowed & 1u << move->to);
}

/* How many moves of the second kind take the VRAM that one of the first kind gives (or the other way round).
 */
static double vram_ratio(const struct mixing *m, const struct move *a, const struct move *b)
{
    double gives = (double)m->group[a->g].vram[a->from] - (double)m->group[a->g].vram[a->to];
    double takes = (double)m->group[b->g].vram[b->to] - (double)m->group[b->g].vram[b->from];
    return takes != 0 && gives / takes > 0 && gives / takes < 4096 ? gives / takes : 0;
}

/* Two moves at once: what is exchanged when memory is full. A few items of each, or as many of the second as
 * memory has room for in exchange. */
static bool exchange(const struct mixing *m, struct candidate *c)
{
    uint32_t moves = m->groups * SPACE_HOMES * SPACE_HOMES;
    struct counts best = c->counts;
    double least = c->estimate;
    struct move a, b;
    for (uint32_t i = 0; i < moves * moves; i++) {
        if (!decode_move(m, i / moves, &a) || c->counts.n[a.g][a.from] == 0) continue;
        if (!decode_move(m, i % moves, &b) || c->counts.n[b.g][b.from] == 0) continue;
        double ratio = vram_ratio(m, &a, &b);
        for (int amounts = 0; amounts < 12; amounts++) {
            int32_t x = 1 << amounts / 4,
                    y = amounts % 4 ? 1 << (amounts % 4 - 1) : (int32_t)floor(ratio * x);
            struct counts next = c->counts;
            if (y == 0 || !shift(&next, &a, x) || !shift(&next, &b, y)) continue;
            double e = estimate(m, &next, c->ends, c->ring);
            if (e >= least) continue;
            least = e;
            best = next;
        }
    }
    if (least >= c->estimate * (1 - 1e-9)) return false;
    c->estimate = least;
    c->counts = best;
    return true;
}

static bool move_some(const struct mixing *m, struct candidate *c)
{
    uint32_t moves = m->groups * SPACE_HOMES * SPACE_HOMES;
    struct counts best = c->counts;
    double least = c->estimate;
    struct move a;
    for (uint32_t i = 0; i < moves; i++) {
        if (!decode_move(m, i, &a)) continue;
        for (int32_t by = 1; by <= c->counts.n[a.g][a.from]; by *= 2) {
            struct counts next = c->counts;
            (void)shift(&next, &a, by);
            double e = estimate(m, &next, c->ends, c->ring);
            if (e >= least) continue;
            least = e;
            best = next;
        }
    }
    if (least >= c->estimate * (1 - 1e-9)) return false;
    c->estimate = least;
    c->counts = best;
    return true;
}

static void settle_counts(const struct mixing *m, struct candidate *c)
{
    c->estimate = estimate(m, &c->counts, c->ends, c->ring);
    for (int i = 0; i < 200; i++)
        if (!move_some(m, c) && !exchange(m, c)) return;
}

static void all_at(const struct mixing *m, int home, struct counts *c)
{
    memset(c, 0, sizeof *c);
    for (uint32_t g = 0; g < m->groups; g++) {
        int at = home;
        for (int h = 0; h < SPACE_HOMES && !(m->group[g].allowed & 1u << at); h++) at = h;
        c->n[g][at] = (int32_t)m->group[g].members;
    }
}

static int by_estimate(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->estimate < y->estimate ? -1 : x->estimate > y->estimate;
}

/* Each group where it costs least at these prices of memory and of the link's time. */
static void all_by_price(const struct mixing *m, const struct bound_prices *p, struct counts *c)
{
    memset(c, 0, sizeof *c);
    for (uint32_t g = 0; g < m->groups; g++) {
        const struct group *group = &m->group[g];
        double least = INFINITY;
        int at = 0;
        for (int h = 0; h < SPACE_HOMES; h++) {
            double cost = p->vram * (double)group->vram[h] + p->host * (double)group->host[h];
            for (int k = 0; k < SPACE_FLOORS; k++) cost += p->weight[k] * group->floor[h][k];
            if (!(group->allowed & 1u << h) || cost >= least) continue;
            least = cost;
            at = h;
        }
        c->n[g][at] = (int32_t)group->members;
    }
}

/* The bound's prices, and a little more or less of each: where it is decided, all of a group changes at once.
 */
static void find_by_price(struct mixing *m, unsigned allowed, struct candidate *best)
{
    static const double nudge[] = {0.97, 1.03};
    struct bound_prices p, q;
    bound_prices_of(m->s, allowed, best->ends, best->ring, &p);
    for (int i = 0; i < 4; i++) {
        struct candidate c = {.ends = best->ends, .ring = best->ring};
        q = p;
        q.vram *= nudge[i & 1];
        q.weight[SPACE_FLOORS - 1] *= nudge[i >> 1];
        all_by_price(m, &q, &c.counts);
        settle_counts(m, &c);
        if (c.estimate < best->estimate) *best = c;
    }
}

static void find_from_all(const struct mixing *m, struct candidate *best)
{
    best->estimate = INFINITY;
    for (int h = 0; h < SPACE_HOMES; h++) {
        struct candidate c = {.ends = best->ends, .ring = best->ring};
        all_at(m, h, &c.counts);
        settle_counts(m, &c);
        if (c.estimate < best->estimate) *best = c;
    }
}

void counts_find(struct mixing *m)
{
    struct space *s = m->s;
    unsigned allowed = 0;
    for (uint32_t i = 0; i < s->items; i++) allowed |= s->item[i].allowed;
    for (uint32_t e = 0; e < s->ends_count; e++) {
        uint64_t ring[BOUND_RINGS_MAX];
        uint32_t rings = bound_rings(s, allowed, &s->ends[e], 3, ring);
        for (uint32_t r = 0; r < rings; r++) {
            struct candidate *c = &m->candidate[m->candidates++];
            group_floors(m, ring[r]);
            c->ends = &s->ends[e];
            c->ring = ring[r];
            if (r > 0) {
                c->counts = c[-1].counts; /* of the same ends and the ring before */
                settle_counts(m, c);
            } else {
                find_from_all(m, c);
            }
            find_by_price(m, allowed, c);
        }
    }
    qsort(m->candidate, m->candidates, sizeof *m->candidate, by_estimate);
}
