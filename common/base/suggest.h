/* The known word that is nearest to a misspelt one. Called where command lines and commands are refused. No state. */
#ifndef HELM_COMMON_BASE_SUGGEST_H
#define HELM_COMMON_BASE_SUGGEST_H

#include <stddef.h>

struct suggest {
    const char *word; /* as it was written, `length` bytes */
    size_t length;
    const char *best; /* so far; NULL: nothing near */
    size_t distance;
};
/* A third of the letters may be wrong, one at least: changed, added, left out, or two neighbours swapped. A word of two
 * letters may lack one. */
void suggest_begin(struct suggest *suggest, const char *word, size_t length);
void suggest_try(struct suggest *suggest, const char *name);

#endif
