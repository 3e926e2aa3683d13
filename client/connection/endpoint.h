/* Endpoints as text: which one is the default, which are accepted, and whether a daemon listens there.
 *
 * Called by connection.c (helm_default_endpoint is public, see helm.h) and by tests. Owns nothing. */
#pragma once

#include "client/helm.h"

/* helm_default_endpoint with the path of the system service's socket. */
HELM_MUST_CHECK int endpoint_default(const char *system_socket, char endpoint[HELM_ENDPOINT_MAX],
                                     struct helm_err *err);

/* Accepts ipc://PATH (not longer than a socket address holds) and, with keys, tcp://HOST:PORT; anything else
 * is HELM_E_USAGE. */
HELM_MUST_CHECK int endpoint_check(const char *endpoint, bool has_keys, struct helm_err *err);

/* ZeroMQ connects lazily and retries for ever, so a missing daemon has to be found out beforehand: opens and
 * closes a plain connection to an ipc endpoint. HELM_E_NOT_FOUND: no socket there, or no listener;
 * HELM_E_PERMISSION, also where the socket or its listener is another user's (trust.h). tcp endpoints are not
 * probed (0): connection.c watches the first connection attempt instead. */
HELM_MUST_CHECK int endpoint_probe(const char *endpoint, struct helm_err *err);
