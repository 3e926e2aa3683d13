/* Sets of an automaton's states, each with a number: the deterministic automaton, made as far as it is
 * visited.
 *
 * Owned by a struct helm_grammar and guarded by its lock. A set is closed over empty edges and keeps those
 * states that read a byte, call a rule or end their rule. mask.c hangs a summary of the allowed tokens on a
 * set. */
#pragma once

#include "client/text/grammar/nfa.h"

#define STATES_MAX         (1u << 15) /* sets of one grammar */
#define STATES_MEMBERS_MAX (1u << 21) /* of all of them together */
#define STATES_NONE        0u         /* the empty set */
#define GRAMMAR_BYTES_MAX                                                                                    \
    ((size_t)256 << 20) /* of all grammars of a vocabulary and of all outputs' places in them */

struct summary;

struct state_call {
    uint32_t begin, after; /* sets: where the called rule begins, and what follows it */
};
struct state {
    uint32_t *member; /* sorted states of the automaton */
    uint32_t count, hash;
    bool ends;         /* the rule may end here */
    bool reads;        /* some member reads a byte */
    bool called;       /* `call` is filled in */
    uint64_t first[4]; /* bytes that are read */
    struct state_call *call;
    uint32_t call_count;
    uint32_t *to; /* [256], by byte, plus one; 0: not asked for yet. NULL: none yet */
    struct summary *summary;
};

struct states {
    const struct nfa *nfa;
    /* [count]; item[STATES_NONE] is the empty set. It has room for STATES_MAX from the start, so that no copy
     * makes a token wait. */
    struct state *item;
    uint32_t count, members;
    uint32_t *table; /* open addressing, of numbers; 0: free */
    uint32_t table_size;
    _Atomic size_t *held;     /* the vocabulary's; NULL: not counted */
    size_t counted;           /* bytes that it has of this grammar, but for stacks */
    const _Atomic bool *stop; /* the matcher's: its work is not wanted any more; NULL: none */
    uint64_t work, work_max;  /* steps since states_allow, and how many there may be */
    /* scratch of closures */
    uint32_t *list, *mark; /* [nfa->states]; mark[s] == round: s is in the list */
    uint32_t round;
};

HELM_MUST_CHECK int states_open(const struct nfa *nfa, struct states *states, struct helm_err *err);
/* Summaries are mask.c's to free before. */
void states_close(struct states *states);
/* Allows so many steps from here on: a step looks at one state, stack or node of a trie. Then the work that
 * follows fails. */
static inline void states_allow(struct states *states, uint64_t steps)
{
    states->work = 0;
    states->work_max = steps;
}
/* Charges steps before they are made. */
HELM_MUST_CHECK int states_charge(struct states *states, uint64_t steps, struct helm_err *err);
/* Counts bytes of the grammar before they are taken: HELM_E_BUSY if all grammars together hold too many. */
HELM_MUST_CHECK int states_hold(struct states *states, size_t bytes, struct helm_err *err);
void states_drop(struct states *states, size_t bytes);
/* The set of these states and what empty edges lead to. */
HELM_MUST_CHECK int states_of(struct states *states, const uint32_t *member, uint32_t count, uint32_t *set,
                              struct helm_err *err);
/* The set after a byte; STATES_NONE: it is not read here. */
HELM_MUST_CHECK int states_step(struct states *states, uint32_t set, uint8_t byte, uint32_t *to,
                                struct helm_err *err);
/* Fills in the calls of a set. */
HELM_MUST_CHECK int states_fill_calls(struct states *states, uint32_t set, struct helm_err *err);
/* The set that stands for this one when it comes to which tokens are allowed (nfa->twin). */
HELM_MUST_CHECK int states_twin(struct states *states, uint32_t set, uint32_t *twin, struct helm_err *err);

/* Narrows [*low, *high], which `byte` lies in, to bytes that lead where it leads, as far as that is known. */
void states_run(const struct state *state, uint8_t byte, uint8_t *low, uint8_t *high);

static inline bool state_reads(const struct state *s, uint8_t byte)
{
    return s->first[byte >> 6] >> (byte & 63) & 1;
}
