/* Large spaces: candidates, orders, exchanges. See search/space.h. Called by search.c and search/prefill.c;
 * owns its tables.
 *
 * 1. How many of which items go where, by estimate: search/counts.c.
 * 2. In which order, for the most promising: search/order.c, then the simulation.
 * 3. Exchanges and moves, simulated, of the best few. */
#include "daemon/planner/search/mixed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "daemon/planner/cost/larger.h"
#include "daemon/planner/profile/policy.h"

#define PATIENCE 2 /* after this part of it without a gain improving ends */
/* Draws: as often as not two items change places. */
enum { ONE_MOVES, BOTH_MOVE, PLACES_CHANGE, PLACES_CHANGE_TOO, EXCHANGES };

/* ---- exchanges ---- */

static enum plan_home draw_home(const struct space_item *item, uint64_t *random)
{
    uint32_t h = random_below(random, SPACE_HOMES);
    while (!(item->allowed & 1u << h)) h = (h + 1) % SPACE_HOMES;
    return (enum plan_home)h;
}

/* An item and another one, near it as often as not. */
static void draw_pair(const struct space *s, uint64_t *random, uint32_t *a, uint32_t *b)
{
    *a = random_below(random, s->items);
    if (random_below(random, 2)) {
        *b = random_below(random, s->items);
    } else {
        uint32_t to = *a + random_below(random, 2 * ORDER_NEAR + 1);
        *b = to >= ORDER_NEAR && to - ORDER_NEAR < s->items ? to - ORDER_NEAR : *a;
    }
}

/* Memory that is left for the items of such homes, which fit. */
static struct search_bytes room_of(const struct space *s, const struct space_tally *tally,
                                   const struct space_ends *ends, uint64_t ring)
{
    const struct search_bytes all = space_tally_bytes(s, tally, ends, &ring);
    if (!s->memory) return (struct search_bytes){UINT64_MAX, UINT64_MAX};
    return (struct search_bytes){s->memory->vram_limit - (all.vram - tally->items.vram),
                                 s->memory->host_limit - (all.host - tally->items.host)};
}

/* Improves on `home`, `budget` simulations at most. */
static void improve(struct space *s, enum plan_home *home, const struct space_ends *ends, uint64_t ring,
                    uint32_t budget)
{
    const uint64_t all = s->tried + 2 * budget, patience = budget / PATIENCE + 1;
    uint64_t random = RANDOM_RATIO, end = s->tried + patience, tries = (uint64_t)ORDER_DRAWS * patience;
    bound_floors(s, ring);
    double now = space_try(s, home, ends, ring, INFINITY);
    uint32_t changes = space_changes(s, home, ends), a, b;
    struct space_tally tally = space_tally_of(s, home);
    struct search_bytes room = room_of(s, &tally, ends, ring);
    while (s->tried < end && tries-- > 0) {
        draw_pair(s, &random, &a, &b);
        const struct space_item *x = &s->item[a], *y = &s->item[b];
        enum plan_home at_x = home[x->first], at_y = home[y->first], to_x = at_y, to_y = at_x;
        const uint32_t what = random_below(&random, EXCHANGES);
        if (what == ONE_MOVES) {
            to_x = draw_home(x, &random);
            to_y = at_y;
        } else if (what == BOTH_MOVE) {
            to_x = draw_home(x, &random);
            to_y = draw_home(y, &random);
        }
        if (a == b) to_y = to_x;
        if ((to_x == at_x && to_y == at_y) || !(x->allowed & 1u << to_x) || !(y->allowed & 1u << to_y))
            continue;
        /* Most have no room: that is seen by the bytes of the two. */
        const struct search_bytes *of_a = &s->bytes[SPACE_HOMES * a], *of_b = &s->bytes[SPACE_HOMES * b];
        uint64_t vram = tally.items.vram + of_a[to_x].vram - of_a[at_x].vram,
                 host = tally.items.host + of_a[to_x].host - of_a[at_x].host;
        if (b != a) vram += of_b[to_y].vram - of_b[at_y].vram, host += of_b[to_y].host - of_b[at_y].host;
        const bool same_uses =
            tally.count[at_x] > 2 && tally.count[at_y] > 2 && tally.count[to_x] && tally.count[to_y];
        if (same_uses && isfinite(now) && (vram > room.vram || host > room.host)) continue;
        struct space_tally moved = tally;
        space_tally_move(s, &moved, a, at_x, to_x);
        if (b != a) space_tally_move(s, &moved, b, at_y, to_y);
        if (!same_uses && isfinite(now) && !space_tally_fits(s, &moved, ends, ring)) continue;
        if (space_tally_late(s, &moved, ends, now)) {
            s->tried++;
            continue;
        }
        space_put(s, home, a, to_x);
        space_put(s, home, b, to_y);
        double then = space_try_tally(s, home, &moved, ends, ring, now);
        uint32_t then_changes = space_changes(s, home, ends);
        if (then < now * (1 - ROUNDING) || (then <= now * (1 + ROUNDING) && then_changes <= changes)) {
            if (then < now * (1 - ROUNDING)) {
                end = s->tried + patience < all ? s->tried + patience : all;
                tries = (uint64_t)ORDER_DRAWS * patience;
            }
            now = then;
            changes = then_changes;
            tally = moved;
            room = room_of(s, &tally, ends, ring);
        } else {
            space_put(s, home, a, at_x);
            space_put(s, home, b, at_y);
        }
    }
}

