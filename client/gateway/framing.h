/* Requests whose end two readers may find in different places (RFC 9112, 5.1 and 6.3). A proxy that reads one the other way would
 * send the rest of it as another request. Called by server.c as soon as the headers are there. Owns nothing. */
#ifndef HELM_CLIENT_GATEWAY_FRAMING_H
#define HELM_CLIENT_GATEWAY_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

/* The fault of a request's head, in words that live as long as the program; NULL: it has none. A request with a fault is
 * answered 400, and its connection is closed. has_nul: as framing_has_nul said of its path. */
const char *framing_fault(struct MHD_Connection *connection, const char *version, bool has_nul);

/* Whether a path or query that is not unescaped yet holds %00. */
bool framing_has_nul(const char *escaped);

#endif
