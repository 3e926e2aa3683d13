/* The space of plans that a search walks: items to place, what each costs where, what memory allows, and the
 * best plan so far.
 *
 * Internal to search*.c. An item is what is placed as one: a half layer, or a layer where cuts inside layers
 * are not wanted. Owns its arrays; prices and memory are borrowed. */
#pragma once

#include "common/base/random.h"
#include "daemon/planner/search/search.h"

#define SPACE_HOMES    SEARCH_HOMES        /* PLAN_HOME_CPU, PLAN_HOME_GPU, PLAN_HOME_STREAM */
#define SPACE_USES     (1u << SPACE_HOMES) /* sets of homes, as bits 1 << home */
#define SPACE_ENDS_MAX 4                   /* each of two on either of two processors */
/* Lower bounds of a step's time: no waiting, CPU and link together, a link that is never still
 * (docs/planner.md). */
enum space_floor { SPACE_FLOOR_WORK, SPACE_FLOOR_BOTH, SPACE_FLOOR_LINK, SPACE_FLOORS };

struct space_item {
    uint32_t first, count; /* units */
    uint32_t kind;         /* items with the same numbers have the same kind */
    unsigned allowed;      /* bits 1 << home */
    double seconds[SPACE_HOMES];
    double link;       /* seconds of copying, the link alone */
    double cache;      /* on the GPU: seconds that the link has nothing left for that (cost_kv) */
    uint64_t crossing; /* bytes of it */
    uint64_t vram[SPACE_HOMES], host[SPACE_HOMES];
    double floor[SPACE_HOMES][SPACE_FLOORS]; /* what it adds to each lower bound, search/bound.c */
};

/* The price of a plan that was tried: searches come back to half of theirs. INFINITY: it takes longer than
 * `limit`. */
struct space_priced {
    uint64_t key;
    double seconds, limit;
};

/* A place for both ends. */
struct space_ends {
    enum plan_processor embed, head;
    double seconds; /* both, and the step */
    double floor[SPACE_FLOORS];
    struct search_bytes bytes;
};

struct space {
    const struct cost_table *table;
    const struct search_memory *memory; /* NULL: all fits (prefill) */
    const bool *kv_cpu;                 /* prefill */
    bool cold;
    bool restricted; /* some item's homes are fewer than the strategy's, or a plan must use the GPU */
    bool must_use, must_attend; /* as search_problem's */
    double hand_over;
    /* 0 to 1: the part of a hand-over that costs nothing where the link is late (bound_floors) */
    double overlap;
    uint64_t ring_fixed; /* prefill: the ring that there is */
    struct space_item *item;
    struct search_bytes *bytes; /* [items][SPACE_HOMES]: those of the items, dense */
    uint32_t items, kinds;
    uint32_t *kind_first, *kind_count; /* [kinds]: an item of each, and how many there are */
    struct space_priced *priced;       /* [SPACE_PRICED]: by key, the last one of each place */
    struct space_ends ends[SPACE_ENDS_MAX];
    uint32_t ends_count;
    /* the best so far */
    bool found;
    double fastest; /* of all that were simulated */
    double seconds; /* of the one that was chosen: not more than SEARCH_ALIKE above it */
    uint32_t changes;
    uint64_t vram, host, ring;
    const struct space_ends *at;
    enum plan_home *home, *scratch; /* [units] */
    uint64_t tried;                 /* plans that were simulated, or whose price was known */
};

/* The strategy's space: see search.c. */
HELM_MUST_CHECK int space_open_strategy(struct space *space, const struct search_problem *problem,
                                        enum search_strategy strategy, struct helm_err *err);
/* `allowed`: bits of homes for units; `embeds`, `heads`: of the ends. */
HELM_MUST_CHECK int space_open(struct space *space, const struct search_problem *problem, unsigned allowed,
                               unsigned embeds, unsigned heads, struct helm_err *err);
/* The space of a prefill step after `decode`. */
HELM_MUST_CHECK int space_open_prefill(struct space *space, const struct cost_table *prefill,
                                       const struct search_found *decode, const bool *kv_cpu,
                                       struct helm_err *err);
void space_close(struct space *space);

uint32_t space_changes(const struct space *space, const enum plan_home *home, const struct space_ends *ends);
bool space_fits(const struct space *space, struct search_bytes bytes);
/* Sums of a plan's items, kept while they change their homes. */
struct space_tally {
    struct search_bytes items;
    uint32_t count[SPACE_HOMES]; /* items there */
    double floor[SPACE_FLOORS];  /* of the items, as bound_floors left them */
    uint64_t marks;              /* of their homes: plans with the same sum are the same */
};
/* A number for something and its home, whose sums differ where the homes do. */
static inline uint64_t space_mark(uint64_t of, uint32_t home)
{
    return random_mixed(of * SPACE_HOMES + home + 1);
}
struct space_tally space_tally_of(const struct space *space, const enum plan_home *home);
static inline void space_tally_move(const struct space *space, struct space_tally *tally, uint32_t item,
                                    enum plan_home from, enum plan_home to)
{
    const struct search_bytes *bytes = &space->bytes[SPACE_HOMES * item];
    tally->items.vram += bytes[to].vram - bytes[from].vram;
    tally->items.host += bytes[to].host - bytes[from].host;
    tally->count[from]--;
    tally->count[to]++;
    tally->marks += space_mark(item, to) - space_mark(item, from);
    for (int k = 0; k < SPACE_FLOORS; k++)
        tally->floor[k] += space->item[item].floor[to][k] - space->item[item].floor[from][k];
}
/* Whether such homes take longer than both the best and `give_up`, whatever their order; floors are of this
 * ring. */
