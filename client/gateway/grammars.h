/* A cache of grammars: opening one takes up to a second, and the masks that it has computed for its states
 * serve later requests too.
 *
 * Called by threads that read bodies (take) and by the thread that frees an ask (give back). A grammar in use
 * stays; of the unused ones those used last stay: GRAMMARS_KEPT, as long as they hold no more than
 * GRAMMARS_KEPT_BYTES. */
#pragma once

#include "client/text/grammar/engine.h"

#define GRAMMARS_KEPT       8
#define GRAMMARS_KEPT_BYTES (GRAMMAR_BYTES_MAX / 4)

struct grammars; /* opaque */
struct kept_grammar {
    struct helm_grammar *grammar;
    char *key; /* the request, as text */
    uint32_t users;
    uint64_t used; /* when last, by a counter */
    struct grammars *of;
    struct kept_grammar *next;
};

HELM_MUST_CHECK int grammars_open(struct grammars **out, struct helm_err *err);
/* No grammar may be in use. NULL is allowed. */
void grammars_close(struct grammars *grammars);
/* The grammar of this key, or NULL: it is not known. */
struct kept_grammar *grammars_find(struct grammars *grammars, const char *key);
/* Keeps a new one, which it owns from here on, also after a failure. If another thread was quicker that one
 * is taken. */
HELM_MUST_CHECK int grammars_add(struct grammars *grammars, const char *key, struct helm_grammar *grammar,
                                 struct kept_grammar **out, struct helm_err *err);
/* NULL is allowed. */
void grammars_give_back(struct kept_grammar *kept);
