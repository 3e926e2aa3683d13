/* Peers: what all connections of one user, or of one key, hold together.
 *
 * Called by client_socket.c. Owns the table. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PEERS_MAX 4097 /* one a connection, and one for all that have not authenticated yet */

struct peer {
    uint64_t number; /* endpoint.h */
    uint32_t connections;
    size_t held;     /* bytes of their buffers */
    uint64_t served; /* turn in which one of them was read last */
};

struct peers {
    struct peer peer[PEERS_MAX];
    uint32_t used; /* entries that were ever used lie below */
};

/* The entry of this number, with a connection more; a new one was served at `turn`. */
uint32_t peers_join(struct peers *peers, uint64_t number, uint64_t turn);
void peers_leave(struct peers *peers, uint32_t entry);
/* The one with most connections, or with most bytes held. */
uint32_t peers_most_connected(const struct peers *peers);
uint32_t peers_most_held(const struct peers *peers);
