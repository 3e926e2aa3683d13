/* Large spaces: how many of which items go where, then in which order, then exchanges. See search_space.h.
 * Called by search.c and search_prefill.c; owns its tables.
 *
 * 1. How many: the floors of search_bound.c are sums, so a plan's time can be estimated from the numbers of
 *    items of each group at each home. From several beginnings, for every place of the ends and several ring
 *    sizes, numbers change as long as the estimate falls.
 * 2. In which order: along the model, each item takes the home, of those that its group has left, that makes
 *    the link wait least for room, the GPU least for weights, and the step least for hand-overs.
 * 3. Exchanges and moves, simulated; the best few only. */
#include "daemon/planner/search_space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX     6
#define RINGS_MAX      10
#define CANDIDATES_MAX (4 * RINGS_MAX)
#define IMPROVED       3
#define STYLES         3
#define WORK           400000 /* item steps of simulation that an improvement may take, together */
#define EXCESS_COST    1e-6   /* seconds a byte over a limit: more than any placement gains */

/* Items that are nearly the same count as the same in an estimate: with their mean times and largest sizes.
 */
struct group {
    uint32_t members;
    double floor[SPACE_HOMES][SPACE_FLOORS];
    double seconds[SPACE_HOMES], link, bytes;
    uint64_t vram[SPACE_HOMES], host[SPACE_HOMES];
    unsigned allowed;
};

struct counts {
    int32_t n[GROUPS_MAX][SPACE_HOMES];
};

struct candidate {
    const struct space_ends *ends;
    uint64_t ring;
    struct counts counts;
    double estimate;
};

struct mixing {
    struct space *s;
    struct group group[GROUPS_MAX];
    uint32_t groups;
    uint32_t *group_of; /* [items] */
    struct candidate candidate[CANDIDATES_MAX];
    uint32_t candidates;
    enum plan_home *home; /* [units] */
    uint64_t random;
};

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

static void add_member(struct group *g, const struct space_item *item)
{
    g->members++;
    g->allowed = item->allowed;
    g->link += item->link;
    g->bytes += (double)item->bytes;
    for (int h = 0; h < SPACE_HOMES; h++) {
        for (int k = 0; k < SPACE_FLOORS; k++) g->floor[h][k] += item->floor[h][k];
        g->seconds[h] += item->seconds[h];
        if (item->vram[h] > g->vram[h]) g->vram[h] = item->vram[h];
        if (item->host[h] > g->host[h]) g->host[h] = item->host[h];
    }
}

