/* Floors of plans, prices of memory, and what the least plan needs. See search/space.h and docs/planner.md.
 * Called by the files beside it and by the proof (tests/proof/search.c); owns nothing.
 *
 * With c the CPU's seconds alone, g the GPU's (hand-overs and the step's own among them) and l the link's, a
 * step's time is X + Y: X while the CPU computes, Y the rest. (The CPU's attention for a layer of the GPU is
 * of Y, as if neither slowed the other; what the GPU reads of the cache over the link is of l.) The link
 * copies for x of X and at most all of Y, by the factor r slower beside the CPU, which it slows: X >= c + k
 * x, x <= X, Y >= g, x / r + Y >= l. The least X + Y is the largest of three sums over the units ("floors"),
 * whatever their order:
 *
 *     c + g        c + (1 - k r) g + k r l        c (1 - 1 / r) / (1 - k) + l
 *
 * k may differ from unit to unit, since formats of weights do: the second floor goes by the least of all, the
 * third, in which each unit stands for itself, by its own.
 *
 * A ring of R bytes tells more: beside one unit on the CPU the link copies no longer than R takes it, so x
 * has a limit a unit; and a streamed unit of more than R bytes keeps the GPU for as long as the rest of it
 * takes to come.
 *
 * So the least over all plans is bounded from below by any mixture of the three, with prices for the bytes
 * that are scarce (Lagrange): every unit then chooses its home by itself. */
#include "daemon/planner/search/space.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/cost/larger.h"

/* ---- floors ---- */

/* The least k; that times r, at most 1; 1 / r; the longest x of one unit */
struct factors {
    double slow, kr, beside, longest;
};

/* By what part the link slows what takes so long alone and beside it. */
static double slowed(double alone, double beside)
{
    return beside > alone ? 1 - alone / beside : 0;
}

static struct factors factors_of(const struct space *s, uint64_t ring)
{
    double slow = 1, ratio = INFINITY, rate = INFINITY;
    for (uint32_t i = 0; i < s->items; i++)
        for (uint32_t n = 0; n < s->item[i].count; n++) {
            const struct cost_unit *u = &s->table->unit[s->item[i].first + n];
            double borrow = s->kv_cpu && unit_part(s->item[i].first) == UNIT_ATTENTION ? u->borrow : 0;
            double beside = larger(u->link_beside + borrow, SECONDS_LEAST);
            if (s->item[i].allowed & 1u << PLAN_HOME_CPU) slow = smaller(slow, slowed(u->cpu, u->cpu_beside));
            if (!(s->item[i].allowed & 1u << PLAN_HOME_STREAM)) continue;
            ratio = smaller(ratio, beside / larger(u->link + borrow, SECONDS_LEAST));
            rate = smaller(rate, larger((double)u->crossing, 1) / beside);
        }
    if (!isfinite(ratio) || ratio < 1) ratio = 1;
    if (slow >= 1) slow = 0; /* nothing may be on the CPU */
    return (struct factors){.slow = slow,
                            .kr = smaller(slow * ratio, 1),
                            .beside = 1 / ratio,
                            .longest = isfinite(rate) && rate > 0 ? (double)ring / rate : INFINITY};
}

/* `units` of them, one after another on the CPU without a pause or with: each has its limit. Where copying
 * beside them costs more than it gains, the third floor is for not copying. */
static void floors_of_cpu(const struct factors *f, double c, double slow, uint32_t units, double *floor)
{
    floor[0] = floor[1] = c;
    floor[2] = c - larger(f->beside - slow, 0) * smaller(c / (1 - slow), units * f->longest);
}

/* The least that the link slows one of an item's units. */
static double least_slowed(const struct space *s, const struct space_item *item)
{
    double slow = 1;
    for (uint32_t n = 0; n < item->count; n++) {
        const struct cost_unit *u = &s->table->unit[item->first + n];
        slow = smaller(slow, slowed(u->cpu, u->cpu_beside));
    }
    return slow < 1 ? slow : 0;
}

static void floors_of_gpu(const struct factors *f, double g, double l, double *floor)
{
    floor[0] = g;
    floor[1] = (1 - f->kr) * g + f->kr * l;
    floor[2] = l;
}

/* The least seconds of a streamed item on the GPU, with waiting for bytes that do not fit the ring. */
static double least_stream(const struct space *s, const struct space_item *item, uint64_t ring)
{
    double least = 0;
    for (uint32_t n = 0; n < item->count; n++) {
        const struct cost_unit *u = &s->table->unit[item->first + n];
        double rest = u->crossing > ring ? (double)(u->crossing - ring) / (double)u->crossing * u->link : 0;
        least += larger(u->stream, rest);
    }
    return least;
}

