/* One client's connection. See connection.h. Called by client_socket.c; owns descriptor and buffers. */
#include "daemon/clients/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_LEAST ((size_t)4 << 10) /* kept while it is empty */
#define BUFFER_READ  ((size_t)16 << 10)

static void bytes_free(struct connection_bytes *b)
{
    free(b->data);
    *b = (struct connection_bytes){0};
}

/* Room for `size` bytes after the last one. */
static bool bytes_reserve(struct connection_bytes *b, size_t size)
{
    if (b->at == b->end) b->at = b->end = 0;
    if (b->capacity - b->end >= size) return true;
    if (b->at) {
        memmove(b->data, b->data + b->at, b->end - b->at);
        b->end -= b->at;
        b->at = 0;
    }
    if (b->capacity - b->end >= size) return true;
    size_t capacity = b->capacity ? b->capacity : BUFFER_LEAST;
    while (capacity - b->end < size) capacity *= 2;
    uint8_t *data = realloc(b->data, capacity);
    if (!data) return false;
    b->data = data;
    b->capacity = capacity;
    return true;
}

static void bytes_use(struct connection_bytes *b, size_t size)
{
    b->at += size;
    if (b->at == b->end) b->at = b->end = 0;
}

static void bytes_rest(struct connection_bytes *b)
{
    if (b->at == b->end && b->capacity > BUFFER_LEAST) bytes_free(b);
}

int connection_open(int fd, const struct zmtp_door *door, size_t frame_max, struct connection **out,
                    struct helm_err *err)
{
    struct connection *c = calloc(1, sizeof *c);
    *out = c;
    if (!c || !bytes_reserve(&c->out, ZMTP_GREETING)) {
        free(c);
        *out = NULL;
        return helm_fail(err, HELM_E_NOMEM, "no memory for a connection");
    }
    c->fd = fd;
    c->ready_at = CONNECTION_NOT_READY;
    zmtp_begin(&c->session, door, frame_max);
    zmtp_greet(&c->session, c->out.data);
    c->out.end = ZMTP_GREETING;
    return 0;
}

void connection_shut(struct connection *c)
{
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    bytes_free(&c->in);
    bytes_free(&c->out);
}

/* ---- in ----------------------------------------------------------------------------------------------- */

/* Bytes there, 0: none for now, -1: closed. */
static ssize_t read_some(struct connection *c, size_t wants)
{
    size_t room = wants > BUFFER_READ ? wants : BUFFER_READ;
    if (room > CONNECTION_READ) room = CONNECTION_READ;
    if (!bytes_reserve(&c->in, room)) return 0;
    ssize_t n;
    do n = recv(c->fd, c->in.data + c->in.end, room, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) c->in.end += (size_t)n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    return n <= 0 ? -1 : n;
}

static bool queue_reply(struct connection *c)
{
    const size_t size = c->session.reply_size;
    if (!bytes_reserve(&c->out, size)) return false;
    memcpy(c->out.data + c->out.end, c->session.reply, size);
    c->out.end += size;
    return true;
}

enum connection_event connection_take(struct connection *c, struct zmtp_taken *taken, size_t *read)
{
    for (bool first = true;; first = false) {
        struct connection_bytes *in = &c->in;
        const enum zmtp_event event = zmtp_take(&c->session, in->data + in->at, in->end - in->at, taken);
        in->at += taken->used; /* the bytes stay where they are until more are read */
        if (event == ZMTP_MESSAGE) return CONNECTION_MESSAGE;
        if ((event == ZMTP_REPLY || c->session.reply_size) && !queue_reply(c)) return CONNECTION_END;
        if (event == ZMTP_REPLY) return CONNECTION_SHAKEN;
        if (event == ZMTP_END) return CONNECTION_END;
        if (!first) return CONNECTION_TURN;
        bytes_rest(in);
        const size_t there = in->end - in->at;
        const ssize_t n = read_some(c, taken->wants > there ? taken->wants - there : 1);
        if (n <= 0) {
            bytes_rest(in);
            return n < 0 ? CONNECTION_END : CONNECTION_IDLE;
        }
        *read += (size_t)n;
    }
}

/* ---- out ---------------------------------------------------------------------------------------------- */

int connection_answer(struct connection *c, const uint8_t *data, size_t size, size_t limit)
{
    const size_t bytes = zmtp_wrapped_size(&c->session, size), waiting = connection_waiting(c);
    /* whatever its size: one is let through */
    if ((waiting && waiting + bytes > limit) || !bytes_reserve(&c->out, bytes)) return HELM_E_BUSY;
    zmtp_wrap(&c->session, data, size, c->out.data + c->out.end);
    c->out.end += bytes;
    return 0;
}

int connection_write(struct connection *c, uint64_t now_us)
{
    while (connection_waiting(c)) {
        const ssize_t n =
            send(c->fd, c->out.data + c->out.at, connection_waiting(c), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n < 0) return HELM_E_PEER;
        bytes_use(&c->out, (size_t)n);
        c->moved_us = now_us;
    }
    bytes_rest(&c->out);
    return 0;
}
