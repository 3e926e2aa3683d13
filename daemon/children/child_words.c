/* A child's words, line by line. See child_words.h. Owns nothing. */
#include "daemon/children/child_words.h"

#include <stdbool.h>
#include <string.h>

static void end_line(struct child_words *words)
{
    words->line[words->used] = 0;
    words->used = 0;
    if (words->line[strspn(words->line, " ")] == 0) return;
    if (words->on_line) words->on_line(words->context, words->line);
    memcpy(words->last, words->line, sizeof words->last);
}

void child_words_take(struct child_words *words, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        bool end = text[i] == '\n' || text[i] == '\r',
             control = (unsigned char)text[i] < 0x20 || text[i] == 0x7f;
        if (!end) words->line[words->used++] = control ? ' ' : text[i];
        if (end || words->used == CHILD_WORDS_LINE - 1) end_line(words);
    }
}

const char *child_words_end(struct child_words *words)
{
    if (words->used) end_line(words);
    return words->last;
}
