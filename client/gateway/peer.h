/* A client's connection, from accept to close. Called by arrivals.c, server.c and loop.c, all in the loop.
 *
 * The gateway accepts connections itself and hands their sockets to libmicrohttpd, which misses some hang-ups
 * and has no bound but a number. Each socket is watched here for its life: its place is free again as soon as
 * the client is gone, takes too long for its request, or is the idlest one of a full house. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "client/gateway/framing.h"
#include "common/base/err.h"

#define PEERS_MAX      1024 /* connections, unless fewer descriptors are allowed */
#define PEERS_RESERVED 16   /* further ones, for /health while there is no place */
#define PEERS_LEAVING  64   /* that have ended and that libmicrohttpd has not closed yet */

struct exchange;
struct gateway;
struct MHD_Daemon;

TAILQ_HEAD(peer_list, peer);

/* An IPv4 address, or the first 64 bits of an IPv6 address. */
struct peer_address {
    SLIST_ENTRY(peer_address) next;
    uint8_t bytes[16];
    uint32_t places; /* that it takes */
    uint32_t users;  /* peers that point here */
    /* arrivals.c's: connections that are not served yet, what is to be served in turn, and the place among
     * addresses that have such */
    uint32_t waiting;
    struct peer_list ready;
    TAILQ_ENTRY(peer_address) turn;
};

struct peer {
    TAILQ_ENTRY(peer) link;
    struct exchange *exchange; /* its request that is under way; NULL: none */
    struct peer_address *from;
    int fd;
    struct sockaddr_storage at;
    char address[INET6_ADDRSTRLEN];
    struct peer_list *waits; /* arrivals.c has it there; NULL: it is served */
    bool leaves;             /* ... and nothing more will come from it */
    bool admitted;           /* its first request has waited with it */
    bool started;            /* libmicrohttpd has it */
    bool keyed;              /* its last request that needed a key had one */
    bool reserved;           /* it has no place: it may ask for /health, everything else is refused */
    bool hung_up;            /* nothing more will come from it */
    bool ended;              /* it has no place any more; libmicrohttpd is about to close it */
    uint64_t since_us;       /* waiting for a request or the rest of one; 0: an answer is under way */
    uint64_t head_us;  /* since when a head is awaited that is not whole; 0: none is, or nothing of it came */
    uint64_t heard_us; /* when bytes came last; 0: none came */
    struct framing framing;
};

struct peers {
    struct peer_list served; /* new ones are at the head */
    SLIST_HEAD(, peer_address) addresses;
    int listen_fd; /* -1: no new connections */
    bool knocked;  /* a new connection waits to be accepted */
    bool paused;   /* descriptors are short: the listening socket is not watched until the next tick */
    uint32_t places, reserved;
    uint32_t fresh, hung_up; /* that peers_settle looks for */
    uint32_t places_max, address_max;
    /* arrivals.c's: connections that have said nothing, or asked for /health, and the addresses that have
     * others to be served, in turn; what is left of a turn's work, and how many were asked for /health in
     * it */
    struct peer_list silent, health;
    TAILQ_HEAD(, peer_address) turns;
    uint32_t waiting, waiting_max, answered;
    uint32_t unheard; /* turns in a row in which more had news than the loop hears in one */
    int work;
    uint64_t turned_away;            /* for /metrics: too many waited */
    uint64_t stall_us;               /* longest time of a head's receipt, and without a byte of a body */
    uint64_t evicted, refused, late; /* for /metrics: gave way, had no place, took too long */
};

void peers_init(struct peers *peers);
/* A connection that was accepted. NULL: no memory. */
struct peer *peer_open(struct peers *peers, int fd, const struct sockaddr_storage *at);
/* Frees one that was not admitted; its socket is the caller's. */
void peer_free(struct peers *peers, struct peer *peer);
/* Gives it a place, or one of the reserve, and to libmicrohttpd, whose its socket is from then on. */
void peer_admit(struct gateway *gateway, struct MHD_Daemon *http, struct peer *peer);
/* The turn of its request, which waited, has come. */
void peer_go_on(struct gateway *gateway, struct peer *peer);
/* Descriptors are short: the idlest connection ends, and until the next tick none is accepted. */
void peers_pause(struct gateway *gateway);
/* libmicrohttpd has begun with a socket, or was through with it and closes it. NULL: it is none of ours. */
struct peer *peers_started(struct peers *peers, int fd);
void peer_closed(struct gateway *gateway, struct peer *peer);
/* Its socket has events of epoll. */
void peer_event(struct gateway *gateway, struct peer *peer, uint32_t events);
/* After each run of libmicrohttpd, which has read what there was. */
void peers_settle(struct gateway *gateway);
/* Once a second: ends those that take too long. */
void peers_tick(struct gateway *gateway);
/* It waits for its next request from now on. */
void peer_waits(struct peer *peer);
/* Frees its place and ends its socket, which libmicrohttpd closes when it runs next. It must not be
 * suspended. */
void peer_end(struct gateway *gateway, struct peer *peer);
