/* Connections that are accepted and not served yet. See arrivals.h. Owns them until peer_admit.
 *
 * One client can open connections faster than the gateway serves them. In the kernel's queue, which is first come, first
 * served, everybody would wait for all of them. So the kernel's queue is emptied, and the order is made here: a connection is
 * silent until its first bytes have come, and takes no place; then it is served at once if it asks for /health, otherwise one of
 * each address is served in turn. */
#include "client/gateway/arrivals.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/gateway/gateway.h"
#include "client/gateway/server.h"
#include "common/base/log.h"
#include "common/base/units.h"

/* In a turn of the loop: those before are read first, and tokens go on. */
#define ACCEPTS 128 /* some 5 us each */
#define SERVED  4   /* more would find places that are taken by those whose bytes are still unread */
#define URGENT  4   /* that ask for /health; more than that wait as others do */

/* ---- lists ------------------------------------------------------------------------------------------ */

/* After the other addresses that have connections to be served. */
static void queue_address(struct peers *p, struct peer_address *from)
{
    from->after = NULL;
    if (p->turn)
        p->turn_last->after = from;
    else
        p->turn = from;
    p->turn_last = from;
}

static void unqueue_address(struct peers *p, struct peer_address *from)
{
    struct peer_address **at = &p->turn, *before = NULL;
    for (; *at != from; at = &before->after) before = *at;
    *at = from->after;
    if (p->turn_last == from) p->turn_last = before;
}

static void make_ready(struct peers *p, struct peer *peer)
{
    peer_list_remove(&p->silent, peer);
    if (!peer->from->ready.first) queue_address(p, peer->from);
    peer_list_append(&peer->from->ready, peer);
    peer->ready = true;
}

/* Takes it out of the lists. */
static void take_out(struct peers *p, struct peer *peer)
{
    struct peer_address *from = peer->from;
    peer_list_remove(peer->ready ? &from->ready : &p->silent, peer);
    if (peer->ready && !from->ready.first) unqueue_address(p, from);
    peer->waiting = false;
    from->waiting--;
    p->waiting--;
}

static void turn_away(struct peers *p, struct peer *peer)
{
    take_out(p, peer);
    close(peer->fd);
    peer_free(p, peer);
}

/* The one that gives way to a new one: of the address that has most the newest that is to be served, or else the oldest. */
static struct peer *who_gives_way(const struct peers *p)
{
    const struct peer_address *most = p->addresses;
    for (const struct peer_address *a = p->addresses; a; a = a->next)
        if (a->waiting > most->waiting) most = a;
    struct peer *peer = most->ready.last;
    if (!peer)
        for (peer = p->silent.first; peer->from != most;) peer = peer->next;
    return peer;
}

/* ---- what they say ---------------------------------------------------------------------------------- */

/* By its first bytes, which stay where they are. */
static bool asks_for_health(int fd)
{
    static const char *const begins[] = {"GET /health", "GET /v1/health", "HEAD /health", "HEAD /v1/health"};
    char head[16];
    const ssize_t n = recv(fd, head, sizeof head, MSG_PEEK);
    for (size_t i = 0; n > 0 && i < sizeof begins / sizeof *begins; i++) {
        const size_t length = strlen(begins[i]);
        if ((size_t)n > length && memcmp(head, begins[i], length) == 0 && strchr(" ?", head[length]))
            return true;
    }
    return false;
}

void arrivals_event(struct gateway *g, struct peer *peer, uint32_t events)
{
    struct peers *p = &g->peers;
    int bytes = 0;
    peer->leaves |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (peer->leaves && ioctl(peer->fd, FIONREAD, &bytes) == 0 && bytes == 0) {
        turn_away(p, peer);
        return;
    }
    if (peer->ready) return;
    make_ready(p, peer);
    if (p->urgent >= URGENT || !asks_for_health(peer->fd)) return;
    p->urgent++;
    take_out(p, peer);
    server_admit(g, peer);
}

/* ---- a turn ----------------------------------------------------------------------------------------- */

static void accept_some(struct gateway *g)
{
    struct peers *p = &g->peers;
    p->knocked = false;
    for (int i = 0; i < ACCEPTS; i++) {
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
            peer_list_append(&p->silent, peer);
            peer->waiting = true;
            peer->from->waiting++;
            p->waiting++;
            loop_watch(g, peer);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_warn("a connection cannot be accepted: %s", strerror(errno));
            peers_pause(g);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

void arrivals_serve(struct gateway *g)
{
    struct peers *p = &g->peers;
    p->urgent = 0;
    if (p->listen_fd < 0) arrivals_close(p);
    if (p->knocked && p->listen_fd >= 0) accept_some(g);
    for (int i = 0; i < SERVED && p->turn; i++) {
        struct peer_address *from = p->turn;
        struct peer *peer = from->ready.first;
        take_out(p, peer);
        if (from->ready.first && p->turn_last != from) { /* after the others */
            unqueue_address(p, from);
            queue_address(p, from);
        }
        server_admit(g, peer);
    }
}

void arrivals_tick(struct gateway *g)
{
    struct peers *p = &g->peers;
    while (p->silent.first && units_now_us() - p->silent.first->since_us > g->request_us)
        turn_away(p, p->silent.first);
}

void arrivals_close(struct peers *p)
{
    while (p->turn) turn_away(p, p->turn->ready.first);
    while (p->silent.first) turn_away(p, p->silent.first);
}
