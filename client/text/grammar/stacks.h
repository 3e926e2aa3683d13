/* Where an output may stand in its grammar: every way of reading it so far, as a stack of called rules each.
 *
 * A stack is a node: a set of states and the node that goes on when the rule ends (a graph-structured stack,
 * Tomita 1987: equal ends are one node). A place is a set of nodes that read a byte, with a number; the step
 * from place to place by a byte is remembered. Node 0 is below every stack: to be at it is to have ended.
 * Used by mask.c, for each matcher and for the walks that make summaries. Owns its nodes and places; the
 * states belong to the grammar. */
#pragma once

#include "client/text/grammar/states.h"
#include "client/text/grammar/words.h"

#define STACKS_DEPTH_MAX  192        /* rules called from one another; what nests deeper is not allowed */
#define STACKS_WAYS_MAX   512        /* nodes of a place */
#define STACKS_NODES_MAX  (1u << 16) /* of one walk: 2 MiB */
#define STACKS_PLACES_MAX (1u << 16)
#define STACKS_BOTTOM     0u
#define STACKS_NOWHERE    0u /* the place without nodes */

struct stack_node {
    uint32_t set, parent, depth;
};
struct stack_place {
    uint32_t *node; /* [count] sorted */
    uint32_t count;
    uint32_t deepest; /* depth of a node on the way here; above STACKS_DEPTH_MAX: one was left out */
    bool ends;        /* the bottom was reached */
    uint64_t first[4];
    uint32_t *to; /* [256], plus one; NULL: none asked for yet */
    /* walk.c's: where every character of SLICE_PLAIN leads, plus one; 0: not asked for, or they lead apart */
    uint32_t plain;
};

struct stacks {
    struct states *states;
    struct stack_node *node;
    struct stack_place *place;
    uint32_t node_count, node_space, place_count, place_space;
    uint32_t *node_table, node_table_size, *place_table, place_table_size; /* of numbers; 0: free */
    struct words words;                                                    /* places point to these */
    size_t counted; /* bytes that states->held has of this one */
    /* scratch of closures, and of forgetting */
    uint32_t *list, *mark, list_space, mark_space, round;
    uint32_t *kept, kept_space;
};

HELM_MUST_CHECK int stacks_open(struct states *states, struct stacks *stacks, struct helm_err *err);
void stacks_close(struct stacks *stacks);
HELM_MUST_CHECK int stacks_node(struct stacks *stacks, uint32_t set, uint32_t parent, uint32_t *node,
                                struct helm_err *err);
/* The place of these nodes with what they call and what goes on after them. */
HELM_MUST_CHECK int stacks_place(struct stacks *stacks, const uint32_t *node, uint32_t count, uint32_t *place,
                                 struct helm_err *err);
/* The place of one node alone, without that. */
HELM_MUST_CHECK int stacks_alone(struct stacks *stacks, uint32_t node, uint32_t *place, struct helm_err *err);
/* The place after a byte, found for the first time. */
HELM_MUST_CHECK int stacks_find_step(struct stacks *stacks, uint32_t place, uint8_t byte, uint32_t *to,
                                     struct helm_err *err);
/* Forgets all but one place, whose number changes. After an error there is none left, and it is
 * STACKS_NOWHERE. */
HELM_MUST_CHECK int stacks_forget(struct stacks *stacks, uint32_t *place, struct helm_err *err);

HELM_MUST_CHECK static inline int stacks_step(struct stacks *stacks, uint32_t place, uint8_t byte,
                                              uint32_t *to, struct helm_err *err)
{
    const struct stack_place *p = &stacks->place[place];
    if (!(p->first[byte >> 6] >> (byte & 63) & 1)) {
        *to = STACKS_NOWHERE;
        return 0;
    }
    if (p->to && p->to[byte]) {
        *to = p->to[byte] - 1;
        return 0;
    }
    return stacks_find_step(stacks, place, byte, to, err);
}
