/* How many of which items go where, by estimate. See search/mixed.h. Called by search/mixed.c; owns nothing.
 *
 * The floors of search/bound.c are sums, so a plan's time can be estimated from the numbers of items of each
 * group at each home. From several beginnings, for every place of the ends and several sizes of ring, numbers
 * change as long as the estimate falls. */
#include "daemon/planner/search/mixed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/cost/larger.h"
#include "daemon/planner/profile/policy.h"

#define EXCHANGE_MAX 4 /* items of the first kind in an exchange; 1, 2 and 4 are tried */

/* ---- groups ---- */

static bool alike(double a, double b, double tolerance)
{
    return a == b || fabs(a - b) <= tolerance * larger(fabs(a), fabs(b));
}

static bool items_alike(const struct space_item *a, const struct space_item *b, double tolerance)
{
    bool same = a->allowed == b->allowed && a->count == b->count &&
                alike((double)a->crossing, (double)b->crossing, tolerance);
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
    /* the less alike, the rougher the estimate: as much as it takes for GROUPS_MAX groups */
    bool grouped = group_items(m, 0);
    for (double tolerance = WORTH_NOTING / 2; !grouped && tolerance < 2; tolerance *= 2)
        grouped = group_items(m, smaller(tolerance, 1));
    if (!grouped) return false; /* more than GROUPS_MAX sets of allowed homes */
    memset(m->group, 0, sizeof m->group);
    for (uint32_t i = 0; i < m->s->items; i++) {
        const struct space_item *item = &m->s->item[i];
        struct group *g = &m->group[m->group_of[i]];
        g->count++;
        g->allowed = item->allowed;
        g->bytes += (double)item->crossing;
        for (int h = 0; h < SPACE_HOMES; h++) {
            g->at[h].vram = larger(g->at[h].vram, (double)item->vram[h]);
            g->at[h].host = larger(g->at[h].host, (double)item->host[h]);
        }
    }
    for (uint32_t g = 0; g < m->groups; g++) m->group[g].bytes /= m->group[g].count;
    return true;
}

/* The items' floors for this ring, in the groups' mean. */
static void group_floors(struct mixing *m, uint64_t ring)
{
    bound_floors(m->s, ring);
    for (uint32_t g = 0; g < m->groups; g++)
        for (int h = 0; h < SPACE_HOMES; h++)
            memset(m->group[g].at[h].floor, 0, sizeof m->group[g].at[h].floor);
    for (uint32_t i = 0; i < m->s->items; i++) {
        struct group *g = &m->group[m->group_of[i]];
        for (int h = 0; h < SPACE_HOMES; h++)
            for (int k = 0; k < SPACE_FLOORS; k++) g->at[h].floor[k] += m->s->item[i].floor[h][k] / g->count;
    }
}

/* ---- how many ---- */

/* Sums of the numbers: the floors, bytes, items by home. */
enum { VRAM = SPACE_FLOORS, HOST, STREAMED, AT, SUMS = AT + SPACE_HOMES };
struct totals {
    double sum[SUMS];
};

static void add_totals(struct totals *t, const struct totals *more, double times)
{
    for (int i = 0; i < SUMS; i++) t->sum[i] += times * more->sum[i];
}

/* The sums of one item. */
static struct totals totals_of_item(const struct mixing *m, uint32_t g, int home)
{
    const struct bound_choice *at = &m->group[g].at[home];
    struct totals t = {0};
    for (int k = 0; k < SPACE_FLOORS; k++) t.sum[k] = at->floor[k];
    t.sum[VRAM] = at->vram;
    t.sum[HOST] = at->host;
    t.sum[AT + home] = 1;
    if (home == PLAN_HOME_STREAM) t.sum[STREAMED] = m->group[g].bytes;
    return t;
}

static struct totals totals_of(const struct mixing *m, const struct counts *c)
{
    struct totals t = {0};
    for (uint32_t g = 0; g < m->groups; g++)
        for (int h = 0; h < SPACE_HOMES; h++) {
            const struct totals item = totals_of_item(m, g, h);
            add_totals(&t, &item, c->n[g][h]);
        }
    return t;
}

/* A candidate's constants in an estimate. once: what there is once, by the homes that are used. */
struct frame {
    double floor[SPACE_FLOORS], weight[SPACE_FLOORS]; /* of the ends; of the hand-overs' time */
    double hand_over;
    struct {
        double vram, host, ring; /* bytes above the limits, 0 or less: below them; the ring's own */
    } once[SPACE_USES];
};

static void frame_open(const struct mixing *m, const struct candidate *c, struct frame *f)
{
    const struct space *s = m->s;
    *f = (struct frame){.weight = {1, 1 - s->overlap, 0}, .hand_over = 2 * s->hand_over};
    memcpy(f->floor, c->ends->floor, sizeof f->floor);
    for (unsigned uses = 0; uses < SPACE_USES; uses++) {
        uint64_t ring = c->ring, least = space_ring_least(s, uses, c->ends);
        if (!(uses & 1u << PLAN_HOME_STREAM) || ring < least) ring = least;
        struct search_bytes once = space_bytes_once(s, uses, c->ends, ring);
        f->once[uses].ring = (double)ring;
        f->once[uses].vram = s->memory ? (double)once.vram - (double)s->memory->vram_limit : -INFINITY;
        f->once[uses].host = s->memory ? (double)once.host - (double)s->memory->host_limit : -INFINITY;
    }
}

