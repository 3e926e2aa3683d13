/* Slots of experts. See slots.h.
 *
 * All worths decay alike, so their order does not change with time: an expert's rank is log2 of its worth at
 * its last use plus that time in half-lives, and ranks are compared as they are. */
#include "common/experts/slots.h"

#include <math.h>
#include <stdlib.h>

/* Steps that what is foretold is an average over. */
#define FORETOLD_STEPS 64.0

struct place {
    uint32_t expert; /* EXPERT_SLOT_NONE: empty */
    bool coming;     /* its bytes are not there yet */
};

/* The uses of an expert of a layer. */
struct known {
    double rank, before; /* after its last use and before it; -INFINITY: never used */
    uint64_t last;       /* the step of that use */
    bool filled;         /* it is one that the slots were filled with */
};

struct expert_slots {
    struct expert_slots_case size;
    struct place *place; /* [layers][slots] */
    uint32_t *table;     /* [layers][experts]: where it is present */
    bool *coming;        /* [layers][experts] */
    struct known *known; /* [layers][experts] */
    uint64_t *uses;      /* [layers][experts] */
    uint64_t step_used, step_foretold, step_filled;
    double weight; /* of what seen.foretold and seen.filled are averages of */
    struct expert_slots_seen seen;
};

static uint64_t index_of(const struct expert_slots *s, uint32_t layer, uint32_t expert)
{
    return (uint64_t)layer * s->size.experts + expert;
}

int expert_slots_create(const struct expert_slots_case *size, struct expert_slots **slots,
                        struct helm_err *err)
{
    *slots = NULL;
    const uint64_t all = (uint64_t)size->layers * size->experts,
                   places = (uint64_t)size->layers * size->slots;
    if (all == 0 || all > EXPERT_SLOTS_MAX || size->slots > size->experts)
        return helm_fail(err, HELM_E_LIMIT,
                         "%u slots for the %u experts of each of %u layers: at most %u experts in all",
                         size->slots, size->experts, size->layers, EXPERT_SLOTS_MAX);
    if (!(size->half_life > 0) || !(size->cost >= 0))
        return helm_fail(err, HELM_E_LIMIT, "expert slots: a half-life of %g steps, a cost of %g",
                         size->half_life, size->cost);
    struct expert_slots *s = calloc(1, sizeof *s);
    if (!s) return helm_fail(err, HELM_E_NOMEM, "no memory for expert slots");
    s->size = *size;
    s->place = calloc(places ? places : 1, sizeof *s->place);
    s->table = malloc(all * sizeof *s->table);
    s->coming = calloc(all, sizeof *s->coming);
    s->known = calloc(all, sizeof *s->known);
    s->uses = calloc(all, sizeof *s->uses);
    if (!s->place || !s->table || !s->coming || !s->known || !s->uses) {
        expert_slots_free(s);
        return helm_fail(err, HELM_E_NOMEM, "no memory for the slots of %u experts", (uint32_t)all);
    }
    for (uint64_t i = 0; i < all; i++)
        s->table[i] = EXPERT_SLOT_NONE, s->known[i].rank = s->known[i].before = -INFINITY;
    for (uint64_t i = 0; i < places; i++) s->place[i].expert = EXPERT_SLOT_NONE;
    *slots = s;
    return HELM_OK;
}

void expert_slots_free(struct expert_slots *s)
{
    if (!s) return;
    free(s->place);
    free(s->table);
    free(s->coming);
    free(s->known);
    free(s->uses);
    free(s);
}

/* The absent expert of a layer with the most uses; of equals the lowest id. */
static uint32_t most_used(const struct expert_slots *s, uint32_t layer, const uint64_t *uses)
{
    uint32_t best = EXPERT_SLOT_NONE;
    for (uint32_t e = 0; e < s->size.experts; e++) {
        const uint64_t at = index_of(s, layer, e);
        if (s->table[at] != EXPERT_SLOT_NONE || s->coming[at]) continue;
        if (best == EXPERT_SLOT_NONE || (uses && uses[at] > uses[index_of(s, layer, best)])) best = e;
    }
    return best;
}

void expert_slots_fill(struct expert_slots *s, const uint64_t *uses)
{
    for (uint32_t layer = 0; layer < s->size.layers; layer++)
        for (uint32_t i = 0; i < s->size.slots; i++) {
            struct place *p = &s->place[(uint64_t)layer * s->size.slots + i];
            const uint32_t expert =
                p->expert == EXPERT_SLOT_NONE ? most_used(s, layer, uses) : EXPERT_SLOT_NONE;
            if (expert == EXPERT_SLOT_NONE) continue;
            p->expert = expert;
            s->table[index_of(s, layer, expert)] = i;
            s->known[index_of(s, layer, expert)].filled = true;
        }
}

/* Its rank without what the step before this one used: a move that this asks for is not there yet. */
static double rank_of_moved(const struct expert_slots *s, const struct known *k)
{
    return k->last + 1 == s->seen.steps ? k->before : k->rank;
}

/* Whether an expert is among the `slots` of its layer that are worth the most: present in a pool without
 * limits. */
static bool foretold(const struct expert_slots *s, uint32_t layer, uint32_t expert)
{
    const struct known *known = s->known + index_of(s, layer, 0);
    const double rank = rank_of_moved(s, &known[expert]);
    uint32_t above = 0;
    for (uint32_t e = 0; e < s->size.experts; e++) above += rank_of_moved(s, &known[e]) > rank;
    return rank > -INFINITY && above < s->size.slots;
}

