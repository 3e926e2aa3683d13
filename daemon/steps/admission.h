/* Admission control: which clients may queue another request, and in which order waiting requests get slots.
 *
 * Called by batcher.c, which tells it of every request that opens, gets a slot or closes. Owns the tables of
 * clients and peers with open requests. Rules:
 *   1. No more requests are open than there are slots and places in the queue.
 *   2. While the queue is at most half full any client may take a place. Beyond that no peer may hold more
 *      than its share: all places but the last sixteenth of the queue, shared by the peers that have requests
 *      open; and no client more than its share of that: its peer's, shared by the peer's clients.
 *   3. In the last sixteenth no peer may hold more than the places that are free before it takes one. So each
 *      newcomer leaves a place for the next one, until the last place is taken.
 *   4. In the last eighth every peer counts one client more, so that one client cannot keep out the next one.
 *
 * A client is a connection. One that asks for several peers (a gateway for its users) counts as a client of
 * each.
 *
 * Slots are given in turn (scheduler.h). For that each peer and each client has the time of its last slot,
 * counted in slots given; of one that has just come it is the present. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct admission_peer {
    uint64_t number;
    uint32_t open, clients; /* its requests, 0: a free entry; and its clients that have any */
    uint64_t turn;          /* when it got its last slot */
    /* within admission_ends_before: those with a slot, those that wait, and the turn as it goes on there */
    uint32_t running, waiting;
    uint64_t next_turn;
};

struct admission_client {
    uint64_t client;
    uint32_t peer; /* its entry */
    uint32_t open; /* its requests; 0: a free entry */
    uint64_t turn;
    uint32_t running, head, tail; /* within admission_ends_before: with a slot; first and last that waits */
    uint64_t next_turn;
};

struct admission {
    uint32_t slots, queue_limit;
    uint32_t open, clients, peers;   /* requests, and clients and peers that have any */
    struct admission_client *client; /* [slots + queue_limit] */
    struct admission_peer *peer;     /* the same */
    uint32_t used, peers_used;       /* entries that were ever used lie below */
    uint64_t turn;                   /* of the last slot given */
    uint32_t *next;                  /* [slots + queue_limit], within admission_ends_before */
};

/* One open request, as admission_ends_before is shown it. */
struct admission_request {
    uint32_t entry; /* its client's */
    bool running;   /* has a slot */
};

HELM_MUST_CHECK int admission_init(struct admission *admission, uint32_t slots, uint32_t queue_limit,
                                   struct helm_err *err);
void admission_free(struct admission *admission);

/* May this client open one more request for this peer? HELM_E_BUSY, and why, if not. */
HELM_MUST_CHECK int admission_check(const struct admission *admission, uint64_t client, uint64_t peer,
                                    struct helm_err *err);
/* A request opens, which admission_check allowed: its client's entry, for admission_leave and
 * admission_request. */
uint32_t admission_enter(struct admission *admission, uint64_t client, uint64_t peer);
void admission_leave(struct admission *admission, uint32_t entry);
/* A request of this client gets a slot. */
void admission_give_slot(struct admission *admission, uint32_t entry);

static inline uint64_t admission_client_turn(const struct admission *admission, uint32_t entry)
{
    return admission->client[entry].turn;
}

static inline uint64_t admission_peer_turn(const struct admission *admission, uint32_t entry)
{
    return admission->peer[admission->client[entry].peer].turn;
}

/* How many requests must end before list[at] gets a slot, as scheduler.h shares these out, if those that run
 * end in their order here, then the others in the order in which they get slots; 0: it has one, or gets one
 * in the next step if there are pages. `list`: all open requests that have not ended, oldest first. */
uint32_t admission_ends_before(struct admission *admission, const struct admission_request *list,
                               uint32_t count, uint32_t at);
