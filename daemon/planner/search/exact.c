/* Small spaces, searched to their end. See search/space.h. Called by search.c; owns nothing.
 *
 * Depth first over the items in the model's order, for every place of the ends. A branch ends where even the
 * floors of what is decided plus the least of what is not are above the fastest plan so far, or where memory
 * cannot do. Every ring size is tried for every plan that is left. */
#include "daemon/planner/search/space.h"

#include <math.h>
#include <stdlib.h>

#define CHOICES_MAX 10 /* items with more than one home */

struct partial {
    double floor[SPACE_FLOORS];
    uint64_t vram, host;
};
struct tree {
    struct space *s;
    const struct space_ends *ends;
    struct partial *rest; /* [items + 1]: the least of the items from here on */
    uint64_t most;        /* simulations */
};

static double floor_of(const struct tree *t, const struct partial *done, uint32_t item)
{
    double most = 0;
    for (int k = 0; k < SPACE_FLOORS; k++)
        most = fmax(most, t->ends->floor[k] + done->floor[k] + t->rest[item].floor[k]);
    return most;
}

static void leaf(struct tree *t, unsigned uses)
{
    uint64_t least = space_ring_least(t->s, uses, t->ends), ring = space_ring_most(t->s, uses, t->ends);
    for (;; ring -= t->s->memory->ring_granule) {
        (void)space_try(t->s, t->s->scratch, t->ends, ring, 0);
        if (ring <= least) return;
    }
}

static void descend(struct tree *t, uint32_t at, const struct partial *done, unsigned uses)
{
    struct space *s = t->s;
    if (s->tried > t->most) return;
    if (floor_of(t, done, at) > s->fastest * (1 + SEARCH_ALIKE)) return;
    if (s->memory && (done->vram + t->rest[at].vram > s->memory->vram_limit ||
                      done->host + t->rest[at].host > s->memory->host_limit))
        return;
    if (at == s->items) {
        leaf(t, uses);
        return;
    }
    const struct space_item *item = &s->item[at];
    for (int h = SPACE_HOMES - 1; h >= 0; h--) {
        struct partial next = *done;
        if (!(item->allowed & 1u << h)) continue;
        for (int k = 0; k < SPACE_FLOORS; k++) next.floor[k] += item->floor[h][k];
        next.vram += item->vram[h];
        next.host += item->host[h];
        space_put(s, s->scratch, at, (enum plan_home)h);
        descend(t, at + 1, &next, uses | 1u << h);
    }
}

static void least_of_rest(struct tree *t)
{
    for (uint32_t i = t->s->items; i-- > 0;) {
        const struct space_item *item = &t->s->item[i];
        struct partial least = {.vram = UINT64_MAX, .host = UINT64_MAX};
        for (int k = 0; k < SPACE_FLOORS; k++) least.floor[k] = INFINITY;
        for (int h = 0; h < SPACE_HOMES; h++) {
            if (!(item->allowed & 1u << h)) continue;
            for (int k = 0; k < SPACE_FLOORS; k++) least.floor[k] = fmin(least.floor[k], item->floor[h][k]);
            if (item->vram[h] < least.vram) least.vram = item->vram[h];
            if (item->host[h] < least.host) least.host = item->host[h];
        }
        t->rest[i] = t->rest[i + 1];
        for (int k = 0; k < SPACE_FLOORS; k++) t->rest[i].floor[k] += least.floor[k];
        t->rest[i].vram += least.vram;
        t->rest[i].host += least.host;
    }
}

int exact_search(struct space *s, bool *done, struct helm_err *err)
{
    struct tree t = {.s = s, .most = s->tried + SPACE_WORK};
    const struct partial none = {0};
    uint32_t choices = 0;
    *done = false;
    for (uint32_t i = 0; i < s->items; i++) {
        if (!s->item[i].allowed) {
            *done = true; /* a home for it there is not: nothing fits */
            return 0;
        }
        choices += (s->item[i].allowed & (s->item[i].allowed - 1)) != 0;
    }
    if (choices > CHOICES_MAX) return 0;
    t.rest = calloc((size_t)s->items + 1, sizeof *t.rest);
    if (!t.rest) return helm_fail(err, HELM_E_NOMEM, "no memory to search %u items", s->items);
    least_of_rest(&t);
    for (uint32_t e = 0; e < s->ends_count; e++) {
        t.ends = &s->ends[e];
        descend(&t, 0, &none, 0);
    }
    *done = s->tried <= t.most;
    free(t.rest);
    return 0;
}
