/* Threads that read bodies and write long ends of answers: an exchange goes in, and comes back with its ask,
 * its refusal or its output (exchange_work). Users take turns (users.h); one user's jobs take all threads but
 * one at most.
 *
 * A thread touches of an exchange its route, body, ask, choices, refusal, out and status, and of the gateway
 * its model, which does not change. Called by the loop. */
#pragma once

#include "client/gateway/exchange.h"

struct jobs; /* opaque */

HELM_MUST_CHECK int jobs_open(uint32_t threads, struct jobs **out, struct helm_err *err);
/* Readable when an exchange came back. */
int jobs_fd(const struct jobs *jobs);
void jobs_push(struct jobs *jobs, struct exchange *exchange);
/* Takes back one that no thread reads yet; false: one does, or has. */
bool jobs_withdraw(struct jobs *jobs, struct exchange *exchange);
/* All that came back, linked by `job`. */
struct exchange *jobs_take(struct jobs *jobs);
/* Ends the threads when they are through with what they read; clears *jobs. */
void jobs_close(struct jobs **jobs);
