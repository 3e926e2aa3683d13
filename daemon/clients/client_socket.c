/* Frames to and from clients. See client_socket.h. Owns the sockets, the table of clients and their backlogs.
 *
 * Limits: frames of client_socket_bounds (libzmq drops the connection of a peer that sends a larger one
 * before it is read into memory); high-water marks so that libzmq's own queues are short, those to clients so
 * that a slow one is noticed here, those from clients so that a hasty one waits in its own memory. */
#include "daemon/clients/client_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define SEND_HWM       1024
#define ROUTING_ID_MAX 255
#define KEY_TEXT       40 /* a Z85 key */
#define ALLOWED_MAX    1024
#define FD_MAX         16384 /* descriptors whose connections are told apart */

struct backlog_frame {
    struct backlog_frame *next;
    size_t size;
    uint8_t data[];
};

struct client {
    uint64_t handle; /* 0: free entry */
    uint8_t routing_id[ROUTING_ID_MAX];
    uint8_t routing_id_size;
    bool secure;    /* which socket */
    bool delimiter; /* sends an empty frame first, as REQ sockets do, and expects one */
    uint32_t open_requests;
    int fd; /* its connection; -1: not known */
    uint32_t fd_life;
    struct backlog_frame *first, *last;
    size_t backlog_bytes;
    uint64_t moved_us; /* when its backlog last began or shrank */
};

#define CURVE_PEER_BYTES 7 /* of a key that tell it from the others of the file */
/* Public keys of those who may connect with CURVE. */
struct keys {
    uint8_t (*key)[32];
    uint32_t count;
};

struct client_socket {
    struct client_socket_bounds bounds;
    void *local, *secure, *zap;
    void *local_events, *secure_events; /* what happens to their connections */
    uint32_t *fd_life;                  /* [FD_MAX]: how often this number was given to a connection */
    void (*gone)(void *context, uint64_t client);
    void *gone_context;
    struct client *client; /* [CLIENT_SOCKET_CLIENTS_MAX] */
    uint32_t used;         /* entries that were ever used lie below */
    uint64_t next_handle;
    uint32_t next_turn; /* which socket is read first */
    struct keys allowed;
    size_t backlog_bytes; /* of all clients */
};

/* ---- opening ------------------------------------------------------------------------------------------ */

static int set_int(void *socket, int option, int value, struct helm_err *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return 0;
    return helm_fail(err, HELM_E_IO, "client socket: option %d: %s", option, zmq_strerror(errno));
}

struct client_socket_bounds client_socket_bounds(size_t frame_max)
{
    size_t taken = 2 * frame_max > CLIENT_FRAME_TAKEN ? 2 * frame_max : CLIENT_FRAME_TAKEN;
    uint32_t frames = (uint32_t)(CLIENT_RECEIVE_MAX / taken);
    return (struct client_socket_bounds){.frame_max = taken, .receive_hwm = frames ? frames : 1};
}

static int open_router(void *zmq, const char *events_name, const struct client_socket_bounds *bounds,
                       void **out, void **events, struct helm_err *err)
{
    void *socket = zmq_socket(zmq, ZMQ_ROUTER);
    if (!socket) return helm_fail(err, HELM_E_IO, "client socket: %s", zmq_strerror(errno));
    *out = socket;
    int64_t frame_max = (int64_t)bounds->frame_max;
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max))
        return helm_fail(err, HELM_E_IO, "client socket: ZMQ_MAXMSGSIZE: %s", zmq_strerror(errno));
    int rc = set_int(socket, ZMQ_ROUTER_MANDATORY, 1, err);
    if (!rc) rc = set_int(socket, ZMQ_SNDHWM, SEND_HWM, err);
    if (!rc) rc = set_int(socket, ZMQ_RCVHWM, (int)bounds->receive_hwm, err);
    if (!rc) rc = set_int(socket, ZMQ_LINGER, 200, err); /* last words to clients when the daemon stops */
    if (!rc) rc = set_int(socket, ZMQ_BACKLOG, 256, err);
    if (!rc) rc = set_int(socket, ZMQ_HANDSHAKE_IVL, 5000, err);
    if (rc) return rc;
    *events = zmq_socket(zmq, ZMQ_PAIR);
    if (!*events || zmq_socket_monitor(socket, events_name, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) ||
        zmq_connect(*events, events_name))
        return helm_fail(err, HELM_E_IO, "client socket events: %s", zmq_strerror(errno));
    return set_int(*events, ZMQ_LINGER, 0, err);
}

