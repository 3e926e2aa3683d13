/* SIGTERM, SIGINT and SIGHUP before there is a loop: measuring and planning end in order, too, with status 0.
 *
 * Called by main.c before anything else, and by child_run.c, which waits for a child at start. The signals
 * are only looked at here and stay pending: loop.c takes them from its own descriptor, should one come too
 * late for the start to end. Owns nothing. A child inherits the mask and must clear it before it becomes
 * another program. */
#pragma once

#include "common/base/err.h"

/* From here on the signals wait. Before any thread starts. */
HELM_MUST_CHECK int end_request_block(struct helm_err *err);
/* A descriptor for poll, the caller's to close: readable once one of the signals has come. -1, which poll
 * passes over, when there is none to be had. */
int end_request_watch(void);
/* HELM_E_CANCELLED with the signal's name once one of them has come. */
HELM_MUST_CHECK int end_request_check(struct helm_err *err);
