/* ZMTP 3 (https://rfc.zeromq.org/spec/23 and /37), the half of it that a daemon needs: a ROUTER's side of one
 * connection, over bytes that its caller reads and writes.
 *
 * Called by connection.c (and by tests/fuzz/fuzz_zmtp.c). Owns no descriptor and no buffer of messages: a
 * message is one frame, after an empty one at most, and lies where it was read. Nothing is kept of any other
 * while it goes by, so what a peer makes a session hold is one frame of its bound. A message of more than
 * ZMTP_PARTS_MAX parts, or of more bytes than a frame may have, ends the connection. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/clients/curve.h"

#define ZMTP_GREETING    64
#define ZMTP_PARTS_MAX   64
#define ZMTP_COMMAND_MAX 1024 /* bytes of a command */
#define ZMTP_REPLY_MAX   256

/* The keys that are let in. */
struct zmtp_door {
    struct curve_server server;
    bool (*lets_in)(void *context, const uint8_t key[CURVE_KEY]);
    void *context;
};

enum zmtp_state { ZMTP_GREETS, ZMTP_HELLO, ZMTP_SHAKES, ZMTP_OPEN, ZMTP_ENDED };

struct zmtp {
    enum zmtp_state state;
    const struct zmtp_door *door; /* NULL: no keys (the mechanism NULL) */
    size_t frame_max;
    bool delimiter; /* the last message began with an empty frame, and so do answers */
    /* of the message so far: it began with an empty frame, parts and bytes beside that one */
    bool opened;
    uint32_t parts;
    uint64_t bytes;
    uint64_t skip; /* bytes to come of a part that is not kept, and whether it has another after it */
    bool more;
    struct curve_session curve;
    uint8_t reply[ZMTP_REPLY_MAX]; /* the bytes to send at ZMTP_REPLY */
    size_t reply_size;
    char why[96]; /* ZMTP_END */
};

enum zmtp_event {
    ZMTP_WANTS, /* more bytes than there are */
    ZMTP_REPLY, /* session->reply is to be sent */
    ZMTP_MESSAGE,
    ZMTP_END /* the peer broke the protocol or its bounds, or may not come in; a reply may be left to be sent
              */
};

struct zmtp_taken {
    size_t used;    /* bytes that are done with, whatever the event is */
    size_t wants;   /* ZMTP_WANTS: bytes after those that there must be before it goes on */
    uint8_t *frame; /* ZMTP_MESSAGE: within the bytes taken, as are those of `used` */
    size_t size;
    size_t bytes;        /* of all its parts */
    bool too_many_parts; /* there is no frame */
};

/* `door`: borrowed. */
void zmtp_begin(struct zmtp *session, const struct zmtp_door *door, size_t frame_max);
/* The first bytes that a connection is sent. */
void zmtp_greet(const struct zmtp *session, uint8_t greeting[ZMTP_GREETING]);
/* Takes bytes up to the next event; they are opened in place. */
enum zmtp_event zmtp_take(struct zmtp *session, uint8_t *data, size_t size, struct zmtp_taken *taken);

/* A message of one frame to the peer: its size, and itself. */
size_t zmtp_wrapped_size(const struct zmtp *session, size_t size);
void zmtp_wrap(struct zmtp *session, const uint8_t *data, size_t size, uint8_t *to);
