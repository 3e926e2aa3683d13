/* The structs of a grammar and a matcher. Called by grammar.c, mask.c, tests and the gateway, which makes
 * grammars of its own expressions. */
#pragma once

#include <pthread.h>

#include "client/text/grammar/grammar.h"
#include "client/text/grammar/stacks.h"
#include "client/text/grammar/vocabulary.h"
#include "client/text/grammar/walk.h"

struct helm_grammar {
    const struct helm_vocabulary *vocabulary;
    struct nfa nfa;
    uint32_t begin; /* set of states */
    /* A fresh matcher's answer: it costs nothing until its first token comes. */
    uint32_t *first; /* [words] of the mask, without ends */
    bool first_ends;
    pthread_mutex_t lock;
    /* guarded by it: */
    struct states states;
    struct stacks walk;       /* of making summaries */
    size_t summary_bytes;     /* of all of them */
    struct walk_level *level; /* [longest + 2] */
    struct walk_exits exits;  /* scratch of that */
};

struct helm_matcher {
    struct helm_grammar *grammar;
    struct stacks stacks;
    uint32_t place;
    uint64_t quick;      /* steps of one call, which then fails with HELM_E_BUSY; 0: the grammar's limit */
    _Atomic bool stop;   /* set by another thread: give the work up */
    bool ended, entered; /* entered: stacks and place are there */
    struct walk_level *level; /* [longest + 2] */
};

/* A grammar's text as expressions, which are the caller's also after a failure. */
HELM_MUST_CHECK int grammar_read(struct exprs *exprs, enum helm_grammar_kind kind, const char *text,
                                 size_t length, uint32_t *root, struct helm_err *err);
/* A grammar of these expressions. exprs_free is the caller's either way. */
HELM_MUST_CHECK int grammar_open_exprs(const struct helm_vocabulary *vocabulary, const struct exprs *exprs,
                                       uint32_t root, struct helm_grammar **out, struct helm_err *err);

/* ---- summary.c ---- */

struct summary {
    uint32_t *bits; /* [words], or NULL: the ids of `list` */
    uint32_t *list, count;
    struct trie rest; /* of tokens that leave the rule: the bytes after its end */
    /* and further ones, where they lie in the vocabulary's tries: what is below those nodes */
    struct walk_exit *part;
    uint32_t part_count;
    uint32_t pushes; /* how much deeper than itself the stack gets */
    size_t bytes;
};
/* A set's, made when it is asked for the first time; until that of another set is asked for. The lock is
 * held. */
HELM_MUST_CHECK int summary_of(struct helm_grammar *grammar, uint32_t set, const struct summary **out,
                               struct helm_err *err);
void summaries_drop(struct helm_grammar *grammar);

/* Steps of one mask or token: some 20 ms. A trie is walked twice at most. */
#define GRAMMAR_STEPS ((uint64_t)1 << 19)
static inline uint64_t grammar_steps(const struct helm_grammar *grammar)
{
    return GRAMMAR_STEPS + 2 * (uint64_t)grammar->vocabulary->trie.count;
}
/* grammar.c: makes a matcher's stacks, unless they are there. The lock is held. */
HELM_MUST_CHECK int matcher_enter(struct helm_matcher *matcher, struct helm_err *err);

/* ---- mask.c ---- */

/* Makes summaries of the grammar's states for `budget_us`, for later matchers to find. */
HELM_MUST_CHECK int mask_prepare(struct helm_grammar *grammar, uint64_t budget_us, struct helm_err *err);
/* Adds the allowed tokens' bits. The lock is held. */
HELM_MUST_CHECK int mask_fill(struct helm_matcher *matcher, uint32_t *bits, struct helm_err *err);
/* The same by trying every token through all of the trie: what mask_fill must equal. */
HELM_MUST_CHECK int mask_fill_slowly(struct helm_matcher *matcher, uint32_t *bits, struct helm_err *err);
