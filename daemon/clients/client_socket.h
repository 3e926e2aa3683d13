/* Frames to and from clients: the only file that knows ZeroMQ for them.
 *
 * Called by loop.c (poll items, flush) and serve.c (receive, send). Two ROUTER sockets at most: one for the
 * local endpoints, one with CURVE for TCP. Nothing here ever blocks. A frame that cannot leave at once waits
 * in its client's backlog, which is bounded; whoever overflows it is told of by HELM_E_BUSY and everybody
 * else is served meanwhile. A client that has gone is HELM_E_PEER.
 *
 * A client that closes its connection is noticed at once, not only when something is sent to it: libzmq
 * reports which descriptor was closed, and every frame says through which descriptor it came.
 *
 * A client is a handle (uint64_t, never 0, never used twice); it lives while it has open requests or a
 * backlog. */
#ifndef HELM_DAEMON_CLIENTS_CLIENT_SOCKET_H
#define HELM_DAEMON_CLIENTS_CLIENT_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/args.h"
#include "common/base/err.h"

#define CLIENT_SOCKET_CLIENTS_MAX 4096
#define CLIENT_BACKLOG_MAX        ((size_t)1 << 20)   /* bytes that wait for one slow client */
#define CLIENT_BACKLOG_ALL_MAX    ((size_t)256 << 20) /* for all of them together */
/* After which a backlog nobody fetches is dropped. */
#define CLIENT_BACKLOG_STALL_US ((uint64_t)60 * 1000000)
#define CLIENT_BACKLOG_HARD_MAX                                                                              \
    ((size_t)4 << 20) /* with final messages, which are let through the first limit */
#define CLIENT_FRAME_TAKEN ((size_t)1 << 20)
#define CLIENT_RECEIVE_MAX ((size_t)4 << 20) /* that wait in libzmq from one connection */

struct client_socket;

struct client_frame {
    uint64_t client;
    uint64_t
        peer; /* who sent it: the same of all connections of one user, or of one CURVE key; 0: not known */
    zmq_msg_t message; /* client_frame_close */
    bool too_many_parts;
    size_t bytes; /* of all its parts */
};

/* What libzmq takes from one connection and holds until it is received here. */
struct client_socket_bounds {
    size_t frame_max;     /* a connection that sends a longer one is closed */
    uint32_t receive_hwm; /* frames; then the connection is not read, and its sender waits */
};
/* `frame_max`: of frames that are worth an answer. Up to twice that, and up to CLIENT_FRAME_TAKEN, they are
 * taken, so that a prompt that is too long is refused with a reason; and no more of them than
 * CLIENT_RECEIVE_MAX bytes hold, or one. */
struct client_socket_bounds client_socket_bounds(size_t frame_max);

/* `endpoints`: resolved ipc:// and tcp://; the key files may be NULL when there is no tcp://. */
HELM_MUST_CHECK int client_socket_open(void *zmq, const struct args_list *endpoints,
                                       const char *curve_secret_key_file, const char *curve_clients_file,
                                       size_t frame_max, struct client_socket **out, struct helm_err *err);
void client_socket_close(struct client_socket **sock);
/* Reads the public keys of those who may connect again; connections that are there stay. On an error the old keys
 * hold. Nothing happens without TCP endpoints. */
HELM_MUST_CHECK int client_socket_reload(struct client_socket *sock, const char *curve_clients_file,
                                         struct helm_err *err);

/* Fills in items[0 .. return); at most CLIENT_SOCKET_POLL_MAX. */
#define CLIENT_SOCKET_POLL_MAX 5
int client_socket_poll_items(struct client_socket *sock, zmq_pollitem_t items[CLIENT_SOCKET_POLL_MAX]);

/* Answers pending authentications of TCP peers. */
void client_socket_authenticate(struct client_socket *sock);
/* True and a frame, or false when none waits. */
bool client_socket_receive(struct client_socket *sock, struct client_frame *frame);
void client_frame_close(struct client_socket *sock, struct client_frame *frame);

/* Copies the frame. `final`: the last message of a request, let through up to the hard limit. */
HELM_MUST_CHECK int client_socket_send(struct client_socket *sock, uint64_t client, const uint8_t *data,
                                       size_t size, bool final);
/* A request of this client opens or closes. */
void client_socket_retain(struct client_socket *sock, uint64_t client);
void client_socket_release(struct client_socket *sock, uint64_t client);

/* `gone` is called, from receive, watch and flush, for each client with open requests or a backlog that has
 * left. */
void client_socket_on_gone(struct client_socket *sock, void (*gone)(void *context, uint64_t client),
                           void *context);
/* Takes note of connections that were closed. */
void client_socket_watch(struct client_socket *sock);
/* Tries every backlog again. True while any remains. */
bool client_socket_flush(struct client_socket *sock);

#endif