static int read_key(const char *path, const char *what, char key[KEY_TEXT + 1], struct helm_err *err)
{
    struct stat st;
    if (stat(path, &st)) return helm_fail_errno(err, "%s %s", what, path);
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return helm_fail(err, HELM_E_PERMISSION,
                         "%s %s has mode %04o: only its owner may have access (chmod 600)", what, path,
                         (unsigned)(st.st_mode & 07777));
    char *text = NULL;
    size_t length = 0;
    int rc = file_read(path, 4096, &text, &length, err);
    if (rc) return rc;
    size_t n = strcspn(text, "\r\n \t");
    if (n != KEY_TEXT || strspn(text + n, "\r\n \t") != length - n) {
        rc = helm_fail(err, HELM_E_FORMAT, "%s %s: expected one Z85 key of %d characters", what, path,
                       KEY_TEXT);
    } else {
        memcpy(key, text, KEY_TEXT);
        key[KEY_TEXT] = 0;
    }
    memset(text, 0, length);
    free(text);
    return rc;
}

/* One Z85 public key a line; '#' starts a comment. */
static int read_allowed(const char *path, struct keys *allowed, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = file_read(path, 1 << 20, &text, &length, err);
    if (rc) return rc;
    *allowed = (struct keys){.key = calloc(ALLOWED_MAX, sizeof *allowed->key)};
    if (!allowed->key) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %s", path);
        goto out;
    }
    uint32_t line = 0;
    char *rest = NULL;
    for (char *p = strtok_r(text, "\n", &rest); p; p = strtok_r(NULL, "\n", &rest)) {
        line++;
        p += strspn(p, " \t\r");
        size_t n = strcspn(p, " \t\r");
        if (n == 0 || *p == '#') continue;
        p[n] = 0;
        if (allowed->count == ALLOWED_MAX) {
            rc = helm_fail(err, HELM_E_LIMIT, "%s: more than %d keys", path, ALLOWED_MAX);
            goto out;
        }
        if (n != KEY_TEXT || !zmq_z85_decode(allowed->key[allowed->count], p)) {
            rc = helm_fail(err, HELM_E_FORMAT, "%s: key %u is not a Z85 key of %d characters", path, line,
                           KEY_TEXT);
            goto out;
        }
        allowed->count++;
    }
    if (allowed->count == 0)
        rc = helm_fail(err, HELM_E_FORMAT, "%s: no key in it: nobody could connect", path);
out:
    free(text);
    if (rc) free(allowed->key);
    if (rc) *allowed = (struct keys){0};
    return rc;
}

int client_socket_reload(struct client_socket *sock, const char *curve_clients_file, struct helm_err *err)
{
    struct keys allowed;
    if (!sock->secure || !curve_clients_file) return 0;
    const int rc = read_allowed(curve_clients_file, &allowed, err);
    if (rc) return rc;
    free(sock->allowed.key);
    sock->allowed = allowed;
    log_info("%s: %u clients may connect", curve_clients_file, allowed.count);
    return 0;
}

