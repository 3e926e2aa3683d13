/* Connections that are accepted and not served yet, in a queue for each address. Called by server.c, in the loop.
 *
 * While some wait, the loop does not sleep. A connection that has sent bytes and finds ARRIVALS_OF_ONE of its address waiting
 * is closed, unless it asks for /health. */
#ifndef HELM_CLIENT_GATEWAY_ARRIVALS_H
#define HELM_CLIENT_GATEWAY_ARRIVALS_H

#include "client/gateway/peer.h"

#define ARRIVALS_MAX    1024 /* that wait, unless fewer descriptors are allowed */
#define ARRIVALS_FEW    16   /* with as few descriptors as there may be */
#define ARRIVALS_OF_ONE 512

/* Accepts what knocks, and hands some of it to libmicrohttpd. */
void arrivals_serve(struct gateway *gateway, struct MHD_Daemon *http);
void arrivals_close(struct peers *peers);

#endif
