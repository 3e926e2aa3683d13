/* Walks over a trie of tokens. See walk.h. */
#include "client/text/grammar/walk.h"

#include <stdlib.h>

#include "common/base/grow.h"

static int note_exit(struct walk *w, uint32_t node, uint32_t depth, struct helm_err *err)
{
    struct walk_exits *e = w->exits;
    if (!w->trie->node[node].children) return 0; /* nothing goes on there */
    if (!GROW(e->item, e->count, e->space))
        return helm_fail(err, HELM_E_NOMEM, "no memory for the tokens that a grammar allows");
    e->item[e->count++] = (struct walk_exit){w->trie, node, w->tails ? 0 : depth};
    return 0;
}

#define WALK_DONE UINT32_MAX

int walk(struct walk *w, uint32_t first, uint32_t place, struct helm_err *err)
{
    struct walk_level *level = w->level;
    *level = (struct walk_level){first, place};
    for (;;) {
        uint32_t next;
        while (level->next == WALK_DONE) {
            if (level == w->level) return 0;
            level--;
        }
        const uint32_t i = level->next;
        const struct trie_node node = w->trie->node[i];
        level->next = node.last ? WALK_DONE : i + 1;
        int rc = states_charge(w->stacks->states, 1, err);
        if (!rc) rc = stacks_step(w->stacks, level->place, node.byte, &next, err);
        if (rc) return rc;
        if (next == STACKS_NOWHERE) continue;
        for (uint32_t t = 0; t < node.count; t++) walk_set_bit(w->bits, w->trie->token[node.first + t]);
        const struct stack_place *p = &w->stacks->place[next];
        if (p->deepest > w->deepest) w->deepest = p->deepest;
        if (w->exits && p->ends) {
            const int noted = note_exit(w, i, (uint32_t)(level - w->level) + 1, err);
            if (noted) return noted;
        }
        if (p->count && node.children) *++level = (struct walk_level){node.children, next};
    }
}

/* ---- characters of a class ---- */

static void add_lead(struct walk *w, struct walk_leads *l, uint32_t place)
{
    const struct stack_place *p = &w->stacks->place[place];
    if (p->deepest > w->deepest) w->deepest = p->deepest;
    if (p->ends) l->uneven = true;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->place[i] == place) return;
    if (l->count == WALK_LEADS)
        l->uneven = true;
    else
        l->place[l->count++] = place;
}

/* Places inside a character that were seen, with what was to follow: most first bytes lead to few. */
struct inside {
    struct {
        uint32_t place, more;
        uint8_t low, high;
    } seen[16];
    uint32_t count;
};

static bool seen_before(struct inside *in, uint32_t place, const uint8_t range[2], uint32_t more)
{
    for (uint32_t i = 0; i < in->count; i++)
        if (in->seen[i].place == place && in->seen[i].more == more && in->seen[i].low <= range[0] &&
            in->seen[i].high >= range[1])
            return true;
    if (in->count < sizeof in->seen / sizeof *in->seen) {
        in->seen[in->count].place = place;
        in->seen[in->count].more = more;
        in->seen[in->count].low = range[0];
        in->seen[in->count++].high = range[1];
    }
    return false;
}

/* Bytes in `range` from `place` on, each of which `more` continuation bytes follow, the first of them in
 * `second`. */
struct lead {
    uint32_t place, more;
    const uint8_t *range, *second; /* [2] each */
};
static int lead_bytes(struct walk *w, struct walk_leads *l, struct inside *in, const struct lead *lead,
                      struct helm_err *err)
{
    static const uint8_t any[2] = {0x80, 0xbf};
    const uint32_t more = lead->more;
    uint32_t before = UINT32_MAX, next;
    for (uint32_t byte = lead->range[0]; byte <= lead->range[1] && !l->uneven; byte++) {
        int rc = stacks_step(w->stacks, lead->place, (uint8_t)byte, &next, err);
        if (rc) return rc;
        if (next == before) continue;
        before = next;
        if (next == STACKS_NOWHERE) {
            l->dead = true;
        } else if (more == 0) {
            add_lead(w, l, next);
        } else {
            const struct stack_place *p = &w->stacks->place[next];
            if (p->deepest > w->deepest) w->deepest = p->deepest;
            if (p->ends) l->uneven = true;
            if (!seen_before(in, next, lead->second, more))
                rc = lead_bytes(w, l, in, &(struct lead){next, more - 1, lead->second, any}, err);
        }
        if (rc) return rc;
        if (l->dead && l->count) l->uneven = true;
    }
    return 0;
}

/* UTF-8 beyond ASCII: ranges of the first and the second byte, and how many follow the first (RFC 3629);
 * wider second ranges first, which cover the narrower. */
static const struct {
    uint8_t first[2], second[2], more;
} encodings[] = {
    {{0xc2, 0xdf}, {0x80, 0xbf}, 1}, {{0xe1, 0xec}, {0x80, 0xbf}, 2}, {{0xee, 0xef}, {0x80, 0xbf}, 2},
    {{0xf1, 0xf3}, {0x80, 0xbf}, 3}, {{0xe0, 0xe0}, {0xa0, 0xbf}, 2}, {{0xed, 0xed}, {0x80, 0x9f}, 2},
    {{0xf0, 0xf0}, {0x90, 0xbf}, 3}, {{0xf4, 0xf4}, {0x80, 0x8f}, 3},
};

static int lead_long(struct walk *w, struct walk_leads *l, uint32_t place, struct helm_err *err)
{
    struct inside in = {.count = 0};
    int rc = 0;
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings && !rc && !l->uneven; i++)
        rc = lead_bytes(w, l, &in,
                        &(struct lead){place, encodings[i].more, encodings[i].first, encodings[i].second},
                        err);
    return rc;
}

static int lead_ascii(struct walk *w, struct walk_leads *l, uint32_t place, enum slice_class class,
                      struct helm_err *err)
{
    for (uint32_t byte = 0x20; byte < 0x80 && !l->uneven; byte++) {
        uint32_t next;
        if (!slice_has_byte(class, (uint8_t)byte)) continue;
        const int rc = stacks_step(w->stacks, place, (uint8_t)byte, &next, err);
        if (rc) return rc;
        if (next == STACKS_NOWHERE)
            l->dead = true;
        else
            add_lead(w, l, next);
        if (l->dead && l->count) l->uneven = true;
    }
    return 0;
}

int walk_lead(struct walk *w, uint32_t place, enum slice_class class, struct walk_leads *l,
              struct helm_err *err)
{
    if (class == SLICE_PLAIN && w->stacks->place[place].plain) {
        add_lead(w, l, w->stacks->place[place].plain - 1);
        if (l->dead) l->uneven = true;
        return 0;
    }
    const bool fresh = l->count == 0 && !l->dead;
    int rc = lead_ascii(w, l, place, class, err);
    if (class != SLICE_PLAIN || rc || l->uneven) return rc;
    rc = lead_long(w, l, place, err);
    if (!rc && fresh && !l->uneven && l->count == 1) w->stacks->place[place].plain = l->place[0] + 1;
    return rc;
}
