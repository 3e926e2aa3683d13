/* All connections. See client_socket.h. Owns the listening sockets, the connections and the tables of both.
 *
 * A connection that must end is *doomed* on the spot: its descriptor and buffers are released at once. The
 * connection itself is freed, and `gone` called, later, where no caller still uses it (sweep). */
#include "daemon/clients/client_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/clients/connection.h"
#include "daemon/clients/curve_keys.h"
#include "daemon/clients/peers.h"

#define LISTENER      (UINT64_C(1) << 63) /* in an event: not a connection's handle */
#define ACCEPT_AT     4                   /* connections taken a round */
#define EVENTS_AT     256
#define FDS_RESERVED  48 /* descriptors that are not for clients */
#define TICK_US       ((uint64_t)500000)
#define LAST_WORDS_MS 200
#define EVENTS_ALWAYS EPOLLRDHUP

struct listener {
    int fd;
    bool tcp;
};

struct client_socket {
    size_t frame_max;
    struct endpoint_groups groups;
    uint8_t secret[ENDPOINT_SECRET]; /* of endpoint_named */
    int epoll;
    struct listener listener[ARGS_LIST_MAX];
    uint32_t listeners;
    bool deaf; /* listeners are left alone until the next tick: there were no descriptors */
    struct zmtp_door door;
    struct curve_keys keys;
    bool secure; /* there are TCP endpoints */
    void (*gone)(void *context, uint64_t client);
    void *gone_context;
    struct connection *client[CLIENT_SOCKET_CLIENTS_MAX];
    uint32_t clients, clients_max, used;                 /* entries that were ever used lie below */
    struct connection *ready[CLIENT_SOCKET_CLIENTS_MAX]; /* [readies]: those that may have a message */
    uint32_t readies;
    struct peers peers;
    size_t held; /* bytes of all buffers */
    uint64_t lives, turn, tick_us;
    size_t budget;                      /* bytes that may be read in this round */
    struct connection *unsent, *doomed; /* lists */
};

/* ---- opening ------------------------------------------------------------------------------------------ */

size_t client_socket_frame_bound(size_t frame_max)
{
    return 2 * frame_max > CLIENT_FRAME_TAKEN ? 2 * frame_max : CLIENT_FRAME_TAKEN;
}

static bool lets_in(void *context, const uint8_t key[CURVE_KEY])
{
    struct client_socket *sock = context;
    if (curve_keys_find(&sock->keys, key)) return true;
    log_warn("a TCP client was refused: its public key is not in curve-clients-file");
    return false;
}

int client_socket_reload(struct client_socket *sock, const char *curve_clients_file, struct helm_err *err)
{
    struct curve_keys keys;
    if (!sock->secure || !curve_clients_file) return 0;
    const int rc = curve_keys_read_clients(curve_clients_file, &keys, err);
    if (rc) return rc;
    curve_keys_free(&sock->keys);
    sock->keys = keys;
    log_info("%s: %u clients may connect", curve_clients_file, keys.count);
    return 0;
}

static int open_secure(struct client_socket *sock, const char *endpoint,
                       const struct client_socket_options *options, struct helm_err *err)
{
    if (!options->curve_secret_key_file || !options->curve_clients_file)
        return helm_fail(
            err, HELM_E_PERMISSION,
            "%s refused: TCP is offered only with CURVE keys; set curve-secret-key-file (the daemon's "
            "secret key) and curve-clients-file (public keys of those who may connect)",
            endpoint);
    int rc = curve_init(err);
    if (!rc) rc = curve_keys_read_clients(options->curve_clients_file, &sock->keys, err);
    if (!rc) rc = curve_keys_read_secret(options->curve_secret_key_file, &sock->door.server, err);
    sock->door.lets_in = lets_in;
    sock->door.context = sock;
    sock->secure = !rc;
    return rc;
}

static int listen_for(struct client_socket *sock, uint32_t at, uint32_t events, int how)
{
    struct epoll_event event = {.events = events, .data.u64 = LISTENER | at};
    return epoll_ctl(sock->epoll, how, sock->listener[at].fd, &event);
}

