/* The owner of a socket. A prompt goes only to a daemon of this user, of root, or of the owner of a system
 * directory: one that lies in directories that root alone may change, such as /run/helm.
 *
 * Called by endpoint.c before a connection, and by connection.c once there is one. Owns nothing. */
#pragma once

#include "common/base/err.h"

/* The directory of the socket of ipc://PATH, and the socket: trusted owners, and that no others may put
 * another socket there. A missing socket is no error: connecting says so. HELM_E_PERMISSION names path, owner
 * and what is expected. */
HELM_MUST_CHECK int trust_place(const char *endpoint, struct helm_err *err);

/* The process that listens at the other end of a connected unix socket; any other descriptor is trusted. */
HELM_MUST_CHECK int trust_peer(int fd, const char *endpoint, struct helm_err *err);
