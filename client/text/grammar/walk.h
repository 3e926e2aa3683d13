/* Walks over a trie of tokens, from places of a stack; and where characters of a class lead from a place.
 *
 * Called by summary.c, which notes where the bottom of the stack was reached inside a token, and by mask.c.
 * Owns nothing. */
#pragma once

#include "client/text/grammar/slices.h"
#include "client/text/grammar/stacks.h"

#define WALK_LEADS 8

/* Where a walk is below a node: which child comes next, and the place that the node's bytes lead to. */
struct walk_level {
    uint32_t next, place;
};
/* A node with more below it at which the bottom was reached; how deep it lies (0: in a trie of tails). */
struct walk_exit {
    const struct trie *trie;
    uint32_t node, depth;
};
struct walk_exits {
    struct walk_exit *item; /* malloc */
    uint32_t count, space;
};
struct walk {
    const struct trie *trie;
    struct stacks *stacks;
    struct walk_level *level; /* [longest token + 2] */
    uint32_t *bits;           /* takes the tokens that are allowed */
    struct walk_exits *exits; /* NULL: not noted */
    bool tails;               /* the trie is one of tails */
    uint32_t deepest;         /* of the stacks on the way */
};

static inline void walk_set_bit(uint32_t *bits, uint32_t id)
{
    bits[id >> 5] |= 1u << (id & 31);
}

/* Node `first` of the trie, its siblings after it and what is below them; their parent is at `place`. */
HELM_MUST_CHECK int walk(struct walk *w, uint32_t first, uint32_t place, struct helm_err *err);
/* All of a trie. */
HELM_MUST_CHECK static inline int walk_all(struct walk *w, const struct trie *trie, uint32_t place,
                                           struct helm_err *err)
{
    w->trie = trie;
    return trie->count ? walk(w, 0, place, err) : 0;
}

/* Where the characters of a class lead: all of them to one of `place`, or all nowhere (dead). uneven:
 * neither, or to an end of the rule, or to too many places; the rest says nothing then. */
struct walk_leads {
    uint32_t place[WALK_LEADS], count;
    bool dead, uneven;
};
/* Adds those of one place. */
HELM_MUST_CHECK int walk_lead(struct walk *w, uint32_t place, enum slice_class class, struct walk_leads *l,
                              struct helm_err *err);