/* ---- simpler ones ---- */

/* Changes of home at both edges of an item. */
static uint32_t edges(const struct space *s, const enum plan_home *home, const struct space_ends *ends,
                      uint32_t item)
{
    uint32_t first = s->item[item].first, last = first + s->item[item].count - 1;
    bool before = first ? home[first - 1] != home[first] : plan_home_processor(home[first]) != ends->embed;
    bool after = last + 1 < s->table->units ? home[last + 1] != home[last]
                                            : plan_home_processor(home[last]) != ends->head;
    return before + after;
}

/* Puts x and y there if that makes fewer stages of them in no more time than counts as alike. */
static bool put_simpler(struct space *s, enum plan_home *home, struct space_tally *tally, uint32_t a,
                        uint32_t b, enum plan_home to_a, enum plan_home to_b)
{
    const struct space_item *x = &s->item[a], *y = &s->item[b];
    enum plan_home at_a = home[x->first], at_b = home[y->first];
    if ((to_a == at_a && to_b == at_b) || !(x->allowed & 1u << to_a) || !(y->allowed & 1u << to_b))
        return false;
    uint32_t before = edges(s, home, s->at, a) + edges(s, home, s->at, b), changes = s->changes;
    space_put(s, home, a, to_a);
    space_put(s, home, b, to_b);
    if (edges(s, home, s->at, a) + edges(s, home, s->at, b) < before) {
        struct space_tally moved = *tally;
        space_tally_move(s, &moved, a, at_a, to_a);
        if (b != a) space_tally_move(s, &moved, b, at_b, to_b);
        if (space_tally_fits(s, &moved, s->at, s->ring))
            (void)space_try_tally(s, home, &moved, s->at, s->ring, 0);
        if (s->changes < changes) {
            *tally = moved;
            return true;
        }
    }
    space_put(s, home, a, at_a);
    space_put(s, home, b, at_b);
    return false;
}

/* Homes moved and exchanged as long as stages become fewer; space_try keeps what is alike and simpler. */
static void simplify(struct space *s, enum plan_home *home, uint32_t budget)
{
    uint64_t end = s->tried + budget;
    bool simpler = true;
    while (simpler && s->tried < end) {
        simpler = false;
        memcpy(home, s->home, s->table->units * sizeof *home);
        struct space_tally tally = space_tally_of(s, home);
        for (uint32_t a = 0; a < s->items && s->tried < end; a++) {
            for (int h = 0; h < SPACE_HOMES; h++)
                simpler |= put_simpler(s, home, &tally, a, a, (enum plan_home)h, (enum plan_home)h);
            for (uint32_t b = a + 1; b < s->items && s->tried < end; b++) {
                enum plan_home at_a = home[s->item[a].first], at_b = home[s->item[b].first];
                simpler |= put_simpler(s, home, &tally, a, b, at_b, at_a);
            }
        }
    }
}

