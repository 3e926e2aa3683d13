/* A program that is run to its end while helmd starts: helm-profile, the probe for devices.
 *
 * Called by profiling.c and accelerator.c before any thread exists. Its words are passed on line by line, and
 * its standard output is kept where that is wanted. It dies with helmd, when helmd is told to end
 * (end_request_check) and when its time is over. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* A child process's standard error, cut into lines: passed on line by line, the last one kept for the message
 * of a child that failed. */
#define CHILD_WORDS_LINE 320 /* of bytes with the terminating 0; a longer line comes in pieces */

/* Zeroed at first. */
struct child_words {
    /* Called with every line that is not blank, without its end; NULL: lines are only kept. */
    void (*on_line)(void *context, const char *line);
    void *context;
    char line[CHILD_WORDS_LINE], last[CHILD_WORDS_LINE]; /* so far, [used]; the last whole one */
    size_t used;
};

struct child_run {
    const char *name; /* in errors */
    const char *program;
    const char *const *argv;
    char *text;    /* what it prints, with room for most + 1 bytes; NULL: dropped */
    size_t most;   /* bytes that it may print */
    int parent_fd; /* it ends when its writer closes it; -1: none */
    uint32_t limit_s;
    struct child_words words; /* on_line is the caller's */
    size_t length;            /* here and below: what came of it */
    int status;               /* of waitpid */
};

/* HELM_E_CANCELLED: the parent has gone, or helmd was told to end. That the program failed is the caller's to
 * see. */
HELM_MUST_CHECK int child_run(struct child_run *run, struct helm_err *err);

/* Takes bytes as they came. Newlines and carriage returns end lines, other control characters become spaces.
 */
void child_words_take(struct child_words *words, const char *text, size_t length);
/* The child has ended: what it had begun is a line as well. Returns `last`, "" where it said nothing. */
const char *child_words_end(struct child_words *words);

/* ---- SIGTERM, SIGINT and SIGHUP before there is a loop ----
 *
 * Measuring and planning end in order, too, with status 0. Called by main.c before anything else, and by
 * child_run, which waits for a child at start. The signals are only looked at here and stay pending: loop.c
 * takes them from its own descriptor, should one come too late for the start to end. A child inherits the
 * mask and must clear it before it becomes another program. */

/* From here on the signals wait. Before any thread starts. */
HELM_MUST_CHECK int end_request_block(struct helm_err *err);
/* A descriptor for poll, the caller's to close: readable once one of the signals has come. -1, which poll
 * passes over, when there is none to be had. */
int end_request_watch(void);
/* HELM_E_CANCELLED with the signal's name once one of them has come. */
HELM_MUST_CHECK int end_request_check(struct helm_err *err);