static int add_endpoint(struct client_socket *sock, const char *endpoint,
                        const struct client_socket_options *options, struct helm_err *err)
{
    const uint32_t at = sock->listeners;
    struct listener *listener = &sock->listener[at];
    listener->tcp = endpoint_is_tcp(endpoint);
    int rc = listener->tcp && !sock->secure ? open_secure(sock, endpoint, options, err) : 0;
    if (!rc) rc = endpoint_listen(endpoint, &listener->fd, err);
    if (rc) return rc;
    sock->listeners++;
    return listen_for(sock, at, EPOLLIN, EPOLL_CTL_ADD) ? helm_fail_errno(err, "%s", endpoint) : 0;
}

static uint32_t clients_allowed(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= CLIENT_SOCKET_CLIENTS_MAX + FDS_RESERVED)
        return CLIENT_SOCKET_CLIENTS_MAX;
    return files.rlim_cur > FDS_RESERVED + 8 ? (uint32_t)files.rlim_cur - FDS_RESERVED : 8;
}

int client_socket_open(const struct client_socket_options *options, struct client_socket **out,
                       struct helm_err *err)
{
    struct client_socket *sock = calloc(1, sizeof *sock);
    *out = NULL;
    if (!sock) return helm_fail(err, HELM_E_NOMEM, "no memory for the client table");
    sock->frame_max = client_socket_frame_bound(options->frame_max);
    sock->groups = options->groups;
    sock->clients_max = clients_allowed();
    sock->budget = CLIENT_ROUND;
    sock->epoll = epoll_create1(EPOLL_CLOEXEC);
    int rc = sock->epoll < 0 ? helm_fail_errno(err, "client sockets") : 0;
    if (!rc && getrandom(sock->secret, sizeof sock->secret, 0) < 0)
        rc = helm_fail_errno(err, "drawing a secret");
    for (uint32_t i = 0; !rc && i < options->endpoints->count; i++)
        rc = add_endpoint(sock, options->endpoints->item[i], options, err);
    if (rc) client_socket_close(&sock);
    *out = sock;
    return rc;
}

/* ---- connections -------------------------------------------------------------------------------------- */

static struct connection *client_of(const struct client_socket *sock, uint64_t handle)
{
    struct connection *c = handle ? sock->client[handle % CLIENT_SOCKET_CLIENTS_MAX] : NULL;
    return c && c->handle == handle && !c->doomed ? c : NULL;
}

static void account(struct client_socket *sock, struct connection *c)
{
    const size_t held = c->in.capacity + c->out.capacity;
    sock->held += held - c->held;
    sock->peers.peer[c->peer].held += held - c->held;
    c->held = held;
}

/* However many connections there are, only these are looked at in a round. */
static void set_ready(struct client_socket *sock, struct connection *c, bool ready)
{
    const bool was = c->ready_at != CONNECTION_NOT_READY;
    if (ready == was) return;
    if (ready) {
        c->ready_at = sock->readies;
        sock->ready[sock->readies++] = c;
        return;
    }
    struct connection *last = sock->ready[--sock->readies];
    last->ready_at = c->ready_at;
    sock->ready[c->ready_at] = last;
    c->ready_at = CONNECTION_NOT_READY;
}

static void doom(struct client_socket *sock, struct connection *c, const char *why)
{
    if (c->doomed) return;
    if (*why) log_debug("client %llu is let go: it %s", (unsigned long long)c->handle, why);
    set_ready(sock, c, false);
    connection_shut(c);
    account(sock, c);
    peers_leave(&sock->peers, c->peer);
    c->doomed = true;
    if (c->listed) return; /* sweep finds it in the list of those with something to send */
    c->next = sock->doomed;
    sock->doomed = c;
}

/* Frees what is doomed and tells of it. */
static void sweep(struct client_socket *sock)
{
    while (sock->doomed) {
        struct connection *c = sock->doomed;
        const uint64_t handle = c->handle;
        const bool asked = c->open_requests > 0;
        sock->doomed = c->next;
        sock->client[handle % CLIENT_SOCKET_CLIENTS_MAX] = NULL;
        sock->clients--;
        free(c);
        if (asked && sock->gone) sock->gone(sock->gone_context, handle);
    }
    while (sock->used && !sock->client[sock->used - 1]) sock->used--;
}

/* Ends the largest connection of the peer that holds most, until the sum of all buffers is within the
 * bound. */
