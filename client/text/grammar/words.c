/* Arrays by the chunk. See words.h. */
#include "client/text/grammar/words.h"
#include "common/base/grow.h"

#include <stdlib.h>

#define KEPT_CHUNKS 64 /* over a reset: 1 MiB */

static uint32_t *add_chunk(struct words *w)
{
    if (!GROW(w->chunk, w->count, w->space)) return NULL;
    uint32_t *chunk = malloc(WORDS_CHUNK * sizeof *chunk);
    if (chunk) w->chunk[w->count++] = chunk;
    return chunk;
}

uint32_t *words_take(struct words *w, uint32_t count)
{
    if (count > WORDS_CHUNK) return NULL;
    if (w->count && w->used + count > WORDS_CHUNK) {
        w->at++;
        w->used = 0;
    }
    if (w->at >= w->count && !add_chunk(w)) return NULL;
    uint32_t *taken = w->chunk[w->at] + w->used;
    w->used += count;
    return taken;
}

void words_reset(struct words *w)
{
    while (w->count > KEPT_CHUNKS) free(w->chunk[--w->count]);
    w->at = w->used = 0;
}

void words_free(struct words *w)
{
    for (uint32_t i = 0; i < w->count; i++) free(w->chunk[i]);
    free(w->chunk);
    *w = (struct words){0};
}
