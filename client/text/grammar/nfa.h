/* Rules as one nondeterministic automaton over bytes, with calls from rule to rule.
 *
 * nfa.c compiles expressions; states.c reads the result. A rule has a state where it begins and one where it
 * ends. Every state that is left can reach its rule's end, so whatever was accepted so far can be completed.
 * No rule calls itself before it has read a byte. */
#pragma once

#include "client/text/grammar/expr.h"

#define NFA_STATES_MAX (1u << 18)
#define NFA_EDGES_MAX  (1u << 20)
#define NFA_NO_TWIN    UINT32_MAX

enum nfa_edge_kind { NFA_EMPTY, NFA_BYTES, NFA_CALL };
struct nfa_edge {
    uint8_t kind, low, high; /* bytes */
    uint32_t rule;           /* of a call */
    uint32_t to;             /* after it */
};
struct nfa {
    struct nfa_edge *edge; /* of state s: edge[first[s] .. first[s + 1]) */
    uint32_t *first;       /* [states + 1] */
    /* A state from which the next `horizon` bytes may be the same ones: of a long repetition's turns one
     * stands for many when it comes to which tokens are allowed. NFA_NO_TWIN: none. */
    uint32_t *twin;
    uint32_t states;
    uint32_t *begin, *end; /* [rules] */
    uint32_t rules;
    uint32_t root;
};

/* `root` becomes a rule of its own. horizon: bytes of the longest token. */
HELM_MUST_CHECK int nfa_compile(const struct exprs *exprs, uint32_t root, uint32_t horizon, struct nfa *nfa,
                                struct helm_err *err);
void nfa_free(struct nfa *nfa);
size_t nfa_bytes(const struct nfa *nfa);

/* nfa_check.c, for nfa_compile: takes out what can never end, refuses what never stops calling. */
HELM_MUST_CHECK int nfa_check(struct nfa *nfa, struct helm_err *err);