static void bound_held(struct client_socket *sock)
{
    while (sock->held > CLIENT_HELD_MAX) {
        const uint32_t peer = peers_most_held(&sock->peers);
        struct connection *most = NULL;
        for (uint32_t i = 0; i < sock->used; i++) {
            struct connection *c = sock->client[i];
            if (c && !c->doomed && c->peer == peer && (!most || c->held > most->held)) most = c;
        }
        if (!most || !most->held) return;
        log_warn(
            "clients' buffers hold more than %zu MiB: the largest, of %zu KiB, is let go with its connection",
            CLIENT_HELD_MAX >> 20, most->held >> 10);
        doom(sock, most, "holds most of all clients' buffers");
    }
}

static void want_events(struct client_socket *sock, struct connection *c)
{
    const uint32_t events =
        EVENTS_ALWAYS | (c->paused ? 0 : EPOLLIN) | (connection_waiting(c) ? (uint32_t)EPOLLOUT : 0);
    struct epoll_event event = {.events = events, .data.u64 = c->handle};
    if (events == c->events) return;
    if (epoll_ctl(sock->epoll, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd, &event))
        doom(sock, c, "cannot be watched");
    c->events = events;
}

/* Writes, and reads on once little of it waits. */
static void push(struct client_socket *sock, struct connection *c, uint64_t now_us)
{
    if (c->doomed) return;
    if (connection_write(c, now_us)) {
        doom(sock, c, "");
        return;
    }
    if (c->paused && connection_waiting(c) <= CONNECTION_ANSWERS_PAUSE / 2) {
        c->paused = false;
        set_ready(sock, c, true);
    }
    account(sock, c);
    want_events(sock, c);
}

static void list_unsent(struct client_socket *sock, struct connection *c)
{
    if (c->listed) return;
    c->listed = true;
    c->next = sock->unsent;
    sock->unsent = c;
}

/* ---- new ones ----------------------------------------------------------------------------------------- */

/* The peer's connection without open requests that was silent for longest. */
static struct connection *idlest(struct client_socket *sock, uint32_t peer)
{
    struct connection *idle = NULL;
    for (uint32_t i = 0; i < sock->used; i++) {
        struct connection *c = sock->client[i];
        if (c && !c->doomed && c->peer == peer && !c->open_requests &&
            (!idle || c->since_us < idle->since_us))
            idle = c;
    }
    return idle;
}

/* Makes sure that the table has a free place: an idle connection goes if it must. False: none can be had. */
static bool make_place(struct client_socket *sock)
{
    if (sock->clients < sock->clients_max) return true;
    struct connection *idle = idlest(sock, peers_most_connected(&sock->peers));
    if (!idle) return false;
    doom(sock, idle, "is idle, and others want to connect");
    sweep(sock);
    return true;
}

static uint32_t vacant_entry(struct client_socket *sock)
{
    uint32_t i = 0;
    while (i < sock->used && sock->client[i]) i++;
    if (i == sock->used) sock->used++;
    return i;
}

static void greet(struct client_socket *sock, int fd, bool tcp, uint64_t now_us)
{
    struct helm_err err = {0};
    struct connection *c;
    if (connection_open(fd, tcp ? &sock->door : NULL, sock->frame_max, &c, &err)) {
        log_error("a client cannot connect: %s", err.text);
        close(fd);
        return;
    }
    const struct endpoint_peer user = tcp ? (struct endpoint_peer){0} : endpoint_user(fd, &sock->groups);
    const uint32_t entry = vacant_entry(sock);
    /* after those that wait: coming anew is no way to be first */
    c->served = sock->turn;
    c->handle = ++sock->lives * CLIENT_SOCKET_CLIENTS_MAX + entry;
    c->peer = peers_join(&sock->peers, user.number, sock->turn);
    c->admin = user.administers;
    c->names_users = user.names_users;
    c->since_us = now_us;
    sock->client[entry] = c;
    sock->clients++;
    push(sock, c, now_us);
}

static void take_connections(struct client_socket *sock, uint32_t at, uint64_t now_us)
{
    for (int i = 0; i < ACCEPT_AT; i++) {
        const int fd = endpoint_accept(sock->listener[at].fd, sock->listener[at].tcp);
        if (fd >= 0 && make_place(sock)) {
            greet(sock, fd, sock->listener[at].tcp, now_us);
        } else if (fd >= 0) {
            close(fd);
        } else {
            sock->deaf = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            break;
        }
    }
    if (!sock->deaf) return;
    log_warn("no descriptor for a client: none is let in for a moment");
    for (uint32_t i = 0; i < sock->listeners; i++) (void)listen_for(sock, i, 0, EPOLL_CTL_MOD);
}

