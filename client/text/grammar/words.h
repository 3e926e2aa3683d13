/* Memory for many small arrays of one owner, which are all given back at once. Used by stacks.c, whose places
 * come and go by the hundred. */
#pragma once

#include <stdint.h>

#define WORDS_CHUNK 4096 /* of the largest array, too */

struct words {
    uint32_t **chunk, count, space; /* [count] of WORDS_CHUNK each */
    uint32_t at, used;              /* the chunk that is being filled, and how far */
};

/* An array of `count` numbers that says nothing yet; NULL: no memory. It stays where it is. */
uint32_t *words_take(struct words *words, uint32_t count);
/* All arrays are free again. Keeps memory for some of the next ones. */
void words_reset(struct words *words);
void words_free(struct words *words);
