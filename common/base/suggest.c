/* Known words and nearest ones. See suggest.h. */
#include "common/base/suggest.h"

#include <string.h>

#define LETTERS_MAX 128 /* of words that are compared: options, commands, names of files */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Damerau's distance, of neighbours swapped once. */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t row[3][LETTERS_MAX + 1];
    for (size_t j = 0; j <= m; j++) row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *before = row[(i - 1) % 3], *earlier = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(now[j - 1], before[j]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], earlier[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

bool suggest_knows(const char *words, char separator, const char *word)
{
    const size_t length = strchr(word, separator) ? 0 : strlen(word);
    for (const char *at = words; length && at; at = strchr(at, separator)) {
        at += *at == separator;
        if (strncmp(at, word, length) == 0 && (at[length] == separator || !at[length])) return true;
    }
    return false;
}

void suggest_begin(struct suggest *s, const char *word, size_t length)
{
    *s = (struct suggest){.word = word, .length = length, .distance = length / 3 + 1};
    if (length > LETTERS_MAX) s->distance = 0;
    if (length < 2) s->distance = 0;
    if (length == 2) s->distance = 2;
}

void suggest_try(struct suggest *s, const char *name)
{
    const size_t length = strlen(name);
    if (!s->distance || length > LETTERS_MAX) return;
    if (s->length == 2 && length != 3) return; /* a letter left out; nearly every short word would be near */
    const size_t there = distance(s->word, s->length, name, length);
    if (there >= s->distance) return;
    s->distance = there;
    s->best = name;
}