/* A TCP connection has shown its key. */
static void know_peer(struct client_socket *sock, struct connection *c)
{
    if (!c->session.door || c->session.state != ZMTP_OPEN || sock->peers.peer[c->peer].number) return;
    const struct curve_client_key *key = curve_keys_find(&sock->keys, c->session.curve.client);
    sock->peers.peer[c->peer].held -= c->held;
    peers_leave(&sock->peers, c->peer);
    c->peer = peers_join(&sock->peers, endpoint_key(c->session.curve.client), sock->turn);
    sock->peers.peer[c->peer].held += c->held;
    c->admin = key && key->administers;
    c->names_users = key && key->names_users;
}

/* ---- rounds ------------------------------------------------------------------------------------------- */

int client_socket_poll_items(struct client_socket *sock, zmq_pollitem_t items[CLIENT_SOCKET_POLL_MAX])
{
    items[0] = (zmq_pollitem_t){.fd = sock->epoll, .events = ZMQ_POLLIN};
    return 1;
}

bool client_socket_ready(const struct client_socket *sock)
{
    return sock->readies > 0;
}

/* Ends connections that are late: greetings, and readers of answers. */
static void tick(struct client_socket *sock, uint64_t now_us)
{
    if (now_us < sock->tick_us) return;
    sock->tick_us = now_us + TICK_US;
    for (uint32_t i = 0; sock->deaf && i < sock->listeners; i++)
        (void)listen_for(sock, i, EPOLLIN, EPOLL_CTL_MOD);
    sock->deaf = false;
    for (uint32_t i = 0; i < sock->used; i++) {
        struct connection *c = sock->client[i];
        if (!c || c->doomed) continue;
        if (c->session.state != ZMTP_OPEN && now_us > c->since_us + CLIENT_GREETING_US)
            doom(sock, c, "does not say who it is");
        else if (connection_waiting(c) && now_us > c->moved_us + CLIENT_STALL_US)
            doom(sock, c, "does not read its answers");
    }
}

