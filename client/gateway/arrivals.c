/* Connections and requests that wait for their turn. See arrivals.h. Owns connections until peer_admit.
 *
 * One client can open connections, or ask on open ones, faster than the gateway serves them. The kernel's
 * queue is first come, first served, so everybody would wait for that client. This file empties the kernel's
 * queue and makes an order of its own:
 *
 * 1. A connection is silent until its first bytes come. A silent connection takes no place.
 * 2. Requests for /health are answered many in a turn of the loop, the newest first: any other order has
 *    everybody wait for all. The connection is silent again then.
 * 3. All other connections, and requests on open connections, are served by address, one of each in turn. */
#include "client/gateway/arrivals.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/gateway/gateway.h"
#include "client/gateway/health.h"
#include "client/gateway/routes.h"
#include "client/gateway/server.h"
#include "common/base/log.h"
#include "common/base/units.h"

/* In a turn of the loop: those before are read first, and tokens go on. */
#define ACCEPTS  512 /* some 7 us each */
#define WORK     8   /* requests on open connections, some 50 us each; a new connection counts as two: */
#define WORK_NEW 2   /* more than 4 would find places that are taken by those whose bytes are still unread */
#define HEALTH   64  /* answers to /health, some 20 us each */
/* In a full house, as many turns hear others before one gives way: who hung up leaves without that. */
#define HEAR_FIRST 32

/* ---- lists ------------------------------------------------------------------------------------------ */

static void wait_in(struct peer *peer, struct peer_list *list)
{
    peer->waits = list;
    TAILQ_INSERT_TAIL(list, peer, link);
}

static void make_ready(struct peers *p, struct peer *peer)
{
    if (TAILQ_EMPTY(&peer->from->ready)) TAILQ_INSERT_TAIL(&p->turns, peer->from, turn);
    wait_in(peer, &peer->from->ready);
}

void arrivals_forget(struct peers *p, struct peer *peer)
{
    struct peer_address *from = peer->from;
    const bool ready = peer->waits == &from->ready;
    TAILQ_REMOVE(peer->waits, peer, link);
    peer->waits = NULL;
    if (ready && TAILQ_EMPTY(&from->ready)) TAILQ_REMOVE(&p->turns, from, turn);
    if (peer->started) return;
    from->waiting--;
    p->waiting--;
}

static void turn_away(struct peers *p, struct peer *peer)
{
    arrivals_forget(p, peer);
    close(peer->fd);
    peer_free(p, peer);
}

/* The one that gives way to a new one: of the address that has most the newest that is to be served, or else
 * the oldest. */
static struct peer *who_gives_way(const struct peers *p)
{
    const struct peer_address *most = SLIST_FIRST(&p->addresses);
    for (const struct peer_address *a = most; a; a = SLIST_NEXT(a, next))
        if (a->waiting > most->waiting) most = a;
    struct peer *peer = TAILQ_LAST(&most->ready, peer_list);
    while (peer && peer->started)
        peer = TAILQ_PREV(peer, peer_list, link); /* that has a place and a request */
    if (!peer)
        for (peer = TAILQ_FIRST(&p->health); peer && peer->from != most;) peer = TAILQ_NEXT(peer, link);
    if (!peer)
        for (peer = TAILQ_FIRST(&p->silent); peer->from != most;) peer = TAILQ_NEXT(peer, link);
    return peer;
}

/* ---- what they say ---------------------------------------------------------------------------------- */

/* Its first bytes may have come. */
static void hear(struct peers *p, struct peer *peer)
{
    const enum health_asks asks = health_asks(peer->fd);
    if (asks == HEALTH_SILENT) return;
    TAILQ_REMOVE(&p->silent, peer, link);
    if (asks == HEALTH_ASKED)
        wait_in(peer, &p->health);
    else
        make_ready(p, peer);
}

void arrivals_event(struct gateway *g, struct peer *peer, uint32_t events)
{
    struct peers *p = &g->peers;
    const bool gone = (events & (EPOLLHUP | EPOLLERR)) != 0; /* hears no answer; after EPOLLRDHUP it may */
    int bytes = 0;
    peer->leaves |= gone || (events & EPOLLRDHUP) != 0;
    if (peer->started) return;
    if (gone || (peer->leaves && ioctl(peer->fd, FIONREAD, &bytes) == 0 && bytes == 0))
        turn_away(p, peer);
    else if (peer->waits == &p->silent)
        hear(p, peer);
}