bool space_tally_late(const struct space *space, const struct space_tally *tally,
                      const struct space_ends *ends, double give_up);
unsigned space_tally_uses(const struct space_tally *tally); /* a set of homes */
/* Bytes that memory counts for such homes. *ring becomes the size that it needs: none where nothing is
 * streamed, unless prefill wants one; not less than the least where something is. */
struct search_bytes space_tally_bytes(const struct space *space, const struct space_tally *tally,
                                      const struct space_ends *ends, uint64_t *ring);
/* Whether space_try would simulate such homes. */
bool space_tally_fits(const struct space *space, const struct space_tally *tally,
                      const struct space_ends *ends, uint64_t ring);
/* The bytes that a plan with this set of homes takes beside its items: ends, what is there once, the ring. */
struct search_bytes space_bytes_once(const struct space *space, unsigned uses, const struct space_ends *ends,
                                     uint64_t ring);
/* The smallest and largest rings for a plan with this set of homes; the same where it does not stream. */
uint64_t space_ring_least(const struct space *space, unsigned uses, const struct space_ends *ends);
uint64_t space_ring_most(const struct space *space, unsigned uses, const struct space_ends *ends);
/* Whether each item has a home there that it may have, and the GPU has what it must. home: [units]. */
bool space_allows(const struct space *space, const enum plan_home *home, const struct space_ends *ends);
/* Prices a plan, its ring as space_tally_bytes has it, and keeps it if it is the best. Returns its seconds;
 * INFINITY where it does not fit or is certainly slower than `give_up` (and than the best). home: [units]. */
double space_try(struct space *space, const enum plan_home *home, const struct space_ends *ends,
                 uint64_t ring, double give_up);
/* The same where the homes' tally is known. */
double space_try_tally(struct space *space, const enum plan_home *home, const struct space_tally *tally,
                       const struct space_ends *ends, uint64_t ring, double give_up);
static inline void space_put(const struct space *space, enum plan_home *home, uint32_t item,
                             enum plan_home to)
{
    for (uint32_t i = 0; i < space->item[item].count; i++) home[space->item[item].first + i] = to;
}

/* ---- search/bound.c ---- */

/* Fills in every floor, for rings of no more than this. */
void bound_floors(struct space *space, uint64_t ring);
/* Seconds and bytes of one way to have an item. */
struct bound_choice {
    double floor[SPACE_FLOORS];
    double vram, host;
};
/* Items that count as the same, each of which has one of these. */
struct bound_part {
    double count;
    const struct bound_choice *choice;
    uint32_t choices;
};
/* A bound's data other than items: floors, bytes that each limit leaves for the items; a bound as high as
 * `enough` need not be made higher. */
#define BOUND_PLENTY ((double)PLAN_BYTES_MAX)
struct bound_frame {
    double floor[SPACE_FLOORS];
    double vram, host, enough;
};
struct bound_frame bound_frame_of(const struct space *space, unsigned uses, const struct space_ends *ends,
                                  uint64_t ring);
/* A bound's prices: how it mixes the floors, what it charges a byte. */
struct bound_prices {
    double weight[SPACE_FLOORS];
    double vram, host; /* seconds a byte */
};
/* No plan with one of its choices for every item takes less. *prices: the highest bound's, or NULL. */
double bound_dual(const struct bound_part *part, uint32_t parts, const struct bound_frame *frame,
                  struct bound_prices *prices);
/* Sizes of ring from the least to the largest, each larger than the one before by a part'th of it. */
#define BOUND_RINGS_MAX 20 /* the last of them is the largest */
uint32_t bound_rings(const struct space *space, unsigned uses, const struct space_ends *ends, uint32_t part,
                     uint64_t ring[BOUND_RINGS_MAX]);
/* The growth of one limit with which something would fit, the other as it is; 0: it fits as it is. At most an
 * item's bytes above the least such growth. `home` [units] and `ends` (NULL: not wanted) get what would fit,
 * unless that is UINT64_MAX: nothing. */
uint64_t bound_more(const struct space *space, bool vram, enum plan_home *home,
                    const struct space_ends **ends);

/* ---- search/exact.c, search/mixed.c ---- */

/* Tries every plan that could be the best. *done: it came to the end; false where that is too far. */
HELM_MUST_CHECK int exact_search(struct space *space, bool *done, struct helm_err *err);
/* A good plan of a space too large for that. Changes the floors. */
HELM_MUST_CHECK int mixed_search(struct space *space, struct helm_err *err);