void bound_floors(struct space *s, uint64_t ring)
{
    struct factors f = factors_of(s, ring);
    s->overlap = f.kr;
    for (uint32_t i = 0; i < s->items; i++) {
        struct space_item *item = &s->item[i];
        double stream = least_stream(s, item, ring);
        floors_of_cpu(&f, item->seconds[PLAN_HOME_CPU], least_slowed(s, item), item->count,
                      item->floor[PLAN_HOME_CPU]);
        floors_of_gpu(&f, item->seconds[PLAN_HOME_GPU], item->cache, item->floor[PLAN_HOME_GPU]);
        floors_of_gpu(&f, stream, item->link + item->cache, item->floor[PLAN_HOME_STREAM]);
    }
    for (uint32_t i = 0; i < s->ends_count; i++) {
        struct space_ends *e = &s->ends[i];
        const struct cost_unit *head = &s->table->head;
        double floor[SPACE_FLOORS] = {0}, rest = e->seconds;
        /* The head is as the other work on the CPU. Where the link slows it less than all that, the second
         * floor counts it as if the link had all its speed meanwhile. */
        const double slow = slowed(head->cpu, head->cpu_beside);
        if (e->head == PLAN_CPU0 && head->cpu_beside > 0) {
            floors_of_cpu(&f, head->cpu, slow < 1 ? slow : 0, 1, floor);
            if (slow < f.slow) floor[1] *= 1 - f.kr;
            rest -= head->cpu;
        }
        floors_of_gpu(&f, rest, 0, e->floor);
        for (int k = 0; k < SPACE_FLOORS; k++) e->floor[k] += floor[k];
    }
}

/* ---- Lagrange ---- */

struct dual {
    const struct bound_part *part;
    uint32_t parts;
    const struct bound_frame *frame;
    struct bound_prices prices; /* of the highest value so far */
    double value;
};

/* The mixture's least value with these prices; by how much the cheapest choice is over each limit. */
static double dual_value(struct dual *d, const struct bound_prices *p, double *over_vram, double *over_host)
{
    double value = 0, vram = -d->frame->vram, host = -d->frame->host;
    for (int f = 0; f < SPACE_FLOORS; f++) value += p->weight[f] * d->frame->floor[f];
    for (uint32_t i = 0; i < d->parts; i++) {
        const struct bound_part *part = &d->part[i];
        const struct bound_choice *at = NULL;
        double least = INFINITY;
        for (const struct bound_choice *c = part->choice; c < part->choice + part->choices; c++) {
            double v = p->vram * c->vram + p->host * c->host;
            for (int f = 0; f < SPACE_FLOORS; f++) v += p->weight[f] * c->floor[f];
            if (v >= least) continue;
            least = v;
            at = c;
        }
        if (!at) return INFINITY;
        value += part->count * least;
        vram += part->count * at->vram;
        host += part->count * at->host;
    }
    *over_vram = vram;
    *over_host = host;
    value -= p->vram * d->frame->vram + p->host * d->frame->host;
    if (value > d->value) {
        d->value = value;
        d->prices = *p;
    }
    return value;
}

#define PRICE_FIRST SECONDS_LEAST /* a byte: a terabyte a second */

static double best_price(struct dual *d, struct bound_prices *p, bool host);

/* The bound at one price: with the other memory's price sought (the host's turn) or as it is. */
static double at_price(struct dual *d, struct bound_prices *p, bool host, double price, double *over)
{
    double both[2], best = -INFINITY;
    *(host ? &p->host : &p->vram) = price;
    if (host) best = best_price(d, p, false);
    best = larger(best, dual_value(d, p, &both[0], &both[1]));
    *over = both[host];
    return best;
}

/* The best bound over one memory's price. Whatever the price it is a bound, so it need not be the very best.
 */
static double best_price(struct dual *d, struct bound_prices *p, bool host)
{
    double over, low = 0, high = PRICE_FIRST, best = at_price(d, p, host, 0, &over);
    if (over <= 0) return best;
    for (; over > 0 && high < PRICE_LAST && best < d->frame->enough; high *= PRICE_GROWTH) {
        best = larger(best, at_price(d, p, host, high, &over));
        if (over <= 0) break;
        low = high;
    }
    for (int i = 0; i < PLANNER_SHARES && over <= 0 && best < d->frame->enough; i++) {
        double middle = (low + high) / 2, over_middle;
        best = larger(best, at_price(d, p, host, middle, &over_middle));
        *(over_middle > 0 ? &low : &high) = middle;
    }
    return best;
}

/* The mixture `at` of the way from one floor to the next: neighbours suffice, since their largest is convex
 * in the link's seconds with the three slopes in order. */
static double at_mixture(struct dual *d, int floor, double at, bool host)
{
    struct bound_prices p = {0};
    p.weight[floor] = 1 - at;
    p.weight[floor + 1] = at;
    return best_price(d, &p, host);
}