static int open_secure(void *zmq, struct client_socket *sock, const char *endpoint, const char *secret_file,
                       const char *clients_file, struct helm_err *err)
{
    if (!secret_file || !clients_file)
        return helm_fail(
            err, HELM_E_PERMISSION,
            "%s refused: TCP is offered only with CURVE keys; set curve-secret-key-file (the daemon's "
            "secret key) and curve-clients-file (public keys of those who may connect)",
            endpoint);
    if (!zmq_has("curve"))
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: this libzmq has no CURVE", endpoint);
    char key[KEY_TEXT + 1];
    int rc = read_allowed(clients_file, &sock->allowed, err);
    if (!rc) rc = read_key(secret_file, "curve-secret-key-file", key, err);
    if (rc) return rc;
    /* libzmq asks this socket about every CURVE client; it must be there before the first connects. */
    sock->zap = zmq_socket(zmq, ZMQ_REP);
    if (!sock->zap || zmq_bind(sock->zap, "inproc://zeromq.zap.01"))
        return helm_fail(err, HELM_E_IO, "authentication socket: %s", zmq_strerror(errno));
    rc = set_int(sock->zap, ZMQ_LINGER, 0, err);
    if (rc) return rc;
    rc = open_router(zmq, "inproc://helm.events.secure", &sock->bounds, &sock->secure, &sock->secure_events,
                     err);
    if (!rc) rc = set_int(sock->secure, ZMQ_CURVE_SERVER, 1, err);
    if (!rc && (zmq_setsockopt(sock->secure, ZMQ_CURVE_SECRETKEY, key, KEY_TEXT + 1) ||
                zmq_setsockopt(sock->secure, ZMQ_ZAP_DOMAIN, "helm", 4)))
        rc = helm_fail(err, HELM_E_FORMAT, "curve-secret-key-file %s: %s", secret_file, zmq_strerror(errno));
    memset(key, 0, sizeof key);
    return rc;
}

static int bind_endpoint(void *zmq, struct client_socket *sock, const char *endpoint, const char *secret_file,
                         const char *clients_file, struct helm_err *err)
{
    bool tcp = strncmp(endpoint, "tcp://", 6) == 0;
    int rc = 0;
    if (tcp && !sock->secure) rc = open_secure(zmq, sock, endpoint, secret_file, clients_file, err);
    if (!tcp && !sock->local)
        rc = open_router(zmq, "inproc://helm.events.local", &sock->bounds, &sock->local, &sock->local_events,
                         err);
    if (rc) return rc;
    /* The socket file must never exist with more rights than it ends with, hence the mask around bind. */
    mode_t mask = umask(0117);
    int bound = zmq_bind(tcp ? sock->secure : sock->local, endpoint);
    int saved = errno;
    umask(mask);
    if (bound) return helm_fail(err, HELM_E_IO, "cannot listen on %s: %s", endpoint, zmq_strerror(saved));
    if (!tcp && chmod(endpoint + strlen("ipc://"), 0660)) return helm_fail_errno(err, "mode of %s", endpoint);
    return 0;
}

int client_socket_open(void *zmq, const struct args_list *endpoints, const char *curve_secret_key_file,
                       const char *curve_clients_file, size_t frame_max, struct client_socket **out,
                       struct helm_err *err)
{
    *out = NULL;
    int rc = 0;
    struct client_socket *sock = calloc(1, sizeof *sock);
    if (sock) sock->client = calloc(CLIENT_SOCKET_CLIENTS_MAX, sizeof *sock->client);
    if (sock) sock->fd_life = calloc(FD_MAX, sizeof *sock->fd_life);
    if (!sock || !sock->client || !sock->fd_life)
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the client table");
    else
        sock->bounds = client_socket_bounds(frame_max);
    for (uint32_t i = 0; !rc && i < endpoints->count; i++)
        rc = bind_endpoint(zmq, sock, endpoints->item[i], curve_secret_key_file, curve_clients_file, err);
    if (rc)
        client_socket_close(&sock);
    else
        sock->next_handle = 1;
    *out = sock;
    return rc;
}

static void client_drop_backlog(struct client_socket *sock, struct client *c)
{
    sock->backlog_bytes -= c->backlog_bytes;
    while (c->first) {
        struct backlog_frame *next = c->first->next;
        free(c->first);
        c->first = next;
    }
    c->last = NULL;
    c->backlog_bytes = 0;
}

/* Without monitoring first: what libzmq's I/O thread still reports of a socket that is closed is an event
 * whose message nobody would free. */
static void close_monitored(void *socket)
{
    if (!socket) return;
    zmq_socket_monitor(socket, NULL, 0);
    zmq_close(socket);
}

void client_socket_close(struct client_socket **sock)
{
    struct client_socket *s = *sock;
    *sock = NULL;
    if (!s) return;
    close_monitored(s->local);
    close_monitored(s->secure);
    if (s->zap) zmq_close(s->zap);
    if (s->local_events) zmq_close(s->local_events);
    if (s->secure_events) zmq_close(s->secure_events);
    for (uint32_t i = 0; s->client && i < s->used; i++) client_drop_backlog(s, &s->client[i]);
    free(s->client);
    free(s->fd_life);
    free(s->allowed.key);
    free(s);
}