static void take_event(struct client_socket *sock, const struct epoll_event *event, uint64_t now_us)
{
    if (event->data.u64 & LISTENER) {
        take_connections(sock, (uint32_t)(event->data.u64 & ~LISTENER), now_us);
        return;
    }
    struct connection *c = client_of(sock, event->data.u64);
    if (!c) return;
    if (event->events & EPOLLOUT) push(sock, c, now_us);
    if (c->doomed) return;
    if (!c->paused)
        set_ready(sock, c, true); /* an end, too, comes after what there is to be read */
    else if (event->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        doom(sock, c, "");
}

void client_socket_watch(struct client_socket *sock)
{
    struct epoll_event events[EVENTS_AT];
    const uint64_t now_us = units_now_us();
    const int n = epoll_wait(sock->epoll, events, EVENTS_AT, 0);
    sock->budget = CLIENT_ROUND;
    for (int i = 0; i < n; i++) take_event(sock, &events[i], now_us);
    tick(sock, now_us);
    sweep(sock);
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

/* The peer that was served longest ago, of it the connection. */
static struct connection *next_in_turn(struct client_socket *sock)
{
    struct connection *next = NULL;
    uint64_t peer_served = 0;
    for (uint32_t i = 0; i < sock->readies; i++) {
        struct connection *c = sock->ready[i];
        const uint64_t served = sock->peers.peer[c->peer].served;
        if (next && (served > peer_served || (served == peer_served && c->served >= next->served))) continue;
        next = c;
        peer_served = served;
    }
    return next;
}

/* Takes what a connection has. True: a message. */
static bool take_from(struct client_socket *sock, struct connection *c, struct client_frame *frame)
{
    struct zmtp_taken taken;
    size_t read = 0;
    const enum connection_event event = connection_take(c, &taken, &read);
    sock->budget -= read + 1 < sock->budget ? read + 1 : sock->budget;
    if (event == CONNECTION_IDLE) set_ready(sock, c, false);
    account(sock, c);
    if (event == CONNECTION_SHAKEN) know_peer(sock, c);
    if (event == CONNECTION_SHAKEN) list_unsent(sock, c);
    if (event == CONNECTION_END) {
        const bool told = c->session.reply_size && connection_write(c, 0) == 0;
        doom(sock, c, told ? "was told that it may not come in" : c->session.why);
    }
    bound_held(sock);
    if (event != CONNECTION_MESSAGE || c->doomed) return false;
    c->since_us = units_now_us();
    *frame = (struct client_frame){.client = c->handle,
                                   .peer = sock->peers.peer[c->peer].number,
                                   .admin = c->admin,
                                   .names_users = c->names_users,
                                   .data = taken.frame,
                                   .size = taken.size,
                                   .too_many_parts = taken.too_many_parts,
                                   .bytes = taken.bytes};
    return true;
}

bool client_socket_receive(struct client_socket *sock, struct client_frame *frame)
{
    while (sock->budget > 0) {
        struct connection *c = next_in_turn(sock);
        if (!c) return false;
        c->served = sock->peers.peer[c->peer].served = ++sock->turn;
        if (connection_waiting(c) > CONNECTION_ANSWERS_PAUSE) {
            c->paused = true;
            set_ready(sock, c, false);
            list_unsent(sock, c);
        } else if (take_from(sock, c, frame)) {
            return true;
        }
    }
    return false;
}

void client_frame_close(struct client_socket *sock, struct client_frame *frame)
{
    (void)frame; /* its bytes are the connection's */
    client_socket_flush(sock);
}

uint64_t client_socket_named(const struct client_socket *sock, uint64_t peer, const char *user)
{
    return endpoint_named(peer, user, sock->secret);
}

/* ---- sending ------------------------------------------------------------------------------------------ */

void client_socket_retain(struct client_socket *sock, uint64_t client)
{
    struct connection *c = client_of(sock, client);
    if (c) c->open_requests++;
}

void client_socket_release(struct client_socket *sock, uint64_t client)
{
    struct connection *c = client_of(sock, client);
    if (c && c->open_requests > 0) c->open_requests--;
}

void client_socket_on_gone(struct client_socket *sock, void (*gone)(void *context, uint64_t client),
                           void *context)
{
    sock->gone = gone;
    sock->gone_context = context;
}

int client_socket_send(struct client_socket *sock, uint64_t client, const uint8_t *data, size_t size,
                       bool final)
{
    struct connection *c = client_of(sock, client);
    if (!c) return HELM_E_PEER;
    if (!connection_waiting(c)) c->moved_us = units_now_us();
    const int rc =
        connection_answer(c, data, size, final ? CONNECTION_ANSWERS_HARD_MAX : CONNECTION_ANSWERS_MAX);
    account(sock, c);
    list_unsent(sock, c);
    bound_held(sock);
    return c->doomed ? HELM_E_PEER : rc;
}

void client_socket_flush(struct client_socket *sock)
{
    const uint64_t now_us = units_now_us();
    while (sock->unsent) {
        struct connection *c = sock->unsent;
        sock->unsent = c->next;
        c->listed = false;
        if (c->doomed) {
            c->next = sock->doomed;
            sock->doomed = c;
        } else {
            push(sock, c, now_us);
        }
    }
    sweep(sock);
}

/* ---- closing ------------------------------------------------------------------------------------------ */

/* Until all of it has left, or 200 ms are over. */
static void last_words(struct client_socket *sock)
{
    const uint64_t end_us = units_now_us() + LAST_WORDS_MS * 1000;
    for (uint32_t i = 0; i < sock->used; i++) {
        struct connection *c = sock->client[i];
        while (c && !c->doomed && connection_waiting(c)) {
            struct pollfd out = {.fd = c->fd, .events = POLLOUT};
            const uint64_t now_us = units_now_us();
            if (connection_write(c, now_us) || now_us >= end_us) break;
            if (connection_waiting(c)) poll(&out, 1, (int)((end_us - now_us + 999) / 1000));
        }
    }
}

void client_socket_close(struct client_socket **sock)
{
    struct client_socket *s = *sock;
    *sock = NULL;
    if (!s) return;
    s->gone = NULL;
    last_words(s);
    for (uint32_t i = 0; i < s->used; i++)
        if (s->client[i]) doom(s, s->client[i], "");
    client_socket_flush(s);
    for (uint32_t i = 0; i < s->listeners; i++) close(s->listener[i].fd);
    if (s->epoll >= 0) close(s->epoll);
    curve_keys_free(&s->keys);
    free(s);
}
