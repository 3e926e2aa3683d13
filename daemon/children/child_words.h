/* A child process's standard error, cut into lines: passed on line by line, the last one kept for the message
 * of a child that failed. Used by child_run.c. */
#pragma once

#include <stddef.h>

#define CHILD_WORDS_LINE 320 /* of bytes with the terminating 0; a longer line comes in pieces */

/* Zeroed at first. */
struct child_words {
    /* Called with every line that is not blank, without its end; NULL: lines are only kept. */
    void (*on_line)(void *context, const char *line);
    void *context;
    char line[CHILD_WORDS_LINE], last[CHILD_WORDS_LINE]; /* so far, [used]; the last whole one */
    size_t used;
};

/* Takes bytes as they came. Newlines and carriage returns end lines, other control characters become spaces.
 */
void child_words_take(struct child_words *words, const char *text, size_t length);
/* The child has ended: what it had begun is a line as well. Returns `last`, "" where it said nothing. */
const char *child_words_end(struct child_words *words);
