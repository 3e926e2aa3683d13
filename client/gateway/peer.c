/* Connections: counted, watched, ended. See peer.h. Owns the list of peers and of their addresses; each
 * socket is libmicrohttpd's from MHD_add_connection on.
 *
 * libmicrohttpd stays. Its fault is narrow: it watches sockets edge-triggered and forgets to look again after
 * a short read, so that a hang-up that came with the last bytes is lost. It has sockets from us
 * (MHD_add_connection), and shutdown() is an edge that it does not miss. llhttp, nghttp2 or libevent would
 * bring another parser and another loop for that one edge, and neither places nor bounds, which are below. */
#include "client/gateway/peer.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "client/gateway/arrivals.h"
#include "client/gateway/gateway.h"
#include "client/gateway/jobs.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define YOUNG_US   100000  /* until which a connection's first bytes may lie unread */
#define SILENT_US  20000   /* until which they may still come */
#define FETCHES_US 5000000 /* from which on a whole answer that is not fetched may give way */

void peers_init(struct peers *p)
{
    TAILQ_INIT(&p->served);
    TAILQ_INIT(&p->silent);
    TAILQ_INIT(&p->health);
    TAILQ_INIT(&p->turns);
}

/* ---- addresses -------------------------------------------------------------------------------------- */

static void take_bytes(const struct sockaddr_storage *at, uint8_t bytes[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    const struct sockaddr_in *four = (const void *)at;
    const struct sockaddr_in6 *six = (const void *)at;
    if (at->ss_family == AF_INET6) {
        memcpy(bytes, &six->sin6_addr, 16);
        (void)users_network_of(bytes);
    } else {
        memcpy(bytes, mapped, sizeof mapped);
        memcpy(bytes + sizeof mapped, &four->sin_addr, 4);
    }
}

static struct peer_address *take_address(struct peers *p, const struct sockaddr_storage *at)
{
    uint8_t bytes[16];
    struct peer_address *a = SLIST_FIRST(&p->addresses);
    take_bytes(at, bytes);
    while (a && memcmp(a->bytes, bytes, sizeof bytes) != 0) a = SLIST_NEXT(a, next);
    if (!a && !(a = calloc(1, sizeof *a))) return NULL;
    if (!a->users++) {
        memcpy(a->bytes, bytes, sizeof bytes);
        TAILQ_INIT(&a->ready);
        SLIST_INSERT_HEAD(&p->addresses, a, next);
    }
    return a;
}

static void give_back_address(struct peers *p, struct peer_address *a)
{
    if (--a->users) return;
    SLIST_REMOVE(&p->addresses, a, peer_address, next);
    free(a);
}

/* ---- ending ----------------------------------------------------------------------------------------- */

static bool waits(const struct peer *peer)
{
    return !peer->exchange || peer->exchange->state == EXCHANGE_BODY;
}

/* Whether nothing lies in the socket that libmicrohttpd has not read. */
static bool is_read_out(const struct peer *peer)
{
    int bytes = 0;
    return ioctl(peer->fd, FIONREAD, &bytes) < 0 || bytes == 0;
}

static void free_place(struct peers *p, struct peer *peer)
{
    if (peer->ended) return;
    peer->ended = true;
    p->hung_up -= peer->hung_up;
    if (peer->reserved) {
        p->reserved--;
    } else {
        p->places--;
        peer->from->places--;
    }
}

void peer_end(struct gateway *g, struct peer *peer)
{
    free_place(&g->peers, peer);
    shutdown(peer->fd, SHUT_RDWR);
}

void peer_closed(struct gateway *g, struct peer *peer)
{
    struct peers *p = &g->peers;
    free_place(p, peer);
    (void)framing_watch(peer->fd, NULL);
    p->fresh -= !peer->started;
    if (peer->waits)
        arrivals_forget(p, peer);
    else
        TAILQ_REMOVE(&p->served, peer, link);
    peer_free(p, peer);
}

/* ---- who gives way ---------------------------------------------------------------------------------- */

/* It has just come, and said nothing yet, or something that has not been read. */
static bool is_young(const struct peer *peer, uint64_t now)
{
    const uint64_t age_us = now - peer->since_us;
    return age_us < YOUNG_US && (peer->heard_us ? !is_read_out(peer) : age_us < SILENT_US);
}

/* How willingly it gives way: 0 not at all. Without a key before with one; a head before a body before an
 * answer. */
static unsigned willing(const struct peer *peer, uint64_t now)
{
    const struct exchange *ex = peer->exchange;
    const unsigned unknown = peer->keyed ? 0 : 3;
    if (peer->ended || peer->reserved) return 0;
    if (!ex) return is_young(peer, now) ? 1 : 4 + unknown;
    if (ex->state == EXCHANGE_BODY) return 3 + unknown;
    return ex->state != EXCHANGE_WORK && ex->over_us && now - ex->over_us > FETCHES_US ? 2 + unknown : 0;
}

static uint64_t idle_since(const struct peer *peer)
{
    if (!peer->exchange) return peer->since_us;
    return peer->exchange->over_us ? peer->exchange->over_us : peer->heard_us;
}

/* The connection that gives way, among all or among those of one address: the most willing. Among equals, one
 * of the address with the most places, and of those the idlest. */
static struct peer *who_gives_way(const struct peers *p, const struct peer_address *from)
{
    const uint64_t now = units_now_us();
    struct peer *best = NULL;
    unsigned most = 1;
    for (struct peer *at = TAILQ_FIRST(&p->served); at; at = TAILQ_NEXT(at, link)) {
        const unsigned will = from && at->from != from ? 0 : willing(at, now);
        if (will < most) continue;
        const bool better = !best || will > most || at->from->places > best->from->places ||
                            (at->from->places == best->from->places && idle_since(at) < idle_since(best));
        if (better) best = at;
        most = will;
    }
    return best;
}

static void end_oldest_reserved(struct gateway *g)
{
    struct peer *oldest = TAILQ_LAST(&g->peers.served, peer_list); /* the newest is the first */
    while (oldest && (!oldest->reserved || oldest->ended)) oldest = TAILQ_PREV(oldest, peer_list, link);
    if (!oldest) return;
    if (oldest->exchange) exchange_drop(oldest->exchange, "another client wants its place in the reserve");
    peer_end(g, oldest);
}

/* A place for a connection from this address. false: there is none, and the reserve has to do. */
static bool find_place(struct gateway *g, const struct peer_address *from)
{
    struct peers *p = &g->peers;
    const bool many = from->places >= p->address_max;
    if (!many && p->places < p->places_max) return true;
    struct peer *idlest = who_gives_way(p, many ? from : NULL);
    if (!idlest) return false;
    log_debug("%s: gives way to another connection", idlest->address);
    if (idlest->exchange && idlest->exchange->over_us)
        exchange_drop(idlest->exchange, "another client wants its place");
    peer_end(g, idlest);
    p->evicted++;
    return true;
}

/* ---- accepting -------------------------------------------------------------------------------------- */

static void name_peer(const struct sockaddr_storage *at, char *text, size_t size)
{
    const struct sockaddr_in6 *six = (const void *)at;
    const struct sockaddr_in *four = (const void *)at;
    const void *address = at->ss_family == AF_INET6 ? (const void *)&six->sin6_addr : &four->sin_addr;
    if (!inet_ntop(at->ss_family, address, text, (socklen_t)size)) *text = 0;
}

struct peer *peer_open(struct peers *p, int fd, const struct sockaddr_storage *at)
{
    struct peer *peer = calloc(1, sizeof *peer);
    struct peer_address *from = peer ? take_address(p, at) : NULL;
    if (!from) {
        free(peer);
        return NULL;
    }
    *peer = (struct peer){.fd = fd, .from = from, .at = *at, .since_us = units_now_us()};
    name_peer(at, peer->address, sizeof peer->address);
    return peer;
}

void peer_free(struct peers *p, struct peer *peer)
{
    give_back_address(p, peer->from);
    free(peer);
}

void peer_admit(struct gateway *g, struct MHD_Daemon *http, struct peer *peer)
{
    struct peers *p = &g->peers;
    const socklen_t size =
        peer->at.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    peer->since_us = peer->head_us = units_now_us();
    if (!is_read_out(peer))
        peer->heard_us = peer->since_us; /* no event may tell: libmicrohttpd reads it first */
    peer->reserved = !find_place(g, peer->from);
    if (peer->reserved) {
        if (p->reserved >= PEERS_RESERVED) end_oldest_reserved(g);
        p->reserved++;
    } else {
        p->places++;
        peer->from->places++;
    }
    TAILQ_INSERT_HEAD(&p->served, peer, link);
    peer->admitted = true;
    p->fresh++;
    if (peer->leaves) peer_event(g, peer, EPOLLRDHUP);
    if (!framing_watch(peer->fd, &peer->framing)) peer_end(g, peer);
    if (MHD_add_connection(http, peer->fd, (const struct sockaddr *)&peer->at, size) == MHD_YES) return;
    log_debug("%s: libmicrohttpd does not take the connection", peer->address); /* and closed it */
    peer_closed(g, peer);
}

void peer_go_on(struct gateway *g, struct peer *peer)
{
    TAILQ_INSERT_HEAD(&g->peers.served, peer, link);
    peer->exchange->called = true;
    if (peer->leaves) peer_event(g, peer, EPOLLRDHUP);
    exchange_wake(peer->exchange);
}

void peers_pause(struct gateway *g)
{
    struct peer *idlest = who_gives_way(&g->peers, NULL);
    if (idlest) peer_end(g, idlest);
    g->peers.paused = true;
    loop_listen(g, false);
}

struct peer *peers_started(struct peers *p, int fd)
{
    struct peer *peer = TAILQ_FIRST(&p->served); /* new ones are at the head */
    while (peer && (peer->started || peer->fd != fd)) peer = TAILQ_NEXT(peer, link);
    if (!peer) return NULL;
    peer->started = true;
    p->fresh--;
    return peer;
}

/* ---- watching --------------------------------------------------------------------------------------- */

void peer_waits(struct peer *peer)
{
    peer->exchange = NULL;
    peer->since_us = units_now_us();
    peer->head_us = 0;
}

void peer_event(struct gateway *g, struct peer *peer, uint32_t events)
{
    if (peer->waits) {
        arrivals_event(g, peer, events);
        return;
    }
    if (events & EPOLLIN) peer->heard_us = units_now_us();
    if (events & EPOLLIN && !peer->exchange && !peer->head_us) peer->head_us = peer->heard_us;
    if (!(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) || peer->hung_up || peer->ended) return;
    peer->hung_up = true;
    g->peers.hung_up++;
}

/* The client of an exchange is gone, or will send nothing more. */
static void leave(struct gateway *g, struct exchange *ex)
{
    if (ex->gone) return;
    ex->gone = true;
    if (ex->state == EXCHANGE_WORK && jobs_withdraw(g->jobs, ex)) {
        exchange_start(ex); /* which ends it */
        return;
    }
    if (ex->state == EXCHANGE_WORK || ex->over) return; /* a thread has it; or it is being fetched, or not */
    g->metrics.cancelled++;
    exchange_drop(ex, "the client went away");
}

void peers_settle(struct gateway *g)
{
    struct peers *p = &g->peers;
    if (!p->fresh && !p->hung_up) return;
    for (struct peer *at = TAILQ_FIRST(&p->served), *next; at; at = next) {
        next = TAILQ_NEXT(at, link);
        if (!at->started) /* libmicrohttpd had no memory for it and closed it */
            peer_closed(g, at);
        else if (!at->hung_up || at->ended)
            continue;
        else if (!waits(at))
            leave(g, at->exchange);
        else if (is_read_out(at)) /* the bytes before the hang-up are no whole request */
            peer_end(g, at);
    }
}

void peers_tick(struct gateway *g)
{
    struct peers *p = &g->peers;
    const uint64_t now = units_now_us();
    if (p->paused && p->listen_fd >= 0) loop_listen(g, true);
    p->paused = false;
    for (struct peer *at = TAILQ_FIRST(&p->served); at; at = TAILQ_NEXT(at, link)) {
        if (!at->since_us || at->ended) continue;
        const char *why = NULL;
        if (now - at->since_us > g->request_us)
            why = "no whole request in time";
        else if (!at->exchange && at->head_us && now - at->head_us > p->stall_us)
            why = "no whole head of a request in time";
        else if (at->exchange && now - at->heard_us > p->stall_us && is_read_out(at))
            why = "the body of its request stands still";
        if (!why) continue;
        log_debug("%s: %s", at->address, why);
        p->late += at->exchange || at->head_us; /* an idle connection is no fault */
        peer_end(g, at);
    }
}
