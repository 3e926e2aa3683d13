/* Lists of known words: whether a word is one of them, and the one that is nearest to a misspelt word. No
 * state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether `words`, which `separator` divides, has this word. No list has an empty word, or one with a
 * separator in it. */
bool suggest_knows(const char *words, char separator, const char *word);

struct suggest {
    const char *word; /* as it was written, `length` bytes */
    size_t length;
    const char *best; /* so far; NULL: nothing near */
    size_t distance;
};
/* A third of the letters may be wrong, one at least: changed, added, left out, or two neighbours swapped. A
 * word of two letters may lack one. */
void suggest_begin(struct suggest *suggest, const char *word, size_t length);
void suggest_try(struct suggest *suggest, const char *name);
