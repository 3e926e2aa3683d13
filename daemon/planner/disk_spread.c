/* Half layers on disk, evenly spread. See disk_spread.h. */
#include "daemon/planner/disk_spread.h"

#include "common/disk/reader.h"

/* The ring has room for so many of the largest half layers on disk: one is computed, and two are read ahead.
 * More would only take the room of half layers that are then read in each step. */
#define RING_UNITS 3

/* Gives the home `to` to half layers of a part that are at home on the CPU so far, evenly among them, until
 * the sum of their weights is about `amount`. Returns the rest of it. */
static uint64_t spread(const struct spread_layers *l, const uint64_t *weight, enum unit_part part,
                       enum plan_home to, uint64_t amount, enum plan_home *home)
{
    uint64_t all = 0;
    double due = 0;
    for (uint32_t u = 0; u < l->units; u++)
        if (unit_part(u) == part && home[u] == PLAN_HOME_CPU) all += weight[u];
    const double share = amount < all ? (double)amount / (double)all : 1;
    for (uint32_t u = 0; u < l->units; u++) {
        if (unit_part(u) != part || home[u] != PLAN_HOME_CPU) continue;
        const double own = (double)weight[u];
        due += share * own;
        if (own <= 0 || due <= own / 2) continue;
        home[u] = to;
        due -= own;
    }
    return amount < all ? 0 : amount - all;
}

void spread_homes(const struct spread_layers *l, uint32_t in_vram, uint64_t on_disk, enum plan_home *home)
{
    uint64_t one[SPREAD_UNITS_MAX];
    for (uint32_t u = 0; u < l->units; u++) {
        one[u] = 1;
        home[u] = PLAN_HOME_CPU;
    }
    const uint64_t mlps = spread(l, one, UNIT_ATTENTION, PLAN_HOME_GPU, in_vram, home);
    spread(l, one, UNIT_MLP, PLAN_HOME_GPU, mlps, home);
    const uint64_t rest = spread(l, l->room, UNIT_MLP, PLAN_HOME_DISK, on_disk, home);
    spread(l, l->room, UNIT_ATTENTION, PLAN_HOME_DISK, rest, home);
}

/* Times that the half layers on disk fill a ring of these bytes, as disk_ring_place lays them. */
static uint32_t rounds(const struct spread_layers *l, const enum plan_home *home, uint64_t bytes)
{
    uint32_t count = 1;
    uint64_t at = 0;
    for (uint32_t u = 0; u < l->units; u++) {
        if (home[u] != PLAN_HOME_DISK) continue;
        if (at + l->room[u] > bytes) count++, at = 0;
        at += l->room[u];
    }
    return count;
}

/* The smallest ring that is filled as often as one for RING_UNITS. Then each round fills it, the last one
 * too: after a round that ends early, the first half layers of the next step would wait for its few. */
uint64_t spread_ring(const struct spread_layers *l, const enum plan_home *home)
{
    uint64_t low = 0; /* blocks, too few */
    for (uint32_t u = 0; u < l->units; u++)
        if (home[u] == PLAN_HOME_DISK && l->room[u] / DISK_ALIGN > low) low = l->room[u] / DISK_ALIGN;
    uint64_t high = RING_UNITS * low--;
    if (!high) return 0;
    const uint32_t count = rounds(l, home, high * DISK_ALIGN);
    while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;
        *(rounds(l, home, middle * DISK_ALIGN) > count ? &low : &high) = middle;
    }
    return high * DISK_ALIGN;
}
