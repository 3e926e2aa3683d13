/* Messages to and from clients: all connections, and the order in which they are served.
 *
 * Called by loop.c (poll items, watch, flush) and serve.c (receive, send). Speaks ZMTP itself (zmtp.h):
 * libzmq gathers a message until its last part, keeps what a closed connection sent, and bounds no reader.
 * Nothing here ever blocks.
 *
 * A client is a connection: a handle (uint64_t, never 0, never used twice). A peer is a user of this
 * machine, or a CURVE key. Turns, memory and connections are shared by peer first, then by connection:
 *   - the peer that was read longest ago is read next, of it the connection that was;
 *   - when the buffers of all connections hold more than CLIENT_HELD_MAX, the peer with most of it loses the
 *     connection with most of it;
 *   - when all connections are taken, a new one takes the place of an idle one of the peer that has most of
 *     them.
 * A connection whose answers wait is not read; beyond its bound an answer is HELM_E_BUSY. All others are
 * served meanwhile. A client that has gone is HELM_E_PEER. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/base/args.h"
#include "common/base/err.h"
#include "daemon/clients/endpoint.h"

#define CLIENT_SOCKET_CLIENTS_MAX 4096                     /* connections, where descriptors suffice */
#define CLIENT_HELD_MAX           ((size_t)128 << 20)      /* bytes in buffers of all of them */
#define CLIENT_FRAME_TAKEN        ((size_t)1 << 20)        /* of any context */
#define CLIENT_STALL_US           ((uint64_t)60 * 1000000) /* in which answers that wait must go on */
#define CLIENT_GREETING_US        ((uint64_t)5 * 1000000)  /* until a connection can have sent a message */
#define CLIENT_ROUND              ((size_t)1 << 20) /* bytes read between two calls of client_socket_watch */

struct client_socket;

struct client_frame {
    uint64_t client;
    uint64_t peer;    /* the sender: the same of all connections of one user, or of one CURVE key; never 0 */
    bool admin;       /* root, the daemon's user, a member of the administrators' group, or a key marked so */
    bool names_users; /* those, a member of the gateways' group, or a key marked so */
    const uint8_t *data; /* until client_frame_close */
    size_t size;
    bool too_many_parts; /* there is no data */
    size_t bytes;        /* of all its parts */
};

/* Bytes of one frame that are taken, when frames of `frame_max` are worth an answer: twice that, so that a
 * prompt that is too long is refused with a reason, and CLIENT_FRAME_TAKEN in any case. A connection that
 * sends a longer one is closed. */
size_t client_socket_frame_bound(size_t frame_max);

struct client_socket_options {
    const struct args_list *endpoints;                      /* resolved ipc:// and tcp:// */
    const char *curve_secret_key_file, *curve_clients_file; /* may be NULL when there is no tcp:// */
    struct endpoint_groups groups;                          /* whose members administer, and are gateways */
    size_t frame_max;                                       /* of frames that are worth an answer */
};
HELM_MUST_CHECK int client_socket_open(const struct client_socket_options *options,
                                       struct client_socket **out, struct helm_err *err);
/* Waiting answers have 200 ms to leave. */
void client_socket_close(struct client_socket **sock);
/* Reads the file of clients' public keys again; open connections stay. On an error the old keys hold. Nothing
 * happens without TCP endpoints. */
HELM_MUST_CHECK int client_socket_reload(struct client_socket *sock, const char *curve_clients_file,
                                         struct helm_err *err);

/* Fills in items[0 .. return); at most CLIENT_SOCKET_POLL_MAX. */
#define CLIENT_SOCKET_POLL_MAX 1
int client_socket_poll_items(struct client_socket *sock, zmq_pollitem_t items[CLIENT_SOCKET_POLL_MAX]);
/* Whether some connection has, or may have, a message that was not taken: the loop must not sleep. */
bool client_socket_ready(const struct client_socket *sock);

/* Once a round: takes connections, notes which may be read and written and which are closed, and lets go of
 * those that were late. */
void client_socket_watch(struct client_socket *sock);
/* True and a message, or false when none waits, or this round's share is read. */
bool client_socket_receive(struct client_socket *sock, struct client_frame *frame);
/* Also sends what was answered to it. */
void client_frame_close(struct client_socket *sock, struct client_frame *frame);

/* Copies the frame; it leaves with the next flush. `final`: the last message of a request, let through up to
 * the hard limit. */
HELM_MUST_CHECK int client_socket_send(struct client_socket *sock, uint64_t client, const uint8_t *data,
                                       size_t size, bool final);
/* A request of this client opens or closes. */
void client_socket_retain(struct client_socket *sock, uint64_t client);
void client_socket_release(struct client_socket *sock, uint64_t client);

/* The peer of a user whom a client named (endpoint.h); `peer`: the client's. */
uint64_t client_socket_named(const struct client_socket *sock, uint64_t peer, const char *user);

/* `gone` is called, from watch, flush and client_frame_close, for each client with open requests that has
 * left. */
void client_socket_on_gone(struct client_socket *sock, void (*gone)(void *context, uint64_t client),
                           void *context);
/* Writes what was queued since the last call. */
void client_socket_flush(struct client_socket *sock);
