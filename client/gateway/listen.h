/* Where the gateway listens. Called by main.c before the daemon is sought, and by server.c; owns nothing.
 * `listen` is "HOST:PORT" or "[ADDRESS]:PORT"; every error names it and what to write instead. */
#pragma once

#include <stdbool.h>

#include "common/base/err.h"

/* HELM_E_USAGE: it is no such text, or its port is above 65535. */
HELM_MUST_CHECK int listen_check(const char *listen, struct helm_err *err);
bool listen_is_loopback(const char *listen);
/* A bound socket, which the caller closes, also after a failure if *fd is not -1. */
HELM_MUST_CHECK int listen_bind(const char *listen, int *fd, struct helm_err *err);
/* Listens; `at` is the address with its port, which is known only now where any was wanted. */
HELM_MUST_CHECK int listen_start(const char *listen, int fd, char at[128], struct helm_err *err);
