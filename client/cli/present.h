/* An answer on a terminal: lines broken between words, thinking parts dimmed. Called by stream.c for the
 * chat; keeps what may still become part of a word. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

#define PRESENT_WORD 512 /* bytes of a word; a longer one is shown in parts */

struct present {
    int width; /* of the terminal, 0: lines are not broken */
    bool dims; /* thinking parts */
    int (*write)(const void *data, size_t bytes, struct helm_err *err);
    int column, spaces, word_width;
    bool thinking, code; /* inside: code keeps its lines as they are */
    bool dimmed;         /* the terminal was told so */
    bool line_began;     /* something but blanks is on this line of the text */
    size_t length;
    char word[PRESENT_WORD];
};

/* Begins an answer on standard output; thinking: the prompt ends inside a thinking part. */
void present_begin(struct present *present, bool thinking);
HELM_MUST_CHECK int present_add(struct present *present, const char *text, size_t length,
                                struct helm_err *err);
/* Prints the rest of it, and sets the terminal's own colours. */
HELM_MUST_CHECK int present_end(struct present *present, struct helm_err *err);