static bool make_groups(struct mixing *m)
{
    static const double tolerances[] = {0, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 1};
    bool grouped = false;
    for (size_t t = 0; t < sizeof tolerances / sizeof *tolerances && !grouped; t++)
        grouped = group_items(m, tolerances[t]);
    if (!grouped) return false; /* more than GROUPS_MAX sets of allowed homes */
    memset(m->group, 0, sizeof m->group);
    for (uint32_t i = 0; i < m->s->items; i++) add_member(&m->group[m->group_of[i]], &m->s->item[i]);
    for (uint32_t g = 0; g < m->groups; g++) {
        struct group *group = &m->group[g];
        group->link /= group->members;
        group->bytes /= group->members;
        for (int h = 0; h < SPACE_HOMES; h++) {
            group->seconds[h] /= group->members;
            for (int k = 0; k < SPACE_FLOORS; k++) group->floor[h][k] /= group->members;
        }
    }
    return true;
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

static bool shift(struct counts *c, uint32_t g, int from, int to, int32_t by)
{
    if (c->n[g][from] < by) return false;
    c->n[g][from] -= by;
    c->n[g][to] += by;
    return true;
}

/* A move's number: group, from, to. False for what is none. */
static bool decode_move(const struct mixing *m, uint32_t move, uint32_t *g, int *from, int *to)
{
    *g = move / (SPACE_HOMES * SPACE_HOMES);
    *from = (int)(move / SPACE_HOMES % SPACE_HOMES);
    *to = (int)(move % SPACE_HOMES);
    return *from != *to && (m->group[*g].allowed & 1u << *to);
}

/* Two moves at once, up to four items each: what is exchanged when memory is full. */
static bool exchange(const struct mixing *m, struct candidate *c)
{
    uint32_t moves = m->groups * SPACE_HOMES * SPACE_HOMES, g, g2;
    struct counts best = c->counts;
    double least = c->estimate;
    int from, to, from2, to2;
    for (uint32_t a = 0; a < moves; a++) {
        if (!decode_move(m, a, &g, &from, &to) || c->counts.n[g][from] == 0) continue;
        for (uint32_t b = a + 1; b < moves; b++) {
            if (!decode_move(m, b, &g2, &from2, &to2) || c->counts.n[g2][from2] == 0) continue;
            for (int32_t amounts = 0; amounts < 16; amounts++) {
                struct counts next = c->counts;
                if (!shift(&next, g, from, to, 1 + amounts / 4) ||
                    !shift(&next, g2, from2, to2, 1 + amounts % 4))
                    continue;
                double e = estimate(m, &next, c->ends, c->ring);
                if (e >= least) continue;
                least = e;
                best = next;
            }
        }
    }
    if (least >= c->estimate * (1 - 1e-9)) return false;
    c->estimate = least;
    c->counts = best;
    return true;
}

static bool move_some(const struct mixing *m, struct candidate *c)
{
    uint32_t moves = m->groups * SPACE_HOMES * SPACE_HOMES, g;
    struct counts best = c->counts;
    double least = c->estimate;
    int from, to;
    for (uint32_t a = 0; a < moves; a++) {
        if (!decode_move(m, a, &g, &from, &to)) continue;
        for (int32_t by = 1; by <= c->counts.n[g][from]; by *= 2) {
            struct counts next = c->counts;
            (void)shift(&next, g, from, to, by);
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

/* Ring sizes that are tried: a few of the multiples, closer together where they are small. */
static uint32_t ring_sizes(const struct space *s, const struct space_ends *ends, unsigned allowed,
                           uint64_t ring[RINGS_MAX])
{
    uint64_t least = space_ring_least(s, allowed, ends), most = space_ring_most(s, allowed, ends);
    uint64_t granule = s->memory ? s->memory->ring_granule : 0;
    uint32_t count = 0;
    for (uint64_t r = least; count < RINGS_MAX && r <= most;) {
        ring[count++] = r;
        uint64_t next = granule ? r * 3 / 2 / granule * granule : 0;
        if (next <= r) next = r + granule;
        if (next <= r) break;
        r = next;
    }
    return count;
}

static void find_counts(struct mixing *m)
{
    const struct space *s = m->s;
    unsigned allowed = 0;
    for (uint32_t i = 0; i < s->items; i++) allowed |= s->item[i].allowed;
    for (uint32_t e = 0; e < s->ends_count; e++) {
        uint64_t ring[RINGS_MAX];
        uint32_t rings = ring_sizes(s, &s->ends[e], allowed, ring);
        for (uint32_t r = 0; r < rings; r++) {
            struct candidate *best = &m->candidate[m->candidates], c;
            best->ends = &s->ends[e];
            best->ring = ring[r];
            if (r > 0) {
                best->counts = best[-1].counts; /* of the same ends and the ring before */
                settle_counts(m, best);
            } else {
                best->estimate = INFINITY;
                for (int h = 0; h < SPACE_HOMES; h++) {
                    c = (struct candidate){.ends = best->ends, .ring = best->ring};
                    all_at(m, h, &c.counts);
                    settle_counts(m, &c);
                    if (c.estimate < best->estimate) *best = c;
                }
            }
            m->candidates++;
        }
    }
}

static int by_estimate(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->estimate < y->estimate ? -1 : x->estimate > y->estimate;
}

/* ---- in which order ---- */

struct course {
    const struct mixing *m;
    struct counts left, total;
    double ring, fill, rate, rate_beside; /* bytes a second, as the streamed groups' mean */
    double pace; /* what it costs to be an item ahead of an even spread, in items' seconds */
    enum plan_home worker;
};

static void course_rates(struct course *c)
{
    const struct mixing *m = c->m;
    double bytes = 0, link = 0;
    for (uint32_t g = 0; g < m->groups; g++) {
        bytes += c->total.n[g][PLAN_HOME_STREAM] * m->group[g].bytes;
        link += c->total.n[g][PLAN_HOME_STREAM] * m->group[g].link;
    }
    c->rate = link > 0 ? bytes / link : 0;
    const struct cost_unit *u = &m->s->table->unit[1];
    c->rate_beside = u->link_beside > 0 && isfinite(u->link) ? c->rate * u->link / u->link_beside : c->rate;
}

/* What it costs to put the next item of group g here, beside the time that it takes anyway. */
static double cost_of(const struct course *c, uint32_t g, int home, uint32_t seen, double *fill)
{
    const struct group *group = &c->m->group[g];
    double seconds = group->seconds[home], cost = 0;
    double used = c->total.n[g][home] - c->left.n[g][home] + 1;
    double lead = used - (double)c->total.n[g][home] * seen / group->members;
    if (plan_home_worker((enum plan_home)home) != c->worker) cost += c->m->s->hand_over;
    if (home == PLAN_HOME_STREAM) {
        double missing = fmax(0, group->bytes - c->fill), wait = 0;
        if (c->rate > 0) wait = fmax(0, missing / c->rate - seconds);
        cost += wait;
        *fill = fmin(c->ring, fmax(0, c->fill - group->bytes + (seconds + wait) * c->rate));
    } else {
        double rate = home == PLAN_HOME_CPU ? c->rate_beside : c->rate;
        double come = seconds * rate, room = c->ring - c->fill;
        if (come > room && rate > 0) cost += (come - room) / rate;
        *fill = c->fill + fmin(come, room);
    }
    double weight = home == PLAN_HOME_GPU ? 0.1 * c->pace : c->pace;
    return cost + weight * lead * group->seconds[PLAN_HOME_CPU];
}

static void set_course(struct mixing *m, const struct candidate *from, double pace)
{
    struct course c = {.m = m,
                       .left = from->counts,
                       .total = from->counts,
                       .ring = (double)from->ring,
                       .pace = pace,
                       .worker = from->ends->embed};
    uint32_t seen[GROUPS_MAX] = {0};
    course_rates(&c);
    c.fill = c.ring;
    for (uint32_t i = 0; i < m->s->items; i++) {
        uint32_t g = m->group_of[i];
        double best = INFINITY, best_fill = c.fill;
        int at = -1;
        seen[g]++;
        for (int h = 0; h < SPACE_HOMES; h++) {
            double fill = c.fill, cost = c.left.n[g][h] > 0 ? cost_of(&c, g, h, seen[g], &fill) : INFINITY;
            if (c.left.n[g][h] == 0 || (at >= 0 && cost >= best)) continue;
            best = cost;
            best_fill = fill;
            at = h;
        }
        c.left.n[g][at]--;
        c.fill = best_fill;
        c.worker = plan_home_worker((enum plan_home)at);
        space_put(m->s, m->home, i, (enum plan_home)at);
    }
}

/* ---- exchanges ---- */

static uint32_t draw(uint64_t *random, uint32_t below)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return (uint32_t)((*random >> 33) % below);
}

static enum plan_home draw_home(const struct space_item *item, uint64_t *random)
{
    uint32_t h = draw(random, SPACE_HOMES);
    while (!(item->allowed & 1u << h)) h = (h + 1) % SPACE_HOMES;
    return (enum plan_home)h;
}

/* An item and another one, near it as often as not. */
static void draw_pair(const struct space *s, uint64_t *random, uint32_t *a, uint32_t *b)
{
    *a = draw(random, s->items);
    if (draw(random, 2)) {
        *b = draw(random, s->items);
    } else {
        uint32_t to = *a + draw(random, 17);
        *b = to >= 8 && to - 8 < s->items ? to - 8 : *a;
    }
}

void mixed_improve(struct space *s, enum plan_home *home, const struct space_ends *ends, uint64_t ring,
                   uint32_t budget)
{
    uint64_t random = 0x9e3779b97f4a7c15, end = s->simulated + budget, tries = 20ull * budget;
    double now = space_try(s, home, ends, ring, INFINITY);
    uint32_t changes = space_changes(s, home, ends), a, b;
    while (s->simulated < end && tries-- > 0) {
        draw_pair(s, &random, &a, &b);
        const struct space_item *x = &s->item[a], *y = &s->item[b];
        enum plan_home at_x = home[x->first], at_y = home[y->first], to_x = at_y, to_y = at_x;
        uint32_t what = draw(&random, 4);
        if (what == 0) {
            to_x = draw_home(x, &random);
            to_y = at_y;
        } else if (what == 1) {
            to_x = draw_home(x, &random);
            to_y = draw_home(y, &random);
        }
        if (a == b) to_y = to_x;
        if ((to_x == at_x && to_y == at_y) || !(x->allowed & 1u << to_x) || !(y->allowed & 1u << to_y))
            continue;
        space_put(s, home, a, to_x);
        space_put(s, home, b, to_y);
        double then = space_try(s, home, ends, ring, now);
        uint32_t then_changes = space_changes(s, home, ends);
        if (then < now * (1 - 1e-9) || (then <= now * (1 + 1e-9) && then_changes <= changes)) {
            now = then;
            changes = then_changes;
        } else {
            space_put(s, home, a, at_x);
            space_put(s, home, b, at_y);
        }
    }
}

/* ---- all ---- */

struct start {
    double seconds;
    const struct space_ends *ends;
    uint64_t ring;
    const struct candidate *from;
    int style;
};

static const double styles[STYLES] = {0.02, 0.1, 0.4};

static int by_seconds(const void *a, const void *b)
{
    const struct start *x = a, *y = b;
    return x->seconds < y->seconds ? -1 : x->seconds > y->seconds;
}

static void try_orders(struct mixing *m)
{
    struct start start[CANDIDATES_MAX * STYLES];
    uint32_t starts = 0, work = WORK / m->s->table->units;
    qsort(m->candidate, m->candidates, sizeof *m->candidate, by_estimate);
    for (uint32_t i = 0; i < m->candidates; i++) {
        const struct candidate *c = &m->candidate[i];
        if (c->estimate > 1.1 * m->candidate[0].estimate) break;
        for (int style = 0; style < STYLES; style++) {
            set_course(m, c, styles[style]);
            double seconds = space_try(m->s, m->home, c->ends, c->ring, INFINITY);
            start[starts++] = (struct start){
                .seconds = seconds, .ends = c->ends, .ring = c->ring, .from = c, .style = style};
        }
    }
    qsort(start, starts, sizeof *start, by_seconds);
    for (uint32_t i = 0; i < starts && i < IMPROVED; i++) {
        set_course(m, start[i].from, styles[start[i].style]);
        mixed_improve(m->s, m->home, start[i].ends, start[i].ring, work / (IMPROVED + 1));
    }
    if (!m->s->found) return;
    memcpy(m->home, m->s->home, m->s->table->units * sizeof *m->home);
    mixed_improve(m->s, m->home, m->s->at, m->s->ring, work / (IMPROVED + 1));
}

int mixed_search(struct space *s, struct helm_err *err)
{
    struct mixing *m = calloc(1, sizeof *m);
    uint32_t units = s->table->units;
    int rc = 0;
    if (m) {
        m->s = s;
        m->group_of = malloc(s->items * sizeof *m->group_of);
        m->home = malloc(units * sizeof *m->home);
    }
    if (!m || !m->group_of || !m->home) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory to search homes of %u half layers", units);
        goto out;
    }
    if (make_groups(m)) {
        find_counts(m);
        try_orders(m);
    }
out:
    if (m) {
        free(m->group_of);
        free(m->home);
    }
    free(m);
    return rc;
}