int client_socket_poll_items(struct client_socket *sock, zmq_pollitem_t items[CLIENT_SOCKET_POLL_MAX])
{
    int n = 0;
    if (sock->local) items[n++] = (zmq_pollitem_t){.socket = sock->local, .events = ZMQ_POLLIN};
    if (sock->secure) items[n++] = (zmq_pollitem_t){.socket = sock->secure, .events = ZMQ_POLLIN};
    if (sock->zap) items[n++] = (zmq_pollitem_t){.socket = sock->zap, .events = ZMQ_POLLIN};
    if (sock->local_events) items[n++] = (zmq_pollitem_t){.socket = sock->local_events, .events = ZMQ_POLLIN};
    if (sock->secure_events)
        items[n++] = (zmq_pollitem_t){.socket = sock->secure_events, .events = ZMQ_POLLIN};
    return n;
}

/* ---- authentication (ZeroMQ RFC 27) ------------------------------------------------------------------- */

void client_socket_authenticate(struct client_socket *sock)
{
    while (sock->zap) {
        /* version, request id, domain, address, identity, mechanism, credentials... */
        uint8_t part[7][256];
        int size[7] = {0}, count = 0, more = 1;
        size_t more_size = sizeof more;
        while (more) {
            uint8_t surplus[256];
            bool kept = count < 7;
            int n = zmq_recv(sock->zap, kept ? part[count] : surplus, sizeof surplus, ZMQ_DONTWAIT);
            if (n < 0) return;
            if (kept) size[count] = n > 256 ? 256 : n;
            count++;
            if (zmq_getsockopt(sock->zap, ZMQ_RCVMORE, &more, &more_size)) return;
        }
        bool ok = false;
        /* Which key, whatever its place in the file is: a property of all that this connection sends, see peer_of. */
        char user[2 * CURVE_PEER_BYTES + 1] = "";
        if (count == 7 && size[5] == 5 && memcmp(part[5], "CURVE", 5) == 0 && size[6] == 32)
            for (uint32_t i = 0; i < sock->allowed.count && !ok; i++)
                ok = memcmp(sock->allowed.key[i], part[6], 32) == 0;
        for (int i = 0; ok && i < CURVE_PEER_BYTES; i++)
            snprintf(user + 2 * i, sizeof user - 2 * (size_t)i, "%02x", part[6][i]);
        if (!ok) log_warn("a TCP client was refused: its public key is not in curve-clients-file");
        zmq_send(sock->zap, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(sock->zap, part[1], (size_t)size[1], ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(sock->zap, ok ? "200" : "400", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(sock->zap, ok ? "OK" : "No", 2, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(sock->zap, user, strlen(user), ZMQ_SNDMORE | ZMQ_DONTWAIT);
        zmq_send(sock->zap, "", 0, ZMQ_DONTWAIT);
    }
}

/* ---- clients ------------------------------------------------------------------------------------------ */

static struct client *client_of(struct client_socket *sock, uint64_t handle)
{
    if (handle == 0) return NULL;
    for (uint32_t i = 0; i < sock->used; i++)
        if (sock->client[i].handle == handle) return &sock->client[i];
    return NULL;
}

static void client_forget_if_idle(struct client *c)
{
    if (c->open_requests == 0 && !c->first) c->handle = 0;
}

/* Finds or makes the entry; NULL when the table is full. */
static struct client *client_enter(struct client_socket *sock, bool secure, const void *id, size_t id_size)
{
    struct client *vacant = NULL;
    for (uint32_t i = 0; i < sock->used; i++) {
        struct client *c = &sock->client[i];
        if (c->handle == 0) {
            if (!vacant) vacant = c;
        } else if (c->secure == secure && c->routing_id_size == id_size &&
                   !memcmp(c->routing_id, id, id_size)) {
            return c;
        }
    }
    if (!vacant && sock->used < CLIENT_SOCKET_CLIENTS_MAX) vacant = &sock->client[sock->used++];
    if (!vacant) return NULL;
    memset(vacant, 0, sizeof *vacant);
    vacant->handle = sock->next_handle++;
    memcpy(vacant->routing_id, id, id_size);
    vacant->routing_id_size = (uint8_t)id_size;
    vacant->secure = secure;
    vacant->fd = -1;
    return vacant;
}

void client_socket_retain(struct client_socket *sock, uint64_t client)
{
    struct client *c = client_of(sock, client);
    if (c) c->open_requests++;
}

void client_socket_release(struct client_socket *sock, uint64_t client)
{
    struct client *c = client_of(sock, client);
    if (!c) return;
    if (c->open_requests > 0) c->open_requests--;
    client_forget_if_idle(c);
}

/* ---- connections that close ---------------------------------------------------------------------------- */

/* A descriptor number may be given to a new connection before the old one's end was read here. libzmq reports
 * ACCEPTED before a connection's first frame can arrive, so whoever reads all events before it looks at a
 * frame's descriptor knows which life of that number the frame belongs to. */

void client_socket_on_gone(struct client_socket *sock, void (*gone)(void *context, uint64_t client),
                           void *context)
{
    sock->gone = gone;
    sock->gone_context = context;
}

static void connection_closed(struct client_socket *sock, int fd)
{
    for (uint32_t i = 0; i < sock->used; i++) {
        struct client *c = &sock->client[i];
        if (c->handle == 0 || c->fd != fd || c->fd_life != sock->fd_life[fd]) continue;
        client_drop_backlog(sock, c);
        c->fd = -1;
        if (c->open_requests > 0 && sock->gone) sock->gone(sock->gone_context, c->handle);
        client_forget_if_idle(c);
    }
}

static void take_events(struct client_socket *sock, void *events)
{
    uint8_t data[6], address[256];
    while (events && zmq_recv(events, data, sizeof data, ZMQ_DONTWAIT) == (int)sizeof data) {
        uint16_t event;
        uint32_t fd;
        memcpy(&event, data, sizeof event);
        memcpy(&fd, data + sizeof event, sizeof fd);
        zmq_recv(events, address, sizeof address, ZMQ_DONTWAIT); /* the second part, of no interest */
        if (fd >= FD_MAX) continue;
        if (event == ZMQ_EVENT_ACCEPTED)
            sock->fd_life[fd]++;
        else
            connection_closed(sock, (int)fd);
    }
}

void client_socket_watch(struct client_socket *sock)
{
    take_events(sock, sock->local_events);
    take_events(sock, sock->secure_events);
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

/* libzmq asks the kernel about a local connection when it is made, and says "NAME:UID:GID:PID" of it. */
static uint64_t peer_of(zmq_msg_t *message, bool secure)
{
    const uint64_t keys = UINT64_C(1) << 63; /* behind those of users */
    const char *text = zmq_msg_gets(message, secure ? "User-Id" : "Peer-Address");
    unsigned long long key;
    unsigned number, gid;
    int pid;
    if (!text) return 0;
    if (secure) return sscanf(text, "%llx", &key) == 1 ? keys | key : 0;
    text = strchr(text, ':');
    return text && sscanf(text, ":%u:%u:%d", &number, &gid, &pid) == 3 ? (uint64_t)number + 1 : 0;
}

/* [routing id] [empty delimiter]? [frame]; further parts are read and thrown away. */
static bool receive_from(struct client_socket *sock, bool secure, struct client_frame *frame)
{
    void *socket = secure ? sock->secure : sock->local;
    zmq_msg_t id;
    zmq_msg_init(&id);
    if (!socket || zmq_msg_recv(&id, socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&id);
        return false;
    }
    zmq_msg_init(&frame->message);
    bool more = zmq_msg_more(&id), delimiter = false;
    int parts = 0;
    frame->bytes = 0;
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&part);
            break;
        }
        more = zmq_msg_more(&part);
        frame->bytes += zmq_msg_size(&part);
        if (parts == 0 && !delimiter && more && zmq_msg_size(&part) == 0)
            delimiter = true;
        else if (parts++ == 0)
            zmq_msg_move(&frame->message, &part);
        zmq_msg_close(&part);
    }
    frame->too_many_parts = parts != 1;
    client_socket_watch(sock);
    int fd = zmq_msg_get(&frame->message, ZMQ_SRCFD);
    frame->peer = peer_of(&frame->message, secure);
    size_t id_size = zmq_msg_size(&id);
    struct client *c =
        id_size <= ROUTING_ID_MAX ? client_enter(sock, secure, zmq_msg_data(&id), id_size) : NULL;
    zmq_msg_close(&id);
    if (c) {
        c->delimiter = delimiter;
        c->fd = fd >= 0 && fd < FD_MAX ? fd : -1;
        c->fd_life = c->fd >= 0 ? sock->fd_life[fd] : 0;
    }
    frame->client = c ? c->handle : 0;
    return true;
}

bool client_socket_receive(struct client_socket *sock, struct client_frame *frame)
{
    bool secure_first = sock->next_turn++ & 1;
    return receive_from(sock, secure_first, frame) || receive_from(sock, !secure_first, frame);
}

void client_frame_close(struct client_socket *sock, struct client_frame *frame)
{
    zmq_msg_close(&frame->message);
    struct client *c = client_of(sock, frame->client);
    if (c) client_forget_if_idle(c);
}

/* ---- sending ------------------------------------------------------------------------------------------ */

/* 0, HELM_E_BUSY (would block), HELM_E_PEER (gone). The first part decides: once libzmq has taken the routing
 * id of a message it takes the rest of it too. */
static int send_now(struct client_socket *sock, const struct client *c, const void *data, size_t size)
{
    void *socket = c->secure ? sock->secure : sock->local;
    if (zmq_send(socket, c->routing_id, c->routing_id_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return errno == EAGAIN ? HELM_E_BUSY : HELM_E_PEER;
    if (c->delimiter && zmq_send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return HELM_E_PEER;
    return zmq_send(socket, data, size, ZMQ_DONTWAIT) < 0 ? HELM_E_PEER : 0;
}

int client_socket_send(struct client_socket *sock, uint64_t client, const uint8_t *data, size_t size,
                       bool final)
{
    struct client *c = client_of(sock, client);
    if (!c) return HELM_E_PEER;
    if (!c->first) {
        int rc = send_now(sock, c, data, size);
        if (rc != HELM_E_BUSY) {
            client_forget_if_idle(c);
            return rc;
        }
    }
    size_t limit = final ? CLIENT_BACKLOG_HARD_MAX : CLIENT_BACKLOG_MAX;
    size_t bytes = sizeof(struct backlog_frame) + size;
    bool fits = c->backlog_bytes + bytes <= limit && sock->backlog_bytes + bytes <= CLIENT_BACKLOG_ALL_MAX;
    struct backlog_frame *frame = fits ? malloc(bytes) : NULL;
    if (!frame) return HELM_E_BUSY;
    if (!c->first) c->moved_us = units_now_us();
    frame->next = NULL;
    frame->size = size;
    memcpy(frame->data, data, size);
    if (c->last)
        c->last->next = frame;
    else
        c->first = frame;
    c->last = frame;
    c->backlog_bytes += bytes;
    sock->backlog_bytes += bytes;
    return 0;
}

bool client_socket_flush(struct client_socket *sock)
{
    bool waiting = false;
    uint64_t now_us = units_now_us();
    for (uint32_t i = 0; i < sock->used; i++) {
        struct client *c = &sock->client[i];
        if (c->handle == 0 || !c->first) continue;
        int rc = 0;
        while (c->first) {
            struct backlog_frame *frame = c->first;
            rc = send_now(sock, c, frame->data, frame->size);
            if (rc) break;
            c->first = frame->next;
            if (!c->first) c->last = NULL;
            c->backlog_bytes -= frame->size + sizeof *frame;
            sock->backlog_bytes -= frame->size + sizeof *frame;
            c->moved_us = now_us;
            free(frame);
        }
        uint64_t handle = c->handle;
        if (rc == HELM_E_BUSY && now_us > c->moved_us + CLIENT_BACKLOG_STALL_US) rc = HELM_E_PEER;
        if (rc == HELM_E_PEER) {
            client_drop_backlog(sock, c);
            if (sock->gone) sock->gone(sock->gone_context, handle);
        } else if (rc == HELM_E_BUSY) {
            waiting = true;
        }
        if (c->handle == handle) client_forget_if_idle(c);
    }
    return waiting;
}