/* ---- all ---- */

struct start {
    double seconds;
    const struct candidate *from;
    const enum plan_home *home; /* [units]: the order that was found */
};

static int by_seconds(const void *a, const void *b)
{
    const struct start *x = a, *y = b;
    return x->seconds < y->seconds ? -1 : x->seconds > y->seconds;
}

/* The same homes with every place of the ends and every ring: a smaller one may do, a larger one may fit. */
static void try_other_rings(struct space *s, const enum plan_home *home)
{
    uint64_t ring[BOUND_RINGS_MAX];
    for (uint32_t e = 0; e < s->ends_count; e++) {
        uint32_t rings = bound_rings(s, SPACE_USES - 1, &s->ends[e], BOUND_RINGS_MAX, ring);
        for (uint32_t r = 0; r < rings; r++) (void)space_try(s, home, &s->ends[e], ring[r], 0);
    }
}

static void try_orders(struct mixing *m)
{
    struct start start[CANDIDATES_MAX];
    struct space *s = m->s;
    uint32_t starts = 0, work = SPACE_WORK / s->table->units;
    for (uint32_t i = 0; i < m->candidates; i++) {
        const struct candidate *c = &m->candidate[i];
        if (c->estimate > s->fastest && i >= PLANNER_TRIES) break;
        bound_floors(s, c->ring);
        order_find(m, c);
        enum plan_home *home = m->orders + (size_t)starts * s->table->units;
        memcpy(home, m->home, s->table->units * sizeof *home);
        start[starts++] = (struct start){.seconds = space_try(s, home, c->ends, c->ring, INFINITY),
                                         .from = c,
                                         .home = home};
    }
    qsort(start, starts, sizeof *start, by_seconds);
    for (uint32_t i = 0; i < starts && i < ORDER_IMPROVED; i++) {
        memcpy(m->home, start[i].home, s->table->units * sizeof *m->home);
        improve(s, m->home, start[i].from->ends, start[i].from->ring, work / (ORDER_IMPROVED + 1));
    }
    if (!s->found) return;
    memcpy(m->home, s->home, s->table->units * sizeof *m->home);
    try_other_rings(s, m->home);
    memcpy(m->home, s->home, s->table->units * sizeof *m->home);
    improve(s, m->home, s->at, s->ring, work / (ORDER_IMPROVED + 1));
    simplify(s, m->home, work);
}

/* Where memory is so tight that estimates find nothing: what takes least of it. */
static void try_smallest(struct mixing *m)
{
    struct space *s = m->s;
    for (int vram = 0; vram < 2; vram++) {
        const struct space_ends *ends = NULL;
        unsigned uses = 0;
        if (bound_more(s, vram, m->home, &ends) != 0) continue;
        for (uint32_t u = 0; u < s->table->units; u++) uses |= 1u << m->home[u];
        (void)space_try(s, m->home, ends, space_ring_least(s, uses, ends), INFINITY);
    }
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
        rc = order_open(&m->order, s->items, err);
    }
    if (!m || !m->group_of || !m->home)
        rc = helm_fail(err, HELM_E_NOMEM, "no memory to search homes of %u half layers", units);
    if (!rc && s->memory) try_smallest(m);
    if (!rc && counts_group(m)) {
        counts_find(m);
        m->orders = malloc((size_t)m->candidates * units * sizeof *m->orders);
        if (m->orders)
            try_orders(m);
        else
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for orders of %u half layers", units);
    }
    if (m) {
        order_close(m->order);
        free(m->group_of);
        free(m->home);
        free(m->orders);
    }
    free(m);
    return rc;
}