/* A plan's seconds by its numbers and `times` of some more, memory over its limits priced prohibitively;
 * INFINITY where they are `limit` or more: most are by a floor, and the rest is not added up then. */
static double estimate(const struct frame *f, const struct totals *base, const struct totals *more,
                       double times, double limit)
{
    struct totals t;
    double most = 0, visits = 0;
    unsigned uses = 0;
    for (int k = 0; k < SPACE_FLOORS; k++) {
        t.sum[k] = base->sum[k] + times * more->sum[k];
        if (t.sum[k] + f->floor[k] >= limit) return INFINITY;
    }
    for (int i = SPACE_FLOORS; i < SUMS; i++) t.sum[i] = base->sum[i] + times * more->sum[i];
    for (int h = 0; h < SPACE_HOMES; h++)
        uses |= t.sum[AT + h] > ROUNDING ? 1u << h : 0; /* whole numbers, but for rounding */
    const double over =
        larger(0, t.sum[VRAM] + f->once[uses].vram) + larger(0, t.sum[HOST] + f->once[uses].host);
    if (over * PRICE_LAST >= limit) return INFINITY;
    /* The GPU is visited whenever the ring is full, and once for what is at home there. */
    if (uses & 1u << PLAN_HOME_CPU) {
        if (uses & 1u << PLAN_HOME_GPU) visits = 1;
        if (uses & 1u << PLAN_HOME_STREAM) visits = larger(1, t.sum[STREAMED] / f->once[uses].ring);
    }
    for (int k = 0; k < SPACE_FLOORS; k++)
        most = larger(most, t.sum[k] + f->floor[k] + f->weight[k] * visits * f->hand_over);
    return most + over * PRICE_LAST;
}

struct move {
    uint32_t g;
    int from, to;
    int32_t most;      /* items that there are to move */
    struct totals one; /* what moving one of them changes */
};

#define MOVES_MAX (GROUPS_MAX * SPACE_HOMES * (SPACE_HOMES - 1))

static uint32_t list_moves(const struct mixing *m, const struct counts *c, struct move *move)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < m->groups; g++)
        for (int from = 0; from < SPACE_HOMES; from++)
            for (int to = 0; to < SPACE_HOMES; to++) {
                if (from == to || c->n[g][from] <= 0 || !(m->group[g].allowed & 1u << to)) continue;
                const struct totals less = totals_of_item(m, g, from);
                struct move *a = &move[count++];
                *a = (struct move){g, from, to, c->n[g][from], totals_of_item(m, g, to)};
                add_totals(&a->one, &less, -1);
            }
    return count;
}

static void shift(struct counts *c, const struct move *move, int32_t by)
{
    c->n[move->g][move->from] -= by;
    c->n[move->g][move->to] += by;
}

/* How many moves of the second kind take the VRAM that one of the first kind gives (or the other way round).
 */
static double vram_ratio(const struct move *a, const struct move *b)
{
    double gives = -a->one.sum[VRAM], takes = b->one.sum[VRAM];
    return takes != 0 ? larger(0, gives / takes) : 0;
}

/* The best change that was found: up to two moves, NULL: none. */
struct change {
    const struct move *a, *b;
    int32_t x, y;
    double estimate;
};

static bool make_change(const struct change *change, struct candidate *c)
{
    if (!change->a || change->estimate >= c->estimate * (1 - ROUNDING)) return false;
    shift(&c->counts, change->a, change->x);
    if (change->b) shift(&c->counts, change->b, change->y);
    c->estimate = change->estimate;
    return true;
}

/* Two moves at once: what is exchanged when memory is full. A few items of each, or as many of the second as
 * memory has room for in exchange. */
static void exchange(const struct frame *f, const struct totals *now, const struct move *move, uint32_t moves,
                     struct change *best)
{
    for (const struct move *a = move; a < move + moves; a++)
        for (const struct move *b = move; b < move + moves; b++) {
            if (a == b) continue;
            const double ratio = vram_ratio(a, b);
            const bool same = a->g == b->g && a->from == b->from; /* items move once */
            for (int32_t x = 1; x <= EXCHANGE_MAX && x <= a->most; x *= 2) {
                const int32_t amounts[] = {(int32_t)smaller(ratio * x, (double)b->most + 1), 1, 2,
                                           EXCHANGE_MAX},
                              most = b->most - (same ? x : 0);
                struct totals part = *now;
                add_totals(&part, &a->one, x);
                for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
                    const int32_t y = amounts[i];
                    if (y == 0 || y > most) continue;
                    const double e = estimate(f, &part, &b->one, y, best->estimate);
                    if (e < best->estimate) *best = (struct change){a, b, x, y, e};
                }
            }
        }
}

