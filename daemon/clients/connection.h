/* One client's connection: bytes in, messages out of them, answers, bytes out.
 *
 * Called by client_socket.c. Owns the descriptor and both buffers. Never blocks. Its memory is bounded: for
 * what comes in, one frame that is not whole yet, whose buffer grows with the bytes that are there and not
 * with those that are claimed; for what goes out, CONNECTION_ANSWERS_HARD_MAX. */
#pragma once

#include "daemon/clients/endpoint.h"
#include "daemon/clients/zmtp.h"

#define CONNECTION_READ             ((size_t)64 << 10) /* bytes taken from the kernel at a time */
#define CONNECTION_ANSWERS_PAUSE    ((size_t)64 << 10) /* that wait: beyond, nothing is read from it */
#define CONNECTION_ANSWERS_MAX      ((size_t)1 << 20)  /* that wait */
#define CONNECTION_ANSWERS_HARD_MAX ((size_t)4 << 20)  /* with the last ones of requests */

struct connection_bytes {
    uint8_t *data; /* the bytes in [at, end) count */
    size_t at, end, capacity;
};

struct connection {
    uint64_t handle;
    int fd;
    bool paused;             /* its answers wait: it is not read */
    bool admin, names_users; /* endpoint.h */
    /* In client_socket.c's list of those that may have a message; CONNECTION_NOT_READY: not there */
    uint32_t ready_at;
    uint32_t peer; /* entry of client_socket.c's table */
    uint32_t events;
    uint32_t open_requests;
    uint64_t served;   /* turn in which it was read last */
    uint64_t since_us; /* of its last message, or its beginning */
    uint64_t moved_us; /* when its answers last began to wait, or went on */
    size_t held;       /* bytes of its buffers, as they were counted last */
    struct zmtp session;
    struct connection_bytes in, out;
    struct connection *next; /* in a list of client_socket.c's */
    bool listed, doomed;
};

#define CONNECTION_NOT_READY UINT32_MAX

enum connection_event {
    CONNECTION_IDLE,   /* there is nothing more, for now */
    CONNECTION_TURN,   /* it has had its share of reading */
    CONNECTION_SHAKEN, /* a reply was queued; its peer may be known now */
    CONNECTION_MESSAGE,
    CONNECTION_END /* gone, or to be ended: session.why says why, "" if its peer closed it */
};

/* Greets. `fd` is the connection's from now on. HELM_E_NOMEM. */
HELM_MUST_CHECK int connection_open(int fd, const struct zmtp_door *door, size_t frame_max,
                                    struct connection **out, struct helm_err *err);
/* Closes and frees what it holds; the struct stays. */
void connection_shut(struct connection *c);

/* Up to the next event, of at most CONNECTION_READ bytes from the kernel, which are added to *read. A message
 * lies in the connection's buffer until the next call. */
enum connection_event connection_take(struct connection *c, struct zmtp_taken *taken, size_t *read);

static inline size_t connection_waiting(const struct connection *c)
{
    return c->out.end - c->out.at;
}

/* Queues an answer. HELM_E_BUSY: more than `limit` bytes would wait. */
HELM_MUST_CHECK int connection_answer(struct connection *c, const uint8_t *data, size_t size, size_t limit);
/* Writes what the kernel takes. HELM_E_PEER: the other end is gone. */
HELM_MUST_CHECK int connection_write(struct connection *c, uint64_t now_us);
