/* Connections that are accepted and not served yet. See arrivals.h. Owns their queues; a connection is peer.c's from
 * peer_admit on.
 *
 * One client can open connections faster than the gateway serves them. In the kernel's queue, which is first come, first
 * served, everybody would wait for all of them. So a turn of the loop accepts many, and serves few: those that ask for /health
 * at once, of the others one of each address in turn. */
#include "client/gateway/arrivals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/gateway/gateway.h"
#include "common/base/log.h"

#define ACCEPTS 64 /* new connections in a turn of the loop: some 5 us each */
#define SERVED  4  /* in a turn, of those that wait: those before are read first, and tokens go on */
#define URGENT  16 /* that ask for /health; more of them wait as others do */

/* ---- the queues ------------------------------------------------------------------------------------- */

/* Behind the other addresses that have some. */
static void queue_address(struct peers *p, struct peer_address *from)
{
    from->after = NULL;
    if (p->turn)
        p->turn_last->after = from;
    else
        p->turn = from;
    p->turn_last = from;
}

static void push(struct peers *p, struct peer *peer)
{
    struct peer_address *from = peer->from;
    peer->next = NULL;
    if (from->waiting)
        from->last->next = peer;
    else
        from->first = peer;
    from->last = peer;
    p->waiting++;
    if (!from->waiting++) queue_address(p, from);
}

/* The first one of the address whose turn it is. There is one. */
static struct peer *pop(struct peers *p)
{
    struct peer_address *from = p->turn;
    struct peer *peer = from->first;
    p->turn = from->after;
    from->first = peer->next;
    p->waiting--;
    if (--from->waiting) queue_address(p, from);
    peer->next = NULL;
    return peer;
}

/* ---- accepting -------------------------------------------------------------------------------------- */

enum wish { WISH_UNKNOWN, WISH_HEALTH, WISH_OTHER };

/* By its first bytes, which stay where they are. */
static enum wish look_at(int fd)
{
    static const char *const begins[] = {"GET /health", "GET /v1/health", "HEAD /health", "HEAD /v1/health"};
    char head[16];
    const ssize_t n = recv(fd, head, sizeof head, MSG_PEEK);
    for (size_t i = 0; n > 0 && i < sizeof begins / sizeof *begins; i++) {
        const size_t length = strlen(begins[i]);
        if ((size_t)n > length && memcmp(head, begins[i], length) == 0 && strchr(" ?", head[length]))
            return WISH_HEALTH;
    }
    return n < 0 ? WISH_UNKNOWN : WISH_OTHER;
}

static void take(struct gateway *g, struct MHD_Daemon *http, int fd, const struct sockaddr_storage *at,
                 uint32_t *urgent)
{
    struct peers *p = &g->peers;
    struct peer *peer = peer_open(p, fd, at);
    if (!peer) {
        close(fd);
        return;
    }
    const enum wish wish = look_at(fd);
    const bool many = wish != WISH_UNKNOWN && peer->from->waiting >= ARRIVALS_OF_ONE;
    if (wish == WISH_HEALTH && *urgent < URGENT) {
        ++*urgent;
        peer_admit(g, http, peer);
    } else if (many || p->waiting >= p->waiting_max) {
        p->turned_away++;
        close(fd);
        peer_free(p, peer);
    } else {
        push(p, peer);
    }
}

static void accept_some(struct gateway *g, struct MHD_Daemon *http)
{
    uint32_t urgent = 0;
    g->peers.knocked = false;
    for (int i = 0; i < ACCEPTS && g->peers.listen_fd >= 0; i++) {
        struct sockaddr_storage at = {0};
        socklen_t size = sizeof at;
        const int fd =
            accept4(g->peers.listen_fd, (struct sockaddr *)&at, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            take(g, http, fd, &at, &urgent);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_warn("a connection cannot be accepted: %s", strerror(errno));
            peers_pause(g);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

void arrivals_serve(struct gateway *g, struct MHD_Daemon *http)
{
    if (g->peers.knocked) accept_some(g, http);
    for (int i = 0; i < SERVED && g->peers.waiting; i++) peer_admit(g, http, pop(&g->peers));
}

void arrivals_close(struct peers *p)
{
    while (p->waiting) {
        struct peer *peer = pop(p);
        close(peer->fd);
        peer_free(p, peer);
    }
}
