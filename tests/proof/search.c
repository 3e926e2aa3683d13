/* The bound over a space of homes. See proof.h. Called by plan.c and by tests; owns its tables.
 *
 * For every set of homes, place of the ends and range of ring sizes the Lagrange dual over its items
 * (bound_dual), and the least of all. A small ring holds the link up, a large one takes room from weights. A
 * unit in a way beside its homes is the GPU's work, and what is read over the link for it keeps no copy
 * waiting. */
#include "tests/proof/proof.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/cost/larger.h"
#include "daemon/planner/search/space.h"

#define RING_PART 4 /* rings are tried in ranges, each as long as this part of the one before */
#define ON_CPU    (1u << PLAN_HOME_CPU)
#define ON_GPU    (1u << PLAN_HOME_GPU)
#define IN_A_WAY  (1u << PLAN_HOME_MIXED) /* in a set of homes: some unit is in one of its ways */

struct bounding {
    struct space space;
    const struct proof_ways *ways;
    uint32_t parts;
    uint32_t *first;             /* [parts]: an item of each; items alike, with the same ways, are one part */
    struct bound_part *part;     /* [parts] */
    struct bound_choice *choice; /* [parts * (SPACE_HOMES + ways)] */
};

static const struct proof_way *ways_of(const struct bounding *b, const struct space_item *item)
{
    return b->ways && item->count == 1 ? b->ways->of[item->first] : NULL;
}

/* The hand-overs that no order of the units avoids. */
static double least_hand_overs(const struct space *s, unsigned uses, const struct space_ends *e)
{
    const bool cpu = uses & ON_CPU, gpu = (uses & ~ON_CPU) != 0;
    if (e->embed != e->head) return s->hand_over;
    return (e->embed == PLAN_CPU0 ? gpu : cpu) ? 2 * s->hand_over : 0;
}

static uint32_t list_choices(const struct bounding *b, const struct space_item *item, unsigned uses,
                             struct bound_choice *out)
{
    const struct proof_way *way = uses & IN_A_WAY ? ways_of(b, item) : NULL;
    uint32_t count = 0;
    for (unsigned h = 0; h < SPACE_HOMES; h++) {
        if (!(item->allowed & uses & 1u << h)) continue;
        out[count] = (struct bound_choice){.vram = (double)item->vram[h], .host = (double)item->host[h]};
        memcpy(out[count++].floor, item->floor[h], sizeof out->floor);
    }
    for (uint32_t i = 0; way && i < b->ways->count; i++)
        out[count++] =
            (struct bound_choice){.floor = {way[i].seconds, (1 - b->space.overlap) * way[i].seconds, 0},
                                  .vram = (double)way[i].bytes.vram,
                                  .host = (double)way[i].bytes.host};
    return count;
}

static int open_parts(struct bounding *b, struct helm_err *err)
{
    const struct space *s = &b->space;
    const uint32_t each = SPACE_HOMES + (b->ways ? b->ways->count : 0);
    b->first = calloc(s->items, sizeof *b->first);
    b->part = calloc(s->items, sizeof *b->part);
    b->choice = calloc((size_t)s->items * each, sizeof *b->choice);
    if (!b->first || !b->part || !b->choice)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the bound of %u items", s->items);
    for (uint32_t i = 0; i < s->items; i++) {
        uint32_t at = 0;
        while (at < b->parts && (s->item[b->first[at]].kind != s->item[i].kind ||
                                 ways_of(b, &s->item[b->first[at]]) != ways_of(b, &s->item[i])))
            at++;
        if (at == b->parts) {
            b->part[at].choice = b->choice + (size_t)at * each;
            b->first[b->parts++] = i;
        }
        b->part[at].count++;
    }
    return 0;
}

/* The bound over all plans with this set of homes, these ends and a ring of at least `least`, which memory
 * counts; the floors know how large it is at most. INFINITY: there is none. */
static double bound_of_set(struct bounding *b, unsigned uses, const struct space_ends *ends, uint64_t least,
                           double enough)
{
    const struct space *s = &b->space;
    const unsigned computed = uses & IN_A_WAY ? (uses & ~IN_A_WAY) | ON_CPU | ON_GPU : uses;
    const double hand_overs = least_hand_overs(s, uses, ends);
    if (!space_fits(s, space_bytes_once(s, computed, ends, least))) return INFINITY;
    for (uint32_t p = 0; p < b->parts; p++) {
        b->part[p].choices =
            list_choices(b, &s->item[b->first[p]], uses, (struct bound_choice *)b->part[p].choice);
        if (!b->part[p].choices) return INFINITY;
    }
    struct bound_frame frame = bound_frame_of(s, computed, ends, least);
    frame.enough = enough;
    frame.floor[0] += hand_overs;
    frame.floor[1] += (1 - s->overlap) * hand_overs;
    return bound_dual(b->part, b->parts, &frame, NULL);
}

static double bound_of_space(struct bounding *b, double enough)
{
    struct space *s = &b->space;
    double bound = enough;
    unsigned some = b->ways ? IN_A_WAY : 0; /* homes that some item may have */
    for (uint32_t i = 0; i < s->items; i++) some |= s->item[i].allowed;
    for (unsigned uses = some; uses > 0; uses = (uses - 1) & some)
        for (uint32_t e = 0; e < s->ends_count; e++) {
            const unsigned computed = uses & IN_A_WAY ? (uses & ~IN_A_WAY) | ON_CPU | ON_GPU : uses;
            uint64_t ring[BOUND_RINGS_MAX];
            const uint32_t rings = bound_rings(s, computed, &s->ends[e], RING_PART, ring);
            for (uint32_t r = 0; r < rings; r++) {
                const uint64_t least = r ? ring[r - 1] + s->memory->ring_granule : ring[0];
                bound_floors(s, ring[r]);
                bound = smaller(bound, bound_of_set(b, uses, &s->ends[e], least, bound));
            }
        }
    return bound;
}

int proof_search(const struct search_problem *problem, enum search_strategy strategy,
                 const struct proof_ways *ways, double enough, double *bound, struct helm_err *err)
{
    struct bounding b = {.ways = problem->device ? ways : NULL};
    *bound = enough;
    int rc = space_open_strategy(&b.space, problem, strategy, err);
    for (uint32_t i = 0; i < b.space.items && strategy == SEARCH_MIXED && !rc;
         i++) /* any layer may be whole */
        if (b.space.table->unit[b.space.item[i].first].experts) b.space.item[i].allowed = ON_CPU | ON_GPU;
    if (!rc) rc = open_parts(&b, err);
    if (!rc) *bound = bound_of_space(&b, enough);
    free(b.first);
    free(b.part);
    free(b.choice);
    space_close(&b.space);
    return rc;
}

int proof_found(const struct search_problem *problem, enum search_strategy strategy,
                const struct search_found *found, double *bound, struct helm_err *err)
{
    *bound = found->fastest;
    if (found->exact || !found->feasible) return 0;
    return proof_search(problem, strategy, NULL, found->fastest, bound, err);
}
