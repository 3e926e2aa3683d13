/* The table of peers. See peers.h. Called by client_socket.c; owns the table. */
#include "daemon/clients/peers.h"

uint32_t peers_join(struct peers *peers, uint64_t number, uint64_t turn)
{
    uint32_t entry = peers->used;
    for (uint32_t i = 0; i < peers->used; i++) {
        if (peers->peer[i].connections && peers->peer[i].number == number) {
            peers->peer[i].connections++;
            return i;
        }
        if (!peers->peer[i].connections && i < entry) entry = i;
    }
    if (entry == peers->used) peers->used++; /* there are as many entries as connections can have */
    peers->peer[entry] = (struct peer){.number = number, .connections = 1, .served = turn};
    return entry;
}

void peers_leave(struct peers *peers, uint32_t entry)
{
    peers->peer[entry].connections--;
    while (peers->used && !peers->peer[peers->used - 1].connections) peers->used--;
}

uint32_t peers_most_connected(const struct peers *peers)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < peers->used; i++)
        if (peers->peer[i].connections > peers->peer[most].connections) most = i;
    return most;
}

uint32_t peers_most_held(const struct peers *peers)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < peers->used; i++)
        if (peers->peer[i].connections && peers->peer[i].held > peers->peer[most].held) most = i;
    return most;
}
