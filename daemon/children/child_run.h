/* A program that is run to its end while helmd starts: helm-profile, the probe for devices.
 *
 * Called by profiling.c and accelerator.c before any thread exists. Its words are passed on line by line, and
 * its standard output is kept where that is wanted. It dies with helmd, when helmd is told to end
 * (end_request.h) and when its time is over. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "daemon/children/child_words.h"

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
