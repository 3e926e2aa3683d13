/* Large spaces: groups of items that are nearly the same, numbers of them, orders of those.
 *
 * Internal to search/mixed.c, search/counts.c and search/order.c. */
#pragma once

#include "daemon/planner/search/space.h"

#define GROUPS_MAX     4
#define CANDIDATES_MAX (4 * BOUND_RINGS_MAX)

/* Items that are nearly the same count as the same in an estimate: with their mean times and largest sizes.
 */
struct group {
    uint32_t count;
    unsigned allowed;
    struct bound_choice at[SPACE_HOMES]; /* floors for the ring of group_floors */
    double bytes;
};

/* How many of each group are where. */
struct counts {
    int32_t n[GROUPS_MAX][SPACE_HOMES];
};

struct candidate {
    const struct space_ends *ends;
    uint64_t ring;
    struct counts counts;
    double estimate; /* seconds */
};

struct mixing {
    struct space *s;
    struct group group[GROUPS_MAX];
    uint32_t groups;
    uint32_t *group_of; /* [items] */
    struct candidate candidate[CANDIDATES_MAX];
    uint32_t candidates;
    enum plan_home *home;   /* [units] */
    enum plan_home *orders; /* [candidates][units] */
    struct order *order;
};

/* search/counts.c: groups and candidates, the most promising first. False where items are too different in
 * what is allowed. Changes the space's floors. */
bool counts_group(struct mixing *m);
void counts_find(struct mixing *m);

/* search/order.c: writes into m->home the best order that it finds for the candidate's numbers. */
HELM_MUST_CHECK int order_open(struct order **order, uint32_t items, struct helm_err *err);
void order_close(struct order *order);
void order_find(struct mixing *m, const struct candidate *candidate);
