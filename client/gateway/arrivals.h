/* Connections that are accepted and not served yet. Called by loop.c and peer.c, in the loop.
 *
 * If more wait than may, one of the address that has most is closed. */
#ifndef HELM_CLIENT_GATEWAY_ARRIVALS_H
#define HELM_CLIENT_GATEWAY_ARRIVALS_H

#include "client/gateway/peer.h"

#define ARRIVALS_MAX                                                                                         \
    4096 /* that wait, unless fewer descriptors are allowed: as many as the kernel's queue has */
#define ARRIVALS_FEW 16 /* with as few descriptors as there may be */

/* Events of one that waits. */
void arrivals_event(struct gateway *gateway, struct peer *peer, uint32_t events);
/* After all events of a turn: accepts what knocks, serves some. */
void arrivals_serve(struct gateway *gateway);
/* Once a second: ends those that say nothing for too long. */
void arrivals_tick(struct gateway *gateway);
void arrivals_close(struct peers *peers);

#endif