static double best_mixture(struct dual *d, bool host)
{
    double best = 0;
    for (int floor = 0; floor + 1 < SPACE_FLOORS && best < d->frame->enough; floor++) {
        double a = 0, b = 1, x = 1 - GOLDEN_SECTION, y = GOLDEN_SECTION;
        double at_x = at_mixture(d, floor, x, host), at_y = at_mixture(d, floor, y, host);
        best = larger(best, larger(at_mixture(d, floor, 0, host), at_mixture(d, floor, 1, host)));
        for (int i = 0; i < PLANNER_SHARES && best < d->frame->enough; i++) {
            best = larger(best, larger(at_x, at_y));
            if (at_x < at_y) {
                a = x;
                x = y;
                at_x = at_y;
                y = a + GOLDEN_SECTION * (b - a);
                at_y = at_mixture(d, floor, y, host);
            } else {
                b = y;
                y = x;
                at_y = at_x;
                x = b - GOLDEN_SECTION * (b - a);
                at_x = at_mixture(d, floor, x, host);
            }
        }
        best = larger(best, larger(at_x, at_y));
    }
    return best;
}

static bool host_is_scarce(const struct dual *d)
{
    double left = d->frame->host;
    for (uint32_t i = 0; i < d->parts; i++) {
        const struct bound_part *part = &d->part[i];
        double most = 0;
        for (uint32_t c = 0; c < part->choices; c++) most = larger(most, part->choice[c].host);
        left -= most * part->count;
    }
    return left < 0;
}

double bound_dual(const struct bound_part *part, uint32_t parts, const struct bound_frame *frame,
                  struct bound_prices *prices)
{
    struct dual d = {.part = part, .parts = parts, .frame = frame, .value = -INFINITY};
    const double bound = best_mixture(&d, host_is_scarce(&d));
    if (prices) *prices = d.prices;
    return bound;
}

struct bound_frame bound_frame_of(const struct space *s, unsigned uses, const struct space_ends *ends,
                                  uint64_t ring)
{
    const struct search_bytes once = space_bytes_once(s, uses, ends, ring);
    struct bound_frame frame = {.enough = INFINITY, .vram = BOUND_PLENTY, .host = BOUND_PLENTY};
    memcpy(frame.floor, ends->floor, sizeof frame.floor);
    if (!s->memory) return frame;
    frame.vram = (double)s->memory->vram_limit - (double)once.vram;
    frame.host = (double)s->memory->host_limit - (double)once.host;
    return frame;
}

uint32_t bound_rings(const struct space *s, unsigned uses, const struct space_ends *ends, uint32_t part,
                     uint64_t ring[BOUND_RINGS_MAX])
{
    uint64_t least = space_ring_least(s, uses, ends), most = space_ring_most(s, uses, ends), at = least;
    uint64_t granule = s->memory ? s->memory->ring_granule : 0;
    uint32_t count = 0;
    ring[count++] = least;
    while (at < most && granule) {
        uint64_t next = at + (at / part / granule ? at / part / granule : 1) * granule;
        at = next > most || count + 1 == BOUND_RINGS_MAX ? most : next;
        ring[count++] = at;
    }
    return count;
}

/* ---- what would fit ---- */

/* Every item can be somewhere in `uses`. */
static bool possible(const struct space *s, unsigned uses)
{
    for (uint32_t k = 0; k < s->kinds; k++) {
        if (!(s->item[s->kind_first[k]].allowed & uses)) return false;
    }
    return true;
}

/* Items of a kind are alike, so it is counted how many are where: models have hundreds of items, of a few
 * kinds. */
struct need {
    const struct space *s;
    bool vram; /* what is looked for; the other one is limited */
    unsigned uses;
    uint32_t (*at)[SPACE_HOMES]; /* [kinds]: how many of a kind have each home so far */
};

static const struct space_item *item_of(const struct need *n, uint32_t kind)
{
    return &n->s->item[n->s->kind_first[kind]];
}

static uint64_t bytes_of(const struct space_item *item, int home, bool vram)
{
    return vram ? item->vram[home] : item->host[home];
}

/* Each where it takes least of what is looked for. */
static uint64_t settle(struct need *n, uint64_t *other)
{
    uint64_t sum = 0;
    *other = 0;
    for (uint32_t k = 0; k < n->s->kinds; k++) {
        const struct space_item *item = item_of(n, k);
        uint32_t count = n->s->kind_count[k];
        int best = -1;
        for (int h = 0; h < SPACE_HOMES; h++) {
            n->at[k][h] = 0;
            if (!(item->allowed & n->uses & 1u << h)) continue;
            uint64_t a = bytes_of(item, h, n->vram), b = best < 0 ? 0 : bytes_of(item, best, n->vram);
            if (best < 0 || a < b || (a == b && bytes_of(item, h, !n->vram) < bytes_of(item, best, !n->vram)))
                best = h;
        }
        n->at[k][best] = count;
        sum += count * bytes_of(item, best, n->vram);
        *other += count * bytes_of(item, best, !n->vram);
    }
    return sum;
}