/* A use in this step, of one of its tokens. */
static void use(const struct expert_slots *s, struct known *k)
{
    const double now = (double)s->seen.steps / s->size.half_life;
    if (k->last != s->seen.steps || k->rank == -INFINITY) k->before = k->rank;
    k->rank = log2(exp2(k->rank - now) + 1) + now;
    k->last = s->seen.steps;
}

void expert_slots_used(struct expert_slots *s, uint32_t layer, const uint32_t *expert, uint32_t count)
{
    if (layer >= s->size.layers) return;
    for (uint32_t i = 0; i < count; i++)
        if (expert[i] < s->size.experts) s->step_foretold += foretold(s, layer, expert[i]);
    for (uint32_t i = 0; i < count; i++) {
        if (expert[i] >= s->size.experts) continue;
        const uint64_t at = index_of(s, layer, expert[i]);
        use(s, &s->known[at]);
        s->uses[at]++;
        s->step_used++;
        s->step_filled += s->known[at].filled;
        s->seen.used++;
        s->seen.present += s->table[at] != EXPERT_SLOT_NONE;
    }
}

/* The slot of a layer that is worth the least; an empty one before all others. */
static uint32_t least_slot(const struct expert_slots *s, uint32_t layer, double *least)
{
    uint32_t best = EXPERT_SLOT_NONE;
    const struct place *place = s->place + (uint64_t)layer * s->size.slots;
    for (uint32_t i = 0; i < s->size.slots; i++) {
        if (place[i].coming) continue;
        const double rank = place[i].expert == EXPERT_SLOT_NONE
                                ? -INFINITY
                                : s->known[index_of(s, layer, place[i].expert)].rank;
        if (best == EXPERT_SLOT_NONE || rank < *least) best = i, *least = rank;
    }
    return best;
}

/* The absent expert of a layer that is worth the most. */
static uint32_t most_valuable(const struct expert_slots *s, uint32_t layer, double *most)
{
    uint32_t best = EXPERT_SLOT_NONE;
    for (uint32_t e = 0; e < s->size.experts; e++) {
        const uint64_t at = index_of(s, layer, e);
        if (s->table[at] != EXPERT_SLOT_NONE || s->coming[at]) continue;
        if (s->known[at].rank > *most) best = e, *most = s->known[at].rank;
    }
    return best;
}

/* From now on the slot's expert is absent, and the other one comes. */
static struct expert_move replace(struct expert_slots *s, uint32_t layer, uint32_t expert, uint32_t slot)
{
    struct place *p = &s->place[(uint64_t)layer * s->size.slots + slot];
    const struct expert_move move = {layer, expert, slot, p->expert};
    if (p->expert != EXPERT_SLOT_NONE) s->table[index_of(s, layer, p->expert)] = EXPERT_SLOT_NONE;
    *p = (struct place){expert, true};
    s->coming[index_of(s, layer, expert)] = true;
    s->seen.moved++;
    return move;
}

bool expert_slots_admit(struct expert_slots *s, uint32_t layer, uint32_t expert, struct expert_move *move)
{
    double low = -INFINITY;
    if (layer >= s->size.layers || expert >= s->size.experts) return false;
    const uint64_t at = index_of(s, layer, expert);
    const uint32_t slot = least_slot(s, layer, &low);
    if (slot == EXPERT_SLOT_NONE || s->table[at] != EXPERT_SLOT_NONE || s->coming[at]) return false;
    const uint32_t there = s->place[(uint64_t)layer * s->size.slots + slot].expert;
    const struct known *known = there == EXPERT_SLOT_NONE ? NULL : &s->known[index_of(s, layer, there)];
    if (known && known->rank > -INFINITY && (known->last == s->seen.steps || s->known[at].rank <= low))
        return false;
    *move = replace(s, layer, expert, slot);
    return true;
}

uint32_t expert_slots_moves(struct expert_slots *s, uint32_t layer, struct expert_move *move, uint32_t most)
{
    if (layer >= s->size.layers || !s->seen.moving) return 0;
    uint32_t count = 0;
    for (; count < most; count++) {
        double high = -INFINITY, low = -INFINITY;
        const uint32_t expert = most_valuable(s, layer, &high), slot = least_slot(s, layer, &low);
        if (expert == EXPERT_SLOT_NONE || slot == EXPERT_SLOT_NONE || high <= low) break;
        move[count] = replace(s, layer, expert, slot);
    }
    return count;
}

void expert_slots_arrived(struct expert_slots *s, const struct expert_move *move)
{
    const uint64_t at = index_of(s, move->layer, move->expert);
    s->coming[at] = false;
    s->table[at] = move->slot;
    s->place[(uint64_t)move->layer * s->size.slots + move->slot].coming = false;
}

void expert_slots_step(struct expert_slots *s)
{
    if (s->step_used > 0) {
        const double keep = s->weight * (1 - 1 / FORETOLD_STEPS), used = (double)s->step_used;
        s->seen.foretold = (s->seen.foretold * keep + (double)s->step_foretold / used) / (keep + 1);
        s->seen.filled = (s->seen.filled * keep + (double)s->step_filled / used) / (keep + 1);
        s->weight = keep + 1;
        s->seen.moving = s->seen.foretold - s->seen.filled > s->size.cost * (1 - s->seen.foretold);
    }
    s->step_used = s->step_foretold = s->step_filled = 0;
    s->seen.steps++;
}

const uint32_t *expert_slots_table(const struct expert_slots *s, uint32_t layer)
{
    return s->table + index_of(s, layer, 0);
}

struct expert_slots_seen expert_slots_seen(const struct expert_slots *s)
{
    return s->seen;
}

const uint64_t *expert_slots_uses(const struct expert_slots *s)
{
    return s->uses;
}