static void move_some(const struct frame *f, const struct totals *now, const struct move *move,
                      uint32_t moves, struct change *best)
{
    for (const struct move *a = move; a < move + moves; a++)
        for (int32_t by = 1; by <= a->most; by *= 2) {
            const double e = estimate(f, now, &a->one, by, best->estimate);
            if (e < best->estimate) *best = (struct change){.a = a, .x = by, .estimate = e};
        }
}

static void settle_counts(const struct mixing *m, struct candidate *c)
{
    struct frame f;
    struct move move[MOVES_MAX];
    struct totals now = totals_of(m, &c->counts);
    frame_open(m, c, &f);
    c->estimate = estimate(&f, &now, &now, 0, INFINITY);
    for (;;) { /* each change makes it faster */
        struct change best = {.estimate = c->estimate};
        uint32_t moves = list_moves(m, &c->counts, move);
        move_some(&f, &now, move, moves, &best);
        if (!make_change(&best, c)) {
            best = (struct change){.estimate = c->estimate};
            exchange(&f, &now, move, moves, &best);
            if (!make_change(&best, c)) return;
        }
        now = totals_of(m, &c->counts);
    }
}

static void all_at(const struct mixing *m, int home, struct counts *c)
{
    memset(c, 0, sizeof *c);
    for (uint32_t g = 0; g < m->groups; g++) {
        int at = home;
        for (int h = 0; h < SPACE_HOMES && !(m->group[g].allowed & 1u << at); h++) at = h;
        c->n[g][at] = (int32_t)m->group[g].count;
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
            double cost = p->vram * group->at[h].vram + p->host * group->at[h].host;
            for (int k = 0; k < SPACE_FLOORS; k++) cost += p->weight[k] * group->at[h].floor[k];
            if (!(group->allowed & 1u << h) || cost >= least) continue;
            least = cost;
            at = h;
        }
        c->n[g][at] = (int32_t)group->count;
    }
}

/* The least seconds of a candidate of these ends and this ring, and the prices that give this bound. */
static double bound_of(const struct mixing *m, const struct candidate *c, struct bound_prices *prices)
{
    struct bound_choice choice[GROUPS_MAX * SPACE_HOMES];
    struct bound_part part[GROUPS_MAX];
    for (uint32_t g = 0, n = 0; g < m->groups; g++) {
        part[g] = (struct bound_part){.count = m->group[g].count, .choice = choice + n};
        for (int h = 0; h < SPACE_HOMES; h++)
            if (m->group[g].allowed & 1u << h) choice[n++] = m->group[g].at[h];
        part[g].choices = (uint32_t)(choice + n - part[g].choice);
    }
    const struct bound_frame frame = bound_frame_of(m->s, SPACE_USES - 1, c->ends, c->ring);
    return bound_dual(part, m->groups, &frame, prices);
}

/* The bound's prices, and a little more or less of each: where it is decided, all of a group changes at once.
 */
static void find_by_price(struct mixing *m, const struct bound_prices *p, struct candidate *best)
{
    static const double nudge[] = {1 - WORTH_NOTING, 1 + WORTH_NOTING};
    struct counts begun[4];
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        struct candidate c = {.ends = best->ends, .ring = best->ring};
        struct bound_prices q = *p;
        bool known = false;
        q.vram *= nudge[i & 1];
        q.weight[SPACE_FLOORS - 1] *= nudge[i >> 1];
        all_by_price(m, &q, &c.counts);
        begun[i] = c.counts;
        for (size_t j = 0; j < i; j++) known |= memcmp(&begun[j], &begun[i], sizeof begun[i]) == 0;
        if (known) continue;
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
    double least = INFINITY; /* of the estimates so far */
    for (uint32_t i = 0; i < s->items; i++) allowed |= s->item[i].allowed;
    for (uint32_t e = 0; e < s->ends_count; e++) {
        uint64_t ring[BOUND_RINGS_MAX];
        const struct candidate *before = NULL; /* of the same ends and a smaller ring */
        uint32_t rings = bound_rings(s, allowed, &s->ends[e], SEARCH_RING_PART, ring);
        for (uint32_t r = 0; r < rings; r++) {
            struct candidate *c = &m->candidate[m->candidates];
            struct bound_prices prices;
            group_floors(m, ring[r]);
            *c = (struct candidate){.ends = &s->ends[e], .ring = ring[r]};
            if (bound_of(m, c, &prices) > least * (1 + WORTH_CHANGE)) continue;
            if (before) {
                c->counts = before->counts;
                settle_counts(m, c);
            } else {
                find_from_all(m, c);
            }
            find_by_price(m, &prices, c);
            least = smaller(least, c->estimate);
            before = c;
            m->candidates++;
        }
    }
    qsort(m->candidate, m->candidates, sizeof *m->candidate, by_estimate);
}