/* A step of relieve: one of this kind from a home to another. */
struct relief {
    uint32_t kind;
    int from, home; /* home -1: none */
    uint64_t cost, freed;
    double rate;
};

/* Among all moves that free memory: the one that costs least a byte, and the cheapest of those that free
 * `excess`. Returns the most that one frees. */
static uint64_t find_relief(const struct need *n, uint64_t excess, struct relief *cheap, struct relief *last)
{
    uint64_t most = 0;
    *cheap = (struct relief){.home = -1, .rate = INFINITY};
    *last = (struct relief){.home = -1, .cost = UINT64_MAX};
    for (uint32_t k = 0; k < n->s->kinds; k++) {
        const struct space_item *item = item_of(n, k);
        for (int pair = 0; pair < SPACE_HOMES * SPACE_HOMES; pair++) {
            int from = pair / SPACE_HOMES, h = pair % SPACE_HOMES;
            if (!n->at[k][from] || !(item->allowed & n->uses & 1u << h)) continue;
            uint64_t here = bytes_of(item, from, !n->vram), there = bytes_of(item, h, !n->vram);
            if (there >= here) continue; /* of the rest none takes less of what is looked for */
            uint64_t cost = bytes_of(item, h, n->vram) - bytes_of(item, from, n->vram), freed = here - there;
            const struct relief relief = {k, from, h, cost, freed, (double)cost / (double)freed};
            if (relief.rate < cheap->rate) *cheap = relief;
            if (freed >= excess && cost < last->cost) *last = relief;
            if (freed > most) most = freed;
        }
    }
    return most;
}

/* Takes `excess` of the other memory away, each time where it costs least a byte, the last time where it
 * costs least of all that suffice. UINT64_MAX: it cannot be done. */
static uint64_t relieve(struct need *n, uint64_t sum, uint64_t excess)
{
    while (excess) {
        struct relief cheap, last;
        uint64_t most = find_relief(n, excess, &cheap, &last), count = 1;
        if (cheap.home < 0) return UINT64_MAX;
        const struct relief *take = last.home >= 0 ? &last : &cheap;
        uint32_t *at = n->at[take->kind];
        /* The same step again as long as none is the last; the first one to a home may make others possible.
         */
        if (last.home < 0 && at[take->home]) count = (excess - most - 1) / take->freed + 1;
        if (count > at[take->from]) count = at[take->from];
        at[take->from] -= (uint32_t)count;
        at[take->home] += (uint32_t)count;
        sum += count * take->cost;
        excess -= count * take->freed < excess ? count * take->freed : excess;
    }
    return sum;
}

/* The homes as counted: of a kind, what takes least of the limited memory comes first. */
static void put_counted(const struct need *n, enum plan_home *home)
{
    const struct space *s = n->s;
    for (uint32_t i = 0; i < s->items; i++) {
        uint32_t *at = n->at[s->item[i].kind];
        int best = -1;
        for (int h = 0; h < SPACE_HOMES; h++)
            if (at[h] &&
                (best < 0 || bytes_of(&s->item[i], h, !n->vram) < bytes_of(&s->item[i], best, !n->vram)))
                best = h;
        at[best]--;
        space_put(s, home, i, (enum plan_home)best);
    }
}

uint64_t bound_more(const struct space *s, bool vram, enum plan_home *home, const struct space_ends **ends)
{
    uint64_t least = UINT64_MAX, other;
    uint64_t limit = vram ? s->memory->vram_limit : s->memory->host_limit;
    uint64_t other_limit = vram ? s->memory->host_limit : s->memory->vram_limit;
    struct need n = {.s = s, .vram = vram, .at = calloc(s->kinds, sizeof *n.at)};
    if (!n.at) return UINT64_MAX;
    for (n.uses = 1; n.uses < SPACE_USES; n.uses++)
        for (uint32_t e = 0; e < s->ends_count && possible(s, n.uses); e++) {
            struct search_bytes once =
                space_bytes_once(s, n.uses, &s->ends[e], space_ring_least(s, n.uses, &s->ends[e]));
            uint64_t once_here = vram ? once.vram : once.host, once_there = vram ? once.host : once.vram;
            uint64_t sum = settle(&n, &other);
            if (once_there > other_limit) continue;
            if (other + once_there > other_limit) sum = relieve(&n, sum, other + once_there - other_limit);
            if (sum == UINT64_MAX || sum + once_here >= least) continue;
            least = sum + once_here;
            if (ends) *ends = &s->ends[e];
            if (home) put_counted(&n, home);
        }
    free(n.at);
    if (least == UINT64_MAX) return least;
    return least > limit ? least - limit : 0;
}
