/* Connections that are accepted and not served yet, and requests on others that wait for their turn. Called
 * by loop.c, peer.c and server.c, in the loop.
 *
 * If more connections wait than may, one of the address that has most is closed. */
#pragma once

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
/* No new connections: those that wait are closed, requests that wait go on. */
void arrivals_close(struct gateway *gateway);
/* Whether some wait for the next turn. */
bool arrivals_wait(const struct peers *peers);
/* Whether a request that is whole may go on in this turn; false: it waits, and peer_go_on is called when its
 * turn comes. */
bool arrivals_may_go(struct gateway *gateway, struct exchange *exchange);
/* Takes one that waits out of what it waits in. */
void arrivals_forget(struct peers *peers, struct peer *peer);