/* One that asks for /health. */
static void serve_health(struct gateway *g, struct peer *peer)
{
    struct peers *p = &g->peers;
    const enum health_answer answer = health_answer(g, peer->fd);
    p->answered++;
    if (answer == HEALTH_CLOSE || (answer == HEALTH_MORE && peer->leaves)) {
        turn_away(p, peer);
        return;
    }
    TAILQ_REMOVE(&p->health, peer, link);
    if (answer == HEALTH_NONE) {
        make_ready(p, peer);
    } else {
        peer->since_us = units_now_us();
        wait_in(peer, &p->silent);
    }
}

bool arrivals_may_go(struct gateway *g, struct exchange *ex)
{
    struct peers *p = &g->peers;
    struct peer *peer = ex->peer;
    const bool health = ex->route->reserve && p->answered < HEALTH,
               free = TAILQ_EMPTY(&p->turns) && p->work > 0;
    if (ex->called || ex->dropped || peer->waits) return true;
    if (!peer->admitted && !health && !free) {
        TAILQ_REMOVE(&p->served, peer, link);
        make_ready(p, peer);
        return false;
    }
    if (!peer->admitted && health)
        p->answered++;
    else if (!peer->admitted)
        p->work--;
    peer->admitted = false;
    return true;
}

/* ---- a turn ----------------------------------------------------------------------------------------- */

static void accept_some(struct gateway *g)
{
    struct peers *p = &g->peers;
    const bool unheard = p->unheard && p->unheard <= HEAR_FIRST;
    p->knocked = false;
    for (int i = 0; i < ACCEPTS && !(unheard && p->waiting >= p->waiting_max); i++) {
        struct sockaddr_storage at = {0};
        socklen_t size = sizeof at;
        const int fd = accept4(p->listen_fd, (struct sockaddr *)&at, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            struct peer *peer = peer_open(p, fd, &at);
            if (!peer) {
                close(fd);
                continue;
            }
            if (p->waiting >= p->waiting_max) {
                p->turned_away++;
                turn_away(p, who_gives_way(p));
            }
            wait_in(peer, &p->silent);
            peer->from->waiting++;
            p->waiting++;
            loop_watch(g, peer);
            hear(p, peer);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_warn("a connection cannot be accepted: %s", strerror(errno));
            peers_pause(g);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static void serve(struct gateway *g, struct peer *peer)
{
    arrivals_forget(&g->peers, peer);
    if (peer->started)
        peer_go_on(g, peer);
    else
        server_admit(g, peer);
}

void arrivals_serve(struct gateway *g)
{
    struct peers *p = &g->peers;
    if (p->listen_fd < 0) arrivals_close(g);
    if (p->knocked && p->listen_fd >= 0) accept_some(g);
    while (!TAILQ_EMPTY(&p->health) && p->answered < HEALTH)
        serve_health(g, TAILQ_LAST(&p->health, peer_list));
    for (p->work = WORK; p->work > 0 && !TAILQ_EMPTY(&p->turns);) {
        struct peer_address *from = TAILQ_FIRST(&p->turns);
        struct peer *peer = TAILQ_FIRST(&from->ready);
        p->work -= peer->started ? 1 : WORK_NEW;
        serve(g, peer);
        if (TAILQ_FIRST(&p->turns) != from) continue;
        TAILQ_REMOVE(&p->turns, from, turn); /* after the others */
        TAILQ_INSERT_TAIL(&p->turns, from, turn);
    }
    p->answered = 0;
}

bool arrivals_wait(const struct peers *p)
{
    return !TAILQ_EMPTY(&p->turns) || !TAILQ_EMPTY(&p->health);
}

void arrivals_tick(struct gateway *g)
{
    struct peers *p = &g->peers;
    struct peer *peer;
    while ((peer = TAILQ_FIRST(&p->silent)) && units_now_us() - peer->since_us > g->request_us)
        turn_away(p, peer);
}

void arrivals_close(struct gateway *g)
{
    struct peers *p = &g->peers;
    struct peer *peer;
    while (!TAILQ_EMPTY(&p->turns))
        if ((peer = TAILQ_FIRST(&TAILQ_FIRST(&p->turns)->ready))->started)
            serve(g, peer);
        else
            turn_away(p, peer);
    while ((peer = TAILQ_FIRST(&p->health)) || (peer = TAILQ_FIRST(&p->silent))) turn_away(p, peer);
}
