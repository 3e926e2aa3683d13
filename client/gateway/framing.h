/* Requests whose end two readers may find in different places (RFC 9112, 5.1 and 6.3): behind a proxy that reads them the other
 * way, the rest of one would be another's request. Called by server.c as soon as the headers are there. Owns nothing. */
#ifndef HELM_CLIENT_GATEWAY_FRAMING_H
#define HELM_CLIENT_GATEWAY_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

/* What is wrong with a request's head, in words that live as long as the program; NULL: nothing. Such a request is answered by
 * 400, and its connection closed. has_nul: as framing_has_nul said of its path. */
const char *framing_fault(struct MHD_Connection *connection, const char *version, bool has_nul);

/* Whether a path or query that is not unescaped yet holds %00. */
bool framing_has_nul(const char *escaped);

#endif
